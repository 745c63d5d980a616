"""What `seamgate doctor -c` looks at in a configuration: do its secrets resolve, and who holds its ports?

A secret's value is read as the gateway would read it, and thrown away: neither it nor its length is shown. The command
of a credential is run once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from seamgate.audit.head import is_locked
from seamgate.cli.findings import Finding, Level, Setting
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.sources import Source, open_source, secret_variables
from seamgate.entry.identity import GuestConfig
from seamgate.errors import SeamgateError
from seamgate.exposure import find_exposure

_LISTENING = "0A"  # Source: the kernel's net/tcp_states.h


def check_credentials(setting: Setting) -> Iterable[Finding]:
    """The sources of credentials give values, and those of guests' tokens too."""
    config = setting.config
    if config is None:
        return
    hidden = secret_variables(config.credentials, config.guests, config.upstream_proxy)
    for name, credential in config.credentials.items():
        yield _credential(name, credential, hidden)
    for name, guest in config.guests.items():
        if guest.token is not None:
            yield _token(name, guest)


def _credential(name: str, credential: CredentialConfig, hidden: frozenset[str]) -> Finding:
    check, source = f"credential {name}", credential.source
    if source.env is not None and not os.environ.get(source.env):
        advice = "it has to be set where the gateway starts, which may be elsewhere than here"
        return Finding(check, Level.WARN, f"the environment variable {source.env} is not set here", advice)
    if source.file is not None and _open_to_others(source.file):
        return Finding(check, Level.WARN, f"{source.file} is open to other users", f"`chmod 600 {source.file}`")
    try:
        opened = open_source(name, source, environ=os.environ, monotonic=time.monotonic, secret_variables=hidden)
        asyncio.run(_fetch(opened))
    except SeamgateError as error:
        return Finding(check, Level.FAIL, error.message, "requests that need it are denied until that is mended")
    where = source.env or source.file or (source.command or ("",))[0]
    kind = "variable" if source.env else "file" if source.file else "command"
    return Finding(check, Level.OK, f"the {kind} {where} gives a value")


async def _fetch(opened: Source) -> None:
    await opened.fetch()


def _token(name: str, guest: GuestConfig) -> Finding:
    token = guest.token
    assert token is not None
    check = f"guest {name}"
    if token.env is not None and not os.environ.get(token.env):
        advice = "it has to be set where the gateway starts, which may be elsewhere than here"
        return Finding(check, Level.WARN, f"the environment variable {token.env} of its token is not set here", advice)
    try:
        token.digest(name)
    except SeamgateError as error:
        return Finding(check, Level.FAIL, error.message, "the gateway does not start without it")
    return Finding(check, Level.OK, "its token can be checked")


def check_exposure(setting: Setting) -> Iterable[Finding]:
    """Nobody but those who are meant to poses as a guest, or writes what the gateway obeys."""
    if setting.config is not None:
        for found in find_exposure(setting.config):
            problem, _, advice = found.message.rpartition(": ")
            yield Finding("exposure", Level.WARN, problem, advice)


def _open_to_others(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False  # reading it will say why


def check_ports(setting: Setting) -> Iterable[Finding]:
    """The listeners' ports are free, or held by the gateway that is to have them."""
    for address, port in setting.listen:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            yield (
                _taken(setting, address, port)
                if error.errno == errno.EADDRINUSE
                else Finding(
                    "ports", Level.FAIL, f"{address} port {port}: {error.strerror}", "listen on another address or port"
                )
            )
        else:
            yield Finding("ports", Level.OK, f"{address} port {port} is free")


def _taken(setting: Setting, address: str, port: int) -> Finding:
    place = f"{address} port {port}"
    for process, command in _holders(port):
        if _is_gateway(command):
            return Finding("ports", Level.OK, f"{place}: your own running gateway holds it (process {process})")
        told = " ".join(command)[:80]
        advice = "stop it, or listen elsewhere"
        return Finding("ports", Level.FAIL, f"{place} is in use by process {process}, `{told}`", advice)
    if setting.config is not None and _writes_now(setting.config.audit.file):
        # A gateway hides what it has open even from its own user.
        return Finding("ports", Level.OK, f"{place}: in use, and your own gateway is running: it writes the journal")
    advice = "`ss -ltnp` as root says by whom; stop it, or listen elsewhere"
    return Finding("ports", Level.FAIL, f"{place} is in use", advice)


def _writes_now(journal: Path) -> bool:
    try:
        return is_locked(journal)
    except OSError:
        return False


def _is_gateway(command: list[str]) -> bool:
    """Whether this is a command line of `seamgate serve`, by script or by module."""
    names = [Path(word).name for word in command]
    return "serve" in names and "seamgate" in names[: names.index("serve")]


def _holders(port: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the processes that listen on the port, as far as this user may see them: number and command line."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            held = any(os.readlink(link) in inodes for link in (folder / "fd").iterdir())
            if held:
                text = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
                yield int(folder.name), [word for word in text.split("\0") if word]
        except OSError:
            continue  # it ended, or is another user's


def _listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
