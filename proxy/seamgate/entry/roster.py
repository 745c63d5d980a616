"""The guests of seamgate.yaml as the entries know them, and how a reload changes that.

One per gateway. An entry takes its `identities` and the guest that it names from here; a reload prepares new ones,
which may fail and change nothing, and takes them over, which can't. A guest stays the same object as long as nothing
about it changes: whoever is no longer among them (removed, or with another token, labels or group) has departed, and
the pipeline denies what is still under way in its name (`Pipeline.departed`). Reads token files; no other I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from seamgate.entry.identity import GuestConfig, Identities, make_guest, unless_changed
from seamgate.errors import ConfigError
from seamgate.flow import Guest, Isolation


class NamesGuest(Protocol):
    """What of an entry knows who everybody there is; None where each one says it."""

    @property
    def guest(self) -> Guest | None:
        """Who that is."""
        ...

    @guest.setter
    def guest(self, guest: Guest | None) -> None: ...


class NewGuests(msgspec.Struct, frozen=True):
    """What `Roster.take` puts in force: the table of each `Identities`, the guest of each entry that names one, and
    those that are in microVMs of the gateway's own."""

    guests: Mapping[str, GuestConfig]
    tables: list[dict[bytes, Guest]]
    named: list[Guest]
    hosted: dict[str, Guest]


class Roster:
    """See the module."""

    def __init__(self, guests: Mapping[str, GuestConfig]) -> None:
        self._guests = guests
        self._identities: list[Identities] = []
        self._named: list[tuple[str, NamesGuest, Guest]] = []
        self._hosted: dict[str, Guest] = {}

    def __repr__(self) -> str:
        return f"<Roster {', '.join(self._guests)}>"

    def identities(self, isolation: Isolation) -> Identities:
        """Return what tells by a token who asks, for an entry of this kind.

        Raises:
            ConfigError: a token is missing.
        """
        made = Identities(self._guests, isolation)
        self._identities.append(made)
        return made

    def guest(self, name: str, isolation: Isolation) -> Guest | None:
        """Return the guest that an entry names, None for ""."""
        return make_guest(name, self._guests[name], isolation) if name else None

    @property
    def names(self) -> tuple[str, ...]:
        """The guests that there are."""
        return tuple(self._guests)

    def hosted(self, name: str) -> Guest | None:
        """Return the guest that microVMs of this name are, the same for all of them; None: there is none (any more)."""
        if name not in self._guests:
            return None
        if name not in self._hosted:
            self._hosted[name] = make_guest(name, self._guests[name], Isolation.KVM)
        return self._hosted[name]

    def follow(self, holder: NamesGuest, entry: str) -> None:
        """From now on tell this holder, of this entry, when the guest that it names changes."""
        if holder.guest is not None:
            self._named.append((entry, holder, holder.guest))

    def prepare(self, guests: Mapping[str, GuestConfig]) -> NewGuests:
        """Read all tokens of a new configuration; nothing changes yet.

        Raises:
            ConfigError: one is missing, two are the same, or an entry that is open names a guest that is gone.
        """
        tables = [each.table(guests) for each in self._identities]
        named = []
        for entry, _, guest in self._named:
            if guest.id not in guests:
                raise ConfigError(
                    f"guests: {guest.id!r} is gone, but the entry {entry} of the running gateway names it; keep it"
                    " until the next restart, which is what a change of `entries` waits for"
                )
            named.append(unless_changed(guest, make_guest(guest.id, guests[guest.id], guest.isolation)))
        hosted = {
            name: unless_changed(guest, make_guest(name, guests[name], Isolation.KVM))
            for name, guest in self._hosted.items()
            if name in guests
        }
        return NewGuests(guests, tables, named, hosted)

    def take(self, new: NewGuests) -> list[Guest]:
        """Put what was prepared in force; return who has departed."""
        self._guests = new.guests
        departed: list[Guest] = []
        for identities, table in zip(self._identities, new.tables, strict=True):
            departed += identities.take(table)
        departed += [guest for name, guest in self._hosted.items() if new.hosted.get(name) is not guest]
        self._hosted = new.hosted
        before, self._named = self._named, []
        for (entry, holder, old), guest in zip(before, new.named, strict=True):
            holder.guest = guest
            self._named.append((entry, holder, guest))
            if guest is not old:
                departed.append(old)
        return departed
