"""A reload takes the credentials plugin away and a later one brings it back, while streams are open.

What it knew is known again, and what is open is searched for what it looks for now.
"""

from __future__ import annotations

from typing import Any

from attack.test_bound_later import PLUGINS, Service, begin, rest
from attack.test_unknown_values import ROTATED, Dashboard
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.reloads import reload
from support.upstream import HttpUpstream, RawUpstream, silent

OTHERS: dict[str, Any] = {"id": "others", "allow": ALLOW_ALL["allow"]}
WITHOUT: dict[str, Any] = {"credentials": None, "plugins": ["policy", "dns"]}


def away_and_back(lab: Lab) -> None:
    """Two reloads: the plugin goes, and comes with another source for the credential."""
    assert reload(lab, [OTHERS], WITHOUT).revoked_requests == 0
    later = lab.folder / "later"
    later.write_text(ROTATED)
    later.chmod(0o600)
    back = {"plugins": PLUGINS, "credentials": {"key": {"source": {"file": str(later)}}}}
    assert reload(lab, None, back).revoked_requests == 0


async def test_an_open_answer_is_searched_for_the_new_value_and_the_old_one() -> None:
    """Its redactor is that of the generation that began it; it takes up what the newest one knows."""
    service = Service(said=(SECRET.encode(), b" ", ROTATED[:9].encode(), ROTATED[9:].encode()))
    async with Lab(HttpUpstream(service), rules=[OTHERS]) as lab:
        client = await lab.tunnel()
        h = await begin(client)
        away_and_back(lab)
        service.told.set()
        assert await rest(client, h) == b"[redacted:key] [redacted:key]"
        client.close()
        await lab.audited("GET /stream allow allowed 200 complete")


async def test_what_the_plugin_knew_is_known_again() -> None:
    """A value that went out before is neither told by a later answer nor let out by a request."""
    dashboard = Dashboard()
    async with Lab(HttpUpstream(dashboard), rules=[WITH_KEY]) as lab:
        client = await lab.tunnel()
        await client.ask("POST", "/v1", b"content-length: 0")
        away_and_back(lab)
        for value in (SECRET, ROTATED):
            dashboard.last = value
            assert (await client.ask("GET", "/debug")).body == b"last key: [redacted:key]"
        answer = await client.ask("GET", "/x?" + SECRET)
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        client.close()
        await lab.audited(
            "POST /v1 allow allowed 200 complete",
            *["GET /debug allow allowed 200 complete"] * 2,
            "GET [withheld] deny secret_leaving 403 denied",
        )


async def test_an_open_upload_takes_the_new_value_nowhere() -> None:
    """Its guard is that of the generation that began it."""
    async with Lab(RawUpstream(silent), rules=[OTHERS]) as lab:
        client = await lab.tunnel()
        body = b"begin " + ROTATED.encode()
        head = [b"POST /up HTTP/1.1", b"host: " + client.authority.encode(), b"content-length: %d" % len(body)]
        await client.send(b"\r\n".join(head) + b"\r\n\r\n" + body[:6])
        line = await lab.upstream.connection()
        await line.seen(b"\r\n\r\n" + body[:6])
        away_and_back(lab)
        await client.send(body[6:])
        answer = await client.answer("POST")
        assert (answer.status, answer.reason) == (403, "secret_leaving")
        assert ROTATED[4:].encode() not in line.received
        client.close()
        await lab.audited("POST [withheld] deny secret_leaving 403 denied")
