"""Ways to more than a tcp rule allows: each is denied, audited, and nothing is dialled, or nothing of it arrives."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from seamgate import Verdict, allow, hookimpl
from seamgate.audit.record import AuditRecord
from support.lab import Lab
from support.line import Line
from support.upstream import RawUpstream

TCP: dict[str, Any] = {"id": "db", "allow": {"hosts": ["db.test"], "ports": [5432], "protocol": "tcp"}}
ANY_PORT: dict[str, Any] = {"id": "db", "allow": {"hosts": ["db.test"], "ports": ["*"], "protocol": "tcp"}}


async def silent(line: Line) -> None:
    while not line.lost:
        await line.changed()


def database(*names: str) -> RawUpstream:
    return RawUpstream(silent, *(names or ("db.test",)), tls=False)


async def denied(lab: Lab, reason: str, outcome: str = "denied") -> AuditRecord:
    """Return the one record: a denial for this reason."""
    await lab.until(lambda: len(lab.observer.records) == 1)
    (record,) = lab.observer.records
    lab._claimed = len(lab.records)
    assert f"{record.verdict} {record.reason} {record.outcome}" == f"deny {reason} {outcome}"
    return record


@pytest.mark.parametrize("authority", ["db.test:5433", "other.test:5432", "x.db.test:5432", "127.0.0.1:5432"])
async def test_another_host_or_port_is_refused(authority: str) -> None:
    """A rule names host and port; an address is not the name that leads to it."""
    async with Lab(database(), rules=[TCP], credential=False) as lab:
        _, head = await lab.connect(authority)
        assert head.startswith(b"HTTP/1.1 403 ") and b"no_rule_matched" in head
        await denied(lab, "no_rule_matched")
        assert lab.upstream.lines == []


async def test_another_guest_is_refused() -> None:
    """Labels hold for streams."""
    rule = {**ANY_PORT, "guests": {"team": "sales"}}
    async with Lab(database(), rules=[rule], credential=False) as lab:
        _, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 403 ")
        await denied(lab, "no_rule_matched")


async def test_a_private_address_is_refused() -> None:
    """The name's addresses are checked as ever: nothing is dialled, and the guest is told why."""
    async with Lab(database(), rules=[ANY_PORT], credential=False, settings={"permit_addresses": []}) as lab:
        _, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 403 ") and b"address_forbidden" in head
        await denied(lab, "address_forbidden")
        assert lab.upstream.lines == []


async def test_the_gateway_itself_is_refused() -> None:
    """By name or by address, whatever the rule says."""
    rule = {"id": "all", "allow": {"hosts": ["127.0.0.1", "db.test"], "ports": ["*"], "protocol": "tcp"}}
    for host in ("127.0.0.1", "db.test"):
        async with Lab(database(), rules=[rule], credential=False) as lab:
            port = lab.gateway.addresses["proxy"][1]
            _, head = await lab.connect(f"{host}:{port}")
            assert b"own_address" in head
            await denied(lab, "own_address")


async def test_bytes_before_the_answer_are_refused() -> None:
    """A client that does not wait can't know what it talks to."""
    async with Lab(database(), rules=[ANY_PORT], credential=False) as lab:
        line = await lab.line()
        authority = lab.authority()
        await line.send(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\nearly".encode())
        assert b"200" not in (await line.head())[:16]
        await lab.until(lambda: len(lab.observer.records) == 1)
        lab._claimed = len(lab.records)
        assert lab.upstream.lines == []


def hello(name: str | None, *, cut: int = 0) -> bytes:
    """Return a ClientHello."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    data = outgoing.read()
    return data[: len(data) - cut] if cut else data


@pytest.mark.parametrize("name", ["evil.test", "db.test.evil.test", "x.db.test"])
@pytest.mark.parametrize("split", [0, 1, 60])
async def test_tls_for_another_name_is_refused(name: str, split: int) -> None:
    """The server name has to be the target's, however the hello is cut; nothing of it goes up."""
    async with Lab(database(), rules=[ANY_PORT], credential=False) as lab:
        line, head = await lab.connect()
        assert head.startswith(b"HTTP/1.1 200 ")
        data = hello(name)
        await line.send(*([data[:split], data[split:]] if split else [data]))
        while not (line.ended or line.lost):
            await line.changed()
        assert bytes(line.received).endswith(b"\x15\x03\x01\x00\x02\x02\x70")
        record = await denied(lab, "target_mismatch")
        assert record.status == 200  # of the CONNECT; what came after it the message says
        assert record.message == (
            f"the TLS server name is {name!r}, the stream goes to db.test: the guest got the alert unrecognized_name"
        )
        assert lab.upstream.received == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\xff\xff" + bytes(100),
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
    ],
)
async def test_a_hello_that_can_not_be_read_is_refused(data: bytes) -> None:
    """What a server might read and we can't goes nowhere."""
    async with Lab(database(), rules=[ANY_PORT], credential=False) as lab:
        line, _ = await lab.connect()
        await line.send(data)
        while not (line.ended or line.lost):
            await line.changed()
        await denied(lab, "guest_tls_failed")
        assert lab.upstream.received == b""


async def test_half_a_hello_that_ends_is_refused() -> None:
    """It could have been for anybody."""
    async with Lab(database(), rules=[ANY_PORT], credential=False) as lab:
        line, _ = await lab.connect()
        await line.send(hello("evil.test", cut=50))
        line.transport.write_eof()  # type: ignore[union-attr]
        while not (line.ended or line.lost):
            await line.changed()
        await denied(lab, "guest_tls_failed")
        assert lab.upstream.received == b""


async def test_a_plugin_that_allows_tunnels_does_not_allow_streams() -> None:
    """An allow that means "its requests are judged one by one" opens nothing that nobody reads."""

    class Lax:
        @hookimpl
        def judge_connect(self) -> Verdict | None:
            return allow("lax")

    settings = {"plugins": ["dns"]}
    async with Lab(database(), rules=[], credential=False, settings=settings, first=[("lax", Lax())]) as lab:
        line = await lab.line()
        await line.send(f"CONNECT {lab.authority()} HTTP/1.1\r\nhost: {lab.authority()}\r\n\r\n".encode())
        assert (await line.head()).startswith(b"HTTP/1.1 200 ")
        await line.send(b"\0\0\0\x08binary")
        while not (line.ended or line.lost):
            await line.changed()
        await denied(lab, "guest_tls_failed")
        assert lab.upstream.lines == []
