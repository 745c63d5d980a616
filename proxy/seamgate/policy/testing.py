"""Policy tests: a matrix of requests and what is expected of each, judged in the phases of a real exchange.

What a file does not list is expected to be denied, the clock is pinned, and a judge is whatever has the two methods
of the pipeline, so that tests judge as the gateway does: the tunnel first (for https), then the head with its body
pending, then, if that was deferred, with the body. Names and paths are parsed as the gateway parses them; what it
would refuse is a denial here too.

Called by the CLI, which brings the files and the judge. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from seamgate.address import parse_authority
from seamgate.document import Document, Step, parse_document
from seamgate.errors import Reason, TargetError
from seamgate.flow import BodyState, Guest, Headers, Request, Target
from seamgate.headers import is_unseen
from seamgate.hints import did_you_mean
from seamgate.paths import canonical_path, check_query
from seamgate.verdict import Effect, Verdict, denial_of, deny


class Judge(Protocol):
    """What a case is put to: `seamgate.pipeline.Pipeline`, or anything with its two methods."""

    def judge_connect(self, guest: Guest, target: Target) -> Verdict:
        """Judge a tunnel."""
        ...

    def judge_request(self, request: Request) -> Verdict:
        """Judge a request in its present phase."""
        ...


class _Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every mapping in a test file."""


class RequestSpec(_Strict, frozen=True, kw_only=True):
    """A request to be named in cases and matrices."""

    request: Annotated[str, Meta(description="METHOD URL")]
    headers: dict[str, str | list[str]] = {}
    json: Annotated[Any, Meta(description="A body, as JSON.")] = UNSET
    body: Annotated[str | UnsetType, Meta(description="A body, as text.")] = UNSET


class Expectation(_Strict, frozen=True, kw_only=True):
    """What is expected. What is not said is not looked at, but for the effect: deny."""

    expect: Literal["allow", "deny"] = "deny"
    rule: Annotated[str | UnsetType, Meta(description='Id of the rule that decides; "" for none.')] = UNSET
    reason: Annotated[str | UnsetType, Meta(description="The reason code of the verdict.")] = UNSET
    credential: Annotated[str | list[str] | UnsetType, Meta(description="Names of the credentials chosen.")] = UNSET
    would_deny: Annotated[str | UnsetType, Meta(description='Id of the rule in audit mode; "" for none.')] = UNSET


class CaseSpec(Expectation, frozen=True, kw_only=True):
    """One request of one guest."""

    name: str = ""
    request: Annotated[str, Meta(description="METHOD URL, or a name under requests.")]
    guest: Annotated[str | dict[str, str], Meta(description="Labels, or a name under guests.")] = {}
    headers: dict[str, str | list[str]] = {}
    json: Annotated[Any, Meta(description="A body, as JSON.")] = UNSET
    body: Annotated[str | UnsetType, Meta(description="A body, as text.")] = UNSET
    times: Annotated[int, Meta(ge=1, le=100_000, description="How often; the last verdict counts.")] = 1
    now: Annotated[str | UnsetType, Meta(description="Another time than the file's.")] = UNSET


class MatrixSpec(_Strict, frozen=True, kw_only=True):
    """Each guest with each request."""

    guests: Annotated[list[str] | UnsetType, Meta(description="Names; absent: all.")] = UNSET
    requests: Annotated[list[str] | UnsetType, Meta(description="Names; absent: all.")] = UNSET
    expect: Annotated[
        dict[str, dict[str, Literal["allow", "deny"] | Expectation]],
        Meta(description="Guest to request to what is expected; what is not listed is expected to be denied."),
    ] = {}


class TestFile(_Strict, frozen=True, kw_only=True):
    """A whole test file."""

    __test__ = False  # pytest collects what is called Test...

    seamgate_test: Annotated[Literal[1], Meta(description="Version of the format.")]
    policy: Annotated[list[str], Meta(min_length=1, description="Policy files, relative to this one.")]
    now: Annotated[str, Meta(description="The time at which everything is judged, with offset.")]
    guests: Annotated[dict[str, dict[str, str]], Meta(description="Names to labels.")] = {}
    requests: dict[str, RequestSpec] = {}
    cases: list[CaseSpec] = []
    matrix: list[MatrixSpec] = []


