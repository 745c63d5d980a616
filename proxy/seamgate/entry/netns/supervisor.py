"""Answers what a guest's seccomp filter reports (`confine`), and makes its connections itself. In the keeper's process.

A unix socket with a path is no matter of network namespaces: who sees the path may connect, however it came to be
there: from another namespace, by a relative path, renamed, mounted a second time, made after the guest's start. What a
guest may reach is known for sure only by who listens, and that the kernel says of a connection (SO_PEERCRED): a process
outside of the guest's process namespace has no number in it. So for such an address the supervisor connects a socket of
its own, and gives that to the guest, in place of the one it has, only if a process of the guest's listens there. The
guest never gets a connection that was not looked at; one that is refused has carried no byte. And so that nobody
outside hears a knock, it is tried only at files that a socket of the guest was listening at: each listen(2) is reported
too, before it happens.

An address in a guest's memory can change between look and use, and so can what a descriptor is. So the kernel is never
told to go on with a connect: see `connects`. With listen(2) it is: nothing about that is refused.

Threads: one takes the reports, and makes what is plain without the interpreter (`seamgate._connects`, where somebody
built that); what may wait has one of its own, and only so many may. Never reads anything but addresses.

Source: seccomp_unotify(2), linux/seccomp.h
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from seamgate.entry.netns import confine, system
from seamgate.entry.netns.connects import Begun, Connect, File, Refused, Report, Unseen, read_report, socket_of

_RECEIVE, _ANSWER, _IS_VALID, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_REPORT_BYTES = 80
_REPLACE = 1  # SECCOMP_ADDFD_FLAG_SETFD
_GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
AT_ONCE: Final = 64
"""How many connects of a guest may wait; while as many do, one more that would is answered EAGAIN."""
_MOST_LISTENERS: Final = 65536
_LEAVING_S = 0.1
_INTERRUPT: Final = signal.SIGURG
"""Interrupts what waits in the kernel; ignored by whoever has no handler."""

Teller = Callable[[Mapping[str, Any]], None]
"""Told of each refusal, as in `control`; see `refusals.judge_report`."""
Taken = tuple[bytes, int, bytes]
"""A report; and the duplicated socket and the address of a connect that was begun, or -1."""


def can_supervise(process: int) -> bool:
    """Whether this process may look into another, its forked child that waits: a policy on tracing may forbid it."""
    try:
        any_open = int(os.listdir(f"/proc/{process}/fd")[0])
        os.close(system.duplicate(process, any_open))
        return system.can_read_memory(process)
    except OSError:
        return False


def take_in_python(listener: int, _connect_number: int, _interrupt: int) -> Taken | None:
    """Take one report; None once nobody is left who could be reported. The twin of `seamgate._connects.take`.

    Raises:
        OSError: no reports can be had.
    """
    while True:
        data = bytearray(_REPORT_BYTES)
        try:
            fcntl.ioctl(listener, _RECEIVE, data)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise
            if error.errno == errno.ENOENT and _is_over(listener):
                return None
            continue  # whoever asked is gone
        return bytes(data), -1, b""


def _is_over(listener: int) -> bool:
    poll = select.poll()
    poll.register(listener, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _native() -> Callable[[int, int, int], Taken | None]:
    try:
        from seamgate._connects import take
    except ImportError:  # nobody built it
        return take_in_python
    return take


_take_next: Final = _native()  # now: in the guest's mount namespace it may not be there


class Supervisor:
    """See the module.

    Args:
        listener: the descriptor of the filter.
        tell: called from any thread.
    """

    def __init__(self, listener: int, tell: Teller) -> None:
        self._listener = listener
        self._tell = tell
        self._waiting: dict[int, Report] = {}
        """By the thread that waits."""
        self._room = threading.Condition()
        self._listeners: dict[File, None] = {}
        architecture = confine.ARCHITECTURES[os.uname().machine]
        self._connect_number, self._listen_number = architecture.connect, architecture.listen

    def start(self) -> None:
        """Answer reports from now on, as long as this process is there. Called by the main thread."""
        signal.signal(_INTERRUPT, lambda *_: None)
        threading.Thread(target=self._take_all, daemon=True).start()

    def _take_all(self) -> None:
        try:
            while taken := _take_next(self._listener, self._connect_number, _INTERRUPT):
                self._take(*taken)
        except BaseException as error:  # noqa: BLE001 - nobody would answer any more: better no guest than one that hangs
            sys.stderr.write(f"seamgate: the guest's supervisor failed: {error}\n")
            os._exit(1)

    def _take(self, data: bytes, begun: int, address: bytes) -> None:
        report = read_report(data)
        if begun >= 0:
            self._make_apart(report, Begun(begun, address))
        elif report.number == self._connect_number:
            self._begin(report)
        elif report.number == self._listen_number:
            self._note_listener(report)
            self._answer(report, 0, _GO_ON)
        else:
            family, kind = report.arguments[0] & 0xFFFFFFFF, report.arguments[1] & 0xF
            self._tell({"socket": [family, kind]})  # before the answer: after it the guest may end, and this process
            self._answer(report, confine.refusal_of(family))

    def _note_listener(self, report: Report) -> None:
        """Remember where a socket will listen. If that can't be found out, others don't reach it by its path."""
        with contextlib.suppress(OSError), socket_of(report) as listener:
            if listener.family != socket.AF_UNIX or (file := system.bound_to(listener.fileno())) is None:
                return
            self._listeners.pop(file, None)
            self._listeners[file] = None
            if len(self._listeners) > _MOST_LISTENERS:
                del self._listeners[next(iter(self._listeners))]

    def _begin(self, report: Report) -> None:
        try:
            call = Connect(report, self._is_valid, self._listeners)
        except Unseen as unseen:
            self._tell({"unseen": unseen.program})
            self._answer(report, errno.EACCES)
        except OSError as error:
            self._answer(report, error.errno or errno.EIO)
        else:
            if call.may_wait:
                self._make_apart(report, call)
            else:
                self._make(report, call)

    def _make_apart(self, report: Report, call: Connect) -> None:
        """Make a connection in a thread of its own, if one can be had."""
        thread = threading.Thread(target=self._wait, args=(report, call), daemon=True)
        try:
            if not self._has_room():
                raise RuntimeError("too many wait")
            thread.start()
        except RuntimeError:
            call.close()
            self._answer(report, errno.EAGAIN)

    def _has_room(self) -> bool:
        """Whether one more may wait; those whose callers are gone don't count, and are interrupted."""
        with self._room:
            if len(self._waiting) < AT_ONCE:
                return True
            gone = [thread for thread, report in self._waiting.items() if not self._is_valid(report)]
            for thread in gone:
                signal.pthread_kill(thread, _INTERRUPT)
            return bool(gone) and self._room.wait_for(lambda: len(self._waiting) < AT_ONCE, _LEAVING_S)

    def _wait(self, report: Report, call: Connect) -> None:
        thread = threading.get_ident()
        with self._room:
            self._waiting[thread] = report
        try:
            self._make(report, call)
        finally:
            with self._room:
                del self._waiting[thread]
                self._room.notify()

    def _make(self, report: Report, call: Connect) -> None:
        code = errno.EIO
        try:
            made = self._finish(report, call)
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

    def _finish(self, report: Report, call: Connect) -> socket.socket | None:
        """Connect, however often that is interrupted while the caller waits."""
        while True:
            try:
                return call.make()
            except InterruptedError:
                if not self._is_valid(report):
                    raise

    def _replace(self, report: Report, made: socket.socket, call: Connect) -> None:
        with made:
            flags = os.O_CLOEXEC if call.closes_on_exec else 0
            order = struct.pack("=QIIII", report.identity, _REPLACE, made.fileno(), call.descriptor, flags)
            fcntl.ioctl(self._listener, _ADD_DESCRIPTOR, order)

    def _is_valid(self, report: Report) -> bool:
        """Whether the caller still waits: then its number is still its own."""
        try:
            fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", report.identity))
        except OSError:
            return False
        return True

    def _answer(self, report: Report, code: int, flags: int = 0) -> None:
        try:
            fcntl.ioctl(self._listener, _ANSWER, struct.pack("=QqiI", report.identity, 0, -code, flags))
        except OSError as error:
            if error.errno != errno.ENOENT:  # whoever asked is gone
                raise
