"""Runs simulations by their seeds: `python -m simulation.run --seed 1 --runs 1000`; called by `make simulate`.

The first thing that it does is to replace the clocks; the gateway's modules are imported after that.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import hashlib
import json
import logging
import os
import sys
from collections import Counter
from time import perf_counter
from typing import Any, NamedTuple

from simulation.clock import install

GIVE_UP_AFTER = 20
"""Failed seeds: whoever looks into them needs no more."""
COLLECT_EVERY = 5
"""Schedules: seldom enough not to be in the middle of one, often enough for what is found to be in the cache still."""


def main() -> int:
    """Return 0 if every seed holds, 1 if one does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0: one for each processor")
    parser.add_argument("--trace", action="store_true", help="print what each seed came to")
    options = parser.parse_args()
    real_clock = perf_counter
    install()

    import structlog

    from simulation.shared import Folder
    from simulation.world import simulate

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds = range(options.seed, options.seed + options.runs)
    jobs = min(options.jobs or os.cpu_count() or 1, options.runs)
    with Folder() as folder:
        with contextlib.suppress(Exception):  # it only imports what is imported late: once, and not in each process
            simulate(0, folder)
        gc.collect()
        gc.freeze()
        started = real_clock()
        counts = _in_processes(seeds, jobs, folder, options.trace)
    took_s = real_clock() - started
    rate = f"{took_s:.1f} s, {counts.runs / took_s:.0f} a second"
    print("met: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.met.items())))
    print(f"{counts.runs} simulations, {counts.requests} requests, {counts.failed} failed, {rate}")
    return 1 if counts.failed or counts.runs < options.runs else 0


class Counts(NamedTuple):
    """What a process did."""

    runs: int
    requests: int
    failed: int
    met: dict[str, int] = {}

    def __add__(self, other: Any) -> Counts:
        """Both together."""
        met = {name: self.met.get(name, 0) + other.met.get(name, 0) for name in {**self.met, **other.met}}
        return Counts(self.runs + other.runs, self.requests + other.requests, self.failed + other.failed, met)


def _in_processes(seeds: range, jobs: int, folder: Any, trace: bool) -> Counts:
    """Share the seeds out. What is made already is every child's without being made again."""
    if jobs == 1:
        return _run_all(seeds, folder, trace)
    children = [_child(seeds[first::jobs], folder, trace) for first in range(jobs)]
    counts = [Counts(0, 0, 1)] * jobs  # of one that died
    for place, (pid, reader) in enumerate(children):
        with os.fdopen(reader) as told:
            text = told.read()
        os.waitpid(pid, 0)
        if text:
            counts[place] = Counts(*json.loads(text))
    return functools.reduce(Counts.__add__, counts)


def _child(seeds: range, folder: Any, trace: bool) -> tuple[int, int]:
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    counts = Counts(0, 0, 1)
    try:
        os.close(reader)
        counts = _run_all(seeds, folder, trace)
    finally:
        sys.stdout.flush()
        os.write(writer, json.dumps(counts).encode())
        os._exit(0)


def _run_all(seeds: range, folder: Any, trace: bool) -> Counts:
    from simulation.met import met
    from simulation.referee import faults
    from simulation.world import simulate

    runs = requests = failed = 0
    found_in: Counter[str] = Counter()
    gc.disable()
    for seed in seeds:
        runs += 1
        if not runs % COLLECT_EVERY:
            gc.collect()
        try:
            outcome = simulate(seed, folder)
            found = faults(outcome)
            requests += outcome.gateway.seam.requests_total
            found_in += met(outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this seed's
            outcome, found = None, [f"{type(error).__name__}: {error}"]
        if trace and outcome is not None:
            _say(f"seed {seed}: {summary(outcome)}")
        if found:
            failed += 1
            said = (f"seed {seed} fails; again with: make simulate SEED={seed} RUNS=1", *found)
            _say("\n  ".join(said))
        if failed >= GIVE_UP_AFTER:
            break
    return Counts(runs, requests, failed, found_in)


def _say(text: str) -> None:
    """Write lines in one piece, since several processes write to the same pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def summary(outcome: Any) -> str:
    """Return one line that is the same for the same seed: counts, and a digest of all that was decided."""
    told = [
        f"{record.kind} {record.verdict} {record.reason} {record.status} {record.outcome} {record.duration_ms}"
        for record in outcome.records
    ]
    digest = hashlib.sha256("\n".join([*told, repr(outcome.ledger.heads)]).encode()).hexdigest()[:16]
    return f"{len(told)} records, {len(outcome.ledger.heads)} requests upstream, {digest}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names must have the same order in every run.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "simulation.run", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
