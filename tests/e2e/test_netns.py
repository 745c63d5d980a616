"""Guests in a network namespace: real programs, with and without proxy variables, meet the gateway and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from seamgate import hookimpl
from seamgate.config import NetnsEntry
from seamgate.flow import Guest, Isolation
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.netns import Guests, python, run_guest
from support.upstream import HttpUpstream, echo

CURL = ("curl", "-sS", "--max-time", "60")
AROUND = (*CURL, "--noproxy", "*")


class Names:
    """A plugin that keeps which names were resolved."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @hookimpl
    def resolve_name(self, name: str) -> None:
        self.asked.append(name)


async def test_a_guest_uses_the_proxy_in_its_namespace() -> None:
    """Variables lead to the proxy inside; the credential goes along; the record says who and how isolated."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        done = await run_guest(lab, *CURL, lab.url("/one"))
        assert (done.code, json.loads(done.out)["target"]) == (0, "/one"), done
        assert [talk.header("x-api-key") for talk in lab.upstream.talks] == [SECRET]  # type: ignore[attr-defined]
        (record,) = await lab.audited("GET /one allow allowed 200 complete")
        assert record.guest is not None
        assert (record.guest.id, record.guest.isolation, record.entry) == ("inside", Isolation.NETNS, "netns")


@pytest.mark.parametrize("tls", [True, False], ids=["https", "http"])
async def test_a_client_that_ignores_the_proxy_is_served_all_the_same(tls: bool) -> None:
    """Its name is answered at the seam, its connection redirected; policy, address check and audit are the same."""
    async with Lab(HttpUpstream(echo, tls=tls)) as lab:
        done = await run_guest(lab, *AROUND, lab.url("/a"), lab.url("/b"))
        assert done.code == 0, done
        assert [talk.target for talk in lab.upstream.talks] == ["/a", "/b"]  # type: ignore[attr-defined]
        records = await lab.audited("GET /a allow allowed 200 complete", "GET /b allow allowed 200 complete")
        assert [record.upstream and record.upstream.reused for record in records] == [False, True]


async def test_a_child_with_an_empty_environment_is_served_and_held() -> None:
    """No variable is needed: what is allowed works, what is not is denied."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await run_guest(lab, *AROUND, lab.url("/x"), environment={})  # the CA is the machine's, inside
        assert done.code == 0, done
        denied = await run_guest(lab, *AROUND, "https://denied.example/", environment={})
        assert denied.code == 6, denied
        await lab.audited(
            "GET /x allow allowed 200 complete",
            "RESOLVE denied.example:53 deny no_rule_matched 0 denied",
            "RESOLVE denied.example:53 deny no_rule_matched 0 denied",
        )


async def test_the_base_url_is_inside_too() -> None:
    """A client with a base URL talks plaintext to its own loopback; it shows no token."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY]) as lab:
        done = await run_guest(lab, *CURL, "http://127.0.0.1:61802/api/v1/x")
        assert (done.code, json.loads(done.out)["target"]) == (0, "/v1/x"), done
        await lab.audited("GET /v1/x allow allowed 200 complete")


@pytest.mark.parametrize(("choice", "code"), [("nxdomain", 3), ("refused", 5)])
async def test_a_denied_name_is_never_looked_up(choice: Any, code: int) -> None:
    """It is answered as configured, with the policy's sentence as extended error, and audited once per window."""
    ask = """
import socket, sys
question = b"\\x06secret\\x07example\\0\\0\\x01\\0\\x01"
query = b"\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\x01" + question + b"\\0\\0\\x29\\x10\\0\\0\\0\\0\\0\\0\\0"
for server in ("127.0.0.1", "8.8.8.8"):
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(40)
        client.sendto(query, (server, 53))
        answer = client.recv(4096)
    print(answer[:2].hex(), answer[3] & 15, b"No rule allows https://secret.example" in answer)
with socket.create_connection(("8.8.4.4", 53), timeout=40) as client:
    client.sendall(len(query).to_bytes(2) + query)
    print(client.recv(4096)[5] & 15)
"""
    names = Names()
    async with Lab(HttpUpstream(echo), first=[("names", names)]) as lab:
        done = await Guests(lab, entry=NetnsEntry(denied_names=choice)).run(sys.executable, "-c", ask)
        assert done.out.split("\n")[:3] == [f"1234 {code} True", f"1234 {code} True", str(code)], done
        first, rest = await lab.audited(*["RESOLVE secret.example:53 deny no_rule_matched 0 denied"] * 2)
        assert (first.message, rest.message.rpartition(". ")[2]) == (
            "No rule allows https://secret.example.",
            "(refused 2 times)",
        )
        assert names.asked == []


