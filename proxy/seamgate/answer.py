"""The way back of one exchange: the response's head and body, through the inspectors, to the guest.

Owned by an exchange, fed by it with what the session read. A head whose length depends on inspectors, or on where an
upstream closes, waits for the end of the batch that it came in: if the whole body was in it, the guest gets an exact
length and one write; else the body goes on chunked, piece by piece, as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from seamgate.credentials.probing import Probes
from seamgate.credentials.redaction import RedactionSet, Redactor
from seamgate.filters import Filters, join_response, open_response_filters
from seamgate.flow import Guest, Headers, Request, Response, Step, Supply
from seamgate.headers import any_named
from seamgate.hookspecs import Inspector
from seamgate.pipeline import Pipeline
from seamgate.protocol.heads import CHUNKED, ResponseHead
from seamgate.protocol.pieces import hold_piece
from seamgate.protocol.whole import check_coding, check_not_partial
from seamgate.sides import GuestSide
from seamgate.verdict import Verdict

FLUSH_AFTER_S: Final = 0.05
"""After this pause inspectors give out what they hold, so that an event stream never waits for its next event."""
_RANGE: Final = b"range"
_Response: Final = Response  # an imported name is looked up each time
# Alt-Svc would lead the guest past the gateway; the others are the gateway's own words.
NOT_FOR_GUESTS: Final = frozenset((b"alt-svc", b"proxy-status", b"x-seamgate-reason", b"x-seamgate-rule"))


def for_guests(headers: Headers) -> Headers:
    """Return the fields of a head or of trailers that an upstream may say to a guest."""
    if any_named(headers, NOT_FOR_GUESTS):
        return tuple([pair for pair in headers if pair[0] not in NOT_FOR_GUESTS])
    return headers


@lru_cache(maxsize=1024)
def redaction_of(secrets: tuple[tuple[str, bytes], ...]) -> RedactionSet:
    """Return what takes these secrets, (credential, value), out of an answer."""
    return RedactionSet(secrets)


def redactors_of(secrets: tuple[tuple[str, bytes], ...], probes: Probes, guest: Guest) -> list[tuple[str, Inspector]]:
    """Return the gateway's own inspectors of an answer: one that takes these secrets out, none where there are none."""
    return [("seamgate", Redactor(redaction_of(secrets), probes.of(guest.id)))] if secrets else []


def _ranges_are_off(supplies: list[Supply]) -> bool:
    for supply in supplies:
        if _RANGE in supply.remove_headers:
            return True
    return False


