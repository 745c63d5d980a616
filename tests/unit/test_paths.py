"""Paths: the one that policy matches is the one that goes upstream, and whatever could be read twice is refused."""

# ruff: noqa: RUF001 - look-alike characters are the point here

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seamgate.errors import Reason, TargetError
from seamgate.paths import canonical_path, check_query

REFUSED = [
    "", "a", "a/b", "*", "http://a/b", "//", "//a", "/a//b", "/a//", "/.", "/..", "/a/.", "/a/..", "/a/./b", "/a/../b",
    "/%2e", "/%2E%2e/a", "/a/%2e%2e/b", "/a/.%2e", "/a/%2e./b", "/..%2fa", "/a%2f..%2fb", "/a%2f..", "/a%2f.", "/%2f",
    "/a%2f%2fb", "/a/%2fb", "/a%2f/b", "/a\\b", "/a%5cb", "/a%5C..%5Cb", "/..\\a", "/a;b", "/a;b=c/d", "/..;/a",
    "/a%3bb", "/a%3B", "/a%00", "/a%00.json", "/a%0a", "/a%0d%0ab", "/a%09", "/a%7f", "/a%1f", "/a\x00", "/a\nb",
    "/a b", "/a\tb",
    "/a\x7f", "/%", "/a%", "/a%2", "/a%zz", "/a%u002e", "/a%2x", "/a%%32e", "/%252e", "/%252e%252e/a", "/a%252fb",
    "/%25%32e", "/%25%32%65", "/%2%35%32e", "/a%255c", "/%25%35%63", "/%25252e", "/%c0%ae", "/%c0%af", "/%e0%80%af",
    "/%ff", "/%c3", "/%ed%a0%80", "/%f8%80%80%80%80", "/é", "/．", "/a／b", "/a#b", "/a?b", "/a|b", "/a^b", "/a`b",
    "/a{b}", "/a<b>", '/a"b', "/[a]", "/a%2f..%2f..%2fb", "/a%2F%2e%2E%2Fb", "/%2e/", "/a/%2e",
]  # fmt: skip

ACCEPTED = [
    ("/", "/"),
    ("/a", "/a"),
    ("/a/", "/a/"),
    ("/v1/messages", "/v1/messages"),
    ("/.well-known/x", "/.well-known/x"),
    ("/...", "/..."),
    ("/a..b/c.", "/a..b/c."),
    ("/.a/..b", "/.a/..b"),
    ("/%41%2d%7E", "/A-~"),
    ("/a%20b", "/a%20b"),
    ("/%c3%a9", "/%C3%A9"),
    ("/@scope%2fpackage", "/@scope%2Fpackage"),
    ("/a%2f", "/a%2F"),
    ("/projects/group%2Fsub%2Fname", "/projects/group%2Fsub%2Fname"),
    ("/a:b@c!$&'()*+,=", "/a:b@c!$&'()*+,="),
    ("/100%25", "/100%25"),
    ("/100%25/x", "/100%25/x"),
    ("/100%25%C3%A9", "/100%25%C3%A9"),
    ("/%3f%23%5b%5d", "/%3F%23%5B%5D"),
    ("/a%3Ab", "/a%3Ab"),
]


@pytest.mark.parametrize("text", REFUSED)
def test_ambiguous_paths_are_refused(text: str) -> None:
    """Dot segments in any spelling, empty segments, double escapes, parameters, controls and non-UTF-8 are errors."""
    with pytest.raises(TargetError) as caught:
        canonical_path(text)
    assert caught.value.reason is Reason.BAD_PATH


@pytest.mark.parametrize(("text", "path"), ACCEPTED)
def test_plain_paths_become_canonical(text: str, path: str) -> None:
    """Escapes are written in upper case, and only where they are needed; %2F stays what it is."""
    assert canonical_path(text) == path


def test_paths_end_somewhere() -> None:
    """8 KiB and 256 segments, an encoded slash for another: what is longer is refused, and not repeated."""
    for path in ("/" + "a" * 8191, "/" + "%C3%A9" * 1365, "/a" * 256, "/a" * 128 + "%2fa" * 128):
        assert canonical_path(path) == path.replace("%2f", "%2F")
    for path in ("/" + "a" * 8192, "/" + "%25" * 2731, "/a" * 257, "/a" * 129 + "%2Fa" * 128, "/a" * 256 + "/"):
        with pytest.raises(TargetError, match="has more than") as caught:
            canonical_path(path)
        assert caught.value.reason is Reason.BAD_PATH
        assert len(caught.value.message) < 60


_PIECES = st.sampled_from(
    [
        "/",
        "a",
        ".",
        "..",
        "%2e",
        "%2E",
        "%2f",
        "%25",
        "%32",
        "%65",
        "%5c",
        "%3b",
        "%c3%a9",
        "%c0%ae",
        "%",
        "2e",
        "é",
        ";",
    ]
)


@given(st.lists(_PIECES, max_size=8).map(lambda pieces: "/" + "".join(pieces)))
@example("/%25%32%65")
@example("/%25%32e%25%32e/a")
def test_canonical_path_is_idempotent_and_safe(text: str) -> None:
    """What comes out comes out the same again, and has no dot or empty segment, decoded once or twice."""
    try:
        path = canonical_path(text)
    except TargetError:
        return
    assert canonical_path(path) == path
    assert unquote_to_bytes(path) == unquote_to_bytes(text)
    once = unquote_to_bytes(path)
    for decoded in (path.encode(), once, unquote_to_bytes(once)):
        segments = decoded.split(b"/")[1:]
        assert b"." not in segments
        assert b".." not in segments
        assert b"" not in segments[:-1]
        assert b"\\" not in decoded
        assert b"\x00" not in decoded


@given(st.text(max_size=30))
def test_only_target_errors_come_out(text: str) -> None:
    """Whatever the text, a path is read or refused with our own error."""
    try:
        assert canonical_path(text).isascii()
    except TargetError as error:
        assert error.reason is Reason.BAD_PATH


@given(st.text(max_size=30))
def test_queries_pass_as_they_are(text: str) -> None:
    """A query is never changed: it passes, or is refused for a character that may not stand there."""
    bad = any(not 0x21 <= ord(char) <= 0x7E or char == "#" for char in text)
    if bad:
        with pytest.raises(TargetError):
            check_query(text)
    else:
        assert check_query(text) == text


def test_long_paths_take_linear_time() -> None:
    """A path of a megabyte that fails at its end is refused without backtracking (the time limit of tests watches)."""
    with pytest.raises(TargetError):
        canonical_path("/a" * 500_000 + "\x00")
    with pytest.raises(TargetError):
        canonical_path("/" + "a" * 1_000_000 + ";")
