"""Real values in places where nobody would look: names of hosts and headers, files within files, and the audit log.

Each is denied before a name is looked up or anything is sent, and no record repeats the value.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from fake_dns import FakeDns
from seamgate.audit.record import Decision
from support.client import Client
from support.http2 import claimed, tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, WITH_KEY, Lab
from support.upstream import HttpUpstream, Talk, echo

VALUE = "tok-4F9A7c1be23d58a60e917b3d"
"""With letters of both cases: names of hosts and headers are compared, and sent, in lower case."""
LOWER = VALUE.lower()
WHEN_JSON: dict[str, Any] = {**ALLOW_ALL, "when": "request.json.a == 1"}
LEAVING = "[withheld] deny secret_leaving 403 denied"


class OddLab(Lab):
    """A lab in which a record that shows the value, in any case, fails the test."""

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        (self.folder / "key").write_text(VALUE)
        return settings

    def _check(self) -> None:
        super()._check()
        kept = self.gateway.journal_path.read_bytes().lower()
        assert LOWER.encode() not in kept


def odd_lab(*, rules: Any = (ALLOW_ALL,), **settings: Any) -> OddLab:
    return OddLab(HttpUpstream(echo, "api.test", "other.test"), rules=list(rules), settings=settings)


async def denied(one: OddLab, client: Client, *request: Any, **more: Any) -> None:
    """Ask, and expect that nothing is sent."""
    answer = await client.ask(*request, **more)
    assert (answer.status, answer.reason) == (403, "secret_leaving"), answer
    assert LOWER.encode() not in answer.body.lower()
    client.close()


@pytest.mark.parametrize("label", [LOWER, VALUE, VALUE.encode().hex()])
async def test_a_host_that_is_a_value_is_not_looked_up(label: str) -> None:
    """By CONNECT, in a URI, at any depth below the pattern: the name servers are somebody else's as well."""
    async with FakeDns() as dns:
        one = odd_lab(dns={"servers": [f"127.0.0.1:{dns.port}"]})
        async with one:
            authority = f"x.{label}.api.test:{one.upstream.port}"
            line, head = await one.connect(authority)
            assert head.startswith(b"HTTP/1.1 403 ") and b"secret_leaving" in head
            line.close()
            client = await one.proxy(authority=authority)
            await denied(one, client, "GET", "/")
            tunnel_record, request_record = await one.refused(
                f"CONNECT {'[withheld]'}:{one.upstream.port} deny secret_leaving 403 denied", f"GET {LEAVING}"
            )
            assert tunnel_record.request is not None and tunnel_record.request.host == "[withheld]"
            assert request_record.request is not None and request_record.request.host == "[withheld]"
        assert dns.queries == []


@pytest.mark.parametrize("name", [LOWER, VALUE, f"x-{VALUE}-y", VALUE.encode().hex()])
async def test_the_name_of_a_header_or_trailer_is_searched(name: str) -> None:
    """It is sent in lower case, which is as good as the value."""
    async with odd_lab() as one:
        await denied(one, await one.tunnel(), "GET", "/", f"{name}: 1".encode())
        client = await one.tunnel()
        await client.send(
            client.request("POST", "/t", b"transfer-encoding: chunked")
            + b"1\r\na\r\n0\r\n"
            + f"{name}: 1\r\n\r\n".encode()
        )
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await one.audited(f"GET {LEAVING}", f"POST {LEAVING}")
        assert LOWER.encode() not in one.upstream.received.lower()


async def test_the_name_of_a_header_over_http2_is_searched() -> None:
    """As over HTTP/1.1."""

    async def app(talk: Talk2) -> None:
        await talk.respond(200, b"")

    async with OddLab(H2Upstream(app)) as one:
        guest = await tunnel(one)
        reply = await guest.ask("/x", (LOWER.encode(), b"1"))
        assert (reply.status, reply.reason) == (403, "secret_leaving")
        guest.close()
        (record,) = await claimed(one, 1)
        assert record.reason is not None and record.reason.value == "secret_leaving"


