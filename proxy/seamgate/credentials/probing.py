"""Counts what guests find out from what redaction holds back, and ends those that find out too much.

Redaction has to hold text that is a true beginning of a secret, so whoever sees when its own text comes back, or
leaves, learns whether it is one: a guest that streams guesses to an origin that echoes them would get a whole key,
character by character. So every redactor and guard of a guest's messages tells a `Probe` of what it
holds. The guest whose `MOST_HOLDS` are used up is ended for good: this exchange, all others under way, and each that
follows.

What is counted are holds that tell something new. A text that was held before, and what an issuer's documentation
says of every key (`public_beginnings`), tell nothing. A hold that turns out to be of the whole secret, which was
redacted, is taken back: an origin that drips a secret is no guest's guess. Holds of up to `FLUSH_LIMIT_BYTES` are not
counted.

Guests that tell each other what they found would get so much each. So holds are counted for each credential too,
whoever's they are, where they are too long to be chance (`LONG_BYTES`). Once those of a credential are
`MOST_OF_SECRET`, whoever adds a new one is ended at once: together guests learn some 15 characters of a spelling, and
each further guest one.

With workers, all of them count together (`seamgate.workers.findings`), what reloads add included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from seamgate.errors import CredentialError, Reason

log = structlog.get_logger("seamgate.credentials")

FLUSH_LIMIT_BYTES = 3
"""The most characters of a secret that a pause can let out: "sk-" and "ghp" are public anyway."""
MOST_HOLDS = 8
"""So many different beginnings of secrets may be held for a guest until it is ended. By chance a piece ends with four
characters of a key once in 64**4 = 16 million pieces (hexadecimal: 65,536), and with ever the same ones, which count
once; each guess that is right tells one character, of which keys have 30 and more that are random."""
LONG_BYTES = 8
"""By chance a piece ends with so many characters of a key once in 64**8 = 280 million million pieces (hexadecimal:
4,000 million): over all guests only what is so long is counted."""
MOST_OF_SECRET = 8
"""So many different long beginnings of one credential's values may be held, for all guests together, until each further
one ends the guest that it is held for. Fewer than a guest may have by itself would end those whose pieces are cut at
odd places of a long prefix that nobody documents."""


class Findings(Protocol):
    """What was found out by one guest, or about one credential."""

    @property
    def holds(self) -> int:
        """How many holds told something new."""
        ...

    @property
    def spent(self) -> bool:
        """Whether whose it is, is ended; never taken back."""
        ...

    def add(self, text: bytes, *, counts: bool) -> bool:
        """Take note of a text; return whether it was new. `counts`: a new one is one hold more."""
        ...

    def take_back(self, texts: list[bytes]) -> None:
        """These, all of one hold that counted, were a whole secret."""
        ...

    def end(self) -> None:
        """Let it be spent."""
        ...


class OwnFindings:
    """`Findings` of this process."""

    __slots__ = ("_texts", "holds", "spent")

    def __init__(self) -> None:
        self._texts: set[bytes] = set()
        self.holds = 0
        self.spent = False

    def add(self, text: bytes, *, counts: bool) -> bool:
        """See `Findings`."""
        if text in self._texts:
            return False
        self._texts.add(text)
        self.holds += counts
        return True

    def take_back(self, texts: list[bytes]) -> None:
        """See `Findings`."""
        self._texts.difference_update(texts)
        self.holds -= 1

    def end(self) -> None:
        """See `Findings`."""
        self.spent = True


class Named(Protocol):
    """What knows of which credentials a text is a beginning (`RedactionSet`)."""

    def begun_by(self, text: bytes) -> frozenset[str]:
        """Return the names of credentials of which a spelling begins so."""
        ...


class Hold:
    """One hold that lasts: what was new of it so far, to the guest and about each credential."""

    __slots__ = ("of_guest", "of_secrets")

    def __init__(self) -> None:
        self.of_guest: list[bytes] = []
        self.of_secrets: dict[str, list[bytes]] = {}


class Probe:
    """What tells of one guest's messages: each redactor and guard has one, and all of a guest count together."""

    __slots__ = ("_guest", "_probes")

    def __init__(self, guest: str, probes: Probes) -> None:
        self._guest = guest
        self._probes = probes

    def __repr__(self) -> str:
        return f"<Probe of {self._guest}: {self.holds} holds>"

    @property
    def holds(self) -> int:
        """How many new beginnings were held for the guest so far."""
        found = self._probes.known(self._guest)
        return 0 if found is None else found.holds

    def check(self) -> None:
        """Let nothing more pass of a guest that is ended, whatever it is: else that would tell something too.

        Raises:
            CredentialError: with SECRET_PROBED.
        """
        probes = self._probes
        found = probes.guests.get(self._guest)  # asked of each piece of each body, so without a call
        if found is None:
            if probes.shared is None:
                return
            found = probes.of_guest(self._guest)
        if found.spent:
            raise CredentialError(probing_message(), reason=Reason.SECRET_PROBED)

    def note(self, held: bytes, hold: Hold, patterns: Named) -> None:
        """Take note that a beginning is held.

        Args:
            held: the beginning.
            hold: what was new of the hold so far; gets what is new now.
            patterns: what it is a beginning of.

        Raises:
            CredentialError: with SECRET_PROBED: the guest has found out as much as it may.
        """
        found = self._probes.of_guest(self._guest)
        if not found.add(held, counts=not hold.of_guest):
            return
        hold.of_guest.append(held)
        telling = found.holds >= MOST_HOLDS
        if len(held) >= LONG_BYTES:
            telling = self._note_for_all(held, hold, patterns) or telling
        if telling and not found.spent:
            found.end()
            log.error("a guest probes for secrets: it gets nothing more", guest=self._guest, holds=found.holds)
        self.check()

    def _note_for_all(self, held: bytes, hold: Hold, patterns: Named) -> bool:
        """Count it for the credentials that begin so; return whether all guests have found out as much as they may."""
        telling = False
        for name in patterns.begun_by(held):
            secret, new = self._probes.of_secret(name), hold.of_secrets.setdefault(name, [])
            if not secret.add(held, counts=not new):
                continue
            new.append(held)
            if secret.holds > MOST_OF_SECRET:
                telling = True
                log.error("guests probe for a secret: replace it", credential=name, holds=secret.holds)
        return telling

    def take_back(self, hold: Hold) -> None:
        """The hold was of a whole secret, which was redacted."""
        if hold.of_guest:
            self._probes.of_guest(self._guest).take_back(hold.of_guest)
        for name, texts in hold.of_secrets.items():
            if texts:
                self._probes.of_secret(name).take_back(texts)


