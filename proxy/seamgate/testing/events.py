"""Listens to Python's audit events: what code in this process does to the outside, as it says so itself.

Used by `purity` and `outlets`. A hook of `sys.addaudithook` can't be taken away again, so there is one for the process,
which does nothing while nobody listens. Prevents nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

OnEvent: TypeAlias = Callable[[str, tuple[Any, ...]], None]
"""Called with an event's name and arguments, in the thread that caused it. Must not raise: that would stop the deed."""

_listeners: tuple[OnEvent, ...] = ()
_installed = False


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    for listener in _listeners:
        listener(event, arguments)


@contextmanager
def events(listener: OnEvent) -> Iterator[None]:
    """Call the listener for each audit event of all threads."""
    global _installed, _listeners
    if not _installed:
        _installed = True
        sys.addaudithook(_on_event)
    _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        _listeners = tuple(each for each in _listeners if each is not listener)
