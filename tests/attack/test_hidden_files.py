"""Outcomes CredentialLeak and AuditLoss, attacker guest code: the gateway's own files, while they rotate.

Each test runs `seamgate run` as a user does, with a program that looks for them; the host replaces what it finds.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import COMMAND_S, environment, seamgate
from support.kvm import need_kvm

OLD, NEW = "sk-OLD-secret-000000000000", "sk-NEW-secret-111111111111"
# Says what it can read of the files that are named or found, each time it is told to: "NAME: what it got".
LOOK = """
import os, sys, socket
def read(path):
    try:
        return open(path).readline().strip()[:26]
    except OSError as error:
        return type(error).__name__
def look():
    for path in sys.argv[2:]:
        print(path + ":", read(path))
    for name in sorted(os.listdir(sys.argv[1])):
        print(name + ":", read(sys.argv[1] + "/" + name))
def ask(number):
    try:
        with socket.create_connection((f"n{number}.test", 80)) as client:
            client.send(f"GET / HTTP/1.1\\r\\nHost: n{number}.test\\r\\n\\r\\n".encode())
            client.recv(999)
    except OSError:
        pass
"""


def _configure(folder: Path, secret: Path) -> None:
    """A credential from this file, and a journal that rotates every few denials."""
    rule = "{id: a, allow: {hosts: [api.test]}, credential: key}"
    (folder / "p.yaml").write_text(f"seamgate: 1\nrules:\n  - {rule}\n")
    source = json.dumps({"source": {"file": str(secret)}, "inject": {"header": "x-api-key"}, "hosts": ["api.test"]})
    (folder / "seamgate.yaml").write_text(
        "entries: {proxy: {listen: 127.0.0.1:0}}\npolicies: [p.yaml]\n"
        f"guests: {{g: {{token: {{env: NOT_NEEDED}}}}}}\ncredentials: {{key: {source}}}\n"
        "audit: {path: audit/audit.jsonl, max_size_bytes: 4096, keep: 100}\n"
    )


def _secret_behind_links(folder: Path) -> Path:
    """As Kubernetes mounts a secret: a link to a link to a folder, and the next value already there."""
    for version, value in (("v1", OLD), ("v2", NEW)):
        (folder / version).mkdir(parents=True)
        (folder / version / "key").write_text(value)
    (folder / "..data").symlink_to("v1")
    (folder / "key").symlink_to("..data/key")
    return folder / "key"


def _rotate(place: Path, kind: str) -> None:
    """Put the new value in the old one's place, as the host does it."""
    if kind == "renamed":
        (place / "key.new").write_text(NEW)
        (place / "key.new").rename(place / "key")
    else:
        (place / "..new").symlink_to("v2")
        (place / "..new").rename(place / "..data")


def _run(home: Path, cwd: Path, *arguments: str, meanwhile: Callable[[], None]) -> str:
    """Run a guest until it says "ready", do something, tell it to go on; return what else it says."""
    command = [sys.executable, "-m", "seamgate", "run", "-c", "seamgate.yaml", *arguments]
    with subprocess.Popen(
        command, cwd=cwd, env=environment(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        said = iter(program.stdout.readline, "ready\n")
        before = "".join(itertools.takewhile(bool, said))  # an end that comes early is one too
        meanwhile()
        out, _ = program.communicate("go\n", timeout=COMMAND_S)
        return before + out


@pytest.mark.parametrize("kind", ["renamed", "behind links"])
def test_a_microvm_reads_no_secret_or_journal_that_rotated(tmp_path: Path, kind: str) -> None:
    """What a name means is looked up at each open: no value before, between and after, no segment of the journal."""
    need_kvm()
    place = tmp_path / "work"
    place.mkdir()
    secret = _secret_behind_links(place) if kind == "behind links" else place / "key"
    if kind == "renamed":
        secret.write_text(OLD)
    _configure(place, secret)
    code = f"{LOOK}\nfor number in range(40): ask(number)\nlook()\nprint('ready', flush=True)\ninput()\nlook()"
    named = [str(place / name) for name in ("key", "v1/key", "v2/key", "..data/key")]
    options = ("--audit", "run.jsonl", "--isolation", "kvm")
    command = (*options, "--", sys.executable, "-c", code, str(place), *named)
    out = _run(tmp_path, place, *command, meanwhile=lambda: _rotate(place, kind))
    got = dict(line.split(": ", 1) for line in out.splitlines())
    journals = [name for name in got if name.startswith("run.jsonl")]
    assert len(journals) > 4, out
    assert {got[name] for name in (*journals, *named)} <= {"PermissionError", "FileNotFoundError"}, out
    assert "sk-" not in out and got["p.yaml"].startswith("seamgate: 1"), out
    assert seamgate("audit", "verify", str(place / "run.jsonl"), home=tmp_path).returncode == 0
