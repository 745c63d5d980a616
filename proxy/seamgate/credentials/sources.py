"""Where the values of credentials come from: environment, file, command.

Opened once per credential by the credentials plugin, on the event loop's thread. A source answers `current()` without
waiting where it can (the hot path), else `fetch()` is awaited. What a source knows of a value never reaches a message:
a command's standard error is thrown away, and its output is shown nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, Protocol

import structlog

from seamgate.credentials.config import CredentialConfig, SourceConfig
from seamgate.credentials.secret import MAX_SIZE_BYTES, Secret
from seamgate.errors import ConfigError, CredentialError
from seamgate.tasks import spawn

log = structlog.get_logger("seamgate.credentials")

KEPT_VALUES = 4
"""Values still redacted after a rotation: an upstream may answer with the one before, a stream may be hours old."""
FILE_CHECK_INTERVAL_S = 1.0
"""How often a file is looked at. A stat costs about as much as the rest of the supply."""
RETRY_AFTER_S = 2.0
"""How long a failed command is left alone, so that a burst of requests does not become a burst of processes."""
_REFRESH_AHEAD = 0.8
"""Part of refresh_s after which a command runs in the background, so that no request waits for it."""


class Source(Protocol):
    """Gives one credential's value.

    Attributes:
        known: the values that were given, newest first, at most `KEPT_VALUES`: what a redactor looks for.
    """

    known: tuple[Secret, ...]

    def current(self) -> Secret | None:
        """Return the value if it is at hand and fresh, else None. Never waits.

        Raises:
            CredentialError: it is known that there is none.
        """
        ...

    async def fetch(self) -> Secret:
        """Return the value, doing what it takes.

        Raises:
            CredentialError: there is none.
        """
        ...


def open_source(
    name: str,
    config: SourceConfig,
    *,
    environ: Mapping[str, str],
    monotonic: Callable[[], float],
    secret_variables: Collection[str] = (),
) -> Source:
    """Open the source of the credential with this name.

    Args:
        name: the credential's.
        config: where the value comes from.
        environ: the gateway's environment.
        monotonic: seconds.
        secret_variables: names of the variables that hold secrets of the gateway; a command gets none of them.

    Raises:
        ConfigError: the variable, file or program is missing or unusable: a gateway does not start without it.
    """
    if config.env is not None:
        return EnvSource(name, config.env, environ)
    if config.file is not None:
        return FileSource(name, config.file, monotonic)
    return CommandSource(name, config, monotonic, _without_secrets(environ, secret_variables))


def go_on_with(before: Source, after: Source) -> None:
    """Let a source that takes over from one of the same configuration begin with its value."""
    if isinstance(before, CommandSource) and isinstance(after, CommandSource):
        after.take_over(before)


def secret_variables(
    credentials: Mapping[str, CredentialConfig], guests: Mapping[str, Any], upstream_proxy: Any = None
) -> frozenset[str]:
    """Return the names of the environment variables that hold secrets: credentials, tokens, the proxy's password."""
    names = [each.source.env for each in credentials.values()]
    names += [guest.token.env for guest in guests.values() if guest.token is not None]
    login = None if upstream_proxy is None else upstream_proxy.login
    names += [login.password.env] if login is not None else []
    return frozenset(name for name in names if name)


def _without_secrets(environ: Mapping[str, str], secret_variables: Collection[str]) -> dict[str, str]:
    """Return the environment without those variables, and without any other that holds the same value."""
    secrets = {environ[name] for name in secret_variables if environ.get(name)}
    return {name: value for name, value in environ.items() if name not in secret_variables and value not in secrets}


class EnvSource:
    """An environment variable, read once at start."""

    __slots__ = ("_secret", "known")

    def __init__(self, name: str, variable: str, environ: Mapping[str, str]) -> None:
        value = environ.get(variable)
        if not value:
            state = "is not set" if value is None else "is empty"
            raise ConfigError(
                f"credential {name!r}: the environment variable {variable} {state}: export it before the gateway starts"
            )
        self._secret = _at_start(name, os.fsencode(value))
        self.known: tuple[Secret, ...] = (self._secret,)

    def current(self) -> Secret:
        """Return the value."""
        return self._secret

    async def fetch(self) -> Secret:
        """Return the value."""
        return self._secret


