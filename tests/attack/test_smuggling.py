"""Smuggling: whatever two parsers could read as different messages is denied, audited, and never upstream.

Each attack is sent inside a tunnel, by absolute form and by base URL, whole and byte by byte. It carries a hidden
request to /hidden, which must not be upstream in any reading.
"""

from __future__ import annotations

import pytest

from support.client import Client
from support.lab import Lab
from support.upstream import HttpUpstream, echo

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: api.test\r\n\r\n"
# Placeholders: TARGET and HOST are filled in for each entry.
POST = b"POST TARGET HTTP/1.1\r\nHost: HOST\r\n"
CHUNKED_END = b"0\r\n\r\n"

HEADS: dict[str, bytes] = {
    "CL.TE": POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG" + HIDDEN,
    "TE.CL": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + HIDDEN + CHUNKED_END,
    "TE.TE, obfuscated by a list": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE.TE, two fields": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE with a tab before the colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE with a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE with vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE quoted": POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKED_END + HIDDEN,
    "TE folded": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE after a bare CR": POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE after a bare LF": POST + b"X: a\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE in a folded field": POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n" + CHUNKED_END + HIDDEN,
    "TE in HTTP/1.0": b"POST TARGET HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CHUNKED_END
    + HIDDEN,
    "TE gzip": POST + b"Transfer-Encoding: gzip\r\n\r\n" + HIDDEN,
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 38\r\n\r\n" + HIDDEN,
    "two equal lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + HIDDEN,
    "a list of lengths": POST + b"Content-Length: 0, 38\r\n\r\n" + HIDDEN,
    "a signed length": POST + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "a negative length": POST + b"Content-Length: -38\r\n\r\n" + HIDDEN,
    "a hex length": POST + b"Content-Length: 0x26\r\n\r\n" + HIDDEN,
    "a length with a point": POST + b"Content-Length: 38.0\r\n\r\n" + HIDDEN,
    "a length with a space inside": POST + b"Content-Length: 3 8\r\n\r\n" + HIDDEN,
    "an empty length": POST + b"Content-Length: \r\n\r\n" + HIDDEN,
    "a length beyond 64 bits": POST + b"Content-Length: 18446744073709551616\r\n\r\n" + HIDDEN,
    "a length with a space before the colon": POST + b"Content-Length : 38\r\n\r\n" + HIDDEN,
    "two hosts": POST + b"Host: evil.test\r\n\r\n" + HIDDEN,
    "two equal hosts": POST + b"Host: HOST\r\n\r\n" + HIDDEN,
    "a host hidden in a fold": POST + b"X: a\r\n\tHost: evil.test\r\n\r\n" + HIDDEN,
    "an empty line first": b"\r\n" + POST + b"\r\n" + HIDDEN,
    "a bare LF after the request line": b"POST TARGET HTTP/1.1\nHost: HOST\r\n\r\n" + HIDDEN,
    "bare LFs only": b"GET TARGET HTTP/1.1\nHost: HOST\n\n" + HIDDEN,
    "a NUL in a value": POST + b"X: a\x00b\r\n\r\n" + HIDDEN,
    "a NUL in a name": POST + b"X\x00: a\r\n\r\n" + HIDDEN,
    "a header without name": POST + b": a\r\n\r\n" + HIDDEN,
    "a header without colon": POST + b"Xa\r\n\r\n" + HIDDEN,
    "a request line with four parts": b"GET TARGET /hidden HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "HTTP/0.9": b"GET TARGET\r\n\r\n" + HIDDEN,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "HTTP/1.9": b"GET TARGET HTTP/1.9\r\nHost: HOST\r\n\r\n" + HIDDEN,
    "a version after a tab": b"GET TARGET\tHTTP/1.1\r\nHost: HOST\r\n\r\n" + HIDDEN,
    "CR in the target": b"GET TARGET\r/hidden HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "a length taken out by Connection": POST + b"Content-Length: 38\r\nConnection: content-length\r\n\r\n" + HIDDEN,
    "chunks taken out by Connection": POST
    + b"Transfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n\r\n0\r\n\r\n",
    "a host taken out by Connection": POST + b"Connection: host\r\n\r\n" + HIDDEN,
    "an expectation that nobody knows": POST + b"Expect: 100-continue, x\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
}

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS: dict[str, bytes] = {
    "a size with 0x": CHUNKED + b"0x5\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a signed size": CHUNKED + b"+5\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a negative size": CHUNKED + b"-5\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a size with a space before": CHUNKED + b" 5\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a size with a space after": CHUNKED + b"5 \r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a size beyond 64 bits": CHUNKED + b"10000000000000005\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a size with an underscore": CHUNKED + b"0_5\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "no size": CHUNKED + b"\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a bare LF after the size": CHUNKED + b"5\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a bare LF in an extension": CHUNKED + b"5;a\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a bare CR in an extension": CHUNKED + b"5;a\rb\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a NUL in an extension": CHUNKED + b"5;\x00\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "an endless extension": CHUNKED + b"5;" + b"a" * 5000 + b"\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a chunk longer than its size": CHUNKED + b"4\r\nhello\r\n" + CHUNKED_END + HIDDEN,
    "a bare LF after a chunk": CHUNKED + b"5\r\nhello\n" + CHUNKED_END + HIDDEN,
    "two bytes that are no CRLF": CHUNKED + b"5\r\nhelloXX" + CHUNKED_END + HIDDEN,
    "a length as trailer": CHUNKED + b"0\r\nContent-Length: 38\r\n\r\n" + HIDDEN,
    "a host as trailer": CHUNKED + b"0\r\nHost: evil.test\r\n\r\n" + HIDDEN,
    "a login as trailer": CHUNKED + b"0\r\nAuthorization: Bearer x\r\n\r\n" + HIDDEN,
    "a bare LF in a trailer": CHUNKED + b"0\r\nX: a\nY: b\r\n\r\n" + HIDDEN,
    "a folded trailer": CHUNKED + b"0\r\nX: a\r\n b\r\n\r\n" + HIDDEN,
}


