"""A guest that floods does not starve another: sessions upstream and connections here are shared out."""

from __future__ import annotations

import asyncio
from typing import Any

from support.client import Client
from support.lab import OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.upstream import HttpUpstream, RawUpstream, Talk

SHARED: dict[str, Any] = {
    "entries": {"proxy": {"guest": ""}},
    "pool": {"isolation": "shared", "sessions_per_origin": 4, "guest_share": 0.75},
}


class Slow:
    """An app that holds every request of `/hold` until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.held = 0

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        await talk.body()
        if talk.target.startswith("/hold"):
            self.held += 1
            await self.go.wait()
        await talk.respond(200, talk.target.encode())


async def tunnel(lab: Lab, token: str) -> Client:
    """Open a tunnel as the guest of this token."""
    return await lab.tunnel("", proxy_authorization(token))


async def test_a_flood_leaves_sessions_for_others() -> None:
    """Forty requests that hang hold three of four sessions; another guest's are answered meanwhile, then all are."""
    slow = Slow()
    async with Lab(HttpUpstream(slow), settings=SHARED) as lab:
        flood = [await tunnel(lab, OTHER_TOKEN) for _ in range(12)]
        waiting = [asyncio.ensure_future(each.ask("GET", f"/hold/{n}")) for n, each in enumerate(flood)]
        await lab.until(lambda: slow.held == 3 and lab.gateway.seam.active == 12)
        quiet = await tunnel(lab, TOKEN)
        for number in range(5):
            assert (await quiet.ask("GET", f"/quick/{number}")).body == f"/quick/{number}".encode()
        assert slow.held == 3
        slow.go.set()
        answers = await asyncio.gather(*waiting)
        assert {answer.status for answer in answers} == {200}
        told = await lab.told()
        assert told[:5] == [f"GET /quick/{number} allow allowed 200 complete" for number in range(5)]
        assert len(told) == 17


def connections(most: int, **limits: int) -> dict[str, Any]:
    """Return settings with this limit of one guest's connections."""
    entries = {"proxy": {"guest": ""}, "base_url": {"guest": ""}}
    return {"entries": entries, "limits": {"guest_connections": most, **limits}}


async def test_tunnels_beyond_a_guests_share_are_refused() -> None:
    """503, audited as overloaded, with advice; another guest's are opened; one that ends makes room."""
    async with Lab(HttpUpstream(Slow()), settings=connections(3)) as lab:
        flood = [await tunnel(lab, OTHER_TOKEN) for _ in range(3)]
        for client in flood:
            assert (await client.ask("GET", "/x")).status == 200
        for _ in range(2):
            line, head = await lab.connect("", proxy_authorization(OTHER_TOKEN))
            assert head.startswith(b"HTTP/1.1 503 Service Unavailable (seamgate: overloaded)\r\n")
            assert b"retry-after: 1" in head
            line.close()
        assert (await (await tunnel(lab, TOKEN)).ask("GET", "/y")).status == 200
        flood[0].line.close()
        await flood[0].line.end()
        await lab.until(lambda: lab.gateway.connections.guests == {"h": 2, "g": 1})
        assert (await (await tunnel(lab, OTHER_TOKEN)).ask("GET", "/z")).status == 200
        told = await lab.told()
        assert told[3:5] == [f"CONNECT {lab.authority()} deny overloaded 503 denied"] * 2
        assert "its share" in lab.records[3].message
        assert lab.gateway.connections.refused_total == 2


async def test_plain_connections_count_as_well() -> None:
    """In absolute form and by base URL, from the first request on; two guests on one connection don't get around it."""
    async with Lab(HttpUpstream(Slow(), tls=False), settings=connections(1)) as lab:
        first = await lab.proxy(token=OTHER_TOKEN)
        assert (await first.ask("GET", "/1")).status == 200
        second = await lab.proxy(token=OTHER_TOKEN)
        assert (await second.ask("GET", "/2")).reason == "overloaded"
        assert (await first.ask("GET", "/3")).status == 200
        assert (await (await lab.proxy(token=TOKEN)).ask("GET", "/4")).status == 200
        base = await lab.base()
        assert (await base.ask("GET", f"/~{OTHER_TOKEN}/api/5")).reason == "overloaded"
        assert lab.gateway.connections.guests == {"h": 1, "g": 1}
        told = await lab.told()
        assert [each.split()[3] for each in told] == ["allowed", "overloaded", "allowed", "allowed", "overloaded"]


async def test_streams_that_pass_unread_count_as_well() -> None:
    """A tunnel under `protocol: tcp` is one of the guest's connections."""

    async def app(line: Any) -> None:
        await line.send(b"220 ready\r\n")
        await line.end()
        line.close()

    rule = {"id": "mail", "allow": {"hosts": ["mail.test"], "ports": ["1-65535"], "protocol": "tcp"}}
    async with Lab(RawUpstream(app, "mail.test", tls=False), rules=[rule], settings=connections(2)) as lab:
        lines = [(await lab.connect("", proxy_authorization(OTHER_TOKEN)))[0] for _ in range(2)]
        for line in lines:
            await line.until(b"220 ready\r\n")
        _, head = await lab.connect("", proxy_authorization(OTHER_TOKEN))
        assert head.startswith(b"HTTP/1.1 503 ")
        assert lab.gateway.connections.guests == {"h": 2}
        told = await lab.told()
        assert told == [f"CONNECT {lab.authority()} deny overloaded 503 denied"]


async def test_without_a_setting_a_guest_has_three_quarters() -> None:
    """Of eight connections one guest gets six; what is left is for others."""
    settings = {"entries": {"proxy": {"guest": ""}}, "limits": {"connections": 8}}
    async with Lab(HttpUpstream(Slow()), settings=settings) as lab:
        for _ in range(6):
            await (await tunnel(lab, OTHER_TOKEN)).ask("GET", "/x")
        _, head = await lab.connect("", proxy_authorization(OTHER_TOKEN))
        assert head.startswith(b"HTTP/1.1 503 ")
        assert (await (await tunnel(lab, TOKEN)).ask("GET", "/y")).status == 200
        await lab.told()


async def test_socks_connections_count_as_well() -> None:
    """One beyond the share is reset before it has said anything, and audited."""
    settings = {"entries": {"socks5": {"listen": "127.0.0.1:0", "guest": "g"}}, "limits": {"guest_connections": 1}}
    async with Lab(HttpUpstream(Slow()), settings=settings) as lab:
        await (await lab.tunnel()).ask("GET", "/x")
        line = await lab.line("socks5")
        host, _, port = lab.authority().rpartition(":")
        await line.send(b"\5\1\0" + b"\5\1\0\3" + bytes((len(host),)) + host.encode() + int(port).to_bytes(2))
        await lab.until(lambda: len(lab.records) == 2)
        assert (await lab.told())[1] == f"CONNECT {lab.authority()} deny overloaded 0 denied"
