"""Revocation is live: what a new generation no longer allows ends at once, also where it was allowed before.

Called by the gateway after each reload (`revoke`), and by the exchanges and tunnels that it asks (`denial_of_sent`).
Whatever can't be shown to be allowed any more is denied, as for a new request, with one exception: that a plugin took
longer than its budget ends nothing, if the answer that it then gave does not. All that is under way is judged in one
go, on a machine that has just read a policy; a clock that ran on meanwhile says nothing about what is allowed. (Time
of the CPU would not do as a budget: a plugin that waits for a network uses none, and holds up everybody.) No I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from seamgate.credentials.binding import Binding
from seamgate.credentials.config import CredentialConfig
from seamgate.errors import Reason, SeamgateError
from seamgate.flow import BodyState, Headers, Request, Step
from seamgate.seam import IsBound, Seam, UnderWay
from seamgate.upstream.addresses import compile_permit
from seamgate.verdict import Effect, Verdict, denial_of, deny

_DENYING = frozenset(("deny", "failed", "overrun"))


class Revoked(msgspec.Struct, frozen=True):
    """What a reload ended."""

    exchanges: int = 0
    tunnels: int = 0


def bound_by(credentials: Mapping[str, CredentialConfig]) -> IsBound:
    """Return what tells whether a credential of this configuration may go with a request.

    Raises:
        ConfigError: one of them has no usable binding.
    """
    bindings = {name: Binding(name, config) for name, config in credentials.items()}

    def is_bound(name: str, request: Request) -> bool:
        binding = bindings.get(name)
        if binding is None or not binding.covers(request):
            return False
        return request.target.scheme == "https" or credentials[name].allow_http

    return is_bound


def revoke(seam: Seam, is_bound: IsBound) -> Revoked:
    """Have all that is under way judged again by the seam's present pipeline.

    Args:
        seam: with the new pipeline already in it.
        is_bound: of the new configuration, see `bound_by`.
    """
    # Exchanges first, so that each is recorded as revoked and not as gone with its tunnel.
    exchanges = sum([_ended(each, is_bound) for each in list(seam.under_way)])
    tunnels = sum([_ended(each, is_bound) for each in list(seam.tunnels)])
    return Revoked(exchanges, tunnels)


def search_anew(seam: Seam) -> None:
    """Have all that is under way searched for what is looked for from now on; it ends what can't be."""
    for each in list(seam.under_way):
        try:
            each.look_anew()
        except Exception as error:  # noqa: BLE001 - a fault with one of them must not spare the others
            context = {"message": f"{each!r} could not be searched anew", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


def _ended(each: UnderWay, is_bound: IsBound) -> bool:
    try:
        return each.judge_again(is_bound)
    except Exception as error:  # noqa: BLE001 - fail closed: a fault with one of them must not spare the others
        context = {"message": f"{each!r} could not be judged again", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        return False


def revoked(denial: Verdict) -> Verdict:
    """Return the denial that whoever is cut off gets for this one."""
    return deny(f"a newly loaded policy ended it: {denial.message}", reason=Reason.REVOKED, rule=denial.rule)


def denial_of_unsent(request_pending: bool, verdict: Verdict) -> Verdict | None:
    """Return why a request that has not left ends, or None. That limits are full is told as ever, see the exchange."""
    if verdict.effect is Effect.DEFER and not request_pending:
        return deny(verdict.message, reason=Reason.UNEVALUABLE, rule=verdict.rule)
    return verdict if verdict.effect is Effect.DENY and verdict.reason is not Reason.RATE_LIMITED else None


def judge_sent(
    seam: Seam,
    request: Request,
    trailers: Headers,
    steps: list[Step],
    used: Sequence[str],
    address: str,
    is_bound: IsBound,
) -> Verdict | None:
    """Judge a request that has left by the new pipeline: return why it ends, or None. `steps` gets who said what."""
    if request.body_state is BodyState.PENDING:
        # It went by without being held, so what a rule asks of it can't be told any more.
        request = msgspec.structs.replace(request, body_state=BodyState.OVERSIZE)
    verdict = seam.pipeline.judge_all(request, trailers, steps, late_denies=False)
    return denial_of_sent(seam, request, verdict, steps, used, address, is_bound)


def denial_of_sent(
    seam: Seam,
    request: Request,
    verdict: Verdict,
    steps: Sequence[Step],
    used: Sequence[str],
    address: str,
    is_bound: IsBound,
) -> Verdict | None:
    """Return why a request that has left, and what comes back of it, ends; or None.

    Args:
        seam: with the new pipeline.
        request: as far as it was read.
        verdict: what the new pipeline says of it, and `steps` who said what.
        used: names of the credentials that went with it.
        address: where it went.
        is_bound: whether a credential may go with it now.
    """
    granted: Sequence[str] = verdict.credentials
    if verdict.effect is Effect.DEFER:
        return deny(verdict.message, reason=Reason.UNEVALUABLE, rule=verdict.rule)
    if verdict.effect is Effect.DENY:
        # It was admitted once: that new counters are full is no reason to cut it, unless somebody else denies as well.
        if verdict.reason is not Reason.RATE_LIMITED or sum(step.outcome in _DENYING for step in steps) != 1:
            return verdict
        granted = used
    for name in used:
        if name not in granted or not is_bound(name, request):
            message = f"the credential {name!r} no longer goes with it"
            return deny(message, reason=Reason.CREDENTIAL_UNBOUND, rule=verdict.rule)
    target = request.target
    permit = seam.permit | compile_permit(verdict.addresses) if verdict.addresses else seam.permit
    try:
        seam.check((address,), target, permit)
    except SeamgateError as error:
        return denial_of(error)
    return None
