"""The build hook: a wheel gets the C parts, built by `make`, and the hot path compiled by mypyc.

The sources stay plain Python and run as they are: an editable install builds nothing here. A wheel holds, beside the
sources, extension modules of those that every request passes (`COMPILED`), which Python prefers. What decides and what
plugins see is the same code either way, and the tests run against both. `SEAMGATE_PURE=1` leaves them out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Where the time goes, see docs/performance.md. None of them defines a msgspec structure or a hook: those are in C
# already, or need attributes that compiled functions don't have.
COMPILED = (
    "seamgate/answer.py",
    "seamgate/audit/journal.py",
    "seamgate/audit/line.py",
    "seamgate/audit/parts.py",
    "seamgate/credentials/binding.py",
    "seamgate/credentials/guard.py",
    "seamgate/credentials/injection.py",
    "seamgate/credentials/keeper.py",
    "seamgate/credentials/known.py",
    "seamgate/credentials/placeholders.py",
    "seamgate/credentials/probing.py",
    "seamgate/credentials/redaction.py",
    "seamgate/credentials/scanner.py",
    "seamgate/entry/binding.py",
    "seamgate/entry/connections.py",
    "seamgate/entry/http1_guest.py",
    "seamgate/entry/http1_writer.py",
    "seamgate/entry/http2_guest.py",
    "seamgate/entry/http2_stream.py",
    "seamgate/exchange.py",
    "seamgate/exchange_approach.py",
    "seamgate/exchange_facts.py",
    "seamgate/filters.py",
    "seamgate/headers.py",
    "seamgate/interim.py",
    "seamgate/outgoing.py",
    "seamgate/paths.py",
    "seamgate/pipeline.py",
    "seamgate/plugin_time.py",
    "seamgate/policy/evaluation.py",
    "seamgate/policy/judging.py",
    "seamgate/policy/kept.py",
    "seamgate/policy/overrides.py",
    "seamgate/protocol/fields.py",
    "seamgate/protocol/http1.py",
    "seamgate/protocol/http1_reader.py",
    "seamgate/protocol/http2.py",
    "seamgate/protocol/http2_fields.py",
    "seamgate/protocol/http2_frames.py",
    "seamgate/protocol/http2_guard.py",
    "seamgate/protocol/http2_sending.py",
    "seamgate/protocol/whole.py",
    "seamgate/records.py",
    "seamgate/refusing.py",
    "seamgate/seam.py",
    "seamgate/sides.py",
    "seamgate/streams.py",
    "seamgate/turns.py",
    "seamgate/upload.py",
    "seamgate/upstream/destination.py",
    "seamgate/upstream/dns_cache.py",
    "seamgate/upstream/pool.py",
    "seamgate/upstream/pool_queue.py",
    "seamgate/upstream/session.py",
    "seamgate/upstream/session2.py",
    "seamgate/upstream/session2_stream.py",
    "seamgate/waiting.py",
    "seamgate/websocket_exchange.py",
    "seamgate/websocket_opening.py",
    "seamgate/workers/ledger.py",
    "seamgate/workers/recorder.py",
)
# Compiled modules call each other directly, not through a table that another library could change: 1 % fewer
# instructions a request. -Os and -O2 were measured too: 1.09 and 1.02 of the time.
_DIRECT_CALLS = "-fvisibility=hidden -fno-semantic-interposition -fno-plt"
SOURCES = ("proxy", "plugins", "vmm")
"""Where what compiled modules import is found: an environment that only builds has none of it installed."""
_INLINE_CACHE = "proxy/native/inline_cache.h"
"""Included before everything that mypyc makes: attributes and methods of objects that it does not know inside out."""
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="compiled", ext_modules=mypycify({options!r}, opt_level="3", group_name="seamgate"))
"""


def compile_modules(root: Path, out: Path) -> list[Path]:
    """Compile `COMPILED` into extension modules below `out` and return their paths.

    Raises:
        subprocess.CalledProcessError: mypyc or the C compiler failed; its output was shown.
    """
    options = [f"--config-file={root / 'pyproject.toml'}", *COMPILED]
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "setup.py"
        script.write_text(_SETUP.format(options=options), encoding="utf-8")
        command = [sys.executable, str(script), "--quiet", "build_ext", f"--build-lib={out}", f"--build-temp={scratch}"]
        environment = {
            **os.environ,
            "MYPYPATH": os.pathsep.join([str(root / folder) for folder in SOURCES]),
            "MYPY_CACHE_DIR": f"{scratch}/cache",
            "CFLAGS": f"{os.environ.get('CFLAGS', '')} {_DIRECT_CALLS} -include {root / _INLINE_CACHE}",
        }
        subprocess.run(command, cwd=root / "proxy", env=environment, check=True)  # noqa: S603
    return sorted(out.rglob("*.so"))


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs `make` for the C parts, and mypyc, for a wheel and adds what they made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and mark the wheel as of this platform."""
        if version != "standard":
            return
        root = Path(self.root)
        for makefile, goal in (("vmm/build.mk", "kvm-build"), ("proxy/build.mk", "native-build")):
            subprocess.run(["make", "-C", self.root, "-f", makefile, goal], check=True)  # noqa: S603, S607
        build_data["artifacts"] += ["vmm/seamgate_vmm/*.so", "vmm/seamgate_vmm/*.bin", "proxy/seamgate/*.so"]
        if not os.environ.get("SEAMGATE_PURE"):
            out = Path(tempfile.mkdtemp(prefix="seamgate-compiled-"))
            for path in compile_modules(root, out):
                build_data["force_include"][str(path)] = str(path.relative_to(out))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
