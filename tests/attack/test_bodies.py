"""Bodies and secrets at the running gateway: nothing hides in a judged body, no secret leaves or comes back."""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from seamgate.protocol.coding import UndecodableError
from seamgate.protocol.heads import CHUNKED
from seamgate.upload import HeldBytes, Upload
from support.http2 import tunnel
from support.http2_upstream import H2Upstream, Talk2
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, Talk, echo, ok, says

ALLOWED = "allow allowed 200 complete"
SMALL_ONLY: dict[str, Any] = {**ALLOW_ALL, "when": 'request.json.model.startsWith("small-")'}
JSON = b"content-type: application/json"


async def deny_body(body: bytes, reason: str, *headers: bytes, **more: Any) -> None:
    """Send a body that the rule must not pass; nothing of it is upstream."""
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], credential=False, **more) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", *(headers or (JSON,)), body=body)
        assert answer.reason == reason
        client.close()
        await lab.refused(f"POST /x deny {reason} {answer.status} denied")


@pytest.mark.parametrize(
    "content_type", ["", "application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-7"]
)
async def test_a_body_that_is_declared_as_something_else_is_denied(content_type: str) -> None:
    """Seamgate would read JSON where the origin reads a form or another charset: no allow, and nothing is upstream."""
    header = f"content-type: {content_type}".encode() if content_type else b"x-a: b"
    await deny_body(b'{"model": "small-1"}', "unevaluable", header)
    await deny_body(b'{"model": "small-1"}', "unevaluable", JSON, header if content_type else JSON)


BAD_BODIES = {
    "another model": b'{"model": "large-1"}',
    "no model": b"{}",
    "the model twice": b'{"model": "large-1", "model": "small-1"}',
    "the model twice, by escape": b'{"model": "large-1", "\\u006dodel": "small-1"}',
    "the model in another case": b'{"Model": "small-1"}',
    "not JSON": b"model=small-1",
    "two documents": b'{"model": "small-1"}{"model": "large-1"}',
    "a list": b'[{"model": "small-1"}]',
    "a number": b'{"model": 5}',
    "UTF-16": '{"model": "small-1"}'.encode("utf-16"),
    "a BOM": b'\xef\xbb\xbf{"model": "small-1"}',
    "NaN": b'{"model": "small-1", "x": NaN}',
    "a broken surrogate": b'{"model": "small-1", "x": "\\ud800"}',
    "comments": b'{"model": "small-1" /* x */}',
    "cut": b'{"model": "small-1"',
    "empty": b"",
    "deep": b'{"model": "small-1", "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
}


@pytest.mark.parametrize("what", BAD_BODIES)
async def test_a_body_that_does_not_plainly_fit_is_denied(what: str) -> None:
    """A condition on a body that two parsers read differently, or that can't be evaluated, is no allow."""
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], credential=False) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", JSON, body=BAD_BODIES[what])
        assert answer.status == 403 and answer.reason in ("no_rule_matched", "unevaluable")
        client.close()
        await lab.refused(f"POST /x deny {answer.reason} 403 denied")


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate"])
async def test_a_coded_body_is_judged_decoded(coding: str) -> None:
    """A content coding hides nothing from a rule; what goes up is what came."""
    code = zlib.compress if coding == "deflate" else gzip.compress
    good, bad = (code(b'{"model": "%b"}' % model) for model in (b"small-1", b"large-1"))
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], credential=False) as lab:
        client = await lab.tunnel()
        header = f"content-encoding: {coding}".encode()
        assert (await client.ask("POST", "/x", JSON, header, body=good)).json["body"].encode("latin-1") == good
        assert (await client.ask("POST", "/x", JSON, header, body=bad)).status == 403
        records = await lab.audited(f"POST /x {ALLOWED}", "POST /x deny no_rule_matched 403 denied")
        assert records and bad not in lab.upstream.received


