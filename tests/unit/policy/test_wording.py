"""What `policy check -v` says of a pattern is what the pattern does."""

from __future__ import annotations

import pytest

from seamgate.policy.patterns import parse_host, parse_path
from seamgate.policy.wording import host_words, path_words


@pytest.mark.parametrize(
    ("pattern", "words", "covered", "not_covered"),
    [
        ("api.example.com", "this name, and none below it", "api.example.com", "www.api.example.com"),
        ("*.example.com", "names with one label before example.com", "www.example.com", "a.www.example.com"),
        ("*.*.example.com", "names with exactly 2 labels before example.com", "a.www.example.com", "www.example.com"),
        ("**.example.com", "every name below example.com, not example.com itself", "a.b.c.example.com", "example.com"),
        ("**.*.example.com", "every name below example.com with at least 2 more", "a.b.example.com", "b.example.com"),
        (
            "bucket.*.example.com",
            "names of 4 labels that end in .example.com",
            "bucket.eu.example.com",
            "bucket.example.com",
        ),
        ("**", "every name", "a.b", ""),
        ("*", "every name of one label", "printer", "a.b"),
        ("10.0.0.1", "this address", "10.0.0.1", ""),
    ],
)
def test_hosts(pattern: str, words: str, covered: str, not_covered: str) -> None:
    """The words, and one name on either side of the line that they draw."""
    host = parse_host(pattern)
    assert host_words(host).startswith(words)
    assert host.matches(covered, covered[0].isdigit())
    assert not not_covered or not host.matches(not_covered, False)


@pytest.mark.parametrize(
    ("pattern", "words", "covered", "not_covered"),
    [
        ("/v1/messages", "this path alone", "/v1/messages", "/v1/messages/x"),
        ("/**", "every path", "/", ""),
        ("/repos/**", "every path below /repos/, not /repos itself", "/repos/a/b", "/repos"),
        (
            "/repos/*/pulls",
            "paths of exactly 3 segments, each * being one segment",
            "/repos/a/pulls",
            "/repos/a/b/pulls",
        ),
        ("/v*/models", "paths of exactly 2 segments, * being any part of its segment", "/v1/models", "/v1/x/models"),
        ("/a/**/b", "paths of this form, each ** being one segment or more", "/a/x/y/b", "/a/b"),
        ("/*/x/**", "paths of this form, each ** being one segment or more", "/a/x/y", "/a/x"),
    ],
)
def test_paths(pattern: str, words: str, covered: str, not_covered: str) -> None:
    """The words, and one path on either side of the line that they draw."""
    path = parse_path(pattern)
    assert path_words(path) == words
    assert path.matches(covered)
    assert not not_covered or not path.matches(not_covered)
