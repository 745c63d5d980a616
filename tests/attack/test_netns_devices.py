"""A guest in a namespace and the machine's devices: it has those that programs work with, and no way to others."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from seamgate.tasks import spawn
from support.lab import Lab
from support.netns import Guests
from support.upstream import HttpUpstream, echo

LOOKS = """
import json, os, pty, stat
kinds = {}
for folder, _, names in os.walk("/dev"):
    if folder.split("/")[2:3] not in (["shm"], ["pts"], ["mqueue"], ["hugepages"]):
        for name in names:
            path = os.path.join(folder, name)
            kinds[path[5:]] = "link" if os.path.islink(path) else stat.S_IFMT(os.stat(path).st_mode)
said = {"kinds": kinds}
for folder in ("/dev", "/dev/net", "/sys/fs/cgroup"):
    try:
        os.mkdir(folder + "/of-the-guest")
        said.setdefault("made", []).append(folder)
    except OSError:
        pass
parent, child = pty.openpty()
os.write(child, b"x")
said["works"] = [
    os.read(parent, 1) == b"x",
    open("/dev/null", "wb").write(b"x") == 1,
    open("/dev/zero", "rb").read(2) == b"\\0\\0",
    len(open("/dev/urandom", "rb").read(2)) == 2,
    os.path.exists("/dev/fd/0"),
]
if os.path.isdir("/dev/shm"):
    with open("/dev/shm/of-a-test", "w") as file:
        said["works"].append(file.write("x") == 1)
    os.unlink("/dev/shm/of-a-test")
said["terminals"] = sorted(os.listdir("/dev/pts"))
print(json.dumps(said))
"""
KEPT = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "kvm", "fuse", "net/tun"}
CONTROLS = ("loop-control", "kmsg", "mem", "btrfs-control", "vhost-net", "tty1")


@pytest.mark.parametrize("as_nobody", [False, True], ids=["as the gateway's user", "as nobody"])
async def test_a_guest_has_a_dev_of_its_own(as_nobody: bool) -> None:
    """No disk, nothing that makes one or takes a cover off, no console; what programs need is there and works."""
    async with Lab(HttpUpstream(echo)) as lab:
        done = await Guests(lab, as_nobody=as_nobody).run("/usr/bin/python3", "-c", LOOKS)
        assert done.code == 0, done
        said = json.loads(done.out)
        assert "null" in said["kinds"] and said["kinds"].keys().isdisjoint(CONTROLS)
        assert stat.S_IFBLK not in said["kinds"].values()
        devices = {name for name, kind in said["kinds"].items() if kind == stat.S_IFCHR}
        assert all(name in KEPT or name.startswith(("dri/", "nvidia", "accel/", "kfd")) for name in devices)
        assert all(said["works"]) and "made" not in said, said
        assert said["terminals"] == ["0", "ptmx"], "another program's terminal is there"
        await lab.audited()


@pytest.fixture
def later_device() -> Iterator[Path]:
    """Where a test may make a block device while a guest runs."""
    path = Path("/dev/seamgate-test-disk")
    yield path
    path.unlink(missing_ok=True)


WAITS = """
import os, socket
channel = socket.socket(fileno=0)
channel.sendall(b"up")
channel.recv(1)
print(os.path.exists("/dev/seamgate-test-disk"), os.path.exists("/dev/null"))
"""


async def test_what_comes_later_is_not_there(later_device: Path) -> None:
    """A device that the machine makes while the guest runs: with covers over what was there it would be seen."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    with ours, theirs:
        async with Lab(HttpUpstream(echo)) as lab:
            running = spawn(Guests(lab, stdin=theirs).run("/usr/bin/python3", "-c", WAITS), name="guest")
            assert await loop.sock_recv(ours, 2) == b"up"
            os.mknod(later_device, 0o600 | stat.S_IFBLK, os.makedev(7, 200))
            await loop.sock_sendall(ours, b"x")
            done = await running
            assert done.out.strip() == "False True", done
            await lab.audited()
