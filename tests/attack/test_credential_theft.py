"""CredentialTheft: whatever guest and upstream do, the value reaches only the requests that it is bound to.

Everything but the sockets: the real pipeline, plugin, decoders and redactors. Each test looks for the canary in what
the guest would get, in every message, and in all that was logged or printed.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import logging
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import brotli
import msgspec
import pytest
import structlog
import zstandard
from structlog.testing import LogCapture

from seamgate import Direction, Guest, Reason, Request, Response, SeamgateError, Verdict, allow, hookimpl
from seamgate.address import parse_authority
from seamgate.credentials.config import CredentialConfig
from seamgate.entry.identity import GuestConfig, TokenSource
from seamgate.flow import BodyState, Headers, Step, Supply
from seamgate.pipeline import Pipeline
from seamgate.protocol.coding import open_decoder
from seamgate.registry import register
from seamgate_plugins.credentials import CredentialsPlugin

CANARY = "sk-ant-api03/canary+4f1c9e7a==Zq"
PLACEHOLDER = "sk-ant-api03-000000000000"
RAW: dict[str, Any] = {
    "llm": {
        "source": {"env": "CANARY_KEY"},
        "inject": {"header": "x-api-key"},
        "placeholder": PLACEHOLDER,
        "hosts": ["api.example.com"],
        "methods": ["POST"],
        "paths": ["/v1/messages"],
    }
}
GUEST = Guest("g")


class AllowAll:
    """A policy that allows everything and selects the credential for everything: the worst that could be loaded."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict:
        return allow("all")


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """The pipeline under attack; afterwards nothing that was logged, printed or shown may hold the canary."""
    monkeypatch.setenv("CANARY_KEY", CANARY)
    printed, logged = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger().addHandler(handler)
    before, capture = structlog.get_config(), LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0))
    with redirect_stdout(printed), redirect_stderr(printed):
        configs = msgspec.convert(RAW, dict[str, CredentialConfig])
        context = SimpleNamespace(options={}, config=SimpleNamespace(credentials=configs))
        plugin = CredentialsPlugin(cast("Any", context))
        made = Pipeline([register("policy", AllowAll()), register("credentials", plugin, ["secrets"])])
        yield made
    structlog.configure(**before)
    logging.getLogger().removeHandler(handler)
    shown = [printed.getvalue(), logged.getvalue(), str(capture.entries), repr(made), repr(plugin), repr(vars(plugin))]
    assert not any(leaks(text.encode()) for text in shown)


def leaks(data: bytes) -> bool:
    """Whether the value, or any of its spellings, or most of it, stands in the data."""
    return any(part in data for part in (b"canary", b"Y2FuYXJ5", b"NhbmFye", b"jYW5hcn", b"4f1c9e7a"))


def request(
    headers: Headers = (),
    host: str = "api.example.com",
    path: str = "/v1/messages",
    scheme: str = "https",
    method: str = "POST",
    query: str | None = None,
    body: bytes | None = None,
) -> Request:
    state = BodyState.ABSENT if body is None else BodyState.COMPLETE
    return Request("1", GUEST, parse_authority(host, scheme), method, path, query, headers, body, state)


def attempt(pipeline: Pipeline, sent: Request) -> Reason | Supply:
    """Judge and supply as the exchange does; return why it was refused, or what would be put in."""
    steps: list[Step] = []
    verdict = pipeline.judge_request(sent, steps)
    assert not leaks(repr((verdict, steps)).encode())
    if not verdict.allowed:
        return verdict.reason
    try:
        supply = pipeline.supply_credential(sent, "llm", steps)
    except SeamgateError as error:
        assert not leaks(repr((error, error.message, error.args, steps)).encode())
        return error.reason
    assert isinstance(supply, Supply)
    assert not leaks(repr((supply, steps)).encode())
    return supply


def basic(text: str) -> Headers:
    return ((b"authorization", b"Basic " + base64.b64encode(text.encode())),)


