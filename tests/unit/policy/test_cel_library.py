"""The CEL library comes without its command line."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from seamgate.policy.expressions import Expression
heavy = {"cel.cli", "prompt_toolkit", "rich", "typer"} & sys.modules.keys()
assert not heavy, heavy
import cel.cli
assert cel.cli.__file__, "who wants the command line gets it"
"""


def test_evaluating_policies_imports_no_command_line() -> None:
    """A process that loads policies imports no toolkit for terminals; the real command line can be imported later."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_library_that_was_imported_before_stays() -> None:
    """Whoever embeds the gateway may have imported all of it."""
    program = (
        "import cel.cli; kept = cel.cli; import seamgate.policy.expressions, sys; assert sys.modules['cel.cli'] is kept"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
