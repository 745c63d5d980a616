"""Streams that pass unread, without a network: what is judged, what waits for what, how each end is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from seamgate import Verdict, allow, deny, hookimpl
from seamgate.audit.record import Outcome
from seamgate.entry.connections import Connections
from seamgate.entry.splice import Splice, judge_tcp
from seamgate.errors import ConnectFailed, Reason, SeamgateError
from seamgate.flow import Guest, Resolution, Target
from seamgate.pipeline import Pipeline
from seamgate.registry import register
from seamgate.seam import Tally
from seamgate.turns import BUDGET, Shares
from seamgate.upstream.addresses import PUBLIC_ONLY
from seamgate.upstream.destination import OwnAddresses, check_destination
from seamgate.verdict import Effect

GUEST = Guest("g", {"team": "research"})
TARGET = Target("https", "10.0.0.5", 5432, True)
PASS = Verdict(Effect.ALLOW, Reason.ALLOWED, "db", addresses=("private",), upgrade="tcp")


class Judge:
    """Says what it is told to; keeps what it was asked."""

    def __init__(self, verdict: Verdict | None) -> None:
        self.verdict = verdict
        self.asked: list[Target] = []

    @hookimpl
    def judge_connect(self, target: Target) -> Verdict | None:
        self.asked.append(target)
        return self.verdict


class End:
    """A transport that keeps what was done to it."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.did.append(data)

    def write_eof(self) -> None:
        self.did.append("eof")

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closing = True
        self.did.append("close")

    def abort(self) -> None:
        self.closing = True
        self.did.append("abort")

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.did.append("pause")

    def resume_reading(self) -> None:
        self.did.append("resume")

    def set_protocol(self, protocol: Any) -> None:
        """Whoever took it gets its bytes from the test."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Connector:
    """Dials nothing: gives the other end, or an error."""

    def __init__(self, far: End | SeamgateError) -> None:
        self.far = far
        self.dialled: tuple[str, ...] = ()
        self.receiver: Any = None

    async def dial(self, target: Target, addresses: tuple[str, ...], receiver: Any) -> str:
        self.dialled = addresses
        if isinstance(self.far, SeamgateError):
            raise self.far
        self.receiver = receiver
        receiver.connection_made(self.far)
        receiver.data_received(b"220 ready")
        return addresses[0]


def seam(judge: Judge, far: End | SeamgateError | None = None, **changes: Any) -> Any:
    pipeline = Pipeline([register("judge", judge)])
    records: list[Any] = []
    made: Any = SimpleNamespace(
        shares=Shares(),
        pipeline=pipeline,
        draining=False,
        journal=SimpleNamespace(healthy=True),
        own=OwnAddresses([("10.0.0.9", 8080)]),
        permit=PUBLIC_ONLY,
        known_address=lambda target: Resolution(target.host, (target.host,), 0.0) if target.is_address else None,
        check=lambda found, target, permit: check_destination(found, target.port, permit, made.own, name=target.host),
        connector=Connector(far) if far is not None else None,
        limits=SimpleNamespace(resolve_timeout_s=1.0, response_timeout_s=900.0, head_timeout_s=30.0),
        tunnels=set(),
        requests_total=0,
        denied_total=0,
        tallies={"": Tally()},
        new_id=lambda: "id",
        clock=lambda: 0.0,
        opened=lambda *_: None,
        records=records,
        record=lambda record, denied: records.append(record),
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_stream_is_judged_as_tcp() -> None:
    """Whatever scheme the entry took it for; only an allow that says so counts."""
    judge = Judge(PASS)
    assert judge_tcp(seam(judge), GUEST, TARGET, []) == PASS
    assert judge.asked == [Target("tcp", "10.0.0.5", 5432, True)]


@pytest.mark.parametrize(
    ("verdict", "changes", "reason"),
    [
        (deny("no"), {}, Reason.RULE_DENIED),
        (None, {}, Reason.NO_RULE_MATCHED),
        (allow("lax"), {}, Reason.NO_RULE_MATCHED),
        (Verdict(Effect.DEFER, upgrade="tcp"), {}, Reason.NO_RULE_MATCHED),
        (Verdict(Effect.ALLOW, upgrade="websocket"), {}, Reason.NO_RULE_MATCHED),
        (PASS, {"draining": True}, Reason.SHUTTING_DOWN),
        (PASS, {"journal": SimpleNamespace(healthy=False)}, Reason.AUDIT_UNAVAILABLE),
        (PASS, {"own": OwnAddresses([("10.0.0.5", 5432)])}, Reason.OWN_ADDRESS),
    ],
)
def test_everything_else_is_a_denial(verdict: Verdict | None, changes: dict[str, Any], reason: Reason) -> None:
    """Fail closed: an opinion on requests is none on streams."""
    found = judge_tcp(seam(Judge(verdict), **changes), GUEST, TARGET, [])
    assert (found.effect, found.reason) == (Effect.DENY, reason)


async def started(made: Any, guest: End, first: bytes = b"", verdict: Verdict = PASS) -> tuple[Splice, Any]:
    """Begin a stream and let it connect."""
    connections = Connections(10)
    splice = Splice(
        made, connections, "proxy", GUEST, TARGET, verdict, [],
        accepted=b"open", refusal=lambda why, _: b"no: " + why.reason.value.encode(),
    )  # fmt: skip
    splice.take(guest, first)
    if splice._dial is not None:
        await asyncio.wait([splice._dial])
    return splice, connections


async def test_the_guest_hears_that_it_is_open_before_anything_else() -> None:
    """What a server says at once comes after the answer."""
    guest, far = End(), End()
    made = seam(Judge(PASS), far)
    _, connections = await started(made, guest)
    assert guest.did == [b"open", "resume", b"220 ready"]
    assert made.connector.dialled == ("10.0.0.5",)
    assert len(connections.all) == len(made.tunnels) == 1


async def test_both_ends_make_it_complete() -> None:
    """An end goes to the other side; the second one ends it, once."""
    guest, far = End(), End()
    made = seam(Judge(PASS), far)
    splice, connections = await started(made, guest, b"hello")
    assert far.did == [b"hello"]
    assert splice.eof_received()
    assert far.did[-1] == "eof" and made.records == []
    made.connector.receiver.eof_received()
    assert (guest.did[-1], far.did[-1]) == ("close", "close")
    splice.connection_lost(None)
    (record,) = made.records
    assert (record.outcome, record.bytes.request_body, record.bytes.response_body) == (Outcome.COMPLETE, 5, 9)
    assert not connections.all and not made.tunnels


async def test_a_failure_to_connect_is_told() -> None:
    """In the words of the entry, and the record says that it was allowed and failed."""
    guest = End()
    made = seam(Judge(PASS), ConnectFailed("nobody there"))
    await started(made, guest)
    assert guest.did == [b"no: connect_failed", "close"]
    assert [(each.outcome, each.verdict) for each in made.records] == [(Outcome.FAILED, "allow")]


async def test_an_address_that_is_not_permitted_is_not_dialled() -> None:
    """The classes that the rule names count, and no others."""
    guest = End()
    made = seam(Judge(PASS), End())
    await started(made, guest, verdict=Verdict(Effect.ALLOW, rule="db", upgrade="tcp"))
    assert made.connector.dialled == ()
    assert guest.did == [b"no: address_forbidden", "close"]
    assert [each.outcome for each in made.records] == [Outcome.DENIED]


async def test_a_fault_of_ours_ends_it() -> None:
    """Nothing hangs on an error that nobody thought of; it is reported, and denied."""
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    guest = End()
    made = seam(Judge(PASS), End(), connector=SimpleNamespace(dial=None))
    await started(made, guest)
    assert guest.did == [b"no: internal_error", "close"]
    assert len(seen) == len(made.records) == 1


async def test_who_has_enough_holds_the_other_back() -> None:
    """Either way, as often as need be."""
    guest, far = End(), End()
    made = seam(Judge(PASS), far)
    splice, _ = await started(made, guest)
    splice.pause_writing()
    splice.resume_writing()
    assert far.did == ["pause", "resume"]
    made.connector.receiver.pause_writing()
    made.connector.receiver.resume_writing()
    assert guest.did[-2:] == ["pause", "resume"]


async def test_a_guests_streams_share_its_turn() -> None:
    """What was read is passed on; the next read, of either side, is for a later turn, and not while one has enough."""
    guest, far = End(), End()
    made = seam(Judge(PASS), far)
    splice, _ = await started(made, guest)
    made.shares.of(GUEST.id).spend(BUDGET.units)
    splice.data_received(b"up")
    made.connector.receiver.data_received(b"down")
    splice.pause_writing()
    assert far.did == [b"up", "pause", "pause"]
    assert guest.did[-2:] == ["pause", b"down"] or guest.did[-2:] == [b"down", "pause"]
    for _ in range(4):
        await asyncio.sleep(0)
    assert (guest.did[-1], far.did[-1]) == ("resume", "pause")
    splice.resume_writing()
    assert far.did[-1] == "resume"


async def test_silence_is_ended_by_the_sweep() -> None:
    """Not before it has lasted."""
    guest, far = End(), End()
    made = seam(Judge(PASS), far)
    splice, _ = await started(made, guest)
    splice.check_deadline(splice._active_at + 899)
    assert made.records == []
    splice.check_deadline(splice._active_at + 901)
    assert (guest.did[-1], far.did[-1]) == ("abort", "abort")
    assert [each.reason for each in made.records] == [Reason.UPSTREAM_TIMEOUT]
