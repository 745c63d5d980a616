"""What is missing is told in the log, once in a while."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from seamgate.entry.connections import Connections
from seamgate.shortage import QUIET_S, Shortage


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged, whatever the level that the test run sets."""
    before, capture = structlog.get_config(), LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(0))
    yield capture.entries
    structlog.configure(**before)


@pytest.fixture
def no_descriptor() -> Iterator[None]:
    """This process may open no further file meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_refused_connections_are_told_in_sums(logs: list[MutableMapping[str, Any]]) -> None:
    """At once, and then no more than one line in `QUIET_S`, which has all since the last."""
    connections = Connections(1, 1)
    shortage = Shortage(connections)
    for refused, now in ((0, 0.0), (2, 1.0), (3, 2.0), (0, 1.0 + QUIET_S), (0, 2.0 + 2 * QUIET_S)):
        connections.refused_total += refused
        shortage.check(now)
    assert [(each["event"], each["refused"], each["limit"]) for each in logs] == [
        ("connections were refused", 2, 1),
        ("connections were refused", 3, 1),
    ]


def test_missing_descriptors_are_told_until_they_are_back(
    no_descriptor: None, logs: list[MutableMapping[str, Any]]
) -> None:
    """An error once in a while, and a line when it is over."""
    shortage = Shortage(Connections(1))
    for now in (0.0, 1.0, QUIET_S):
        shortage.check(now)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 1, hard))
    shortage.check(QUIET_S + 1)
    shortage.check(QUIET_S + 2)
    assert [(each["log_level"], each["event"].partition(":")[0]) for each in logs] == [
        ("error", "no descriptor is left"),
        ("error", "no descriptor is left"),
        ("info", "there are descriptors again"),
    ]
