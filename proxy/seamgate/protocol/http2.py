"""One end of one HTTP/2 connection: bytes in, events out, messages in, bytes out. Sans-I/O.

Used twice: by the guest's connection (server) and by the upstream's session (client). It keeps the states of streams,
both directions' windows and the queues of what the peer's windows don't let out yet.

    start() ... feed(data) -> events ... send_head/send_data/send_end(stream) ... take_output() -> bytes

What one message does wrong ends its stream only (`StreamMalformed`); what breaks framing, compression or a budget of
`protocol.http2_guard` ends the connection (`ConnectionBroken`, with GOAWAY in the output). Whatever is said about a
stream that is gone is ignored, because it may have gone while it was being said.

Why framing of our own, over the `hpack` library: the `h2` library ends a connection for what concerns one stream
(lengths, too many streams), takes nothing after a GOAWAY although streams below it go on (RFC 9113 6.8), and counts
its streams at every request. It is the oracle: a property test holds both to the same streams and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from seamgate.errors import GuestProtocolError, ProtocolError, Reason, UpstreamProtocolError
from seamgate.protocol import http2_frames as wire
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
from seamgate.protocol.http2_fields import (
    Fields,
    parse_late_fields,
    parse_request,
    parse_response,
)
from seamgate.protocol.http2_frames import ConnectionFault, FrameReader
from seamgate.protocol.http2_guard import Guard, check_block
from seamgate.protocol.http2_sending import Http2Sender, Stream
from seamgate.protocol.work import FRAME, HEAD, HEAD_SHIFT, SHIFT, UNBOUNDED, long_head_units

MAX_LIST_BYTES: Final = 65536
"""A decoded field list, counted as in RFC 9113 6.5.2: the same as the longest HTTP/1.1 head."""
TABLE_BYTES: Final = 4096
"""Of both compression tables. A peer may ask for more and does not get it: it would be our memory."""


class Http2Connection(Http2Sender):
    """See the module.

    Args:
        server: whether the peer is the client.
        clock: monotonic seconds, for the budgets.
        most_streams: of the peer's, at once (server).
        stream_window: bytes of one stream's body that the peer may send ahead of `consumed`.
        connection_window: the same for all streams together. A server holds its guest to it; a client gives it back
            at once, so that a guest that does not read never keeps others of the same upstream waiting.
    """

    def __init__(
        self,
        *,
        server: bool,
        clock: Callable[[], float],
        most_streams: int = 128,
        stream_window: int = 65535,
        connection_window: int = 1 << 20,
    ) -> None:
        super().__init__(
            server=server, guard=Guard(clock), stream_window=stream_window, connection_window=connection_window
        )
        self.broken = False
        self.left = UNBOUNDED
        """Units of work (`protocol.work`) until `feed` stops, though there may be more frames; `feed(b"")` goes on."""
        self.whole_total = 0
        """Frames that came whole, those of an unfinished field block not counted."""
        self.peer_most_streams = 100
        """Before the peer says otherwise (RFC 9113 6.5.2 has no limit then; this is what all clients assume)."""
        self.peer_connects = False
        """Whether the peer takes extended CONNECT (RFC 8441)."""
        self._error: type[ProtocolError] = GuestProtocolError if server else UpstreamProtocolError
        self._most_streams = most_streams
        self._reader = FrameReader(wire.PREFACE if server else b"")
        self._decoder = Decoder(max_header_list_size=MAX_LIST_BYTES)
        self._events: list[Event] = []
        self._settings_seen = False
        self._next_out = 1
        self._block_stream = 0
        self._block_flags = 0
        self._block: list[bytes] = []
        self._block_bytes = 0

    def __repr__(self) -> str:
        return f"<Http2Connection {'server' if self.server else 'client'} streams={len(self._streams)}>"

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def between_frames(self) -> bool:
        """Whether no frame and no field block is half here, and the preface is."""
        return self._reader.started and not self._reader.unread_bytes and not self._block_stream

    @property
    def in_head(self) -> bool:
        """Whether what is half here is, or may be, anything but a piece of a body."""
        return not self._reader.started or bool(self._block_stream) or self._reader.half_kind != wire.DATA

    @property
    def exhausted(self) -> bool:
        """Whether there are no more stream numbers (client)."""
        return self._next_out > wire.MAX_WINDOW

    @property
    def last_peer_stream(self) -> int:
        """The highest stream that the peer opened."""
        return self._last_in

    # -- beginning and end -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue what has to come first."""
        settings = [
            (wire.HEADER_TABLE_SIZE, TABLE_BYTES),
            (wire.INITIAL_WINDOW_SIZE, self._stream_window),
            (wire.MAX_HEADER_LIST_SIZE, MAX_LIST_BYTES),
        ]
        if self.server:
            settings += [(wire.MAX_CONCURRENT_STREAMS, self._most_streams), (wire.ENABLE_CONNECT_PROTOCOL, 1)]
        else:
            settings.append((wire.ENABLE_PUSH, 0))
            self._out.append(wire.PREFACE)
        self._out.append(wire.write_settings(settings))
        more = self._connection_window - wire.DEFAULT_WINDOW
        if more > 0:
            self._out.append(wire.write_word(wire.WINDOW_UPDATE, 0, more))

    # -- reading -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes from the peer and return what they say, in order, as far as there is `left`."""
        events: list[Event] = []
        if self.broken:
            return events
        self._events = events
        try:
            if data:
                self._reader.feed(data)
            while self.left > 0:
                frame = self._reader.next_frame()
                if frame is None:
                    break
                self.left -= FRAME + (len(frame[3]) >> SHIFT)
                self._handle(frame[0], frame[1], frame[2], frame[3])
                self.whole_total += not self._block_stream
        except ConnectionFault as fault:
            self._break(fault.code, self._error(f"HTTP/2: {fault.message}"))
        except OversizedHeaderListError:
            reason = Reason.HEADERS_TOO_LARGE if self.server else Reason.UPSTREAM_PROTOCOL
            message = f"a field list is longer than {MAX_LIST_BYTES} bytes"
            self._break(wire.ENHANCE_YOUR_CALM, self._error(message, reason=reason))
        except HPACKError:
            self._break(wire.COMPRESSION_ERROR, self._error("HTTP/2: a field block can't be decompressed"))
        return events

    def _break(self, code: int, error: ProtocolError) -> None:
        self.broken = self.going_away = True
        self._out.append(wire.write_goaway(self._last_in, code))
        self._streams.clear()
        self._ready.clear()
        self._full.clear()
        self._events.append(ConnectionBroken(error, code))

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block_stream and (kind != wire.CONTINUATION or number != self._block_stream):
            raise ConnectionFault(wire.PROTOCOL_ERROR, "a field block is interrupted by another frame")
        if not self._settings_seen and (kind != wire.SETTINGS or flags & wire.ACK):
            raise ConnectionFault(wire.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == wire.DATA:
            self._on_data(flags, number, payload)
        elif kind == wire.HEADERS:
            self._on_headers(flags, number, wire.header_fragment(flags, payload, number))
        elif kind == wire.WINDOW_UPDATE:
            self._on_window_update(number, payload)
        elif kind == wire.SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == wire.PING:
            self._on_ping(flags, number, payload)
        elif kind == wire.RST_STREAM:
            self._on_reset(number, payload)
        elif kind == wire.CONTINUATION:
            self._on_continuation(flags, number, payload)
        elif kind == wire.GOAWAY:
            self._on_goaway(number, payload)
        elif kind == wire.PUSH_PROMISE:
            raise ConnectionFault(wire.PROTOCOL_ERROR, "PUSH_PROMISE was never agreed to")
        else:
            if kind == wire.PRIORITY:
                _check_priority(number, payload)
            self._guard.controls.spend()

    # -- field blocks ------------------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, number: int, fragment: bytes) -> None:
        if number == 0 or not number & 1:
            raise ConnectionFault(wire.PROTOCOL_ERROR, "HEADERS on a stream that clients don't open")
        if flags & wire.END_HEADERS:
            self._on_block(flags, number, fragment)
            return
        self._block_stream, self._block_flags = number, flags
        self._block, self._block_bytes = [fragment], len(fragment)

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if not self._block_stream:
            raise ConnectionFault(wire.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        self._block_bytes += len(payload)
        check_block(len(self._block), self._block_bytes)
        if flags & wire.END_HEADERS:
            block, self._block, self._block_stream = b"".join(self._block), [], 0
            self._on_block(self._block_flags, number, block)

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        """A whole field block: decoded in any case, because the next one builds on its table."""
        decoded = self._decoder.decode(block, raw=True)
        fields: Fields = [(bytes(name), bytes(value)) for name, value in decoded]
        # What came may be a few references to a long value: what they stand for is what costs.
        self.left -= HEAD - FRAME
        if sum([len(value) for _, value in fields]) >> HEAD_SHIFT:
            self.left -= long_head_units(b"".join([value for _, value in fields]))
        ended = bool(flags & wire.END_STREAM)
        stream = self._streams.get(number)
        if stream is None:
            if self._is_idle(number) and self.server:
                self._open_by_peer(number, fields, ended)
            else:
                self._on_stray(number, "HEADERS")
        elif not stream.remote_open:
            self._fault(stream, wire.STREAM_CLOSED, "HEADERS after the end of the stream")
        elif stream.ignored:
            self._ended_unread(stream, ended)
        elif stream.head_in:
            self._on_trailers(stream, fields, ended)
        else:
            self._on_response(stream, fields, ended)

    def _open_by_peer(self, number: int, fields: Fields, ended: bool) -> None:
        self._last_in = number
        if self.going_away:
            return
        if len(self._streams) >= self._most_streams:
            self._guard.resets.spend()
            self._send_reset(number, wire.REFUSED_STREAM)
            return
        stream = self._add(number, "")
        stream.head_in = True
        stream.remote_open = not ended
        try:
            head = parse_request(fields, ended=ended)
        except ProtocolError as error:
            self._malformed(stream, error)
            return
        stream.method = head.method
        stream.expected = head.body
        self._events.append(StreamHead(number, head, ended))

    def _on_response(self, stream: Stream, fields: Fields, ended: bool) -> None:
        try:
            head = parse_response(fields, stream.method, ended=ended)
            if head.status < 200 and ended:
                raise UpstreamProtocolError("the upstream ends with a 1xx response")
        except ProtocolError as error:
            self._malformed(stream, error)
            return
        if head.status < 200:
            self._guard.controls.spend()
        else:
            stream.head_in = True
            stream.expected = head.body
        self._events.append(StreamHead(stream.id, head, ended))
        if ended:
            self._remote_ended(stream)

    def _on_trailers(self, stream: Stream, fields: Fields, ended: bool) -> None:
        try:
            if not ended:
                raise self._error("there are fields within the body")
            trailers = parse_late_fields(fields, self._error)
            self._check_length(stream, ended=True)
        except ProtocolError as error:
            stream.remote_open = not ended
            self._malformed(stream, error)
            return
        self._events.append(StreamEnd(stream.id, trailers))
        self._remote_ended(stream)

    # -- bodies ------------------------------------------------------------------------------------------------------

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        data = wire.unpadded(flags, payload)
        self._window_in -= size
        if self._window_in < 0:
            raise ConnectionFault(wire.FLOW_CONTROL_ERROR, "more DATA than the connection's window permits")
        ended = bool(flags & wire.END_STREAM)
        if not data and not ended:
            self._guard.controls.spend()
        stream = self._streams.get(number)
        if stream is None or not stream.remote_open:
            self._return(size)
            if stream is None:
                self._on_stray(number, "DATA")
            else:
                self._fault(stream, wire.STREAM_CLOSED, "DATA after the end of the stream")
            return
        stream.window_in -= size
        if stream.window_in < 0:
            self._return(size)
            self._fault(stream, wire.FLOW_CONTROL_ERROR, "more DATA than the stream's window permits")
            return
        if stream.ignored:
            self._return(size)
            self._ended_unread(stream, ended)
            return
        stream.received += len(data)
        try:
            if not stream.head_in:
                raise self._error("there is DATA before the head")
            self._check_length(stream, ended=ended)
        except ProtocolError as error:
            self._return(size)
            stream.remote_open = not ended
            self._malformed(stream, error)
            return
        self._account(stream, len(data), size)
        if data:
            self._events.append(StreamData(number, data))
        if ended:
            self._events.append(StreamEnd(number, ()))
            self._remote_ended(stream)

    def _check_length(self, stream: Stream, *, ended: bool) -> None:
        expected = stream.expected
        if expected >= 0 and (stream.received > expected or (ended and stream.received != expected)):
            raise self._error("the body is not as long as its content-length says")

    def _account(self, stream: Stream, data_bytes: int, size: int) -> None:
        """Note what has to be said to be consumed before the peer may send more."""
        stream.unconsumed += data_bytes
        stream.unreturned += size - data_bytes
        self._return(size if not self.server else size - data_bytes)

    # -- control frames ----------------------------------------------------------------------------------------------

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(wire.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._guard.controls.spend(1.0 + len(payload) / 64)
        if flags & wire.ACK:
            if payload:
                raise ConnectionFault(wire.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with settings in it")
            return
        self._settings_seen = True
        for key, value in wire.parse_settings(payload):
            if key == wire.INITIAL_WINDOW_SIZE:
                self._set_initial_window(value)
            elif key == wire.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, TABLE_BYTES)
            elif key == wire.MAX_CONCURRENT_STREAMS:
                self.peer_most_streams = value
            elif key == wire.ENABLE_PUSH and value and not self.server:
                raise ConnectionFault(wire.PROTOCOL_ERROR, "a server may not enable push")
            elif key == wire.ENABLE_CONNECT_PROTOCOL:
                if self.peer_connects and not value:
                    raise ConnectionFault(wire.PROTOCOL_ERROR, "extended CONNECT can't be taken back (RFC 8441 3)")
                self.peer_connects = bool(value)
        self._guard.answer()
        self._out.append(wire.write_frame(wire.SETTINGS, wire.ACK, 0))
        self._events.append(SettingsChanged(self.peer_most_streams))

    def _set_initial_window(self, value: int) -> None:
        change = value - self._initial_out
        self._initial_out = value
        for stream in self._streams.values():
            stream.window_out += change
            if stream.window_out > wire.MAX_WINDOW:
                raise ConnectionFault(wire.FLOW_CONTROL_ERROR, "a window is too large")
            if stream.queue:
                self._ready[stream.id] = stream

    def _on_window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(wire.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame has a wrong length")
        self._guard.windows.spend()
        more = wire.word(payload) & wire.MAX_WINDOW
        if number == 0:
            self._window_out += more
            if not more or self._window_out > wire.MAX_WINDOW:
                code = wire.FLOW_CONTROL_ERROR if more else wire.PROTOCOL_ERROR
                raise ConnectionFault(code, "the connection's window is opened by nothing, or too far")
            return
        stream = self._streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(wire.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        stream.window_out += more
        if not more or stream.window_out > wire.MAX_WINDOW:
            code = wire.FLOW_CONTROL_ERROR if more else wire.PROTOCOL_ERROR
            self._fault(stream, code, "a stream's window is opened by nothing, or too far")
        elif stream.queue:
            self._ready[number] = stream

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(wire.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(wire.FRAME_SIZE_ERROR, "a PING frame has a wrong length")
        self._guard.controls.spend()
        if not flags & wire.ACK:
            self._guard.answer()
            self._out.append(wire.write_frame(wire.PING, wire.ACK, 0, payload))

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(wire.FRAME_SIZE_ERROR, "a RST_STREAM frame has a wrong length")
        if number == 0 or self._is_idle(number):
            raise ConnectionFault(wire.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        self._guard.resets.spend()
        stream = self._streams.get(number)
        if stream is not None:
            self._remove(stream)
            self._events.append(StreamReset(number, wire.word(payload)))

    def _on_goaway(self, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(wire.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(wire.FRAME_SIZE_ERROR, "a GOAWAY frame is too short")
        self._guard.controls.spend()
        self._events.append(GoingAway(wire.word(payload) & wire.MAX_WINDOW, wire.word(payload[4:])))

    # -- streams -----------------------------------------------------------------------------------------------------

    def _is_idle(self, number: int) -> bool:
        """Whether a stream was never opened, by whoever opens streams of its parity."""
        if self.server:
            return bool(number & 1) is False or number > self._last_in
        return bool(number & 1) is False or number >= self._next_out

    def _on_stray(self, number: int, what: str) -> None:
        """A frame for a stream that is not open: late, if we reset it; else the peer has lost count."""
        if number in self._resets or (self.going_away and self.server):
            if what == "HEADERS":  # one may be late; of bodies, as many as were on their way
                self._guard.controls.spend()
            return
        if number == 0 or self._is_idle(number):
            raise ConnectionFault(wire.PROTOCOL_ERROR, f"{what} on an idle stream")
        raise ConnectionFault(wire.STREAM_CLOSED, f"{what} on a closed stream")

    def _malformed(self, stream: Stream, error: ProtocolError) -> None:
        """What the peer says on this stream is not looked at any more; whoever is above ends it."""
        self._guard.resets.spend()
        stream.ignored = True
        self._events.append(StreamMalformed(stream.id, error))

    def _fault(self, stream: Stream, code: int, message: str) -> None:
        """A stream error (RFC 9113 5.4.2): reset, and told."""
        self._guard.resets.spend()
        self._send_reset(stream.id, code)
        self._remove(stream)
        self._events.append(StreamMalformed(stream.id, self._error(f"HTTP/2: {message}")))

    def _remote_ended(self, stream: Stream) -> None:
        stream.remote_open = False
        self._close_if_done(stream)

    def _ended_unread(self, stream: Stream, ended: bool) -> None:
        """The end of a message that nobody wants any more."""
        if ended:
            self._remote_ended(stream)

    # -- writing -----------------------------------------------------------------------------------------------------

    def open_stream(self, method: str) -> int:
        """Open a stream for a request (client); its head has to be sent before another stream is opened."""
        number = self._next_out
        self._next_out += 2
        self._add(number, method)
        return number


def _check_priority(number: int, payload: bytes) -> None:
    """PRIORITY says nothing any more (RFC 9113 5.3.2), but has a form."""
    if len(payload) != 5:
        raise ConnectionFault(wire.FRAME_SIZE_ERROR, "a PRIORITY frame has a wrong length")
    if number == 0 or wire.word(payload) & wire.MAX_WINDOW == number:
        raise ConnectionFault(wire.PROTOCOL_ERROR, "PRIORITY on stream 0, or of a stream on itself")
