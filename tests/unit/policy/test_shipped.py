"""Every policy in policies/ has tests beside it, and they pass through the real pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from seamgate.document import read_text
from seamgate.pipeline import Pipeline
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.files import public_suffixes, read_policies, read_policy
from seamgate.policy.lint import lint
from seamgate.policy.testing import parse_tests, run_suite
from seamgate.registry import register
from seamgate_plugins.policy import PolicyPlugin

FOLDER = Path(__file__).resolve().parents[3] / "policies"
TESTS = sorted(FOLDER.glob("*.test.yaml"))
POLICIES = sorted(path for path in FOLDER.glob("*.yaml") if path not in TESTS)


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_a_shipped_policy_has_tests_and_no_warning(path: Path) -> None:
    """A policy without a test is not shipped, nor one that lint warns of."""
    assert path.with_name(f"{path.stem}.test.yaml") in TESTS
    assert [
        each.message for each in lint([read_policy(path)], 0.0, public_suffixes) if each.severity == "warning"
    ] == []


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_the_tests_of_a_shipped_policy_pass_and_reach_every_rule(path: Path) -> None:
    """Each case is as expected, and each rule decides at least one."""
    suite = parse_tests(read_text(path), path.name)
    evaluator = Evaluator(read_policies(path.parent / name for name in suite.policies))

    def new_judge(now: float) -> Pipeline:
        return Pipeline([register("policy", PolicyPlugin.from_evaluator(evaluator, clock=lambda: now))])

    results = list(run_suite(suite, new_judge))
    assert [(each.case.name, each.failures) for each in results if not each.passed] == []
    if path.name != "default-deny.test.yaml":  # it shows that the other layer's rules do not suffice
        assert set(evaluator.rules) <= {each.verdict.rule for each in results}
