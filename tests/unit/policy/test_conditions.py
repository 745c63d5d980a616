"""Conditions on query, headers and body: strict for an allow, lenient for a deny, UNKNOWN where nothing is certain."""

from __future__ import annotations

import pytest

from seamgate.flow import BodyState
from seamgate.policy.conditions import Outcome, View
from seamgate.policy.model import Rule
from unit.policy.ask import load, request


def rule(kind: str, condition: str) -> Rule:
    """Return a rule with one condition, given as YAML."""
    return load(f"- id: r\n  {kind}: {{hosts: [a.test], {condition}}}").rules[0]


def outcome(kind: str, condition: str, line: str, **details: object) -> Outcome:
    """Judge a rule's only condition."""
    (found,) = rule(kind, condition).match.conditions
    return found.judge(View(request(line, **details)))  # type: ignore[arg-type]


NO, YES, UNKNOWN, PENDING = Outcome


@pytest.mark.parametrize(
    ("condition", "query", "allow", "deny"),
    [
        ('query: {q: "1"}', "?q=1", YES, YES),
        ('query: {q: "1"}', "?q=1" + "&x" * 499, YES, YES),
        ('query: {q: "1"}', "?q=1" + "&x" * 500, UNKNOWN, UNKNOWN),
        ('query: {q: "1"}', "?q=2", NO, NO),
        ('query: {q: "1"}', "", NO, NO),
        ('query: {q: "1"}', "?q=1&q=2", NO, YES),
        ('query: {q: "1"}', "?Q=1", NO, YES),
        ('query: {q: "1"}', "?q=1&Q=2", NO, YES),
        ('query: {q: "1"}', "?%71=%31", YES, YES),
        ("query: {q: v*}", "?q=vx", YES, YES),
        ("query: {q: v*}", "?q=VX", NO, YES),
        ("query: {q: [a, b]}", "?q=b", YES, YES),
        ('query: {q: "a b"}', "?q=a+b", YES, YES),
        ('query: {q: "1"}', "?q=%ff", UNKNOWN, UNKNOWN),
        ('query: {q: "1"}', "?r=1;q=1", UNKNOWN, YES),
        ("query: {q: true}", "?q", YES, YES),
        ("query: {q: true}", "?Q", NO, YES),
        ("query: {q: true}", "?r", NO, NO),
        ("query: {q: false}", "", YES, YES),
        ("query: {q: false}", "?q=", NO, NO),
        ("query: {q: false}", "?Q=", NO, YES),
        ('query: {q: "12"}', "?%E2%80%8Bq=1%C2%AD2", NO, YES),
        # What PHP, Rack, qs and ASP.NET take for the same parameter, or for a member of it.
        *[
            ('query: {q: "1"}', f"?q=1&{sent}=1", NO, YES)
            for sent in ("q[]", "q[x]", "+q", "q+", "q%00", "q%00x", "q.", "q.x", "[q]", "%20q%5B%5D")
        ],
        ("query: {q: true}", "?q[]=1", NO, YES),
        ("query: {a_b: true}", "?a.b=1", NO, YES),
        ("query: {a_b: true}", "?a[b=1", NO, YES),
        ('query: {"q[]": "1"}', "?q[]=1", YES, YES),
        ('query: {"f[x]": "1"}', "?f[x]=1&f[y]=2", YES, YES),
    ],
)
def test_query_conditions(condition: str, query: str, allow: Outcome, deny: Outcome) -> None:
    """An allow wants every reading to match, a deny any."""
    assert outcome("allow", condition, f"GET https://a.test/{query}") is allow
    assert outcome("deny", condition, f"GET https://a.test/{query}") is deny


def test_json_is_read_without_what_cannot_be_seen() -> None:
    """A zero-width space in a key or value is nothing to a deny; to an allow the name is another spelling."""
    sent = {"body": '{"st\u200bore": "ye\ufeffs"}'.encode(), "headers": {"content-type": "application/json"}}
    assert outcome("deny", "json: {store: yes*}", "POST https://a.test/", **sent) is YES
    assert outcome("allow", "json: {store: yes*}", "POST https://a.test/", **sent) is not YES


