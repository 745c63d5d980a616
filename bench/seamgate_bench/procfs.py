"""Reads from /proc what a process tree used, and how the machine was shared. Parsers are pure and take text.

CPU time is the kernel's own accounting (utime + stime, exact to a tick of 10 ms when summed over a run), of a process,
of its living descendants, and of the children that they have waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that matter here."""

    parent: int
    cpu_ticks: int
    """utime + stime of the process, plus those of its children that have ended and were waited for."""


def parse_process_stat(text: str) -> ProcessStat:
    """Read /proc/PID/stat; the command in it may hold blanks and parentheses. Source: proc(5)."""
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(parent=int(fields[1]), cpu_ticks=sum(int(f) for f in fields[11:15]))


@dataclass(frozen=True, slots=True)
class CoreTicks:
    """What one core did since boot, in ticks."""

    total: int
    idle: int
    steal: int

    @property
    def busy(self) -> int:
        """Ticks in which this machine ran something on the core."""
        return self.total - self.idle - self.steal


def parse_core_ticks(text: str) -> dict[int, CoreTicks]:
    """Read the per-core lines of /proc/stat. guest time is already in user time. Source: proc(5)."""
    cores = {}
    for line in text.splitlines():
        name, *fields = line.split() or [""]
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(f) for f in fields[:8]]
            cores[int(name[3:])] = CoreTicks(total=sum(ticks), idle=ticks[3] + ticks[4], steal=ticks[7])
    return cores


def parse_memory_kb(text: str, key: str) -> int:
    """Return the value of `key` ("Pss", "Rss") of /proc/PID/smaps_rollup in kB, 0 if it is not there."""
    for line in text.splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return 0


def tree(root: int) -> list[int]:
    """Return `root` and its living descendants."""
    children: dict[int, list[int]] = {}
    for pid, stat in _all_stats():
        children.setdefault(stat.parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def _all_stats() -> Iterator[tuple[int, ProcessStat]]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None:
                yield int(entry.name), stat


def _stat(pid: int) -> ProcessStat | None:
    try:
        return parse_process_stat((PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return None


def cpu_us(root: int) -> float:
    """Return the CPU time of `root`'s tree so far in microseconds."""
    stats = [_stat(pid) for pid in tree(root)]
    return sum(s.cpu_ticks for s in stats if s is not None) * TICK_US


def memory_mb(root: int) -> tuple[float, float]:
    """Return (RSS, PSS) of `root`'s tree in MB (10**6 bytes)."""
    rss = pss = 0
    for pid in tree(root):
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        rss += parse_memory_kb(text, "Rss")
        pss += parse_memory_kb(text, "Pss")
    return rss * 1024 / 1e6, pss * 1024 / 1e6


def core_ticks() -> dict[int, CoreTicks]:
    """Return what every core did since boot."""
    return parse_core_ticks((PROC / "stat").read_text())


def pin_tree(root: int, core: int) -> None:
    """Move every thread of `root`'s tree to one core."""
    for pid in tree(root):
        try:
            threads = [int(t.name) for t in (PROC / str(pid) / "task").iterdir()]
            for thread in threads:
                os.sched_setaffinity(thread, {core})
        except (FileNotFoundError, ProcessLookupError):
            continue
