"""The admin listener: `/metrics`, `/healthz`, `/readyz`, `/status`, and `POST /reload` on a unix socket.

Started by the gateway where `admin: listen:` says so, closed last, so that it can tell of a stop that takes long. It is
no entry: it listens on loopback or on a unix socket only, the gateway counts it among its own addresses and so refuses
to carry a guest to it, and nothing that it answers holds a secret. Over TCP it changes nothing, because every program
of the machine can talk to it, a guest included; a unix socket (mode 0600) lets in the gateway's own user and root.

A browser that was made to resolve a foreign name to this address (DNS rebinding) is refused by its Host header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from seamgate.address import parse_authority
from seamgate.errors import GuestProtocolError, PrerequisiteMissing, SeamgateError, TargetError
from seamgate.flow import Headers
from seamgate.observe.metrics import Metrics
from seamgate.observe.readiness import problems
from seamgate.protocol.heads import RequestHead
from seamgate.protocol.http1 import write_response_head
from seamgate.protocol.http1_reader import NEED_DATA, RequestReader
from seamgate.reloading import ReloadReport
from seamgate.tasks import spawn
from seamgate.unix_sockets import bind_unix, inode_of, remove_unix

if TYPE_CHECKING:
    from seamgate.gateway import Gateway

log = structlog.get_logger("seamgate.admin")

MOST_CONNECTIONS: Final = 64
"""Scrapers and probes are few; whoever opens more is none of them."""
SILENCE_S: Final = 30.0
"""How long a connection may be silent: above the 15 s of common scrape intervals, so that keep-alive pays."""
MOST_AHEAD_BYTES: Final = 65536
"""How much may come before the present request is answered."""
_TEXT: Final = b"text/plain; charset=utf-8"
_JSON: Final = b"application/json"
_ALWAYS: Final[Headers] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Reply(msgspec.Struct, frozen=True):
    """An answer before it is written."""

    status: int
    body: bytes
    content_type: bytes = _TEXT
    headers: Headers = ()


class AdminServer:
    """The listener of one gateway.

    Attributes:
        address: as one would name it to `--admin`: `http://127.0.0.1:9901` or `unix:/path`.
    """

    def __init__(self, gateway: Gateway, place: tuple[str, int] | str) -> None:
        """Take the gateway that is looked at, and (address, port) on loopback or the path of a socket."""
        self._gateway = gateway
        self._place = place
        self._metrics = Metrics(gateway)
        self._connections: set[_AdminConnection] = set()
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None
        self.address = ""
        self._routes: dict[str, Callable[[RequestHead], Awaitable[Reply]]] = {
            "/metrics": self._on_metrics,
            "/healthz": self._on_healthz,
            "/readyz": self._on_readyz,
            "/status": self._on_status,
        }

    def __repr__(self) -> str:
        return f"<AdminServer {self.address}, {len(self._connections)} connections>"

    @property
    def over_unix(self) -> bool:
        """Whether only this user and root can talk to it."""
        return isinstance(self._place, str)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int] | None:
        """Listen. Return (address, port) as bound if it is TCP: the gateway must refuse to go there.

        Raises:
            PrerequisiteMissing: the place can't be had.
        """
        place, loop = self._place, asyncio.get_running_loop()
        try:
            if isinstance(place, str):
                listening = bind_unix(Path(place), "admin: listen:")
                self._inode = inode_of(place)
                self._server = await loop.create_unix_server(self._accept, sock=listening)
                self.address = f"unix:{place}"
                return None
            self._server = await loop.create_server(self._accept, *place)
        except OSError as error:
            shown = place if isinstance(place, str) else f"{place[0]}:{place[1]}"
            raise PrerequisiteMissing(
                f"the admin listener can't have {shown}: {error.strerror or error}; choose another place"
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return host, port

    def close(self) -> None:
        """Stop listening, drop the connections, take the socket's file away if it is still ours."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drop()
        if isinstance(self._place, str) and self._inode is not None:
            remove_unix(self._place, self._inode)
            self._inode = None

    def renew(self) -> None:
        """Another generation is in force."""
        self._metrics.renew()

    def _accept(self) -> asyncio.BaseProtocol:
        return _AdminConnection(self, self._connections)

    # -- answers -----------------------------------------------------------------------------------------------------

    async def answer(self, head: RequestHead) -> Reply:
        """Return the answer to a request."""
        path = head.target.partition("?")[0]
        if not self.over_unix and not _names_loopback(head.host):
            return _refusal(421, "the Host header does not name this listener: ask for 127.0.0.1, [::1] or localhost")
        if head.body:
            return _refusal(413, "no request here has a body")
        if path == "/reload":
            return await self._on_reload(head)
        route = self._routes.get(path)
        if route is None:
            return _refusal(404, f"there are {', '.join(sorted(self._routes))} and POST /reload")
        if head.method not in ("GET", "HEAD"):
            return _refusal(405, "only GET and HEAD", allow=b"GET, HEAD")
        return await route(head)

    async def _on_metrics(self, head: RequestHead) -> Reply:
        await self._gateway.refresh()
        accept = next((value for name, value in head.headers if name == b"accept"), b"")
        content_type, body = self._metrics.render(accept.decode("latin-1"))
        return Reply(200, body, content_type.encode("ascii"))

    async def _on_healthz(self, _: RequestHead) -> Reply:
        """The loop turns, or this would not be answered. Never depends on anything that a restart does not mend."""
        return Reply(200, b"ok\n")

    async def _on_readyz(self, _: RequestHead) -> Reply:
        found = problems(self._gateway)
        if not found:
            return Reply(200, b"ready\n")
        return Reply(503, "".join(f"{each.code}: {each.message}\n" for each in found).encode())

    async def _on_status(self, _: RequestHead) -> Reply:
        await self._gateway.refresh()
        return Reply(200, msgspec.json.encode(self._gateway.status()) + b"\n", _JSON)

    async def _on_reload(self, head: RequestHead) -> Reply:
        if head.method != "POST":
            return _refusal(405, "only POST", allow=b"POST")
        if not self.over_unix:
            return _refusal(
                403,
                "nothing is changed over TCP, where every program of this machine can ask: send SIGHUP to the gateway, "
                "or let `admin: listen:` name a unix socket",
            )
        try:
            report: ReloadReport = await self._gateway.reload_everywhere()
        except SeamgateError as error:
            return _refusal(409, error.message)
        return Reply(200, msgspec.json.encode(report) + b"\n", _JSON)


