"""What a gateway says about itself: its records in the audit log, and of a reload the lines of its own log.

Called by `Gateway`. What is said about requests is made where they end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from seamgate import __version__
from seamgate.audit.record import AuditGateway, AuditKind, AuditRecord
from seamgate.config import Config
from seamgate.pipeline import Pipeline
from seamgate.recording import AuditLog
from seamgate.reloading import ReloadReport

log = structlog.get_logger("seamgate.gateway")


def gateway_record(
    event: Any, config: Config, pipeline: Pipeline, now: float, more: Mapping[str, str] | None = None
) -> AuditRecord:
    """Return the record of what happened to the gateway: with what it is made of.

    Args:
        event: of `AuditGateway`.
        config: that is in force.
        pipeline: likewise.
        now: Unix seconds.
        more: further facts.
    """
    facts = {
        "version": __version__,
        "configuration": config.source,
        "policies": ", ".join(Path(name).name for name in config.policies),
        "plugins": ", ".join(plugin.name for plugin in pipeline.plugins),
        "capabilities": ", ".join(
            f"{plugin.name}: {'+'.join(sorted(plugin.capabilities))}"
            for plugin in pipeline.plugins
            if plugin.capabilities
        ),
        **(more or {}),
    }
    gateway = AuditGateway(event, facts)
    return AuditRecord(time=now, kind=AuditKind.GATEWAY, gateway=gateway, generation=pipeline.generation)


def tell_reloaded(report: ReloadReport, config: Config) -> None:
    """Log what a reload did."""
    counts = {"policies": len(config.policies), "credentials": len(config.credentials)}
    log.info("reloaded", generation=report.generation, **counts)
    if report.revoked_requests or report.revoked_tunnels:
        log.warning(
            "the new policy ended what was under way", requests=report.revoked_requests, tunnels=report.revoked_tunnels
        )
    if report.needs_restart:
        log.warning("some changes wait for a restart", sections=", ".join(report.needs_restart))


def tell_journal(journal: AuditLog) -> None:
    """Log that the audit log can't be written, so that everything is denied, or that it can be again."""
    path = str(journal.path)
    if journal.healthy:
        log.warning("the audit log can be written again", path=path)
    else:
        error = journal.stats.error
        log.error("the audit log can't be written; every request is denied until it can", path=path, error=error)
