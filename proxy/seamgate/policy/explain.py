"""Says why: the sentence that goes with a denial, and the long form for `policy explain`.

A denial names the rule that decided, or the nearest one and what the request lacked. Nearest is found among a bounded
number of neighbours in the index, so that a denial costs the same at any number of rules. Sentences reach the guest
and the audit log: they hold names of rules, patterns, hosts, methods and paths, never a value of query, header or body.

Called by `evaluation` on a denial and by the CLI. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice

import msgspec

from seamgate.errors import Reason, TargetError
from seamgate.flow import Guest, Request, Target
from seamgate.policy.conditions import Outcome, View
from seamgate.policy.index import HostIndex, find_allows
from seamgate.policy.model import Layer, Match, Rule
from seamgate.policy.overrides import Overrides, find_overrides
from seamgate.policy.patterns import HostPattern, covers_as_allow, strict_readings

NEIGHBOURS = 8
"""Rules looked at on each side of where the request would stand in the index."""
_SHOWN = 3
_COUNTED = 1000
_COMPARED = 256
"""Paths of a rule up to which each is compared; a longer list is believed not to cover what the index did not find."""
_LONGEST_PATH = 256
"""Characters of a path that a sentence repeats: it is kept with a decision, and goes into records."""
_SIMILAR = 0.85
"""api.githb.com is close to api.github.com; example.com is not close to example.org."""


class Near(msgspec.Struct, frozen=True):
    """A rule that does not allow the request, and each thing that it lacks."""

    rule: Rule
    lacks: tuple[str, ...]
    host_fits: bool


def ban_message(rule: Rule, reason: Reason, view: View | None) -> str:
    """Return the sentence for a deny rule that covers the request, or may."""
    if reason is Reason.UNEVALUABLE and view is not None:
        causes = [each.explain(view) for each in rule.match.conditions if each.judge(view) is Outcome.UNKNOWN]
        return f"Rule {rule.id} may deny it: {'; '.join(causes)}."
    return f"Rule {rule.id} denies it{_because(rule)}."


def unknown_message(rule: Rule, view: View) -> str:
    """Return the sentence for an allow rule whose condition can't be evaluated."""
    causes = [each.explain(view) for each in rule.match.conditions if each.judge(view) is Outcome.UNKNOWN]
    return f"Rule {rule.id} would allow it, but {'; '.join(causes)}."


def _because(rule: Rule) -> str:
    return f": {rule.reason.strip().rstrip('.')}" if rule.reason.strip() else ""


