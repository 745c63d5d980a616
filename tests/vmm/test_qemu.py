"""What `make kvm-qemu` carries into its emulated machine is whole: minutes to see there, a second here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vmm.qemu.run import DEFAULT_TESTS, add_checkout


def test_every_test_can_be_loaded_from_what_is_carried(tmp_path: Path) -> None:
    """With nothing but the carried files on the path, every module of tests is imported and its tests are found."""
    boot = add_checkout(tmp_path)
    command = [sys.executable, "-I", "-S", str(boot), "--collect-only", "-qq", *DEFAULT_TESTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in DEFAULT_TESTS:
        assert f"tests/vmm/{name}::test_" in done.stdout


def test_what_is_missing_is_seen(tmp_path: Path) -> None:
    """A module that the tests import and that is not carried is an error, not fewer tests."""
    boot = add_checkout(tmp_path)
    (tmp_path / "checkout" / "tests" / "support" / "kvm.py").unlink()
    command = [sys.executable, "-I", "-S", str(boot), "--collect-only", "-q", "test_guest.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert done.returncode != 0
    assert "support.kvm" in done.stdout + done.stderr
