"""The chain of inspectors: order, what held-back bytes pass through, decoders, and failures."""

from __future__ import annotations

import gzip

import pytest

from seamgate.errors import PluginError, Reason, SeamgateError
from seamgate.filters import Filters, open_filters
from seamgate.headers import Headers
from seamgate.protocol.coding import UndecodableError


class Marks:
    """Holds the last byte back, and marks what passes with its letter."""

    def __init__(self, letter: str) -> None:
        self.letter = letter.encode()
        self.held = b""

    def head(self, headers: Headers) -> Headers:
        return (*headers, (b"x", self.letter))

    def feed(self, data: bytes) -> bytes:
        data = self.held + data
        self.held = data[-1:]
        return data[:-1].replace(b".", b"." + self.letter)

    def flush(self) -> bytes:
        held, self.held = self.held, b""
        return held.replace(b".", b"." + self.letter)

    def finish(self) -> bytes:
        return self.flush() + b"!" + self.letter


def chain(*letters: str, budget_s: float = 1.0) -> Filters:
    return Filters([(letter, Marks(letter)) for letter in letters], None, budget_s)


def test_bytes_pass_in_order_and_nothing_is_lost() -> None:
    """What the first lets go later passes through those after it."""
    filters = chain("a", "b")
    out = filters.feed(b"1.2") + filters.feed(b"3.") + filters.flush() + filters.feed(b"4") + filters.finish()
    assert out == b"1.ba23.ba4!a!b"
    assert chain("a", "b").head(()) == ((b"x", b"a"), (b"x", b"b"))


def test_a_coded_body_is_decoded_before_it_is_seen() -> None:
    """And the headers of the coding go with it."""
    coded = gzip.compress(b"plain.")
    headers: Headers = ((b"content-encoding", b"gzip"), (b"etag", b"x"), (b"a", b"1"))
    filters, left = open_filters([("a", Marks("a"))], headers, 1.0)
    assert left == ((b"a", b"1"), (b"x", b"a"))
    assert filters.feed(coded[:9]) + filters.feed(coded[9:]) + filters.finish() == b"plain.a!a"


def test_a_body_that_ends_within_its_coding_is_an_error() -> None:
    """The framing says whole, the coding does not."""
    filters, _ = open_filters([("a", Marks("a"))], ((b"content-encoding", b"gzip"),), 1.0)
    filters.feed(gzip.compress(b"plain")[:-4])
    with pytest.raises(UndecodableError):
        filters.finish()


def test_an_unknown_coding_is_an_error_where_there_is_a_body() -> None:
    """HEAD and 304 have none to decode."""
    headers: Headers = ((b"content-encoding", b"snappy"),)
    with pytest.raises(UndecodableError):
        open_filters([("a", Marks("a"))], headers, 1.0)
    _, left = open_filters([("a", Marks("a"))], headers, 1.0, bodiless=True)
    assert (b"content-encoding", b"snappy") in left


@pytest.mark.parametrize("where", ["head", "feed", "flush", "finish"])
def test_failures(where: str) -> None:
    """An inspector's exception is its plugin's failure; its own refusal stays what it is; an overrun is one."""
    refusal = SeamgateError("no", reason=Reason.RULE_DENIED)
    for error, reason in ((KeyError("x"), Reason.PLUGIN_FAILED), (refusal, Reason.RULE_DENIED)):
        inspector = Marks("a")

        def fail(*_: object, error: Exception = error) -> bytes:
            raise error

        setattr(inspector, where, fail)
        filters = Filters([("bad", inspector)], None, 1.0)
        arguments: dict[str, tuple[object, ...]] = {"head": ((),), "feed": (b"x",)}
        with pytest.raises(SeamgateError) as caught:
            getattr(filters, where)(*arguments.get(where, ()))
        assert caught.value.reason is reason
    with pytest.raises(PluginError) as overrun:
        chain("a", budget_s=1e-9).feed(b"x")
    assert overrun.value.reason is Reason.PLUGIN_OVERRUN
