"""`seamgate demo`: plays the story of `seamgate.demo` and shows each scene as it happens. Nothing shown is made up."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seamgate import __version__
from seamgate.audit.view import field_of, printable, read_facts
from seamgate.demo.stage import DemoFailed, Stage
from seamgate.demo.story import Attempt, Scene, Story
from seamgate.errors import ConfigError
from seamgate.observe.logging import configure_logging

_WIDTH = 108
_INDENT = 5
_LABEL = 15


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Put configuration, policy and journal "
              "into this new folder and leave them there.")  # fmt: skip
@click.option("--policy", type=click.Path(path_type=Path, dir_okay=False), help="Play with this policy instead of the "
              "one that ships.")  # fmt: skip
@click.pass_context
def demo(context: click.Context, as_json: bool, keep: Path | None, policy: Path | None) -> None:
    """Show the whole story on this machine: no configuration, no internet.

    Starts an upstream that talks like an LLM API, a gateway, and an agent under it; shows what the agent tried, what
    became of it and why. Every claim is checked; exit code 1 if one does not hold.
    """
    configure_logging("console", "error", color=context.color)
    folder = _folder(keep)
    console = _Console(highlight=False, soft_wrap=False, no_color=context.color is False or None)
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    show = _Show(None if as_json else console)
    started = time.monotonic()
    try:
        problem = uvloop.run(_play(folder, policy, show))
        spent_s = time.monotonic() - started
        if as_json:
            click.echo(show.json(problem, spent_s))
        else:
            show.end(problem, spent_s, keep)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if problem or show.failed:
        context.exit(1)


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="seamgate-demo-"))
    try:
        keep.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise ConfigError(f"{keep} is there already; --keep makes a new folder") from None
    except OSError as error:
        raise ConfigError(f"{keep} can't be made: {error.strerror}") from None
    return keep.absolute()


async def _play(folder: Path, policy: Path | None, show: _Show) -> str:
    """Play it; return what stopped it, "" if it came to its end."""
    try:
        async with Stage(folder, policy) as stage:
            async with aclosing(Story(stage).scenes()) as scenes:
                async for scene in scenes:
                    show.scene(scene)
    except DemoFailed as error:
        return error.message
    return ""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let it out as an error, so that what runs is stopped in order; click ends the command quietly."""
        raise BrokenPipeError(errno.EPIPE, "the reader is gone")


