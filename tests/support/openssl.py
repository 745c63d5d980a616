"""A TLS client that does what Python's `ssl` can't: it changes its keys as often as it likes (RFC 8446 4.6.3)."""

from __future__ import annotations

import _ssl
import ctypes
from typing import Final

_POINTER: Final = ctypes.c_void_p
_library: Final = ctypes.CDLL(_ssl.__file__)  # a name that it links to is found through it
for _name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_new", "BIO_s_mem"):
    getattr(_library, _name).restype = _POINTER


class KeyChanger:
    """Verifies nothing. Give it what the server sent, and send what it gives. Its memory is never freed."""

    def __init__(self) -> None:
        context = _POINTER(_library.SSL_CTX_new(_POINTER(_library.TLS_client_method())))
        self._tls = _POINTER(_library.SSL_new(context))
        self._incoming = _POINTER(_library.BIO_new(_POINTER(_library.BIO_s_mem())))
        self._outgoing = _POINTER(_library.BIO_new(_POINTER(_library.BIO_s_mem())))
        _library.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        _library.SSL_set_connect_state(self._tls)

    def handshake(self, data: bytes = b"") -> bytes:
        """Take what the server sent and go on."""
        if data:
            _library.BIO_write(self._incoming, data, len(data))
        _library.SSL_do_handshake(self._tls)
        return self._sent()

    def change_keys(self, times: int, *, asking: bool = False) -> bytes:
        """Change them so often, without a word between; asking the server to change its own as well."""
        for _ in range(times):
            if _library.SSL_key_update(self._tls, int(asking)) != 1 or _library.SSL_do_handshake(self._tls) != 1:
                raise RuntimeError("OpenSSL does not change its keys")
        return self._sent()

    def write(self, data: bytes) -> bytes:
        """Seal."""
        if _library.SSL_write(self._tls, data, len(data)) != len(data):
            raise RuntimeError("OpenSSL does not write")
        return self._sent()

    def _sent(self) -> bytes:
        room, sent = ctypes.create_string_buffer(65536), b""
        while (size := _library.BIO_read(self._outgoing, room, len(room))) > 0:
            sent += room.raw[:size]
        return sent
