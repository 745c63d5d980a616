"""The seccomp filter under which a guest's programs run: what rules about packets can't hold back.

- Sockets of other families than unix, IPv4, IPv6 and netlink: VSOCK leads to the hypervisor and Bluetooth to the air,
  whatever the network namespace. Raw ones: those are refused anyway, but nobody would hear of it. Both attempts are
  reported to the supervisor (`supervisor`), which refuses them and tells the audit log.
- Unix sockets with a path, which no network namespace holds. A filter can't read the path, so every connect(2) is
  reported, and the supervisor makes the connection itself. Datagrams name their aim in each sendto(2) and sendmsg(2),
  so there are no unix sockets for those, in pairs neither. Where nobody can supervise, there are pairs only. Each
  listen(2) is reported too, so that the supervisor knows what the guest listens at; nothing of that is refused.
- Limits of the keeper (prlimit(2) of process 1): without descriptors nobody would make the guest's connections.
- Keys of the kernel (keyctl(2)): those of the user and of the session, Kerberos tickets, are those of outside.
- io_uring, which makes sockets without the system call that is looked at here.
- Pushing characters into the terminal's input (TIOCSTI), which the shell would run after the guest has ended.
- System calls of other architectures (32-bit ones on x86-64), for which the rules here would not hold.

Building is pure; `install` is called in the guest's process, last before its program starts.

Source: linux/seccomp.h, linux/filter.h, linux/audit.h
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from seamgate.entry.netns import system

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET = 1, 2, 5
_TYPE_MASK = 0xF  # the rest are SOCK_NONBLOCK and SOCK_CLOEXEC
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

ALLOW: Final = 0x7FFF0000
NOTIFY: Final = 0x7FC00000
_ERRNO = 0x00050000
MISSING: Final = _ERRNO | errno.ENOSYS
FORBIDDEN: Final = _ERRNO | errno.EPERM

UNSUPPORTED: Final = _ERRNO | errno.EAFNOSUPPORT

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_KEEPER = 1
"""The number of the keeper (`launcher`) in the guest's process namespace."""
_X32_BIT = 0x40000000

_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_WAIT_KILLABLE = 1 << 5  # Linux 5.19: what is being answered is not interrupted, and so not asked twice
_JOIN_SESSION_KEYRING = 1


class Architecture(msgspec.Struct, frozen=True):
    """What differs between machines: the token of linux/audit.h, and numbers of system calls."""

    token: int
    seccomp: int
    socket: int
    socketpair: int
    connect: int
    listen: int
    ioctl: int
    prlimit: int
    add_key: int
    request_key: int
    keyctl: int
    io_uring_setup: int = 425


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "x86_64": Architecture(
        0xC000003E,
        seccomp=317,
        socket=41,
        socketpair=53,
        connect=42,
        listen=50,
        ioctl=16,
        prlimit=302,
        add_key=248,
        request_key=249,
        keyctl=250,
    ),
    "aarch64": Architecture(
        0xC00000B7,
        seccomp=277,
        socket=198,
        socketpair=199,
        connect=203,
        listen=201,
        ioctl=29,
        prlimit=261,
        add_key=217,
        request_key=218,
        keyctl=219,
    ),
}

_Step = tuple[int, int, str, str] | str
"""(code, value, label if true, label if false; "" is the next step), or a label."""


