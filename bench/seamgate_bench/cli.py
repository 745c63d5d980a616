"""The command line of `bench/run.py`.

Exit codes: 0 fine; 1 Seamgate failed, lacks audit records, or missed a goal (--check); 2 usage; 3 a prerequisite is
missing.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from seamgate_bench import ground as grounds
from seamgate_bench import load, peers_venv, plot, report
from seamgate_bench.figures import judge_goals
from seamgate_bench.lineup import QUICK, SCENARIOS, choose_peers, choose_scenarios, fits, peers, steps
from seamgate_bench.process import PeerFailed
from seamgate_bench.runner import Results, Runner


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _rules(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    try:
        rules = [int(n) for n in _names(value)]
    except ValueError:
        rules = []
    if not rules or min(rules) < 1:
        raise click.BadParameter("wants whole numbers of at least 1, with commas between them: 100 or 10,1000,100000")
    return rules


@click.command(
    help="Measure Seamgate beside its peers, in one run on the same two cores. docs/performance.md tells how."
)
@click.option("--quick", is_flag=True, help=f"About a minute: {', '.join(QUICK)}, three short repetitions.")
@click.option("--only", default="", metavar="PEER,...", help="Measure these peers only.")
@click.option("--scenario", default="", metavar="NAME,...", help=f"Of {', '.join(s.name for s in SCENARIOS)}.")
@click.option(
    "--rules",
    default="100",
    callback=_rules,
    metavar="N,...",
    help="Size of Seamgate's policy; several: a column each.",
)
@click.option("--connections", type=click.IntRange(1, 8000), help="Another number of connections than the scenario's.")
@click.option("--repeat", type=click.IntRange(1, 50), help="Repetitions (5; --quick: 3). Medians are shown.")
@click.option("--seconds", type=click.FloatRange(0.1, 60), help="Length of one repetition (1.0; --quick: 0.5).")
@click.option("--base", default="seamgate", show_default=True, metavar="PEER", help="Whose ratios to show.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write everything there as JSON."
)
@click.option(
    "--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw CPU per request there as SVG."
)
@click.option("--check", is_flag=True, help="Exit with 1 where Seamgate misses a goal.")
def main(
    quick: bool,
    only: str,
    scenario: str,
    rules: list[int],
    connections: int | None,
    repeat: int | None,
    seconds: float | None,
    base: str,
    json_file: Path | None,
    plot_file: Path | None,
    check: bool,
) -> None:
    """Run the bench and show what came out."""
    console = Console(width=None if os.isatty(1) else 200)
    every = peers(rules)
    try:
        chosen = choose_peers(every, _names(only))
        wanted = choose_scenarios(_names(scenario) or (QUICK if quick else [s.name for s in SCENARIOS]), connections)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    chosen = [p for p in chosen if any(fits(p, s) for s in wanted)]
    raise_file_limit()
    try:
        peers_venv.ensure(lambda text: console.print(text, highlight=False))
        repeats = repeat or (3 if quick else 5)
        with grounds.prepared() as ground, _progress(console, steps(chosen, wanted, repeats)) as say:
            program = load.build(ground.directory)
            runner = Runner(ground, program, repeats=repeats, seconds=seconds or (0.5 if quick else 1.0), say=say)
            results = runner.run(chosen, wanted)
    except PeerFailed as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise SystemExit(3) from error
    report.show(console, results, chosen, wanted, base)
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_document(results, wanted, base), indent=1) + "\n")
    if plot_file is not None:
        plot_file.write_text(plot.draw(results.table(), wanted, base))
    raise SystemExit(exit_code(results, base, check=check))


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal; what it yields is called once for each step, with its name."""
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Drawn four times a second at most: it runs on the load generator's core.
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)

        def say(text: str) -> None:
            bar.update(task, description=text, advance=1)

        yield say


def exit_code(results: Results, base: str, *, check: bool) -> int:
    """Return 1 where `base` was to be measured and was not, audit records lack, or (check) a goal was missed."""
    failed = base in results.missing or any(base in row for row in results.failed.values())
    unaudited = any(records < answered for records, answered in results.audited.values())
    missed = check and any(outcome.met is False for outcome in judge_goals(results.table()))
    return int(failed or unaudited or missed)


def raise_file_limit() -> None:
    """Allow as many open files as may be: 1,500 clients are 3,000 sockets in a proxy."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
