r"""Audit lines in the Common Event Format, CEF:0, with the keys of its extension dictionary (revision 25 of 2017).

    CEF:0|Seamgate|Seamgate|VERSION|reason|sentence|severity|key=value key=value ...

In the header `|` and `\` are escaped, in the extension `=` and `\` and line breaks; values are cut at the lengths that
the dictionary gives. Without a syslog header: whoever ships it adds its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from seamgate import __version__
from seamgate.address import canonical_address
from seamgate.audit.formats import PRODUCT, Facts, labels_of, part, sentence_of, severity_of, url_of
from seamgate.audit.line import parse_time

_SEVERITY: Final = (1, 4, 6, 9)
_LONGEST_NAME = 512
_LONGEST: Final = {"request": 1023, "msg": 1023, "suser": 1023, "dhost": 1023, "requestMethod": 1023, "reason": 1023}
_LONGEST_CUSTOM = 4000
_PRINTABLE_BREAKS: Final = {"\n": "\\n", "\r": "\\r"}


def as_cef(facts: Facts) -> str | None:
    """Return the line's event, without a line feed; None for `begin`."""
    if facts.get("kind") == "begin":
        return None
    header = (
        "CEF:0",
        PRODUCT,
        PRODUCT,
        __version__,
        str(facts.get("reason") or facts.get("kind", "")),
        sentence_of(facts)[:_LONGEST_NAME],
        str(_SEVERITY[severity_of(facts)]),
    )
    pairs = " ".join(f"{key}={_value(key, text)}" for key, text in _pairs(facts) if text)
    return f"{'|'.join([header[0], *map(_in_header, header[1:])])}|{pairs}"


def _in_header(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace("|", "\\|")


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _value(key: str, text: str) -> str:
    text = text[: _LONGEST.get(key, _LONGEST_CUSTOM)].replace("\\", "\\\\").replace("=", "\\=")
    return "".join(char if char.isprintable() else _PRINTABLE_BREAKS.get(char, " ") for char in text)


def _pairs(facts: Facts) -> Iterator[tuple[str, str]]:
    request, guest, upstream, moved = (part(facts, name) for name in ("request", "guest", "upstream", "bytes"))
    host = str(request.get("host", ""))
    address = str(upstream.get("address", "")) or (host if canonical_address(host) else "")
    yield "rt", str(int(parse_time(str(facts["time"])) * 1000))
    yield "externalId", str(facts.get("id", ""))
    yield "cat", str(facts.get("kind", ""))
    yield "act", str(facts.get("verdict", ""))
    yield "outcome", str(facts.get("outcome", ""))
    yield "reason", str(facts.get("reason", ""))
    yield "app", str(request.get("scheme", ""))
    yield "suser", str(guest.get("id", ""))
    yield "dhost", "" if canonical_address(host) else host
    yield ("c6a3" if ":" in address else "dst"), address
    yield "c6a3Label", "Destination IPv6 Address" if ":" in address else ""
    yield "dpt", str(request.get("port") or "")
    yield "requestMethod", str(request.get("method", ""))
    yield "request", url_of(request)
    yield "out", str(moved["request_body"]) if "request_body" in moved else ""
    yield "in", str(moved["response_body"]) if "response_body" in moved else ""
    yield "msg", sentence_of(facts)
    yield from _custom(facts, labels_of(facts))


def _custom(facts: Facts, labels: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the custom fields, each after its label; none without a value."""
    credentials = facts.get("credentials")
    texts = (
        ("cs1", "rule", str(facts.get("rule", ""))),
        ("cs2", "entry", str(facts.get("entry", ""))),
        ("cs3", "labels", ",".join(labels)),
        ("cs4", "credentials", ",".join(map(str, credentials)) if isinstance(credentials, list) else ""),
        ("cs5", "wouldRule", str(facts.get("would_rule", ""))),
        ("cs6", "previousHash", str(facts.get("prev", ""))),
        ("cn1", "status", str(facts.get("status") or "")),
        ("cn2", "seq", str(facts.get("seq", ""))),
        ("cn3", "generation", str(facts.get("generation") or "")),
    )
    for key, label, text in texts:
        if text:
            yield f"{key}Label", label
            yield key, text
