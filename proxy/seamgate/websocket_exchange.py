"""An exchange that becomes a WebSocket: up to the 101 as any other, then messages both ways until both have closed.

    judge ... send as in `seamgate.exchange` and `seamgate.websocket_opening`
    101 -> check, inspect, judge -> guest;  frames -> message -> inspect -> swap -> frames, either way

Called by a guest's connection, of HTTP/1.1 or a stream of HTTP/2, and by the session; where it is HTTP/2, 200 stands
for 101. A denial before that is an HTTP response; after it, it is a Close with a code of its own (1008 for what is
denied here) and the reason code and rule in its reason. The one terminal record is written when it is over, with what
went through.

State: `_gate` is set once it is a WebSocket; `_guest_closed` and `_upstream_closed` say who has sent a Close;
`_up_waits` and `_down_waits` while frames of one side wait for a turn of the guest's, and that side is not read.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

import msgspec

from seamgate.audit.record import AuditBytes, AuditKind, AuditRecord, AuditWebSocket, Outcome
from seamgate.errors import (
    Blame,
    GuestProtocolError,
    Reason,
    SeamgateError,
    UpstreamError,
    UpstreamProtocolError,
)
from seamgate.flow import Direction, Headers, Request
from seamgate.holding import Holding
from seamgate.protocol.heads import ResponseHead
from seamgate.protocol.websocket import (
    Close,
    CloseCode,
    Deflate,
    Event,
    FrameError,
    FrameReader,
    FrameWriter,
    Message,
    Ping,
)
from seamgate.protocol.websocket_handshake import Offer, check_accept, response_headers
from seamgate.refusing import STOPPING
from seamgate.seam import Seam
from seamgate.sides import WebSocketGuest
from seamgate.stage import DONE, RESPONDING
from seamgate.turns import BUDGET
from seamgate.upstream.session import Session
from seamgate.verdict import Verdict, deny
from seamgate.websocket_messages import MessageGate
from seamgate.websocket_opening import WebSocketOpening

CLOSE_TIMEOUT_S: Final = 10.0
"""How long one side may take to answer the other's Close."""
_FLUSH_BYTES: Final = 65536
"""What is queued towards one side before it is asked whether it takes more."""
_UNCOUNTED_BYTES: Final = 65536
"""What a WebSocket may hold without that being counted: as much as a connection has in buffers anyhow."""


