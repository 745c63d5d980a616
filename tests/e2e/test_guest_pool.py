"""Guests of the running gateway: programs handed in by `seamgate run --pool`, in real microVMs. Needs KVM."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from seamgate.audit.journal import Journal
from seamgate.config import parse_config
from seamgate.entry import guest_pool
from seamgate.errors import ConfigError
from seamgate.flow import Guest
from seamgate_vmm import census
from support.cli import environment, seamgate
from support.lab import ALLOW_ALL, SECRET, TOKEN, Lab
from support.microvm import own_template
from support.upstream import HttpUpstream, echo

pytestmark = pytest.mark.timeout(240)

RESEARCH: dict[str, Any] = {**ALLOW_ALL, "guests": {"team": "research"}, "credential": "key"}
CALL = """
import http.client, json, os, sys
def call():
    connection = http.client.HTTPSConnection("api.test", int(sys.argv[1]))
    connection.request("GET", "/x")
    return connection.getresponse().status
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The template of this virtual environment, and the folder of templates for the pools of these tests."""
    with own_template(tmp_path_factory.mktemp("templates")) as name:
        yield name


class PoolLab(Lab):
    """A lab whose gateway has a pool, and programs that are handed in to it."""

    def __init__(
        self, template: str, *upstreams: HttpUpstream, idle: Any = None, more: Any = None, **pool: Any
    ) -> None:
        place = {"listen": "unix:guests.sock", "template": template, "warm": 2, "folders": ["work"], **pool}
        settings = {"entries": {"kvm": {"pool": place, "idle": idle or {}}}, **(more or {})}
        super().__init__(*upstreams, rules=[RESEARCH], settings=settings)
        self.work = self.folder / "work"
        self.work.mkdir()

    @asynccontextmanager
    async def handed_in(
        self, code: str, *arguments: str, guest: str = "g", env: dict[str, str] | None = None
    ) -> AsyncGenerator[asyncio.subprocess.Process]:
        """Run Python code as a guest of the pool, from the folder that guests see."""
        pipe = asyncio.subprocess.PIPE
        options = ("--pool", str(self.folder / "guests.sock"), "--guest", guest)
        command = ("-m", "seamgate", "run", *options, "--", "python", "-c", code, *arguments)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=self.work,
            env=environment(self.folder, env),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def run(self, code: str, *arguments: str, said: bytes = b"", **how: Any) -> tuple[int | None, str, str]:
        """Do so to its end; return exit code, output, errors."""
        async with self.handed_in(code, *arguments, **how) as process:
            out, err = await process.communicate(said)
            return process.returncode, out.decode(), err.decode()

    @property
    def pool(self) -> guest_pool.GuestPool:
        """The gateway's pool."""
        assert self.gateway.guest_pool is not None
        return self.gateway.guest_pool

    async def states_are(self, **counts: int) -> None:
        """Wait until there are so many in these states."""
        await come(lambda: {**self.pool.states(), **counts} == self.pool.states())

    def guest_records(self) -> list[dict[str, Any]]:
        """What the journal says of guests: who, event, facts."""
        assert isinstance(self.gateway.seam.journal, Journal)
        self.gateway.seam.journal.flush()
        lines = [json.loads(line) for line in self.gateway.journal_path.read_text().splitlines()]
        return [line for line in lines if line.get("gateway", {}).get("event", "").startswith("guest_")]


async def come(condition: Callable[[], bool]) -> None:
    """Wait for it; the test's own time limit is the only one."""
    while not condition():  # noqa: ASYNC110 - a worker's message changes it, and tells nobody here
        await asyncio.sleep(0.01)


