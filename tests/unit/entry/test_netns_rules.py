"""Netlink messages and the rules made of them: the bytes that the kernel takes, read back."""

from __future__ import annotations

import struct

import pytest

from seamgate.entry.netns import netlink, ruleset
from seamgate.entry.netns.layout import DNS_PORT, GUEST_ADDRESS, LOG_GROUP, TRANSPARENT_PORT
from seamgate.entry.netns.netlink import attribute, attributes, messages, nested, pack


def test_attributes_are_padded_and_read_back() -> None:
    """Length without padding, value padded to four bytes; nesting is marked in the type and ignored when reading."""
    assert attribute(3, b"abc") == b"\x07\0\x03\0abc\0"
    packed = nested(4, attribute(1, b"a"), attribute(2, b"bcde"))
    ((kind, inner),) = attributes(packed)
    assert (kind, list(attributes(inner))) == (4, [(1, b"a"), (2, b"bcde")])


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0" * 3, b"\xff\xff\x01\0ab", b"\x02\0\x01\0" * 4])
def test_odd_attributes_end(data: bytes) -> None:
    """Whatever the lengths say, reading ends."""
    assert len(list(attributes(data))) <= 4


@pytest.mark.parametrize("data", [b"", b"\0" * 40, struct.pack("=IHHII", 999, 1, 0, 0, 0), b"\x03" * 33])
def test_odd_messages_end(data: bytes) -> None:
    """A length that can't be is the end of the datagram."""
    assert list(messages(data)) == []


def test_messages_in_a_row_are_told_apart() -> None:
    """Each with its type and payload."""
    data = pack((20, 0, b"abcd"), 1) + pack((21, netlink.CREATE, b""), 2)
    assert list(messages(data)) == [(20, b"abcd"), (21, b"")]


def test_a_message_asks_for_an_answer() -> None:
    """REQUEST and ACK, so that a refusal is noticed; the ends of a batch get none."""
    assert struct.unpack("=IHHII", pack((16, 0, b""), 7)) == (16, 16, 0x5, 7, 0)
    assert struct.unpack("=IHHII", pack((16, 0, b""), 7, ack=False))[2] == 0x1


def _rules() -> list[tuple[bytes, list[bytes]]]:
    """Return (chain, names of the expressions) of each rule."""
    rules = []
    for kind, _, payload in ruleset.ruleset():
        if kind == 10 << 8 | 6:
            facts = dict(attributes(payload[4:]))
            names = [dict(attributes(each))[1] for _, each in attributes(facts[4])]
            rules.append((facts[2].rstrip(b"\0"), [name.rstrip(b"\0") for name in names]))
    return rules


def test_what_is_not_accepted_is_counted_told_and_rejected() -> None:
    """The last rule of the refusing chain has no condition: nothing falls through to the chain's policy."""
    last = [names for chain, names in _rules() if chain == b"refuse"][-1]
    assert last == [b"counter", b"log", b"reject"]


def test_all_tcp_is_redirected_but_that_to_loopback() -> None:
    """Names first, the guest's own loopback next, and then every TCP connection."""
    redirects = [names for chain, names in _rules() if chain == b"redirect"]
    assert [names[-1] for names in redirects] == [b"redir", b"redir", b"immediate", b"immediate", b"redir"]
    payload = ruleset.ruleset()[-6][2] + ruleset.ruleset()[6][2]
    assert struct.pack("!H", TRANSPARENT_PORT) in payload
    assert struct.pack("!H", DNS_PORT) in ruleset.ruleset()[2][2]


def test_the_rules_are_for_what_the_namespace_has() -> None:
    """The address that answers come back to is accepted, and the log group is the one that is read."""
    refuse = b"".join(payload for _, _, payload in ruleset.ruleset())
    assert bytes(int(part) for part in GUEST_ADDRESS.split(".")) in refuse
    assert attribute(1, struct.pack("!H", LOG_GROUP)) in refuse


def test_a_counter_is_read_from_a_rule() -> None:
    """Packets, not bytes; a rule that does not count has none."""
    counter = nested(1, attribute(1, b"counter\0"), nested(2, attribute(1, b"\0" * 8), attribute(2, (77).to_bytes(8))))
    log = nested(1, attribute(1, b"log\0"), nested(2, attribute(1, b"\0\7")))
    rule = b"\1\0\0\0" + attribute(1, b"seamgate\0") + nested(4, log, counter)
    assert ruleset.read_refused(rule) == 77
    assert ruleset.read_refused(b"\1\0\0\0" + nested(4, log)) == 0
    assert ruleset.read_refused(b"") == 0
