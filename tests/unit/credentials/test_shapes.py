"""`seamgate.credentials.shapes`: well-known shapes of secrets, taken out of a stream."""

from __future__ import annotations

from itertools import pairwise

import pytest

from seamgate.credentials.shapes import (
    HIGH_ENTROPY_SHAPES,
    JWT_SHAPES,
    KNOWN_SHAPES,
    ShapeRedactor,
    ShapeSet,
    looks_random,
)

KNOWN = ShapeSet(KNOWN_SHAPES)
PEM = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/IBAAKCAQEA\nabcd==\n-----END RSA PRIVATE KEY-----"

# Put together from parts, so that no scanner takes this file for a leak.
SAMPLES = [
    ("aws-access-key", b"AKIA" + b"ABCDEFGH234567QR"),
    ("github-token", b"ghp_" + b"a1B2" * 9),
    ("github-token", b"github_pat_" + b"11ABCDEFG0" * 3),
    ("gitlab-token", b"glpat-" + b"x-Y_z12345" * 2),
    ("slack-token", b"xoxb-" + b"123456789012-abcdef"),
    ("slack-webhook", b"hooks.slack.com/services/" + b"T0ABCDEFG/B0ABCDEFG/" + b"a1B2" * 6),
    ("anthropic-key", b"sk-ant-" + b"api03-" + b"a_B-" * 10),
    ("openai-key", b"sk-proj-" + b"a_B-" * 12),
    ("openai-key", b"sk-" + b"a1B2" * 12),
    ("google-api-key", b"AIza" + b"Sy_-a" * 7),
    ("google-token", b"ya29." + b"a0Af_-" * 8),
    ("stripe-key", b"sk_live_" + b"a1B2" * 6),
    ("npm-token", b"npm_" + b"a1B2" * 9),
    ("pypi-token", b"pypi-AgE" + b"IcHlwaS5vcmc" * 5),
    ("huggingface-token", b"hf_" + b"aBcDeFgHiJ" * 3 + b"klmn"),
    ("sendgrid-key", b"SG." + b"a1B2-_" * 3 + b"abcd." + b"a1B2-_x" * 6 + b"z"),
]


def run(text: bytes, *pieces: int, shapes: ShapeSet = KNOWN, flush: bool = False) -> bytes:
    one = ShapeRedactor(shapes)
    places = [0, *pieces, len(text)]
    out = b""
    for start, stop in pairwise(places):
        out += one.feed(text[start:stop])
        if flush:
            out += one.flush()
    return out + one.finish()


@pytest.mark.parametrize(("name", "sample"), SAMPLES, ids=[f"{name}-{len(sample)}" for name, sample in SAMPLES])
def test_each_shape_is_found_at_every_split(name: str, sample: bytes) -> None:
    """In the middle of a text, split in two anywhere."""
    text = b'{"a": "%s", "b": 1}' % sample
    expected = b'{"a": "[redacted:%s]", "b": 1}' % name.encode()
    assert run(text) == expected
    for place in range(len(text)):
        assert run(text, place) == expected
    assert run(text, *range(1, len(text))) == expected
    assert sample not in run(text, *range(1, len(text)), flush=True)


def test_every_known_shape_has_a_sample() -> None:
    """So that none is left untested."""
    assert {shape.name for shape in KNOWN_SHAPES} == {name for name, _ in SAMPLES} | {"private-key", "aws-secret-key"}


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"SecretAccessKey": "', b'"'), (b"<SecretAccessKey>", b"</"), (b"aws_secret_access_key = ", b"\n")],
)
def test_the_key_before_an_aws_secret_stays(before: bytes, after: bytes) -> None:
    """So that JSON stays JSON."""
    text = before + b"wJalrXUtnFEMI/K7MDENG+bPxRfiCY" + b"EXAMPLEKEY" + after
    for place in range(len(text)):
        assert run(text, place) == before + b"[redacted:aws-secret-key]" + after


