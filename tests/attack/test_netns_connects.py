"""Outcome Escape and Deny service, attacker guest code: what a guest does to the supervisor that connects for it.

It may harm nobody but itself, and itself as little as can be: a connect is made, or fails with a named error; none
hangs because others do. And what programs may be, to the kernel, they may be here: not dumpable, with descriptors by
thread.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

import pytest

from seamgate.entry.netns.supervisor import AT_ONCE
from support.lab import Lab
from support.netns import Guests, folder_for_all
from support.upstream import HttpUpstream, echo

WITH_AND_WITHOUT_C = pytest.mark.parametrize("without_c", [False, True], ids=["with C", "without C"])
AS_WHOM = pytest.mark.parametrize("as_nobody", [False, True], ids=["as the gateway's user", "as nobody"])

TRY = """
import ctypes, errno, os, resource, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def listen(address, backlog=9):
    listener = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    listener.bind(address)
    listener.listen(backlog)
    return listener

def code_of(client, address):
    try:
        client.connect(address)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "connected"

def attempt(address):
    with socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX) as client:
        return code_of(client, address)

listener = listen(("127.0.0.1", 0))
own = listener.getsockname()
"""


async def tried(code: str, *arguments: str, without_c: bool = False, as_nobody: bool = False) -> list[str]:
    """Run the attempts as a guest that is denied nothing; return what it says."""
    async with Lab(HttpUpstream(echo)) as lab:
        guests = Guests(lab, as_nobody=as_nobody, without_c=without_c)
        done = await guests.run("/usr/bin/python3", "-c", TRY + code, *arguments)
        assert (done.code, done.err) == (0, ""), done
        await lab.audited()
        return done.out.splitlines()


LIMITS = """
for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CPU):
    try:
        resource.prlimit(1, limit, (0, 0))
        print("limited")
    except OSError as error:
        print(type(error).__name__)
resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (99, 99))
print(resource.prlimit(1, resource.RLIMIT_NOFILE)[0] > 0, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(attempt(own))
"""


@AS_WHOM
async def test_a_guest_does_not_limit_its_keeper(as_nobody: bool) -> None:
    """Without descriptors it could connect for nobody any more. Limits can be read, and a program's own be set."""
    told = await tried(LIMITS, as_nobody=as_nobody)
    assert told == ["PermissionError"] * 3 + ["True 99", "connected"]


WAITS = f"""
full = listen(("127.0.0.1", 0), 0)
place = full.getsockname()
taken = [socket.create_connection(place)]
answers = []
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    def wait():
        theirs.send((attempt(place) + "\\n").encode())
    threads = [threading.Thread(target=wait, daemon=True) for _ in range({AT_ONCE} + 5)]
    for each in threads:
        each.start()
    time.sleep(60)
theirs.close()
lines = ours.makefile()
print([lines.readline() for _ in range(5)] == ["EAGAIN\\n"] * 5)
client = socket.socket()
client.setblocking(False)
print(code_of(client, place), code_of(socket.socket(), own) if len(sys.argv) > 1 else "")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(lines.readline() == "", attempt(own))
slow = socket.socket()
slow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, (0).to_bytes(8, "little") + (50_000).to_bytes(8, "little"))
print(code_of(slow, place))
"""


@WITH_AND_WITHOUT_C
async def test_connects_that_wait_keep_nobody_waiting(without_c: bool) -> None:
    """So many may wait at a listener that is full; more fail with EAGAIN, others work, and those that were killed make
    room. One that gives itself a time ends in that, as ever."""
    told = await tried(WAITS, *([] if without_c else ["plain ones too"]), without_c=without_c)
    plain = "EINPROGRESS connected" if not without_c else "EINPROGRESS "
    assert told == ["True", plain, "True connected", "EINPROGRESS"]


WAITS_LONG = """
full = listen(("127.0.0.1", 0), 0)
place = full.getsockname()
taken = [socket.create_connection(place)]
got = []
waiting = threading.Thread(target=lambda: got.append(attempt(place)))
waiting.start()
waiting.join(0.1)
print(got)
for _ in range(2):
    full.accept()
waiting.join()
print(got)
full.close()
print(attempt(place))
"""


@WITH_AND_WITHOUT_C
async def test_a_connect_waits_for_its_listener(without_c: bool) -> None:
    """However long that takes, it is the same connect to the program, with the kernel's own answer."""
    assert await tried(WAITS_LONG, without_c=without_c) == ["[]", "['connected']", "ECONNREFUSED"]


UNDUMPABLE = """
os.chdir(sys.argv[1])
named = listen("own")
print(attempt(own), attempt("own"), attempt(sys.argv[1] + "/own"))
print(libc.prctl(4, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0))
print(attempt(own), attempt("own"), attempt(sys.argv[1] + "/own"))
inheritable = socket.socket(socket.AF_UNIX)
inheritable.set_inheritable(True)
print(code_of(inheritable, "own"), inheritable.get_inheritable())
"""


@WITH_AND_WITHOUT_C
@AS_WHOM
async def test_a_program_that_can_not_be_traced_connects(without_c: bool, as_nobody: bool) -> None:
    """As ssh-agent is, and what keeps a key in its memory: others of its user can't look into it, its keeper does."""
    with folder_for_all() as folder:
        told = await tried(UNDUMPABLE, str(folder), without_c=without_c, as_nobody=as_nobody)
    all_three = "connected connected connected"
    assert told == [all_three, "0 0", all_three, "connected True"]


OWN_TABLE = """
os.chdir(sys.argv[1])
named = listen("own")
other = socket.socket()

def apart():
    print(libc.unshare(0x400))
    for kind, place in ((socket.AF_INET, own), (socket.AF_UNIX, "own")):
        with socket.socket(kind) as made:
            os.dup2(made.fileno(), other.fileno())
        client = socket.socket(fileno=os.dup(other.fileno()))
        os.dup2(client.fileno(), other.fileno())
        print(libc.connect(other.fileno(), *raw(place)), ctypes.get_errno())
        with socket.socket(fileno=os.dup(other.fileno())) as copy:
            print(peer_of(copy) == place)

def peer_of(client):
    try:
        return client.getpeername()
    except OSError as error:
        return errno.errorcode[error.errno]

def raw(place):
    inet = b"\\2\\0" + own[1].to_bytes(2, "big") + bytes((127, 0, 0, 1)) + bytes(8)
    data = inet if place == own else b"\\1\\0own\\0"
    return data, len(data)

thread = threading.Thread(target=apart)
thread.start()
thread.join()
print(peer_of(other))
"""


def _threads_have_handles() -> bool:
    """Whether a thread's own descriptors can be had: since Linux 6.9."""
    try:
        os.close(os.pidfd_open(os.getpid(), os.O_EXCL))
    except OSError:
        return False
    return True


@WITH_AND_WITHOUT_C
async def test_a_thread_with_descriptors_of_its_own_connects_those(without_c: bool) -> None:
    """The number is looked up where the thread would: what its process has by that number stays as it is. Where the
    kernel can't do that, it is refused and told."""
    with folder_for_all() as folder:
        async with Lab(HttpUpstream(echo)) as lab:
            guests = Guests(lab, without_c=without_c)
            done = await guests.run("/usr/bin/python3", "-c", TRY + OWN_TABLE, str(folder))
            assert (done.code, done.err) == (0, ""), done
            if _threads_have_handles():
                assert done.out.splitlines() == ["0", *["0 0", "True"] * 2, "ENOTCONN"]
                await lab.audited()
            else:
                assert done.out.splitlines() == ["0", *[f"-1 {errno.EACCES}", "False"] * 2, "ENOTCONN"]
                (record,) = await lab.refused("CONNECT - deny no_rule_matched 0 denied (refused 2 times)")
                assert "has descriptors of its own, before Linux 6.9" in record.message


async def test_a_program_that_can_be_run_and_not_read_is_told_of() -> None:
    """The kernel lets nobody but root look into it: it does not connect, and the record says why."""
    with folder_for_all() as folder:
        program = folder / "secretive"
        shutil.copy("/usr/bin/python3", program)
        program.chmod(stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        async with Lab(HttpUpstream(echo)) as lab:
            done = await Guests(lab, as_nobody=True).run(str(program), "-c", TRY + "print(attempt(own))")
            # Else it is this user's own, of which the guest's namespace knows: then the keeper may look into it.
            if os.geteuid() != 0:
                assert done.out == "connected\n", done
                await lab.audited()
                return
            assert done.out == "EACCES\n", done
            (record,) = await lab.refused("CONNECT - deny no_rule_matched 0 denied")
            assert record.request is not None and record.request.scheme == "unseen"
            assert "Connections of the program secretive can't be looked at" in record.message
