"""Upstreams behind a company's proxy: CONNECT, a login, TLS to it, exceptions; and nothing goes around it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fake_dns import FakeDns
from seamgate import launch
from seamgate.audit.record import AuditRecord
from seamgate.config import parse_config
from seamgate.credentials import sources
from seamgate.errors import ConfigError
from seamgate.upstream.parent import read_status
from support.certificates import upstream_ca
from support.lab import ALLOW_ALL, TOKEN, Lab
from support.line import Line
from support.parent_proxy import ParentProxy
from support.upstream import HttpUpstream, RawUpstream, echo

LOGIN = "svc-agents:pr0xy-passw0rd-7c1e"
PASSWORD = LOGIN.partition(":")[2]


def settings(parent: ParentProxy, tmp_path: Path, *, resolve: str = "gateway", **more: Any) -> dict[str, Any]:
    """Return the settings of a gateway that reaches everything through this proxy."""
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "password").chmod(0o600)
    upstream_ca().cert_pem.write_to_path(tmp_path / "ca.pem")
    section: dict[str, Any] = {"url": parent.url, "resolve": resolve, **more}
    if parent.url.startswith("https:"):
        section["ca"] = str(tmp_path / "ca.pem")
    names = {"proxy.test": ["127.0.0.1"], "api.test": ["127.0.0.1"]}
    return {"upstream_proxy": section, "dns": {"addresses": names}}


def login(tmp_path: Path) -> dict[str, Any]:
    """Return the section `login`."""
    return {"username": "svc-agents", "password": {"file": str(tmp_path / "password")}}


def upstream_address(record: AuditRecord) -> str:
    """Return what the audit record says of where a request went."""
    assert record.upstream is not None
    return record.upstream.address


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_requests_go_through_it_and_reuse_their_tunnel(tls: bool, tmp_path: Path) -> None:
    """With the login, by the address that was validated; TLS with the upstream inside; one tunnel serves."""
    async with ParentProxy(login=LOGIN, tls=tls) as parent:
        given = settings(parent, tmp_path, login=login(tmp_path))
        async with Lab(HttpUpstream(echo), settings=given) as lab:
            client = await lab.tunnel()
            for _ in range(2):
                answer = await client.ask("POST", "/x", body=b"y" * 100_000)
                assert len(json.loads(answer.body)["body"]) == 100_000
            records = await lab.audited(*["POST /x allow allowed 200 complete"] * 2)
            assert [upstream_address(record) for record in records] == ["127.0.0.1"] * 2
            assert parent.asked == [f"127.0.0.1:{lab.upstream.port}"]
            assert parent.logins == [LOGIN]
            assert "".join(dict(talk.headers).get(b"proxy-authorization", b"").decode() for talk in _talks(lab)) == ""
            assert PASSWORD.encode() not in lab.gateway.journal_path.read_bytes()


def _talks(lab: Lab) -> list[Any]:
    assert isinstance(lab.upstream, HttpUpstream)
    return lab.upstream.talks


async def test_the_proxy_resolves_where_that_is_said(tmp_path: Path) -> None:
    """The name goes to it, no DNS server hears of it, and the record says that no address is known."""
    async with FakeDns() as dns, ParentProxy({"api.test": "127.0.0.1"}) as parent:
        given = settings(parent, tmp_path, resolve="proxy")
        given["dns"] = {"addresses": {"proxy.test": ["127.0.0.1"]}, "servers": [dns.server]}
        given["permit_addresses"] = ["127.0.0.1"]
        async with Lab(HttpUpstream(echo), settings=given) as lab:
            client = await lab.tunnel()
            assert (await client.ask("GET", "/x")).status == 200
            (record,) = await lab.audited("GET /x allow allowed 200 complete")
            assert upstream_address(record) == "proxy"
            assert parent.asked == [lab.authority()]
            assert [question for question in dns.queries if question[0] != "proxy.test"] == []


async def test_addresses_are_checked_before_the_proxy_hears_of_them(tmp_path: Path) -> None:
    """A name that leads to a private address, and a literal one: refused, whoever resolves names."""
    for resolve in ("gateway", "proxy"):
        async with ParentProxy() as parent:
            given = settings(parent, tmp_path, resolve=resolve)
            given["permit_addresses"] = []
            given["dns"]["addresses"] = {"proxy.test": ["127.0.0.1"], "api.test": ["10.0.0.1"]}
            rule = {**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["api.test", "169.254.169.254", "localhost"]}}
            async with Lab(HttpUpstream(echo), rules=[rule], settings=given) as lab:
                hosts = ["169.254.169.254", "localhost"] + (["api.test"] if resolve == "gateway" else [])
                for host in hosts:
                    client = await lab.proxy(authority=f"{host}:80")
                    assert (await client.ask("GET", "/x")).status == 403
                await lab.refused(*["GET /x deny address_forbidden 403 denied"] * len(hosts))
                assert parent.asked == []


async def test_exceptions_are_dialled(tmp_path: Path) -> None:
    """A host under `direct` never reaches the proxy, one beside it does."""
    async with ParentProxy() as parent:
        given = settings(parent, tmp_path, direct=["*.in.test", "127.0.0.9"])
        given["dns"]["addresses"]["a.in.test"] = ["127.0.0.1"]
        async with Lab(HttpUpstream(echo, "api.test", "a.in.test"), settings=given) as lab:
            for host, times in (("a.in.test", 0), ("api.test", 1)):
                client = await lab.tunnel(f"{host}:{lab.upstream.port}")
                assert (await client.ask("GET", "/x")).status == 200
                assert len(parent.asked) == times
            await lab.audited(*["GET /x allow allowed 200 complete"] * 2)


@pytest.mark.parametrize(
    ("refuses", "said"), [(403, "its own policy"), (407, "wants another login"), (502, "can't reach"), (599, "(599)")]
)
async def test_what_it_refuses_is_told(refuses: int, said: str, tmp_path: Path) -> None:
    """The guest and the record hear what the proxy said, and nothing is tried without it."""
    async with ParentProxy(refuses=refuses) as parent:
        async with Lab(HttpUpstream(echo), settings=settings(parent, tmp_path)) as lab:
            client = await lab.tunnel()
            answer = await client.ask("GET", "/x")
            assert answer.status == 502
            assert said in answer.body.decode() and "upstream proxy" in answer.body.decode()
            await lab.audited("GET /x allow connect_failed 502 failed")
            assert lab.upstream.received == b""


async def test_a_dead_proxy_fails_closed_and_comes_back(tmp_path: Path) -> None:
    """While it is gone every request fails with its name; nothing is dialled directly; once it is back, all is well."""
    async with ParentProxy() as parent:
        async with Lab(HttpUpstream(echo), settings=settings(parent, tmp_path)) as lab:
            client = await lab.tunnel()
            assert (await client.ask("GET", "/1")).status == 200
            await parent.stop()
            answer = await client.ask("GET", "/2")
            assert answer.status == 502 and f"proxy.test:{parent.port}" in answer.body.decode()
            connections = len(lab.upstream.lines)
            await parent.__aenter__()
            assert (await client.ask("GET", "/3")).status == 200
            assert len(lab.upstream.lines) == connections + 1
            await lab.audited(
                "GET /1 allow allowed 200 complete",
                "GET /2 allow connect_failed 502 failed",
                "GET /3 allow allowed 200 complete",
            )


async def test_a_proxy_with_a_wrong_certificate_gets_no_login(tmp_path: Path) -> None:
    """TLS to it is verified before a byte of CONNECT."""
    async with ParentProxy(login=LOGIN, tls=True) as parent:
        given = settings(parent, tmp_path, login=login(tmp_path))
        del given["upstream_proxy"]["ca"]
        async with Lab(HttpUpstream(echo), settings=given) as lab:
            client = await lab.tunnel()
            answer = await client.ask("GET", "/x")
            assert (answer.status, answer.reason) == (502, "upstream_tls_failed")
            assert "upstream proxy" in answer.body.decode()
            assert parent.heads == []
            await lab.audited("GET /x allow upstream_tls_failed 502 failed")


async def test_a_login_that_is_gone_fails_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any credential: the file is removed, and no request leaves."""
    monkeypatch.setattr(sources, "FILE_CHECK_INTERVAL_S", 0.0)
    async with ParentProxy(login=LOGIN) as parent:
        given = settings(parent, tmp_path, login=login(tmp_path))
        async with Lab(HttpUpstream(echo), settings=given) as lab:
            (tmp_path / "password").unlink()
            client = await lab.tunnel()
            answer = await client.ask("GET", "/x")
            assert (answer.status, answer.reason) == (503, "credential_unavailable")
            assert parent.heads == []
            await lab.told()


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"SSH-2.0-x\r\n\r\n", b"x" * 20_000, b"HTTP/1.1 200 OK\r\nx: y"],
    ids=["status", "version", "banner", "endless", "cut"],
)
async def test_an_answer_that_is_none_opens_nothing(answer: bytes, tmp_path: Path) -> None:
    """What is no head of HTTP/1.1 with a 2xx is a failure, however long it is."""

    async def script(line: Line) -> None:
        await line.some()
        await line.send(answer)
        line.close()

    fake = RawUpstream(script, "proxy.test", tls=False)
    await fake.start()
    parent = ParentProxy()
    parent.port = fake.port
    async with Lab(HttpUpstream(echo), settings=settings(parent, tmp_path)) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 502
        await lab.audited("GET /x allow connect_failed 502 failed")
    await fake.stop()


