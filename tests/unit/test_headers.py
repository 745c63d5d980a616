"""Header lists: what may stand in one that a plugin made."""

from __future__ import annotations

import pytest

from seamgate.errors import PluginError
from seamgate.headers import OF_THE_GATEWAY, field_problem
from seamgate.protocol.http1 import write_request_head
from seamgate.protocol.http2_fields import request_fields

BAD = [
    *[(name, b"x") for name in sorted(OF_THE_GATEWAY)],
    (b"X-Upper", b"1"),
    (b"", b"1"),
    (b"a b", b"1"),
    (b"a:", b"1"),
    (b"a\r\nhost", b"1"),
    (b":path", b"/x"),
    (b"a" * 257, b"1"),
    (b"x", b"1\r\nhost: evil.test"),
    (b"x", b"1\n"),
    (b"x", b"\0"),
]


@pytest.mark.parametrize("field", BAD)
def test_a_field_that_would_be_read_as_something_else_has_a_problem(field: tuple[bytes, bytes]) -> None:
    """Also after it was seen before, and behind good ones."""
    for _ in range(2):
        assert field_problem(((b"good", b"1"), field))


def test_ordinary_fields_have_none() -> None:
    """HTAB and bytes above ASCII are fine in values."""
    assert field_problem(((b"x-a", b"a\tb \xff"), (b"cookie", b""), (b"!#$%&'*+-.^_`|~09az", b"1"))) == ""


@pytest.mark.parametrize("field", BAD)
def test_no_writer_writes_one(field: tuple[bytes, bytes]) -> None:
    """The last wall, in both HTTP versions; what the gateway itself adds at the end passes it."""
    if field[0] in (b"connection", b"upgrade", b"expect"):
        assert write_request_head("GET", "/", "a.test", (field,), 0)
        return
    with pytest.raises(PluginError):
        write_request_head("GET", "/", "a.test", (field,), 0)
    with pytest.raises(PluginError):
        request_fields("GET", "https", "a.test", "/", (field,), 0, trailers=False)
