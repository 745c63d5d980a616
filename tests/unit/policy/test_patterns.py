"""Patterns: tables of what each covers and what is refused. The general law is tests/property/test_policy_index.py."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.errors import TargetError
from seamgate.paths import canonical_path
from seamgate.policy.patterns import (
    _folded_segments,
    denies_path,
    fold_segment,
    folded_views,
    parse_glob,
    parse_host,
    parse_path,
)


@pytest.mark.parametrize(
    ("pattern", "covers", "not_covers"),
    [
        ("a.test", ["a.test"], ["x.a.test", "ba.test", "a.test.b", "test"]),
        ("*.a.test", ["x.a.test"], ["a.test", "y.x.a.test", "xa.test"]),
        ("**.a.test", ["x.a.test", "y.x.a.test"], ["a.test", "xa.test"]),
        ("x.*.test", ["x.a.test"], ["x.test", "x.a.b.test", "y.a.test"]),
        ("**.*.test", ["x.a.test", "z.x.a.test"], ["a.test"]),
        ("*", ["localhost"], ["a.test"]),
        ("**", ["localhost", "a.b.c.test"], []),
    ],
)
def test_host_patterns_match_by_labels(pattern: str, covers: list[str], not_covers: list[str]) -> None:
    """`*` is one label, `**` one or more, and the apex is never implied."""
    parsed = parse_host(pattern)
    assert [host for host in covers + not_covers if parsed.matches(host, False)] == covers


def test_no_pattern_of_names_covers_an_address() -> None:
    """An address is covered only where it is named."""
    for text in ("**", "*", "**.0.0.1.test", "*.test"):
        assert not parse_host(text).matches("10.0.0.1", True)
    assert parse_host("10.0.0.1").matches("10.0.0.1", True)
    assert parse_host("[2001:DB8::1]").matches("2001:db8::1", True)


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("API.Example.COM.", "api.example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("*.Ä.test", "*.xn--4ca.test"),
    ],
)
def test_host_patterns_have_one_spelling(spelling: str, canonical: str) -> None:
    """Case, one trailing dot and Unicode are made canonical at load."""
    assert parse_host(spelling).text == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        ".a",
        "a.test..",
        "api*.test",
        "a.**.test",
        "***.test",
        "https://a.test",
        "a.test/x",
        "a.test:443",
        "0x7f.1",
        "127.1",
        "010.0.0.1",
        "2130706433",
        "*.0.0.1",
        "a b",
        "user@a.test",
        "10.0.0.0/8",
        "::1",
        "-a.test",
    ],
)
def test_odd_hosts_are_refused(text: str) -> None:
    """What is no name, no address and no pattern of labels is an error, never repaired."""
    with pytest.raises(TargetError):
        parse_host(text)


@pytest.mark.parametrize(
    ("pattern", "covers", "not_covers"),
    [
        ("/v1/messages", ["/v1/messages"], ["/v1/messages/", "/v1/messages/x", "/v1", "/V1/messages"]),
        ("/a/*", ["/a/b"], ["/a", "/a/", "/a/b/", "/a/b/c"]),
        ("/a/**", ["/a/b", "/a/b/", "/a/b/c", "/a/"], ["/a", "/ab/c"]),
        ("/a/*/c", ["/a/b/c"], ["/a/c", "/a/b/b/c"]),
        ("/a/**/c", ["/a/b/c", "/a/b/b/c"], ["/a/c"]),
        ("/v*/x", ["/v/x", "/v1/x"], ["/v1/y", "/w/x", "/v/1/x"]),
        ("/*.json", ["/a.json", "/.json"], ["/a/b.json", "/a.jsonx"]),
        ("/", ["/"], ["/a"]),
        ("/**", ["/", "/a", "/a/b"], ["*"]),
        ("/p%2Fq", ["/p%2Fq"], ["/p/q"]),
    ],
)
def test_path_patterns_match_by_segments(pattern: str, covers: list[str], not_covers: list[str]) -> None:
    """`*` is one segment, `**` one or more, a star within a segment any run of characters."""
    parsed = parse_path(pattern)
    assert [path for path in covers + not_covers if parsed.matches(path)] == covers


@pytest.mark.parametrize(
    "text", ["v1", "", "/a/../b", "/a//b", "/a/b**", "/***", "/a?x=1", "/a#b", "/ä", "/a b", "/%zz"]
)
def test_odd_paths_are_refused(text: str) -> None:
    """A pattern is canonical like the paths that it meets, or an error."""
    with pytest.raises(TargetError):
        parse_path(text)


@pytest.mark.parametrize(
    "path",
    [
        "/admin",
        "/admin/",
        "/ADMIN",
        "/Admin/",
        "/%61dmin",
        "/x/y",
        "/x/Y/",
        "/x%2Fy",
        "/X%2Fy/",
        "/@s/k",
        "/%40s/k",
        "/%40S%2Fk",
    ],
)
def test_a_deny_covers_every_reading_of_a_path(path: str) -> None:
    """Case, escapes, %2F and a trailing slash are no way around a deny."""
    assert any(denies_path(parse_path(pattern), path) for pattern in ("/admin", "/x/y", "/@s/k"))


def test_a_deny_covers_compatible_characters() -> None:
    """Full-width letters and decomposed accents are no way around a deny."""
    assert denies_path(parse_path("/admin"), "/%EF%BD%81dmin")
    assert denies_path(parse_path("/caf%C3%A9"), "/cafe%CC%81")
    assert not parse_path("/admin").matches("/%EF%BD%81dmin")


@pytest.mark.parametrize(
    "path",
    [
        "/admin%EF%BC%8Fusers",  # full-width slash
        "/admin%EF%BC%BCusers",  # full-width backslash
        "/admin%E2%88%95users",  # division slash
        "/admin%E2%81%84users",  # fraction slash
        "/admin%E2%A7%B8users",  # big solidus
        "/adm%C4%B1n/users",  # dotless i, whose capital is I
        "/ADM%C4%B0N/users",  # dotted capital I
        "/pub/%E2%80%A5/admin/users",  # two dots in one character
        "/pub/%E2%80%A4%E2%80%A4/admin/users",  # one dot in each of two
        "/pub%EF%BC%8F..%EF%BC%8Fadmin/users",
        "/admin%20/users",
        "/%20admin/users",
        "/admin/users%20",
        "/admin%C2%A0/users/",  # no-break space
        "/admin./users",
        "/admin/users.",
        "/admin/users%3F",
        "/admin/users%3Fx/y",
        "/admin/users%23x",
        "/admin/users%EF%BC%9Fx",  # full-width question mark
        "/admin%EF%BC%9Bx/users",  # full-width semicolon
        "/admin%CD%BEx/users",  # the Greek question mark is a semicolon
        "/ADMIN%2Fusers%20",
        "/admin/%E2%80%A4/users",
        "/admin/users%E2%80%8B",  # zero-width space
        "/admin/us%C2%ADers",  # soft hyphen
        "/ad%E2%80%8Dmin/users%EF%BB%BF",  # zero-width joiner, byte order mark
        "/x/.%E2%81%A0./admin/%F3%A0%80%A0/users",  # word joiner, tag: no segment at all
        "/admin/users::$DATA",
        "/admin::$INDEX_ALLOCATION/users",
        "/admin:$i30:$Index_Allocation/users.:%3A%24data.%20",
    ],
)
def test_a_deny_covers_what_decoding_brings_to_light(path: str) -> None:
    """Separators, dot segments, ends and blanks in an escape, or in a character that is normalized to one, count."""
    assert denies_path(parse_path("/admin/users"), canonical_path(path))
    assert denies_path(parse_path("/admin/*"), canonical_path(path))
    assert denies_path(parse_path("/admin/**"), canonical_path(path))


def test_a_deny_covers_a_path_before_its_dots_are_resolved_too() -> None:
    """Which of the readings an origin has is not known: those as sent are covered as ever."""
    assert denies_path(parse_path("/admin/**"), "/admin/%E2%80%A5/pub")
    assert denies_path(parse_path("/pub"), "/admin/%E2%80%A5/pub")
    assert denies_path(parse_path("/a%20"), "/a%20")
    assert denies_path(parse_path("/a."), "/a.")


def test_a_deny_covers_no_more_than_the_readings_of_a_path() -> None:
    """Usual escapes and dots are no other path."""
    assert folded_views("/a%20b/.c/d.e/%C3%A9%40") == [["a b", ".c", "d.e", "\xe9@"]]
    assert not denies_path(parse_path("/admin"), "/admin%20x")
    assert not denies_path(parse_path("/admin"), "/x%3F/admin/y")
    assert not denies_path(parse_path("/admin"), "/admin:other:$DATA")
    assert not denies_path(parse_path("/admin"), "/admin:$x")


def test_an_encoded_slash_in_a_deny_pattern_is_a_slash_too() -> None:
    """A deny of /a%2Fb covers /a/b, and the other way round."""
    assert denies_path(parse_path("/a%2Fb"), "/a/b")
    assert denies_path(parse_path("/a/b"), "/a%2Fb")
    assert denies_path(parse_path("/p/*"), "/p/a%2Fb")


def test_a_literal_star_is_written_encoded() -> None:
    """%2A in a pattern is the character, not the wildcard."""
    assert parse_path("/a%2A").matches("/a%2A")
    assert not parse_path("/a%2A").matches("/ab")
    assert not denies_path(parse_path("/a%2A"), "/ab")


def test_views_of_a_path_are_few() -> None:
    """At most four readings, whatever the path."""
    assert folded_views("/A%2Fb/") == [["a/b", ""], ["a/b"], ["a", "b", ""], ["a", "b"]]
    assert folded_views("/a") == [["a"]]
    assert folded_views("*") == [["*"]]


def test_globs_do_not_backtrack() -> None:
    """A pattern of many stars against a long text takes no time."""
    assert not parse_glob("*a" * 50 + "*b").matches("a" * 100_000)


def test_ranks_order_the_specific_first() -> None:
    """Exact before wild, long before short, `*` before `**`."""
    hosts = ["a.b.test", "*.b.test", "**.b.test", "*.test", "**.test", "**"]
    assert sorted(hosts, key=lambda text: parse_host(text).rank, reverse=True) == hosts
    paths = ["/a/b", "/a/*", "/a/**", "/*/b", "/*", "/**"]
    assert sorted(paths, key=lambda text: parse_path(text).rank, reverse=True) == paths


_SEGMENTS = st.text(st.sampled_from("aÅ\u0301\u0327\uff0f\u2044\ufb01\u0130.%;?\u200b\u1100\u1161/")).map(
    lambda text: quote(text, safe=".")
)


@given(st.lists(_SEGMENTS, min_size=1, max_size=5))
def test_segments_are_folded_together_as_each_alone(segments: list[str]) -> None:
    """What combines, or folds into a slash, stays within its segment, and an encoded slash is a character of it."""
    for path in ("/".join(segments), "%2F".join(segments), "a%2F/".join(segments)):
        assert _folded_segments(path) == [fold_segment(each) for each in path.split("/")]
