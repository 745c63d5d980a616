"""Counts what a guest finds out from what redaction holds back, and ends it before that is much.

Redaction has to hold text that is a true beginning of a secret, so whoever sees when its own text comes back, or
leaves, learns whether it is one: a guest that streams guesses to an origin that echoes them would get a whole key,
character by character. So each guest has a `Probe`, which every redactor and guard of its messages tells of what it
holds. The guest whose `MOST_HOLDS` are used up is ended for good: this exchange, all others under way, and each that
follows.

What is counted are holds that tell something new. A text that was held before, and what an issuer's documentation
says of every key (`public_beginnings`), tell nothing. A hold that turns out to be of the whole secret, which was
redacted, is taken back: an origin that drips a secret is no guest's guess. Holds of up to `FLUSH_LIMIT_BYTES` are not
counted.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import structlog

from seamgate.errors import CredentialError, Reason

log = structlog.get_logger("seamgate.credentials")

FLUSH_LIMIT_BYTES = 3
"""The most characters of a secret that a pause can let out: "sk-" and "ghp" are public anyway."""
MOST_HOLDS = 8
"""So many different beginnings of secrets may be held for a guest until it is ended. By chance a piece ends with four
characters of a key once in 64**4 = 16 million pieces (hexadecimal: 65,536), and with ever the same ones, which count
once; each guess that is right tells one character, of which keys have 30 and more that are random."""


class Probe:
    """What one guest has found out so far.

    Attributes:
        spent: whether it is ended; never taken back.
        holds: of new beginnings.
    """

    __slots__ = ("__weakref__", "_guest", "_kept", "_texts", "holds", "spent")

    def __init__(self, guest: str, kept: dict[str, Probe]) -> None:
        self._guest = guest
        self._kept = kept
        self._texts: set[bytes] = set()
        self.holds = 0
        self.spent = False

    def __repr__(self) -> str:
        return f"<Probe of {self._guest}: {self.holds} holds>"

    def check(self) -> None:
        """Let nothing more pass of a guest that is ended, whatever it is: else that would tell something too.

        Raises:
            CredentialError: with SECRET_PROBED.
        """
        if self.spent:
            raise CredentialError(probing_message(), reason=Reason.SECRET_PROBED)

    def note(self, held: bytes, hold: list[bytes]) -> None:
        """Take note that a beginning is held.

        Args:
            held: the beginning.
            hold: what was new to this probe of the hold so far, empty where it begins; gets what is new now.

        Raises:
            CredentialError: with SECRET_PROBED: the guest has found out as much as it may.
        """
        if held in self._texts:
            return
        self._kept[self._guest] = self
        self._texts.add(held)
        if not hold:
            self.holds += 1
        hold.append(held)
        if self.holds >= MOST_HOLDS and not self.spent:
            self.spent = True
            log.error("a guest probes for secrets: it gets nothing more", guest=self._guest, holds=self.holds)
        self.check()

    def take_back(self, hold: list[bytes]) -> None:
        """The hold was of a whole secret, which was redacted."""
        if hold:
            self._texts.difference_update(hold)
            self.holds -= 1


class Probes:
    """The probes of all guests, by their id; lasts over reloads. Of a guest that found out nothing, nothing is kept."""

    __slots__ = ("_by_guest", "_kept")

    def __init__(self) -> None:
        self._by_guest: WeakValueDictionary[str, Probe] = WeakValueDictionary()
        self._kept: dict[str, Probe] = {}

    def of(self, guest: str) -> Probe:
        """Return the guest's probe."""
        probe = self._by_guest.get(guest)
        if probe is None:
            probe = self._by_guest[guest] = Probe(guest, self._kept)
        return probe

    def spent(self, guest: str) -> bool:
        """Return whether the guest is ended."""
        probe = self._kept.get(guest)
        return probe is not None and probe.spent


def probing_message() -> str:
    """Return the sentence that a guest gets that was ended."""
    return (
        "this guest sent beginnings of real values of credentials, as one does who guesses them: it gets nothing more"
        " from this gateway until that is restarted; replace the credentials at their issuer if in doubt"
    )