class Case(msgspec.Struct, frozen=True):
    """One case, ready to be judged.

    Attributes:
        name: for people.
        guest: who asks.
        method, url, headers, body: what is asked.
        expected: what for.
        times: how often.
        now: Unix seconds.
        line: where it stands.
    """

    name: str
    guest: Guest
    method: str
    url: str
    headers: Headers
    body: bytes | None
    expected: Expectation
    times: int
    now: float
    line: int


class Suite(msgspec.Struct, frozen=True):
    """A loaded test file. `policies`: as written there."""

    source: str
    policies: tuple[str, ...]
    cases: tuple[Case, ...]


class Result(msgspec.Struct, frozen=True):
    """What came of a case.

    Attributes:
        case: the case.
        verdict: the last.
        phase: "parse", "connect", "head" or "body": where it was settled.
        duration_us: of all judging, in microseconds.
        failures: sentences, one for each thing that is not as expected.
    """

    case: Case
    verdict: Verdict
    phase: str
    duration_us: float
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all is as expected."""
        return not self.failures


def parse_tests(text: str, source: str) -> Suite:
    """Load a test file.

    Raises:
        ConfigError: with line and column.
    """
    document = parse_document(text, source)
    return _Loader(document, document.convert(TestFile)).suite()


class _Loader:
    def __init__(self, document: Document, file: TestFile) -> None:
        self.document = document
        self.file = file
        self.now = self._time(file.now, "now")

    def suite(self) -> Suite:
        cases = [*self._cases(), *self._matrices()]
        if not cases:
            raise self.document.error("there is no case: add cases or a matrix")
        return Suite(self.document.source, tuple(self.file.policy), tuple(cases))

    def _time(self, text: str, *path: Step) -> float:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise self.document.error(f"{text!r} is not a time: write 2026-12-01T09:00:00Z", *path)
        return moment.timestamp()

    def _cases(self) -> Iterator[Case]:
        for index, spec in enumerate(self.file.cases):
            path: tuple[Step, ...] = ("cases", index)
            named = self.file.requests.get(spec.request)
            own = RequestSpec(request=spec.request, headers=spec.headers, json=spec.json, body=spec.body)
            if named is not None and (spec.headers or spec.json is not UNSET or spec.body is not UNSET):
                raise self.document.error(f"the request {spec.request!r} has its own headers and body", *path)
            guest = self._guest(spec.guest, *path, "guest")
            now = self.now if isinstance(spec.now, UnsetType) else self._time(spec.now, *path, "now")
            yield self._case(spec.name, guest, named or own, spec, path, "request", times=spec.times, now=now)

    def _matrices(self) -> Iterator[Case]:
        for index, spec in enumerate(self.file.matrix):
            path: tuple[Step, ...] = ("matrix", index)
            guests = self._names(spec.guests, self.file.guests, "guest", *path, "guests")
            requests = self._names(spec.requests, self.file.requests, "request", *path, "requests")
            self._check_expected(spec, guests, requests, path)
            for guest in guests:
                for request in requests:
                    wanted = spec.expect.get(guest, {}).get(request, "deny")
                    expected = Expectation(expect=wanted) if isinstance(wanted, str) else wanted
                    at = (*path, "expect", guest, request)
                    labels = self._guest(guest, *path)
                    named = self.file.requests[request]
                    yield self._case(f"{guest} x {request}", labels, named, expected, at, "", times=1, now=self.now)

    def _names(self, names: list[str] | UnsetType, known: Mapping[str, Any], what: str, *path: Step) -> list[str]:
        if isinstance(names, UnsetType):
            return list(known)
        for index, name in enumerate(names):
            if name not in known:
                raise self.document.error(f"there is no {what} {name!r}{did_you_mean(name, known)}", *path, index)
        return names

    def _check_expected(self, spec: MatrixSpec, guests: list[str], requests: list[str], path: tuple[Step, ...]) -> None:
        for guest, row in spec.expect.items():
            if guest not in guests:
                message = f"the guest {guest!r} is not in this matrix{did_you_mean(guest, guests)}"
                raise self.document.error(message, *path, "expect", guest, key=True)
            for request in row:
                if request not in requests:
                    message = f"the request {request!r} is not in this matrix{did_you_mean(request, requests)}"
                    raise self.document.error(message, *path, "expect", guest, request, key=True)

    def _guest(self, guest: str | dict[str, str], *path: Step) -> Guest:
        if isinstance(guest, str):
            labels = self.file.guests.get(guest)
            if labels is None:
                message = f"there is no guest {guest!r} under guests{did_you_mean(guest, self.file.guests)}"
                raise self.document.error(message, *path)
            return Guest(guest, labels)
        return Guest("test", guest)

    def _case(
        self,
        name: str,
        guest: Guest,
        spec: RequestSpec,
        expected: Expectation,
        path: tuple[Step, ...],
        key: str,
        *,
        times: int,
        now: float,
    ) -> Case:
        method, _, url = spec.request.partition(" ")
        if not is_askable(method, url) or " " in url:
            known = "" if not key else did_you_mean(spec.request, self.file.requests)
            message = f"{spec.request!r} is not METHOD URL, such as GET https://example.com/{known}"
            raise self.document.error(message, *path, *([key] if key else []))
        if not isinstance(expected.reason, UnsetType) and expected.reason not in [each.value for each in Reason]:
            hint = did_you_mean(expected.reason, [each.value for each in Reason])
            raise self.document.error(f"there is no reason {expected.reason!r}{hint}", *path, "reason")
        if spec.json is not UNSET and spec.body is not UNSET:
            raise self.document.error("a request has either json or body", *path)
        body = None if isinstance(spec.body, UnsetType) else spec.body.encode()
        unseen = [each for each in spec.headers if is_unseen(each.lower())]
        if unseen:
            message = f"the header {unseen[0]!r} is the gateway's own: policy never sees it, so it changes nothing"
            raise self.document.error(message, *path, *([key] if key else []))
        headers = [
            (each.lower().encode(), value.encode())
            for each, values in spec.headers.items()
            for value in ([values] if isinstance(values, str) else values)
        ]
        if spec.json is not UNSET:
            body = msgspec.json.encode(spec.json)
            if all(each != b"content-type" for each, _ in headers):
                headers.append((b"content-type", b"application/json"))
        line, _ = self.document.position(*path)
        return Case(name or spec.request, guest, method, url, tuple(headers), body, expected, times, now, line)


def run_suite(suite: Suite, new_judge: Callable[[float], Judge]) -> Iterator[Result]:
    """Judge each case, with a judge of its own, so that no case can use up another's limits.

    Args:
        suite: the cases.
        new_judge: makes a judge whose clock stands at these Unix seconds.
    """
    for case in suite.cases:
        yield run_case(case, new_judge(case.now))


def run_case(case: Case, judge: Judge) -> Result:
    """Judge one case and compare."""
    start = perf_counter()
    verdict, phase = Verdict(), ""
    for number in range(case.times):
        verdict, phase = judge_as_exchange(case, judge, f"test-{number}")
    duration_us = (perf_counter() - start) * 1e6
    return Result(case, verdict, phase, duration_us, tuple(_failures(case.expected, verdict)))


def judge_as_exchange(case: Case, judge: Judge, request_id: str) -> tuple[Verdict, str]:
    """Put a request to a judge in the phases of a real exchange; return the final verdict and its phase."""
    try:
        request = build_request(case, request_id)
    except TargetError as error:
        return denial_of(error), "parse"
    return judge_in_phases(request, case.body, judge)


def judge_in_phases(request: Request, body: bytes | None, judge: Judge) -> tuple[Verdict, str]:
    """Judge a request that was parsed: the tunnel first (for https), then the head, then with the body if it is needed.

    Args:
        request: in its first phase: a body, if it has one, is pending.
        body: what follows; None: none.
        judge: whom to ask.
    """
    if request.target.scheme == "tcp":
        return judge.judge_connect(request.guest, request.target), "connect"
    if request.target.scheme == "https":
        verdict = judge.judge_connect(request.guest, request.target)
        if verdict.effect is Effect.DENY:
            return verdict, "connect"
    verdict, phase = judge.judge_request(request), "head"
    if verdict.effect is Effect.DEFER and body is not None:
        whole = msgspec.structs.replace(request, body=body, body_state=BodyState.COMPLETE)
        verdict, phase = judge.judge_request(whole), "body"
    if verdict.effect is Effect.DEFER:
        verdict = deny(verdict.message, reason=Reason.UNEVALUABLE, rule=verdict.rule)
    if body is not None and verdict.allowed and verdict.limits is not None:
        limit = verdict.limits.request_body_bytes
        if limit is not None and len(body) > limit:
            message = f"the request body is longer than {limit} bytes"
            return deny(message, reason=Reason.BODY_TOO_LARGE, rule=verdict.rule), phase
    return verdict, phase


def build_request(case: Case, request_id: str) -> Request:
    """Build the request in its first phase, parsed as the gateway parses.

    Raises:
        TargetError: it would be refused.
    """
    scheme, _, rest = case.url.partition("://")
    if scheme == "tcp":
        target = msgspec.structs.replace(parse_authority(rest, "https", port_required=True), scheme="tcp")
        return Request(request_id, case.guest, target, case.method, "*", received_at=case.now)
    upgrade = "websocket" if scheme in _WEBSOCKET else ""
    scheme = _WEBSOCKET.get(scheme, scheme)
    rest, has_query, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    return Request(
        request_id,
        case.guest,
        parse_authority(authority, scheme),
        case.method,
        canonical_path(f"/{path}"),
        check_query(query) if has_query else None,
        case.headers,
        None,
        BodyState.ABSENT if case.body is None else BodyState.PENDING,
        case.now,
        upgrade,
    )


def is_askable(method: str, url: str) -> bool:
    """Whether this is what can be judged: http(s), or ws(s) for a WebSocket, or CONNECT tcp://host:port."""
    if method == "CONNECT":
        return url.startswith("tcp://")
    return url.startswith(("https://", "http://", "wss://", "ws://"))


