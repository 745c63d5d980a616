"""`seamgate policy replay`: what a policy would have said to what an audit log recorded, by rule.

Nothing is guessed: the log holds no headers and no bodies, so what hangs on them is named as what can't be told.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from seamgate.address import canonical_address
from seamgate.audit.config import default_path
from seamgate.audit.line import parse_time
from seamgate.audit.parts import WITHHELD
from seamgate.audit.reading import read_lines
from seamgate.audit.view import Filter, parse_moment, printable, read_facts
from seamgate.cli.counting import counted
from seamgate.cli.policy import _CONFIG, _FILES, _policy_paths
from seamgate.errors import AuditError, ConfigError, SeamgateError
from seamgate.flow import Guest, Isolation, Request, Target
from seamgate.policy.bounds import BODY, HEADERS, QUERY, Bounded, Bounds
from seamgate.policy.files import read_policies
from seamgate.policy.model import Policy

_POLICY_REASONS = frozenset({"no_rule_matched", "rule_denied", "unevaluable", "upgrade_refused"})
_JUDGED_HOOKS = frozenset({"judge_request", "judge_connect"})
_NO_REQUEST = frozenset({"SEND", "SOCKET", "RESOLVE"})
_EXAMPLES = 3
_CHANGES = ("newly denied", "newly allowed", "another rule")


class _Left(Exception):
    """A record that can't be replayed; the message says why."""


class _Group(msgspec.Struct):
    """Records to which the same happened."""

    count: int = 0
    guests: set[str] = set()
    examples: list[str] = []

    def add(self, guest: str, example: str) -> None:
        """Count one; keep a few examples that differ."""
        self.count += 1
        self.guests.add(guest)
        if len(self.examples) < _EXAMPLES and example not in self.examples:
            self.examples.append(example)


class _Replay:
    """All that came out so far."""

    def __init__(self, policies: tuple[Policy, ...]) -> None:
        self._policies = policies
        self._bounds: dict[frozenset[str], Bounds] = {}
        self._guests: dict[str, Guest] = {}
        self.requests = 0
        self.same = 0
        self.first = self.last = ""
        self.changes: dict[tuple[str, str, str, str], _Group] = {}
        self.untold: dict[tuple[tuple[str, str, tuple[str, ...]], ...], _Group] = {}
        self.left: Counter[str] = Counter()

    def add(self, facts: Mapping[str, Any]) -> None:
        """Judge one record anew, if it is one that a policy judged."""
        if facts.get("kind") not in ("request", "connect"):
            return
        try:
            was_allowed = _policy_said(facts)
            request, unknown = self._request(facts)
        except _Left as why:
            self.left[str(why)] += 1
            return
        moment = str(facts.get("time", ""))
        self.first, self.last = self.first or moment, moment
        self.requests += 1
        if unknown not in self._bounds:
            self._bounds[unknown] = Bounds(self._policies, unknown)
        self._compare(facts, request, was_allowed, self._bounds[unknown].judge(request, request.received_at))

    def _compare(self, facts: Mapping[str, Any], request: Request, was_allowed: bool, now: Bounded) -> None:
        example = f"{request.method} {request.target.origin}{request.path if request.method != 'CONNECT' else ''}"
        if now.verdict is None:
            key = tuple((each.rule, each.place, each.asks) for each in now.open)
            self.untold.setdefault(key, _Group(0, set(), [])).add(request.guest.id, example)
            return
        was, rule = str(facts.get("rule", "")), now.verdict.rule
        if now.allowed is was_allowed and (was == rule or not was_allowed):
            self.same += 1
            return
        change = "another rule" if now.allowed is was_allowed else "newly allowed" if now.allowed else "newly denied"
        at = (change, was, rule, str(now.verdict.reason))
        self.changes.setdefault(at, _Group(0, set(), [])).add(request.guest.id, example)

    def _request(self, facts: Mapping[str, Any]) -> tuple[Request, frozenset[str]]:
        """Return the request as far as it is recorded, and which parts are not."""
        asked, guest = facts.get("request"), facts.get("guest")
        if not isinstance(asked, dict) or not asked.get("host"):
            raise _Left("refused before it was understood")
        if not isinstance(guest, dict):
            raise _Left("refused before its guest was known")
        method, scheme = str(asked.get("method", "")), str(asked.get("scheme", ""))
        if method in _NO_REQUEST:
            raise _Left("no requests: packets, sockets and names of guests in namespaces")
        if method == "CONNECT" and scheme != "tcp":
            raise _Left("tunnels: what was asked through them has records of its own")
        path = str(asked.get("path", ""))
        if scheme != "tcp" and (not path or path == WITHHELD or " [cut: " in path):
            raise _Left("recorded short: the path, or the guest's labels, are not there")
        host = str(asked["host"])
        target = Target(scheme, host, int(asked.get("port", 0)), canonical_address(host) is not None)
        query = asked.get("query")
        known = {QUERY} if isinstance(query, str) and " [cut: " not in query else set()
        if (facts.get("bytes") or {}).get("request_body") == 0 and facts.get("outcome") == "complete":
            known.add(BODY)
        upgrade = "websocket" if facts.get("websocket") or facts.get("reason") == "upgrade_refused" else ""
        request = Request(
            str(facts.get("id", "")),
            self._guest(guest),
            target,
            method,
            path or "*",
            query if QUERY in known else None,
            received_at=parse_time(str(facts["time"])),
            upgrade=upgrade,
        )
        return request, frozenset({HEADERS, QUERY, BODY}) - known

    def _guest(self, told: Mapping[str, Any]) -> Guest:
        key = json.dumps(told, sort_keys=True)
        known = self._guests.get(key)
        if known is None:
            labels = {str(name): str(value) for name, value in (told.get("labels") or {}).items()}
            isolation = Isolation(str(told.get("isolation") or Isolation.PROXY))
            known = self._guests[key] = Guest(str(told.get("id", "")), labels, isolation)
        return known


