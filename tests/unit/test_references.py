"""What rules name has to be there: checked at start, with the rule's place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seamgate import hookimpl
from seamgate.errors import ConfigError
from seamgate.registry import check_references, register

RULE = SimpleNamespace(id="llm", source="team.yaml", line=7, column=5)


class Wants:
    """A plugin whose rules name things."""

    def __init__(self, **wanted: Any) -> None:
        self.__dict__.update(wanted)

    @hookimpl
    def judge_request(self) -> None:
        """No opinion."""


class Has(Wants):
    """A plugin that supplies credentials."""

    @hookimpl
    def supply_credential(self, credential: str) -> None:
        """Nothing."""


def test_a_credential_that_is_not_there_is_named_with_its_rule() -> None:
    """A rule that selects an unknown credential stops the start, with place, suggestion and advice."""
    wants = register("policy", Wants(wanted_credentials={"anthropc": RULE}))
    has = register("credentials", Has(credential_names={"anthropic"}), {"secrets"})
    with pytest.raises(ConfigError, match=r"team.yaml:7:5: rule 'llm' names the credential 'anthropc'.*'anthropic'\?"):
        check_references([wants, has])


def test_an_inspector_that_is_not_there_is_named() -> None:
    """A rule that asks for an unknown inspector stops the start: the body would pass uninspected."""
    wants = register("policy", Wants(wanted_inspectors={"secrts": RULE}))
    with pytest.raises(ConfigError, match="names the inspector 'secrts'"):
        check_references([wants, register("inspection", Wants(inspector_names={"secrets"}))])


def test_what_is_there_passes() -> None:
    """Nothing is refused where every name is known."""
    wants = register("policy", Wants(wanted_credentials={"a": RULE}, wanted_inspectors={"b": RULE}))
    check_references([wants, register("all", Has(credential_names={"a"}, inspector_names={"b"}), {"secrets"})])


def test_a_supplier_that_does_not_say_what_it_has_is_asked_at_run_time() -> None:
    """A stranger's credential source may know any name; a miss then denies the request by itself."""
    wants = register("policy", Wants(wanted_credentials={"vault/x": RULE}))
    check_references([wants, register("vault", Has(), {"secrets"})])
