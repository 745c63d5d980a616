"""The spellings in which one value can stand in a message: as it is, in JSON, in a URL, in HTML, in base64, in hex.

Redaction and the search for leaving secrets look for all of them. Writers differ in what they escape and how, so each
table below names who writes so; a value without special characters has the same spelling with all of them, and counts
once. Pure functions of bytes; nothing is kept.
"""

from __future__ import annotations

import base64
import json
import re
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


# How "+" and "/" are written where base64 stands in something else; "=" is in no form.
_BASE64_ESCAPED = (
    (b"+", b"\\/"),  # PHP's JSON
    (b"\\u002B", b"/"),  # .NET's JSON
    (b"\\u002b", b"/"),
    (b"\\u002B", b"\\/"),
    (b"\\u002B", b"\\u002F"),
    (b"\\u002b", b"\\u002f"),
    (b"%2B", b"%2F"),  # as a component of a URL, in a form
    (b"%2b", b"%2f"),
    (b"%2B", b"/"),  # Python's default for paths
    (b"%2b", b"/"),
    (b"+", b"%2F"),  # Go, a path segment
    (b"+", b"%2f"),
    (b"&#43;", b"/"),  # Go's templates
    (b"&#x2B;", b"/"),  # .NET's HTML
    (b"+", b"&#x2F;"),  # Mustache
    (b"+", b"&#47;"),
    (b"&#43;", b"&#47;"),
    (b"&#x2B;", b"&#x2F;"),
)


def escaped_base64_forms(value: bytes) -> tuple[bytes, ...]:
    """Return `base64_forms` as they stand inside JSON, a URL or HTML: a reflected Basic header, for one."""
    forms = mime_forms(value)
    written = [form.replace(b"+", plus).replace(b"/", slash) for form in forms for plus, slash in _BASE64_ESCAPED]
    return tuple(dict.fromkeys(form for form in written if form not in forms))


def mime_forms(value: bytes) -> tuple[bytes, ...]:
    """Return those of `base64_forms` that can stand in lines: the standard alphabet alone (RFC 2045 6.8, RFC 7468)."""
    return tuple(form for form in base64_forms(value) if b"-" not in form and b"_" not in form)


# What JSON writers escape as \\u00XX besides what they must, and whether their hex digits are upper-case.
_JSON_ESCAPED = (
    (b"<>&'", "x"),  # Rails, Django's script filter
    (b"<>&", "x"),  # Go
    (b"<>&='", "x"),  # Gson
    (b"\"&'+<>`", "X"),  # .NET
    (b"<>", "X"),  # PHP, JSON_HEX_TAG
    (b"<>&'\"", "X"),  # PHP, all of JSON_HEX_*
)


def json_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value as JSON writers escape it: with and without "\\/" (RFC 8259 7), ASCII-only and not."""
    text = value.decode("utf-8", "surrogateescape")
    plain = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
    ascii_only = json.dumps(text)[1:-1].encode("ascii")
    forms = [plain, ascii_only]
    for escaped, digits in _JSON_ESCAPED:
        for form in (plain, _upper_escapes(ascii_only) if digits == "X" else ascii_only):
            if b'"' in escaped:
                form = form.replace(b'\\"', b'"')
            for char in escaped:
                form = form.replace(bytes((char,)), b"\\u00" + format(char, f"02{digits}").encode())
            forms.append(form)
    return tuple(dict.fromkeys((*forms, *(form.replace(b"/", b"\\/") for form in forms))))


def _upper_escapes(text: bytes) -> bytes:
    return _JSON_ESCAPE.sub(lambda found: b"\\u" + found[1].upper(), text)


_JSON_ESCAPE = re.compile(rb"\\u([0-9a-f]{4})")

# (what stays as it is besides letters, digits and "-._", whether "~" is escaped)
_URL_SAFE = (
    ("", False),  # RFC 3986 unreserved: Python, Go, PHP's rawurlencode
    ("/", False),  # Python's default for paths
    ("!$&'()*+,;=:@/", False),  # all that a path may hold (RFC 3986 3.3)
    ("$&+=:@", False),  # Go, a path segment
    ("!'()*", False),  # encodeURIComponent
    (";,/?:@&=+$!*'()#", False),  # encodeURI
    ("*", True),  # Java, URLSearchParams (WHATWG URL 5.2)
    ("", True),  # PHP's urlencode
)


def url_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value percent-encoded as URLs and forms do it, hex digits in both cases (RFC 3986 2.1)."""
    forms: list[bytes] = []
    for safe, tilde in _URL_SAFE:
        upper = quote_from_bytes(value, safe=safe)
        if tilde:
            upper = upper.replace("~", "%7E")
        first, *escapes = upper.split("%")
        lower = "%".join((first, *(part[:2].lower() + part[2:] for part in escapes)))
        forms += [upper.encode("ascii"), lower.encode("ascii")]
        forms += [form.replace(b"%20", b"+") for form in forms[-2:]]
    return tuple(dict.fromkeys(forms))


