"""What a reload leaves alone: streams whose counters are full or whose judges are late, and what was counted before."""

from __future__ import annotations

from time import monotonic

from seamgate import hookimpl
from support.lab import ALLOW_ALL, Lab
from support.reloads import OTHERS_ONLY, Streams, audited_as_revoked, begin_stream, cut_within, reload
from support.upstream import HttpUpstream


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
        await cut_within(client, h)
        record, _ = await lab.audited(
            "GET /stream deny revoked 200 truncated", f"CONNECT {lab.authority()} deny revoked 200 aborted"
        )
        audited_as_revoked(record, rule="all", generation=3)
        streams.go_on.set()
