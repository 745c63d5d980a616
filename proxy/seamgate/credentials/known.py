"""Every value of a credential that may go out or come back, whoever put it in: what all searches look for.

Owned by the credentials plugin; one for all generations of it in a process, so that neither a reload nor a rotation
makes a value unknown that an upstream can still repeat. Another process of the gateway tells its values, and the hosts
that they are for, before it puts one in (`seamgate.workers.secrets`). Forgets a value only for newer ones of the same
source. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seamgate.credentials.binding import HostBinding
from seamgate.credentials.redaction import RedactionSet
from seamgate.credentials.secret import Secret
from seamgate.credentials.sources import KEPT_VALUES
from seamgate.flow import Target

HERE = -1
"""The origin of values of this process's own sources; those of a worker have its number."""
MOST_BINDINGS = 64
"""Former bindings remembered of one credential: hosts that may still repeat its value. One more for each reload that
changes them."""


class KnownValues:
    """See the module.

    Attributes:
        version: rises with whatever is learnt, of values and of hosts; what was made of an older one is made anew.
        expected: the credentials of the newest generation, whether or not a value of each is known.
        placeholders: (credential, text) of those that must not leave in bodies for hosts that they are not bound to.
    """

    __slots__ = ("_bindings", "_sets", "_sets_of", "_values", "expected", "placeholders", "version")

    def __init__(self) -> None:
        self.version = 0
        self.expected: frozenset[str] = frozenset()
        self.placeholders: tuple[tuple[str, bytes], ...] = ()
        self._values: dict[tuple[str, int], tuple[Secret, ...]] = {}
        self._bindings: dict[str, dict[tuple[str, ...], tuple[HostBinding, bool]]] = {}
        self._sets: dict[tuple[str, ...] | None, RedactionSet] = {}
        self._sets_of = 0

    def __repr__(self) -> str:
        return f"<KnownValues of {', '.join(sorted(self._bindings))}, version {self.version}>"

    def bind(self, name: str, hosts: tuple[str, ...], binding: HostBinding, *, allow_ranges: bool) -> None:
        """Note that the credential goes to these hosts, now or until the last reload."""
        bindings = self._bindings.setdefault(name, {})
        before = bindings.pop(hosts, None)
        bindings[hosts] = (binding, allow_ranges)
        if before is None or before[1] is not allow_ranges:
            self.version += 1
        if len(bindings) > MOST_BINDINGS:
            del bindings[next(iter(bindings))]

    def hosts_of(self, name: str) -> list[tuple[tuple[str, ...], bool]]:
        """Return (hosts, whether ranges are allowed) of each binding of a credential, for other processes."""
        return [(hosts, allow) for hosts, (_, allow) in self._bindings.get(name, {}).items()]

    def learn_hosts(self, name: str, bindings: Iterable[tuple[tuple[str, ...], bool]]) -> None:
        """Note that another process puts a credential's value in for these hosts.

        Its configuration may be one that is not in force here yet, or not any more.
        """
        for hosts, allow_ranges in bindings:
            if hosts not in self._bindings.get(name, {}):
                self.bind(name, hosts, HostBinding(name, hosts), allow_ranges=allow_ranges)

    def learn(self, name: str, secrets: Iterable[Secret], origin: int = HERE) -> None:
        """Take note of values, newest first, of a credential's source in one process."""
        before = self._values.get((name, origin), ())
        fresh = tuple(secrets)
        after = (*fresh, *[each for each in before if each not in fresh])[:KEPT_VALUES]
        if after != before:
            self._values[name, origin] = after
            self.version += 1

    def take(self, other: KnownValues) -> None:
        """Take over what another one knows; its bindings are the newer ones."""
        for (name, origin), secrets in other._values.items():
            self.learn(name, secrets, origin)
        for name, bindings in other._bindings.items():
            for hosts, (binding, allow_ranges) in bindings.items():
                self.bind(name, hosts, binding, allow_ranges=allow_ranges)
        if (self.expected, self.placeholders) != (other.expected, other.placeholders):
            self.expected, self.placeholders = other.expected, other.placeholders
            self.version += 1

    def has(self, name: str) -> bool:
        """Return whether any value of the credential is known."""
        return any(known == name for known, _ in self._values)

    def bound_to(self, target: Target) -> tuple[tuple[str, ...], bool]:
        """Return the credentials that are, or were, bound to a host, and whether all of them allow ranges."""
        names: list[str] = []
        allow_ranges = True
        for name, bindings in self._bindings.items():
            covering = [allow for binding, allow in bindings.values() if binding.covers_target(target)]
            if covering:
                names.append(name)
                allow_ranges = allow_ranges and all(covering)
        return tuple(names), allow_ranges

    def values(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield (credential, exact value) of these credentials; None: of all."""
        wanted = None if names is None else frozenset(names)
        seen: set[tuple[str, bytes]] = set()
        for (name, _), secrets in self._values.items():
            if wanted is None or name in wanted:
                for secret in secrets:
                    pair = (name, secret.reveal())
                    if pair not in seen:
                        seen.add(pair)
                        yield pair

    def redaction_set(self, names: tuple[str, ...] | None = None) -> RedactionSet:
        """Return what finds the values of these credentials, None: of all, and placeholders. Made once a version."""
        if self._sets_of != self.version:
            self._sets, self._sets_of = {}, self.version
        made = self._sets.get(names)
        if made is None:
            placeholders = self.placeholders if names is None else ()
            made = self._sets[names] = RedactionSet(self.values(names), placeholders)
        return made


class LiveSet:
    """The redaction set of all credentials, or of those that are bound to one host, as far as is known by now.

    An inspector asks it for each piece, so that a stream that is open while a value rotates, or while a credential is
    bound to its host, looks for the new one too.
    """

    __slots__ = ("_known", "_set", "_target", "_version")

    def __init__(self, known: KnownValues, target: Target | None = None) -> None:
        """Prepare; None: of all credentials."""
        self._known = known
        self._target = target
        self._version = known.version
        self._set = self._make()

    def __repr__(self) -> str:
        return f"<LiveSet of {'all' if self._target is None else self._target.host}>"

    def _make(self) -> RedactionSet:
        names = None if self._target is None else self._known.bound_to(self._target)[0]
        return self._known.redaction_set(names)

    def now(self) -> RedactionSet:
        """Return the set of what is known by now."""
        if self._version != self._known.version:
            self._version = self._known.version
            self._set = self._make()
        return self._set