class Explainer:
    """Finds the nearest rules of an index.

    Attributes:
        layers: those that must allow a request.
        shadow: speak as if all were enforced: audit mode is no lack.
    """

    def __init__(self, allows: HostIndex, layers: tuple[Layer, ...], *, shadow: bool = False) -> None:
        self._allows = allows
        self.layers = layers
        self.shadow = shadow

    def missing(self, request: Request, layer: Layer | None, now: float, view: View | None) -> str:
        """Return the sentence for a request that no rule of the layer allows; without a view, silent on conditions."""
        what = f"{request.method} {request.target.origin}{_shown(request.path)}"
        return self._missing(what, layer, self.nearest(request, layer, now, view=view))

    def missing_connect(self, guest: Guest, target: Target, layer: Layer | None, now: float) -> str:
        """Return the sentence for a tunnel none of whose requests could be allowed."""
        passed = msgspec.structs.replace(target, scheme="tcp")  # what it may be instead, where a rule says so
        near = []
        for rule, fits in self._neighbours(target, "").items():
            if layer is None or rule.layer is layer:
                place = passed if "tcp" in rule.match.schemes else target
                lacks = tuple(self._target_lacks(rule, guest, place, now, fits))
                if lacks:
                    near.append(Near(rule, lacks, fits))
        return self._missing(target.origin, layer, _sorted(near))

    def nearest(
        self, request: Request, layer: Layer | None, now: float, *, view: View | None = None, limit: int = 1
    ) -> list[Near]:
        """Return the allow rules that lack least, nearest first.

        Args:
            request: what was denied.
            layer: only rules of this layer; None: of all.
            now: Unix seconds.
            view: to look into query, headers and body as well.
            limit: at most so many.
        """
        buckets = self._allows.find(request.target)
        covering = dict.fromkeys(islice(find_allows(buckets, request.path, request.guest), 4 * NEIGHBOURS), True)
        near = []
        for rule, fits in (covering | self._neighbours(request.target, request.path.removeprefix("/"))).items():
            if layer is None or rule.layer is layer:
                lacks = tuple(self._lacks(rule, request, now, view, fits, rule in covering))
                if lacks:
                    near.append(Near(rule, lacks, fits))
        return _sorted(near)[:limit]

    def _missing(self, what: str, layer: Layer | None, found: list[Near]) -> str:
        if not self.layers:
            return f"No rule allows {what}: no policy is enforced."
        who = f"No rule of layer {layer}" if layer is not None and len(self.layers) > 1 else "No rule"
        if not found:
            return f"{who} allows {what}."
        near = found[0]
        return f"{who} allows {what}; nearest rule {near.rule.id}: {', '.join(near.lacks)}."

    def _neighbours(self, target: Target, path: str) -> dict[Rule, bool]:
        """Return some rules near the path, without its leading slash, and whether their hosts cover the target.

        Rules of the very host, if there are any, else of hosts that look alike: the index knows which are which, so
        that nobody walks through a list of a hundred thousand hosts.
        """
        found = [rule for bucket in self._allows.find(target) for rule in bucket.near(path, NEIGHBOURS)]
        if found:
            return dict.fromkeys(found, True)
        alike = (each for each in self._allows.near(target.host, NEIGHBOURS) if _related(each.pattern, target.host))
        return dict.fromkeys((rule for bucket in alike for rule in islice(bucket.near(path, NEIGHBOURS), 2)), False)

    def _lacks(
        self, rule: Rule, request: Request, now: float, view: View | None, fits: bool, covering: bool
    ) -> Iterator[str]:
        match = rule.match
        yield from self._target_lacks(rule, request.guest, request.target, now, fits)
        if not match.covers_method(request.method):
            yield f"method {request.method} is not one of {_some(sorted(match.methods or ()))}"
        methods, others = _overrides(request)
        if any(not match.covers_method(each) for each in methods):
            yield "it does not cover the method that a header or _method asks for instead"
        if any(not match.covers_path(each) for each in others):
            yield "it does not cover the path that a header names instead"
        paths = match.paths or ()
        if not covering and (len(paths) > _COMPARED or not match.covers_path(request.path)):
            yield f"path {_shown(request.path)} is not {_some(each.text for each in paths)}"
        elif "%2F" in request.path and not rule.encoded_slash:
            yield "the path holds %2F and the rule has no encoded_slash: true"
        elif paths and covering and (readings := strict_readings(request.path)) is not None:
            if not covers_as_allow(paths, request.path, readings):
                yield "the path has escapes or dots that an origin may read as another path, which it does not cover"
        if view is not None:
            for condition in match.conditions:
                if condition.judge(view) is not Outcome.YES:
                    yield condition.explain(view)

    def _target_lacks(self, rule: Rule, guest: Guest, target: Target, now: float, fits: bool) -> Iterator[str]:
        match = rule.match
        if not fits:
            yield f"host {target.host} is not {_some(each.text for each in match.hosts or ())}"
        if target.scheme not in match.schemes:
            yield f"scheme {target.scheme} is not {_some(sorted(match.schemes))}"
        elif not match.covers_port(target.scheme, target.port):
            yield f"port {target.port} is not {_ports(match, target.scheme)}"
        for name, values in match.guests:
            value = guest.labels.get(name)
            if value is None:
                yield f"the guest has no label {name}"
            elif values is not None and value not in values:
                yield f"the guest's label {name} is {value!r}, not {_some(repr(each) for each in sorted(values))}"
        if rule.expires_at <= now:
            yield "it has expired"
        if rule.audit and not self.shadow:
            yield "it is in audit mode"


def _shown(path: str) -> str:
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}... ({len(path)} characters)"


def _overrides(request: Request) -> Overrides:
    try:
        return find_overrides(request) or ((), ())
    except TargetError:
        return (), ()  # the request was refused for it


def _sorted(near: list[Near]) -> list[Near]:
    return sorted(near, key=lambda each: (not each.host_fits, sum(map(_weight, each.lacks)), each.rule.id))


# What a request met counts for more than how much it lacks: a rule of this very path whose model, label or date does
# not fit is what was meant, rather than one of another path that lacks nothing else.
_WEIGHTS = {"path ": 100, "scheme ": 60, "port ": 60, "method ": 40}


def _weight(lack: str) -> int:
    return next((weight for start, weight in _WEIGHTS.items() if lack.startswith(start)), 10)


def _related(pattern: HostPattern | None, host: str) -> bool:
    """Whether a pattern shares the end of a host that looks registrable (two labels), or may be what was meant."""
    if pattern is None:
        return False
    labels = pattern.labels
    if len(labels) > 1 and host.split(".")[-2:] == [labels[1], labels[0]]:
        return True
    return SequenceMatcher(None, pattern.text, host).ratio() > _SIMILAR


def _ports(match: Match, scheme: str) -> str:
    if match.ports is None:
        return "443" if scheme == "https" else "80"
    return _some(str(low) if low == high else f"{low}-{high}" for low, high in match.ports)


def _some(texts: Iterable[str]) -> str:
    """Return the first few, joined by "or"."""
    rest = iter(texts)
    shown = list(islice(rest, _SHOWN))
    more = sum(1 for _ in islice(rest, _COUNTED))
    if not shown:
        return "anything: the list is empty"
    if not more:
        return " or ".join(shown)
    return f"{' or '.join(shown)} or {more if more < _COUNTED else f'over {_COUNTED}'} more"