class Probes:
    """What all guests found out, by their id; lasts over reloads. Of one that found out nothing, nothing is kept.

    Args:
        shared: gives the findings that all workers have together, for a guest ("guest", id) or a credential ("secret",
            name); None where it has none, or there is one process.

    Attributes:
        guests: what is known to this process of guests, by their id.
    """

    __slots__ = ("_secrets", "guests", "shared")

    def __init__(self, shared: Callable[[str, str], Findings | None] | None = None) -> None:
        self.guests: dict[str, Findings] = {}
        self._secrets: dict[str, Findings] = {}
        self.shared = shared

    def of(self, guest: str) -> Probe:
        """Return what tells of this guest."""
        return Probe(guest, self)

    def spent(self, guest: str) -> bool:
        """Return whether the guest is ended."""
        found = self.known(guest)
        return found is not None and found.spent

    def known(self, guest: str) -> Findings | None:
        """Return what a guest found out, if it may have found out anything."""
        return self.guests.get(guest) if self.shared is None else self.of_guest(guest)

    def of_guest(self, guest: str) -> Findings:
        """Return what a guest found out."""
        return self._of(self.guests, "guest", guest)

    def of_secret(self, name: str) -> Findings:
        """Return what all guests found out about a credential."""
        return self._of(self._secrets, "secret", name)

    def _of(self, kept: dict[str, Findings], kind: str, key: str) -> Findings:
        found = kept.get(key)
        if found is None:
            found = None if self.shared is None else self.shared(kind, key)
            kept[key] = found = OwnFindings() if found is None else found
        return found


def probing_message() -> str:
    """Return the sentence that a guest gets that was ended."""
    return (
        "this guest sent beginnings of real values of credentials, as one does who guesses them: it gets nothing more"
        " from this gateway until that is restarted; replace the credentials at their issuer if in doubt"
    )