def test_the_bound_request_gets_it(pipeline: Pipeline) -> None:
    """The control: without this the other tests would prove nothing."""
    for headers in ((), ((b"x-api-key", PLACEHOLDER.encode()),)):
        supply = attempt(pipeline, request(headers))
        assert isinstance(supply, Supply)
        assert supply.set_headers == ((b"x-api-key", CANARY.encode()),)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        # A redirect to another host, a look-alike, a subdomain, an address; the placeholder goes along.
        (request(((b"x-api-key", PLACEHOLDER.encode()),), host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(((b"x-api-key", b"sgph-llm"),), host="api.example.com.evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(((b"x-api-key", b"sgph-llm"),), host="x.api.example.com"), Reason.PLACEHOLDER_MISPLACED),
        (request(((b"x-api-key", b"sgph-llm"),), host="203.0.113.1"), Reason.PLACEHOLDER_MISPLACED),
        # The bound host, another method or path: an endpoint that echoes, say.
        (request(((b"x-api-key", b"sgph-llm"),), path="/echo"), Reason.PLACEHOLDER_MISPLACED),
        (request(((b"x-api-key", b"sgph-llm"),), method="GET"), Reason.PLACEHOLDER_MISPLACED),
        # Without a placeholder, policy alone would select it.
        (request(host="evil.example"), Reason.CREDENTIAL_UNBOUND),
        (request(path="/echo"), Reason.CREDENTIAL_UNBOUND),
        (request(method="PUT"), Reason.CREDENTIAL_UNBOUND),
        # Downgrade.
        (request(scheme="http"), Reason.CREDENTIAL_OVER_PLAINTEXT),
        (request(((b"x-api-key", b"sgph-llm"),), scheme="http"), Reason.CREDENTIAL_OVER_PLAINTEXT),
        # Hidden in Basic, in a cookie, in the query, in the path, in a body, in base64, in escapes.
        (request(basic(f"me:{PLACEHOLDER}"), host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(((b"cookie", b"a=1; k=sgph-llm"),), host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(query="k=sgph-llm", host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(query="k=%73gph-llm", host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(path="/sgph-llm", host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (request(body=b'{"k": "sgph-llm"}', host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        (
            request(body=base64.b64encode(b"xx" + PLACEHOLDER.encode()), host="evil.example"),
            Reason.PLACEHOLDER_MISPLACED,
        ),
        (request(body=b"k=sgph%2Dllm", host="evil.example"), Reason.PLACEHOLDER_MISPLACED),
        # A placeholder of a credential that is gone, or never was.
        (request(((b"x-api-key", b"sgph-revoked"),)), Reason.PLACEHOLDER_MISPLACED),
        # The value itself, learnt somehow, on its way out.
        (request(((b"x-api-key", CANARY.encode()),)), Reason.SECRET_LEAVING),
        (request(basic(f"me:{CANARY}"), host="evil.example"), Reason.SECRET_LEAVING),
        (request(query="k=" + quote(CANARY, safe=""), host="evil.example"), Reason.SECRET_LEAVING),
        (request(body=json.dumps({"k": CANARY}).encode(), host="evil.example"), Reason.SECRET_LEAVING),
        (request(body=base64.urlsafe_b64encode(b"x" + CANARY.encode()), host="evil.example"), Reason.SECRET_LEAVING),
    ],
)
def test_any_other_request_is_refused(pipeline: Pipeline, sent: Request, reason: Reason) -> None:
    """With its reason, even under a policy that allows everything."""
    assert attempt(pipeline, sent) is reason


SPELLINGS = {
    "plain": CANARY.encode(),
    "json": json.dumps(CANARY).strip('"').replace("/", "\\/").encode(),
    "url": quote(CANARY, safe="").encode(),
    "url-lower": quote(CANARY, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d").encode(),
    "base64": base64.b64encode(CANARY.encode()),
    "base64+1": base64.b64encode(b"x" + CANARY.encode()),
    "base64+2": base64.urlsafe_b64encode(b"me" + CANARY.encode() + b"!"),
    ".NET": CANARY.replace("+", "\\u002B").encode(),
    "Gson": CANARY.replace("=", "\\u003d").encode(),
    "Go's templates": CANARY.replace("+", "&#43;").encode(),
    "hex": CANARY.encode().hex().encode(),
    "HEX": CANARY.encode().hex().upper().encode(),
    "json escapes": "".join(f"\\u{ord(char):04x}" for char in CANARY).encode(),
    "JSON escapes": "".join(f"\\u{ord(char):04X}" for char in CANARY).encode(),
    "html numbers": "".join(f"&#{ord(char)};" for char in CANARY).encode(),
    "html hex": "".join(f"&#x{ord(char):x};" for char in CANARY).encode(),
    "backslash x": "".join(f"\\x{ord(char):02x}" for char in CANARY).encode(),
    "each escaped": "".join(f"%{byte:02x}" for byte in CANARY.encode()).encode(),
    "each escaped, upper": "".join(f"%{byte:02X}" for byte in CANARY.encode()).encode(),
    "Mustache": CANARY.replace("/", "&#x2F;").replace("=", "&#x3D;").encode(),
}
IN_LINES = {
    "MIME": base64.encodebytes(b"x" * 40 + CANARY.encode() + b"y" * 9),
    "MIME, CRLF": base64.encodebytes(b"x" * 50 + CANARY.encode() + b"y" * 9).replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("spelling", IN_LINES)
def test_an_echo_in_lines_of_base64_is_redacted_at_every_split(pipeline: Pipeline, spelling: str) -> None:
    """An attachment breaks its base64 every 76 characters, so also within the value."""
    text = b"<" + IN_LINES[spelling] + b">"
    for place in range(1, len(text)):
        got = receive(pipeline, "identity", [text[:place], text[place:]])
        assert not leaks(got.replace(b"\r", b"").replace(b"\n", b""))
        assert b"[redacted:llm]" in got


def gzip_blocks() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    engine = zlib.compressobj(wbits=31)
    return lambda data: engine.compress(data) + engine.flush(zlib.Z_FULL_FLUSH), engine.flush


def brotli_blocks() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    engine = brotli.Compressor(quality=1)
    return lambda data: engine.process(data) + engine.flush(), engine.finish


def zstd_blocks() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    engine = zstandard.ZstdCompressor().compressobj()
    return lambda data: engine.compress(data) + engine.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), engine.flush


BLOCKS: dict[str, Callable[[], tuple[Callable[[bytes], bytes], Callable[[], bytes]]]] = {
    "identity": lambda: (lambda data: data, lambda: b""),
    "gzip": gzip_blocks,
    "br": brotli_blocks,
    "zstd": zstd_blocks,
}


def receive(pipeline: Pipeline, coding: str, pieces: list[bytes]) -> bytes:
    """What a guest gets of a body that the upstream sends in these pieces, each in its own compressed block."""
    verdict = allow("all")
    ((_, inspector),) = pipeline.open_inspectors(request(), Response(200), Direction.RESPONSE, verdict, [])
    decoder = open_decoder(coding.encode())
    encode, end = BLOCKS[coding]()
    out = b""
    for sent in (*map(encode, pieces), end()):
        data = decoder.feed(sent) if decoder is not None else sent
        out += inspector.feed(data) + inspector.flush()
    rest = decoder.finish() if decoder is not None else b""
    return out + inspector.feed(rest) + inspector.finish()


@pytest.mark.parametrize("coding", BLOCKS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_echo_is_redacted_at_every_split(pipeline: Pipeline, coding: str, spelling: str) -> None:
    """Every spelling x every offset x every coding, each half in a block of its own, with a pause in between."""
    text = b'data: {"echo": "' + SPELLINGS[spelling] + b'"}\n\n'
    for place in range(1, len(text)):
        got = receive(pipeline, coding, [text[:place], text[place:]])
        assert not leaks(got)
        assert got.startswith(b'data: {"echo": "')
        assert got.endswith(b'"}\n\n')
        assert b"[redacted:llm]" in got


def test_a_trickle_is_redacted(pipeline: Pipeline) -> None:
    """Byte by byte with a pause after each, only the first three characters of the value come out."""
    text = b"<" + CANARY.encode() + b">"
    got = receive(pipeline, "identity", [bytes((byte,)) for byte in text])
    assert got == b"<sk-[redacted:llm]>"


def test_a_bomb_does_not_reach_the_redactor(pipeline: Pipeline) -> None:
    """An upstream can't stall or fill the gateway by what it compresses."""
    decoder = open_decoder(b"gzip")
    assert decoder is not None
    with pytest.raises(SeamgateError) as caught:
        decoder.feed(gzip.compress(bytes(32 << 20)))
    assert caught.value.reason is Reason.RESPONSE_UNDECODABLE


def test_an_echo_in_headers_is_redacted(pipeline: Pipeline) -> None:
    """In every spelling, in any header."""
    ((_, inspector),) = pipeline.open_inspectors(request(), Response(200), Direction.RESPONSE, allow("all"), [])
    headers = tuple((b"x-%d" % index, value) for index, value in enumerate(SPELLINGS.values()))
    sent = (*headers, (b"set-cookie", b"k=" + CANARY.encode()), (b"location", b"https://e/?k=" + SPELLINGS["url"]))
    got = inspector.head(sent)
    assert len(got) == len(sent)
    assert not any(leaks(value) for _, value in got)


def test_halves_can_not_be_asked_for(pipeline: Pipeline) -> None:
    """With Range a guest would get the value in two responses; it is dropped where the credential goes along."""
    supply = attempt(pipeline, request(((b"range", b"bytes=0-9"),)))
    assert isinstance(supply, Supply)
    assert {b"range", b"if-range"} <= set(supply.remove_headers)


def test_many_events_are_not_delayed(pipeline: Pipeline) -> None:
    """Each event of a stream comes out with the piece that it came in, whatever it ends with before its blank line."""
    ((_, inspector),) = pipeline.open_inspectors(request(), Response(200), Direction.RESPONSE, allow("all"), [])
    for size, _ in pairwise(range(len(CANARY))):
        event = b"data: " + CANARY[:size].encode() + b"\n\n"
        assert inspector.feed(event) == event


async def test_a_command_of_one_credential_sees_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that prints its environment, or a compromised one, has neither keys nor tokens of guests in it."""
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("GUEST_TOKEN", "guest-token-0123456789")
    monkeypatch.setenv("HARMLESS", "1")
    code = "import os; print(','.join(sorted(set(os.environ) & {'CANARY_KEY', 'GUEST_TOKEN', 'HARMLESS'})))"
    helper = {
        "source": {"command": [sys.executable, "-c", code]},
        "hosts": ["api.example.com"],
        "inject": {"bearer": True},
    }
    configs = msgspec.convert({**RAW, "helper": helper}, dict[str, CredentialConfig])
    guests = {"g": GuestConfig(token=TokenSource(env="GUEST_TOKEN")), "h": GuestConfig()}
    config = SimpleNamespace(credentials=configs, guests=guests)
    plugin = CredentialsPlugin(cast("Any", SimpleNamespace(options={}, config=config)))
    pending = plugin.supply_credential(request(), "helper")
    assert pending is not None and not isinstance(pending, Supply)
    assert (await pending).set_headers == ((b"authorization", b"Bearer HARMLESS"),)