async def test_plain_http_and_unread_streams_go_through_it(tmp_path: Path) -> None:
    """Everything by CONNECT: a request over http, and a stream that a rule passes on unread, banner first."""

    async def banner(line: Line) -> None:
        await line.send(b"220 hello\r\n")
        assert await line.some() == b"QUIT\r\n"
        await line.send(b"221 bye\r\n")
        line.close()

    web = {"id": "web", "allow": {**ALLOW_ALL["allow"], "hosts": ["api.test"]}}
    rules = [web, {"id": "mail", "allow": {"hosts": ["mail.test"], "ports": ["1-65535"], "protocol": "tcp"}}]
    for tls in (False, True):
        async with ParentProxy({"mail.test": "127.0.0.1"}, tls=tls) as parent:
            given = settings(parent, tmp_path, resolve="proxy")
            given["dns"]["addresses"]["mail.test"] = ["10.9.9.9"]
            given["dns"]["addresses"]["api.test"] = ["127.0.0.1"]
            parent._names = {"mail.test": "127.0.0.1", "api.test": "127.0.0.1"}
            plain, mail = HttpUpstream(echo, tls=False), RawUpstream(banner, "mail.test", tls=False)
            async with Lab(plain, mail, rules=rules, settings=given) as lab:
                assert (await (await lab.proxy()).ask("GET", "/x")).status == 200
                line, head = await lab.connect(lab.authority(1))
                assert head.startswith(b"HTTP/1.1 200 ")
                await line.until(b"220 hello\r\n")
                await line.send(b"QUIT\r\n")
                await line.until(b"221 bye\r\n")
                assert parent.asked == [lab.authority(), lab.authority(1)]
                await lab.told()