class FileSource:
    """A file, read at start and again when its modification time, size or inode changes.

    A file that is gone or unusable ends the credential at once: removing the file is how one revokes it.
    """

    __slots__ = ("_check_at", "_monotonic", "_name", "_path", "_problem", "_secret", "_stamp", "known")

    def __init__(self, name: str, path: str, monotonic: Callable[[], float]) -> None:
        self._name = name
        self._path = path
        self._monotonic = monotonic
        self._stamp: tuple[int, int, int] | None = None
        self._secret: Secret | None = None
        self._problem = ""
        self._check_at = 0.0
        self.known: tuple[Secret, ...] = ()
        try:
            self._look()
        except CredentialError as error:
            raise ConfigError(error.message) from None

    def current(self) -> Secret:
        """Return the value; looks at the file at most once in `FILE_CHECK_INTERVAL_S`.

        Raises:
            CredentialError: the file is gone, unreadable or holds no usable value.
        """
        if self._monotonic() >= self._check_at:
            self._look()
        if self._secret is None:
            raise CredentialError(self._problem)
        return self._secret

    async def fetch(self) -> Secret:
        """Return the value."""
        return self.current()

    def _look(self) -> None:
        self._check_at = self._monotonic() + FILE_CHECK_INTERVAL_S
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp == self._stamp and self._secret is not None:
                return
            value = self._read()
        except OSError as error:
            self._fail(f"credential {self._name!r}: the file {self._path} can't be read: {error.strerror}")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("a secret's file is open to other users: chmod 600 it", credential=self._name, path=self._path)
        try:
            self._secret = Secret(value, name=self._name)
        except CredentialError as error:
            self._fail(error.message)
        self._stamp = stamp
        self.known = _remember(self.known, self._secret)

    def _fail(self, problem: str) -> NoReturn:
        self._secret, self._stamp, self._problem = None, None, problem
        raise CredentialError(problem)

    def _read(self) -> bytes:
        # Non-blocking, so that a FIFO that nobody writes to can't stop the gateway.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return _strip_line_end(file.read(MAX_SIZE_BYTES + 3) or b"")