BOMB = gzip.compress(b'{"model": "small-1", "x": "' + bytes(30_000_000) + b'"}')
CODED = {
    "an unknown coding": (b'{"model": "small-1"}', b"content-encoding: snappy"),
    "a coding that it does not have": (b'{"model": "small-1"}', b"content-encoding: gzip"),
    "a cut one": (gzip.compress(b'{"model": "small-1"}')[:-3], b"content-encoding: gzip"),
    "something after it": (gzip.compress(b'{"model": "small-1"}') + b"{}", b"content-encoding: gzip"),
    "a bomb": (BOMB, b"content-encoding: gzip"),
    "four codings": (b'{"model": "small-1"}', b"content-encoding: gzip, gzip, gzip, gzip"),
}


@pytest.mark.parametrize("what", CODED)
async def test_an_undecodable_body_is_denied(what: str) -> None:
    """What can't be decoded can't be judged, and is denied by a rule that has to look into it."""
    body, header = CODED[what]
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], credential=False) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", JSON, header, body=body)
        assert answer.status in (403, 415) and answer.reason in ("no_rule_matched", "unevaluable", "body_undecodable")
        client.close()
        await lab.refused(f"POST /x deny {answer.reason} {answer.status} denied")


TWO_CODINGS: dict[str, tuple[list[bytes], Callable[[bytes], bytes]]] = {
    "gzip, then gzip": ([b"gzip", b"gzip"], lambda body: gzip.compress(gzip.compress(body))),
    "identity, then gzip": ([b"identity", b"gzip"], gzip.compress),
    "nothing, then gzip": ([b"", b"gzip"], gzip.compress),
    "deflate, then gzip": ([b"deflate", b"gzip"], lambda body: gzip.compress(zlib.compress(body))),
}


@pytest.mark.parametrize("h2", [False, True])
@pytest.mark.parametrize("how", TWO_CODINGS)
async def test_a_request_whose_coding_stands_in_two_fields_is_judged_decoded(how: str, h2: bool) -> None:
    """Two Content-Encoding fields are one list (RFC 9110 5.3): the second hides nothing from a rule."""
    codings, code = TWO_CODINGS[how]
    good, bad = (code(b'{"model": "%b"}' % model) for model in (b"small-1", b"large-1"))
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], credential=False) as lab:
        if h2:
            guest = await tunnel(lab)
            fields = [(b"content-type", b"application/json"), *((b"content-encoding", each) for each in codings)]
            statuses = [(await guest.ask("/x", *fields, method="POST", body=body)).status for body in (good, bad)]
            guest.close()
        else:
            client = await lab.tunnel()
            headers = [JSON, *(b"content-encoding: " + each for each in codings)]
            statuses = [(await client.ask("POST", "/x", *headers, body=body)).status for body in (good, bad)]
        assert statuses == [200, 403]
        await lab.audited(f"POST /x {ALLOWED}", "POST /x deny no_rule_matched 403 denied")
        assert bad not in lab.upstream.received


async def test_a_coding_that_a_second_field_adds_is_not_overlooked() -> None:
    """What only the first field's coding could decode is not what an upstream reads: denied."""
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], credential=False) as lab:
        client = await lab.tunnel()
        once = gzip.compress(b'{"model": "small-1"}')
        for more in (b"content-encoding: br", b"content-encoding: deflate"):
            assert (await client.ask("POST", "/x", JSON, b"content-encoding: gzip", more, body=once)).status == 403
        client.close()
        records = await lab.audited(*["POST /x deny unevaluable 403 denied"] * 2)
        assert records and lab.upstream.received == b""


async def test_no_more_of_a_body_is_unpacked_than_is_judged() -> None:
    """The limit of what is judged holds while it is unpacked, not only after: what exceeds it costs no memory."""
    upload, limit = Upload(CHUNKED, HeldBytes(1 << 20), "g"), 100_000
    upload.hold(gzip.compress(bytes(1_000_000)))
    with pytest.raises(UndecodableError, match="more than 100000 bytes"):
        upload.decoded(b"gzip", limit)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("excess", [0, 1])
