"""The kit's helpers for inspectors: any pieces, the same out of them, and what makes a difference is shown."""

from __future__ import annotations

import pytest

from seamgate.headers import Headers
from seamgate.testing import check_every_split, run_inspector, splits


class Fox:
    """Puts brackets around "fox", wherever the pieces end."""

    def __init__(self) -> None:
        self._held = b""

    def head(self, headers: Headers) -> Headers:
        return tuple(pair for pair in headers if pair[0] != b"etag")

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        keep = next((n for n in (2, 1) if data.endswith(b"fox"[:n])), 0)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep].replace(b"fox", b"[fox]")

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return self._held


class Hasty(Fox):
    """Does not wait for the rest of a word."""

    def feed(self, data: bytes) -> bytes:
        return data.replace(b"fox", b"[fox]")


def test_an_inspector_runs_over_any_pieces() -> None:
    """Head, pieces and end, in the gateway's order."""
    out = run_inspector(Fox, b"a fox", headers={"etag": "1", "x-a": "2"}, pieces=[b"a f", b"", b"ox"])
    assert out.headers == ((b"x-a", b"2"),)
    assert out.body == b"a [fox]"


def test_every_cut_is_tried() -> None:
    """Each place of a short body, some of a long one, byte by byte; together they are the body."""
    assert {(b"a", b"bc"), (b"ab", b"c"), (b"a", b"b", b"c")} == set(splits(b"abc"))
    for pieces in splits(bytes(range(256)) * 40):
        assert b"".join(pieces) == bytes(range(256)) * 40
    assert list(splits(b"")) == list(splits(b"x")) == []


def test_a_difference_is_shown_with_its_pieces() -> None:
    """Which pieces, what came out of them, and what of the whole."""
    assert check_every_split(Fox, b"the fox and the fo").body == b"the [fox] and the fo"
    with pytest.raises(AssertionError, match=r"in 2 pieces \(b'the f' \| b'ox'\) the inspector returns 7 bytes"):
        check_every_split(Hasty, b"the fox")


def test_what_passes_must_not_be_lost_in_a_pause() -> None:
    """`flush` may give out or keep, never forget."""

    class Forgets(Fox):
        def flush(self) -> bytes:
            self._held = b""
            return b""

    with pytest.raises(AssertionError, match="with pauses between them"):
        check_every_split(Forgets, b"off we go")


def test_other_values_than_bytes_and_fields_are_told() -> None:
    """What the gateway would refuse is an error here."""

    class Text(Fox):
        def finish(self) -> bytes:
            return "text"  # type: ignore[return-value]

    class Split(Fox):
        def head(self, headers: Headers) -> Headers:
            return ((b"x-a", b"1\r\nhost: b"),)

    with pytest.raises(AssertionError, match=r"finish\(\) returned str"):
        run_inspector(Text, b"")
    with pytest.raises(AssertionError, match="a line break"):
        run_inspector(Split, b"")
