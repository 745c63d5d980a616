"""Who asks: tokens by their hashes, in each form in which clients send them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from seamgate.entry.identity import GuestConfig, Identities, TokenSource, make_guest
from seamgate.errors import ConfigError, GuestProtocolError, Reason
from seamgate.flow import Isolation

TOKEN = "0123456789abcdef-token"


def identities(token: str = TOKEN) -> Identities:
    digest = hashlib.sha256(token.encode()).hexdigest()
    config = GuestConfig(token=TokenSource(sha256=digest), labels={"team": "x"})
    return Identities({"g": config, "silent": GuestConfig()}, Isolation.PROXY)


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


@pytest.mark.parametrize(
    "value",
    [basic(f"g:{TOKEN}"), basic(f"{TOKEN}:"), basic(TOKEN), b"Bearer " + TOKEN.encode(), b"bearer " + TOKEN.encode()],
)
def test_every_form_of_a_token(value: bytes) -> None:
    """As password, as user, alone, as bearer; the same guest object each time."""
    known = identities()
    guest = known.by_proxy_authorization(value)
    assert (guest.id, guest.labels, guest.isolation) == ("g", {"team": "x"}, Isolation.PROXY)
    assert known.by_proxy_authorization(value) is guest


@pytest.mark.parametrize(
    "value",
    [None, b"", b"Basic", b"Basic !!", basic("g:"), basic(f"g:{TOKEN}x"), basic(f"g:{TOKEN[:-1]}"), b"Digest x",
     TOKEN.encode(), b"Basic " + b"\xff" * 8, basic(f"g:x:{TOKEN}")],
)  # fmt: skip
def test_nobody(value: bytes | None) -> None:
    """407, and what was sent is not repeated."""
    with pytest.raises(GuestProtocolError) as caught:
        identities().by_proxy_authorization(value)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    assert TOKEN not in caught.value.message


def test_what_a_token_is_wrapped_in_is_not_kept() -> None:
    """A guest can write its token in many ways, each of them as long as a head: none that is long is remembered."""
    known = identities()
    for size in range(2000, 2010):
        assert known.by_proxy_authorization(basic(f"{'x' * size}:{TOKEN}")).id == "g"
    assert known.by_proxy_authorization(basic(f"x:{TOKEN}")).id == "g"
    assert [len(value) < 512 for value in known._by_header] == [True]


def test_a_failure_is_not_remembered_as_a_guest() -> None:
    """A token that was not known yesterday is looked at again, and a known one stays who it is."""
    known = identities()
    for _ in range(2):
        with pytest.raises(GuestProtocolError):
            known.by_token("x" * 20)


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, file, hash: the same digest; a trailing line break is no part of it."""
    digest = hashlib.sha256(TOKEN.encode()).digest()
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    for source in (
        TokenSource(env="THE_TOKEN"), TokenSource(file=str(tmp_path / "token")), TokenSource(sha256=digest.hex()),
    ):  # fmt: skip
        assert source.digest("g") == digest


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (TokenSource(), "exactly one"),
        (TokenSource(env="A", file="b"), "exactly one"),
        (TokenSource(env="NOT_THERE_AT_ALL"), "no token"),
        (TokenSource(file="/nowhere/token"), "can't be read"),
        (TokenSource(sha256="abc"), "64 hex"),
        (TokenSource(sha256="00" * 31), "64 hex"),
    ],
)
def test_a_token_that_is_none_stops_the_start(source: TokenSource, word: str) -> None:
    """With the guest's name and what is wrong."""
    with pytest.raises(ConfigError, match=word) as caught:
        Identities({"g": GuestConfig(token=source)}, Isolation.PROXY)
    assert "guests.g.token" in str(caught.value)


def test_two_guests_with_one_token_stop_the_start() -> None:
    """Nobody could tell them apart."""
    config = GuestConfig(token=TokenSource(sha256=hashlib.sha256(b"x").hexdigest()))
    with pytest.raises(ConfigError, match="same token"):
        Identities({"a": config, "b": config}, Isolation.PROXY)


def test_groups() -> None:
    """A group is what was named, else the labels, in any order; so guests with equal labels share sessions."""
    one = make_guest("a", GuestConfig(labels={"b": "2", "a": "1"}), Isolation.PROXY)
    two = make_guest("b", GuestConfig(labels={"a": "1", "b": "2"}), Isolation.PROXY)
    named = make_guest("c", GuestConfig(labels={"a": "1"}, group="mine"), Isolation.PROXY)
    assert one.group == two.group != ""
    assert named.group.endswith("mine")


def test_groups_do_not_collide() -> None:
    """Whatever stands in names and values, a named group and other labels are another group."""
    configs = [
        GuestConfig(labels={"team": "x", "tier": "gold"}),
        GuestConfig(labels={"team": "x,tier=gold"}),
        GuestConfig(labels={"team": 'x","tier":"gold'}),
        GuestConfig(group="team=x,tier=gold"),
        GuestConfig(group='labels {"team":"x","tier":"gold"}'),
    ]
    groups = [make_guest(f"g{number}", config, Isolation.PROXY).group for number, config in enumerate(configs)]
    assert len(set(groups)) == len(groups)
