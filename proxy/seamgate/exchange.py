"""One exchange: from a judged request to its terminal audit record. The conductor of the five hops.

    judge -> supply -> resolve -> session (`seamgate.exchange_approach`) -> send
    response head -> inspect (`seamgate.answer`) -> guest ... end -> audit (`seamgate.exchange_facts`)

Called by the guest's side (an entry's connection) and by the upstream's side (a session); it knows them only by the
protocols `GuestSide` and `UpstreamSide`, and neither HTTP version. Everything is callbacks. Each way out ends in
`_end`, which writes exactly one terminal record and gives the session back to the pool.

State: `_stage` says how far it is; `_session` is set while an upstream is ours; `_upload` and `_answer` are the two
bodies.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from seamgate.answer import Answer, for_guests
from seamgate.audit.record import AuditBytes, AuditKind, AuditRecord, Decision, Outcome
from seamgate.errors import NotProcessed, Reason, SeamgateError, TargetError, UpstreamError, UpstreamProtocolError
from seamgate.exchange_approach import NOTHING, Approach
from seamgate.filters import join_request, looks_at, needs_whole, open_request_filters
from seamgate.flow import BodyState, Headers, Request, Response, Step
from seamgate.headers import any_named
from seamgate.outgoing import asks_for_part, make_head
from seamgate.policy.overrides import find_overrides
from seamgate.protocol.heads import ResponseHead
from seamgate.protocol.whole import BODY_CODINGS
from seamgate.revocation import denial_of_unsent, judge_sent, revoked
from seamgate.seam import NOT_PROCESSED, SESSION_CLOSED, IsBound, Seam
from seamgate.sides import GuestSide
from seamgate.stage import DONE, GATHERING, RESPONDING, SENDING, WAITING
from seamgate.verdict import Effect, Verdict, denial_of, deny

HELD_BYTES: Final = 65536
"""How much of a body is held while the upstream is not ready; then the guest is not read any more."""
HELD_CODED_BYTES: Final = 8192
"""The same of one that has a coding: what is held is decoded in one go."""
_CODINGS: Final = frozenset(BODY_CODINGS)
MOST_SESSIONS_LOST: Final = 3
"""How many sessions may die under one request before anything of an answer came."""
# A member of an enumeration costs a look-up in its class and its base classes each time, an imported name one in the
# module: these are asked for often.
_ALLOWED: Final = Decision.ALLOW
_DENIED: Final = Decision.DENY
_BEGIN: Final = AuditKind.BEGIN
_REQUEST: Final = AuditKind.REQUEST
_COMPLETE: Final = Outcome.COMPLETE
_Bytes: Final = AuditBytes
_PENDING: Final = BodyState.PENDING
# Safe or idempotent (RFC 9110 9.2): may be sent again if nothing of an answer came.
_REPEATABLE: Final = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


def _stays_repeatable(request: Request) -> bool:
    """Whether no header or parameter asks for a method that is not repeatable. Only asked before it is repeated."""
    try:
        overrides = find_overrides(request)
    except TargetError:
        return False
    return not overrides or _REPEATABLE.issuperset(overrides[0])


class Exchange(Approach):
    """One request and its response."""

    __slots__ = ("_again", "_answer", "_sent", "_sessions_lost")

    def __init__(
        self, seam: Seam, guest_side: GuestSide, request: Request, *, entry: str, body: int, expects_continue: bool
    ) -> None:
        super().__init__(seam, guest_side, request, entry=entry, body=body, expects_continue=expects_continue)
        self._sent = False
        self._again = SESSION_CLOSED
        self._sessions_lost = 0
        self._answer: Answer | None = None

    @property
    def done(self) -> bool:
        """Whether its terminal record is written."""
        return self._stage == DONE

    @property
    def decodes_request(self) -> bool:
        """Whether pieces of the request's body are decoded as they come."""
        return self._upload.filters is not None and self._upload.filters.decodes

    @property
    def decodes_answer(self) -> bool:
        """Whether pieces of the answer's body are."""
        return self._answer is not None and self._answer.decodes

    @property
    def body_done(self) -> bool:
        """Whether the whole request was read from the guest."""
        return self._upload.done

    # -- the request's body, from the guest ----------------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        """A piece of the request's body. Raises SeamgateError where it can't be held; whoever delivers ends us."""
        upload = self._upload
        upload.body_bytes += len(data)
        if self._stage == DONE or self._too_long():
            return
        if self._stage >= SENDING:
            self._interim.stop()
            if self._session is not None:
                upload.send(self._session, data)
            return
        upload.hold(data)
        if self._stage == GATHERING:
            if upload.held_bytes > self._seam.limits.judged_body_bytes:
                self._judge_body(BodyState.OVERSIZE)
        elif upload.held_bytes > HELD_BYTES or (upload.held_bytes > HELD_CODED_BYTES and self._is_coded()):
            self._guest.pause_body()

    def _is_coded(self) -> bool:
        return any_named(self.request.headers, _CODINGS)

    def on_body_end(self, trailers: Headers) -> None:
        """The request is complete."""
        upload = self._upload
        upload.done = True
        upload.trailers = trailers
        if self._stage == GATHERING:
            self._judge_body(BodyState.COMPLETE)
            return
        denial = self._pipeline.judge_trailers(self.request, trailers, self._facts.steps) if trailers else None
        if denial is not None:
            self.refuse(denial)
        elif self._session is not None and self._stage in (SENDING, RESPONDING):
            upload.finish(self._session, self._seam.placeholders)

    def flush_upstream(self) -> None:
        """The guest has delivered a batch: send it."""
        session = self._session
        if session is None:
            return
        if self._upload.filters is not None and self._stage in (SENDING, RESPONDING):
            self.guarded(lambda: self._upload.flush(session))
        session.flush()

    # -- send ----------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Make what goes out, and write ahead if a credential goes along; then let it out."""
        request, seam = self.request, self._seam
        headers = request.headers
        if self._upload.length:  # before the credentials go in, which no inspector may see
            budget_s = seam.plugin_budget_s
            filters, headers = open_request_filters(
                self._pipeline, request, self._facts.verdict, self._facts.steps, budget_s
            )
            self._upload.filters = filters
            if filters is not None:
                filters.share = self.share
            if filters is not None and filters.changed_head and not self._still_allowed(headers):
                return
        verdict, self._upload.supplies = self._facts.verdict, self._facts.supplies
        inspected = bool(verdict.inspect) or (self._pipeline.redacts_supplies and bool(self._facts.supplies))
        if not inspected and asks_for_part(headers):
            inspected = needs_whole(self._pipeline, request, verdict)
        self._outgoing = make_head(request, headers, self._facts.supplies, seam.placeholders, inspected=inspected)
        if self._facts.supplies:
            seam.write_ahead(self._record(_BEGIN, None), self, self._written_ahead)
        else:
            self._let_out()

    def _still_allowed(self, headers: Headers) -> bool:
        """Judge what inspectors made of the head; False if that denied. It must mean the same as what was judged."""
        changed = msgspec.structs.replace(self.request, headers=headers)
        verdict, before = self._judged(changed), self._facts.verdict
        if not verdict.allowed:
            self.refuse(verdict if verdict.effect is Effect.DENY else deny("", reason=Reason.UNEVALUABLE))
            return False
        if (verdict.rule, verdict.credentials, verdict.inspect) != (before.rule, before.credentials, before.inspect):
            message = "an inspector changed the request's head so that another rule decides"
            self.refuse(deny(message, reason=Reason.PLUGIN_FAILED))
            return False
        return True

    def _written_ahead(self, error: SeamgateError | None) -> None:
        """The record of what is about to leave is in the journal, or can't be written."""
        if self._stage == WAITING and self._outgoing is not NOTHING:  # else it ended, or was taken back
            self.guarded(self._let_out) if error is None else self.fail(error)

    def _let_out(self) -> None:
        """Hand the request to the session, with as much of its body as is here."""
        session = self._session
        if session is None or not session.usable:
            self._stage_again()
            return
        upload = self._upload
        pieces = upload.passed()
        headers, query = self._outgoing
        self._outgoing = NOTHING
        if self._interim.expects and not upload.held_bytes:
            headers = (*headers, (b"expect", b"100-continue"))
            self._interim.wait()
        self._stage = SENDING
        if self._sent:
            self._count_again()
        self._sent = True
        session.send_head(self, self.request, headers, query, upload.framing)
        upload.let_out(session, self._seam.placeholders, pieces, repeatable=self.request.method in _REPEATABLE)
        session.flush()
        if not upload.done:
            self._guest.resume_body()

    def _count_again(self) -> None:
        """It goes out once more: the record says how often it did, a metric counts why."""
        self._seam.repeated[self._again] += 1
        if self._facts.session is not None:
            self._facts.session = msgspec.structs.replace(self._facts.session, attempts=self._upload.tries + 1)

    def _stage_again(self, *, fresh: bool = True) -> None:
        """The session died before anything was sent on it, or nothing of an answer came: take another one."""
        session, self._session = self._session, None
        if session is not None:
            session.release(reusable=False)
        self._interim.stop()
        self._sessions_lost += 1
        if self._sessions_lost > MOST_SESSIONS_LOST:
            self.fail(UpstreamError("the upstream closes each connection", reason=Reason.UPSTREAM_CLOSED))
            return
        self._stage = WAITING
        self._upload.filters = None
        self.guarded(lambda: self._acquire(fresh=fresh))

    # -- the response, from the session --------------------------------------------------------------------------------

    def on_informational(self, head: ResponseHead) -> None:
        """A 1xx response. 103 goes on only where nothing looks at the answer: it could say what that would take out."""
        if self._interim.take(head) and not self._facts.supplies and not self._facts.verdict.inspect:
            early = Response(103, for_guests(head.headers))
            if not looks_at(self._pipeline, self.request, early, self._facts.verdict):
                self._guest.send_informational(103, early.headers)

    def on_head(self, head: ResponseHead) -> None:
        """The final response begins. A 407 is the gateway's word to its guests: an upstream's never passes for it."""
        if head.status == 407:
            self.fail(UpstreamProtocolError("the upstream answered 407, which is a proxy's to say and not an origin's"))
            return
        self._interim.stop()
        self._upload.forget()
        self._stage = RESPONDING
        self._facts.first_byte_ms = self._facts.elapsed_ms()
        secrets: tuple[tuple[str, bytes], ...] = ()
        if self._pipeline.redacts_supplies and self._facts.supplies:
            secrets = tuple([(each.credential, value) for each in self._facts.supplies for value in each.secrets])
        budget_s = self._seam.plugin_budget_s
        answer = self._answer = Answer(budget_s, self._guest, self.request, secrets, self.guarded)
        denial = answer.begin(head, self._pipeline, self._facts.verdict, self._facts.supplies, self._facts.steps)
        if denial is not None:
            self.refuse(denial)

    def on_data(self, data: bytes) -> None:
        """A piece of the response's body."""
        if self._answer is not None:
            self._answer.feed(data)

    def on_end(self, trailers: Headers) -> None:
        """The response is complete."""
        if self._answer is not None:
            self._answer.finish(trailers)
            self._end(_COMPLETE)

    def on_flush(self) -> None:
        """The session has delivered a batch."""
        if self._answer is not None and self._stage == RESPONDING:
            self._answer.flush()

    def on_session_lost(self, error: SeamgateError) -> None:
        """The session ended before the response did."""
        session, self._session = self._session, None
        if session is None or self._stage == DONE:
            return
        session.release(reusable=False)
        closed = error.reason is Reason.UPSTREAM_CLOSED and not session.answered
        if isinstance(error, NotProcessed) and self._upload.kept and self._stage == SENDING:
            self._again = NOT_PROCESSED
            self._stage_again(fresh=False)
        elif (
            self._upload.repeatable
            and session.waited
            and closed
            and self._stage == SENDING
            and _stays_repeatable(self.request)
        ):
            # The upstream closed an idle connection just as we used it (RFC 9112 9.3.1): once more, on a fresh one.
            self._again = SESSION_CLOSED
            self._stage_again()
        else:
            self.fail(error)

    # -- flow control --------------------------------------------------------------------------------------------------

    def guest_writable(self, writable: bool) -> None:
        """The guest takes no more, or takes more again: so does the upstream's reading."""
        if self._session is not None:
            if writable:
                self._session.resume_reading()
            else:
                self._session.pause_reading()

    def upstream_writable(self, writable: bool) -> None:
        """The upstream takes no more, or takes more again: so does the guest's body."""
        if self._upload.done:
            return
        if writable:
            self._guest.resume_body()
        else:
            self._guest.pause_body()

    # -- another policy ------------------------------------------------------------------------------------------------

    def judge_again(self, is_bound: IsBound) -> bool:
        """A reload replaced the pipeline: judge by the new one; if it denies, end as revoked and return True.

        What has not been sent goes on by the new generation, from resolving on. What has been sent keeps the pipeline
        that it began with for its response: only that one knows the secrets that must not come back. What the new one
        looks for besides is looked for from here on.
        """
        if self._stage == DONE:
            return False
        seam, steps = self._seam, list[Step]()
        if self._stage >= SENDING and self._session is not None:
            used = [supply.credential for supply in self._facts.supplies]
            verdict = denial = judge_sent(
                seam, self.request, self._upload.trailers, steps, used, self._session.address, is_bound
            )
            if verdict is None:
                return self.look_anew()
        else:
            verdict = seam.pipeline.judge_all(self.request, self._upload.trailers, steps, late_denies=False)
            denial = denial_of_unsent(self.request.body_state is _PENDING, verdict)
        self._pipeline = seam.pipeline
        self._facts.steps += steps
        if denial is not None:
            self.refuse(revoked(denial))
            return True
        self._take_back()
        self.guarded(lambda: self._follow(verdict))
        if not self._upload.done and self._stage == GATHERING:
            self._guest.resume_body()
        return False

    def look_anew(self) -> bool:
        """What to look for may be more than when the bodies began: have their rest searched for that too.

        Return whether it ended, as revoked, because that can't be.
        """
        if self._stage == DONE:
            return False
        steps: list[Step] = []
        problem: SeamgateError | None = None
        try:
            self._join(steps)
        except SeamgateError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - fail closed: what can't be searched does not go on
            problem = SeamgateError("a fault of the gateway")
            asyncio.get_running_loop().call_exception_handler({"message": "exchange failed", "exception": error})
        self._facts.steps += steps
        if problem is not None:
            self._pipeline = self._seam.pipeline  # whose doing it is
            self.refuse(revoked(denial_of(problem)))
        return problem is not None

    def _join(self, steps: list[Step]) -> None:
        pipeline, verdict, budget_s = self._pipeline, self._facts.verdict, self._seam.plugin_budget_s
        upload, answer = self._upload, self._answer
        if not upload.done and upload.length and (self._stage >= SENDING or self._outgoing is not NOTHING):
            upload.filters = join_request(upload.filters, pipeline, self.request, verdict, steps, budget_s)
        if answer is not None:
            answer.look_anew(pipeline, verdict, steps)

    def _take_back(self) -> None:
        """Undo what was prepared and not sent: it belongs to the generation before."""
        self._waiting.cancel()
        session, self._session = self._session, None
        if session is not None:
            session.release(reusable=True)
        self._facts.supplies, self._to_supply, self._outgoing = [], (), NOTHING
        self._upload.filters = None
        if not self._sent:
            self._facts.session = None

    # -- ways out ------------------------------------------------------------------------------------------------------

    def refuse(self, verdict: Verdict) -> None:
        """End with a denial, or, where the response has begun, with a cut that the guest can't take for an end."""
        if self._stage == DONE:
            return
        self._facts.ending = verdict
        if self._answer is not None and self._answer.begun:
            self._guest.abort()
            self._end(Outcome.TRUNCATED)
            return
        self._facts.status = verdict.reason.status
        self._guest.send_denial(verdict, self.request.id)
        self._end(Outcome.FAILED if self._facts.decision is _ALLOWED else Outcome.DENIED)

    def on_guest_gone(self) -> None:
        """The guest closed: stop whatever is under way."""
        if self._stage != DONE:
            self._facts.ending = deny("the guest closed its connection", reason=Reason.GUEST_GONE)
            self._end(Outcome.ABORTED)

    def _end(self, outcome: Outcome) -> None:
        """Write the terminal record, give the session back, tell the guest's side."""
        self._stage = DONE
        self._interim.stop()
        answer = self._answer
        if answer is not None:
            answer.close()
            if answer.begun:
                self._facts.status = answer.status
        self._waiting.close()
        self._upload.close()
        denied = self._facts.decision is _DENIED
        seam = self._seam
        seam.ended(self)
        seam.denied_total += denied
        session, self._session = self._session, None
        try:
            seam.record(self._record(_REQUEST, outcome), denied=denied)
            if session is not None:
                session.release(reusable=not self._sent or (outcome is _COMPLETE and self._upload.done))
        finally:
            # Whatever fails here, the guest's connection must not wait for an exchange that is over.
            self._guest.finished()

    def _record(self, kind: AuditKind, outcome: Outcome | None) -> AuditRecord:
        """Build the record of what is known now; `outcome` is None in the one that is written ahead."""
        passed: AuditBytes | None = None
        if outcome is not None:
            answer = self._answer
            passed = _Bytes(self._upload.body_bytes, 0 if answer is None else answer.body_bytes)
        return self._facts.record(self._seam, self.request, self._pipeline.generation, kind, outcome, passed)
