"""What is told of refused packets and sockets: reading the kernel's words, and counting what repeats."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.audit.record import AuditRecord, AuditRequest, Decision, Outcome
from seamgate.entry.netns.confine import refusal_of
from seamgate.entry.netns.connects import Report, read_report
from seamgate.entry.netns.netlink import attribute, pack
from seamgate.entry.netns.refusals import (
    MOST_KINDS,
    Packet,
    Refusals,
    judge_report,
    read_log,
    read_packet,
)
from seamgate.errors import Reason
from seamgate.flow import Guest, Isolation
from seamgate.verdict import deny

NO = deny("No.", reason=Reason.NO_RULE_MATCHED)


class _Pipeline:
    generation = 3


class _Seam:
    """What `Refusals` uses of the seam."""

    def __init__(self) -> None:
        self.requests_total = self.denied_total = 0
        self.records: list[AuditRecord] = []
        self.pipeline = _Pipeline()

    def clock(self) -> float:
        return 1.0

    def new_id(self) -> str:
        return str(len(self.records))

    def record(self, record: AuditRecord, *, denied: bool) -> None:
        assert denied
        self.records.append(record)


def _refusals() -> tuple[Refusals, _Seam]:
    seam = _Seam()
    return Refusals(cast("Any", seam), Guest("g", {}, Isolation.NETNS), "netns"), seam


def _aim(port: int) -> AuditRequest:
    return AuditRequest(method="SEND", scheme="udp", host="9.9.9.9", port=port)


async def test_the_first_is_told_and_the_rest_counted() -> None:
    """One record at once; the others of the window in one more, with their number."""
    refusals, seam = _refusals()
    for _ in range(5):
        refusals.refuse(_aim(443), NO)
    assert [record.message for record in seam.records] == ["No."]
    refusals.flush()
    assert [record.message for record in seam.records] == ["No.", "No. (refused 4 times)"]
    assert (seam.requests_total, seam.denied_total) == (2, 2)
    (record,) = {record.request for record in seam.records}
    assert record == _aim(443)
    assert (seam.records[0].verdict, seam.records[0].outcome) == (Decision.DENY, Outcome.DENIED)


async def test_a_new_window_tells_again() -> None:
    """What goes on is told again, so that a long flood has a record for each window."""
    refusals, seam = _refusals()
    refusals.refuse(_aim(443), NO)
    refusals.flush()
    refusals.refuse(_aim(443), NO)
    assert len(seam.records) == 2
    refusals.flush()
    assert len(seam.records) == 2


async def test_a_scan_does_not_fill_the_disk() -> None:
    """Beyond so many kinds only the method and protocol are told apart; every attempt is in some count."""
    refusals, seam = _refusals()
    for port in range(10_000):
        refusals.refuse(_aim(port + 1), NO)
    refusals.flush()
    assert len(seam.records) == MOST_KINDS + 2
    assert seam.records[-1].message == f"No. (refused {10_000 - MOST_KINDS - 1} times)"
    assert seam.records[-1].request == AuditRequest(method="SEND", scheme="udp")


async def test_a_timer_ends_the_window() -> None:
    """Nobody has to flush for the counts to be told."""
    refusals, seam = _refusals()
    refusals.refuse(_aim(443), NO)
    refusals.refuse(_aim(443), NO)
    timer = refusals._timer
    assert timer is not None
    assert timer.when() - asyncio.get_running_loop().time() == pytest.approx(10.0, abs=1.0)
    refusals.flush()
    assert timer.cancelled()
    assert len(seam.records) == 2


async def test_what_fails_to_resolve_was_allowed() -> None:
    """The decision was ours only where we refused."""
    refusals, seam = _refusals()
    refusals.refuse(AuditRequest(method="RESOLVE"), deny("It is not there.", reason=Reason.RESOLVE_FAILED))
    assert (seam.records[0].verdict, seam.records[0].outcome) == (Decision.ALLOW, Outcome.FAILED)
    refusals.flush()


def _ipv4(protocol: int, rest: bytes, *, words: int = 5) -> bytes:
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | words, 0, 0, 0, 0, 64, protocol, 0, bytes(4), bytes((9, 9, 9, 9)))
    return head + bytes(words * 4 - 20) + rest


def _ipv6(protocol: int, rest: bytes) -> bytes:
    return struct.pack("!IHBB", 6 << 28, len(rest), protocol, 64) + bytes(16) + socket.inet_pton(10, "2606::1") + rest


PORTS = struct.pack("!HHI", 1234, 443, 0)


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        (_ipv4(17, PORTS), Packet("udp", "9.9.9.9", 443)),
        (_ipv4(17, PORTS, words=6), Packet("udp", "9.9.9.9", 443)),
        (_ipv4(6, PORTS), Packet("tcp", "9.9.9.9", 443)),
        (_ipv4(1, PORTS), Packet("icmp", "9.9.9.9")),
        (_ipv4(47, PORTS), Packet("ip-47", "9.9.9.9")),
        (_ipv4(17, b"\0\0"), Packet("udp", "9.9.9.9")),
        (_ipv6(17, PORTS), Packet("udp", "2606::1", 443)),
        (_ipv6(58, PORTS), Packet("icmp", "2606::1")),
        (_ipv6(0, PORTS), Packet("ip-0", "2606::1")),
        (b"", None),
        (b"\x45" * 19, None),
        (b"\x60" * 39, None),
        (b"\x70" * 60, None),
    ],
)
def test_a_packet_is_read(data: bytes, packet: Packet | None) -> None:
    """Protocol, address and port, with header options; a cut packet is told as far as it goes."""
    assert read_packet(data) == packet


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_not(data: bytes) -> None:
    """The guest writes packets: whatever is in them, reading raises nothing."""
    read_packet(data)
    list(read_log(data))


def test_the_log_is_read() -> None:
    """Packets of the log's messages; others are passed over."""
    logged = pack((4 << 8, 0, b"\2\0\0\7" + attribute(1, b"\x08\0\3\0") + attribute(9, b"packet")), 0)
    other = pack((3, 0, b"\0\0\0\0"), 0)
    assert list(read_log(logged + other + logged)) == [b"packet", b"packet"]


