"""`seamgate.credentials.sources`: environment, file and command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
import uvloop
from structlog.testing import LogCapture

from seamgate.credentials.config import SourceConfig
from seamgate.credentials.sources import KEPT_VALUES, CommandSource, FileSource, Source, open_source
from seamgate.errors import ConfigError, CredentialError


@contextlib.contextmanager
def capture_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Collect what is logged, whatever the level that the test run sets."""
    before, capture = structlog.get_config(), LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        yield capture.entries
    finally:
        structlog.configure(**before)


class Clock:
    """Monotonic seconds that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock | None = None, environ: dict[str, str] | None = None, **source: Any) -> Source:
    return open_source("key", SourceConfig(**source), environ=environ or {}, monotonic=clock or Clock())


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


Runner = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Both loops: the gateway runs on uvloop, plugin authors' tests on asyncio's."""
    return cast("Runner", request.param)


# -- environment ---------------------------------------------------------------------------------------------------


def test_a_variable_is_read_at_start() -> None:
    """A later change of the environment changes nothing."""
    environ = {"KEY": "canary-value"}
    source = opened(environ=environ, env="KEY")
    environ["KEY"] = "other-value"
    secret = source.current()
    assert secret is not None
    assert secret.reveal() == b"canary-value"
    assert source.known == (secret,)


@pytest.mark.parametrize(("environ", "says"), [({}, "KEY is not set"), ({"KEY": ""}, "KEY is empty")])
def test_a_missing_variable_stops_the_start(environ: dict[str, str], says: str) -> None:
    """The message names credential and variable."""
    with pytest.raises(ConfigError, match=f"credential 'key'.*{says}"):
        opened(environ=environ, env="KEY")


@pytest.mark.parametrize("value", ["canary\r\nx: y", "canary\0", "canary\n", "canary"[:4]])
def test_a_value_that_can_not_be_sent_stops_the_start(value: str) -> None:
    """Header injection through a value is refused, and the value not shown."""
    with pytest.raises(ConfigError, match="credential 'key'") as caught:
        opened(environ={"KEY": value}, env="KEY")
    assert "cana" not in str(caught.value)


# -- file ------------------------------------------------------------------------------------------------------------


def secret_file(path: Path, value: bytes) -> str:
    path.write_bytes(value)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_file_is_read_without_its_last_line_break(tmp_path: Path, end: bytes) -> None:
    """As editors and echo leave it."""
    secret = opened(file=secret_file(tmp_path / "key", b"canary-value" + end)).current()
    assert secret is not None
    assert secret.reveal() == b"canary-value"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Within a second; former values stay known to the redactor, up to a number."""
    clock = Clock()
    path = tmp_path / "key"
    source = opened(clock, file=secret_file(path, b"value-number-0"))
    for number in range(1, 8):
        secret_file(path, b"value-number-%d" % number)
        os.utime(path, ns=(number, number))
        before = source.current()
        assert before is not None
        assert before.reveal() == b"value-number-%d" % (number - 1)
        clock.now += 1.0
        after = source.current()
        assert after is not None
        assert after.reveal() == b"value-number-%d" % number
    assert [each.reveal()[-1:] for each in source.known] == [b"7", b"6", b"5", b"4"][:KEPT_VALUES]


def test_a_removed_file_ends_the_credential(tmp_path: Path, run: Runner) -> None:
    """Removing it is how one revokes; when it is back, so is the credential."""
    clock = Clock()
    path = tmp_path / "key"
    source = opened(clock, file=secret_file(path, b"canary-value"))
    path.unlink()
    clock.now += 1.0
    for _ in range(2):
        with pytest.raises(CredentialError, match=r"credential 'key'.*can't be read"):
            source.current()
    secret_file(path, b"second-value")
    clock.now += 1.0
    assert source.current() == run(source.fetch())


def test_a_file_that_becomes_unusable_ends_the_credential(tmp_path: Path) -> None:
    """Half-written or emptied is not the old value."""
    clock = Clock()
    path = tmp_path / "key"
    source = opened(clock, file=secret_file(path, b"canary-value"))
    secret_file(path, b"")
    clock.now += 1.0
    with pytest.raises(CredentialError, match="is empty"):
        source.current()


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    """The message names credential and path."""
    with pytest.raises(ConfigError, match=r"credential 'key'.*absent can't be read: No such file"):
        opened(file=str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="can't be read"):
        opened(file=str(tmp_path))


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    """Nobody writes to it: there is no value."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match="is empty"):
        FileSource("key", str(tmp_path / "fifo"), Clock())


def test_a_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    """By name of credential and path."""
    path = tmp_path / "key"
    secret_file(path, b"canary-value")
    with capture_logs() as quiet:
        opened(file=str(path))
    path.chmod(0o644)
    with capture_logs() as logs:
        opened(file=str(path))
    assert quiet == []
    assert [(each["credential"], each["path"], each["log_level"]) for each in logs] == [("key", str(path), "warning")]
    assert "canary" not in str(logs)


# -- command -----------------------------------------------------------------------------------------------------------


def test_a_missing_program_stops_the_start() -> None:
    """The message names it."""
    with pytest.raises(ConfigError, match=r"credential 'key'.*'/nonexistent/op' is not found"):
        opened(command=("/nonexistent/op", "read"))


