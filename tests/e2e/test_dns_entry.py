"""The entry `dns` under kdig and raw sockets: the cache and policy of all requests, no look-up of a denied name."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dnslib import EDNS0, QTYPE, RCODE, DNSHeader, DNSQuestion, DNSRecord

from fake_dns import FakeDns, no_address, says, silence
from seamgate.audit.record import AuditKind, AuditRecord, Decision
from seamgate.config import parse_config
from seamgate.errors import ConfigError, Reason
from seamgate.flow import Guest, Target
from seamgate.verdict import Effect
from support.lab import Lab
from support.programs import run
from support.upstream import HttpUpstream, echo

pytestmark = pytest.mark.clients

RULES: list[dict[str, Any]] = [
    {"id": "shop", "allow": {"hosts": ["shop.example", "**.shop.example"], "ports": [8443]}},
    {"id": "no-admin", "deny": {"hosts": ["admin.shop.example"]}},
]


class Names:
    """A gateway with the entry, and the server that it asks."""

    def __init__(self, lab: Lab, dns: FakeDns) -> None:
        self.lab, self.dns = lab, dns
        self.address, self.port = lab.gateway.addresses["dns"]

    @classmethod
    def at(cls, lab: Lab) -> Names:
        """A client of a gateway that asks no server."""
        return cls(lab, FakeDns())

    async def kdig(self, *arguments: str) -> str:
        """Ask with Knot's kdig, once."""
        if shutil.which("kdig") is None:
            pytest.skip("kdig is not installed")
        command = ("kdig", f"@{self.address}", "-p", str(self.port), "+timeout=40", "+retry=0", *arguments)
        code, out, err = await run(*command, env={"PATH": "/usr/bin:/bin"})
        assert code == 0, err.decode()
        return out.decode()

    async def ask(self, *messages: bytes) -> list[DNSRecord]:
        """Send datagrams from one socket, and return as many answers."""
        return [DNSRecord.parse(answer) for answer in await self.raw(*messages)]

    async def raw(self, *messages: bytes) -> list[bytes]:
        """As `ask`, as they came."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect((self.address, self.port))
            for message in messages:
                client.send(message)
            async with asyncio.timeout(40):
                return [await loop.sock_recv(client, 65536) for _ in messages]

    @property
    def records(self) -> list[AuditRecord]:
        """What was audited of names, those that were let through included."""
        found = [each for each in self.lab.observer.records if each.request and each.request.method == "RESOLVE"]
        assert all(each.kind is AuditKind.CONNECT and each.entry == "dns" for each in found)
        return found

    def told(self) -> list[str]:
        """Return what was told, each once, as "host verdict reason"; take the records off the lab's list."""
        dns = self.lab.gateway.listeners.dns
        assert dns is not None
        dns.service._told.flush()
        self.lab._claimed = len(self.lab.records)
        found = [f"{each.request and each.request.host} {each.verdict} {each.reason}" for each in self.records]
        return list(dict.fromkeys(found))


@asynccontextmanager
async def names(**entry: Any) -> AsyncIterator[Names]:
    """Start both. The server knows shop.example."""
    async with FakeDns() as dns:
        dns.host("shop.example", "203.0.113.9", "2001:db8::9", ttl=300)
        settings = {
            "entries": {"dns": {"listen": "127.0.0.1:0", "guest": "g", **entry}},
            "dns": {"servers": [dns.server], "families": "both", "timeout_s": 1.0},
            "permit_addresses": ["loopback", "203.0.113.0/24", "2001:db8::/32"],
        }
        async with Lab(HttpUpstream(echo), rules=RULES, settings=settings) as lab:
            yield Names(lab, dns)


def query(name: str, kind: str = "A", *, number: int = 7, size_bytes: int = 0, dnssec: bool = False) -> bytes:
    """Return a query as a client makes it."""
    record = DNSRecord(DNSHeader(id=number, rd=1), q=DNSQuestion(name, getattr(QTYPE, kind)))
    if size_bytes:
        record.add_ar(EDNS0(flags="do" if dnssec else "", udp_len=size_bytes))
    return bytes(record.pack())


def texts(answer: DNSRecord) -> list[str]:
    """Return the data of the answer's records."""
    return [str(record.rdata) for record in answer.rr]