@pytest.mark.parametrize(
    ("condition", "value", "allow", "deny"),
    [
        ("headers: {x-a: v}", "v", YES, YES),
        ("headers: {X-A: v}", "v", YES, YES),
        ("headers: {x-a: v}", "V", NO, YES),
        ("headers: {x-a: v}", "w, v", NO, YES),
        ("headers: {x-a: true}", "v", YES, YES),
        ("headers: {x-a: false}", "v", NO, NO),
        ("headers: {x-b: false}", "v", YES, YES),
        ("headers: {x_a: v}", "v", NO, YES),
        ("headers: {x_a: true}", "v", NO, YES),
        ("headers: {x_a: false}", "v", NO, YES),
    ],
)
def test_header_conditions(condition: str, value: str, allow: Outcome, deny: Outcome) -> None:
    """Names have no case; values have one in an allow; a list's elements count in a deny."""
    assert outcome("allow", condition, "GET https://a.test/", headers={"x-a": value}) is allow
    assert outcome("deny", condition, "GET https://a.test/", headers={"x-a": value}) is deny


@pytest.mark.parametrize(
    ("condition", "body", "allow", "deny"),
    [
        ("json: {model: m*}", '{"model": "m1"}', YES, YES),
        ("json: {model: m*}", '{"model": "M1"}', NO, YES),
        ("json: {model: m*}", '{"MODEL": "m1"}', NO, YES),
        ("json: {model: m*}", '{"model": "m1", "Model": "x"}', UNKNOWN, YES),
        ("json: {model: m*}", "{}", NO, NO),
        ("json: {model: m*}", '{"model": 5}', NO, NO),
        ("json: {k: 1}", '{"k": 1}', YES, YES),
        ("json: {k: 1}", '{"k": 1.0}', YES, YES),
        ("json: {k: 1}", '{"k": true}', NO, NO),
        ("json: {k: true}", '{"k": true}', YES, YES),
        ("json: {k: true}", '{"k": 1}', NO, NO),
        ("json: {k: null}", '{"k": null}', YES, YES),
        ("json: {a.b: x}", '{"a": {"b": "x"}}', YES, YES),
        ("json: {a.b: x}", '{"a": [{"b": "x"}, {"b": "y"}]}', NO, YES),
        ("json: {a.b: x}", '{"a": [{"b": "x"}, {}]}', NO, YES),
        ("json: {a: [x, z]}", '{"a": ["x", "z"]}', YES, YES),
        ("json: {a: x}", '{"a": []}', NO, NO),
        ("json: {a: x}", "not JSON", UNKNOWN, UNKNOWN),
        ("json: {a: x}", '{"a": "x", "a": "y"}', UNKNOWN, UNKNOWN),
        ("json: {a: x}", "", NO, NO),
    ],
)
def test_json_conditions(condition: str, body: str, allow: Outcome, deny: Outcome) -> None:
    """Types are not mixed, lists are entered, and what two parsers could read differently is UNKNOWN."""
    assert outcome("allow", condition, "POST https://a.test/", body=body) is allow
    assert outcome("deny", condition, "POST https://a.test/", body=body) is deny


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (BodyState.PENDING, PENDING),
        (BodyState.OVERSIZE, UNKNOWN),
        (BodyState.UNDECODABLE, UNKNOWN),
        (BodyState.ABSENT, NO),
    ],
)
def test_a_body_that_is_not_here(state: BodyState, expected: Outcome) -> None:
    """It is waited for while it may come, and UNKNOWN if it never will."""
    for kind in ("allow", "deny"):
        assert outcome(kind, "json: {a: x}", "POST https://a.test/", state=state) is expected