# "&" is always "&amp;", and first. In each table: what the writer makes of the others.
_HTML = (
    {b"<": b"&lt;", b">": b"&gt;"},  # text
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;"},  # attributes
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&#x27;"},  # Python, Django
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&#39;"},  # Rails, Spring, lodash
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&#039;"},  # PHP
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&apos;"},  # XML
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&#34;", b"'": b"&#39;"},  # Go, Jinja
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&#34;", b"'": b"&#39;", b"+": b"&#43;"},  # Go's templates
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&#x27;", b"`": b"&#x60;", b"=": b"&#x3D;"},  # Handlebars
    {
        b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&#39;", b"/": b"&#x2F;", b"`": b"&#x60;",
        b"=": b"&#x3D;",
    },  # Mustache
    {b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;", b"'": b"&#x27;", b"+": b"&#x2B;"},  # .NET
)  # fmt: skip


def html_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value as it stands in HTML or XML text and attributes."""
    forms: list[bytes] = []
    for table in _HTML:
        form = value.replace(b"&", b"&amp;")
        for char, reference in table.items():
            form = form.replace(char, reference)
        forms.append(form)
    return tuple(dict.fromkeys(forms))


def escaped_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value with every byte spelt as a number: dumps and digests show it in hex digits of either case, and
    "%73%6B", "\\u0073\\u006b" and "&#115;&#107;" are as good to who reads a URL (RFC 3986 2.1), JSON (RFC 8259 7) or
    HTML as "sk".
    """
    digits = value.hex()
    pairs = [digits[place : place + 2] for place in range(0, len(digits), 2)]
    forms = [digits, digits.upper(), "".join([f"&#{byte};" for byte in value])]
    for before, after in (("%", ""), ("\\u00", ""), ("\\x", ""), ("&#x", ";")):
        lower = "".join([f"{before}{pair}{after}" for pair in pairs])
        forms += [lower, "".join([f"{before}{pair.upper()}{after}" for pair in pairs])]
    return tuple(dict.fromkeys(form.encode("ascii") for form in forms))


def wide_forms(value: bytes) -> tuple[bytes, ...]:
    """Return the value in UTF-16 and UTF-32, either byte order, without the zeros at its ends: there orders differ."""
    text = value.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()
    written = [text.encode(f"utf-{size}-{order}").strip(b"\0") for size in (16, 32) for order in ("le", "be")]
    return tuple(dict.fromkeys(written))


def all_forms(value: bytes) -> tuple[bytes, ...]:
    """Return every spelling of the value, the plain one first, without repetitions."""
    forms = (
        value, *json_forms(value), *url_forms(value), *html_forms(value), *base64_forms(value), *escaped_forms(value),
        *escaped_base64_forms(value), *wide_forms(value),
    )  # fmt: skip
    return tuple(dict.fromkeys(forms))
