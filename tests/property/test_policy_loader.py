"""Garbage in: whatever a file, an expression or a body holds, what comes out is a policy, a value, or our own error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from property.policy_strategies import rule_lists
from seamgate.document import parse_document
from seamgate.errors import ConfigError
from seamgate.policy.expressions import Expression, ExpressionError, Unevaluable
from seamgate.policy.jsonbody import JsonRefused, parse_json
from seamgate.policy.loader import parse_policy
from seamgate.policy.testing import parse_tests

WORK = settings(max_examples=200, deadline=None)
LINES = ["seamgate: 1\n", "rules:\n", "  - id: a\n", "    allow: ", "{hosts: [a]}", "---\n", "%YAML 1.1\n"]
TOKENS = [*LINES, *"\n\t\0\ufeffé*#|\\", *"deny &a !x [ ] { } \" ' no 1 <<".split(), "- ", "? ", ": "]
yaml_like = st.lists(st.sampled_from(TOKENS) | st.text(max_size=3), max_size=25).map("".join)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
CEL = [*"()[]{}.,!?:-\\\n", *"request guest json labels headers x true 1 9223372036854775807 == && || in //".split()]
CEL += ["size", "has", "all", "matches", '"a"', '"X"', "'b"]


@given(yaml_like | st.text(max_size=60))
@WORK
def test_any_text_is_a_policy_or_a_config_error(text: str) -> None:
    """With the file's name in it."""
    for load in (parse_policy, parse_tests):
        try:
            load(text, "f.yaml")
        except ConfigError as error:
            assert str(error).startswith("f.yaml")


@given(rule_lists, st.data())
@WORK
def test_a_policy_with_one_part_replaced_loads_or_says_where(rules: list[Any], data: st.DataObject) -> None:
    """Whatever stands where something else should, the error has a place inside the file."""
    tree: Any = {"seamgate": 1, "rules": [{"id": f"r{index}", **rule} for index, rule in enumerate(rules)]}
    tree = json.loads(json.dumps(tree))
    node = tree
    while isinstance(node, dict | list) and node:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from(list(keys)))
        if data.draw(st.booleans()) or not isinstance(node[key], dict | list) or not node[key]:
            node[key] = data.draw(trees)
            break
        node = node[key]
    text = json.dumps(tree, indent=1, ensure_ascii=True)
    try:
        parse_policy(text, "f.yaml")
    except ConfigError as error:
        assert 1 <= error.line <= text.count("\n") + 1
        assert error.column >= 1


plain = st.integers(-(10**17), 10**17) | st.booleans() | st.none() | st.text("noé1~'\"\\\n\t:#*&!- ", max_size=8)


@given(st.dictionaries(st.text("abcé", min_size=1), plain | st.lists(plain, max_size=3), max_size=4))
@WORK
def test_json_is_read_as_what_it_is(value: dict[str, Any]) -> None:
    """JSON is YAML that quotes its text, so nothing in it is ambiguous."""
    assert parse_document(json.dumps(value), "f").data == value


@given(st.lists(st.sampled_from(CEL), max_size=14).map(" ".join) | st.text(max_size=30), trees)
@WORK
def test_an_expression_is_refused_or_has_a_boolean_or_no_value(text: str, value: Any) -> None:
    """Compiling and evaluating end in our own errors only."""
    try:
        expression = Expression(text)
    except ExpressionError:
        return
    try:
        result = expression.evaluate(
            {"request": {"json": value, "headers": {"a": "b"}}, "guest": {"labels": {"x": "a"}}}
        )
    except Unevaluable:
        return
    assert isinstance(result, bool)


@given(st.binary(max_size=40) | trees.map(lambda tree: json.dumps(tree).encode()))
@WORK
def test_a_body_is_json_or_refused(body: bytes) -> None:
    """Strict JSON gives what the standard library gives, or JsonRefused."""
    try:
        value = parse_json(body)
    except JsonRefused:
        return
    assert value == json.loads(body)
