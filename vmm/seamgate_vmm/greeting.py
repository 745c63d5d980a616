"""How a guest's stream begins: what it wants, from its first bytes. Pure; the bytes are hostile.

The template's `ssl` layer sends a preface with the server name and goes on in plaintext; anything else is taken as it
is. Called by `seamgate_vmm.ring` with what has come so far.
"""

from dataclasses import dataclass

PREFACE = b"\0SGTLS1\n"
_PREFACE_HEAD = len(PREFACE) + 2
_MAX_PREFACE = 2048


@dataclass(frozen=True, slots=True)
class StreamOpen:
    """What a guest asked to be connected to.

    host: the name that it looked up (lower case), else the address that it named.
    tls: the bytes are plaintext and the gateway is to speak TLS upstream, to `server_name`.
    client_hello: the bytes are a TLS handshake of the guest's own.
    """

    host: str
    port: int
    tls: bool
    server_name: str | None = None
    alpn: tuple[str, ...] = ()
    client_hello: bool = False


def read_greeting(seen: bytes, host: str, port: int) -> tuple[StreamOpen, int] | None:
    """Return what the first bytes say and how many of them are preface; None: more is needed."""
    if not seen:
        return None
    if seen[0] == 0x16:
        return StreamOpen(host, port, False, client_hello=True), 0
    if seen[0] != PREFACE[0]:
        return StreamOpen(host, port, False), 0
    if len(seen) < _PREFACE_HEAD:
        return None
    if not seen.startswith(PREFACE):
        return StreamOpen(host, port, False), 0
    length = int.from_bytes(seen[len(PREFACE) : _PREFACE_HEAD], "big")
    if length > _MAX_PREFACE:
        return StreamOpen(host, port, False), 0
    if len(seen) < _PREFACE_HEAD + length:
        return None
    name, _, protocols = seen[_PREFACE_HEAD : _PREFACE_HEAD + length].partition(b"\0")
    alpn = tuple(p.decode("ascii", "replace") for p in protocols.split(b",") if p)
    server_name = name.decode("ascii", "replace").lower() or None
    return StreamOpen(host, port, True, server_name, alpn), _PREFACE_HEAD + length
