"""Plans how files of the gateway are kept from a guest that runs as the same user: with the whole folders they are in.

A mount over one file is gone, without a word, when somebody outside renames another file to its name: when a secret is
rotated, or a journal (rename(2), unlink(2) of what is mounted over elsewhere, since Linux 3.18). So an empty folder is
mounted over every folder in which the name of such a file is looked up: that of the file, and those of the
links that lead to it (`key -> ..data/key`, `..data -> v1`, as Kubernetes has them). What is covered is covered at every
place where its file system is mounted, and the folders above are pinned, so that the guest can't rename one and make
its own in its place. Where a folder can't be covered because the program needs it, the guest does not start.

Planned by the gateway, outside; done by the launcher (`mounts`). Reads names, links and /proc/self/mountinfo, no file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from seamgate.entry.netns.mountinfo import Mounted, places_of, read_mounts
from seamgate.errors import ConfigError

_MAX_LINKS: Final = 40  # as Linux
# Without these nothing runs. A link to a folder in one of them is how a machine is laid out (/var/run -> /run).
_OF_THE_SYSTEM: Final = frozenset(
    "/ /bin /boot /dev /etc /home /lib /lib32 /lib64 /media /mnt /opt /proc /run /sbin /srv /sys /usr /var"
    " /usr/bin /usr/lib /usr/local /usr/share /var/lib /var/log /var/run".split()
)
_FOR_ALL: Final = frozenset(("/root", "/tmp", "/var/tmp", "/dev/shm", "/run/user"))  # noqa: S108 - to be left as they are


class Covers(msgspec.Struct, frozen=True):
    """What the launcher does, in this order; every path is a real one.

    Attributes:
        pinned: folders that the guest can't rename, outer ones first.
        empty: folders that show nothing, but for `shown`.
        shown: files of covered folders that the guest needs.
        fixed: files, and folders with all that is in them, that can be read and not changed.
    """

    pinned: Sequence[str] = ()
    empty: Sequence[str] = ()
    shown: Sequence[str] = ()
    fixed: Sequence[str] = ()


def plan(
    hide: Iterable[Path],
    *,
    fix: Iterable[Path] = (),
    show: Iterable[Path] = (),
    needed: Iterable[Path] = (),
) -> Covers:
    """Plan how a guest is kept from files.

    Args:
        hide: files, there or not, that it must not read or write.
        fix: files that it must not write.
        show: files beside hidden ones that it must be able to read.
        needed: files and folders that the program works with.

    Raises:
        ConfigError: a file can't be kept from it; says which one, and what to do.
    """
    mounts = read_mounts()
    empty: dict[str, None] = {}
    hidden = tuple(dict.fromkeys(os.path.abspath(each) for each in hide))
    kept = {os.path.realpath(each) for each in needed} - {os.path.realpath(each) for each in hidden}
    for path in hidden:
        for folder in _folders(path):
            if _can_not_be(folder):
                continue
            for place in places_of(folder, mounts):
                _check(path, place, kept)
                empty[place] = None
        _cover_other_places(path, mounts, kept, empty)
    outer = _outermost(empty)
    for path in hidden:
        _check_other_names(path, outer)
    fixed = [place for place in _fixed(fix, kept) if not _is_below(place, outer)]
    return Covers(
        pinned=_above((*outer, *fixed)),
        empty=outer,
        shown=[real for each in show if _is_below(real := os.path.realpath(each), outer) and os.path.isfile(real)],
        fixed=fixed,
    )


def _folders(path: str) -> list[str]:
    """Return the real folders in which a path is looked up where it can be replaced: at each link, and at its end.

    Raises:
        ConfigError: links lead round in a circle.
    """
    todo, current, folders = [part for part in reversed(path.split("/")) if part not in ("", ".")], "/", []
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            current = os.path.dirname(current)
            continue
        entry = os.path.join(current, part)
        is_link = os.path.islink(entry)
        if not todo or (is_link and current not in _OF_THE_SYSTEM):
            folders.append(current)
        if not is_link:
            current = entry
            continue
        links += 1
        if links > _MAX_LINKS:
            raise ConfigError(f"{path}: its symbolic links lead round in a circle")
        target = os.readlink(entry)
        current = "/" if target.startswith("/") else current
        todo.extend(each for each in reversed(target.split("/")) if each not in ("", "."))
    return folders


def _can_not_be(folder: str) -> bool:
    """Whether a folder is not there, and this user can't make it: then neither can the guest."""
    above = folder
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    return above != folder and not os.access(above, os.W_OK)


def _check(path: str, folder: str, needed: Iterable[str]) -> None:
    """Refuse a folder that can't be covered."""
    if not os.path.isdir(folder):
        raise ConfigError(
            f"{path} can't be kept from the program, because the folder {folder} is not there; make it, or name another"
        )
    clash = next((each for each in needed if _is_below(each, (folder,))), "")
    if folder in _OF_THE_SYSTEM | _FOR_ALL or clash:
        why = f"the program needs {clash}" if clash else "programs need that"
        raise ConfigError(
            f"{path} has to be kept from the program, with the whole folder {folder} since files in it are replaced, "
            f"but {why}; move it into a folder of its own (a journal: `--audit`, `audit: path`), and name that by its "
            "path without links; or use --isolation kvm"
        )


def _cover_other_places(path: str, mounts: Sequence[Mounted], needed: Iterable[str], empty: dict[str, None]) -> None:
    """Cover where else the file itself is mounted: containers get single files so."""
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        return
    for place in places_of(real, mounts):
        folder = os.path.dirname(place)
        if not _is_below(folder, empty):
            _check(path, folder, needed)
            empty[folder] = None


def _check_other_names(path: str, covered: Sequence[str]) -> None:
    """Refuse a file with a hard link outside of what is covered: it can be read there."""
    try:
        status = os.stat(path)
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
        return
    which, names = (status.st_dev, status.st_ino), set()
    for folder in covered:
        for parent, _, files in os.walk(folder):
            names |= {entry for name in files if _which(entry := os.path.join(parent, name)) == which}
    if len(names) < status.st_nlink:
        raise ConfigError(
            f"{path} has to be kept from the program, but it has {status.st_nlink - len(names)} more name(s) elsewhere "
            "(hard links); `find / -xdev -samefile` finds them: remove them, or make it a copy of its own"
        )


def _which(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _fixed(paths: Iterable[Path], needed: Iterable[str]) -> list[str]:
    """Return what must not be written: a file's folder, or the file alone where the program works in the folder."""
    found: dict[str, None] = {}
    for path in paths:
        real = os.path.realpath(path)
        folder = os.path.dirname(real)
        is_shared = folder in _OF_THE_SYSTEM | _FOR_ALL or any(_is_below(each, (folder,)) for each in needed)
        place = real if is_shared else folder
        if os.path.exists(place):
            found[place] = None
    return list(found)


def _above(places: Iterable[str]) -> list[str]:
    """Return the folders above these that this user may rename, outer ones first."""
    found = set()
    for place in places:
        folder = os.path.dirname(place)
        while folder != "/":
            above = os.path.dirname(folder)
            if not os.path.ismount(folder) and os.access(above, os.W_OK):
                found.add(folder)
            folder = above
    return sorted(found, key=lambda each: (each.count("/"), each))


def _outermost(folders: Iterable[str]) -> list[str]:
    known = sorted(folders)
    return [each for each in known if not _is_below(each, [other for other in known if other != each])]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of the folders, or in one of them."""
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in folders)
