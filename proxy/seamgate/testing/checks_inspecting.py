"""Checks of a plugin's inspectors: the same out of any pieces, each exchange by itself, heads and trailers.

Each takes a `Subject`, raises `ConformanceError`, and has its rule as docstring. Listed by `conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seamgate.errors import SeamgateError
from seamgate.flow import Direction, Request, Response
from seamgate.headers import Headers, field_problem
from seamgate.hookspecs import Inspector
from seamgate.testing import corpus
from seamgate.testing.building import make_request, make_response
from seamgate.testing.inspecting import check_every_split, run_inspector, splits
from seamgate.testing.subject import ConformanceError, Subject

_Opened = tuple[str, Headers, bytes, Callable[[], Inspector]]


def inspects_alike(subject: Subject) -> None:
    """However the bytes of a body are cut, the same goes on; what passes unchanged is not held back by a pause."""
    for what, headers, body, make in _opened(subject):
        refused = _refusal(make, headers, body)
        if refused is None:
            try:
                check_every_split(make, body, headers=headers)
            except SeamgateError as error:
                raise ConformanceError(f"{what}: in pieces it refuses ({error.message}), in one piece not") from error
            except AssertionError as error:
                raise ConformanceError(f"{what}: {error}") from error
            continue
        for pieces in splits(body):
            if _refusal(make, headers, body, pieces) != refused:
                raise ConformanceError(f"{what}: in one piece it refuses ({refused}), in {len(pieces)} not")


def inspects_apart(subject: Subject) -> None:
    """Two exchanges at once don't mix: each inspector keeps its state to itself."""
    previous: _Opened | None = None
    for opened in _opened(subject):
        _, headers, body, make = opened
        if _refusal(make, headers, body) is None:
            if previous is not None:
                _check_apart(previous, opened)
            previous = opened


def takes_heads_and_trailers(subject: Subject) -> None:
    """`head` is called for the head and again for the trailers, and returns what may stand in a message."""
    trailers = ((b"x-checksum", b"1"), (b"server-timing", b"\xff"))
    for what, headers, body, make in _opened(subject):
        if _refusal(make, headers, body) is not None:
            continue
        for odd, response in corpus.responses():
            _takes_head(make, response.headers, odd)
        inspector = make()
        try:
            inspector.head(headers)
            inspector.feed(body or b"x")
            inspector.finish()
            left = inspector.head(trailers)
        except Exception as error:
            raise ConformanceError(f"{what}: {type(error).__name__} at the trailers: {error}") from error
        problem = field_problem(left)
        if problem:
            raise ConformanceError(f"{what}: head() returned trailers that may not go on: {problem}")


def _takes_head(make: Callable[[], Inspector], headers: Headers, what: str) -> None:
    """Hold an inspector to reading a head that an upstream may send."""
    try:
        left = make().head(headers)
    except SeamgateError:
        return  # it refuses such a message
    except Exception as error:
        raise ConformanceError(f"{what}: {type(error).__name__} at the head: {error}") from error
    problem = field_problem(left)
    if problem:
        raise ConformanceError(f"{what}: head() returned headers that may not go on: {problem}")


def _opened(subject: Subject) -> Iterator[_Opened]:
    """Yield (what, headers, body, make) for each body of each direction that the plugin inspects."""
    trial = subject.trial()
    for kind, media_type, body in corpus.bodies():
        headers: Headers = ((b"content-type", media_type.encode()), (b"x-a", b"1"))
        for direction, request, response in _exchanges(subject, media_type, body):
            make = trial.opener(request, response, direction)
            if make is not None:
                yield f"{kind} in a {direction}", headers, body, make


def _exchanges(subject: Subject, media_type: str, body: bytes) -> Iterator[tuple[Direction, Request, Response | None]]:
    asked = make_request(f"POST https://{corpus.HOST}/v1", body=body, headers={"content-type": media_type})
    answered = make_response(200, {"content-type": media_type})
    for request in (*subject.requests[:3], asked):
        yield Direction.REQUEST, request, None
        yield Direction.RESPONSE, request, answered


def _refusal(
    make: Callable[[], Inspector], headers: Headers, body: bytes, pieces: tuple[bytes, ...] | None = None
) -> str | None:
    """The reason with which the inspector refuses a body, None if it passes it."""
    try:
        run_inspector(make, body, headers=headers, pieces=pieces)
    except SeamgateError as error:
        return str(error.reason)
    except AssertionError:
        raise
    except Exception as error:
        raise ConformanceError(f"an inspector raised {type(error).__name__}: {error}") from error
    return None


def _check_apart(one: _Opened, other: _Opened) -> None:
    """Feed both in turns, and compare with each alone."""
    alone = [run_inspector(make, body, headers=headers).body for _, headers, body, make in (one, other)]
    inspectors = [make() for *_, make in (one, other)]
    out = [bytearray(), bytearray()]
    for inspector, (_, headers, _, _) in zip(inspectors, (one, other), strict=True):
        inspector.head(headers)
    bodies = (one[2], other[2])
    for start in range(0, max(map(len, bodies)), 4096):
        for place in (0, 1):
            piece = bodies[place][start : start + 4096]
            if piece:
                out[place] += inspectors[place].feed(piece)
    for place in (0, 1):
        out[place] += inspectors[place].finish()
        if bytes(out[place]) != alone[place]:
            raise ConformanceError(f"{(one, other)[place][0]}: beside another exchange it returns something else")
