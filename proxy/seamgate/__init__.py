"""Seamgate: an egress policy gateway for AI agents. This module is the authoring API of plugins, nothing else."""

from seamgate.errors import CredentialError, Reason, ResolveFailed, SeamgateError
from seamgate.flow import (
    Amendment,
    BodyState,
    Direction,
    Guest,
    Isolation,
    Request,
    Resolution,
    Response,
    Supply,
    Target,
)
from seamgate.hookspecs import Inspector, hookimpl
from seamgate.verdict import Effect, Verdict, allow, deny

__version__ = "0.1.0"

__all__ = [
    "Amendment",
    "BodyState",
    "CredentialError",
    "Direction",
    "Effect",
    "Guest",
    "Inspector",
    "Isolation",
    "Reason",
    "Request",
    "Resolution",
    "ResolveFailed",
    "Response",
    "SeamgateError",
    "Supply",
    "Target",
    "Verdict",
    "__version__",
    "allow",
    "deny",
    "hookimpl",
]
