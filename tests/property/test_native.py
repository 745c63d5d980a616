"""What the hot path has in C says the same as its twin in Python, whatever it is given."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import cycle
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamgate._native import (
    Fields,
    Needles,
    amend,
    any_named,
    plain_path,
    plain_text,
    plain_view,
    unquote,
    unquote_json,
)
from seamgate.audit import layout
from seamgate.audit.line import LineEncoder, chain, chain_in_python, decode_line, hash_line
from seamgate.audit.record import (
    AuditBytes,
    AuditGap,
    AuditGateway,
    AuditGuest,
    AuditKind,
    AuditLine,
    AuditRecord,
    AuditRequest,
    AuditUpstream,
    AuditWebSocket,
    Decision,
    GapCause,
    Outcome,
)
from seamgate.credentials.escapes import ALL_LETTERS, letters_of, plain_view_in_python
from seamgate.credentials.needles import Needles as UsedNeedles
from seamgate.credentials.needles import PythonNeedles
from seamgate.errors import GuestProtocolError, PluginError, Reason, UpstreamProtocolError
from seamgate.flow import Isolation, Step
from seamgate.headers import OF_THE_GATEWAY, WRITTEN_HERE, amend_in_python, any_named_in_python, field_problem
from seamgate.paths import canonical_path, is_plain_in_python
from seamgate.protocol import fields as used
from seamgate.protocol.heads import RequestHead, ResponseHead
from seamgate.protocol.http1 import parse_unusual_request_head, parse_unusual_response_head
from seamgate.records import PARTS, Records, Wrapped
from seamgate.unquoting import unquote_in_python, unquote_json_in_python
from support.certificates import careless_context, server_context

FIELDS = Fields(OF_THE_GATEWAY, WRITTEN_HERE, (b"accept", b"x"), used.MAX_FIELDS, RequestHead, ResponseHead)

NAMES = st.sampled_from(
    (
        b"Host", b"ACCEPT", b"x", b"X-Y_z", b"content-length", b"Connection", b"te", b"", b"a b", b"n\xe9", b"x" * 256,
        b"x" * 257, b"h\0", b" folded", b"a:b",
    )
)  # fmt: skip
VALUES = st.sampled_from(
    [b"", b" ", b"\t x \t", b"a: b", b"caf\xe9 \xff", b"\x7f", b"\x00", b"a\rb", b"a\nb", b"\r\n more", b"x" * 300]
)
LINES = st.one_of(
    st.builds(
        lambda name, colon, value: name + colon + value, NAMES, st.sampled_from([b":", b": ", b" :", b""]), VALUES
    ),
    st.binary(max_size=12),
)
FIRST = st.sampled_from([b"GET / HTTP/1.1", b"", b"HTTP/1.1 200 \xe9", b"GET\t/", b"\x7f", b"a\rb", b"a\n"])


def heads() -> st.SearchStrategy[bytes]:
    """Heads of good and bad lines, ends included."""
    return st.builds(
        lambda first, lines: b"\r\n".join([first, *lines]) + b"\r\n\r\n", FIRST, st.lists(LINES, max_size=5)
    )


@given(heads())
def test_heads_are_split_alike(head: bytes) -> None:
    """C splits a head exactly as Python does, and gives none of those that Python refuses."""
    try:
        expected = used.split_head_in_python(head, GuestProtocolError)
    except GuestProtocolError:
        assert FIELDS.split(head) is None
    else:
        assert FIELDS.split(head) == expected


@pytest.mark.parametrize("more", [0, 1])
def test_most_fields(more: int) -> None:
    """As many fields as are allowed are split; one more is refused."""
    head = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (used.MAX_FIELDS + more) + b"\r\n"
    found = FIELDS.split(head)
    assert found is None if more else found == (b"GET / HTTP/1.1", ((b"a", b"b"),) * used.MAX_FIELDS, {})


@pytest.mark.parametrize("head", [b"", b"\r\n", b"a\r\n", b"a\r\n\r", b"x" * 100])
def test_what_is_no_head_is_not_split(head: bytes) -> None:
    """Without an empty line at its end nothing is a head."""
    assert FIELDS.split(head) is None


# Lines of whole heads: mostly right, so that C has something to read.
SPECIAL = st.sampled_from(
    (
        b"Host: a.test", b"host:a.test:8443", b"Host: caf\xe9", b"Host: ", b"Content-Length: 0", b"content-length: 12",
        b"Content-Length: 999999999999999", b"Content-Length: 1000000000000000", b"Content-Length: +1",
        b"Content-Length:", b"Content-Length: 1,1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked",
        b"Transfer-Encoding: gzip, chunked", b"Connection: keep-alive", b"Connection: Keep-Alive", b"Connection: close",
        b"Connection: Close", b"Connection: keep-alive, x", b"Connection: te", b"Keep-Alive: timeout=5",
        b"TE: trailers",
        b"Trailer: x", b"Proxy-Authorization: Basic YTpi", b"Proxy-Authorization:", b"Proxy-Connection: keep-alive",
        b"Expect: 100-continue", b"Upgrade: websocket", b"Connection: upgrade", b"HTTP2-Settings: x",
        b"WWW-Authenticate: Negotiate", b"Proxy-Authenticate: Basic", b"X: y", b"Accept: */*", b"a b: c", b"bad",
    )
)  # fmt: skip
REQUEST_LINES = st.sampled_from(
    (
        b"GET / HTTP/1.1", b"POST /v1/x?y=%20 HTTP/1.1", b"GET / HTTP/1.0", b"HEAD / HTTP/1.1", b"CONNECT a:1 HTTP/1.1",
        b"OPTIONS * HTTP/1.1", b"PURGE / HTTP/1.1", b"TRACE / HTTP/1.1", b"get / HTTP/1.1", b"GET /  HTTP/1.1",
        b"GET  / HTTP/1.1", b"GET / HTTP/1.2", b"GET / HTTP/2.0", b"GET / HTTP/1.1 ", b"GET /", b"GET", b"",
        b"GET  HTTP/1.1",
        b"GET /\t HTTP/1.1", b"GET /\xe9 HTTP/1.1", b"GET /a HTTP/1.10", b" GET / HTTP/1.1", b"POST http://a/ HTTP/1.1",
    )
)  # fmt: skip
STATUS_LINES = st.sampled_from(
    (
        b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No",
        b"HTTP/1.1 304 x",
        b"HTTP/1.1 100 Continue", b"HTTP/1.1 101 Switching", b"HTTP/1.1 103 Hints", b"HTTP/1.1 401 Who",
        b"HTTP/1.1 599 x",
        b"HTTP/1.1 600 x", b"HTTP/1.1 099 x", b"HTTP/1.1 20 x", b"HTTP/1.1 2000 x", b"HTTP/1.1  200 x",
        b"HTTP/2.0 200 x",
        b"HTTP/1.1 200\tOK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1", b"", b"HTTP/1.1 200 caf\xe9", b"http/1.1 200 OK",
    )
)  # fmt: skip


def whole(first: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Whole heads of these first lines."""
    lines = st.lists(st.one_of(SPECIAL, SPECIAL, SPECIAL, LINES), max_size=6)
    return st.builds(lambda first, lines: b"\r\n".join([first, *lines]) + b"\r\n\r\n", first, lines)


