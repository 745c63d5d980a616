"""Checks of what a plugin does to the outside: judging does nothing, and nothing of it changes the process for others.

Each takes a `Subject`, raises `ConformanceError`, and has its rule as docstring. Listed by `conformance`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry

from seamgate.errors import PluginError
from seamgate.flow import Request
from seamgate.testing import corpus
from seamgate.testing.checks_judging import phases
from seamgate.testing.checks_secrets import sent
from seamgate.testing.purity import OF_THE_PROCESS, Deed, known_threads, let_others_run, watched
from seamgate.testing.subject import ConformanceError, Subject, Trial

_AFTER_S = 0.02
"""So long after a call a thread of the plugin has for what it was handed."""
_UNASKED_S = 0.25
"""So long is looked at what the plugin does while nobody asks it anything."""
_TURNS = 4
"""Turns of the loop after a call: a task that it began does something in the first of them."""


async def judges_without_io(subject: Subject) -> None:
    """`judge_*` and `amend_request` are pure: no file, socket, process, thread or sleep, by nobody else either."""
    known = known_threads()
    trial = subject.trial()
    unasked: set[str] = set()
    for what, call in _judgings(trial, subject):
        with watched(known) as seen:
            call()
            at_once = tuple([deed for deed in seen if deed.here])
            await _let_go_on(known, _AFTER_S)
        trial.listener.heard.clear()
        later = [deed for deed in _of_tasks(seen) if deed.told not in unasked]
        if later and not at_once:
            unasked |= await _unasked(known)
            later = [deed for deed in later if deed.told not in unasked]
        if at_once or later:
            raise ConformanceError(f"at {what} it {(*at_once, *later)[0].told}; judging has to be pure")


def _of_tasks(seen: list[Deed]) -> tuple[Deed, ...]:
    """Return deeds after a call as they are told: what this thread did then, a task did."""
    return tuple([Deed(each.event, f"{each.told} in a task", each.here) if each.here else each for each in seen])


async def _unasked(known: frozenset[int]) -> set[str]:
    """Return what the plugin does while nobody asks: reading a file every second is no I/O of its judge."""
    with watched(known) as seen:
        await _let_go_on(known, _UNASKED_S)
    return {deed.told for deed in _of_tasks(seen)}


async def _let_go_on(known: frozenset[int], most_s: float) -> None:
    """Let tasks and threads of the plugin do what a call gave them to do."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    let_others_run(known, most_s)


def _judgings(trial: Trial, subject: Subject) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield (what, a call of all hooks that have to be pure)."""
    plain = next(iter(corpus.requests()))[1]
    for what, request in subject.all_requests():
        yield what, partial(_judge, trial, request)
    for what, guest, target in corpus.tunnels():
        yield what, lambda guest=guest, target=target: trial.pipeline.judge_connect(guest, target, [])  # type: ignore[misc]
    for what, response in corpus.responses():
        yield what, lambda response=response: trial.pipeline.judge_response(plain, response, [])  # type: ignore[misc]


def _judge(trial: Trial, request: Request) -> None:
    with contextlib.suppress(PluginError):
        for phase in phases(request):
            trial.pipeline.judge_request(phase, [])
        trial.pipeline.amend_request(request, [])


async def leaves_the_process_alone(subject: Subject) -> None:
    """What the whole gateway shares stays as it is: environment, working directory, module path, signals, timeouts."""
    before = _shared()
    environment, folder = dict(os.environ), os.getcwd()
    known = known_threads()
    try:
        with watched(known) as seen:
            await _live(subject)
            let_others_run(known, _AFTER_S)
        deeds = [deed for deed in seen if deed.event in OF_THE_PROCESS]
        if deeds:
            raise ConformanceError(f"it {deeds[0].told}: all of the gateway has that too; keep it to yourself")
        changed = [name for name, value in _shared().items() if value != before[name]]
        if changed:
            raise ConformanceError(f"it changed {changed[0]}: all of the gateway has that too; keep it to yourself")
    finally:
        os.chdir(folder)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


async def _live(subject: Subject) -> None:
    """Make a plugin and have it do everything that there is to do once."""
    trial = subject.trial()
    trial.pipeline.register_metrics(CollectorRegistry(auto_describe=True))
    for _, call in _judgings(trial, subject):
        call()
    for _, record in corpus.records():
        trial.pipeline.request_done(record, denied=record.verdict == "deny")
        trial.pipeline.export_audit([record])
    async for _ in sent(subject):
        pass


def _shared() -> dict[str, object]:
    """Return what all code in this process shares and a plugin could change without an audit event."""
    return {
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
        "the folders that modules are found in": tuple(sys.path),
        "the timeout of all sockets": socket.getdefaulttimeout(),
        "the handler of a signal": tuple([signal.getsignal(each) for each in sorted(signal.valid_signals())]),
        "the recursion limit": sys.getrecursionlimit(),
    }
