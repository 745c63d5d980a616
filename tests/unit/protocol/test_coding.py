"""`seamgate.protocol.coding`: content codings, streamed, with caps."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seamgate.errors import Reason
from seamgate.headers import Headers
from seamgate.protocol.coding import Caps, UndecodableError, narrow_accept_encoding, open_decoder
from seamgate.protocol.whole import message_coding

TEXT = b'{"data": "' + bytes(range(256)) * 40 + b'"}'


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return engine.compress(data) + engine.flush()


ENCODERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"X-GZIP": gzip.compress,
    b"deflate": zlib.compress,
    b"br": brotli.compress,
    b"zstd": zstandard.compress,
}


def decode(coding: bytes, data: bytes, *, piece: int = 1 << 30, caps: Caps | None = None) -> bytes:
    decoder = open_decoder(coding, caps=caps)
    assert decoder is not None
    out = [decoder.feed(data[start : start + piece]) for start in range(0, len(data), piece)]
    return b"".join([*out, decoder.finish()])


@pytest.mark.parametrize("coding", ENCODERS)
@pytest.mark.parametrize("piece", [1, 2, 511, 1 << 20])
def test_what_was_encoded_is_decoded(coding: bytes, piece: int) -> None:
    """In pieces of any size."""
    assert decode(coding, ENCODERS[coding](TEXT), piece=piece) == TEXT


@pytest.mark.parametrize("piece", [1, 2, 1 << 20])
def test_deflate_without_its_zlib_wrapper(piece: int) -> None:
    """Some origins send it so."""
    assert decode(b"deflate", raw_deflate(TEXT), piece=piece) == TEXT


@pytest.mark.parametrize("value", [None, b"", b"identity", b" Identity , "])
def test_nothing_to_decode(value: bytes | None) -> None:
    """No decoder is opened."""
    assert open_decoder(value) is None


def test_stacked_codings_come_off_in_reverse() -> None:
    """The last one listed was applied last."""
    data = brotli.compress(zstandard.compress(gzip.compress(TEXT)))
    assert decode(b"gzip, identity, zstd ,br", data, piece=7) == TEXT


@pytest.mark.parametrize("value", [b"compress", b"gzip, snappy", b"gzip;q=1", b"gzip, gzip, gzip, gzip"])
def test_unknown_and_too_many_codings_are_refused(value: bytes) -> None:
    """By name, with the reason that the caller gives."""
    with pytest.raises(UndecodableError) as caught:
        open_decoder(value, reason=Reason.BODY_UNDECODABLE)
    assert caught.value.reason is Reason.BODY_UNDECODABLE


@pytest.mark.parametrize("coding", ENCODERS)
def test_an_empty_body_is_no_error(coding: bytes) -> None:
    """HEAD, 204 and 304 have the header and no body."""
    decoder = open_decoder(coding)
    assert decoder is not None
    assert decoder.feed(b"") + decoder.finish() == b""


@pytest.mark.parametrize("coding", ENCODERS)
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_stream_that_ends_early_is_an_error(coding: bytes, piece: int) -> None:
    """Wherever it is cut."""
    data = ENCODERS[coding](TEXT)
    for size in {1, 2, 5, len(data) // 2, len(data) - 1}:
        with pytest.raises(UndecodableError, match="ends before"):
            decode(coding, data[:size], piece=piece)


@pytest.mark.parametrize("coding", ENCODERS)
@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
@pytest.mark.parametrize("garbage", [b"\0", b"x", b"GARBAGE", b"\0\0\0\0"])
def test_bytes_after_the_end_are_an_error(coding: bytes, piece: int, garbage: bytes) -> None:
    """One reader would ignore them, another not."""
    with pytest.raises(UndecodableError):
        decode(coding, ENCODERS[coding](TEXT) + garbage, piece=piece)


@pytest.mark.parametrize("coding", ENCODERS)
def test_a_broken_stream_is_an_error_and_stays_one(coding: bytes) -> None:
    """Nothing more comes out of the decoder."""
    decoder = open_decoder(coding)
    assert decoder is not None
    with pytest.raises(UndecodableError):
        decoder.feed(b"\xff\xfe this is not compressed at all" * 50)
        decoder.finish()
    with pytest.raises(UndecodableError):
        decoder.feed(ENCODERS[coding](TEXT))
    with pytest.raises(UndecodableError):
        decoder.finish()


@pytest.mark.parametrize("coding", [b"gzip", b"zstd"])
@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_several_members_are_one_body(coding: bytes, piece: int) -> None:
    """Source: RFC 1952 2.2, RFC 8878 3.1."""
    data = b"".join(ENCODERS[coding](part) for part in (TEXT, b"", b"second", b"third"))
    assert decode(coding, data, piece=piece) == TEXT + b"secondthird"


def test_a_skippable_zstd_frame_is_skipped() -> None:
    """Source: RFC 8878 3.1.2."""
    skippable = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    assert decode(b"zstd", skippable + zstandard.compress(TEXT) + skippable, piece=5) == TEXT


def bombs() -> Iterator[tuple[bytes, bytes]]:
    zeros = bytes(64 << 20)
    for coding in (b"gzip", b"deflate", b"br", b"zstd"):
        yield coding, ENCODERS[coding](zeros)
    yield b"gzip, gzip", gzip.compress(gzip.compress(zeros))
    yield b"br, zstd", zstandard.compress(brotli.compress(zeros))


BOMBS = list(bombs())


@pytest.mark.parametrize(("coding", "data"), BOMBS, ids=[coding.decode() for coding, _ in BOMBS])
def test_a_bomb_is_noticed_before_it_is_in_memory(coding: bytes, data: bytes) -> None:
    """However it is split, long before it is unpacked."""
    for piece in (64, 1 << 20):
        decoder = open_decoder(coding)
        assert decoder is not None
        with pytest.raises(UndecodableError, match="more than 200 times"):
            for start in range(0, len(data), piece):
                decoder.feed(data[start : start + piece])
        assert decoder.size_out_bytes < 40 << 20


def test_the_absolute_cap() -> None:
    """For bodies that are held in memory."""
    data = gzip.compress(TEXT)
    assert decode(b"gzip", data, caps=Caps(max_size_bytes=len(TEXT))) == TEXT
    with pytest.raises(UndecodableError, match=f"more than {len(TEXT) - 1} bytes"):
        decode(b"gzip", data, caps=Caps(max_size_bytes=len(TEXT) - 1))


def test_a_zstd_window_beyond_the_limit_is_refused() -> None:
    """Its memory is the upstream's choice otherwise. Source: RFC 9659."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    engine = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(UndecodableError, match="not what its Content-Encoding says"):
        decode(b"zstd", engine.compress(TEXT) + engine.flush())


