"""Redaction holds over every split, every pause and every overlap of secrets."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seamgate.credentials.encodings import base64_forms
from seamgate.credentials.probing import FLUSH_LIMIT_BYTES
from seamgate.credentials.redaction import RedactionSet, Redactor

# Two letters, so that secrets overlap each other and themselves; upper case, so that no mark holds one.
SECRETS = st.lists(st.text("AB", min_size=8, max_size=14).map(str.encode), min_size=1, max_size=3, unique=True)
CUTS = st.lists(st.integers(0, 200), max_size=12)


def pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in pairwise(places)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Secrets, and a text that holds some of them whole and in part."""
    secrets = draw(SECRETS)
    parts = st.one_of(
        st.sampled_from(secrets),
        st.text("AB-", max_size=6).map(str.encode),
        st.sampled_from(secrets).map(lambda s: s[:-1]),
    )
    return secrets, b"".join(draw(st.lists(parts, max_size=8)))


@given(case=cases(), cuts=CUTS)
def test_any_split_gives_the_same_output_without_a_secret(case: tuple[list[bytes], bytes], cuts: list[int]) -> None:
    """Whole = pieces = byte by byte, and it is what `replace` says of the whole text."""
    secrets, text = case
    patterns = RedactionSet([("key", secret) for secret in secrets])
    expected = patterns.replace(text)
    assert not any(secret in expected for secret in secrets)
    for split in ([text], pieces(text, cuts), pieces(text, list(range(len(text))))):
        one = Redactor(patterns)
        assert b"".join([*map(one.feed, split), one.finish()]) == expected


@given(case=cases(), cuts=CUTS)
def test_the_delay_is_bounded(case: tuple[list[bytes], bytes], cuts: list[int]) -> None:
    """At any moment at most the longest spelling minus one byte is held back."""
    secrets, text = case
    patterns = RedactionSet([("key", secret) for secret in secrets])
    one = Redactor(patterns)
    for piece in pieces(text, cuts):
        one.feed(piece)
        assert len(one._tail) < patterns.longest


@given(case=cases(), cuts=CUTS, pauses=st.lists(st.booleans(), min_size=16, max_size=16))
def test_pauses_tell_at_most_a_few_characters(
    case: tuple[list[bytes], bytes], cuts: list[int], pauses: list[bool]
) -> None:
    """With pauses anywhere, no secret comes out, and outside of what a pause let go the output is the same."""
    secrets, text = case
    patterns = RedactionSet([("key", secret) for secret in secrets])
    one = Redactor(patterns)
    given_out = b""
    let_go = 0
    for piece, pause in zip(pieces(text, cuts), pauses, strict=False):
        given_out += one.feed(piece)
        if pause:
            early = one.flush()
            assert len(early) <= FLUSH_LIMIT_BYTES
            let_go += len(early)
            given_out += early
    given_out += one.finish()
    expected = patterns.replace(text)
    assert not any(secret in given_out for secret in secrets)
    assert 0 <= len(given_out) - len(expected) <= let_go


@given(case=cases())
def test_headers_hold_no_secret(case: tuple[list[bytes], bytes]) -> None:
    """Whatever stands in a value."""
    secrets, text = case
    headers = Redactor(RedactionSet([("key", secret) for secret in secrets])).head(((b"a", text), (b"b", b"c")))
    assert not any(secret in value for secret in secrets for _, value in headers)


