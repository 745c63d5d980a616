"""The kit for plugin authors: builders, one call that judges, a recorded upstream, helpers for inspectors, conformance.

Public and stable like the authoring API in `seamgate`. Imported by tests only: the gateway never imports it. It needs
no test runner and works with any. docs/testing.md is its manual, docs/tutorial-plugin-author.md uses it.
"""

from seamgate.testing.building import (
    make_context,
    make_guest,
    make_headers,
    make_record,
    make_request,
    make_response,
    make_target,
)
from seamgate.testing.conformance import Check, conformance
from seamgate.testing.inspecting import Inspected, check_every_split, run_inspector, splits
from seamgate.testing.judging import Judgement, judge
from seamgate.testing.memory import MemoryStream, join
from seamgate.testing.recorded import Received, Recorded, RecordedUpstream
from seamgate.testing.sending import Flow, send
from seamgate.testing.subject import ConformanceError

__all__ = [
    "Check",
    "ConformanceError",
    "Flow",
    "Inspected",
    "Judgement",
    "MemoryStream",
    "Received",
    "Recorded",
    "RecordedUpstream",
    "check_every_split",
    "conformance",
    "join",
    "judge",
    "make_context",
    "make_guest",
    "make_headers",
    "make_record",
    "make_request",
    "make_response",
    "make_target",
    "run_inspector",
    "send",
    "splits",
]
