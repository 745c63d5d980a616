"""Smuggling: whatever two parsers could read as different messages is denied, audited, and never upstream.

The corpus is `smuggling.yaml`. Each attack is sent through every entry: in a CONNECT tunnel, in absolute form, by base
URL, by SOCKS, and from inside a namespace; some also byte by byte. It carries a hidden request to /hidden, which must
not be upstream in any reading. Downgrades from HTTP/2 are in `test_http2.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from seamgate.audit.record import AuditRecord, Decision
from support.certificates import guest_context
from support.client import Client, start_tls
from support.lab import Lab
from support.netns import python
from support.upstream import HttpUpstream, echo

HIDDEN = "GET /hidden HTTP/1.1\r\nhost: api.test\r\n\r\n"
CORPUS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "smuggling.yaml").read_text())
ENTRIES = ["tunnel", "proxy", "base", "socks5", "netns"]
TARGETS = {"proxy": "http://{HOST}/x", "base": "/api/x"}
RULES = [
    {
        "id": "x",
        "allow": {"hosts": ["api.test"], "schemes": ["http", "https"], "ports": ["1-65535"], "paths": ["/x"]},
    }
]
SETTINGS = {"entries": {"socks5": {"listen": "127.0.0.1:0", "guest": "g"}}}


class Answer(msgspec.Struct):
    """What a guest got for one request."""

    status: int
    reason: str
    body: str


def fill(lab: Lab, entry: str, attack: str) -> bytes:
    """Make the attack one on this entry."""
    target = TARGETS.get(entry, "/x")
    get_hidden = f"GET {target.removesuffix('x')}hidden HTTP/1.1\r\nHost: {{HOST}}\r\n\r\n"
    for name, value in (("GET_HIDDEN", get_hidden), ("TARGET", target), ("HIDDEN", HIDDEN), ("LONG", "a" * 5000)):
        attack = attack.replace(f"{{{name}}}", value)
    return attack.replace("{HOST}", lab.authority()).encode("latin-1")


def a_lab(entry: str) -> Lab:
    return Lab(HttpUpstream(echo, tls=entry != "proxy"), rules=RULES, settings=SETTINGS, credential=False)


async def socks5(lab: Lab) -> Client:
    """Connect by SOCKS, and open TLS."""
    line = await lab.line("socks5")
    name, port = lab.authority().split(":")
    await line.send(b"\5\1\0")
    assert await line.exactly(2) == b"\5\0"
    await line.send(b"\5\1\0\3" + bytes((len(name),)) + name.encode() + int(port).to_bytes(2))
    assert (await line.exactly(10))[1] == 0
    inner = await start_tls(line, guest_context(lab.gateway.ca_path), name)
    lab._lines.append(inner)
    lab._lines.remove(line)
    return Client(inner, lab.authority())


# A guest of a namespace: sends each attack over a connection of its own, and tells what it got.
INSIDE = """
import json, os, socket, ssl, sys
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
name, port = sys.argv[1].split(":")
told = []
for attack, count in json.load(open(sys.argv[2])):
    with context.wrap_socket(socket.create_connection((name, int(port)), 20), server_hostname=name) as line:
        line.settimeout(20)
        line.sendall(attack.encode("latin-1"))
        held, answers = b"", []
        while len(answers) < count:
            while b"\\r\\n\\r\\n" not in held:
                piece = line.recv(65536)
                if not piece:
                    break
                held += piece
            head, mark, rest = held.partition(b"\\r\\n\\r\\n")
            if not mark:
                break
            fields = {}
            for each in head.split(b"\\r\\n")[1:]:
                key, _, value = each.partition(b":")
                fields[key.strip().lower().decode()] = value.strip().decode("latin-1")
            size = int(fields.get("content-length", 0))
            while len(rest) < size:
                piece = line.recv(65536)
                if not piece:
                    break
                rest += piece
            status = int(head.split()[1])
            answers.append([status, fields.get("x-seamgate-reason", ""), rest[:size].decode("latin-1")])
            held = rest[size:]
        told.append(answers)
