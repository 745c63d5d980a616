"""`seamgate.credentials.scanner`: placeholders and real values in a request, in every spelling."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import msgspec
import pytest

from seamgate.address import parse_authority
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.finding import Finding, Surface
from seamgate.credentials.placeholders import UNKNOWN, PlaceholderIndex
from seamgate.credentials.scanner import RequestScanner
from seamgate.flow import BodyState, Guest, Headers, Request

VALUE = b"real/value+0123"


def scanner() -> RequestScanner:
    raw = {"source": {"env": "KEY"}, "hosts": ["h.example"], "placeholder": "sk-ant-api03-000"}
    return RequestScanner(PlaceholderIndex({"key": msgspec.convert(raw, CredentialConfig)}), [("key", VALUE)])


def request(headers: Headers = (), path: str = "/", query: str | None = None, body: bytes | None = None) -> Request:
    state = BodyState.ABSENT if body is None else BodyState.COMPLETE
    return Request("1", Guest("g"), parse_authority("h.example", "https"), "POST", path, query, headers, body, state)


def findings(sent: Request) -> set[Finding]:
    found = set(scanner().findings(sent))
    assert scanner().suspicious(sent) or not found, "the quick test missed what the slow one finds"
    names = {name for name, _ in sent.headers}
    assert all((each.header in names) is (each.surface is Surface.HEADERS) for each in found)
    return {msgspec.structs.replace(each, header=b"") for each in found}


@pytest.mark.parametrize(
    ("sent", "surface"),
    [
        (request(((b"x", b"1 " + VALUE),)), Surface.HEADERS),
        (request(((b"authorization", b"Basic " + base64.b64encode(b"me:" + VALUE)),)), Surface.HEADERS),
        (request(((b"x", base64.b64encode(b"12" + VALUE)),)), Surface.HEADERS),
        (request(((b"x", VALUE.replace(b"v", b"\\u0076")),)), Surface.HEADERS),
        (request(((b"x", VALUE.replace(b"v", b"\\x76").replace(b"u", b"%75")),)), Surface.HEADERS),
        (request(((b"x", VALUE.replace(b"v", b"&#118;")),)), Surface.HEADERS),
        (request(((b"x", VALUE.replace(b"/", b"\\/")),)), Surface.HEADERS),
        (request(((b"authorization", b"Basic " + base64.b64encode(VALUE.replace(b"v", b"&#x76;"))),)), Surface.HEADERS),
        (request(path="/a/" + VALUE.decode().replace("v", "\\u0076")), Surface.PATH),
        (request(query="k=" + VALUE.decode().replace("v", "%5Cu0076")), Surface.QUERY),
        (request(query="k=" + VALUE.decode().replace("v", "%26%23118%3B")), Surface.QUERY),
        (request(path="/a/" + VALUE.decode()), Surface.PATH),
        (request(path="/a/" + quote(VALUE, safe="")), Surface.PATH),
        (request(query="k=" + VALUE.decode()), Surface.QUERY),
        (request(query="k=" + "".join(f"%{byte:02x}" for byte in VALUE)), Surface.QUERY),
        (request(query="k=" + base64.urlsafe_b64encode(VALUE).decode()), Surface.QUERY),
        (request(body=b"x" + VALUE), Surface.BODY),
        (request(body=json.dumps({"k": VALUE.decode()}).replace("/", "\\/").encode()), Surface.BODY),
        (request(body="".join(f"\\u{byte:04x}" for byte in VALUE).encode()), Surface.BODY),
        (request(body=base64.b64encode(b"1" + VALUE)), Surface.BODY),
        (request(body=("k=" + quote(VALUE, safe="")).encode()), Surface.BODY),
    ],
)
def test_a_real_value_is_found(sent: Request, surface: Surface) -> None:
    """On every surface and in every spelling that clients produce."""
    assert Finding(surface, "key", leaking=True) in findings(sent)


@pytest.mark.parametrize("text", ["sgph-key", "sk-ant-api03-000"])
def test_a_placeholder_is_found(text: str) -> None:
    """Both of a credential's placeholders, and whether it stands as it is swapped."""
    raw, coded = text.encode(), base64.b64encode(b"1" + text.encode())
    hex_escapes = "".join(f"%{byte:02X}" for byte in raw)
    assert findings(request(((b"x", b"Bearer " + raw),))) == {Finding(Surface.HEADERS, "key")}
    in_basic = ((b"authorization", b"BASIC " + base64.b64encode(b"me:" + raw)),)
    assert findings(request(in_basic)) == {Finding(Surface.HEADERS, "key")}
    assert findings(request(((b"x", coded),))) == {Finding(Surface.HEADERS, "key", encoded=True)}
    assert findings(request(path="/" + text)) == {Finding(Surface.PATH, "key")}
    assert findings(request(query=f"k={text}")) == {Finding(Surface.QUERY, "key")}
    assert findings(request(query=f"k={hex_escapes}")) == {Finding(Surface.QUERY, "key", encoded=True)}
    assert findings(request(body=raw)) == {Finding(Surface.BODY, "key")}
    assert findings(request(body=coded)) == {Finding(Surface.BODY, "key", encoded=True)}


def test_an_unknown_placeholder_is_found_but_not_in_text() -> None:
    """In a header it is a misspelt or revoked one; in a body it is talk about placeholders."""
    assert findings(request(((b"x", b"sgph-nobody"),))) == {Finding(Surface.HEADERS, UNKNOWN)}
    assert findings(request(body=b"sgph-nobody")) == set()


def test_an_ordinary_request_is_not_suspicious() -> None:
    """So it costs one pass."""
    headers = ((b"accept", b"*/*"), (b"authorization", b"Bearer something-else"), (b"user-agent", b"x/1"))
    assert not scanner().suspicious(request(headers, "/v1/messages", "a=b", b'{"model": "x"}'))


def test_what_is_remembered_ends() -> None:
    """Guests choose the texts, so their number and size are bounded, and the answers stay right."""
    one = scanner()
    for number in range(1500):
        assert not set(one.findings(request(((b"x", b"%d" % number),))))
    assert Finding(Surface.HEADERS, "key", header=b"x") in set(
        one.findings(request(((b"x", b"sgph-key" + b"y" * 5000),)))
    )
    assert len(one._in_headers) <= 1024
    assert all(len(name) + len(value) <= 1024 for name, value in one._in_headers)


def test_what_is_remembered_of_one_header_is_not_said_of_another() -> None:
    """The same value in two headers: each is found in its own."""
    one = scanner()
    for name in (b"x-api-key", b"user-agent", b"x-api-key"):
        assert [each.header for each in one.findings(request(((name, b"sgph-key"),)))] == [name]


def test_no_repr_shows_a_value() -> None:
    """Nor does a finding."""
    assert "real" not in f"{scanner()!r} {findings(request(body=VALUE))}"
