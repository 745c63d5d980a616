"""The sending half of one end of an HTTP/2 connection: streams, what waits for windows, what goes out. Sans-I/O.

The base of `protocol.http2.Http2Connection`, which adds the reading half. Heads go out at once, bodies as both windows
permit, a frame of each stream in turn; what is said about a stream that is gone is ignored.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hpack import Encoder

from seamgate.flow import Headers
from seamgate.protocol import http2_frames as wire
from seamgate.protocol.http2_fields import Fields, is_unindexed
from seamgate.protocol.http2_guard import Guard
from seamgate.protocol.pieces import hold_piece

FULL_BYTES: Final = 65536
"""A stream with so much queued takes no more, until only `LOW_BYTES` are left."""
LOW_BYTES: Final = 16384
_REMEMBERED_RESETS: Final = 1024
_MORE, _WAITS, _DONE = 0, 1, 2


class Stream:
    """One stream. `expected` is the body's length, -1 if not known; `ignored` once nothing more of it is wanted."""

    __slots__ = (
        "done", "end", "expected", "head_in", "id", "ignored", "local_open", "method", "offset", "queue",
        "queued_bytes", "received", "remote_open", "trailers", "unconsumed", "unreturned", "window_in", "window_out",
    )  # fmt: skip

    def __init__(self, number: int, window_in: int, window_out: int, method: str) -> None:
        self.id = number
        self.method = method
        self.remote_open = True
        self.local_open = True
        self.head_in = False
        self.ignored = False
        self.done = False
        self.expected = -1
        self.received = 0
        self.unconsumed = 0
        self.unreturned = 0
        self.window_in = window_in
        self.window_out = window_out
        self.queue: deque[bytes] = deque()
        self.offset = 0
        self.queued_bytes = 0
        self.end = False
        self.trailers: Headers = ()


