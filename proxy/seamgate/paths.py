"""Request paths in their one canonical form.

The path that policy matches is the path that goes upstream, byte for byte. Whatever two parsers might read
differently (dot segments in any spelling, empty segments, backslashes, path parameters, double encoding, control
characters, bytes that are not UTF-8) is refused, never repaired. The one ambiguous escape that real clients need is
%2F (npm's scoped packages, GitLab's project ids): it stays as it is, and policy lets it pass only where a rule says
`encoded_slash: true`. No I/O.

A message says what is wrong and where, and never repeats the path: it goes into the journal, and paths hold tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from seamgate.errors import Reason, TargetError
from seamgate.unquoting import unquote

# Unreserved and sub-delims without ";", with ":" and "@" (RFC 3986 3.3).
_PLAIN = re.compile(r"(?:/[A-Za-z0-9\-._~!$&'()*+,=:@]+)*/?\Z")
_ALLOWED = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,=:@%/]*")
# "\\" would split a segment for some origin, ";" begins parameters.
_WRONG = re.compile(r"%(?:(?![0-9A-Fa-f]{2})|[01][0-9A-Fa-f]|7[Ff]|5[Cc]|3[Bb])")
# Looked for after the escapes of plain characters are gone: "%25%32e" becomes "%252e".
_TWICE = re.compile(r"%25[0-9A-Fa-f]{2}")
_DOTS = re.compile(r"/\.{1,2}(?:/|\Z)")
_QUERY = re.compile(r"[\x21\x22\x24-\x7e]*\Z")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# What each escape becomes, whatever the case of its digits: the character that needs none, or the same in capitals.
_CANONICAL: Final = {
    high + low: chr(code) if chr(code) in _UNRESERVED else f"%{code:02X}"
    for high in "0123456789ABCDEFabcdef"
    for low in "0123456789ABCDEFabcdef"
    for code in (int(high + low, 16),)
}
MOST_CHARACTERS: Final = 8192
"""Of a path: what common servers take for a whole request line (Apache, nginx and others, by default)."""
MOST_SEGMENTS: Final = 256
"""Of a path, an encoded slash for another one. A path is read in some ten ways, segment by segment; real ones have a
tenth of this."""


def is_plain_in_python(text: str) -> bool:
    """Return whether a path is canonical as it stands, without any escape."""
    return bool(text) and _PLAIN.match(text) is not None and "/." not in text


def _fastest() -> Callable[[str], bool]:
    try:
        from seamgate._native import plain_path
    except ImportError:  # the sources, where nobody ran `make build`
        return is_plain_in_python
    return plain_path


is_plain: Final = _fastest()


def canonical_path(text: str) -> str:
    """Return the absolute path with escapes upper-case and only where needed (RFC 3986 6.2.2).

    Args:
        text: str of ASCII, as in the request target, without query.

    Raises:
        TargetError: with reason BAD_PATH; it is relative or ambiguous.
    """
    size = len(text)
    if size > MOST_CHARACTERS:
        raise _bad(f"has more than {MOST_CHARACTERS} characters")
    if size > MOST_SEGMENTS and text.count("/") + text.count("%2F") + text.count("%2f") > MOST_SEGMENTS:
        raise _bad(f"has more than {MOST_SEGMENTS} segments")
    if is_plain(text):
        return text
    allowed = _ALLOWED.match(text)
    if allowed is None:
        raise _bad("does not begin with /")
    if allowed.end() < len(text):
        odd = text[allowed.end()]
        raise _bad(f"may not hold {odd!r} (its character {allowed.end() + 1}) as it is; percent-encode it")
    path = _canonical_escapes(text) if "%" in text else text
    if "%25" in path and _TWICE.search(path):
        raise _bad("has the escape %25 before two hex digits, which some origins decode twice")
    if "//" in path or "/%2F" in path or "%2F/" in path or "%2F%2F" in path:
        raise _bad("has an empty segment (//)")
    if _DOTS.search(path.replace("%2F", "/")):
        raise _bad("has a dot segment; send the resolved path")
    if "%" in path:
        _check_utf8(path)
    return path


def _canonical_escapes(text: str) -> str:
    wrong = _WRONG.search(text)
    if wrong is not None:
        at = wrong.start() + 1
        if wrong.end() == at:
            raise _bad(f"has a % (its character {at}) that is not followed by two hex digits")
        raise _bad(f"has the escape {wrong[0].upper()} (at character {at}), which origins read differently")
    first, *rest = text.split("%")
    return first + "".join([_CANONICAL[part[:2]] + part[2:] for part in rest])


def _check_utf8(path: str) -> None:
    try:
        unquote(path.encode("ascii")).decode("utf-8")
    except UnicodeDecodeError:
        raise _bad("has escapes that are not UTF-8") from None


def check_query(text: str) -> str:
    """Return the query as it is.

    Raises:
        TargetError: with reason BAD_PATH; it holds white space, a control character, "#" or non-ASCII.
    """
    if not _QUERY.match(text):
        raise TargetError("the query holds a character that must be percent-encoded", reason=Reason.BAD_PATH)
    return text


def _bad(why: str) -> TargetError:
    return TargetError(f"the path {why}", reason=Reason.BAD_PATH)