@given(whole(REQUEST_LINES))
def test_request_heads_are_read_alike(head: bytes) -> None:
    """What C reads of a request head is what Python reads; what Python refuses, C does not read."""
    found = FIELDS.request(head)
    try:
        expected = parse_unusual_request_head(head)
    except GuestProtocolError:
        assert found is None
    else:
        assert found is None or found == expected


@given(whole(STATUS_LINES), st.sampled_from(["GET", "HEAD", "POST"]))
def test_response_heads_are_read_alike(head: bytes, method: str) -> None:
    """What C reads of a response head is what Python reads; what Python refuses, C does not read."""
    found = FIELDS.response(head, method)
    try:
        expected = parse_unusual_response_head(head, method)
    except UpstreamProtocolError:
        assert found is None
    else:
        assert found is None or found == expected


USUAL = b"Host: a.test\r\nAccept: */*\r\nConnection: keep-alive\r\nProxy-Authorization: Basic YTpi\r\n"


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1", b"POST /v1/x?y=%20 HTTP/1.1", b"CONNECT a:1 HTTP/1.1"])
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 12\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_usual_heads_are_read_in_c(first: bytes, framing: bytes) -> None:
    """Heads as clients and upstreams send them need no second reading."""
    head = first + b"\r\n" + USUAL + framing + b"\r\n"
    assert FIELDS.request(head) == parse_unusual_request_head(head)
    head = b"HTTP/1.1 200 OK\r\nDate: now\r\nServer: x\r\nKeep-Alive: timeout=5\r\n" + framing + b"\r\n"
    assert FIELDS.response(head, "GET") == parse_unusual_response_head(head, "GET")


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple))
def test_fields_are_written_alike(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """C writes what Python finds no fault with, in the same bytes, and nothing else."""
    written = FIELDS.write(b"first\r\n", headers, b"\r\n", True)
    if field_problem(headers, at_the_writer=True):
        assert written is None
        with pytest.raises(PluginError):
            used.write_checked(b"first\r\n", headers, b"\r\n")
    else:
        assert written == b"first\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n"
    assert FIELDS.write(b"", headers, b"", False) == b"".join(b"%b: %b\r\n" % pair for pair in headers)


ABC = st.text("abAB", max_size=40).map(str.encode)
NEEDLES = st.lists(st.text("abAB", min_size=1, max_size=24).map(str.encode), max_size=6)


@given(exact=NEEDLES, folded=NEEDLES, data=ABC)
def test_needles_are_found_alike(exact: list[bytes], folded: list[bytes], data: bytes) -> None:
    """Any needle, of any length and case, is found wherever it stands, and nothing is found where none stands."""
    assert Needles(exact, folded).found(data) == PythonNeedles(exact, folded).found(data)


@given(
    exact=NEEDLES, folded=NEEDLES, single=st.sampled_from([b"", b"%", b"%b"]),
    headers=st.lists(st.tuples(ABC, ABC | st.just(b"%"))).map(tuple), names=st.booleans(),
    texts=st.lists(st.none() | st.text("abAB%\xe9\u20ac?", max_size=20), max_size=2).map(tuple),
)  # fmt: skip
def test_needles_are_found_in_heads_alike(
    exact: list[bytes],
    folded: list[bytes],
    single: bytes,
    headers: tuple[tuple[bytes, bytes], ...],
    names: bool,
    texts: tuple[str | None, ...],
) -> None:
    """In values, in names where these are asked for, and in texts; never across the border of two of them."""
    found = Needles(exact, folded, single).found_in(headers, names, texts)
    assert found == PythonNeedles(exact, folded, single).found_in(headers, names, texts)
    places = [value for _, value in headers] + [name for name, _ in headers if names]
    places += [text.encode("ascii", "replace") for text in texts if text is not None]
    needles = PythonNeedles(exact, folded, single)
    assert found == any(needles.found(place) for place in places)


@given(*[st.lists(st.tuples(NAMES, VALUES), max_size=5).map(tuple)] * 2, st.lists(NAMES, max_size=3).map(tuple))
def test_headers_are_amended_alike(
    headers: tuple[tuple[bytes, bytes], ...], new: tuple[tuple[bytes, bytes], ...], removed: tuple[bytes, ...]
) -> None:
    """Those that are set or removed go, the others stay in order, and those that are set come last."""
    assert amend(headers, new, removed) == amend_in_python(headers, new, removed)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5).map(tuple), st.frozensets(NAMES, max_size=3))
