"""`seamgate.protocol.aws_chunked`: the framing of S3's clients, taken off of what is searched."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamgate.protocol.aws_chunked import AwsChunked, BrokenFramingError
from seamgate.protocol.coding import UndecodableError, open_to_look

SIGNED = b";chunk-signature=" + b"0a" * 32
ENDS = [b"0\r\n\r\n", b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", b"0" + SIGNED + b"\r\n\r\n"]


def frame(chunks: list[bytes], *, extension: bytes = b"", end: bytes = ENDS[0]) -> bytes:
    """Return the chunks as S3's clients send them."""
    return b"".join([b"%x%b\r\n%b\r\n" % (len(each), extension, each) for each in chunks]) + end


def content(data: bytes, *, piece: int = 1 << 20) -> bytes:
    """Return what is given out, fed in pieces."""
    layer = AwsChunked()
    found = [part for at in range(0, len(data), piece) for part in layer.feed(data[at : at + piece])]
    return b"".join([*found, *layer.finish()])


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    extension=st.sampled_from([b"", SIGNED]),
    end=st.sampled_from(ENDS),
    piece=st.integers(1, 30),
)
def test_any_split_gives_the_content(chunks: list[bytes], extension: bytes, end: bytes, piece: int) -> None:
    """Signed or not, with checksums behind the last chunk or none."""
    assert content(frame(chunks, extension=extension, end=end), piece=piece) == b"".join(chunks)


def test_it_comes_in_bounded_steps() -> None:
    """A chunk of 1 MiB is given out in steps of 64 KiB, and a million bytes in chunks of one in as few."""
    for chunks in ([bytes(1 << 20)], [b"x"] * 200_000):
        assert max(len(step) for step in AwsChunked().feed(frame(chunks))) <= 2 * 64 * 1024
        assert content(frame(chunks)) == b"".join(chunks)


@pytest.mark.parametrize(
    "body",
    [
        b"secret",
        b"5\nhello\n0\n\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\r\n\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5;a b\r\nhello\r\n0\r\n\r\n",
        b"-1\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"5\r\nhel",
        b"5\r\nhello\r\n0\r\n\x1f\x8b\x08",
        b"5\r\nhello\r\n0\r\n" + b"x" * 9000,
        b"5;" + b"x" * 600 + b"\r\nhello\r\n0\r\n\r\n",
        b"10000000000000000\r\n",
    ],
)
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_what_is_framed_otherwise_is_refused(body: bytes, piece: int) -> None:
    """A lenient server might read other content in it than was searched."""
    with pytest.raises(BrokenFramingError):
        content(body, piece=piece)


@pytest.mark.parametrize("coding", [b"aws-chunked,gzip", b"gzip, AWS-Chunked", b"gzip,aws-chunked,identity"])
def test_it_is_the_outermost_wherever_it_is_named(coding: bytes) -> None:
    """S3's clients write it in front of the list; RFC 9110 8.4 would have it at the end."""
    decoder = open_to_look(coding)
    assert decoder is not None
    assert decoder.feed(frame([gzip.compress(b"text")])) + decoder.finish() == b"text"


@pytest.mark.parametrize(
    "coding", [b"foo, gzip", b"gzip, foo", b"gzip," * 4, b"aws-chunked, foo, br", b"aws-chunked, aws-chunked"]
)
def test_what_hides_its_content_is_refused(coding: bytes) -> None:
    """A list that names a known coding, and can't be taken off as a whole."""
    with pytest.raises(UndecodableError):
        open_to_look(coding)


def test_below_the_framing_an_unknown_coding_is_looked_at_as_it_is() -> None:
    """As it is without the framing, where there is no decoder."""
    decoder = open_to_look(b"aws-chunked, foo")
    assert decoder is not None and open_to_look(b"foo") is None
    assert decoder.feed(frame([b"te", b"xt"])) + decoder.finish() == b"text"
