"""The CEL library, and not its command line.

`import cel` imports that too, with prompt_toolkit, rich and typer: 19 MB and 130 ms (nine times what the library itself
takes) in each process that evaluates a policy. So something empty stands in its place meanwhile. Called by
`expressions`; whoever imports `cel.cli` afterwards gets the real one.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

_COMMAND_LINE: Final = "cel.cli"


def _import_without_command_line() -> None:
    """Import the library. One that was imported already stays as it is."""
    stand_in = ModuleType(_COMMAND_LINE)
    in_place = sys.modules.setdefault(_COMMAND_LINE, stand_in)
    try:
        import cel  # noqa: F401
    finally:
        if in_place is stand_in:
            del sys.modules[_COMMAND_LINE]


_import_without_command_line()
import cel as cel  # noqa: E402 - from here on it costs nothing