class Answer:
    """One response. State: `_waiting` holds the body while the head waits; `begun` once the head was sent."""

    __slots__ = (
        "_budget_s",
        "_done",
        "_filters",
        "_fixed",
        "_guarded",
        "_guest",
        "_headers",
        "_request",
        "_secrets",
        "_timer",
        "_waiting",
        "begun",
        "body_bytes",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        budget_s: float,
        guest: GuestSide,
        request: Request,
        secrets: tuple[tuple[str, bytes], ...],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self.status = 0
        self.begun = False
        self.body_bytes = 0
        self._budget_s = budget_s
        self._guest = guest
        self._request = request
        self._secrets = secrets
        self._guarded = guarded
        self._filters: Filters | None = None
        self._headers: Headers = ()
        self._waiting: list[bytes] | None = None
        self._done = False
        self._fixed = False  # whether the guest was told the body's length
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self, head: ResponseHead, pipeline: Pipeline, verdict: Verdict, supplies: list[Supply], steps: list[Step]
    ) -> Verdict | None:
        """Inspect and judge the head, and pass it on; return a denial if there is one.

        Raises:
            SeamgateError: a plugin failed, the coding is not known, or it is a part, which nobody may ask for.
        """
        status, given, body = head.status, head.headers, head.body
        request, headers = self._request, for_guests(given)
        # Whatever plugin supplied them: what went out with this request does not come back.
        own = redactors_of(self._secrets, pipeline.probes, request.guest)
        self._filters, response = open_response_filters(
            pipeline,
            request,
            _Response(status, headers),
            verdict,
            steps,
            own,
            self._budget_s,
            bodiless=body == 0,
        )
        filters = self._filters
        if filters is not None:
            filters.share = self._guest.share
        if verdict.inspect or _ranges_are_off(supplies) or (filters is not None and filters.need_whole):
            check_not_partial(status, given)
        if filters is not None:
            check_coding(status, headers)
        denial = pipeline.judge_response(request, response, steps)
        if denial is not None:
            return denial
        self.status = status
        self._headers = response.headers
        if body == 0:
            self._send_head(self._length_without_body(head))
        elif body > 0 and self._filters is None:
            self._send_head(body)
        else:
            self._waiting = []
        return None

    @property
    def decodes(self) -> bool:
        """Whether the body is decoded, so that a piece may become many times as long."""
        return self._filters is not None and self._filters.decodes

    def feed(self, data: bytes) -> None:
        """A piece of the body."""
        if self._filters is not None:
            data = self._filters.feed(data)
        if data:
            self._pass(data)

    def look_anew(self, pipeline: Pipeline, verdict: Verdict, steps: list[Step]) -> None:
        """What to look for may be more than when it began: have the rest of the body searched for that.

        Raises:
            SeamgateError: it can't be, or a plugin failed.
        """
        if self._done:
            return
        # It has begun: no head waits for longer than a turn of the loop.
        response = _Response(self.status, self._headers)
        self._filters = join_response(
            self._filters,
            pipeline,
            self._request,
            response,
            verdict,
            steps,
            self._budget_s,
            keeps_length=self._fixed,
        )

    def finish(self, trailers: Headers) -> None:
        """The end of the body."""
        trailers = for_guests(trailers)
        if self._filters is not None:
            rest = self._filters.finish()
            if rest:
                self._pass(rest)
            trailers = self._filters.head(trailers) if trailers else ()
        self._done = True
        self._send_waiting(whole=not trailers)
        self._guest.send_end(trailers)

    def flush(self) -> None:
        """The end of a batch: a head that waited for the end of its body waits no more."""
        self._send_waiting()
        self._guest.flush()
        if self._filters is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self._paused)

    def close(self) -> None:
        """Nothing more will come. Lets go of the exchange, which holds this answer: no cycle is left to a collector."""
        self._guarded = _NOTHING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _length_without_body(self, head: ResponseHead) -> int | None:
        """The Content-Length of a response without a body: HEAD tells what GET would get (RFC 9110 8.6)."""
        if self._request.method == "HEAD":
            return head.declared if self._filters is None else None
        return None if head.status in (204, 304) else 0

    def _pass(self, data: bytes) -> None:
        self.body_bytes += len(data)
        if self._waiting is not None:
            hold_piece(self._waiting, data)
        else:
            self._guest.send_data(data)

    def _send_head(self, length: int | None) -> None:
        self.begun = True
        self._fixed = length is not None and length != CHUNKED
        self._guest.send_head(self.status, self._headers, length)

    def _send_waiting(self, *, whole: bool = False) -> None:
        """Send the head that waited; with a length if the body is whole and no trailers follow, which would be lost."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        length = CHUNKED
        if whole:
            length = 0
            for piece in waiting:
                length += len(piece)
        self._send_head(length)
        for piece in waiting:
            self._guest.send_data(piece)

    def _paused(self) -> None:
        """The upstream pauses: give out what inspectors hold."""
        self._timer = None
        if not self._done:
            self._guarded(self._flush_filters)

    def _flush_filters(self) -> None:
        held = self._filters.flush() if self._filters is not None else b""
        if held:
            self._pass(held)
            self._guest.flush()


def _nothing(_: object) -> None:
    """What is left to call after `close`."""


_NOTHING: Final[Callable[[object], None]] = _nothing
