"""Groups what profilers saw: by module that asked for the work, and by kind of work. Pure: text in, shares out.

Two profilers, as neither sees all: py-spy knows Python's frames but not the kernel's time below them; perf knows in
which library or in the kernel the time passed, but no Python. py-spy's raw format is one line a stack, outermost frame
first: `frame;frame;frame count`, where a frame is `function (/path/file.py:12)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FRAME = re.compile(r"^(?P<function>.*) \((?P<place>[^()]*)\)$")

KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("kernel", re.compile(r"^\[(kernel|vdso|guest)")),
    ("TLS and cryptography (OpenSSL)", re.compile(r"^(lib(ssl|crypto)|_ssl\.|_rust\.abi3|_hashlib)")),
    ("event loop (uvloop)", re.compile(r"^(loop\.cpython|libuv)")),
    ("HTTP parser in C", re.compile(r"^(parser|_parser|httptools|llhttp)\S*\.so")),
    ("JSON and structs (msgspec, orjson)", re.compile(r"^(_core\.cpython|msgspec|orjson|_json\.)")),
    ("interpreter", re.compile(r"^(libpython|python3)")),
    ("C library (memory, copies)", re.compile(r"^(libc\.|ld-linux|libpthread)")),
)
"""What perf's shared objects are, by their file names; the rest is shown under its own name."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One distinct stack and how often it was seen."""

    frames: tuple[str, ...]
    """Outermost first."""
    count: int


def parse_stacks(text: str) -> list[Stack]:
    """Read py-spy's raw format.

    Raises:
        ValueError: a line is not in it.
    """
    stacks = []
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        if not frames or not count.isdigit():
            raise ValueError(f"not a line of py-spy's raw format: {line[:80]!r}")
        stacks.append(Stack(tuple(frames.split(";")), int(count)))
    return stacks


def parse_perf(text: str) -> Counter[str]:
    """Read `perf report --sort dso`, and return hundredths of a per cent by kind of work."""
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        match = re.match(r"^\s*(\d+\.\d+)%\s+(\S+)", line)
        if match:
            title = next((title for title, pattern in KINDS if pattern.search(match[2])), match[2])
            counts[title] += round(float(match[1]) * 100)
    return counts


def owner_of(stack: Stack, packages: Sequence[str]) -> str:
    """Return the module of `packages` whose code asked for the work: that of the innermost frame in one of them."""
    for frame in reversed(stack.frames):
        match = FRAME.match(frame)
        module = _module(match["place"], packages) if match else None
        if module:
            return module
    return "(no frame of its own: loop, start-up)"


def _module(place: str, packages: Sequence[str]) -> str | None:
    """Return `seamgate.policy.index` for /anywhere/seamgate/policy/index.py:12, None for a file of no such package.

    A checkout may be called as its package is, so the innermost folder of a package's name counts, and what lies in a
    `site-packages` below it belongs to somebody else.
    """
    path = place.rpartition(":")[0]
    parts = path.removesuffix(".py").split("/")
    start = max((i for i, part in enumerate(parts[:-1]) if part in packages), default=None)
    if start is None or not path.endswith(".py") or not all(part.isidentifier() for part in parts[start:]):
        return None
    return ".".join(parts[start:]).removesuffix(".__init__")


def functions_of(stacks: Iterable[Stack], packages: Sequence[str]) -> Counter[str]:
    """Return samples by function of `packages`, each with all that it called outside of them."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        for frame in reversed(stack.frames):
            match = FRAME.match(frame)
            module = _module(match["place"], packages) if match else None
            if match and module:
                counts[f"{module}.{match['function']}"] += stack.count
                break
    return counts


def shares(counts: Counter[str], at_most: int | None = None) -> list[tuple[str, float]]:
    """Return (title, share of all), largest first."""
    total = sum(counts.values())
    return [(title, count / total) for title, count in counts.most_common(at_most)] if total else []
