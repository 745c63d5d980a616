"""HTTP/1.1 reading and writing over all inputs: splits, garbage, and what is written is what is read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from seamgate.errors import GuestProtocolError, ProtocolError, UpstreamProtocolError
from seamgate.flow import Headers
from seamgate.protocol.heads import CHUNKED, UNTIL_CLOSE, RequestHead, ResponseHead, Trailers
from seamgate.protocol.http1 import write_chunk, write_last_chunk, write_request_head, write_response_head
from seamgate.protocol.http1_reader import NEED_DATA, Event, MessageReader, RequestReader, ResponseReader
from seamgate.protocol.work import UNBOUNDED
from support.http1_messages import CUTS, messages, split


def outcome(
    reader: MessageReader, pieces: list[bytes], methods: list[str], turn: int = UNBOUNDED
) -> tuple[list[Any], str]:
    """Read everything, so much in each turn: (heads, whole bodies and trailers in order; how it ended)."""
    told: list[Any] = []
    body = b""
    expected = iter(methods)
    if isinstance(reader, ResponseReader):
        reader.expect(next(expected))
    try:
        for piece in pieces:
            reader.feed(piece)
            while (event := _next(reader, turn)) is not NEED_DATA:
                if isinstance(event, bytes):
                    body += event
                    continue
                if isinstance(event, Trailers):
                    told += [body, event]
                    body = b""
                    if isinstance(reader, ResponseReader):
                        reader.expect(next(expected))
                    else:
                        reader.start_next()
                    continue
                told.append(event)
        end = reader.eof()
        return [*told, body], f"end {end}"
    except ProtocolError as error:
        return told, f"{type(error).__name__} {error.reason}"


def _next(reader: MessageReader, turn: int) -> Event:
    """Return the next event, in a new turn where the last one is used up: as those who read do."""
    if reader.left <= 0 or reader.left > turn:
        reader.left = turn
    return reader.next_event()


@given(data=messages(), turn=st.integers(1, 40))
def test_a_turn_that_ends_anywhere_changes_no_request(data: bytes, turn: int) -> None:
    """However little is read in a turn: the same heads, whole bodies, trailers and refusal."""
    assert outcome(RequestReader(), [data], [], turn) == outcome(RequestReader(), [data], [])


@given(data=messages(responses=True), turn=st.integers(1, 40), method=st.sampled_from(["GET", "HEAD"]))
def test_a_turn_that_ends_anywhere_changes_no_response(data: bytes, turn: int, method: str) -> None:
    """As for requests."""
    methods = [method] * 9
    assert outcome(ResponseReader(), [data], methods, turn) == outcome(ResponseReader(), [data], methods)


@given(data=messages(), cuts=CUTS)
def test_any_split_of_requests_gives_the_same(data: bytes, cuts: list[int]) -> None:
    """Whole, in pieces and byte by byte: the same heads, whole bodies, trailers and refusal."""
    whole = outcome(RequestReader(), [data], [])
    assert outcome(RequestReader(), split(data, cuts), []) == whole
    assert outcome(RequestReader(), split(data, list(range(len(data)))), []) == whole


@given(data=messages(responses=True), cuts=CUTS, method=st.sampled_from(["GET", "HEAD"]))
def test_any_split_of_responses_gives_the_same(data: bytes, cuts: list[int], method: str) -> None:
    """As for requests."""
    methods = [method] * 9
    whole = outcome(ResponseReader(), [data], methods)
    assert outcome(ResponseReader(), split(data, cuts), methods) == whole
    assert outcome(ResponseReader(), split(data, list(range(len(data)))), methods) == whole


@given(data=st.binary(max_size=200) | messages() | messages(responses=True))
def test_garbage_gives_protocol_errors_only(data: bytes) -> None:
    """Whatever comes in, nothing but a ProtocolError of the right side comes out, and the reader ends."""
    readers: list[tuple[MessageReader, type[ProtocolError]]] = [
        (RequestReader(), GuestProtocolError),
        (ResponseReader(), UpstreamProtocolError),
    ]
    for reader, error in readers:
        _, end = outcome(reader, [data], ["GET"] * 99)
        assert end.startswith((error.__name__, "end"))


TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-_0123456789", min_size=1, max_size=12).map(
    lambda name: f"x-{name}".encode()
)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20).map(
    lambda text: text.encode("latin-1")
)
VALUES_CLEAN = VALUES.filter(lambda value: not any(0x7F <= byte < 0x80 for byte in value))
HEADERS: st.SearchStrategy[Headers] = st.lists(st.tuples(TOKENS, VALUES_CLEAN), max_size=6).map(tuple)
PATHS = st.sampled_from(["/", "/a/b", "/a?b=c", "*"])


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]), target=PATHS, headers=HEADERS, trailers=HEADERS,
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=5), chunked=st.booleans(),
)  # fmt: skip
def test_what_is_written_upstream_reads_as_it_was(
    method: str, target: str, headers: Headers, trailers: Headers, pieces: list[bytes], chunked: bool
) -> None:
    """A request that we write, we read: the same method, target, fields, body, trailers."""
    body = b"".join(pieces)
    data = write_request_head(method, target, "a.test", headers, CHUNKED if chunked else len(body))
    data += b"".join(map(write_chunk, pieces)) + write_last_chunk(trailers) if chunked else body
    reader = RequestReader()
    told, end = outcome(reader, [data], [])
    assert end == "end None"
    head, read_body, read_trailers, rest = told
    assert isinstance(head, RequestHead)
    assert (head.method, head.target, head.host, head.headers) == (method, target, "a.test", headers)
    assert (read_body, rest) == (body, b"")
    assert read_trailers == Trailers(trailers if chunked else ())


@given(
    status=st.integers(200, 599).filter(lambda status: status not in (204, 304)), headers=HEADERS, trailers=HEADERS,
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    framing=st.sampled_from(["length", "chunked", "close"]), keep_alive=st.booleans(), minor=st.sampled_from([0, 1]),
)  # fmt: skip
def test_what_is_written_to_guests_reads_as_it_was(
    status: int, headers: Headers, trailers: Headers, pieces: list[bytes], framing: str, keep_alive: bool, minor: int
) -> None:
    """As for requests."""
    body = b"".join(pieces)
    length = {"length": len(body), "chunked": CHUNKED, "close": UNTIL_CLOSE}[framing]
    data = write_response_head(status, headers, length, keep_alive=keep_alive, minor=minor)
    chunked = framing == "chunked"
    data += b"".join(map(write_chunk, pieces)) + write_last_chunk(trailers) if chunked else body
    told, end = outcome(ResponseReader(), [data], ["GET"] * 3)
    head = told[0]
    assert isinstance(head, ResponseHead)
    assert (head.status, head.headers) == (status, headers)
    assert b"".join(part for part in told if isinstance(part, bytes)) == body
    assert end == f"end {Trailers() if framing == 'close' else None}"
    if framing != "close":
        assert told[2] == Trailers(trailers if chunked else ())
        assert head.keep_alive is keep_alive
