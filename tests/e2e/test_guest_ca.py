"""A CA for each guest (`ca: each_guest`): no guest trusts what is signed for another one, whoever came first."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from seamgate.ca.leaf import LeafForbidden
from seamgate.ca.store import CaConfig, files_of, init_ca, load_ca, permitted_names
from seamgate.config import Config
from seamgate.entry.identity import GuestConfig
from seamgate.errors import ConfigError
from seamgate.flow import Guest
from seamgate.signing import check_authorities
from support.certificates import guest_context
from support.cli import Running, make_folder, proxy_port, seamgate
from support.client import Client, start_tls
from support.crew import Crew, worker_of
from support.lab import OTHER_TOKEN, TOKEN, Lab, proxy_authorization
from support.programs import run
from support.reloads import reload
from support.upstream import HttpUpstream, echo

EACH: dict[str, Any] = {"entries": {"proxy": {"guest": ""}}, "ca": {"each_guest": True}}
RESEARCH = {
    "id": "research",
    "allow": {"hosts": ["api.test", "*.lab.test"], "ports": ["1-65535"]},
    "guests": {"team": "research"},
}
SALES = {"id": "sales", "allow": {"hosts": ["**"], "ports": ["1-65535"]}, "guests": {"team": "sales"}}
NONE = {"id": "none", "deny": {"hosts": ["**"], "paths": ["/none"], "ports": ["1-65535"]}}
TOKENS = {"g": TOKEN, "h": OTHER_TOKEN}


def certificate(lab: Lab, guest: str) -> Path:
    """Return where this guest's CA certificate is."""
    return files_of(lab.folder / "ca", guest).certificate


def limits(lab: Lab, guest: str) -> tuple[str, ...] | None:
    """Return what the certificate on the disk limits this guest's CA to."""
    return permitted_names(load_ca(lab.folder / "ca", guest=guest).certificate)


async def tunnel(lab: Lab, guest: str, context: ssl.SSLContext) -> Client:
    """Open a tunnel as this guest, with a client that trusts what it is given, and TLS in it."""
    line, head = await lab.connect(lab.authority(), proxy_authorization(TOKENS[guest]))
    assert head.startswith(b"HTTP/1.1 200 "), head
    inner = await start_tls(line, context, lab.authority().rpartition(":")[0])
    lab._lines.append(inner)
    lab._lines.remove(line)
    return Client(inner, lab.authority())


@pytest.mark.parametrize("first", ["g", "h"])
async def test_no_guest_is_shown_anothers_leaf(first: str) -> None:
    """For one host, one after the other: each trusts what it sees, and none would trust what the other one sees."""
    second = "h" if first == "g" else "g"
    async with Lab(HttpUpstream(echo), settings=EACH) as lab:
        trusts = {guest: guest_context(certificate(lab, guest)) for guest in TOKENS}
        for guest in (first, second, first):
            client = await tunnel(lab, guest, trusts[guest])
            assert (await client.ask("GET", "/x")).status == 200
            client.close()
            await lab.audited("GET /x allow allowed 200 complete")
        for guest, other in (("g", "h"), ("h", "g")):
            with pytest.raises(ssl.SSLCertVerificationError):
                await tunnel(lab, guest, trusts[other])
            record = (await lab.audited(f"CONNECT {lab.authority()} deny guest_tls_failed 200 denied"))[0]
            assert record.guest is not None and record.guest.id == guest
        assert not files_of(lab.folder / "ca").directory.joinpath("guests", "ca.pem").exists()


async def test_a_session_is_not_resumed_as_another_guest() -> None:
    """A ticket that one guest got means nothing in another one's tunnel: it would be served without a certificate."""
    async with Lab(HttpUpstream(echo), settings=EACH) as lab:
        context = _Resuming(ssl.PROTOCOL_TLS_CLIENT)
        for guest in TOKENS:
            context.load_verify_locations(certificate(lab, guest))
        for guest, resumed in (("g", False), ("g", True), ("h", False)):
            client = await tunnel(lab, guest, context)
            assert (await client.ask("GET", "/x")).status == 200
            assert context.last.session_reused is resumed, guest
            context.offered = context.offered or context.last.session
            client.close()
            await lab.audited("GET /x allow allowed 200 complete")


class _Resuming(ssl.SSLContext):
    """A client's context that offers the session it was given."""

    offered: ssl.SSLSession | None = None
    last: ssl.SSLObject

    def wrap_bio(self, incoming: Any, outgoing: Any, *more: Any, **named: Any) -> ssl.SSLObject:
        self.last = super().wrap_bio(incoming, outgoing, *more, **{**named, "session": self.offered})
        return self.last


async def test_each_is_limited_to_what_its_policy_could_allow() -> None:
    """By its labels: a closed list limits it, an open one does not. Its key is readable by the gateway's user only."""
    async with Lab(HttpUpstream(echo), settings=EACH, rules=[RESEARCH, SALES]) as lab:
        assert limits(lab, "g") == ("api.test", "lab.test")
        assert limits(lab, "h") is None
        for guest in TOKENS:
            files = files_of(lab.folder / "ca", guest)
            assert (files.directory.stat().st_mode & 0o777, files.key.stat().st_mode & 0o777) == (0o700, 0o600)
        client = await tunnel(lab, "g", guest_context(certificate(lab, "g")))
        assert (await client.ask("GET", "/x")).status == 200
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")


