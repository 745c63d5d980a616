"""A credential that can go with nothing its rule allows is found, and one that may go with something is not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.unbound import find_unbound, find_unknown_methods
from seamgate.policy.loader import parse_policy

BOUND: dict[str, Any] = {
    "source": {"env": "K"},
    "hosts": ["api.example.com", "**.deep.example"],
    "methods": ["GET", "POST"],
    "paths": ["/v1/**"],
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "the same": ({"hosts": ["api.example.com"], "methods": ["POST"], "paths": ["/v1/x"]}, ""),
    "wider in all": ({"hosts": ["**"]}, ""),
    "one of several": ({"hosts": ["a.test", "*.example.com"], "paths": ["/x", "/v1/y"]}, ""),
    "GET implies HEAD": ({"hosts": ["api.example.com"], "methods": ["HEAD"]}, ""),
    "a pattern that meets a pattern": ({"hosts": ["x.*.example"], "paths": ["/*/x"]}, ""),
    "another host": ({"hosts": ["api.example.org"]}, "hosts"),
    "below it": ({"hosts": ["*.api.example.com"]}, "hosts"),
    "the apex of a pattern": ({"hosts": ["deep.example"]}, "hosts"),
    "an address": ({"hosts": ["10.0.0.1"]}, "hosts"),
    "another method": ({"hosts": ["api.example.com"], "methods": ["PUT", "DELETE"]}, "methods"),
    "another path": ({"hosts": ["api.example.com"], "paths": ["/v2/**", "/v1"]}, "paths"),
    "plain http": ({"hosts": ["api.example.com"], "schemes": ["http"]}, "schemes"),
    "both": ({"hosts": ["api.example.com"], "schemes": ["http", "https"]}, ""),
}


def found(allow: dict[str, Any], **changed: Any) -> list[str]:
    """Return the messages for a rule that selects the credential."""
    rules = [{"id": "r", "allow": allow, "credential": "k"}, {"id": "d", "deny": {"hosts": ["x.test"]}}]
    policy = parse_policy(json.dumps({"seamgate": 1, "rules": rules}), "p.yaml")
    credential = msgspec.convert({**BOUND, **changed}, CredentialConfig)
    findings = list(find_unbound([policy], {"k": credential}))
    assert all((each.code, each.severity, each.rule) == ("credential-unbound", "warning", "r") for each in findings)
    assert list(find_unbound([policy], {})) == []
    return [each.message for each in findings]


@pytest.mark.parametrize("what", CASES)
def test_only_what_can_never_be_is_found(what: str) -> None:
    """By host, method, path and scheme."""
    allow, part = CASES[what]
    messages = found(allow)
    assert len(messages) == bool(part)
    assert not part or f"'k', which is bound to none of its {part}: " in messages[0]


def test_a_credential_for_everything_is_never_found() -> None:
    """Without methods and paths it is bound to all, and over http where it says so."""
    assert found({"hosts": ["api.example.com"], "schemes": ["http"]}, methods=None, paths=None, allow_http=True) == []


def test_a_misspelt_method_of_a_credential_is_found() -> None:
    """It is bound to what nobody sends; the place is the configuration and the credential's name."""
    credential = msgspec.convert({**BOUND, "methods": ["PSOT", "PUT"]}, CredentialConfig)
    (finding,) = find_unknown_methods({"k": credential}, "seamgate.yaml")
    assert (finding.code, finding.severity, finding.source) == ("unknown-method", "warning", "seamgate.yaml")
    assert finding.message == "credentials.k: the method PSOT is not in IANA's registry: did you mean 'POST'?"
