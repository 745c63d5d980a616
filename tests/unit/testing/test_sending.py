"""The kit's `send`, recorded upstreams and memory streams: a request all the way and back, without a socket."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from seamgate import Amendment, Direction, Inspector, Reason, Request, Response, deny, hookimpl
from seamgate.audit.record import AuditKind
from seamgate.errors import ConfigError
from seamgate.headers import Headers
from seamgate.testing import Recorded, RecordedUpstream, join, make_request, send

_REAL = "sk-real-value-4f1c9e7a5b2d"
_POLICY = '{"seamgate": 1, "rules": [{"id": "api", "allow": {"hosts": ["api.test"]}, "credential": "key"}]}'


class Shouts:
    """Makes the body upper-case, and notes the head that it is opened with."""

    def __init__(self) -> None:
        self.opened: list[Response] = []

    @hookimpl
    def open_inspector(self, response: Response | None, direction: Direction) -> Inspector | None:
        if response is None or direction is Direction.REQUEST:
            return None
        self.opened.append(response)
        return _Upper()


class _Upper:
    def head(self, headers: Headers) -> Headers:
        return headers

    def feed(self, data: bytes) -> bytes:
        return data.upper()

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


@pytest.fixture
def key(tmp_path: Path) -> dict[str, Any]:
    """A credential for api.test."""
    file = tmp_path / "key"
    file.write_text(_REAL)
    file.chmod(0o600)
    return {"key": {"source": {"file": str(file)}, "inject": {"bearer": True}, "hosts": ["api.test"]}}


@pytest.mark.parametrize("piece_bytes", [0, 1, 7])
async def test_an_answer_comes_back_whatever_the_pieces(piece_bytes: int) -> None:
    """Head, chunks and trailers, byte by byte or whole; one terminal record with each plugin's steps."""
    upstream = RecordedUpstream(
        {"POST https://api.test/v1": Recorded(headers={"x-a": "1"}, pieces=(b"he", b"llo"), trailers={"x-end": "2"})}
    )
    request = make_request("POST https://api.test/v1?q=1", body=b"x" * 100_000)
    flow = await send(request, upstream=upstream, plugins={"shouts": Shouts()}, piece_bytes=piece_bytes)
    assert (flow.status, flow.body, flow.header(b"x-a"), flow.trailers) == (200, b"HELLO", b"1", ((b"x-end", b"2"),))
    assert flow.complete
    (received,) = flow.received
    assert (received.method, received.url, len(received.body)) == ("POST", "https://api.test/v1?q=1", 100_000)
    assert (flow.record.kind, flow.record.status) == (AuditKind.REQUEST, 200)
    assert {step.plugin for step in flow.record.steps} == {"policy", "recorded", "shouts"}


async def test_a_credential_goes_in_and_does_not_come_back(key: dict[str, Any]) -> None:
    """The upstream sees the value; the guest, the record, and an inspector's response do not."""
    echo = Recorded(headers={"x-echo": _REAL}, body=f"you said {_REAL}".encode())
    upstream = RecordedUpstream({"GET https://api.test/v1": echo})
    shouts = Shouts()
    flow = await send(
        "GET https://api.test/v1", upstream=upstream, plugins={"shouts": shouts}, policy=_POLICY, credentials=key
    )
    assert flow.received[0].header(b"authorization") == f"Bearer {_REAL}".encode()
    assert [record.kind for record in flow.records] == [AuditKind.BEGIN, AuditKind.REQUEST]
    assert _REAL.encode() not in flow.body
    assert _REAL.upper().encode() not in flow.body
    assert _REAL not in repr((flow.headers, flow.records, shouts.opened))
    assert shouts.opened[0].header(b"x-echo") is not None


async def test_a_denial_never_reaches_the_upstream() -> None:
    """It is what the guest gets, and in the record."""

    class Never:
        @hookimpl
        def judge_request(self) -> Any:
            return deny("never")

    upstream = RecordedUpstream()
    flow = await send("GET https://api.test/", upstream=upstream, plugins={"never": Never()})
    assert (flow.status, flow.record.reason, flow.received) == (403, Reason.RULE_DENIED, ())
    assert b"never" in flow.body


