"""Reads /proc/self/mountinfo: what is mounted where, and where else a folder or file can be found.

Source: proc_pid_mountinfo(5)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

_TABLE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mounted(msgspec.Struct, frozen=True):
    """One mount.

    Attributes:
        device: "major:minor" of the file system.
        root: the path within the file system that is seen.
        place: where it is seen.
        kind: of the file system, as "ext4".
    """

    device: str
    root: str
    place: str
    kind: str


def read_mounts() -> list[Mounted]:
    """Return what is mounted in this mount namespace, later mounts last."""
    return parse_mounts(_TABLE.read_bytes().decode(errors="surrogateescape"))


def parse_mounts(table: str) -> list[Mounted]:
    """Return the mounts of such a table."""
    mounts = []
    for line in table.splitlines():
        fields, _, rest = line.partition(" - ")
        _, _, device, root, place = fields.split(" ")[:5]
        mounts.append(Mounted(device, _unescape(root), _unescape(place), rest.partition(" ")[0]))
    return mounts


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)


def places_of(path: str, mounts: Sequence[Mounted]) -> list[str]:
    """Return every path under which this one's file or folder is found, itself first: bind mounts give it more.

    Args:
        path: a real one. What is not there has no other place.
    """
    holder = _holder(path, mounts)
    if holder is None:
        return [path]
    within = _join(holder.root, path[len(holder.place.rstrip("/")) :])
    others = (
        _join(each.place, within[len(each.root.rstrip("/")) :])
        for each in mounts
        if each.device == holder.device and _is_in(within, each.root)
    )
    return list(dict.fromkeys((path, *_same(path, others))))


def _same(path: str, others: Iterable[str]) -> Iterable[str]:
    """Return those that are the same file now: one mount may hide another."""
    try:
        wanted = os.stat(path)
    except OSError:
        return
    for other in others:
        try:
            found = os.stat(other)
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            yield other


def _holder(path: str, mounts: Sequence[Mounted]) -> Mounted | None:
    above = [each for each in mounts if _is_in(path, each.place)]
    longest = max((len(each.place) for each in above), default=0)
    return next((each for each in reversed(above) if len(each.place) == longest), None)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _join(folder: str, rest: str) -> str:
    return (folder.rstrip("/") + "/" + rest.strip("/")).rstrip("/") or "/"