def fill(lab: Lab, entry: str, attack: bytes) -> bytes:
    """Make the attack one on this entry."""
    authority = lab.authority()
    target = {"tunnel": "/x", "proxy": f"http://{authority}/x", "base": "/api/x"}[entry]
    return attack.replace(b"TARGET", target.encode()).replace(b"HOST", authority.encode())


def a_lab(entry: str) -> Lab:
    return Lab(HttpUpstream(echo, tls=entry != "proxy"), credential=False)


@pytest.mark.parametrize("entry", ["tunnel", "proxy", "base"])
@pytest.mark.parametrize("what", HEADS)
async def test_an_ambiguous_head_is_denied(what: str, entry: str) -> None:
    """One refusal, one record, nothing upstream, and the connection ends: what follows can't be trusted."""
    async with a_lab(entry) as lab:
        client: Client = await getattr(lab, entry)()
        attack = fill(lab, entry, HEADS[what])
        await client.send(attack)
        answer = await client.answer()
        assert 400 <= answer.status < 600 and answer.whole and answer.reason
        client.close()
        await lab.until(lambda: len(lab.records) == 1)
        (record,) = lab.records
        method = record.request.method if record.request is not None else ""
        place = lab.authority() if entry == "tunnel" else "-"
        await lab.refused(f"{method or '-'} {place} deny {answer.reason} {answer.status} denied")


@pytest.mark.parametrize("entry", ["tunnel", "proxy", "base"])
@pytest.mark.parametrize("what", CHUNKS)
async def test_an_ambiguous_body_is_cut(what: str, entry: str) -> None:
    """The head was fine and may be upstream by now, but never an end of its body, and nothing of what follows."""
    async with a_lab(entry) as lab:
        client: Client = await getattr(lab, entry)()
        await client.send(fill(lab, entry, CHUNKS[what]))
        answer = await client.answer()
        assert (answer.status, answer.reason, answer.whole) in (
            (400, "bad_request", True),
            (431, "headers_too_large", True),
        )
        client.close()
        await lab.audited(f"POST /x deny {answer.reason} {answer.status} denied")
        assert b"/hidden" not in lab.upstream.received
        assert b"\r\n0\r\n" not in lab.upstream.received
        assert lab.gateway.seam.pool.counts == (0, 0, 0)


@pytest.mark.parametrize("what", ["CL.TE", "TE.CL", "two hosts", "bare LFs only", "TE after a bare LF"])
async def test_byte_by_byte_makes_no_difference(what: str) -> None:
    """The verdict does not depend on how the bytes come."""
    async with a_lab("tunnel") as lab:
        client = await lab.tunnel()
        attack = fill(lab, "tunnel", HEADS[what])
        await client.send(*(attack[place : place + 1] for place in range(len(attack))))
        assert (await client.answer()).reason == "bad_request"
        client.close()
        await lab.refused(f"- {lab.authority()} deny bad_request 400 denied")


async def test_surplus_of_a_body_is_the_next_request() -> None:
    """What follows a body is judged by itself: it does not ride on the request before it."""
    rule = {"id": "x", "allow": {"hosts": ["api.test"], "ports": ["1-65535"], "paths": ["/x"]}}
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        client = await lab.tunnel()
        hidden = HIDDEN.replace(b"api.test", lab.authority().encode())
        await client.send(client.request("POST", "/x", body=b"four") + hidden)
        assert (await client.answer()).status == 200
        assert (await client.answer()).reason == "no_rule_matched"
        assert b"/hidden" not in lab.upstream.received
        await lab.audited("POST /x allow allowed 200 complete", "GET /hidden deny no_rule_matched 403 denied")


async def test_extensions_are_not_passed_on() -> None:
    """A chunk extension is read over and written nowhere: chunks upstream are ours."""
    async with a_lab("tunnel") as lab:
        client = await lab.tunnel()
        await client.send(fill(lab, "tunnel", CHUNKED) + b'5;name="0\\r\\n"\r\nhello\r\n' + CHUNKED_END)
        assert (await client.answer()).json["body"] == "hello"
        assert b"name" not in lab.upstream.received
        await lab.audited("POST /x allow allowed 200 complete")


async def test_an_upgrade_carries_nothing_along() -> None:
    """Bytes after an upgrade request are not sent on: it was refused, and they are the next request, judged."""
    async with a_lab("tunnel") as lab:
        client = await lab.tunnel()
        upgrade = (b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__")
        await client.send(client.request("GET", "/x", *upgrade) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await client.answer()).reason == "upgrade_refused"
        assert (await client.answer()).reason == "version_refused"
        client.close()
        await lab.refused(
            "GET /x deny upgrade_refused 501 denied", f"- {lab.authority()} deny version_refused 505 denied"
        )