def build_filter(architecture: Architecture, *, listen: bool = True, unix: bool = True) -> bytes:
    """Return the filter program.

    Args:
        architecture: of this machine.
        listen: whether somebody will answer what is to be reported; else it fails at once, unreported.
        unix: whether there are unix sockets other than pairs: only where each connect is answered by a supervisor.
    """
    unix = unix and listen
    steps: list[_Step] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, architecture.token, "", "missing"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, _X32_BIT, "missing", ""),
        (_EQUAL, architecture.io_uring_setup, "missing", ""),
        *((_EQUAL, number, "missing", "") for number in (architecture.add_key, architecture.request_key)),
        (_EQUAL, architecture.keyctl, "missing", ""),
        (_EQUAL, architecture.ioctl, "ioctl", ""),
        (_EQUAL, architecture.connect, "report" if unix else "allow", ""),
        (_EQUAL, architecture.listen, "report" if unix else "allow", ""),
        (_EQUAL, architecture.prlimit, "limit", ""),
        (_EQUAL, architecture.socketpair, "pair", ""),
        (_EQUAL, architecture.socket, "socket", "allow"),
        "socket",
        (_LOAD, _FIRST_ARGUMENT, "", ""),
        (_EQUAL, AF_UNIX, "stream" if unix else "unsupported", ""),
        (_EQUAL, AF_NETLINK, "allow", ""),
        (_EQUAL, AF_INET, "type", ""),
        (_EQUAL, AF_INET6, "type", "report"),
        "type",
        (_LOAD, _SECOND_ARGUMENT, "", ""),
        (_AND, _TYPE_MASK, "", ""),
        (_EQUAL, SOCK_STREAM, "allow", ""),
        (_EQUAL, SOCK_DGRAM, "allow", "report"),
        "pair",
        (_LOAD, _FIRST_ARGUMENT, "", ""),
        (_EQUAL, AF_UNIX, "stream", "unsupported"),
        "stream",
        (_LOAD, _SECOND_ARGUMENT, "", ""),
        (_AND, _TYPE_MASK, "", ""),
        (_EQUAL, SOCK_STREAM, "allow", ""),
        (_EQUAL, SOCK_SEQPACKET, "allow", "unsupported"),
        "ioctl",
        (_LOAD, _SECOND_ARGUMENT, "", ""),
        (_EQUAL, _TIOCSTI, "forbidden", ""),
        (_EQUAL, _TIOCLINUX, "forbidden", "allow"),
        "limit",
        (_LOAD, _FIRST_ARGUMENT, "", ""),
        (_EQUAL, _KEEPER, "", "allow"),
        (_LOAD, _THIRD_ARGUMENT, "", ""),
        (_EQUAL, 0, "", "forbidden"),
        (_LOAD, _THIRD_ARGUMENT + 4, "", ""),
        (_EQUAL, 0, "allow", "forbidden"),
        "missing",
        (_RETURN, MISSING, "", ""),
        "unsupported",
        (_RETURN, UNSUPPORTED, "", ""),
        "forbidden",
        (_RETURN, FORBIDDEN, "", ""),
        "report",
        (_RETURN, NOTIFY if listen else FORBIDDEN, "", ""),
        "allow",
        (_RETURN, ALLOW, "", ""),
    ]
    return _assemble(steps)


def _assemble(steps: Sequence[_Step]) -> bytes:
    places: dict[str, int] = {}
    code: list[tuple[int, int, str, str]] = []
    for step in steps:
        if isinstance(step, str):
            places[step] = len(code)
        else:
            code.append(step)
    program = b""
    for place, (operation, value, yes, no) in enumerate(code):
        true, false = (places[label] - place - 1 if label else 0 for label in (yes, no))
        program += struct.pack("=HBBI", operation, true, false, value)
    return program


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(*, unix: bool) -> int | None:
    """Put this process under the filter, for good; return the descriptor that reports come from.

    None where a filter above, of a gateway around this one, has the reports already: then there are unix pairs only.

    Args:
        unix: as for `build_filter`.

    Raises:
        OSError: the kernel has no seccomp filters.
        KeyError: this machine's system calls are not known here.
    """
    architecture = ARCHITECTURES[os.uname().machine]
    code = build_filter(architecture, unix=unix)
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        try:
            return _load(architecture, code, flags)
        except OSError as error:
            if error.errno == errno.EBUSY:
                break
            if error.errno != errno.EINVAL or not flags & _WAIT_KILLABLE:
                raise
    _load(architecture, build_filter(architecture, listen=False), 0)
    return None


def refusal_of(family: int) -> int:
    """Return the errno with which a socket of this family is refused, that was reported."""
    return errno.EPERM if family in (AF_INET, AF_INET6) else errno.EAFNOSUPPORT


def leave_keys() -> None:
    """Join a session keyring that is new and empty: the one that came along is the caller's.

    Without effect where the kernel has no keys or no room for one; the filter keeps a guest from all of them anyway.
    """
    with contextlib.suppress(OSError):
        system.call(ARCHITECTURES[os.uname().machine].keyctl, _JOIN_SESSION_KEYRING, 0)


def _load(architecture: Architecture, code: bytes, flags: int) -> int:
    return system.call(architecture.seccomp, _SET_MODE_FILTER, flags, _Program(len(code) // 8, code))
