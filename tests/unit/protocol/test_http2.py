"""One end of a connection: streams, windows and ends are as RFC 9113 has them; a message's fault is its stream's."""

from __future__ import annotations

import pytest

from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2 import Http2Connection
from seamgate.protocol.http2_events import (
    ConnectionBroken,
    Event,
    GoingAway,
    SettingsChanged,
    StreamData,
    StreamEnd,
    StreamHead,
    StreamMalformed,
    StreamReset,
)
from support.http2 import OPENING, Peer, client, exchange_all, frames, get, server, still


def broken(events: list[Event]) -> int:
    """The code with which a connection broke."""
    last = events[-1]
    assert isinstance(last, ConnectionBroken), events
    return last.code


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_a_request_and_its_answer_cross() -> None:
    """Head, body and trailers arrive in both directions, and then nothing of the stream is kept."""
    one, other = client(), server()
    number = one.open_stream("POST")
    one.send_fields(number, get(method="POST"), ended=False)
    one.send_data(number, b"ab")
    one.send_data(number, b"c")
    one.send_end(number, ((b"x-sum", b"1"),))
    _, got = exchange_all(one, other)
    assert kinds(got) == ["SettingsChanged", "StreamHead", "StreamData", "StreamEnd"] or kinds(got) == [
        "StreamHead",
        "StreamData",
        "StreamEnd",
    ]
    assert StreamData(1, b"abc") in got and StreamEnd(1, ((b"x-sum", b"1"),)) in got
    other.send_fields(1, [(b":status", b"200")], ended=False)
    other.send_data(1, b"fine")
    other.send_end(1)
    back, _ = exchange_all(one, other)
    assert [event for event in back if isinstance(event, StreamData)] == [StreamData(1, b"fine")]
    assert back[-1] == StreamEnd(1, ())
    assert one.stream_count == other.stream_count == 0


def test_an_answer_before_the_request_ended_closes_the_stream() -> None:
    """RFC 9113 8.1: what is left of the request is declined with NO_ERROR, and read over when it comes."""
    end, peer = server(), Peer()
    end.feed(peer.headers(1, get(method="POST"), ended=False))
    end.send_fields(1, [(b":status", b"403")], ended=True)
    end.finish(1)
    assert frames(end.take_output())[-1] == (wire.RST_STREAM, 0, 1, bytes(4))
    assert end.feed(peer.data(1, b"late", ended=True)) == []
    assert kinds(end.feed(peer.headers(3, get()))) == ["StreamHead"]


@pytest.mark.parametrize("length", [b"4", b"2"])
def test_a_body_is_as_long_as_it_says(length: bytes) -> None:
    """RFC 9113 8.1.1: malformed; the connection goes on."""
    end, peer = server(), Peer()
    fields = [*get(method="POST"), (b"content-length", length)]
    events = end.feed(peer.headers(1, fields, ended=False) + peer.data(1, b"abc", ended=True))
    assert isinstance(events[-1], StreamMalformed)
    assert kinds(end.feed(peer.headers(3, get()))) == ["StreamHead"]


@pytest.mark.parametrize(
    "fields", [[*get(), (b"connection", b"close")], [*get(), (b"X", b"1")], get()[:3], [*get(), (b"a", b"\r\n")]]
)
def test_a_malformed_head_is_its_streams_fault(fields: list[tuple[bytes, bytes]]) -> None:
    """The connection's other streams don't notice."""
    end, peer = server(), Peer()
    events = end.feed(peer.headers(1, get(), ended=False) + peer.headers(3, fields) + peer.headers(5, get()))
    assert kinds(events) == ["StreamHead", "StreamMalformed", "StreamHead"]


def test_more_streams_than_agreed_are_refused_for_repetition() -> None:
    """REFUSED_STREAM on the surplus only: nothing of it was looked at."""
    end, peer = server(most_streams=2), Peer()
    events = end.feed(b"".join(peer.headers(number, get()) for number in (1, 3, 5)))
    assert [event.stream for event in events if isinstance(event, StreamHead)] == [1, 3]
    assert frames(end.take_output())[-1] == (wire.RST_STREAM, 0, 5, b"\x00\x00\x00\x07")
    assert end.feed(Peer.data(5, b"late")) == []


def test_after_goaway_streams_go_on_and_new_ones_are_not_looked_at() -> None:
    """Going away is graceful, said once."""
    end, peer = server(), Peer()
    end.feed(peer.headers(1, get()))
    end.go_away()
    end.go_away()
    assert [kind for kind, *_ in frames(end.take_output())] == [wire.GOAWAY]
    assert end.feed(peer.headers(3, get())) == []
    end.send_fields(1, [(b":status", b"200")], ended=True)
    assert [kind for kind, *_ in frames(end.take_output())] == [wire.HEADERS]


