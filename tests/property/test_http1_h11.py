"""Our reader held against h11: what we accept, h11 accepts and reads the same; what h11 refuses, we refuse.

Where we refuse and h11 accepts stands in `STRICTER`, with the reason; nowhere else may the two differ.
"""

from __future__ import annotations

from collections.abc import Callable

import h11
import pytest
from hypothesis import example, given

from seamgate.errors import ProtocolError
from seamgate.protocol.heads import RequestHead, ResponseHead, Trailers
from seamgate.protocol.http1_reader import NEED_DATA, MessageReader, RequestReader, ResponseReader
from support.http1_messages import messages

Read = tuple[tuple[object, ...], bytes, tuple[tuple[bytes, bytes], ...]]
"""(what the head says, body, trailers) of the first message."""

_OURS_ALONE = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect", b"host",
    b"content-length", b"transfer-encoding", b"proxy-authorization", b"proxy-authenticate", b"http2-settings",
}  # fmt: skip


def read_by_us(reader: MessageReader, data: bytes) -> Read | None:
    """Return the first message, None if it is refused or not whole."""
    reader.feed(data)
    try:
        head = reader.next_event()
        if isinstance(head, ResponseHead) and head.status < 200:
            return None
        body = b""
        while True:
            event = reader.next_event()
            if event is NEED_DATA:
                end = reader.eof()
                return None if end is None else (_ours(head), body, ())
            if isinstance(event, Trailers):
                return _ours(head), body, event.headers
            assert isinstance(event, bytes)
            body += event
    except ProtocolError:
        return None


def _ours(head: object) -> tuple[object, ...]:
    if isinstance(head, RequestHead):
        return head.method, head.target, head.host, head.headers
    assert isinstance(head, ResponseHead)
    return head.status, head.headers


def read_by_h11(role: type[h11.SERVER | h11.CLIENT], data: bytes) -> Read | None:
    """Return the first message as h11 reads it, with the fields that we take out taken out."""
    h = h11.Connection(role, max_incomplete_event_size=1 << 20)
    if role is h11.CLIENT:
        h.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
        h.send(h11.EndOfMessage())
    h.receive_data(data)
    h.receive_data(b"")
    try:
        head = h.next_event()
        if not isinstance(head, h11.Request | h11.Response):
            return None
        body = b""
        while True:
            event = h.next_event()
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return _theirs(head), body, tuple((name, value) for name, value in event.headers)
            else:
                return None
    except h11.RemoteProtocolError:
        return None


def _theirs(head: h11.Request | h11.Response) -> tuple[object, ...]:
    connection = [value for name, value in head.headers if name == b"connection"]
    gone = _OURS_ALONE | {token.strip() for value in connection for token in value.split(b",")}
    fields = tuple((name, value) for name, value in head.headers if name not in gone)
    if isinstance(head, h11.Request):
        host = next((value.decode("latin-1") for name, value in head.headers if name == b"host"), None)
        return head.method.decode(), head.target.decode(), host, fields
    return head.status_code, fields


@given(data=messages())
@example(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-T: 1\r\n\r\n")
def test_requests_that_we_accept_read_the_same_to_h11(data: bytes) -> None:
    """Equal method, target, host, fields, body and trailers: no third reading is possible."""
    ours = read_by_us(RequestReader(), data)
    assert ours is None or read_by_h11(h11.SERVER, data) == ours


@given(data=messages(responses=True))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
@example(b"HTTP/1.0 200\r\n\r\nhello")
def test_responses_that_we_accept_read_the_same_to_h11(data: bytes) -> None:
    """As for requests."""
    reader = ResponseReader()
    reader.expect("GET")
    ours = read_by_us(reader, data)
    assert ours is None or read_by_h11(h11.CLIENT, data) == ours


STRICTER = {
    "a lower-case method: methods are case-sensitive, no real one is lower-case": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TRACE would send a credential back": b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bare LF: a line end that not everybody sees": b"GET / HTTP/1.1\nHost: a\n\n",
    "obs-fold: one field or two": b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
    "a coding beside a length": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    ),
    "two equal lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "a list of equal lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "white space after a chunk's size": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\nx\r\n0\r\n\r\n"
    ),
    "a trailer that may not come late": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: x\r\n\r\n"
    ),
    "a Connection field that takes Authorization out of sight": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: authorization\r\nAuthorization: x\r\n\r\n"
    ),
    "an expectation that nobody knows": b"GET / HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("why", STRICTER)
def test_where_we_are_stricter(why: str) -> None:
    """The whole list of what h11 reads and we refuse."""
    data = STRICTER[why]
    assert read_by_h11(h11.SERVER, data) is not None
    assert read_by_us(RequestReader(), data) is None


@given(data=messages())
def test_what_h11_accepts_and_we_refuse_is_on_the_list(data: bytes) -> None:
    """Beyond `STRICTER`, a request that h11 reads is one that we read."""
    theirs = read_by_h11(h11.SERVER, data)
    if theirs is not None and read_by_us(RequestReader(), data) is None:
        assert any(mark(data) for mark in _STRICTER_MARKS.values()), data


def _bare(data: bytes) -> bool:
    return b"\n" in data.replace(b"\r\n", b"") or b"\r" in data.replace(b"\r\n", b"")


_STRICTER_MARKS: dict[str, Callable[[bytes], bool]] = {
    "method": lambda data: data.startswith(b"get "),
    "line ends": _bare,
    "version": lambda data: b"HTTP/1.2" in data,
    "folded": lambda data: b" folded" in data,
    "lengths": lambda data: data.lower().count(b"content-length") > 1,
    "both": lambda data: b"content-length" in data.lower() and b"Transfer-Encoding" in data,
    "1.0": lambda data: b"HTTP/1.0" in data and b"Transfer-Encoding" in data,
    "trailers": lambda data: b"0\r\nHost: x" in data,
    "codings": lambda data: data.count(b"Transfer-Encoding") > 1,
    "expectations": lambda data: data.count(b"Expect") > 1,
}