def test_arguments_are_not_given_to_a_shell(run: Runner) -> None:
    """What a shell would expand stays as it is."""
    source = opened(command=python("import sys; print(sys.argv[1])", "$(id) `id` ;id"))
    assert source.current() is None
    assert run(source.fetch()).reveal() == b"$(id) `id` ;id"
    assert source.current() is not None


def counting(path: Path) -> tuple[str, ...]:
    """A command that fails once `path` is gone, and counts its runs there."""
    code = "import sys; f = open(sys.argv[1], 'r+'); n = len(f.read()); f.write('x'); print(f'value-number-{n}')"
    path.touch()
    return python(code, str(path))


def test_however_many_wait_it_runs_once(tmp_path: Path, run: Runner) -> None:
    """And one that gives up does not take the run from the others."""
    path = tmp_path / "runs"

    async def scenario() -> set[bytes]:
        source = opened(command=counting(path))
        waiting = [asyncio.ensure_future(source.fetch()) for _ in range(100)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
        return {secret.reveal() for secret in await asyncio.gather(*waiting)}

    assert run(scenario()) == {b"value-number-0"}
    assert path.read_text() == "x"


def test_a_value_is_cached_then_refreshed_ahead_then_anew(tmp_path: Path, run: Runner) -> None:
    """Fresh: no run. Near the end: a run in the background while the old one serves. After it: nothing is at hand."""
    clock = Clock()
    path = tmp_path / "runs"

    async def scenario() -> None:
        source = opened(clock, command=counting(path), refresh_s=100.0)
        first = await source.fetch()
        clock.now += 79.0
        assert source.current() is first
        assert isinstance(source, CommandSource)
        clock.now += 2.0
        assert source.current() is first
        assert source._running is not None
        second = await source._running
        assert source.current() is second
        clock.now += 101.0
        assert source.current() is None
        assert (await source.fetch()).reveal() == b"value-number-2"
        assert [each.reveal()[-1:] for each in source.known] == [b"2", b"1", b"0"]

    run(scenario())


def test_the_last_good_value_serves_for_a_while(tmp_path: Path, run: Runner) -> None:
    """While the command fails, up to max_stale_s; a failure is not repeated for every request."""
    clock = Clock()
    path = tmp_path / "runs"

    async def scenario() -> None:
        source = opened(clock, command=counting(path), refresh_s=10.0, max_stale_s=60.0)
        good = await source.fetch()
        path.unlink()
        clock.now += 30.0
        assert await source.fetch() is good
        assert isinstance(source, CommandSource)
        failed = source._running
        assert await source.fetch() is good
        assert source._running is failed
        clock.now += 31.0
        with pytest.raises(CredentialError, match=r"credential 'key'.*run it by hand"):
            await source.fetch()
        path.touch()
        clock.now += 3.0
        assert (await source.fetch()).reveal() == b"value-number-0"

    with capture_logs() as logs:
        run(scenario())
    assert {each["event"] for each in logs} == {"refresh of a credential failed"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('canary-value'); raise SystemExit(3)", "ended with status 3"),
        ("import sys; sys.stderr.write('canary'); print()", "is empty"),
        ("import os; os.write(1, b'canary' * 100000)", "prints more than"),
        ("print('canary\\nsecond-line')", "line break"),
        ("import time; print('canary-value', flush=True); time.sleep(60)", "took longer than 0.5 s"),
        ("import subprocess; subprocess.Popen(['sleep', '60']); print('canary-value', flush=True)", "took longer"),
    ],
)
def test_a_bad_run_gives_no_value(code: str, reason: str, run: Runner) -> None:
    """Status, emptiness, size, line breaks, time, a child that holds the pipe; the log says which, never the output."""
    source = opened(command=python(code), timeout_s=0.5 if "took longer" in reason else 20)
    with capture_logs() as logs, pytest.raises(CredentialError) as caught:
        run(source.fetch())
    assert "canary" not in str(caught.value) + str(logs)
    assert [reason in each["reason"] for each in logs] == [True]
    assert source.known == ()


def test_a_command_that_was_given_up_is_ended(tmp_path: Path, run: Runner) -> None:
    """With what it started."""
    path = tmp_path / "pids"
    code = (
        "import subprocess, sys, os, time; child = subprocess.Popen(['sleep', '60']);"
        " open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}'); time.sleep(60)"
    )
    for patience_s in (0.5, 2, 8, 20):  # a machine that is busy may take longer to start two programs
        with capture_logs(), pytest.raises(CredentialError):
            run(opened(command=python(code, str(path)), timeout_s=patience_s).fetch())
        if path.exists() and len(path.read_text().split()) == 2:
            break
    assert path.exists()
    for pid in path.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(int(pid))
            readable, _, _ = select.select([descriptor], [], [], 40.0)  # readable once it has ended
            os.close(descriptor)
            assert readable


def test_a_command_gets_no_secret_of_the_gateway(run: Runner) -> None:
    """Neither a variable that is named as a secret, nor another one with the same value; the rest it needs to work."""
    environ = {"KEY": "canary-value", "COPY": "canary-value", "PATH": "/usr/bin:/bin", "HOME": "/root"}
    code = "import os; print(','.join(sorted(set(os.environ) & {'KEY', 'COPY', 'PATH', 'HOME'})))"
    config = SourceConfig(command=python(code))
    source = open_source("x", config, environ=environ, monotonic=Clock(), secret_variables={"KEY", "UNSET"})
    assert run(source.fetch()).reveal() == b"HOME,PATH"
