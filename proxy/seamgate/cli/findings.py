"""What the checks of `seamgate doctor` look at, and what they find. Values; no I/O."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from seamgate.config import Config
from seamgate.upstream.resolver import DnsConfig


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """Something is missing that only some uses need."""
    FAIL = "fail"
    """The gateway can't work like this."""


class Finding(msgspec.Struct, frozen=True):
    """One line of the report.

    Attributes:
        check: what was looked at.
        level: how bad it is.
        message: what was found.
        advice: what to do; "" if there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks look at.

    Attributes:
        ca_dir: folder of the CA.
        audit_dir: folder of the journal; None: not checked.
        listen: (address, port) of listeners to be; empty: not checked.
        dns: the section `dns`.
        names_clients: whether clients are listed.
        config: the configuration that all this is of; None: there is none, so its credentials are not checked.
    """

    ca_dir: Path
    audit_dir: Path | None = None
    listen: tuple[tuple[str, int], ...] = ()
    dns: DnsConfig = DnsConfig()
    names_clients: bool = True
    config: Config | None = None