async def test_a_reload_takes_guests_and_limits() -> None:
    """A new guest has a CA at once; a policy that says more renews a certificate under the key that clients trust."""
    everywhere = {**RESEARCH, "allow": {"hosts": ["api.test", "new.test"], "ports": ["1-65535"]}}
    async with Lab(HttpUpstream(echo, "api.test", "new.test"), settings=EACH, rules=[RESEARCH]) as lab:
        before = guest_context(certificate(lab, "g"))
        key = files_of(lab.folder / "ca", "g").key.read_bytes()
        (lab.folder / "new").write_text("n" * 40)
        new = {"token": {"file": str(lab.folder / "new")}, "labels": {"team": "research"}}
        reload(lab, [everywhere], settings={**EACH, "guests": {"n": new, "h": None}})
        TOKENS_NOW = {**TOKENS, "n": "n" * 40}
        assert limits(lab, "g") == limits(lab, "n") == ("api.test", "new.test")
        assert files_of(lab.folder / "ca", "g").key.read_bytes() == key
        port = lab.upstream.port
        for guest, host, context, serves in (
            ("g", "api.test", before, True),
            ("g", "new.test", before, False),
            ("g", "new.test", guest_context(certificate(lab, "g")), True),
            ("n", "new.test", guest_context(certificate(lab, "n")), True),
            ("n", "new.test", guest_context(certificate(lab, "g")), False),
        ):
            line, head = await lab.connect(f"{host}:{port}", proxy_authorization(TOKENS_NOW[guest]))
            assert head.startswith(b"HTTP/1.1 200 "), head
            if serves:
                lab._lines.append(await start_tls(line, context, host))
                lab._lines.remove(line)
                lab._lines[-1].close()
                continue
            with pytest.raises(ssl.SSLCertVerificationError):
                await start_tls(line, context, host)
            await lab.audited(f"CONNECT {host}:{port} deny guest_tls_failed 200 denied")
        _, head = await lab.connect(lab.authority(), proxy_authorization(OTHER_TOKEN))
        assert head.startswith(b"HTTP/1.1 407 ")
        await lab.audited("CONNECT - deny unauthenticated 407 denied")


async def test_a_reload_deletes_the_ca_of_who_is_taken_away() -> None:
    """Its key signs for nobody any more; one of that name that comes later has another. What others put there stays."""
    async with Lab(HttpUpstream(echo), settings=EACH) as lab:
        files = files_of(lab.folder / "ca", "h")
        key = files.key.read_bytes()
        files.make_no_roots()
        reload(lab, settings={**EACH, "guests": {"h": None}})
        assert not files.directory.exists() and certificate(lab, "g").exists()
        reload(lab, settings=EACH)
        assert files.key.read_bytes() != key
        (files.directory / "note").write_text("mine")
        reload(lab, settings={**EACH, "guests": {"h": None}})
        assert [each.name for each in files.directory.iterdir()] == ["note"]


async def test_who_is_unchanged_keeps_its_leaves() -> None:
    """A reload that changes nothing about a guest's limits makes it no new CA object, with or without leaves."""
    async with Lab(HttpUpstream(echo), settings=EACH, rules=[RESEARCH, SALES]) as lab:
        guests = [Guest(name) for name in TOKENS]
        before = [lab.gateway.authorities.of(guest) for guest in guests]
        before[0].leaf_context("api.test")
        reload(lab, [RESEARCH, SALES, NONE], settings=EACH)
        assert [lab.gateway.authorities.of(guest) for guest in guests] == before
        with pytest.raises(LeafForbidden, match="has no CA"):
            lab.gateway.authorities.of(Guest("nobody"))


async def test_a_refused_reload_renews_nothing() -> None:
    """What can't be taken over leaves every certificate as it is, and makes nobody lose trust."""
    async with Lab(HttpUpstream(echo), settings=EACH, rules=[RESEARCH]) as lab:
        before = certificate(lab, "g").read_bytes()
        with pytest.raises(ConfigError):
            reload(lab, [SALES, {**SALES, "id": "research"}], settings={**EACH, "dns": {"servers": ["nowhere"]}})
        assert certificate(lab, "g").read_bytes() == before
        client = await tunnel(lab, "g", guest_context(certificate(lab, "g")))
        assert (await client.ask("GET", "/x")).status == 200
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")


async def test_a_key_that_others_can_read_stops_the_start() -> None:
    """A guest's CA is loaded with the same suspicion as the shared one, and the error says whose it is."""
    async with Lab(HttpUpstream(echo), settings=EACH) as lab:
        files_of(lab.folder / "ca", "g").key.chmod(0o644)
        with pytest.raises(ConfigError, match=r"(?s)CA of 'g'.*open to others.*ca init --guest g --force"):
            lab.gateway.authorities.__class__(lab.gateway.config).prepare(lab.gateway.config, ())


