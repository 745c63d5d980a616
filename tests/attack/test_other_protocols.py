"""A client that speaks something else to an entry of HTTP is told so at once, and the record says what it was."""

from __future__ import annotations

import pytest

from support.lab import Lab
from support.upstream import HttpUpstream, echo

FIRST = {
    "TLS": bytes.fromhex("160301002f0100002b0303") + b"\n\0" * 20,
    "SOCKS4": bytes.fromhex("040101bb7f00000100"),
    "SOCKS5": bytes.fromhex("050100"),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("entry", ["proxy", "base_url"])
@pytest.mark.parametrize("protocol", FIRST)
async def test_another_protocol_is_refused_at_once(protocol: str, entry: str, whole: bool) -> None:
    """By its first byte, which begins no method: no deadline has to pass, and the connection is closed."""
    async with Lab(HttpUpstream(echo), credential=False) as lab:
        line = await lab.line(entry)
        await line.send(FIRST[protocol][: None if whole else 1])
        said = await line.end()
        assert said.startswith(b"HTTP/1.1 400 ") and b"bad_request" in said and b"http://" in said
        (record,) = await lab.refused("- - deny bad_request 400 denied")
        assert record.message.startswith(f"this is {protocol}")
