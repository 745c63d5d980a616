"""Attacks from inside a microVM: lies about where a stream goes, names, TLS of one's own, floods: denied, audited."""

from __future__ import annotations

import errno
import ssl
from typing import Any

import pytest

from seamgate.config import KvmEntry
from seamgate_vmm import _kvm
from support.certificates import guest_context
from support.lab import ALLOW_ALL, SECRET, Lab
from support.ring import Ringed, preface
from support.upstream import HttpUpstream, echo


async def _reset(ringed: Ringed, first: bytes, host: str = "", port: int = 0) -> None:
    """Open a stream, say this, and be reset."""
    line = await ringed.open(host, port, first=first)
    await line.end()
    assert line.lost and isinstance(line.error, ConnectionResetError), line


@pytest.mark.parametrize(
    "server_name", ["other.test", "api.test.evil.test", "127.0.0.1", "api.test..", "a\u00e4", " api.test"]
)
async def test_the_server_name_has_to_be_the_host(server_name: str) -> None:
    """Two names for one stream, both allowed or not: refused before anything is dialled."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        await _reset(ringed, preface(server_name) + b"GET / HTTP/1.1\r\nhost: api.test\r\n\r\n")
        await lab.refused(f"CONNECT {lab.authority()} deny target_mismatch 0 denied")


async def test_the_host_header_has_to_be_the_host() -> None:
    """Fronting within a stream: a Host or an absolute URI that names another place."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        for head in (
            b"GET / HTTP/1.1\r\nhost: other.test\r\n\r\n",
            b"GET https://other.test/ HTTP/1.1\r\nhost: x\r\n\r\n",
        ):
            client = await ringed.tls()
            await client.send(head)
            assert (await client.answer()).reason == "target_mismatch"
            await lab.refused(f"GET {lab.authority()} deny target_mismatch 421 denied")
            client.close()


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "10.0.0.1", "0.0.0.0"])
async def test_addresses_are_judged_as_such(address: str) -> None:
    """Also with a server name that is allowed in front; a rule for names allows no address."""
    async with Lab(HttpUpstream(echo), settings={"permit_addresses": []}) as lab, Ringed(lab) as ringed:
        client = await ringed.tls(address, 443, server_name=address)
        answer = await client.ask("GET", "/")
        assert (answer.status, answer.reason) == (403, "no_rule_matched")
        await _reset(ringed, preface("api.test"), address, 443)
        await _reset(ringed, preface(address), address, 22)
        await lab.refused(
            "GET / deny no_rule_matched 403 denied",
            f"CONNECT {address}:443 deny target_mismatch 0 denied",
            f"CONNECT {address}:22 deny no_rule_matched 0 denied",
        )
        client.close()


async def test_an_allowed_name_that_leads_inside() -> None:
    """The name gets an address of its own on the ring; what it really resolves to is checked before it is dialled."""
    settings = {"permit_addresses": [], "dns": {"addresses": {"api.test": ["169.254.169.254"]}}}
    async with Lab(HttpUpstream(echo), settings=settings) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        assert (await client.ask("GET", "/")).reason == "address_forbidden"
        await lab.refused("GET / deny address_forbidden 403 denied")
        client.close()


async def test_an_address_that_stands_for_no_name() -> None:
    """A guest may guess addresses of the range: they stand for what it asked for, and for nothing else."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        await _reset(ringed, preface("api.test"), "198.18.7.7", 443)
        await lab.refused("CONNECT 198.18.7.7:443 deny bad_target 0 denied")


@pytest.mark.parametrize("name", ["xn--a.test", "a_b.evil.example", "0x7f.1", "127.1", "2130706433", "evil.example"])
async def test_odd_and_denied_names(name: str) -> None:
    """They get no address where the configuration says so, and each is told."""
    rules = [{"id": "one", "allow": {"hosts": ["api.test"]}}]
    entry = KvmEntry(denied_names="nxdomain")
    async with Lab(HttpUpstream(echo), rules=rules) as lab, Ringed(lab, entry=entry) as ringed:
        assert await ringed.resolve(name) == (3, "")
        (record,) = await lab.refused(*[_resolve_line(name)])
        assert record.guest is not None and record.guest.id == "run"


def _resolve_line(name: str) -> str:
    odd = name.replace(".", "").isdigit() or name.startswith("0x")
    return "RESOLVE - deny bad_target 0 denied" if odd else f"RESOLVE {name}:53 deny no_rule_matched 0 denied"


async def test_tls_of_ones_own_for_another_name() -> None:
    """A real ClientHello whose server name is not the host gets the alert that says so."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await ringed.own_tls("other.test", guest_context(lab.gateway.ca_path))
        await lab.refused(f"CONNECT {lab.authority()} deny target_mismatch 0 denied")


