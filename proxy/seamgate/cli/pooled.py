"""`seamgate run --pool`: a Python program as a guest of a gateway that runs already, on a machine that waits for it.

Called by `seamgate.cli.run`. The gateway's side is `seamgate.entry.guest_pool`; the messages are `seamgate_vmm`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from seamgate.errors import ConfigError, PrerequisiteMissing


async def run_in_pool(
    place: str, guest: str, command: Sequence[str], say: Callable[[str], None], explain: Callable[[str], None]
) -> int:
    """Run the program and return its exit code.

    Args:
        place: the pool's socket, with or without `unix:`.
        guest: which of the gateway's guests it is.
        say: told what holds the program, once it has begun.
        explain: told at the end what a person should know.

    Raises:
        PrerequisiteMissing: nobody listens there, or microVMs can't be had here.
        ConfigError: the pool refuses the program; the message is the pool's.
    """
    try:
        from seamgate_vmm import pool_client
        from seamgate_vmm.errors import ProgramError, VmmError
        from seamgate_vmm.runner import explain as explained
    except ImportError as error:
        raise PrerequisiteMissing("the C parts of microVMs are not built for this machine: `make build`") from error
    try:
        outcome = await pool_client.run_in_pool(
            Path(place.removeprefix("unix:")),
            guest,
            command,
            env=os.environ,
            cwd=Path.cwd(),
            on_started=lambda tier: say(f"isolation kvm ({tier}): a microVM of the gateway's pool"),
        )
    except pool_client.PoolUnreachable as error:
        raise PrerequisiteMissing(str(error)) from error
    except (ProgramError, VmmError) as error:
        raise ConfigError(str(error)) from error
    for line in explained(outcome):
        explain(line)
    return outcome.code
