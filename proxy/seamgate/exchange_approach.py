"""The first hops of an exchange: judge, amend, supply, resolve, take a session.

    judge -> (gather the body, judge again) -> amend -> supply -> resolve -> session

The base of `seamgate.exchange`, which goes on from there. Everything is callbacks: where a name is cached, a session is
warm and a credential is at hand, a request comes this far without a task or an await. Whatever goes wrong ends in
`refuse`. Nothing of the request has left when these hops are done, and a denied one has cost no look-up.

State: `_stage` says how far it is; `_session` is set while an upstream is ours; `_upload` is the request's body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from seamgate.audit.record import AuditUpstream
from seamgate.errors import Reason, ResolveFailed, SeamgateError
from seamgate.exchange_facts import Facts
from seamgate.flow import BodyState, Headers, Request, Resolution, Supply
from seamgate.interim import Interim
from seamgate.protocol.work import HEAD, VERIFIED
from seamgate.refusing import nothing_begins
from seamgate.seam import IsBound, Seam
from seamgate.sides import GuestSide, UpstreamSide
from seamgate.stage import GATHERING, JUDGING, NAMES, WAITING
from seamgate.turns import Share
from seamgate.upload import Upload
from seamgate.upstream.addresses import compile_permit
from seamgate.verdict import Effect, Verdict, denial_of, deny
from seamgate.waiting import Waiting

NOTHING: Final[tuple[Headers, str | None]] = ((), None)
"""What goes out while nothing is ready to."""
JUDGED_SHIFT: Final = 10
"""A body that rules look into costs a unit of its guest's turn for each KiB (1 << 10): the next one waits until that is
paid, so that there are turns of all others between them, as many as it is long."""
# A member of an enumeration costs a look-up in its class and its base classes each time, an imported name one in the
# module: these are asked for often.
_ALLOW: Final = Effect.ALLOW
_PENDING: Final = BodyState.PENDING
_Upstream: Final = AuditUpstream
_Supply: Final = Supply
_RESOLVE_FAILED: Final = Reason.RESOLVE_FAILED
_TIMED_OUT: Final = Reason.UPSTREAM_TIMEOUT


class Approach:
    """One request on its way to a session."""

    __slots__ = (
        "_addresses", "_facts", "_guest", "_interim", "_outgoing", "_pipeline", "_seam", "_session", "_stage",
        "_to_supply", "_upload", "_waiting", "request",
    )  # fmt: skip

    def __init__(
        self, seam: Seam, guest_side: GuestSide, request: Request, *, entry: str, body: int, expects_continue: bool
    ) -> None:
        self.request = request
        self._seam = seam
        self._guest = guest_side
        self._pipeline = seam.pipeline
        self._facts = Facts(entry)
        self._upload = Upload(body, seam.held, request.guest.id)
        self._interim = Interim(guest_side, self._upload, expects=expects_continue)
        self._stage: int = JUDGING
        self._outgoing: tuple[Headers, str | None] = NOTHING
        self._addresses: tuple[str, ...] = ()
        self._to_supply: tuple[str, ...] = ()
        self._session: UpstreamSide | None = None
        self._waiting = Waiting(request.id, self.guarded, self.refuse)

    def __repr__(self) -> str:
        return f"<Exchange {self.request.id} {self.request.method} {self.request.url} {NAMES[self._stage]}>"

    @property
    def share(self) -> Share:
        """The guest's part of each turn of the loop."""
        return self._guest.share

    # -- what the last hops do -----------------------------------------------------------------------------------------

    def refuse(self, verdict: Verdict) -> None:
        """End with a denial."""
        raise NotImplementedError

    def judge_again(self, is_bound: IsBound) -> bool:
        """A reload replaced the pipeline: judge by the new one."""
        raise NotImplementedError

    def look_anew(self) -> bool:
        """Have the rest of its bodies searched for what is looked for now."""
        raise NotImplementedError

    def _send(self) -> None:
        """There is a session: go on."""
        raise NotImplementedError

    # -- judge ---------------------------------------------------------------------------------------------------------

    def start(self, refusal: Verdict | None = None) -> None:
        """Judge the head and go as far as that leads without waiting; or refuse what the guest's side can't carry."""
        seam = self._seam
        seam.requests_total += 1
        seam.under_way.add(self)
        if refusal is None:
            refusal = nothing_begins(seam)
        if refusal is not None:
            self.refuse(refusal)
        else:
            self._judge()

    def _judge(self) -> None:
        """Ask the pipeline with what is known of the request now."""
        self._follow(self._judged(self.request))

    def _judged(self, request: Request) -> Verdict:
        """Return the pipeline's verdict on this request, with the trailers where they have come."""
        return self._pipeline.judge_all(request, self._upload.trailers, self._facts.steps)

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
        """Judge with the body, in its turn: what rules look into takes long, and a guest may send many at once."""
        if state is BodyState.COMPLETE and self.share.left <= 0:
            self.share.wait(self._judge_body_late)
            return
        body: bytes | None = None
        if state is BodyState.COMPLETE:
            body, state = self._upload.to_judge(self.request.headers, self._seam.limits.judged_body_bytes)
            self.share.spend(HEAD + (0 if body is None else len(body) >> JUDGED_SHIFT))
        self.request = msgspec.structs.replace(self.request, body=body, body_state=state)
        self._stage = JUDGING
        self._judge()

    def _judge_body_late(self) -> None:
        """Its turn has come, unless it ended meanwhile, or another policy has judged it."""
        if self._stage == GATHERING and self.request.body_state is _PENDING:
            self.guarded(lambda: self._judge_body(BodyState.COMPLETE))

    def _too_long(self) -> bool:
        """Refuse a body that is longer than the rule or the gateway takes; True if so."""
        limits = self._facts.verdict.limits
        limit = limits.request_body_bytes if limits is not None else None
        if limit is None:
            limit = self._seam.request_body_bytes
        if limit is None or max(self._upload.length, self._upload.body_bytes) <= limit:
            return False
        self.refuse(deny(f"the request body is longer than {limit} bytes", reason=Reason.BODY_TOO_LARGE))
        return True

    # -- allowed: amend, supply ----------------------------------------------------------------------------------------

    def _allowed(self, verdict: Verdict) -> None:
        """A rule allows the request: go on towards a session."""
        self._facts.verdict = verdict
        self._stage = WAITING
        if self._too_long():
            return
        try:
            if self._pipeline.amends and not self._amended():
                return
            # Before anything is looked up or dialled: what can't be supplied is a denial, and a denial costs no query.
            self._to_supply, self._facts.supplies = self._facts.verdict.credentials, []
            self._supply()
        except SeamgateError as error:
            self.fail(error)

    def _amended(self) -> bool:
        """Apply amendments and judge again; False if that denied."""
        before, self.request = self.request, self._pipeline.amend_request(self.request, self._facts.steps)
        if self.request is before:
            return True
        verdict = self._judged(self.request)
        if not verdict.allowed:
            self.refuse(verdict if verdict.effect is Effect.DENY else deny("", reason=Reason.UNEVALUABLE))
            return False
        self._facts.verdict = verdict
        return True

    def _supply(self) -> None:
        """Get the selected credentials, one after the other; then resolve."""
        while self._to_supply:
            name = self._to_supply[0]
            found = self._pipeline.supply_credential(self.request, name, self._facts.steps)
            if found is not None and type(found) is not _Supply:
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
        self._facts.supplies.append(supply)

    # -- resolve, take a session ---------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        target = self.request.target
        known = self._seam.known_address(target)
        if known is not None:
            self._resolved(known)
        else:
            found = self._pipeline.resolve_name(target.host, self._facts.steps)
            self._waiting.then(found, self._resolved, self._seam.resolve_timeout_s, _RESOLVE_FAILED)

    def _resolved(self, resolution: Resolution | None) -> None:
        """Check every address, then take a session to one of them."""
        target = self.request.target
        if resolution is None:
            raise ResolveFailed(f"no plugin resolves names; {target.host} can't be reached")
        named = self._facts.verdict.addresses
        permit = self._seam.permit | compile_permit(named) if named else self._seam.permit
        self._addresses = self._seam.check(resolution.addresses, target, permit)
        self._acquire()

    def _acquire(self, *, fresh: bool = False) -> None:
        request = self.request
        found = self._seam.pool.acquire(
            request.target, self._addresses, request.guest, self._pipeline.generation, fresh=fresh
        )
        self._waiting.then(found, self._got_session, self._seam.session_patience_s, _TIMED_OUT)

    def _got_session(self, session: UpstreamSide) -> None:
        self._session = session
        self._facts.session = _Upstream(session.address, session.id, session.reused, self._upload.tries or 1)
        if not session.reused:
            if self.request.target.scheme == "https":
                self.share.spend(VERIFIED)
            self._seam.opened(self.request.guest, self.request.target, session.address)
        self._send()

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def guarded(self, step: Callable[[], None]) -> None:
        """Run a step; whatever goes wrong in it ends the exchange, closed."""
        try:
            step()
        except SeamgateError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - fail closed: a fault of ours denies, is audited and is reported
            self.fail(SeamgateError("a fault of the gateway", reason=Reason.INTERNAL_ERROR))
            asyncio.get_running_loop().call_exception_handler({"message": "exchange failed", "exception": error})

    def fail(self, error: SeamgateError) -> None:
        """End because of an error: a denial if nothing of a response was sent, else a visible cut."""
        self.refuse(denial_of(error))
