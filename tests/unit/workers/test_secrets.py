"""`seamgate.workers.secrets`: a value is put in by one worker once all others look for it, and not before."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from seamgate.credentials.known import MOST_BINDINGS
from seamgate.errors import CredentialError, Reason
from seamgate.workers import secrets
from seamgate.workers.messages import Bound, FrameReader, Learn, Share, Shared, encode
from seamgate.workers.secrets import SecretExchange, SecretSharing

VALUE = b"canary-of-a-worker"
BOUND: Bound = {"key": [(("api.test",), False)]}


class Peer:
    """A worker as the supervisor sees it, and the messages that it was sent."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.gone = asyncio.Event()
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Wire:
    """A worker's end of the channel."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def crew(count: int = 3) -> tuple[SecretExchange, list[Any]]:
    return SecretExchange(), [Peer(number) for number in range(count)]


async def test_the_answer_comes_once_all_others_have_learnt_it() -> None:
    """Not with the first of them; the one that asks is not asked."""
    exchange, (asking, second, third) = crew()
    task = asyncio.ensure_future(exchange.share(asking, Share(7, {"key": (VALUE,)}), [asking, second, third]))
    await asyncio.sleep(0)
    (told,) = second.sent
    assert (told.origin, told.values) == (0, {"key": (VALUE,)})
    assert third.sent == second.sent and asking.sent == []
    exchange.learnt(second, told.number)
    await asyncio.sleep(0)
    assert asking.sent == []
    exchange.learnt(third, told.number)
    await task
    assert asking.sent == [Shared(7)]


async def test_one_that_is_gone_is_not_waited_for() -> None:
    """Nothing reaches a guest by it, whether it went before or while it was asked."""
    exchange, (asking, second, third) = crew()
    third.gone.set()
    task = asyncio.ensure_future(exchange.share(asking, Share(1, {"key": (VALUE,)}), [asking, second, third]))
    await asyncio.sleep(0)
    exchange.lose(second)
    await task
    assert asking.sent == [Shared(1)] and third.sent == []


async def test_one_that_does_not_answer_keeps_the_value_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have an answer in its hands that repeats it. A late word is for nobody."""
    monkeypatch.setattr(secrets, "SHARE_S", 0.0)
    exchange, (asking, second, _) = crew()
    await exchange.share(asking, Share(1, {"key": (VALUE,)}), [second])
    assert asking.sent == [Shared(1, "worker 1 does not answer")]
    exchange.learnt(second, second.sent[0].number)


async def test_who_starts_later_is_told_all() -> None:
    """Of each worker the last four values, the newest first."""
    exchange, (asking, late, _) = crew()
    for number in range(6):
        await exchange.share(asking, Share(number, {"key": (b"value-%d" % number,)}), [])
    exchange.tell_all_to(late)
    assert late.sent == [Learn(0, 0, {"key": (b"value-5", b"value-4", b"value-3", b"value-2")})]


async def test_who_starts_later_is_told_of_every_host() -> None:
    """Of those that a value was for before a reload as well, which may repeat it; each once, and not without end."""
    exchange, (asking, second, late) = crew()
    for number in (*range(70), 5):
        hosts: Bound = {"key": [((f"h{number}.test",), number == 5)]}
        await exchange.share(asking, Share(number, {"key": (VALUE,)}, hosts), [])
    task = asyncio.ensure_future(exchange.share(asking, Share(71, {"key": (VALUE,)}, BOUND), [second]))
    await asyncio.sleep(0)
    assert second.sent[0].hosts == BOUND
    exchange.lose(second)
    await task
    exchange.tell_all_to(late)
    [(name, told)] = late.sent[0].hosts.items()
    assert name == "key" and len(told) == MOST_BINDINGS
    assert told[-2:] == [(("h5.test",), True), (("api.test",), False)]


async def test_a_worker_waits_for_the_answer() -> None:
    """A problem, or a supervisor that is gone, means that the value is not put in."""
    wire = Wire()
    sharing = SecretSharing(cast("Any", wire))
    for problem in ("", "worker 2 does not answer"):
        task = asyncio.ensure_future(sharing.share({"key": (VALUE,)}, BOUND))
        await asyncio.sleep(0)
        sharing.shared(wire.sent[-1].number, problem)
        if not problem:
            await task
            continue
        with pytest.raises(CredentialError, match="worker 2 does not answer") as caught:
            await task
        assert caught.value.reason is Reason.CREDENTIAL_UNAVAILABLE
        assert "canary" not in caught.value.message
    task = asyncio.ensure_future(sharing.share({"key": (VALUE,)}, BOUND))
    await asyncio.sleep(0)
    sharing.supervisor_gone()
    with pytest.raises(CredentialError, match="supervisor is gone"):
        await task
    wire.closed = True
    with pytest.raises(CredentialError, match="supervisor is gone"):
        await sharing.share({"key": (VALUE,)}, BOUND)


def test_no_message_shows_a_value() -> None:
    """Neither in its repr nor once it was read from the wire."""
    for message, from_worker in ((Share(1, {"key": (VALUE,)}), True), (Learn(1, 0, {"key": (VALUE,)}), False)):
        (read,) = FrameReader(from_worker=from_worker).feed(encode(message))
        assert read == message
        assert "canary" not in repr(message) + repr(read)
