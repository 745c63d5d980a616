"""The reader's events: bodies of each framing, what is unread, what the end of the connection means."""

from __future__ import annotations

import pytest

from seamgate.errors import GuestProtocolError, Reason, UpstreamProtocolError
from seamgate.protocol.heads import CHUNKED, RequestHead, ResponseHead, Trailers
from seamgate.protocol.http1_reader import (
    MAX_HEAD_BYTES,
    MAX_TRAILER_BYTES,
    NEED_DATA,
    Event,
    MessageReader,
    RequestReader,
    ResponseReader,
)

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
SIZED = POST + b"Content-Length: 5\r\n\r\n"
CHUNKS = POST + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def events(reader: MessageReader, *pieces: bytes) -> list[Event]:
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (event := reader.next_event()) is not NEED_DATA:
            found.append(event)
    return found


def body(found: list[Event]) -> bytes:
    return b"".join(event for event in found if isinstance(event, bytes))


def test_a_sized_body_ends_where_it_says() -> None:
    """Head, data, end; what follows stays unread until the next message is begun."""
    reader = RequestReader()
    found = events(reader, SIZED + b"hello" + GET)
    assert isinstance(found[0], RequestHead)
    assert body(found) == b"hello"
    assert found[-1] == Trailers()
    assert reader.message_done and reader.unread_bytes == len(GET)
    reader.start_next()
    assert isinstance(events(reader, b"")[0], RequestHead)


def test_chunks_are_joined_and_extensions_read_over() -> None:
    """All chunk data that is here comes as one piece; extensions and letter case of sizes mean nothing."""
    found = events(RequestReader(), CHUNKS + b'3;a="b"\r\nabc\r\nA ;x\r\n0123456789\r\n000\r\nx-sum: 1\r\n\r\n')
    head = found[0]
    assert isinstance(head, RequestHead) and head.body == CHUNKED
    assert body(found) == b"abc0123456789"
    assert found[-1] == Trailers(((b"x-sum", b"1"),))


@pytest.mark.parametrize(
    "chunk",
    [
        b"x\r\n", b"-1\r\n", b"+1\r\na", b"0x1\r\na", b" 1\r\na", b"1 \r\na", b"1_0\r\n", b"\r\n", b"1\na\n",
        b"1\r\nab\r\n", b"1\r\na\n", b"1\r\na\rX", b"ffffffffffffffff\r\n", b"1;\x00\r\na", b"1;" + b"x" * 300,
        b"1;a\nb\r\n", b"1\r\r\n", "\u0661\r\na".encode(), b"0\r\ncontent-length: 3\r\n\r\n",
        b"0\r\n a: 1\r\n\r\n", b"0\r\na: 1\nb: 2\r\n\r\n",
    ],
)  # fmt: skip
def test_odd_chunks_are_refused(chunk: bytes) -> None:
    """A size is 1 to 15 hex digits and nothing else; a chunk ends with CRLF; trailers are held to what heads are."""
    with pytest.raises(GuestProtocolError) as caught:
        events(RequestReader(), CHUNKS + chunk + b"\r\n\r\n")
    assert caught.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_a_head_is_bounded(step: int) -> None:
    """A head beyond the limit is refused, in however many pieces it comes."""
    data = b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"
    with pytest.raises(GuestProtocolError) as caught:
        events(RequestReader(), *(data[place : place + step] for place in range(0, len(data), step)))
    assert caught.value.reason is Reason.HEADERS_TOO_LARGE


@pytest.mark.parametrize("step", [100, 1 << 20])
def test_trailers_are_bounded(step: int) -> None:
    """So are trailers, also where they come in one piece."""
    data = CHUNKS + b"0\r\nx: " + b"a" * MAX_TRAILER_BYTES + b"\r\n\r\n"
    with pytest.raises(GuestProtocolError) as caught:
        events(RequestReader(), *(data[place : place + step] for place in range(0, len(data), step)))
    assert caught.value.reason is Reason.HEADERS_TOO_LARGE


def test_a_bare_lf_is_refused_at_once() -> None:
    """Nobody waits for the rest of a head that can't become one."""
    for data in (b"GET / HTTP/1.1\n", b"\n"):
        with pytest.raises(GuestProtocolError):
            events(RequestReader(), data)


@pytest.mark.parametrize("cut", [SIZED, SIZED + b"hell", CHUNKS, CHUNKS + b"5\r\nhel", CHUNKS + b"0\r\n", GET[:-2]])
def test_an_end_within_a_request_is_a_cut(cut: bytes) -> None:
    """A request that is not whole never looks whole."""
    reader = RequestReader()
    events(reader, cut)
    with pytest.raises(GuestProtocolError) as caught:
        reader.eof()
    assert caught.value.reason is Reason.GUEST_GONE


def test_an_end_between_requests_is_no_cut() -> None:
    """A connection may end between messages."""
    reader = RequestReader()
    assert reader.eof() is None
    events(reader, GET)
    assert reader.eof() is None


def test_a_response_until_close() -> None:
    """Without framing the body ends with the connection, cleanly."""
    reader = ResponseReader()
    reader.expect("GET")
    assert body(events(reader, b"HTTP/1.0 200 OK\r\n\r\nabc", b"def")) == b"abcdef"
    assert reader.eof() == Trailers()
    assert reader.message_done


def test_informational_responses_come_before_the_final_one() -> None:
    """1xx have no body and end nothing."""
    reader = ResponseReader()
    reader.expect("POST")
    found = events(reader, b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 204 N\r\n\r\n")
    assert [event.status for event in found if isinstance(event, ResponseHead)] == [100, 103, 204]
    assert found[-1] == Trailers()


def test_one_reader_many_responses() -> None:
    """HEAD and GET take turns on one connection without confusion of bodies."""
    reader = ResponseReader()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    for method, data, expected in (("HEAD", answer, b""), ("GET", answer + b"ok", b"ok"), ("HEAD", answer, b"")):
        reader.expect(method)
        assert body(events(reader, data)) == expected
        assert reader.between_messages


def test_surplus_of_a_response_is_seen() -> None:
    """Bytes after a response make the connection unfit for reuse."""
    reader = ResponseReader()
    reader.expect("GET")
    events(reader, b"HTTP/1.1 204 N\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
    assert reader.message_done and not reader.between_messages


def test_a_cut_response() -> None:
    """The end of the connection within a response is the upstream's fault."""
    reader = ResponseReader()
    reader.expect("GET")
    events(reader, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
    with pytest.raises(UpstreamProtocolError) as caught:
        reader.eof()
    assert caught.value.reason is Reason.UPSTREAM_CLOSED


def test_start_next_within_a_message_is_a_fault_of_ours() -> None:
    """Nobody may skip the rest of a message."""
    reader = RequestReader()
    events(reader, SIZED)
    with pytest.raises(RuntimeError):
        reader.start_next()