def test_a_client_goes_on_with_its_streams_after_goaway() -> None:
    """Those below the last one are still answered (RFC 9113 6.8)."""
    end, peer = client(), Peer()
    for method in ("GET", "GET"):
        end.send_fields(end.open_stream(method), get(), ended=True)
    events = end.feed(wire.write_goaway(1, 0) + peer.headers(1, [(b":status", b"204")]))
    assert events[0] == GoingAway(1, 0)
    assert isinstance(events[1], StreamHead) and events[1].ended
    assert end.stream_count == 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (Peer.data(0, b"x"), wire.PROTOCOL_ERROR),
        (Peer.data(1, b"x"), wire.PROTOCOL_ERROR),
        (Peer().headers(0, get()), wire.PROTOCOL_ERROR),
        (Peer().headers(2, get()), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), wire.COMPRESSION_ERROR),
        (wire.write_frame(wire.HEADERS, 4, 1, b"\x3f\xe1\xff\x7f"), wire.COMPRESSION_ERROR),
        (wire.write_frame(wire.HEADERS, 4 | 8, 1, b"\x09"), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.CONTINUATION, 4, 1, b""), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.PUSH_PROMISE, 4, 1, bytes(4)), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.HEADERS, 0, 1, b"") + wire.write_frame(wire.PING, 0, 0, bytes(8)), wire.PROTOCOL_ERROR),
        (
            wire.write_frame(wire.HEADERS, 0, 1, b"") + wire.write_frame(wire.CONTINUATION, 4, 3, b""),
            wire.PROTOCOL_ERROR,
        ),
        (wire.write_frame(wire.SETTINGS, 0, 1, b""), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.SETTINGS, 1, 0, bytes(6)), wire.FRAME_SIZE_ERROR),
        (wire.write_frame(wire.PING, 0, 0, bytes(7)), wire.FRAME_SIZE_ERROR),
        (wire.write_frame(wire.PING, 0, 1, bytes(8)), wire.PROTOCOL_ERROR),
        (wire.write_word(wire.RST_STREAM, 1, 0), wire.PROTOCOL_ERROR),
        (wire.write_word(wire.RST_STREAM, 0, 0), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.RST_STREAM, 0, 1, b""), wire.FRAME_SIZE_ERROR),
        (wire.write_word(wire.WINDOW_UPDATE, 0, 0), wire.PROTOCOL_ERROR),
        (wire.write_word(wire.WINDOW_UPDATE, 1, 1), wire.PROTOCOL_ERROR),
        (wire.write_word(wire.WINDOW_UPDATE, 0, wire.MAX_WINDOW), wire.FLOW_CONTROL_ERROR),
        (wire.write_frame(wire.WINDOW_UPDATE, 0, 0, b"1"), wire.FRAME_SIZE_ERROR),
        (wire.write_frame(wire.PRIORITY, 0, 1, b"1"), wire.FRAME_SIZE_ERROR),
        (wire.write_frame(wire.PRIORITY, 0, 0, bytes(5)), wire.PROTOCOL_ERROR),
        (wire.write_frame(wire.GOAWAY, 0, 0, b""), wire.FRAME_SIZE_ERROR),
        (wire.write_frame(wire.DATA, 0, 1, bytes(16385)), wire.FRAME_SIZE_ERROR),
    ],
)
def test_what_breaks_the_connection_ends_it_with_goaway(data: bytes, code: int) -> None:
    """RFC 9113 5.4.1; nothing that follows is read, nothing more is sent."""
    end = server()
    assert broken(end.feed(data)) == code
    assert frames(end.take_output())[-1] == (wire.GOAWAY, 0, 0, bytes(7) + bytes([code]))
    assert end.feed(Peer().headers(1, get())) == []
    end.send_fields(1, [(b":status", b"200")], ended=True)
    assert end.take_output() == b""


@pytest.mark.parametrize("first", [wire.write_frame(wire.PING, 0, 0, bytes(8)), wire.write_frame(wire.SETTINGS, 1, 0)])
def test_settings_come_first(first: bytes) -> None:
    """RFC 9113 3.4."""
    end = Http2Connection(server=True, clock=still)
    end.start()
    assert broken(end.feed(wire.PREFACE + first)) == wire.PROTOCOL_ERROR


