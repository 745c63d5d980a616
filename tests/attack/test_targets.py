"""Targets: what a request names is one canonical host, port and path, for policy, upstream and audit, or nothing.

The addresses behind names are tried in `test_addresses_*`. Here: paths, URIs, userinfo, methods, ports and schemes,
through every entry, with the same verdict from each.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.client import Answer, Client
from support.lab import ALLOW_ALL, Lab
from support.upstream import HttpUpstream, echo

ENTRIES = ["tunnel", "proxy", "base"]
PUBLIC: dict[str, Any] = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "paths": ["/public/**"]}}


def a_lab(entry: str, rules: list[dict[str, Any]] | None = None, **more: Any) -> Lab:
    return Lab(HttpUpstream(echo, tls=entry != "proxy"), rules=rules or [PUBLIC], credential=False, **more)


async def ask(lab: Lab, entry: str, target: str, method: str = "GET") -> Answer:
    """Send a request for this path, exactly as written, through an entry."""
    client: Client = await getattr(lab, entry)()
    prefix = {"tunnel": "", "proxy": f"http://{lab.authority()}", "base": "/api"}[entry]
    await client.send(f"{method} {prefix}{target} HTTP/1.1\r\nhost: {lab.authority()}\r\n\r\n".encode("latin-1"))
    answer = await client.answer("HEAD" if method == "HEAD" else "GET")
    client.close()
    return answer


def place(lab: Lab, entry: str, method: str) -> str:
    """Where the record of a refusal says that it was going: a tunnel goes to one place; else a URI, or a route."""
    return lab.authority() if entry == "tunnel" or method else "-"


# Each spelling leads some origin out of /public.
ESCAPES = [
    "/public/../secret", "/public/..", "/public/./../secret", "/public/%2e%2e/secret", "/public/%2E%2E/secret",
    "/public/.%2e/secret", "/public/%2e./secret", "/public/..%2fsecret", "/public/%2e%2e%2fsecret",
    "/public/..%5csecret", "/public/..\\secret", "/public\\..\\secret", "/public/%5c../secret", "/public//../secret",
    "/public//secret", "//secret", "/public/..;/secret", "/public/;/../secret", "/public/x;/../../secret",
    "/public;x=/../secret", "/public/..;a=b/secret", "/public/%252e%252e/secret", "/public/%25%32%65./secret",
    "/public/..%252fsecret", "/public/%c0%ae%c0%ae/secret", "/public/%e0%80%ae/secret", "/public/..%00/secret",
    "/public/%00", "/public/%0d%0aX:y", "/public/%0a", "/public/\x7f", "/public/%7f", "/public/%", "/public/%2",
    "/public/%zz", "/public/%u002e%u002e/secret", "/public/\xff", "/public/%ff", "/public/a b", "/public/\tb",
    "/./public/x", "/public/.", "/public/x/%2e", "/public/x/%2e%2e", "/public/%2f../secret", "/public/x/..",
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("path", ESCAPES)
async def test_a_path_that_origins_read_differently_is_refused(path: str, entry: str) -> None:
    """Refused as it stands, never repaired: nothing upstream."""
    async with a_lab(entry) as lab:
        answer = await ask(lab, entry, path)
        assert answer.status == 400 and answer.reason in ("bad_path", "bad_request")
        await lab.until(lambda: len(lab.records) == 1)
        (record,) = lab.records
        method = record.request.method if record.request is not None else ""
        await lab.refused(f"{method or '-'} {place(lab, entry, method)} deny {answer.reason} 400 denied")


SPELLINGS = {
    "/public/%61": "/public/a",
    "/public/%7Euser": "/public/~user",
    "/public/%c3%a4": "/public/%C3%A4",
    "/public/a%20b": "/public/a%20b",
    "/public/a+b": "/public/a+b",
    "/public/...": "/public/...",
    "/public/..a": "/public/..a",
    "/public/a..": "/public/a..",
    "/%70ublic/a": "/public/a",
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("path", SPELLINGS)
async def test_what_is_judged_is_what_is_sent(path: str, entry: str) -> None:
    """A harmless spelling is made canonical once; policy, upstream and audit have that one."""
    canonical = SPELLINGS[path]
    async with a_lab(entry) as lab:
        assert (await ask(lab, entry, path)).json["target"] == canonical
        await lab.audited(f"GET {canonical} allow allowed 200 complete")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("path", ["/public/a%2Fb", "/public/a%2fb"])
async def test_an_encoded_slash_needs_a_rule_that_says_so(path: str, entry: str) -> None:
    """%2F is one segment or two, depending on the origin: denied, unless the rule has `encoded_slash`."""
    async with a_lab(entry) as lab:
        assert (await ask(lab, entry, path)).reason == "no_rule_matched"
        await lab.refused("GET /public/a%2Fb deny no_rule_matched 403 denied")
    async with a_lab(entry, [{**PUBLIC, "encoded_slash": True}]) as lab:
        assert (await ask(lab, entry, path)).json["target"] == "/public/a%2Fb"
        await lab.audited("GET /public/a%2Fb allow allowed 200 complete")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("path", ["/secret", "/PUBLIC/x", "/public", "/publicx/y", "/Public/x"])
async def test_near_misses_are_denied(path: str, entry: str) -> None:
    """A path is matched by segments, with case."""
    async with a_lab(entry) as lab:
        assert (await ask(lab, entry, path)).reason == "no_rule_matched"
        await lab.refused(f"GET {path} deny no_rule_matched 403 denied")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("query", ["a=#b", "a=\x7f", "a=\xe4"])
async def test_an_odd_query_is_refused(query: str, entry: str) -> None:
    """A query holds visible ASCII without a fragment."""
    async with a_lab(entry) as lab:
        answer = await ask(lab, entry, f"/public/x?{query}")
        assert answer.status == 400
        await lab.until(lambda: len(lab.records) == 1)
        (record,) = lab.records
        method = record.request.method if record.request is not None else ""
        await lab.refused(f"{method or '-'} {place(lab, entry, method)} deny {answer.reason} 400 denied")


METHODS = {"TRACE": "method_refused", "get": "method_refused", "G ET": "bad_request", "GET\x00": "bad_request"}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("method", METHODS)
async def test_methods_that_are_not_forwarded(method: str, entry: str) -> None:
    """TRACE would show a credential to the guest; what is no upper-case token is no method."""
    async with a_lab(entry) as lab:
        answer = await ask(lab, entry, "/public/x", method)
        assert answer.reason == METHODS[method]
        await lab.refused(f"- {place(lab, entry, '')} deny {answer.reason} {answer.status} denied")


URIS = {
    "userinfo": ("http://user:pass@HOST/public/x", "bad_target"),
    "userinfo that looks like the host": ("http://api.test@evil.test/public/x", "bad_target"),
    "an empty userinfo": ("http://@HOST/public/x", "bad_target"),
    "a fragment": ("http://HOST/public/x#/../secret", "bad_path"),
    "a fragment for a host": ("http://evil.test#@HOST/public/x", "bad_target"),
    "a backslash for a slash": ("http://evil.test\\@HOST/public/x", "bad_target"),
    "another scheme": ("ftp://HOST/public/x", "bad_request"),
    "file": ("file:///etc/passwd", "bad_request"),
    "one slash": ("http:/HOST/public/x", "bad_request"),
    "three slashes": ("http:///HOST/public/x", "bad_target"),
    "no host": ("http:///public/x", "bad_target"),
    "a port and no host": ("http://:80/public/x", "bad_target"),
    "a port of letters": ("http://api.test:http/public/x", "bad_target"),
    "an escape in the host": ("http://api%2etest/public/x", "bad_target"),
    "a full-width dot": ("http://api\uff0etest/public/x", "bad_request"),
    "a host in brackets": ("http://[api.test]/public/x", "bad_target"),
    "an odd address": ("http://0x7f000001/public/x", "bad_target"),
    "a mapped address with a zone": ("http://[::ffff:127.0.0.1%25lo]/public/x", "bad_target"),
    "javascript": ("javascript:alert(1)", "bad_request"),
    "the base-URL form": ("/api/public/x", "bad_request"),
}


@pytest.mark.parametrize("what", URIS)
async def test_odd_uris_are_refused(what: str) -> None:
    """An absolute URI is http or https, host, port, path, query, and nothing else."""
    uri, reason = URIS[what]
    async with a_lab("proxy") as lab:
        client = await lab.proxy()
        uri = uri.replace("HOST", lab.authority())
        await client.send(f"GET {uri} HTTP/1.1\r\nhost: {lab.authority()}\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.reason == reason
        client.close()
        method = "-" if what == "a full-width dot" else "GET"
        known = lab.authority() if what == "a fragment" else "-"
        await lab.refused(f"{method} {known} deny {reason} {answer.status} denied")


@pytest.mark.parametrize("host", ["evil.test", "api.test", "api.test:1", ""])
async def test_an_absolute_uri_and_its_host_agree(host: str) -> None:
    """A proxy's request names its target twice: both have to be the same, port included."""
    async with a_lab("proxy") as lab:
        client = await lab.proxy()
        await client.send(f"GET http://{lab.authority()}/public/x HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.reason == ("target_mismatch" if host else "bad_target")
        client.close()
        await lab.refused(f"GET {lab.authority()} deny {answer.reason} {answer.status} denied")


@pytest.mark.parametrize(
    "target", ["/", "/nowhere/x", "/API/x", "/apix/y", "http://api.test/api/x", "*", "/~token/api/x"]
)
async def test_the_base_url_entry_has_its_routes_only(target: str) -> None:
    """There is no open proxy at the base-URL entry: a route that is not there leads nowhere."""
    async with a_lab("base") as lab:
        client = await lab.base()
        await client.send(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.status == 400
        client.close()
        asked = "api.test:80" if "://" in target else "-"
        await lab.refused(f"GET {asked} deny {answer.reason} 400 denied")


async def test_connect_at_the_base_url_entry_is_refused() -> None:
    """No tunnels there."""
    async with a_lab("base") as lab:
        client = await lab.base()
        await client.send(b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:443\r\n\r\n")
        assert (await client.answer()).reason == "method_refused"
        client.close()
        await lab.refused("CONNECT api.test:443 deny method_refused 501 denied")


async def test_a_scheme_is_part_of_the_target() -> None:
    """A rule for https does not cover http, and the other way round."""
    https: dict[str, Any] = {"id": "s", "allow": {"hosts": ["api.test"], "schemes": ["https"], "ports": ["1-65535"]}}
    async with a_lab("proxy", [https]) as lab:
        assert (await ask(lab, "proxy", "/x")).reason == "no_rule_matched"
        await lab.refused("GET /x deny no_rule_matched 403 denied")


CORPUS = [
    ("GET", "/public/a"), ("HEAD", "/public/a"), ("POST", "/public/a"), ("GET", "/secret"),
    ("GET", "/public/../secret"),
    ("GET", "/public/%2e%2e/secret"), ("DELETE", "/public/a"), ("OPTIONS", "/public/a"), ("GET", "/public/a?x=1"),
    ("GET", "/public/forbidden/x"),
]  # fmt: skip
MIXED = [
    {**PUBLIC, "allow": {**PUBLIC["allow"], "methods": ["GET", "POST"]}},
    {"id": "no", "deny": {"hosts": ["api.test"], "paths": ["/public/forbidden/**"]}},
]


async def test_every_entry_gives_the_same_verdict() -> None:
    """One policy, one corpus, three entries: verdict, reason and rule are the same."""
    told: dict[str, list[tuple[Any, ...]]] = {}
    for entry in ENTRIES:
        async with a_lab(entry, MIXED, checks=False) as lab:
            for method, path in CORPUS:
                await ask(lab, entry, path, method)
            await lab.until(lambda lab=lab: len(lab.records) == len(CORPUS))  # type: ignore[misc]
            told[entry] = [(record.verdict, record.reason, record.rule) for record in lab.records]
    assert told["tunnel"] == told["proxy"] == told["base"]
    assert {verdict for verdict, _, _ in told["tunnel"] if verdict} == {"allow", "deny"}
