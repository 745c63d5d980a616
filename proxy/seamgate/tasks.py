"""The one way to start a task that nobody awaits.

asyncio keeps only a weak reference to a task and swallows its exception until it is collected; `spawn` keeps it,
names it, and reports a failure as the fault that it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_running: set[asyncio.Task[Any]] = set()


def spawn(
    work: Coroutine[Any, Any, Any], *, name: str, on_error: Callable[[BaseException], None] | None = None
) -> asyncio.Task[Any]:
    """Run the coroutine as a task that is referenced until it ends.

    Args:
        work: what to run.
        name: for people who look at a stuck gateway.
        on_error: called with the exception if it fails; without it, the loop's exception handler is.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(lambda done: _finished(done, on_error))
    return task


def _finished(task: asyncio.Task[Any], on_error: Callable[[BaseException], None] | None) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        return
    if on_error is not None:
        on_error(error)
        return
    task.get_loop().call_exception_handler(
        {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
    )
