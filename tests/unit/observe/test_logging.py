"""Logs: JSON for machines, lines for people, no secrets, nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from seamgate.observe.logging import configure_logging, escape


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Leave structlog and the root logger as they were."""
    config, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_line_is_json() -> None:
    """One object a line, with level, logger, time in UTC and the message."""
    out = io.StringIO()
    configure_logging(stream=out)
    structlog.get_logger("seamgate.x").info("started", port=1)
    said = json.loads(out.getvalue())
    assert (said["message"], said["port"], said["level"], said["logger"]) == ("started", 1, "info", "seamgate.x")
    assert said["timestamp"].endswith("Z")


def test_on_a_terminal_a_line_is_for_people() -> None:
    """Words, not JSON; colour unless it is turned off."""
    for color, expected in ((None, True), (False, False)):
        out = _Terminal()
        configure_logging(stream=out, color=color)
        structlog.get_logger("x").warning("watch out", port=1)
        assert "watch out" in out.getvalue()
        assert ("\x1b[" in out.getvalue()) is expected


def test_the_level_holds_and_libraries_come_along() -> None:
    """What `logging` says comes out the same way; what is below the level does not."""
    out = io.StringIO()
    configure_logging("json", "warning", stream=out)
    structlog.get_logger("x").info("not this")
    logging.getLogger("asyncio").warning("but %s", "this")
    said = json.loads(out.getvalue())
    assert (said["message"], said["logger"]) == ("but this", "asyncio")


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_local_variable(form: str) -> None:
    """A failing plugin may hold a credential in a variable: its value must not get into a log."""
    out = io.StringIO()
    configure_logging(form, stream=out)  # type: ignore[arg-type]
    try:
        secret = "sk-never-" + "in-a-log"
        raise RuntimeError(str(len(secret)))
    except RuntimeError as error:
        structlog.get_logger("x").error("plugin failed", exc_info=error)
    assert "RuntimeError" in out.getvalue()
    assert "sk-never-in-a-log" not in out.getvalue()


def test_text_does_not_write_to_a_terminal() -> None:
    """What a guest had a hand in is escaped."""
    out = io.StringIO()
    configure_logging("console", stream=out)
    structlog.get_logger("x").info("asked", path="/\x1b]0;owned\x07\nfake line")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()
    assert escape("a\x1bb\nc") == "a\\x1bb\\nc"
    assert escape(3) == 3
