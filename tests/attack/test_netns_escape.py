"""Outcome Exfil and PolicyBypass, attacker guest code: out of the network namespace. Each way is refused and audited.

What has no record is what the kernel refuses before it is an attempt to reach anything: those tests say why.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
from pathlib import Path

import pytest

from seamgate.entry.netns.confine import ARCHITECTURES
from support.lab import ALLOW_ALL, Lab
from support.netns import Guests, python
from support.upstream import HttpUpstream, echo

SEND = """
import socket, sys
family, kind, protocol, address, port = sys.argv[1:]
try:
    with socket.socket(getattr(socket, family), getattr(socket, kind), int(protocol)) as client:
        client.settimeout(5)
        client.connect((address, int(port)))
        client.send((b"\\x80" if family == "AF_INET6" else b"\\x08") + b"\\0\\0\\0\\0\\0\\0\\0")
        print("sent", client.recv(100))
except OSError as error:
    print(type(error).__name__, error.errno)
"""
NOT_PASSED = "deny no_rule_matched 0 denied"


@pytest.mark.parametrize(
    ("arguments", "record"),
    [
        (("AF_INET", "SOCK_DGRAM", "0", "9.9.9.9", "443"), "SEND 9.9.9.9:443"),
        (("AF_INET", "SOCK_DGRAM", "0", "9.9.9.9", "123"), "SEND 9.9.9.9:123"),
        (("AF_INET", "SOCK_DGRAM", "0", "10.0.0.1", "514"), "SEND 10.0.0.1:514"),
        (("AF_INET", "SOCK_DGRAM", "0", "169.254.169.254", "80"), "SEND 169.254.169.254:80"),
        (("AF_INET", "SOCK_DGRAM", "0", "224.0.0.251", "5353"), "SEND 224.0.0.251:5353"),
        (("AF_INET", "SOCK_DGRAM", "1", "9.9.9.9", "0"), "SEND 9.9.9.9:0"),
        (("AF_INET6", "SOCK_DGRAM", "0", "2606:4700::1", "443"), "SEND 2606:4700::1:443"),
        (("AF_INET6", "SOCK_DGRAM", "0", "2606:4700::1", "53"), "SEND 2606:4700::1:53"),
        (("AF_INET6", "SOCK_DGRAM", "58", "2606:4700::1", "0"), "SEND 2606:4700::1:0"),
        (("AF_INET", "SOCK_DGRAM", "136", "9.9.9.9", "443"), "SEND 9.9.9.9:443"),
    ],
    ids=["quic", "ntp", "lan", "metadata", "multicast", "ping", "quic6", "dns6", "ping6", "udplite"],
)
async def test_no_packet_but_tcp_leaves(arguments: tuple[str, ...], record: str) -> None:
    """UDP, QUIC, ICMP and IPv6 alike are refused by the namespace's rules, at once, and audited with their aim."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, SEND, *arguments)
        assert done.out.startswith("PermissionError "), done
        await lab.refused(f"{record} {NOT_PASSED}")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("AF_INET", "SOCK_RAW", "1"), "PermissionError 1"),
        (("AF_INET6", "SOCK_RAW", "58"), "PermissionError 1"),
        (("AF_PACKET", "SOCK_RAW", "0"), "OSError 97"),
        (("AF_VSOCK", "SOCK_STREAM", "0"), "OSError 97"),
        (("AF_ALG", "SOCK_SEQPACKET", "0"), "OSError 97"),
    ],
    ids=["raw", "raw6", "packet", "vsock", "alg"],
)
async def test_no_socket_of_another_kind(arguments: tuple[str, ...], error: str) -> None:
    """Raw ones make packets by themselves, VSOCK leads to the hypervisor: refused where they are asked for, audited."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, SEND, *arguments, "9.9.9.9", "1")
        assert done.out == f"{error}\n", done
        await lab.refused(f"SOCKET - {NOT_PASSED}")


@pytest.mark.parametrize(
    ("family", "address", "port"),
    [
        ("AF_INET", "1.1.1.1", 22),
        ("AF_INET", "1.1.1.1", 25),
        ("AF_INET", "1.1.1.1", 3128),
        ("AF_INET", "192.168.1.1", 8443),
        ("AF_INET6", "2606:4700::1", 22),
        ("AF_INET6", "fd00::1", 8443),
    ],
)
async def test_other_ports_are_reset(family: str, address: str, port: int) -> None:
    """TCP to a port where no rule allows anything gets a reset, and the record that a CONNECT would have."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, SEND, family, "SOCK_STREAM", "0", address, str(port))
        assert done.out in ("ConnectionResetError 104\n", "BrokenPipeError 32\n"), done
        await lab.refused(f"CONNECT {address}:{port} {NOT_PASSED}")


