"""TLS over any byte stream, for both sides of the seam.

`TlsStream` is a protocol towards the transport below (TCP, ring, memory) and a transport towards the protocol above
(a guest's connection, an upstream's session), with the surface of `asyncio.Transport` that they use. Written over
OpenSSL without a socket (`seamgate.records`) rather than `loop.start_tls`, because the ring has none, the server name
has to be known before a leaf is chosen, and a client may send its first request in the same segment as the end of the
handshake.

The server side reads the ClientHello first and asks `choose` for a context; the client side is given one. Verifies
nothing by itself: contexts do.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from seamgate.errors import GuestProtocolError, Reason
from seamgate.protocol.client_hello import MAX_HELLO_BYTES, ClientHello, parse_client_hello
from seamgate.protocol.work import FINISHED, HELLO, RECORD, VERIFIED
from seamgate.records import Records, Wrapped
from seamgate.turns import BUDGET, Share, Turnstile

_ALERT_UNRECOGNIZED_NAME = b"\x15\x03\x01\x00\x02\x02\x70"
_ALERT_HANDSHAKE_FAILURE = b"\x15\x03\x01\x00\x02\x02\x28"


class Transport(Protocol):
    """What the protocols above use of `asyncio.Transport`; TCP, TLS, ring and memory streams all have it."""

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent."""

    def pause_reading(self) -> None:
        """Stop calling `data_received`."""

    def resume_reading(self) -> None:
        """Call `data_received` again."""

    def close(self) -> None:
        """Send what is queued, then close."""

    def abort(self) -> None:
        """Close at once; what is queued is lost."""

    def is_closing(self) -> bool:
        """Whether close or abort was called, or the peer is gone."""
        ...

    def get_write_buffer_size(self) -> int:
        """How many bytes are queued."""
        ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As in asyncio: `peername`, `sockname` ..."""
        ...


class Receiver(Protocol):
    """What sits above a transport: `asyncio.Protocol` by shape. Not by inheritance, so that those can be compiled."""

    def connection_made(self, transport: Any) -> None:
        """The transport is there."""

    def data_received(self, data: bytes) -> None:
        """Bytes came."""

    def eof_received(self) -> bool:
        """The peer sends no more; whether to keep the transport open."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""

    def pause_writing(self) -> None:
        """The transport has enough."""

    def resume_writing(self) -> None:
        """The transport takes more."""


def as_protocol(receiver: Receiver) -> asyncio.Protocol:
    """Tell the type checker that asyncio takes protocols by shape."""
    return cast("asyncio.Protocol", receiver)


_PROBES: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""After a minute of silence, four times, a quarter of a minute apart: a peer that is gone is found after two."""


def keep_alive(transport: Any) -> None:
    """Have the kernel find out about a peer that is gone without a word; a stream without a socket is left alone."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def write_to(transport: Transport, data: bytes) -> None:
    """Queue bytes to be sent. Compiled, a call of TLS's own method costs a tenth of one by name."""
    if type(transport) is TlsStream:
        transport.write(data)
    else:
        transport.write(data)


def is_ending(transport: Transport) -> bool:
    """Return whether close or abort was called, or the peer is gone; see `write_to`."""
    if type(transport) is TlsStream:
        return transport.is_closing()
    return transport.is_closing()


Chooser = Callable[[ClientHello], ssl.SSLContext]
Selector = Callable[["str | None"], Receiver]
"""From what ALPN agreed to, None for nothing, to the protocol above."""


class _Nobody:
    """What sits above a stream that is over."""

    def connection_made(self, transport: Any) -> None:
        """Nothing."""

    def data_received(self, data: bytes) -> None:
        """Nothing."""

    def eof_received(self) -> bool:
        """Nothing."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing."""

    def pause_writing(self) -> None:
        """Nothing."""

    def resume_writing(self) -> None:
        """Nothing."""


_NOBODY: Final[Receiver] = _Nobody()


def _nothing(_: Exception) -> None:
    """What is left to call once a stream is over."""


