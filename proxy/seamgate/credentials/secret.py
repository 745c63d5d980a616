"""The value of a credential, wrapped so that it can't be shown by accident.

Sources make `Secret`s; injection and redaction are the only callers of `reveal`. A `Secret` never appears in a repr,
an f-string, a log, a traceback with locals, a pickle, a copy or JSON: each of these either shows "<secret>" or fails.
It does not defend against code that runs in this process and means to read it.
"""

from __future__ import annotations

import hmac
from typing import NoReturn

from seamgate.errors import CredentialError

SHOWN = "<secret>"
MIN_SIZE_BYTES = 8
"""Shorter values can't be told apart from ordinary text, so they could be neither found on the way out nor redacted."""
MAX_SIZE_BYTES = 16 * 1024
"""Larger than any token in use (a JWT with many claims has 4 KiB); more could not be sent in one header anyway."""


class Secret:
    """A secret value: bytes, visible ASCII or UTF-8, no CR, LF, NUL or other control character.

    Compares in constant time, is not hashable, and can't be copied or pickled.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes, *, name: str) -> None:
        """Check and wrap a value.

        Args:
            value: the value as it goes into a header, without any prefix.
            name: the credential's name, for the message if the value is refused.

        Raises:
            CredentialError: the value is too short, too long, or holds a control character. Never shows the value.
        """
        problem = _problem(value)
        if problem:
            raise CredentialError(f"credential {name!r}: its source gave a value that {problem}")
        self._value = value

    def reveal(self) -> bytes:
        """Return the value. Call it at the last moment and keep the result in no attribute that has a repr."""
        return self._value

    def __repr__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return format(SHOWN, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]  # a hash would tell about the value

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret can't be pickled or copied")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a Secret can't be pickled or copied")


def _problem(value: bytes) -> str:
    if not value:
        return "is empty"
    if len(value) < MIN_SIZE_BYTES:
        return f"has fewer than {MIN_SIZE_BYTES} bytes: use a longer one, short values can't be redacted"
    if len(value) > MAX_SIZE_BYTES:
        return f"has more than {MAX_SIZE_BYTES} bytes: is the source the right one?"
    if any(byte < 0x20 or byte == 0x7F for byte in value):
        return "holds a line break or another control character: store exactly one line"
    if value[:1] == b" " or value[-1:] == b" ":
        return "begins or ends with a space: store it without"
    return ""
