"""Outcome Escape, attacker guest code: services of the host with a unix socket that the guest's namespaces don't hold.

Who can see such a socket and may write to it may connect, in whatever way it got its path. So it is who listens there
that counts. What the guest's own programs listen at works as ever, and nothing of this is known to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import COMMAND_S, environment
from support.lab import Lab
from support.netns import Guests, folder_for_all, python
from support.upstream import HttpUpstream, echo

CONNECT = """
import os, socket, sys
for place in sys.argv[1:]:
    kind, path = place.split(":")
    with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as client:
        try:
            client.connect(path.replace("@", "\\0"))
            print("connected", client.recv(9))
        except OSError as error:
            print(type(error).__name__)
"""
GREETING = b"outside"
WITH_AND_WITHOUT_C = pytest.mark.parametrize("without_c", [False, True], ids=["with C", "without C"])


class Service:
    """Something on the host that serves whoever connects."""

    def __init__(self, kind: int = socket.SOCK_STREAM) -> None:
        self.listener = socket.socket(socket.AF_UNIX, kind)
        self.received = b""
        self.knocks = 0
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> None:
        """Serve from now on."""
        self.listener.listen()
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.knocks += 1
            with connection, contextlib.suppress(OSError):
                connection.send(GREETING)
                self.received += connection.recv(99)

    def stop(self) -> None:
        """End, once everything that was accepted has been read."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


_BIND_ELSEWHERE = """
import ctypes, socket, sys
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
libc = ctypes.CDLL(None)
assert libc.unshare(NEW_NETWORK) == 0 or libc.unshare(NEW_USER | NEW_NETWORK) == 0  # as root, or as anybody
made = socket.socket(socket.AF_UNIX)
made.bind(sys.argv[1])
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [made.fileno()])
"""


def _bind_elsewhere(path: Path) -> Service:
    """Make a service in another network namespace: a child moves there, and hands the socket over."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        command = [sys.executable, "-c", _BIND_ELSEWHERE, str(path), str(number)]
        subprocess.run(command, pass_fds=[number], timeout=COMMAND_S, check=True)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    service = Service()
    service.listener.close()
    service.listener = socket.socket(fileno=descriptors[0])
    return service


def _make(how: str, path: Path) -> Service:
    """Make a service whose socket is found at `path`, and can't be told from the gateway's /proc/net/unix."""
    if how == "another network namespace":
        return _bind_elsewhere(path)
    service = Service(socket.SOCK_SEQPACKET if how == "packets" else socket.SOCK_STREAM)
    if how in ("relative", "packets"):
        with _in_folder(path.parent):
            service.listener.bind(path.name)
    else:
        first = path.with_name("first")
        service.listener.bind(str(first))
        if how == "linked":
            os.link(first, path)
            first.unlink()
        else:
            first.rename(path)
    return service


@pytest.mark.parametrize("how", ["relative", "packets", "renamed", "linked", "another network namespace"])
@pytest.mark.parametrize("as_nobody", [False, True], ids=["as the gateway's user", "as nobody"])
async def test_a_socket_with_a_path_is_not_reached(how: str, as_nobody: bool) -> None:
    """A container engine's mounted socket, an OpenSSH ControlPath: not even a knock, and audited by its path."""
    with folder_for_all() as folder:
        path = folder / "service"
        service = _make(how, path)
        path.chmod(0o777)
        service.start()
        try:
            async with Lab(HttpUpstream(echo)) as lab:
                kind = "SOCK_SEQPACKET" if how == "packets" else "SOCK_STREAM"
                guests = Guests(lab, as_nobody=as_nobody)
                done = await guests.run("/usr/bin/python3", "-c", CONNECT, f"{kind}:{path}")
                assert done.out == "ConnectionRefusedError\n", done
                (record,) = await lab.refused(f"CONNECT {path} deny no_rule_matched 0 denied")
                assert record.request is not None and record.request.scheme == "unix"
                assert f"The unix socket {path} is of a service outside" in record.message
        finally:
            service.stop()
    assert (service.knocks, service.received) == (0, b"")


async def test_a_socket_that_comes_later_is_not_reached(tmp_path: Path) -> None:
    """The program waits for the service to start, at a path that was free: it is no closer."""
    path, ready = tmp_path / "service", tmp_path / "ready"
    wait = f"open({str(ready)!r}, 'w').close()\nimport os\nwhile not os.path.exists({str(path)!r}): pass\n"
    service = Service()
    async with Lab(HttpUpstream(echo)) as lab:

        async def start_service() -> None:
            await lab.until(ready.exists)
            first = tmp_path / "first"
            service.listener.bind(str(first))
            service.start()
            first.rename(path)

        done, _ = await asyncio.gather(python(lab, wait + CONNECT, f"SOCK_STREAM:{path}"), start_service())
        assert done.out == "ConnectionRefusedError\n", done
        await lab.refused(f"CONNECT {path} deny no_rule_matched 0 denied")
    service.stop()
    assert (service.knocks, service.received) == (0, b"")


