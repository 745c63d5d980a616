"""Lint: each finding has a rule that earns it, and a good policy has none."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from seamgate.credentials import unbound
from seamgate.policy import lint as lint_module
from seamgate.policy.files import public_suffixes
from seamgate.policy.lint import covered_suffixes, lint
from unit.policy.ask import NOW, load

DOCS = Path(__file__).resolve().parents[3] / "docs"
GOOD = """
    - id: good
      allow: {hosts: [api.llm.test], methods: [POST], paths: [/v1/messages]}
      credential: llm
      owner: x
      reason: it is
"""


def codes(rules: str, **details: str) -> set[str]:
    """Return the codes of findings on rules, but those on every test file."""
    return {each.code for each in lint([load(rules, **details)], NOW, public_suffixes)} - {"no-owner", "no-reason"}


def test_a_good_policy_has_no_finding() -> None:
    """Nothing is said where there is nothing to say."""
    assert codes(GOOD) == set()


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ("- id: a\n  deny: {hosts: [a.test]}", "allows-nothing"),
        ("- id: a\n  allow: {hosts: [a.test]}\n  expires: 2026-01-01", "expired"),
        ("- id: a\n  allow: {hosts: [a.test]}\n  expires: 2026-12-20", "expires-soon"),
        ("- id: a\n  allow: {hosts: []}", "empty-list"),
        ("- id: a\n  allow: {hosts: [a.test], methods: []}", "empty-list"),
        ("- id: a\n  allow: {hosts: ['*']}", "single-label"),
        ("- id: a\n  allow: {hosts: ['**']}", "any-host"),
        ("- id: a\n  allow: {hosts: ['*.*']}", "any-host"),
        ("- id: a\n  allow: {hosts: ['**.com']}", "top-level"),
        ("- id: a\n  allow: {hosts: ['*.*.com']}", "top-level"),
        ("- id: a\n  allow: {hosts: ['*.github.io']}", "public-suffix"),
        ("- id: a\n  allow: {hosts: [a.test], methods: [FETCH]}", "unknown-method"),
        ("- id: a\n  deny: {hosts: [a.test], methods: [delte]}", "unknown-method"),
        ("- id: a\n  deny: {hosts: [a.test]}\n  except: {methods: [GETT]}", "unknown-method"),
        ("- id: a\n  allow: {hosts: ['*.a.test'], methods: [GET]}\n  credential: x", "credential-wildcard"),
        (
            "- id: a\n  allow: {hosts: [a.test], schemes: [http], methods: [GET]}\n  credential: x",
            "credential-over-http",
        ),
        ("- id: a\n  allow: {hosts: [a.test]}\n  credential: x", "credential-any-method"),
        ("- id: a\n  allow: {hosts: [a.test], methods: [GET]}\n  credential: x", "credential-any-path"),
        ("- id: a\n  allow: {hosts: [a.test]}\n  addresses: [metadata]", "metadata"),
        ("- id: a\n  allow: {hosts: [a.test]}\n- id: b\n  allow: {hosts: [a.test]}", "repeated"),
        ("- id: a\n  allow: {hosts: [a.test]}\n- id: b\n  deny: {hosts: ['*.test']}", "shadowed"),
        ("- id: a\n  allow: {hosts: ['*.a.test']}\n- id: b\n  deny: {hosts: ['**.a.test']}", "shadowed"),
        ("- id: a\n  allow: {hosts: [a.test], paths: [/x/y]}\n- id: b\n  deny: {paths: ['/X/**']}", "shadowed"),
        ("- id: a\n  allow: {hosts: [a.test], paths: ['/x/*']}\n- id: b\n  deny: {paths: ['/x/**']}", "shadowed"),
        ("- id: a\n  allow: {hosts: [a.test], methods: [PUT]}\n- id: b\n  deny: {methods: write}", "shadowed"),
        ("- id: a\n  allow: {hosts: [a.test], ports: [1], protocol: tcp}\n- id: b\n  deny: {paths: [/x]}", "shadowed"),
        ("- id: a\n  allow: {hosts: [a.test], ports: ['*'], protocol: tcp}", "tcp-ports"),
        ("- id: a\n  allow: {hosts: [a.test], ports: [443], protocol: tcp}", "tcp-web"),
    ],
)
def test_each_finding(rules: str, code: str) -> None:
    """The code is found, at the rule's line."""
    assert code in codes(rules)


