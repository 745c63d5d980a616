"""What decides whether two requests may share a session: the key, and the configuration of the pool. Values only."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from seamgate.flow import Target
from seamgate.upstream.tls import TlsProfile

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class PoolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How sessions are kept and shared.

    Attributes:
        isolation: who may share sessions: guests of one `group` ("group", the default: guests with equal labels are
            one group unless they name another), each guest for itself ("guest"), or all ("shared").
        sessions_per_origin: most sessions of one key; further requests wait for one, guests by turns.
        sessions_to_origin: most sessions to one origin, those of all groups and policies together. Groups take turns.
        guest_share: which part of them one guest may have, or wait for, at once; its further requests wait for its own
            to end. So one guest never takes all that there is. Of a guest that shares with nobody: all.
        queue_timeout_s: how long they wait.
        idle_timeout_s: an idle session is closed after this; below the 60 s that common servers allow.
        max_age_s: no session is used for longer, so that a change of addresses is followed.
        ping_s: an HTTP/2 upstream that somebody waits for and that says nothing for so long is asked by a PING; after
            as long without an answer the session is given up. (At most three times, then every 330 s: gRPC servers
            count PINGs.)
        preconnect: whether a session is opened while the guest still does its TLS handshake.
    """

    isolation: Literal["group", "guest", "shared"] = "group"
    sessions_per_origin: Annotated[int, msgspec.Meta(ge=1)] = 256
    sessions_to_origin: Annotated[int, msgspec.Meta(ge=1)] = 1024
    guest_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.75
    queue_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 50.0
    max_age_s: Seconds = 3600.0
    ping_s: Seconds = 15.0
    preconnect: bool = True


class PoolKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What two requests must share to share a session, besides the validated address."""

    target: Target
    profile: TlsProfile | None
    group: str
    generation: int
