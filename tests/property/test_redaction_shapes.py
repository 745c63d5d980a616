"""Redaction by shape holds over every split and every pause."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seamgate.credentials.shapes import HIGH_ENTROPY_SHAPES, KNOWN_SHAPES, Run, Shape, ShapeRedactor, ShapeSet

# Few letters, so that shapes overlap themselves and each other; a check that fails often; a block.
DENSE = ShapeSet(
    (
        Shape("one", (("AB",), Run("AB", 2, 6))),
        Shape("two", (("BA", "BBA"), Run("A", 1, 3), ("B",), Run("AB", 3, 3))),
        Shape("three", (Run("AC", 3, 5), ("=",), Run("A", 4, 8)), keep=2),
        Shape("odd", (("CC",), Run("C", 1, 3)), check=lambda text: len(text) % 2 == 1),
        Shape("private-key", (("-----BEGIN ",), Run("A-Z ", 0, 4), ("PRIVATE KEY-----",)), block=True),
    )
)
REAL = ShapeSet((*KNOWN_SHAPES,))
GUESS = ShapeSet(HIGH_ENTROPY_SHAPES)
BEGIN, END = b"-----BEGIN A PRIVATE KEY-----", b"-----END A PRIVATE KEY-----"
PARTS = st.one_of(
    st.text("AB", max_size=8).map(str.encode),
    st.text("ABC=.", max_size=6).map(str.encode),
    st.sampled_from([BEGIN, END, BEGIN + b"\nABC\n" + END, BEGIN[:-3], END[:-3], b"\n", b'"', b"ghp_" + b"a1B2" * 9]),
)
TEXTS = st.lists(PARTS, max_size=8).map(b"".join)
CUTS = st.lists(st.integers(0, 300), max_size=10)


def run(shapes: ShapeSet, text: bytes, cuts: list[int], pauses: bool = False) -> bytes:
    one = ShapeRedactor(shapes)
    out = b""
    for start, stop in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]):
        out += one.feed(text[start:stop])
        assert len(one._tail) <= max(shapes.longest, 80)
        if pauses:
            out += one.flush()
    return out + one.finish()


@given(shapes=st.sampled_from([DENSE, REAL, GUESS]), text=TEXTS, cuts=CUTS)
def test_any_split_gives_the_same_output(shapes: ShapeSet, text: bytes, cuts: list[int]) -> None:
    """Whole = pieces = byte by byte."""
    whole = run(shapes, text, [])
    assert run(shapes, text, cuts) == whole
    assert run(shapes, text, list(range(len(text)))) == whole


@given(text=TEXTS, cuts=CUTS)
def test_pauses_only_add_a_few_first_characters(text: bytes, cuts: list[int]) -> None:
    """What a pause let go stands before the replacement; nothing is lost and nothing comes twice."""
    whole, paused = run(DENSE, text, []), run(DENSE, text, cuts, pauses=True)
    assert len(whole) <= len(paused) <= len(whole) + 3 * whole.count(b"[redacted:")


@given(text=st.binary(max_size=200), cuts=CUTS)
def test_what_has_no_shape_is_passed_on_unchanged(text: bytes, cuts: list[int]) -> None:
    """Byte for byte, with and without pauses: redaction corrupts nothing."""
    if not REAL.hit(text):
        assert run(REAL, text, cuts) == text
        assert run(REAL, text, cuts, pauses=True) == text