async def test_a_reload_brings_another_proxy_or_none(tmp_path: Path) -> None:
    """Sessions of the old one are not used again; what was carried by it is judged anew."""
    async with ParentProxy() as first, ParentProxy() as second:
        async with Lab(HttpUpstream(echo), settings=settings(first, tmp_path)) as lab:
            client = await lab.tunnel()
            for parent in (first, second, None):
                if parent is not first:
                    given = lab.settings()
                    given.pop("upstream_proxy")
                    if parent is not None:
                        given |= {"upstream_proxy": settings(parent, tmp_path)["upstream_proxy"]}
                    text = json.dumps(given)
                    lab.gateway.reload(parse_config(text, "seamgate.yaml", base=lab.folder))
                assert (await client.ask("GET", "/x")).status == 200
            assert (len(first.asked), len(second.asked), len(lab.upstream.lines)) == (1, 1, 3)
            await lab.audited(*["GET /x allow allowed 200 complete"] * 3)


async def test_two_gateways_in_a_row(tmp_path: Path) -> None:
    """The parent may be another Seamgate that reads along: its CA is named, its token is the login, both audit."""
    rule = {"id": "api", "allow": {"hosts": ["api.test"], "ports": ["1-65535"], "paths": ["/ok"]}}
    patient = {"limits": {"plugin_budget_s": 20.0}}  # wall time; there is twice as much to do
    async with Lab(HttpUpstream(echo), rules=[rule], settings={"entries": {"proxy": {"guest": ""}}, **patient}) as far:
        (tmp_path / "password").write_text(TOKEN)
        (tmp_path / "password").chmod(0o600)
        host, port = far.gateway.addresses["proxy"]
        section = {"url": f"http://{host}:{port}", "resolve": "proxy", "login": login(tmp_path)}
        given = {
            **patient,
            "upstream_proxy": section,
            "upstream_tls": {"origins": [{"hosts": ["api.test"], "ca": str(far.gateway.ca_path), "roots": "only"}]},
        }
        async with Lab(settings=given) as near:
            client = await near.tunnel(far.authority())
            assert (await client.ask("GET", "/ok")).status == 200
            answer = await client.ask("GET", "/no")
            assert (answer.status, answer.reason) == (403, "") and b"no_rule_matched" in answer.body
            await near.audited("GET /ok allow allowed 200 complete", "GET /no allow allowed 403 complete")
            await far.audited("GET /ok allow allowed 200 complete", "GET /no deny no_rule_matched 403 denied")