print(json.dumps(told))
"""


async def answers(lab: Lab, entry: str, attacks: list[tuple[bytes, int]]) -> AsyncIterator[list[Answer]]:
    """Send each attack over a connection of its own; yield the answers to it, so many as are expected at most."""
    if entry == "netns":
        path = lab.folder / "attacks.json"
        path.write_text(json.dumps([(attack.decode("latin-1"), count) for attack, count in attacks]))
        path.chmod(0o644)
        done = await python(lab, INSIDE, lab.authority(), str(path))
        assert done.code == 0, done.err
        for told in json.loads(done.out):
            yield [Answer(*each) for each in told]
        return
    for attack, count in attacks:
        client: Client = await (socks5(lab) if entry == "socks5" else getattr(lab, entry)())
        await client.send(attack)
        got = []
        for _ in range(count):
            answer = await client.answer()
            assert answer.whole or not answer.status
            got.append(Answer(answer.status, answer.reason, answer.body.decode("latin-1")))
        client.close()
        yield got


@asynccontextmanager
async def checked(lab: Lab) -> AsyncIterator[dict[str, str]]:
    """Collect what is wrong, and claim all records."""
    wrong: dict[str, str] = {}
    async with lab:
        yield wrong
        await lab.until(lambda: not lab.gateway.connections.all)
        lab._claimed = len(lab.records)
        assert wrong == {}


@pytest.mark.parametrize("entry", ENTRIES)
async def test_an_ambiguous_head_is_denied(entry: str) -> None:
    """One refusal, one record, nothing upstream, and the connection ends: what follows can't be trusted."""
    lab, corpus = a_lab(entry), CORPUS["refused"]
    async with checked(lab) as wrong:
        attacks = [(fill(lab, entry, attack), 1) for attack in corpus.values()]
        told = [each async for each in answers(lab, entry, attacks)]
        for what, got in zip(corpus, told, strict=True):
            refused = [each for each in got if each.status]
            if len(refused) != 1 or not 400 <= refused[0].status < 600 or not refused[0].reason:
                wrong[what] = repr(got)
        assert lab.upstream.received == b""
        await lab.until(lambda: len(lab.records) >= len(corpus))
        assert len(lab.records) == len(corpus)
        assert {record.verdict for record in lab.records} == {Decision.DENY}
        reasons = [record.reason for record in lab.records]
        assert reasons == [each[0].reason for each in told]


@pytest.mark.parametrize("entry", ENTRIES)
async def test_an_ambiguous_body_is_cut(entry: str) -> None:
    """The head was fine and may be upstream by now, but never an end of its body, and nothing of what follows."""
    lab, corpus = a_lab(entry), CORPUS["cut"]
    async with checked(lab) as wrong:
        attacks = [(fill(lab, entry, attack), 1) for attack in corpus.values()]
        told = [each async for each in answers(lab, entry, attacks)]
        for what, got in zip(corpus, told, strict=True):
            refused = [each for each in got if each.status]
            if [(each.status, each.reason) for each in refused] not in (
                [(400, "bad_request")],
                [(431, "headers_too_large")],
            ):
                wrong[what] = repr(got)
        assert b"/hidden" not in lab.upstream.received
        assert b"\r\n0\r\n" not in lab.upstream.received
        await lab.until(lambda: len(lab.records) >= len(corpus))
        assert [_path(record) for record in lab.records] == ["/x"] * len(corpus)
        await lab.until(lambda: lab.gateway.seam.pool.counts == (0, 0, 0))


@pytest.mark.parametrize("entry", ENTRIES)
async def test_what_is_not_ambiguous_is_read_right(entry: str) -> None:
    """Each request is judged by itself, and upstream is what was judged: nothing rides on the one before it."""
    lab, corpus = a_lab(entry), CORPUS["right"]
    async with checked(lab) as wrong:
        attacks = [(fill(lab, entry, each["sent"]), len(each["read"])) for each in corpus.values()]
        told = [each async for each in answers(lab, entry, attacks)]
        expected = []
        for (what, case), got in zip(corpus.items(), told, strict=True):
            statuses = [status for _, _, status in case["read"]]
            if [each.status for each in got] != statuses:
                wrong[what] = repr(got)
                continue
            for (method, body, status), answer in zip(case["read"], got, strict=True):
                expected.append((method, status))
                if status == 200:
                    echoed = json.loads(answer.body)
                    if (echoed["method"], echoed["body"]) != (method, body.replace("{HIDDEN}", HIDDEN)):
                        wrong[what] = answer.body
        await lab.until(lambda: len(lab.records) >= len(expected))
        told_of = [(record.request.method if record.request else "", record.status) for record in lab.records]
        assert told_of == expected
        assert b"GET /hidden HTTP/1.1\r\nhost: api.test:" not in lab.upstream.received


def _path(record: AuditRecord) -> str:
    return record.request.path if record.request is not None else ""


@pytest.mark.parametrize("what", ["CL.TE", "TE.CL", "two hosts", "bare LFs only", "TE after a bare LF"])
async def test_byte_by_byte_makes_no_difference(what: str) -> None:
    """The verdict does not depend on how the bytes come."""
    async with a_lab("tunnel") as lab:
        client = await lab.tunnel()
        attack = fill(lab, "tunnel", CORPUS["refused"][what])
        await client.send(*(attack[place : place + 1] for place in range(len(attack))))
        assert (await client.answer()).reason == "bad_request"
        client.close()
        await lab.refused(f"- {lab.authority()} deny bad_request 400 denied")


async def test_extensions_are_not_passed_on() -> None:
    """A chunk extension is read over and written nowhere: chunks upstream are ours."""
    async with a_lab("tunnel") as lab:
        client = await lab.tunnel()
        await client.send(fill(lab, "tunnel", CORPUS["right"]["an extension"]["sent"]))
        assert (await client.answer()).json["body"] == "hello"
        assert b"name" not in lab.upstream.received
        await lab.audited("POST /x allow allowed 200 complete")
