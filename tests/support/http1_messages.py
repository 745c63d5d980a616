"""HTTP/1.1 messages for Hypothesis: of the usual pieces and of those that smuggling is made of."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

LINES = st.sampled_from(
    [
        b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"HEAD / HTTP/1.0", b"OPTIONS * HTTP/1.1", b"PUT http://a/ HTTP/1.1",
        b"GET /", b"get / HTTP/1.1", b"GET / HTTP/1.2", b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 204 ",
        b"HTTP/1.1 100 Continue", b"HTTP/1.1 304 X", b"HTTP/1.1 999 X", b"",
    ]
)  # fmt: skip
FIELDS = st.sampled_from(
    [
        b"Host: a", b"host:b", b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: +5", b"Content-Length : 5",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked ", b"Connection: close", b"Connection: x-a", b"X-A: 1", b" folded", b"X-B: \x00",
        b"X-C: \xff", b"Expect: 100-continue", b"a b: c", b"nocolon",
    ]
)  # fmt: skip
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
BODIES = st.sampled_from(
    [
        b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
        b"05\r\nhello\r\n000\r\n\r\n",
        b"5\nhello\n0\n\n", b"-5\r\nhello\r\n0\r\n\r\n", b"4\r\nhello\r\n0\r\n\r\n", b"0\r\nHost: x\r\n\r\n", b"0\r\n",
        b"fffffffffffffffff\r\n", b"3\r\nab", b"hello more than five",
    ]
)  # fmt: skip
CUTS = st.lists(st.integers(0, 400), max_size=10)


CLEAN = st.sampled_from(
    [
        b"X-A: 1",
        b"x-b:\t2 ",
        b"X-C: \xff",
        b"Connection: close",
        b"Connection: x-a",
        b"Connection: keep-alive",
        b"X-Empty:",
    ]
)
FRAMED = st.sampled_from(
    [
        (b"", b""),
        (b"Content-Length: 5", b"hello"),
        (b"content-length:0", b""),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding:\tChunked", b"0005;x=y\r\nhello\r\n1\r\n!\r\n000\r\nX-T: 1\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"0\r\n\r\n"),
    ]
)
REQUEST_LINES = st.sampled_from(
    [b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"PUT http://a/ HTTP/1.1", b"GET / HTTP/1.0"]
)
STATUS_LINES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 201 ",
        b"HTTP/1.0 200",
        b"HTTP/1.1 204 N",
        b"HTTP/1.1 304 N",
        b"HTTP/1.1 100 Continue",
    ]
)


@st.composite
def messages(draw: st.DrawFn, responses: bool = False) -> bytes:
    """One or two messages: mostly well-formed with at most one oddity, sometimes anything."""
    out = b""
    for _ in range(draw(st.integers(1, 2))):
        out += draw(_wild()) if draw(st.integers(0, 3)) == 0 else draw(_tame(responses))
    return out


@st.composite
def _wild(draw: st.DrawFn) -> bytes:
    parts = [draw(LINES), *draw(st.lists(FIELDS, max_size=4))]
    if draw(st.booleans()):
        parts.insert(1, b"Host: a")
    return b"".join(part + draw(ENDS) for part in parts) + draw(ENDS) + draw(BODIES)


@st.composite
def _tame(draw: st.DrawFn, responses: bool) -> bytes:
    framing, body = draw(FRAMED)
    parts = [draw(STATUS_LINES if responses else REQUEST_LINES), *draw(st.lists(CLEAN, max_size=3))]
    if framing:
        parts.insert(draw(st.integers(1, len(parts))), framing)
    if not responses:
        parts.insert(draw(st.integers(1, len(parts))), b"Host: a")
    if draw(st.integers(0, 3)) == 0:
        parts.insert(draw(st.integers(1, len(parts))), draw(FIELDS))
    if draw(st.integers(0, 7)) == 0:
        body = draw(BODIES)
    return b"\r\n".join(parts) + b"\r\n\r\n" + body


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(places)]
