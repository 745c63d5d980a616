"""Finds rules that select a credential which can go with none of the requests that they allow, and misspelt methods.

Such a rule allows nothing: whatever it lets through is denied with `credential_unbound`. Called by `policy
lint`, `policy check` and `serve --check`, which know both policies and credentials. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from seamgate.credentials.config import CredentialConfig
from seamgate.policy.lint import Finding
from seamgate.policy.meeting import hosts_meet, paths_meet
from seamgate.policy.methods import unknown_methods
from seamgate.policy.model import Match, Policy
from seamgate.policy.patterns import parse_host, parse_path


def find_unbound(policies: Iterable[Policy], credentials: Mapping[str, CredentialConfig]) -> Iterator[Finding]:
    """Return a warning for each credential of each rule that can never go with it.

    Args:
        policies: as loaded.
        credentials: by name. One that a rule names and that is not there is an error of the start, not found here.
    """
    for rule in (rule for policy in policies for rule in policy.rules if rule.allows):
        for name in rule.credentials or ():
            part = _apart(rule.match, credentials[name]) if name in credentials else ""
            if part:
                message = (
                    f"selects the credential {name!r}, which is bound to none of its {part}: whatever the rule allows"
                    f" is denied; mend `credentials.{name}` or the rule"
                )
                yield Finding("credential-unbound", "warning", message, rule.source, rule.line, rule.id)


def find_unknown_methods(credentials: Mapping[str, CredentialConfig], source: str) -> Iterator[Finding]:
    """Return a warning for each method that a credential is bound to and that is not registered: hardly one is meant.

    Args:
        credentials: by name.
        source: the configuration that they stand in.
    """
    for name, credential in credentials.items():
        for message in unknown_methods(credential.methods or ()):
            yield Finding("unknown-method", "warning", f"credentials.{name}: {message}", source, 0)


def _apart(match: Match, credential: CredentialConfig) -> str:
    """Return in which part no request can be covered by both, "" if one may be."""
    if match.hosts and not any(hosts_meet(mine, parse_host(text)) for mine in match.hosts for text in credential.hosts):
        return "hosts"
    if match.methods and credential.methods is not None and not match.methods & _methods(credential.methods):
        return "methods"
    if match.paths and credential.paths is not None:
        bound = [parse_path(text).segments for text in credential.paths]
        if not any(paths_meet(mine.segments, theirs) for mine in match.paths for theirs in bound):
            return "paths"
    return "schemes" if match.schemes == {"http"} and not credential.allow_http else ""


def _methods(written: tuple[str, ...]) -> frozenset[str]:
    """GET implies HEAD, as in policy."""
    return frozenset(written) | ({"HEAD"} if "GET" in written else frozenset())
