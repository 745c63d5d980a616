"""The files that a guest sees: a read-only view of chosen folders of the host, a few made-up files, and scratch.

`files.py` asks this room for every path. Symbolic links are followed here, in the guest's own name space, one
component at a time, so that a link never leads to a file outside the view; the last step on the host never follows a
link. A guest cannot make links. Nothing here trusts that a path is short, clean or UTF-8.
"""

import errno
import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from seamgate_vmm.hidden import HiddenFiles

_MAX_LINKS = 40  # as Linux
_MOST_DEEP = 255  # a look-up asks the host about each folder on the way, whose own look-up begins anew
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KEPT_FLAGS = os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_DIRECTORY
_DIRECTORY_MODE = stat.S_IFDIR | 0o755


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host at a place in the guest. Both paths absolute and without a trailing slash."""

    guest: str
    host: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a path means: exactly one of host (a path on the host), made_up (a file's name) or neither (a directory)."""

    path: str
    host: str | None = None
    made_up: str | None = None
    writable: bool = False


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file that one guest sees and no other, at each of these places: a descriptor of its bytes, and how many."""

    places: tuple[str, ...]
    fd: int
    size: int


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class View:
    """What one guest sees. Shared by guests that have the same folders, except for scratch."""

    def __init__(self, mounts: Iterable[Mount], made_up: Mapping[str, bytes]) -> None:
        self._mounts = sorted(mounts, key=lambda m: len(m.guest), reverse=True)
        self._made_up = {path: memory_file(path, data) for path, data in made_up.items()}
        self._sizes = {path: len(data) for path, data in made_up.items()}
        self._directories: set[str] = set()
        self._real: set[str] = set()
        self._hidden = HiddenFiles()
        for place in (*(m.guest for m in self._mounts), *made_up):
            self._directories.update(str(p) for p in PurePosixPath(place).parents)

    def hide(self, paths: Iterable[str]) -> None:
        """Let no guest open these files of the host, or files in these folders, by whatever name (`hidden`)."""
        self._hidden = HiddenFiles(paths)

    def readable_paths(self) -> list[str]:
        """The host's paths behind the view, for a jail."""
        return [m.host for m in self._mounts if not m.writable]

    def writable_paths(self) -> list[str]:
        """The host's paths that a guest may write to, for a jail."""
        return [m.host for m in self._mounts if m.writable]

    def with_scratch(self, scratch: Mount) -> "View":
        """Return this view with a private folder put over it."""
        other = self._copy()
        other._mounts = sorted((*self._mounts, scratch), key=lambda m: len(m.guest), reverse=True)
        other._directories = self._directories | {str(p) for p in PurePosixPath(scratch.guest).parents}
        return other

    def with_own(self, file: OwnFile) -> "View":
        """Return this view with a file of one guest; the descriptor stays its caller's."""
        other = self._copy()
        other._made_up = {**self._made_up, **dict.fromkeys(file.places, file.fd)}
        other._sizes = {**self._sizes, **dict.fromkeys(file.places, file.size)}
        other._directories = self._directories | {str(p) for place in file.places for p in PurePosixPath(place).parents}
        return other

    def _copy(self) -> "View":
        other = View.__new__(View)
        other._mounts, other._made_up, other._sizes = self._mounts, self._made_up, self._sizes
        other._directories, other._real, other._hidden = self._directories, self._real, self._hidden
        return other

    def _locate(self, path: str) -> Found:
        if path in self._made_up:
            return Found(path, made_up=path)
        for m in self._mounts:
            if path == m.guest:
                return Found(path, host=m.host, writable=m.writable)
            if path.startswith(m.guest + "/"):
                return Found(path, host=m.host + path[len(m.guest) :], writable=m.writable)
        return Found(path)

    def _link(self, path: str) -> str | None:
        """Return where a link points, or None if this is none."""
        if path in self._real or path in self._directories:
            return None
        found = self._locate(path)
        if found.host is None:
            return None
        try:
            mode = os.lstat(found.host).st_mode
            if stat.S_ISLNK(mode):
                return os.readlink(found.host)
        except OSError:
            return None  # the call that needs it will say why
        if stat.S_ISDIR(mode) and not found.writable:
            self._real.add(path)
        return None

    def find(self, path: str, cwd: str, *, follow: bool = True) -> Found:
        """Return what a path means, links followed (the last one only if `follow`).

        Raises: OSError with ELOOP, EINVAL or ENAMETOOLONG. That something exists is not checked.
        """
        if path in self._made_up:  # asked for often, and no link leads there
            return Found(path, made_up=path)
        if "\0" in path:
            raise _os_error(errno.EINVAL)
        todo = [c for c in reversed(path.split("/")) if c]
        must_be_directory = path.endswith("/")
        current, links = "" if path.startswith("/") else cwd.rstrip("/"), 0
        if current.count("/") + len(todo) > _MOST_DEEP:
            raise _os_error(errno.ENAMETOOLONG)
        while todo:
            component = todo.pop()
            if component == ".":
                continue
            if component == "..":
                current = current.rpartition("/")[0]
                continue
            candidate = f"{current}/{component}"
            target = self._link(candidate) if todo or follow or must_be_directory else None
            if target is None:
                current = candidate
                continue
            links += 1
            if links > _MAX_LINKS:
                raise _os_error(errno.ELOOP)
            if target.startswith("/"):
                current = ""
            todo.extend(c for c in reversed(target.split("/")) if c)
        return self._locate(current or "/")

    def is_virtual_directory(self, found: Found) -> bool:
        """True if it only exists because something is below it."""
        return found.host is None and found.made_up is None and found.path in self._directories

    def stat(self, found: Found, *, follow: bool) -> os.stat_result:
        """Return its status. Raises: OSError."""
        if found.made_up is not None:
            return _status(stat.S_IFREG | 0o444, self._sizes[found.made_up], found.path)
        if found.host is None:
            if found.path in self._directories:
                return _status(_DIRECTORY_MODE, 0, found.path)
            raise _os_error(errno.ENOENT)
        return os.lstat(found.host)

    def open(self, found: Found, flags: int, mode: int) -> int:
        """Return a descriptor of a plain file or a directory.

        Raises: OSError; EROFS for writing outside scratch, EACCES for devices, pipes, sockets and hidden files.
        """
        if flags & _WRITE_FLAGS and not found.writable:
            # What is missing is ENOENT; but to make something where nothing can be made is EROFS.
            parent = self._locate(os.path.dirname(found.path)) if flags & os.O_CREAT else found
            self.stat(parent, follow=True)
            raise _os_error(errno.EROFS)
        if flags & 0o20000000 & ~os.O_DIRECTORY:  # O_TMPFILE
            raise _os_error(errno.EOPNOTSUPP)
        if found.made_up is not None:
            return os.dup(self._made_up[found.made_up])
        if found.host is None:
            raise _os_error(errno.EISDIR if found.path in self._directories else errno.ENOENT)
        fd = os.open(
            found.host, flags & _KEPT_FLAGS | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode & 0o777
        )
        status = os.fstat(fd)
        kind = status.st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or self._hidden.holds(found.host, status):
            os.close(fd)
            raise _os_error(errno.EACCES)
        return fd

    def names(self, found: Found) -> list[tuple[str, int]]:
        """Return (name, mode) of what a directory holds, without `.` and `..`. Raises: OSError."""
        entries: dict[str, int] = {}
        if found.host is not None:
            with os.scandir(found.host) as scan:
                for e in scan:
                    entries[e.name] = e.stat(follow_symlinks=False).st_mode
        prefix = found.path.rstrip("/") + "/"
        for place in (*(m.guest for m in self._mounts), *self._made_up):
            if place.startswith(prefix):
                name, _, rest = place[len(prefix) :].partition("/")
                is_file = not rest and place in self._made_up
                entries.setdefault(name, stat.S_IFREG if is_file else stat.S_IFDIR)
        return sorted(entries.items())


def memory_file(path: str, data: bytes) -> int:
    """Return a descriptor of a file in memory only, named for whoever looks. Raises: OSError."""
    fd = os.memfd_create(path, os.MFD_CLOEXEC)
    os.write(fd, data)
    return fd


def _status(mode: int, size: int, path: str) -> os.stat_result:
    # The same in every process: C libraries read a file again whose number changed, as from template to guest.
    inode = zlib.crc32(os.fsencode(path)) | 1 << 40  # out of the way of real numbers
    times: dict[str, Any] = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), 0)
    return os.stat_result((mode, inode, 0, 1, 0, 0, size, 0, 0, 0), times)