async def test_names_come_from_the_cache_of_all_requests() -> None:
    """Over UDP and TCP, each family, with the time that is left; one look-up serves all of it."""
    async with names() as service:
        said = await service.kdig("shop.example", "A")
        assert re.search(r"shop\.example\.\s+(29\d|300)\s+IN\s+A\s+203\.0\.113\.9", said), said
        said = await service.kdig("+tcp", "Shop.Example", "AAAA")
        assert re.search(r"IN\s+AAAA\s+2001:db8::9", said), said
        assert sorted(service.dns.queries) == [("shop.example", "A"), ("shop.example", "AAAA")]
        assert service.told() == ["shop.example allow allowed"]


@pytest.mark.parametrize(("choice", "code"), [("nxdomain", "NXDOMAIN"), ("refused", "REFUSED")])
async def test_a_denied_name_is_never_looked_up_and_says_why(choice: str, code: str) -> None:
    """By no rule or by a ban, of any type, over UDP and TCP, with DNSSEC or without; kdig prints the reason."""
    async with names(denied_names=choice) as service:
        said = await service.kdig("+edns", "elsewhere.example", "A")
        assert f"status: {code}" in said
        assert re.search(r"EDE: 15 \(Blocked\).*elsewhere\.example", said), said
        for arguments in (("+tcp", "TXT"), ("+dnssec", "A"), ("+cd", "HTTPS"), ("ANY",)):
            said = await service.kdig("admin.shop.example", *arguments)
            assert f"status: {code}" in said
        assert service.dns.queries == service.dns.tcp_queries == []
        assert service.told() == [
            "elsewhere.example deny no_rule_matched",
            "admin.shop.example deny rule_denied",
        ]


async def test_other_types_pass_as_they_are() -> None:
    """They go to the system's resolver, and its answer comes back byte for byte, failures included."""
    async with names() as service:
        service.dns.tell("shop.example", "MX", says("shop.example. 77 IN MX 10 mail.shop.example."))
        service.dns.tell("_sip._tcp.shop.example", "SRV", says("_sip._tcp.shop.example. 5 IN SRV 1 2 5060 a.example."))
        service.dns.tell("shop.example", "TXT", says(code="SERVFAIL"))
        said = await service.kdig("shop.example", "MX")
        assert re.search(r"shop\.example\.\s+77\s+IN\s+MX\s+10 mail\.shop\.example\.", said), said
        (srv,) = await service.ask(query("_sip._tcp.shop.example", "SRV", number=40000))
        assert (srv.header.id, texts(srv)) == (40000, ["1 2 5060 a.example."])
        (failed,) = await service.ask(query("shop.example", "TXT"))
        assert failed.header.rcode == RCODE.SERVFAIL
        assert len(service.dns.queries) == 3
        assert service.told() == ["shop.example allow allowed", "_sip._tcp.shop.example allow allowed"]


async def test_who_validates_gets_the_signatures() -> None:
    """With DO the question goes on, and RRSIG comes back; without, the cache answers."""
    signature = "shop.example. 60 IN RRSIG A 13 2 60 20300101000000 20200101000000 1 shop.example. c2lnbmF0dXJl"
    async with names() as service:
        service.dns.tell("shop.example", "A", says("shop.example. 60 IN A 203.0.113.9", signature))
        said = await service.kdig("+dnssec", "shop.example", "A")
        assert "RRSIG" in said and "203.0.113.9" in said, said
        said = await service.kdig("shop.example", "A")
        assert "RRSIG" not in said and "203.0.113.9" in said, said
        service.told()


async def test_only_what_was_understood_goes_on() -> None:
    """The question is written anew: options that a guest hides data in stay behind, ids are fresh."""
    async with names() as service:
        service.dns.tell("shop.example", "TXT", says("shop.example. 60 IN TXT x"))
        said = await service.kdig("+cookie=0123456789abcdef", "+nsid", "+padding=400", "shop.example", "TXT")
        assert "status: NOERROR" in said
        assert service.dns.ids and service.dns.had_edns == [True]
        assert service.dns.sizes and max(service.dns.sizes) < 60
        service.told()


