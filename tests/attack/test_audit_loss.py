"""AuditLoss: nothing that happens to the gateway, its disk or its files makes a confirmed record vanish unseen.

Real processes, real signals, a real full file system.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.line import decode_line
from seamgate.audit.reading import read_lines, verify_journal
from seamgate.audit.record import AuditKind, AuditRecord, GapCause
from seamgate.audit.segments import finished_segments
from seamgate.audit.verify import Problem

_COMMON = """
import os, sys
from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.audit.record import AuditKind, AuditRecord, AuditRequest
from seamgate.errors import AuditError

def record(number, kind=AuditKind.REQUEST):
    return AuditRecord(1.8e9 + number, kind, id=f"r-{number}", request=AuditRequest("GET", path="/" + "x" * 200))
"""

# Confirms each write-ahead record on stdout; the terminal ones wait in memory, as in the gateway.
_WRITER = (
    _COMMON
    + """
journal = Journal(AuditConfig(path=sys.argv[1], max_size_bytes=16384, keep=1000))
number = 0
while True:
    number += 1
    journal.begin(record(number, AuditKind.BEGIN))
    os.write(1, b"%d\\n" % number)
    if number % 2:
        journal.append(record(number))
"""
)

# Fills a small disk, is refused, gets room again, goes on. Prints what was confirmed.
_FILLER = (
    _COMMON
    + """
import resource
mode, folder = sys.argv[1:]
path = os.path.join(folder, "audit.jsonl")
if mode == "tmpfs":
    with open(os.path.join(folder, "ballast"), "wb") as file:
        file.write(bytes(24 * 1024))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, resource.RLIM_INFINITY))
journal = Journal(AuditConfig(path=path, fsync="never"))
confirmed, refused = [], 0
for number in range(1, 1000):
    journal.append(record(number))
    try:
        journal.begin(record(-number, AuditKind.BEGIN))
    except AuditError:
        refused += 1
        if refused == 5:
            break
    else:
        confirmed += [number, -number]
assert refused == 5 and not journal.healthy
with open(path, "rb") as file:
    assert file.read().endswith(b"}\\n")
if mode == "tmpfs":
    os.unlink(os.path.join(folder, "ballast"))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert journal.flush() and journal.healthy
journal.begin(record(5000, AuditKind.BEGIN))
journal.close()
print(len(confirmed), max(confirmed))
"""
)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _ids(path: Path) -> list[tuple[str, AuditKind]]:
    return [(line.id, line.kind) for line in map(decode_line, read_lines(path)) if line.id]


@pytest.mark.parametrize("confirmations", [1, 7, 150])
def test_kill_9_loses_no_confirmed_record(tmp_path: Path, confirmations: int) -> None:
    """A gateway killed at any moment: each confirmed record is there, and each begun request gets its one end."""
    path = tmp_path / "audit.jsonl"
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, env=_environment()
    )  # fmt: skip
    assert writer.stdout is not None
    confirmed = 0
    for line in writer.stdout:
        confirmed = int(line)
        if confirmed >= confirmations:
            writer.send_signal(signal.SIGKILL)
            break
    rest = writer.stdout.read().split(b"\n")
    confirmed = max([confirmed, *(int(text) for text in rest[:-1] if text)])
    writer.stdout.close()
    assert writer.wait(timeout=60) == -signal.SIGKILL

    # As the crash left it: whole, or with a torn end that was never confirmed.
    report = verify_journal(path)
    assert report.fault is None or report.fault.problem is Problem.TORN
    begun = {name for name, kind in _ids(path) if kind is AuditKind.BEGIN}
    assert {f"r-{number}" for number in range(1, confirmed + 1)} <= begun

    Journal(AuditConfig(path=str(path), max_size_bytes=16384, keep=1000)).close()
    report = verify_journal(path)
    assert (report.fault, report.losses) == (None, [])
    # Ends that waited in memory went with the process; begun requests in the newest files get one at the start.
    newest = [path, *finished_segments(path)[-1:]]
    lines = [decode_line(line) for file in newest for line in file.read_bytes().splitlines(keepends=True)]
    ends = [line.id for line in lines if line.kind is AuditKind.REQUEST]
    assert {line.id for line in lines if line.kind is AuditKind.BEGIN} <= set(ends)
    assert len(ends) == len(set(ends))


def _small_disk_command(folder: Path) -> list[str]:
    """Return how to run the filler on a real 64 KiB file system, else under a file-size limit (no mounts allowed)."""
    unshare = shutil.which("unshare")
    for flags in (["-m"], ["-rm"]):
        mount = f'mount -t tmpfs -o size=64k tmpfs "{folder}"'
        if (
            unshare
            and not subprocess.run([unshare, *flags, "sh", "-c", mount], capture_output=True, timeout=100).returncode
        ):
            inner = f'{mount} && "$0" -c "$1" tmpfs "{folder}" && cp "{folder}"/audit.* "{folder.parent}"'
            return [unshare, *flags, "sh", "-c", inner, sys.executable, _FILLER]
    inner = f'"$0" -c "$1" limit "{folder}" && cp "{folder}"/audit.* "{folder.parent}"'
    return ["sh", "-c", inner, sys.executable, _FILLER]


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """ENOSPC for real: no torn line, no lost record, requests refused meanwhile, an outage on record, then on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        _small_disk_command(folder), capture_output=True, text=True, env=_environment(), check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    count, last = map(int, done.stdout.split())
    path = tmp_path / "audit.jsonl"
    report = verify_journal(path)
    assert (report.fault, report.losses) == (None, [])
    assert [entry.gap.cause for entry in report.gaps] == [GapCause.WRITE_FAILED]
    ids = [name for name, _ in _ids(path)]
    # All that was confirmed, the terminal records of the five refused, and the one after; no refused begin.
    assert len(ids) == count + 5 + 1
    assert f"r--{last + 1}" not in ids
    assert f"r-{last + 5}" in ids


def test_a_second_gateway_process_is_refused(tmp_path: Path) -> None:
    """Two processes never interleave lines: the second stops with a clear error, the first is not disturbed."""
    path = tmp_path / "audit.jsonl"
    journal = Journal(AuditConfig(path=str(path)))
    program = _COMMON + "Journal(AuditConfig(path=sys.argv[1]))"
    second = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
        timeout=100,
    )
    assert second.returncode != 0
    assert "another gateway writes the journal" in second.stderr
    journal.close()
    assert verify_journal(path).fault is None


def test_a_rewritten_journal_does_not_have_the_anchor(tmp_path: Path) -> None:
    """Whoever can rewrite all files, head included, is caught by a hash that was noted down elsewhere."""
    anchors = []
    for folder, name in (("true", "kept"), ("forged", "invented")):
        path = tmp_path / folder / "audit.jsonl"
        journal = Journal(AuditConfig(path=str(path)))
        for number in range(3):
            journal.begin(_named(f"{name}-{number}"))
        anchors.append(journal.stats.hash)
        journal.begin(_named("later"))
        journal.close()
    forged = tmp_path / "forged" / "audit.jsonl"
    assert verify_journal(forged).fault is None
    fault = verify_journal(forged, expect_hash=anchors[0]).fault
    assert fault is not None
    assert fault.problem is Problem.ANCHOR_MISSING
    assert verify_journal(tmp_path / "true" / "audit.jsonl", expect_hash=anchors[0]).anchor_seq == 3


def _named(name: str) -> AuditRecord:
    return AuditRecord(1.0, AuditKind.BEGIN, id=name)
