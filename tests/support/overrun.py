"""Ends a test that hangs, and tells where it hung: for `conftest.py`.

Three walls, each behind the last. An `async def` test is cancelled at its limit, again and again, and what it leaves on
its loop gets a bounded time. A test of any kind that is still there at `WATCH_S` loses the programs that it started:
most hangs wait for one of these. What goes on even then ends the whole run. Each wall says where the test stood, the
last one in so few lines that they survive a log of which only the end is kept.

This room never passes a test: whatever it ends has failed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvloop

WATCH_S = 150.0
"""For one test with its fixtures, where its `timeout` mark doesn't say more: beyond what pytest-timeout ends."""
AFTER_KILL_S = 30.0
"""For a test to end once the programs that it waited for are gone."""
CLEANUP_S = 10.0
"""For what a test left on its loop: tasks to take their cancellation, threads to return."""
_TESTS = Path(__file__).parents[1]
_OWN = (str(_TESTS), str(_TESTS.parent / "proxy"), str(_TESTS.parent / "vmm"), str(_TESTS.parent / "plugins"))


def run_limited(test: Callable[[], Coroutine[Any, Any, None]], limit_s: float) -> None:
    """Run a coroutine function on a uvloop of its own; fail with the stacks of all tasks when it takes longer."""
    loop = uvloop.new_event_loop()
    threads = ThreadPoolExecutor(thread_name_prefix=f"of a test {id(loop)}")
    loop.set_default_executor(threads)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_limited(test, limit_s))
    finally:
        try:
            _clean(loop)
            _join(threads, f"of a test {id(loop)}")
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            if sys.exc_info()[0] is not None:
                gc.collect()  # what a failed test left open is told as its own, not as that of a later one


async def _limited(test: Callable[[], Coroutine[Any, Any, None]], limit_s: float) -> None:
    """Await a test; at its limit, cancel it until it gives in: a `finally` that awaits may take a cancellation each."""
    running = asyncio.ensure_future(test())
    await asyncio.wait([running], timeout=limit_s)
    if running.done():
        return running.result()
    told = "\n".join(tasks_stand(asyncio.get_running_loop()))
    for _ in range(5):
        running.cancel()
        if (await asyncio.wait([running], timeout=CLEANUP_S / 5))[0]:
            break
    pytest.fail(f"not done after {limit_s:g} s; its tasks stood at:\n{told}", pytrace=False)


def _clean(loop: asyncio.AbstractEventLoop) -> None:
    """End what a test left, as `asyncio.Runner` does, but in bounded time; fail for what doesn't end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, stubborn = loop.run_until_complete(asyncio.wait(left, timeout=CLEANUP_S))
        for task in left - stubborn:
            if not task.cancelled() and (error := task.exception()) is not None:
                loop.call_exception_handler({"message": "a task left by a test", "exception": error, "task": task})
        if stubborn:
            pytest.fail(f"tasks that don't take a cancellation: {tasks_stand(loop)}", pytrace=False)
    loop.run_until_complete(loop.shutdown_asyncgens())


def _join(threads: ThreadPoolExecutor, prefix: str) -> None:
    """Wait for a loop's threads in bounded time: `loop.shutdown_default_executor` would wait for ever."""
    threads.shutdown(wait=False, cancel_futures=True)
    until = time.monotonic() + CLEANUP_S
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                pytest.fail(f"threads of the loop that don't return: {list(threads_stand())}", pytrace=False)


def tasks_stand(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return a line for each unfinished task of a loop: its name and what it awaits, outermost first."""
    return [f"{task.get_name()}: {' > '.join(_awaited(task))}" for task in asyncio.all_tasks(loop)]


def _awaited(task: asyncio.Task[Any]) -> Iterator[str]:
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        yield _place(frame, frame.f_lineno)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def threads_stand(frames: int = 4) -> Iterator[str]:
    """Yield a line for each thread: its name and its innermost places, those of this project preferred, inner first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        stack = [(inner, line) for inner, line in traceback.walk_stack(frame)]
        own = [each for each in stack if each[0].f_code.co_filename.startswith(_OWN)]
        shown = [stack[0], *own[:frames]] if own else stack[:2]
        yield f"{names.get(ident, ident)}: {' < '.join(dict.fromkeys(_place(*each) for each in shown))}"


def _place(frame: FrameType, line: int | None) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{line} {frame.f_code.co_name}"


def programs(since_s: float) -> dict[int, str]:
    """Return this process's descendants begun since then (CLOCK_BOOTTIME): {pid: command}, cut at 90 characters."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # proc(5): after the name, the fields are state, parent, ..., and as the 20th the start in clock ticks.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if float(fields[19]) / os.sysconf("SC_CLK_TCK") >= since_s - 0.01:
            parents[int(entry.name)] = int(fields[1])
    found: dict[int, str] = {}
    wanted = {os.getpid()}
    while wanted:
        wanted = {pid for pid, parent in parents.items() if parent in wanted and pid not in found}
        for pid in wanted:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                words = ""
            found[pid] = " ".join(words.split())[:90]
    return found


class Watch:
    """The last two walls, as a pytest plugin: a thread that knows which test runs, and until when."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._test = ""
        self._until: float | None = None
        self._since_s = 0.0
        self._out = os.dup(2)
        self._status = 3
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _begin(self, test: str, limit_s: float | None) -> None:
        with self._changed:
            self._test, self._since_s = test, time.clock_gettime(time.CLOCK_BOOTTIME)
            self._until = None if limit_s is None else time.monotonic() + limit_s
            self._changed.notify()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch one test with its fixtures."""
        mark = item.get_closest_marker("timeout")
        own = float(mark.args[0]) if mark and mark.args else 0.0
        self._begin(item.nodeid, max(WATCH_S, own + AFTER_KILL_S))
        try:
            return (yield)
        finally:
            self._begin("", None)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Remember how the run went: a thread left behind must not turn its end into a wait."""
        self._status = int(exitstatus) or 3

    def pytest_unconfigure(self) -> None:
        """Watch the end of the interpreter, too."""
        self._begin("the end of the run", AFTER_KILL_S * 2)

    def _watch(self) -> None:
        """Wait for a test that is too late: first end what it started, then the run."""
        with self._changed:
            while True:
                until, test = self._until, self._test
                if until is None or time.monotonic() < until:
                    self._changed.wait(None if until is None else until - time.monotonic())
                    continue
                started = programs(self._since_s)
                self._say(test, started)
                for pid in started:
                    _kill(pid)
                if self._changed.wait_for(self._is_past(test), AFTER_KILL_S):
                    continue
                self._say(f"{test} even without its programs: the run ends here", {})
                os._exit(self._status)

    def _is_past(self, test: str) -> Callable[[], bool]:
        return lambda: self._test != test

    def _say(self, test: str, started: dict[int, str]) -> None:
        lines = [f"== hangs: {test}", *threads_stand(), *(f"program {pid}: {words}" for pid, words in started.items())]
        os.write(self._out, ("\n" + "\n".join(line[:400] for line in lines)[:1800] + "\n").encode())


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
