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

# Unreserved and sub-delims without ";", with ":" and "@" (RFC 3986 3.3).
_PLAIN = re.compile(r"(?:/[A-Za-z0-9\-._~!$&'()*+,=:@]+)*/?\Z")
_ALLOWED = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,=:@%/]*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
# Looked for after the escapes of plain characters are gone: "%25%32e" becomes "%252e".
_TWICE = re.compile(r"%25[0-9A-Fa-f]{2}")
_DOTS = re.compile(r"/\.{1,2}(?:/|\Z)")
_QUERY = re.compile(r"[\x21\x22\x24-\x7e]*\Z")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# "\" would split a segment for some origin, ";" begins parameters.
_NEVER_ENCODED = frozenset("\\;")


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
    if is_plain(text):
        return text
    allowed = _ALLOWED.match(text)
    if allowed is None:
        raise _bad("does not begin with /")
    if allowed.end() < len(text):
        odd = text[allowed.end()]
        raise _bad(f"may not hold {odd!r} (its character {allowed.end() + 1}) as it is; percent-encode it")
    path = _ESCAPE.sub(_canonical_escape, text) if "%" in text else text
    if "%25" in path and _TWICE.search(path):
        raise _bad("has the escape %25 before two hex digits, which some origins decode twice")
    if "//" in path or "/%2F" in path or "%2F/" in path or "%2F%2F" in path:
        raise _bad("has an empty segment (//)")
    if _DOTS.search(path.replace("%2F", "/")):
        raise _bad("has a dot segment; send the resolved path")
    if "%" in path:
        _check_utf8(path)
    return path


def _canonical_escape(match: re.Match[str]) -> str:
    digits = match.group(1)
    if digits is None:
        raise _bad(f"has a % (its character {match.start() + 1}) that is not followed by two hex digits")
    code = int(digits, 16)
    char = chr(code)
    if char in _UNRESERVED:
        return char
    if code < 0x20 or code == 0x7F or char in _NEVER_ENCODED:
        raise _bad(
            f"has the escape %{digits.upper()} (at character {match.start() + 1}), which origins read differently"
        )
    return f"%{digits.upper()}"


def _check_utf8(path: str) -> None:
    raw = re.sub(r"%([0-9A-F]{2})", lambda match: chr(int(match.group(1), 16)), path).encode("latin-1")
    try:
        raw.decode("utf-8")
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
