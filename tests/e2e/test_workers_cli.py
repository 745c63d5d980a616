"""`seamgate serve --workers`: signals, status and reload as an operator sees them; and what happens if it is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
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
        workers = children(gateway.process.pid)
        assert len(workers) == 2
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        shown = seamgate("status", home=folder)
        assert shown.returncode == 0, shown.stderr
        assert f"worker 0    serving, pid {workers[0]}, generation 1" in shown.stdout
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
        workers = children(gateway.process.pid)
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


def test_a_worker_that_can_not_start_stops_the_start(folder: Path) -> None:
    """What only a worker finds out is the gateway's error, with exit code 2, and leaves no process."""
    (folder / "sitecustomize.py").write_text(
        "import sys\nif 'seamgate.workers.worker' in sys.orig_argv: raise SystemExit(7)\n"
    )
    done = seamgate("serve", "--workers", "2", home=folder, env={"PYTHONPATH": str(folder)})
    assert done.returncode == 2
    assert "a worker can't start: it ended" in done.stderr