async def test_the_judged_part_is_all_of_it(excess: int, chunked: bool) -> None:
    """At the limit a body is judged whole; one byte beyond it is denied, and no prefix is judged for the rest."""
    limit = 5000
    start = b'{"model": "small-1", "x": "'
    body = start + b"x" * (limit + excess - len(start) - 2) + b'"}'
    settings = {"limits": {"judged_body_bytes": limit}}
    async with Lab(HttpUpstream(echo), rules=[SMALL_ONLY], settings=settings, credential=False) as lab:
        client = await lab.tunnel()
        if chunked:
            head = client.request("POST", "/x", JSON, b"transfer-encoding: chunked")
            await client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            answer = await client.answer()
        else:
            answer = await client.ask("POST", "/x", JSON, body=body)
        if excess:
            assert answer.status == 403
            client.close()
            await lab.refused(f"POST /x deny {answer.reason} 403 denied")
        else:
            assert answer.status == 200
            await lab.audited(f"POST /x {ALLOWED}")


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_beyond_the_rules_limit_is_denied(chunked: bool) -> None:
    """A declared length is refused before anything is sent; one that grows is cut upstream when it is too long."""
    rule = {**ALLOW_ALL, "limits": {"request_body": 1000}}
    async with Lab(HttpUpstream(echo), rules=[rule], credential=False) as lab:
        client = await lab.tunnel()
        if chunked:
            head = client.request("POST", "/x", b"transfer-encoding: chunked")
            await client.send(head + b"400\r\n" + bytes(1024) + b"\r\n0\r\n\r\n")
            answer = await client.answer()
        else:
            answer = await client.ask("POST", "/x", body=bytes(1001))
        assert (answer.status, answer.reason) == (413, "body_too_large")
        client.close()
        await lab.audited("POST /x deny body_too_large 413 denied")
        assert b"\r\n0\r\n\r\n" not in lab.upstream.received
        assert chunked or lab.upstream.received == b""


# -- secrets out -------------------------------------------------------------------------------------------------------

PLACEHOLDER = "sgph-key"
OTHER_HOST = {"dns": {"addresses": {"other.test": ["127.0.0.1"]}}}


async def deny_leak(reason: str, method: str, path: str, *headers: bytes, body: bytes | None = None) -> None:
    """Send something to a host that the credential is not bound to; nothing of it is upstream."""
    async with Lab(HttpUpstream(echo, "other.test"), rules=[ALLOW_ALL]) as lab:
        client = await lab.tunnel()
        answer = await client.ask(method, path, *headers, body=body)
        assert (answer.status, answer.reason) == (403, reason)
        assert SECRET not in answer.body.decode()
        client.close()
        # Where a real value stands, the record keeps neither path nor query.
        kept = "[withheld]" if reason == "secret_leaving" else path.partition("?")[0]
        await lab.refused(f"{method} {kept} deny {reason} 403 denied")


def spellings(text: str) -> dict[str, str]:
    """How a text may be dressed."""
    return {
        "plain": text,
        "base64": base64.b64encode(text.encode()).decode(),
        "basic": base64.b64encode(f"user:{text}".encode()).decode(),
        "url": "".join(f"%{byte:02X}" for byte in text.encode()),
        "url in part": quote(text[:5]) + "".join(f"%{byte:02x}" for byte in text[5:].encode()),
    }


@pytest.mark.parametrize("dress", spellings(""))
@pytest.mark.parametrize("what", ["placeholder", "secret"])
async def test_neither_placeholder_nor_secret_goes_elsewhere_in_a_header(what: str, dress: str) -> None:
    """Both are known in every spelling, on every host: a placeholder at a wrong host is an attack, a secret a leak."""
    text = spellings(PLACEHOLDER if what == "placeholder" else SECRET)[dress]
    reason = "placeholder_misplaced" if what == "placeholder" else "secret_leaving"
    await deny_leak(reason, "GET", "/x", f"x-anything: pre {text} post".encode())


