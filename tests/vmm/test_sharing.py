"""What guests share with their template, and what is done before a guest comes: the ground of many guests at once."""

from __future__ import annotations

import pytest

from seamgate_vmm import _kvm
from seamgate_vmm.guest import State
from seamgate_vmm.host import Host
from seamgate_vmm.snapshot import Loaded
from seamgate_vmm.template import Job, new_machine, recycle, rehearse, restore, view_of
from vmm.conftest import ROOMY, Collect, RunPython, drive

pytestmark = pytest.mark.kvm

_CALL = """
import http.client, json, os, socket
ours, theirs = socket.socketpair()
theirs.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 11\\r\\n\\r\\n{"a": [1]} ')
connection = http.client.HTTPSConnection('llm.test')
connection.sock = ours
connection.request('POST', '/v1/chat/completions', body=json.dumps({'model': 'm', 'n': 1}))
assert json.loads(connection.getresponse().read()) == {'a': [1]}
os.write(1, b'called')
"""


def test_a_first_call_unshares_little_of_the_template(host: Host, template: Loaded) -> None:
    """A guest that has made an HTTPS request has made fewer than 700 of the template's pages its own (some 500)."""
    own: list[int] = []

    def console(_: int, data: bytes) -> int:
        own.append(sum(length for _, length in guest.machine.private_pages()) // 4096)
        return len(data)

    guest = restore(host, template, Job(["-c", _CALL], {}), view_of(template.meta.roots), console, ROOMY)
    try:
        assert drive(guest).code == 0
        assert len(own) == 1
        assert 50 < own[0] < 700
    finally:
        guest.close()


def test_a_machine_is_at_its_template_before_a_guest_comes(host: Host, template: Loaded) -> None:
    """A rehearsed machine holds the template's bytes; to bring it back again does nothing, until it was written to."""
    at = next(e.address for e in template.meta.extents if e.address >= _kvm.GA_PROGRAM)
    warm = rehearse(host, template, view_of(template.meta.roots))
    try:
        before = warm.machine.read(at, 64, True)
        recycle(warm)
        assert warm.machine.read(at, 64, True) == before
        warm.machine.write(at, b"mark" * 16, True)
        recycle(warm)
        assert warm.machine.read(at, 64, True) == before
    finally:
        warm.close()


def test_a_rehearsed_machine_runs_its_guest_as_a_new_one(host: Host, template: Loaded) -> None:
    """What the rehearsal imported and defined is not in the program's way: its names are its own, `__main__` too."""
    code = "import sys; print(sorted(n for n in dir() if n[0] != '_'), sys.argv, 'rehearse' in globals())"
    warm, console = rehearse(host, template, view_of(template.meta.roots)), Collect()
    guest = restore(
        host, template, Job(["-c", code, "x"], {}), view_of(template.meta.roots), console, ROOMY, reuse=warm
    )
    assert drive(guest).code == 0
    assert guest.state is State.OVER
    assert bytes(console.streams[1]) == b"['sys'] ['-c', 'x'] False\n"
    guest.close()


def test_what_two_tenants_wrote_is_ready_for_the_third(host: Host, template: Loaded) -> None:
    """Pages that both wrote stay the machine's own, 1 MiB of them at most, and hold the template's bytes again."""
    greedy = "import gc\ngc.unfreeze()\nkept = [gc.get_objects() for _ in range(3)]"  # a reference to all there is
    view, size = view_of(template.meta.roots), template.meta.memory_bytes
    machine, fresh = rehearse(host, template, view), new_machine(host, template, ROOMY)
    try:
        own = [sum(length for _, length in machine.machine.private_pages())]
        for _ in range(3):
            machine = restore(host, template, Job(["-c", greedy], {}), view, Collect(), ROOMY, reuse=machine)
            assert drive(machine).code == 0
            recycle(machine)
            own.append(sum(length for _, length in machine.machine.private_pages()))
            assert machine.machine.read(0, size, True) == fresh.read(0, size, True)
        assert own == [own[0], own[0], own[0] + (1 << 20), own[0] + (1 << 20)]
    finally:
        machine.close()
        fresh.close()


def test_tls_contexts_made_ahead_are_new_ones(run_python: RunPython) -> None:
    """The first contexts of a program were made in the template: each is another, and shows no setting of others."""
    code = """
import ssl
made = [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(12)]
made[0].check_hostname, made[0].verify_mode = False, ssl.CERT_NONE
made[0].set_alpn_protocols(['h2'])
assert len({id(c) for c in made}) == 12
assert all(c.check_hostname and c.verify_mode is ssl.CERT_REQUIRED for c in made[1:])
assert not any('_seamgate_protocols' in c.__dict__ for c in made[1:])
class Own(ssl.SSLContext):
    pass
assert type(Own(ssl.PROTOCOL_TLS_CLIENT)) is Own and type(ssl.create_default_context()) is ssl.SSLContext
print('fine')
"""
    result = run_python(code)
    assert result.text == "fine\n", result.err


def test_made_up_files_look_the_same_open(run_python: RunPython) -> None:
    """A C library that compares a file by name with what it had open finds no change, and need not read it again."""
    code = """
import os
for path in ('/etc/resolv.conf', '/etc/nsswitch.conf'):
    with open(path) as f:
        a, b = os.stat(path), os.fstat(f.fileno())
        assert (a.st_ino, a.st_mtime, a.st_size, a.st_mode) == (b.st_ino, b.st_mtime, b.st_size, b.st_mode)
        assert len(f.read()) == a.st_size
print('fine')
"""
    result = run_python(code)
    assert result.text == "fine\n", result.err


def test_a_trimmed_guest_has_the_same_memory_and_goes_on(host: Host, template: Loaded) -> None:
    """Trimming a guest that waits gives pages back and changes no byte; what it computes afterwards is right."""
    code = "import json, time\nkept = list(range(5000))\ntime.sleep(0.2)\nprint(json.dumps(sum(kept)))"
    console = Collect()
    guest = restore(host, template, Job(["-c", code], {}), view_of(template.meta.roots), console, ROOMY)
    try:
        while guest.step() is not State.WAITING:
            assert guest.state is State.READY
        size = template.meta.memory_bytes
        before, own = guest.machine.read(0, size, True), sum(n for _, n in guest.machine.private_pages())
        given_back = guest.machine.trim()
        assert 0 < given_back < own
        assert sum(n for _, n in guest.machine.private_pages()) == own - given_back
        assert guest.machine.read(0, size, True) == before
        assert guest.machine.trim() == 0
        assert drive(guest).code == 0
        assert bytes(console.streams[1]) == b"12497500\n"
    finally:
        guest.close()