@given(
    secret=st.text("ABab01+/", min_size=8, max_size=120).map(str.encode),
    before=st.binary(max_size=90),
    width=st.integers(64, 76),
    end=st.sampled_from([b"\n", b"\r\n"]),
    cuts=CUTS,
)
def test_base64_in_lines_holds_no_secret(secret: bytes, before: bytes, width: int, end: bytes, cuts: list[int]) -> None:
    """Wherever the lines break, and wherever pieces do: what is left, put together again, does not decode to it."""
    coded = base64.b64encode(before + secret + b"yyyyyyyyy")
    text = b"> " + end.join(coded[place : place + width] for place in range(0, len(coded), width)) + b"\n\n"
    patterns = RedactionSet([("key", secret)])
    expected = patterns.replace(text)
    for split in ([text], pieces(text, cuts), pieces(text, list(range(len(text))))):
        one = Redactor(patterns)
        out: list[bytes] = []
        for piece in split:
            out.append(one.feed(piece))
            assert len(one._tail) < patterns.longest
        assert b"".join([*out, one.finish()]) == expected
    assert b"[redacted:key]" in expected
    left = expected.replace(b"\r", b"").replace(b"\n", b"")
    assert not any(form in left for form in base64_forms(secret))


# The spellings of one character: as it is, in JSON (in JSON), in a URL, in HTML.
ONE_BY_ONE = (
    lambda byte: bytes((byte,)),
    lambda byte: b"\\u%04x" % byte,
    lambda byte: b"\\\\u%04X" % byte,
    lambda byte: b"\\x%02x" % byte,
    lambda byte: b"%%%02X" % byte,
    lambda byte: b"&#%d;" % byte,
    lambda byte: b"&#x%04x;" % byte,
)


@given(
    ways=st.lists(st.sampled_from(ONE_BY_ONE), min_size=17, max_size=17),
    around=st.sampled_from([b"", b"{", b"\\ ", b"%", b"&", b"a"]),
    cuts=CUTS,
    lines=st.sets(st.integers(1, 16), max_size=2),
)
def test_a_value_whose_characters_are_spelt_each_in_its_way(
    ways: list[Callable[[int], bytes]], around: bytes, cuts: list[int], lines: set[int]
) -> None:
    """Is found at any split, also over `data:` lines of one event; what stands around it is as it was."""
    value = b"sk-Live/4f9a7c1b="
    spelt = [way(byte) for way, byte in zip(ways, value, strict=True)]
    broken = b"".join([b"\ndata: " * (place in lines) + part for place, part in enumerate(spelt)])
    text = b"data: " + around + broken + b"! end\n\n"
    for split in ([text], pieces(text, cuts), pieces(text, list(range(len(text))))):
        one = Redactor(RedactionSet([("key", value)]))
        given_out = b"".join([*map(one.feed, split), one.finish()])
        assert given_out == b"data: " + around + b"[redacted:key]! end\n\n"


@given(
    text=st.lists(
        st.sampled_from([rb"\u0073", rb"\u", b"%7", b"%73", b"&#115", b"&#115;", b"s", b"\\", b"\n", b"data: "])
    ).map(b"".join),
    cuts=CUTS,
)
def test_escapes_that_spell_no_value_are_as_they_were(text: bytes, cuts: list[int]) -> None:
    """Every byte, at any split; at the end of a pause no more than an escape and a beginning are held."""
    one = Redactor(RedactionSet([("key", b"sk-Live/4f9a7c1b=")]))
    assert b"".join([*map(one.feed, pieces(text, cuts)), one.finish()]) == text


@given(cuts=CUTS, filler=st.integers(0, 70), escape=st.sampled_from([rb"\n", rb"\r\n", rb"\\n"]))
def test_base64_in_lines_of_a_json_string(cuts: list[int], filler: int, escape: bytes) -> None:
    """As a tool prints a file of secrets, and a server puts that into JSON."""
    value = b"sk-live-4f9a7c1be23d58a60e917b3d" * 2
    lines = base64.encodebytes(b"x" * filler + value).strip().split(b"\n")
    text = b'{"out": "' + escape.join(lines) + b'"}'
    one = Redactor(RedactionSet([("key", value)]))
    given_out = b"".join([*map(one.feed, pieces(text, cuts)), one.finish()])
    assert b"[redacted:key]" in given_out and given_out.startswith(b'{"out": "') and given_out.endswith(b'"}')
    assert max(map(len, given_out.split(b"[redacted:key]"))) < 110
