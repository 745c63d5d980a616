"""Checks of what a plugin says about requests: it withstands them, alike each time, in time, and changes nothing.

Each takes a `Subject`, raises `ConformanceError`, and has its rule as docstring. Listed by `conformance`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from time import perf_counter

import msgspec
from prometheus_client import CollectorRegistry

from seamgate.credentials.encodings import base64_forms
from seamgate.credentials.placeholders import decode_basic
from seamgate.errors import PluginError, Reason, SeamgateError
from seamgate.flow import Amendment, BodyState, Request, Step
from seamgate.headers import apply_amendment, field_problem
from seamgate.testing import corpus
from seamgate.testing.subject import ConformanceError, Subject, Trial
from seamgate.verdict import Effect, Verdict

_TELLING_BYTES = 16
"""A header's value below this is a word that a message may well have of its own."""
_TRIES = 5
"""Of so many calls the fastest counts, so that a busy machine is not the plugin's fault."""


def is_vouched_for(subject: Subject) -> None:
    """The registry takes it: hooks that exist, no wrapper, no async judge, capabilities for what it implements."""
    try:
        subject.load()
    except SeamgateError as error:
        raise ConformanceError(error.message) from error


def refuses_unknown_options(subject: Subject) -> None:
    """A misspelt option is an error at start, never ignored: raise SeamgateError in the constructor."""
    if isinstance(subject.make, type) or callable(subject.make):
        with contextlib.suppress(SeamgateError):
            subject.load(more={"no_such_option": 1})
            raise ConformanceError("the option `no_such_option` was accepted: refuse what you don't know")


def starts_again(subject: Subject) -> None:
    """A reload makes a second one while the first still serves: neither minds the other, nor do their metrics."""
    trials = [Trial(subject, subject.load(generation=number)) for number in (1, 2)]
    for trial in trials:
        trial.pipeline.register_metrics(CollectorRegistry(auto_describe=True))
        _raised(trial, "two generations at once")


def withstands_the_field(subject: Subject) -> None:
    """No request, tunnel or response that a gateway lets through makes it raise, or answer with something else."""
    trial = subject.trial()
    for what, request in subject.all_requests():
        for phase in phases(request):
            trial.pipeline.judge_request(phase, [])
        with contextlib.suppress(PluginError):
            trial.pipeline.amend_request(request, [])
        _raised(trial, what)
    for what, guest, target in corpus.tunnels():
        trial.pipeline.judge_connect(guest, target, [])
        _raised(trial, what)
    plain = next(iter(corpus.requests()))[1]
    for what, response in corpus.responses():
        trial.pipeline.judge_response(plain, response, [])
        _raised(trial, what)


def withstands_records(subject: Subject) -> None:
    """No audit record makes an observer raise: also those of refusals, where guest and request are not known."""
    trial = subject.trial()
    for what, record in corpus.records():
        trial.pipeline.request_done(record, denied=record.verdict == "deny")
        trial.pipeline.export_audit([record])
        _raised(trial, what)
    trial.pipeline.export_audit([record for _, record in corpus.records()])
    _raised(trial, "a batch of records")


def judges_alike(subject: Subject) -> None:
    """The same request judged again gets the same verdict: the gateway does so after each amendment and reload."""
    trial = subject.trial()
    for what, request in subject.all_requests():
        for phase in phases(request):
            first, again = (trial.pipeline.judge_request(phase, []) for _ in range(2))
            if _gist(first) != _gist(again):
                told = f"{_told(first)}, then {_told(again)}"
                raise ConformanceError(f"at {what} it said {told}; count in `request_done`")


def changes_nothing(subject: Subject) -> None:
    """What a hook is given it leaves as it is, labels and options included."""
    trial = subject.trial()
    options = repr((subject.options, subject.config))
    for what, request in subject.all_requests():
        before = repr(request)
        for phase in phases(request):
            trial.pipeline.judge_request(phase, [])
        with contextlib.suppress(PluginError):
            trial.pipeline.amend_request(request, [])
        if repr(request) != before:
            raise ConformanceError(f"at {what} it changed the request in place; return an Amendment")
    if repr((subject.options, subject.config)) != options:
        raise ConformanceError("it changed its options or the configuration in place; copy what you take apart")


def keeps_its_budget(subject: Subject) -> None:
    """No call takes longer than the budget: other guests wait meanwhile."""
    trial = subject.trial()
    for what, request in subject.all_requests():
        for phase in phases(request):
            _in_time(subject, what, "judge_request", lambda phase=phase: trial.pipeline.judge_request(phase, []))  # type: ignore[misc]
        if trial.pipeline.amends:
            _in_time(subject, what, "amend_request", lambda request=request: _amended(trial, request))  # type: ignore[misc]
    for what, guest, target in corpus.tunnels():
        _in_time(
            subject,
            what,
            "judge_connect",
            lambda guest=guest, target=target: trial.pipeline.judge_connect(guest, target, []),  # type: ignore[misc]
        )
    batch = [record for _, record in corpus.records()] * 50
    _in_time(subject, f"a batch of {len(batch)} records", "export_audit", lambda: trial.pipeline.export_audit(batch))