def test_a_check_finds_what_a_start_could_not_make(tmp_path: Path) -> None:
    """A CA that is missing and can't be made, or is there and can't be trusted; it makes nothing itself."""
    (tmp_path / "file").write_text("")
    init_ca(tmp_path / "ca", guest="a")
    for folder, guests, problem in (
        ("file", "a", f"CA of the guest 'a' can't be made: {tmp_path}/file is no folder"),
        ("new", "a", ""),
        ("ca", "ab", ""),
    ):
        config = Config(
            ca=CaConfig(dir=folder, each_guest=True), base=tmp_path, guests={guest: GuestConfig() for guest in guests}
        )
        with pytest.raises(ConfigError, match=problem) if problem else nullcontext():
            check_authorities(config)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["file", "ca", "guests", "a", "ca.bundle.pem", "ca.key", "ca.p12", "ca.pem"]
    )
    files_of(tmp_path / "ca", "a").key.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        check_authorities(config)


async def test_workers_sign_as_one() -> None:
    """Each guest is served by every worker with what its one CA signed; one that is started again has it too."""
    async with Crew(HttpUpstream(echo), settings=EACH, rules=[RESEARCH, NONE]) as crew:
        context = guest_context(certificate(crew, "g"))
        seen: set[int] = set()
        while len(seen) < 2:
            clients = await asyncio.gather(*[tunnel(crew, "g", context) for _ in range(4)])
            for client in clients:
                seen.add(worker_of((await client.ask("GET", "/none")).header(b"x-request-id")))
                client.close()
        await crew.kill(0)
        await crew.serving()
        crew.write_policy([{**RESEARCH, "allow": {"hosts": ["api.test"], "ports": ["1-65535"]}}, NONE])
        await crew.supervisor.reload_everywhere()
        assert limits(crew, "g") == ("api.test",)
        for trusted in (context, guest_context(certificate(crew, "g"))):
            client = await tunnel(crew, "g", trusted)
            assert (await client.ask("GET", "/x")).status == 200
            client.close()


def test_the_command_line_hands_it_out(tmp_path: Path) -> None:
    """`serve` makes it, `ca show` tells its limits and prints it, `ca env` names it; curl trusts it and no other."""
    folder = make_folder(tmp_path)
    path = folder / "seamgate.yaml"
    path.write_text(path.read_text() + "ca: {each_guest: true, dir: authorities}\n")
    done = seamgate("serve", "--check", home=folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "authorities").exists()
    missing = seamgate("ca", "show", "--dir", "authorities", "--guest", "agent", home=folder)
    assert missing.returncode == 2 and "ca init --guest agent" in missing.stderr
    with Running("serve", "--log-format", "json", home=folder) as gateway:
        port = proxy_port(gateway.wait_for('"start"'))
        shown = seamgate("ca", "show", "--dir", "authorities", "--guest", "agent", home=folder)
        assert "limited to" in shown.stdout and "a.example" in shown.stdout
        pem = seamgate("ca", "show", "--dir", "authorities", "--guest", "agent", "--pem", home=folder).stdout
        (folder / "agent.pem").write_text(pem)
        env = seamgate("ca", "env", "--dir", "authorities", "--guest", "agent", home=folder).stdout
        assert f"SSL_CERT_FILE={folder}/authorities/guests/agent/ca.pem" in env
        seamgate("ca", "init", "--dir", "other", "--guest", "agent", home=folder)
        token = (folder / "agent.token").read_text().strip()
        codes = [
            subprocess.run(
                ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{ssl_verify_result}", "--cacert", str(trusted),
                 "-x", f"http://agent:{token}@127.0.0.1:{port}", "https://a.example/%2e%2e/x"],
                capture_output=True, text=True, timeout=60, check=False,
            ).returncode
            for trusted in (folder / "agent.pem", folder / "other" / "guests" / "agent" / "ca.pem")
        ]  # fmt: skip
        assert codes == [0, 60]


@pytest.mark.clients
async def test_socks_knows_the_guest_too() -> None:
    """The login comes before TLS there as well, so each guest is shown its own."""
    settings = {**EACH, "entries": {"proxy": {"guest": ""}, "socks5": {"listen": "127.0.0.1:0"}}}
    async with Lab(HttpUpstream(echo), settings=settings) as lab:
        host, port = lab.gateway.addresses["socks5"]
        for guest, trusted, code in (("g", "g", 0), ("h", "h", 0), ("g", "h", 60)):
            proxy = f"socks5h://{guest}:{TOKENS[guest]}@{host}:{port}"
            ca = str(certificate(lab, trusted))
            told = await run("curl", "-sS", "--max-time", "60", "--cacert", ca, "-x", proxy, lab.url("/x"), env={})
            assert told[0] == code, told
        await lab.audited(
            *["GET /x allow allowed 200 complete"] * 2, f"CONNECT {lab.authority()} deny guest_tls_failed 0 denied"
        )
