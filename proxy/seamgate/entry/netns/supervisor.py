"""Answers what a guest's seccomp filter reports (`confine`), and makes its connections itself. In the keeper's process.

A unix socket with a path is no matter of network namespaces: who sees the path may connect, however it came to be
there: from another namespace, by a relative path, renamed, mounted a second time, made after the guest's start. What a
guest may reach is known for sure only by who listens, and that the kernel says of a connection (SO_PEERCRED): a process
outside of the guest's process namespace has no number in it. So for such an address the supervisor connects a socket of
its own, and gives that to the guest, in place of the one it has, only if a process of the guest's listens there. The
guest never gets a connection that was not looked at; one that is refused has carried no byte.

An address in a guest's memory can change between look and use, and so can what a descriptor is. So the kernel is never
told to go on: the address is copied once, the socket duplicated, and the connection is made from here, also over TCP.

Threads: one takes the reports; what may wait has one of its own. Never reads anything but addresses.

Source: seccomp_unotify(2), linux/seccomp.h, unix(7)
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from seamgate.entry.netns import confine, system

_RECEIVE, _ANSWER, _IS_VALID, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_REPORT_BYTES = 80
_REPLACE = 1  # SECCOMP_ADDFD_FLAG_SETFD
_LONGEST_ADDRESS = 128  # struct sockaddr_storage
_LONGEST_UNIX = 110  # struct sockaddr_un
_AT_ONCE = 64
"""How many connects of a guest may wait; while as many do, its further ones wait to be looked at."""
_STREAMS: Final = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)

Teller = Callable[[Mapping[str, Any]], None]
"""Told of each refusal: {"socket": [family, type]} or {"path": "..."}; see `refusals.judge_report`."""


class Report(msgspec.Struct, frozen=True):
    """One system call that waits for its answer. `thread` is the caller's number here, 0 if it has none."""

    identity: int
    thread: int
    number: int
    arguments: tuple[int, ...]


def read_report(data: bytes | bytearray) -> Report:
    """Read a report. Source: struct seccomp_notif of linux/seccomp.h."""
    identity, thread, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", data)
    return Report(identity, thread, number, tuple(arguments))


class Refused(Exception):
    """A connection that is not made: to this path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def can_supervise(process: int) -> bool:
    """Whether this process may look into another, a child that waits: a system's policy on tracing may forbid it."""
    try:
        any_open = int(os.listdir(f"/proc/{process}/fd")[0])
        os.close(system.duplicate(process, any_open))
        with open(f"/proc/{process}/mem", "rb"):
            return True
    except OSError:
        return False


class Supervisor:
    """See the module.

    Args:
        listener: the descriptor of the filter.
        tell: called from any thread.
    """

    def __init__(self, listener: int, tell: Teller) -> None:
        self._listener = listener
        self._tell = tell
        self._waiting = threading.BoundedSemaphore(_AT_ONCE)
        self._connect_number = confine.ARCHITECTURES[os.uname().machine].connect

    def start(self) -> None:
        """Answer reports from now on, as long as this process is there."""
        threading.Thread(target=self._take_all, daemon=True).start()

    def _take_all(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            if any(event & select.POLLHUP for _, event in poll.poll()):
                return  # everybody is gone
            data = bytearray(_REPORT_BYTES)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, data)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue  # whoever asked is gone
                return
            self._take(read_report(data))

    def _take(self, report: Report) -> None:
        if report.number != self._connect_number:
            family, kind = report.arguments[0] & 0xFFFFFFFF, report.arguments[1] & 0xF
            self._tell({"socket": [family, kind]})  # before the answer: after it the guest may end, and this process
            self._answer(report, confine.refusal_of(family))
            return
        self._waiting.acquire()
        try:
            call = _Connect(report, self._is_valid)
        except OSError as error:
            self._answer(report, error.errno or errno.EIO)
            self._waiting.release()
            return
        if call.may_wait:
            try:
                threading.Thread(target=self._connect, args=(report, call), daemon=True).start()
            except RuntimeError:  # no thread can be had
                call.close()
                self._answer(report, errno.EAGAIN)
                self._waiting.release()
        else:
            self._connect(report, call)

    def _connect(self, report: Report, call: _Connect) -> None:
        code = errno.EIO
        try:
            made = call.make()
            if made is not None:
                self._replace(report, made, call)
            code = 0
        except Refused as refused:
            code = errno.ECONNREFUSED
            self._tell({"path": refused.path})
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            call.close()
            self._answer(report, code)
            self._waiting.release()

    def _replace(self, report: Report, made: socket.socket, call: _Connect) -> None:
        flags = os.O_CLOEXEC if call.closes_on_exec else 0
        with made:
            order = struct.pack("=QIIII", report.identity, _REPLACE, made.fileno(), call.descriptor, flags)
            fcntl.ioctl(self._listener, _ADD_DESCRIPTOR, order)

    def _is_valid(self, report: Report) -> bool:
        """Whether the caller still waits: then its number is still its own."""
        try:
            fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", report.identity))
        except OSError:
            return False
        return True

    def _answer(self, report: Report, code: int) -> None:
        try:
            fcntl.ioctl(self._listener, _ANSWER, struct.pack("=QqiI", report.identity, 0, -code, 0))
        except OSError as error:
            if error.errno != errno.ENOENT:  # whoever asked is gone
                raise