@pytest.mark.parametrize("what", ["placeholder", "secret"])
async def test_nor_in_a_query(what: str) -> None:
    """The query is a place like any other."""
    text = PLACEHOLDER if what == "placeholder" else SECRET
    await deny_leak("placeholder_misplaced" if what == "placeholder" else "secret_leaving", "GET", f"/x?a=b&c={text}")


async def test_nor_in_a_path() -> None:
    """The path too; and it does not stand in the audit log, which the lab checks."""
    async with Lab(HttpUpstream(echo, "other.test"), rules=[ALLOW_ALL]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", f"/x/{SECRET}/y")
        assert answer.reason == "secret_leaving"
        assert SECRET not in answer.body.decode()
        client.close()
        await lab.refused("GET [withheld] deny secret_leaving 403 denied")


OTHER_HEADERS = [
    "user-agent",
    "referer",
    "cookie",
    "x-forwarded-for",
    "accept-language",
    "x-api-key2",
    "origin",
    "from",
]


@pytest.mark.parametrize("header", OTHER_HEADERS)
@pytest.mark.parametrize("dress", ["plain", "basic"])
async def test_a_placeholder_is_swapped_in_the_headers_of_its_credential_only(header: str, dress: str) -> None:
    """In any other, which servers log, show or pass on, it is refused, and told where it may stand."""
    text = spellings(PLACEHOLDER)[dress]
    sent = text if dress == "plain" else f"Basic {text}"
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", f"{header}: {sent}".encode())
        assert answer.reason == "placeholder_misplaced"
        said = answer.json["error"]["message"]
        assert f"(header {header})" in said and "authorization or x-api-key" in said
        assert lab.upstream.lines == []
        client.close()
        await lab.refused("GET /x deny placeholder_misplaced 403 denied")


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_a_placeholder_in_the_headers_of_its_credential_is_swapped(header: str) -> None:
    """The control of the test before: the named header, and the one that HTTP has for credentials."""
    upstream = HttpUpstream(echo)
    async with Lab(upstream, rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x", f"{header}: Bearer {PLACEHOLDER}".encode())
        assert [header, "Bearer [redacted:key]"] in answer.json["headers"]
        assert upstream.talks[0].header(header) == f"Bearer {SECRET}"
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")


async def test_a_placeholder_in_trailers_is_stopped() -> None:
    """Trailers come when the head is gone: the body's end is not sent, so nothing is taken for whole."""
    async with Lab(HttpUpstream(echo, "other.test"), rules=[ALLOW_ALL]) as lab:
        client = await lab.tunnel()
        head = client.request("POST", "/x", b"transfer-encoding: chunked")
        await client.send(head + b"1\r\nx\r\n0\r\nx-t: " + PLACEHOLDER.encode() + b"\r\n\r\n")
        assert (await client.answer()).reason == "placeholder_misplaced"
        client.close()
        await lab.audited("POST /x deny placeholder_misplaced 403 denied")
        assert PLACEHOLDER.encode() not in lab.upstream.received


async def test_a_header_that_is_denied_is_denied_as_a_trailer_too() -> None:
    """A deny on a header holds for what comes late: the body's end is not sent, so the request is never whole."""
    evil = {"id": "evil", "deny": {"hosts": ["**"], "ports": ["1-65535"], "headers": {"x-evil": ["*1*", "yes"]}}}
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, evil], credential=False) as lab:
        for trailer, reason in ((b"x-good: yes", ""), (b"x-evil: no", ""), (b"X-Evil: yes", "rule_denied")):
            client = await lab.tunnel()
            head = client.request("POST", "/x", b"transfer-encoding: chunked")
            await client.send(head + b"1\r\nx\r\n0\r\n" + trailer + b"\r\n\r\n")
            assert (await client.answer()).reason == reason
            client.close()
        *_, record = await lab.audited(
            *["POST /x allow allowed 200 complete"] * 2, "POST /x deny rule_denied 403 denied"
        )
        assert record.rule == "evil"
        judged = [step.outcome for step in record.steps if (step.plugin, step.hook) == ("policy", "judge_request")]
        assert judged == ["allow", "deny"]
        ends = lab.upstream.received.count(b"0\r\nx-good: yes\r\n\r\n") + lab.upstream.received.count(b"x-evil: no")
        assert ends == 2 and b"x-evil: yes" not in lab.upstream.received.lower()


