"""`seamgate vm`: the command group of `seamgate_vmm`, where that can be loaded, with `bench`, which needs a gateway.

On a machine for which its C parts are not built, the group is there and says so when it is called: exit code 3.
"""

from __future__ import annotations

from typing import NoReturn

import click

from seamgate.errors import PrerequisiteMissing

try:
    from seamgate.cli.vm_bench import bench
    from seamgate_vmm.cli import vm as vm

    vm.add_command(bench)
except ImportError:

    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def vm(arguments: tuple[str, ...]) -> NoReturn:
        """Guests in microVMs: not built for this machine."""
        raise PrerequisiteMissing(
            "the C parts of microVMs are not built for this machine (Linux on x86-64): run `make build`"
        )
