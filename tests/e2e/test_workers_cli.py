"""`seamgate serve --workers`: signals, status and reload as an operator sees them; and what happens if it is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from support.cli import COMMAND_S, Running, denied_by, make_folder, proxy_port, seamgate

_TWO = "  - {id: two, deny: {hosts: [b.example]}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration on free ports, a CA and a token."""
    return make_folder(tmp_path)


def children(pid: int) -> list[int]:
    """Return the processes that this one started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    end = monotonic() + COMMAND_S
    while not condition():
        assert monotonic() < end, "it never came"


def gone(pid: int) -> bool:
    """Whether a process is over."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_operator_sees_one_gateway(folder: Path) -> None:
    """Status counts its workers, a reload is of all, SIGTERM ends all with exit code 0, and the journal is whole."""
    config = folder / "seamgate.yaml"
    config.write_text(config.read_text() + "admin: {listen: 'unix:admin.sock'}\nworkers: 1\n")
    with Running("serve", "--workers", "2", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"message": "gateway"'))
        (nursery,) = children(gateway.process.pid)
        workers = children(nursery)
        assert len(workers) == 2
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        shown = seamgate("status", home=folder)
        assert shown.returncode == 0, shown.stderr
        assert all(f"serving, pid {pid}, generation 1" in shown.stdout for pid in workers)
        policy = folder / "policy.yaml"
        policy.write_text(policy.read_text() + _TWO)
        done = seamgate("reload", home=folder)
        assert done.returncode == 0, done.stderr
        assert "generation 2" in done.stdout
        assert "restart" not in done.stdout  # --workers is no change of the file
        assert "Rule two denies it" in denied_by(folder, port, "http://b.example/")
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.ended() == 0
        assert all(gone(pid) for pid in workers)
    assert all(json.loads(line)["level"] for line in gateway.lines)
    assert not [line for line in gateway.lines if '"error"' in line]
    verified = seamgate("audit", "verify", str(folder / "audit" / "audit.jsonl"), home=folder)
    assert verified.returncode == 0


def test_workers_end_with_their_supervisor(folder: Path) -> None:
    """If the supervisor is killed, nothing can be recorded: the workers refuse and end, and another can start at once.

    A worker is not ended by the signals that a terminal or systemd sends to all processes of the gateway.
    """
    with Running("serve", "--workers", "2", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"message": "gateway"'))
        (nursery,) = children(gateway.process.pid)
        workers = [nursery, *children(nursery)]
        assert len(workers) == 3
        for pid in workers:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        with socket.create_connection(("127.0.0.1", port), timeout=COMMAND_S) as idle:
            gateway.process.kill()
            gateway.ended()
            assert idle.recv(1) == b""
        until(lambda: all(gone(pid) for pid in workers))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=COMMAND_S)
    with Running("serve", "--workers", "2", home=folder) as again:
        again.wait_for('"message": "gateway"')
    assert seamgate("audit", "verify", str(folder / "audit" / "audit.jsonl"), home=folder).returncode == 0


def test_a_successor_takes_over_with_workers_of_its_own(folder: Path) -> None:
    """SIGUSR2 hands the listeners to the same command anew: the port answers before and after, and one log is whole."""
    with Running("serve", "--workers", "2", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"message": "gateway"'))
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        gateway.process.send_signal(signal.SIGUSR2)
        pid = json.loads(gateway.wait_for("a successor takes over"))["pid"]
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        assert gateway.ended() == 0
        until(lambda: len(children(pid)) == 1 and len(children(children(pid)[0])) == 2)
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        os.kill(pid, signal.SIGTERM)
        gateway.wait_to_end()
    assert seamgate("audit", "verify", str(folder / "audit" / "audit.jsonl"), home=folder).returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_systemd_follows_a_restart(workers: str, folder: Path) -> None:
    """As systemd does (sd_notify(3), NotifyAccess=main), only the main process is heard: it names its successor.

    So that READY=1 of the successor counts, the process before it must have said MAINPID, and STOPPING is never said.
    """
    path = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        channel.bind(str(path))
        channel.settimeout(COMMAND_S)

        def heard() -> tuple[int, list[str]]:
            data, [(_, kind, credentials)], _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(12))
            assert kind == socket.SCM_CREDENTIALS
            return int.from_bytes(credentials[:4], sys.byteorder), data.decode().split("\n")

        with Running("serve", "--workers", workers, home=folder, env={"NOTIFY_SOCKET": str(path)}) as gateway:
            sender, said = heard()
            assert sender == gateway.process.pid and said[0] == "READY=1"
            gateway.process.send_signal(signal.SIGUSR2)
            sender, said = heard()
            assert sender == gateway.process.pid and said[0].startswith("MAINPID=")
            main = int(said[0].removeprefix("MAINPID="))
            sender, said = heard()
            assert (sender, said[0], said[-1]) == (main, "READY=1", f"MAINPID={main}")
            assert gateway.ended() == 0
            os.kill(main, signal.SIGHUP)
            for first in ("RELOADING=1", "READY=1"):
                sender, said = heard()
                assert (sender, said[0]) == (main, first)
            os.kill(main, signal.SIGTERM)
            assert heard() == (main, ["STOPPING=1"])
            gateway.wait_to_end()


_IN_NURSERY = "import sys\nif 'seamgate.workers.nursery' in sys.orig_argv:\n  "


def test_workers_that_can_not_start_stop_the_start(folder: Path) -> None:
    """If the process that they come from can't run, the gateway does not start either, with exit code 3."""
    (folder / "sitecustomize.py").write_text(_IN_NURSERY + "raise SystemExit(7)\n")
    done = seamgate("serve", "--workers", "2", home=folder, env={"PYTHONPATH": str(folder)})
    assert done.returncode == 3
    assert "the process that workers come from is gone" in done.stderr


def test_the_memory_of_all_processes_is_closed(folder: Path) -> None:
    """A guest of the same user can't look into a worker, at no time: it is forked from a process that forbids it.

    What is asked, at the beginning of each worker's life and at its end, is what a debugger would have to ask.
    """
    ask = "lambda when: os.write(2, b'dumpable=%d %b\\n' % (ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), when))"
    (folder / "sitecustomize.py").write_text(
        f"import atexit, ctypes, os\nask = {ask}\natexit.register(ask, b'end')\n"
        "os.register_at_fork(after_in_child=lambda: ask(b'fork'))\n"
    )
    with Running("serve", "--workers", "2", home=folder, env={"PYTHONPATH": str(folder)}) as gateway:
        gateway.wait_for('"message": "gateway"')
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.ended() == 0
        gateway.wait_to_end()
    said = [line for line in gateway.lines if line.startswith("dumpable=")]
    assert set(said) == {"dumpable=0 end\n", "dumpable=0 fork\n"}
    assert said.count("dumpable=0 end\n") == 4
    assert said.count("dumpable=0 fork\n") >= 2


def test_the_gateway_ends_if_its_nursery_is_killed(folder: Path) -> None:
    """A new one could be looked into while it starts, by whoever killed the last: so the gateway stops, and says so."""
    with Running("serve", "--workers", "2", home=folder) as gateway:
        gateway.wait_for('"message": "gateway"')
        (nursery,) = children(gateway.process.pid)
        workers = children(nursery)
        assert len(workers) == 2
        os.kill(nursery, signal.SIGKILL)
        assert json.loads(gateway.wait_for("come from is gone"))["level"] == "error"
        assert gateway.ended() == 2
        until(lambda: all(gone(pid) for pid in workers))
    assert seamgate("audit", "verify", str(folder / "audit" / "audit.jsonl"), home=folder).returncode == 0
