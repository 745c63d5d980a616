"""The C that reads shared memory, under sanitizers: nearly right frames, and a thread that changes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_FLAGS = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-fno-sanitize-recover=all", "-pthread"]
_SECONDS = 3


def _build(binary: Path, ring: Path, *compiler: str) -> subprocess.CompletedProcess[str]:
    sources = [str(_HERE / "native" / "fuzz_ring.c"), str(ring)]
    return subprocess.run(
        [*compiler, *_FLAGS, "-o", str(binary), *sources], capture_output=True, text=True, check=False, timeout=100
    )


def _generator(folder: Path, ring: Path) -> list[str]:
    """The fuzzer with a generator of its own, for every compiler."""
    binary = folder / "fuzz_ring"
    built = _build(binary, ring, "gcc", "-fsanitize=address,undefined", f"-I{_ROOT / 'vmm' / 'native'}")
    assert built.returncode == 0, built.stderr
    return [str(binary), str(_SECONDS)]


def _guided(folder: Path) -> list[str] | None:
    """libFuzzer from the corpus; None where clang has no run-time library for it, or there is no clang."""
    binary = folder / "guided"
    try:
        built = _build(
            binary, _ROOT / "vmm/native/ring.c", "clang", "-fsanitize=fuzzer,address,undefined", "-DLIBFUZZER"
        )
    except FileNotFoundError:
        return None
    if built.returncode != 0:
        without = ("cannot find", "sanitizer/asan_interface.h' file not found")  # its libraries, its headers
        assert any(words in built.stderr for words in without), built.stderr
        return None
    corpus = folder / "corpus"
    corpus.mkdir()
    limits = [f"-max_total_time={_SECONDS}", "-max_len=4096", "-print_final_stats=1", f"-artifact_prefix={folder}/"]
    return [str(binary), *limits, str(corpus), str(_HERE / "corpus" / "ring")]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ring_survives_a_racing_guest(tmp_path: Path, seed: int) -> None:
    """Seconds of hostile rings under AddressSanitizer and UBSan, guided by coverage where clang can, find no crash and
    no broken promise. `make fuzz-vmm FUZZ_S=600` runs it long."""
    guided = _guided(tmp_path) if seed == 1 else None
    command = guided or [*_generator(tmp_path, _ROOT / "vmm" / "native" / "ring.c"), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    if guided is None:
        rounds, frames = (int(x.split()[0]) for x in done.stdout.split(","))
        assert rounds > 100
        assert frames > 1000
    else:
        (runs,) = (line for line in done.stderr.splitlines() if "number_of_executed_units" in line)
        assert int(runs.split()[1]) > 1000


_FAULTS = {
    "no check against what was published": ("padded(HEAD + out->length) > published ||", ""),
    "no check against the end": ("padded(HEAD + out->length) > to_end", "0"),
    "no bound of the payload": ("if (out->length > RING_MAX_PAYLOAD)", "if (0)"),
    "the index is not bounded": ("published > RING_TX_SIZE || ", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", _FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    """Each check that is taken out of the ring's host side is missed within seconds: the search reaches them all."""
    source = (_ROOT / "vmm" / "native" / "ring.c").read_text(encoding="utf-8")
    right, wrong = _FAULTS[name]
    assert right in source
    ring = tmp_path / "ring.c"
    ring.write_text(source.replace(right, wrong), encoding="utf-8")
    done = subprocess.run([*_generator(tmp_path, ring), "1"], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode != 0, name


def _loads(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run the ring's host side with every load of it seen."""
    (folder / "ring.c").write_text(source, encoding="utf-8")
    include = [f"-I{_ROOT / 'vmm' / 'native'}", f"-I{_ROOT / 'shim'}", "-std=gnu11"]
    compiled, program = str(folder / "ring.o"), str(folder / "once")
    seen = ["-fsanitize=thread", "--param", "tsan-distinguish-volatile=1"]
    subprocess.run(
        ["gcc", "-O1", "-w", *include, *seen, "-c", "-o", compiled, str(folder / "ring.c")], check=True, timeout=100
    )
    subprocess.run(
        ["gcc", "-O1", *include, "-o", program, str(_HERE / "native" / "once.c"), compiled], check=True, timeout=100
    )
    return subprocess.run([program], capture_output=True, text=True, check=False, timeout=100)


def test_each_shared_word_is_loaded_once(tmp_path: Path) -> None:
    """Seen by the compiler's own instrumentation, not by a race that would have to come at the right moment; a second
    load, of the length or of an index, is told."""
    source = (_ROOT / "vmm" / "native" / "ring.c").read_text(encoding="utf-8")
    done = _loads(tmp_path, source)
    assert done.returncode == 0, done.stderr
    for right, wrong in (
        ("at + HEAD, out->length);", "at + HEAD, *(volatile u32 *)words);"),
        ("if (published == 0)", "if (__atomic_load_n(&shared(r)->tx_head, __ATOMIC_ACQUIRE) == r->tx_tail)"),
    ):
        assert right in source
        done = _loads(tmp_path, source.replace(right, wrong))
        assert (done.returncode, "loaded twice" in done.stderr) == (1, True), (wrong, done)
