"""SOCKS 5, the server's side, as far as a client needs it to connect: greeting, login, request, reply. No I/O.

Called by `seamgate.entry.socks5`. The client is hostile: every field is bounded by its own length byte, and a message
is read only once it is there whole. Only what was asked for comes out; what is to be allowed is decided elsewhere.

    greeting: 5, count, methods                            answer: 5, method            Source: RFC 1928 3
    login:    1, length, user, length, password            answer: 1, 0 for yes         Source: RFC 1929 2
    request:  5, command, 0, address type, address, port   reply:  5, code, 0, 1, 0.0.0.0, 0            RFC 1928 4, 6
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import msgspec

from seamgate.address import address_text, canonical_address, canonical_host
from seamgate.errors import GuestProtocolError, Reason, TargetError

NO_LOGIN, LOGIN, NONE_FITS = 0, 2, 0xFF
_VERSION, _LOGIN_VERSION = 5, 1
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4


class Reply(IntEnum):
    """Codes of a reply that are used here (RFC 1928 6)."""

    SUCCEEDED = 0
    FAILURE = 1
    NOT_ALLOWED = 2
    HOST_UNREACHABLE = 4
    REFUSED = 5
    COMMAND_UNSUPPORTED = 7
    ADDRESS_UNSUPPORTED = 8


class Methods(msgspec.Struct, frozen=True):
    """The client offers these ways to say who it is."""

    offered: frozenset[int]


class Login(msgspec.Struct, frozen=True):
    """The client says who it is. Its repr shows no password."""

    user: bytes
    password: bytes

    def __repr__(self) -> str:
        return f"<Login {self.user!r}>"


class Demand(msgspec.Struct, frozen=True):
    """The client wants to connect to this canonical host and port."""

    host: str
    port: int
    is_address: bool


class SocksError(GuestProtocolError):
    """The client asks for something that is not done; `reply` is what to tell it, b"" for nothing.

    Raised instead of an event; nothing that follows is to be read.
    """

    def __init__(self, message: str, reply: bytes = b"", *, reason: Reason = Reason.BAD_REQUEST) -> None:
        super().__init__(message, reason=reason)
        self.reply = reply


Event: TypeAlias = Methods | Login | Demand


class SocksReader:
    """Reads what a client sends: Methods, then Login if that was chosen, then Demand."""

    def __init__(self) -> None:
        self._data = b""
        self._read: Callable[[], Event | None] = self._greeting

    def __repr__(self) -> str:
        return f"<SocksReader unread={len(self._data)}>"

    def feed(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._data += data

    def next_event(self) -> Event | None:
        """Return what came next, None until it is whole.

        Raises:
            SocksError: it is no SOCKS 5, or asks for what is not done.
        """
        return self._read()

    def expect(self, method: int) -> None:
        """Go on with what follows the greeting: a login, or at once the request."""
        self._read = self._login if method == LOGIN else self._request

    def take_rest(self) -> bytes:
        """Give what came beyond the request."""
        rest, self._data = self._data, b""
        return rest

    def _take(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _greeting(self) -> Methods | None:
        data = self._data
        if data and data[0] != _VERSION:
            raise SocksError("this is a SOCKS 5 proxy, and what came is not SOCKS 5")
        if len(data) < 2 or len(data) < 2 + data[1]:
            return None
        return Methods(frozenset(self._take(2 + data[1])[2:]))

    def _login(self) -> Login | None:
        data = self._data
        if data and data[0] != _LOGIN_VERSION:
            raise SocksError("the login is malformed")
        if len(data) < 2 or len(data) < 3 + data[1]:
            return None
        password_at = 2 + data[1]
        end = password_at + 1 + data[password_at]
        if len(data) < end:
            return None
        taken = self._take(end)
        self._read = self._request
        return Login(taken[2:password_at], taken[password_at + 1 :])

    def _request(self) -> Demand | None:
        data = self._data
        if data and data[0] != _VERSION:
            raise SocksError("the request is not SOCKS 5", reply(Reply.FAILURE))
        if len(data) < 5:
            return None
        if data[1] != _CONNECT or data[2]:
            message = "only CONNECT is served: no listening and no UDP for others"
            raise SocksError(message, reply(Reply.COMMAND_UNSUPPORTED), reason=Reason.METHOD_REFUSED)
        size = {_IPV4: 4, _NAME: 1 + data[4], _IPV6: 16}.get(data[3])
        if size is None:
            message = "the address is of an unknown type"
            raise SocksError(message, reply(Reply.ADDRESS_UNSUPPORTED), reason=Reason.BAD_TARGET)
        if len(data) < 6 + size:
            return None
        taken = self._take(6 + size)
        return _demand(taken[3], taken[4:-2], int.from_bytes(taken[-2:]))


def _demand(kind: int, address: bytes, port: int) -> Demand:
    try:
        if not port:
            raise TargetError("port 0 is no port")
        if kind != _NAME:
            return Demand(address_text(ipaddress.ip_address(address)), port, True)
        # A name may be of any script here (RFC 1928 says nothing), and may be an address in text.
        text = address[1:].decode("utf-8")
        six = canonical_address(text)
        host, is_address = (six, True) if six is not None else canonical_host(text)
    except UnicodeDecodeError:
        raise SocksError("the name is not UTF-8", reply(Reply.FAILURE), reason=Reason.BAD_TARGET) from None
    except TargetError as error:
        raise SocksError(error.message, reply(Reply.FAILURE), reason=error.reason) from None
    return Demand(host, port, is_address)


def choice(method: int) -> bytes:
    """Return the answer to a greeting."""
    return bytes((_VERSION, method))


def login_answer(accepted: bool) -> bytes:
    """Return the answer to a login."""
    return bytes((_LOGIN_VERSION, 0 if accepted else 1))


def reply(code: Reply) -> bytes:
    """Return the reply to a request. The bound address is nobody's business: zeros."""
    return bytes((_VERSION, code, 0, _IPV4)) + bytes(6)
