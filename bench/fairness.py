"""How long another guest waits beside one that is busy: `bench/fairness.py [--connections 300,1500] [--seconds 5]`.

One gateway, two guests. The busy one has so many connections, on each of which it asks for what is denied as fast as it
is answered; or it opens tunnels and begins a TLS handshake in each, as many at once, with a ClientHello that it has
made once, so that all of the work is the gateway's. The other one asks on one warm connection, every 5 ms, and is
timed. Not held to a goal: what the machine does besides is in the figures, so read them beside the first line, with
nobody busy.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import select
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Process
from pathlib import Path
from tempfile import TemporaryDirectory

Place = tuple[str, int]
NEIGHBOUR_EVERY_S = 0.005
TOKENS = {"busy": "b" * 40, "other": "o" * 40}
_PROGRAM = """
import asyncio, json, sys, uvloop
from seamgate.config import load_config
from seamgate.gateway import Gateway

async def main():
    async with Gateway(load_config(sys.argv[1])) as gateway:
        print(json.dumps(gateway.addresses), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

uvloop.run(main())
"""


@contextmanager
def gateway(folder: Path) -> Iterator[Place]:
    """Run one that allows tunnels to one host and nothing else; yield where it is."""
    from seamgate.ca.store import init_ca

    init_ca(folder / "ca")
    for guest, token in TOKENS.items():
        (folder / guest).write_text(token)
        (folder / guest).chmod(0o600)
    rule = {"id": "one", "allow": {"hosts": ["api.test"], "methods": ["GET"], "paths": ["/x"]}}
    (folder / "policy.yaml").write_text(json.dumps({"seamgate": 1, "rules": [rule]}))
    config = {
        "entries": {"proxy": {"listen": "127.0.0.1:0"}},
        "guests": {guest: {"token": {"file": str(folder / guest)}} for guest in TOKENS},
        "ca": {"dir": str(folder / "ca")},
        "policies": ["policy.yaml"],
        "plugins": ["policy", "dns"],
        "limits": {"connections": 4096},
        "dns": {"addresses": {"api.test": ["127.0.0.1"]}, "hosts_file": False},
        "audit": {"path": "audit.jsonl"},
    }
    (folder / "seamgate.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-c", _PROGRAM, str(folder / "seamgate.yaml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith(b'{"'):
            assert line, "the gateway did not start"
        yield tuple(json.loads(line)["proxy"])
        process.kill()


def _login(guest: str) -> bytes:
    return b"proxy-authorization: Basic " + base64.b64encode(f"{guest}:{TOKENS[guest]}".encode())


def _request(guest: str) -> bytes:
    return b"GET http://denied.test/ HTTP/1.1\r\nhost: denied.test\r\n" + _login(guest) + b"\r\n\r\n"


def keep_asking(place: Place, connections: int) -> None:
    """Ask on all of them; on each again once it is answered."""
    request, poll, lines = _request("busy"), select.epoll(), dict[int, socket.socket]()
    for _ in range(connections):
        line = socket.create_connection(place)
        line.setblocking(False)
        lines[line.fileno()] = line
        poll.register(line, select.EPOLLIN)
    time.sleep(1)  # they are taken a few a turn
    for line in lines.values():
        line.send(request)
    while True:
        for number, _ in poll.poll():
            line = lines[number]
            if b"\r\n\r\n" in line.recv(65536):
                line.send(request)


def keep_opening(place: Place, connections: int) -> None:
    """Begin handshakes, so many at once; leave each once it is answered."""
    hello, poll, lines = _client_hello(), select.epoll(), dict[int, tuple[socket.socket, bool]]()
    connect = b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:443\r\n" + _login("busy") + b"\r\n\r\n"

    def begin() -> None:
        line = socket.create_connection(place)
        line.setblocking(False)
        poll.register(line, select.EPOLLIN)
        line.send(connect)
        lines[line.fileno()] = line, False

    for _ in range(connections):
        begin()
    while True:
        for number, _ in poll.poll():
            line, began = lines[number]
            if not began and line.recv(65536):
                line.send(hello)
                lines[number] = line, True
                continue
            del lines[number]
            line.close()
            begin()


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="api.test")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def neighbour(line: socket.socket, seconds: float) -> list[float]:
    """Return how long each answer took, in ms."""
    request, waits = _request("other"), list[float]()
    line.settimeout(60)
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        line.sendall(request)
        assert b"403" in line.recv(65536)
        waits.append((time.monotonic() - began) * 1000)
        time.sleep(NEIGHBOUR_EVERY_S)
    return waits


def newcomer(place: Place, seconds: float) -> list[float]:
    """Return how long each answer took on a connection of its own, in ms."""
    waits, until = list[float](), time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        with socket.create_connection(place, timeout=60) as line:
            line.sendall(_request("other"))
            assert b"403" in line.recv(65536)
        waits.append((time.monotonic() - began) * 1000)
        time.sleep(NEIGHBOUR_EVERY_S)
    return waits


def measure(name: str, busy: Callable[[Place, int], None] | None, connections: int, seconds: float) -> None:
    """Print one line."""
    with TemporaryDirectory() as folder, gateway(Path(folder)) as place, socket.create_connection(place) as line:
        neighbour(line, 0.5)
        load = None if busy is None else Process(target=busy, args=(place, connections), daemon=True)
        if load is not None:
            load.start()
            time.sleep(2 + connections / 1000)
        tell(f"{name}: warm", neighbour(line, seconds))
        tell(f"{name}: new", newcomer(place, seconds))
        if load is not None:
            assert load.is_alive()
            load.kill()
        print(f"{'':32} {sum(1 for _ in (Path(folder) / 'audit.jsonl').open())} requests", flush=True)


def tell(name: str, waits: list[float]) -> None:
    """Print the figures of one kind."""
    waits.sort()
    p99 = waits[len(waits) * 99 // 100]
    print(f"{name:32} median {statistics.median(waits):7.1f} p99 {p99:7.1f} longest {waits[-1]:7.1f} ms", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", default="300,1500")
    parser.add_argument("--handshakes", default="64")
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measure("nobody", None, 0, arguments.seconds)
    for connections in map(int, arguments.connections.split(",")):
        measure(f"{connections} connections", keep_asking, connections, arguments.seconds)
    for connections in map(int, arguments.handshakes.split(",")):
        measure(f"{connections} handshakes at once", keep_opening, connections, arguments.seconds)


if __name__ == "__main__":
    main()
