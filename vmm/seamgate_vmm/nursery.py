"""The nursery: a process that has KVM and a loaded template, and forks workers, each of which gives up what it can.

    pool ──channel──> nursery: opens KVM, verifies and loads the template, forks a worker for each `spawn`

It never hears from a guest. What a worker is left with when its first guest comes: the view's paths, the scratch
folders, some ninety system calls, a user id that owns nothing (where the pool may give it one), a memory limit.
Runs on: its own process, one thread. `pool.py` starts it; `worker.py` is what a worker does then.
"""

import gc
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

from seamgate_vmm import _kvm
from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.confinement import join
from seamgate_vmm.errors import VmmError
from seamgate_vmm.host import Host, open_host
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.image import Mount, View
from seamgate_vmm.snapshot import Loaded, load
from seamgate_vmm.template import view_of
from seamgate_vmm.worker import Worker

_NICE = 10  # a hundred workers must not starve the one gateway that all their guests wait for
_GONE_S, _POLL_S = 10.0, 0.005


def enter_jail(view: View, scratch_root: Path, uid: int | None = None) -> None:
    """Give up the user id, if there is another, paths and system calls.

    Raises: OSError if this kernel refuses: then no guest is run.
    """
    _kvm.open_pagemap()
    if uid is not None:
        _kvm.become(uid)
    _kvm.die_with_parent()  # after a change of ids, which takes it back
    _kvm.no_new_privileges()
    _kvm.landlock(view.readable_paths(), [str(scratch_root)])
    _kvm.seccomp(True)


def _worker(
    host: Host, loaded: Loaded, channel: Channel, view: View, scratch_root: Path, uid: int | None, idle: IdlePolicy
) -> None:
    os.nice(_NICE)
    os.umask(0)  # modes of files in scratch are the guest's own
    enter_jail(view, scratch_root, uid)
    Worker(host, loaded, channel, view, scratch_root, idle).run()


def nursery(fd: int) -> int:
    """Main of the nursery: `fd` is its channel. Returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the pool, which decides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; the pool learns by the channel
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = Channel(socket.socket(fileno=fd))
    message, _ = channel.receive()
    scratch_root = Path(message["scratch_root"])
    try:
        host = open_host()
        loaded = load(Path(message["template"]), host)
    except (VmmError, OSError) as error:
        channel.send({"op": "failed", "error": str(error), "kind": type(error).__name__})
        return 3
    view = view_of(loaded.meta.roots, [Mount(g, h) for g, h in message["mounts"]])
    view.hide(str(path) for path in message["hidden"])
    channel.send({"op": "loaded", "python": loaded.meta.program, "tier": host.tier})
    gc.collect()
    gc.freeze()  # what a collector never looks at, it never writes to: workers share it with us
    idle = IdlePolicy(**message["idle"])
    return _spawn_workers(channel, host, loaded, view, scratch_root, message["uid"], idle)


def _wait_for_workers() -> None:
    """Return when none is left, so that the pool can take their control groups away; they end by their channels."""
    until = time.monotonic() + _GONE_S
    while time.monotonic() < until:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(_POLL_S)


def _spawn_workers(
    channel: Channel, host: Host, loaded: Loaded, view: View, scratch_root: Path, uid: int | None, idle: IdlePolicy
) -> int:
    while True:
        try:
            message, fds = channel.receive()
        except Closed:
            _wait_for_workers()
            return 0
        if os.fork() == 0:
            code = 70
            try:
                channel.close()
                if message["group"]:
                    join(message["group"])
                _worker(host, loaded, Channel(socket.socket(fileno=fds[0])), view, scratch_root, uid, idle)
                code = 0
            except OSError as error:
                sys.stderr.write(f"seamgate: a worker ended: {error}\n")
            finally:
                os._exit(code)
        for fd in fds:
            os.close(fd)