@pytest.mark.parametrize("pem", [PEM, PEM.replace(b"\n", b"\\n"), PEM.replace(b"\n", b"\r\n")])
def test_a_private_key_is_dropped_as_it_comes(pem: bytes) -> None:
    """To its END line, however split, as text and inside JSON."""
    text = b'{"k": "' + pem + b'\\nmore", "b": 1}'
    expected = b'{"k": "[redacted:private-key]\\nmore", "b": 1}'
    for place in range(len(text)):
        assert run(text, place) == expected
    assert run(text, *range(1, len(text))) == expected
    assert run(text, *range(1, len(text)), flush=True).replace(b"---", b"").endswith(expected[7:])


def test_a_private_key_that_is_cut_stays_dropped() -> None:
    """By the end, or by a character that no key has."""
    assert run(PEM[:60]) == b"[redacted:private-key]"
    assert run(PEM[:60] + b'" and so on') == b'[redacted:private-key]" and so on'


def test_a_begin_line_alone_does_not_swallow_everything() -> None:
    """There is a limit, whatever the split."""
    text = PEM[:31] + b"a" * 100_000
    whole = run(text)
    assert whole == b"[redacted:private-key]" + b"a" * (100_000 - 64 * 1024)
    assert run(text, 1000, 66_000, 70_000) == whole


def test_public_keys_and_certificates_stay() -> None:
    """They are no secret."""
    text = b"-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n-----BEGIN CERTIFICATE-----\nMIIC\n"
    assert run(text) == text


@pytest.mark.parametrize(
    "text",
    [
        b"risk-assessment-and-mitigation-of-everything-else",
        b"ghp_short",
        b"The sk- prefix, AKIA and xoxb- are prefixes.",
        b"https://example.com/hooks.slack.com/services/",
        b'"SecretAccessKey": ""',
    ],
)
def test_ordinary_text_stays(text: bytes) -> None:
    """In one piece and byte by byte."""
    assert run(text) == text
    assert run(text, *range(1, len(text))) == text
    assert run(text, *range(1, len(text)), flush=True) == text


def test_a_piece_that_ends_a_line_is_never_held() -> None:
    """Whatever it ends with before."""
    one = ShapeRedactor(KNOWN)
    for piece in (b"data: ghp_abc\n\n", b"data: sk-ant-\n", b"-----BEGIN PRIVATE\n"):
        assert one.feed(piece) is piece


def test_what_is_held_is_bounded() -> None:
    """By the longest shape."""
    one = ShapeRedactor(KNOWN)
    out = one.feed(b"x" * 10 + b"xoxb-" + b"a" * 100)
    assert out == b"x" * 10
    for _ in range(50):
        one.feed(b"a" * 100)
        assert len(one._tail) <= KNOWN.longest


def test_jwt() -> None:
    """Three parts, of which two begin as JSON objects do."""
    token = b"eyJ" + b"hbGciOi" * 3 + b".eyJ" + b"zdWIiOi" * 9 + b"." + b"s1G_-" * 8
    assert run(b"t=" + token + b"&", shapes=ShapeSet(JWT_SHAPES)) == b"t=[redacted:jwt]&"


def test_high_entropy() -> None:
    """A mixed, even run; not words, hex digests, numbers or repetition."""
    shapes = ShapeSet(HIGH_ENTROPY_SHAPES)
    key = b"kJ8s0Qp2Zx7Lm4Nv6Bt1Rw9Yc3Hd5Gf0Ua"
    text = (
        b"key "
        + key
        + b" hash "
        + b"0123456789abcdef" * 4
        + b" Abc1" * 1
        + b"Abc1" * 20
        + b" the-quick-brown-fox-jumps-over-it "
    )
    assert run(text, shapes=shapes) == text.replace(key, b"[redacted:high-entropy]")
    for place in range(len(text)):
        assert run(text, place, shapes=shapes) == run(text, shapes=shapes)
    assert looks_random(key)
    assert not looks_random(b"a" * 40)
