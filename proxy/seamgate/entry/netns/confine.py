"""The seccomp filter under which a guest's programs run: what rules about packets can't hold back.

- Sockets of other families than unix, IPv4, IPv6 and netlink: VSOCK leads to the hypervisor and Bluetooth to the air,
  whatever the network namespace. Raw ones: those are refused anyway, but nobody would hear of it. Both attempts are
  reported to the gateway, which refuses them and tells the audit log.
- io_uring, which makes sockets without the system call that is looked at here.
- Pushing characters into the terminal's input (TIOCSTI), which the shell would run after the guest has ended.
- System calls of other architectures (32-bit ones on x86-64), for which the rules here would not hold.

Building is pure; `install` is called in the guest's process, last before its program starts.

Source: linux/seccomp.h, linux/filter.h, linux/audit.h
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from seamgate.entry.netns import system

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM = 1, 2
_TYPE_MASK = 0xF  # the rest are SOCK_NONBLOCK and SOCK_CLOEXEC
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

ALLOW: Final = 0x7FFF0000
NOTIFY: Final = 0x7FC00000
_ERRNO = 0x00050000
MISSING: Final = _ERRNO | errno.ENOSYS
FORBIDDEN: Final = _ERRNO | errno.EPERM

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_X32_BIT = 0x40000000

_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3


class Architecture(msgspec.Struct, frozen=True):
    """What differs between machines: the token of linux/audit.h, and numbers of system calls."""

    token: int
    seccomp: int
    socket: int
    ioctl: int
    io_uring_setup: int = 425


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "x86_64": Architecture(0xC000003E, seccomp=317, socket=41, ioctl=16),
    "aarch64": Architecture(0xC00000B7, seccomp=277, socket=198, ioctl=29),
}

_Step = tuple[int, int, str, str] | str
"""(code, value, label if true, label if false; "" is the next step), or a label."""


def build_filter(architecture: Architecture, *, listen: bool = True) -> bytes:
    """Return the filter program.

    Args:
        architecture: of this machine.
        listen: whether somebody will answer what is to be reported; else it fails at once, unreported.
    """
    steps: list[_Step] = [
        (_LOAD, _ARCHITECTURE, "", ""),
        (_EQUAL, architecture.token, "", "missing"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, _X32_BIT, "missing", ""),
        (_EQUAL, architecture.io_uring_setup, "missing", ""),
        (_EQUAL, architecture.ioctl, "ioctl", ""),
        (_EQUAL, architecture.socket, "socket", "allow"),
        "socket",
        (_LOAD, _FIRST_ARGUMENT, "", ""),
        (_EQUAL, AF_UNIX, "allow", ""),
        (_EQUAL, AF_NETLINK, "allow", ""),
        (_EQUAL, AF_INET, "type", ""),
        (_EQUAL, AF_INET6, "type", "report"),
        "type",
        (_LOAD, _SECOND_ARGUMENT, "", ""),
        (_AND, _TYPE_MASK, "", ""),
        (_EQUAL, SOCK_STREAM, "allow", ""),
        (_EQUAL, SOCK_DGRAM, "allow", "report"),
        "ioctl",
        (_LOAD, _SECOND_ARGUMENT, "", ""),
        (_EQUAL, _TIOCSTI, "forbidden", ""),
        (_EQUAL, _TIOCLINUX, "forbidden", "allow"),
        "missing",
        (_RETURN, MISSING, "", ""),
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


def install() -> int | None:
    """Put this process under the filter, for good; return the descriptor that reports come from.

    None where a filter above, of a gateway around this one, has the reports already.

    Raises:
        OSError: the kernel has no seccomp filters.
        KeyError: this machine's system calls are not known here.
    """
    architecture = ARCHITECTURES[os.uname().machine]
    try:
        return _load(architecture, build_filter(architecture), _NEW_LISTENER)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    _load(architecture, build_filter(architecture, listen=False), 0)
    return None


def _load(architecture: Architecture, code: bytes, flags: int) -> int:
    return system.call(architecture.seccomp, _SET_MODE_FILTER, flags, _Program(len(code) // 8, code))