async def test_a_deny_of_a_header_and_a_body_holds_for_a_trailer() -> None:
    """What denies a header together with something in the body denies the trailer of that name: with what was read, or
    because what streamed past was not. An allow that needs the body is not widened by it either."""
    both = {"id": "both", "deny": {**ALLOW_ALL["allow"], "headers": {"x-admin": True}, "json": {"action": "delete"}}}
    deny_body = {"id": "asks", "deny": {**ALLOW_ALL["allow"], "paths": ["/read"], "json": {"action": "wipe"}}}
    body = b'{"action":"delete"}'
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, both, deny_body], credential=False) as lab:
        for path, trailer, reason in (
            ("/read", b"x-good: yes", ""),
            ("/read", b"x-admin: yes", "rule_denied"),
            ("/past", b"x-good: yes", ""),
            ("/past", b"x-admin: yes", "unevaluable"),
        ):
            client = await lab.tunnel()
            head = client.request("POST", path, b"content-type: application/json\r\ntransfer-encoding: chunked")
            await client.send(head + b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(body), body, trailer))
            assert (await client.answer()).reason == reason, (path, trailer)
            client.close()
        records = await lab.audited(
            "POST /read allow allowed 200 complete", "POST /read deny rule_denied 403 denied",
            "POST /past allow allowed 200 complete", "POST /past deny unevaluable 403 denied",
        )  # fmt: skip
        assert [record.rule for record in records if record.verdict == "deny"] == ["both", "both"]
        assert b"x-admin" not in lab.upstream.received


