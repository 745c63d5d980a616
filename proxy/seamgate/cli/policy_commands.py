"""The whole group `seamgate policy`: what judges files (`policy`), and what compares, replays and measures them."""

from __future__ import annotations

from seamgate.cli.policy import policy
from seamgate.cli.policy_coverage import coverage
from seamgate.cli.policy_diff import diff
from seamgate.cli.policy_replay import replay

for _command in (diff, replay, coverage):
    policy.add_command(_command)

__all__ = ["policy"]
