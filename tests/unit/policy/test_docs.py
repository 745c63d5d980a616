"""docs/policy.md: its examples load, its tests pass, its tables are true, and it names every key and function."""

from __future__ import annotations

import re
from pathlib import Path

from seamgate.address import AddressClass
from seamgate.pipeline import Pipeline
from seamgate.policy import expressions
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.loader import parse_policy
from seamgate.policy.patterns import parse_host, parse_path
from seamgate.policy.schema import AllowSpec, LimitsSpec, PolicyFile, RuleSpec
from seamgate.policy.testing import parse_tests, run_suite
from seamgate.registry import register
from seamgate_plugins.policy import PolicyPlugin

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def test_the_examples_load_and_the_tests_pass() -> None:
    """What a reader copies works."""
    first, *others, tests = BLOCKS
    for text in others:
        parse_policy(text, "docs")
    evaluator = Evaluator([parse_policy(first, "docs")])

    def new_judge(now: float) -> Pipeline:
        return Pipeline([register("policy", PolicyPlugin.from_evaluator(evaluator, clock=lambda: now))])

    results = list(run_suite(parse_tests(tests, "docs"), new_judge))
    assert len(results) == 8
    assert [(each.case.name, each.failures) for each in results if not each.passed] == []


def test_the_tables_of_patterns_are_true() -> None:
    """Each pattern covers what its row says, and does not cover the rest."""
    rows = re.findall(r'^\| `"?([^`"]+)"?` \| (`[^|]*`) \| (`[^|]*`) \|$', TEXT, re.MULTILINE)
    assert len(rows) >= 8
    for pattern, yes, no in rows:
        match = (
            parse_path(pattern).matches
            if pattern.startswith("/")
            else lambda text, p=pattern: parse_host(p).matches(text, False)
        )
        assert [match(each) for each in re.findall("`([^`]+)`", yes)] == [True] * yes.count("`,") + [True]
        assert not any(match(each) for each in re.findall("`([^`]+)`", no))


def test_every_key_is_documented() -> None:
    """A key that the loader takes stands in the reference."""
    for spec in (PolicyFile, RuleSpec, AllowSpec, LimitsSpec):
        for name in spec.__struct_encode_fields__:
            assert f"`{name}`" in TEXT or f"`{name}:" in TEXT, name
    for name in (*AddressClass,):
        assert name is AddressClass.PUBLIC or f"`{name}`" in TEXT


def test_every_name_that_cel_sees_is_documented() -> None:
    """Fields and functions."""
    for name in expressions.REQUEST_FIELDS:
        assert re.search(rf"`(request\.)?{name}`", TEXT), name
    for name in expressions.GUEST_FIELDS:
        assert f"`guest.{name}`" in TEXT
    for name in ("size", "contains", "startsWith", "endsWith", "matches", "has", "all", "exists", "map", "filter"):
        assert name in expressions._FUNCTIONS
        assert f"`{name}`" in TEXT