async def test_a_trailer_never_stands_for_the_header_of_a_credential() -> None:
    """Some servers merge trailers into the head: one by the name that is injected, or that asks for another method or
    path, is refused, in any spelling."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        for trailer, reason in (
            (b"x-good: 1", ""),
            (b"X-Api-Key: 1", "credential_unbound"),
            (b"x_api_key: 1", "credential_unbound"),
            (b"x-http-method-override: DELETE", "credential_unbound"),
            (b"X_Original_URL: /admin", "credential_unbound"),
        ):
            client = await lab.tunnel()
            head = client.request("POST", "/x", b"transfer-encoding: chunked")
            await client.send(head + b"1\r\nx\r\n0\r\n" + trailer + b"\r\n\r\n")
            assert (await client.answer()).reason == reason
            client.close()
        await lab.audited("POST /x allow allowed 200 complete", *["POST /x deny credential_unbound 403 denied"] * 4)
        assert b"api_key" not in lab.upstream.received.lower()
        assert b"api-key: 1" not in lab.upstream.received.lower()


async def test_no_credential_over_http() -> None:
    """A credential never goes over plain http: denied, and nothing is sent."""
    async with Lab(HttpUpstream(echo, tls=False), rules=[WITH_KEY]) as lab:
        client = await lab.proxy()
        assert (await client.ask("GET", "/x")).reason == "credential_over_plaintext"
        assert lab.upstream.lines == [], "it was dialled"
        client.close()
        await lab.refused("GET /x deny credential_over_plaintext 403 denied")


@pytest.mark.parametrize(
    ("bound", "method", "path", "header"),
    [
        ({"paths": ["/public/**"]}, "GET", "/public/a", b"x-original-url: /admin/keys"),
        ({"paths": ["/public/**"]}, "GET", "/public/a%EF%BC%8F..%EF%BC%8F..%EF%BC%8Fadmin", b""),
        ({"methods": ["GET", "POST"]}, "POST", "/x", b"x-http-method-override: DELETE"),
        ({"methods": ["GET"]}, "GET", "/x?_method=DELETE", b""),
    ],
)
async def test_no_credential_for_what_an_origin_reads_otherwise(
    bound: dict[str, Any], method: str, path: str, header: bytes
) -> None:
    """A binding holds for the method and path that a header, a parameter or a spelling of the path asks for."""
    async with Lab(
        HttpUpstream(echo), rules=[{**WITH_KEY, "encoded_slash": True}], settings={"credentials": {"key": bound}}
    ) as lab:
        client = await lab.tunnel()
        answer = await client.ask(method, path, *([header] if header else []), body=b"x" if method == "POST" else None)
        assert (answer.status, answer.reason) == (403, "credential_unbound")
        (record,) = await lab.audited(f"{method} {path.partition('?')[0]} deny credential_unbound 403 denied")
        assert not record.credentials
        assert not lab.upstream.received


async def test_no_credential_to_another_host() -> None:
    """A rule that selects it for a host that it is not bound to does not bind it there."""
    async with Lab(HttpUpstream(echo, "other.test"), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "credential_unbound"
        assert lab.upstream.lines == [], "it was dialled"
        client.close()
        await lab.refused("GET /x deny credential_unbound 403 denied")


async def test_a_credential_that_is_gone_is_a_denial() -> None:
    """A source that has no value any more: 503, nothing sent, and the request without it is not tried instead."""
    settings = {"credentials": {"key": {"source": {"file": None, "command": ["false"]}}}}
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings=settings) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "credential_unavailable"
        client.close()
        await lab.refused("GET /x deny credential_unavailable 503 denied")


async def test_the_guests_own_header_is_replaced() -> None:
    """What the guest put where the credential goes does not go along with it."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        said = (await client.ask("GET", "/x", b"x-api-key: mine", b"X-Api-Key: mine too")).json
        assert [value for name, value in said["headers"] if name == "x-api-key"] == ["[redacted:key]"]
        assert lab.upstream.received.lower().count(b"x-api-key") == 1
        await lab.audited(f"GET /x {ALLOWED}")


# -- secrets back ------------------------------------------------------------------------------------------------------