def test_names_are_looked_for_alike(headers: tuple[tuple[bytes, bytes], ...], names: frozenset[bytes]) -> None:
    """Whether the name of any field is one of these."""
    assert any_named(headers, names) == any_named_in_python(headers, names)


@given(st.text("/a.-%;@~ Z\xe9", max_size=12) | st.text(max_size=8).map(lambda text: f"/{text}"))
def test_plain_paths_are_known_alike(text: str) -> None:
    """A path is plain in C if it is plain in Python, and then it is canonical as it is."""
    assert plain_path(text) == is_plain_in_python(text)
    assert not plain_path(text) or canonical_path(text) == text


@given(
    needle=st.binary(min_size=1, max_size=200), others=st.lists(st.binary(min_size=16, max_size=40), max_size=30),
    before=st.binary(max_size=300), after=st.binary(max_size=300),
)  # fmt: skip
def test_a_needle_is_found_at_any_place(needle: bytes, others: list[bytes], before: bytes, after: bytes) -> None:
    """However long needle and text are, and however many others are looked for, it is found."""
    assert Needles([*others, needle]).found(before + needle + after)


@given(exact=NEEDLES, data=ABC, start=st.integers(0, 45))
def test_open_ends_are_found_alike(exact: list[bytes], data: bytes, start: int) -> None:
    """The earliest beginning of a needle that lasts to the end is the same, from any start."""
    assert Needles(exact).open_end(data, start) == PythonNeedles(exact).open_end(data, start)