async def test_addresses_that_may_not_be_dialled_are_not_given_out() -> None:
    """A name that leads to a private address, signed or not, is refused and audited as that."""
    async with names() as service:
        service.dns.host("in.shop.example", "10.1.2.3")
        service.dns.host("meta.shop.example", "203.0.113.9", "fd00:ec2::254")
        for arguments in (("in.shop.example",), ("+dnssec", "in.shop.example"), ("meta.shop.example",)):
            said = await service.kdig(*arguments)
            assert "status: NXDOMAIN" in said and "ANSWER: 0" in said, said
        assert service.told() == [
            "in.shop.example deny address_forbidden",
            "meta.shop.example deny address_forbidden",
        ]


async def test_what_does_not_exist_and_what_fails() -> None:
    """No such name, no such type, no server that answers: each as itself, and remembered as by every request."""
    async with names() as service:
        service.dns.tell("v4.shop.example", "AAAA", no_address())
        service.dns.tell("v4.shop.example", "A", no_address())
        service.dns.tell("dead.shop.example", "A", silence)
        service.dns.tell("dead.shop.example", "AAAA", silence)
        none, empty = await service.ask(query("none.shop.example")), await service.ask(query("v4.shop.example"))
        assert (none[0].header.rcode, empty[0].header.rcode, empty[0].rr) == (RCODE.NXDOMAIN, RCODE.NOERROR, [])
        asked = len(service.dns.queries)
        await service.ask(query("none.shop.example"))
        assert len(service.dns.queries) == asked
        (dead,) = await service.ask(query("dead.shop.example", size_bytes=1232))
        assert dead.header.rcode == RCODE.SERVFAIL
        assert b"\x00\x0f" in bytes(dead.pack())
        assert service.told() == [
            "none.shop.example allow resolve_failed",
            "v4.shop.example allow resolve_failed",
            "dead.shop.example allow resolve_failed",
        ]


async def test_sizes_and_truncation() -> None:
    """What a client takes holds: without EDNS 512 bytes, never more than 1232; what is cut comes whole over TCP."""
    async with names() as service:
        many = [f"203.0.113.{number}" for number in range(1, 31)]
        service.dns.host("many.shop.example", *many)
        (cut,) = await service.ask(query("many.shop.example"))
        assert (cut.header.tc, cut.rr) == (1, [])
        (whole,) = await service.ask(query("many.shop.example", size_bytes=65535))
        assert (whole.header.tc, len(whole.rr)) == (0, 30)
        said = await service.kdig("many.shop.example", "+bufsize=512")
        assert len(re.findall(r"IN\s+A\s+203", said)) == 30, said
        long = " ".join(f'"{"x" * 200}"' for _ in range(10))
        service.dns.tell("shop.example", "TXT", says("shop.example. 60 IN TXT x", truncated=True))
        service.dns.tcp_script["shop.example", "TXT"] = [says(f"shop.example. 60 IN TXT {long}")]
        said = await service.kdig("shop.example", "TXT")
        assert said.count("x" * 200) == 10
        assert service.dns.tcp_queries == [("shop.example", "TXT")]
        service.told()


async def test_tcp_framing() -> None:
    """Two questions in one piece, or byte by byte; an answer has its length before it, and its question's id."""
    async with names() as service:
        reader, writer = await asyncio.open_connection(service.address, service.port)
        first, second = query("shop.example", number=1), query("shop.example", "AAAA", number=2)
        framed = b"".join(len(each).to_bytes(2) + each for each in (first, second))
        writer.write(framed)
        for byte in framed:
            writer.write(bytes([byte]))
            await writer.drain()
        answers = []
        async with asyncio.timeout(40):
            for _ in range(4):
                size = int.from_bytes(await reader.readexactly(2))
                answers.append(DNSRecord.parse(await reader.readexactly(size)))
        assert sorted((answer.header.id, texts(answer)[0]) for answer in answers) == [
            (1, "203.0.113.9"),
            (1, "203.0.113.9"),
            (2, "2001:db8::9"),
            (2, "2001:db8::9"),
        ]
        writer.close()
        service.told()


