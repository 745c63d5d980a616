"""What the hot path has in C says the same as its twin in Python, whatever it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate._native import Fields, Needles
from seamgate.credentials.needles import Needles as UsedNeedles
from seamgate.credentials.needles import PythonNeedles
from seamgate.errors import GuestProtocolError, PluginError
from seamgate.headers import OF_THE_GATEWAY, WRITTEN_HERE, field_problem
from seamgate.protocol import fields as used

FIELDS = Fields(special=OF_THE_GATEWAY, written=WRITTEN_HERE, common=(b"accept", b"x"), most=used.MAX_FIELDS)

NAMES = st.sampled_from(
    (
        b"Host", b"ACCEPT", b"x", b"X-Y_z", b"content-length", b"Connection", b"te", b"", b"a b", b"n\xe9", b"x" * 256,
        b"x" * 257, b"h\0", b" folded", b"a:b",
    )
)  # fmt: skip
VALUES = st.sampled_from(
    [b"", b" ", b"\t x \t", b"a: b", b"caf\xe9 \xff", b"\x7f", b"\x00", b"a\rb", b"a\nb", b"\r\n more", b"x" * 300]
)
LINES = st.one_of(
    st.builds(
        lambda name, colon, value: name + colon + value, NAMES, st.sampled_from([b":", b": ", b" :", b""]), VALUES
    ),
    st.binary(max_size=12),
)
FIRST = st.sampled_from([b"GET / HTTP/1.1", b"", b"HTTP/1.1 200 \xe9", b"GET\t/", b"\x7f", b"a\rb", b"a\n"])


def heads() -> st.SearchStrategy[bytes]:
    """Heads of good and bad lines, ends included."""
    return st.builds(
        lambda first, lines: b"\r\n".join([first, *lines]) + b"\r\n\r\n", FIRST, st.lists(LINES, max_size=5)
    )


@given(heads())
def test_heads_are_split_alike(head: bytes) -> None:
    """C splits a head exactly as Python does, and gives none of those that Python refuses."""
    try:
        expected = used.split_head_in_python(head, GuestProtocolError)
    except GuestProtocolError:
        assert FIELDS.split(head) is None
    else:
        assert FIELDS.split(head) == expected


@pytest.mark.parametrize("more", [0, 1])
def test_most_fields(more: int) -> None:
    """As many fields as are allowed are split; one more is refused."""
    head = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (used.MAX_FIELDS + more) + b"\r\n"
    found = FIELDS.split(head)
    assert found is None if more else found == (b"GET / HTTP/1.1", ((b"a", b"b"),) * used.MAX_FIELDS, {})


@pytest.mark.parametrize("head", [b"", b"\r\n", b"a\r\n", b"a\r\n\r", b"x" * 100])
def test_what_is_no_head_is_not_split(head: bytes) -> None:
    """Without an empty line at its end nothing is a head."""
    assert FIELDS.split(head) is None


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple))
def test_fields_are_written_alike(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """C writes what Python finds no fault with, in the same bytes, and nothing else."""
    written = FIELDS.write(b"first\r\n", headers, b"\r\n", True)
    if field_problem(headers, at_the_writer=True):
        assert written is None
        with pytest.raises(PluginError):
            used.write_checked(b"first\r\n", headers, b"\r\n")
    else:
        assert written == b"first\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n"
    assert FIELDS.write(b"", headers, b"", False) == b"".join(b"%b: %b\r\n" % pair for pair in headers)


ABC = st.text("abAB", max_size=40).map(str.encode)
NEEDLES = st.lists(st.text("abAB", min_size=1, max_size=24).map(str.encode), max_size=6)


@given(exact=NEEDLES, folded=NEEDLES, data=ABC)
def test_needles_are_found_alike(exact: list[bytes], folded: list[bytes], data: bytes) -> None:
    """Any needle, of any length and case, is found wherever it stands, and nothing is found where none stands."""
    assert Needles(exact, folded).found(data) == PythonNeedles(exact, folded).found(data)


@given(
    needle=st.binary(min_size=1, max_size=200), others=st.lists(st.binary(min_size=16, max_size=40), max_size=30),
    before=st.binary(max_size=300), after=st.binary(max_size=300),
)  # fmt: skip
def test_a_needle_is_found_at_any_place(needle: bytes, others: list[bytes], before: bytes, after: bytes) -> None:
    """However long needle and text are, and however many others are looked for, it is found."""
    assert Needles([*others, needle]).found(before + needle + after)


@given(exact=NEEDLES, data=ABC, start=st.integers(0, 45))
def test_open_ends_are_found_alike(exact: list[bytes], data: bytes, start: int) -> None:
    """The earliest beginning of a needle that lasts to the end is the same, from any start."""
    assert Needles(exact).open_end(data, start) == PythonNeedles(exact).open_end(data, start)


def test_the_twins_in_c_are_used() -> None:
    """What was built is what runs."""
    assert {UsedNeedles.__module__, type(used._fields).__module__} == {"seamgate._native"}


@pytest.mark.parametrize("given", [[b""], ["text"]])
def test_bad_needles_are_refused(given: list[bytes]) -> None:
    """A needle that is empty, which would be everywhere, or that is no bytes is an error."""
    with pytest.raises(ValueError, match="needle"):
        Needles(given)
