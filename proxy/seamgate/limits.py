"""The `limits:` of seamgate.yaml: how long, how many, how large. Values only."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
KIB, MIB = 1024, 1024 * 1024


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `limits:` of seamgate.yaml: each with a default that agents don't meet and attackers do.

    Attributes:
        connections: guests' connections at once; more are refused. 10,000 idle ones cost some 200 MB. On entries that
            ask for tokens, those that have not shown one yet get half of it at most, the newest ones.
        guest_connections: of one guest at once, tunnels and streams included; more are refused. Without
            it: three quarters of `connections`, so that one guest never takes all.
        streams: requests at once of one guest's HTTP/2 connection; further ones are refused, for the guest to repeat.
            What clients assume before they are told is 100.
        head_timeout_s: from the first byte of a request to the end of its head, and for a TLS handshake.
        idle_timeout_s: how long a guest's connection may be silent between requests. PINGs are no requests.
        body_timeout_s: how long a request's body may be silent.
        resolve_timeout_s: for a name, all servers and retries together.
        connect_timeout_s: for TCP and TLS to one address.
        response_timeout_s: how long an upstream may be silent; until the end of its final head, whatever else it says
            is silence too. Thinking models are silent for many minutes.
        credential_timeout_s: for a source that has to be asked.
        plugin_budget_s: wall time of one synchronous plugin call.
        guest_plugin_s: what slow plugin calls may cost on behalf of one guest, in seconds: those that take a tenth of
            `plugin_budget_s` and more. A tenth of the time that passes is given back; until then the guest is refused
            with `plugin_time_spent`. It is eight calls that overrun: agents meet one by accident, attackers any number.
        request_body_bytes: longest request body where a rule says nothing; without it there is no limit.
        websocket_message_bytes: longest message of a WebSocket, either way, inflated. Each is held until it is whole.
        judged_body_bytes: how much of a body is held in memory for rules that look into it. Longer: unevaluable.
        held_bytes: of all that is held in memory together: bodies that wait, what HTTP/2 streams and WebSockets hold
            for a side that takes no more, messages that are not whole. Of one guest's, half of it. What would exceed it
            is refused, or ended, as overloaded.
    """

    connections: Count = 10_000
    guest_connections: Count | None = None
    streams: Count = 128
    head_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 300.0
    body_timeout_s: Seconds = 120.0
    resolve_timeout_s: Seconds = 10.0
    connect_timeout_s: Seconds = 10.0
    response_timeout_s: Seconds = 900.0
    credential_timeout_s: Seconds = 10.0
    plugin_budget_s: Seconds = 0.25
    guest_plugin_s: Seconds = 2.0
    request_body_bytes: Count | None = None
    websocket_message_bytes: Count = 16 * MIB
    judged_body_bytes: Count = 2 * MIB
    held_bytes: Count = 512 * MIB
