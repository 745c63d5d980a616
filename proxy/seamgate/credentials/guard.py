"""Ends a guest's body where a credential's value stands in it, or a placeholder that must not leave with it.

The credentials plugin opens a `LeakGuard` for each request with a body that no rule has read, whatever its host. It
changes no byte. What it holds of a value, and when, is as `seamgate.credentials.redaction` has it; placeholders are no
secret, so nothing is held of them, and what left before the last piece of one is no whole request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from seamgate.credentials.escapes import View
from seamgate.credentials.probing import Probe
from seamgate.credentials.redaction import RedactionSet, Redactor, name_in
from seamgate.errors import CredentialError, Reason
from seamgate.flow import Headers

_ESCAPED_BYTES: Final = 7
"""What one character takes at most, escaped as writers do: two backslashes and `u0073`."""


class LeakGuard(Redactor):
    """An inspector that ends a guest's body where a value of one `RedactionSet` stands in it. Changes no byte.

    It holds and gives out what a `Redactor` would: of a value that comes in pieces at most `FLUSH_LIMIT_BYTES` have
    left by a pause when the rest of it is seen.
    """

    __slots__ = ("_past", "_refuse", "only_looks")

    def __init__(
        self,
        patterns: RedactionSet,
        probe: Probe | None = None,
        *,
        renew: Callable[[], RedactionSet] | None = None,
        refuse: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare.

        Args:
            patterns, probe, renew: as of a `Redactor`.
            refuse: raises where the placeholder of this credential must not leave with the body; None: each may.
        """
        super().__init__(patterns, probe, renew=renew)
        self.only_looks = True
        self._refuse = refuse
        self._past = b""  # the last bytes that a placeholder may begin in

    def head(self, headers: Headers) -> Headers:
        """Return the headers, which were searched when the request was judged."""
        return headers

    def of_coded(self) -> LeakGuard:
        """Return what ends the body where a value stands in a coding of it, beside the content."""
        return LeakGuard(self._set, self._probe, renew=self._renew, refuse=self._refuse)

    def feed(self, data: bytes) -> bytes:
        """Return what can be decided by now, as a `Redactor` does.

        Raises:
            CredentialError: a value or a placeholder leaves, or with SECRET_PROBED.
        """
        passed = super().feed(data)
        if self._refuse is not None and self._set.mark_bytes:
            self._look_for_placeholders(data, self._refuse)
        return passed

    def _look_for_placeholders(self, data: bytes, refuse: Callable[[str], None]) -> None:
        """Look through the piece, and through what lies over its beginning. None is held: they are no secret."""
        reach = self._set.mark_bytes * _ESCAPED_BYTES
        names = self._set.placeholders_in(data, self._viewed)
        if self._past:
            joined = self._past + data[:reach]
            names += self._set.placeholders_in(joined, self._set.view(joined))
        self._past = data[-reach:] if len(data) >= reach else (self._past + data)[-reach:]
        for name in names:
            refuse(name)

    def _run(self, data: bytes, view: View | None, *, last: bool) -> bytes:
        for _, _, replacement in self._set.hits(data, view):
            raise CredentialError(leaking(name_in(replacement), "the request (body)"), reason=Reason.SECRET_LEAVING)
        return super()._run(data, view, last=last)


def leaking(name: str, where: str) -> str:
    """Return the sentence about a real value that was about to leave."""
    what = f"the real value of the credential {name!r} stands in {where}"
    return f"{what}: no guest should know it; replace it at its issuer"
