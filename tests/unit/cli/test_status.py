"""What `seamgate status` says of how requests ended."""

from __future__ import annotations

from seamgate.cli.status import reasons_shown


def test_failures_are_no_denials() -> None:
    """What was allowed and could not be done stands apart from what was refused; the commonest comes first."""
    denials, failures = reasons_shown(
        {
            "proxy": {"allowed": 9, "no_rule_matched": 1, "connect_failed": 2, "response_denied": 3},
            "netns": {"no_rule_matched": 4, "upstream_tls_failed": 5},
        }
    )
    assert [each.strip() for each in denials] == ["5 x no_rule_matched", "3 x response_denied"]
    assert [each.strip() for each in failures] == ["5 x upstream_tls_failed", "2 x connect_failed"]
