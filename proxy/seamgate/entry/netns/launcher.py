"""The launcher: makes a guest's namespaces, hands the sockets in them to the gateway, and becomes the guest's keeper.

Run by the gateway as `python -m seamgate.entry.netns.launcher FD`, where FD is the channel of `control`. Three
processes come of it:

    launcher    outside of the guest's process namespace: passes signals on, and the exit code back
      keeper    process 1 inside: reaps whoever loses their parent, and answers what the filter reports (`supervisor`);
                when it ends, the kernel ends everybody inside
        guest   without capabilities, under the filter of `confine`; becomes the program

Each dies with its parent, so that nothing of a guest outlives its gateway.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from seamgate.entry.netns import confine, control, devices, mounts, namespace, supervisor, system
from seamgate.entry.netns.covers import Covers

_FAILED = 3
_CANNOT_EXECUTE, _NOT_FOUND = 126, 127
_PASSED_ON = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT})
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}
_READY, _UNIX, _PAIRS_ONLY = b"r", b"u", b"p"
_NO_TRACING = "tracing is forbidden here (kernel.yama.ptrace_scope, or a filter of a container)"
_FROM_KERNEL = 0x80  # SI_KERNEL: the terminal sent it, to everybody in the foreground, the guest included


class Order:
    """What the gateway wants: the program and its environment, what to keep from it, roots to trust, our parent, and
    whether the program may do without a process namespace."""

    def __init__(self, message: Mapping[str, object]) -> None:
        self.command: list[str] = message["command"]  # type: ignore[assignment]
        self.environment: dict[str, str] = message["environment"]  # type: ignore[assignment]
        self.covers = msgspec.convert(message["covers"], Covers)
        self.trust: str = message["trust"]  # type: ignore[assignment]
        self.parent: int = message["parent"]  # type: ignore[assignment]
        self.may_share: bool = message["may_share"]  # type: ignore[assignment]


_NO_PROCESSES = (
    "a process namespace can't be had, because parts of /proc are masked here (a container), and without one the "
    "program could signal the gateway and whatever else runs here as its user; unmask /proc (Docker: --security-opt "
    "systempaths=unconfined, Kubernetes: procMount: Unmasked), or permit it in a configuration with `entries: {netns: "
    "{processes: shared}}`"
)
TRY = "--try"
"""In place of the descriptor: make everything, say on standard error what can't be, and on standard output why there
would be no unix sockets but pairs; and end."""


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
        has_processes = namespace.may_show_processes()
        namespace.enter(processes=False)
        namespace.open_sockets(six=namespace.set_up_network())
        if not has_processes:
            raise namespace.StepFailed(_NO_PROCESSES)
    except namespace.StepFailed as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(_FAILED)
    if not _may_supervise():
        sys.stdout.write(f"{_NO_TRACING}\n")
    sys.exit()


def _may_supervise() -> bool:
    """Try, with a child that waits, whether guests can be supervised."""
    child = _fork(lambda: os._exit(signal.sigwait({signal.SIGTERM})))
    try:
        return supervisor.can_supervise(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _prepare(order: Order, channel: socket.socket) -> bool:
    """Make the namespaces and hand the sockets over; return whether there is a process namespace."""
    namespace.check_machine()
    paths = mounts.socket_paths(_read(Path("/proc/net/unix")))
    has_processes = namespace.may_show_processes()
    namespace.enter(processes=has_processes)
    if not has_processes and not order.may_share:
        raise namespace.StepFailed(_NO_PROCESSES)
    system.die_with_parent(signal.SIGKILL)
    if os.getppid() != order.parent:
        sys.exit(_FAILED)
    system.forbid_inspection()
    six = namespace.set_up_network()
    sockets = namespace.open_sockets(six=six)
    try:
        _check_streams()
        mounts.keep_apart()
        mounts.pin(order.covers.pinned)
        mounts.name_resolver()
        mounts.trust(order.trust)
        mounts.cover_sockets(paths)
        devices.own_devices()
        mounts.cover_folders(order.covers.empty, order.covers.shown)
        mounts.fix(order.covers.fixed)
        mounts.fix_kernel()
        mounts.own_queues()
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


def _check_streams() -> None:
    """Refuse standard streams that lead around all this: a folder, opened outside, from where everything is reached;
    and a socket that can be connected anew, which would happen in the network namespace that it was made in."""
    for number in range(3):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue  # it is closed
        if stat.S_ISDIR(mode):
            raise namespace.StepFailed(f"standard stream {number} is a folder, which would lead around the covers")
        if stat.S_ISSOCK(mode) and not _is_lasting(number):
            raise namespace.StepFailed(
                f"standard stream {number} is a socket of this machine, which could be connected to elsewhere; "
                "put a pipe in between (`cat | seamgate run ... | cat`)"
            )


def _is_lasting(descriptor: int) -> bool:
    """Whether a socket stays connected as it is: a unix one that is no datagrams' can't be connected twice."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family != socket.AF_UNIX or copy.type not in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            return False
        try:
            copy.getpeername()
        except OSError:
            return False
        return True


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
    ours, theirs = socket.socketpair()
    guest = _fork(lambda: _become(order, theirs))
    theirs.close()
    system.drop_capabilities(system.CAP_SYS_PTRACE, system.CAP_NET_ADMIN)
    system.forbid_inspection()
    _supervise(guest, ours, channel, has_processes=has_processes)
    os._exit(_attend(guest, guest))


def _supervise(guest: int, ours: socket.socket, channel: socket.socket, *, has_processes: bool) -> None:
    """Agree with the guest on its filter, let it begin, and answer what that reports."""
    ours.recv(1)
    if not has_processes:
        why = "it shares its processes with this machine"
    elif not supervisor.can_supervise(guest):
        why = _NO_TRACING
    else:
        why = ""
    ours.sendall(_PAIRS_ONLY if why else _UNIX)
    said, listeners, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    if said and not listeners:
        why = "a gateway around this one has the reports of its filter"
    if why:
        control.send(channel, {"pairs_only": why})
    telling = threading.Lock()

    def tell(refused: Mapping[str, object]) -> None:
        with telling, contextlib.suppress(OSError):  # the gateway has hung up: it ends the guest
            control.send(channel, {"refused": refused})

    for listener in listeners:
        supervisor.Supervisor(listener, tell).start()


def _become(order: Order, keeper: socket.socket) -> NoReturn:
    """Become the program, with nothing but its three standard streams."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    system.drop_capabilities()
    system.forbid_new_privileges()
    confine.leave_keys()
    system.permit_inspection()  # as any program is from its start; there is nothing here that the keeper doesn't have
    keeper.sendall(_READY)
    reports = confine.install(unix=keeper.recv(1) == _UNIX)
    socket.send_fds(keeper, [_READY], [] if reports is None else [reports])
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
