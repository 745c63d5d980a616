"""The connector on loopback: dials the validated addresses in order, verifies, and says what went wrong."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from seamgate.errors import ConnectFailed, TlsFailed, UpstreamTimeout
from seamgate.flow import Target
from seamgate.upstream.connect import Connector
from seamgate.upstream.tls import OriginTls, UpstreamTls, UpstreamTlsConfig
from support.certificates import write_upstream_ca
from support.line import Line
from support.servers import free_port
from support.upstream import RawUpstream, silent


def connector(folder: Path, timeout_s: float = 5.0) -> Connector:
    origins = (OriginTls(hosts=("*.test", "127.0.0.1"), ca=str(write_upstream_ca(folder)), roots="only"),)
    return Connector(UpstreamTls(UpstreamTlsConfig(origins=origins), base=folder), timeout_s=timeout_s)


def ignore(_: Any) -> None:
    """A session came back, or is gone."""


async def dial(made: Connector, upstream: RawUpstream, *addresses: str, host: str = "api.test") -> Any:
    target = Target("https" if upstream.tls else "http", host, upstream.port, host[0].isdigit())
    return await made.connect(target, addresses or ("127.0.0.1",), ignore, ignore)


@pytest.mark.parametrize("tls", [True, False])
async def test_a_session_is_opened(tls: bool, tmp_path: Path) -> None:
    """To the address that was given, with TLS that was verified where it is https."""
    upstream = RawUpstream(silent, "api.test", tls=tls)
    await upstream.start()
    session = await dial(connector(tmp_path), upstream)
    assert (session.address, session.usable, session.reused) == ("127.0.0.1", True, False)
    session.close()
    await upstream.stop()


async def test_the_next_address_is_tried(tmp_path: Path) -> None:
    """One that refuses costs nothing; the session says which one it has."""
    upstream = RawUpstream(silent, "api.test")
    await upstream.start()
    session = await dial(connector(tmp_path), upstream, "127.0.0.2", "127.0.0.1")
    assert session.address == "127.0.0.1"
    session.close()
    await upstream.stop()


async def test_nobody_there(tmp_path: Path) -> None:
    """Each address is named with its reason."""
    upstream = RawUpstream(silent, "api.test")
    upstream.port = free_port()
    with pytest.raises(ConnectFailed) as caught:
        await dial(connector(tmp_path), upstream, "127.0.0.2", "127.0.0.1")
    assert "127.0.0.2: " in caught.value.message and "127.0.0.1: " in caught.value.message


@pytest.mark.parametrize("host", ["other.test", "127.0.0.1"])
async def test_a_certificate_for_another_name(host: str, tmp_path: Path) -> None:
    """It is the target's name that is verified; no further address is tried."""
    upstream = RawUpstream(silent, "api.test")
    await upstream.start()
    with pytest.raises(TlsFailed):
        await dial(connector(tmp_path), upstream, "127.0.0.1", "127.0.0.2", host=host)
    assert upstream.received == b""
    await upstream.stop()


async def test_a_certificate_of_an_unknown_ca(tmp_path: Path) -> None:
    """Only configured roots are trusted."""
    upstream = RawUpstream(silent, "api.test")
    await upstream.start()
    with pytest.raises(TlsFailed):
        await dial(Connector(UpstreamTls(), timeout_s=5), upstream)
    await upstream.stop()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_an_upstream_that_ends_within_the_handshake(end: str, tmp_path: Path) -> None:
    """An error at once, not a wait."""

    async def script(line: Line) -> None:
        await line.some()
        getattr(line, end)()

    upstream = RawUpstream(script, "api.test", tls=False)
    await upstream.start()
    upstream.tls = True  # what we think of it
    with pytest.raises((TlsFailed, ConnectFailed)):
        await dial(connector(tmp_path), upstream)
    await upstream.stop()


async def test_an_upstream_that_is_silent_in_the_handshake(tmp_path: Path) -> None:
    """It has its time, then the next address has; the last one's is the caller's."""
    upstream = RawUpstream(silent, "api.test", tls=False)
    await upstream.start()
    upstream.tls = True
    with pytest.raises(UpstreamTimeout):
        await dial(connector(tmp_path, timeout_s=0.5), upstream, "127.0.0.1", "127.0.0.1")
    assert len(upstream.lines) == 2
    await upstream.stop()


async def test_giving_up_before_there_is_tcp_leaves_nothing_behind(tmp_path: Path) -> None:
    """A caller that goes while TCP is made asks for no result: none is kept to complain about later."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    upstream = RawUpstream(silent, "api.test", tls=False)
    await upstream.start()
    upstream.tls = True
    for turns in range(6):
        dialling = asyncio.ensure_future(dial(connector(tmp_path), upstream))
        for _ in range(turns):
            await asyncio.sleep(0)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
    await upstream.stop()
    await asyncio.sleep(0.02)
    gc.collect()
    assert complaints == []


async def test_giving_up_closes_the_connection(tmp_path: Path) -> None:
    """A caller that is cancelled leaves no connection behind."""
    upstream = RawUpstream(silent, "api.test", tls=False)
    await upstream.start()
    upstream.tls = True
    dialling = asyncio.ensure_future(dial(connector(tmp_path), upstream))
    line = await upstream.connection()
    await line.seen(b"\x16\x03")
    dialling.cancel()
    await line.end()
    assert dialling.cancelled() or dialling.cancelling()
    await upstream.stop()
