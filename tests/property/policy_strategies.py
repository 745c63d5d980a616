"""Hypothesis strategies: small worlds in which rules and requests meet often."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from seamgate.flow import BodyState, Guest, Request, Target
from seamgate.policy.loader import parse_policy
from seamgate.policy.model import Policy

NOW = 1_800_000_000.0
HOST_PATTERNS = ["a.test", "b.test", "x.a.test", "*.test", "**.test", "*.a.test", "x.*.test", "**", "**.a.test", "*"]
HOST_PATTERNS += ["10.0.0.1", "A.TEST", "a.test."]
HOSTS = ["a.test", "b.test", "x.a.test", "y.x.a.test", "x.b.test", "c.test", "test", "localhost"]
PATH_PATTERNS = ["/", "/a", "/a/", "/a/*", "/a/**", "/*", "/**", "/**/b", "/a/*/c", "/*/b/**", "/a*", "/*a", "/a*b/c"]
PATH_PATTERNS += ["/a%2Fb", "/**/b/**", "/**/**", "/A", "/%40s/*", "/a/b%2Fc", "/*%2F*"]
PATHS = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/a/b/c",
    "/a/b/c/",
    "/b",
    "/ab",
    "/axb/c",
    "/a%2Fb",
    "/a%2Fb/c",
    "/A/B",
    "*",
]
PATHS += ["/@s/b", "/%40s/b", "/a/b%2Fc", "/x/b/y", "/ba", "/a/x/c"]
PATHS += ["/a%20/b", "/a%EF%BC%8Fb", "/x/%E2%80%A5/a/b", "/a/b%3Fc", "/a./c", "/%E2%80%A5", "/a/%EF%BC%8E/b"]
PATHS += [
    "/a/x%3Fb/c",
    "/a%23b/c",
    "/a/b%2F..%20%2Fc",
    "/a/%E2%80%8B/c",
    "/a/b::$DATA/c",
    "/axb/c%20",
    "/a%EF%BC%8Fx%2Fc",
]
METHODS = ["GET", "HEAD", "POST", "DELETE"]
TEAMS = ["red", "blue", "green"]
WHENS = ['request.json.model == "m"', "request.json.n > 1", 'request.method == "POST"', "has(request.query.q)"]
WHENS += ['guest.labels.team == "red"', 'request.headers["x-h"].startsWith("v")']

some = st.sampled_from
values = st.one_of(st.booleans(), some(["v", "w*", "*"]), st.lists(some(["v", "w"]), min_size=1, max_size=2))


def lists(items: list[Any]) -> st.SearchStrategy[list[Any]]:
    """Short lists."""
    return st.lists(some(items), min_size=1, max_size=3)


broad_hosts = lists(["**", "**.test", "a.test", "*.test", "x.a.test"])
broad_matches = st.fixed_dictionaries({"hosts": broad_hosts}, optional={"paths": lists(PATH_PATTERNS)})
full_matches = st.fixed_dictionaries(
    {"hosts": lists(HOST_PATTERNS)},
    optional={
        "schemes": lists(["https", "http"]),
        "ports": lists([443, 80, "8000-8100"]),
        "methods": st.one_of(some(["read", "write"]), lists([*METHODS, "get"])),
        "paths": lists(PATH_PATTERNS),
        "query": st.fixed_dictionaries({}, optional={"q": values, "r": values}).filter(bool),
        "headers": st.fixed_dictionaries({}, optional={"x-h": values}).filter(bool),
        "json": st.fixed_dictionaries({}, optional={"model": some(["m", "m*", True, 1]), "a.b": some(["v", 2])}).filter(
            bool
        ),
    },
)
matches = st.one_of(broad_matches, full_matches)
guests = st.fixed_dictionaries(
    {}, optional={"team": st.one_of(some(TEAMS), some(["*"]), lists(TEAMS)), "role": some(["r"])}
)
guests = guests.filter(bool)
expiries = some(["2020-01-01", "2090-01-01"])
exemptions = st.fixed_dictionaries(
    {"guests": guests}, optional={"paths": lists(PATH_PATTERNS), "when": some(WHENS), "expires": expiries}
)
plain_allows = st.fixed_dictionaries({"allow": broad_matches}, optional={"when": some(WHENS)})
full_allows = st.fixed_dictionaries(
    {"allow": matches},
    optional={"guests": guests, "when": some(WHENS), "expires": expiries, "encoded_slash": st.just(True)},
)
allow_rules = st.one_of(plain_allows, plain_allows, full_allows)
deny_rules = st.fixed_dictionaries(
    {"deny": matches}, optional={"guests": guests, "when": some(WHENS), "expires": expiries, "except": exemptions}
)
rule_lists = st.lists(st.one_of(allow_rules, allow_rules, deny_rules), max_size=6)
layers = some(["org", "team", "sandbox"])


def policy(rules: list[dict[str, Any]], layer: str = "team", prefix: str = "r", mode: str = "enforce") -> Policy:
    """Load rules as a file would be; JSON is YAML."""
    named = [{"id": f"{prefix}{index}", **rule} for index, rule in enumerate(rules)]
    return parse_policy(json.dumps({"seamgate": 1, "layer": layer, "mode": mode, "rules": named}), f"{prefix}.yaml")


targets = st.one_of(
    st.builds(lambda host, port: Target("https", host, port), some(HOSTS), some([443, 8080, 80])),
    st.builds(lambda host: Target("https", host, 443), some(HOSTS)),
    st.builds(lambda host: Target("https", host, 443), some(HOSTS)),
    st.builds(lambda host: Target("http", host, 80), some(HOSTS)),
    st.just(Target("https", "10.0.0.1", 443, True)),
)
bodies = some(
    [
        b"",
        b"{",
        b'{"model":"m","n":2}',
        b'{"model":"x","a":{"b":"v"}}',
        b'{"model":"m","model":"x"}',
        b"[1]",
        b'{"n":"s"}',
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request in any phase."""
    labels = draw(st.fixed_dictionaries({}, optional={"team": some(TEAMS), "role": some(["r", "s"])}))
    state = draw(some(list(BodyState)))
    return Request(
        "r",
        Guest("g", labels),
        draw(targets),
        draw(some(METHODS)),
        draw(some(PATHS)),
        draw(some([None, "", "q=v", "q=w1&q=v", "Q=v", "r=v;q=w", "q=%ff", "r"])),
        draw(some([(), ((b"x-h", b"v"),), ((b"x-h", b"v"), (b"x-h", b"z")), ((b"x-h", b"a, v"),)])),
        draw(bodies) if state is BodyState.COMPLETE else None,
        state,
    )
