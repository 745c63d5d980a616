"""`seamgate policy diff`: what another policy would let through, and what it would not, rule by rule and by trial."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from seamgate.audit.view import printable
from seamgate.cli.counting import counted
from seamgate.cli.policy import _beside, _pipeline
from seamgate.document import read_text
from seamgate.errors import ConfigError, TargetError
from seamgate.flow import BodyState
from seamgate.policy.conditions import Outcome
from seamgate.policy.difference import Effect, RuleChange, layer_changes, rule_changes
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.files import policies_in, read_policies
from seamgate.policy.model import Policy, Rule
from seamgate.policy.samples import cases_of
from seamgate.policy.testing import Case, build_request, judge_as_exchange, parse_tests
from seamgate.verdict import Verdict

_TEST_SUFFIXES = (".test.yaml", "_test.yaml", ".test.yml", "_test.yml")
_EXAMPLES = 3
_COLOURS = {Effect.WIDENED: "yellow", Effect.NARROWED: "red", Effect.CHANGED: "cyan"}
_CHANGES = ("newly allowed", "newly denied", "other choice")


class _Trial(msgspec.Struct, frozen=True):
    """One request, judged by both."""

    case: Case
    old: Verdict
    new: Verdict

    @property
    def change(self) -> str:
        """What became of it: one of `_CHANGES`, or "" for the same."""
        if self.old.allowed is not self.new.allowed:
            return "newly allowed" if self.new.allowed else "newly denied"
        chosen = [(each.credentials, each.inspect, each.limits, each.addresses) for each in (self.old, self.new)]
        return "other choice" if self.new.allowed and chosen[0] != chosen[1] else ""


class _Difference(msgspec.Struct, frozen=True):
    """All that there is to tell."""

    rules: list[RuleChange]
    layers: list[tuple[Effect, str]]
    trials: list[_Trial]
    unchecked: list[RuleChange]

    def of(self, change: str) -> list[_Trial]:
        """Return the requests with this change."""
        return [trial for trial in self.trials if trial.change == change]

    @property
    def may_widen(self) -> bool:
        """Whether more gets through: by a request that was tried, by the text, or by what no request tells."""
        return bool(
            self.of("newly allowed")
            or any(effect is Effect.WIDENED for effect, _ in self.layers)
            or any(each.widens for each in self.rules)
            or any(each.effect is not Effect.NARROWED for each in self.unchecked)
        )


@click.command()
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tests",
    "tests",
    multiple=True,
    type=click.Path(exists=True, path_type=Path, dir_okay=False),
    help="A test file whose requests are tried too; repeatable. [default: those beside OLD and NEW]",
)
@click.option("--fail-on-widening", is_flag=True, help="Exit with 1 if anything is, or may be, widened.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def diff(old: Path, new: Path, tests: tuple[Path, ...], fail_on_widening: bool, as_json: bool) -> None:
    """Say how the policy NEW differs from OLD: which rules, and what becomes of which requests.

    Each is a file, or a folder whose policies are loaded together. Rules are compared by id: a change widens if it lets
    more through, narrows if less. Then requests are judged by both: those of the test files, and such as the changed
    rules themselves suggest, within their patterns and just beside them. A rule whose condition no such request meets
    is named: write a test case that does.

    \b
    git show main:team.yaml > old.yaml && seamgate policy diff old.yaml team.yaml
    seamgate policy diff policies.main policies --fail-on-widening
    """
    before, after = read_policies(_files(old)), read_policies(_files(new))
    found = _compare(before, after, list(tests) or _tests_beside(old, new))
    click.echo(json.dumps(_as_json(found))) if as_json else _show(found)
    if fail_on_widening and found.may_widen:
        raise SystemExit(1)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = policies_in(path)
    if not found:
        raise ConfigError(f"there is no policy in {path}: it holds no YAML file that says `seamgate: 1`")
    return found


def _tests_beside(*paths: Path) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(each for each in path.iterdir() if each.name.endswith(_TEST_SUFFIXES))
        elif _beside(path) != path:
            found.append(_beside(path))
    return list(dict.fromkeys(found))


def _compare(before: Sequence[Policy], after: Sequence[Policy], tests: Sequence[Path]) -> _Difference:
    old, new = Evaluator(before), Evaluator(after)
    rules, layers = rule_changes(before, after), layer_changes(before, after)
    now = time.time()
    suspects = [rule for each in rules for rule in (each.old, each.new) if rule is not None]
    if layers or [policy.audit for policy in before] != [policy.audit for policy in after]:
        suspects = [*old.rules.values(), *new.rules.values()]
    cases = [case for path in tests for case in parse_tests(read_text(path), str(path)).cases]
    cases += [case for rule in suspects for case in cases_of(rule, now)]
    trials = []
    for case in _distinct(cases):
        verdicts = [judge_as_exchange(case, _pipeline(each, case.now), "diff")[0] for each in (old, new)]
        trials.append(_Trial(case, *verdicts))
    unchecked = [each for each in rules if each.what != "renamed" and not _is_checked(each, old, new, trials)]
    return _Difference(rules, layers, trials, unchecked)


def _distinct(cases: Sequence[Case]) -> Iterator[Case]:
    seen: set[Any] = set()
    for case in cases:
        labels = tuple(sorted(case.guest.labels.items()))
        key = (case.method, case.url, labels, case.headers, case.body, case.times)
        if key not in seen:
            seen.add(key)
            yield case


def _is_checked(change: RuleChange, old: Evaluator, new: Evaluator, trials: Sequence[_Trial]) -> bool:
    """Whether some request met the rule, conditions included, where it stands."""
    return all(
        _is_met(rule, evaluator, trials)
        for rule, evaluator in ((change.old, old), (change.new, new))
        if rule is not None and rule.match.conditions
    )


def _is_met(rule: Rule, evaluator: Evaluator, trials: Sequence[_Trial]) -> bool:
    for trial in trials:
        if trial.case.url.startswith("tcp:"):
            continue
        try:
            request = build_request(trial.case, "diff")
        except TargetError:
            continue
        if trial.case.body is not None:
            request = msgspec.structs.replace(request, body=trial.case.body, body_state=BodyState.COMPLETE)
        if any(each is rule and said is Outcome.YES for each, said in evaluator.trace(request, trial.case.now)):
            return True
    return False


def _request_text(case: Case) -> str:
    labels = " ".join(f"{name}={value}" for name, value in sorted(case.guest.labels.items()))
    return printable(f"{case.method} {case.url}{f'  [{labels}]' if labels else ''}")


def _as_json(found: _Difference) -> dict[str, Any]:
    return {
        "rules": [_rule_json(each) for each in found.rules],
        "layers": [{"effect": str(effect), "detail": text} for effect, text in found.layers],
        "tried": len(found.trials),
        "requests": [_trial_json(trial) for change in _CHANGES for trial in found.of(change)],
        "unchecked": [each.rule for each in found.unchecked],
    }


def _rule_json(each: RuleChange) -> dict[str, Any]:
    return {
        "rule": each.rule,
        "what": each.what,
        "effect": str(each.effect),
        "widens": each.widens,
        "details": list(each.details),
        "old": each.old.place if each.old else "",
        "new": each.new.place if each.new else "",
    }


def _trial_json(trial: _Trial) -> dict[str, Any]:
    case = trial.case
    return {
        "change": trial.change.replace(" ", "_"),
        "from": case.name,
        "request": f"{case.method} {case.url}",
        "guest": dict(case.guest.labels),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in case.headers],
        "body": None if case.body is None else case.body.decode("utf-8", "replace"),
        "old": {"effect": "allow" if trial.old.allowed else "deny", "rule": trial.old.rule, "reason": trial.old.reason},
        "new": {"effect": "allow" if trial.new.allowed else "deny", "rule": trial.new.rule, "reason": trial.new.reason},
    }


def _show(found: _Difference) -> None:
    for effect, text in found.layers:
        click.echo(f"{click.style(effect, fg=_COLOURS[effect], bold=True)}  {text}")
    for each in found.rules:
        stands = each.new or each.old
        place = stands.place if stands is not None else ""
        what = each.what if each.what != "changed" else str(each.effect)
        tail = "" if each.what in ("changed", "renamed") else f", {each.effect}"
        word = click.style(what, fg=_COLOURS[each.effect], bold=True)
        click.echo(f"{word}{tail}  {each.rule}  {click.style(place, dim=True)}")
        for detail in each.details:
            click.echo(f"    {printable(detail)}")
    for change in _CHANGES:
        _show_trials(change, found.of(change))
    for each in found.unchecked:
        click.echo(f"\nno request meets the condition of {each.rule}: write a test case that does, to see what it does")
    counts = ", ".join(f"{len(found.of(change))} {change}" for change in _CHANGES)
    rules, tried = len(found.rules), len(found.trials)
    differ = f"{counted(rules, 'rule')} {'differs' if rules == 1 else 'differ'}"
    were = "was" if tried == 1 else "were"
    click.echo(f"\n{differ}; of {counted(tried, 'request')} that {were} tried: {counts}")


def _show_trials(change: str, trials: list[_Trial]) -> None:
    groups: dict[tuple[str, str], list[_Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.old.rule or trial.old.reason, trial.new.rule or trial.new.reason), []).append(trial)
    for (old, new), group in groups.items():
        click.echo(f"\n{click.style(change, bold=True)}  {old} -> {new}  ({len(group)})")
        for trial in group[:_EXAMPLES]:
            click.echo(f"    {_request_text(trial.case)}")
