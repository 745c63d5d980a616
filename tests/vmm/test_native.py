"""The C that reads shared memory, under sanitizers: nearly right frames, and a thread that changes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ring_survives_a_racing_guest(tmp_path: Path, seed: int) -> None:
    """A few seconds of hostile rings under AddressSanitizer and UBSan find no crash and no broken promise.

    `make -f vmm/build.mk kvm-fuzz SECONDS=600` runs it long.
    """
    binary = tmp_path / "fuzz_ring"
    sources = [str(_HERE / "native" / "fuzz_ring.c"), str(_ROOT / "vmm" / "native" / "ring.c")]
    flags = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, "-pthread", "-o", str(binary), *sources], check=True)
    done = subprocess.run([str(binary), "2", str(seed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rounds, frames = (int(x.split()[0]) for x in done.stdout.split(","))
    assert rounds > 100
    assert frames > 1000
