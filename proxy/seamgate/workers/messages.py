"""What supervisor and workers say to each other, and how it stands on the wire between them. No I/O.

A frame is a length (4 bytes, big-endian) and that many bytes of MessagePack: one message. Both ends are processes of
one gateway, connected before the worker runs, so nobody else can speak here; what can't be read is a fault, and ends
the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from seamgate.audit.record import AuditRecord
from seamgate.audit.sealed import Sealed
from seamgate.config import Config
from seamgate.errors import SeamgateError
from seamgate.observe.work import Work
from seamgate.upstream.resolver import Answer

MOST_BYTES: Final = 1 << 30
"""Longest frame: far above a policy of 100,000 rules."""
_HEAD_BYTES: Final = 4
DNS: Final = "dns"
DNS_UDP: Final = "dns_udp"
"""The entry that one worker alone serves, the first one: by its TCP and its UDP socket."""


Values: TypeAlias = dict[str, tuple[bytes, ...]]
"""Exact values by the name of their credential, newest first. Secret."""

Bound: TypeAlias = dict[str, list[tuple[tuple[str, ...], bool]]]
"""By the name of a credential: (patterns of hosts, whether ranges are allowed) of each binding that it has or had."""


class Broken(SeamgateError):
    """What came is no message: a fault of the gateway."""


# -- from the supervisor -----------------------------------------------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message: all that a worker starts with. It answers `Ready`.

    Attributes:
        config: with the texts of its policies.
        generation: the number of what is in force.
        worker: its number, from 0.
        workers: how many there are.
        entries: entry -> the place of its listener among the descriptors that the worker has inherited.
        own: (address, port) of everything that no guest may be carried to.
        memory: the place of that of `SharedMemory`.
        guests, credentials: names of those that the gateway started with: they have a place of their own in the memory.
        ca: `Authorities.identity` of the CAs that the supervisor loaded, "" for none.
        audit_problem: as in `Audit`.
        log_format, log_level: of `seamgate serve`.
    """

    config: Config
    generation: int
    worker: int
    workers: int
    entries: dict[str, int]
    own: list[tuple[str, int]]
    memory: int
    guests: tuple[str, ...]
    credentials: tuple[str, ...]
    ca: str
    audit_problem: str
    log_format: str
    log_level: str


class Go(msgspec.Struct, frozen=True, tag=True):
    """All is ready: take connections."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Load this, and change nothing yet. Answered by `Prepared`."""

    config: Config
    generation: int


class Commit(msgspec.Struct, frozen=True, tag=True):
    """Put in force what was prepared. Answered by `Committed`."""

    generation: int


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget what was prepared."""

    generation: int


class Acknowledge(msgspec.Struct, frozen=True, tag=True):
    """What was begun in the `Records` of this number is in the journal, or can't be written because of `problem`."""

    number: int
    problem: str = ""


class Audit(msgspec.Struct, frozen=True, tag=True):
    """Why the journal can't be written; "" when it can be."""

    problem: str


class Named(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Resolve`."""

    number: int
    answer: Answer


class Learn(msgspec.Struct, frozen=True, tag=True):
    """Look for these values from now on, in what comes from these hosts: the worker `origin` puts them in.

    Answered by `Learnt`, unless the number is 0.
    """

    number: int
    origin: int
    values: Values
    hosts: Bound = {}

    def __repr__(self) -> str:
        return f"<Learn {self.number} of worker {self.origin}: {', '.join(self.values)}>"


class Shared(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Share`: all workers look for the values, or it can't be said because of `problem`."""

    number: int
    problem: str = ""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """How are you? Answered by `Report`."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Take no new connection, let what is under way end within so many seconds, and go. May come again, with less.

    `retiring`: a successor has the listeners, so that who asks now is answered, and told to come again.
    """

    grace_s: float
    retiring: bool = False


# -- from a worker -----------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag=True):
    """What was set up can be used, or can't because of `problem`."""

    problem: str = ""


class Records(msgspec.Struct, frozen=True, tag=True):
    """What ended since the last message, then what is about to begin.

    Attributes:
        number: of this message, where something begins.
        denied: records of requests that were denied, and of what is no request.
        ended: records of requests that were allowed.
        begun: records that `Acknowledge` is waited for.
        lost: how many there was no room for before these.
    """

    number: int
    denied: list[AuditRecord]
    ended: list[Sealed]
    begun: list[Sealed]
    lost: int = 0


class Resolve(msgspec.Struct, frozen=True, tag=True):
    """Which addresses has this canonical name?"""

    number: int
    name: str


class Share(msgspec.Struct, frozen=True, tag=True):
    """These values are about to be put in here: have all others look for them. Answered by `Shared`."""

    number: int
    values: Values
    hosts: Bound = {}

    def __repr__(self) -> str:
        return f"<Share {self.number}: {', '.join(self.values)}>"


class Learnt(msgspec.Struct, frozen=True, tag=True):
    """What `Learn` of this number said is looked for here."""

    number: int


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The configuration of this generation loads, or does not because of `problem`."""

    generation: int
    problem: str = ""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """It is in force; so much ended by it."""

    generation: int
    revoked_requests: int
    revoked_tunnels: int


class Report(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Ask`."""

    number: int
    work: Work


FromSupervisor: TypeAlias = (
    Setup | Go | Prepare | Commit | Abort | Acknowledge | Audit | Named | Learn | Shared | Ask | Stop
)
FromWorker: TypeAlias = Ready | Records | Resolve | Share | Learnt | Prepared | Committed | Report


def _to_plain(value: Any) -> Any:
    """Write what MessagePack has no form for."""
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} can't be sent to another process")


def _from_plain(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"a {kind.__name__} can't come from another process")


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_supervisor_decoder = msgspec.msgpack.Decoder(FromSupervisor, dec_hook=_from_plain)
_worker_decoder = msgspec.msgpack.Decoder(FromWorker, dec_hook=_from_plain)


def encode(message: FromSupervisor | FromWorker) -> bytes:
    """Return the frame of a message."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        # A lone surrogate that a guest sent. No record is dropped for its spelling.
        body = _encoder.encode(_spelt_out(msgspec.to_builtins(message, enc_hook=_to_plain)))
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


def _spelt_out(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_spelt_out(key): _spelt_out(each) for key, each in value.items()}
    return [_spelt_out(each) for each in value] if isinstance(value, list | tuple) else value


class FrameReader:
    """Cuts a stream of bytes into messages. State: `_rest` is the beginning of one that will have `_needed` bytes."""

    def __init__(self, *, from_worker: bool) -> None:
        self._decoder: msgspec.msgpack.Decoder[Any] = _worker_decoder if from_worker else _supervisor_decoder
        self._rest = bytearray()
        self._needed = _HEAD_BYTES

    def feed(self, data: bytes) -> Iterator[Any]:
        """Return the messages that are whole now, in order: of `FromWorker` or `FromSupervisor`.

        Raises:
            Broken: what came can't be read.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
        view, at, end_of_data = memoryview(data), 0, len(data)
        self._needed = _HEAD_BYTES
        try:
            while end_of_data - at >= _HEAD_BYTES:
                length = int.from_bytes(view[at : at + _HEAD_BYTES], "big")
                if length > MOST_BYTES:
                    raise Broken(f"a message of {length} bytes")
                end = at + _HEAD_BYTES + length
                if end_of_data < end:
                    self._needed = end - at
                    break
                body, at = view[at + _HEAD_BYTES : end], end
                yield self._decode(body)
        finally:
            self._rest = bytearray(view[at:])

    def _decode(self, body: memoryview) -> Any:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Broken(f"what came from the other process is no message: {error}") from error
