"""What a reload leaves alone: streams whose counters are full or whose judges are late, and what was counted before."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import pytest

from seamgate import hookimpl
from seamgate.document import Document
from seamgate.errors import SeamgateError
from seamgate.policy.evaluation import Evaluator
from seamgate.policy.schema import RuleSpec
from seamgate.registry import PluginContext
from seamgate.reloading import ReloadReport
from seamgate_plugins.policy import PolicyPlugin
from support.lab import ALLOW_ALL, Lab
from support.reloads import OTHERS_ONLY, Streams, audited_as_revoked, begin_stream, cut, reload
from support.upstream import HttpUpstream, echo


class Slow:
    """A plugin without an opinion, that takes its time to say so."""

    takes_s = 0.0

    @hookimpl
    def judge_request(self) -> None:
        """Keep the processor busy."""
        until = monotonic() + self.takes_s
        while monotonic() < until:
            pass


async def test_full_counters_cut_nothing() -> None:
    """A reload starts the rate counters anew; streams that were admitted before are not cut because they fill them."""
    streams = Streams()
    limited = {**ALLOW_ALL, "limits": {"requests": "2/min"}}
    async with Lab(HttpUpstream(streams), rules=[limited]) as lab:
        clients = [await lab.tunnel(), await lab.tunnel()]
        begun = [await begin_stream(client) for client in clients]
        report = reload(lab, [{**limited, "limits": {"requests": "1/min"}}])
        assert report.revoked_requests == 0
        streams.go_on.set()
        for client, h in zip(clients, begun, strict=True):
            assert type(await client.event(h)).__name__ == "Data"
            assert type(await client.event(h)).__name__ == "EndOfMessage"
        await lab.audited(*["GET /stream allow allowed 200 complete"] * 2)


async def test_what_was_counted_stays_counted() -> None:
    """A reload gives nobody a fresh limit: a rule whose id and limit stay goes on counting, whatever else changes."""
    limited = {**ALLOW_ALL, "limits": {"requests": "2/h"}}
    async with Lab(HttpUpstream(echo), rules=[limited], credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/1")).status == 200
        reload(lab, [{**limited, "reason": "another text"}, OTHERS_ONLY])
        assert (await client.ask("GET", "/2")).status == 200
        reload(lab, [limited])
        assert (await client.ask("GET", "/3")).reason == "rate_limited"
        reload(lab, [{**limited, "limits": {"requests": "3/h"}}])
        assert (await client.ask("GET", "/4")).status == 200  # another limit begins anew
        reload(lab, [limited])
        assert (await client.ask("GET", "/5")).reason == "rate_limited"
        allowed, limit = "allow allowed 200 complete", "deny rate_limited 429 denied"
        await lab.audited(*[f"GET /{n} {allowed if n in (1, 2, 4) else limit}" for n in range(1, 6)])


async def test_what_is_under_way_is_counted_once() -> None:
    """A stream that is judged again at each reload takes one place of its limit, not one for each reload."""
    streams, limited = Streams(), {**ALLOW_ALL, "limits": {"requests": "2/h"}}
    async with Lab(HttpUpstream(streams), rules=[limited], credential=False) as lab:
        clients = [await lab.tunnel(), await lab.tunnel()]
        await begin_stream(clients[0])
        for number in range(3):
            assert reload(lab, [{**limited, "reason": f"text {number}"}]).revoked_requests == 0
        await begin_stream(clients[1])
        streams.go_on.set()
        await lab.audited(*["GET /stream allow allowed 200 complete"] * 2)


async def test_a_slow_clock_cuts_nothing() -> None:
    """Judged again on a machine that is busy, each answer comes late: what it says decides, not when it comes."""
    streams, late, slow = Streams(), {"limits": {"plugin_budget_s": 0.001}}, Slow()
    async with Lab(HttpUpstream(streams), plugins=[("slow", slow)]) as lab:
        client = await lab.tunnel()
        h = await begin_stream(client)
        slow.takes_s = 0.002
        report = reload(lab, [ALLOW_ALL], late)
        assert (report.revoked_requests, report.revoked_tunnels) == (0, 0)
        overruns = [stats.overruns for stats in lab.gateway.seam.pipeline.stats if stats.plugin == "slow"]
        assert overruns == [1]
        report = reload(lab, [OTHERS_ONLY], late)
        assert (report.revoked_requests, report.revoked_tunnels) == (1, 1)
        await cut(client, h)
        record, _ = await lab.audited(
            "GET /stream deny revoked 200 truncated", f"CONNECT {lab.authority()} deny revoked 200 aborted"
        )
        audited_as_revoked(record, rule="all", generation=3)
        streams.go_on.set()


class Gate:
    """Holds the loading of policies up until it is opened, and knows in which thread that goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None
        load = PolicyPlugin.load_aside

        def wait_and_load(context: PluginContext) -> object:
            self.thread = threading.current_thread()
            self.begun.set()
            assert self.opened.wait(30)
            return load(context)

        monkeypatch.setattr(PolicyPlugin, "load_aside", staticmethod(wait_and_load))


