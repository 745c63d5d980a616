"""`seamgate.credentials.redaction`: exact values taken out of a stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from seamgate.credentials.probing import FLUSH_LIMIT_BYTES, LONG_BYTES, MOST_HOLDS, MOST_OF_SECRET, Probe, Probes
from seamgate.credentials.redaction import RedactionSet, Redactor
from seamgate.errors import CredentialError, Reason

SECRET = b"s3cr3t/val+ue"
MARK = b"[redacted:key]"


def redactor(*values: bytes) -> Redactor:
    return Redactor(RedactionSet([("key", value) for value in values or (SECRET,)]))


def test_a_piece_without_anything_is_passed_on_as_it_is() -> None:
    """Not even copied."""
    piece = b"data: nothing to see here\n\n"
    assert redactor().feed(piece) is piece


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        json.dumps(SECRET.decode()).strip('"').replace("/", "\\/").encode(),
        quote(SECRET, safe="").encode(),
        quote(SECRET, safe="").lower().encode(),
    ],
)
def test_each_spelling_is_replaced(spelling: bytes) -> None:
    """Plain, JSON with escaped slash, percent-encoded in both cases."""
    assert redactor().feed(b"<" + spelling + b">") == b"<" + MARK + b">"


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"user:"])
@pytest.mark.parametrize("after", [b"", b"!", b"!!"])
def test_base64_is_replaced_at_every_alignment(before: bytes, after: bytes) -> None:
    """What is left is the neighbours and at most one character at either end."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(before + SECRET + after)
        given = redactor().feed(encoded + b"\n")
        assert MARK in given
        rest = given.replace(MARK, b"").strip(b"=\n")
        assert len(rest) <= len(base64.b64encode(before)) + len(base64.b64encode(after)) + 1


def test_split_at_every_place() -> None:
    """In two pieces, whatever the place, the output is the same and nothing of the secret is in it."""
    text = b"x" + SECRET + b"y" + SECRET[:5] + b"z"
    for place in range(len(text) + 1):
        one = redactor()
        assert one.feed(text[:place]) + one.feed(text[place:]) + one.finish() == b"x" + MARK + b"y" + SECRET[:5] + b"z"


def test_only_a_true_beginning_is_held_back() -> None:
    """And it comes out once it turns out to be none."""
    one = redactor()
    assert one.feed(b"abc s3cr") == b"abc "
    assert one.feed(b"et") == b"s3cret"
    assert one.feed(b"abc s") == b"abc "
    assert one.finish() == b"s"


def test_an_event_is_never_held_back() -> None:
    """No secret holds a line break, so what ends with one is decided, even right after a beginning."""
    one = redactor()
    event = b"data: s3cr3t/val\n\n"
    assert one.feed(event) == event
    assert one.flush() == b""


def test_a_pause_gives_out_few_bytes_and_remembers_them() -> None:
    """If the rest of the secret follows, it is still replaced."""
    one = redactor()
    assert one.feed(b"> s3c") == b"> "
    assert one.flush() == b"s3c"
    assert one.flush() == b""
    assert one.feed(SECRET[3:] + b"!") == MARK + b"!"
    assert len(b"s3c") == FLUSH_LIMIT_BYTES


def test_a_pause_keeps_more_than_that() -> None:
    """Four or more characters of a secret stay until the next byte decides."""
    one = redactor()
    one.feed(b"> s3cr")
    assert one.flush() == b""
    assert one.feed(b"!") == b"s3cr!"


def test_given_bytes_are_not_given_twice() -> None:
    """Neither when the beginning turns out to be none, nor at the end."""
    one = redactor()
    assert one.feed(b"s3") + one.flush() + one.feed(b"x") == b"s3x"
    assert one.feed(b"s3") + one.flush() + one.finish() == b"s3"
    two = redactor()
    assert two.feed(b"s") + two.flush() + two.feed(b"3") + two.flush() + two.feed(b"c!") == b"s3c!"


def test_the_longer_of_two_secrets_that_begin_alike_is_taken_whole() -> None:
    """Over a split as well: the shorter one waits until the longer is decided."""
    one = redactor(b"abcdefgh", b"abcdefghij")
    assert one.feed(b"abcdefgh") == b""
    assert one.feed(b"ij!") == MARK + b"!"
    assert one.feed(b"abcdefgh") + one.feed(b"x") == MARK + b"x"
    assert one.feed(b"abcdefghi") + one.finish() == MARK + b"i"


def test_headers() -> None:
    """Values are redacted, a header whose name holds a secret is dropped, the rest is the same object."""
    clean = ((b"a", b"b"), (b"c", b"d"))
    assert redactor().head(clean) is clean
    named = RedactionSet([("key", b"x-lower-case-key")])
    headers = ((b"x-echo", b"1 " + SECRET), (b"y-x-lower-case-key", b"1"), (b"z", b"x-lower-case-key"))
    assert redactor().head(headers)[0] == (b"x-echo", b"1 " + MARK)
    assert Redactor(named).head(headers) == (headers[0], (b"z", MARK))


def test_no_repr_shows_a_spelling() -> None:
    """Neither the set's nor the redactor's."""
    one = redactor()
    one.feed(b"s3cr3t/v")
    assert "s3cr" not in f"{one!r} {RedactionSet([('key', SECRET)])!r}"


def test_many_hits_cost_linear_time() -> None:
    """A body full of secrets is no way to stall the gateway: places are not searched again for each hit."""

    class Counting(bytes):
        finds = 0

        def find(self, *arguments: object) -> int:
            Counting.finds += 1
            return bytes.find(self, *arguments)  # type: ignore[arg-type]

    text = Counting(SECRET * 1000)
    assert sum(1 for _ in RedactionSet([("key", SECRET)]).hits(text)) == 1000
    assert Counting.finds < 1000 + 60


