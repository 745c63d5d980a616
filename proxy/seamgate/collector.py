"""Keeps Python's garbage collector out of the way where very many objects are made that stay.

Used where policies are loaded. No I/O.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector(*, keep: bool = False) -> Iterator[None]:
    """Look for no cycles meanwhile: loading makes a million objects and no cycle, and looking takes half of the time.

    Args:
        keep: tell the collector that all that is there now stays (`gc.freeze`), or it would look at the million at
            its next turn, in one go, and hold everything up. What dies without a cycle is freed as ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if keep:
                gc.freeze()
            gc.enable()