async def test_a_denied_name_can_be_explained() -> None:
    """It gets an address that leads nowhere but to its denial: the client prints why, nothing is looked up."""
    names = Names()
    async with Lab(HttpUpstream(echo), first=[("names", names)]) as lab:
        for url in ("https://secret.example/x", "http://secret.example/x"):
            done = await Guests(lab, entry=NetnsEntry(denied_names="explain")).run(*AROUND, url)
            assert f"No rule allows GET {url}" in done.out, done
        told = ["RESOLVE secret.example:53 deny no_rule_matched 0 denied", "GET /x deny no_rule_matched 403 denied"]
        told.append(told[0])  # the question for an IPv6 address, told when the guest has ended
        await lab.refused(*told, *told)
        assert names.asked == []


async def test_a_name_that_does_not_resolve_fails_visibly() -> None:
    """An allowed name that no server knows: the client is told, and the audit log says that it was allowed."""
    async with Lab(HttpUpstream(echo)) as lab:
        code = (
            "import socket\ntry: socket.getaddrinfo('nowhere.test', 443)\nexcept OSError as error: print(error.errno)"
        )
        done = await python(lab, code)
        assert int(done.out) < 0, done
        assert lab.records
        await lab.audited(*["RESOLVE nowhere.test:53 allow resolve_failed 0 failed"] * len(lab.records))


async def test_a_guest_talks_with_its_own_servers() -> None:
    """Loopback inside the namespace belongs to the guest: no gateway, no policy, and not the host's loopback."""
    code = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen("http://localhost:8000/", timeout=40).status)
"""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, code)
        assert done.out == "200\n", done
        await lab.audited()


async def test_two_guests_are_told_apart_by_their_namespaces() -> None:
    """Nothing that a guest sends says who it is: the same request, with the other's token, is judged by its channel."""
    rule = {**ALLOW_ALL, "guests": {"team": "red"}}
    red, blue = (Guest(team, {"team": team}, Isolation.NETNS, team) for team in ("red", "blue"))
    forged = ("-H", "Proxy-Authorization: Bearer guest-token-0123456789abcdef", "-H", "X-Team: red")
    async with Lab(HttpUpstream(echo), rules=[rule]) as lab:
        ask = (*CURL, *forged, "-o", "/dev/null", "-w", "%{http_connect}", lab.url("/x"))
        done = await asyncio.gather(Guests(lab, red).run(*ask), Guests(lab, blue).run(*ask))
        assert [(each.code, each.out) for each in done] == [(0, "200"), (56, "403")]
        records = sorted((record.guest.id if record.guest else "", record.verdict) for record in lab.records)
        assert records == [("blue", "deny"), ("red", "allow")]
        await lab.audited(*[_told(lab, number) for number in range(2)])


def _told(lab: Lab, number: int) -> str:
    guest = lab.records[number].guest
    assert guest is not None
    if guest.id == "red":
        return "GET /x allow allowed 200 complete"
    return f"CONNECT {lab.authority()} deny no_rule_matched 403 denied"


async def test_no_root_is_needed() -> None:
    """The launcher as an ordinary user makes it all: namespaces, rules, sockets, filter."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await Guests(lab, as_nobody=True).run(*AROUND, "-k", lab.url("/x"), environment={})
        assert (done.code, json.loads(done.out)["target"]) == (0, "/x"), done
        who = await Guests(lab, as_nobody=True).run("id", "-u")
        assert who.out != "0\n"
        await lab.audited("GET /x allow allowed 200 complete")


async def test_the_exit_code_and_the_streams_are_the_programs() -> None:
    """Code, standard output and standard error come back as they are; a signal that kills is 128 and its number."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await run_guest(lab, "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (done.code, done.out, done.err) == (7, "out\n", "err\n")
        assert (await run_guest(lab, "sh", "-c", "kill -9 $$")).code == 137
        await lab.audited()


async def test_a_signal_reaches_the_program() -> None:
    """SIGTERM to the launcher goes through the keeper to the program, which may end in its own way."""
    async with Lab(HttpUpstream(echo)) as lab:
        ready = lab.folder / "ready"
        code = f"""
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
pathlib.Path({str(ready)!r}).touch()
signal.pause()
"""
        guests = Guests(lab)
        running = asyncio.ensure_future(guests.run(sys.executable, "-c", code))
        await lab.until(ready.exists)
        assert guests.process is not None
        guests.process.terminate()
        assert (await running).code == 42
        await lab.audited()


async def test_the_machines_hosts_file_is_not_the_guests() -> None:
    """A name of the hosts file is answered by the gateway as any other, so that a connection to it has a name."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await run_guest(lab, "cat", "/etc/hosts")
        assert done.out.startswith("127.0.0.1 localhost "), done
        assert len(done.out.splitlines()) == 2
        await lab.audited()
