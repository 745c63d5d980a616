"""The system calls that the launcher needs and the standard library of Python 3.11 does not have, as functions.

Used by the launcher's side only. Each raises OSError with the kernel's error. Constants are those of the kernel's
headers, the same on every architecture unless said otherwise.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
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
# Source: linux/kcmp.h, and the tables of system calls
_KCMP_FILES = 2
_KCMP: Final = {"x86_64": 312, "aarch64": 272}
CAP_NET_ADMIN: Final = 12
"""To be told which file a unix socket is bound to (SIOCUNIXFILE of unix(7)), of network namespaces of this user one."""
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


def drop_capabilities(*keep: int) -> None:
    """Give up every capability for good, or all but some: also user id 0 gains none by starting a program."""
    for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        _prctl(_CAPBSET_DROP, number)
    _prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    _prctl(_SET_SECUREBITS, _SECUREBITS)
    kept = sum(1 << each for each in keep)  # those up to 31 are in the first of two words
    sets = struct.pack("=6I", kept, kept, 0, 0, 0, 0)  # two of: effective, permitted, inheritable
    _checked(_libc.capset(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), sets))


def connect(descriptor: int, address: bytes) -> None:
    """Connect a socket to an address in the kernel's own form, whatever it is (connect(2))."""
    _checked(_libc.connect(descriptor, address, len(address)))


def duplicate(thread: int, descriptor: int) -> int:
    """Return a duplicate of another thread's descriptor (pidfd_getfd(2), Linux 5.6).

    A thread can have descriptors of its own (unshare(2) with CLONE_FILES), so it is the thread that is asked. Before
    Linux 6.9 only processes can be: then such a thread is an error.

    Raises:
        OSError: the kernel's error; EPERM where the thread has descriptors of its own and can't be asked.
    """
    pidfd_getfd = 438  # the same on every architecture
    handle = _handle(thread)
    try:
        return call(pidfd_getfd, handle, descriptor, 0)
    finally:
        os.close(handle)


def _handle(thread: int) -> int:
    try:
        return os.pidfd_open(thread, os.O_EXCL)  # PIDFD_THREAD
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    process = _process_of(thread)
    if process != thread and call(_KCMP[os.uname().machine], process, thread, _KCMP_FILES, 0, 0) != 0:
        raise OSError(errno.EPERM, "a thread with descriptors of its own can't be asked for them before Linux 6.9")
    return os.pidfd_open(process)


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(thread: int, address: int, size: int) -> bytes:
    """Copy from another thread's memory (process_vm_readv(2)).

    Raises:
        OSError: EPERM: it must not be looked into; EFAULT: not all of it is there.
    """
    copy = ctypes.create_string_buffer(max(size, 1))
    here, there = _Piece(ctypes.addressof(copy), size), _Piece(address, size)
    read = _checked(_libc.process_vm_readv(thread, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    if read != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return copy.raw[:size]


_witness = ctypes.create_string_buffer(b"here")


def can_read_memory(child: int) -> bool:
    """Whether the memory of a forked child, which holds what this process's does, can be read."""
    return read_memory(child, ctypes.addressof(_witness), 4) == b"here"


def bound_to(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of the file that a unix socket is bound to; None if it is bound to none.

    Raises:
        OSError: CAP_NET_ADMIN is missing; it is no unix socket.
    """
    unix_file = 0x89E0  # SIOCUNIXFILE, Source: linux/un.h
    try:
        place = fcntl.ioctl(descriptor, unix_file)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        facts = os.fstat(place)
    finally:
        os.close(place)
    return facts.st_dev, facts.st_ino
