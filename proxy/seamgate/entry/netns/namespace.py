"""Makes the namespaces of a guest and opens the gateway's sockets in them. Called by the launcher, in its process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from seamgate.entry.netns import mounts, ruleset, system
from seamgate.entry.netns.confine import ARCHITECTURES
from seamgate.entry.netns.layout import (
    BASE_URL_PORT,
    DNS_PORT,
    GUEST_ADDRESS,
    LOOPBACK,
    LOOPBACK_6,
    PROXY_PORT,
    SOCKETS,
    TRANSPARENT_PORT,
)
from seamgate.entry.netns.netlink import (
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    Netlink,
    add_address,
    add_default_route,
    link_up,
    receive_log,
)

_LO = 1
"""The index that `lo` has in every network namespace."""
_BACKLOG = 1024
_SANDBOX = system.NEW_USER | system.NEW_MOUNTS | system.NEW_NETWORK | system.NEW_IPC


class StepFailed(Exception):
    """A step could not be done: what it was, in words, and the kernel's error where it is that."""

    def __init__(self, step: str, error: OSError | None = None) -> None:
        super().__init__(step if error is None else f"{step}: {error.strerror or error}")


def check_machine() -> None:
    """Check what needs no try.

    Raises:
        StepFailed: this machine's system calls are not known here.
    """
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise StepFailed(f"guests can be confined on {' and '.join(sorted(ARCHITECTURES))} only, this is {machine}")


def enter(*, processes: bool) -> None:
    """Move into new namespaces, as the same user in them.

    Args:
        processes: whether children get a process namespace too.

    Raises:
        StepFailed: the kernel or its configuration does not permit it.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        system.unshare(_SANDBOX | (system.NEW_PID if processes else 0))
        # Without this the kernel lets nobody but root say who a group is (user_namespaces(7)).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        raise StepFailed("user and network namespaces can't be made", error) from error


def may_show_processes() -> bool:
    """Try, in a child, whether a process namespace with its own /proc can be had; if not, guests do without."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter(processes=True)
            code = _try_proc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_proc() -> int:
    inner = os.fork()
    if inner == 0:
        code = 1
        try:
            mounts.keep_apart()
            mounts.show_processes()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])


def set_up_network() -> bool:
    """Set up `lo`, a default route over it, and the rules; return whether there is IPv6.

    Raises:
        StepFailed: the kernel lacks something.
    """
    route = Netlink(NETLINK_ROUTE)
    try:
        route.ask(link_up(_LO))
        route.ask(add_address(_LO, GUEST_ADDRESS))
        route.ask(add_default_route(_LO, GUEST_ADDRESS))
        six = _set_up_ipv6(route)
    except OSError as error:
        raise StepFailed("the loopback interface can't be set up", error) from error
    finally:
        route.close()
    _load_rules()
    _let_ping_out()
    return six


def _set_up_ipv6(route: Netlink) -> bool:
    try:
        # Not an address of its own: a new one is of no use until the kernel has found time for it.
        route.ask(add_default_route(_LO, LOOPBACK_6))
    except OSError:
        return False  # switched off: then nothing goes out over it either
    return True


def _load_rules() -> None:
    netfilter = Netlink(NETLINK_NETFILTER)
    try:
        netfilter.transact(ruleset.BATCH_BEGIN, ruleset.ruleset(), ruleset.BATCH_END)
    except OSError as error:
        raise StepFailed("the kernel lacks nftables with inet, nat, redirect, log and reject", error) from error
    finally:
        netfilter.close()


def _let_ping_out() -> None:
    """Let `ping` send, so that it is refused by a rule and told, instead of failing where nobody hears of it."""
    group = os.getegid()
    try:
        Path("/proc/sys/net/ipv4/ping_group_range").write_text(f"{group} {group}")
    except OSError:
        return  # it stays refused


def open_sockets(*, six: bool) -> dict[str, socket.socket]:
    """Open what the gateway serves, by their names in `layout.SOCKETS`.

    Raises:
        StepFailed: one can't be opened.
    """
    try:
        opened = {
            "proxy": _listen(LOOPBACK, PROXY_PORT),
            "base_url": _listen(LOOPBACK, BASE_URL_PORT),
            "transparent": _listen("0.0.0.0", TRANSPARENT_PORT),  # noqa: S104 - redirected to any address
            "dns_tcp": _listen(LOOPBACK, DNS_PORT),
            "dns": _datagrams(LOOPBACK, DNS_PORT),
            "refused": _refused(),
        }
        if six:
            opened["transparent6"] = _listen("::", TRANSPARENT_PORT)
    except OSError as error:
        raise StepFailed("a socket in the namespace can't be opened", error) from error
    return {name: opened[name] for name in SOCKETS if name in opened}


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind((address, port))
    listener.listen(_BACKLOG)
    return listener


def _datagrams(address: str, port: int) -> socket.socket:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, port))
    return datagrams


def _refused() -> socket.socket:
    log = Netlink(NETLINK_NETFILTER)
    for message in receive_log():
        log.ask(message)
    return log.socket
