"""Outcomes CredentialLeak and AuditLoss, attacker guest code: the gateway's own files, while they rotate.

Each test runs `seamgate run` as a user does, with a program that looks for them; the host replaces what it finds.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli import COMMAND_S, environment, seamgate
from support.kvm import need_kvm
from support.lab import Lab
from support.netns import NOBODY, Guests
from support.upstream import HttpUpstream, echo

OLD, NEW = "sk-OLD-secret-000000000000", "sk-NEW-secret-111111111111"
# Says what it can read of the files that are named or found, each time it is told to: "NAME: what it got".
LOOK = """
import os, sys, socket
def read(path):
    try:
        return ascii(open(path, errors="replace").readline().strip()[:26])[1:-1]
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


LOOK_AROUND = """
for number in range(40):
    ask(number)
def look_around():
    for folder in sys.argv[1:]:
        for name in sorted(os.listdir(folder)):
            print(f"{folder}/{name}: {read(folder + '/' + name)}")
        for name in ("run.jsonl", "run.jsonl.head", "key", "ca.key", "ca.pem"):
            try:
                open(f"{folder}/{name}", "a").write("forged")
                print(f"WROTE {folder}/{name}")
            except OSError:
                pass
look_around()
print("ready", flush=True)
input()
look_around()
print("done")
"""


@pytest.mark.parametrize("kind", ["renamed", "behind links"])
def test_a_namespace_shows_no_secret_or_journal_that_rotated(tmp_path: Path, kind: str) -> None:
    """The folders are covered, not files that a rename brings to light: no value, and no journal to read or write."""
    place, secrets, runs = (tmp_path / name for name in ("work", "secrets", "runs"))
    for folder in (place, secrets, runs):
        folder.mkdir()
    secret = _secret_behind_links(secrets) if kind == "behind links" else secrets / "key"
    if kind == "renamed":
        secret.write_text(OLD)
    _configure(place, secret)
    (runs / "earlier.jsonl").write_text("an earlier run's")
    ca = tmp_path / ".local/share/seamgate/ca"
    looked_at = (secrets, runs, place / "audit", ca)
    options = ("--audit", str(runs / "run.jsonl"), "--isolation", "netns")
    command = (*options, "--", sys.executable, "-c", LOOK + LOOK_AROUND, *map(str, looked_at))
    out = _run(tmp_path, place, *command, meanwhile=lambda: _rotate(secrets, kind))
    seen = [line.partition(":")[0] for line in out.splitlines()]
    assert seen == [*(f"{ca}/{name}" for name in ("ca.bundle.pem", "ca.p12", "ca.pem"))] * 2 + ["done"], out
    assert len(list(runs.glob("run.jsonl.0*"))) > 3  # it did rotate
    assert seamgate("audit", "verify", str(runs / "run.jsonl"), home=tmp_path).returncode == 0


def test_journals_of_earlier_runs_are_kept_from_later_ones(tmp_path: Path) -> None:
    """Where journals are by default: a guest neither reads nor edits nor deletes what an earlier one is told of."""
    runs = tmp_path / ".local/state/seamgate/runs"
    run = ("run", "--isolation", "netns", "--")
    assert seamgate(*run, "true", home=tmp_path).returncode == 0
    before = {path: path.read_bytes() for path in runs.iterdir()}
    done = seamgate(*run, "sh", "-c", f"ls {runs.parent}; rm -rf {runs}; mv {runs.parent} {tmp_path}/x", home=tmp_path)
    assert (done.stdout, done.returncode) == ("", 1), done
    assert before and all(path.read_bytes() == text for path, text in before.items())


