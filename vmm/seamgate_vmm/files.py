"""Answers a guest's file requests from its view: the only part of a worker that touches the host's files for it.

`guest.py` calls `FileService.handle` with the operation's arguments as the guest gave them. Guest memory is read and
written through the machine, which checks every range. Handles are numbers of this table, never the host's descriptors.
"""

import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass

from seamgate_vmm import _kvm
from seamgate_vmm.errors import HibernationError
from seamgate_vmm.image import Found, View

_MAX_HANDLES = 256
_MAX_IO = 16 << 20
_PATH_MAX = 4095
_STAT = struct.Struct("<QQQIIIIQqqqqQqQqQ3q")
_OWNER = 1000  # the guest's one user
_MAKING = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_AT_REMOVEDIR = 0x200
_DT = {stat.S_IFDIR: 4, stat.S_IFREG: 8, stat.S_IFLNK: 10}


_NOWHERE, _STALE = -1, -2


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file of a hibernated guest: its handle, how it is opened again, and which file that was."""

    handle: int
    path: str
    flags: int
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class FileState:
    """What a hibernated guest had of files. Those in its scratch folder stay there."""

    cwd: str
    bytes_left: int
    files_left: int
    open: tuple[OpenFile, ...]


@dataclass(slots=True)
class _Open:
    fd: int  # _NOWHERE: a directory that only exists in the view; _STALE: it was replaced while its guest hibernated
    found: Found
    flags: int
    names: list[tuple[str, int]] | None = None


@dataclass(slots=True)
class Scratch:
    """What a guest may still write: bytes and files. Freed space counts again, except that of files still open."""

    bytes_left: int
    files_left: int


def _refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class FileService:
    """The open files and the working directory of one guest."""

    def __init__(self, machine: _kvm.Machine, view: View, scratch: Scratch, cwd: str = "/") -> None:
        self._machine = machine
        self._view = view
        self._scratch = scratch
        self.cwd = cwd
        self._open: dict[int, _Open] = {}
        self._calls: dict[int, Callable[..., int | tuple[int, int]]] = {
            _kvm.HOST_OPEN: self._do_open,
            _kvm.HOST_CLOSE: self._do_close,
            _kvm.HOST_PREAD: self._do_pread,
            _kvm.HOST_PWRITE: self._do_pwrite,
            _kvm.HOST_STAT: self._do_stat,
            _kvm.HOST_FSTAT: self._do_fstat,
            _kvm.HOST_ACCESS: self._do_access,
            _kvm.HOST_READLINK: self._do_readlink,
            _kvm.HOST_GETDENTS: self._do_getdents,
            _kvm.HOST_GETCWD: self._do_getcwd,
            _kvm.HOST_CHDIR: self._do_chdir,
            _kvm.HOST_MKDIR: self._do_mkdir,
            _kvm.HOST_UNLINK: self._do_unlink,
            _kvm.HOST_RENAME: self._do_rename,
            _kvm.HOST_TRUNCATE: self._do_truncate,
            _kvm.HOST_CHMOD: self._do_chmod,
            _kvm.HOST_UTIMES: self._do_utimes,
        }

    def handle(self, op: int, arguments: tuple[int, ...]) -> int | tuple[int, int] | None:
        """Return the result (or result and second value), a negative errno, or None for another kind of request."""
        call = self._calls.get(op)
        if call is None:
            return None
        try:
            return call(*arguments)
        except IndexError:
            return -errno.EFAULT  # guest memory out of bounds
        except OSError as error:
            return -(error.errno or errno.EIO)

    @property
    def open_count(self) -> int:
        """How many files are open."""
        return len(self._open)

    def close(self) -> None:
        """Close every file."""
        for opened in self._open.values():
            if opened.fd >= 0:
                os.close(opened.fd)
        self._open.clear()

    # ---- hibernation

    def state(self) -> FileState:
        """Return what it takes to open the same files again. Raises: HibernationError if one has no name any more."""
        files = []
        for handle, opened in self._open.items():
            device, inode = _which(opened.fd)
            if opened.found.host is not None and opened.fd >= 0 and not _is_still(opened.found.host, device, inode):
                raise HibernationError(f"it has {opened.found.path} open, which was deleted or replaced")
            files.append(OpenFile(handle, opened.found.path, opened.flags, device, inode))
        return FileState(self.cwd, self._scratch.bytes_left, self._scratch.files_left, tuple(files))

    def restore(self, state: FileState) -> None:
        """Open the files of a hibernated guest again. One that is gone or is another by now gives ESTALE when used.

        Raises: HibernationError if the state makes no sense.
        """
        scratch = self._scratch
        scratch.bytes_left = min(scratch.bytes_left, state.bytes_left)
        scratch.files_left = min(scratch.files_left, state.files_left)
        self.cwd = state.cwd
        for each in state.open:
            if not 0 < each.handle <= _MAX_HANDLES or each.handle in self._open:
                raise HibernationError("its open files make no sense")
            self._open[each.handle] = self._reopen(each)

    def _reopen(self, each: OpenFile) -> _Open:
        found = Found(each.path)
        try:
            found = self._view.find(each.path, "/", follow=False)
            if self._view.is_virtual_directory(found):
                return _Open(_NOWHERE, found, each.flags)
            opened = _Open(self._view.open(found, each.flags & ~_MAKING, 0), found, each.flags)
        except (OSError, ValueError):
            return _Open(_STALE, found, each.flags)
        if found.made_up is None and _which(opened.fd) != (each.device, each.inode):
            os.close(opened.fd)
            opened.fd = _STALE
        return opened

    # ---- finding

    def _path(self, address: int, length: int) -> str:
        if length > _PATH_MAX:
            raise _refuse(errno.ENAMETOOLONG)
        return os.fsdecode(self._machine.read(address, length))

    def _base(self, directory: int) -> str:
        if _signed(directory) == _kvm.HOST_AT_CWD:
            return self.cwd
        found = self._handle(directory).found
        return found.path

    def _find(self, directory: int, path: int, length: int, *, follow: bool = True) -> Found:
        text = self._path(path, length)
        return self._view.find(text, "/" if text.startswith("/") else self._base(directory), follow=follow)

    def _writable(self, directory: int, path: int, length: int) -> tuple[Found, str]:
        found = self._find(directory, path, length, follow=False)
        if not found.writable or found.host is None:
            self._view.stat(found, follow=False)
            raise _refuse(errno.EROFS)
        return found, found.host

    def _handle(self, handle: int) -> _Open:
        opened = self._open.get(handle)
        if opened is None:
            raise _refuse(errno.EBADF)
        if opened.fd == _STALE:
            raise _refuse(errno.ESTALE)
        return opened

    # ---- calls, in the order of wire.h

    def _do_open(self, directory: int, path: int, length: int, flags: int, mode: int, _: int) -> int:
        if len(self._open) >= _MAX_HANDLES:
            raise _refuse(errno.EMFILE)
        found = self._find(directory, path, length, follow=not flags & os.O_NOFOLLOW)
        if self._view.is_virtual_directory(found) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            fd = _NOWHERE
        else:
            fd = self._open_file(found, flags, mode)
        handle = next(n for n in range(1, _MAX_HANDLES + 1) if n not in self._open)
        self._open[handle] = _Open(fd, found, flags)
        return handle

    def _open_file(self, found: Found, flags: int, mode: int) -> int:
        is_new = bool(flags & os.O_CREAT) and found.writable and found.host is not None and not _exists(found.host)
        if is_new and self._scratch.files_left <= 0:
            raise _refuse(errno.ENOSPC)
        before = _size(found.host) if flags & os.O_TRUNC and found.writable else 0
        fd = self._view.open(found, flags, mode)
        self._scratch.files_left -= is_new
        self._scratch.bytes_left += before
        return fd

    def _do_close(self, handle: int, *_: int) -> int:
        opened = self._open.pop(handle, None)
        if opened is None:
            raise _refuse(errno.EBADF)
        if opened.fd >= 0:
            os.close(opened.fd)
        return 0

    def _do_pread(self, handle: int, address: int, length: int, offset: int, *_: int) -> int:
        opened = self._handle(handle)
        if opened.fd < 0:
            raise _refuse(errno.EISDIR)
        return self._machine.read_file(opened.fd, address, min(length, _MAX_IO), self._offset(offset))

    @staticmethod
    def _offset(offset: int) -> int:
        if offset >> 62:
            raise _refuse(errno.EINVAL)
        return offset

    def _do_pwrite(self, handle: int, address: int, length: int, offset: int, *_: int) -> int:
        opened = self._handle(handle)
        if not opened.found.writable or opened.fd < 0:
            raise _refuse(errno.EBADF)
        length = min(length, _MAX_IO)
        size = os.fstat(opened.fd).st_size
        at = size if _signed(offset) == -1 else self._offset(offset)
        growth = max(0, at + length - size)
        if growth > self._scratch.bytes_left:
            raise _refuse(errno.ENOSPC)
        written = self._machine.write_file(opened.fd, address, length, at)
        self._scratch.bytes_left -= max(0, at + written - size)
        return written

    def _put_status(self, address: int, status: os.stat_result) -> int:
        blocks = getattr(status, "st_blocks", 0) or 0
        self._machine.write(
            address,
            _STAT.pack(
                status.st_dev,
                status.st_ino,
                status.st_nlink,
                status.st_mode,
                _OWNER,
                _OWNER,
                0,
                0,
                status.st_size,
                4096,
                blocks,
                *_split_ns(status.st_atime_ns),
                *_split_ns(status.st_mtime_ns),
                *_split_ns(status.st_ctime_ns),
                0,
                0,
                0,
            ),
        )
        return 0

    def _do_stat(self, directory: int, path: int, length: int, out: int, flags: int, _: int) -> int:
        follow = not flags & 0x100
        found = self._find(directory, path, length, follow=follow)
        return self._put_status(out, self._view.stat(found, follow=follow))

    def _do_fstat(self, handle: int, out: int, *_: int) -> int:
        opened = self._handle(handle)
        is_real = opened.fd >= 0 and opened.found.made_up is None  # what is made up looks the same open and by its name
        status = os.fstat(opened.fd) if is_real else self._view.stat(opened.found, follow=True)
        return self._put_status(out, status)

    def _do_access(self, directory: int, path: int, length: int, mode: int, *_: int) -> int:
        found = self._find(directory, path, length)
        status = self._view.stat(found, follow=True)
        if mode & os.W_OK and not found.writable:
            raise _refuse(errno.EROFS)
        if mode & os.X_OK and not stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o111:
            raise _refuse(errno.EACCES)
        return 0

    def _do_readlink(self, directory: int, path: int, length: int, out: int, room: int, _: int) -> int:
        text = self._path(path, length)
        if text == "/proc/self/exe":
            target = self.program
        else:
            found = self._find(directory, path, length, follow=False)
            if not stat.S_ISLNK(self._view.stat(found, follow=False).st_mode) or found.host is None:
                raise _refuse(errno.EINVAL)
            target = os.readlink(found.host)
        data = os.fsencode(target)[:room]
        self._machine.write(out, data)
        return len(data)

    program = ""  # what /proc/self/exe says

    def _do_getdents(self, handle: int, address: int, length: int, position: int, *_: int) -> tuple[int, int]:
        opened = self._handle(handle)
        if opened.names is None or position == 0:
            if not stat.S_ISDIR(self._view.stat(opened.found, follow=True).st_mode):
                raise _refuse(errno.ENOTDIR)
            opened.names = [(".", stat.S_IFDIR), ("..", stat.S_IFDIR), *self._view.names(opened.found)]
        out = bytearray()
        for index in range(min(position, len(opened.names)), len(opened.names)):
            name, mode = opened.names[index]
            raw = os.fsencode(name)
            record = -(-(19 + len(raw) + 1) // 8) * 8
            if len(out) + record > min(length, 1 << 20):
                if not out:
                    raise _refuse(errno.EINVAL)
                break
            out += struct.pack("<QqHB", index + 1, index + 1, record, _DT.get(stat.S_IFMT(mode), 0))
            out += raw.ljust(record - 19, b"\0")
            position = index + 1
        self._machine.write(address, bytes(out))
        return len(out), position

    def _do_getcwd(self, address: int, length: int, *_: int) -> int:
        data = os.fsencode(self.cwd) + b"\0"
        if len(data) > length:
            raise _refuse(errno.ERANGE)
        self._machine.write(address, data)
        return len(data)

    def _do_chdir(self, directory: int, path: int, length: int, *_: int) -> int:
        found = self._find(directory, path, length) if length else self._handle(directory).found
        if not stat.S_ISDIR(self._view.stat(found, follow=True).st_mode):
            raise _refuse(errno.ENOTDIR)
        self.cwd = found.path
        return 0

    def _do_mkdir(self, directory: int, path: int, length: int, mode: int, *_: int) -> int:
        found = self._find(directory, path, length, follow=False)
        if not found.writable or found.host is None:
            self._view.stat(self._view.find(os.path.dirname(found.path), "/"), follow=True)
            exists = self._view.is_virtual_directory(found) or (found.host is not None and _exists(found.host))
            raise _refuse(errno.EEXIST if exists else errno.EROFS)
        if self._scratch.files_left <= 0:
            raise _refuse(errno.ENOSPC)
        os.mkdir(found.host, mode & 0o777 | 0o700)
        self._scratch.files_left -= 1
        return 0

    def _held(self, status: os.stat_result) -> Scratch:
        """Return the room that comes back when this file or folder is gone: none as long as it is open."""
        inode = (status.st_dev, status.st_ino)
        for opened in self._open.values():
            if opened.fd >= 0:
                other = os.fstat(opened.fd)
                if (other.st_dev, other.st_ino) == inode:
                    return Scratch(0, 0)
        return Scratch(status.st_size if stat.S_ISREG(status.st_mode) else 0, 1)

    def _give_back(self, room: Scratch) -> None:
        self._scratch.files_left += room.files_left
        self._scratch.bytes_left += room.bytes_left

    def _do_unlink(self, directory: int, path: int, length: int, flags: int, *_: int) -> int:
        host = self._writable(directory, path, length)[1]
        if flags & _AT_REMOVEDIR:
            os.rmdir(host)
            self._scratch.files_left += 1
        else:
            if stat.S_ISDIR(os.lstat(host).st_mode):
                raise _refuse(errno.EISDIR)
            room = self._held(os.lstat(host))
            os.unlink(host)
            self._give_back(room)
        return 0

    def _do_rename(self, old_directory: int, old: int, old_length: int, directory: int, path: int, length: int) -> int:
        _, source = self._writable(old_directory, old, old_length)
        target = self._find(directory, path, length, follow=False)
        if not target.writable or target.host is None:
            raise _refuse(errno.EXDEV)
        moved, room = os.lstat(source), Scratch(0, 0)
        if _exists(target.host):
            replaced = os.lstat(target.host)
            if (replaced.st_dev, replaced.st_ino) != (moved.st_dev, moved.st_ino):
                room = self._held(replaced)
        os.rename(source, target.host)  # fails where one is a folder and the other is not, or is not empty
        self._give_back(room)
        return 0

    def _do_truncate(self, handle: int, length: int, *_: int) -> int:
        opened = self._handle(handle)
        if not opened.found.writable or opened.fd < 0:
            raise _refuse(errno.EINVAL)
        growth = self._offset(length) - os.fstat(opened.fd).st_size
        if growth > self._scratch.bytes_left:
            raise _refuse(errno.ENOSPC)
        os.ftruncate(opened.fd, length)
        self._scratch.bytes_left -= growth
        return 0

    def _do_chmod(self, directory: int, path: int, length: int, mode: int, *_: int) -> int:
        host = self._writable(directory, path, length)[1]
        keep = 0o700 if stat.S_ISDIR(os.lstat(host).st_mode) else 0  # the worker must be able to delete what is in it
        os.chmod(host, mode & 0o777 | keep)
        return 0

    def _do_utimes(self, directory: int, path: int, length: int, accessed: int, modified: int, _: int) -> int:
        if length:
            host = self._writable(directory, path, length)[1]
        else:
            opened = self._handle(directory).found
            if not opened.writable or opened.host is None:
                raise _refuse(errno.EROFS)
            host = opened.host
        before = os.stat(host)
        now = None if _signed(accessed) == _signed(modified) == -1 else before
        if now is None:
            os.utime(host)
        else:
            os.utime(host, ns=(_time(accessed, before.st_atime_ns), _time(modified, before.st_mtime_ns)))
        return 0


def _which(fd: int) -> tuple[int, int]:
    if fd < 0:
        return 0, 0
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _is_still(host: str, device: int, inode: int) -> bool:
    """Return whether this path is that file."""
    try:
        status = os.lstat(host)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (device, inode)


def _time(value: int, before: int) -> int:
    signed = _signed(value)
    return before if signed < 0 else signed


def _split_ns(ns: int) -> tuple[int, int]:
    return divmod(ns, 1_000_000_000)


def _exists(host: str) -> bool:
    return os.path.lexists(host)


def _size(host: str | None) -> int:
    try:
        return os.lstat(host).st_size if host else 0
    except FileNotFoundError:
        return 0