async def test_a_proxy_that_is_the_gateway_itself_is_refused(tmp_path: Path) -> None:
    """It would ask itself forever."""
    parent = ParentProxy()
    parent.port = 9
    async with Lab(HttpUpstream(echo), settings=settings(parent, tmp_path)) as lab:
        given = lab.settings()
        host, port = lab.gateway.addresses["proxy"]
        given["upstream_proxy"]["url"] = f"http://{host}:{port}"
        lab.gateway.reload(parse_config(json.dumps(given), "seamgate.yaml", base=lab.folder))
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).reason == "own_address"
        await lab.told()


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"url": "http://p.test:3128"}, "resolve"),
        ({"url": "http://p.test", "resolve": "proxy"}, "port"),
        ({"url": "http://me:secret@p.test:3128", "resolve": "proxy"}, "login"),
        ({"url": "socks5://p.test:3128", "resolve": "proxy"}, "http"),
        ({"url": "http://p.test:3128", "resolve": "proxy", "direct": ["*.*.x"]}, "host name"),
        ({"url": "http://p.test:3128", "resolve": "both"}, "resolve"),
    ],
)
def test_a_section_that_can_not_work_is_refused(section: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Who resolves names must be said; the URL has a port and no login."""
    text = json.dumps(
        {
            "entries": {"proxy": {"guest": "g"}},
            "guests": {"g": {}},
            "policies": ["p.yaml"],
            "upstream_proxy": section,
        }
    )
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_config(text, "seamgate.yaml", base=tmp_path)
    assert "secret" not in caught.value.message


def test_a_run_gives_its_program_no_login(tmp_path: Path) -> None:
    """The variable that holds the password is not passed on, the file is one to hide."""
    section = {"url": "http://p.test:3128", "resolve": "proxy"}
    text = {"entries": {"proxy": {"guest": "g"}}, "guests": {"g": {}}, "policies": ["p.yaml"]}
    by_variable = {**section, "login": {"username": "u", "password": {"env": "PROXY_PASSWORD"}}}
    config = parse_config(json.dumps({**text, "upstream_proxy": by_variable}), "s.yaml", base=tmp_path)
    assert launch.without_secrets(config, {"PROXY_PASSWORD": PASSWORD, "HOME": "/x"}) == {"HOME": "/x"}
    by_file = {**section, "login": {"username": "u", "password": {"file": "pw"}}}
    config = parse_config(json.dumps({**text, "upstream_proxy": by_file}), "s.yaml", base=tmp_path)
    assert tmp_path / "pw" in launch.secret_files(config, tmp_path / "audit.jsonl")


async def test_commands_see_no_secret_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does the command for the proxy's password see credentials, nor a credential's command that password."""
    monkeypatch.setenv("API_KEY", "api-key-0123456789")
    command = ["sh", "-c", 'printf "%s" "v-${API_KEY:-none}-${PROXY_PASSWORD:-none}"']
    seen = "v-none-none"
    async with ParentProxy(login=f"svc-agents:{seen}") as parent:
        given = settings(parent, tmp_path, login={"username": "svc-agents", "password": {"command": command}})
        given["credentials"] = {"other": {"source": {"env": "API_KEY"}, "hosts": ["other.test"]}}
        async with Lab(HttpUpstream(echo), settings=given) as lab:
            assert (await (await lab.tunnel()).ask("GET", "/x")).status == 200
            await lab.audited("GET /x allow allowed 200 complete")
    monkeypatch.setenv("PROXY_PASSWORD", PASSWORD)
    async with ParentProxy(login=LOGIN) as parent:
        given = settings(parent, tmp_path, login={"username": "svc-agents", "password": {"env": "PROXY_PASSWORD"}})
        given["credentials"] = {"key": {"source": {"file": None, "command": command}}}
        rule = {**ALLOW_ALL, "credential": "key"}
        async with Lab(HttpUpstream(echo), rules=[rule], settings=given) as lab:
            assert (await (await lab.tunnel()).ask("GET", "/x")).status == 200
            assert _talks(lab)[0].header("x-api-key") == f"v-{os.environ['API_KEY']}-none"
            await lab.audited("GET /x allow allowed 200 complete")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"HTTP/1.1 200 Connection established\r\nvia: x", 200),
        (b"HTTP/1.0 204", 204),
        (b"HTTP/1.1 2000 x", 0),
        (b"HTTP/1.1  200", 0),
        (b"http/1.1 200", 0),
        (b"", 0),
    ],
)
def test_the_status_of_an_answer(head: bytes, status: int) -> None:
    """RFC 9112 4: a version that is known, one space, three digits."""
    assert read_status(head) == status