ESCAPED = ["\\u0039", "\\x39", "&#57;", "&#x39;"]


@pytest.mark.parametrize("escape", ESCAPED)
@pytest.mark.parametrize("rule", [ALLOW_ALL, WITH_KEY], ids=["elsewhere", "its own host"])
async def test_a_value_of_which_one_character_is_escaped_is_found_in_the_head(
    escape: str, rule: dict[str, Any]
) -> None:
    """As JSON or HTML writes it: in a header, inside of Basic, in the query and a trailer; such a path is no path."""
    value = VALUE.replace("9", escape)
    quoted = "".join(f"%{byte:02X}" if chr(byte) in "\\&#;" else chr(byte) for byte in value.encode())
    async with odd_lab(rules=[rule]) as one:
        await denied(one, await one.tunnel(), "GET", "/", b"x: " + value.encode())
        inside = base64.b64encode(b"me:" + value.encode())
        await denied(one, await one.tunnel(), "GET", "/", b"authorization: Basic " + inside)
        await denied(one, await one.tunnel(), "GET", f"/?k={quoted}")
        client = await one.tunnel()
        head = client.request("POST", "/t", b"transfer-encoding: chunked")
        await client.send(head + b"1\r\na\r\n0\r\n" + f"x: {value}\r\n\r\n".encode())
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await one.audited(*[f"GET {LEAVING}"] * 3, f"POST {LEAVING}")
        assert one.upstream.received == b""


async def test_a_head_with_escapes_of_other_characters_passes() -> None:
    """What begins like an escape is no value yet."""
    async with odd_lab() as one:
        client = await one.tunnel()
        answer = await client.ask("GET", "/?a=1&#x41;".replace("#", "%23"), b'x: "Not\\u0041;A=Brand\\"" &#65;')
        assert answer.status == 200
        client.close()
        await one.audited("GET / allow allowed 200 complete")


@pytest.mark.parametrize("placeholder", ["sgph-key", "SGPH-Key", "x-sgph-nobody-y", "X-MINE.0000"])
async def test_a_placeholder_in_a_name_goes_nowhere(placeholder: str) -> None:
    """In the name of a header or trailer, in any case, to the host it is bound to and to others."""
    async with odd_lab(credentials={"key": {"placeholder": "X-Mine.0000"}}) as one:
        for host in ("api.test", "other.test"):
            client = await one.tunnel(f"{host}:{one.upstream.port}")
            answer = await client.ask("GET", "/", f"{placeholder}: 1".encode())
            assert (answer.status, answer.reason) == (403, "placeholder_misplaced")
            client.close()
            client = await one.tunnel(f"{host}:{one.upstream.port}")
            head = client.request("POST", "/t", b"transfer-encoding: chunked")
            await client.send(head + b"1\r\na\r\n0\r\n" + f"{placeholder}: 1\r\n\r\n".encode())
            answer = await client.answer("POST")
            assert (answer.status, answer.reason) == (403, "placeholder_misplaced")
            client.close()
        await one.audited(
            *["GET / deny placeholder_misplaced 403 denied", "POST /t deny placeholder_misplaced 403 denied"] * 2
        )
        assert placeholder.lower().encode() not in one.upstream.received.lower()


@pytest.mark.parametrize("method", ["SGPH-KEY", "X-SGPH-NOBODY", "MY-OWN-PLACEHOLDER"])
async def test_a_placeholder_in_the_method_goes_nowhere(method: str) -> None:
    """It is as good there as anywhere: denied before anything is sent."""
    async with odd_lab(credentials={"key": {"placeholder": "my-own-placeholder"}}) as one:
        client = await one.tunnel()
        answer = await client.ask(method, "/")
        assert (answer.status, answer.reason) == (403, "placeholder_misplaced")
        client.close()
        await one.refused(f"{method} / deny placeholder_misplaced 403 denied")


