"""One connect(2) of a guest, as its supervisor makes it: socket and address are copied, looked at, connected.

An address in a guest's memory can change between look and use, and so can what a descriptor is: only copies are looked
at and used. Nothing here knows of threads; what may wait says so.

Source: seccomp_unotify(2), unix(7), sockets' options of socket(7)
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Container
from typing import Final

import msgspec

from seamgate.entry.netns import system

_LONGEST_ADDRESS: Final = 128  # struct sockaddr_storage
_LONGEST_UNIX: Final = 110  # struct sockaddr_un
_STREAMS: Final = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_OPTIONS: Final = ((socket.SO_PASSCRED, 4), (socket.SO_SNDTIMEO, 16), (socket.SO_RCVTIMEO, 16))

File = tuple[int, int]
"""Device and inode."""


class Report(msgspec.Struct, frozen=True):
    """One system call that waits for its answer. `thread` is the caller's number here, 0 if it has none."""

    identity: int
    thread: int
    number: int
    arguments: tuple[int, ...]

    @property
    def descriptor(self) -> int:
        """The first argument of a call on a descriptor: the kernel takes the lower half, signed."""
        low = self.arguments[0] & 0xFFFFFFFF
        return low - (1 << 32) if low >> 31 else low


def read_report(data: bytes | bytearray) -> Report:
    """Read a report. Source: struct seccomp_notif of linux/seccomp.h."""
    identity, thread, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", data)
    return Report(identity, thread, number, tuple(arguments))


class Refused(Exception):
    """A connection that is not made: to this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Unseen(Exception):
    """A connection that is not made, because the program must not be looked into: its name, as it gives it itself."""

    def __init__(self, program: str) -> None:
        super().__init__(program)
        self.program = program


class Connect:
    """See the module.

    Args:
        report: of the call.
        is_valid: whether its caller still waits: then its number is still its own.
        listeners: the files that sockets of the guest were listening at.

    Raises:
        Unseen: the program must not be looked into.
        OSError: the kernel's answer; EINTR where the caller waits no more.
    """

    def __init__(
        self, report: Report, is_valid: Callable[[Report], bool], listeners: Container[File] = frozenset()
    ) -> None:
        self.descriptor = report.descriptor
        self._thread = report.thread
        self._listeners = listeners
        self._is_begun = False
        address, size = report.arguments[1], report.arguments[2] & 0xFFFFFFFF
        if size > _LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "address too long")
        try:
            self._address = system.read_memory(self._thread, address, size)
            self._socket = socket_of(report)
        except PermissionError:
            if is_valid(report):
                raise Unseen(_name_of(self._thread)) from None
            raise
        if not is_valid(report):
            self.close()
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))
        self.blocks = os.get_blocking(self._socket.fileno())

    def close(self) -> None:
        """Close the duplicate."""
        self._socket.close()

    @property
    def path(self) -> bytes:
        """The path that a unix socket is to be connected to; b"" if the address has none."""
        if self._socket.family != socket.AF_UNIX or len(self._address) > _LONGEST_UNIX:
            return b""
        return self._address[2:].split(b"\0", 1)[0]

    @property
    def may_wait(self) -> bool:
        """Whether making it may take time: on the other side, or on a file system."""
        return self.blocks or bool(self.path)

    @property
    def closes_on_exec(self) -> bool:
        """Whether the guest's descriptor does; where the kernel does not say (before 5.14, of a program that can't be
        traced by others), it is taken to."""
        try:
            with open(f"/proc/{self._thread}/fdinfo/{self.descriptor}") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        except PermissionError:
            return True
        except OSError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
        return bool(flags & os.O_CLOEXEC)

    def make(self) -> socket.socket | None:
        """Connect; return a socket that is to take the place of the guest's, if it is not that which is connected.

        After EINTR it can be called again.

        Raises:
            Refused: nobody of the guest's listens at the path.
            OSError: the kernel's answer.
        """
        if not self.path:
            self._connect_as_it_is()
            return None
        self._check_fresh()
        if self._address[:2] != struct.pack("=H", socket.AF_UNIX):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._connect_to_path()

    def _connect_as_it_is(self) -> None:
        """Connect in the socket's own network namespace, so that an abstract name leads nowhere else either."""
        try:
            system.connect(self._socket.fileno(), self._address)
        except InterruptedError:
            self._is_begun = True
            raise
        except OSError as error:
            if error.errno == errno.EALREADY and self._is_begun:  # the socket's own time (SO_SNDTIMEO) is over
                raise OSError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS)) from None
            raise

    def _check_fresh(self) -> None:
        """Refuse a socket that can't be replaced by another: connected, listening or bound."""
        if self._socket.type not in _STREAMS or self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        try:
            self._socket.getpeername()
        except OSError:
            if self._socket.getsockname():
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
            return
        raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))

    def _connect_to_path(self) -> socket.socket:
        where = b"/proc/%d/%s/%s" % (self._thread, b"root" if self.path.startswith(b"/") else b"cwd", self.path)
        place = os.open(where, os.O_PATH | os.O_CLOEXEC)
        try:
            facts = os.fstat(place)
            if not stat.S_ISSOCK(facts.st_mode):
                raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            if (facts.st_dev, facts.st_ino) not in self._listeners:
                raise Refused(self._shown_path)
            made = socket.socket(socket.AF_UNIX, self._socket.type)
            try:
                self._copy_options(made)
                system.connect(made.fileno(), _unix_address(f"/proc/self/fd/{place}"))
                if not _listener_of(made):
                    raise Refused(self._shown_path)
            except BaseException:
                made.close()
                raise
            return made
        finally:
            os.close(place)

    @property
    def _shown_path(self) -> str:
        return self.path.decode(errors="backslashreplace")

    def _copy_options(self, made: socket.socket) -> None:
        if not self.blocks:
            made.setblocking(False)
        for option, size in _OPTIONS:
            made.setsockopt(socket.SOL_SOCKET, option, self._socket.getsockopt(socket.SOL_SOCKET, option, size))


class Begun(Connect):
    """A connect that is under way already: `make` waits for it."""

    def __init__(self, copy: int, address: bytes) -> None:
        self._socket = socket.socket(fileno=copy)
        self._address = address
        self._is_begun = self.blocks = True


def socket_of(report: Report) -> socket.socket:
    """Return a duplicate of the socket that a call is on.

    Raises:
        OSError: the kernel's error; ENOTSOCK.
    """
    copy = system.duplicate(report.thread, report.descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK)) from None


def _unix_address(path: str) -> bytes:
    return struct.pack("=H", socket.AF_UNIX) + path.encode() + b"\0"


def _listener_of(connection: socket.socket) -> int:
    """Return the number, in this process namespace, of who listened where a connection went; 0: nobody of it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    process: int = struct.unpack("=3i", credentials)[0]
    return process


def _name_of(thread: int) -> str:
    try:
        with open(f"/proc/{thread}/comm", "rb") as file:
            return file.read().decode(errors="backslashreplace").strip()
    except OSError:
        return ""