def _begin_reload(lab: Lab, rules: Sequence[Mapping[str, Any]]) -> asyncio.Task[ReloadReport]:
    lab.write_policy(rules)
    path = lab.folder / "seamgate.yaml"
    path.write_text(json.dumps(lab.settings()))
    lab.gateway.reload_path = path
    return asyncio.ensure_future(lab.gateway.reload_everywhere())


async def test_requests_are_carried_while_a_policy_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the old rules to the last, however long it takes; then by the new ones, all at once."""
    async with Lab(HttpUpstream(echo)) as lab:
        gate = Gate(monkeypatch)
        client = await lab.tunnel()
        reloading = _begin_reload(lab, [OTHERS_ONLY])
        await lab.until(gate.begun.is_set)
        assert gate.thread is not threading.main_thread()
        for _ in range(20):
            assert (await client.ask("GET", "/x")).status == 200
        assert not reloading.done() and lab.gateway.seam.pipeline.generation == 1
        gate.opened.set()
        await reloading
        assert lab.gateway.seam.pipeline.generation == 2
        await lab.audited(
            *["GET /x allow allowed 200 complete"] * 20, f"CONNECT {lab.authority()} deny revoked 200 aborted"
        )


async def test_reloads_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is asked for while another loads reads the files after it: the newest rules win."""
    async with Lab(HttpUpstream(echo), credential=False) as lab:
        gate = Gate(monkeypatch)
        first = _begin_reload(lab, [OTHERS_ONLY])
        await lab.until(gate.begun.is_set)
        second = _begin_reload(lab, [ALLOW_ALL])
        gate.opened.set()
        await asyncio.gather(first, second)
        assert lab.gateway.seam.pipeline.generation == 3
        client = await lab.tunnel()
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited("GET /x allow allowed 200 complete")


async def test_a_stop_while_a_policy_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is swapped in a gateway that stops: the reload is refused."""
    async with Lab(HttpUpstream(echo)) as lab:
        gate = Gate(monkeypatch)
        reloading = _begin_reload(lab, [OTHERS_ONLY])
        await lab.until(gate.begun.is_set)
        await lab.gateway.stop(grace_s=1.0)
        gate.opened.set()
        with pytest.raises(SeamgateError, match="stopping"):
            await reloading
        assert lab.gateway.seam.pipeline.generation == 1


class Pieces:
    """Holds the loading up at some of its pieces until it is let go on: a rule that is read, or one that is indexed."""

    held_at = {(kind, number) for kind in ("read", "indexed") for number in (1, 2, 1000, 3999)}

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)
        self._done = {"read": 0, "indexed": 0}
        self._hold(
            monkeypatch, Document, "convert_part", lambda document, data, type_, *place: type_ is RuleSpec, "read"
        )
        self._hold(monkeypatch, Evaluator, "_add", lambda evaluator, rule: True, "indexed")

    def _hold(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, is_piece: Callable[..., bool], kind: str
    ) -> None:
        step = getattr(owner, name)

        def held(*arguments: Any) -> Any:
            if is_piece(*arguments):
                self._done[kind] += 1
                if (kind, self._done[kind]) in self.held_at:
                    self.arrived.put((kind, self._done[kind]))
                    assert self.go_on.acquire(timeout=30)
            return step(*arguments)

        monkeypatch.setattr(owner, name, held)


async def test_many_rules_load_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rules are read and indexed one by one in a thread, and between any two the loop can answer.

    How many requests that comes to depends on the machine; that none has to wait for the next rule does not.
    """
    many = [{"id": f"r-{number}", "allow": {"hosts": [f"h{number}.test"]}} for number in range(4000)]
    async with Lab(HttpUpstream(echo)) as lab:
        pieces, client = Pieces(monkeypatch), await lab.tunnel()
        reloading = _begin_reload(lab, [ALLOW_ALL, *many])
        seen: set[tuple[str, int]] = set()
        while len(seen) < len(Pieces.held_at):
            await lab.until(lambda: not pieces.arrived.empty())
            seen.add(pieces.arrived.get())
            assert (await client.ask("GET", "/x")).status == 200
            assert lab.gateway.seam.pipeline.generation == 1
            pieces.go_on.release()
        assert seen == Pieces.held_at
        await reloading
        assert lab.gateway.seam.pipeline.generation == 2
        assert (await client.ask("GET", "/x")).status == 200
        await lab.audited(*["GET /x allow allowed 200 complete"] * (len(seen) + 1))
