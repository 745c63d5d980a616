"""The build hook: C parts are built by `make`, the one way to build them, and go into the wheel.

An editable install builds nothing here: `make` has built the parts in place already.
"""

from __future__ import annotations

import subprocess
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs `make kvm-build` for a wheel and adds what it made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extension and the shim, and mark the wheel as of this platform."""
        if version != "standard":
            return
        subprocess.run(["make", "-C", self.root, "-f", "vmm/build.mk", "kvm-build"], check=True)  # noqa: S603, S607
        build_data["artifacts"] += ["vmm/seamgate_vmm/*.so", "vmm/seamgate_vmm/*.bin"]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
