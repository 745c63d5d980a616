"""The sending half: no more leaves than windows permit, in turns, and what was consumed opens the peer's windows."""

from __future__ import annotations

from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2_events import Event, StreamData, StreamMalformed
from seamgate.protocol.http2_sending import FULL_BYTES
from support.http2 import Peer, frames, get, server


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_body_and_end_share_a_frame() -> None:
    """A short answer is two frames: HEADERS, and DATA with END_STREAM."""
    end = server()
    end.feed(Peer().headers(1, get()))
    end.send_fields(1, [(b":status", b"200")], ended=False)
    end.send_data(1, b"x")
    end.send_end(1)
    assert [(kind, flags & 1) for kind, flags, *_ in frames(end.take_output())] == [(wire.HEADERS, 0), (wire.DATA, 1)]


def test_windows_hold_a_body_back_and_let_it_out_again() -> None:
    """No more leaves than both windows permit, trailers last; `take_drained` tells when there is room again."""
    end = server()
    end.feed(wire.write_settings([(wire.INITIAL_WINDOW_SIZE, 10)]) + Peer().headers(1, get()))
    end.send_fields(1, [(b":status", b"200")], ended=False)
    end.send_data(1, bytes(FULL_BYTES + 1))
    end.send_end(1, ((b"a", b"1"),))
    assert end.is_full(1)
    sent = [payload for kind, _, _, payload in frames(end.take_output()) if kind == wire.DATA]
    assert sum(map(len, sent)) == 10 and not end.take_drained()
    end.feed(wire.write_word(wire.WINDOW_UPDATE, 1, 1 << 20))
    sent = [payload for kind, _, _, payload in frames(end.take_output()) if kind == wire.DATA]
    assert sum(map(len, sent)) == wire.DEFAULT_WINDOW - 10, "the connection's window"
    assert end.take_drained() == [1] and not end.is_full(1)
    end.feed(wire.write_word(wire.WINDOW_UPDATE, 0, 1000))
    assert [kind for kind, *_ in frames(end.take_output())] == [wire.DATA, wire.HEADERS]


def test_a_window_made_smaller_may_be_negative() -> None:
    """RFC 9113 6.9.2: nothing leaves until it is open again."""
    end = server()
    end.feed(Peer().headers(1, get()))
    end.send_fields(1, [(b":status", b"200")], ended=False)
    end.send_data(1, bytes(100))
    end.take_output()
    end.feed(wire.write_settings([(wire.INITIAL_WINDOW_SIZE, 50)]))
    end.send_data(1, bytes(10))
    assert wire.DATA not in [kind for kind, *_ in frames(end.take_output())]
    end.feed(wire.write_word(wire.WINDOW_UPDATE, 1, 51))
    data = [payload for kind, _, _, payload in frames(end.take_output()) if kind == wire.DATA]
    assert data == [b"\x00"]


def test_streams_take_turns() -> None:
    """A long body does not keep a short one waiting."""
    end, peer = server(), Peer()
    end.feed(peer.headers(1, get()) + peer.headers(3, get()))
    for number, size in ((1, 60000), (3, 100)):
        end.send_fields(number, [(b":status", b"200")], ended=False)
        end.send_data(number, bytes(size))
        end.send_end(number)
    order = [stream for kind, _, stream, _ in frames(end.take_output()) if kind == wire.DATA]
    assert order[:3] == [1, 3, 1]


def test_a_window_opens_once_its_bytes_are_consumed() -> None:
    """A server holds its guest to what it has passed on, padding excepted."""
    end, peer = server(stream_window=100, connection_window=1 << 20), Peer()
    end.feed(peer.headers(1, get(method="POST"), ended=False))
    padded = wire.write_frame(wire.DATA, wire.PADDED, 1, b"\x05" + b"x" * 54 + bytes(5))
    assert end.feed(padded) == [StreamData(1, b"x" * 54)]
    assert end.take_output() == b""
    end.consumed(1, 54)
    assert frames(end.take_output()) == [(wire.WINDOW_UPDATE, 0, 1, b"\x00\x00\x00\x3c")]
    assert isinstance(end.feed(peer.data(1, bytes(101)))[0], StreamMalformed)


def test_the_connection_window_survives_streams_that_end_unread() -> None:
    """What a closed stream had taken of it is given back, so that no number of them can close it for ever."""
    end, peer = server(connection_window=65535), Peer()
    for turn in range(20):
        number = 2 * turn + 1
        events = end.feed(peer.headers(number, get(method="POST"), ended=False) + peer.data(number, bytes(16000)))
        assert kinds(events) == ["StreamHead", "StreamData"]
        end.send_fields(number, [(b":status", b"403")], ended=True)
        end.finish(number)
    assert end.stream_count == 0


def test_what_is_said_of_a_stream_that_is_gone_is_ignored() -> None:
    """It may have gone while it was being said."""
    end = server()
    end.feed(Peer().headers(1, get()))
    assert end.reset(1, wire.CANCEL) and not end.reset(1, wire.CANCEL)
    end.send_fields(1, [(b":status", b"200")], ended=False)
    end.send_data(1, b"x")
    end.send_end(1)
    end.finish(1)
    end.consumed(1, 5)
    assert [kind for kind, *_ in frames(end.take_output())] == [wire.RST_STREAM]
