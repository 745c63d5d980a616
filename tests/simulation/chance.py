"""All chance that the gateway and OpenSSL take, from dice of the seed: ids, keys, nonces, signatures.

An ECDSA signature has 70 to 72 bytes, so that a cut after so many bytes falls elsewhere in each handshake. With the
dice in place of the system's entropy and keys whose signatures have one length, each message of a seed has the same
length in every process; certificates, which another copy of OpenSSL signs, are made until they have the usual one.
"""

from __future__ import annotations

import _ssl
import ctypes
import os
import random
import ssl
import tempfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from support.certificates import upstream_ca

_BYTES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_STATUS = ctypes.CFUNCTYPE(ctypes.c_int)
_USUAL_SIGNATURE_BYTES = 71
_USUAL_SERIAL_BITS = range(153, 160)


class _Method(ctypes.Structure):
    """RAND_METHOD of openssl/rand.h."""

    _fields_ = (
        ("seed", ctypes.c_void_p), ("bytes", _BYTES), ("cleanup", ctypes.c_void_p), ("add", ctypes.c_void_p),
        ("pseudorand", _BYTES), ("status", _STATUS),
    )  # fmt: skip


class Chance:
    """What OpenSSL draws from."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        fill, ready = _BYTES(self._fill), _STATUS(lambda: 1)
        self._method = _Method(None, fill, None, None, fill, ready)  # OpenSSL keeps the address

    def install(self) -> None:
        """Stand in the place of the system's entropy, for all of this process."""
        library = ctypes.CDLL(_ssl.__file__)  # a name that it links to is found through it
        if library.RAND_set_rand_method(ctypes.byref(self._method)) != 1:
            raise RuntimeError("OpenSSL takes no other source of chance: handshakes would differ from run to run")
        os.urandom = self._rng.randbytes
        system: Any = random
        system._urandom = self._rng.randbytes

    def restart(self, seed: int) -> None:
        """Another schedule begins."""
        self._rng.seed(f"openssl {seed}")

    def apart(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Have that draw from chance of its own which happens in whichever schedule needs it first."""

        def made(*arguments: Any, **more: Any) -> Any:
            state = self._rng.getstate()
            try:
                return make(*arguments, **more)
            finally:
                self._rng.setstate(state)

        return made

    def _fill(self, place: int, size: int) -> int:
        ctypes.memmove(place, self._rng.randbytes(size), size)
        return 1


CHANCE = Chance()
_BYTES_OF_BODIES = random.Random("bodies").randbytes(1 << 20)


def some_bytes(rng: random.Random, size: int) -> bytes:
    """Return bytes that are hardly ever the same, at a fraction of what `randbytes` takes for a body."""
    place = rng.randrange(len(_BYTES_OF_BODIES) - size)
    return _BYTES_OF_BODIES[place : place + size]


@lru_cache
@CHANCE.apart
def upstream_context(name: str, *alpn: str) -> Any:
    """Return the context of an upstream, with a certificate of the usual length."""
    key, ca = Ed25519PrivateKey.generate(), x509.load_pem_x509_certificate(upstream_ca().cert_pem.bytes())
    signer: Any = serialization.load_pem_private_key(upstream_ca().private_key_pem.bytes(), None)
    draft = (
        x509.CertificateBuilder(ca.subject, x509.Name([]), key.public_key())
        .not_valid_before(ca.not_valid_before_utc)
        .not_valid_after(ca.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
    )
    certificate = of_usual_length(
        lambda: draft.serial_number(x509.random_serial_number()).sign(signer, hashes.SHA256()),
    )()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(_pem_of(key) + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    context.set_alpn_protocols(list(alpn))
    return context


def _pem_of(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def with_signatures_of_one_length(load: Callable[..., Any]) -> Callable[..., Any]:
    """Have a loaded CA's leaves sign with Ed25519."""

    def loaded(*arguments: Any, **more: Any) -> Any:
        authority = load(*arguments, **more)
        authority._leaf_key = Ed25519PrivateKey.generate()
        authority._leaf_key_pem = _pem_of(authority._leaf_key)
        authority._template = authority._make_template()
        return authority

    return loaded


def of_usual_length(mint: Callable[..., x509.Certificate]) -> Callable[..., x509.Certificate]:
    """Mint again until a certificate has the usual length: every other has not."""

    def minted(*arguments: Any, **more: Any) -> x509.Certificate:
        while True:
            made = mint(*arguments, **more)
            if _is_usual(made):
                return made

    return minted


def _is_usual(made: x509.Certificate) -> bool:
    return len(made.signature) == _USUAL_SIGNATURE_BYTES and made.serial_number.bit_length() in _USUAL_SERIAL_BITS


class Ordered(dict[Any, None]):
    """A set in the order of its additions; that of a real one depends on where in memory its elements are."""

    def add(self, element: Any) -> None:
        """As set.add."""
        self[element] = None

    def discard(self, element: Any) -> None:
        """As set.discard."""
        self.pop(element, None)

    def remove(self, element: Any) -> None:
        """As set.remove."""
        del self[element]