def test_a_misspelt_method_is_told_with_what_was_meant() -> None:
    """By the rule's id and line; a registered method, however rare, is no finding, nor are read and write."""
    rules = "- id: a\n  deny: {hosts: [a.test], methods: [DELTE, propfind, QUERY, read, write, ACME-SPECIAL]}"
    found = [each for each in lint([load(rules)], NOW, public_suffixes) if each.code == "unknown-method"]
    assert [(each.rule, each.severity, each.line) for each in found] == [("a", "warning", 5)] * 2
    assert [each.message for each in found] == [
        "the method ACME-SPECIAL is not in IANA's registry",
        "the method DELTE is not in IANA's registry: did you mean 'DELETE'?",
    ]


@pytest.mark.parametrize(
    "ban",
    [
        "deny: {hosts: [b.test]}",
        "deny: {hosts: [a.test], methods: [PUT]}",
        "deny: {hosts: [a.test], paths: [/x]}",
        "deny: {hosts: [a.test], ports: [8443]}",
        "deny: {hosts: [a.test], query: {q: true}}",
        "deny: {hosts: [a.test]}\n  except: {guests: {t: a}}",
        "deny: {hosts: [a.test]}\n  guests: {t: a}",
        "deny: {hosts: [a.test]}\n  mode: audit",
        "deny: {hosts: [a.test]}\n  expires: 2020-01-01",
    ],
)
def test_a_ban_on_a_part_is_no_shadow(ban: str) -> None:
    """An allow of which something is left is not reported."""
    assert "shadowed" not in codes(f"- id: a\n  allow: {{hosts: [a.test]}}\n- id: b\n  {ban}")


def test_findings_have_places_and_an_order() -> None:
    """By file and line, with the rule's id."""
    found = lint([load("- id: a\n  allow: {hosts: ['**']}\n- id: b\n  allow: {hosts: ['*']}")], NOW, public_suffixes)
    warnings = [(each.source, each.line, each.rule, each.code) for each in found if each.severity == "warning"]
    assert warnings == [("p.yaml", 5, "a", "any-host"), ("p.yaml", 7, "b", "single-label")]


def test_a_rule_for_upgrades_repeats_no_rule_without() -> None:
    """One lets requests become WebSockets, the other does not."""
    rules = "- id: a\n  allow: {hosts: [a.test]}\n- id: b\n  allow: {hosts: [a.test]}\n  upgrade: websocket"
    assert codes(rules) == set()


@pytest.mark.parametrize(
    ("host", "suffix"),
    [
        ("*.co.uk", "co.uk"),
        ("**.co.uk", "co.uk"),
        ("*.github.io", "github.io"),
        ("*.*.github.io", "github.io"),
        ("*.s3.amazonaws.com", "s3.amazonaws.com"),
        ("**.amazonaws.com", "amazonaws.com"),
        ("*.amazonaws.com", "amazonaws.com"),
        ("**.core.windows.net", "blob.core.windows.net"),
        ("cdn.*.vercel.app", "vercel.app"),
        ("*.city.kawasaki.jp", ""),
        ("*.other.kawasaki.jp", "other.kawasaki.jp"),
        ("*.xn--90a3ac", "xn--90a3ac"),
        ("*.example.co.uk", ""),
        ("**.me.github.io", ""),
        ("*.core.windows.net", ""),
        ("**.example.com", ""),
        ("me.github.io", ""),
        ("**", ""),
        ("*.internal", ""),
    ],
)
def test_a_pattern_over_a_public_suffix_is_found(host: str, suffix: str) -> None:
    """Where the label that a wildcard stands for is one that anybody can get; by the list, its exceptions included."""
    found = [
        each.message for each in covered_suffixes([load(f"- id: a\n  allow: {{hosts: ['{host}']}}")], public_suffixes)
    ]
    assert found == (
        [f"the host {host} covers names that anybody can get under {suffix}: name the hosts"] if suffix else []
    )


def test_a_ban_on_a_public_suffix_is_no_finding() -> None:
    """What denies names of anybody is what one wants."""
    assert covered_suffixes([load("- id: a\n  deny: {hosts: ['**.co.uk']}")], public_suffixes) == []


def test_the_codes_are_documented() -> None:
    """docs/policy.md lists each code that lint can find, and no other."""
    source = "".join(Path(inspect.getsourcefile(module) or "").read_text() for module in (lint_module, unbound))
    codes = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source)) | {"expired", "metadata", "repeated", "shadowed"}
    told = re.findall(r"^\| `([a-z-]+)` \| (?:warning|note) \|", (DOCS / "policy.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(codes - {"link-local"})
