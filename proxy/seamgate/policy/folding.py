"""Text as the most lenient origin compares it: without case, compatible characters alike, what can't be seen left out.

Called by `patterns` (paths), `conditions` (names and values of a request) and the index through them. What is folded
was chosen by a guest, so that folding takes time in proportion to its length, whatever it holds. No I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from unicodedata import combining, normalize

MAX_MARKS = 30
"""Combining marks in a row that are put in order; sorting a run costs its square. Source: Unicode UAX #15, section 13,
"Stream-Safe Text Format", which cuts longer runs with U+034F."""
_SHORT = 64
"""Characters up to which a text is folded without a look at what it holds."""
# Default_Ignorable_Code_Point (Unicode 16, DerivedCoreProperties.txt): soft hyphens, zero-width characters, marks of
# direction, byte order marks, variation selectors, tags. NFKC_Casefold leaves them out (UAX #44), and so does what
# compares by it: file systems, databases, directories.
_IGNORABLE = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_PLAIN_NAME = re.compile(r"[\w-]*")
_MEMBER = re.compile(r"[\[\].]")
_PHP_MARKS = re.compile(r"[ .\[]")
# What a CGI-like server can't tell from "-" in a header's name: HTTP_X_DEBUG is X-Debug and X_Debug. RFC 3875 4.1.18
_HEADER_MARKS = str.maketrans(dict.fromkeys("!#$%&'*+.^_`|~", "-"))


class TextTooLong(ValueError):
    """The text would grow by more than its reader allows."""


def fold_text(text: str, max_growth: int | None = None) -> str:
    """Return text without case, without ignorable characters, compatible ones alike (NFKC_Casefold, and Turkish i).

    Some origins take a full-width letter, a ligature or a decomposed accent for the plain one, and a zero-width space
    or a soft hyphen for nothing.

    Args:
        text: any.
        max_growth: characters by which it may become longer. One character may become eighteen.

    Raises:
        TextTooLong: it would become longer than that. Never without `max_growth`.
    """
    if text.isascii():
        return text.lower()
    text = _IGNORABLE.sub("", text)
    if len(text) > _SHORT:
        growth, marks = _survey(text)
        if max_growth is not None and growth > max_growth:
            raise TextTooLong("the text is too long once it is normalized")
        if marks:
            text = re.sub(f"[{re.escape(marks)}]{{{MAX_MARKS}}}", lambda run: run.group() + "\u034f", text)
    return _without_case(normalize("NFKC", text))


def _without_case(text: str) -> str:
    # By way of capitals, as some origins compare: only there is the dotless i an i. The dotted capital one is one, too.
    return text.upper().casefold().replace("i\u0307", "i")


def _survey(text: str) -> tuple[int, str]:
    """Return by how much a text grows in NFKC, at most, and the characters in it that are or begin with a mark."""
    growth, marks = 0, []
    for char, count in Counter(text).items():
        if char > "\x7f":
            growth += count * (len(normalize("NFKC", char)) - 1)
            if combining(normalize("NFKD", char)[0]):
                marks.append(char)
    return growth, "".join(marks)


def fold_header(name: str) -> str:
    """Return a header's name as a server sees it that hands headers on as variables: `x_debug` is `x-debug`.

    Args:
        name: any case.
    """
    return name.lower().translate(_HEADER_MARKS)


def parameter_readings(folded: str) -> tuple[str, ...]:
    """Return the names that an origin may know a query parameter by, its own first.

    `a[]`, `a[x]` and `a.x` are members of `a` (PHP, Rack, qs, ASP.NET), NUL ends a name, spaces around it are nothing,
    and PHP has "_" for a space, a dot, and a bracket that nothing closes.

    Args:
        folded: the decoded name, folded.
    """
    if _PLAIN_NAME.fullmatch(folded):
        return (folded,)
    cut = folded.partition("\0")[0].strip()
    base = _MEMBER.split(cut.lstrip("[]"), maxsplit=1)[0].strip()
    php = _PHP_MARKS.sub("_", cut.partition("[")[0]), _PHP_MARKS.sub("_", cut)
    return tuple(dict.fromkeys((folded, cut, base, *php)))