def when(text: str, line: str, **details: object) -> Outcome:
    """Judge a `when`."""
    (condition,) = load(f"- id: r\n  allow: {{hosts: [a.test]}}\n  when: {text!r}").rules[0].match.conditions
    return condition.judge(View(request(line, **details)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('request.query.q == "1"', UNKNOWN),
        ('request.query.r == "3"', YES),
        ("has(request.query.s)", NO),
        ('"r" in request.query', YES),
        ('"q" in request.query', UNKNOWN),
        ("size(request.query) > 1", UNKNOWN),
        ('request.headers["x-a"] == "v"', YES),
        ('request.headers["x-c"] == "v"', UNKNOWN),
        ('request.host == "a.test" && request.port == 443 && request.scheme == "https"', YES),
        ('request.path == "/p" && request.method == "POST"', YES),
        ('guest.labels.team == "research" && guest.id == "g" && guest.isolation == "proxy"', YES),
        ('guest.labels.role == "x"', UNKNOWN),
        ('request.json.model == "m"', YES),
        ("request.json.both == 1", UNKNOWN),
        ("has(request.json.none)", NO),
    ],
)
def test_when_sees_the_request(text: str, expected: Outcome) -> None:
    """Every documented field is there; a name that occurs twice, or in two spellings, is UNKNOWN."""
    body = '{"model": "m", "both": 1, "Both": 2}'
    found = when(text, "POST https://a.test/p?q=1&q=2&r=3", headers={"x-a": "v"}, body=body)
    assert found is expected


def test_a_repeated_header_has_no_value() -> None:
    """Two headers of one name are UNKNOWN to CEL, whatever their values."""
    twice = request("GET https://a.test/")
    twice = type(twice)("r", twice.guest, twice.target, "GET", "/", None, ((b"x-a", b"v"), (b"x-a", b"v")))
    (condition,) = (
        load('- id: r\n  allow: {hosts: [a.test]}\n  when: \'request.headers["x-a"] == "v"\'').rules[0].match.conditions
    )
    assert condition.judge(View(twice)) is UNKNOWN


def test_a_large_value_is_not_handed_to_cel() -> None:
    """What an expression may cost is bounded, since the guest chooses the body."""
    many = '{"l": [' + ",".join(["1"] * 30_000) + '], "model": "m"}'
    assert when("request.json.l.all(x, x == 1)", "POST https://a.test/", body=many) is UNKNOWN
    assert when("request.json.model == 'm'", "POST https://a.test/", body=many) is YES
    some = '{"l": [' + ",".join(["1"] * 600) + "]}"
    assert when("request.json.l.all(x, x == 1)", "POST https://a.test/", body=some) is YES
    assert when("request.json.l.all(x, request.json.l.all(y, x == y))", "POST https://a.test/", body=some) is UNKNOWN


def test_explanations_hold_no_value_of_the_request() -> None:
    """A denial may tell what the rule wants, never what the request had."""
    for condition, line, body in (
        ("query: {q: a}", "GET https://a.test/?q=hunter2", None),
        ("json: {password: a}", "POST https://a.test/", '{"password": "hunter2"}'),
        ("json: {password: a}", "POST https://a.test/", '{"password": "hunter2", "Password": "hunter2"}'),
    ):
        (found,) = rule("allow", condition).match.conditions
        assert "hunter2" not in found.explain(View(request(line, body=body)))


@pytest.mark.parametrize(
    "body",
    [
        '{"a": [' + ",".join(["1"] * 20_001) + "]}",
        '{"a": [' + ",".join(["[[1]]"] * 10_000) + "]}",
        "[" + ",".join(['{"a": 1}'] * 20_001) + "]",
        "{" + ",".join(f'"k{index}": 1' for index in range(20_001)) + "}",
        '{"a": "' + "\ufdfa" * 100_000 + '"}',
        '{"a": [' + ",".join(f'"{index}' + "\ufdfa" * 50 + '"' for index in range(2_000)) + "]}",
    ],
)
def test_what_a_condition_looks_at_is_bounded(body: str) -> None:
    """A guest can't hold the gateway up with many values, keys or text that grows when folded: UNKNOWN, so denied."""
    assert outcome("deny", "json: {a: x}", "POST https://a.test/", body=body) is UNKNOWN