def test_a_frame_on_a_stream_that_ended_breaks_the_connection() -> None:
    """RFC 9113 5.1: closed by its own end, not by a reset of ours."""
    end, peer = server(), Peer()
    end.feed(peer.headers(1, get()))
    end.send_fields(1, [(b":status", b"204")], ended=True)
    assert broken(end.feed(peer.data(1, b"x"))) == wire.STREAM_CLOSED


def test_data_after_the_end_is_a_stream_error() -> None:
    """RFC 9113 5.1, half-closed (remote)."""
    end, peer = server(), Peer()
    events = end.feed(peer.headers(1, get()) + peer.data(1, b"x") + peer.headers(3, get()))
    assert kinds(events) == ["StreamHead", "StreamMalformed", "StreamHead"]
    assert (wire.RST_STREAM, 0, 1, b"\x00\x00\x00\x05") in frames(end.take_output())


def test_a_reset_by_the_peer_is_told() -> None:
    """Later frames of ours on that stream are not sent."""
    end, peer = server(), Peer()
    events = end.feed(peer.headers(1, get()) + wire.write_word(wire.RST_STREAM, 1, wire.CANCEL))
    assert events[-1] == StreamReset(1, wire.CANCEL)
    end.send_fields(1, [(b":status", b"200")], ended=True)
    assert frames(end.take_output()) == []


def test_a_peers_table_is_never_larger_than_ours() -> None:
    """SETTINGS_HEADER_TABLE_SIZE is permission, not an order: its memory would be ours."""
    end = server()
    end.feed(wire.write_settings([(wire.HEADER_TABLE_SIZE, 2**32 - 1)]))
    assert end._encoder.header_table_size == 4096
    end.feed(wire.write_settings([(wire.HEADER_TABLE_SIZE, 0)]))
    assert end._encoder.header_table_size == 0


def test_settings_and_ping_are_acknowledged() -> None:
    """With the same bytes, once."""
    end = server()
    events = end.feed(
        wire.write_settings([(wire.MAX_CONCURRENT_STREAMS, 7)]) + wire.write_frame(wire.PING, 0, 0, b"12345678")
    )
    assert events == [SettingsChanged(7)]
    assert frames(end.take_output()) == [(wire.SETTINGS, 1, 0, b""), (wire.PING, 1, 0, b"12345678")]


def test_unknown_frames_and_priority_are_read_over() -> None:
    """RFC 9113 5.5."""
    end = server()
    assert end.feed(wire.write_frame(0xEE, 0xFF, 9, b"?") + wire.write_frame(wire.PRIORITY, 0, 9, bytes(5))) == []


def test_a_server_never_pushes_nor_asks_for_it() -> None:
    """A client of ours takes no promise."""
    end = client()
    assert broken(end.feed(wire.write_settings([(wire.ENABLE_PUSH, 1)]))) == wire.PROTOCOL_ERROR


def test_a_client_gives_the_connections_window_back_at_once() -> None:
    """A guest that does not read never keeps others of the same upstream waiting; its own stream's window stays."""
    end, peer = client(stream_window=40000, connection_window=65535), Peer()
    for _ in range(2):
        end.send_fields(end.open_stream("GET"), get(), ended=True)
    end.take_output()
    answer = [(b":status", b"200")]
    end.feed(peer.headers(1, answer, ended=False) + b"".join(peer.data(1, bytes(10000)) for _ in range(4)))
    updates = [stream for kind, _, stream, _ in frames(end.take_output()) if kind == wire.WINDOW_UPDATE]
    assert updates == [0]
    events = end.feed(peer.headers(3, answer, ended=False) + b"".join(peer.data(3, bytes(10000)) for _ in range(4)))
    assert kinds(events)[-1] == "StreamData"


@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_any_split_gives_the_same_events(size: int) -> None:
    """Bytes may come as they like."""
    peer = Peer()
    data = OPENING + peer.headers(1, [*get(method="POST"), (b"content-length", b"3")], ended=False)
    data += peer.data(1, b"abc", ended=True) + peer.headers(3, [*get(), (b"X", b"1")])
    data += wire.write_frame(wire.PING, 0, 0, bytes(8)) + peer.data(9, b"x")
    whole = Http2Connection(server=True, clock=still)
    cut = Http2Connection(server=True, clock=still)
    expected = whole.feed(data)
    found: list[Event] = []
    for place in range(0, len(data), size):
        found += cut.feed(data[place : place + size])
    assert [str(event) for event in found] == [str(event) for event in expected]
    assert cut.take_output() == whole.take_output()
