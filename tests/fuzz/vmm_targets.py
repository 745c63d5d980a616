"""What reads guests from disk: templates, and what a worker made of a hibernated guest, which may be a hostile one.

The first byte says what the input is: a file as it is; metadata that get a head with right digests, since a search that
had to find SHA-256 digests by itself would never come past them; or pairs of bytes, each of which puts an odd value
into a place of metadata that are right.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from seamgate_vmm import _kvm, hibernation, snapshot
from seamgate_vmm.errors import HibernationError, TemplateError

_PAGE = 4096
_STATE = "00" * _kvm.STATE_BYTES
_BASE: dict[str, Any] = {
    "wire_abi": 2,
    "shim_sha256": "a",
    "vdso_sha256": "b",
    "cpu_model": "c",
    "state": _STATE,
    "mono_ns": 9,
}
_LAYOUT = {"brk_start": 2, "brk_limit": 3, "mmap_low": 4, "start_rip": 5, "start_rsp": 6}
_TEMPLATE = _BASE | {
    "name": "n", "created": "t", "program": "/p", "python": "d", "imports": ["a"], "cpu_required": ["x"],
    "memory_bytes": 1 << 22, "first_bytes": 1 << 22, "layout": _LAYOUT, "rendezvous": [1, 2], "roots": [["/", "/"]],
    "extents": [{"address": _kvm.GA_STACK, "length": _PAGE, "offset": 0, "digest": "e"}],
    "hot": [[_kvm.GA_STACK, _PAGE]],
}  # fmt: skip
_HIBERNATED = _BASE | {
    "template": "t", "cpu_flags": ["x"], "end": 1 << 22, "pid": 7, "cpu_ns": 1, "output_bytes": 0, "ran_s": 0.5,
    "unsupported": {"fork": 1}, "pages_sha256": "f",
    "files": {"cwd": "/", "bytes_left": 1, "files_left": 1,
              "open": [{"handle": 1, "path": "/x", "flags": 0, "device": 1, "inode": 2}]},
    "runs": [{"address": _kvm.GA_STACK, "length": _PAGE, "offset": 0, "stored": 10, "digest": "0"}],
}  # fmt: skip
_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 1 << 63, 1 << 70, 1e300, -0.5, "", "x", "\ud800", [], [[]], {}, {"a": None}, _PAGE,
    -_PAGE, _kvm.GA_PARAMS, _kvm.GA_VDSO, _kvm.GA_SHIM, _kvm.GA_END, _kvm.GA_END - _PAGE, _STATE,
]  # fmt: skip
TEMPLATE_SEEDS = [
    b"\1" + json.dumps(_TEMPLATE).encode(),
    b"\0" + snapshot.MAGIC + b"\1\0\0\0" + bytes(100),
    b"\2\1\1\7\3",
]
HIBERNATED_SEEDS = [
    b"\1" + json.dumps(_HIBERNATED).encode(),
    b"\0" + hibernation.MAGIC + b"\1\0\0\0" + bytes(100),
    b"\2\1\1\7\3",
]


@lru_cache(maxsize=1)
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-vmm-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)) / "input"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _text(data: bytes, base: dict[str, Any]) -> bytes | None:
    """The metadata that an input stands for; None: it is a whole file."""
    if data[:1] == b"\1":
        return data[1:]
    if data[:1] != b"\2":
        return None
    value = json.loads(json.dumps(base))
    for place, odd in zip(data[1:17:2], data[2:17:2], strict=False):
        places = _places(value)
        if places:
            container, key = places[place % len(places)]
            container[key] = copy.deepcopy(_ODD[odd % len(_ODD)])
    return json.dumps(value).encode()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _as_template(text: bytes) -> bytes:
    data_at = -(-(_PAGE + len(text)) // _PAGE) * _PAGE
    values = (snapshot.MAGIC, 1, 0, _PAGE, _PAGE, len(text), _digest(text), data_at, _PAGE, data_at + _PAGE)
    head = struct.pack("<8sHHIQQ32sQQQ", *values)
    return (head + _digest(head)).ljust(_PAGE, b"\0") + text.ljust(data_at - _PAGE, b"\0") + bytes(_PAGE)


def templates(data: bytes) -> None:
    """Metadata that are taken name pages that are there, once each, and none that only the host may write."""
    path = _file()
    text = _text(data, _TEMPLATE)
    path.write_bytes(data[1:] if text is None else _as_template(text))
    try:
        meta, data_at = snapshot.read_meta(path)
    except TemplateError:
        return
    size, taken = path.stat().st_size - data_at, set[int]()
    for each in meta.extents:
        pages = range(each.address, each.address + each.length, _PAGE)
        assert pages and 0 <= each.offset and each.offset + each.length <= size
        assert pages[0] >= _kvm.GA_SHIM and pages[-1] < meta.memory_bytes and _kvm.GA_PARAMS not in pages
        assert taken.isdisjoint(pages)
        taken.update(pages)
    assert meta.memory_bytes <= meta.first_bytes <= _kvm.GA_END
    assert all(0 <= at and at + length <= meta.memory_bytes for at, length in meta.hot)


def hibernated(data: bytes) -> None:
    """What is taken of a hibernated guest writes its own pages only, each once, all from what is stored."""
    pages, text = bytes(64), _text(data, _HIBERNATED)
    if text is not None:
        text = text.replace(b'"f"', b'"' + hashlib.sha256(pages).hexdigest().encode() + b'"')
        head = struct.pack("<8sHHQQ32s", hibernation.MAGIC, 1, 0, len(text), len(pages), _digest(text))
        data = b"\1" + head + _digest(head) + text + pages
    try:
        what, stored = hibernation.read(data[1:])
    except HibernationError:
        return
    taken = set[int]()
    for run in what.runs:
        here = range(run.address, run.address + run.length, _PAGE)
        assert here and here[0] >= _kvm.GA_SHIM_DATA and here[-1] < what.end <= _kvm.GA_END
        assert _kvm.GA_PARAMS not in here and not set(here) & set(range(_kvm.GA_VDSO, _kvm.GA_VDSO_END, _PAGE))
        assert 0 <= run.offset and run.offset + run.stored <= len(stored)
        assert taken.isdisjoint(here)
        taken.update(here)
    assert 0 < what.pid < 1 << 31 and len(bytes.fromhex(what.state)) == _kvm.STATE_BYTES
