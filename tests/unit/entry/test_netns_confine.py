"""The seccomp filter, run by a small interpreter of classic BPF: what each system call gets."""

from __future__ import annotations

import socket
import struct

import pytest

from seamgate.entry.netns.confine import (
    ALLOW,
    ARCHITECTURES,
    FORBIDDEN,
    MISSING,
    NOTIFY,
    UNSUPPORTED,
    Architecture,
    build_filter,
)

I386 = 0x40000003


def decide(machine: str, number: int, *arguments: int, token: int = 0, listen: bool = True, unix: bool = True) -> int:
    """Run the filter over a system call and return its verdict. Source: linux/seccomp.h, struct seccomp_data."""
    architecture = ARCHITECTURES[machine]
    given = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number, token or architecture.token, 0, *given)
    program = [*struct.iter_unpack("=HBBI", build_filter(architecture, listen=listen, unix=unix))]
    accumulator = place = 0
    while True:
        code, yes, no, value = program[place]
        place += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        else:
            place += yes if (accumulator == value if code == 0x15 else accumulator >= value) else no


def _keys(architecture: Architecture) -> tuple[int, ...]:
    return architecture.add_key, architecture.request_key, architecture.keyctl


MACHINES = pytest.mark.parametrize("machine", sorted(ARCHITECTURES))


@MACHINES
@pytest.mark.parametrize(
    ("family", "kind", "verdict"),
    [
        (socket.AF_NETLINK, socket.SOCK_RAW, ALLOW),
        (socket.AF_INET, socket.SOCK_STREAM, ALLOW),
        (socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, ALLOW),
        (socket.AF_INET, socket.SOCK_RAW, NOTIFY),
        (socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NOTIFY),
        (socket.AF_INET, 10, NOTIFY),
        (socket.AF_PACKET, socket.SOCK_RAW, NOTIFY),
        (socket.AF_VSOCK, socket.SOCK_STREAM, NOTIFY),
        (0, socket.SOCK_STREAM, NOTIFY),
        (0xFFFFFFFF, socket.SOCK_STREAM, NOTIFY),
    ],
)
def test_sockets_of_these_families_only(machine: str, family: int, kind: int, verdict: int) -> None:
    """Netlink, and IPv4 or IPv6 that is no raw one (unix: below); upper halves, which the kernel ignores, too."""
    number = ARCHITECTURES[machine].socket
    assert decide(machine, number, family, kind) == verdict
    assert decide(machine, number, family | 1 << 40, kind | 1 << 40) == verdict
    without = FORBIDDEN if verdict == NOTIFY else verdict
    assert decide(machine, number, family, kind, listen=False) == without


@MACHINES
@pytest.mark.parametrize(
    ("kind", "supervised"),
    [
        (socket.SOCK_STREAM, ALLOW),
        (socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, ALLOW),
        (socket.SOCK_DGRAM, UNSUPPORTED),
        (socket.SOCK_RAW, UNSUPPORTED),
        (1 << 40 | socket.SOCK_DGRAM, UNSUPPORTED),
    ],
)
def test_unix_sockets_only_where_each_connect_is_reported(machine: str, kind: int, supervised: int) -> None:
    """None for datagrams, which need no connect; without a supervisor pairs only, and nothing is to be reported."""
    architecture = ARCHITECTURES[machine]
    for family in (socket.AF_UNIX, 1 << 40 | socket.AF_UNIX):
        assert decide(machine, architecture.socketpair, family, kind) == supervised
        assert decide(machine, architecture.socket, family, kind) == supervised
        for without in ({"unix": False}, {"listen": False}):
            assert decide(machine, architecture.socketpair, family, kind, **without) == supervised
            assert decide(machine, architecture.socket, family, kind, **without) == UNSUPPORTED
    assert decide(machine, architecture.socketpair, 30, socket.SOCK_STREAM) == UNSUPPORTED
    for number in (architecture.connect, architecture.listen):
        assert decide(machine, number) == NOTIFY
        assert decide(machine, number, unix=False) == ALLOW
        assert decide(machine, number, listen=False) == ALLOW


@MACHINES
def test_other_ways_to_the_kernel_are_missing(machine: str) -> None:
    """Calls of another architecture, whose numbers mean something else, io_uring, and the kernel's keys."""
    architecture = ARCHITECTURES[machine]
    assert decide(machine, architecture.socket, 2, 1, token=I386) == MISSING
    assert decide(machine, architecture.socket | 0x40000000, 2, 1) == MISSING
    for number in (architecture.io_uring_setup, *_keys(architecture)):
        assert decide(machine, number) == MISSING


@MACHINES
def test_nobody_types_into_the_terminal(machine: str) -> None:
    """TIOCSTI and TIOCLINUX are forbidden, whatever stands in the upper half of the command; other commands work."""
    ioctl = ARCHITECTURES[machine].ioctl
    assert decide(machine, ioctl, 0, 0x5412) == FORBIDDEN
    assert decide(machine, ioctl, 0, 1 << 32 | 0x5412) == FORBIDDEN
    assert decide(machine, ioctl, 0, 0x541C) == FORBIDDEN
    assert decide(machine, ioctl, 0, 0x5401) == ALLOW


@MACHINES
def test_nobody_limits_the_keeper(machine: str) -> None:
    """Limits of process 1 can be read; those of others are set as ever. Halves that the kernel ignores don't count."""
    prlimit = ARCHITECTURES[machine].prlimit
    for process in (1, 1 << 32 | 1):
        for limits in (0x1000, 1 << 32):
            assert decide(machine, prlimit, process, 7, limits) == FORBIDDEN
        assert decide(machine, prlimit, process, 7, 0, 0x1000) == ALLOW
    for process in (0, 2, -1 % 2**64):
        assert decide(machine, prlimit, process, 7, 0x1000) == ALLOW


@MACHINES
def test_everything_else_is_as_ever(machine: str) -> None:
    """A program finds the system that it knows."""
    special = ARCHITECTURES[machine]
    others = set(range(450)) - {special.socket, special.ioctl, special.io_uring_setup, *_keys(special)}
    others -= {special.connect, special.listen, special.socketpair}
    assert {decide(machine, number) for number in others} == {ALLOW}
