"""CredentialLeak: no token of a guest, and no user name or password of a URI, gets into a message or the journal."""

from __future__ import annotations

import pytest

from support.lab import TOKEN, Lab
from support.upstream import RawUpstream, ok, says

PASSWORD = "sekrit-token-xyz"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api//x", "bad_path"),
        ("/api/../x", "bad_path"),
        ("/api/a;b", "bad_path"),
        ("/api/%zz", "bad_path"),
        ("/api/%ff", "bad_path"),
        ("/api/%2500", "bad_path"),
        ("//api/x", "bad_path"),
        ("/nope", "bad_target"),
        ("", "bad_target"),
        ("?x", "bad_target"),
        ("%5C/api/x", "unauthenticated"),
        (";/api/x", "unauthenticated"),
        ("%2Fapi/x", "unauthenticated"),
    ],
)
async def test_the_token_of_a_base_url_is_not_quoted(path: str, reason: str) -> None:
    """Whatever is wrong behind it, or with it, the answer and the record do without."""
    settings = {"entries": {"base_url": {"guest": None}}}
    async with Lab(RawUpstream(says(ok())), settings=settings) as lab:
        line = await lab.line("base_url")
        await line.send(f"GET /~{TOKEN}{path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        head = await line.head()
        assert f"x-seamgate-reason: {reason}".encode() in head.lower()
        line.close()
        await lab.settled()
        (record,) = lab.records
        assert record.reason == reason and TOKEN not in record.message
        assert (record.guest is None) == (reason == "unauthenticated")  # a good token is somebody's, whatever follows
        lab._claimed += 1


async def test_a_token_where_none_is_asked_for_is_not_quoted() -> None:
    """An entry that names its guest refuses the path, and says what to leave out."""
    async with Lab(RawUpstream(says(ok()))) as lab:
        line = await lab.line("base_url")
        await line.send(f"GET /~{TOKEN}/api/x HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await line.head()
        line.close()
        (record,) = await lab.refused("GET - deny bad_target 400 denied")
        assert "asks for no token" in record.message


@pytest.mark.parametrize(
    "request_lines",
    [
        f"CONNECT g:{PASSWORD}@api.test:443 HTTP/1.1\r\nhost: api.test:443",
        f"CONNECT {PASSWORD}@api.test:443 HTTP/1.1\r\nhost: api.test:443",
        f"CONNECT g:{PASSWORD} HTTP/1.1\r\nhost: api.test:443",
        f"CONNECT g:{PASSWORD}%40api.test:443 HTTP/1.1\r\nhost: api.test:443",
        f"GET http://g:{PASSWORD}@api.test/ HTTP/1.1\r\nhost: api.test",
        f"GET http://api.test/ HTTP/1.1\r\nhost: g:{PASSWORD}@api.test",
        f"GET http://api.test/;jsessionid={PASSWORD} HTTP/1.1\r\nhost: api.test",
        f"GET http://api.test/?key={PASSWORD}#a HTTP/1.1\r\nhost: api.test",
        f"GET http://api.test/~{PASSWORD}//a HTTP/1.1\r\nhost: api.test",
    ],
)
async def test_what_stands_beside_a_host_or_in_a_refused_path_is_not_quoted(request_lines: str) -> None:
    """A refusal names the character and the place, never the text: it would stand in the journal for ever."""
    async with Lab(RawUpstream(says(ok()))) as lab:
        line = await lab.line()
        await line.send(request_lines.encode() + b"\r\n\r\n")
        head = await line.head()
        line.close()
        await lab.settled()
        (record,) = lab.records
        assert record.reason in ("bad_target", "bad_path", "bad_request") and PASSWORD not in record.message
        assert PASSWORD.encode() not in head
        lab._claimed += 1
        await lab.gateway.stop(grace_s=1.0)
        assert PASSWORD.encode() not in lab.gateway.journal_path.read_bytes()
