"""`seamgate.credentials.escapes`: what a text costs. What is found in it is pinned by `property/test_native.py`."""

from __future__ import annotations

from typing import Any

import pytest

from seamgate.credentials.escapes import ALL_LETTERS, plain_view, plain_view_in_python


class Counted(bytes):
    """Counts the bytes that are searched backwards for the beginning of a line."""

    searched = 0

    def rfind(self, wanted: Any, start: Any = 0, end: Any = None) -> int:
        """Search, and count."""
        Counted.searched += (len(self) if end is None else end) - start
        return super().rfind(wanted, start, end)


@pytest.mark.parametrize("unit", [b"data:x\r", b"data:x\n", b"data:\r\n", b"x\rdata:", b"x\n", b"\r\ndata:a"])
def test_no_byte_is_searched_again_for_the_beginning_of_its_line(unit: bytes) -> None:
    """A body of many short lines costs what it is long: each byte is looked at once for either kind of break."""
    data = Counted(unit * 500)
    Counted.searched = 0
    expected = plain_view_in_python(data, ALL_LETTERS, True)
    assert Counted.searched <= 2 * len(data)
    found = plain_view(bytes(data), ALL_LETTERS, True)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found[0], list(found[1]), list(found[2]), found[3]) == (
            expected[0], list(expected[1]), list(expected[2]), expected[3],
        )  # fmt: skip
