"""Structured logs on standard error: for people on a terminal, one JSON object a line elsewhere.

Called once, by the command that starts a gateway. Every module logs by `structlog.get_logger("seamgate.<room>")`; what
libraries say through `logging` comes out the same way. Tracebacks never show local variables, because those may hold
secrets, and text never writes to somebody's terminal: what is not printable is escaped.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO, TypeAlias

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat: TypeAlias = Literal["auto", "console", "json"]
LEVELS = ("debug", "info", "warning", "error")


def configure_logging(
    form: LogFormat = "auto",
    level: str = "info",
    *,
    stream: TextIO | None = None,
    color: bool | None = None,
    worker: int | None = None,
) -> None:
    """Set logging up for this process; a second call replaces the first.

    Args:
        form: "auto" is "console" on a terminal and "json" elsewhere.
        level: one of `LEVELS`.
        stream: where to; None: standard error.
        color: None: on a terminal.
        worker: number of this process, where a gateway has several; each line says it.
    """
    out = stream if stream is not None else sys.stderr
    on_terminal = out.isatty()
    as_json = form == "json" or (form == "auto" and not on_terminal)
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
    ]
    if worker is not None:
        shared.append(_numbered(worker))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    last = _json_processors() if as_json else _console_processors(on_terminal if color is None else color)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _numbered(worker: int) -> Processor:
    def number(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["worker"] = worker
        return event

    return number


def _json_processors() -> list[Processor]:
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(),
    ]


def _console_processors(colors: bool) -> list[Processor]:
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        _make_printable,
        # rich's tracebacks, the default where rich is installed, show local variables.
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
    ]


def _make_printable(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape what is not printable in every text: part of it comes from guests."""
    return {key: escape(value) for key, value in event.items()}


def escape(value: Any) -> Any:
    """Return text with control characters escaped; other values as they are."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in value)
