"""What a request asks an origin to take instead of its method and path: other readings of it.

Rails, Spring, Express, Django, Laravel and others take a method from a header, or from the parameter `_method`; IIS
with its rewriting, Zend, Symfony before 4.2 (CVE-2018-14773) and servers behind proxies take a path from a header.
Called by `evaluation` for each request, so that most of them cost one look at all names of their headers. No I/O.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Final, TypeAlias

from seamgate.errors import Reason, TargetError
from seamgate.flow import Headers, Request
from seamgate.headers import any_named
from seamgate.paths import MOST_CHARACTERS, canonical_path
from seamgate.policy.folding import fold_text, parameter_readings
from seamgate.unquoting import unquote_text

Overrides: TypeAlias = "tuple[tuple[str, ...], ...]"
"""(methods, upper-case, and canonical paths); () for none."""

METHOD_HEADERS: Final = frozenset({b"x-http-method-override", b"x-method-override", b"x-http-method"})
PATH_HEADERS: Final = frozenset(
    {
        b"x-original-url", b"x-rewrite-url", b"x-original-uri", b"x-forwarded-uri", b"x-http-path-override",
        b"x-override-url", b"x-original-path", b"x-forwarded-path", b"x-envoy-original-path", b"x-rewrite-uri",
    }
)  # fmt: skip
_METHOD_SIZE = 32


def _spelled(letter: str) -> str:
    """Return a pattern of a letter of ASCII, escaped or not, in either case (which the pattern ignores)."""
    return f"(?:{letter}|%{ord(letter):02x}|%{ord(letter.upper()):02x})"


_MOST_PATHS = 4
_MOST_METHODS = 16
_MOST_NAMES = 500
"""Parameters of a query that are looked at one by one: some 3 ms."""
_EITHER: Final = METHOD_HEADERS | PATH_HEADERS
# What a CGI-like server can't tell from "-" in a header's name (see `folding.fold_header`).
_MARKS: Final = bytes.maketrans(b"!#$%&'*+.^_`|~", b"-" * 14)
_EACH_MARK: Final = tuple(bytes((code,)) for code in b"-!#$%&'*+.^_`|~")
# Each in every spelling with such marks, some 12,000: one look-up of each name is enough for a request without any.
_SPELLED: Final = frozenset(
    b"x" + b"".join(joined)
    for name in _EITHER
    for joined in product(*[[mark + part for mark in _EACH_MARK] for part in name.split(b"-")[1:]])
)
# Parameters whose name may be a spelling of `_method`: it holds the word, each letter escaped or not, or something
# beyond ASCII, which may fold into any. One pass over a query, whatever it holds.
_MAYBE: Final = re.compile(
    r"(?:\A|[&;])([^=&;]*(?:"
    + "".join([_spelled(letter) for letter in "method"])
    + r"|%[89a-f]|[^\x00-\x7f])[^=&;]*)(?:=([^&;]*))?",
    re.IGNORECASE,
)


def find_overrides(request: Request) -> Overrides:
    """Return the methods and paths that an origin may take instead of the request's own.

    Raises:
        TargetError: with reason BAD_PATH; a header names a path that is not canonical, or a query with it, or there are
            too many.
    """
    query = request.query
    asked = _asked_in(query) if query else []
    headers = request.headers
    if not any_named(headers, _SPELLED):
        return _read((), asked) if asked else ()
    found = tuple([field for field in headers if field[0] in _SPELLED])
    return _read(found, asked)


def name_overrides(overrides: Overrides) -> Headers:
    """Return headers that ask for the same: for messages on a request of which no more is known."""
    methods, paths = overrides or ((), ())
    asked = [(b"x-http-method", each.encode("latin-1", "replace")) for each in methods]
    return tuple(asked + [(b"x-original-url", each.encode("ascii")) for each in paths])


def _read(found: Headers, asked: list[str]) -> Overrides:
    paths: dict[str, None] = {}
    size = 0
    for name, value in found:
        if name.translate(_MARKS) in METHOD_HEADERS:
            asked += value.decode("latin-1").split(",", _MOST_METHODS)
        else:
            path = _path(name, value)
            size += len(path) if path not in paths else 0
            paths[path] = None
            if len(paths) > _MOST_PATHS or size > MOST_CHARACTERS:
                message = f"headers name more than {_MOST_PATHS} other paths, or more than {MOST_CHARACTERS} characters"
                raise TargetError(message, reason=Reason.BAD_PATH)
    if len(asked) > _MOST_METHODS:
        message = f"headers or _method name more than {_MOST_METHODS} other methods"
        raise TargetError(message, reason=Reason.BAD_PATH)
    methods = {each.strip().upper() for each in asked}
    # What is longer than any method stays something that no exception covers, but is no key of a cache.
    return tuple(sorted({each if len(each) <= _METHOD_SIZE else "?" for each in methods})), tuple(paths)


def _path(name: bytes, value: bytes) -> str:
    text = value.strip().decode("latin-1")
    try:
        return canonical_path(text)
    except TargetError:
        header = name.decode("latin-1")
        message = f"the header {header} would have some origins serve another path, and can't be judged: leave it out"
        raise TargetError(message, reason=Reason.BAD_PATH) from None


def _asked_in(query: str) -> list[str]:
    """Return what a query gives `_method`, under each name that an origin may know it by (`parameter_readings`)."""
    if "%" not in query and query.isascii() and "method" not in query.lower():
        return []  # most: 0.2 us
    found = set(_MAYBE.findall(query))
    if not found:
        return []
    if len(found) > _MOST_NAMES:
        message = f"the query has more than {_MOST_NAMES} parameters that some origins may take for _method"
        raise TargetError(message, reason=Reason.BAD_PATH)
    values: dict[str, None] = {}
    for name, value in found:
        if value not in values and "_method" in parameter_readings(fold_text(_unquote(name))):
            values[value] = None
    return [_unquote(value) for value in values]


def _unquote(text: str) -> str:
    return unquote_text(text.replace("+", " "))