def test_a_second_mount_leads_to_no_socket(tmp_path: Path) -> None:
    """What is covered at its own path is not reached where its folder is mounted once more."""
    there, again, work = (tmp_path / name for name in ("there", "again", "work"))
    for folder in (there, again, work):
        folder.mkdir()
    service = Service()
    service.listener.bind(str(there / "service"))
    service.start()
    run = 'mount --bind "$1" "$2" && shift 2 && exec "$0" -m seamgate run --isolation netns --audit runs/a.jsonl "$@"'
    command = ("unshare", "-Urm", "sh", "-c", run, sys.executable, str(there), str(again), "--")
    places = [f"SOCK_STREAM:{folder / 'service'}" for folder in (there, again)]
    try:
        done = subprocess.run(
            [*command, sys.executable, "-c", CONNECT, *places],
            cwd=work,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    finally:
        service.stop()
    assert done.stdout == "ConnectionRefusedError\n" * 2, done
    assert (service.knocks, service.received) == (0, b"")
    lines = [json.loads(line) for line in (work / "runs" / "a.jsonl").read_text().splitlines()]
    (told,) = (line["request"] for line in lines if line.get("request", {}).get("method") == "CONNECT")
    assert told == {"method": "CONNECT", "scheme": "unix", "path": str(again / "service")}


def test_message_queues_outside_are_not_there(tmp_path: Path) -> None:
    """A queue is a file where its file system is mounted, whatever IPC namespace opens it: the guest sees its own."""
    place = tmp_path / "queues"
    place.mkdir()
    setting = 'mount -t mqueue none "$1" && : > "$1/jobs" && ls "$1" && shift && exec "$0" -m seamgate run "$@"'
    command = ("unshare", "-Urmi", "sh", "-c", setting, sys.executable, str(place), "--isolation", "netns", "--")
    done = subprocess.run(
        [*command, "sh", "-c", 'ls "$0"; : > "$0/own" && ls "$0"', str(place)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.stdout == "jobs\nown\n", done


async def test_known_and_abstract_sockets_are_not_there(tmp_path: Path) -> None:
    """One that the gateway's machine lists is covered: no socket at all. Abstract names are the namespace's own."""
    path, abstract = str(tmp_path / "service"), f"\0seamgate-test-{os.getpid()}"
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for listener, address in zip(listeners, (path, abstract), strict=True):
        listener.bind(address)
        listener.listen()
    async with Lab(HttpUpstream(echo)) as lab:
        names = (path, abstract.replace("\0", "@"))
        done = await python(lab, CONNECT, *(f"SOCK_STREAM:{name}" for name in names))
        assert done.out == "ConnectionRefusedError\n" * 2, done
        await lab.audited()
    for listener in listeners:
        listener.close()


RACE = """
import ctypes, os, socket, sys, threading
outside, own = (each.encode() for each in sys.argv[1:])
listener = socket.socket(socket.AF_UNIX)
listener.bind(own)
listener.listen(4096)
libc = ctypes.CDLL(None)
addresses = [b"\\1\\0" + path.ljust(108, b"\\0") for path in (own, outside)]
memory = ctypes.create_string_buffer(addresses[0], 110)
spare = socket.socket()
stopped = False
def flip():
    number = 0
    while not stopped:
        number += 1
        ctypes.memmove(memory, addresses[number % 2], 110)
        os.dup2(spare.fileno() if number % 3 else unix.fileno(), target)
unix = socket.socket(socket.AF_UNIX)
target = os.dup(unix.fileno())
threading.Thread(target=flip).start()
got = set()
for _ in range(500):
    libc.connect(target, memory, 110)
    try:
        with socket.socket(fileno=os.dup(target)) as copy:
            copy.setblocking(False)
            got.add(copy.recv(9))
    except OSError:
        pass
    unix.close()
    unix = socket.socket(socket.AF_UNIX)
stopped = True
print(got)
"""


@WITH_AND_WITHOUT_C
async def test_an_address_that_changes_while_it_is_judged(without_c: bool, tmp_path: Path) -> None:
    """Another thread swaps the path in memory and the socket behind the descriptor: never the service outside."""
    path = tmp_path / "service"
    service = _make("renamed", path)
    service.start()
    try:
        async with Lab(HttpUpstream(echo)) as lab:
            guests = Guests(lab, without_c=without_c)
            done = await guests.run(sys.executable, "-c", RACE, str(path), str(tmp_path / "own"))
            assert done.out == "set()\n", done
            assert set(await lab.told()) <= {f"CONNECT {path} deny no_rule_matched 0 denied"}
    finally:
        service.stop()
    assert (service.knocks, service.received) == (0, b"")


DATAGRAMS = """
import socket
for make in (socket.socket, socket.socketpair):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            make(socket.AF_UNIX, kind)
            print("made")
        except OSError as error:
            print(error.errno)
"""


async def test_there_are_no_unix_datagrams() -> None:
    """Each of them could name another aim, where nobody looks: so there is no such socket, and no pair of them."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, DATAGRAMS)
        assert done.out == "97\n" * 4, done
        await lab.audited()


NESTED = """
import socket
from seamgate.entry.netns import confine, system
system.forbid_new_privileges()
print(confine.install(unix=True))
try:
    socket.socket(socket.AF_UNIX)
except OSError as error:
    print(error.errno)
one, other = socket.socketpair()
one.send(b"pair")
print(other.recv(9))
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    print(type(error).__name__)
"""


async def test_without_a_supervisor_there_are_pairs_only() -> None:
    """A gateway inside of a guest gets no reports of its own filter: its guests have no unix sockets but pairs."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, NESTED)
        assert done.out == "None\n97\nb'pair'\nConnectionRefusedError\n", done
        await lab.audited()


OWN = """
import asyncio, multiprocessing, os, signal, socket, sys
os.chdir(sys.argv[1])
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(f"own{kind}")
        listener.listen()
        for path in (f"own{kind}", f"{sys.argv[1]}/link{kind}"):
            os.path.exists(f"link{kind}") or os.symlink(f"own{kind}", f"link{kind}")
            for blocking in (True, False):
                with socket.socket(socket.AF_UNIX, kind) as client:
                    os.set_inheritable(client.fileno(), blocking)
                    client.setblocking(blocking)
                    client.connect(path)
                    kept = client.getblocking(), os.get_inheritable(client.fileno())
                    server, _ = listener.accept()
                    server.send(b"hello")
                    client.setblocking(True)
                    print(kept == (blocking, blocking), client.recv(9), client.getpeername() == f"own{kind}")
                    try:
                        client.connect(path)
                    except OSError as error:
                        print(type(error).__name__, error.errno)
for place in ("nowhere", "own1", ".", "x" * 107, ""):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(place)
        except OSError as error:
            print(error.errno)
with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
    listener.bind("\\0abstract")
    listener.listen()
    client.connect("\\0abstract")

async def main():
    async def greet(reader, writer):
        writer.write(b"hello")
        writer.close()
    async with await asyncio.start_unix_server(greet, "asyncio"):
        reader, writer = await asyncio.open_unix_connection("asyncio")
        print(await reader.read())

asyncio.run(main())
with multiprocessing.get_context("forkserver").Pool(1) as pool:
    print(pool.map(abs, [-1]))
with multiprocessing.get_context("fork").Manager() as manager:
    print(manager.list([2]))
"""


@WITH_AND_WITHOUT_C
async def test_a_guests_own_sockets_work(without_c: bool, tmp_path: Path) -> None:
    """By relative path, over a link, abstract, blocking or not; the errors of connect(2); what Python builds on it."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await Guests(lab, without_c=without_c).run(sys.executable, "-c", OWN, str(tmp_path))
        connected = ["True b'hello' True", "OSError 106"] * 8
        errors = ["2", "111", "111", "2", "22"]
        assert done.out.split("\n") == [*connected, *errors, "b'hello'", "[1]", "[2]", ""], done
        await lab.audited()


def _run_with(stream: socket.socket, home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "seamgate", "run", "--isolation", "netns", "--", *command],
        stdin=stream.fileno(),
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (socket.AF_INET, socket.SOCK_STREAM),
        (socket.AF_INET6, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_STREAM),
    ],
    ids=["tcp", "udp", "unix datagrams", "unix unconnected"],
)
def test_a_socket_as_a_standard_stream_is_refused(family: int, kind: int, tmp_path: Path) -> None:
    """Made outside, it could be connected to elsewhere, from the network namespace outside: the run does not start."""
    with socket.socket(family, kind) as stream:
        done = _run_with(stream, tmp_path, "echo", "ran")
    assert (done.returncode, done.stdout) == (3, ""), done
    assert "standard stream 0 is a socket of this machine" in done.stderr


def test_a_pair_as_a_standard_stream_is_fine(tmp_path: Path) -> None:
    """As node and socat have them for a child's streams: connected to its other end, and to nothing else ever."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"from outside\n")
        done = _run_with(theirs, tmp_path, "head", "-n1")
    assert (done.returncode, done.stdout) == (0, "from outside\n"), done