class _Show:
    """Shows scenes and keeps count of the checks. Without a console it only counts."""

    def __init__(self, console: Console | None) -> None:
        self.scenes: list[Scene] = []
        self._console = console
        self._number = 0
        ascii_only = console is not None and console.options.ascii_only
        self._yes, self._no, self._dash = ("+", "x", "-") if ascii_only else ("✓", "✗", "·")
        if console is not None:
            head = Text.assemble(("seamgate demo", "bold"), (f"  {__version__}", "dim"))
            console.print(Padding(head, (1, 0, 0, 2), expand=False))

    @property
    def failed(self) -> list[str]:
        """The claims that did not hold."""
        return [check.claim for scene in self.scenes for check in scene.checks if not check.holds]

    @property
    def held(self) -> int:
        """How many did."""
        return sum(check.holds for scene in self.scenes for check in scene.checks)

    def scene(self, scene: Scene) -> None:
        """Show one."""
        self.scenes.append(scene)
        if self._console is None:
            return
        if scene.title:
            self._number += 1
            self._console.print()
            self._line(Text.assemble((f"{self._number:>2}  ", "cyan"), (scene.title, "bold")), indent=1)
        for attempt in scene.attempts:
            self._attempt(attempt)
        for label, text in scene.facts:
            self._fact(label, Text(printable(text)))
        for event in scene.events:
            came = Text.assemble((f"{event.event:21}", "dim"), printable(event.text))
            self._fact(f"+{event.at_s * 1000:4.0f} ms", came)
        if scene.records:
            self._records(scene.records)
        for check in scene.checks:
            mark, style = (self._yes, "green") if check.holds else (self._no, "bold red")
            self._line(Text.assemble((f"{mark} ", style), (check.claim, "" if check.holds else "bold red")))

    def _attempt(self, attempt: Attempt) -> None:
        self._line(Text.assemble((f"{attempt.method} ", "bold"), printable(attempt.url)))
        verdict, style = ("ALLOWED", "bold green") if attempt.verdict == "allow" else ("DENIED", "bold red")
        why = Text.assemble((f"{verdict:{_LABEL}}", style))
        if attempt.verdict != "allow":
            why.append(f"{attempt.reason}  ", style="red")
        if attempt.rule:
            why.append(f"rule {attempt.rule} ").append(f"({attempt.place})  ", style="dim")
        why.append(f"{attempt.duration_ms:.1f} ms {self._dash} the agent got: {printable(attempt.got)}", style="dim")
        self._line(why)
        if attempt.message:
            self._fact("", Text(printable(attempt.message), style="yellow"))

    def _fact(self, label: str, text: Text) -> None:
        table = Table.grid(padding=0)
        table.add_column(width=_LABEL)
        table.add_column(overflow="fold")
        table.add_row(Text(label, style="cyan"), text)
        self._line(table)

    def _records(self, records: tuple[bytes, ...]) -> None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(overflow="ellipsis", no_wrap=True)
        for facts in map(read_facts, records):
            denied = facts.get("verdict") == "deny"
            if facts.get("kind") == "connect" and not denied:
                continue
            verdict = Text("deny" if denied else "allow", style="red" if denied else "green")
            why = field_of(facts, "reason") if denied else f"rule {field_of(facts, 'rule')}"
            what = f"{field_of(facts, 'method')} {field_of(facts, 'host')}{field_of(facts, 'path')}"
            table.add_row(Text(f"#{facts.get('seq')}", style="dim"), verdict, why, printable(what))
        self._line(table)

    def _line(self, what: Any, indent: int = _INDENT) -> None:
        assert self._console is not None
        self._console.print(Padding(what, (0, 0, 0, indent), expand=False))

    def end(self, problem: str, spent_s: float, keep: Path | None) -> None:
        """Show the result and what one may do next."""
        assert self._console is not None
        self._console.print()
        if problem or self.failed:
            for claim in ([problem] if problem else []) + self.failed:
                self._line(Text(f"{self._no} {claim}", style="bold red"), 1)
            self._line(Text(f"The demo did not go as it should: {self.held} checks held, see above.", "bold red"), 1)
            return
        self._line(Text(f"{self._yes} {self.held} checks, all hold; {spent_s:.1f} s", style="bold green"), 1)
        self._console.print()
        if keep is not None:
            steps = (("the journal", f"seamgate audit tail {_shown(keep)}/audit.jsonl"),
                     ("the policy", f"{_shown(keep)}/demo.yaml"))  # fmt: skip
        else:
            steps = (("look inside", "seamgate demo --keep ./demo"), ("your own", "seamgate init my-gateway"))
        for label, text in (*steps, ("your agent", "seamgate run --allow api.anthropic.com -- python agent.py")):
            self._line(Text.assemble((f"{label:{_LABEL}}", "cyan"), text), 3)
        self._console.print()

    def json(self, problem: str, spent_s: float) -> str:
        """Return the whole story for machines."""
        scenes: list[dict[str, Any]] = []
        for scene in self.scenes:
            plain = msgspec.to_builtins(msgspec.structs.replace(scene, records=()))
            plain["records"] = [read_facts(line) for line in scene.records]
            if scene.title or not scenes:
                scenes.append(plain)
                continue
            for key in ("facts", "attempts", "events", "records", "checks"):
                scenes[-1][key] = [*scenes[-1][key], *plain[key]]
        ok = not problem and not self.failed
        result = {"ok": ok, "problem": problem, "checks": self.held, "failed": self.failed, "duration_s": spent_s}
        return msgspec.json.encode(result | {"scenes": scenes}).decode()


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path)