def flushing() -> Iterator[tuple[bytes, Callable[[bytes], bytes]]]:
    for name, bits in ((b"gzip", 31), (b"deflate", 15)):
        engine = zlib.compressobj(wbits=bits)
        yield name, lambda event, e=engine: e.compress(event) + e.flush(zlib.Z_SYNC_FLUSH)  # type: ignore[misc]
    br = brotli.Compressor()
    yield b"br", lambda event: br.process(event) + br.flush()
    zs = zstandard.ZstdCompressor().compressobj()
    yield b"zstd", lambda event: zs.compress(event) + zs.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.mark.parametrize(("coding", "send"), list(flushing()), ids=["gzip", "deflate", "br", "zstd"])
def test_a_flushed_event_comes_out_at_once(coding: bytes, send: Callable[[bytes], bytes]) -> None:
    """An event stream is not delayed by its coding."""
    decoder = open_decoder(coding)
    assert decoder is not None
    for number in range(5):
        event = b"data: %d %s\n\n" % (number, b"x" * (number * 100_000))
        assert decoder.feed(send(event)) == event


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (None, b"identity"),
        (b"", b"identity"),
        (b"*", b"identity"),
        (b"compress, sdch", b"identity"),
        (b"gzip;q=0", b"identity"),
        (b"gzip, deflate, br, zstd", b"gzip, deflate, br, zstd"),
        (b"zstd;q=1.0,compress;q=0.5, GZIP;q=0.8 , *;q=0", b"zstd;q=1.0, GZIP;q=0.8"),
        (b"gzip;q=0.000, br;q=0.5", b"br;q=0.5"),
        (b"identity", b"identity"),
    ],
)
def test_only_what_can_be_decoded_is_asked_for(asked: bytes | None, sent: bytes) -> None:
    """So that an answer to be inspected is never undecodable by our own asking."""
    assert narrow_accept_encoding(asked) == sent


