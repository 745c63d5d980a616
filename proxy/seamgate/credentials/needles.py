"""Whether any of many byte strings stands in a text: in C where that is built, else the same in Python.

Used by redaction, by the scanner of requests and by placeholders. Finds nothing by itself: what stands where is asked
of Python once `found` says that there is something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from seamgate.headers import Headers


class NeedlesLike(Protocol):
    """What both twins do."""

    def found(self, data: bytes, /) -> bool:
        """Return whether any needle stands in the data."""
        ...

    def found_in(self, headers: Headers, names: bool, texts: tuple[str | None, ...] = (), /) -> bool:
        """Return whether any needle stands in a field's value, in its name if `names`, or in one of the texts."""
        ...

    def open_end(self, data: bytes, start: int, /) -> int:
        """Return where the earliest true beginning of an exact needle starts that lasts to the end; else len(data)."""
        ...


class PythonNeedles:
    """The specification of `seamgate._native.Needles`, and what runs where nobody built that."""

    __slots__ = ("_exact", "_folded", "_single")

    def __init__(self, exact: Iterable[bytes], folded: Iterable[bytes] = (), single: bytes = b"") -> None:
        """Prepare.

        Args:
            exact: byte strings to look for.
            folded: byte strings to look for whatever the case of their ASCII letters.
            single: bytes each of which is a needle for `found` and `found_in`; at most 8.

        Raises:
            ValueError: one is empty.
        """
        self._exact = tuple(exact)
        self._single = tuple([single[place : place + 1] for place in range(len(single))])
        self._folded = tuple([each.lower() for each in folded])
        if not all((*self._exact, *self._folded)):
            raise ValueError("a needle is bytes, and not empty")

    def found(self, data: bytes, /) -> bool:
        """Return whether any needle stands in the data."""
        for needle in (*self._single, *self._exact):
            if data.find(needle) >= 0:  # `in` would try it as an integer first, at ten times the price
                return True
        if not self._folded:
            return False
        lower = data.lower()
        return any(lower.find(needle) >= 0 for needle in self._folded)

    def found_in(self, headers: Headers, names: bool, texts: tuple[str | None, ...] = (), /) -> bool:
        """Return whether any needle stands in a field's value, in its name if `names`, or in one of the texts.

        Of a text, a character that is not ASCII counts as a question mark.
        """
        for name, value in headers:
            if self.found(value) or (names and self.found(name)):
                return True
        return any(text is not None and self.found(text.encode("ascii", "replace")) for text in texts)

    def open_end(self, data: bytes, start: int, /) -> int:
        """Return where the earliest true beginning of an exact needle starts that lasts to the end; else len(data)."""
        size = len(data)
        best = size
        for needle in self._exact:
            place = data.find(needle[:1], max(0, start, size - len(needle) + 1), best)
            while place >= 0:
                if needle.startswith(data[place:]):
                    best = place
                    break
                place = data.find(needle[:1], place + 1, best)
        return best


def _fastest() -> type[PythonNeedles]:
    try:
        from seamgate._native import Needles
    except ImportError:  # the sources, where nobody ran `make build`
        return PythonNeedles
    return Needles  # type: ignore[return-value]  # the same by shape


Needles: type[PythonNeedles] = _fastest()
