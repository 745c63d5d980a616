"""What the evaluator works with: the rules that are left of all, their sum, and what comes of it. Frozen values.

Made and read by `policy.evaluation` alone, apart from `Decision`. A room of its own, because the evaluator is compiled
for speed and these structures are compiled already (msgspec).
"""

from __future__ import annotations

import msgspec

from seamgate.errors import Reason
from seamgate.policy.model import Exemption, Layer, Rule
from seamgate.policy.selection import Rate
from seamgate.verdict import Effect, Verdict


class Decision(msgspec.Struct, frozen=True):
    """A verdict, and the rate limits that an allowed request is to be counted against."""

    verdict: Verdict
    rates: tuple[Rate, ...] = ()


class Ban(msgspec.Struct, frozen=True):
    """A deny rule that covers guest, target, method and path, with the exemptions that may still lift it."""

    rule: Rule
    exemptions: tuple[Exemption, ...]


class Plan(msgspec.Struct, frozen=True):
    """The rules that are left when guest, target, method and path are known."""

    allows: tuple[Rule, ...]
    bans: tuple[Ban, ...]


class Fold(msgspec.Struct, frozen=True):
    """The sum of outcomes. `rule`: the one that decided; `layer`: the one that no rule allows."""

    effect: Effect
    reason: Reason = Reason.ALLOWED
    rule: Rule | None = None
    layer: Layer | None = None
