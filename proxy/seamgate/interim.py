"""What comes before the final answer of one exchange: 1xx responses, and the guest that waits for leave to send.

Owned by an exchange. Passes on 100 to a guest that asked for it, drops what only says "still at it", and bounds how
many an upstream may send: they cost it nothing, prolong nothing (see `upstream.session`), and each is work for us.
"""

from __future__ import annotations

import asyncio
from typing import Final

from seamgate.errors import UpstreamProtocolError
from seamgate.protocol.heads import ResponseHead
from seamgate.sides import GuestSide
from seamgate.upload import Upload

CONTINUE_AFTER_S: Final = 1.0
"""An upstream that says nothing to Expect gets the body after this time (RFC 9110 10.1.1; curl waits as long)."""
MOST_INFORMATIONAL: Final = 100
"""1xx responses to one request: a 102 every nine seconds until the upstream's time is over."""


class Interim:
    """State: `expects` while the guest waits for 100 before it sends its body."""

    __slots__ = ("_count", "_guest", "_timer", "_upload", "expects")

    def __init__(self, guest: GuestSide, upload: Upload, *, expects: bool) -> None:
        self.expects = expects
        self._guest = guest
        self._upload = upload
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """The body is needed now: tell a guest that waits."""
        if self.expects:
            self.expects = False
            self._guest.send_continue()

    def wait(self) -> None:
        """The head went out without the body: give the upstream a moment to say 100 or to refuse."""
        self._timer = asyncio.get_running_loop().call_later(CONTINUE_AFTER_S, self._late)

    def stop(self) -> None:
        """There is nothing to wait for any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self, head: ResponseHead) -> bool:
        """Take a 1xx response; return whether it is a 103, to be passed on where that shows nothing.

        Raises:
            UpstreamProtocolError: nobody asked for it, or there are too many.
        """
        self._count += 1
        if self._count > MOST_INFORMATIONAL:
            raise UpstreamProtocolError(f"the upstream sent more than {MOST_INFORMATIONAL} responses before its answer")
        if head.status == 100:
            self.stop()
            if not self._upload.done:
                self.ask()
        elif head.status == 101:
            raise UpstreamProtocolError("the upstream switches protocols without being asked")
        return head.status == 103

    def _late(self) -> None:
        self._timer = None
        if not self._upload.done:
            self.ask()
