"""Public suffixes: names under which anybody can get a name: `co.uk`, `github.io`, `s3.amazonaws.com`.

By the Public Suffix List as the package `publicsuffixlist` brings it: nothing is fetched. Asked by `lint` and `policy
check`, never for a request. No I/O; `seamgate.policy.files` reads the list.
"""

from __future__ import annotations

from typing import Final

from publicsuffixlist import PublicSuffixList

from seamgate.policy.patterns import HostPattern, literal_tail

UNLISTED: Final = ("amazonaws.com",)
"""Not on the list, since to a browser it is no suffix, but some of its own names serve what anybody puts there."""


class PublicSuffixes:
    """The list.

    Args:
        text: of the list, as it is published.
    """

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        self._list = PublicSuffixList(lines, accept_unknown=False)
        rules = (line.split()[0] for line in lines if line.strip() and not line.startswith(("//", "!")))
        self._names = frozenset([rule.removeprefix("*.") for rule in rules if rule.isascii()])

    def is_public(self, name: str) -> bool:
        """Whether names directly under this canonical name are anybody's."""
        return name in UNLISTED or bool(self._list.is_public(name))

    def covered_by(self, host: HostPattern) -> str:
        """Return a public suffix under which the pattern covers everybody's names; "" if there is none."""
        tail = literal_tail(host)
        if not host.wild or not tail:
            return ""
        if self.is_public(tail):
            return tail
        below = f".{tail}"
        found = [name for name in self._names if name.endswith(below) and host.matches(f"w.{name}", False)]
        return min(found, key=lambda name: (name.count("."), name), default="")