def test_large_bodies_that_are_easy_to_compare_are_compared() -> None:
    """A long text is searched whole, in any script, also where it has some characters that grow."""
    for text in ("word " * 200_000, "\u4e2d\u6587" * 100_000, "d\xe9j\xe0 vu\u2026 " * 10_000):
        for end, expected in (("", NO), ("S\uff25CRET", YES)):
            found = outcome("deny", "json: {a: '*secret*'}", "POST https://a.test/", body=f'{{"a": "{text}{end}"}}')
            assert found is expected


def test_text_that_takes_long_to_fold_is_unknown() -> None:
    """Beyond the limit a text in other scripts is not compared: nobody waits for it, in one piece or in many."""
    long, piece = "\u4e2d" * 300_001, "\u4e2d" * 1000
    many = ",".join(f'"{piece}{number}"' for number in range(301))
    for body in (f'{{"a": "{long}"}}', f'{{"a": [{many}]}}'):
        assert outcome("deny", "json: {a: x}", "POST https://a.test/", body=body) is UNKNOWN


def test_work_of_a_condition_is_bounded_by_what_it_does() -> None:
    """Macros that nest or collect, and regular expressions, are given fewer values and less text than a comparison."""
    texts = {size: '{"m": [' + ",".join(['"a"'] * size) + "]}" for size in (100, 400, 4000, 9000)}
    for text, most in (
        ("request.json.m.exists(x, x == 'b')", 9000),
        ("request.json.m.exists(x, x.matches('^b'))", 400),
        ("request.json.m.map(x, x + 'b').size() > 10000", 100),
        ("request.json.m.exists(x, request.json.m.exists(y, x == y + 'b'))", 100),
        ("request.json.m.exists(x, request.json.m.exists(y, x.matches('^b') && y == 'b'))", 100),
    ):
        for size, body in texts.items():
            assert when(text, "POST https://a.test/", body=body) is (NO if size <= most else UNKNOWN), (text, size)
    long = f'{{"m": ["{"a" * 600_000}"]}}'
    assert when("request.json.m.exists(x, x == 'b')", "POST https://a.test/", body=long) is NO
    assert when("request.json.m.map(x, x + 'b').size() > 2", "POST https://a.test/", body=long) is UNKNOWN


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/json; charset=utf-16", "multipart/form-data"])
@pytest.mark.parametrize("kind", ["allow", "deny"])
def test_a_body_that_is_not_declared_as_json_is_unknown(kind: str, content_type: str) -> None:
    """What looks like JSON is another body to an origin that goes by the Content-Type: UNKNOWN, so denied."""
    for headers in ({"content-type": content_type}, {"content_type": "text/plain"}):
        found = outcome(kind, "json: {a: x}", "POST https://a.test/", headers=headers, body='{"a": "x"}')
        assert found is UNKNOWN
    assert when("request.json.a == 'x'", "POST https://a.test/", headers=headers, body='{"a": "x"}') is UNKNOWN


TYPES = {
    "text/plain": (YES, NO),
    "text/plain; charset=utf-8": (YES, NO),
    "application/json": (NO, YES),
    'Application/JSON ; x="a, b"': (NO, YES),
    "application/json;": (NO, YES),
    "text/plain, application/json": (UNKNOWN, UNKNOWN),
    "text/plain;,application/json": (UNKNOWN, UNKNOWN),
    "text/plain application/json": (UNKNOWN, UNKNOWN),
    "text": (UNKNOWN, UNKNOWN),
}


@pytest.mark.parametrize("content_type", TYPES)
def test_a_media_type_is_compared_as_one(content_type: str) -> None:
    """A deny covers it with any parameters; a list, of which servers read one or the other, and none are unknown."""
    headers, line = {"content-type": content_type}, "POST https://a.test/"
    allowed, denied = TYPES[content_type]
    assert outcome("allow", "headers: {content-type: text/plain*}", line, headers=headers, body="{}") is allowed
    assert outcome("deny", "headers: {content-type: application/json}", line, headers=headers, body="{}") is denied
    cel = when('request.headers["content-type"].startsWith("text/plain")', line, headers=headers, body="{}")
    assert cel is allowed


