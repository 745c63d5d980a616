"""`seamgate policy`: check, test, explain and lint policies, and their JSON Schema for editors.

Everything is judged by the real pipeline with the real policy plugin; only sockets are missing. Exit codes: 0 fine,
1 the answer is no (denied, a test failed, a warning), 2 a file can't be used.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from seamgate.cli.commands import Group
from seamgate.cli.counting import counted
from seamgate.cli.policy_covers import coverage, coverage_lines
from seamgate.config import load_config
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.unbound import find_unbound, find_unknown_methods
from seamgate.document import read_text
from seamgate.errors import ConfigError
from seamgate.flow import BodyState, Guest, Request
from seamgate.headers import OF_THE_GATEWAY
from seamgate.pipeline import Pipeline
from seamgate.policy.conditions import Outcome, View
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.files import check_policy, public_suffixes, read_policies
from seamgate.policy.lint import Finding, covered_suffixes
from seamgate.policy.lint import lint as find_lint
from seamgate.policy.model import Policy, Rule
from seamgate.policy.schema import PolicyFile, json_schema
from seamgate.policy.testing import (
    Case,
    Expectation,
    Result,
    Suite,
    TestFile,
    build_request,
    is_askable,
    judge_as_exchange,
    parse_tests,
    run_suite,
)
from seamgate.registry import register
from seamgate.verdict import Verdict

_DEFAULT_CONFIG = "seamgate.yaml"
_TEST_NAMES = ("*.test.yaml", "*_test.yaml", "*.test.yml", "*_test.yml")
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv"})
_NEAREST = 5

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
_CONFIG = click.option(
    "-c",
    "--config",
    "config",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Take the policies that this configuration names. [default: {_DEFAULT_CONFIG}, if no file is given]",
)
_FILES = click.argument("files", nargs=-1, type=click.Path(path_type=Path))


@click.group(cls=Group)
def policy() -> None:
    """Check, test and explain policies.

    \b
    seamgate policy check policies/*.yaml
    seamgate policy test
    seamgate policy explain --policy research.yaml POST https://api.anthropic.com/v1/messages --guest team=research
    """


# -- check -----------------------------------------------------------------------------------------------------------


@policy.command()
@_FILES
@_CONFIG
@click.option("-v", "--verbose", is_flag=True, help="Say of each pattern of hosts and paths what it covers.")
@_JSON
def check(files: tuple[Path, ...], config: Path | None, verbose: bool, as_json: bool) -> None:
    """Load policy files together, as a gateway would, and say all that is wrong with each.

    Warns of an allow whose host pattern covers a public suffix (`*.co.uk`, `*.github.io`), under which anybody gets a
    name; with a configuration, of rules whose credential is bound to none of what they allow.

    \b
    seamgate policy check -v org.yaml research.yaml
    seamgate policy check -c seamgate.yaml
    """
    loaded: list[Policy] = []
    errors: list[ConfigError] = []
    for path in _policy_paths(files, config):
        found, problems = check_policy(path)
        loaded += [] if found is None else [found]
        errors += problems
    if not errors:
        try:
            Evaluator(loaded)
        except ConfigError as error:
            errors.append(error)
    warnings = [*covered_suffixes(loaded, public_suffixes), *find_unbound(loaded, _credentials(files, config))]
    if as_json:
        told = {"errors": [*map(_place, errors)], "findings": [*map(msgspec.structs.asdict, warnings)]}
        covers = {"covers": [each for policy in loaded for each in coverage(policy)]} if verbose else {}
        click.echo(json.dumps({"policies": [_summary(each) for each in loaded], **told, **covers}))
    else:
        for each in loaded:
            click.echo(f"{click.style('ok', fg='green')}  {each.source}  {_describe(each)}")
            if verbose:
                click.echo("".join(f"{line}\n" for line in coverage_lines(each)), nl=False)
        for finding in warnings:
            click.echo(finding_line(finding), err=True)
        for problem in errors:
            click.echo(f"{click.style('error', fg='red', bold=True)}  {problem}", err=True)
    if errors:
        raise SystemExit(2)


def _summary(loaded: Policy) -> dict[str, Any]:
    denies = sum(not rule.allows for rule in loaded.rules)
    return {
        "file": loaded.source,
        "layer": str(loaded.layer),
        "mode": "audit" if loaded.audit else "enforce",
        "owner": loaded.owner,
        "allows": len(loaded.rules) - denies,
        "denies": denies,
    }


def _describe(loaded: Policy) -> str:
    facts = _summary(loaded)
    mode = ", in audit mode" if loaded.audit else ""
    return click.style(f"layer {facts['layer']}, {facts['allows']} allow, {facts['denies']} deny{mode}", dim=True)


def _place(error: ConfigError) -> dict[str, Any]:
    return {"file": error.source, "line": error.line, "column": error.column, "message": error.bare_message}


def _policy_paths(files: Sequence[Path], config: Path | None) -> list[Path]:
    """Return the policy files to load: those given, else those of a configuration."""
    if files and config is not None:
        raise click.UsageError("give policy files or --config, not both")
    if files:
        return list(files)
    path = config or Path(_DEFAULT_CONFIG)
    if config is None and not path.exists():
        raise click.UsageError(f"name a policy file: there is no {_DEFAULT_CONFIG} here that would")
    return [Path(each) for each in load_config(path).policies]


def _credentials(files: Sequence[Path], config: Path | None) -> Mapping[str, CredentialConfig]:
    """Return the credentials of the configuration that the policies come from; none where files were given."""
    return {} if files else load_config(config or Path(_DEFAULT_CONFIG)).credentials


def _pipeline(evaluator: Evaluator, now: float) -> Pipeline:
    """Return the real pipeline with the policy plugin alone, its clock standing still."""
    from seamgate_plugins.policy import PolicyPlugin

    plugin = PolicyPlugin.from_evaluator(evaluator, clock=lambda: now)
    return Pipeline([register("policy", plugin)], generation=evaluator.generation)


# -- test ------------------------------------------------------------------------------------------------------------


@policy.command()
@_FILES
@click.option("-q", "--quiet", is_flag=True, help="Show failures only.")
@_JSON
def test(files: tuple[Path, ...], quiet: bool, as_json: bool) -> None:
    """Run policy tests: what is not listed as allowed is expected to be denied.

    FILES are test files, or folders to search for *.test.yaml and *_test.yaml (the current one, if none is given).

    \b
    seamgate policy test
    seamgate policy test policies/llm-providers.test.yaml
    """
    results: list[tuple[Suite, Result]] = []
    decided: set[str] = set()
    rules: dict[str, Rule] = {}
    for path in _test_paths(files):
        suite = parse_tests(read_text(path), str(path))
        evaluator = Evaluator(read_policies(path.parent / each for each in suite.policies))
        rules.update(evaluator.rules)
        if not as_json and not quiet:
            click.echo(click.style(suite.source, bold=True))
        for result in run_suite(suite, lambda now, loaded=evaluator: _pipeline(loaded, now)):  # type: ignore[misc]
            results.append((suite, result))
            decided |= {result.verdict.rule, result.verdict.would_rule}
            if not as_json and not (quiet and result.passed):
                _show_result(suite, result)
    failed = sum(not result.passed for _, result in results)
    silent = sorted(rule.id for rule in rules.values() if rule.id not in decided)
    if as_json:
        cases = [_result_json(suite, result) for suite, result in results]
        click.echo(
            json.dumps({"passed": len(results) - failed, "total": len(results), "undecided": silent, "cases": cases})
        )
    else:
        _show_total(results, failed, silent)
    if failed:
        raise SystemExit(1)


def _test_paths(files: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in files or (Path(),):
        found += sorted(_search(path)) if path.is_dir() else [_beside(path)]
    if not found:
        raise ConfigError("there is no *.test.yaml or *_test.yaml here: write one beside the policy (docs/policy.md)")
    return list(dict.fromkeys(found))


def _search(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in _SKIPPED_FOLDERS and not each.startswith(".")]
        yield from (Path(base, name) for name in names if any(Path(name).match(each) for each in _TEST_NAMES))


def _beside(path: Path) -> Path:
    """Return the test file, also where its policy was named."""
    if not any(path.match(each) for each in _TEST_NAMES):
        for ending in (".test", "_test"):
            other = path.with_name(f"{path.stem}{ending}{path.suffix}")
            if other.exists():
                return other
    return path


def _show_result(suite: Suite, result: Result) -> None:
    mark = click.style("ok  ", fg="green") if result.passed else click.style("FAIL", fg="red", bold=True)
    labels = " ".join(f"{name}={value}" for name, value in result.case.guest.labels.items())
    verdict = result.verdict
    effect = "allow" if verdict.allowed else "deny "
    said = click.style(f"{effect} {verdict.rule or verdict.reason}", dim=True)
    took = click.style(f"({result.duration_us / 1000:.2f} ms)", dim=True)
    click.echo(f"  {mark}  {result.case.name}{f'  [{labels}]' if labels else ''}  {said}  {took}")
    for failure in result.failures:
        click.echo(f"        {suite.source}:{result.case.line}: {failure}")


def _show_total(results: list[tuple[Suite, Result]], failed: int, silent: list[str]) -> None:
    total_ms = sum(result.duration_us for _, result in results) / 1000
    word = click.style("FAIL", fg="red", bold=True) if failed else click.style("PASS", fg="green", bold=True)
    click.echo(f"{word}: {len(results) - failed}/{len(results)}  {click.style(f'({total_ms:.1f} ms)', dim=True)}")
    if silent:
        shown = ", ".join(silent[:8]) + (f" and {len(silent) - 8} more" if len(silent) > 8 else "")
        click.echo(click.style(f"no case is decided by: {shown}", dim=True))


def _result_json(suite: Suite, result: Result) -> dict[str, Any]:
    return {
        "file": suite.source,
        "line": result.case.line,
        "name": result.case.name,
        "passed": result.passed,
        "failures": list(result.failures),
        "phase": result.phase,
        "duration_us": round(result.duration_us, 1),
        **_verdict_json(result.verdict),
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    limits = verdict.limits
    return {
        "effect": "allow" if verdict.allowed else "deny",
        "reason": str(verdict.reason),
        "rule": verdict.rule,
        "message": verdict.message,
        "credentials": list(verdict.credentials),
        "inspect": list(verdict.inspect),
        "addresses": list(verdict.addresses),
        "limits": {name: getattr(limits, name) for name in limits.__struct_fields__} if limits else None,
        "would_deny": verdict.would_deny,
        "would_rule": verdict.would_rule,
    }


# -- explain ---------------------------------------------------------------------------------------------------------


@policy.command()
@click.argument("method")
@click.argument("url")
@click.option("--policy", "files", multiple=True, type=click.Path(path_type=Path), help="A policy file; repeatable.")
@_CONFIG
@click.option("--guest", "labels", multiple=True, metavar="K=V", help="A label of the guest that asks; repeatable.")
@click.option("-H", "--header", "headers", multiple=True, metavar="'K: V'", help="A header; repeatable.")
@click.option(
    "--json-body",
    "body",
    type=click.File("rb"),
    help="A file with the body, sent as application/json unless -H says else; - for standard input.",
)
@click.option("--now", default="", metavar="TIME", help="Judge as of this time, such as 2026-12-01T09:00:00Z.")
@_JSON
def explain(
    method: str,
    url: str,
    files: tuple[Path, ...],
    config: Path | None,
    labels: tuple[str, ...],
    headers: tuple[str, ...],
    body: Any,
    now: str,
    as_json: bool,
) -> None:
    """Say what becomes of a request, and why: the rule that decides, or the nearest and what each lacked.

    Exits with 0 if it would be allowed, with 1 if it would be denied.

    \b
    seamgate policy explain GET https://packages.acme.example/simple/requests/
    seamgate policy explain --policy research.yaml --guest team=research \\
        POST https://api.anthropic.com/v1/messages --json-body body.json
    """
    moment = _moment(now)
    evaluator = Evaluator(read_policies(_policy_paths(files, config)))
    given = [(name.lower().encode(), value.encode()) for name, value in _pairs(headers, ":", "--header")]
    for name, _ in given:
        if name in OF_THE_GATEWAY:
            raise click.UsageError(f"the header {name.decode()!r} is the gateway's own: policy never sees it")
    if body is not None and all(name != b"content-type" for name, _ in given):
        given.append((b"content-type", b"application/json"))
    case = Case(
        name="",
        guest=Guest("explain", dict(_pairs(labels, "=", "--guest"))),
        method=method.upper(),
        url=url,
        headers=tuple(given),
        body=body.read() if body is not None else None,
        expected=Expectation(),
        times=1,
        now=moment,
        line=0,
    )
    if not is_askable(case.method, url):
        raise click.UsageError(
            f"{method} {url!r}: begin with https:// (wss:// for a WebSocket, CONNECT tcp://host:port)"
        )
    verdict, phase = judge_as_exchange(case, _pipeline(evaluator, moment), "explain")
    story = _Story(evaluator, case, verdict, phase)
    click.echo(json.dumps(story.as_json()) if as_json else "\n".join(story.lines()))
    if not verdict.allowed:
        raise SystemExit(1)


def _moment(text: str) -> float:
    if not text:
        return time.time()
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--now {text}: write 2026-12-01T09:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _pairs(texts: Iterable[str], separator: str, option: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name.strip():
            raise click.UsageError(f"{option} {text!r}: write NAME{separator}VALUE")
        yield name.strip(), value.strip()


class _Story:
    """All that there is to say about one judged request."""

    def __init__(self, evaluator: Evaluator, case: Case, verdict: Verdict, phase: str) -> None:
        self.case = case
        self.verdict = verdict
        self.phase = phase
        self.rule = evaluator.rules.get(verdict.rule)
        self.would = evaluator.rules.get(verdict.would_rule)
        self.covering: list[tuple[Rule, Outcome]] = []
        self.nearest: list[tuple[Rule, tuple[str, ...]]] = []
        if phase != "parse":
            request = self._whole(build_request(case, "explain"))
            self.covering = evaluator.trace(request, case.now)
            if not verdict.allowed and (self.rule is None or self.rule.allows):
                found = evaluator.explainer.nearest(request, None, case.now, view=View(request), limit=_NEAREST)
                self.nearest = [(near.rule, near.lacks) for near in found]

    def _whole(self, request: Request) -> Request:
        if self.case.body is None:
            return request

        return msgspec.structs.replace(request, body=self.case.body, body_state=BodyState.COMPLETE)

    def as_json(self) -> dict[str, Any]:
        """Return everything as one mapping."""
        return {
            **_verdict_json(self.verdict),
            "request": f"{self.case.method} {self.case.url}",
            "phase": self.phase,
            "place": self.rule.place if self.rule else "",
            "covering": [
                {
                    "rule": rule.id,
                    "effect": "allow" if rule.allows else "deny",
                    "place": rule.place,
                    "outcome": said.name.lower(),
                }
                for rule, said in self.covering
            ],
            "nearest": [{"rule": rule.id, "place": rule.place, "lacks": list(lacks)} for rule, lacks in self.nearest],
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        verdict = self.verdict
        word = (
            click.style("ALLOWED", fg="green", bold=True)
            if verdict.allowed
            else click.style("DENIED", fg="red", bold=True)
        )
        yield f"{word}  {self.case.method} {self.case.url}"
        if verdict.message:
            yield f"  {verdict.message}"
        for name, value in self._facts():
            yield f"  {name:<11} {value}"
        others = [each for each in self.covering if each[0] is not self.rule]
        if others:
            yield "  Other rules that cover it:"
            for rule, said in others:
                doubt = "" if said is Outcome.YES else f" ({said.name.lower()})"
                audit = " (audit mode)" if rule.audit else ""
                yield f"    {'allow' if rule.allows else 'deny'} {rule.id}{doubt}{audit}  {_dim(rule.place)}"
        if self.nearest:
            yield "  Nearest rules, and what the request lacks:"
            for rule, lacks in self.nearest:
                yield f"    {click.style(rule.id, bold=True)}  {_dim(rule.place)}"
                yield from (f"      - {each}" for each in lacks)

    def _people(self, rule: Rule) -> Iterator[tuple[str, str]]:
        yield "because", rule.reason
        yield "owner", rule.owner
        yield "ticket", rule.ticket

    def _facts(self) -> Iterator[tuple[str, str]]:
        verdict, rule = self.verdict, self.rule
        if not verdict.allowed:
            yield "reason", f"{verdict.reason}  {_dim(verdict.reason.text)}"
        if rule is not None:
            yield "rule", f"{rule.id}  {_dim(rule.place)}"
            yield from ((name, text) for name, text in self._people(rule) if text)
            if rule.expires_at < float("inf"):
                yield "expires", datetime.datetime.fromtimestamp(rule.expires_at, datetime.UTC).isoformat()
        for name in ("credentials", "inspect", "addresses"):
            if getattr(verdict, name):
                yield name, ", ".join(getattr(verdict, name))
        if verdict.limits is not None:
            yield "limits", ", ".join(_limits(verdict))
        if verdict.would_deny:
            yield "would deny", f"{verdict.would_deny}  {_dim(self.would.place if self.would else '')}"


def _limits(verdict: Verdict) -> Iterator[str]:
    limits = verdict.limits
    if limits is None:
        return
    if limits.requests is not None:
        yield f"{limits.requests[0]} requests in {limits.requests[1]:g} s"
    if limits.request_body_bytes is not None:
        yield f"request body up to {limits.request_body_bytes} bytes"
    if limits.response_body_bytes is not None:
        yield f"response body up to {limits.response_body_bytes} bytes"


def _dim(text: str) -> str:
    return click.style(text, dim=True)


# -- lint, schema ----------------------------------------------------------------------------------------------------


@policy.command()
@_FILES
@_CONFIG
@click.option("--strict", is_flag=True, help="Exit with 1 for notes too.")
@_JSON
def lint(files: tuple[Path, ...], config: Path | None, strict: bool, as_json: bool) -> None:
    """Look for rules that are too broad, without effect, or soon over.

    Exits with 1 if there is a warning.

    \b
    seamgate policy lint policies/*.yaml
    """
    policies = read_policies(_policy_paths(files, config))
    Evaluator(policies)
    credentials = _credentials(files, config)
    findings = [
        *find_lint(policies, time.time(), public_suffixes),
        *find_unbound(policies, credentials),
        *find_unknown_methods(credentials, str(config or _DEFAULT_CONFIG)),
    ]
    if as_json:
        click.echo(json.dumps([msgspec.structs.asdict(each) for each in findings]))
    else:
        for each in findings:
            click.echo(finding_line(each))
        warnings = sum(each.severity == "warning" for each in findings)
        click.echo(_dim(f"{counted(warnings, 'warning')}, {counted(len(findings) - warnings, 'note')}"))
    if any(strict or each.severity == "warning" for each in findings):
        raise SystemExit(1)


def finding_line(finding: Finding) -> str:
    """Return a finding for people, as compilers write theirs."""
    colour = "yellow" if finding.severity == "warning" else "cyan"
    rule = f"{finding.rule}: " if finding.rule else ""
    place = f"{finding.source}:{finding.line}" if finding.line else finding.source
    return f"{place}: {click.style(finding.severity, fg=colour)}: {rule}{finding.message} {_dim(f'[{finding.code}]')}"


@policy.command()
@click.argument("kind", type=click.Choice(["policy", "test"]), default="policy")
def schema(kind: str) -> None:
    """Print the JSON Schema of policy files, or of test files, for editors.

    \b
    seamgate policy schema > policy.schema.json
    # yaml-language-server: $schema=policy.schema.json       (first line of a policy)
    """
    click.echo(json.dumps(json_schema(PolicyFile if kind == "policy" else TestFile), indent=2))
