"""A template that was built on another machine, with another processor and another kind of KVM, is restored here.

Run by run.py inside the emulated machine only: SEAMGATE_FOREIGN_TEMPLATES holds what was built outside.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seamgate_vmm.host import Host
from seamgate_vmm.snapshot import load
from seamgate_vmm.template import Job, rehearse, restore, view_of
from vmm.conftest import ROOMY, Collect, drive

pytestmark = pytest.mark.kvm

_WORK = """
import asyncio, decimal, hashlib, json, random, re, sqlite3, ssl, threading, zlib
x = sum(i * i for i in range(20000)) / 7
h = hashlib.sha256(json.dumps({'a': [x] * 50}).encode() * 1000).hexdigest()
d = decimal.Decimal(2).sqrt()
z = zlib.crc32(zlib.compress(h.encode() * 100))
c = sqlite3.connect(':memory:').execute('select 6 * 7').fetchone()[0]
t = []
[w.start() or w.join() for w in [threading.Thread(target=t.append, args=(i,)) for i in range(3)]]
print(x, h[:16], d, z, c, t, bool(re.match('(a|b)+c', 'ababc')), len(ssl.RAND_bytes(16)))
"""


def test_a_foreign_template_is_restored(host: Host) -> None:
    """Its guests compute what they compute where it was built, cold and on a machine that is used again."""
    place = Path(os.environ["SEAMGATE_FOREIGN_TEMPLATES"])
    loaded = load(place / "foreign.sgt", host)
    assert loaded.meta.cpu_model != host.cpu_model
    expected = (place / "expected").read_text()
    view = view_of(loaded.meta.roots)
    warm = rehearse(host, loaded, view)
    for reuse in (None, warm):
        console = Collect()
        guest = restore(host, loaded, Job(["-c", _WORK], {}), view, console, ROOMY, reuse=reuse)
        outcome = drive(guest)
        guest.close()
        assert outcome.natural, (outcome, bytes(console.streams[2]))
        assert console.streams[1].decode() == expected