@pytest.mark.parametrize("url", ["https://1.1.1.1/x", "https://[2606:4700::1]/x", "http://169.254.169.254/x"])
async def test_a_literal_address_is_judged_as_one(url: str) -> None:
    """P8: TLS and HTTP to an address don't skip policy; the denial is told in the protocol and says what is missing."""
    async with Lab(HttpUpstream(echo)) as lab:
        curl = ("curl", "-gsSk", "--max-time", "60", "--noproxy", "*")
        done = await Guests(lab).run(*curl, url)
        assert f"No rule allows GET {url}" in done.out, done
        await lab.refused("GET /x deny no_rule_matched 403 denied")


CONNECT_AS = """
import socket, ssl, sys
address, port, name, host, tls = sys.argv[1:]
client = socket.create_connection((socket.gethostbyname(address), int(port)), timeout=10)
try:
    if tls == "tls":
        context = ssl._create_unverified_context()
        client = context.wrap_socket(client, server_hostname=name or None)
    client.sendall(f"GET /x HTTP/1.1\\r\\nhost: {host}\\r\\nconnection: close\\r\\n\\r\\n".encode())
    print(client.recv(1000).decode().split(" ")[1])
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("address", "name", "host", "tls", "said", "record"),
    [
        (
            "api.test",
            "other.test",
            "api.test",
            "tls",
            "SSLError",
            "CONNECT api.test:443 deny target_mismatch 0 denied",
        ),
        ("api.test", "api.test", "other.test", "tls", "421", "GET api.test:443 deny target_mismatch 421 denied"),
        ("api.test", "", "other.test", "tls", "421", "GET api.test:443 deny target_mismatch 421 denied"),
        ("api.test", "", "other.test", "", "421", "GET api.test:80 deny target_mismatch 421 denied"),
        ("9.9.9.9", "api.test", "api.test", "tls", "SSLError", "CONNECT 9.9.9.9:443 deny target_mismatch 0 denied"),
        ("9.9.9.9", "", "api.test", "", "421", "GET 9.9.9.9:80 deny target_mismatch 421 denied"),
    ],
    ids=["sni", "host", "host without sni", "host in the clear", "address with sni", "address with host"],
)
async def test_the_address_names_the_target(
    address: str, name: str, host: str, tls: str, said: str, record: str
) -> None:
    """P3, P4: what a connection goes to is what its address stands for; SNI and Host have to agree, even if allowed."""
    rules = [{**ALLOW_ALL, "allow": {**ALLOW_ALL["allow"], "hosts": ["**.test", "9.9.9.9"]}}]
    settings = {"pool": {"preconnect": False}}  # nothing is dialled before the request inside is judged
    async with Lab(HttpUpstream(echo, "api.test", "other.test"), rules=rules, settings=settings) as lab:
        port = 443 if tls else 80
        done = await python(lab, CONNECT_AS, address, str(port), name, host, tls)
        assert done.out == f"{said}\n", done
        await lab.refused(record)


async def test_an_address_that_stands_for_no_name_leads_nowhere() -> None:
    """Guessing addresses of the names' range gives nothing, and neither does the range's own part of the namespace."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, SEND, "AF_INET", "SOCK_STREAM", "0", "198.18.1.0", "443")
        assert done.out in ("ConnectionResetError 104\n", "BrokenPipeError 32\n"), done
        await lab.refused("CONNECT 198.18.1.0:443 deny bad_target 0 denied")


