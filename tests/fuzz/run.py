"""Fuzzes with atheris: `python -m fuzz.run --seconds 60 [--target NAME] [--input FILE]`; called by `make fuzz`.

Without `--target` one process goes through all of them, its first byte chooses which. What breaks a rule is written
to a file, which `--input` runs again. Where atheris has no wheel (it has for Linux on x86-64), inputs are mutated at
random instead, without coverage to guide it; the first line says so.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any


def main() -> int:
    """Return 0 if nothing was found; a finding ends the process with libFuzzer's own code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--target", default="everything")
    parser.add_argument("--input", type=Path)
    options = parser.parse_args()
    guided = importlib.util.find_spec("atheris") is not None and options.input is None
    atheris: Any = importlib.import_module("atheris") if guided else None
    if guided:
        with atheris.instrument_imports(include=["seamgate", "seamgate_vmm"], enable_loader_override=False):
            targets: Any = importlib.import_module("fuzz.targets")
    else:
        targets = importlib.import_module("fuzz.targets")
    if options.target != "everything" and options.target not in targets.TARGETS:
        print(f"no such target: {options.target}; there are {', '.join(targets.TARGETS)}")
        return 2
    one = targets.everything if options.target == "everything" else targets.TARGETS[options.target]
    if options.input is not None:
        one(options.input.read_bytes())
        print("the input breaks no rule")
        return 0
    seeds = _seeds(targets, options.target)
    if not guided:
        return _blind(one, seeds, options.seconds)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number, seed in enumerate(seeds):
            (Path(folder) / f"{number:03}").write_bytes(seed)
        arguments = [f"-max_total_time={options.seconds}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *arguments, f"-artifact_prefix=fuzz-{options.target}-", folder], one)
        atheris.Fuzz()  # does not return
    return 0


def _seeds(targets: Any, target: str) -> list[bytes]:
    if target != "everything":
        return list(targets.SEEDS[target])
    names = enumerate(targets.TARGETS)
    return [bytes((place,)) + seed for place, name in names for seed in targets.SEEDS[name]]


def _blind(one: Any, seeds: list[bytes], seconds: int) -> int:
    print("without atheris: random mutations, not guided by coverage")
    rng, until, runs = random.Random(1), monotonic() + seconds, 0
    while monotonic() < until:
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(0, 8)):
            place = rng.randint(0, len(data))
            data[place : place + rng.randint(0, 2)] = rng.choice((b"", rng.randbytes(1), rng.choice(seeds)[:8]))
        try:
            one(bytes(data))
        except Exception:
            Path("fuzz-finding").write_bytes(bytes(data))
            raise
        runs += 1
    print(f"{runs} runs, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
