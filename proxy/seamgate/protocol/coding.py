"""Content codings: streaming decoders for what is inspected, with caps against bombs.

The exchange opens a decoder for a body only if someone inspects it; then it passes the decoded body on, without
Content-Encoding and Content-Length. It asks upstream only for codings that can be decoded (`narrow_accept_encoding`).
Sans-I/O: bytes in, bytes out; nothing is buffered but what a library holds of an unfinished block.

- gzip (RFC 1952, several members), deflate (RFC 9110 8.4.1.2: zlib; and the raw form that some origins send), br (RFC
  7932), zstd (RFC 8878, several frames; window at most 8 MiB, RFC 9659), identity. Stacked codings, last applied first.
- Messages that are compressed one by one within a body (gRPC, gRPC-Web, Connect): each by itself, behind its prefix, so
  that what looks at the body sees all of it.
- A stream that ends early, a broken one, and bytes after its end are errors: two readers could disagree about them.
- What a coding carries beside the content (a gzip's file name and comment, skippable frames of zstd, brotli's metadata)
  is not given out; who has to see that too looks at the coded bytes (`watch`).
- Every decoder works in bounded steps, so that a bomb is noticed before it is in memory: output may not exceed
  `max_ratio` times the input (plus a grace for small bodies), nor `max_size_bytes` if that is set.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import brotli
import msgspec
import zstandard

from seamgate.errors import ProtocolError, Reason
from seamgate.protocol.aws_chunked import AwsChunked, BrokenFramingError

MAX_STACKED = 3
"""More codings on one body than anyone sends; each layer multiplies what a bomb can do."""
MAX_RATIO = 200
"""Repetitive JSON reaches about 50, sparse binaries 150; gzip's own maximum is 1,032, brotli's and zstd's far more."""
MAX_REQUEST_RATIO = 50
"""The same of what guests send, who choose it to cost us: what agents compress becomes five to twenty times smaller."""
GRACE_BYTES = 1 << 20
"""Output that is always allowed, so that a small but very regular body is no bomb."""
ZSTD_WINDOW_BYTES = 8 << 20
"""What a receiver of the content coding must support, and need not exceed. Source: RFC 9659 3."""
_STEP_BYTES = 64 * 1024
"""Output taken from a library at a time."""
CODED_PIECE_BYTES: Final = 2048
"""Of a body that is decoded, read at a time: then its reader asks whether its guest's turn lasts."""
_ZSTD_PIECE_BYTES = 512
"""Input given to zstd at a time, as it has no output limit: 128 blocks of 128 KiB each (RFC 8878 3.1.1.2) at worst."""
_END_OF_GZIP_MEMBER = 16 + zlib.MAX_WBITS


class UndecodableError(ProtocolError):
    """A body can't be decoded: unknown coding, broken or cut stream, trailing bytes, or a bomb."""

    default_reason = Reason.RESPONSE_UNDECODABLE


class Caps(msgspec.Struct, frozen=True):
    """What a decoder may produce.

    Attributes:
        max_ratio: output bytes per input byte, beyond the grace.
        grace_bytes: output that is allowed whatever the input.
        max_size_bytes: output in all; None: no limit, for bodies that are passed on as they come.
    """

    max_ratio: int = MAX_RATIO
    grace_bytes: int = GRACE_BYTES
    max_size_bytes: int | None = None


