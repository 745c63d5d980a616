"""CPython's own tests in guests: exactly what known_failures.toml lists does not pass, each with its reason."""

from __future__ import annotations

import pytest

from seamgate_vmm.host import Host
from seamgate_vmm.snapshot import Loaded

from .cpython.harness import known_failures, run_module

pytestmark = [pytest.mark.kvm, pytest.mark.timeout(200)]


@pytest.mark.parametrize("module", known_failures())
def test_module_of_cpython(host: Host, template: Loaded, module: str) -> None:
    """What should pass does, and what is listed as failing still does: else the list is out of date."""
    result = run_module(host, template, module)
    expected = known_failures()[module]
    assert result.outcome.natural, result.outcome
    assert result.run > 0
    assert set(result.bad) - set(expected) == set(), {k: result.bad[k] for k in set(result.bad) - set(expected)}
    assert set(expected) - set(result.bad) == set()


def test_every_entry_has_its_reason() -> None:
    """A known failure says why it is one, in words of ours."""
    for failures in known_failures().values():
        for name, reason in failures.items():
            assert reason.split(":")[0] in {"process", "listen", "limit", "one user", "environment"}, name