class TlsStream:
    """TLS between the transport below and the protocol above.

    The protocol above gets `connection_made(self)` once the handshake is done, then data as usual. If the handshake
    fails, `on_failure` gets the error instead, and the transport below is closed. Where it depends on ALPN which
    protocol that is, `select` is asked for it instead.

    A protocol that pauses reading is not told of an end before it reads on: it may be behind (`seamgate.turns`). So may
    this stream, with records that are tiny: then what it has not decrypted waits, and nothing is read below.

    With a share, that of the guest whose stream it is, the handshake is counted, and each of its steps waits for a
    turn; so does what is to be decrypted, on the side of guests. An upstream's may carry many guests' once it is
    established.

    State: `_wrapped` within the handshake, with `_turnstile`, which keeps what came meanwhile; `_records` after it;
    `_paused` by the protocol above; `_behind` while records wait, with `_unread` what came meanwhile; `_due` while a
    later turn is asked for; `_ended` while an end waits; `_full` while the transport below has enough, and `_clogged`
    while an answer of TLS itself waits in it, so that nothing is read below.
    """

    def __init__(
        self,
        above: Receiver | None,
        *,
        select: Selector | None = None,
        context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        choose: Chooser | None = None,
        on_failure: Callable[[Exception], None],
        on_established: Callable[[], object] | None = None,
        share: Share | None = None,
    ) -> None:
        self._above: Receiver
        if above is not None:
            self._above = above
        self._select = select
        self._context = context
        self._server_hostname = server_hostname
        self._choose = choose
        self._on_failure = on_failure
        self._on_established = on_established
        self._share = share
        self._turnstile: Turnstile | None = None if share is None else Turnstile()
        self._below: Transport | None = None
        self._hello = b""
        self._wrapped: Wrapped | None = None
        self._tls: ssl.SSLObject | None = None
        self._records: Records | None = None
        self._unread = b""
        self._established = False
        self._closing = False
        self._paused = False
        self._lost = False
        self._behind = self._due = self._ended = False
        self._full = self._clogged = False

    # -- as a protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """The transport below is there: a client begins its handshake."""
        self._below = transport
        if self._context is not None:
            self._wrapped = Wrapped(self._context, self._server_hostname, server_side=False)
            self._tls = self._wrapped.tls
            self._handshake()

    def data_received(self, data: bytes) -> None:
        """Ciphertext from below."""
        if self._lost:
            return
        if self._established:
            if self._behind:
                self._unread += data
                return
            share = self._share
            if share is not None and share.left <= 0:
                self._unread = data
                self._behind = True
                self._stop_below()
                self._read_soon()
                return
            self._read(data)
            return
        keeper, share, below = self._turnstile, self._share, self._below
        if keeper is not None and share is not None and below is not None:
            if keeper.keeps(share, below, data, self.data_received):
                return
        if self._wrapped is not None:
            self._wrapped.incoming.write(data)
        elif not self._read_hello(data):
            return
        self._handshake()
        if self._is_established():
            self._read_unread()

    def eof_received(self) -> bool:
        """The peer closed without close_notify: for TLS that is a cut, never a clean end (RFC 8446 6.1)."""
        if not self._established:
            self._fail(ConnectionResetError("the peer closed within the TLS handshake"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport below is gone."""
        if not self._established:
            self._fail(exc or ConnectionResetError("the connection closed within the TLS handshake"))
        elif not self._lost:
            while self._behind and not self._over():
                self._behind = False
                self._read_unread()
            if self._ended:
                self._end()
            if not self._over():
                self._lost = True
                self._above.connection_lost(exc)
        self._let_go()

    def _let_go(self) -> None:
        """Nothing comes any more: refer to nobody, or each connection would be a cycle for the collector to find.

        It is told to look seldom, and a dead connection holds some 40 KB.
        """
        self._lost = self._closing = True
        self._above = _NOBODY
        self._below = self._tls = self._wrapped = self._records = self._context = self._share = self._turnstile = None
        self._select = self._choose = self._on_established = None
        self._on_failure = _nothing

    def pause_writing(self) -> None:
        """The transport below has enough."""
        self._full = True
        if self._established:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        """The transport below takes more."""
        self._full = False
        if self._clogged:
            self._clogged = False
            if not (self._paused or self._behind):
                self._resume_below()
        if self._established:
            self._above.resume_writing()

    # -- handshake ---------------------------------------------------------------------------------------------------

    def _read_hello(self, data: bytes) -> bool:
        """Collect the ClientHello and choose a context; True once the TLS object has it all."""
        self._hello += data
        try:
            hello = parse_client_hello(self._hello)
            if hello is None:
                if len(self._hello) > MAX_HELLO_BYTES:
                    raise GuestProtocolError("the TLS ClientHello is too long", reason=Reason.GUEST_TLS_FAILED)
                return False
            assert self._choose is not None
            self._spend(HELLO)
            context = self._choose(hello)
        except GuestProtocolError as error:
            mismatch = error.reason is Reason.TARGET_MISMATCH
            self._fail(error, _ALERT_UNRECOGNIZED_NAME if mismatch else _ALERT_HANDSHAKE_FAILURE)
            return False
        self._wrapped = Wrapped(context, None, server_side=True)
        self._tls = self._wrapped.tls
        self._wrapped.incoming.write(self._hello)
        self._hello = b""
        return True

    def _handshake(self) -> None:
        wrapped = self._wrapped
        assert wrapped is not None
        self._spend(VERIFIED if self._context is not None and wrapped.incoming.pending else FINISHED)
        try:
            wrapped.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send(wrapped.outgoing.read())
            return
        except (ssl.SSLError, ValueError) as error:
            self._send(wrapped.outgoing.read())
            self._fail(error)
            return
        self._established = True
        self._turnstile = None
        if self._context is not None:
            self._share = None
        self._send(wrapped.outgoing.read())
        self._unread = wrapped.incoming.read()
        self._records = wrapped.take_over()
        self._wrapped = None
        if self._select is not None:
            self._above = self._select(wrapped.tls.selected_alpn_protocol())
        self._above.connection_made(self)
        if self._on_established is not None:
            self._on_established()

    def _spend(self, units: int) -> None:
        """Count what the handshake takes."""
        if self._share is not None:
            self._share.spend(units)

    def _fail(self, error: Exception, alert: bytes = b"") -> None:
        """End a stream whose handshake did not succeed; the protocol above never hears of it."""
        if self._lost:
            return
        self._lost = self._closing = True
        on_failure = self._on_failure  # a ring that is closed says so at once, and then there is none any more
        if self._below is not None:
            if alert:
                self._below.write(alert)
            self._below.close()
        on_failure(error)

    # -- data --------------------------------------------------------------------------------------------------------

    def _is_established(self) -> bool:
        """A call, since compiled code takes what it once saw unset for unset."""
        return self._established

    def _read_unread(self) -> None:
        """Go on with records that wait, and with what came meanwhile."""
        data, self._unread = self._unread, b""
        self._read(data)

    def _read(self, data: bytes) -> None:
        """Give up all plaintext that is here, as one piece."""
        records = self._records
        if records is None:
            return
        most: int = BUDGET.records
        opened = records.read(data, most)
        if isinstance(opened, bytes):
            if opened:
                self._above.data_received(opened)
            return
        plain, ended, self._behind, answer, error = opened
        if error is None:
            self._send(answer)
            if answer and self._full:
                self._clogged = True
                self._stop_below()
        if self._behind:
            self._spend(most * RECORD)
            self._stop_below()
            self._read_soon()
        if plain and not self._lost:
            self._above.data_received(plain)
        if error is not None:
            self._broken(error)
        elif ended and not self._lost:
            self._ended = True
            if not self._paused:
                self._end()

    def _end(self) -> None:
        """Tell of close_notify: a clean end of what the peer sends."""
        self._ended = False
        self._above.eof_received()
        self.close()

    def _read_soon(self) -> None:
        """Go on in a later turn, so that others have theirs."""
        if not self._due:
            self._due = True
            if self._share is not None:
                self._share.wait(self._read_on)
            else:
                asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read what has waited; then read below again."""
        self._due = False
        if self._lost or self._paused:
            return
        if self._behind:
            self._behind = False
            self._read_unread()
        if self._ended and not self._over():
            self._end()
        if not (self._behind or self._paused):
            self._resume_below()

    def _over(self) -> bool:
        """Whether nothing is told any more. A call, since compiled code takes what it once saw for what is."""
        return self._lost

    def _broken(self, error: ssl.SSLError) -> None:
        """A record that does not decrypt: nothing after it can be trusted."""
        if not self._lost:
            self._lost = self._closing = True
            above = self._above
            if self._below is not None:
                self._below.abort()
            above.connection_lost(error)

    def _send(self, sealed: bytes) -> None:
        if sealed and self._below is not None:
            self._below.write(sealed)

    # -- as a transport ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt and queue."""
        if self._closing or not data:
            return
        records = self._records
        assert records is not None
        try:
            sealed = records.write(data)
        except ssl.SSLError as error:
            self._broken(error)
            return
        if sealed and self._below is not None:
            self._below.write(sealed)

    def pause_reading(self) -> None:
        """Stop reading below; what is decrypted already was delivered."""
        if not self._paused:
            self._paused = True
            self._stop_below()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if self._behind or self._ended:
                self._read_soon()
            else:
                self._resume_below()

    def _stop_below(self) -> None:
        if self._below is not None and not self._below.is_closing():
            self._below.pause_reading()

    def _resume_below(self) -> None:
        if self._below is not None and not self._clogged and not self._below.is_closing():
            self._below.resume_reading()

    def close(self) -> None:
        """Say close_notify, then close below."""
        if self._closing:
            return
        self._closing = True
        if self._records is not None:
            self._send(self._records.close())
        if self._below is not None:
            self._below.close()

    def cut(self) -> None:
        """Send what is queued, then close without close_notify: the peer sees a cut, never a clean end."""
        self._closing = True
        if self._below is not None:
            self._below.close()

    def abort(self) -> None:
        """Close below at once; what is queued is lost."""
        self._closing = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        """Whether this stream is ending."""
        return self._closing or self._below is None or self._below.is_closing()

    def can_write_eof(self) -> bool:
        """TLS can't be closed one way: who wants to closes it."""
        return False

    def get_write_buffer_size(self) -> int:
        """Ciphertext bytes queued below."""
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport below; "ssl_object" is ours."""
        if name == "ssl_object":
            return self._tls
        return default if self._below is None else self._below.get_extra_info(name, default)
