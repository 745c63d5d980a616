"""The launcher: makes a guest's namespaces, hands the sockets in them to the gateway, and becomes the guest's keeper.

Run by the gateway as `python -m seamgate.entry.netns.launcher FD`, where FD is the channel of `control`. Three
processes come of it:

    launcher    outside of the guest's process namespace: passes signals on, and the exit code back
      keeper    process 1 inside: reaps whoever loses their parent; when it ends, the kernel ends everybody inside
        guest   without capabilities, under the filter of `confine`; becomes the program

Each dies with its parent, so that nothing of a guest outlives its gateway.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from seamgate.entry.netns import confine, control, mounts, namespace, system
from seamgate.entry.netns.covers import Covers

_FAILED = 3
_CANNOT_EXECUTE, _NOT_FOUND = 126, 127
_PASSED_ON = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT})
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}
_FROM_KERNEL = 0x80  # SI_KERNEL: the terminal sent it, to everybody in the foreground, the guest included


class Order:
    """What the gateway wants: the program and its environment, what to keep from it, roots to trust, our parent."""

    def __init__(self, message: Mapping[str, object]) -> None:
        self.command: list[str] = message["command"]  # type: ignore[assignment]
        self.environment: dict[str, str] = message["environment"]  # type: ignore[assignment]
        self.covers = msgspec.convert(message["covers"], Covers)
        self.trust: str = message["trust"]  # type: ignore[assignment]
        self.parent: int = message["parent"]  # type: ignore[assignment]


TRY = "--try"
"""In place of the descriptor: make everything, say on standard error what can't be, and end."""


def main() -> None:
    """Do as ordered, then wait for the guest's end."""
    if sys.argv[1] == TRY:
        _try()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    reader = control.Reader(channel)
    received = reader.read()
    if received is None:
        sys.exit(_FAILED)
    order = Order(received[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        has_processes = _prepare(order, channel)
    except namespace.StepFailed as failure:
        control.send(channel, {"error": str(failure)})
        sys.exit(_FAILED)
    if reader.read() is None:
        sys.exit(_FAILED)
    keeper = _fork(lambda: _keep(order, channel, has_processes=has_processes))
    channel.close()
    system.drop_capabilities()
    os._exit(_attend(keeper, keeper))


def _try() -> NoReturn:
    try:
        namespace.check_machine()
        namespace.enter(processes=False)
        namespace.open_sockets(six=namespace.set_up_network())
    except namespace.StepFailed as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(_FAILED)
    sys.exit()


def _prepare(order: Order, channel: socket.socket) -> bool:
    """Make the namespaces and hand the sockets over; return whether there is a process namespace."""
    namespace.check_machine()
    paths = mounts.socket_paths(_read(Path("/proc/net/unix")))
    has_processes = namespace.may_show_processes()
    namespace.enter(processes=has_processes)
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != order.parent:
        sys.exit(_FAILED)
    system.forbid_inspection()
    six = namespace.set_up_network()
    sockets = namespace.open_sockets(six=six)
    try:
        _refuse_folders_as_streams()
        mounts.keep_apart()
        mounts.pin(order.covers.pinned)
        mounts.name_resolver()
        mounts.trust(order.trust)
        mounts.cover_sockets(paths)
        mounts.cover_disks()
        mounts.cover_folders(order.covers.empty, order.covers.shown)
        mounts.fix(order.covers.fixed)
        mounts.fix_kernel()
        mounts.empty_runtime(os.geteuid(), order.environment.get("XDG_RUNTIME_DIR", ""))
        if not has_processes:
            mounts.fix_processes()
    except OSError as error:
        raise namespace.StepFailed("files can't be covered in the mount namespace", error) from error
    message = {"ready": list(sockets), "processes": has_processes}
    control.send(channel, message, [each.fileno() for each in sockets.values()])
    for each in sockets.values():
        each.close()
    return has_processes


def _refuse_folders_as_streams() -> None:
    """A folder that comes along as a standard stream was opened outside: from there everything could be reached."""
    for number in range(3):
        try:
            is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
        except OSError:
            continue  # it is closed
        if is_folder:
            raise namespace.StepFailed(f"standard stream {number} is a folder, which would lead around the covers")


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _fork(child: Callable[[], NoReturn]) -> int:
    process = os.fork()
    if process == 0:
        try:
            child()
        except BaseException as error:  # noqa: BLE001 - a forked child must never return into its parent's code
            _say(f"the guest can't be started: {error}")
        finally:
            os._exit(_FAILED)
    return process


def _keep(order: Order, channel: socket.socket, *, has_processes: bool) -> NoReturn:
    """Be the guest's process 1."""
    system.die_with_parent(signal.SIGKILL)
    if has_processes:
        mounts.show_processes()
        mounts.fix_processes()
    guest = _fork(lambda: _become(order, channel))
    channel.close()
    system.drop_capabilities()
    system.forbid_inspection()
    os._exit(_attend(guest, guest))


def _become(order: Order, channel: socket.socket) -> NoReturn:
    """Become the program, with nothing but its three standard streams."""
    os.set_inheritable(channel.fileno(), False)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    system.drop_capabilities()
    system.forbid_new_privileges()
    reports = confine.install()
    if reports is not None:
        control.send(channel, {"reports": True}, [reports])
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        os.execvpe(order.command[0], order.command, order.environment)  # noqa: S606 - that is what it is for
    except FileNotFoundError:
        os._exit(_NOT_FOUND)
    except OSError as error:
        _say(f"{order.command[0]}: {error.strerror}")
        os._exit(_CANNOT_EXECUTE)


def _say(message: str) -> None:
    sys.stderr.write(f"seamgate: {message}\n")
    sys.stderr.flush()


def _attend(child: int, pass_to: int) -> int:
    """Pass signals on and reap, until the child ends; return its exit code as a shell says it."""
    while True:
        told = signal.sigwaitinfo(_WAITED_FOR)
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != _FROM_KERNEL:
                os.kill(pass_to, told.si_signo)
            continue
        code = _reap(child)
        if code is not None:
            return code if code >= 0 else 128 - code


def _reap(child: int) -> int | None:
    """Take every child that has ended; return the exit code of the one that counts, if it is among them."""
    code = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if process == 0:
            return code
        if process == child:
            code = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
