"""Runs simulations by their seeds: `python -m simulation.run --seed 1 --runs 1000`; called by `make simulate`.

The first thing that it does is to replace the clocks; the gateway's modules are imported after that.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
from time import perf_counter
from typing import Any

from simulation.clock import install


def main() -> int:
    """Return 0 if every seed holds, 1 if one does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--trace", action="store_true", help="print what each seed came to")
    options = parser.parse_args()
    real_clock = perf_counter
    install()

    import structlog

    from simulation.referee import faults
    from simulation.world import Folder, simulate

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed = requests = 0
    with Folder() as folder:
        started = real_clock()
        for seed in range(options.seed, options.seed + options.runs):
            try:
                outcome = simulate(seed, folder)
                found = faults(outcome)
                requests += outcome.gateway.seam.requests_total
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this seed's
                outcome, found = None, [f"{type(error).__name__}: {error}"]
            if options.trace and outcome is not None:
                print(f"seed {seed}: {summary(outcome)}")
            if found:
                failed += 1
                print(f"seed {seed} fails; again with: make simulate SEED={seed} RUNS=1")
                for each in found:
                    print(f"  {each}")
    took_s = real_clock() - started
    print(f"{options.runs} simulations, {requests} requests, {failed} failed, {took_s:.1f} s")
    return 1 if failed else 0


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
