"""CEL conditions: what is refused at load, which fields are given, and that errors are never values."""

from __future__ import annotations

import re

import pytest

from seamgate.policy.expressions import Expression, ExpressionError, Unevaluable


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 +", "not valid CEL at character 4"),
        ("", "not valid CEL"),
        ("request.jsn.model == 1", "did you mean request.json?"),
        ("request.body == 1", "there are headers, host"),
        ("guest.team == 'x'", "there are id, isolation, labels"),
        ("req.method == 'GET'", "names 'req'"),
        ("now > 1", "names 'now'"),
        ("request.path.startswith('/a')", "did you mean 'startsWith'?"),
        ("lower(request.path) == '/a'", "unknown function 'lower'"),
        ("request.path.matches('(')", "not a valid regular expression"),
        ('request.headers["X-Team"] == "a"', "write 'x-team'"),
        ('request.headers.te == "trailers"', "policy never sees it"),
        ("has(request.headers.host)", "policy never sees it"),
        ('"transfer-encoding" in request.headers', "policy never sees it"),
        ("request.json.a.all(x, x.all(y, y.all(z, z > 0)))", "more than twice"),
        ("request.json.a.all(request, request > 0)", "choose another name"),
        ("true || " * 600 + "true", "longer than"),
        ("(" * 600 + "true" + ")" * 600, "not valid CEL"),
    ],
)
def test_bad_conditions_are_refused_at_load(text: str, why: str) -> None:
    """Syntax, unknown names and functions, costly nesting: the message says what to do."""
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("request.method ==", "at character 18: it ends where something has to follow"),
        ("request.json.a[", "at character 16: it ends where something has to follow"),
        ("true ? 1", "at character 9: it ends where something has to follow"),
        ("request.method = 'a'", "at character 16: '=' is no operator: write =="),
        ("request.method === 'a'", "at character 18: '=' is no operator: write =="),
        ("request.method & 'x'", "at character 16: '&' is no operator: write &&"),
        ("request.method == 'a' | true", "at character 23: '|' is no operator: write ||"),
        ("request.method == 'a' and true", "at character 23: 'and' is no operator: write &&"),
        ("request.method == 'a' OR true", "at character 23: 'OR' is no operator: write ||"),
        ("not true", "at character 5: 'not' is no operator: write !"),
        ("request.method == 'GET", "at character 19: the text that begins here has no closing quote"),
        ("has(request.json", "at character 17: ')' is missing"),
        ("request.json.n > 99999999999999999999", "at character 18: the number is too large, or is none"),
        ("@@", "at character 1: '@' means nothing here"),
        ("x y", "at character 3: 'y' can't stand here"),
        ("request..x", "can't stand here"),
        ("`a`", "can't stand here"),
    ],
)
def test_syntax_is_explained_in_words(text: str, why: str) -> None:
    """Where it is, what is missing or what to write; no token of a parser's grammar."""
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert why in str(caught.value)
    assert not re.search("EOF|IDENTIFIER|NUM_|Context|mismatched|recognition|viable", str(caught.value))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("request.json.model == 'x'", {"request": {"json": {"model": None}}}),
        ("request.json.a.b == 1 && request.json.a.c == 2", {"request": {"json": {"a": {"b": None, "c": None}}}}),
        ("request.json.a.b == 1 && size(request.json.a) == 2", {"request": {"json": {"a": None}}}),
        ("size(request.json.a) == 2 && request.json.a.b == 1", {"request": {"json": {"a": None}}}),
        ('request.headers["x-a"].startsWith("b")', {"request": {"headers": {"x-a": None}}}),
        ("request['method'] == 'GET'", {"request": {"method": None}}),
        ("request.json.messages[0].role == 'x'", {"request": {"json": {"messages": None}}}),
        ("request.json.m.all(x, x.role != 'system')", {"request": {"json": {"m": None}}}),
        ("has(request.json.a.b)", {"request": {"json": {"a": {"b": None}}}}),
        ("guest.labels.team == 'request.json'", {"guest": {"labels": {"team": None}}}),
        ("request.json[guest.id] == 1", {"request": {"json": None}, "guest": {"id": None}}),
        ("'a' in request.query // request.json.b", {"request": {"query": {"a": None}}}),
        ("!('a' in request.json) && 'b' in request.json.c", {"request": {"json": {"a": None, "c": {"b": None}}}}),
        ("'a' + 'b' in request.query", {"request": {"query": None}}),
        ("'a' in request.json[guest.id]", {"request": {"json": None}, "guest": {"id": None}}),
        ("'a' in request.json.map(x, x)", {"request": {"json": None}}),
        ("'a' in request", {"request": None}),
        ("request == request", {"request": None}),
        ("true", {}),
    ],
)
def test_only_the_named_fields_are_given(text: str, fields: object) -> None:
    """The fields are read from the text: literal names as far as they go."""
    assert Expression(text).fields == fields


def test_a_body_is_needed_only_where_it_is_named() -> None:
    """Conditions on method, path and headers never wait for a body."""
    assert Expression("request.json.a == 1").needs_body
    assert Expression("request == request").needs_body
    assert not Expression("request.path == '/request.json'").needs_body


@pytest.mark.parametrize(
    ("text", "json"),
    [
        ("request.json.a == 1", {}),
        ("!(request.json.a == 1)", {}),
        ("request.json.a != 1", {}),
        ("request.json.a.b == 1", {"a": "text"}),
        ("request.json.a > 1", {"a": "text"}),
        ("request.json.a + 1 > 0", {"a": 2**63 - 1}),
        ("request.json.a / 0 == 1", {"a": 1}),
        ("request.json.a", {"a": 1}),
        ("request.json.a", {"a": "true"}),
        ("request.json.a[5] == 1", {"a": [1]}),
        ("''.matches(request.json.a)", {"a": "("}),
        ("request.json.a == 'x'", {"a": "\ud800"}),
        ("timestamp(request.json.a) > timestamp('2020-01-01T00:00:00Z')", {"a": "never"}),
    ],
)
def test_errors_are_unevaluable(text: str, json: object) -> None:
    """A missing key, a wrong type, an overflow, a result that is no boolean: never a value."""
    with pytest.raises(Unevaluable):
        Expression(text).evaluate({"request": {"json": json}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("request.json.a == 1 || true", True),
        ("request.json.missing == 1 || request.json.a == 1", True),
        ("request.json.missing == 1 && false", False),
        ("has(request.json.missing) && request.json.missing == 1", False),
        ("request.json.a in [1, 2]", True),
        ("request.json.l.exists(x, x == 'b')", True),
        ("request.json.l.all(x, x.matches('^[ab]$'))", True),
    ],
)
def test_values_are_booleans(text: str, value: bool) -> None:
    """And, or and the macros follow CEL."""
    assert Expression(text).evaluate({"request": {"json": {"a": 1, "l": ["a", "b"]}}}) is value


def test_names_are_whatever_may_name_a_key() -> None:
    """Selected names and texts, escapes resolved, wherever they stand; functions are no names."""
    text = r"request.json.a.exists(x, x['b'].c == 'd\u0065') && 'f' in request.query && b'g' == b'g'"
    assert Expression(text).names == {"json", "a", "b", "c", "de", "query", "f"}
