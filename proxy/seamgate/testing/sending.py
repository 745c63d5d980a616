"""Sends a request all the way and back: the gateway's own guest side, exchange, session and pool, over memory.

    flow = await send("GET https://api.example.com/v1", upstream=upstream, plugins={"mine": plugin})
    assert flow.status == 200
    assert flow.record.steps

What is not there is what needs a machine: sockets, TLS, name servers, the disk. Everything between is what a gateway
runs: the readers of HTTP/1.1 on both sides, every hook, credentials and their redaction, the terminal audit record.
A request to an https target begins inside of its tunnel; `judge` asks about the tunnel too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from seamgate.audit.record import AuditKind, AuditRecord
from seamgate.config import Config
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.entry.binding import TunnelBinding
from seamgate.entry.connections import Connections
from seamgate.entry.http1_guest import Http1Guest
from seamgate.errors import ProtocolError
from seamgate.flow import Headers, Request, Resolution, Target
from seamgate.hookspecs import hookimpl
from seamgate.limits import LimitsConfig
from seamgate.pipeline import Pipeline
from seamgate.protocol.heads import ResponseHead, Trailers
from seamgate.protocol.http1 import write_request_head
from seamgate.protocol.http1_reader import NEED_DATA, ResponseReader
from seamgate.registry import LoadedPlugin, register
from seamgate.seam import Seam
from seamgate.testing.building import AT, make_context, make_request
from seamgate.testing.judging import BUDGET_S, builtin, policy_plugin, vouched
from seamgate.testing.memory import join
from seamgate.testing.recorded import Received, RecordedConnection, RecordedUpstream
from seamgate.upstream.addresses import compile_permit
from seamgate.upstream.destination import OwnAddresses
from seamgate.upstream.pool import AnySession, SessionPool
from seamgate.upstream.pool_key import PoolConfig
from seamgate.upstream.session import Session

FLOW_LIMIT_S = 30.0
ADDRESS = "192.0.2.1"
"""Where every name leads here: of TEST-NET-1 (RFC 5737 3), so that it is nobody's. Nothing is dialled."""


class Flow(msgspec.Struct, frozen=True):
    """What became of a request that was sent.

    Attributes:
        status, headers, body, trailers: what the guest got; status 0: nothing.
        complete: whether its answer came whole; False: it was cut.
        record: the one terminal audit record.
        records: all records, the one that is written ahead included.
        received: what the upstream got, in order.
    """

    status: int
    headers: Headers
    body: bytes
    trailers: Headers
    complete: bool
    record: AuditRecord
    records: tuple[AuditRecord, ...]
    received: tuple[Received, ...]

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the answer's header with this lower-case name, or None."""
        return next((value for key, value in self.headers if key == name), None)


async def send(
    request: Request | str,
    *,
    upstream: RecordedUpstream,
    plugins: Mapping[str, object] | None = None,
    policy: str | Path | None = None,
    credentials: Mapping[str, CredentialConfig | Mapping[str, Any]] | None = None,
    budget_s: float = BUDGET_S,
    piece_bytes: int = 0,
) -> Flow:
    """Send a request through a gateway in memory to a recorded upstream.

    Args:
        request: of `make_request`, or `METHOD URL`.
        upstream: what answers.
        plugins: as for `judge`.
        policy: as for `judge`; to have a credential go along, a policy has to name it.
        credentials: as in seamgate.yaml; there are none unless given.
        budget_s: wall time that one call of a hook may take.
        piece_bytes: the most that either side receives at once; 0: as it was written.

    Raises:
        AssertionError: the upstream was asked for what is not recorded.
        ConfigError: the policy or a credential can't be used.
        PluginRejected: a plugin can't be vouched for.
    """
    asked = make_request(request) if isinstance(request, str) else request
    known = msgspec.convert(credentials or {}, dict[str, CredentialConfig])
    rig = _Rig(upstream, plugins or {}, policy, known, budget_s)
    before = len(upstream.received)
    try:
        async with asyncio.timeout(FLOW_LIMIT_S):
            guest = await rig.ask(asked, piece_bytes)
    finally:
        rig.seam.pool.close()
    if upstream.unexpected:
        raise AssertionError(f"the upstream was asked for what is not recorded: {', '.join(upstream.unexpected)}")
    head = guest.head
    return Flow(
        0 if head is None else head.status,
        () if head is None else head.headers,
        bytes(guest.body),
        guest.trailers,
        guest.complete,
        rig.journal.terminal,
        tuple(rig.journal.records),
        tuple(upstream.received[before:]),
    )