def test_a_report_is_read() -> None:
    """The call and who waits for it; the arguments as they are."""
    report = struct.pack("=QIIiIQ6Q", 77, 5, 0, 41, 0xC000003E, 0, 1 << 40 | 2, 3 | 0o2000000, 1, 0, 0, 0)
    assert read_report(report) == Report(77, 5, 41, (1 << 40 | 2, 3 | 0o2000000, 1, 0, 0, 0))
    assert read_report(report).descriptor == 2


@pytest.mark.parametrize(("given", "descriptor"), [(7, 7), (1 << 32 | 7, 7), (0xFFFFFFFF, -1), (-100 % 2**64, -100)])
def test_a_descriptor_is_the_lower_half(given: int, descriptor: int) -> None:
    """As the kernel takes it."""
    assert Report(1, 1, 42, (given, 0, 0, 0, 0, 0)).descriptor == descriptor


def test_a_report_is_judged() -> None:
    """By family and type of a socket, or the path of one; the error is the kernel's own."""
    for family, kind, scheme, code in ((2, 3, "raw", 1), (40, 1, "vsock", 97), (99, 1, "family-99", 97)):
        what, verdict = judge_report({"socket": [family, kind]})
        assert what == AuditRequest(method="SOCKET", scheme=scheme)
        assert verdict.reason is Reason.NO_RULE_MATCHED
        assert refusal_of(family) == code
    what, _ = judge_report({"path": "/run/docker.sock"})
    assert what == AuditRequest(method="CONNECT", scheme="unix", path="/run/docker.sock")
    what, verdict = judge_report({"unseen": "sudo"})
    assert what == AuditRequest(method="CONNECT", scheme="unseen")
    assert "the program sudo" in verdict.message