class _Layer(Protocol):
    """One coding: yields output in bounded steps."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def finish(self) -> Iterator[bytes]: ...


class _Watcher(Protocol):
    """What is used of an inspector that only looks (`seamgate.hookspecs.Inspector`)."""

    def feed(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...

    def finish(self) -> bytes: ...


class _Watched:
    """No coding: what looks at the bytes that the next one takes off, and passes them on."""

    __slots__ = ("_watcher", "fed_bytes", "passed_bytes")

    def __init__(self, watcher: _Watcher) -> None:
        self._watcher = watcher
        self.fed_bytes = self.passed_bytes = 0

    def _passed(self, data: bytes) -> bytes:
        self.passed_bytes += len(data)
        return data

    def feed(self, data: bytes) -> Iterator[bytes]:
        self.fed_bytes += len(data)
        yield self._passed(self._watcher.feed(data))

    def flush(self) -> Iterator[bytes]:
        yield self._passed(self._watcher.flush())

    def finish(self) -> Iterator[bytes]:
        yield self._passed(self._watcher.finish())


class Decoder:
    """Decodes one body. After an error it stays unusable."""

    __slots__ = ("_caps", "_failed", "_layers", "_reason", "size_in_bytes", "size_out_bytes")

    def __init__(self, layers: list[_Layer], caps: Caps, reason: Reason) -> None:
        self._layers = layers
        self._caps = caps
        self._reason = reason
        self._failed = False
        self.size_in_bytes = 0
        self.size_out_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return what the data decodes to so far.

        Raises:
            UndecodableError: it is broken, has bytes after its end, or is a bomb.
        """
        return b"".join(self.steps(data))

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield the same in bounded pieces, so that nobody has to hold all that a piece becomes.

        Raises:
            UndecodableError: as in `feed`.
        """
        self.size_in_bytes += len(data)
        return self._checked(self._through(data, 0)) if data else iter(())

    @property
    def layers(self) -> list[_Layer]:
        """What takes off the codings, the outermost first."""
        return self._layers

    def watch(self, make: Callable[[], _Watcher]) -> None:
        """Have the body looked at before each coding is taken off: names, comments and the like are in no content."""
        self._layers = [each for layer in self._layers for each in (_Watched(make()), layer)]

    @property
    def holds(self) -> bool:
        """Whether something of what was fed waits for who looks at it (`watch`)."""
        return any(passed < fed for fed, passed in self.watched)

    @property
    def watched(self) -> list[tuple[int, int]]:
        """(bytes that came, bytes that were passed on) of each who looks at it, before the first coding first."""
        return [(each.fed_bytes, each.passed_bytes) for each in self._layers if isinstance(each, _Watched)]

    def flush(self) -> bytes:
        """The stream pauses: return what comes of what those who look at it let go.

        Raises:
            UndecodableError: as in `feed`.
        """
        return self._collect(self._let_go())

    def _let_go(self) -> Iterator[bytes]:
        for level, layer in enumerate(self._layers):
            if isinstance(layer, _Watched):
                for piece in layer.flush():
                    if piece:
                        yield from self._through(piece, level + 1)

    def finish(self) -> bytes:
        """Return the rest; an empty body is no error, whatever its coding.

        Raises:
            UndecodableError: the stream is not complete.
        """
        return self._collect(self._end()) if self.size_in_bytes else b""

    def _through(self, data: bytes, level: int) -> Iterator[bytes]:
        """Run data through the layers from this level on, one step of output after another."""
        if level == len(self._layers):
            yield data
            return
        for piece in self._layers[level].feed(data):
            if piece:
                yield from self._through(piece, level + 1)

    def _end(self) -> Iterator[bytes]:
        for level, layer in enumerate(self._layers):
            for piece in layer.finish():
                if piece:
                    yield from self._through(piece, level + 1)

    def _collect(self, pieces: Iterator[bytes]) -> bytes:
        return b"".join(self._checked(pieces))

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if self._failed:
            raise UndecodableError("the body was found undecodable before", reason=self._reason)
        try:
            for piece in pieces:
                self.size_out_bytes += len(piece)
                self._check_caps()
                yield piece
        except UndecodableError as error:
            self._failed = True
            error.reason = self._reason
            raise
        except BrokenFramingError as error:
            self._failed = True
            raise UndecodableError(str(error), reason=self._reason) from error
        except (zlib.error, brotli.error, zstandard.ZstdError) as error:
            self._failed = True
            raise UndecodableError("the body is not what its Content-Encoding says", reason=self._reason) from error

    def _check_caps(self) -> None:
        caps = self._caps
        if self.size_out_bytes > caps.grace_bytes + caps.max_ratio * self.size_in_bytes:
            raise UndecodableError(f"the body unpacks to more than {caps.max_ratio} times its size")
        if caps.max_size_bytes is not None and self.size_out_bytes > caps.max_size_bytes:
            raise UndecodableError(f"the body unpacks to more than {caps.max_size_bytes} bytes")


def open_decoder(
    content_encoding: bytes | None,
    *,
    message_encoding: bytes | None = None,
    caps: Caps | None = None,
    reason: Reason = Reason.RESPONSE_UNDECODABLE,
) -> Decoder | None:
    """Open a decoder for a Content-Encoding value; None where there is nothing to decode.

    Args:
        content_encoding: the field value; several fields joined by ", " in their order; None if there is none.
        message_encoding: what `seamgate.protocol.whole.message_coding` says; None: the body is no row of messages. One
            that is not known is an error at the first message that is compressed.
        caps: None: the defaults, which are lower for what guests send.
        reason: what an error carries: RESPONSE_UNDECODABLE or BODY_UNDECODABLE.

    Raises:
        UndecodableError: a coding is unknown, or there are too many.
    """
    if caps is None:
        caps = Caps(MAX_REQUEST_RATIO) if reason is Reason.BODY_UNDECODABLE else Caps()
    messages: list[_Layer] = [] if message_encoding is None else [_Messages(message_encoding)]
    if content_encoding is None:
        return Decoder(messages, caps, reason) if messages else None
    names = [name.strip(b" \t").lower() for name in content_encoding.split(b",")]
    wanted = [name for name in names if name not in (b"", b"identity")]
    if not wanted and not messages:
        return None
    if len(wanted) > MAX_STACKED:
        raise UndecodableError(f"the body has more than {MAX_STACKED} content codings", reason=reason)
    if not _LAYERS.keys() >= set(wanted):
        # Without its name: an upstream may repeat a value there, and this is told and recorded.
        raise UndecodableError("a content coding of the body is not known", reason=reason)
    return Decoder([*[_LAYERS[name]() for name in reversed(wanted)], *messages], caps, reason)


def open_to_look(content_encoding: bytes | None, *, message_encoding: bytes | None = None) -> Decoder | None:
    """Open a decoder for a request's body that goes on as it came, to have its content searched; arguments as above.

    `aws-chunked` is taken off first, wherever the list names it: S3's clients write it in front. None also for codings
    of which none is known: nobody here can say what they hold, and the body is searched as it is.

    Raises:
        UndecodableError: known codings beside others, or more than are taken off: they hide what an upstream may read.
    """
    names = [name.strip(b" \t").lower() for name in (content_encoding or b"").split(b",")]
    rest = [name for name in names if name != _AWS_CHUNKED]
    try:
        decoder = open_decoder(b",".join(rest), message_encoding=message_encoding, reason=Reason.BODY_UNDECODABLE)
    except UndecodableError:
        if message_encoding is not None or not _LAYERS.keys().isdisjoint(rest):
            raise
        decoder = None
    if len(rest) == len(names):
        return decoder
    if len(names) - len(rest) > 1:
        raise UndecodableError("the body says aws-chunked twice", reason=Reason.BODY_UNDECODABLE)
    return Decoder(
        [AwsChunked(), *([] if decoder is None else decoder.layers)], Caps(MAX_REQUEST_RATIO), Reason.BODY_UNDECODABLE
    )


def narrow_accept_encoding(value: bytes | None) -> bytes:
    """Return the Accept-Encoding to send upstream where the answer will be inspected.

    What the guest asked for, as far as it can be decoded; "identity" if nothing of it can, or if it asked for nothing.
    Source: RFC 9110 12.5.3.
    """
    if value is None:
        return b"identity"
    kept = []
    for element in value.split(b","):
        name, _, weight = element.strip(b" \t").partition(b";")
        if name.strip(b" \t").lower() in _LAYERS and not _is_zero(weight):
            kept.append(element.strip(b" \t"))
    return b", ".join(kept) or b"identity"


def _is_zero(weight: bytes) -> bool:
    _, _, number = weight.strip(b" \t").partition(b"=")
    return bool(number) and not number.strip(b"0. \t")


class _Zlib:
    """gzip or deflate, in steps of bounded output."""

    __slots__ = ("_engine", "_head", "_make", "_members", "_started")

    def __init__(self, *, gzip: bool) -> None:
        self._make: Callable[[bytes], int] = (lambda _: _END_OF_GZIP_MEMBER) if gzip else _deflate_bits
        self._members = gzip
        self._started = False
        self._head = b""
        self._engine = zlib.decompressobj(_END_OF_GZIP_MEMBER)

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._started and self._engine.eof:
                if not self._members:
                    raise UndecodableError("the body goes on after the end of its deflate stream")
                self._started = False
            if not self._started:
                # Two bytes tell zlib from raw deflate; a next gzip member must begin with its magic.
                data = self._head + data
                if len(data) < 2:
                    self._head = data
                    return
                self._head, self._started = b"", True
                self._engine = zlib.decompressobj(self._make(data))
            out = self._engine.decompress(data, _STEP_BYTES)
            yield out
            # A full step may mean that the library holds more, even with all input taken.
            while not self._engine.eof and (self._engine.unconsumed_tail or len(out) == _STEP_BYTES):
                out = self._engine.decompress(self._engine.unconsumed_tail, _STEP_BYTES)
                yield out
            data = self._engine.unused_data

    def finish(self) -> Iterator[bytes]:
        if self._head or not self._started or not self._engine.eof:
            raise UndecodableError("the body ends before its compressed stream does")
        yield b""


def _deflate_bits(head: bytes) -> int:
    """Tell zlib from raw deflate by the header's check bits. Source: RFC 1950 2.2."""
    is_zlib = head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