def test_the_twins_in_c_are_used() -> None:
    """What was built is what runs."""
    assert {UsedNeedles.__module__, type(used._fields).__module__} == {"seamgate._native"}


@pytest.mark.parametrize("given", [[b""], ["text"]])
def test_bad_needles_are_refused(given: list[bytes]) -> None:
    """A needle that is empty, which would be everywhere, or that is no bytes is an error."""
    with pytest.raises(ValueError, match="needle"):
        Needles(given)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.floats(0, 1e9) | st.sampled_from([0.0, 0.0004, 0.0005, 0.9996, 1.0, 1e15])
STEPS = st.builds(Step, TEXTS, TEXTS, NUMBERS, TEXTS)
LABELS = st.dictionaries(TEXTS, TEXTS, max_size=3)
NAMES_OF_QUERY = st.lists(TEXTS, max_size=3).map(tuple)
ASKED = st.builds(AuditRequest, TEXTS, TEXTS, TEXTS, st.integers(0, 65535), TEXTS, NAMES_OF_QUERY, TEXTS)
RECORDS = st.builds(
    AuditRecord,
    time=st.floats(0, 4e9),
    kind=st.sampled_from(AuditKind),
    id=TEXTS,
    guest=st.none() | st.builds(AuditGuest, TEXTS, LABELS, st.sampled_from(Isolation)),
    entry=TEXTS,
    request=st.none() | ASKED,
    verdict=st.none() | st.sampled_from(Decision),
    reason=st.none() | st.sampled_from(Reason),
    message=TEXTS,
    credentials=st.lists(TEXTS, max_size=2).map(tuple),
    upstream=st.none() | st.builds(AuditUpstream, TEXTS, TEXTS, st.booleans(), st.integers(1, 9)),
    status=st.integers(0, 599),
    bytes=st.none() | st.builds(AuditBytes, st.integers(0, 2**63 - 1), st.integers(0, 2**40)),
    duration_ms=st.none() | NUMBERS,
    first_byte_ms=st.none() | NUMBERS,
    outcome=st.none() | st.sampled_from(Outcome),
    steps=st.lists(STEPS, max_size=3).map(tuple),
    generation=st.integers(0, 2**40),
    gateway=st.none() | st.builds(AuditGateway, st.just("start"), st.dictionaries(TEXTS, TEXTS, max_size=2)),
    gap=st.none() | st.builds(AuditGap, st.sampled_from(GapCause), TEXTS, st.integers(0, 9)),
    websocket=st.none() | st.builds(AuditWebSocket, st.integers(0, 9), st.integers(0, 9), st.integers(0, 4999)),
)  # fmt: skip
LINES_IN_C = layout.native_lines()


