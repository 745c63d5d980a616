"""`seamgate run --isolation netns` as a user meets it: labels, journal, what is missing, and the end of the gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cli import COMMAND_S, environment, seamgate

_ASK = ("curl", "-s", "--max-time", "60", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}")
# In a user namespace that permits no further ones, as in a container whose runtime forbids them.
_NO_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -m seamgate "$@"'


def _policy(folder: Path, rule: str) -> Path:
    (folder / "p.yaml").write_text(f"seamgate: 1\nrules:\n  - {rule}\n")
    path = folder / "seamgate.yaml"
    path.write_text(
        "entries: {proxy: {listen: 127.0.0.1:8080}, netns: {denied_names: refused}}\n"
        "guests: {g: {token: {env: NOT_SET_AND_NOT_NEEDED}}}\n"
        "policies: [p.yaml]\n"
    )
    return path


def _lines(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_labels_and_policy_hold_without_a_proxy(tmp_path: Path) -> None:
    """The guest's labels decide, its address is judged; the journal names the isolation and verifies."""
    rule = "{id: meta, allow: {hosts: [198.51.100.7], schemes: [http], methods: [HEAD]}, guests: {team: red}}"
    path = _policy(tmp_path, rule)
    for label, allowed in (("team=red", True), ("team=blue", False)):
        journal = tmp_path / "runs" / f"{label}.jsonl"
        options = ("-c", str(path), "--isolation", "netns", "--label", label, "--audit", str(journal))
        done = seamgate("run", *options, "--", *_ASK, "-I", "http://198.51.100.7/", home=tmp_path)
        assert done.stdout == "403", done.stderr
        (record,) = (line for line in _lines(journal) if line["kind"] == "request")
        assert record["guest"] == {"id": "run", "labels": dict([label.split("=")]), "isolation": "netns"}
        # Allowed by the rule, the address is still one that nothing may be sent to: nothing is dialled by this test.
        assert record["reason"] == ("address_forbidden" if allowed else "no_rule_matched")
        assert seamgate("audit", "verify", str(journal), home=tmp_path).returncode == 0


def test_what_the_machine_forbids_is_named(tmp_path: Path) -> None:
    """Exit code 3 and no run at all, where it was asked for by name; auto says what it takes instead, and why.

    That nothing holds the program is said whatever was asked for, also in the audit log: no silent loss of isolation.
    """
    command = ("unshare", "-Ur", "sh", "-c", _NO_NAMESPACES, sys.executable, "run")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options, "--", "echo", "ran"],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    done = run("--isolation", "netns")
    assert (done.returncode, done.stdout) == (3, ""), done
    assert "--isolation netns: user and network namespaces can't be made: " in done.stderr
    assert "seamgate doctor" in done.stderr
    journal = tmp_path / "runs" / "run.jsonl"
    for options in ((), ("--summary",), ("--no-summary", "--audit", str(journal))):
        done = run(*options)
        assert (done.returncode, done.stdout) == (0, "ran\n"), done
        assert "warning: isolation proxy: a program that ignores the proxy variables is not held" in done.stderr
        assert "Why not netns: user and network namespaces can't be made: " in done.stderr
    # A start and a stop for each isolation that was tried; the last one is the program's.
    facts = [line["gateway"]["facts"] for line in _lines(journal) if line["gateway"]["event"] == "start"][-1]
    assert facts["isolation"] == "proxy"
    assert facts["isolation_chosen"].startswith("auto. Why not netns: ")


# Parts of /proc are masked, as container engines do it: then the kernel permits no other /proc further in.
_MASKED = 'mount --bind /dev/null /proc/kallsyms && exec "$0" -m seamgate "$@"'


def test_without_a_process_namespace_there_is_no_run(tmp_path: Path) -> None:
    """The program could signal the gateway: exit code 3; auto takes the next; only a configuration permits it."""
    command = ("unshare", "-Urm", "sh", "-c", _MASKED, sys.executable)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        code = "import socket\ntry: socket.socket(socket.AF_UNIX)\nexcept OSError as error: print('ran', error.errno)"
        return subprocess.run(
            [*command, *options, sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    done = run("run", "--isolation", "netns", "--")
    assert (done.returncode, done.stdout) == (3, ""), done
    assert "--isolation netns: a process namespace can't be had, because parts of /proc are masked here" in done.stderr
    assert "{processes: shared}" in done.stderr
    path = _policy(tmp_path, "{id: a, allow: {hosts: [a.example]}}")
    done = run("run", "-c", str(path), "--isolation", "netns", "--")
    assert (done.returncode, done.stdout) == (3, ""), done
    path.write_text(path.read_text().replace("denied_names: refused", "processes: shared"))
    done = run("run", "-c", str(path), "--isolation", "netns", "--")
    assert (done.returncode, done.stdout) == (0, "ran 97\n"), done
    assert "the guest sees other processes" in done.stderr
    assert "it shares its processes with this machine" in done.stderr
    doctor = subprocess.run(
        [*command, "doctor"], env=environment(tmp_path), capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    assert "parts of /proc are masked here" in doctor.stdout
    auto = subprocess.run(
        [*command, "run", "--", "sh", "-c", "echo ran"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert (auto.returncode, auto.stdout) == (0, "ran\n"), auto
    assert "Why not netns: a process namespace can't be had" in auto.stderr


def test_a_guest_ends_with_its_gateway(tmp_path: Path) -> None:
    """Killed without a chance to clean up: nothing of the guest goes on without the gateway."""
    program = subprocess.Popen(
        [sys.executable, "-m", "seamgate", "run", "--isolation", "netns", "--", "sh", "-c", "echo up; sleep 600"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    program.kill()
    assert program.stdout.read() == ""  # the end comes once nobody holds the other side any more
    program.wait(timeout=COMMAND_S)
    program.stdout.close()


def test_secrets_are_hidden_and_the_ca_is_not(tmp_path: Path) -> None:
    """A guest of the same user finds the CA's certificate, but neither its key nor the journal."""
    journal = tmp_path / "runs" / "run.jsonl"
    ca = tmp_path / ".local/share/seamgate/ca"
    code = f"ls {ca} {journal.parent}; grep -c BEGIN.CERTIFICATE {ca}/ca.pem; echo x >> {journal}; echo x > {ca}/x"
    options = ("--isolation", "netns", "--audit", str(journal))
    done = seamgate("run", *options, "--", "sh", "-c", code, home=tmp_path)
    assert done.stdout.split() == [f"{ca}:", "ca.bundle.pem", "ca.p12", "ca.pem", f"{journal.parent}:", "1"], done
    assert os.stat(ca / "ca.key").st_size > 0
    assert seamgate("audit", "verify", str(journal), home=tmp_path).returncode == 0


def test_the_doctor_tries_what_a_guest_needs(tmp_path: Path) -> None:
    """Namespaces with rules in them are made for the try; where they can't be, it says what to do."""

    def finding(*command: str) -> str:
        done = subprocess.run(
            [*command, "doctor"], env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
        )
        (line,) = (line for line in done.stdout.splitlines() if "namespaces" in line and "->" not in line)
        return line

    assert finding(sys.executable, "-m", "seamgate").startswith("ok")
    assert "can't be made" in finding("unshare", "-Ur", "sh", "-c", _NO_NAMESPACES, sys.executable)