@pytest.mark.parametrize(
    ("secret", "audit", "named"),
    [
        ("work/key", "runs/run.jsonl", "work/key"),
        ("work/link", "runs/run.jsonl", "work/link"),
        ("work/folder/key", "runs/run.jsonl", "work/folder/key"),
        ("secrets/key", "work/run.jsonl", "work/run.jsonl"),
        ("secrets/linked", "runs/run.jsonl", "secrets/linked"),
    ],
    ids=["secret", "link", "link to a folder", "journal", "hard link"],
)
def test_what_can_not_be_covered_is_refused(tmp_path: Path, secret: str, audit: str, named: str) -> None:
    """The program works in the folder, or a hard link is elsewhere: it does not start, and is told why."""
    place, secrets = tmp_path / "work", tmp_path / "secrets"
    for folder in (place, secrets):
        folder.mkdir()
    for path in (place / "key", secrets / "key", secrets / "linked"):
        path.write_text(OLD)
    (place / "link").symlink_to(secrets / "key")
    (place / "folder").symlink_to(secrets)
    (place / "innocent").hardlink_to(secrets / "linked")
    _configure(place, tmp_path / secret)
    options = ("-c", "seamgate.yaml", "--audit", str(tmp_path / audit), "--isolation", "netns")
    done = seamgate("run", *options, "--", "echo", "ran", home=tmp_path, cwd=place)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert f"error: {tmp_path / named} " in done.stderr and " kept from the program" in done.stderr, done


AROUND = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind=None, flags=0, data=None):
    texts = [each and each.encode() for each in (source, target, kind)]
    if libc.mount(*texts, ctypes.c_ulong(flags), data and data.encode()):
        raise OSError(ctypes.get_errno(), "mount")
def umount(target):
    if libc.umount2(target.encode(), 2):
        raise OSError(ctypes.get_errno(), "umount")
top, folder = sys.argv[1:]
def tell(what, step):
    try:
        step()
        print(what, "done", os.listdir(folder))
    except OSError as error:
        print(what, "refused")
tell("write", lambda: open(folder + "/new", "w"))
tell("rename", lambda: os.rename(folder, folder + "2"))
tell("rename above", lambda: os.rename(os.path.dirname(folder), top + "/other"))
tell("remove", lambda: os.rmdir(folder))
tell("policy", lambda: open(top + "/policies/p.yaml", "a"))
tell("policy renamed", lambda: os.rename(top + "/policies", top + "/other"))
print("unshare", libc.unshare(0x10020000))
tell("umount", lambda: umount(folder))
tell("bind", lambda: mount(os.path.dirname(folder), top + "/mnt", flags=4096))
tell("remount", lambda: mount("none", folder, flags=32 | 4096))
tell("overlay", lambda: mount("o", top + "/mnt", "overlay", data=f"lowerdir={top}:{os.path.dirname(folder)}"))
mount("t", top + "/mnt", "tmpfs")  # so it was not the place that refused
print("seen", os.listdir(folder))
"""


@pytest.mark.parametrize("as_nobody", [False, True], ids=["as the gateway's user", "as nobody"])
async def test_no_way_leads_around_a_cover(as_nobody: bool) -> None:
    """Neither renaming what is around it, nor mounts in namespaces of the guest's own bring to light what it covers."""
    top = Path(tempfile.mkdtemp(prefix="seamgate-covers-"))
    folder = top / "above" / "secrets"
    try:
        for each in (folder, top / "policies", top / "mnt"):
            each.mkdir(parents=True)
        (folder / "key").write_text(OLD)
        (top / "policies" / "p.yaml").write_text("seamgate: 1\n")
        for each in (top, top / "above", folder, folder / "key", top / "mnt", top / "policies"):
            os.chown(each, *(NOBODY, NOBODY) if as_nobody else (-1, -1))
            each.chmod(0o755)
        async with Lab(HttpUpstream(echo)) as lab:
            guests = Guests(lab, hide=[folder / "key"], fix=[top / "policies" / "p.yaml"], as_nobody=as_nobody)
            done = await guests.run("/usr/bin/python3", "-c", AROUND, str(top), str(folder))
            tried = "write, rename, rename above, remove, policy, policy renamed, umount, bind, remount, overlay"
            refused = [f"{each} refused" for each in tried.split(", ")]
            assert done.out.splitlines() == [*refused[:6], "unshare 0", *refused[6:], "seen []"], done
            await lab.audited()
    finally:
        shutil.rmtree(top)