async def test_the_redirects_port_is_not_for_direct_use() -> None:
    """P11: a connection to the gateway's own listener is no target, so it can't loop."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, SEND, "AF_INET", "SOCK_STREAM", "0", "127.0.0.1", "61803")
        assert done.out in ("ConnectionResetError 104\n", "BrokenPipeError 32\n"), done
        await lab.refused("CONNECT - deny own_address 0 denied")


async def test_a_silent_connection_is_audited() -> None:
    """A port scan that asks nothing leaves a record for each place."""
    code = "import socket\nfor port in (80, 443): socket.create_connection(('1.1.1.1', port)).close()"
    async with Lab(HttpUpstream(echo)) as lab:
        await python(lab, code)
        await lab.refused(*(f"CONNECT 1.1.1.1:{port} deny guest_gone 0 denied" for port in (80, 443)))


async def test_a_flood_is_counted_not_listed() -> None:
    """A thousand packets to one place are two records, or three if they came too fast to be read; all are counted."""
    code = """
import socket
client = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(1000):
    try: client.sendto(b"x", ("9.9.9.9", 443))
    except PermissionError: pass
"""
    async with Lab(HttpUpstream(echo)) as lab:
        await python(lab, code)
        counts = [re.search(r"refused (\d+) times", record.message) for record in lab.records]
        assert sum(int(count[1]) if count else 1 for count in counts) == 1000, lab.records
        assert len(lab.records) <= 4
        aims = [record.request and record.request.host for record in lab.records]
        await lab.refused(*(f"SEND {'9.9.9.9:443' if aim else '-'} {NOT_PASSED}" for aim in aims))


NEW_NAMESPACE = """
import socket
from seamgate.entry.netns import namespace, netlink, ruleset, system
_TABLE = netlink.netfilter_header(1) + netlink.attribute(1, b"seamgate\\0")
DELETE = (10 << 8 | 2, 0, _TABLE)

def tell(what, step):
    try:
        step()
        print(what, "done")
    except (OSError, namespace.StepFailed) as error:
        print(what, "refused")

def delete():
    netlink.Netlink(netlink.NETLINK_NETFILTER).transact(ruleset.BATCH_BEGIN, [DELETE], ruleset.BATCH_END)

tell("rules", delete)
system.unshare(system.NEW_USER | system.NEW_MOUNTS)
tell("rules", delete)
tell("umount", lambda: system.unmount("/etc/resolv.conf"))
tell("network", lambda: system.unshare(system.NEW_NETWORK))
tell("packet", lambda: socket.create_connection(("1.1.1.1", 443), timeout=5))
"""


async def test_new_namespaces_lead_further_in_not_out() -> None:
    """Capabilities in a user namespace of the guest's own don't reach the rules or mounts of the one around it."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, NEW_NAMESPACE)
        assert done.out.split("\n")[:4] == ["rules refused", "rules refused", "umount refused", "network done"], done
        assert done.out.split("\n")[4] == "packet refused"
        await lab.audited()  # the new network has no link at all: nothing that was tried could have gone anywhere


OUTSIDE = """
import os, signal, sys
outside = int(sys.argv[1])
def tell(what, step):
    try: print(what, step())
    except OSError as error: print(what, type(error).__name__)
tell("kill", lambda: os.kill(outside, 0))
tell("proc", lambda: os.listdir(f"/proc/{outside}"))
tell("setns", lambda: os.stat(f"/proc/{outside}/ns/net"))
print("seen", max(int(name) for name in os.listdir("/proc") if name.isdigit()) < 100)
print("open", [name for name in os.listdir("/proc/self/fd") if int(name) > 3])
"""


async def test_processes_outside_are_not_there() -> None:
    """No host process can be named: not to signal, to trace, or to take its namespace; no descriptor came along."""
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        async with Lab(HttpUpstream(echo)) as lab:
            done = await python(lab, OUTSIDE, str(os.getpid()))
            expected = [
                "kill ProcessLookupError",
                "proc FileNotFoundError",
                "setns FileNotFoundError",
                "seen True",
                "open []",
            ]
            assert done.out.strip().split("\n") == expected, done
            await lab.audited()
    finally:
        os.close(inherited)


KERNEL = """
import os, stat
def writable(path):
    try:
        os.close(os.open(path, os.O_WRONLY))  # opened, never written to: it is the machine's own
        return True
    except OSError:
        return False
named = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger"]
found = ["/proc/irq", "/proc/bus", "/proc/sys", "/sys/kernel", "/sys/power", "/sys/fs/cgroup"]
paths = [os.path.join(folder, name) for top in found for folder, _, names in os.walk(top) for name in names]
print("looked", os.path.exists(named[0]) and len(paths) > 100)
own = ["/proc/sys/kernel/ns_last_pid"]  # of its own process namespace
print("writable", [path for path in named + paths if writable(path) and path not in own])
disks = [os.path.join(folder, name) for folder, _, names in os.walk("/dev") for name in names]
print("disks", [path for path in disks if os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)])
print("own", writable("/proc/self/oom_score_adj"), writable("/dev/null"))
"""


