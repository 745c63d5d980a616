"""The system calls that the launcher needs and the standard library of Python 3.11 does not have, as functions.

Used by the launcher's side only. Each raises OSError with the kernel's error. Constants are those of the kernel's
headers, the same on every architecture unless said otherwise.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)

# Source: linux/sched.h
NEW_MOUNTS: Final = 0x00020000
NEW_IPC: Final = 0x08000000
NEW_USER: Final = 0x10000000
NEW_PID: Final = 0x20000000
NEW_NETWORK: Final = 0x40000000

# Source: linux/mount.h
NOSUID, NODEV, NOEXEC = 2, 4, 8
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18

# Source: linux/prctl.h
_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_SECUREBITS, _SET_NO_NEW_PRIVS, _CAP_AMBIENT = 1, 4, 24, 28, 38, 47
_AMBIENT_CLEAR_ALL = 4
# NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock, and KEEP_CAPS locked at off.
# Source: linux/securebits.h
_SECUREBITS = 0b1110_1111
_CAPABILITY_VERSION = 0x20080522
CAP_SYS_PTRACE: Final = 19
"""To look into other processes of this user namespace and those in it, of whatever kind they are."""


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _checked(_libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount something."""
    texts = [text.encode(errors="surrogateescape") if text else None for text in (source, target, kind)]
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() if data else None))


def unmount(target: str) -> None:
    """Take a mount away; what of it is used elsewhere stays."""
    detach = 2  # MNT_DETACH
    _checked(_libc.umount2(target.encode(errors="surrogateescape"), detach))


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def make_read_only(target: str, *, recursive: bool = False) -> None:
    """Make a mount read-only, and those below it too if `recursive`; what else it is stays (mount_setattr(2))."""
    number, here, every, read_only = 442, -100, 0x8000, 1  # the same on every architecture
    attributes = _MountAttributes(read_only, 0, 0, 0)
    path = target.encode(errors="surrogateescape") + b"\0"
    size = ctypes.sizeof(attributes)
    call(number, here, ctypes.create_string_buffer(path), every if recursive else 0, attributes, size)


def call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Structure) -> int:
    """Make a system call by its number; buffers and structures are passed by reference."""
    passed = [
        ctypes.c_long(each) if isinstance(each, int) else each if isinstance(each, bytes) else ctypes.byref(each)
        for each in arguments
    ]
    return _checked(int(_libc.syscall(ctypes.c_long(number), *passed)))


def _prctl(option: int, *arguments: int) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    _checked(_libc.prctl(option, *(ctypes.c_ulong(each) for each in padded)))


def die_with_parent(signal_number: int) -> None:
    """Get this signal when the parent ends. Forgotten when the process gains capabilities, so set it after that."""
    _prctl(_SET_PDEATHSIG, signal_number)


def forbid_inspection() -> None:
    """Keep other processes of this user from tracing this one."""
    _prctl(_SET_DUMPABLE, 0)


def permit_inspection() -> None:
    """Let a process that may trace this user's others trace this one."""
    _prctl(_SET_DUMPABLE, 1)


def forbid_new_privileges() -> None:
    """Let no program that is started from here on have more privileges than this process."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def drop_capabilities(keep: int | None = None) -> None:
    """Give up every capability for good, or all but one: also user id 0 gains none by starting a program."""
    for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        _prctl(_CAPBSET_DROP, number)
    _prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    _prctl(_SET_SECUREBITS, _SECUREBITS)
    kept = 0 if keep is None else 1 << keep  # those up to 31 are in the first of two words
    sets = struct.pack("=6I", kept, kept, 0, 0, 0, 0)  # two of: effective, permitted, inheritable
    _checked(_libc.capset(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), sets))


def connect(descriptor: int, address: bytes) -> None:
    """Connect a socket to an address in the kernel's own form, whatever it is (connect(2))."""
    _checked(_libc.connect(descriptor, address, len(address)))


def duplicate(process: int, descriptor: int) -> int:
    """Return a duplicate of another process's descriptor (pidfd_getfd(2), Linux 5.6)."""
    pidfd_getfd = 438  # the same on every architecture
    handle = os.pidfd_open(process)
    try:
        return call(pidfd_getfd, handle, descriptor, 0)
    finally:
        os.close(handle)
