"""Runs the tests of guests where `syscall` lands in ring 0: on KVM for SVM, in a machine that QEMU emulates wholly.

    python tests/vmm/qemu/run.py KERNEL.deb [--cpu EPYC] [--tests test_guest.py ...]

Everything that the emulated machine runs comes from this one: the interpreter with its standard library, pytest, this
checkout, and the guests' C programs, compiled here. KERNEL.deb is Debian's linux-image for the cloud, as `apt-get
download` fetches it; nothing is installed. Slow (minutes), so that it is a make target of its own; that everything is
there which the tests import is looked at with all others (`test_qemu.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_SKIPPED = {"test", "site-packages", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo", "pydoc_data"}
_PACKAGES = (
    "pytest",
    "_pytest",
    "py",
    "pluggy",
    "iniconfig",
    "packaging",
    "dnslib",
    "click",
    "pygments",
    "cryptography",
    "cffi",
)
DEFAULT_TESTS = (
    "test_guest.py",
    "test_python.py",
    "test_ring.py",
    "test_confinement.py",
    "qemu/check_portability.py",
    "qemu/check_groups.py",
)


def _copy(source: Path, root: Path, place: Path | None = None) -> None:
    target = root / str(place or source).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=False, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_SKIPPED))
    elif not target.exists():
        shutil.copy2(source, target)


def _libraries(binary: Path) -> set[Path]:
    text = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False, timeout=100).stdout
    words = [w for line in text.splitlines() for w in line.split() if w.startswith("/")]
    return {Path(w) for w in words}


def _interpreter(root: Path) -> Path:
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    prefix = program.parent.parent
    library = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    _copy(program, root)
    _copy(library, root)
    found = _libraries(program)
    for module in (library / "lib-dynload").glob("*.so"):
        found |= _libraries(module)
    for path in found | {Path("/lib64/ld-linux-x86-64.so.2")}:
        _copy(path, root)
    return program


def _modules(deb: Path, work: Path, root: Path) -> Path:
    unpacked = work / "kernel"
    subprocess.run(["dpkg-deb", "-x", str(deb), str(unpacked)], check=True, timeout=100)
    for name in ("irqbypass.ko", "kvm.ko", "kvm-amd.ko"):
        module = next(unpacked.rglob(f"{name}*"))
        if module.suffix == ".xz":
            subprocess.run(["xz", "-d", "-k", str(module)], check=True, timeout=100)
            module = module.with_suffix("")
        _copy(module, root, Path("/modules") / name)
    return next((unpacked / "boot").glob("vmlinuz-*"))


_BOOT = """\
import os, sys
root = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [root + '/../packages', root + '/vmm', root + '/tests']
os.environ.setdefault('SEAMGATE_TEST_PROGRAMS', '/programs')
os.environ.setdefault('SEAMGATE_FOREIGN_TEMPLATES', '/foreign')
os.chdir(root)
from seamgate_vmm.host import describe
print(describe(), flush=True)
import pytest
tests = [a if a.startswith('-') else 'tests/vmm/' + a for a in sys.argv[1:]]
sys.exit(pytest.main(['-c', root + '/pytest.ini', '--rootdir', root, *tests]))
"""


def add_checkout(root: Path) -> Path:
    """Copy the tests, what they test and what they need into `root`; return what runs them there: boot.py TESTS."""
    import pytest

    packages = Path(pytest.__file__).resolve().parent.parent
    for name in _PACKAGES:
        source = packages / name if (packages / name).exists() else packages / f"{name}.py"
        _copy(source, root, Path("/packages") / source.name)
    for native in (*packages.glob("_cffi_backend*"), *packages.glob("cffi.libs")):  # what cryptography loads
        _copy(native, root, Path("/packages") / native.name)
    for info in packages.glob("*.dist-info"):
        if info.name.partition("-")[0] in _PACKAGES:
            _copy(info, root, Path("/packages") / info.name)
    _copy(ROOT / "vmm" / "seamgate_vmm", root, Path("/checkout/vmm/seamgate_vmm"))
    for part in ("vmm", "support/__init__.py", "support/kvm.py"):
        _copy(ROOT / "tests" / part, root, Path("/checkout/tests") / part)
    (root / "checkout" / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n kvm\naddopts = --import-mode=importlib -p no:cacheprovider -v --color=no\n"
    )
    boot = root / "checkout" / "boot.py"
    boot.write_text(_BOOT)
    return boot


def build(deb: Path, work: Path, tests: list[str]) -> tuple[Path, Path]:
    """Return the kernel and the first file system of the emulated machine."""
    root = work / "root"
    root.mkdir()
    kernel = _modules(deb, work, root)
    program = _interpreter(root)
    add_checkout(root)
    for module in (root / "packages").rglob("*.so"):
        for library in _libraries(module):
            _copy(library, root)
    programs = root / "programs"
    programs.mkdir(parents=True)
    _compile_programs(programs, tests)
    _build_foreign(root / "foreign")
    code = (ROOT / "tests" / "vmm" / "qemu" / "init.c").read_text()
    wanted = ", ".join(f'"{w}"' for w in (str(program), "/checkout/boot.py", *tests))
    code = code.replace('"/bin/sh-less", "run"', f'"{program}", {wanted}')
    (work / "init.c").write_text(code)
    subprocess.run(["gcc", "-O1", "-static", "-o", str(root / "init"), str(work / "init.c")], check=True, timeout=100)
    image = work / "initrd"
    names = subprocess.run(["find", ".", "-print0"], cwd=root, capture_output=True, check=True, timeout=100).stdout
    with image.open("wb") as out:
        subprocess.run(
            ["cpio", "--null", "-o", "-H", "newc", "--quiet"],
            cwd=root,
            input=names,
            stdout=out,
            check=True,
            timeout=100,
        )
    return kernel, image


def _build_foreign(target: Path) -> None:
    """Build a template here, and write down what its guest computes here."""
    sys.path[:0] = [str(ROOT / "vmm"), str(ROOT / "tests")]
    os.environ["SEAMGATE_TEMPLATES"] = str(target)
    from seamgate_vmm import template
    from seamgate_vmm.host import open_host
    from vmm.conftest import Collect, drive
    from vmm.qemu.check_portability import _WORK

    host, console = open_host(), Collect()
    template.build(host, "foreign")
    loaded = template.open_template("foreign", host)
    guest = template.restore(
        host, loaded, template.Job(["-c", _WORK], {}), template.view_of(loaded.meta.roots), console
    )
    drive(guest)
    guest.close()
    (target / "expected").write_bytes(bytes(console.streams[1]))


def _compile_programs(target: Path, tests: list[str]) -> None:
    """Let the tests run here once, so that their C programs are there."""
    environment = {**os.environ, "SEAMGATE_TEST_PROGRAMS": str(target)}
    chosen = [str(ROOT / "tests" / "vmm" / t) for t in tests if t.startswith("test_")]
    if chosen:
        subprocess.run([sys.executable, "-m", "pytest", "-q", *chosen], cwd=ROOT, env=environment, check=False)


def main() -> int:
    """Build, run, show, and return 0 if every test passed in the emulated machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", type=Path)
    parser.add_argument("--cpu", default="EPYC")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds")
    parser.add_argument("--tests", nargs="+", default=list(DEFAULT_TESTS))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seamgate-qemu-") as folder:
        work = Path(folder)
        kernel, image = build(chosen.kernel, work, chosen.tests)
        command = [
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", f"{chosen.cpu},+svm", "-m", "3072", "-smp", "1",
            "-nographic", "-no-reboot", "-kernel", str(kernel), "-initrd", str(image),
            "-append", "console=ttyS0 panic=-1 quiet rdinit=/init",
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=chosen.timeout, check=False
        )
        sys.stdout.write(done.stdout[-20000:])
        return 0 if "SEAMGATE-QEMU-STATUS 0" in done.stdout else 1


if __name__ == "__main__":
    sys.exit(main())
