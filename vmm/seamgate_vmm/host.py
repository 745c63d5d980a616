"""Whether and how this host can run guests: opens /dev/kvm, checks it, finds where `syscall` lands.

Everybody who makes a machine comes here first; `seamgate doctor` prints what `describe` says.
"""

import errno
import functools
import os
import platform
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from seamgate_vmm import _kvm
from seamgate_vmm.errors import KvmUnusable

KVM_DEVICE = "/dev/kvm"
_API_VERSION = 12  # Source: Documentation/virt/kvm/api.rst 4.1: the only one there ever was since 2.6.22
_CAP_IOEVENTFD, _CAP_IMMEDIATE_EXIT, _CAP_XSAVE, _CAP_XCRS = 36, 136, 55, 56
_NEEDED_FLAGS = frozenset({"fsgsbase", "xsave", "sse4_2", "ssse3", "popcnt", "cx16"})


@dataclass(frozen=True, slots=True)
class Host:
    """What was found out about this machine. `kvm` is an open descriptor of /dev/kvm, kept for the process's life."""

    kvm: int
    landing: int  # privilege at which `syscall` lands: 3 under kvm_pvm, 0 on VT-x and SVM
    tsc_khz: int
    xcr0: int
    tier: str  # "hardware" or "nested": what the boundary is worth
    cpu_model: str
    cpu_flags: frozenset[str]


def _cpu() -> tuple[str, frozenset[str]]:
    model, flags = "unknown", frozenset[str]()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and model == "unknown":
            model = value.strip()
        elif key.strip() == "flags" and not flags:
            flags = frozenset(value.split())
    return model, flags


def _open_device() -> int:
    try:
        return os.open(KVM_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            advice = "load the kvm_intel or kvm_amd module, or enable virtualisation in the firmware or the outer VM"
        elif error.errno == errno.EACCES:
            advice = "add this user to the group that owns it (usually `kvm`) and log in again"
        else:
            advice = "close other hypervisors"
        raise KvmUnusable(f"{KVM_DEVICE}: {error.strerror}; {advice}") from error


def _check(kvm: int, flags: frozenset[str]) -> None:
    version = _kvm.kvm_check(kvm, "api", 0)
    if version != _API_VERSION:
        raise KvmUnusable(f"{KVM_DEVICE} speaks version {version}, not {_API_VERSION}; use a kernel from this century")
    for name, number in (
        ("ioeventfd", _CAP_IOEVENTFD),
        ("immediate exit", _CAP_IMMEDIATE_EXIT),
        ("XSAVE", _CAP_XSAVE),
        ("XCR0", _CAP_XCRS),
    ):
        if _kvm.kvm_check(kvm, "extension", number) <= 0:
            raise KvmUnusable(f"{KVM_DEVICE} lacks {name}; use Linux 4.13 or newer")
    missing = sorted(_NEEDED_FLAGS - flags)
    if missing:
        raise KvmUnusable(f"this processor lacks {', '.join(missing)}; guests need x86-64-v2 with FSGSBASE")


@functools.cache
def open_host() -> Host:
    """Return this host, found out once a process.

    Raises: KvmUnusable, with the reason and what to do.
    """
    if platform.machine() != "x86_64":
        raise KvmUnusable(f"guests need an x86-64 processor; this is {platform.machine()}; use another isolation")
    model, flags = _cpu()
    kvm = _open_device()
    try:
        _check(kvm, flags)
        landing, xcr0, _ = _kvm.probe(kvm)
        khz = _kvm.tsc_khz(kvm)
    except OSError as error:
        os.close(kvm)
        raise KvmUnusable(f"a first guest could not run: {error}; see docs/vmm.md, `What is needed`") from error
    except KvmUnusable:
        os.close(kvm)
        raise
    nested = landing == _kvm.LANDING_USER or Path("/sys/module/kvm_pvm").exists() or "hypervisor" in flags
    return Host(kvm, landing, khz, xcr0, "nested" if nested else "hardware", model, flags)


def describe() -> str:
    """Return one line for `seamgate doctor`: usable and how, or why not."""
    try:
        host = open_host()
    except KvmUnusable as error:
        return f"KVM is not usable: {error}"
    place = "ring 3" if host.landing == _kvm.LANDING_USER else "ring 0"
    return f"KVM is usable ({host.tier}; system calls land in {place}; {host.cpu_model})"


@functools.cache
def shim_file() -> bytes:
    """Return the shim as it is loaded into a guest."""
    return _built("shim.bin")


@functools.cache
def vdso_file() -> bytes:
    """Return the vDSO, an ELF image."""
    return _built("vdso.bin")


def _built(name: str) -> bytes:
    try:
        return resources.files("seamgate_vmm").joinpath(name).read_bytes()
    except FileNotFoundError as error:
        raise KvmUnusable(f"{name} was not built; run `make`") from error
