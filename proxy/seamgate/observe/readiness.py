"""Whether a gateway can do its job now, and what is in the way. Pure: looks, changes nothing.

Asked by `/readyz`, `/status` and the metrics. A gateway that is not ready refuses every request, or is about to end;
one that merely denies what its policy denies is ready.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from seamgate.gateway import Gateway
    from seamgate.pipeline import Pipeline

CODES = ("draining", "audit_unavailable", "policy_expired", "ca_expired", "connections_full", "no_workers")
"""Every code that a `Problem` can have: stable, for alerts."""


class Problem(msgspec.Struct, frozen=True):
    """Why a gateway is not ready: a stable code, and a sentence for people."""

    code: str
    message: str


def problems(gateway: Gateway) -> list[Problem]:
    """Return what keeps the gateway from serving; empty when it is ready."""
    return list(_problems(gateway))


def _problems(gateway: Gateway) -> Iterator[Problem]:
    seam, now = gateway.seam, gateway.seam.clock()
    if seam.draining or seam.retiring:
        yield Problem("draining", "the gateway is stopping and takes no new request")
    if not seam.journal.healthy:
        yield Problem("audit_unavailable", "the audit log can't be written, so every request is refused")
    if _nothing_allowed(seam.pipeline, now):
        yield Problem("policy_expired", "every rule that allowed something has expired")
    if gateway.ca_expires_at is not None and gateway.ca_expires_at <= now:
        yield Problem("ca_expired", "the gateway's CA has expired, so no guest's TLS can be terminated")
    if idle := gateway.idle_because():
        yield Problem("no_workers", idle)
    if gateway.connections.full:
        yield Problem("connections_full", "as many guests are connected as limits.connections allows")


def loaded_policies(pipeline: Pipeline) -> tuple[Any, ...]:
    """Return the policies (`seamgate.policy.model.Policy`) of a pipeline, as the plugin that enforces them has them."""
    for plugin in pipeline.plugins:
        evaluator = getattr(plugin.plugin, "evaluator", None)
        if evaluator is not None:
            return tuple(evaluator.policies)
    return ()


class Expiries(msgspec.Struct, frozen=True):
    """When the rules of a pipeline expire: worked out once, since there may be 100,000 of them.

    Attributes:
        rules: how many there are.
        at: when those expire that do, sorted.
        allows_until: when the last one that allows anything expires; 0 if none allows.
    """

    rules: int
    at: tuple[float, ...]
    allows_until: float


def rule_counts(pipeline: Pipeline, now: float) -> tuple[int, int]:
    """Return how many rules are in force, and how many have expired."""
    found = _expiries(pipeline)
    expired = bisect_right(found.at, now)
    return found.rules - expired, expired


def next_expiry(pipeline: Pipeline, now: float) -> float | None:
    """Return the Unix time at which the next rule expires, or None."""
    at = _expiries(pipeline).at
    place = bisect_right(at, now)
    return at[place] if place < len(at) else None


def _nothing_allowed(pipeline: Pipeline, now: float) -> bool:
    """Whether there are allowing rules, and all have expired. A policy that never allowed anything means that."""
    return 0 < _expiries(pipeline).allows_until <= now


@lru_cache(maxsize=1)
def _expiries(pipeline: Pipeline) -> Expiries:
    rules = [rule for policy in loaded_policies(pipeline) for rule in policy.rules]
    at = sorted([rule.expires_at for rule in rules if rule.expires_at != math.inf])
    return Expiries(len(rules), tuple(at), max([rule.expires_at for rule in rules if rule.allows], default=0.0))
