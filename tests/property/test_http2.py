"""HTTP/2 for any input: splits never matter, garbage never escapes, and `h2` sees what we mean and we what it means."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from seamgate.errors import ProtocolError
from seamgate.protocol import http2_frames as wire
from seamgate.protocol.heads import RequestHead
from seamgate.protocol.http1 import write_request_head
from seamgate.protocol.http1_reader import RequestReader
from seamgate.protocol.http2 import Http2Connection
from seamgate.protocol.http2_events import ConnectionBroken, Event, StreamData, StreamEnd, StreamHead, StreamMalformed
from seamgate.protocol.http2_fields import parse_late_fields, parse_request, parse_response
from support.http2 import OPENING, Peer, get, still

NAMES = st.sampled_from([b"accept", b"x-one", b"cookie", b"content-type", b"authorization", b"x-" + b"y" * 60])
VALUES = st.text("abcdefghijklmnopqrstuvwxyz0123456789 =;,/", max_size=60).map(lambda text: text.strip().encode())
# h2 joins empty cookies to what it then refuses itself.
FIELDS = st.lists(st.tuples(NAMES, VALUES).filter(lambda pair: pair[1] or pair[0] != b"cookie"), max_size=8)
BODIES = st.lists(st.binary(max_size=40_000), max_size=4)
ANY_FIELDS = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=12), NAMES, st.sampled_from([b":path", b":method", b"te", b"host", b"Host"])),
        st.one_of(st.binary(max_size=12), VALUES),
    ),
    max_size=8,
)


def server() -> Http2Connection:
    end = Http2Connection(server=True, clock=still)
    end.start()
    return end


def told(events: list[Event]) -> list[Any]:
    """Events with the pieces of each body joined: where they are cut says nothing."""
    told: list[Any] = []
    bodies: dict[int, bytes] = {}
    for event in events:
        if isinstance(event, StreamData):
            bodies[event.stream] = bodies.get(event.stream, b"") + event.data
        else:
            told.append(str(event))
    return [told, bodies]


FRAMES = st.one_of(
    st.builds(
        wire.write_frame,
        st.integers(0, 12),
        st.integers(0, 255),
        st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1]),
        st.binary(max_size=40),
    ),
    st.builds(wire.write_word, st.sampled_from([3, 8]), st.sampled_from([0, 1, 3]), st.integers(0, 2**32 - 1)),
    st.builds(
        lambda number, fields, ended: Peer().headers(number, [*get(), *fields], ended=ended),
        st.sampled_from([1, 3, 5, 7]),
        ANY_FIELDS,
        st.booleans(),
    ),
    st.binary(max_size=30),
)


@settings(max_examples=300)
@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_any_input_in_any_split_gives_the_same_events(frames: list[bytes], sizes: list[int]) -> None:
    """Nothing but events comes out of a connection, whatever goes in; the output is the same too."""
    data = OPENING + b"".join(frames)
    whole, cut = server(), server()
    expected, found = whole.feed(data), []
    place = 0
    turn = 0
    while place < len(data):
        size = sizes[turn % len(sizes)]
        found += cut.feed(data[place : place + size])
        place, turn = place + size, turn + 1
    assert told(found) == told(expected)
    assert cut.take_output() == whole.take_output()
    assert sum(isinstance(event, ConnectionBroken) for event in expected) <= 1


@settings(max_examples=300)
@given(st.lists(FRAMES, max_size=12), st.integers(1, 40))
def test_a_turn_that_ends_anywhere_changes_nothing(frames: list[bytes], turn: int) -> None:
    """However little is read in a turn: the same events, and the same output."""
    data = OPENING + b"".join(frames)
    whole, cut = server(), server()
    expected = whole.feed(data)
    cut.left = turn
    found = cut.feed(data)
    while cut.left <= 0 and not cut.broken:
        cut.left = turn
        found += cut.feed(b"")
    assert told(found) == told(expected)
    assert cut.take_output() == whole.take_output()


@settings(max_examples=300)
@given(ANY_FIELDS, st.booleans())
def test_any_fields_parse_or_are_refused(fields: list[tuple[bytes, bytes]], ended: bool) -> None:
    """No other exception than ours; what passes has nothing that HTTP/1.1 would read differently."""
    for whole in (fields, [*get(), *fields]):
        try:
            head = parse_request(whole, ended=ended)
        except ProtocolError:
            continue
        reader = RequestReader()
        reader.feed(write_request_head(head.method, head.target, head.host or "", head.headers, head.body))
        event = reader.next_event()
        assert isinstance(event, RequestHead)
        assert (event.method, event.target, event.host) == (head.method, head.target, head.host)
        assert event.headers == head.headers and event.body == head.body
    for parse in (
        lambda: parse_response([(b":status", b"200"), *fields], "GET", ended=ended),
        lambda: parse_late_fields(fields, ProtocolError),
    ):
        try:
            parse()
        except ProtocolError:
            pass


def h2_end(*, client: bool) -> h2.connection.H2Connection:
    end = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, header_encoding=None))
    end.initiate_connection()
    return end


def carry(ours: Http2Connection, theirs: h2.connection.H2Connection) -> tuple[list[Event], list[Any]]:
    """Carry bytes until both are quiet; both consume what they get."""
    at_ours: list[Event] = []
    at_theirs: list[Any] = []
    for _ in range(10_000):
        from_ours, from_theirs = ours.take_output(), theirs.data_to_send()
        if not from_ours and not from_theirs:
            return at_ours, at_theirs
        for event in theirs.receive_data(from_ours):
            at_theirs.append(event)
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                theirs.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
        for mine in ours.feed(from_theirs):
            at_ours.append(mine)
            if isinstance(mine, StreamData):
                ours.consumed(mine.stream, len(mine.data))
    raise AssertionError("they never fall silent")


@settings(max_examples=80)
@given(FIELDS, BODIES, FIELDS)
def test_h2_reads_what_our_client_sends(
    fields: list[tuple[bytes, bytes]], body: list[bytes], late: list[tuple[bytes, bytes]]
) -> None:
    """Head, body and trailers arrive as they were meant, through any windows."""
    ours = Http2Connection(server=False, clock=still)
    ours.start()
    theirs = h2_end(client=False)
    carry(ours, theirs)
    trailers = tuple((b"t-" + name, value) for name, value in late)
    number = ours.open_stream("POST")
    ours.send_fields(number, [*get(method="POST"), *fields], ended=False)
    for piece in body:
        ours.send_data(number, piece)
    ours.send_end(number, trailers)
    _, events = carry(ours, theirs)
    request = next(event for event in events if isinstance(event, h2.events.RequestReceived))
    without = [pair for pair in request.headers or () if pair[0] != b"cookie"]
    assert [tuple(pair) for pair in without] == [
        *get(method="POST"),
        *[each for each in fields if each[0] != b"cookie"],
    ]
    assert b"".join(event.data for event in events if isinstance(event, h2.events.DataReceived)) == b"".join(body)
    ends = [event for event in events if isinstance(event, h2.events.TrailersReceived)]
    assert [tuple(pair) for event in ends for pair in event.headers or ()] == list(trailers)
    assert any(isinstance(event, h2.events.StreamEnded) for event in events)


@settings(max_examples=80)
@given(st.lists(st.tuples(FIELDS, BODIES), min_size=1, max_size=4))
def test_our_server_reads_what_h2_sends_and_is_read(exchanges: list[tuple[Any, list[bytes]]]) -> None:
    """Several streams at once, with bodies echoed beyond every window."""
    ours, theirs = server(), h2_end(client=True)
    carry(ours, theirs)
    expected: dict[int, bytes] = {}
    got: dict[int, bytes] = {}
    back: dict[int, bytes] = {}
    ended: set[int] = set()
    queues: dict[int, bytes] = {}
    for fields, body in exchanges:
        number = theirs.get_next_available_stream_id()
        theirs.send_headers(number, [*get(method="POST"), *fields])
        expected[number] = queues[number] = b"".join(body)
    for _ in range(1000):
        for number in list(queues):
            room = min(theirs.local_flow_control_window(number), 16384)
            piece, queues[number] = queues[number][:room], queues[number][room:]
            if not queues[number]:
                theirs.send_data(number, piece, end_stream=True)
                del queues[number]
            elif piece:
                theirs.send_data(number, piece)
        at_ours, at_theirs = carry(ours, theirs)
        for event in at_ours:
            assert not isinstance(event, StreamMalformed | ConnectionBroken), event
            if isinstance(event, StreamHead):
                ours.send_fields(event.stream, [(b":status", b"200")], ended=False)
            elif isinstance(event, StreamData):
                got[event.stream] = got.get(event.stream, b"") + event.data
                ours.send_data(event.stream, event.data)
            elif isinstance(event, StreamEnd):
                ours.send_end(event.stream)
        for event in at_theirs:
            if isinstance(event, h2.events.DataReceived):
                back[event.stream_id or 0] = back.get(event.stream_id or 0, b"") + (event.data or b"")
            elif isinstance(event, h2.events.StreamEnded):
                ended.add(event.stream_id or 0)
        if not queues and ended == set(expected):
            break
    assert {number: got.get(number, b"") for number in expected} == expected
    assert {number: back.get(number, b"") for number in expected} == expected
    assert ours.stream_count == 0


@settings(max_examples=200)
@given(st.lists(FRAMES, max_size=8))
def test_what_h2_takes_as_a_valid_request_we_see_as_well(frames: list[bytes]) -> None:
    """Where the oracle reads requests without complaint, we read the same ones, or refuse them, and never others."""
    data = OPENING + b"".join(frames)
    theirs = h2_end(client=False)
    ours = server()
    try:
        requests = [
            (event.stream_id, dict(event.headers or ())[b":path"])
            for event in theirs.receive_data(data)
            if isinstance(event, h2.events.RequestReceived)
        ]
    except (h2.exceptions.ProtocolError, KeyError, ValueError):
        return  # what it makes of broken connections differs by design
    events = ours.feed(data)
    seen = [
        (event.stream, event.head.target.encode())
        for event in events
        if isinstance(event, StreamHead) and isinstance(event.head, RequestHead)
    ]
    assert all(each in requests for each in seen)
    refused = {event.stream for event in events if isinstance(event, StreamMalformed)}
    broken = any(isinstance(event, ConnectionBroken) for event in events)
    assert broken or all(each in seen or each[0] in refused for each in requests)
