"""`seamgate status`: what a running gateway is doing, for people and for scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from seamgate.audit.view import printable
from seamgate.cli.admin_client import ask, find, problem_of, where
from seamgate.cli.commands import EXIT_NO
from seamgate.cli.counting import counted
from seamgate.errors import Blame, PrerequisiteMissing, Reason
from seamgate.observe.status import Status, WorkerStatus

_WIDTH = 12
_REASONS_SHOWN = 8
_DENIED_LATE = (Reason.RESPONSE_DENIED, Reason.RESPONSE_UNDECODABLE)
_FAILURES = frozenset(each for each in Reason if each.blame is Blame.UPSTREAM and each not in _DENIED_LATE)
"""How what was allowed ends where the upstream is to blame. An answer that was refused is a denial."""


@click.command()
@where
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--live", is_flag=True, help="Only ask whether it is alive: for probes that restart what is not.")
@click.pass_context
def status(context: click.Context, config_path: Path, admin: str, as_json: bool, live: bool) -> None:
    """Show what a running gateway is doing. Exit code 1 if it is not ready, 3 if none answers."""
    if live:
        code, _ = ask(find(admin, config_path), "GET", "/healthz")
        context.exit(0 if code == 200 else EXIT_NO)
    code, body = ask(find(admin, config_path), "GET", "/status")
    if code != 200:
        raise PrerequisiteMissing(f"the admin listener answers {code}: {problem_of(body)}")
    try:
        now = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        raise PrerequisiteMissing(problem_of(b"")) from None
    click.echo(body.decode().strip() if as_json else render(now), color=context.color)
    context.exit(0 if now.ready else EXIT_NO)


def render(status: Status) -> str:
    """Return the text for people."""
    return "\n".join(f"{click.style(label.ljust(_WIDTH), fg='cyan')}{text}" for label, text in _facts(status))


def _facts(status: Status) -> Iterator[tuple[str, str]]:
    ready = click.style("ready", fg="green") if status.ready else click.style("not ready", fg="red", bold=True)
    yield "seamgate", f"{status.version}, pid {status.pid}, up {_duration(status.uptime_s)}, {ready}"
    for problem in status.not_ready:
        yield "", f"{click.style(problem.code, fg='red')}: {printable(problem.message)}"
    yield "generation", _generation(status)
    if status.reloads.last_problem:
        yield "", f"{click.style('the last reload was refused', fg='red')}: {printable(status.reloads.last_problem)}"
    if status.reloads.needs_restart:
        waiting = ", ".join(status.reloads.needs_restart)
        yield "", f"{click.style('needs a restart', fg='yellow')}: {waiting}"
    for worker in status.workers:
        yield f"worker {worker.worker}", _worker(worker)
    for entry, place in status.entries.items():
        yield entry.replace("_", " "), place
    counts = status.counts
    denied = f"{counts.denied_total} of {counts.requests_total} denied so far"
    yield "requests", f"{counts.requests_active} under way; {denied}"
    denials, failures = reasons_shown(status.reasons)
    for text in denials:
        yield "", text
    for first, text in zip(("failures", *[""] * len(failures)), failures, strict=False):
        yield first, text.strip() if first else text
    refused = f", {counts.connections_refused_total} refused" if counts.connections_refused_total else ""
    yield "guests", f"{counted(counts.connections, 'connection')} of {counts.connections_limit}{refused}"
    sessions = f"{counted(counts.sessions_busy, 'session')} busy, {counts.sessions_idle} idle"
    opened = f"{counts.sessions_opened_total} opened, {counts.sessions_reused_total} times reused"
    yield "upstreams", f"{sessions}, {counted(counts.sessions_waiting, 'request')} waiting; {opened}"
    for policy in status.policies:
        expired = f", {click.style(f'{policy.expired} expired', fg='yellow')}" if policy.expired else ""
        yield "policy", f"{printable(Path(policy.source).name)}: {policy.rules} rules{expired}, layer {policy.layer}"
    for plugin in status.plugins:
        yield "plugin", f"{plugin.name} {plugin.version}".strip()
        for hook in plugin.hooks:
            if hook.calls:
                trouble = f", {hook.denials} denied" if hook.denials else ""
                trouble += f", {click.style(f'{hook.failures} failed', fg='red')}" if hook.failures else ""
                trouble += f", {click.style(f'{hook.overruns} overran', fg='red')}" if hook.overruns else ""
                yield "", f"  {hook.hook}: {hook.calls} calls, {hook.mean_us:g} us on average{trouble}"
    audit = status.audit
    error = f"; {click.style(f'failing: {printable(audit.error)}', fg='red')}" if audit.error else ""
    lost = f", {click.style(f'{audit.lost} lost', fg='red')}" if audit.lost else ""
    yield "audit", f"record {audit.seq}, {audit.pending} waiting{lost}{error}"


def _worker(worker: WorkerStatus) -> str:
    color = "green" if worker.state == "serving" else "yellow"
    again = f", started again {worker.restarts} times" if worker.restarts else ""
    if not worker.pid:
        return f"{click.style(worker.state, fg='red')}{again}"
    load = f"{worker.requests_active} requests under way, {worker.connections} connections"
    state = click.style(worker.state, fg=color)
    return f"{state}, pid {worker.pid}, generation {worker.generation}, {load}{again}"


def _generation(status: Status) -> str:
    reloads = status.reloads
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(reloads.last_at))
    return f"{status.generation} since {since}; {reloads.done} reloads, {reloads.refused} refused"


def reasons_shown(reasons: Mapping[str, Mapping[str, int]]) -> tuple[list[str], list[str]]:
    """Return the commonest reasons over all entries: of denials, and of what was allowed and could not be done."""
    total: dict[str, int] = {}
    for by_reason in reasons.values():
        for reason, count in by_reason.items():
            if reason not in ("", "allowed"):
                total[reason] = total.get(reason, 0) + count
    denials: list[str] = []
    failures: list[str] = []
    for reason, count in sorted(total.items(), key=lambda pair: -pair[1]):
        (failures if reason in _FAILURES else denials).append(f"  {count} x {reason}")
    return denials[:_REASONS_SHOWN], failures[:_REASONS_SHOWN]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