class _AdminConnection(asyncio.Protocol):
    """One connection: requests one after the other, each answered before the next is read.

    State: `_answering` is the task that makes an answer; what comes meanwhile waits in the reader.
    """

    def __init__(self, server: AdminServer, connections: set[_AdminConnection]) -> None:
        self._server = server
        self._connections = connections
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._closing = False

    def connection_made(self, transport: Any) -> None:
        """Count it, or turn it away."""
        self._transport = transport
        if len(self._connections) >= MOST_CONNECTIONS:
            self._answer(None, _refusal(503, "too many connections"))
            return
        self._connections.add(self)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read requests and answer them."""
        if self._closing:
            return
        self._reader.feed(data)
        if self._answering is not None and self._reader.unread_bytes > MOST_AHEAD_BYTES:
            self.drop()
            return
        self._read_on()
        self._wait()

    def _read_on(self) -> None:
        try:
            while not self._closing and self._answering is None:
                event = self._reader.next_event()
                if event is NEED_DATA:
                    break
                if isinstance(event, RequestHead):
                    self._answering = spawn(self._answer_soon(event), name=f"admin {event.target}")
                elif self._reader.message_done:
                    self._reader.start_next()
        except GuestProtocolError as error:
            self._answer(None, _refusal(error.reason.status, error.message))

    async def _answer_soon(self, head: RequestHead) -> None:
        reply = await self._server.answer(head)
        self._answering = None
        if not self._closing:
            self._answer(head, reply)
            self._read_on()
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._closing = True
        self._connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._answering is not None:
            self._answering.cancel()

    def drop(self) -> None:
        """Close it now."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> None:
        """Begin the time in which the next request has to come."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._closing or self._answering is not None:
            return  # how long we take is no silence of theirs
        self._deadline = asyncio.get_running_loop().call_later(SILENCE_S, self.drop)

    def _answer(self, head: RequestHead | None, reply: Reply) -> None:
        keep_alive = head is not None and head.keep_alive and not head.body
        minor = 1 if head is None else head.minor
        headers = ((b"content-type", reply.content_type), *reply.headers, *_ALWAYS)
        text = write_response_head(reply.status, headers, len(reply.body), keep_alive=keep_alive, minor=minor)
        assert self._transport is not None
        self._transport.write(text if head is not None and head.method == "HEAD" else text + reply.body)
        if not keep_alive:
            self._closing = True
            self._transport.close()


def _refusal(status: int, message: str, *, allow: bytes = b"") -> Reply:
    body = msgspec.json.encode({"error": message}) + b"\n"
    return Reply(status, body, _JSON, ((b"allow", allow),) if allow else ())


def _names_loopback(host: str | None) -> bool:
    """Return whether a Host header is one that no foreign name can be made to send. HTTP/1.0 may have none."""
    if host is None:
        return True
    try:
        named = parse_authority(host, "http")
    except TargetError:
        return False
    return named.host in ("localhost", "::1") or (named.is_address and named.host.startswith("127."))