class Http2Sender:
    """See the module. State: `_ready` holds the streams that have something queued and a window for it."""

    def __init__(self, *, server: bool, guard: Guard, stream_window: int, connection_window: int) -> None:
        self.server = server
        self.going_away = False
        """Whether we said that no new stream is taken."""
        self._warned = False
        self._guard = guard
        self._stream_window = stream_window
        self._connection_window = connection_window
        self._encoder = Encoder()
        self._streams: dict[int, Stream] = {}
        self._ready: dict[int, Stream] = {}
        self._full: set[int] = set()
        self._drained: list[int] = []
        self._resets: dict[int, None] = {}
        self._out: list[bytes] = []
        self._last_in = 0
        self._window_in = connection_window
        self._unreturned = 0
        self._window_out = wire.DEFAULT_WINDOW
        self._initial_out = wire.DEFAULT_WINDOW

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def stream_count(self) -> int:
        """How many streams are not closed."""
        return len(self._streams)

    @property
    def output_bytes(self) -> int:
        """How much waits to be taken, besides what is queued in streams."""
        return sum(map(len, self._out))

    def is_open(self, number: int) -> bool:
        """Whether something can still be sent on a stream."""
        stream = self._streams.get(number)
        return stream is not None and stream.local_open and not stream.end

    def is_full(self, number: int) -> bool:
        """Whether a stream takes no more for now."""
        return number in self._full

    def queued_bytes(self, number: int) -> int:
        """How much of a stream waits for windows."""
        stream = self._streams.get(number)
        return 0 if stream is None else stream.queued_bytes

    # -- messages ------------------------------------------------------------------------------------------------------

    def send_fields(self, number: int, fields: Fields, *, ended: bool) -> None:
        """Send a head, or a 1xx response; `ended`: and nothing follows it."""
        stream = self._streams.get(number)
        if stream is None or not stream.local_open or stream.end:
            return
        self._out.append(wire.write_headers(number, self._encode(fields), ended=ended))
        if ended:
            stream.end = True
            stream.local_open = False
            self._close_if_done(stream)

    def _encode(self, fields: Fields) -> bytes:
        return self._encoder.encode([(name, value, is_unindexed(name)) for name, value in fields], huffman=False)

    def send_data(self, number: int, data: bytes) -> None:
        """Queue a piece of a body. Ask `is_full` afterwards."""
        stream = self._streams.get(number)
        if stream is None or not data or not stream.local_open or stream.end:
            return
        hold_piece(stream.queue, data)
        stream.queued_bytes += len(data)
        self._ready[number] = stream
        if stream.queued_bytes > FULL_BYTES:
            self._full.add(number)

    def send_end(self, number: int, trailers: Headers = ()) -> None:
        """End a body, behind what is queued."""
        stream = self._streams.get(number)
        if stream is None or not stream.local_open or stream.end:
            return
        stream.end = True
        stream.trailers = trailers
        if not stream.queue:
            self._end_local(stream)

    def finish(self, number: int) -> None:
        """Nothing more is wanted of a stream: once what is queued has gone out, it is over in both directions."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.ignored = True
        stream.done = True
        self._return_unconsumed(stream)
        self._close_if_done(stream)

    def ping(self) -> None:
        """Ask the peer for a sign of life. Anything that comes is one."""
        self._out.append(wire.write_frame(wire.PING, 0, 0, bytes(8)))

    def reset(self, number: int, code: int) -> bool:
        """Give a stream up at once, what is queued is lost; return whether there was one."""
        stream = self._streams.get(number)
        if stream is None:
            return False
        self._send_reset(number, code)
        self._remove(stream)
        return True

    # -- windows of the peer's bodies ----------------------------------------------------------------------------------

    def consumed(self, number: int, size_bytes: int) -> None:
        """So much of a stream's body has gone on: the peer may send as much again."""
        stream = self._streams.get(number)
        if stream is None:
            return  # what it had taken of the connection's window was given back when it closed
        stream.unconsumed -= size_bytes
        if self.server:
            self._return(size_bytes)
        stream.unreturned += size_bytes
        if stream.remote_open and stream.unreturned * 2 >= self._stream_window:
            self._out.append(wire.write_word(wire.WINDOW_UPDATE, number, stream.unreturned))
            stream.window_in += stream.unreturned
            stream.unreturned = 0

    def _return(self, size_bytes: int) -> None:
        """Open the connection's window again."""
        self._unreturned += size_bytes
        if self._unreturned * 2 >= self._connection_window:
            self._out.append(wire.write_word(wire.WINDOW_UPDATE, 0, self._unreturned))
            self._window_in += self._unreturned
            self._unreturned = 0

    def _return_unconsumed(self, stream: Stream) -> None:
        if self.server and stream.unconsumed:
            self._return(stream.unconsumed)
        stream.unconsumed = 0

    # -- streams and their ends ----------------------------------------------------------------------------------------

    def warn(self) -> None:
        """Say that soon no new stream will be taken: those that are on their way are (RFC 9113 6.8)."""
        if not (self._warned or self.going_away):
            self._warned = True
            self._out.append(wire.write_goaway(wire.MOST_STREAM, wire.NO_ERROR))

    def go_away(self, code: int = wire.NO_ERROR) -> None:
        """Say that no new stream is taken; those that are open go on."""
        if not self.going_away:
            self.going_away = True
            if self._ready:
                self._pump()  # what may go out goes before: some peers read nothing after a GOAWAY
            self._out.append(wire.write_goaway(self._last_in, code))

    def _add(self, number: int, method: str) -> Stream:
        stream = self._streams[number] = Stream(number, self._stream_window, self._initial_out, method)
        return stream

    def _close_if_done(self, stream: Stream) -> None:
        if stream.local_open:
            return
        if not stream.remote_open:
            self._remove(stream)
        elif stream.done:
            # The answer is whole; what is left of the request is not wanted (RFC 9113 8.1).
            self._send_reset(stream.id, wire.NO_ERROR)
            self._remove(stream)

    def _send_reset(self, number: int, code: int) -> None:
        self._out.append(wire.write_word(wire.RST_STREAM, number, code))
        self._resets[number] = None
        if len(self._resets) > _REMEMBERED_RESETS:
            del self._resets[next(iter(self._resets))]

    def _remove(self, stream: Stream) -> None:
        number = stream.id
        self._streams.pop(number, None)
        self._ready.pop(number, None)
        self._full.discard(number)
        if self.server and stream.unconsumed:
            self._return(stream.unconsumed)
            stream.unconsumed = 0

    # -- output --------------------------------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """Return all that may be sent now."""
        if self._ready:
            self._pump()
        self._guard.answers = 0
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def take_drained(self) -> list[int]:
        """Return the streams that were full and take more again."""
        drained, self._drained = self._drained, []
        return drained

    def _pump(self) -> None:
        """Let out of the queues what the windows permit, one frame of each stream in turn."""
        waiting: list[Stream] = []
        while self._ready:
            number = next(iter(self._ready))
            stream = self._ready.pop(number)
            state = self._pump_frame(stream)
            if state == _MORE:
                self._ready[number] = stream
            elif state == _WAITS:
                waiting.append(stream)
        for stream in waiting:
            self._ready[stream.id] = stream

    def _pump_frame(self, stream: Stream) -> int:
        size = min(wire.FRAME_BYTES, stream.window_out, self._window_out)
        if size <= 0:
            return _WAITS if stream.window_out > 0 else _DONE
        data = _take(stream, size)
        stream.window_out -= len(data)
        self._window_out -= len(data)
        self._guard.sent(len(data))
        if stream.id in self._full and stream.queued_bytes <= LOW_BYTES:
            self._full.discard(stream.id)
            self._drained.append(stream.id)
        last = stream.end and not stream.queue
        with_end = last and not stream.trailers
        self._out.append(wire.write_frame(wire.DATA, wire.END_STREAM if with_end else 0, stream.id, data))
        if with_end:
            stream.local_open = False
            self._close_if_done(stream)
        elif last:
            self._end_local(stream)
        return _MORE if stream.queue else _DONE

    def _end_local(self, stream: Stream) -> None:
        """Send the end of a stream with nothing queued."""
        if stream.trailers:
            self._out.append(wire.write_headers(stream.id, self._encode([*stream.trailers]), ended=True))
        else:
            self._out.append(wire.write_frame(wire.DATA, wire.END_STREAM, stream.id))
        stream.local_open = False
        self._close_if_done(stream)


def _take(stream: Stream, size: int) -> bytes:
    """Take up to so many bytes off a stream's queue, small pieces together."""
    pieces: list[bytes] = []
    left = size
    queue = stream.queue
    while left and queue:
        first = queue[0]
        available = len(first) - stream.offset
        if available <= left:
            pieces.append(first[stream.offset :] if stream.offset else first)
            queue.popleft()
            stream.offset = 0
            left -= available
        else:
            pieces.append(first[stream.offset : stream.offset + left])
            stream.offset += left
            left = 0
    stream.queued_bytes -= size - left
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
