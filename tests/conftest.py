"""Runs `async def` tests on uvloop, as the gateway runs, each with a time limit."""

from __future__ import annotations

import functools
import inspect
import logging

import pytest
import structlog
from hypothesis import settings

from support.overrun import Watch, run_limited

ASYNC_TEST_LIMIT_S = 60.0
"""Where the module of a test does not say otherwise, by the same name. No test is about it: it ends what hangs."""
# A machine that is busy with other things must not fail a property.
settings.register_profile("seamgate", deadline=None)
settings.load_profile("seamgate")


def pytest_configure(config: pytest.Config) -> None:
    """Have a test that hangs ended, and told."""
    config.pluginmanager.register(Watch(), "watch")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function to its end; leave everything else to pytest."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    wanted = inspect.signature(function).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    limit_s = getattr(pyfuncitem.module, "ASYNC_TEST_LIMIT_S", ASYNC_TEST_LIMIT_S)
    run_limited(functools.partial(function, **arguments), limit_s)
    return True


@pytest.fixture(autouse=True, scope="session")
def _quiet_logs() -> None:
    """Keep the gateway's log lines out of the way; what matters of them is in the audit log."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
