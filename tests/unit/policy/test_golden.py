"""The golden corpus: what version 1 of the policy language means, pinned. Cases are added, never changed.

A release that changes the verdict of one of them changes what policies in the field mean: that needs a version 2.
"""

from __future__ import annotations

from pathlib import Path

from seamgate.document import read_text
from seamgate.pipeline import Pipeline
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.files import read_policies
from seamgate.policy.testing import parse_tests, run_suite
from seamgate.registry import register
from seamgate_plugins.policy import PolicyPlugin

GOLDEN = Path(__file__).parent / "golden" / "v1.test.yaml"


def test_version_1_means_what_it_meant() -> None:
    """Every case of the corpus has the verdict, rule and reason that it had when it was written."""
    suite = parse_tests(read_text(GOLDEN), GOLDEN.name)
    evaluator = Evaluator(read_policies(GOLDEN.parent / name for name in suite.policies))

    def new_judge(now: float) -> Pipeline:
        return Pipeline([register("policy", PolicyPlugin.from_evaluator(evaluator, clock=lambda: now))])

    results = list(run_suite(suite, new_judge))
    assert [(each.case.line, each.case.name, each.failures) for each in results if not each.passed] == []
    assert len(results) >= 80