async def test_tls_of_ones_own_can_be_refused() -> None:
    """Where the configuration says so, nothing but what the gateway reads without a certificate goes out."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab, entry=KvmEntry(own_tls="refuse")) as ringed:
        with pytest.raises(ConnectionResetError):
            await ringed.own_tls("api.test", guest_context(lab.gateway.ca_path))
        await lab.refused(f"CONNECT {lab.authority()} deny guest_tls_failed 0 denied")


@pytest.mark.parametrize(
    "first", [b"\x00" * 20, b"SSH-2.0-x\r\n\r\n", b"\xff\xfe", b"\0SGTLS1\n\xff\xff", b"\x05\x01\x00"]
)
async def test_what_is_neither_tls_nor_http(first: bytes) -> None:
    """Nothing else than what policy can read passes; a preface that lies about its length ends its stream."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        line = await ringed.open(first=first)
        await line.end()
        await lab.until(lambda: len(lab.records) == 1)
        assert lab.records[0].reason is not None and lab.records[0].reason.value == "bad_request"
        assert lab.upstream.received == b""
        lab._claimed = 1
        line.close()


async def test_the_placeholder_and_the_secret_stay_where_they_belong() -> None:
    """A guest that got hold of the real value can't send it, over a ring either."""
    rules = [{**ALLOW_ALL, "credential": "key"}]
    async with Lab(HttpUpstream(echo), rules=rules) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        answer = await client.ask("POST", "/", b"x-note: " + SECRET.encode())
        assert answer.reason == "secret_leaving"
        (record,) = await lab.audited("POST [withheld] deny secret_leaving 403 denied")
        assert lab.upstream.received == b"" and record.entry == "ring"
        client.close()


async def test_more_streams_than_there_may_be() -> None:
    """The ring has so many and no more; the guest is told, and what is open goes on."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        lines = [await ringed.open() for _ in range(_kvm.RING_STREAMS)]
        await lines[-1].end()
        assert isinstance(lines[-1].error, ConnectionResetError) and lines[-1].error.errno == errno.ENOBUFS
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        client.close()


async def test_a_gateway_without_room_refuses() -> None:
    """The gateway's limit of connections counts streams of rings too."""
    settings: dict[str, Any] = {"limits": {"connections": 1}}
    async with Lab(HttpUpstream(echo), settings=settings) as lab, Ringed(lab) as ringed:
        client = await ringed.tls()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        await _reset(ringed, preface("api.test"))
        await lab.refused(f"CONNECT {lab.authority()} deny overloaded 0 denied", upstream_got=lab.upstream.received)
        client.close()


async def test_a_guest_that_breaks_the_ring_takes_only_itself_along() -> None:
    """Its streams end as those of a guest that is gone, with their records; the gateway serves the others."""
    async with Lab(HttpUpstream(echo)) as lab, Ringed(lab) as bad, Ringed(lab) as good:
        client = await bad.tls()
        await client.send(b"POST / HTTP/1.1\r\nhost: " + lab.authority().encode() + b"\r\ncontent-length: 9\r\n\r\nx")
        await lab.until(lambda: lab.gateway.seam.active == 1)
        bad.guest.frame(_kvm.FRAME_CREDIT, 1, aux=1 << 20)
        await lab.until(lambda: bool(bad.violations))
        (record,) = await lab.audited("POST / allow guest_gone 0 aborted")
        assert record.entry == "ring"
        other = await good.tls()
        assert (await other.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")
        other.close()
