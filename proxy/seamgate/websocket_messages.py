"""What passes a WebSocket, message by message: inspected both ways, credentials put in at the last hop.

Owned by a `seamgate.websocket_exchange.WebSocketExchange`. For each message the inspectors are opened anew, with the
101 as its response, and get it whole; payloads of control frames and reasons of closes are inspected as well, since
whatever has room for a secret may carry one. Nothing is kept between messages but whether the first text went by.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from seamgate.answer import redactors_of
from seamgate.credentials.messages import placeholder_in, swap_in_text
from seamgate.errors import CredentialError, PluginError, Reason
from seamgate.filters import open_filters
from seamgate.flow import Direction, Request, Response, Step, Supply
from seamgate.pipeline import Pipeline
from seamgate.plugin_time import SLOW_PART
from seamgate.protocol.websocket import Message, is_utf8
from seamgate.seam import Seam
from seamgate.verdict import Verdict

MOST_CONTROL_BYTES = 125
_MOST_REASON_BYTES = 123


class MessageGate:
    """Both directions of one WebSocket.

    Attributes:
        steps: the plugins that the last message was put to.
    """

    def __init__(
        self,
        seam: Seam,
        pipeline: Pipeline,
        request: Request,
        response: Response,
        verdict: Verdict,
        supplies: Sequence[Supply],
    ) -> None:
        self.steps: list[Step] = []
        self._seam = seam
        self._pipeline = pipeline
        self._request = request
        self._response = response
        self._verdict = verdict
        self._swaps = tuple(
            [(supply.credential, supply.websocket) for supply in supplies if supply.websocket is not None]
        )
        self._text_seen = False
        self._secrets: tuple[tuple[str, bytes], ...] = ()
        if pipeline.redacts_supplies:
            self._secrets = tuple([(each.credential, value) for each in supplies for value in each.secrets])

    def from_guest(self, message: Message) -> Message:
        """Return what goes upstream.

        Raises:
            SeamgateError: an inspector or the core denies it.
        """
        data = self._inspect(Direction.REQUEST, message.data)
        began_s = perf_counter()
        if message.text and not self._text_seen:
            self._text_seen = True
            for name, value in self._swaps:
                data = swap_in_text(self._seam.placeholders, data, name, value)
        self._refuse_placeholder(data)
        self._charge(perf_counter() - began_s)
        return message if data is message.data else _checked(data, text=message.text)

    def from_upstream(self, message: Message) -> Message:
        """Return what goes to the guest.

        Raises:
            SeamgateError: an inspector denies it.
        """
        data = self._inspect(Direction.RESPONSE, message.data)
        return message if data is message.data else _checked(data, text=message.text)

    def control(self, direction: Direction, payload: bytes) -> bytes:
        """Return the payload of a ping or pong that goes on.

        Raises:
            SeamgateError: an inspector or the core denies it.
        """
        if not payload:
            return payload
        data = self._inspect(direction, payload)
        if direction is Direction.REQUEST:
            self._refuse_placeholder(data)
        return data[:MOST_CONTROL_BYTES]

    def reason(self, direction: Direction, reason: str) -> str:
        """Return the reason of a Close that goes on.

        Raises:
            SeamgateError: an inspector or the core denies it.
        """
        return self.control(direction, reason.encode("utf-8"))[:_MOST_REASON_BYTES].decode("utf-8", "ignore")

    def _inspect(self, direction: Direction, data: bytes) -> bytes:
        self.steps = []
        refusal = self._pipeline.plugin_time.refusal(self._request.guest.id)
        if refusal is not None:
            raise PluginError(refusal.message, reason=refusal.reason)
        opened = self._pipeline.open_inspectors(self._request, self._response, direction, self._verdict, self.steps)
        if self._secrets and direction is Direction.RESPONSE:
            # Whatever plugin supplied them: what went out with this request does not come back.
            opened[:0] = redactors_of(self._secrets, self._pipeline.probes, self._request.guest)
        if not opened:
            return data
        stats, budget_s = self._pipeline.inspector_stats, self._seam.limits.plugin_budget_s
        toll = self._pipeline.plugin_time.of(self._request.guest.id)
        filters, _ = open_filters(opened, (), budget_s, bodiless=True, stats=stats, toll=toll)
        passed = filters.feed(data)
        rest = filters.finish()
        return passed + rest if rest else passed

    def _charge(self, spent_s: float) -> None:
        """Put what the core took for a message on the guest's account, as for a plugin's call: if it was slow."""
        budget_s = self._seam.limits.plugin_budget_s
        if spent_s > budget_s * SLOW_PART:
            self._pipeline.plugin_time.of(self._request.guest.id).charge(spent_s, budget_s)

    def _refuse_placeholder(self, data: bytes) -> None:
        name = placeholder_in(self._seam.placeholders, data)
        if name is not None:
            raise CredentialError(
                f"the placeholder of the credential {name!r} stands in a message where it is not swapped: that is done"
                " in the first text, where the rule selects the credential and it has `swap_websocket`",
                reason=Reason.PLACEHOLDER_MISPLACED,
            )


def _checked(data: bytes, *, text: bool) -> Message:
    if text and not is_utf8(data):
        raise PluginError("an inspector left a text message that is not UTF-8")
    return Message(data, text)