@given(
    coding=st.sampled_from([b"gzip", b"deflate", b"br", b"zstd"]),
    text=st.binary(max_size=300),
    harm=st.one_of(st.none(), st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=3))),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_any_split_gives_the_same_result(
    coding: bytes, text: bytes, harm: tuple[int, bytes] | None, cuts: list[int]
) -> None:
    """Sound or broken: the same output, or an error each time; never any other exception."""
    data = ENCODERS[coding](text)
    if harm is not None:
        place = harm[0] % (len(data) + 1)
        data = data[:place] + harm[1] + data[place + 1 :]

    def result(places: list[int]) -> bytes | None:
        decoder = open_decoder(coding)
        assert decoder is not None
        bounds = [0, *sorted(min(place, len(data)) for place in places), len(data)]
        try:
            return b"".join([*(decoder.feed(data[a:b]) for a, b in pairwise(bounds)), decoder.finish()])
        except UndecodableError:
            return None

    whole = result([])
    assert harm is not None or whole == text
    assert result(cuts) == whole
    assert result(list(range(len(data)))) == whole


# -- messages one by one -----------------------------------------------------------------------------------------------


def prefixed(data: bytes, flags: int = 0) -> bytes:
    """Return a message as gRPC and Connect frame it."""
    return bytes((flags,)) + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("coding", ENCODERS)
@pytest.mark.parametrize("outer", [None, b"gzip"])
@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
def test_each_message_is_decoded_by_itself(coding: bytes, outer: bytes | None, piece: int) -> None:
    """Behind its prefix, within a content coding too; one that is not compressed, or empty, is as it is."""
    packed = ENCODERS[coding](TEXT)
    rows = [(packed, 1, TEXT), (b"plain", 0, b"plain"), (b"", 1, b""), (packed, 3, TEXT), (b"end", 0x80, b"end")]
    sent = b"".join(prefixed(data, flags) for data, flags, _ in rows)
    seen = b"".join(prefixed(data, flags)[:5] + plain for data, flags, plain in rows)
    sent = sent if outer is None else gzip.compress(sent)
    decoder = open_decoder(outer, message_encoding=coding)
    assert decoder is not None
    out = [decoder.feed(sent[start : start + piece]) for start in range(0, len(sent), piece)]
    assert b"".join([*out, decoder.finish()]) == seen


@pytest.mark.parametrize(
    ("coding", "sent", "says"),
    [
        (b"snappy", prefixed(b"x", 1), "of a message is not known"),
        (b"gzip, gzip", prefixed(gzip.compress(b"x"), 1), "is not known"),
        (b"gzip", prefixed(b"x" * 40, 1), "not what its Content-Encoding says"),
        (b"gzip", prefixed(gzip.compress(b"x" * 40)[:-1], 1), "before its compressed stream does"),
        (b"gzip", prefixed(gzip.compress(b"x"), 1)[:-1], "ends within a message"),
        (b"gzip", b"\0\0\0", "ends within a message"),
        (b"gzip", prefixed(gzip.compress(bytes(1 << 22)), 1), "more than 50 times its size"),
    ],
)
def test_messages_that_can_not_be_read_are_errors(coding: bytes, sent: bytes, says: str) -> None:
    """An unknown coding where it is used, a broken or cut message, a bomb."""
    decoder = open_decoder(None, message_encoding=coding, reason=Reason.BODY_UNDECODABLE)
    assert decoder is not None
    with pytest.raises(UndecodableError, match=says) as caught:
        decoder.feed(sent)
        decoder.finish()
    assert caught.value.reason is Reason.BODY_UNDECODABLE


@pytest.mark.parametrize(
    ("headers", "coding"),
    [
        ((), None),
        (((b"grpc-encoding", b" gzip "),), b"gzip"),
        (((b"connect-content-encoding", b"br"),), b"br"),
        (((b"grpc-encoding", b"Identity"), (b"content-encoding", b"gzip")), None),
        (((b"grpc-encoding", b"gzip"), (b"grpc-encoding", b"identity")), b"gzip, identity"),
        (((b"grpc-encoding", b"gzip"), (b"connect-content-encoding", b"br")), b"gzip, br"),
    ],
)
def test_which_headers_say_that_messages_are_coded(headers: Headers, coding: bytes | None) -> None:
    """Two that disagree are a coding that nobody knows."""
    assert message_coding(headers) == coding