def tells_why(subject: Subject) -> None:
    """A denial has a reason and one printable sentence for whoever asked, without the values of headers."""
    trial = subject.trial()
    for what, request in subject.all_requests():
        for phase in phases(request):
            trial.pipeline.judge_request(phase, [])
        for answer in trial.listener.answers(subject.name, "judge_request"):
            if isinstance(answer, Verdict):
                _check_told(answer, what, request)
        trial.listener.heard.clear()


def amends_what_it_allows(subject: Subject) -> None:
    """An amendment sets fields that a plugin may set, is final at the second time, and passes its own judge."""
    trial = subject.trial()
    if not trial.pipeline.amends:
        return
    for what, request in subject.all_requests():
        if _denies(trial, request):
            continue
        amended = _amended(trial, request)
        _raised(trial, what)
        if amended is request:
            continue
        if _denies(trial, amended):
            raise ConformanceError(f"at {what} it denies its own amendment; the judges have the last word")
        if _settled(_amended(trial, amended)) != _settled(amended):
            raise ConformanceError(f"at {what} it amends its own amendment again; an amendment has to be final")


def phases(request: Request) -> Iterator[Request]:
    """Yield the request as it is judged: with its head, then with the body that it has."""
    if request.body_state is BodyState.COMPLETE:
        yield msgspec.structs.replace(request, body=None, body_state=BodyState.PENDING)
    yield request


def _raised(trial: Trial, what: str) -> None:
    """Complain of what hooks raised or answered since the last time."""
    heard, trial.listener.heard = trial.listener.heard, []
    for each in heard:
        refuses = isinstance(each.raised, SeamgateError) and not each.hook.startswith("judge_")
        if each.raised is not None and not refuses:
            error = each.raised
            raise ConformanceError(f"at {what}, {each.hook} raised {type(error).__name__}: {error}") from error
        wanted = Verdict if each.hook.startswith("judge_") else Amendment if each.hook == "amend_request" else None
        if wanted is not None and each.answer is not None and type(each.answer) is not wanted:
            raise ConformanceError(f"at {what}, {each.hook} answered with a {type(each.answer).__name__}")
        if isinstance(each.answer, Amendment):
            problem = field_problem(each.answer.set_headers)
            if problem:
                raise ConformanceError(f"at {what}, amend_request may not say that: {problem}")


def _denies(trial: Trial, request: Request) -> bool:
    steps: list[Step] = []
    trial.pipeline.judge_request(request, steps)
    return any(step.outcome in ("deny", "failed", "overrun") for step in steps)


def _amended(trial: Trial, request: Request) -> Request:
    try:
        return trial.pipeline.amend_request(request, [])
    except PluginError:
        return request


def _settled(request: Request) -> frozenset[tuple[bytes, bytes]]:
    return frozenset(apply_amendment(request.headers, (), ()))


def _in_time(subject: Subject, what: str, hook: str, call: Callable[[], object]) -> None:
    spent_s = min(_timed(call) for _ in range(_TRIES))
    if spent_s > subject.budget_s:
        raise ConformanceError(
            f"at {what}, {hook} took {spent_s * 1000:.1f} ms; the budget is {subject.budget_s * 1000:g} ms"
        )


def _timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _check_told(verdict: Verdict, what: str, request: Request) -> None:
    if verdict.effect is not Effect.DENY:
        if verdict.reason is not Reason.ALLOWED:
            raise ConformanceError(f"at {what} it allows or defers with the reason {verdict.reason}; use `allow`")
        return
    message = verdict.message
    if verdict.reason is Reason.ALLOWED:
        raise ConformanceError(f"at {what} it denies with the reason `allowed`; use `deny`")
    for name, value in request.headers:
        how = _repeated(value, message)
        if how:
            raise ConformanceError(f"at {what} its message repeats the value of the header {name.decode()}{how}")
    if not message.strip() or not message.isprintable():
        raise ConformanceError(f"at {what} its message is {message[:80]!r}: say in one printable sentence what to do")


def _repeated(value: bytes, message: str) -> str:
    """Return how a header's value stands in a message: ", encoded" or the like; "" if it does not."""
    said = message.encode("latin-1", "replace")
    if len(value) < _TELLING_BYTES:
        return ""
    if value in said:
        return ", as it is"
    if any(form in said for form in (*base64_forms(value), value.hex().encode(), value.hex().upper().encode())):
        return ", encoded"
    inside = decode_basic(value)
    return ", decoded" if inside is not None and len(inside) >= _TELLING_BYTES and inside in said else ""


def _gist(verdict: Verdict) -> tuple[Effect, Reason, str]:
    return verdict.effect, verdict.reason, verdict.rule


def _told(verdict: Verdict) -> str:
    return f"{verdict.effect.name.lower()} ({verdict.reason}{f', rule {verdict.rule}' if verdict.rule else ''})"
