"""Guests in real microVMs under a real gateway: unmodified clients, SDKs, the demo's agent, and the command line."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seamgate.config import KvmEntry
from seamgate.demo import agent
from seamgate.entry.ring import RingGuest
from seamgate.flow import Guest, Isolation
from seamgate_vmm import hibernation
from seamgate_vmm.host import open_host
from seamgate_vmm.names import NameTable
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest
from seamgate_vmm.snapshot import load
from seamgate_vmm.template import Job, path_of
from support.api import Api, LlmApi
from support.cli import Running, seamgate
from support.kvm import need_kvm
from support.lab import SECRET, WITH_KEY, Lab
from support.microvm import own_template, run_guest
from support.upstream import HttpUpstream, Talk, echo

from . import test_clients_sdk as of_sdk

pytestmark = [pytest.mark.kvm, pytest.mark.timeout(240)]

PLACEHOLDER = "sk-ant-api03-placeholder-0000000000"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The template of this virtual environment, as `seamgate run` makes it."""
    with own_template(tmp_path_factory.mktemp("templates")) as name:
        yield name


_REQUESTS = """
import json, sys, requests
base = sys.argv[1]
session = requests.Session()
out = {"json": session.get(base + "/json").json()}
out["size"] = session.post(base + "/upload", data=b"x" * 300000).json()["size"]
events = []
with session.get(base + "/events", stream=True) as response:
    for line in response.iter_lines(chunk_size=1):
        if line.startswith(b"data: "):
            events.append(line.decode().split()[1])
            requests.get(base + f"/ack/{events[-1]}").raise_for_status()
denied = session.get("https://evil.example/x")
print(json.dumps(out | {"events": events, "denied": [denied.status_code, denied.headers["x-seamgate-reason"]]}))
"""
_HTTPX = """
import json, sys, httpx
base = sys.argv[1]
with httpx.Client() as session:
    out = {"json": session.get(base + "/json").json()}
    out["size"] = session.post(base + "/upload", content=b"x" * 300000).json()["size"]
    events = []
    with session.stream("GET", base + "/events") as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line.split()[1])
                httpx.get(base + f"/ack/{events[-1]}").raise_for_status()
    denied = session.get("https://evil.example/x")
print(json.dumps(out | {"events": events, "denied": [denied.status_code, denied.headers["x-seamgate-reason"]]}))
"""
_AIOHTTP = """
import asyncio, json, sys, aiohttp
async def main(base):
    async with aiohttp.ClientSession() as session:
        async with session.get(base + "/json") as response:
            out = {"json": await response.json()}
        async with session.post(base + "/upload", data=b"x" * 300000) as response:
            out["size"] = json.loads(await response.read())["size"]
        events = []
        async with session.get(base + "/events") as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    events.append(line.decode().split()[1])
                    async with session.get(base + f"/ack/{events[-1]}") as ack:
                        ack.raise_for_status()
        async with session.get("https://evil.example/x") as denied:
            out["denied"] = [denied.status, denied.headers["x-seamgate-reason"]]
    print(json.dumps(out | {"events": events}))
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.clients
@pytest.mark.parametrize("code", [_REQUESTS, _HTTPX, _AIOHTTP], ids=["requests", "httpx", "aiohttp"])
async def test_python_clients(code: str, template: str) -> None:
    """JSON, an upload, events as they come, and a denial that says why; the guest needs no proxy and no CA."""
    async with Lab(HttpUpstream(Api()), rules=[WITH_KEY], checks=False) as lab:
        done = await run_guest(lab, template, code, f"https://{lab.authority()}")
        assert done.outcome.code == 0, done
        out = json.loads(done.out)
        assert out["json"] == {"ok": True, "has_key": True}
        assert (out["size"], out["events"]) == (300_000, ["0", "1", "2"])
        assert out["denied"] == [403, "no_rule_matched"]
        assert SECRET not in done.out + done.err
        assert {record.entry for record in lab.records} == {"ring"}


@pytest.mark.clients
@pytest.mark.parametrize(
    ("code", "path", "inject"),
    [
        pytest.param(of_sdk.OPENAI, "/v1/chat/completions", {"header": None, "bearer": True}, id="openai"),
        pytest.param(of_sdk.ANTHROPIC, "/v1/messages", {"header": "x-api-key"}, id="anthropic"),
    ],
)
async def test_sdk(code: str, path: str, inject: dict[str, Any], template: str) -> None:
    """A whole answer, a stream word by word, and a denial that is an exception which says why, from a microVM."""
    settings = {"credentials": {"key": {"inject": inject, "placeholder": PLACEHOLDER}}}
    async with Lab(HttpUpstream(LlmApi()), rules=of_sdk.RULES, settings=settings) as lab:
        env = {"KEY": PLACEHOLDER, "BASE": f"https://{lab.authority()}"}
        done = await run_guest(lab, template, code, env=env)
        assert done.outcome.code == 0, done
        of_sdk.check(json.loads(done.out))
        await lab.audited(*of_sdk.records(path))


async def test_what_is_secret_cannot_be_opened(template: str) -> None:
    """The program's folder is there to read, but not the files that hold secrets in it, by whatever name."""
    code = """
import os
for name in sorted(os.listdir()):
    try:
        print(name, len(open(name, "rb").read()) if os.path.isfile(name) else "folder")
    except OSError as error:
        print(name, error.strerror)
"""
    async with Lab(HttpUpstream(echo)) as lab:
        (lab.folder / "link").symlink_to("key")
        os.link(lab.folder / "key", lab.folder / "hard")
        done = await run_guest(lab, template, code, hide=[lab.folder / "key", lab.folder / "token"])
        said = dict(line.split(" ", 1) for line in done.out.splitlines())
        denied = {name for name, what in said.items() if what == "Permission denied"}
        assert denied == {"key", "token", "link", "hard"}, done
        assert said["policy.yaml"] == str((lab.folder / "policy.yaml").stat().st_size)


