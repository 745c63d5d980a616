"""The way up of one exchange: the request's body, from the guest to the session, held where it has to wait.

Owned by an exchange, fed by it with what the guest's side read. Before the request may leave, pieces are held: up to a
little while a session is opened, up to a limit where rules look into the body. The counterpart of `seamgate.answer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import CredentialError, Reason, SeamgateError
from seamgate.filters import Filters
from seamgate.flow import BodyState, Supply
from seamgate.headers import Headers, join_header
from seamgate.outgoing import check_trailers
from seamgate.protocol.coding import MAX_REQUEST_RATIO, Caps, UndecodableError, open_decoder
from seamgate.protocol.heads import CHUNKED
from seamgate.protocol.pieces import hold_piece
from seamgate.protocol.whole import message_coding
from seamgate.sides import UpstreamSide

MOST_TRIES: Final = 4
"""How often a request is sent that upstreams refuse before they look at it."""


class SharedBudget(Protocol):
    """A budget that several processes have together (`seamgate.workers.memory`)."""

    def take(self, guest: str, size_bytes: int) -> bool:
        """Take so much of it, or nothing."""
        ...

    def give_back(self, guest: str, size_bytes: int) -> None:
        """Give so much of it back."""


class HeldBytes:
    """How much of requests' bodies is in memory: of all guests, and of each. One per gateway.

    Attributes:
        shared: the budget of all workers, where there are several; then it decides.
    """

    __slots__ = ("_by_guest", "most_bytes", "shared", "used_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self.shared: SharedBudget | None = None
        self._by_guest: dict[str, int] = {}

    def take(self, guest: str, size_bytes: int) -> bool:
        """Take so much of the budget; False, and nothing is taken, where all guests or this one have enough."""
        mine = self._by_guest.get(guest, 0) + size_bytes
        if self.used_bytes + size_bytes > self.most_bytes or mine > self.most_bytes // 2:
            return False
        if self.shared is not None and not self.shared.take(guest, size_bytes):
            return False
        self.used_bytes += size_bytes
        self._by_guest[guest] = mine
        return True

    def give_back(self, guest: str, size_bytes: int) -> None:
        """It is not in memory any more."""
        if not size_bytes:
            return
        if self.shared is not None:
            self.shared.give_back(guest, size_bytes)
        self.used_bytes -= size_bytes
        left = self._by_guest.get(guest, 0) - size_bytes
        if left > 0:
            self._by_guest[guest] = left
        else:
            self._by_guest.pop(guest, None)


class Upload:
    """One request's body. State: `held` is what came and was not sent; `done` once all of it came.

    Attributes:
        length: as the head framed it: bytes, or CHUNKED; 0: there is none.
        held_bytes: how much of it waits, or is kept to be sent again.
        body_bytes: how much came, without framing.
        filters: request inspectors, or None.
        kept: whether all of it is still held after it was sent, so that it can be sent again.
        repeatable: whether it may be, although the upstream may have looked at it.
        tries: how often the request was sent.
    """

    __slots__ = (
        "_budget",
        "_guest",
        "_judged_bytes",
        "body_bytes",
        "done",
        "filters",
        "held",
        "held_bytes",
        "kept",
        "length",
        "repeatable",
        "supplies",
        "trailers",
        "tries",
    )

    def __init__(self, length: int, budget: HeldBytes, guest: str) -> None:
        self.length = length
        self._budget = budget
        self._guest = guest
        self._judged_bytes = 0
        self.done = length == 0
        self.trailers: Headers = ()
        self.supplies: Sequence[Supply] = ()
        self.held: list[bytes] = []
        self.held_bytes = 0
        self.body_bytes = 0
        self.filters: Filters | None = None
        self.kept = False
        self.repeatable = False
        self.tries = 0

    @property
    def framing(self) -> int:
        """How it goes upstream: an inspector that does not only look may change its length."""
        return self.length if self.filters is None or not self.filters.reframes else CHUNKED

    def hold(self, data: bytes) -> None:
        """Keep a piece until it may leave.

        Raises:
            SeamgateError: OVERLOADED: the gateway, or this guest, holds as much as it may.
        """
        self._take(len(data))
        hold_piece(self.held, data)
        self.held_bytes += len(data)

    def _take(self, size_bytes: int) -> None:
        if not self._budget.take(self._guest, size_bytes):
            message = "the gateway holds as much of requests as it may (limits.held_bytes): try again in a moment"
            raise SeamgateError(message, reason=Reason.OVERLOADED)

    def _drop(self) -> None:
        """What was held is gone, or left."""
        if self.held_bytes:
            self.held = []
            self._budget.give_back(self._guest, self.held_bytes)
            self.held_bytes = 0

    def close(self) -> None:
        """The exchange is over: nothing of it is in memory any more."""
        self._drop()
        if self._judged_bytes:
            self._budget.give_back(self._guest, self._judged_bytes)
            self._judged_bytes = 0

    def decoded(self, content_encoding: bytes | None, limit_bytes: int) -> bytes:
        """Return all that is held, without its content coding; no more than the limit is ever unpacked.

        It is counted, as what is held, until the exchange is over: the request has it.

        Raises:
            UndecodableError: the coding is unknown, broken, or a bomb.
            SeamgateError: OVERLOADED, as in `hold`.
        """
        raw = b"".join(self.held)
        decoder = open_decoder(content_encoding, caps=Caps(MAX_REQUEST_RATIO, max_size_bytes=limit_bytes))
        plain = raw if decoder is None else decoder.feed(raw) + decoder.finish()
        self._take(len(plain))
        self._judged_bytes += len(plain)
        return plain

    def to_judge(self, headers: Headers, limit_bytes: int) -> tuple[bytes | None, BodyState]:
        """Return all that is held as rules read it, and COMPLETE; or None and UNDECODABLE. See `decoded`.

        Messages that may be compressed one by one are undecodable: who reads the body here would not know.
        """
        if message_coding(headers) is not None:
            return None, BodyState.UNDECODABLE
        try:
            return self.decoded(join_header(headers, b"content-encoding"), limit_bytes), BodyState.COMPLETE
        except UndecodableError:
            return None, BodyState.UNDECODABLE

    def passed(self) -> list[bytes]:
        """Return what is held, through the inspectors: before anything is sent, so that a refusal here is a denial.

        Raises:
            SeamgateError: an inspector refuses it.
        """
        filters = self.filters
        if filters is None or not self.length:
            return self.held
        pieces = [filters.feed(piece) for piece in self.held]
        pieces.append(filters.finish() if self.done else filters.flush())
        return pieces

    def let_out(
        self, session: UpstreamSide, placeholders: PlaceholderIndex, pieces: list[bytes], *, repeatable: bool
    ) -> None:
        """Send what is held; keep it while it may have to be sent again, if all of it is here.

        Args:
            session: where to.
            placeholders: none may be left in the trailers.
            pieces: what `passed` returned.
            repeatable: whether the method permits to send it again although it may have been looked at: once.

        Raises:
            SeamgateError: a placeholder stands in the trailers, or a header that a credential sets.
        """
        for piece in pieces:
            if piece:
                session.send_data(piece)
        self.tries += 1
        self.repeatable = repeatable and self.done and self.tries == 1
        self.kept = self.done and self.tries < MOST_TRIES
        if not self.kept:
            self._drop()
        if self.done:
            self._send_end(session, placeholders)

    def forget(self) -> None:
        """An answer came: it is never sent again."""
        self.kept = self.repeatable = False
        self._drop()

    def send(self, session: UpstreamSide, data: bytes) -> None:
        """Send a piece, through the inspectors."""
        if self.filters is not None:
            data = self.filters.feed(data)
        if data:
            session.send_data(data)

    def flush(self, session: UpstreamSide) -> None:
        """The guest pauses: send what the inspectors need not hold."""
        if self.filters is not None and not self.done:
            held = self.filters.flush()
            if held:
                session.send_data(held)

    def finish(self, session: UpstreamSide, placeholders: PlaceholderIndex) -> None:
        """End the body; one that there is not has no end."""
        if self.filters is not None and self.length:
            rest = self.filters.finish()
            if rest:
                session.send_data(rest)
        self._send_end(session, placeholders)

    def _send_end(self, session: UpstreamSide, placeholders: PlaceholderIndex) -> None:
        if not self.length:
            return
        if self.trailers and placeholders.left_over_in_trailers(self.trailers) is not None:
            raise CredentialError("a placeholder stands in the trailers", reason=Reason.PLACEHOLDER_MISPLACED)
        if self.trailers:
            check_trailers(self.trailers, self.supplies)
        session.send_end(self.trailers)
