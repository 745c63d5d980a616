"""Counts what a guest finds out from what redaction holds back, and ends it before that is much.

Redaction has to hold text that is a true beginning of a secret, so whoever sees when its own text comes back, or
leaves, learns whether it is one: a guest that streams guesses to an origin that echoes them would get a whole key,
character by character. So every redactor and guard of a guest's messages tells a `Probe` of what it
holds. The guest whose `MOST_HOLDS` are used up is ended for good: this exchange, all others under way, and each that
follows.

What is counted are holds that tell something new. A text that was held before, and what an issuer's documentation
says of every key (`public_beginnings`), tell nothing. A hold that turns out to be of the whole secret, which was
redacted, is taken back: an origin that drips a secret is no guest's guess. Holds of up to `FLUSH_LIMIT_BYTES` are not
counted.
"""

from __future__ import annotations

import structlog

from seamgate.errors import CredentialError, Reason

log = structlog.get_logger("seamgate.credentials")

FLUSH_LIMIT_BYTES = 3
"""The most characters of a secret that a pause can let out: "sk-" and "ghp" are public anyway."""
MOST_HOLDS = 8
"""So many different beginnings of secrets may be held for a guest until it is ended. By chance a piece ends with four
characters of a key once in 64**4 = 16 million pieces (hexadecimal: 65,536), and with ever the same ones, which count
once; each guess that is right tells one character, of which keys have 30 and more that are random."""


class _Found:
    """What one guest has found out so far. `spent`: it is ended; never taken back."""

    __slots__ = ("holds", "spent", "texts")

    def __init__(self) -> None:
        self.texts: set[bytes] = set()
        self.holds = 0
        self.spent = False


class Probe:
    """What tells of one guest's messages: each redactor and guard has one, and all of a guest count together."""

    __slots__ = ("_found", "_guest")

    def __init__(self, guest: str, found: dict[str, _Found]) -> None:
        self._guest = guest
        self._found = found

    def __repr__(self) -> str:
        return f"<Probe of {self._guest}: {self.holds} holds>"

    @property
    def holds(self) -> int:
        """How many new beginnings were held for the guest so far."""
        found = self._found.get(self._guest)
        return 0 if found is None else found.holds

    def check(self) -> None:
        """Let nothing more pass of a guest that is ended, whatever it is: else that would tell something too.

        Raises:
            CredentialError: with SECRET_PROBED.
        """
        found = self._found.get(self._guest)
        if found is not None and found.spent:
            raise CredentialError(probing_message(), reason=Reason.SECRET_PROBED)

    def note(self, held: bytes, hold: list[bytes]) -> None:
        """Take note that a beginning is held.

        Args:
            held: the beginning.
            hold: what was new to this probe of the hold so far, empty where it begins; gets what is new now.

        Raises:
            CredentialError: with SECRET_PROBED: the guest has found out as much as it may.
        """
        found = self._found.get(self._guest)
        if found is None:
            found = self._found[self._guest] = _Found()
        if held in found.texts:
            return
        found.texts.add(held)
        if not hold:
            found.holds += 1
        hold.append(held)
        if found.holds >= MOST_HOLDS and not found.spent:
            found.spent = True
            log.error("a guest probes for secrets: it gets nothing more", guest=self._guest, holds=found.holds)
        self.check()

    def take_back(self, hold: list[bytes]) -> None:
        """The hold was of a whole secret, which was redacted."""
        found = self._found.get(self._guest)
        if hold and found is not None:
            found.texts.difference_update(hold)
            found.holds -= 1


class Probes:
    """What all guests found out, by their id; lasts over reloads. Of one that found out nothing, nothing is kept."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}

    def of(self, guest: str) -> Probe:
        """Return what tells of this guest."""
        return Probe(guest, self._found)

    def spent(self, guest: str) -> bool:
        """Return whether the guest is ended."""
        found = self._found.get(guest)
        return found is not None and found.spent


def probing_message() -> str:
    """Return the sentence that a guest gets that was ended."""
    return (
        "this guest sent beginnings of real values of credentials, as one does who guesses them: it gets nothing more"
        " from this gateway until that is restarted; replace the credentials at their issuer if in doubt"
    )