@given(record=RECORDS, seq=st.integers(1, 2**62))
def test_records_are_written_alike(record: AuditRecord, seq: int) -> None:
    """C writes each record, and what it writes says the same as what msgspec writes, to a thousandth."""
    encoder = LineEncoder()
    line = encoder.encode(record, seq, "0" * 64)
    assert LINES_IN_C is not None
    assert LINES_IN_C.encode(b"", 0, b"", record) is not None
    in_python = chain_in_python(seq, "0" * 64, [encoder.tail_in_python(record)], 0)[0]
    there, here = decode_line(line), decode_line(in_python)
    assert rounded_times(there) == pytest.approx(rounded_times(here), rel=1e-12, abs=0.0011)
    assert without_times(there) == without_times(here)


def rounded_times(line: AuditLine) -> list[float]:
    """The numbers of a line that have a fraction."""
    return [line.duration_ms or 0.0, line.first_byte_ms or 0.0, *[step.duration_us for step in line.steps]]


def without_times(line: AuditLine) -> AuditLine:
    """The line without them; whether one is there stays."""
    steps = tuple([msgspec.structs.replace(step, duration_us=0.0) for step in line.steps])
    had = (line.duration_ms is None, line.first_byte_ms is None)
    return msgspec.structs.replace(
        line, duration_ms=None, first_byte_ms=None, steps=steps, message=f"{line.message}{had}"
    )


@pytest.mark.parametrize(
    "record",
    [
        AuditRecord(0.0, AuditKind.REQUEST, id="\ud800"),
        AuditRecord(0.0, AuditKind.REQUEST, duration_ms=float("inf")),
        AuditRecord(0.0, AuditKind.REQUEST, generation=2**70),
    ],
    ids=["surrogate", "infinite", "huge"],
)
def test_what_c_does_not_know_is_written_all_the_same(record: AuditRecord) -> None:
    """A record is never lost because C does not know something in it."""
    assert LINES_IN_C is not None
    assert LINES_IN_C.encode(b"", 0, b"", record) is None
    assert LineEncoder().encode(record, 1, "0" * 64).endswith(b"}\n")


@given(st.binary(max_size=5000))
def test_lines_are_hashed_alike(line: bytes) -> None:
    """The chain's hash is SHA-256 as hashlib knows it."""
    hashed = layout.native_sha256_hex()
    assert hashed is not None
    assert hash_line(line) == hashed(line) == sha256(line).hexdigest()


@settings(max_examples=100)
@given(
    written=st.lists(st.integers(1, 60) | st.integers(16_380, 16_390) | st.integers(1, 70_000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 60) | st.integers(1, 40_000), min_size=1, max_size=5),
    most=st.integers(1, 4) | st.just(128),
    says_goodbye=st.booleans(),
)
def test_tls_is_sealed_and_opened_alike(written: list[int], cuts: list[int], most: int, says_goodbye: bool) -> None:
    """However ciphertext is cut, and however many records a turn has, C gives and says what Python does."""
    assert PARTS.native is not None
    told = []
    for native in (PARTS.native, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PARTS, "native", native)
            sender, receiver = tls_records()
        sealed = [sender.write(bytes((65 + place,)) * size) for place, size in enumerate(written)]
        if says_goodbye:
            sealed.append(sender.close())
        told.append(([len(each) for each in sealed], list(opened(receiver, b"".join(sealed), cuts, most))))
    assert told[0] == told[1]
    plain = b"".join([each[0] for each in told[0][1]])
    assert plain == b"".join([bytes((65 + place,)) * size for place, size in enumerate(written)])


def opened(receiver: Records, sealed: bytes, cuts: list[int], most: int) -> Iterator[tuple[bytes, bool, bool]]:
    """Plaintext, whether it ended, whether records wait: of each read, as `TlsStream` reads."""
    sizes = cycle(cuts)
    behind = False
    while sealed or behind:
        size = next(sizes)
        data, sealed = sealed[:size], sealed[size:]
        given = receiver.read(data, most)
        plain, ended, behind = (given, False, False) if isinstance(given, bytes) else given[:3]
        yield plain, ended, behind


