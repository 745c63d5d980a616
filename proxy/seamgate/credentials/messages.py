"""Placeholders in messages of a WebSocket: swapped in the text that may carry one, found wherever else they stand.

Called by `seamgate.websocket_messages` at the last hop, after every inspector. Pure.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

import msgspec

from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.scanner import RequestScanner
from seamgate.errors import CredentialError, Reason

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def swap_in_text(index: PlaceholderIndex, text: bytes, name: str, value: bytes) -> bytes:
    """Return a text message with the placeholders of this credential replaced; the same object if there is none.

    In JSON they are found however their string is escaped, and the value is escaped as its string needs it.

    Args:
        index: all placeholders.
        text: UTF-8.
        name: the credential's name.
        value: what replaces its placeholder.

    Raises:
        CredentialError: the value is not UTF-8, so it can't stand in a text.
    """
    if not _is_json(text):
        swapped = index.swap(text, name, value) if name in index.names_in(text) else text
    else:
        swapped = _STRING.sub(lambda found: _swap_string(index, found[0], name, value), text)
    if swapped == text:
        return text
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        message = f"the value of the credential {name!r} is not UTF-8, so it can't go into a text message"
        raise CredentialError(message, reason=Reason.CREDENTIAL_UNAVAILABLE) from None
    return swapped


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _swap_string(index: PlaceholderIndex, token: bytes, name: str, value: bytes) -> bytes:
    """Swap within one JSON string, quotes included."""
    if b"\\" not in token and name not in index.names_in(token):
        return token
    plain = str(json.loads(token)).encode("utf-8", "surrogatepass")
    if name not in index.names_in(plain):
        return token
    swapped = index.swap(plain, name, value)
    return json.dumps(swapped.decode("utf-8", "surrogatepass")).encode("ascii")


def placeholder_in(index: PlaceholderIndex, data: bytes) -> str | None:
    """Return the credential whose placeholder stands in a message in any spelling, None if there is none."""
    for finding in _scanner(index).body_findings(data):
        return finding.name
    return None


@lru_cache(maxsize=4)
def _scanner(index: PlaceholderIndex) -> RequestScanner:
    return RequestScanner(index, ())