def test_what_says_nothing_of_its_type_is_of_none() -> None:
    """So it can't be told whether a server takes it for JSON: rules about JSON read it, see `json`."""
    assert outcome("allow", "headers: {content-type: text/plain*}", "GET https://a.test/") is NO
    assert outcome("deny", "headers: {content-type: application/json}", "GET https://a.test/") is NO


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("has(request.json.model)", '{"Model": "m"}'),
        ("!has(request.json.tools)", '{"Tools": []}'),
        ('"tools" in request.json', '{"Tools": []}'),
        ('!("tools" in request.json)', '{"\uff54ools": []}'),
        ('request.json.exists(key, key == "tools")', '{"Tools": []}'),
        ('has(request.json.a.b) && request.json.a.b == "x"', '{"a": {"B": "x"}}'),
        (
            'request.json.m.exists(m, has(m.role) && m.role == "system")',
            '{"m": [{"role": "user"}, {"Role": "system"}]}',
        ),
        ("request.json.m.all(m, size(m) > 0)", '{"m": [{"role": "user", "Role": "system"}]}'),
        ("size(request.json.m) > 0", '{"m": {"x": [{"k": 1, "K": 2}]}}'),
    ],
)
def test_cel_is_given_no_key_that_it_would_not_know(text: str, body: str) -> None:
    """A key in another spelling is a member to some origins and none to CEL: UNKNOWN, whatever asks for it."""
    assert when(text, "POST https://a.test/", body=body) is UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"tools" in request.json', NO),
        ('"model" in request.json', YES),
        ('request.json.exists(key, key == "model")', YES),
        ('request.json.m.all(m, m.role == "user")', YES),
    ],
)
def test_cel_is_given_keys_in_its_own_spelling(text: str, expected: Outcome) -> None:
    """Keys that nothing names may be spelled at will; those that are named mean what they say."""
    body = '{"model": "x", "MaxTokens": 1, "m": [{"role": "user", "Content": "y"}]}'
    assert when(text, "POST https://a.test/", body=body) is expected


@pytest.mark.parametrize(
    ("text", "line", "header"),
    [
        ('"admin" in request.query', "GET https://a.test/?Admin=1", "x-b"),
        ("has(request.query.admin)", "GET https://a.test/?x=1&ADMIN", "x-b"),
        ('request.query.exists(key, key == "admin")', "GET https://a.test/?Admin=1", "x-b"),
        ("size(request.query) == 1", "GET https://a.test/?a=1&A=2", "x-b"),
        ('"admin" in request.query', "GET https://a.test/?admin[]=1", "x-b"),
        ('request.query.mode == "safe"', "GET https://a.test/?mode=safe&mode.=x", "x-b"),
        ('"x-debug" in request.headers', "GET https://a.test/", "x_debug"),
        ('request.headers.exists(key, key == "x-debug")', "GET https://a.test/", "x_debug"),
    ],
)
def test_cel_is_given_no_name_that_it_would_not_know(text: str, line: str, header: str) -> None:
    """A parameter or header in another spelling of a named one is UNKNOWN, whatever asks for it."""
    assert when(text, line, headers={header: "1"}) is UNKNOWN


def test_a_header_with_underscores_is_the_one_with_hyphens() -> None:
    """An origin behind CGI or WSGI can't tell x_debug from x-debug: a deny covers both, an allow certainly neither."""
    for sent in ("x_debug", "x.debug", "x-debug"):
        found = outcome("deny", "headers: {x-debug: 'on'}", "GET https://a.test/", headers={sent: "on"})
        assert found is YES
        assert outcome("allow", "headers: {x-debug: false}", "GET https://a.test/", headers={sent: "on"}) is NO
    both = {"x-mode": "dry", "x_mode": "wet"}
    assert outcome("allow", "headers: {x-mode: dry}", "GET https://a.test/", headers=both) is NO
