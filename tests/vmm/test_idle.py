"""Guests that wait for long are parked, and where it is wanted hibernated, unasked, and notice nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import pytest

from seamgate_vmm.guest import Limits
from seamgate_vmm.idle import IdlePolicy
from seamgate_vmm.outcome import Reason
from seamgate_vmm.pool import Pool
from seamgate_vmm.pooled import PooledGuest, Rest
from seamgate_vmm.snapshot import Loaded
from vmm.test_rest import Talk, with_pool

pytestmark = [pytest.mark.kvm, pytest.mark.timeout(120)]

_SOON = IdlePolicy(trim_s=0.1, park_s=0.2, hibernate_s=0.3)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.02)


def _events(talk: Talk) -> list[tuple[str, str]]:
    return [(event, facts["cause"]) for event, facts in talk.told]


@pytest.mark.parametrize(
    "policy", [(-1, 30, 0), (15, 0, 60), (15, 30, 20), (15, float("nan"), 0), (15, float("inf"), 0)]
)
def test_a_policy_makes_sense(policy: tuple[float, float, float]) -> None:
    """No time is negative or endless, and nobody is hibernated who was not parked."""
    with pytest.raises(ValueError, match=r"seconds, 0 or more|park_s"):
        IdlePolicy(*policy)


def test_what_is_due_when() -> None:
    """Pages first, then what KVM holds; a time of 0 is never."""
    assert [IdlePolicy(15, 30).due(s) for s in (0, 15.1, 30.1, 1e6)] == [0, 1, 2, 2]
    assert [IdlePolicy(0, 30).due(s) for s in (20, 31)] == [0, 2]
    assert [IdlePolicy(15, 0).due(s) for s in (20, 1e6)] == [1, 1]
    assert IdlePolicy(0, 0).due(1e6) == 0


def test_a_long_sleep_is_on_disk_and_ends_in_time(template: Loaded) -> None:
    """A guest that sleeps is hibernated and back when its sleep is over: both of its clocks went on, and both ways are
    told with their cause."""

    async def check(pool: Pool) -> None:
        code = "import time\na, b = time.monotonic(), time.time()\ntime.sleep(4)\n"
        talk = await Talk(pool).start(code + "print(time.monotonic() - a, time.time() - b, flush=True)")
        begun = time.monotonic()
        await _until(lambda: talk.guest.rest is Rest.HIBERNATED)
        assert (pool.hibernated_count, pool.guest_count, pool.idle_count) == (1, 0, 1)
        slept = [float(word) for word in (await talk.line()).split()]
        assert all(4 <= each <= time.monotonic() - begun + 1 for each in slept)
        outcome = await talk.guest.ended()
        assert (outcome.reason, outcome.code, outcome.parked_times) == (Reason.EXITED, 0, 1)
        assert _events(talk) == [("guest_hibernate", "idle"), ("guest_resume", "idle")]
        assert (pool.hibernated_count, pool.idle_count) == (0, 0)
        talk.close()

    with_pool(template, check, idle=_SOON)


def test_a_signal_brings_it_back(template: Loaded) -> None:
    """What is sent to a guest that policy has put on disk wakes it, and its handler runs."""

    async def check(pool: Pool) -> None:
        code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\ntime.sleep(600)"
        talk = await Talk(pool).start(code)
        await _until(lambda: talk.guest.rest is Rest.HIBERNATED)
        talk.guest.signal(signal.SIGTERM)
        assert (await talk.guest.ended()).code == 5
        talk.close()

    with_pool(template, check, idle=_SOON)


def test_a_signal_on_the_way_to_disk_is_not_lost(template: Loaded) -> None:
    """It is kept until the guest is there, and brings it back at once."""

    async def check(pool: Pool) -> None:
        code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\ntime.sleep(600)"
        store = pool._store

        async def interrupted(guest: PooledGuest, fd: int) -> int:
            assert guest.rest is Rest.RUNNING
            guest.signal(signal.SIGTERM)
            return await store(guest, fd)

        pool._store = interrupted  # type: ignore[method-assign]
        talk = await Talk(pool).start(code)
        assert (await talk.guest.ended()).code == 5
        talk.close()

    with_pool(template, check, idle=_SOON)


def test_who_may_be_woken_from_outside_stays(template: Loaded) -> None:
    """A guest that reads its input, or has a stream, is parked and answers, and is never hibernated."""

    async def check(pool: Pool) -> None:
        reading = await Talk(pool).start("import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)")
        code = (
            "import socket, time\ns = socket.create_connection(('a.test', 9000))\n"
            "time.sleep(2)\ns.sendall(b'still there')\nprint(s.recv(100).decode(), flush=True)"
        )
        connected = await Talk(pool).start(code)
        await _until(lambda: reading.guest.times_parked > 0 and connected.guest.times_parked > 0)
        assert await connected.line() == "still there"
        assert await reading.ask("abc") == "cba"
        assert not reading.told and not connected.told
        assert [each.guest.rest for each in (reading, connected)] == [Rest.RUNNING] * 2
        for each in (reading, connected):
            each.close()

    with_pool(template, check, idle=_SOON)


def test_its_time_is_not_longer_for_it(template: Loaded) -> None:
    """The limit of wall time goes on while policy keeps a guest on disk: it is woken for its end."""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start("import time; time.sleep(600)", Limits(wall_s=3))
        begun = time.monotonic()
        await _until(lambda: talk.guest.rest is Rest.HIBERNATED)
        outcome = await talk.guest.ended()
        assert outcome.reason is Reason.WALL_LIMIT and time.monotonic() - begun >= 2.5
        talk.close()

    with_pool(template, check, idle=_SOON)


def test_what_cannot_come_back_is_over(template: Loaded) -> None:
    """If its file is refused, nobody would ever ask for the guest again: it ends, with the reason."""

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start("import time; time.sleep(3)")
        await _until(lambda: talk.guest.rest is Rest.HIBERNATED)
        assert pool._dormitory is not None
        path = pool._dormitory.path(talk.guest.number)
        path.write_bytes(path.read_bytes()[:-1])
        outcome = await talk.guest.ended()
        assert outcome.reason is Reason.NOT_RESUMED and "damaged" in outcome.detail
        talk.close()

    with_pool(template, check, idle=_SOON)


def test_by_default_nobody_goes_to_disk(template: Loaded) -> None:
    """Without a policy of its own a pool parks after half a minute and hibernates never."""
    assert (IdlePolicy().trim_s, IdlePolicy().park_s, IdlePolicy().hibernate_s) == (15, 30, 0)

    async def check(pool: Pool) -> None:
        talk = await Talk(pool).start("import time; time.sleep(2)")
        assert (await talk.guest.ended()).parked_times == 1
        assert not talk.told
        talk.close()

    with_pool(template, check, idle=IdlePolicy(0.1, 0.2))


def test_a_signal_of_the_first_or_of_every_moment(template: Loaded) -> None:
    """One that comes before a guest has begun, or right after it is back from disk, is taken and not lost."""

    async def check(pool: Pool) -> None:
        early = await Talk(pool).start("import time; time.sleep(600)")
        early.guest.signal(signal.SIGTERM)
        assert (await early.guest.ended()).code == 128 + signal.SIGTERM
        back = await Talk(pool).start("import time; print('began', flush=True); time.sleep(600)")
        assert await back.line() == "began"
        await pool.hibernate(back.guest)
        await pool.resume(back.guest)
        back.guest.signal(signal.SIGTERM)
        assert (await back.guest.ended()).code == 128 + signal.SIGTERM
        for each in (early, back):
            each.close()

    with_pool(template, check)


def test_what_was_due_before_harms_nobody(template: Loaded) -> None:
    """A guest that is back in its worker before the time that it waited for is not taken for what it was: nothing of it
    or of its neighbour is closed when that time comes."""

    async def check(pool: Pool) -> None:
        code = "import time; print('began', flush=True); time.sleep(2); print('up', flush=True)"
        sleeper = await Talk(pool).start(code)
        neighbour = await Talk(pool).start("import sys\nfor line in sys.stdin: print(line.strip(), flush=True)")
        assert await sleeper.line() == "began"
        await pool.hibernate(sleeper.guest)
        await asyncio.sleep(1)  # its clock stands still: it wakes later than it was to
        await pool.resume(sleeper.guest)
        assert pool.worker_count == 1
        assert await sleeper.line() == "up" and (await sleeper.guest.ended()).natural
        assert await neighbour.ask("there") == "there"
        for each in (sleeper, neighbour):
            each.close()

    with_pool(template, check)