class CommandSource:
    """The standard output of a program, which gets the environment that it is given here and nothing on stdin.

    Runs before the first request and after `refresh_s`; however many requests wait, it runs once. While it fails, the
    last good value serves until it is `max_stale_s` old.
    """

    __slots__ = (
        "_config",
        "_environ",
        "_fetched_at",
        "_monotonic",
        "_name",
        "_retry_at",
        "_running",
        "_secret",
        "known",
    )

    def __init__(
        self, name: str, config: SourceConfig, monotonic: Callable[[], float], environ: Mapping[str, str]
    ) -> None:
        if config.command is None or shutil.which(config.command[0]) is None:
            program = config.command[0] if config.command else ""
            raise ConfigError(
                f"credential {name!r}: the program {program!r} is not found or not executable: give its whole path"
            )
        self._name = name
        self._config = config
        self._environ = environ
        self._monotonic = monotonic
        self._secret: Secret | None = None
        self._fetched_at = 0.0
        self._retry_at = float("-inf")
        self._running: asyncio.Task[Secret] | None = None
        self.known: tuple[Secret, ...] = ()

    def current(self) -> Secret | None:
        """Return the value while it is fresh; near the end of that, start the next run in the background."""
        if self._secret is None:
            return None
        age_s = self._monotonic() - self._fetched_at
        if age_s < self._config.refresh_s * _REFRESH_AHEAD:
            return self._secret
        if age_s < self._config.refresh_s:
            if self._monotonic() >= self._retry_at:
                self._start()
            return self._secret
        return None

    async def fetch(self) -> Secret:
        """Return a fresh value, or the last good one while the command fails.

        Raises:
            CredentialError: the command failed and there is no good value that is young enough.
        """
        secret = self.current()
        if secret is not None:
            return secret
        if self._monotonic() < self._retry_at:
            return self._last_good()
        try:
            # Shielded: the others that wait for the same run must not lose it when one gives up.
            return await asyncio.shield(self._start())
        except CredentialError:
            return self._last_good()

    def take_over(self, before: CommandSource) -> None:
        """Begin with what the source of the generation before has, unless this one has a newer value."""
        if before._secret is not None and (self._secret is None or before._fetched_at > self._fetched_at):
            self._secret, self._fetched_at = before._secret, before._fetched_at
            self.known = before.known

    def _last_good(self) -> Secret:
        if self._secret is not None and self._monotonic() - self._fetched_at < self._config.max_stale_s:
            return self._secret
        raise CredentialError(
            f"credential {self._name!r}: its command gave no value: run it by hand as the gateway's user to see why"
        )

    def _start(self) -> asyncio.Task[Secret]:
        if self._running is None or self._running.done():
            self._running = spawn(self._run(), name=f"credential {self._name}", on_error=self._failed)
        return self._running

    def _failed(self, error: BaseException) -> None:
        reason = error.message if isinstance(error, CredentialError) else type(error).__name__
        log.warning("refresh of a credential failed", credential=self._name, reason=reason)

    async def _run(self) -> Secret:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                output = await self._output()
            secret = Secret(_strip_line_end(output), name=self._name)
        except TimeoutError:
            self._retry_at = self._monotonic() + RETRY_AFTER_S
            raise CredentialError(
                f"credential {self._name!r}: its command took longer than {self._config.timeout_s:g} s"
            ) from None
        except CredentialError:
            self._retry_at = self._monotonic() + RETRY_AFTER_S
            raise
        self._secret, self._fetched_at = secret, self._monotonic()
        self.known = _remember(self.known, secret)
        return secret

    async def _output(self) -> bytes:
        reading, writing = os.pipe()
        try:
            process = await self._spawn(writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            output = await _read_capped(reading, MAX_SIZE_BYTES + 3)
            if len(output) >= MAX_SIZE_BYTES + 3:
                raise CredentialError(f"credential {self._name!r}: its command prints more than {MAX_SIZE_BYTES} bytes")
            status = await process.wait()
        except BaseException:
            await _end(process)
            raise
        if status != 0:
            raise CredentialError(f"credential {self._name!r}: its command ended with status {status}")
        return output

    async def _spawn(self, stdout: int) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(self._config.command or ()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=asyncio.subprocess.DEVNULL,  # tools print secrets there too
                start_new_session=True,
                env=self._environ,
            )
        except OSError as error:
            raise CredentialError(f"credential {self._name!r}: its command can't be run: {error.strerror}") from None


async def _read_capped(descriptor: int, limit_bytes: int) -> bytes:
    """Read a pipe to its end or to the limit, whichever is first, and close it.

    Its own pipe, not the subprocess's: that one stays open for as long as any grandchild holds it.
    """
    reader = asyncio.StreamReader(limit=limit_bytes)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    output = b""
    try:
        while len(output) < limit_bytes and (piece := await reader.read(limit_bytes - len(output))):
            output += piece
    finally:
        transport.close()
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command that was given up, and what it started: it has a session, so a group, of its own.

    One that came to its end is never treated so: what it left running (an agent, say) is meant.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()


def _strip_line_end(value: bytes) -> bytes:
    """Take off one trailing LF or CRLF, as editors and `echo` leave it."""
    return value.removesuffix(b"\n").removesuffix(b"\r")


def _remember(known: tuple[Secret, ...], secret: Secret) -> tuple[Secret, ...]:
    return (secret, *(each for each in known if each != secret))[:KEPT_VALUES]


def _at_start(name: str, value: bytes) -> Secret:
    try:
        return Secret(value, name=name)
    except CredentialError as error:
        raise ConfigError(error.message) from None