async def test_what_is_not_recorded_fails_the_test() -> None:
    """No test passes on an answer that nobody wrote down."""
    with pytest.raises(AssertionError, match=r"GET https://api\.test/v2"):
        await send("GET https://api.test/v2", upstream=RecordedUpstream({"GET https://api.test/v1": Recorded()}))


async def test_several_answers_are_given_in_turn() -> None:
    """The last one as often as it is asked for; a request with its query comes before one without."""
    turns = RecordedUpstream(
        {
            "GET https://api.test/": [Recorded(status=503), Recorded(status=200)],
            "GET https://api.test/?a=1": Recorded(status=204),
        }
    )
    urls = ["/", "/", "/", "/?a=1"]
    assert [(await send(f"GET https://api.test{url}", upstream=turns)).status for url in urls] == [503, 200, 200, 204]


async def test_head_has_no_body() -> None:
    """But the length that GET would have."""
    upstream = RecordedUpstream({"HEAD http://api.test/": Recorded(body=b"four")})
    flow = await send("HEAD http://api.test/", upstream=upstream)
    assert (flow.status, flow.body, flow.complete) == (200, b"", True)


async def test_amended_headers_are_what_the_upstream_gets() -> None:
    """Added and removed."""

    class Tags:
        @hookimpl
        def amend_request(self, request: Request) -> Amendment | None:
            if request.header(b"x-tag") is not None:
                return None
            return Amendment(set_headers=((b"x-tag", b"t"),), remove_headers=(b"x-ours",))

    upstream = RecordedUpstream({"GET https://api.test/": Recorded()})
    request = make_request("GET https://api.test/", headers={"x-ours": "1"})
    flow = await send(request, upstream=upstream, plugins={"tags": Tags()})
    assert flow.received[0].headers == ((b"x-tag", b"t"),)


async def test_an_archive_of_a_browser_is_an_upstream(tmp_path: Path) -> None:
    """HAR 1.2: text and base64 bodies; pseudo headers and framing are left out."""
    entries = [
        _entry("https://api.test/a", {"text": '{"a":1}', "mimeType": "application/json"}),
        _entry("https://api.test/b", {"text": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}),
    ]
    har = tmp_path / "recorded.har"
    har.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    upstream = RecordedUpstream.from_har(har)
    first = await send("GET https://api.test/a", upstream=upstream)
    assert (first.status, first.body, first.header(b"x-kept")) == (201, b'{"a":1}', b"yes")
    assert (await send("GET https://api.test/b", upstream=upstream)).body == b"\xff\x00"
    har.write_text('{"log": {}}')
    with pytest.raises(ConfigError, match="HAR"):
        RecordedUpstream.from_har(har)
    with pytest.raises(ConfigError, match="can't be read"):
        RecordedUpstream.from_har(tmp_path / "missing.har")


def _entry(url: str, content: dict[str, str]) -> dict[str, Any]:
    fields = [(":status", "201"), ("content-encoding", "gzip"), ("content-length", "3"), ("X-Kept", "yes")]
    headers = [{"name": name, "value": value} for name, value in fields]
    return {
        "request": {"method": "GET", "url": url, "headers": []},
        "response": {"status": 201, "headers": headers, "content": content},
    }


class _End:
    """One end of a stream: keeps what came, and how it ended."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.heard: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self.stream = transport

    def data_received(self, data: bytes) -> None:
        self.came.append(data)

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")


async def _turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_memory_stream_behaves_as_a_transport() -> None:
    """Pieces, flow control, a clean end and an abort, as protocols know them from sockets."""
    one, other = _End(), _End()
    stream, _ = join(one, other, piece_bytes=40_000)
    other.stream.pause_reading()
    stream.write(b"x" * 100_000)
    assert (one.heard, stream.get_write_buffer_size()) == (["pause"], 100_000)
    await _turns()
    assert not other.came
    other.stream.resume_reading()
    await _turns()
    assert [len(piece) for piece in other.came] == [40_000, 40_000, 20_000]
    assert one.heard == ["pause", "resume"]
    stream.close()
    await _turns()
    assert (one.heard[-1], other.heard) == ("lost", ["eof", "lost"])
    assert stream.is_closing()

    one, other = _End(), _End()
    join(one, other)[0].abort()
    await _turns()
    assert (one.heard, other.heard) == (["lost"], ["ConnectionResetError"])
