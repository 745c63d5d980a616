"""What a policy can't permit by accident: wide networks are errors, and a rule's addresses reach no further than it."""

from __future__ import annotations

import pytest

from seamgate.errors import ConfigError
from seamgate.policy.loader import parse_policy
from seamgate.upstream.addresses import compile_permit

POLICY = """
seamgate: 1
layer: org
owner: tests@seamgate.example
rules:
  - id: inner
    allow: {{hosts: [a.example]}}
    addresses: [{entry}]
    reason: a test
"""


@pytest.mark.parametrize("entry", ["0.0.0.0/0", "'::/0'", "10.0.0.0/7", "128.0.0.0/1", "'f000::/4'"])
def test_wide_networks_are_refused_with_their_place(entry: str) -> None:
    """A network over the border of a class is an error at load, with line and column, and names the classes."""
    with pytest.raises(ConfigError, match="private") as caught:
        parse_policy(POLICY.format(entry=entry), "policy.yaml")
    assert caught.value.line == 8


@pytest.mark.parametrize(
    "entry", ["private", "10.0.0.0/8", "'fd00::/8'", "127.0.0.1", "'64:ff9b::/96'", "metadata", "'::1'"]
)
def test_what_a_policy_may_name_is_understood_before_dialling(entry: str) -> None:
    """Whatever the loader accepts, the check before dialling can compile."""
    policy = parse_policy(POLICY.format(entry=entry), "policy.yaml")
    assert compile_permit(policy.rules[0].addresses)
