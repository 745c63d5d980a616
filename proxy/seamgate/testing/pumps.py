"""Texts that make a careless regular expression backtrack: something that repeats, then what fits nothing.

Used by `checks_patterns`. For a pattern with a repetition in a repetition, or two that overlap, the time grows with a
power of the length, or doubles with each character; for a sound one it grows with the length. So the lengths go up step
by step, and whoever measures stops at the first that takes too long: nothing hangs. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

import msgspec

from seamgate.flow import Request
from seamgate.testing.building import make_request
from seamgate.testing.corpus import HOST

SHORTEST: Final = 4
LONGEST: Final = 8192
"""Characters: as long as the longest texts that guests send in one field."""


def next_length(times: int, *, grows: bool) -> int:
    """Return how often to repeat after so often.

    Half as many more while that costs less than 2 ms, some 40,000 steps of a pattern: where each character doubles
    them, or whatever it does, the next text costs less than half a second. Then a sixteenth.
    """
    return times + max(1, times // 16 if grows else times // 2)


REPEATED: Final = ("a", "0", " ", "-", ".", ",", ";", "=", "a ", "a.", "a,", "a=", "0-", '"', "\\", "<", "(", "%41")
"""What is repeated: the letters of the classes that patterns repeat, and separators with and without a word."""
LAST: Final = "!"
"""What fits no word, number or list, so that a pattern which has to reach the end tries everything else first."""


class Place(msgspec.Struct, frozen=True):
    """Where a guest puts a text of its own.

    Attributes:
        name: for a message: "the header user-agent".
        repeated: what to repeat there.
        build: makes the request with a text in this place.
    """

    name: str
    repeated: tuple[str, ...]
    build: Callable[[str], Request]


_HEADERS: Final = {
    "user-agent": "", "cookie": "a=", "authorization": "Bearer ", "content-type": "text/", "accept": "",
    "referer": "https://", "x-forwarded-for": "", "x-request-id": "",
}  # fmt: skip


def places() -> Iterator[Place]:
    """Yield the places of any request that plugins like to match."""
    at = f"https://{HOST}/v1"
    yield Place("the path", REPEATED, lambda text: make_request(f"GET {at}/{quote(text, safe='')}"))
    yield Place("the query", REPEATED, lambda text: make_request(f"GET {at}?q={quote(text, safe='')}"))
    yield Place("the JSON body", REPEATED, lambda text: make_request(f"POST {at}", json={"text": text}))
    hosts = ("a", "0", "a-", "a.", "0.")
    yield Place("the host", hosts, lambda text: make_request(f"GET https://{text.removesuffix(LAST)}x.{HOST}/"))
    plain = {"content-type": "text/plain"}
    yield Place("the text body", REPEATED, lambda text: make_request(f"POST {at}", body=text, headers=plain))
    empty = make_request(f"GET {at}")
    for name, before in _HEADERS.items():
        request = msgspec.structs.replace(empty, headers=((name.encode(), before.encode()),))
        yield Place(f"the header {name}", REPEATED, lambda text, request=request: _with_header(request, 0, text))  # type: ignore[misc]


def places_of(request: Request) -> Iterator[Place]:
    """Yield the places of an author's own request.

    A pattern that wants something before it comes to what it repeats is reached by going on from a value that fits.
    """
    for index, (name, value) in enumerate(request.headers):
        where = f"the header {name.decode('latin-1')} of your request"
        yield Place(where, _ends(value.decode("latin-1")), lambda text, index=index: _with_header(request, index, text))  # type: ignore[misc]
    yield Place("the path of your request", _ends(request.path), lambda text: _replaced(request, path=text))
    if request.query:
        yield Place("the query of your request", _ends(request.query), lambda text: _replaced(request, query=text))
    if request.body:
        body = request.body
        more = _ends(body.decode("latin-1"))
        yield Place(
            "the body of your request",
            more,
            lambda text: msgspec.structs.replace(request, body=body + text.encode("latin-1")),
        )


def _ends(text: str) -> tuple[str, ...]:
    """Return what to repeat after a text: its last character, its last two, a letter, a digit."""
    return tuple(dict.fromkeys(each for each in (text[-1:], text[-2:], "a", "0") if each.strip()))


def _replaced(request: Request, *, path: str = "", query: str = "") -> Request:
    """Return the request with a text at the end of its path or query."""
    if path:
        return msgspec.structs.replace(request, path=request.path + quote(path, safe="/%"))
    return msgspec.structs.replace(request, query=(request.query or "") + quote(query, safe="=&%"))


def _with_header(request: Request, index: int, text: str) -> Request:
    """Return the request with a text at the end of this header's value; spaces before a value are no part of it."""
    headers = list(request.headers)
    name, value = headers[index]
    if not value.strip():
        value = b"a" if text.startswith(" ") else b""
    headers[index] = (name, value + text.encode("latin-1"))
    return msgspec.structs.replace(request, headers=tuple(headers))
