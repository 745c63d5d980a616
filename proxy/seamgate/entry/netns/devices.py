"""The guest's own `/dev`: what programs work with, and nothing that comes or is made anew later.

Called by the launcher in its new mount namespace. A cover over a device lasts as long as its file: who may open
`/dev/loop-control` has the kernel make that anew, and the cover is gone. So the files that are left in are mounted into
an empty file system, and that over `/dev`. Source: names as in the kernel's `admin-guide/devices.rst`.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

from seamgate.entry.netns import system
from seamgate.entry.netns.mountinfo import read_mounts

_DEVICES: Final = "/dev"
_KIND: Final = "devtmpfs"
_FOLDERS: Final = ("hugepages", "mqueue", "shm")
"""File systems of their own, or to be written: as they are, with what is mounted below."""
# Harmless ones, terminals, what computes (graphics processors and their like), virtual machines, FUSE, and tunnels:
# those act in the guest's own namespaces only.
_KEPT: Final = re.compile(
    r"null|zero|full|random|urandom|tty|kvm|fuse|net/tun|kfd|nvidia[^/]*|nvidia-caps/[^/]*|dri/.+|accel/.+"
)
_LINKS: Final = re.compile(r"fd|stdin|stdout|stderr|core|mqueue|shm")


def own_devices() -> None:
    """Put a /dev with the guest's devices over the machine's, and nothing over other places where that is mounted.

    Terminals are a file system of the guest's own: in the machine's, those of the same user's other programs could be
    read and written. The one that it was started in, if any, is its standard streams and /dev/tty, without a name.
    """
    with tempfile.TemporaryDirectory(prefix="seamgate-") as folder:
        system.mount("tmpfs", folder, "tmpfs", system.NOSUID | system.NOEXEC, "mode=0755,size=1m")
        for name in _names():
            _show(f"{_DEVICES}/{name}", Path(folder, name))
        terminals = Path(folder, "pts")
        terminals.mkdir()
        options = "newinstance,ptmxmode=0666,mode=0600"
        system.mount("devpts", str(terminals), "devpts", system.NOSUID | system.NOEXEC, options)
        Path(folder, "ptmx").symlink_to("pts/ptmx")
        system.make_read_only(folder)
        system.mount(folder, _DEVICES, flags=system.BIND | system.RECURSIVE)
        system.unmount(folder)
    for place in {each.place for each in read_mounts() if each.kind == _KIND and each.place != _DEVICES}:
        if os.path.isdir(place):  # else another mount hides it
            system.mount("tmpfs", place, "tmpfs", system.NOSUID | system.NODEV | system.NOEXEC, "mode=0755,size=16k")


def _names() -> list[str]:
    found = []
    for folder, folders, files in os.walk(_DEVICES):
        inside = os.path.relpath(folder, _DEVICES)
        if inside == ".":
            found += [each for each in folders if each in _FOLDERS]
            folders[:] = [each for each in folders if each not in (*_FOLDERS, "pts")]
        found += [each if inside == "." else f"{inside}/{each}" for each in (*files, *folders)]
    return list(dict.fromkeys(found))


def _show(path: str, place: Path) -> None:
    """Mount one of the machine's at its place in the new folder, if it is one to be shown."""
    name = path.removeprefix(f"{_DEVICES}/")
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        if _LINKS.fullmatch(name):
            place.symlink_to(os.readlink(path))
        return
    is_folder = stat.S_ISDIR(mode)
    if is_folder and name in _FOLDERS:
        place.mkdir()
    elif stat.S_ISCHR(mode) and _KEPT.fullmatch(name):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    else:
        return
    system.mount(path, str(place), flags=system.BIND | (system.RECURSIVE if is_folder else 0))
