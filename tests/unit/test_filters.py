"""The chain of inspectors: order, what held-back bytes pass through, decoders, and failures."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest

from seamgate.errors import PluginError, Reason, SeamgateError
from seamgate.filters import Filters, Lookers, open_filters
from seamgate.headers import Headers
from seamgate.protocol.coding import UndecodableError, open_decoder


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


class Holder:
    """Only looks; gives out what it got less the last bytes, and those at the end."""

    only_looks = True

    def __init__(self, hold: int, more: bytes = b"") -> None:
        self.seen = b""
        self._given = 0
        self._hold = hold
        self._more = more

    def head(self, headers: Headers) -> Headers:
        return headers

    def feed(self, data: bytes) -> bytes:
        self.seen += data
        return self._give(max(self._given, len(self.seen) - self._hold)) + self._more

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return self._give(len(self.seen)) if self._hold < 1000 else b""

    def _give(self, stop: int) -> bytes:
        start, self._given = self._given, stop
        return bytes(stop - start)  # what it gives out is counted, not taken


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("size", [1, 3, 50, 1000])
def test_who_only_looks_changes_no_byte(size: int, coded: bool) -> None:
    """Whatever the pieces: what goes on is what came, never more than may, and the whole of it at the end."""
    plain = bytes(range(256)) * 2
    body = gzip.compress(plain) if coded else plain
    holder = Holder(20)
    lookers = Lookers([("one", holder)], open_decoder(b"gzip" if coded else None), 1.0)
    assert not lookers.reframes
    out = b""
    for place in range(0, len(body), size):
        out += lookers.feed(body[place : place + size]) + lookers.flush()
        assert body.startswith(out)
        assert coded or len(out) <= max(0, len(holder.seen) - 20)
    assert out + lookers.finish() == body
    assert holder.seen == plain


class Tail:
    """Looks only, holds back the last bytes of what came, and has the coded body looked at likewise."""

    only_looks = True

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.kept = b""

    def of_coded(self) -> Tail:
        """What looks at the coded bytes."""
        return Tail(self.keep)

    def head(self, headers: Headers) -> Headers:
        """As it is."""
        return headers

    def feed(self, data: bytes) -> bytes:
        """All but the tail goes on."""
        data = self.kept + data
        cut = max(0, len(data) - self.keep)
        self.kept = data[cut:]
        return data[:cut]

    def flush(self) -> bytes:
        """A pause changes nothing."""
        return b""

    def finish(self) -> bytes:
        """The tail."""
        data, self.kept = self.kept, b""
        return data


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, gzip"])
@pytest.mark.parametrize("keep", [1, 8, 60])
def test_what_waits_is_never_more_than_some_pieces(keep: int, coding: bytes) -> None:
    """Who looks always holds something of the end: what came before goes on with the next pieces, and upstream is told.

    Else a body of which each piece ends in the beginning of something were held in memory as a whole.
    """
    plain = random.Random(1).randbytes(400_000)
    body = gzip.compress(plain, 1)
    if b"," in coding:
        body = gzip.compress(body, 1)
    lookers = Lookers([("one", Tail(keep))], open_decoder(coding), 1.0)
    out = bytearray()
    for place in range(0, len(body), 5000):
        out += lookers.feed(body[place : place + 5000])
        assert place + 5000 - len(out) <= (3 + coding.count(b",")) * 5000 + 70_000 * (b"," in coding)
    assert bytes(out) + lookers.finish() == body


def test_who_looks_at_coded_bytes_joins_no_coded_body() -> None:
    """What came before is in the coding's own memory, and what stands beside the content was not looked at."""
    coded = Lookers([("one", Holder(0))], open_decoder(b"gzip"), 1.0)
    with pytest.raises(UndecodableError, match="can't be searched"):
        coded.join([("two", Tail(1))])
    coded.join([("three", Holder(0))])
    plain = Lookers([("one", Holder(0))], None, 1.0)
    plain.join([("two", Tail(1))])
    assert (coded.names, plain.names) == (("three", "one"), ("two", "one"))


@pytest.mark.parametrize("holder", [Holder(1000), Holder(0, b"more")])
def test_who_only_looks_can_neither_add_nor_keep(holder: Holder) -> None:
    """Else the length upstream was told would be a lie."""
    lookers = Lookers([("one", holder)], None, 1.0)
    with pytest.raises(PluginError, match="may only look at"):
        lookers.feed(b"x" * 10)
        lookers.finish()


class Passes:
    """Only looks, and passes the first bytes of what it sees until its end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = b""
        self._passed = 0

    def head(self, headers: Headers) -> Headers:
        return headers

    def feed(self, data: bytes) -> bytes:
        self._held += data
        passed = self._held[: self._most - self._passed]
        self._passed += len(passed)
        self._held = self._held[len(passed) :]
        return passed

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        held, self._held = self._held, b""
        return held


@pytest.mark.parametrize("size", [1, 100, 1500])
def test_a_coded_piece_waits_for_all_that_it_becomes(size: int) -> None:
    """Also where nobody looks at the coded bytes: what has left never decodes to more than what was passed."""
    chance = random.Random(1)
    plain = b"".join([b"%d aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" % chance.randrange(10**9) for _ in range(2000)])
    packed = gzip.compress(plain)
    lookers = Lookers([("one", Passes(1000))], open_decoder(b"gzip"), 1.0)
    left = b"".join([lookers.feed(packed[at : at + size]) for at in range(0, len(packed), size)])
    assert len(zlib.decompressobj(31).decompress(left)) <= 1000
    assert left + lookers.finish() == packed
