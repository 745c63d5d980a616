"""Opens sessions: TCP to a validated address, TLS verified against the target's name. Dials nothing else.

Called by the session pool. The addresses were checked by the exchange; a name is never resolved here, so what is
dialled is what was checked.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from seamgate.errors import ConnectFailed, Reason, SeamgateError, UpstreamTimeout
from seamgate.flow import Target
from seamgate.streams import Receiver, TlsStream, as_protocol, keep_alive
from seamgate.turns import Share
from seamgate.upload import HeldBytes
from seamgate.upstream.parent import VIA_PROXY, Parent
from seamgate.upstream.session import Session
from seamgate.upstream.session2 import Http2Session
from seamgate.upstream.tls import TlsProfile, UpstreamTls, tls_failed

SHARE_OF_FIRST_S = 3.0
"""How long one of several addresses may take for TCP before the next is tried: a dead one must not cost it all."""


T = TypeVar("T")
_HTTP1 = ("http/1.1",)
_Maker = Callable[["str | None"], "Session | Http2Session"]


class Connector:
    """Knows TLS profiles and time limits; makes `Session`s.

    Attributes:
        budget: where sessions of HTTP/2 count what they hold for guests that have enough.
        parent: the upstream proxy; None where there is none.
    """

    def __init__(
        self, tls: UpstreamTls, *, timeout_s: float, write_high_bytes: int = 256 * 1024, parent: Parent | None = None
    ) -> None:
        self._tls = tls
        self.parent = parent
        self._timeout_s = timeout_s
        self._write_high_bytes = write_high_bytes
        # Of all guests, so that none of their upstreams can have a thousand done at once; each is on its guest's
        # account as well, once there is a session.
        self._handshakes = Share()
        self.budget: HeldBytes | None = None

    def replace(self, tls: UpstreamTls, parent: Parent | None) -> None:
        """Open further sessions with these roots and client certificates, through this proxy. The pool tells
        generations apart.
        """
        self._tls, self.parent = tls, parent

    def profile_for(self, target: Target) -> TlsProfile | None:
        """Return the TLS profile of a target; None for plain http."""
        return self._tls.profile_for(target) if target.scheme == "https" else None

    async def connect(
        self,
        target: Target,
        addresses: tuple[str, ...],
        on_idle: Callable[[Session | Http2Session], None],
        on_gone: Callable[[Session | Http2Session], None],
        *,
        http2: bool = True,
    ) -> Session | Http2Session:
        """Open a session to the first address that answers, of the protocol that ALPN agrees to.

        `http2` says whether that may be HTTP/2, where the configuration offers it.

        Raises:
            ConnectFailed: none does.
            TlsFailed: one does, but its certificate or TLS is not right; no other is tried.
            UpstreamTimeout: it took too long.
            SeamgateError: OVERLOADED, this process can open no further connection.
        """
        tls, profile = self._tls, self.profile_for(target)  # kept over a reload
        if profile is not None and not http2:
            profile = msgspec.structs.replace(profile, alpn=_HTTP1)

        def open_at(address: str) -> Awaitable[Session | Http2Session]:
            def make(alpn: str | None) -> Session | Http2Session:
                if alpn == "h2":
                    return Http2Session(address, on_idle, on_gone, self.budget)
                return Session(address, on_idle, on_gone)

            return self._open(make, target, tls, profile, address)

        return await self._first(target, addresses, open_at)

    async def dial(self, target: Target, addresses: tuple[str, ...], receiver: Receiver) -> str:
        """Open plain TCP to the first address that answers, for a stream that is passed on unread; return which.

        Raises:
            ConnectFailed: none does.
            UpstreamTimeout: it took too long.
        """

        async def open_at(address: str) -> str:
            await self._reach(receiver, target, address)
            return address

        return await self._first(target, addresses, open_at)

    async def _reach(self, receiver: Receiver, target: Target, address: str) -> Any:
        """Connect the receiver to a target's address, by the upstream proxy unless it is an exception."""
        parent = self.parent
        if parent is not None and parent.carries(target):
            through = await parent.open(receiver, target, address, self._write_high_bytes)
            keep_alive(through)
            return through
        if address == VIA_PROXY:
            raise ConnectFailed(f"the upstream proxy that {target.authority} was to be reached by is no longer there")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: as_protocol(receiver), address, target.port)
        transport.set_write_buffer_limits(self._write_high_bytes)
        keep_alive(transport)
        return transport

    async def _first(self, target: Target, addresses: tuple[str, ...], open_at: Callable[[str], Awaitable[T]]) -> T:
        failures: list[str] = []
        for place, address in enumerate(addresses):
            last = place == len(addresses) - 1
            try:
                async with asyncio.timeout(self._timeout_s if last else min(SHARE_OF_FIRST_S, self._timeout_s)):
                    return await open_at(address)
            except TimeoutError:
                failures.append(f"{address}: timed out")
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    message = "the gateway has no file descriptor left: raise its limit of open files"
                    raise SeamgateError(message, reason=Reason.OVERLOADED) from None
                failures.append(f"{address}: {error.strerror or type(error).__name__}")
            except ConnectFailed as error:  # the upstream proxy can't, but maybe another address
                failures.append(error.message)
        message = f"{target.authority} can't be reached ({'; '.join(failures)})"
        raise UpstreamTimeout(message) if failures[-1].endswith("timed out") else ConnectFailed(message)

    async def _open(
        self, make: _Maker, target: Target, tls: UpstreamTls, profile: TlsProfile | None, address: str
    ) -> Session | Http2Session:
        loop = asyncio.get_running_loop()
        if profile is None:
            session = make(None)
            await self._reach(session, target, address)
            return session
        established: asyncio.Future[Session | Http2Session] = loop.create_future()
        agreed: list[Session | Http2Session] = []

        def failed(error: Exception) -> None:
            if not established.done():
                known = isinstance(error, SeamgateError)
                established.set_exception(error if known else tls_failed(error, target.host))

        def select(alpn: str | None) -> Receiver:
            agreed.append(make(alpn))
            return agreed[0]

        def done() -> None:
            if not established.done():
                established.set_result(agreed[0])

        stream = TlsStream(
            None,
            select=select,
            context=tls.context(profile),
            server_hostname=target.host,
            on_failure=failed,
            on_established=done,
            share=self._handshakes,
        )
        transport_: Any = None
        try:
            transport_ = await self._reach(stream, target, address)
            return await established
        except BaseException:
            if transport_ is not None:
                transport_.abort()
            if not established.cancel() and not established.cancelled():
                established.exception()  # else nobody would have asked for it
            raise
