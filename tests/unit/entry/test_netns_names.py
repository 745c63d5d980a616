"""Names and the addresses that stand for them."""

from __future__ import annotations

import pytest

from seamgate.entry.netns.layout import GUEST_ADDRESS
from seamgate.entry.netns.mounts import hosts_text, socket_paths
from seamgate.entry.netns.names import MOST_NAMES, NameTable, is_stand_in


def test_each_name_has_one_address_of_its_own() -> None:
    """The same for the same name, another for another, and back."""
    names = NameTable()
    first, second = names.address_of("a.test"), names.address_of("b.test")
    assert first == names.address_of("a.test") == "198.18.1.0"
    assert second == "198.18.1.1"
    assert (names.name_of("198.18.1.0"), names.name_of("198.18.1.1"), len(names)) == ("a.test", "b.test", 2)


def test_an_address_is_never_given_twice() -> None:
    """When there are no more, there are none: nobody's address becomes somebody else's."""
    names = NameTable(2)
    given = [names.address_of(name) for name in ("a.test", "b.test", "c.test", "a.test")]
    assert given == ["198.18.1.0", "198.18.1.1", None, "198.18.1.0"]
    assert names.name_of("198.18.1.2") is None


def test_the_last_address_is_within_the_range() -> None:
    """As many names as addresses, and the namespace's own is not among them."""
    assert MOST_NAMES == 2**17 - 257
    assert NameTable().name_of(GUEST_ADDRESS) is None


@pytest.mark.parametrize(
    ("address", "stands_in"),
    [("198.18.0.1", True), ("198.19.255.255", True), ("198.20.0.0", False), ("8.8.8.8", False), ("fd00::1", False)],
)
def test_the_range_is_for_names_only(address: str, stands_in: bool) -> None:
    """An address of the range is a name's or nothing."""
    assert is_stand_in(address) is stands_in


def test_paths_of_unix_sockets_are_read() -> None:
    """Those with a path, each once, spaces included; abstract ones belong to their network namespace."""
    table = (
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 1 /run/a.sock\n"
        "0000000000000000: 00000003 00000000 00000000 0001 03 2 /run/a.sock\n"
        "0000000000000000: 00000002 00000000 00010000 0001 01 3 @abstract\n"
        "0000000000000000: 00000002 00000000 00000000 0002 01 4 /run/with space\n"
        "0000000000000000: 00000002 00000000 00000000 0002 01 5\n"
    )
    assert socket_paths(table) == ["/run/a.sock", "/run/with space"]


def test_the_hosts_file_knows_the_guest_only() -> None:
    """Every other name is the gateway's to answer."""
    assert hosts_text("box").split("\n")[0] == "127.0.0.1 localhost box"
    assert all(line.endswith(("box", "loopback")) for line in hosts_text("box").strip().split("\n"))