@pytest.mark.parametrize("as_nobody", [False, True], ids=["as the gateway's user", "as nobody"])
async def test_the_kernels_files_are_not_written(as_nobody: bool) -> None:
    """A program of root's, who owns those files, could have a command run outside by core_pattern, or read the disk."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await Guests(lab, as_nobody=as_nobody).run("/usr/bin/python3", "-c", KERNEL)
        assert done.out == "looked True\nwritable []\ndisks []\nown True True\n", done
        await lab.audited()


KEYS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    return libc.syscall(*arguments), ctypes.get_errno()
SESSION, USER, THREAD = (ctypes.c_int(each) for each in (-3, -4, -1))
add_key, request_key, keyctl = NUMBERS
print(call(keyctl, 10, SESSION, b"user", b"seamgate-test", 0), call(keyctl, 0, USER, 0), call(keyctl, 1, None))
print(call(request_key, b"user", b"seamgate-test", None, SESSION))
print(call(add_key, b"user", b"x", b"y", 1, THREAD))
print("seamgate-test" in open("/proc/keys").read() if os.path.exists("/proc/keys") else False)
"""


def _keys_seen() -> str:
    return Path("/proc/keys").read_text()


async def test_keys_of_the_kernel_are_not_the_guests() -> None:
    """A key in the caller's session keyring (a Kerberos ticket, say) is neither found nor read nor possessed.

    The key can be seen only by who possesses it, so that /proc/keys says whether the program does. No record: nothing
    outside can be reached by it. The keyring is made by this process, in a session of its own.
    """
    calls = ARCHITECTURES[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    async with Lab(HttpUpstream(echo)) as lab:
        if libc.syscall(calls.keyctl, 1, None) > 0:
            key = libc.syscall(calls.add_key, b"user", b"seamgate-test", b"secret", 6, ctypes.c_int(-3))
            assert libc.syscall(calls.keyctl, 5, key, 0x3F000000) == 0
            assert "seamgate-test" in _keys_seen()
        else:  # the kernel has no keys
            assert ctypes.get_errno() == errno.ENOSYS
        numbers = str((calls.add_key, calls.request_key, calls.keyctl))
        done = await python(lab, "import os" + KEYS.replace("NUMBERS", numbers))
        missing = (-1, errno.ENOSYS)
        assert done.out == f"{missing} {missing} {missing}\n{missing}\n{missing}\nFalse\n", done
        await lab.audited()


SYSCALLS = """
import ctypes, fcntl, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 8, ctypes.create_string_buffer(120))
print("io_uring", ctypes.get_errno())
reader, writer = os.openpty()
try: fcntl.ioctl(writer, 0x5412, b"x")
except OSError as error: print("tiocsti", error.errno)
"""


async def test_system_calls_that_go_around_are_missing() -> None:
    """io_uring would make sockets unseen, TIOCSTI would type into the shell that the guest was started from."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await python(lab, SYSCALLS)
        assert done.out == "io_uring 38\ntiocsti 1\n", done
        await lab.audited()


async def test_nothing_of_a_guest_outlives_it() -> None:
    """A daemon that left its session ends with the program: whoever reads its output gets to the end at once."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await Guests(lab).run("sh", "-c", "setsid -f sleep 600; echo started")
        assert (done.code, done.out) == (0, "started\n"), done
        await lab.audited()


async def _kill_once_ready(lab: Lab, guests: Guests, ready: Path) -> None:
    await lab.until(ready.exists)
    assert guests.process is not None
    guests.process.kill()


async def test_a_guest_dies_with_its_launcher() -> None:
    """Killed as by the end of its gateway: no signal to pass on, and still the whole tree is gone."""
    async with Lab(HttpUpstream(echo)) as lab:
        ready = lab.folder / "ready"
        guests = Guests(lab)
        running = guests.run("sh", "-c", f"touch {ready}; sleep 600")
        done, _ = await asyncio.gather(running, _kill_once_ready(lab, guests, ready))
        assert done.code == -9, done
        await lab.audited()