def tls_records() -> tuple[Records, Records]:
    """A client's records and its server's, after the handshake."""
    client = Wrapped(careless_context(), "api.test", server_side=False)
    server = Wrapped(server_context("api.test"), None, server_side=True)
    for _ in range(3):
        for side, other in ((client, server), (server, client)):
            with suppress(ssl.SSLWantReadError):
                side.tls.do_handshake()
            other.incoming.write(side.outgoing.read())
    return client.take_over(), server.take_over()


_PIECES = (
    rb"\u0073 \u00E \u0 \\u006b \\\\\\\\\ \x73 \x \/ \" \n \r \ %73 %7 %zz % &#115; &#x73; &#X0073; &#0000000115; &#115"
    b" &# & &amp; data: da sk AAAAAAAAAAAAAAAAAAAA id:7 \xff \0"
).split(b" ")
ESCAPES = st.lists(st.sampled_from([*_PIECES, b"\n", b"\r\n", b"\r", b" ", b"data: "]), max_size=12).map(b"".join)


@given(ESCAPES, st.sampled_from([ALL_LETTERS, letters_of(b"sk/\n"), letters_of(b'"')]), st.booleans())
def test_escapes_are_taken_off_alike(data: bytes, letters: bytes, within: bool) -> None:
    """C gives the same text, the same places and the same open end; and what it gives is part of what it got."""
    found, expected = plain_view(data, letters, within), plain_view_in_python(data, letters, within)
    assert plain_text(data, letters, within) == (None if expected is None else expected[0])
    assert (found is None) is (expected is None)
    if found is None or expected is None:
        return
    assert (found[0], list(found[1]), list(found[2]), found[3]) == (
        expected[0],
        list(expected[1]),
        list(expected[2]),
        expected[3],
    )
    for character, start, end in zip(*found[:3], strict=True):
        assert end - start > 1 or data[start] == character


ESCAPED = st.lists(
    st.sampled_from(
        [
            b"%",
            b"%4",
            b"%41",
            b"%fF",
            b"\\",
            b"\\u",
            b"\\u00",
            b"\\u0041",
            b"\\u007f",
            b"\\u0080",
            b"\\u0141",
            b"a",
            b"4",
        ]
    )
    | st.binary(max_size=3)
).map(b"".join)


@given(ESCAPED)
def test_each_kind_of_escapes_is_taken_off_alike(data: bytes) -> None:
    """Of percent-encoding and of JSON; in C, with a regular expression, and as the standard library does."""
    assert unquote(data) == unquote_in_python(data) == unquote_to_bytes(data)
    assert unquote_json(data) == unquote_json_in_python(data)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=9), st.integers(0, 2**62), st.integers(-9, 2000))
def test_lines_are_chained_alike(tails: list[bytes], seq: int, room_bytes: int) -> None:
    """Number, hash and as many lines as there is room for, to the byte; the first one whatever the room."""
    prev = sha256(b"".join(tails)).hexdigest()
    in_c = layout.native_chain()
    assert in_c is not None
    lines, ends, last = chain_in_python(seq, prev, tails, room_bytes)
    assert chain(seq, prev, tails, room_bytes) == in_c(seq, prev, tails, room_bytes) == (lines, ends, last)
    assert len(ends) == len(tails) or len(lines) + 82 + len(str(seq + len(ends))) + len(tails[len(ends)]) > room_bytes
    assert last == sha256(lines[([0, *ends])[-2] :]).hexdigest()


@pytest.mark.parametrize(
    "arguments",
    [(1, "0" * 64, [], 9), (1, "0" * 63, [b""], 9), (-1, "0" * 64, [b""], 9), (2**63 - 1, "0" * 64, [b""], 9),
     (2**63, "0" * 64, [b""], 9), (1, "0" * 64, ["text"], 9), (1, "\ud800" * 64, [b""], 9)],
)  # fmt: skip
def test_what_is_no_chain_is_refused(arguments: tuple[Any, ...]) -> None:
    """C writes past no end, and reads nothing but bytes."""
    in_c = layout.native_chain()
    assert in_c is not None
    with pytest.raises((ValueError, OverflowError)):
        in_c(*arguments)
