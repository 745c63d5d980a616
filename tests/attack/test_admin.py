"""The admin listener as a guest's target: through the gateway it can't be reached, by whatever name; by itself it gives
nothing away and changes nothing over TCP.

The policy permits all these targets and all addresses, so that nothing but the gateway's knowledge of itself is tried.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from seamgate.config import parse_config
from seamgate.errors import ConfigError, PrerequisiteMissing
from support.client import Answer, Client, connect
from support.lab import SECRET, TOKEN, WITH_KEY, Lab
from support.upstream import HttpUpstream, echo

EVERYTHING: dict[str, Any] = {
    "id": "everything",
    "allow": {
        "hosts": ["**", "127.0.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[::]"],
        "schemes": ["https", "http"],
        "ports": ["1-65535"],
    },
}
NAMES = {"loop.test": ["127.0.0.1"], "mixed.test": ["127.0.0.1", "::1"], "mapped.test": ["::ffff:127.0.0.1"]}


def guarded(**more: Any) -> Lab:
    """Return a lab whose policy and addresses permit all, with an admin listener on loopback."""
    settings = {
        "admin": {"listen": "127.0.0.1:0"},
        "permit_addresses": ["loopback", "unspecified", "private", "reserved", "shared"],
        "dns": {"addresses": NAMES},
    }
    return Lab(HttpUpstream(echo), rules=[EVERYTHING], settings={**settings, **more})


def port_of(lab: Lab) -> int:
    """Return the port of the lab's admin listener."""
    return int(lab.gateway.admin_address.rpartition(":")[2])


async def ask_admin(lab: Lab, text: bytes) -> Answer:
    """Send a request to the admin listener itself, as any program of this machine can."""
    client = Client(await connect("127.0.0.1", port_of(lab)), "127.0.0.1")
    await client.send(text)
    answer = await client.answer()
    client.close()
    return answer


HOSTS = ["127.0.0.1", "loop.test", "mixed.test", "mapped.test", "0.0.0.0", "[::ffff:127.0.0.1]", "[::]"]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_request_through_the_proxy(host: str) -> None:
    """A plain request to the admin listener, by whatever name or spelling of its address, is refused as its own."""
    async with guarded() as lab:
        client = await lab.proxy(authority=f"{host}:{port_of(lab)}")
        answer = await client.ask("GET", "/metrics")
        assert answer.reason == "own_address"
        assert b"seamgate_build" not in answer.body
        await lab.refused("GET /metrics deny own_address 403 denied")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "[::]"])
async def test_a_tunnel_to_its_address(host: str) -> None:
    """CONNECT to its address is refused before a tunnel is there."""
    async with guarded() as lab:
        place = f"{host}:{port_of(lab)}"
        _, head = await lab.connect(place)
        assert head.startswith(b"HTTP/1.1 403 ")
        assert b"own_address" in head
        [record] = await lab.audited(f"CONNECT {place.replace('[', '').replace(']', '')} deny own_address 403 denied")
        assert record.reason == "own_address"


@pytest.mark.parametrize("name", list(NAMES))
async def test_a_tunnel_to_a_name_of_it(name: str) -> None:
    """A tunnel to a name that leads there opens, since no name is looked up yet; no request goes through it."""
    async with guarded() as lab:
        client = await lab.tunnel(f"{name}:{port_of(lab)}")
        assert (await client.ask("GET", "/metrics")).reason == "own_address"
        await lab.refused("GET /metrics deny own_address 403 denied")


async def test_a_route_to_it() -> None:
    """A base-URL route that leads there, which only a mistake in the configuration makes, is refused all the same."""
    async with guarded() as probe:
        port = port_of(probe)
    routes = {"entries": {"base_url": {"routes": {"admin": f"http://127.0.0.1:{port}"}}}}
    async with guarded(**routes, admin={"listen": f"127.0.0.1:{port}"}) as lab:
        answer = await (await lab.base()).ask("GET", "/admin/metrics")
        assert answer.reason == "own_address"
        await lab.refused("GET /metrics deny own_address 403 denied")


@pytest.mark.parametrize(
    "host",
    [b"rebound.example", b"rebound.example:9901", b"127.0.0.1.evil.example", b"localhost.evil", b"10.0.0.1", b"x@y"],
)
async def test_dns_rebinding(host: bytes) -> None:
    """A browser that takes this listener for a foreign site is refused by the name that it asks for."""
    async with guarded() as lab:
        answer = await ask_admin(lab, b"GET /status HTTP/1.1\r\nhost: %b\r\n\r\n" % host)
        assert answer.status == 421
        assert b"generation" not in answer.body