@pytest.mark.kvm
async def test_a_program_that_is_handed_in_is_one_of_the_gateways_guests(template: str) -> None:
    """It runs on a machine that waited, is judged by its guest's labels, has its caller's streams, arguments and exit
    code, but never the key, and its end is in the gateway's journal; another machine waits then."""
    code = CALL + "print(call(), os.getcwd(), input())\nsys.exit(7)"
    async with PoolLab(template, HttpUpstream(echo)) as lab:
        await lab.states_are(warm=2)
        done = await lab.run(code, str(lab.upstream.port), said=b"a line\n")
        assert done[:2] == (7, f"200 {lab.work} a line\n"), done
        await lab.audited("GET /x allow allowed 200 complete")
        assert SECRET.encode() in lab.upstream.received
        (end,) = lab.guest_records()
        assert (end["guest"]["id"], end["guest"]["labels"]) == ("g", {"team": "research"})
        assert (end["gateway"]["event"], end["gateway"]["facts"]["reason"]) == ("guest_end", "exited")
        await lab.states_are(warm=2, assigned=0)
        assert (dict(lab.pool.restores()), dict(lab.pool.ends())) == ({"warm": 1}, {"exited": 1})
        done = await lab.run(CALL + "call()", str(lab.upstream.port), guest="h")
        assert done[0] == 1 and "ConnectionRefusedError" in done[2], done
        denied = lab.records[1:]  # the name, and the stream
        assert [record.guest and record.guest.id for record in denied] == ["h", "h"]
        assert [each.split()[2:4] for each in await lab.told()] == [["deny", "no_rule_matched"]] * 2


@pytest.mark.kvm
async def test_folders_and_secrets_are_meant_as_the_kernel_means_them(template: str) -> None:
    """A name with `..` in it is the folder above, for what is shown and for what is hidden in it."""
    code = """
import os
print(open("page").read(), sorted(os.listdir()))
try:
    open("token")
except OSError as error:
    print(error.strerror)
"""
    more = {"guests": {"g": {"token": {"file": "none/../work/token"}}}}
    lab = PoolLab(template, folders=["none/../work"], more=more)
    (lab.work / "page").write_text("shown")
    (lab.work / "token").write_text(TOKEN)
    async with lab:
        assert await lab.run(code) == (0, "shown ['page', 'token']\nPermission denied\n", "")


@pytest.mark.kvm
async def test_the_gateways_environment_decides_what_a_guest_gets(template: str) -> None:
    """Of its caller's variables a guest has no token, and a placeholder where the gateway's credential comes from."""
    code = "import os\nprint([os.environ.get(name) for name in ('MINE', 'TOKEN', 'API_KEY', 'PATH')])"
    async with PoolLab(template, HttpUpstream(echo)) as lab:
        settings = lab.settings()
        settings["credentials"]["key"]["source"] = {"env": "API_KEY"}
        settings["credentials"]["key"]["placeholder"] = "sk-placeholder-000000"
        settings["guests"]["h"]["token"] = {"env": "TOKEN"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("API_KEY", SECRET)
            patch.setenv("TOKEN", "a-token-of-some-length")
            lab.gateway.reload(parse_config(json.dumps(settings), "seamgate.yaml", base=lab.folder))
            done = await lab.run(code, env={"MINE": "mine", "API_KEY": SECRET, "TOKEN": "a-token-of-some-length"})
        assert done[0] == 0, done
        assert done[1] == "['mine', None, 'sk-placeholder-000000', '/usr/local/bin:/usr/bin:/bin']\n"


@pytest.mark.kvm
async def test_a_waiting_guest_of_the_gateway_gives_back_and_is_woken_by_a_signal(template: str) -> None:
    """The idle policy holds under the gateway: a guest that waits is idle, or parked, or on disk, as far as the policy
    goes, and counted as that; a signal to whoever handed it in wakes it, and its handler runs."""
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
time.sleep(3600)
"""
    never = {"trim_s": 0, "park_s": 0, "hibernate_s": 0}
    steps = {
        "idle": {"trim_s": 0.01},
        "parked": {"park_s": 0.01},
        "hibernated": {"park_s": 0.01, "hibernate_s": 0.02},
    }
    for state, step in steps.items():
        async with PoolLab(template, idle=never | step) as lab:
            async with lab.handed_in(code) as process:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
                await lab.states_are(assigned=0, **{state: 1})
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 9
            assert lab.pool.restores()["hibernated"] == (state == "hibernated")
            events = [each["gateway"]["event"] for each in lab.guest_records()]
            assert events == ["guest_hibernate", "guest_resume", "guest_end"][0 if state == "hibernated" else 2 :]
            await lab.states_are(assigned=0, idle=0, parked=0, hibernated=0)


_TRUST = """
import os, signal, sys, time
PLACES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt")
def told(*_):
    texts = [open(place).read() for place in PLACES]
    assert len({*texts}) == 1 and os.path.getsize(PLACES[0]) == len(texts[0]), texts
    assert "ca-certificates.crt" in os.listdir("/etc/ssl/certs")
    try:
        open(PLACES[0], "a")
    except OSError as error:
        print(error.strerror)
    print(texts[0], end="", flush=True)
told()
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, lambda *_: (told(), sys.exit(9)))
    time.sleep(3600)
