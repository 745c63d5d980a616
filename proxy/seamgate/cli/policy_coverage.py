"""`seamgate policy coverage`: which rules, and which parts of them, the tests beside a policy exercise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from seamgate.cli.policy import _pipeline, _test_paths
from seamgate.document import read_text
from seamgate.policy.coverage import Coverage, RuleCoverage, percent
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.files import policies_in, read_policies, read_policy
from seamgate.policy.model import Policy
from seamgate.policy.testing import parse_tests, run_suite


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--fail-under", type=click.FloatRange(0, 100), metavar="PERCENT", help="Exit with 1 if less is exercised."
)
@click.option("-v", "--verbose", is_flag=True, help="Show what is exercised too, with the number of cases.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def coverage(files: tuple[Path, ...], fail_under: float | None, verbose: bool, as_json: bool) -> None:
    """Say which rules the policy tests exercise, and which parts of them: what could be wrong and no test would tell.

    FILES are test files, or folders to search, as for `policy test`. A rule is exercised if a case is covered by it for
    certain. Its parts are each host, path and method of a list, each condition both ways, each exception, a limit of
    requests, an expiry. Policies in the folders that no test names count as not exercised. Exits with 1 if a test
    fails, or if --fail-under is not reached.

    \b
    seamgate policy coverage
    seamgate policy coverage policies --fail-under 90
    """
    found, failed = _measured(files)
    total = percent(found)
    if as_json:
        click.echo(json.dumps({"percent": round(total, 1), "failed": failed, "rules": [*map(_as_json, found)]}))
    else:
        _show(found, total, failed, verbose=verbose)
    if failed or (fail_under is not None and total < fail_under):
        raise SystemExit(1)


def _measured(files: Sequence[Path]) -> tuple[list[RuleCoverage], int]:
    """Run all tests; return what they exercise of each rule, added up, and how many fail."""
    meters: dict[tuple[Path, ...], Coverage] = {}
    failed = 0
    for path in _test_paths(files):
        suite = parse_tests(read_text(path), str(path))
        places = tuple((path.parent / each).resolve() for each in suite.policies)
        policies = read_policies(path.parent / each for each in suite.policies)
        evaluator = Evaluator(policies)
        meter = meters.setdefault(places, Coverage(policies))
        for result in run_suite(suite, lambda now, loaded=evaluator: _pipeline(loaded, now)):  # type: ignore[misc]
            meter.add(result)
            failed += not result.passed
    named = {place for places in meters for place in places}
    for each in _untested(files, named):
        meters[Path(each.source).resolve(),] = Coverage((each,))
    return _added_up(rule for meter in meters.values() for rule in meter.rules()), failed


def _added_up(found: Iterable[RuleCoverage]) -> list[RuleCoverage]:
    """A policy that several test files name is one."""
    sums: dict[tuple[Path, str], RuleCoverage] = {}
    for each in found:
        known = sums.setdefault((Path(each.rule.source).resolve(), each.rule.id), each)
        if known is not each:
            for mine, theirs in zip((known.whole, *known.branches), (each.whole, *each.branches), strict=True):
                mine.cases += theirs.cases
    return list(sums.values())


def _untested(files: Sequence[Path], named: set[Path]) -> list[Policy]:
    """Return the policies in the folders that no test names."""
    folders = [each for each in files or (Path(),) if each.is_dir()]
    paths = [path for folder in folders for path in policies_in(folder)]
    return [read_policy(path) for path in paths if path.resolve() not in named]


def _as_json(each: RuleCoverage) -> dict[str, Any]:
    return {
        "rule": each.rule.id,
        "file": each.rule.source,
        "line": each.rule.line,
        "cases": each.whole.cases,
        "branches": [{"branch": branch.text, "cases": branch.cases} for branch in each.branches],
    }


def _show(found: list[RuleCoverage], total: float, failed: int, *, verbose: bool) -> None:
    for each in found:
        missing = [branch for branch in (each.whole, *each.branches) if not branch.cases]
        if not missing and not verbose:
            continue
        mark = "green" if not missing else "red" if not each.whole.cases else "yellow"
        counted = click.style(f"{each.exercised}/{each.points}", fg=mark)
        click.echo(f"{counted}  {click.style(each.rule.id, bold=True)}  {click.style(each.rule.place, dim=True)}")
        for branch in (each.whole, *each.branches):
            if verbose and branch.cases:
                click.echo(f"      {click.style('✓', fg='green')} {branch.text} ({branch.cases})")
            elif not branch.cases:
                what = "no case is covered by it" if branch is each.whole else f"no case: {branch.text}"
                click.echo(f"      {click.style('✗', fg='red')} {what}")
    points, hit = sum(each.points for each in found), sum(each.exercised for each in found)
    silent = sum(not each.whole.cases for each in found)
    rules = f"{len(found) - silent} of {len(found)} rules"
    click.echo(f"{click.style(f'{total:.1f}%', bold=True)}  {hit} of {points} points, {rules} exercised")
    if failed:
        word = "test fails" if failed == 1 else "tests fail"
        click.echo(click.style(f"{failed} {word}: see `seamgate policy test`", fg="red"))
