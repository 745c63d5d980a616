"""Runs a module of CPython's own test suite in a guest, and says which of its tests did not pass.

    python -m vmm.cpython.harness [MODULE ...]      (from tests/, prints what known_failures.toml should say)

The list of what fails, each with its reason, is known_failures.toml; test_cpython.py holds guests to it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from seamgate_vmm import template
from seamgate_vmm.guest import Limits
from seamgate_vmm.host import Host, open_host
from seamgate_vmm.image import Mount
from seamgate_vmm.outcome import Outcome
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, restore, view_of
from vmm.conftest import Collect, drive

KNOWN = Path(__file__).with_name("known_failures.toml")
_LIMITS = Limits(memory_bytes=512 << 20, wall_s=150, scratch_bytes=256 << 20)
_CODE = """
import faulthandler, json, os, sys, unittest
os.chdir('/tmp')
from test import support
support.verbose = 0
suite = unittest.defaultTestLoader.loadTestsFromName('test.' + sys.argv[1])
result = unittest.TextTestRunner(stream=open(os.devnull, 'w'), verbosity=0).run(suite)
bad = {str(t.id()): text.strip().splitlines()[-1] for t, text in result.failures + result.errors}
print('SEAMGATE ' + json.dumps({'run': result.testsRun, 'bad': bad, 'skipped': len(result.skipped)}), flush=True)
"""


@dataclass(frozen=True)
class ModuleResult:
    """What a module's tests did in a guest."""

    outcome: Outcome
    run: int
    skipped: int
    bad: dict[str, str]


def known_failures() -> dict[str, dict[str, str]]:
    """Return module -> test -> reason."""
    return tomllib.loads(KNOWN.read_text(encoding="utf-8"))


def run_module(host: Host, loaded: Loaded, module: str) -> ModuleResult:
    """Run one module of CPython's tests in a guest of its own."""
    console = Collect()
    with tempfile.TemporaryDirectory() as scratch:
        view = view_of(loaded.meta.roots, [Mount("/tmp", scratch, writable=True)])
        guest = restore(host, loaded, Job(["-c", _CODE, module], {}), view, console, _LIMITS)
        mask = os.umask(0)  # as a worker has it: modes are the guest's own
        try:
            outcome = drive(guest)
        finally:
            os.umask(mask)
            guest.close()
    for line in reversed(bytes(console.streams[1]).decode(errors="replace").splitlines()):
        if line.startswith("SEAMGATE "):
            said = json.loads(line[9:])
            return ModuleResult(outcome, said["run"], said["skipped"], said["bad"])
    tail = bytes(console.streams[2])[-300:].decode(errors="replace")
    return ModuleResult(outcome, 0, 0, {module: f"{outcome} {tail}"})


def main() -> None:
    """Print results of the modules named, or of all that are listed."""
    host = open_host()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SEAMGATE_TEMPLATES"] = folder
        template.build(host, "t")
        loaded = template.open_template("t", host)
        for module in sys.argv[1:] or list(known_failures()):
            result = run_module(host, loaded, module)
            sys.stdout.write(f"[{module}]  # {result.run} run, {result.skipped} skipped, {result.outcome}\n")
            for name, reason in result.bad.items():
                sys.stdout.write(f"{json.dumps(name)} = {json.dumps(reason[:160])}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
