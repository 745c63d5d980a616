"""`seamgate.policy.overrides`: what an origin may take instead of the method and path, in each spelling."""

from __future__ import annotations

import pytest

from seamgate.errors import Reason
from seamgate.policy.evaluation import Evaluator
from support.overrides import METHOD_QUERIES
from unit.policy.ask import NOW, judge, load, request

BAN = """
- id: all
  allow: {hosts: [a.test]}
- id: no-delete
  deny: {hosts: [a.test], methods: [DELETE]}
"""


@pytest.mark.parametrize("query", METHOD_QUERIES)
def test_an_allow_covers_the_method_that_a_parameter_asks_for(query: str) -> None:
    """In each spelling that PHP, Rack, qs or a normalizing server takes for `_method`."""
    posts = load("- id: posts\n  allow: {hosts: [a.test], methods: [POST]}")
    assert judge(posts, f"POST https://a.test/x?{query}").reason is Reason.NO_RULE_MATCHED
    name = query.rpartition("=")[0]
    assert judge(posts, f"POST https://a.test/x?{name}=post").allowed


def test_a_query_asks_few_times_for_a_method() -> None:
    """Names that may be `_method` are looked at one by one: 500 of them at most, and values are what counts."""
    evaluator = Evaluator([load(BAN)])
    for name, reason in (("%C3%A9{}", Reason.BAD_PATH), ("_method[{}]", Reason.BAD_PATH), ("e{}", Reason.ALLOWED)):
        query = "&".join(name.format(number) + "=PUT" for number in range(501))
        assert evaluator.judge_request(request(f"POST https://a.test/x?{query}"), NOW).reason is reason
    asked = "&".join(f"_method[{number}]=PUT" for number in range(500))
    assert evaluator.judge_request(request(f"POST https://a.test/x?{asked}"), NOW).allowed