async def test_what_is_odd_is_refused_by_its_code() -> None:
    """Another version of EDNS, zone transfers and the like; what is no query gets nothing."""
    async with names() as service:
        said = await service.kdig("+edns=1", "shop.example")
        assert "BADVERS" in said
        axfr, update, cut = query("shop.example", "AXFR"), bytearray(query("shop.example")), query("shop.example")[:-3]
        update[2] |= 0x28
        answers = await service.ask(axfr, bytes(update), cut)
        assert [answer.header.rcode for answer in answers] == [RCODE.NOTIMP, RCODE.NOTIMP, RCODE.FORMERR]
        response = bytearray(query("shop.example", number=9))
        response[2] |= 0x80
        silent = [bytes(response), b"\0" * 11, b""]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for message in silent:
                client.sendto(message, (service.address, service.port))
        (answer,) = await service.raw(query("localhost"))
        assert texts(DNSRecord.parse(answer)) == ["127.0.0.1"]
        assert service.dns.queries == []
        service.told()


async def test_too_many_questions_are_refused_and_told() -> None:
    """Those beyond the limit get REFUSED and an extended error, and one record stands for all of them."""
    async with names(queries_per_s=5) as service:
        asked = [query("shop.example", number=number, size_bytes=1232) for number in range(200)]
        answers = await service.ask(*asked)
        codes = [answer.header.rcode for answer in answers]
        assert codes.count(RCODE.NOERROR) <= 5 + 5 * 10
        assert codes.count(RCODE.REFUSED) == 200 - codes.count(RCODE.NOERROR)
        assert sorted(service.told()) == [" deny rate_limited", "shop.example allow allowed"]
        refused = [record.message for record in service.records if record.reason is Reason.RATE_LIMITED]
        assert len(refused) == 2
        assert f"refused {codes.count(RCODE.REFUSED) - 1} times" in refused[1]
        counts = service.lab.gateway.listeners.dns_counts
        assert counts["limited"] == codes.count(RCODE.REFUSED)
        assert counts["answered"] + counts["repeated"] == codes.count(RCODE.NOERROR)
        assert sum(counts.values()) == 200


async def test_a_reload_counts_at_once() -> None:
    """A name that the new policy denies is denied, though its answer was remembered."""
    async with names() as service:
        for _ in range(3):
            (answer,) = await service.ask(query("shop.example"))
            assert texts(answer) == ["203.0.113.9"]
        service.lab.write_policy([RULES[1]])
        service.lab.gateway.reload(service.lab.gateway.config)
        (answer,) = await service.ask(query("shop.example"))
        assert answer.header.rcode == RCODE.NXDOMAIN
        assert service.told() == ["shop.example allow allowed", "shop.example deny no_rule_matched"]


async def test_what_stands_behind_a_question_is_not_kept() -> None:
    """A question with kilobytes of anything behind it is answered, and remembered no more than its answer."""
    async with names() as service:
        for size in range(10):
            (answer,) = await service.ask(query("shop.example") + bytes(4000 + size))
            assert texts(answer) == ["203.0.113.9"]
        assert service.lab.gateway.listeners.dns_counts["repeated"] == 0
        service.told()


async def test_a_journal_that_fails_denies_names() -> None:
    """What can't be recorded is not answered: REFUSED, since it says nothing about the name."""
    async with names() as service:
        await service.ask(query("shop.example"))
        service.lab.gateway.seam.journal = _Sick(service.lab.gateway.seam.journal)  # type: ignore[assignment]
        (answer,) = await service.ask(query("shop.example"))
        assert answer.header.rcode == RCODE.REFUSED
        service.lab.gateway.seam.journal = service.lab.gateway._journal
        (answer,) = await service.ask(query("shop.example"))
        assert texts(answer) == ["203.0.113.9"]
        service.told()


class _Sick:
    """A journal that can't be written, and says so."""

    healthy = False

    def __init__(self, journal: Any) -> None:
        self.append = journal.append


async def test_a_client_that_reads_nothing_is_held() -> None:
    """Its questions wait in its own socket, not in the gateway's memory."""
    async with names(queries_per_s=1_000_000) as service:
        await service.ask(query("shop.example"))
        reader, writer = await asyncio.open_connection(service.address, service.port)
        message = query("shop.example")
        framed = (len(message).to_bytes(2) + message) * 1000
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        dns = service.lab.gateway.listeners.dns
        assert dns is not None

        def held() -> bool:
            writer.write(framed)
            return any(not stream.is_reading() for stream in dns.service.streams)

        await service.lab.until(held)
        writer.transport.abort()
        assert reader is not None
        service.told()