async def test_a_placeholder_in_a_name_over_http2_goes_nowhere() -> None:
    """As over HTTP/1.1: in the name of a header, of a trailer, and in the method."""

    async def app(talk: Talk2) -> None:
        await talk.body()
        await talk.respond(200, b"")

    async with OddLab(H2Upstream(app)) as one:
        guest = await tunnel(one)
        replies = [await guest.ask("/x", (b"x-sgph-key", b"1")), await guest.ask("/x", method="SGPH-KEY")]
        stream = await guest.begin("/x", method="POST")
        await guest.data(stream, b"a")
        await guest.end(stream, [(b"sgph-key", b"1")])
        replies.append(await guest.answer(stream))
        assert [(each.status, each.reason) for each in replies] == [(403, "placeholder_misplaced")] * 3
        guest.close()
        records = await claimed(one, 3)
        assert [str(each.reason) for each in records] == ["placeholder_misplaced"] * 3
        assert all(each.verdict is Decision.DENY for each in records)


@pytest.mark.parametrize(("escaped", "rule"), [(False, ALLOW_ALL), (True, WHEN_JSON)])
async def test_base64_in_lines_is_found_in_a_body_that_is_judged_too(escaped: bool, rule: dict[str, Any]) -> None:
    """MIME breaks its base64 every 76 characters, so also within the value; in JSON the line breaks are escapes."""
    text = base64.encodebytes(b"x" * 40 + VALUE.encode() + b"y" * 90).decode()
    body = json.dumps({"a": 1, "b": text}).encode() if escaped else text.encode()
    async with odd_lab(rules=[rule]) as one:
        client = await one.tunnel()
        await denied(one, client, "POST", "/", b"content-type: application/json", body=body)
        await one.audited(f"POST {LEAVING}")
        assert one.upstream.received == b""


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be", "utf-32-le", "utf-32-be"])
async def test_wide_characters_hide_nothing(coding: str) -> None:
    """Neither in an answer, whatever Accept-Charset asked for, nor in a body that leaves."""

    async def wide(talk: Talk) -> None:
        await talk.body()
        await talk.respond(200, f"key={talk.header('x-api-key')};".encode(coding))

    async with OddLab(HttpUpstream(wide), rules=[WITH_KEY]) as one:
        client = await one.tunnel()
        answer = await client.ask("GET", "/", f"accept-charset: {coding}".encode())
        assert answer.status == 200
        assert VALUE not in answer.body.replace(b"\0", b"").decode("latin-1")
        assert b"[redacted:key]" in answer.body
        before = one.upstream.received
        await denied(one, client, "POST", "/", body=f"mine: {VALUE}.".encode(coding))
        await one.audited("GET / allow allowed 200 complete", f"POST {LEAVING}")
        assert one.upstream.received == before


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"/no/{VALUE}", "no_rule_matched"),
        (f"/no/{VALUE.lower()}", "no_rule_matched"),
        (f"/no/%{ord(VALUE[0]):02x}{VALUE[1:]}", "no_rule_matched"),
        (f"/no?{VALUE}=1", "no_rule_matched"),
        (f"/no?a={VALUE}", "no_rule_matched"),
    ],
)
async def test_no_record_repeats_a_value_whatever_the_request_is_denied_for(path: str, reason: str) -> None:
    """Policy may say no for another reason, and first: the path is told by it, and by its sentence."""
    rule = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "paths": ["/yes"]}}
    async with odd_lab(rules=[rule], audit={"query": "full"}) as one:
        client = await one.tunnel()
        assert (await client.ask("GET", path)).status == 403
        client.close()
        other = await one.proxy(authority=f"{LOWER}.evil.example")
        assert (await other.ask("GET", "/" + VALUE)).status == 403
        other.close()
        line, head = await one.connect(f"{LOWER}.evil.example:443")
        assert head.startswith(b"HTTP/1.1 403 ")
        line.close()
        told = await one.told()
        assert len(told) == 3 and all(" deny " in each for each in told)
        for record in one.records:
            assert record.request is not None
            assert (
                LOWER
                not in json.dumps(
                    [record.message, record.request.path, record.request.host, record.request.query]
                ).lower()
            )
        assert reason
        assert one.upstream.received == b""