_WEBSOCKET = {"wss": "https", "ws": "http"}
"""What a request that is to become a WebSocket is before (RFC 6455 3)."""


def _failures(expected: Expectation, verdict: Verdict) -> Iterator[str]:
    effect = "allow" if verdict.allowed else "deny"
    if effect != expected.expect:
        by = f" by {verdict.rule}" if verdict.rule else ""
        yield f"expected {expected.expect}, got {effect}{by}: {verdict.message or verdict.reason.text}"
    if not isinstance(expected.rule, UnsetType) and expected.rule != verdict.rule:
        yield f"expected rule {expected.rule or 'none'}, got {verdict.rule or 'none'}"
    if not isinstance(expected.reason, UnsetType) and expected.reason != verdict.reason:
        yield f"expected reason {expected.reason}, got {verdict.reason}"
    if not isinstance(expected.credential, UnsetType):
        wanted = (expected.credential,) if isinstance(expected.credential, str) else tuple(expected.credential)
        if wanted != verdict.credentials:
            yield f"expected credential {', '.join(wanted) or 'none'}, got {', '.join(verdict.credentials) or 'none'}"
    if not isinstance(expected.would_deny, UnsetType) and expected.would_deny != verdict.would_rule:
        yield f"expected would_deny {expected.would_deny or 'none'}, got {verdict.would_rule or 'none'}"
