"""A session pool over an opener that a test holds in its hand, and requests that ask it as exchanges do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from seamgate.errors import UpstreamError
from seamgate.flow import Guest, Target
from seamgate.tasks import spawn
from seamgate.upstream.pool import Lent, SessionPool
from seamgate.upstream.pool_key import PoolConfig
from seamgate.upstream.session import Session
from seamgate.upstream.session2_stream import SessionStream
from support.sessions import HeldOpener

TARGET = Target("https", "a.test", 443)
OTHER = Target("https", "b.test", 443)
ONE, TWO = "192.0.2.1", "192.0.2.2"
GUEST = Guest("g", group="x")


def make(**settings: Any) -> tuple[SessionPool, HeldOpener]:
    opener = HeldOpener()
    return SessionPool(opener, PoolConfig(**{"guest_share": 1.0, **settings}), response_timeout_s=900.0), opener


async def turn() -> None:
    """Let everything that is ready run."""
    for _ in range(8):
        await asyncio.sleep(0)


class Asked:
    """One acquire, as an exchange does it: at once, or by a task that it may cancel."""

    def __init__(
        self,
        pool: SessionPool,
        target: Target = TARGET,
        addresses: tuple[str, ...] = (ONE,),
        guest: Guest = GUEST,
        generation: int = 1,
    ) -> None:
        self.key = (target, guest.group, generation)
        self.addresses = addresses
        self.session: Session | None = None
        self.error: BaseException | None = None
        found = pool.acquire(target, addresses, guest, generation)
        self.task: asyncio.Task[Any] | None = None
        if isinstance(found, Session):
            self.session = found
        else:
            assert not isinstance(found, SessionStream)
            self.task = spawn(self._wait(found), name="asked")

    async def _wait(self, found: Awaitable[Lent]) -> None:
        try:
            session = await found
            assert isinstance(session, Session)
            self.session = session
        except UpstreamError as error:
            self.error = error

    def leave(self) -> None:
        """Give up, as an exchange does: once its task has begun."""
        assert self.task is not None
        asyncio.get_running_loop().call_soon(self.task.cancel)

    @property
    def over(self) -> bool:
        return self.task is None or self.task.done()

    def release(self, *, reusable: bool = True) -> None:
        assert self.session is not None
        session, self.session = self.session, None
        session.release(reusable=reusable)


async def got(asked: Asked) -> Session:
    await turn()
    assert asked.session is not None, (asked.error, asked.task)
    return asked.session