class _Connect:
    """One connect(2) of a guest: its socket, duplicated, and its address, copied.

    Raises:
        OSError: as the call itself would.
    """

    def __init__(self, report: Report, is_valid: Callable[[Report], bool]) -> None:
        self.descriptor = report.arguments[0] & 0xFFFFFFFF
        self._thread = report.thread
        address, size = report.arguments[1], report.arguments[2] & 0xFFFFFFFF
        if size > _LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "address too long")
        self._address = _read(self._thread, address, size)
        facts = _facts(self._thread, self.descriptor)
        self.closes_on_exec = bool(facts & os.O_CLOEXEC)
        self.blocks = not facts & os.O_NONBLOCK
        copy = system.duplicate(_process_of(self._thread), self.descriptor)
        try:
            self._socket = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK)) from None
        if not is_valid(report):
            self.close()
            raise OSError(errno.EINTR, os.strerror(errno.EINTR))

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

    def make(self) -> socket.socket | None:
        """Connect; return a socket that is to take the place of the guest's, if it is not that which is connected.

        Raises:
            Refused: nobody of the guest's listens at the path.
            OSError: the kernel's answer.
        """
        if not self.path:
            # In the socket's own network namespace, so that an abstract name leads nowhere else either.
            system.connect(self._socket.fileno(), self._address)
            return None
        self._check_fresh()
        if self._address[:2] != struct.pack("=H", socket.AF_UNIX):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._connect_to_path()

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
            if not stat.S_ISSOCK(os.fstat(place).st_mode):
                raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            made = socket.socket(socket.AF_UNIX, self._socket.type)
            try:
                self._copy_options(made)
                system.connect(made.fileno(), _unix_address(f"/proc/self/fd/{place}"))
                if not _listener_of(made):
                    raise Refused(self.path.decode(errors="backslashreplace"))
            except BaseException:
                made.close()
                raise
            return made
        finally:
            os.close(place)

    def _copy_options(self, made: socket.socket) -> None:
        if not self.blocks:
            made.setblocking(False)
        for option, size in _OPTIONS:
            made.setsockopt(socket.SOL_SOCKET, option, self._socket.getsockopt(socket.SOL_SOCKET, option, size))


_OPTIONS: Final = ((socket.SO_PASSCRED, 4), (socket.SO_SNDTIMEO, 16), (socket.SO_RCVTIMEO, 16))


def _unix_address(path: str) -> bytes:
    return struct.pack("=H", socket.AF_UNIX) + path.encode() + b"\0"


def _listener_of(connection: socket.socket) -> int:
    """Return the number, in this process namespace, of who listened where a connection went; 0: nobody of it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    process: int = struct.unpack("=3i", credentials)[0]
    return process


def _read(thread: int, address: int, size: int) -> bytes:
    """Copy from a thread's memory."""
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(memory, size, address) if size and address < 1 << 63 else b""
    except OSError:
        data = b""
    finally:
        os.close(memory)
    if len(data) < size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return data


def _facts(thread: int, descriptor: int) -> int:
    """Return the flags of a thread's descriptor, as open(2) has them."""
    try:
        with open(f"/proc/{thread}/fdinfo/{descriptor}") as file:
            return next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    except OSError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None


def _process_of(thread: int) -> int:
    """Return the process that a thread is of: only those have handles before Linux 6.9."""
    with open(f"/proc/{thread}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))