@pytest.mark.parametrize("host", [b"127.0.0.1", b"127.0.0.1:9901", b"localhost:1", b"[::1]:9901", b"LOCALHOST"])
async def test_its_own_names(host: bytes) -> None:
    """Names that only this machine can mean are answered."""
    async with guarded() as lab:
        assert (await ask_admin(lab, b"GET /healthz HTTP/1.1\r\nhost: %b\r\n\r\n" % host)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"])
async def test_nothing_is_changed_over_tcp(method: str) -> None:
    """Only GET and HEAD, and no reload: every program of the machine can talk to a port."""
    async with guarded() as lab:
        line = f"{method} /status HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        assert (await ask_admin(lab, line)).status == 405
        denied = await ask_admin(lab, f"{method} /reload HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert denied.status == (403 if method == "POST" else 405)
        assert lab.gateway.seam.pipeline.generation == 1


@pytest.mark.parametrize(
    "text",
    [
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\nhost: localhost\n\n",
        b"GET /metrics HTTP/2.0\r\nhost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
        b"GET /" + b"a" * 70_000,
    ],
    ids=["no host", "two hosts", "bare lf", "version", "smuggling", "tls", "long"],
)
async def test_garbage(text: bytes) -> None:
    """What is not HTTP/1.1 is refused and closed; the listener goes on."""
    async with guarded() as lab:
        answer = await ask_admin(lab, text)
        assert 400 <= answer.status < 506
        assert b"seamgate_" not in answer.body
        assert (await ask_admin(lab, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")).body == b"ok\n"


async def test_many_connections() -> None:
    """Whoever opens many connections gets none beyond the limit, and guests notice nothing."""
    async with guarded() as lab:
        held = [await connect("127.0.0.1", port_of(lab)) for _ in range(64)]
        beyond = Client(await connect("127.0.0.1", port_of(lab)), "localhost")
        assert (await beyond.answer()).status == 503
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        for line in (*held, beyond.line):
            line.close()


async def test_no_secret_is_told() -> None:
    """Neither metrics nor status hold a credential's value, a token or a header that a guest sent."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings={"admin": {"listen": "127.0.0.1:0"}}) as lab:
        client = await lab.proxy(token=TOKEN)
        await client.ask("GET", "/x?canary-query", b"x-header: canary-header")
        tunnel = await lab.tunnel()
        assert (await tunnel.ask("GET", "/x?canary-query", b"x-header: canary-header")).status == 200
        await lab.until(lambda: len(lab.records) == 2)
        lab._claimed = 2
        for path in (b"metrics", b"status"):
            told = (await ask_admin(lab, b"GET /%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)).body
            assert told
            for secret in (SECRET, TOKEN, "canary"):
                assert secret.encode() not in told


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:9901", "[::]:9901", "10.0.0.1:9901", "192.0.2.1:9901", "[::ffff:10.0.0.1]:1", "9901", "unix:"]
)
def test_it_listens_for_this_machine_only(listen: str, tmp_path: Path) -> None:
    """Any place that another machine could reach is an error of the configuration, with its line."""
    text = f"entries: {{proxy: {{guest: g}}}}\nguests: {{g: {{}}}}\npolicies: [p.yaml]\nadmin: {{listen: '{listen}'}}\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "seamgate.yaml", base=tmp_path)
    assert caught.value.line == 4


async def test_the_socket_is_for_its_user_only(tmp_path: Path) -> None:
    """The socket's mode lets in nobody else, whatever the umask is, and the file goes when the gateway does."""
    path = tmp_path / "admin.sock"
    mask = os.umask(0)
    try:
        async with guarded(admin={"listen": f"unix:{path}"}):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(mask)
    assert not path.exists()


async def test_a_socket_in_use_is_not_taken(tmp_path: Path) -> None:
    """A second gateway does not take the socket of a first one, nor a file that is no socket."""
    path = tmp_path / "admin.sock"
    async with guarded(admin={"listen": f"unix:{path}"}):
        with pytest.raises(PrerequisiteMissing, match="another gateway"):
            async with guarded(admin={"listen": f"unix:{path}"}):
                raise AssertionError("it started")
        assert path.exists()
    path.write_text("precious")
    with pytest.raises(PrerequisiteMissing, match="no socket"):
        async with guarded(admin={"listen": f"unix:{path}"}):
            raise AssertionError("it started")
    assert path.read_text() == "precious"


async def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    """After a kill, the next start takes the dead socket's place."""
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with guarded(admin={"listen": f"unix:{path}"}):
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.close()