async def test_a_reflected_secret_is_redacted_at_every_split() -> None:
    """Wherever the upstream's pieces are cut, in chunks of their own: no part beyond a guess reaches the guest."""
    text = f"<{SECRET}>".encode()

    async def script(line: Line) -> None:
        for cut in range(1, len(text)):
            await line.request()
            await line.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for piece in (text[:cut], text[cut:]):
                await line.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await line.send(b"0\r\n\r\n")
        await line.end()

    async with Lab(RawUpstream(script), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        for _ in range(1, len(text)):
            answer = await client.ask("GET", "/x")
            assert (answer.body, answer.whole) == (b"<[redacted:key]>", True)
        await lab.audited(*[f"GET /x {ALLOWED}"] * (len(text) - 1))


@pytest.mark.parametrize("h2", [False, True])
@pytest.mark.parametrize("how", TWO_CODINGS)
async def test_a_coding_in_two_fields_hides_no_secret(how: str, h2: bool) -> None:
    """An answer with two Content-Encoding fields is decoded by both and redacted, over either HTTP version."""
    codings, code = TWO_CODINGS[how]
    body = code(f"<{SECRET}>".encode())

    async def app2(talk: Talk2) -> None:
        await talk.respond(200, body, [(b"content-encoding", each) for each in codings])

    said = ok(body, *(b"content-encoding: " + each for each in codings))
    upstream = H2Upstream(app2) if h2 else RawUpstream(says(said))
    async with Lab(upstream, rules=[WITH_KEY]) as lab:
        if h2:
            guest = await tunnel(lab)
            reply = await guest.ask("/x")
            found, fields = bytes(reply.body), reply.headers
            guest.close()
        else:
            answer = await (await lab.tunnel()).ask("GET", "/x")
            found, fields = answer.body, answer.headers
        assert found == b"<[redacted:key]>"
        assert not [name for name, _ in fields if name == b"content-encoding"]
        await lab.audited(f"GET /x {ALLOWED}")


async def test_a_reflected_secret_is_redacted_in_headers_and_trailers() -> None:
    """In any header, cookie or location, and in trailers."""

    async def app(talk: Talk) -> None:
        await talk.begin(
            302, [("location", f"https://x.test/?k={SECRET}"), ("set-cookie", f"k={SECRET}"), ("x", SECRET)]
        )
        await talk.data(b"body")
        await talk.finish([("x-t", SECRET)])

    async with Lab(HttpUpstream(app), rules=[WITH_KEY]) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert SECRET not in str((answer.headers, answer.trailers))
        assert answer.whole
        await lab.audited("GET /x allow allowed 302 complete")


POST_WITH_KEY = {"id": "k", "allow": {**ALLOW_ALL["allow"], "methods": ["POST"]}, "credential": "key"}


async def test_no_early_hint_of_a_bound_host_goes_on() -> None:
    """Where an answer would be redacted, a 103 is dropped, also of a request that carries no credential itself."""
    early = b"HTTP/1.1 103 Early Hints\r\nlink: <" + SECRET.encode() + b">\r\n\r\n"
    rules = [POST_WITH_KEY, {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "methods": ["GET"]}}]
    async with Lab(RawUpstream(says(early + ok(SECRET.encode()))), rules=rules) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert (answer.informational, answer.body) == ([], b"[redacted:key]")
        await lab.audited(f"GET /x {ALLOWED}")


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_page_is_redacted(status: int) -> None:
    """Whatever the status, and for HEAD and refusals: the upstream's error pages show what they were sent."""
    page = f"You sent x-api-key: {SECRET}".encode()
    said = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(page), page)
    async with Lab(RawUpstream(says(said)), rules=[WITH_KEY]) as lab:
        answer = await (await lab.tunnel()).ask("GET", "/x")
        assert answer.body == b"You sent x-api-key: [redacted:key]"
        await lab.audited(f"GET /x allow allowed {status} complete")


async def test_a_status_line_says_nothing() -> None:
    """The reason phrase is free text of the upstream: ours is sent instead."""
    said = b"HTTP/1.1 200 " + SECRET.encode() + b"\r\ncontent-length: 0\r\n\r\n"
    async with Lab(RawUpstream(says(said)), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        await client.send(client.request("GET", "/x"))
        assert (await client.line.head()).startswith(b"HTTP/1.1 200 OK\r\n")
        await lab.audited(f"GET /x {ALLOWED}")


async def test_a_denial_repeats_nothing() -> None:
    """A refusal shows no header, query or body of the request."""
    async with Lab(HttpUpstream(echo), rules=[{"id": "r", "allow": {"hosts": ["x.test"]}}, ALLOW_ALL]) as lab:
        lab.write_policy([])
        client = await lab.tunnel()
        await client.send(b"GET /x?q=canary-query HTTP/1.1\r\nhost: evil.test\r\nx-h: canary-header\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 421
        assert b"canary" not in answer.body + str(answer.headers).encode()
        client.close()
        await lab.refused(f"GET {lab.authority()} deny target_mismatch 421 denied")


async def test_ok_is_still_ok() -> None:
    """The control: without an attack, all of this passes."""
    async with Lab(RawUpstream(says(ok(b"fine"))), rules=[WITH_KEY]) as lab:
        assert (await (await lab.tunnel()).ask("GET", f"/x?k={quote('a b')}")).body == b"fine"
        await lab.audited(f"GET /x {ALLOWED}")