class _Rig:
    """A seam whose journal and upstreams are in memory."""

    def __init__(
        self,
        upstream: RecordedUpstream,
        plugins: Mapping[str, object],
        policy: str | Path | None,
        credentials: Mapping[str, CredentialConfig],
        budget_s: float,
    ) -> None:
        self.journal = _Journal()
        self._upstream = upstream
        self._piece_bytes = 0
        limits = LimitsConfig(plugin_budget_s=budget_s)
        loaded = [policy_plugin(policy, lambda: AT), *_credentials_plugin(credentials), *vouched(plugins)]
        self.seam = Seam(
            pipeline=Pipeline([*loaded, register("recorded", _Names())], budget_s=budget_s),
            pool=SessionPool(self, PoolConfig(), response_timeout_s=limits.response_timeout_s),
            journal=self.journal,
            limits=limits,
            permit=compile_permit((ADDRESS,)),
            own=OwnAddresses(()),
            placeholders=PlaceholderIndex(credentials),
            clock=lambda: AT,
        )

    def profile_for(self, target: Target) -> None:
        """Without TLS there is no profile. Asked by the pool."""

    async def connect(self, target: Target, addresses: tuple[str, ...], on_idle: Any, on_gone: Any) -> AnySession:
        """Open a session to the recorded upstream. Asked by the pool."""
        session = Session(addresses[0], on_idle, on_gone)
        join(session, RecordedConnection(self._upstream, target), piece_bytes=self._piece_bytes)
        return session

    async def ask(self, request: Request, piece_bytes: int) -> _Guest:
        """Send a request on a guest's connection and wait for its end and its record."""
        self._piece_bytes = piece_bytes
        guest = _Guest(request.method)
        entry = Http1Guest(self.seam, TunnelBinding("memory", request.guest, request.target), Connections(16))
        stream, _ = join(guest, entry, piece_bytes=piece_bytes)
        stream.write(_written(request))
        await guest.ended.wait()
        await self.seam.quiet()
        stream.close()
        await asyncio.sleep(0)
        return guest


def _written(request: Request) -> bytes:
    """The request as a guest writes it."""
    target = request.path if request.query is None else f"{request.path}?{request.query}"
    body = request.body or b""
    headers = request.headers
    if request.upgrade:
        raise ValueError("send carries requests and answers; a WebSocket is for a running gateway")
    return write_request_head(request.method, target, request.target.authority, headers, len(body)) + body


class _Guest:
    """The guest's end: reads the answer."""

    def __init__(self, method: str) -> None:
        self.head: ResponseHead | None = None
        self.body = bytearray()
        self.trailers: Headers = ()
        self.complete = False
        self.ended = asyncio.Event()
        self._reader = ResponseReader()
        self._reader.expect(method)

    def connection_made(self, transport: Any) -> None:
        """The stream is there."""

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        self._reader.feed(data)
        try:
            while (event := self._reader.next_event()) is not NEED_DATA:
                self._on(event)
        except ProtocolError:
            self.ended.set()

    def _on(self, event: object) -> None:
        if isinstance(event, ResponseHead):
            if event.status >= 200:
                self.head = event
        elif isinstance(event, bytes):
            self.body += event
        elif isinstance(event, Trailers):
            self.trailers = event.headers
            self.complete = True
            self.ended.set()

    def eof_received(self) -> bool:
        """The gateway sends no more."""
        try:
            self.complete = self.complete or self._reader.eof() is not None
        except ProtocolError:
            self.complete = False
        self.ended.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream is gone."""
        self.ended.set()

    def pause_writing(self) -> None:
        """Do nothing: a request is written in one piece."""

    def resume_writing(self) -> None:
        """Do nothing."""


class _Journal:
    """Keeps records in memory."""

    healthy = True

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    @property
    def terminal(self) -> AuditRecord:
        """The one terminal record of the one request."""
        (record,) = [each for each in self.records if each.kind is not AuditKind.BEGIN]
        return record

    def begin_all(self, records: list[AuditRecord]) -> None:
        """Keep what is written ahead."""
        self.records += records

    def append(self, record: AuditRecord) -> None:
        """Keep a terminal record."""
        self.records.append(record)


class _Names:
    """Resolves every name that no plugin before it resolved."""

    @hookimpl
    def resolve_name(self, name: str) -> Resolution:
        return Resolution(name, (ADDRESS,), 0.0)


def _credentials_plugin(credentials: Mapping[str, CredentialConfig]) -> list[LoadedPlugin]:
    if not credentials:
        return []
    context = make_context("credentials", config=Config(credentials=credentials), capabilities=["secrets"])
    return [register("credentials", builtin("credentials")(context), ["secrets"])]