# -- the command line ------------------------------------------------------------------------------------------------


def _run(home: Path, code: str, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    need_kvm()
    command = ("run", "--isolation", "kvm", *options, "--", sys.executable, "-c", code)
    return seamgate(*command, home=home, env=env)


def test_arguments_output_and_exit_code(tmp_path: Path) -> None:
    """Standard output and error are the program's own, and so is the exit code; arguments and environment go in."""
    code = "import os, sys; print(sys.argv[1:], os.environ['ONE']); print('err', file=sys.stderr); sys.exit(7)"
    need_kvm()
    command = ("run", "--isolation", "kvm", "--", sys.executable, "-c", code, "a b", "--c")
    done = seamgate(*command, home=tmp_path, env={"ONE": "1", "HTTPS_PROXY": "http://127.0.0.1:1"})
    assert (done.returncode, done.stdout, done.stderr.endswith("err\n")) == (7, "['a b', '--c'] 1\n", True)


def test_placeholders_and_the_end_of_a_guest(tmp_path: Path) -> None:
    """Where a credential stood there is its placeholder; the journal verifies and tells the guest's end."""
    (tmp_path / "p.yaml").write_text(
        "seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.example]}, credential: key}\n"
    )
    (tmp_path / "seamgate.yaml").write_text(
        "entries: {proxy: {listen: 127.0.0.1:8080}}\n"
        "policies: [p.yaml]\n"
        "guests: {other: {token: {env: OTHER_TOKEN}}}\n"
        "credentials:\n"
        "  key: {source: {env: THE_KEY}, inject: {bearer: true}, hosts: [a.example], placeholder: sk-looks-real-0000}\n"
    )
    secrets = {"THE_KEY": "sk-the-real-value-123456", "OTHER_TOKEN": "other-guests-token-1234567890"}
    code = (
        "import os; print(os.environ['THE_KEY'], 'OTHER_TOKEN' in os.environ, 'HTTPS_PROXY' in os.environ)\nos.fork()"
    )
    options = ("-c", "seamgate.yaml", "--label", "team=red", "--audit", "run.jsonl")
    done = _run(tmp_path, code, *options, env=secrets)
    assert done.stdout == "sk-looks-real-0000 False False\n", done
    assert done.returncode == 1 and "processes are not supported in a guest" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    (end,) = (line for line in lines if line.get("gateway", {}).get("event") == "guest_end")
    assert end["guest"] == {"id": "run", "labels": {"team": "red"}, "isolation": "kvm"}
    assert (end["gateway"]["facts"]["reason"], end["gateway"]["facts"]["exit_status"]) == ("exited", "1")
    assert seamgate("audit", "verify", "run.jsonl", home=tmp_path).returncode == 0


def test_ctrl_c_is_the_programs(tmp_path: Path) -> None:
    """The first one is a KeyboardInterrupt inside of the guest."""
    need_kvm()
    code = (
        "import sys, time\n"
        "print('ready', file=sys.stderr, flush=True)\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(42)"
    )
    with Running("run", "--isolation", "kvm", "--", sys.executable, "-c", code, home=tmp_path) as program:
        program.wait_for("ready")
        program.process.send_signal(signal.SIGINT)
        assert program.ended() == 42


def test_auto_takes_a_microvm_for_python_and_says_so(tmp_path: Path) -> None:
    """The strongest that there is for this program; for one that is no Python program it says why it is another."""
    need_kvm()
    done = seamgate("run", "--summary", "--", sys.executable, "-c", "print(1)", home=tmp_path)
    assert (done.stdout, "seamgate: isolation kvm (" in done.stderr) == ("1\n", True), done
    done = seamgate("run", "--summary", "--", "true", home=tmp_path)
    assert "seamgate: isolation netns: " in done.stderr and "Why not kvm: " in done.stderr


def test_auto_takes_no_microvm_for_a_program_that_starts_others(tmp_path: Path) -> None:
    """A script whose own source starts programs runs where it can, and which line it was is told; asked for by name, a
    microVM is an OSError that names what has them."""
    need_kvm()
    (tmp_path / "tools.py").write_text("import subprocess\ndef go(): return subprocess.check_output(['echo', 'ran'])\n")
    (tmp_path / "agent.py").write_text("import tools\nprint(tools.go().decode().strip())\n")
    done = seamgate("run", "--summary", "--", sys.executable, "agent.py", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done
    assert "isolation netns: " in done.stderr
    assert (
        "Why not kvm: tools.py line 1 uses subprocess, which it does not have; --isolation kvm insists" in done.stderr
    )
    done = seamgate("run", "--isolation", "kvm", "--", sys.executable, "agent.py", home=tmp_path)
    assert done.returncode == 1
    assert "OSError: [Errno 38] processes are not supported" in done.stderr and "--isolation netns" in done.stderr


async def test_the_demos_agent(template: str) -> None:
    """The demo's script of attempts, unmodified: served, denied and explained as behind the proxy."""
    upstream = HttpUpstream(LlmApi(), "api.llm.test", "telemetry.llm.test")
    rules = [
        {
            "id": "messages",
            "allow": {"hosts": ["api.llm.test"], "ports": ["1-65535"], "methods": ["POST"], "paths": ["/v1/messages"]},
            "when": 'request.json.model == "demo-large" && !has(request.json.stream)',
            "credential": "key",
        },
    ]
    settings = {"credentials": {"key": {"placeholder": PLACEHOLDER, "hosts": ["api.llm.test"]}}}
    async with Lab(upstream, rules=rules, settings=settings, checks=False) as lab:
        code = inspect.getsource(agent)
        port = lab.authority().rpartition(":")[2]
        done = await run_guest(lab, template, code, port, env={"LLM_API_KEY": PLACEHOLDER})
        assert done.outcome.code == 0, done
        said = {line["step"]: line for line in map(json.loads, done.out.splitlines())}
        assert said["environment"]["variables"] == {
            "LLM_API_KEY": PLACEHOLDER, "HTTPS_PROXY": None, "SSL_CERT_FILE": None
        }  # fmt: skip
        assert said["ask"]["status"] == 200
        denied = ("stream", "leak", "admin", "model", "exfiltrate", "metadata")
        assert {said[step].get("status") for step in denied} == {403}
        assert "error" in said["telemetry"]  # denied at that port, which speaks no http by convention: a reset
        assert SECRET not in done.out


_FOUR_CALLS = """
import http.client, json, os
connection = http.client.HTTPSConnection("api.test", int(os.environ["PORT"]))
for number in range(4):
    connection.request("POST", "/v1/x", body=json.dumps({"guest": os.environ["GUEST"], "number": number}))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert os.environ["GUEST"].encode() in response.read()
"""


async def test_many_guests_share_the_sessions_of_the_gateway(template: str) -> None:
    """Each gets its own answers and its own records, over far fewer upstream connections than there are guests."""
    count = 24
    async with Lab(HttpUpstream(_mirror), rules=[WITH_KEY], checks=False) as lab:
        port = lab.authority().rpartition(":")[2]
        rings: list[RingGuest] = []
        null = os.open(os.devnull, os.O_WRONLY)
        async with Pool(path_of(template)) as pool:
            guests = []
            for number in range(count):
                who = Guest(f"g{number}", {"team": "research"}, Isolation.KVM, "team=research")
                rings.append(RingGuest(lab.gateway, who, KvmEntry()))
                job = Job(["-c", _FOUR_CALLS], {"PORT": port, "GUEST": f"guest-{number}-"})
                guests.append(
                    await pool.start(
                        job,
                        accept=rings[-1].accept,
                        names=NameTable(rings[-1].judge_name),
                        stdout=null,
                        stderr=null,
                    )
                )
            outcomes = [await guest.ended() for guest in guests]
        os.close(null)
        assert [outcome.code for outcome in outcomes] == [0] * count
        await lab.settled()
        asked = [record.guest.id for record in lab.records if record.guest is not None]
        assert sorted(asked) == sorted(f"g{number}" for number in range(count) for _ in range(4))
        assert len(lab.upstream.lines) < count


async def _mirror(talk: Talk) -> None:
    await talk.respond(200, await talk.body())


_TWO_CALLS = """
import http.client, os, sys
port = int(os.environ["PORT"])
connection = http.client.HTTPSConnection("api.test", port)
connection.request("POST", "/v1/x", body="first")
print(connection.getresponse().read().decode(), flush=True)
sys.stdin.readline()
try:
    connection.request("POST", "/v1/x", body="lost")
    connection.getresponse()
except OSError as error:
    print(type(error).__name__, flush=True)
connection = http.client.HTTPSConnection("api.test", port)
connection.request("POST", "/v1/x", body="second")
print(connection.getresponse().read().decode(), flush=True)
"""


def _pages(pool: Pool, guest: PooledGuest, template: str) -> bytes:
    """What a hibernated guest's file holds, unsealed, unpacked."""
    assert pool._dormitory is not None
    with os.fdopen(pool._dormitory.load(guest.number, guest.times_hibernated), "rb") as file:
        file.seek(0)
        what, stored = hibernation.read(file.read())
    loaded = load(path_of(template), open_host())
    try:
        return b"".join(hibernation.pages_of(run, stored, loaded) for run in what.runs)
    finally:
        loaded.close()


async def test_a_guest_that_stood_still_calls_again(template: str) -> None:
    """Parked, hibernated and resumed under a gateway: its next call is judged, gets its credential, and each stage is
    in the journal, with the guest that it was; the connection that it had is gone."""
    async with Lab(HttpUpstream(_mirror), rules=[WITH_KEY], checks=False) as lab:
        ring = RingGuest(lab.gateway, Guest("g", {"team": "research"}, Isolation.KVM, "team=research"), KvmEntry())
        out, out_write = os.pipe()
        in_read, tell = os.pipe()
        async with Pool(path_of(template)) as pool:
            guest = await pool.start(
                Job(["-c", _TWO_CALLS], {"PORT": lab.authority().rpartition(":")[2]}),
                accept=ring.accept,
                names=NameTable(ring.judge_name),
                stdout=out_write,
                stderr=out_write,
                stdin=in_read,
                on_change=ring.changed,
            )
            os.close(out_write)
            os.close(in_read)
            assert await asyncio.to_thread(os.read, out, 100) == b"first\n"
            await pool.park(guest)
            await pool.resume(guest)
            await pool.hibernate(guest)
            kept = _pages(pool, guest, template)
            assert b'body="first"' in kept and SECRET.encode() not in kept
            await pool.resume(guest)
            os.write(tell, b"go\n")
            outcome = await guest.ended()
        with os.fdopen(out, "rb") as said:
            assert said.read() == b"ConnectionResetError\nsecond\n"
        os.close(tell)
        ring.ended(outcome)
        await lab.settled()
        await lab.until(lambda: "guest_end" in str(lab.lines()))
        assert [(each.status, each.outcome) for each in lab.records] == [(200, "complete")] * 2
        events = [
            line["gateway"] for line in lab.lines() if line.get("guest", {}).get("id") == "g" and "gateway" in line
        ]
        assert [each["event"] for each in events] == [
            "guest_park", "guest_resume", "guest_hibernate", "guest_resume", "guest_end"
        ]  # fmt: skip
        assert int(events[2]["facts"]["kept_bytes"]) > 10_000
        assert (events[1]["facts"]["from"], events[3]["facts"]["from"]) == ("parked", "hibernated")


def test_a_guest_that_sleeps_for_long_is_on_disk_if_that_is_wanted(tmp_path: Path) -> None:
    """`entries: kvm: idle:` is what the pool does: both ways are audited with their cause, and the program's clock,
    output and exit code are what they would have been."""
    need_kvm()
    (tmp_path / "p.yaml").write_text("seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.example]}}\n")
    (tmp_path / "seamgate.yaml").write_text(
        "entries: {kvm: {idle: {trim_s: 0.1, park_s: 0.2, hibernate_s: 0.3}}, proxy: {listen: 127.0.0.1:8080}}\n"
        "guests: {other: {token: {env: OTHER_TOKEN}}}\n"
        "policies: [p.yaml]\n"
    )
    code = "import sys, time\na = time.monotonic()\ntime.sleep(3)\nprint(time.monotonic() - a >= 3)\nsys.exit(9)"
    secrets = {"OTHER_TOKEN": "other-guests-token-1234567890"}
    done = _run(tmp_path, code, "-c", "seamgate.yaml", "--audit", "run.jsonl", env=secrets)
    assert (done.returncode, done.stdout) == (9, "True\n"), done
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    told = [(line["gateway"]["event"], line["gateway"]["facts"]) for line in lines if "gateway" in line]
    told = [(event, facts) for event, facts in told if event.startswith("guest_")]
    assert [event for event, _ in told] == ["guest_hibernate", "guest_resume", "guest_end"]
    assert [facts.get("cause") for _, facts in told] == ["idle", "idle", None]
    assert told[-1][1]["parked_times"] == "1"
