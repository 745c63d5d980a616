"""Folding: what compares alike, and that no text takes longer than its length."""

from __future__ import annotations

from unicodedata import normalize

import pytest

from seamgate.policy.folding import TextTooLong, fold_header, fold_text

IGNORABLE_SAMPLES = (
    0xAD, 0x34F, 0x61C, 0x115F, 0x17B4, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x202E, 0x2060, 0x2064, 0x3164, 0xFE0F,
    0xFEFF, 0xFFA0, 0xFFF8, 0x1BCA0, 0x1D17A, 0xE0001, 0xE0041, 0xE0100, 0xE0FFF,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "folded"),
    [("Abc", "abc"), ("\uff21dmin", "admin"), ("E\u0301", "\xe9"), ("\ufb01x", "fix"), ("stra\xdfe", "strasse")],
)
def test_compatible_characters_and_case_are_alike(text: str, folded: str) -> None:
    """Full-width letters, decomposed accents and ligatures are the plain ones, alone and in a long text."""
    assert fold_text(text) == folded
    assert fold_text(f"{text} " * 100) == f"{folded} " * 100


@pytest.mark.parametrize("char", [chr(code) for code in IGNORABLE_SAMPLES])
def test_what_cannot_be_seen_is_nothing(char: str) -> None:
    """Default-ignorable code points (UAX #44, NFKC_Casefold) are left out, alone, in runs and in long texts."""
    assert fold_text(f"{char}Ad{char}{char}min{char}") == "admin"
    assert fold_text(f"a{char}" * 100) == "a" * 100


def test_nothing_that_is_left_out_comes_back() -> None:
    """No character folds to a text that would be shorter if it were folded again."""
    letters = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]
    left_out = {char for char in letters if not fold_text(char)}
    assert not left_out.intersection("".join(map(fold_text, letters)))
    assert "".join(sorted(left_out))[:4] == "\xad\u034f\u061c\u115f"


def test_a_long_run_of_marks_is_cut_rather_than_sorted() -> None:
    """A run of combining marks takes time in proportion to its length: in its square the suite's limit would end it."""
    marks = "\u0315\u0300\u0327\u0321" * 100_000
    folded = fold_text(f"\uff21e{marks}e\u0301\uff22")
    assert folded.startswith("a")
    assert folded.endswith("\xe9b")


def test_marks_that_only_decompose_to_marks_are_counted() -> None:
    """Half-width voiced sound marks and Tibetan vowels become marks when folded, and are cut as such."""
    for char in "\uff9e\u0f73":
        assert "\u034f" in fold_text(char * 400)


def test_growth_is_refused_before_it_is_done() -> None:
    """A text that would grow by more than is allowed is refused; without a limit it is folded."""
    text = "\ufdfa" * 1000
    with pytest.raises(TextTooLong):
        fold_text(text, 16_999)
    assert fold_text(text, 17_000) == fold_text(text) == normalize("NFKC", text)


@pytest.mark.parametrize("name", ["x-debug", "X-Debug", "x_debug", "x.debug", "X_DEBUG"])
def test_headers_that_are_one_variable_are_one_name(name: str) -> None:
    """A server that hands headers on as variables (CGI, WSGI, Rack, PHP) can't tell - from _."""
    assert fold_header(name) == "x-debug"
