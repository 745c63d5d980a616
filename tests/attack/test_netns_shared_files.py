"""What a guest in a namespace could leave behind for others: roots that they trust, templates that they begin from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seamgate.ca.store import CaFiles
from support.cli import seamgate
from support.lab import Lab
from support.netns import Guests
from support.upstream import HttpUpstream, echo

WRITES = """
import os
for path in PATHS:
    for mode in ("r+b", "ab", "wb"):
        try:
            open(path, mode).write(b"# ROOTS OF A GUEST")
        except OSError as error:
            continue
        print("written", path, mode)
    for change in (os.unlink, os.truncate):
        try:
            change(path) if change is os.unlink else change(path, 0)
        except OSError as error:
            continue
        print("changed", path)
print("tried", len(PATHS))
"""
STORES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt"]


@pytest.fixture
def stores() -> list[str]:
    """The machine's own bundles of roots, by their real paths."""
    found = [os.path.realpath(each) for each in STORES if os.path.exists(each)]
    assert found
    return list(dict.fromkeys(found))


def writes(paths: list[str]) -> tuple[str, ...]:
    """Return a program that tries to change files. They're in its text: what a command names is left to its program."""
    return "/usr/bin/python3", "-c", f"PATHS = {paths}\n{WRITES}"


@pytest.mark.parametrize("as_nobody", [False, True], ids=["as the gateway's user", "as nobody"])
async def test_no_guest_writes_the_roots_that_others_trust(as_nobody: bool, stores: list[str]) -> None:
    """The machine's store is the gateway's own bundle in there: it is read, and stays as it was."""
    async with Lab(HttpUpstream(echo)) as lab:
        files = CaFiles(lab.folder / "ca")
        before = files.bundle.read_bytes()
        if as_nobody:
            for folder in (lab.folder, files.directory):
                folder.chmod(0o755)
            os.chown(files.bundle, 65534, 65534)
        guests = Guests(lab, hide=[] if as_nobody else [files.key], as_nobody=as_nobody)
        done = await guests.run(*writes(stores))
        assert done.out.splitlines() == [f"tried {len(stores)}"], done
        assert files.bundle.read_bytes() == before
        done = await guests.run("/usr/bin/cat", stores[0])
        assert done.out.encode() == before
        await lab.audited()


def test_no_guest_writes_what_microvms_begin_from(tmp_path: Path) -> None:
    """Templates are read and not changed, none is put there, and where there was no folder none can be made."""
    (tmp_path / "templates").mkdir()
    template = tmp_path / "templates" / "python.sgt"
    template.write_bytes(b"a template")
    for folder in ("templates", "later"):
        environment = {"SEAMGATE_TEMPLATES": str(tmp_path / folder)}
        places = [str(tmp_path / folder / name) for name in ("python.sgt", "planted.sgt")]
        run = ("run", "--no-summary", "--json", "--isolation", "netns", "--allow", "a.test", "--")
        done = seamgate(*run, *writes(places), home=tmp_path, env=environment)
        assert done.stdout.splitlines()[:1] == ["tried 2"], (done.stdout, done.stderr)
        assert os.listdir(tmp_path / folder) == (["python.sgt"] if folder == "templates" else [])
    assert template.read_bytes() == b"a template"
