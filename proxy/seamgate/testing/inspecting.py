"""Helpers for inspectors: run one over a body in any pieces, and hold it to giving the same whatever the pieces are.

    assert run_inspector(ShoutInspector, b"hello world", pieces=[b"hel", b"lo world"]).body == b"HELLO WORLD"
    check_every_split(ShoutInspector, b"hello world")

Called by plugin authors' tests and by `conformance`. Runs an inspector as the gateway does: head, pieces, finish.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator

import msgspec

from seamgate.headers import Headers, field_problem
from seamgate.hookspecs import Inspector
from seamgate.testing.building import GivenHeaders, make_headers

EVERY_PLACE_BYTES = 512
"""Up to this length a body is cut at every place; a longer one at places drawn with a fixed seed, and byte by byte."""
_DRAWN = 24
_BYTE_BY_BYTE_BYTES = 65_536


class Inspected(msgspec.Struct, frozen=True):
    """What came out of an inspector: the headers and the body that go on."""

    headers: Headers
    body: bytes


def run_inspector(
    make: Callable[[], Inspector],
    body: bytes,
    *,
    headers: GivenHeaders = (),
    pieces: Iterable[bytes] | None = None,
    pauses: bool = False,
) -> Inspected:
    """Pass a message through a new inspector.

    Args:
        make: makes the inspector.
        body: the whole body, without content coding.
        headers: of the message.
        pieces: the same body, cut; None: in one piece.
        pauses: whether the stream pauses after each piece, so that `flush` is called.

    Raises:
        AssertionError: it returns what is not bytes, or headers that may not stand in a message.
    """
    inspector = make()
    given = make_headers(headers)
    head = inspector.head(given)
    problem = field_problem(head)
    if problem:
        raise AssertionError(f"head() returned headers that may not go on: {problem}")
    out: list[bytes] = []
    for piece in [body] if pieces is None else pieces:
        if piece:
            out.append(_bytes(inspector.feed(piece), "feed"))
        if pauses:
            out.append(_bytes(inspector.flush(), "flush"))
    out.append(_bytes(inspector.finish(), "finish"))
    return Inspected(head, b"".join(out))


def _bytes(data: object, what: str) -> bytes:
    if not isinstance(data, bytes):
        raise AssertionError(f"{what}() returned {type(data).__name__}, not bytes")
    return data


def splits(body: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield ways to cut a body: in two at every place (or at drawn ones), in a few at random, byte by byte."""
    if len(body) <= EVERY_PLACE_BYTES:
        places: Iterable[int] = range(1, len(body))
    else:
        places = sorted(random.Random(1).sample(range(1, len(body)), _DRAWN))
    for place in places:
        yield body[:place], body[place:]
    draw = random.Random(2)
    for count in (3, 7) if len(body) > 8 else ():
        cuts = [0, *sorted(draw.sample(range(1, len(body)), count)), len(body)]
        yield tuple(body[start:end] for start, end in itertools.pairwise(cuts))
    if 1 < len(body) <= _BYTE_BY_BYTE_BYTES:
        yield tuple(body[place : place + 1] for place in range(len(body)))


def check_every_split(make: Callable[[], Inspector], body: bytes, *, headers: GivenHeaders = ()) -> Inspected:
    """Return what an inspector makes of a body, which must not depend on how the bytes arrived.

    Where it passes the body as it is, it must do so with pauses too: `flush` gives out what was held back.

    Raises:
        AssertionError: with the pieces that made a difference.
    """
    whole = run_inspector(make, body, headers=headers)
    for pieces in splits(body):
        _compare(whole, run_inspector(make, body, headers=headers, pieces=pieces), pieces, "")
        if whole.body == body:
            paused = run_inspector(make, body, headers=headers, pieces=pieces, pauses=True)
            _compare(whole, paused, pieces, ", with pauses between them")
    return whole


def _compare(whole: Inspected, cut: Inspected, pieces: tuple[bytes, ...], how: str) -> None:
    if cut == whole:
        return
    told = " | ".join(repr(piece[-16:] if place == 0 else piece[:16]) for place, piece in enumerate(pieces[:4]))
    raise AssertionError(
        f"in {len(pieces)} pieces ({told}{' ...' if len(pieces) > 4 else ''}){how} the inspector returns"
        f" {len(cut.body)} bytes {cut.body[:60]!r}, in one piece {len(whole.body)} bytes {whole.body[:60]!r}"
    )