class _Brotli:
    __slots__ = ("_engine",)

    def __init__(self) -> None:
        self._engine = brotli.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._engine.is_finished():
            raise UndecodableError("the body goes on after the end of its brotli stream")
        out = self._engine.process(data, output_buffer_limit=_STEP_BYTES)
        yield out
        # The library keeps output back even when it says that it can take more input: ask until nothing comes.
        while out and not self._engine.is_finished():
            out = self._engine.process(b"", output_buffer_limit=_STEP_BYTES)
            yield out

    def finish(self) -> Iterator[bytes]:
        if not self._engine.is_finished():
            raise UndecodableError("the body ends before its compressed stream does")
        yield b""


class _Zstd:
    __slots__ = ("_begun", "_ended", "_engine")

    def __init__(self) -> None:
        self._engine = self._new()
        self._begun = False
        self._ended = False

    @staticmethod
    def _new() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_PIECE_BYTES):
            piece = data[start : start + _ZSTD_PIECE_BYTES]
            while piece:
                if self._ended:
                    self._engine, self._begun = self._new(), False
                # The first byte of a frame goes by itself: zstd takes a frame that comes whole another way, which is
                # stricter about a wrong content size, and the result must not depend on how the bytes are split.
                part, rest = (piece, b"") if self._begun else (piece[:1], piece[1:])
                self._begun = True
                yield self._engine.decompress(part)
                self._ended = self._engine.eof
                piece = self._engine.unused_data + rest if self._ended else rest

    def finish(self) -> Iterator[bytes]:
        if not self._ended:
            raise UndecodableError("the body ends before its compressed stream does")
        yield b""