async def test_nobody_is_carried_to_it() -> None:
    """The listener is the gateway's own address: a tunnel to it is refused."""
    async with names() as service:
        code, _, _ = await run("curl", "-sS", f"https://127.0.0.1:{service.port}/", env=service.lab.environment())
        assert code == 56
        service.told()


CORPUS: list[dict[str, Any]] = [
    {"id": "web", "allow": {"hosts": ["*.shop.example", "shop.example"]}},
    {"id": "odd-port", "allow": {"hosts": ["odd.example"], "ports": [8443]}},
    {"id": "plain", "allow": {"hosts": ["plain.example"], "schemes": ["http"]}},
    {"id": "sales", "allow": {"hosts": ["sales.example"]}, "guests": {"team": "sales"}},
    {"id": "void", "allow": {"hosts": ["void.example"]}, "expires": "2020-01-01"},
    {"id": "path", "allow": {"hosts": ["path.example"], "methods": ["GET"], "paths": ["/only"]}},
    {"id": "ban", "deny": {"hosts": ["bad.shop.example"]}},
    {"id": "ban-path", "deny": {"hosts": ["half.shop.example"], "paths": ["/x"]}},
]
NAMED = [
    "shop.example", "a.shop.example", "a.b.shop.example", "bad.shop.example", "half.shop.example", "odd.example",
    "plain.example", "sales.example", "void.example", "path.example", "other.example", "xshop.example",
]  # fmt: skip


async def test_a_name_is_answered_exactly_where_a_tunnel_would_be_opened() -> None:
    """The corpus by both ways in: a name is denied if no port of it may be tunnelled to, by the same rule or reason."""
    settings = {
        "entries": {"dns": {"listen": "127.0.0.1:0", "guest": "g"}},
        "dns": {"addresses": {name: ["127.0.0.1"] for name in NAMED}},
    }
    async with Lab(rules=CORPUS, settings=settings) as lab:
        for name in NAMED:
            codes = []
            for port in (443, 8443):
                line, head = await lab.connect(f"{name}:{port}")
                codes.append(head.split(b" ")[1])
                line.close()
            by_proxy = lab.gateway.seam.pipeline.judge_connect(
                Guest("g", {"team": "research"}), Target("http", name, 80)
            )
            (answer,) = await Names.at(lab).ask(query(name))
            allowed = b"200" in codes or by_proxy.effect is not Effect.DENY
            assert (answer.header.rcode == RCODE.NOERROR) is allowed, (name, codes)
        await lab.until(lambda: len([each for each in lab.observer.records if each.entry == "dns"]) == len(NAMED))
        by_name = {
            each.request.host: (each.reason, each.rule)
            for each in lab.observer.records
            if each.entry == "dns" and each.request and each.verdict is Decision.DENY
        }
        for record in lab.records:
            if (
                record.entry == "proxy"
                and record.request
                and record.request.host in by_name
                and record.request.port == 443
            ):
                assert by_name[record.request.host] == (record.reason, record.rule)
        await lab.told()


def test_the_configuration_is_held_to(tmp_path: Path) -> None:
    """A listener without a guest, or with one that does not exist, is an error with its place."""
    head = "guests: {g: {}}\npolicies: [p.yaml]\n"
    for entry, problem in (("{listen: '127.0.0.1:0'}", "guest"), ("{guest: h}", "there is no guest 'h'")):
        text = f"entries: {{proxy: {{guest: g}}, dns: {entry}}}\n{head}"
        with pytest.raises(ConfigError, match=problem):
            parse_config(text, "seamgate.yaml", base=tmp_path)


async def test_a_guest_that_kept_plugins_busy_is_told_to_come_again() -> None:
    """It is no decision about the name: REFUSED, which no client takes for "there is none", and not remembered."""
    async with names() as service:
        spent = service.lab.gateway.seam.pipeline.plugin_time
        spent._clock = lambda: 0.0
        spent.accounts["g"] = 3.0, 0.0
        for number in range(2):
            (answer,) = await service.ask(query("shop.example", number=number))
            assert answer.header.rcode == RCODE.REFUSED
        spent.accounts.clear()
        (answer,) = await service.ask(query("shop.example", number=2))
        assert answer.header.rcode == RCODE.NOERROR
        assert "shop.example deny plugin_time_spent" in service.told()
        assert service.lab.gateway.listeners.dns_counts["limited"] == 2
