"""The whole group `seamgate audit`: what reads lines (`audit`), and what exports and counts them."""

from __future__ import annotations

from seamgate.cli.audit import audit
from seamgate.cli.audit_export import export
from seamgate.cli.audit_stats import stats

for _command in (export, stats):
    audit.add_command(_command)

__all__ = ["audit"]