class _Messages:
    """A row of messages, each behind five bytes: flags, of which the lowest says that it is compressed, and its length.

    Gives out each prefix as it is and each message decompressed. Source: gRPC's PROTOCOL-HTTP2.md (Length-Prefixed-
    Message); Connect's protocol, Enveloped-Message.
    """

    __slots__ = ("_coding", "_left", "_message", "_prefix")

    def __init__(self, coding: bytes) -> None:
        self._coding = coding.strip(b" \t").lower()
        self._prefix = b""
        self._left = 0  # of the message that is being read
        self._message: _Layer | None = None  # what decompresses it; None: it is not compressed

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if not self._left:
                taken = _PREFIX_BYTES - len(self._prefix)
                self._prefix, data = self._prefix + data[:taken], data[taken:]
                if len(self._prefix) == _PREFIX_BYTES:
                    yield self._begin()
                continue
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            if self._message is None:
                yield piece
                continue
            yield from self._message.feed(piece)
            if not self._left:
                yield from self._message.finish()

    def _begin(self) -> bytes:
        prefix, self._prefix = self._prefix, b""
        self._left = int.from_bytes(prefix[1:], "big")
        self._message = None
        if prefix[0] & _COMPRESSED and self._left:
            make = _LAYERS.get(self._coding)
            if make is None:
                raise UndecodableError("the coding of a message is not known: use gzip, or none")
            self._message = make()
        return prefix

    def finish(self) -> Iterator[bytes]:
        if self._prefix or self._left:
            raise UndecodableError("the body ends within a message")
        yield b""


_AWS_CHUNKED = b"aws-chunked"
_PREFIX_BYTES = 5
_COMPRESSED = 1

_LAYERS: dict[bytes, Callable[[], _Layer]] = {
    b"gzip": lambda: _Zlib(gzip=True),
    b"x-gzip": lambda: _Zlib(gzip=True),
    b"deflate": lambda: _Zlib(gzip=False),
    b"br": _Brotli,
    b"zstd": _Zstd,
}
