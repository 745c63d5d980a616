"""Looks through a request for placeholders and for real values, in every spelling, on every surface.

The credentials plugin asks `suspicious` for each request: one pass over the head (and over the body if it is here),
about a microsecond whatever the number of credentials. Only a suspicious request is looked through
in full by `findings`. Pure; nothing found here ever carries a value, only the credential's name and the surface.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from seamgate.credentials.config import DEFAULT_PLACEHOLDER_PREFIX
from seamgate.credentials.encodings import all_forms, base64_forms
from seamgate.credentials.escapes import ALL_LETTERS, plain_text
from seamgate.credentials.finding import Finding, Surface
from seamgate.credentials.needles import Needles
from seamgate.credentials.placeholders import UNKNOWN, PlaceholderIndex, decode_basic
from seamgate.flow import Request
from seamgate.unquoting import unquote, unquote_json

_REMEMBERED, _REMEMBERED_SIZE_BYTES = 1024, 1024
"""How many texts of each surface, up to which size, the findings are remembered for: some megabytes at most."""

_COMMON_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""Nothing stands in these; all others are looked into."""

_REFERENCE: Final = b"&#"
"""How a character begins that is written as HTML writes it: a `&` alone stands in most queries."""


class RequestScanner:
    """Searches for the placeholders of an index and for a set of real values."""

    __slots__ = ("_body", "_encoded", "_head", "_in_headers", "_in_paths", "_index", "_lower", "_values")

    def __init__(self, index: PlaceholderIndex, values: Iterable[tuple[str, bytes]]) -> None:
        """Prepare.

        Args:
            index: all placeholders.
            values: (credential's name, real value).
        """
        self._index = index
        self._values = tuple({form: name for name, value in values for form in all_forms(value)}.items())
        # Names come in lower case, so that is how a value stands in one.
        lower = {form.lower(): name for form, name in self._values}
        self._lower = tuple(lower.items())
        self._encoded = tuple((form, index.owner(text)) for text in index.texts for form in base64_forms(text))
        needles = [*index.texts, *(form for form, _ in self._values), *(form for form, _ in self._encoded)]
        prefix = DEFAULT_PLACEHOLDER_PREFIX.encode("ascii")
        # What was found in a header value or path: clients send the same ones again and again.
        # A dictionary for headers and one for paths, because hashing an enumeration's member is slow.
        self._in_headers: dict[tuple[bytes, bytes], tuple[Finding, ...]] = {}
        self._in_paths: dict[bytes, tuple[Finding, ...]] = {}
        # Basic and what may be escaped (URL, JSON, HTML) is always looked into; there are few such requests.
        # So does a placeholder; the prefix has no other case.
        in_names = {form for form in (*lower, *map(bytes.lower, index.texts)) if form not in needles}
        self._head = Needles((prefix, _REFERENCE, *needles, *in_names), (b"basic ",), b"%\\")
        self._body = Needles(needles or (prefix,))

    def __repr__(self) -> str:
        return f"<RequestScanner of {len(self._index.texts)} placeholders>"

    def suspicious(self, request: Request) -> bool:
        """Return whether `findings` is worth its time. Never False for a request that has findings."""
        if self._head.found_in(request.headers, True, (request.path, request.query)):
            return True
        if request.method not in _COMMON_METHODS and self._look_in_method(request.method):
            return True
        body = request.body
        return body is not None and self._body_suspicious(body)

    def _body_suspicious(self, body: bytes) -> bool:
        return any(map(self._body.found, _body_spellings(body)))

    def findings(self, request: Request) -> Iterator[Finding]:
        """Yield what stands in the request, real values before placeholders on each surface."""
        if request.method not in _COMMON_METHODS:
            yield from self._look_in_method(request.method)
        for field in request.headers:
            found = self._in_headers.get(field)
            yield from self._look_in_header(field) if found is None else found
        path = request.path.encode("ascii", "replace")
        found = self._in_paths.get(path)
        yield from self._look_in_path(path) if found is None else found
        if request.query:
            # Queries are rarely the same twice: not remembered.
            yield from self._in_text(Surface.QUERY, _spellings(request.query.encode("ascii", "replace")))
        if request.body is not None:
            yield from self._in_body(request.body)

    def body_findings(self, body: bytes) -> list[Finding]:
        """Return what stands in a body, or a message: real values and placeholders, in every spelling."""
        return list(self._in_body(body)) if self._body_suspicious(body) else []

    def _look_in_method(self, method: str) -> list[Finding]:
        """One in capitals is as good as the value: methods have no other letters."""
        return self._in_name(Surface.METHOD, method.lower().encode("ascii", "replace"))

    def _in_name(self, surface: Surface, name: bytes) -> list[Finding]:
        found = [Finding(surface, owner, leaking=True) for form, owner in self._lower if form in name]
        # Never swapped there.
        return found + [Finding(surface, owner, encoded=True) for owner in self._index.names_in_name(name)]

    def _look_in_header(self, field: tuple[bytes, bytes]) -> tuple[Finding, ...]:
        name, value = field
        each_found = (*self._in_name(Surface.HEADERS, name), *self._in_header(value))
        found = tuple([msgspec.structs.replace(each, header=name) for each in each_found])
        if len(self._in_headers) >= _REMEMBERED:
            self._in_headers.clear()
        if len(name) + len(value) <= _REMEMBERED_SIZE_BYTES:
            self._in_headers[field] = found
        return found

    def _look_in_path(self, path: bytes) -> tuple[Finding, ...]:
        found = tuple(self._in_text(Surface.PATH, _spellings(path)))
        if len(self._in_paths) >= _REMEMBERED:
            self._in_paths.clear()
        if len(path) <= _REMEMBERED_SIZE_BYTES:
            self._in_paths[path] = found
        return found

    def _in_header(self, value: bytes) -> Iterator[Finding]:
        inside = decode_basic(value)
        if inside is None:
            yield from self._in_text(Surface.HEADERS, _spellings(value))
        else:
            # What base64 hides was decoded: an encoded placeholder is one that can be swapped.
            yield from self._leaks(Surface.HEADERS, [value, *_spellings(inside)])
            yield from (Finding(Surface.HEADERS, name) for name in self._index.names_in(inside))

    def _in_body(self, body: bytes) -> Iterator[Finding]:
        # Where no needle stands in a spelling, there is nothing to be found: one pass, however many needles there are.
        texts = [body, *[text for text in _body_spellings(body) if text is not body and self._body.found(text)]]
        for finding in self._in_text(Surface.BODY, texts):
            # Text about placeholders in general is no placeholder.
            if finding.name != UNKNOWN:
                yield finding

    def _in_text(self, surface: Surface, texts: list[bytes]) -> Iterator[Finding]:
        yield from self._leaks(surface, texts)
        plain = Counter(self._index.names_in(texts[0]))
        yield from (Finding(surface, name) for name in plain)
        for text in texts[1:]:
            names = Counter(self._index.names_in(text)) - plain
            yield from (Finding(surface, name, encoded=True) for name in names)
        for text in texts:
            yield from (Finding(surface, name, encoded=True) for form, name in self._encoded if form in text)

    def _leaks(self, surface: Surface, texts: list[bytes]) -> Iterator[Finding]:
        for text in texts:
            yield from (Finding(surface, name, leaking=True) for form, name in self._values if form in text)


def _spellings(text: bytes) -> list[bytes]:
    """Return a text of the head, without its percent-encoding, and each of these without the escapes of JSON and HTML.

    One after another, since JSON in a query stands percent-encoded.
    """
    texts = [text, unquote(text)] if b"%" in text else [text]
    if b"\\" in texts[-1] or _REFERENCE in texts[-1]:
        return [spelling for each in texts for spelling in _body_spellings(each)]
    return texts


def _body_spellings(body: bytes) -> Iterator[bytes]:
    """Yield a body, then without its escapes, of each kind and of all: one after another."""
    yield body
    if b"\\u00" in body:
        yield unquote_json(body)
    if b"%" in body:
        yield unquote(body)
    text = plain_text(body, ALL_LETTERS, False)
    if text is not None:
        yield text