def test_a_header_s_name_has_lost_its_case() -> None:
    """Names come in lower case: a value in mixed case is found in them all the same."""
    named = RedactionSet([("key", b"AbCdEfGh-1234567890")])
    assert named.replace_headers(((b"abcdefgh-1234567890", b"yes"), (b"a", b"b"))) == ((b"a", b"b"),)
    repeats = ((b"vary", b"x, abcdefgh-1234567890"),)
    assert named.replace_headers(repeats) == ((b"vary", b"x, [redacted]"),)


def test_lines_of_text_are_not_held_back() -> None:
    """Only what a spelling in base64 begins with waits behind a line break, and a pause gives that out."""
    one = redactor()
    for line in (b"hello\n", b"a: b\r\n", b"data: x\n\n", b"data: y\r\n\r\n"):
        assert one.feed(line) == line


def probed(value: bytes, *pieces: bytes) -> Probe:
    """Put each piece to a redactor of its own for one guest; return what that guest's probe says then."""
    probe = Probes().of("g")
    for piece in pieces:
        Redactor(RedactionSet([("key", value)]), probe).feed(piece)
    return probe


def test_what_tells_nothing_new_is_not_counted() -> None:
    """The same beginning again, what an issuer documents, and what a pause would let out anyway."""
    assert probed(b"sk-ant-api03-xyz", b"sk-", b"sk-a", b"sk-ant-").holds == 0
    assert probed(b"eyJhbGciOiJ9.payload", b"x eyJhbGci", b"eyJhbGciOiJ9.").holds == 0
    assert probed(b"sk-ant-api03-xyz", *[b"sk-ant-api"] * 20).holds == 1
    assert probed(b"sk-ant-api03-xyz", b"sk-ant-a", b"sk-ant-ap", b"sk-ant-api").holds == 3


def test_each_hold_of_something_new_counts_once_and_one_of_the_value_not_at_all() -> None:
    """Pieces that go on where the last one ended are one hold; once it was the value, it is taken back."""
    probe = Probes().of("g")
    one = Redactor(RedactionSet([("key", SECRET)]), probe)
    for place in range(len(SECRET) - 1):
        one.feed(SECRET[place : place + 1])
    assert probe.holds == 1
    one.feed(SECRET[-1:])
    assert probe.holds == 0
    one.feed(SECRET[:5])
    one.feed(b"!")
    assert probe.holds == 1


def test_a_guest_that_is_ended_gets_nothing_more() -> None:
    """Not from a redactor that was there before, nor from its pauses and its end; nothing is forgotten between them."""
    probes, patterns = Probes(), RedactionSet([("key", SECRET)])
    before = Redactor(patterns, probes.of("g"))
    with pytest.raises(CredentialError) as caught:
        for size in range(4, 4 + MOST_HOLDS):
            Redactor(patterns, probes.of("g")).feed(SECRET[:size])
    assert caught.value.reason is Reason.SECRET_PROBED and probes.spent("g") and not probes.spent("h")
    steps: tuple[Callable[[], bytes], ...] = (lambda: before.feed(b"x"), before.flush, before.finish)
    for step in steps:
        with pytest.raises(CredentialError):
            step()
    assert Redactor(patterns, probes.of("h")).feed(b"x") == b"x"


def learnt(probes: Probes, value: bytes, known: int, *guests: str) -> int:
    """Let guests guess one after the other, each from where the last one was ended; return how much they know then."""
    patterns = RedactionSet([("key", value)])
    for guest in guests:
        try:
            while known < len(value) - 1:
                Redactor(patterns, probes.of(guest)).feed(value[: known + 1])
                known += 1
        except CredentialError:
            known += 1  # what ended it was right too
    return known


def test_guests_that_work_together_have_little_more_than_one() -> None:
    """What they find out about a credential is counted for all of them; then each further guest learns one more."""
    value = bytes(range(65, 65 + 40))
    probes = Probes()
    first = learnt(probes, value, FLUSH_LIMIT_BYTES, "a")
    assert first == FLUSH_LIMIT_BYTES + MOST_HOLDS
    both = learnt(probes, value, first, "b")
    assert both == LONG_BYTES + MOST_OF_SECRET
    assert learnt(probes, value, both, *"cdef") == both + 4
    assert all(probes.spent(guest) for guest in "abcdef")


def test_what_was_found_out_before_ends_nobody() -> None:
    """A guest whose pieces end where another one's did has told nothing new, however much is known of the value."""
    value = bytes(range(65, 65 + 40))
    probes, patterns = Probes(), RedactionSet([("key", value)])
    known = learnt(probes, value, FLUSH_LIMIT_BYTES, *"abcd")
    for size in range(known - 5, known + 1):
        Redactor(patterns, probes.of("quiet")).feed(value[:size])
    assert not probes.spent("quiet")
    other = RedactionSet([("other", b"0123456789" * 4)])
    Redactor(other, probes.of("quiet")).feed(b"01234567890123")
    assert not probes.spent("quiet")


def test_a_value_that_many_guests_are_sent_in_pieces_is_no_guess() -> None:
    """An origin that drips the whole value tells nobody anything; what is taken back is so for the credential, too."""
    probes, patterns = Probes(), RedactionSet([("key", SECRET)])
    for number in range(3 * MOST_OF_SECRET):
        one = Redactor(patterns, probes.of(str(number)))
        for place in range(number % 9, len(SECRET)):
            one.feed(SECRET[:place] if place == number % 9 else SECRET[place - 1 : place])
        one.feed(SECRET[-1:])
    assert probes.of_secret("key").holds == 0