"""


@pytest.mark.kvm
async def test_each_guest_finds_the_ca_that_it_alone_trusts(template: str) -> None:
    """With `ca: each_guest`, for TLS that is not Python's: where runtimes look, read-only, also after having been on a
    disk."""
    sleep = {"trim_s": 0, "park_s": 0.01, "hibernate_s": 0.02}
    async with PoolLab(template, idle=sleep, more={"ca": {"each_guest": True}}) as lab:
        wanted = {}
        for guest in ("g", "h"):
            authority = lab.gateway.authorities.of(Guest(guest))
            wanted[guest] = "Read-only file system\n" + authority.certificate.public_bytes(Encoding.PEM).decode()
            done = await lab.run(_TRUST, guest=guest)
            assert done == (0, wanted[guest], "")
        assert wanted["g"] != wanted["h"]
        async with lab.handed_in(_TRUST, "again") as process:
            assert process.stdout is not None
            await lab.states_are(hibernated=1)
            process.send_signal(signal.SIGTERM)
            out, err = await process.communicate()
            assert (process.returncode, out.decode(), err) == (9, wanted["g"] * 2, b"")


@pytest.mark.kvm
async def test_whoever_is_gone_has_no_guest_any_more(template: str) -> None:
    """A program whose caller is killed ends, and so does every one when the gateway stops: each with its record."""
    code = "import time\nprint('ready', flush=True)\ntime.sleep(3600)"
    async with PoolLab(template) as lab:
        async with lab.handed_in(code) as process:
            assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
        await come(lambda: lab.pool.ends().get("stopped") == 1)
        async with lab.handed_in(code) as process:
            assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
            await lab.gateway.stop(grace_s=0)
            _, err = await process.communicate()
            assert (process.returncode, b"stopped" in err) == (70, True), err
        ends = [each["gateway"]["facts"] for each in lab.guest_records()]
        assert [each["detail"] for each in ends] == ["whoever started it is gone", "the pool was closed"]
        assert not (lab.folder / "guests.sock").exists()


@pytest.mark.kvm
async def test_what_the_pool_does_not_take_is_told_why(template: str) -> None:
    """Who is no guest, where guests see nothing, what is no Python, more than there are places for: exit code 2 and the
    reason. Nobody there: 3. A gateway's own options with --pool: 2."""
    async with PoolLab(template, most=1) as lab:
        code, _, err = await lab.run("pass", guest="nobody")
        assert (code, "none of the guests that the gateway's configuration names: g, h" in err) == (2, True), err
        async with lab.handed_in("import time\nprint('ready', flush=True)\ntime.sleep(3600)") as process:
            assert process.stdout is not None and await process.stdout.readline() == b"ready\n"
            code, _, err = await lab.run("pass")
            assert (code, "all 1 places of the pool are taken" in err) == (2, True), err
        options = ("run", "--pool", "unix:guests.sock", "--guest", "g")

        async def run(*arguments: str) -> CompletedProcess[str]:
            return await asyncio.to_thread(seamgate, *arguments, home=lab.folder)

        done = await run(*options, "--", "python", "-c", "pass")
        assert (done.returncode, f"the folders that they see: {lab.work}" in done.stderr) == (2, True), done
        done = await run(*options, "--", "ls")
        assert (done.returncode, "runs Python programs" in done.stderr) == (2, True), done
        done = await run("run", "--pool", "other.sock", "--guest", "g", "--", "python", "-c", "pass")
        assert (done.returncode, "no pool of guests can be reached at other.sock" in done.stderr) == (3, True), done
        done = await run(*options, "--label", "a=b", "--", "python", "-c", "pass")
        assert (done.returncode, "--label is for a gateway of the program's own" in done.stderr) == (2, True), done
        done = await run("run", "--pool", "unix:guests.sock", "--", "python", "-c", "pass")
        assert (done.returncode, "--pool and --guest go together" in done.stderr) == (2, True), done


