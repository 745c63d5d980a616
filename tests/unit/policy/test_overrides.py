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


FULL_WIDTH = "/pub/a%EF%BC%8F..%EF%BC%8F..%EF%BC%8Fadmin"
CEL = {
    "method": 'request.method == "POST"',
    "path": 'request.path.startsWith("/pub/")',
    "whole": 'request["meth" + "od"] == "POST"',
}


@pytest.mark.parametrize(
    ("when", "path", "headers"),
    [
        ("method", "/pub/x", {"x-http-method-override": "DELETE"}),
        ("method", "/pub/x?.method=DELETE", {}),
        ("whole", "/pub/x?_method=DELETE", {}),
        ("path", "/pub/x", {"x-original-url": "/admin"}),
        ("path", FULL_WIDTH, {}),
        ("path", "/pub/x;%3Fy", {}),
    ],
)
def test_an_expression_knows_no_method_or_path_that_an_origin_may_read_otherwise(
    when: str, path: str, headers: dict[str, str]
) -> None:
    """Unevaluable: no for an allow and an exception, yes for a deny."""
    cel = f"when: '{CEL[when]}'"
    allow = load(f"- id: some\n  allow: {{hosts: [a.test]}}\n  {cel}")
    assert judge(allow, "POST https://a.test/pub/x").allowed
    assert judge(allow, f"POST https://a.test{path}", headers=headers).reason is Reason.UNEVALUABLE
    every = "- id: all\n  allow: {hosts: [a.test]}\n- id: none\n  deny: {hosts: [a.test]}"
    lifted = load(f"{every}\n  except: {{{cel}}}")
    assert judge(lifted, "POST https://a.test/pub/x").allowed
    assert not judge(lifted, f"POST https://a.test{path}", headers=headers).allowed
    denied = load(f"{every}\n  when: '!({CEL[when]})'")
    assert judge(denied, "POST https://a.test/pub/x").allowed
    assert judge(denied, f"POST https://a.test{path}", headers=headers).reason is Reason.UNEVALUABLE


def test_an_expression_knows_a_method_and_path_that_are_asked_for_twice() -> None:
    """The same in a header or `_method` is no other; escapes of a path that all read alike are none."""
    policy = load(f"- id: some\n  allow: {{hosts: [a.test]}}\n  when: '{CEL['method']} && {CEL['path']}'")
    headers = {"x-http-method-override": "post", "x-original-url": "/pub/x"}
    assert judge(policy, "POST https://a.test/pub/x?_method=POST", headers=headers).allowed
    assert judge(policy, "POST https://a.test/pub/My%20File%C3%A9/").allowed
    assert judge(policy, "POST https://a.test/pub/x", headers={"x-original-url": "//odd"}).reason is Reason.BAD_PATH


def test_an_expression_on_something_else_does_not_ask_for_overrides() -> None:
    """They cost what they cost only where a rule depends on them."""
    policy = load("- id: some\n  allow: {hosts: [a.test]}\n  when: 'request.port == 443'")
    assert judge(policy, "POST https://a.test/x", headers={"x-original-url": "//odd"}).allowed
