"""One exchange: from a judged request to its terminal audit record. The conductor of the five hops.

    judge -> (gather the body, judge again) -> amend -> supply -> resolve -> session -> send
    response head -> inspect -> guest ... end -> audit, session back to the pool

Called by the guest's side (an entry's connection) and by the upstream's side (a session); it knows them only by the
protocols `GuestSide` and `UpstreamSide`, and neither HTTP version. Everything is callbacks: where a name is cached, a
session is warm and a credential is at hand, a request crosses without a task or an await. Each way out ends in
`_end`, which writes exactly one terminal record.

State: `_stage` says how far it is; `_session` is set while an upstream is ours; `_upload` and `_answer` are the two
bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from seamgate.answer import Answer, for_guests
from seamgate.audit.parts import guest_part, request_part
from seamgate.audit.record import AuditBytes, AuditKind, AuditRecord, AuditRequest, AuditUpstream, Decision, Outcome
from seamgate.errors import Blame, NotProcessed, Reason, ResolveFailed, SeamgateError, UpstreamError
from seamgate.filters import looks_at, open_request_filters
from seamgate.flow import BodyState, Headers, Request, Resolution, Response, Step, Supply
from seamgate.interim import Interim
from seamgate.outgoing import make_head
from seamgate.protocol.heads import ResponseHead
from seamgate.revocation import denial_of_unsent, judge_sent, revoked
from seamgate.seam import IsBound, Seam
from seamgate.sides import GuestSide, UpstreamSide
from seamgate.stage import DONE, GATHERING, JUDGING, NAMES, RESPONDING, SENDING, WAITING
from seamgate.upload import Upload
from seamgate.upstream.addresses import compile_permit
from seamgate.verdict import NO_OPINION, Effect, Verdict, denial_of, deny
from seamgate.waiting import Waiting

HELD_BYTES: Final = 65536
"""How much of a body is held while the upstream is not ready; then the guest is not read any more."""
_NOTHING: Final[tuple[Headers, str | None]] = ((), None)
MOST_SESSIONS_LOST: Final = 3
"""How many sessions may die under one request before anything of an answer came."""
# A member of an enumeration costs a look-up in its class and its base classes each time, an imported name one in the
# module: these are asked for often.
_ALLOW: Final = Effect.ALLOW
_ALLOWED: Final = Decision.ALLOW
_DENIED: Final = Decision.DENY
_BEGIN: Final = AuditKind.BEGIN
_REQUEST: Final = AuditKind.REQUEST
_COMPLETE: Final = Outcome.COMPLETE
_PENDING: Final = BodyState.PENDING
_Record: Final = AuditRecord
_monotonic: Final = monotonic
_guest_part: Final = guest_part
_NO_REASON: Final = Reason.ALLOWED
_RESOLVE_FAILED: Final = Reason.RESOLVE_FAILED
_TIMED_OUT: Final = Reason.UPSTREAM_TIMEOUT
# How what was allowed may end without our having refused it after all.
_NOT_OURS: Final = frozenset(
    (Reason.GUEST_GONE, Reason.GUEST_TIMEOUT, *[each for each in Reason if each.blame is Blame.UPSTREAM])
)
# Safe or idempotent (RFC 9110 9.2): may be sent again if nothing of an answer came.
_REPEATABLE: Final = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE"))


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_addresses", "_answer", "_audited", "_audited_for", "_ending", "_entry", "_first_byte_ms", "_guest",
        "_interim", "_outgoing", "_pipeline", "_seam", "_sent", "_session", "_session_facts", "_sessions_lost",
        "_stage", "_started", "_status", "_steps", "_supplies", "_to_supply", "_upload", "_verdict", "_waiting",
        "request",
    )  # fmt: skip

    def __init__(
        self, seam: Seam, guest_side: GuestSide, request: Request, *, entry: str, body: int, expects_continue: bool
    ) -> None:
        self.request = request
        self._seam = seam
        self._guest = guest_side
        self._entry = entry
        self._pipeline = seam.pipeline
        self._upload = Upload(body, seam.held, request.guest.id)
        self._interim = Interim(guest_side, self._upload, expects=expects_continue)
        self._started = _monotonic()
        self._stage: int = JUDGING
        self._verdict: Verdict = NO_OPINION
        self._steps: list[Step] = []
        self._outgoing: tuple[Headers, str | None] = _NOTHING
        self._addresses: tuple[str, ...] = ()
        self._supplies: list[Supply] = []
        self._to_supply: tuple[str, ...] = ()
        self._session: UpstreamSide | None = None
        self._session_facts: AuditUpstream | None = None
        self._ending: Verdict | None = None
        self._sent = False
        self._sessions_lost = 0
        self._answer: Answer | None = None
        self._status = 0
        self._audited: AuditRequest | None = None
        self._audited_for: Request | None = None
        self._first_byte_ms: float | None = None
        self._waiting = Waiting(request.id, self.guarded, self.refuse)

    def __repr__(self) -> str:
        return f"<Exchange {self.request.id} {self.request.method} {self.request.url} {NAMES[self._stage]}>"

    @property
    def done(self) -> bool:
        """Whether its terminal record is written."""
        return self._stage == DONE

    @property
    def body_done(self) -> bool:
        """Whether the whole request was read from the guest."""
        return self._upload.done

    # -- judge ---------------------------------------------------------------------------------------------------------

    def start(self, refusal: Verdict | None = None) -> None:
        """Judge the head and go as far as that leads without waiting; or refuse what the guest's side can't carry."""
        seam = self._seam
        seam.requests_total += 1
        seam.under_way.add(self)
        if refusal is not None:
            self.refuse(refusal)
        elif seam.draining:
            self.refuse(deny("the gateway is stopping", reason=Reason.SHUTTING_DOWN))
        elif not seam.journal.healthy:
            self.refuse(deny("the audit log can't be written", reason=Reason.AUDIT_UNAVAILABLE))
        else:
            self._judge()

    def _judge(self) -> None:
        """Ask the pipeline with what is known of the request now."""
        self._follow(self._pipeline.judge_request(self.request, self._steps))

    def _follow(self, verdict: Verdict) -> None:
        """Do what the verdict on the present phase says."""
        if verdict.effect is _ALLOW:
            self._allowed(verdict)
        elif verdict.effect is Effect.DEFER and self.request.body_state is _PENDING:
            self._gather()
        elif verdict.effect is Effect.DEFER:
            self.refuse(deny(verdict.message, reason=Reason.UNEVALUABLE, rule=verdict.rule))
        else:
            self.refuse(verdict)

    def _gather(self) -> None:
        """Hold the body in memory, up to a limit, to judge with it."""
        self._stage = GATHERING
        if self._upload.length > self._seam.limits.judged_body_bytes:
            self._judge_body(BodyState.OVERSIZE)
            return
        self._interim.ask()
        if self._upload.done:
            self._judge_body(BodyState.COMPLETE)

    def _judge_body(self, state: BodyState) -> None:
        body: bytes | None = None
        if state is BodyState.COMPLETE:
            body, state = self._upload.to_judge(self.request.headers, self._seam.limits.judged_body_bytes)
        self.request = msgspec.structs.replace(self.request, body=body, body_state=state)
        self._stage = JUDGING
        self._judge()

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
        elif upload.held_bytes > HELD_BYTES:
            self._guest.pause_body()

    def on_body_end(self, trailers: Headers) -> None:
        """The request is complete."""
        upload = self._upload
        upload.done = True
        upload.trailers = trailers
        if trailers and (denial := self._pipeline.judge_trailers(self.request, trailers, self._steps)) is not None:
            self.refuse(denial)
            return
        if self._stage == GATHERING:
            self._judge_body(BodyState.COMPLETE)
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

    def _too_long(self) -> bool:
        """Refuse a body that is longer than the rule or the gateway takes; True if so."""
        limits = self._verdict.limits
        limit = limits.request_body_bytes if limits is not None else None
        if limit is None:
            limit = self._seam.limits.request_body_bytes
        if limit is None or max(self._upload.length, self._upload.body_bytes) <= limit:
            return False
        self.refuse(deny(f"the request body is longer than {limit} bytes", reason=Reason.BODY_TOO_LARGE))
        return True

    # -- allowed: amend, supply, resolve -------------------------------------------------------------------------------

    def _allowed(self, verdict: Verdict) -> None:
        """A rule allows the request: go on towards a session."""
        self._verdict = verdict
        self._stage = WAITING
        if self._too_long():
            return
        try:
            if self._pipeline.amends and not self._amended():
                return
            # Before anything is looked up or dialled: what can't be supplied is a denial, and a denial costs no query.
            self._to_supply, self._supplies = self._verdict.credentials, []
            self._supply()
        except SeamgateError as error:
            self.fail(error)

    def _amended(self) -> bool:
        """Apply amendments and judge again; False if that denied."""
        before, self.request = self.request, self._pipeline.amend_request(self.request, self._steps)
        if self.request is before:
            return True
        verdict = self._pipeline.judge_request(self.request, self._steps)
        if not verdict.allowed:
            self.refuse(verdict if verdict.effect is Effect.DENY else deny("", reason=Reason.UNEVALUABLE))
            return False
        self._verdict = verdict
        return True

    def _resolve(self) -> None:
        target = self.request.target
        known = self._seam.known_address(target)
        if known is not None:
            self._resolved(known)
        else:
            found = self._pipeline.resolve_name(target.host, self._steps)
            self._waiting.then(found, self._resolved, self._seam.limits.resolve_timeout_s, _RESOLVE_FAILED)

    def _resolved(self, resolution: Resolution | None) -> None:
        """Check every address, then take a session to one of them."""
        target = self.request.target
        if resolution is None:
            raise ResolveFailed(f"no plugin resolves names; {target.host} can't be reached")
        named = self._verdict.addresses
        permit = self._seam.permit | compile_permit(named) if named else self._seam.permit
        self._addresses = self._seam.check(resolution.addresses, target, permit)
        self._acquire()

    def guarded(self, step: Callable[[], None]) -> None:
        """Run a step; whatever goes wrong in it ends the exchange, closed."""
        try:
            step()
        except SeamgateError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours denies, is audited and is reported
            self.fail(SeamgateError("a fault of the gateway", reason=Reason.INTERNAL_ERROR))
            asyncio.get_running_loop().call_exception_handler({"message": "exchange failed", "exception": error})

    # -- credentials, session ------------------------------------------------------------------------------------------

    def _acquire(self, *, fresh: bool = False) -> None:
        request = self.request
        found = self._seam.pool.acquire(
            request.target, self._addresses, request.guest, self._pipeline.generation, fresh=fresh
        )
        patience_s = self._seam.pool.queue_timeout_s + self._seam.limits.connect_timeout_s * 2
        self._waiting.then(found, self._got_session, patience_s, _TIMED_OUT)

    def _got_session(self, session: UpstreamSide) -> None:
        self._session = session
        self._session_facts = AuditUpstream(session.address, session.id, session.reused)
        if not session.reused:
            self._seam.opened(self.request.guest, self.request.target, session.address)
        self._send()

    def _supply(self) -> None:
        """Get the selected credentials, one after the other; then resolve."""
        while self._to_supply:
            name = self._to_supply[0]
            found = self._pipeline.supply_credential(self.request, name, self._steps)
            if found is not None and not isinstance(found, Supply):
                self._waiting.then(
                    found, self._supplied, self._seam.limits.credential_timeout_s, Reason.CREDENTIAL_UNAVAILABLE
                )
                return
            self._keep_supply(found)
        self._resolve()

    def _supplied(self, supply: Supply | None) -> None:
        self._keep_supply(supply)
        self._supply()

    def _keep_supply(self, supply: Supply | None) -> None:
        name, self._to_supply = self._to_supply[0], self._to_supply[1:]
        if supply is None:
            raise SeamgateError(f"no plugin supplies {name!r}", reason=Reason.CREDENTIAL_UNAVAILABLE)
        self._supplies.append(supply)

    # -- send ----------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Make what goes out, and write ahead if a credential goes along; then let it out."""
        request, seam = self.request, self._seam
        headers = request.headers
        if self._upload.length:  # before the credentials go in, which no inspector may see
            budget_s = seam.limits.plugin_budget_s
            filters, headers = open_request_filters(self._pipeline, request, self._verdict, self._steps, budget_s)
            self._upload.filters = filters
            if filters is not None and filters.changed_head and not self._still_allowed(headers):
                return
        inspected, self._upload.supplies = bool(self._verdict.inspect), self._supplies
        self._outgoing = make_head(request, headers, self._supplies, seam.placeholders, inspected=inspected)
        if self._supplies:
            seam.write_ahead(self._record(_BEGIN, None), self, self._written_ahead)
        else:
            self._let_out()

    def _still_allowed(self, headers: Headers) -> bool:
        """Judge what inspectors made of the head; False if that denied. It must mean the same as what was judged."""
        changed = msgspec.structs.replace(self.request, headers=headers)
        verdict, before = self._pipeline.judge_request(changed, self._steps), self._verdict
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
        if self._stage == WAITING and self._outgoing is not _NOTHING:  # else it ended, or was taken back
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
        self._outgoing = _NOTHING
        if self._interim.expects and not upload.held_bytes:
            headers = (*headers, (b"expect", b"100-continue"))
            self._interim.wait()
        self._stage = SENDING
        self._sent = True
        session.send_head(self, self.request, headers, query, upload.framing)
        upload.let_out(session, self._seam.placeholders, pieces, repeatable=self.request.method in _REPEATABLE)
        session.flush()
        if not upload.done:
            self._guest.resume_body()

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
        if self._interim.take(head) and not self._supplies and not self._verdict.inspect:
            early = Response(103, for_guests(head.headers))
            if not looks_at(self._pipeline, self.request, early, self._verdict):
                self._guest.send_informational(103, early.headers)

    def on_head(self, head: ResponseHead) -> None:
        """The final response begins."""
        self._interim.stop()
        self._upload.forget()
        self._stage = RESPONDING
        self._first_byte_ms = (_monotonic() - self._started) * 1000
        secrets: tuple[tuple[str, bytes], ...] = ()
        if self._pipeline.redacts_supplies and self._supplies:
            secrets = tuple([(each.credential, value) for each in self._supplies for value in each.secrets])
        budget_s = self._seam.limits.plugin_budget_s
        answer = self._answer = Answer(budget_s, self._guest, self.request, secrets, self.guarded)
        denial = answer.begin(head, self._pipeline, self._verdict, self._supplies, self._steps)
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
            self._stage_again(fresh=False)
        elif self._upload.repeatable and session.waited and closed and self._stage == SENDING:
            # The upstream closed an idle connection just as we used it (RFC 9112 9.3.1): once more, on a fresh one.
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
        that it began with for its response: only that one knows the secrets that must not come back.
        """
        if self._stage == DONE:
            return False
        seam, steps = self._seam, list[Step]()
        if self._stage >= SENDING and self._session is not None:
            used = [supply.credential for supply in self._supplies]
            verdict = denial = judge_sent(seam, self.request, steps, used, self._session.address, is_bound)
            if verdict is None:
                return False
        else:
            verdict = seam.pipeline.judge_request(self.request, steps, late_denies=False)
            denial = denial_of_unsent(self.request.body_state is _PENDING, verdict)
        self._pipeline = seam.pipeline
        self._steps += steps
        if denial is not None:
            self.refuse(revoked(denial))
            return True
        self._take_back()
        self.guarded(lambda: self._follow(verdict))
        if not self._upload.done and self._stage == GATHERING:
            self._guest.resume_body()
        return False

    def _take_back(self) -> None:
        """Undo what was prepared and not sent: it belongs to the generation before."""
        self._waiting.cancel()
        session, self._session = self._session, None
        if session is not None:
            session.release(reusable=True)
        self._supplies, self._to_supply, self._outgoing = [], (), _NOTHING
        self._session_facts = self._upload.filters = None

    # -- ways out ------------------------------------------------------------------------------------------------------

    def fail(self, error: SeamgateError) -> None:
        """End because of an error: a denial if nothing of a response was sent, else a visible cut."""
        self.refuse(denial_of(error))

    def refuse(self, verdict: Verdict) -> None:
        """End with a denial, or, where the response has begun, with a cut that the guest can't take for an end."""
        if self._stage == DONE:
            return
        self._ending = verdict
        if self._answer is not None and self._answer.begun:
            self._guest.abort()
            self._end(Outcome.TRUNCATED)
            return
        self._status = verdict.reason.status
        self._guest.send_denial(verdict, self.request.id)
        self._end(Outcome.FAILED if self._decision is _ALLOWED else Outcome.DENIED)

    def on_guest_gone(self) -> None:
        """The guest closed: stop whatever is under way."""
        if self._stage != DONE:
            self._ending = deny("the guest closed its connection", reason=Reason.GUEST_GONE)
            self._end(Outcome.ABORTED)

    @property
    def _decision(self) -> Decision:
        """What we decided: an allowed request that the upstream failed, or the guest left, was allowed."""
        if self._verdict.effect is not _ALLOW:
            return _DENIED
        return _ALLOWED if self._ending is None or self._ending.reason in _NOT_OURS else _DENIED

    def _end(self, outcome: Outcome) -> None:
        """Write the terminal record, give the session back, tell the guest's side."""
        self._stage = DONE
        self._interim.stop()
        answer = self._answer
        if answer is not None:
            answer.close()
            if answer.begun:
                self._status = answer.status
        self._waiting.close()
        self._upload.close()
        denied = self._decision is _DENIED
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
        verdict, request = self._verdict, self.request
        why = self._ending or verdict
        reason = why.reason
        terminal, answer = outcome is not None, self._answer
        return _Record(
            time=self._seam.clock(),
            kind=kind,
            id=request.id,
            guest=_guest_part(request.guest),
            entry=self._entry,
            request=self._asked(reason),
            verdict=self._decision,
            reason=reason,
            rule=why.rule or verdict.rule,
            message=why.message,
            would_rule=verdict.would_rule,
            would_deny=verdict.would_deny,
            credentials=tuple([supply.credential for supply in self._supplies]),
            upstream=self._session_facts,
            status=self._status,
            bytes=AuditBytes(self._upload.body_bytes, 0 if answer is None else answer.body_bytes) if terminal else None,
            duration_ms=(_monotonic() - self._started) * 1000 if terminal else None,
            first_byte_ms=self._first_byte_ms,
            outcome=outcome,
            steps=tuple(self._steps) if terminal else (),
            generation=self._pipeline.generation,
        )

    def _asked(self, reason: Reason) -> AuditRequest:
        """Return the request's part of a record; both records of an allowed request have the same."""
        if self._audited is None or self._audited_for is not self.request or reason is not _NO_REASON:
            self._audited = request_part(self.request, self._seam.query_mode, reason)
            self._audited_for = self.request
        return self._audited
