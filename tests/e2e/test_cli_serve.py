"""`seamgate serve`: start, logs, reload, stop, as an operator and systemd see them."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from support.cli import COMMAND_S, POLICY, Running, denied_by, make_folder, proxy_port, seamgate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration on free ports, a CA and a token."""
    return make_folder(tmp_path)


def test_it_starts_serves_and_stops(folder: Path) -> None:
    """Each log line is JSON where there is no terminal; SIGTERM ends it with exit code 0; the journal is whole."""
    with Running("serve", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"start"'))
        assert "No rule allows" in denied_by(folder, port, "http://b.example/")
        gateway.process.send_signal(signal.SIGTERM)
        gateway.wait_for('"stop"')
        assert gateway.ended() == 0
    assert all(json.loads(line)["level"] for line in gateway.lines)
    verified = seamgate("audit", "verify", str(folder / "audit" / "audit.jsonl"), home=folder)
    assert verified.returncode == 0


def test_the_doctor_knows_the_gateway_that_it_is_asked_about(folder: Path) -> None:
    """A port that the user's own running gateway holds is as it should be; once it is gone, it is free."""
    with Running("serve", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"start"'))
        config = folder / "seamgate.yaml"
        config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))

        def told() -> list[str]:
            done = seamgate("doctor", "-c", str(config), "--json", home=folder)
            findings = json.loads(done.stdout)["findings"]
            return [each["level"] + " " + each["message"] for each in findings if each["check"] == "ports"]

        assert told() == [
            f"ok 127.0.0.1 port {port}: your own running gateway holds it (process {gateway.process.pid})"
        ]
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.ended() == 0
        assert told() == [f"ok 127.0.0.1 port {port} is free"]


def test_a_reload_takes_the_new_policy(folder: Path) -> None:
    """SIGHUP judges by the new file; what can't be reloaded is named."""
    with Running("serve", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"start"'))
        assert "denies" not in denied_by(folder, port, "http://b.example/")
        (folder / "policy.yaml").write_text(POLICY + "  - {id: two, deny: {hosts: [b.example]}}\n")
        config = folder / "seamgate.yaml"
        config.write_text(config.read_text() + "limits: {connections: 77}\n")
        gateway.process.send_signal(signal.SIGHUP)
        assert json.loads(gateway.wait_for('"reloaded"'))["generation"] == 2
        assert json.loads(gateway.wait_for("restart"))["sections"] == "limits"
        assert "Rule two denies it" in denied_by(folder, port, "http://b.example/")


def test_a_bad_reload_changes_nothing_and_is_loud(folder: Path) -> None:
    """A file that can't be used is an error in the log, with its place; the old policy stays in force."""
    with Running("serve", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"start"'))
        (folder / "policy.yaml").write_text("seamgate: 1\nrules: [{id: one, alow: {}}]\n")
        gateway.process.send_signal(signal.SIGHUP)
        line = json.loads(gateway.wait_for("reload refused"))
        assert line["level"] == "error"
        assert re.search(r"policy\.yaml:2:\d+: .*alow", line["problem"])
        assert "nearest rule one" in denied_by(folder, port, "http://a.example:81/")


def test_a_second_signal_cuts_what_is_under_way(folder: Path) -> None:
    """The first signal waits for a request under way, the second one does not; the journal is closed in order."""
    with Running("serve", "--grace", "60", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"start"'))
        token = (folder / "agent.token").read_text().strip()
        with socket.create_connection(("127.0.0.1", port), timeout=COMMAND_S) as agent:
            agent.sendall(
                b"POST http://a.example:80/ HTTP/1.1\r\nhost: a.example\r\nproxy-authorization: Bearer "
                + token.encode() + b"\r\ncontent-length: 5\r\n\r\n"
            )  # fmt: skip
            gateway.process.send_signal(signal.SIGTERM)
            gateway.wait_for('"stopping"')
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.ended() == 0
    assert seamgate("audit", "verify", str(folder / "audit" / "audit.jsonl"), home=folder).returncode == 0


def test_systemd_is_told(folder: Path) -> None:
    """READY after the start, RELOADING and READY around a reload, STOPPING before the stop."""
    path = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(COMMAND_S)
        with Running("serve", home=folder, env={"NOTIFY_SOCKET": str(path)}) as gateway:
            assert channel.recv(4096).startswith(b"READY=1\n")
            gateway.process.send_signal(signal.SIGHUP)
            assert channel.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert channel.recv(4096).startswith(b"READY=1\n")
            gateway.process.send_signal(signal.SIGINT)
            assert channel.recv(4096) == b"STOPPING=1"
            assert gateway.ended() == 0


def test_a_port_that_is_taken_is_a_missing_prerequisite(folder: Path) -> None:
    """Exit code 3, and the message names the entry and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = folder / "seamgate.yaml"
        config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        done = seamgate("serve", home=folder)
    assert done.returncode == 3
    assert f"the entry proxy can't listen on 127.0.0.1:{port}" in done.stderr


def test_a_journal_that_is_in_use_is_refused(folder: Path) -> None:
    """Two gateways can't write one journal: the second does not start and says which file it is about."""
    with Running("serve", home=folder) as gateway:
        gateway.wait_for('"start"')
        done = seamgate("serve", home=folder)
    assert done.returncode == 2
    assert "audit.jsonl" in done.stderr


@pytest.mark.parametrize("command", [("serve",), ("run", "--", "sh", "-c", "echo '\"start\"' >&2; exec sleep 20")])
def test_the_gateways_memory_is_closed_to_its_user(folder: Path, command: tuple[str, ...]) -> None:
    """A guest of the same user can't read a key out of the gateway's environment or memory: prctl(2) forbids it.

    What asks here is a debugger's question, answered by a hook that the gateway's own interpreter runs at its exit.
    """
    (folder / "sitecustomize.py").write_text(
        "import atexit, ctypes, os\n"
        "ask = lambda: os.write(2, b'dumpable=%d\\n' % ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "atexit.register(ask)\n"
    )
    with Running(*command, home=folder, env={"PYTHONPATH": str(folder)}) as gateway:
        gateway.wait_for('"start"')
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.wait_for("dumpable=") == "dumpable=0\n"