class WebSocketExchange(WebSocketOpening):
    """One request that asks to become a WebSocket, and what becomes of it."""

    __slots__ = (
        "_close_code", "_closing", "_down_bytes", "_down_waits", "_error_code", "_from_guest", "_from_guest_bytes",
        "_from_upstream", "_from_upstream_bytes", "_gate", "_guest_closed", "_guest_reader", "_guest_stuck",
        "_guest_writer", "_holding", "_socket", "_told_guest", "_told_upstream", "_up_bytes", "_up_waits",
        "_upstream_closed", "_upstream_reader", "_upstream_stuck", "_upstream_writer",
    )  # fmt: skip

    def __init__(self, seam: Seam, guest_side: WebSocketGuest, request: Request, *, entry: str, offer: Offer) -> None:
        super().__init__(seam, guest_side, request, entry=entry, offer=offer)
        self._socket = guest_side
        self._gate: MessageGate | None = None
        self._guest_reader = FrameReader(masked=True, deflate=None, limit_bytes=0)
        self._guest_writer = FrameWriter(masked=False, deflate=None)
        self._upstream_reader = FrameReader(masked=False, deflate=None, limit_bytes=0)
        self._upstream_writer = FrameWriter(masked=True, deflate=None)
        self._guest_closed = False
        self._upstream_closed = False
        self._told_guest = False
        self._told_upstream = False
        self._guest_stuck = False
        self._upstream_stuck = False
        self._up_waits = self._down_waits = False
        self._from_guest = self._from_upstream = 0
        self._from_guest_bytes = self._from_upstream_bytes = 0
        self._holding = Holding(seam.held, request.guest.id)
        self._up_bytes = self._down_bytes = 0
        self._close_code = 0
        self._error_code = 0
        self._closing: asyncio.TimerHandle | None = None

    def look_anew(self) -> bool:
        """Each message is looked at anew anyhow; what comes before the 101, as ever."""
        return super().look_anew() if self._gate is None else False

    def on_informational(self, head: ResponseHead) -> None:
        """A 101 makes it a WebSocket; every other 1xx is handled as ever."""
        if head.status == 101:
            self._switch(head)
        else:
            super().on_informational(head)

    def on_data(self, data: bytes) -> None:
        """Bytes of frames, over HTTP/2, or a piece of the body of another answer than 101."""
        if self._gate is not None:
            self.on_upstream_data(data)
            return
        self._active_at = monotonic()
        super().on_data(data)

    def on_end(self, trailers: Headers) -> None:
        """The end of another answer than 101; or the upstream's end of the stream that a WebSocket is on."""
        if self._gate is None:
            super().on_end(trailers)
        else:
            self.on_session_lost(UpstreamError("the upstream ended the stream", reason=Reason.UPSTREAM_CLOSED))

    def _switch(self, head: ResponseHead) -> None:
        """Check the 101, pass it on, and from then on read frames.

        Raises:
            SeamgateError: it does not answer what was asked, or a plugin failed.
        """
        session = self._session
        compress = self._offer.deflate is not None
        agreed = check_accept(head, self._key, self._protocols_sent, compress=compress)
        if self._socket.read_ahead:
            # Sent before it was agreed to: a guest that did not wait can't know what it talks to.
            self.refuse(deny("bytes came before the WebSocket was open", reason=Reason.BAD_REQUEST))
            return
        response = self._inspected(head)
        denial = self._pipeline.judge_response(self.request, response, self._facts.steps)
        if denial is not None:
            self.refuse(denial)
            return
        self._upload.forget()
        self._stage = RESPONDING
        self._facts.status = 101
        self._facts.first_byte_ms = self._facts.elapsed_ms()
        self._gate = MessageGate(
            self._seam, self._pipeline, self.request, response, self._facts.verdict, self._facts.supplies
        )
        limit_bytes = self._seam.limits.websocket_message_bytes
        self._guest_reader = FrameReader(masked=True, deflate=self._offer.deflate, limit_bytes=self._most_from_guest())
        self._guest_writer = FrameWriter(masked=False, deflate=self._offer.deflate)
        self._upstream_reader = FrameReader(masked=False, deflate=agreed.deflate, limit_bytes=limit_bytes)
        # What we send never refers to messages before, whatever the upstream's own may do.
        to_upstream = Deflate() if agreed.deflate is not None else None
        self._upstream_writer = FrameWriter(masked=True, deflate=to_upstream)
        if isinstance(session, Session):
            session.raw = self.on_upstream_data
        self._socket.upgrade(self, response_headers(response.headers, self._offer, agreed, compress=compress))

    # -- messages ----------------------------------------------------------------------------------------------------

    def on_guest_data(self, data: bytes) -> None:
        """Bytes of the guest's frames."""
        if self._stage == DONE:
            self._await_close(data)
            return
        self._active_at = monotonic()
        self._guest_reader.feed(data)
        self.guarded(self._read_guest)

    def on_upstream_data(self, data: bytes) -> None:
        """Bytes of the upstream's frames."""
        if self._stage != DONE:
            self._active_at = monotonic()
            self._upstream_reader.feed(data)
            self.guarded(self._read_upstream)

    def _read_guest(self) -> None:
        """Pass on what is whole, as long as the upstream takes it, and the guest's turn lasts."""
        if self._up_waits:
            return
        reader, share = self._guest_reader, self.share
        may = reader.left = share.allowance
        queued_bytes = 0
        while self._stage == RESPONDING and not self._upstream_stuck:
            try:
                event = reader.next_event()
            except FrameError as error:
                self._error_code = error.code
                too_large = error.code == CloseCode.TOO_LARGE
                reason = Reason.BODY_TOO_LARGE if too_large else Reason.BAD_REQUEST
                raise GuestProtocolError(error.message, reason=reason) from None
            if event is None:
                break
            queued_bytes += self._pass_up(event)
            if queued_bytes > _FLUSH_BYTES:
                queued_bytes = 0
                self.flush_upstream()
        self.flush_upstream()
        self._count()
        if self._stage == RESPONDING and share.settle(may, reader.left, self._read_guest_on):
            self._up_waits = True
            self._guest.pause_body()

    def _read_guest_on(self) -> None:
        """A later turn: go on with what waits, then with reading."""
        self._up_waits = False
        if self._stage != RESPONDING:
            return
        self.guarded(self._read_guest)
        if not (self._waits_for_turn(Direction.REQUEST) or self._upstream_stuck):
            self._guest.resume_body()

    def _waits_for_turn(self, direction: Direction) -> bool:
        """Whether one side is behind. A call, since compiled code takes what it once saw unset for unset."""
        return self._up_waits if direction is Direction.REQUEST else self._down_waits

    def _read_upstream(self) -> None:
        """Pass on what is whole, as long as the guest takes it, and its turn lasts."""
        if self._down_waits:
            return
        reader, share = self._upstream_reader, self.share
        may = reader.left = share.allowance
        queued_bytes = 0
        while self._stage == RESPONDING and not self._guest_stuck:
            try:
                event = reader.next_event()
            except FrameError as error:
                raise UpstreamProtocolError(error.message) from None
            if event is None:
                break
            queued_bytes += self._pass_down(event)
            if queued_bytes > _FLUSH_BYTES:
                queued_bytes = 0
                self._guest.flush()
        self._guest.flush()
        self._count()
        if self._stage == RESPONDING and share.settle(may, reader.left, self._read_upstream_on):
            self._down_waits = True
            if self._session is not None:
                self._session.pause_reading()

    def _read_upstream_on(self) -> None:
        """A later turn: go on with what waits, then with reading."""
        self._down_waits = False
        if self._stage != RESPONDING:
            return
        self.guarded(self._read_upstream)
        if self._session is not None and not (self._waits_for_turn(Direction.RESPONSE) or self._guest_stuck):
            self._session.resume_reading()

    def _count(self) -> None:
        """Count what waits: messages that are not whole, and what a side that takes no more has not taken.

        Raises:
            SeamgateError: it is more than may be in memory.
        """
        if self._stage != RESPONDING:
            return
        self._up_bytes = self._up_bytes if self._upstream_stuck else 0
        self._down_bytes = self._down_bytes if self._guest_stuck else 0
        held = self._guest_reader.held_bytes + self._upstream_reader.held_bytes + self._up_bytes + self._down_bytes
        if held <= _UNCOUNTED_BYTES:
            held = 0
        if held != self._holding.size_bytes:
            self._holding.say(held)

    def _pass_up(self, event: Event) -> int:
        """Pass one event of the guest on to the upstream; return how many bytes that queued."""
        gate, writer = self._gate, self._upstream_writer
        assert gate is not None
        if isinstance(event, Message):
            written = writer.message(gate.from_guest(event))
            self._from_guest += 1
            self._from_guest_bytes += len(event.data)
        elif isinstance(event, Close):
            self._guest_closed = True
            self._close_upstream(Close(event.code, gate.reason(Direction.REQUEST, event.reason)))
            return 0
        else:
            payload = gate.control(Direction.REQUEST, event.data)
            written = writer.ping(payload) if isinstance(event, Ping) else writer.pong(payload)
        if not self._told_upstream and self._session is not None:  # after a Close nothing is sent
            self._session.send_data(written)
            self._up_bytes += len(written)
        return len(written)

    def _pass_down(self, event: Event) -> int:
        """Pass one event of the upstream on to the guest; return how many bytes that queued."""
        gate, writer = self._gate, self._guest_writer
        assert gate is not None
        if isinstance(event, Message):
            passed = gate.from_upstream(event)
            written = writer.message(passed)
            self._from_upstream += 1
            self._from_upstream_bytes += len(passed.data)
        elif isinstance(event, Close):
            self._upstream_closed = True
            self._close_guest(Close(event.code, gate.reason(Direction.RESPONSE, event.reason)))
            return 0
        else:
            payload = gate.control(Direction.RESPONSE, event.data)
            written = writer.ping(payload) if isinstance(event, Ping) else writer.pong(payload)
        if not self._told_guest:
            self._guest.send_data(written)
            self._down_bytes += len(written)
        return len(written)

    # -- closing -----------------------------------------------------------------------------------------------------

    def _close_upstream(self, close: Close) -> None:
        """Pass the guest's Close on; it is over once the upstream has sent its own."""
        self._close_code = self._close_code or close.code
        self._tell_upstream(close)
        if self._upstream_closed:
            self._end(Outcome.COMPLETE)
        else:
            self._expect_close()

    def _close_guest(self, close: Close) -> None:
        """Pass the upstream's Close on; it is over once the guest has sent its own."""
        self._close_code = self._close_code or close.code
        self._tell_guest(close)
        if self._guest_closed:
            self._end(Outcome.COMPLETE)
        else:
            self._expect_close()

    def _tell_upstream(self, close: Close) -> None:
        if not self._told_upstream and self._session is not None:
            self._told_upstream = True
            self._session.send_data(self._upstream_writer.close(close))

    def _tell_guest(self, close: Close) -> None:
        if not self._told_guest:
            self._told_guest = True
            self._guest.send_data(self._guest_writer.close(close))

    def _expect_close(self) -> None:
        self._closing = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._close_late)

    def _close_late(self) -> None:
        """One side has closed and the other does not answer: that is no reason to stay."""
        self._closing = None
        if self._stage != DONE:
            self.guarded(self._close_now)

    def _close_now(self) -> None:
        """End a WebSocket that one side has closed."""
        self._tell_guest(Close(self._close_code or CloseCode.NO_CODE))
        self._tell_upstream(Close(self._close_code or CloseCode.NO_CODE))
        self._end(Outcome.COMPLETE)

    def _await_close(self, data: bytes) -> None:
        """It is over for us, and the guest may still have to answer our Close: then close the connection."""
        if self._guest_closed or self._error_code:
            return  # what can't be read is read over: closing at once would reset what the guest has yet to read
        reader = self._guest_reader
        reader.feed(data)
        reader.left = BUDGET.units
        try:
            while not self._guest_closed:
                event = reader.next_event()
                if event is None:
                    if reader.left <= 0:  # so much, and no Close yet: that is not worth a turn
                        self._error_code = CloseCode.POLICY
                    return
                self._guest_closed = isinstance(event, Close)
        except FrameError as error:
            self._error_code = error.code
            return
        self._socket.close()

    # -- flow control ------------------------------------------------------------------------------------------------

    def guest_writable(self, writable: bool) -> None:
        """The guest takes no more, or takes more again: so does the upstream's reading."""
        self._guest_stuck = not writable
        if not self._down_waits:
            super().guest_writable(writable)
        if writable and self._gate is not None and self._stage == RESPONDING:
            self.guarded(self._read_upstream)

    def upstream_writable(self, writable: bool) -> None:
        """The upstream takes no more, or takes more again: so does the guest's reading."""
        self._upstream_stuck = not writable
        if self._gate is None or self._stage != RESPONDING:
            return
        if writable:
            self.guarded(self._read_guest)  # before what the guest's side holds back, which may be its end
            if not (self._upstream_stuck or self._waits_for_turn(Direction.REQUEST)):
                self._guest.resume_body()
        else:
            self._guest.pause_body()

    # -- ways out ----------------------------------------------------------------------------------------------------

    def on_drain(self) -> None:
        """The gateway stops."""
        self.refuse(STOPPING)

    def refuse(self, verdict: Verdict) -> None:
        """End with a denial: before the 101 as ever, after it with a Close that says why."""
        gate = self._gate
        if gate is None:
            super().refuse(verdict)
            return
        if self._stage == DONE:
            return
        self._facts.ending = verdict
        self._facts.steps += gate.steps
        code = self._error_code or _close_code(verdict)
        self._close_code = code
        rule = verdict.rule or self._facts.verdict.rule
        self._tell_guest(Close(code, f"{verdict.reason.value}; rule={rule}; id={self.request.id}"))
        self._tell_upstream(Close(CloseCode.GOING_AWAY))
        self._end(Outcome.TRUNCATED)

    @property
    def awaits_close(self) -> bool:
        """Whether the guest, which has sent its Close, is still to get the upstream's: it may end its side meanwhile.

        Chromium does, over HTTP/2: its Close and the end of its stream come together.
        """
        return self._guest_closed and self._stage != DONE

    def on_guest_gone(self) -> None:
        """The guest closed its connection: after the upstream's Close that is an end, else it broke off."""
        if self._gate is None or self._stage == DONE:
            super().on_guest_gone()
            return
        self._guest_closed = self._told_guest = True
        if self._upstream_closed:
            self._end(Outcome.COMPLETE)
            return
        self._tell_upstream(Close(CloseCode.GOING_AWAY))
        super().on_guest_gone()

    def on_session_lost(self, error: SeamgateError) -> None:
        """The session is over: after a Close of either side that is an end, else the upstream broke off."""
        if self._gate is None or self._stage == DONE:
            super().on_session_lost(error)
            return
        session, self._session = self._session, None
        if session is not None:
            session.release(reusable=False)
        if self._guest_closed or self._upstream_closed:
            self._close_now()
        elif error.reason is Reason.UPSTREAM_CLOSED:
            message = "the upstream closed its connection without a Close"
            self.fail(UpstreamError(message, reason=Reason.UPSTREAM_CLOSED))
        else:
            self.fail(error)

    def _end(self, outcome: Outcome) -> None:
        """Close what it has of a session behind what is still to be sent."""
        for timer in (self._timer, self._closing):
            if timer is not None:
                timer.cancel()
        self._timer = self._closing = None
        self._holding.close()
        session = self._session
        if self._gate is not None and session is not None:
            self._session = None
            session.leave()
        super()._end(outcome)
        if self._gate is not None and self._guest_closed:
            self._socket.close()

    def _record(self, kind: AuditKind, outcome: Outcome | None) -> AuditRecord:
        record = super()._record(kind, outcome)
        if self._gate is None or outcome is None:
            return record
        return msgspec.structs.replace(
            record,
            bytes=AuditBytes(self._from_guest_bytes, self._from_upstream_bytes),
            websocket=AuditWebSocket(self._from_guest, self._from_upstream, self._close_code),
        )


def _close_code(verdict: Verdict) -> int:
    if verdict.reason is Reason.SHUTTING_DOWN:
        return CloseCode.GOING_AWAY
    return CloseCode.POLICY if verdict.reason.blame in (Blame.GUEST, Blame.OPERATOR) else CloseCode.INTERNAL
