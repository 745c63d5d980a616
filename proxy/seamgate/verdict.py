"""Verdicts, and the fold that makes one of many.

Every `judge_*` hook returns a `Verdict` or None; the pipeline folds what it got into one. Denial is the default by
construction: `Effect.DENY` is zero, the fold of nothing is a denial, and one denial outweighs any number of allows,
whatever their order. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from seamgate.errors import Reason, SeamgateError


class Effect(IntEnum):
    """What a verdict does. Zero is DENY, so that whatever is forgotten, cleared or unset denies."""

    DENY = 0
    DEFER = 1
    """Not decidable with what is known in this phase: come back with more (requests of a CONNECT, the body)."""
    ALLOW = 2


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits that the selected rule puts on a request. None: the gateway's own default holds."""

    request_body_bytes: int | None = None
    response_body_bytes: int | None = None
    requests: tuple[int, float] | None = None
    """(count, window in seconds), counted per guest and rule."""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """One opinion about one request.

    Attributes:
        effect: DENY unless said otherwise.
        reason: the stable code; ALLOWED exactly when the effect is ALLOW or DEFER.
        rule: id of the rule that decided, "" if no rule did.
        message: a sentence for whoever asked: what was missing, what to ask for. No secret, no header value.
        credentials: names of the credentials that the rule selects, in the order of the rule.
        inspect: names of the inspectors that the rule asks for.
        limits: the selected rule's limits.
        addresses: classes of addresses (`seamgate.address.AddressClass`) and networks in CIDR form, beyond public
            ones, that the rules let the host resolve to.
        would_deny: the message of a rule in audit mode that would have denied; "" if none would have.
        would_rule: the id of that rule.
        upgrade: what the allowed request may become, as `Request.upgrade`; "tcp" where a stream may pass unread; "" for
            neither.
        retry_after_s: how long to wait before the same request may be allowed; 0: waiting does not help, or unknown.
    """

    effect: Effect = Effect.DENY
    reason: Reason = Reason.NO_RULE_MATCHED
    rule: str = ""
    message: str = ""
    credentials: tuple[str, ...] = ()
    inspect: tuple[str, ...] = ()
    limits: Limits | None = None
    would_deny: str = ""
    would_rule: str = ""
    addresses: tuple[str, ...] = ()
    upgrade: str = ""
    retry_after_s: int = 0

    @property
    def allowed(self) -> bool:
        """Whether the request may go on. A deferred verdict is not an allow."""
        return self.effect is Effect.ALLOW


NO_OPINION = Verdict(message="No plugin allowed the request; the default is to deny.")
"""The fold of nothing."""


def allow(rule: str = "", *, message: str = "") -> Verdict:
    """Return an allow: for plugins that authorise by themselves."""
    return Verdict(Effect.ALLOW, Reason.ALLOWED, rule, message)


def deny(message: str, *, reason: Reason = Reason.RULE_DENIED, rule: str = "") -> Verdict:
    """Return a denial with a message for whoever asked."""
    return Verdict(Effect.DENY, reason, rule, message)


def denial_of(error: SeamgateError) -> Verdict:
    """Turn an error into the denial that it means."""
    return Verdict(Effect.DENY, error.reason, "", error.message)


def fold(verdicts: Iterable[Verdict | None]) -> Verdict:
    """Make one verdict of many: the first denial, else the first deferral, else the first allow, else a denial.

    Order-free in its effect: which denial is reported depends on the order, that it is a denial does not.
    """
    best: Verdict | None = None
    for verdict in verdicts:
        if verdict is None:
            continue
        if verdict.effect is Effect.DENY:
            return verdict
        if best is None or verdict.effect < best.effect:
            best = verdict
    return best if best is not None else NO_OPINION