@pytest.mark.kvm
async def test_a_reload_holds_for_guests_that_run(template: str) -> None:
    """One whose labels change is judged by the new ones, one that is taken away ends; secrets that guests could read
    are refused, and nothing has changed then."""
    code = CALL + "for line in sys.stdin:\n    print(call(), flush=True)"
    async with PoolLab(template, HttpUpstream(echo)) as lab:

        def reload(settings: dict[str, Any]) -> None:
            lab.gateway.reload(parse_config(json.dumps(settings), "seamgate.yaml", base=lab.folder))

        async with lab.handed_in(code, str(lab.upstream.port), guest="h") as process:
            assert process.stdin is not None and process.stdout is not None
            settings = lab.settings()
            (lab.work / "key").write_text(SECRET)
            settings["credentials"]["key"]["source"] = {"file": str(lab.work / "key")}
            with pytest.raises(ConfigError, match="guests of the running pool could read"):
                reload(settings)
            await lab.states_are(assigned=1)
            settings = lab.settings()
            settings["guests"]["h"]["labels"] = {"team": "research"}
            reload(settings)
            process.stdin.write(b"go\n")
            assert await process.stdout.readline() == b"200\n"
            await lab.audited("GET /x allow allowed 200 complete")
            del settings["guests"]["h"]
            reload(settings)
            assert await process.wait() == 70
        (end,) = lab.guest_records()
        assert end["gateway"]["facts"]["detail"] == "a reload took its guest away"


def test_states_and_sources_are_those_of_the_pool() -> None:
    """The gateway's metrics name the states and sources that a pool counts by, also where it can't be loaded."""
    assert (guest_pool.STATES, guest_pool.SOURCES) == (census.STATES, census.SOURCES)


def test_a_pool_is_for_one_process(tmp_path: Path) -> None:
    """With workers there is no pool: the configuration is refused, by the file's number or that of the command line."""
    (tmp_path / "p.yaml").write_text("seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.example]}}\n")
    text = "entries: {kvm: {pool: {listen: unix:g.sock}}}\npolicies: [p.yaml]\nguests: {g: {}}\n"
    (tmp_path / "seamgate.yaml").write_text(text + "workers: 2\n")
    done = seamgate("serve", home=tmp_path)
    assert (done.returncode, "no other worker could carry its requests" in done.stderr) == (2, True), done
    (tmp_path / "seamgate.yaml").write_text(text)
    done = seamgate("serve", "--workers", "2", home=tmp_path)
    assert (done.returncode, "no other worker could carry its requests" in done.stderr) == (2, True), done


@pytest.mark.parametrize("listen", ["unix:", "127.0.0.1:80", "unix:/"])
def test_a_pools_socket_is_a_path(listen: str, tmp_path: Path) -> None:
    """Programs are handed in over a socket of the file system: another place is an error with its line."""
    text = f"entries: {{kvm: {{pool: {{listen: '{listen}'}}}}}}\npolicies: [p.yaml]\n"
    with pytest.raises(ConfigError, match=r"seamgate\.yaml:1:"):
        parse_config(text, "seamgate.yaml", base=tmp_path)
