"""The check that no text of a guest or an upstream makes a pattern backtrack for ever.

Takes a `Subject`, raises `ConformanceError`, and has its rule as docstring. Listed by `conformance`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

from seamgate.errors import SeamgateError
from seamgate.flow import Direction, Headers, Request
from seamgate.hookspecs import Inspector
from seamgate.testing.building import make_record, make_request, make_response
from seamgate.testing.corpus import HOST
from seamgate.testing.pumps import LAST, LONGEST, REPEATED, SHORTEST, Place, next_length, places, places_of
from seamgate.testing.subject import ConformanceError, Subject, Trial

_GROWN_S = 0.002
"""A call that takes so much longer than that with the shortest text grows with it."""
_TRIES = 3
"""What took too long is measured so often again and the fastest counts: a busy machine is not the plugin's fault."""
_MEDIA_TYPES = ("application/json", "text/plain", "text/html", "text/event-stream")
_OF_ANSWERS = ("location", "content-type", "set-cookie", "content-disposition", "www-authenticate")
_Call = Callable[[], object]


def matches_in_time(subject: Subject) -> None:
    """No text that a guest or an upstream can send makes a hook or an inspector take longer than the budget."""
    trial = subject.trial()
    if trial.has("judge_connect", "judge_request", "amend_request", "request_done", "denied"):
        for place in (*places(), *(each for request in subject.requests for each in places_of(request))):
            for repeated in place.repeated:
                _grow(trial, place.name, repeated, partial(_calls_of_request, trial, place))
    if trial.has("judge_response"):
        for name in _OF_ANSWERS:
            for repeated in REPEATED:
                _grow(trial, f"the header {name} of an answer", repeated, partial(_calls_of_answer, trial, name))
    if trial.has("open_inspector"):
        for direction in Direction:
            for media_type in _MEDIA_TYPES:
                _inspect(trial, direction, media_type)


def _calls_of_request(trial: Trial, place: Place, text: str) -> Iterator[tuple[str, _Call]]:
    """Yield (hook, a call of it) with this text in the place."""
    try:
        request = place.build(text)
    except SeamgateError:
        return  # no gateway lets it through: a host of that length
    if trial.has("judge_connect"):
        yield "judge_connect", lambda: trial.pipeline.judge_connect(request.guest, request.target, [])
    if trial.has("judge_request"):
        yield "judge_request", lambda: trial.pipeline.judge_request(request, [])
    if trial.has("amend_request"):
        yield "amend_request", lambda: _amended(trial, request)
    if trial.has("request_done", "denied"):
        record = make_record(request, verdict="deny", outcome="denied", status=403)
        yield "request_done", lambda: trial.pipeline.request_done(record, denied=True)


def _amended(trial: Trial, request: Request) -> None:
    with contextlib.suppress(SeamgateError):  # a refusal, or a failure that another rule is about
        trial.pipeline.amend_request(request, [])


def _calls_of_answer(trial: Trial, name: str, text: str) -> Iterator[tuple[str, _Call]]:
    value = text.encode() if not text.startswith(" ") else b"a" + text.encode()
    response = make_response(200, ((name.encode(), value),))
    request = make_request(f"GET https://{HOST}/v1")
    yield "judge_response", lambda: trial.pipeline.judge_response(request, response, [])


def _inspect(trial: Trial, direction: Direction, media_type: str) -> None:
    """Put texts to the inspectors of one direction, for the requests for which there are any."""
    headers: Headers = ((b"content-type", media_type.encode()),)
    response = make_response(200, headers) if direction is Direction.RESPONSE else None
    plain = make_request(f"POST https://{HOST}/v1", body=b"x", headers=headers)
    for request in (*trial.subject.requests[:3], plain):
        make = trial.opener(request, response, direction)
        if make is None:
            continue
        for repeated in REPEATED:
            _grow(trial, f"a {direction} of {media_type}", repeated, partial(_calls_of_inspector, make, headers))


def _calls_of_inspector(make: Callable[[], Inspector], headers: Headers, text: str) -> Iterator[tuple[str, _Call]]:
    yield "an inspector", lambda: _inspected(make(), headers, text.encode())


def _inspected(inspector: Inspector, headers: Headers, body: bytes) -> None:
    with contextlib.suppress(Exception):  # it refuses such a body, or fails, which another rule is about
        inspector.head(headers)
        inspector.feed(body)
        inspector.finish()


def _grow(trial: Trial, where: str, repeated: str, calls: Callable[[str], Iterator[tuple[str, _Call]]]) -> None:
    """Put longer and longer texts to the calls; the first that takes too long ends it, before the next never ends."""
    first: dict[str, float] = {}
    times = SHORTEST
    while times <= LONGEST:
        grows = False
        for hook, call in calls(repeated * times + LAST):
            spent_s = _timed(call)
            if spent_s > trial.subject.budget_s:
                _complain(trial.subject.budget_s, f"{times} times {repeated!r} and {LAST!r} in {where}", hook, call)
            grows = grows or spent_s > first.setdefault(hook, spent_s) + _GROWN_S
        trial.listener.heard.clear()
        times = next_length(times, grows=grows)


def _complain(budget_s: float, what: str, hook: str, call: _Call) -> None:
    """Measure again what took too long, and say so if it does each time."""
    spent_s = min(_timed(call) for _ in range(_TRIES))
    if spent_s > budget_s:
        raise ConformanceError(
            f"with {what}, {hook} took {spent_s * 1000:.1f} ms; the budget is {budget_s * 1000:g} ms. A regular"
            " expression that backtracks? Repeat nothing that repeats already, or look at the length first"
        )


def _timed(call: _Call) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