def _policy_said(facts: Mapping[str, Any]) -> bool:
    """Return whether the policy, whatever others said, allowed a recorded request."""
    reason = str(facts.get("reason", ""))
    if reason == "rate_limited":
        raise _Left("denied by a limit of requests, which is not replayed")
    if reason == "revoked":
        raise _Left("ended by a reload")
    said = [step[3] for step in facts.get("steps") or () if step[0] == "policy" and step[1] in _JUDGED_HOOKS]
    if facts.get("verdict") == "allow" or (said and said[-1] == "allow"):
        return True
    if reason in _POLICY_REASONS or (said and said[-1] == "deny"):
        return False
    raise _Left("never judged by a policy")


@click.command()
@_FILES
@_CONFIG
@click.option(
    "--audit",
    "journal",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The audit log. [default: $SEAMGATE_AUDIT, else the user's state directory]",
)
@click.option("--since", default="", metavar="TIME", help="2026-12-01T09:00:00Z, a date, or 15m, 2h, 7d ago.")
@click.option("--until", default="", metavar="TIME", help="As --since; records before it.")
@click.option("--fail-on-denial", is_flag=True, help="Exit with 1 if something that was allowed would be denied.")
@click.option("--fail-on-widening", is_flag=True, help="Exit with 1 if something that was denied would be allowed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def replay(
    files: tuple[Path, ...],
    config: Path | None,
    journal: Path | None,
    since: str,
    until: str,
    fail_on_denial: bool,
    fail_on_widening: bool,
    as_json: bool,
) -> None:
    """Put what an audit log recorded to policy FILES, and say what would change, by rule.

    Each request is judged as of its own time, by what is recorded of it: guest, labels, method, target, path. The log
    holds no headers, no bodies, and of a query the names (unless `audit: query: full`): where the verdict hangs on
    them, that is said, with the rules that ask, and nothing is guessed. Limits of requests, credentials and other
    plugins are not replayed.

    \b
    seamgate policy replay org.yaml team.yaml --audit audit.jsonl --since 7d
    seamgate policy replay candidate.yaml --fail-on-denial
    """
    outcome = _Replay(read_policies(_policy_paths(files, config)))
    for facts in _records(journal or default_path(), since, until):
        outcome.add(facts)
    click.echo(json.dumps(_as_json(outcome))) if as_json else _show(outcome)
    happened = {change for change, *_ in outcome.changes}
    if (fail_on_denial and "newly denied" in happened) or (fail_on_widening and "newly allowed" in happened):
        raise SystemExit(1)


def _records(journal: Path, since: str, until: str) -> Iterator[Mapping[str, Any]]:
    now = time.time()
    try:
        wanted = Filter(
            since=parse_moment(since, now) if since else "", until=parse_moment(until, now) if until else ""
        )
        for line in read_lines(journal):
            facts = read_facts(line)
            if wanted.admits(facts):
                yield facts
    except AuditError as error:
        raise ConfigError(error.message) from None
    except OSError as error:
        raise SeamgateError(f"the audit log can't be read: {error.strerror} ({error.filename})") from None


def _groups(outcome: _Replay) -> Iterator[tuple[tuple[str, str, str, str], _Group]]:
    order = {change: place for place, change in enumerate(_CHANGES)}
    yield from sorted(outcome.changes.items(), key=lambda each: (order[each[0][0]], -each[1].count, each[0]))


def _as_json(outcome: _Replay) -> dict[str, Any]:
    return {
        "requests": outcome.requests,
        "first": outcome.first,
        "last": outcome.last,
        "same": outcome.same,
        "changes": [
            {
                "change": change.replace(" ", "_"),
                "was_rule": was,
                "rule": rule,
                "reason": reason,
                "count": group.count,
                "guests": len(group.guests),
                "examples": group.examples,
            }
            for (change, was, rule, reason), group in _groups(outcome)
        ],
        "untold": [
            {
                "hangs_on": [{"rule": rule, "place": place, "asks": list(asks)} for rule, place, asks in rules],
                "count": group.count,
                "guests": len(group.guests),
                "examples": group.examples,
            }
            for rules, group in sorted(outcome.untold.items(), key=lambda each: -each[1].count)
        ],
        "not_replayed": dict(outcome.left.most_common()),
    }


def _show(outcome: _Replay) -> None:
    colours = {"newly denied": "red", "newly allowed": "yellow", "another rule": "cyan"}
    counts: Counter[str] = Counter(dict.fromkeys(_CHANGES, 0))
    for (change, *_), group in outcome.changes.items():
        counts[change] += group.count
    untold = sum(group.count for group in outcome.untold.values())
    told = ", ".join(
        f"{count} {change if change != 'another rule' else 'by another rule'}"
        for change, count in counts.items()
        if count
    )
    span = f", {outcome.first} to {outcome.last}" if outcome.requests else ""
    click.echo(f"{counted(outcome.requests, 'request')}{span}")
    click.echo(
        f"{outcome.same} as recorded{f', {told}' if told else ''}{f', {untold} can not be told' if untold else ''}"
    )
    for (change, was, rule, reason), group in _groups(outcome):
        by = f"by {rule}" if rule else reason
        before = was or "denied, since no rule allowed it"
        click.echo(f"\n{click.style(change, fg=colours[change], bold=True)}  {by}, was {before}")
        _show_group(group)
    for rules, group in sorted(outcome.untold.items(), key=lambda each: -each[1].count):
        click.echo(f"\n{click.style('can not be told', bold=True)}  it hangs on what is not recorded:")
        for rule, place, asks in rules:
            click.echo(f"    {rule}  {click.style(place, dim=True)}  {'; '.join(asks)}")
        _show_group(group)
    if outcome.left:
        click.echo("\nnot replayed:")
        for why, count in outcome.left.most_common():
            click.echo(f"  {count:>7}  {why}")


def _show_group(group: _Group) -> None:
    click.echo(f"  {group.count:>7}  of {counted(len(group.guests), 'guest')}")
    for example in group.examples:
        click.echo(f"           {printable(example)}")
