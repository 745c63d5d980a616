"""A reload takes new, removed and changed guests: who is no more is cut at once, in tunnels and on idle connections."""

from __future__ import annotations

from typing import Any

import pytest

from seamgate.errors import ConfigError
from support.lab import ALLOW_ALL, OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.reloads import Streams, begin_stream, cut, reload
from support.upstream import HttpUpstream, echo

TOKENS: dict[str, Any] = {"entries": {"proxy": {"guest": ""}}}
NEW = "n" * 40
RESEARCH_ONLY = {**ALLOW_ALL, "guests": {"team": "research"}}


def auth(token: str) -> bytes:
    """Return the field with this token."""
    return proxy_authorization(token)


async def status(lab: Lab, token: str) -> int:
    """Ask for a tunnel with this token; return what the gateway says to it."""
    _, head = await lab.connect(lab.authority(), auth(token))
    return int(head.split()[1])


async def test_a_removed_guest_is_cut() -> None:
    """Its stream ends with a cut, recorded as revoked; its tunnel and its token are gone; others go on."""
    async with Lab(HttpUpstream(Streams()), settings=TOKENS) as lab:
        mine, other = await lab.tunnel("", auth(OTHER_TOKEN)), await lab.tunnel("", auth(TOKEN))
        h, theirs = await begin_stream(mine), await begin_stream(other)
        report = reload(lab, settings={**TOKENS, "guests": {"h": None}})
        await cut(mine, h)
        assert (report.revoked_requests, report.revoked_tunnels, report.needs_restart) == (1, 1, ())
        records = await lab.audited(
            "GET /stream deny revoked 200 truncated", f"CONNECT {lab.authority()} deny revoked 200 aborted"
        )
        for record in records:
            assert record.generation == 2 and "the guest 'h' was removed" in record.message
            assert record.guest is not None and record.guest.id == "h"
        assert await status(lab, OTHER_TOKEN) == 407
        other.close()
        await lab.audited("CONNECT - deny unauthenticated 407 denied", "GET /stream allow guest_gone 200 aborted")
        assert theirs is not None


@pytest.mark.parametrize("tunnelled", [True, False])
async def test_an_idle_connection_of_a_removed_guest_is_closed(tunnelled: bool) -> None:
    """In a tunnel or not: nothing is asked on it any more."""
    async with Lab(HttpUpstream(echo, tls=tunnelled), settings=TOKENS) as lab:
        client = await (lab.tunnel("", auth(OTHER_TOKEN)) if tunnelled else lab.proxy(token=OTHER_TOKEN))
        assert (await client.ask("GET", "/x")).status == 200
        reload(lab, settings={**TOKENS, "guests": {"h": None}})
        await client.closed()
        expected = [f"CONNECT {lab.authority()} deny revoked 200 aborted"] if tunnelled else []
        await lab.audited("GET /x allow allowed 200 complete", *expected)


async def test_a_new_guest_is_known_at_once() -> None:
    """Its token opens tunnels without a restart, and its labels are those that policy matches on."""
    async with Lab(HttpUpstream(echo), settings=TOKENS, rules=[RESEARCH_ONLY]) as lab:
        (lab.folder / "new").write_text(NEW)
        assert await status(lab, NEW) == 407
        new = {"token": {"file": str(lab.folder / "new")}, "labels": {"team": "research"}}
        reload(lab, settings={**TOKENS, "guests": {"n": new}})
        client = await lab.tunnel("", auth(NEW))
        assert (await client.ask("GET", "/x")).status == 200
        client.close()
        records = await lab.audited("CONNECT - deny unauthenticated 407 denied", "GET /x allow allowed 200 complete")
        assert records[1].guest is not None and records[1].guest.id == "n"


@pytest.mark.parametrize("changed", ["token", "labels"])
async def test_a_changed_guest_has_to_come_again(changed: str) -> None:
    """Another token or other labels end what is under way in the old name; whoever is unchanged is left alone."""
    async with Lab(HttpUpstream(echo), settings=TOKENS) as lab:
        mine, other = await lab.tunnel("", auth(OTHER_TOKEN)), await lab.tunnel("", auth(TOKEN))
        if changed == "token":
            settings = lab.settings()
            (lab.folder / "renewed").write_text(NEW)
            more = {"token": {"file": str(lab.folder / "renewed")}, "labels": settings["guests"]["h"]["labels"]}
        else:
            more = {"labels": {"team": "support"}}
        report = reload(lab, settings={**TOKENS, "guests": {"h": more}})
        assert report.revoked_tunnels == 1
        await mine.closed()
        assert (await other.ask("GET", "/x")).status == 200
        again = await lab.tunnel("", auth(NEW if changed == "token" else OTHER_TOKEN))
        assert (await again.ask("GET", "/y")).status == 200
        for each in (other, again):
            each.close()
        await lab.audited(
            f"CONNECT {lab.authority()} deny revoked 200 aborted",
            "GET /x allow allowed 200 complete",
            "GET /y allow allowed 200 complete",
        )


async def test_the_guest_that_an_entry_names() -> None:
    """Its labels change with a reload; that it goes is refused, since the entry could not go on without it."""
    async with Lab(HttpUpstream(echo), rules=[RESEARCH_ONLY]) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        reload(lab, settings={"guests": {"g": {"labels": {"team": "sales"}}}})
        await client.closed()
        _, head = await lab.connect()
        assert head.split()[1] == b"403"
        with pytest.raises(ConfigError, match="the entry proxy of the running gateway names it"):
            reload(
                lab, settings={"entries": {"proxy": {"guest": "h"}, "base_url": {"guest": "h"}}, "guests": {"g": None}}
            )
        await lab.audited(
            "GET /x allow allowed 200 complete",
            f"CONNECT {lab.authority()} deny revoked 200 aborted",
            f"CONNECT {lab.authority()} deny no_rule_matched 403 denied",
        )


async def test_tokens_that_can_not_be_used_change_nothing() -> None:
    """Two guests with one token, or a token that is gone: the reload is refused, and all stays as it is."""
    async with Lab(HttpUpstream(echo), settings=TOKENS) as lab:
        client = await lab.tunnel("", auth(OTHER_TOKEN))
        for bad in ({"token": {"file": str(lab.folder / "token")}}, {"token": {"file": "/nowhere"}}):
            with pytest.raises(ConfigError, match="token"):
                reload(lab, settings={**TOKENS, "guests": {"h": bad}})
        assert (await client.ask("GET", "/x")).status == 200
        assert lab.gateway.status().generation == 1
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")
