"""`seamgate_plugins.inspection`: what a rule asks for by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from seamgate import Direction, Effect, Guest, Inspector, Reason, Request, Response, SeamgateError, Verdict
from seamgate.address import parse_authority
from seamgate.errors import ConfigError
from seamgate.flow import Headers
from seamgate_plugins.inspection import InspectionPlugin

REQUEST = Request("1", Guest("g"), parse_authority("h.example", "https"), "GET", "/")
TOKEN = b"ghp_" + b"a1B2" * 9


def plugin(**options: Any) -> InspectionPlugin:
    return InspectionPlugin(cast("Any", SimpleNamespace(options=options)))


def opened(*names: str, one: InspectionPlugin | None = None, status: int = 200) -> Inspector | None:
    verdict = Verdict(Effect.ALLOW, Reason.ALLOWED, "r", inspect=names)
    return (one or plugin()).open_inspector(REQUEST, Response(status), Direction.RESPONSE, verdict)


def test_nothing_asked_for_nothing_opened() -> None:
    """Nor for requests, nor for the names of other plugins."""
    assert opened() is None
    assert opened("of-another-plugin") is None
    verdict = Verdict(Effect.ALLOW, Reason.ALLOWED, "r", inspect=("secrets",))
    assert plugin().open_inspector(REQUEST, None, Direction.REQUEST, verdict) is None


def test_secrets_are_redacted_in_body_and_headers() -> None:
    """By shape."""
    inspector = opened("secrets")
    assert inspector is not None
    assert inspector.head(((b"x-token", TOKEN),)) == ((b"x-token", b"[redacted:github-token]"),)
    assert inspector.feed(b'{"t": "%s"}\n' % TOKEN) == b'{"t": "[redacted:github-token]"}\n'


def test_an_event_is_never_delayed() -> None:
    """A complete event without anything suspicious is passed on as the same object."""
    inspector = opened("secrets", "jwt", "high-entropy")
    assert inspector is not None
    event = b'data: {"delta": "Hello"}\n\n'
    assert inspector.feed(event) is event
    assert inspector.flush() == b""


def test_several_inspectors_are_one_after_another() -> None:
    """What the first lets go passes the second, in pauses and at the end too."""
    jwt = b"eyJ" + b"a" * 20 + b".eyJ" + b"b" * 20 + b"." + b"c" * 30
    inspector = opened("jwt", "secrets")
    assert inspector is not None
    text = b"a " + jwt + b" b " + TOKEN
    given = b"".join(inspector.feed(text[place : place + 1]) + inspector.flush() for place in range(len(text)))
    given += inspector.finish()
    assert given.count(b"[redacted:jwt]") == 1
    assert given.count(b"[redacted:github-token]") == 1
    assert TOKEN not in given
    assert jwt not in given


def test_high_entropy_does_not_stall_words() -> None:
    """A pause gives out a word at the end of a piece."""
    inspector = opened("high-entropy")
    assert inspector is not None
    assert inspector.feed(b"thinking") + inspector.flush() == b"thinking"
    assert b"[redacted:high-entropy]" in inspector.feed(b" kJ8s0Qp2Zx7Lm4Nv6Bt1Rw9Yc3Hd5Gf0Ua.\n")


def test_own_shapes() -> None:
    """Added to `secrets` under their name."""
    one = plugin(shapes={"acme-token": {"prefix": "acme_", "characters": "hex", "least": 16, "most": 64}})
    inspector = opened("secrets", one=one)
    assert inspector is not None
    assert inspector.feed(b"acme_0123456789abcdef.\n") == b"[redacted:acme-token].\n"


CONTENT_TYPES = {"json-only": ["application/json", "text/*"]}


@pytest.mark.parametrize(
    "headers",
    [
        ((b"content-type", b"application/json"),),
        ((b"content-type", b"Application/JSON ; charset=utf-8"),),
        ((b"content-type", b"text/event-stream"),),
        ((b"content-length", b"0"),),
    ],
)
def test_listed_media_types_pass(headers: Headers) -> None:
    """Without case and parameters; an empty body has none."""
    inspector = opened("json-only", one=plugin(content_types=CONTENT_TYPES))
    assert inspector is not None
    assert inspector.head(headers) is headers
    trailers = ((b"x-checksum", b"1"),)
    assert inspector.head(trailers) is trailers
    assert inspector.feed(b"x") + inspector.flush() + inspector.finish() == b"x"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"content-type", b"application/octet-stream"),),
        ((b"content-type", b"application/json-seq"),),
        ((b"content-type", b""),),
        ((b"content-type", b"application/json"), (b"content-type", b"text/html")),
    ],
)
def test_other_media_types_are_denied(headers: Headers) -> None:
    """Also an absent and an ambiguous one."""
    inspector = opened("json-only", one=plugin(content_types=CONTENT_TYPES))
    assert inspector is not None
    with pytest.raises(SeamgateError) as caught:
        inspector.head(headers)
    assert caught.value.reason is Reason.RESPONSE_DENIED
    assert "json-only" in caught.value.message


def test_a_response_that_can_have_no_body_has_no_media_type() -> None:
    """204 and 304 pass."""
    assert opened("json-only", one=plugin(content_types=CONTENT_TYPES), status=304) is None


def test_the_names_that_rules_may_use_are_told() -> None:
    """So that an unknown one is found at start."""
    assert plugin(content_types=CONTENT_TYPES).inspector_names == {"secrets", "jwt", "high-entropy", "json-only"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shape": {}}, "unknown field `shape`"),
        ({"shapes": {"A B": {"prefix": "acme_", "least": 20, "most": 30}}}, "not a name"),
        ({"shapes": {"a": {"prefix": "a", "least": 20, "most": 30}}}, "3 to 64 visible"),
        ({"shapes": {"a": {"prefix": "acme_", "least": 1, "most": 30}}}, "8 <= least"),
        ({"shapes": {"a": {"prefix": "acme_", "least": 20, "most": 3000}}}, "1000"),
        ({"shapes": {"a": {"prefix": "acme_", "characters": "any", "least": 20, "most": 30}}}, "Invalid enum value"),
        ({"content_types": {"j": []}}, "is empty"),
        ({"content_types": {"j": ["JSON"]}}, "not a media type"),
        ({"content_types": {"secrets": ["a/b"]}}, "taken"),
    ],
)
def test_options_that_can_not_be_used_stop_the_start(options: dict[str, Any], says: str) -> None:
    """With the option's name."""
    with pytest.raises(ConfigError, match=f"options of the plugin inspection.*{says}"):
        plugin(**options)
