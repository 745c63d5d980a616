"""The spellings in which one value can stand in a message: as it is, in JSON, in a URL, in base64.

Redaction and the search for leaving secrets look for all of them. Pure functions of bytes; nothing is kept.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote_from_bytes

MIN_FORM_BYTES = 6
"""A form below this (the stable middle of a very short value in base64) would match ordinary text."""


def base64_forms(value: bytes) -> tuple[bytes, ...]:
    """Return what base64 of any text that contains the value must contain, at each of the three alignments.

    Characters that also depend on the neighbours of the value are left off: at most one at either end, so that up to
    six bits of the first and last byte are not covered. Both alphabets, where they differ.
    Source: RFC 4648 4 and 5.
    """
    forms: list[bytes] = []
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + value).rstrip(b"=")
        start = (0, 2, 3)[offset]
        stop = len(encoded) - (1 if (offset + len(value)) % 3 else 0)
        stable = encoded[start:stop]
        forms += [stable, stable.replace(b"+", b"-").replace(b"/", b"_")]
    return tuple(dict.fromkeys(form for form in forms if len(form) >= MIN_FORM_BYTES))


def json_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value as JSON writers escape it: with and without "\\/" (RFC 8259 7), ASCII-only and not."""
    text = value.decode("utf-8", "surrogateescape")
    plain = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
    ascii_only = json.dumps(text)[1:-1].encode("ascii")
    html_safe = ascii_only
    for char in b"<>&'":
        html_safe = html_safe.replace(bytes((char,)), b"\\u%04x" % char)
    forms = (plain, ascii_only, html_safe)
    return tuple(dict.fromkeys((*forms, *(form.replace(b"/", b"\\/") for form in forms))))


def url_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value percent-encoded as URLs and forms do it, hex digits in both cases (RFC 3986 2.1)."""
    forms: list[bytes] = []
    for safe in ("", "/", "!$&'()*+,;=:@/"):
        upper = quote_from_bytes(value, safe=safe)
        first, *escapes = upper.split("%")
        lower = "%".join((first, *(part[:2].lower() + part[2:] for part in escapes)))
        forms += [upper.encode("ascii"), lower.encode("ascii")]
        forms += [form.replace(b"%20", b"+") for form in forms[-2:]]
    return tuple(dict.fromkeys(forms))


def all_forms(value: bytes) -> tuple[bytes, ...]:
    """Return every spelling of the value, the plain one first, without repetitions."""
    return tuple(dict.fromkeys((value, *json_forms(value), *url_forms(value), *base64_forms(value))))
