"""The gate of a WebSocket's messages: who sees what, what goes on, what ends it. Without a socket."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seamgate import Direction, Inspector, Request, Response, SeamgateError, hookimpl
from seamgate.credentials.config import CredentialConfig, SourceConfig
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import Reason
from seamgate.flow import Guest, Supply, Target
from seamgate.pipeline import Pipeline
from seamgate.plugin_time import PluginTime
from seamgate.protocol.websocket import Message
from seamgate.registry import register
from seamgate.verdict import allow
from seamgate.websocket_messages import MessageGate

SECRET = b"sk-live-0123456789"
REQUEST = Request("r", Guest("g"), Target("https", "ws.test", 443), "GET", "/", upgrade="websocket")
INDEX = PlaceholderIndex({"key": CredentialConfig(source=SourceConfig(env="X"), hosts=("ws.test",))})


class Suffix:
    """An inspector that says how often it was opened, and of what."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, int]] = []

    @hookimpl
    def open_inspector(self, response: Response | None, direction: Direction) -> Inspector:
        assert response is not None
        self.opened.append((direction.value, response.status))
        return cast("Inspector", _Adds())


class _Adds:
    def head(self, headers: Any) -> Any:
        return headers

    def feed(self, data: bytes) -> bytes:
        return data.replace(b"bad", b"\xff")

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b"!"


class Source:
    """A plugin that supplies without redacting."""

    @hookimpl
    def supply_credential(self) -> Supply | None:
        return None


def gate(*plugins: object, supplies: tuple[Supply, ...] = ()) -> MessageGate:
    secrets = frozenset({"secrets"})
    pipeline = Pipeline([register(f"p{at}", each, secrets) for at, each in enumerate(plugins)])
    seam: Any = SimpleNamespace(placeholders=INDEX, limits=SimpleNamespace(plugin_budget_s=1.0))
    return MessageGate(seam, pipeline, REQUEST, Response(101), allow("r"), supplies)


def text(data: str) -> Message:
    return Message(data.encode(), True)


def test_what_nobody_changes_is_the_same_object() -> None:
    """Without inspectors and placeholders a message is passed on as it is."""
    passed = gate()
    for message in (text("hello"), Message(b"\xff", False)):
        assert passed.from_guest(message) is message
        assert passed.from_upstream(message) is message


def test_each_message_has_inspectors_of_its_own() -> None:
    """In either direction, with the 101; what they hold until the end belongs to the message."""
    plugin = Suffix()
    passed = gate(plugin)
    assert passed.from_guest(text("one")) == text("one!")
    assert passed.from_upstream(Message(b"two", False)) == Message(b"two!", False)
    assert passed.control(Direction.RESPONSE, b"ping") == b"ping!"
    assert passed.control(Direction.RESPONSE, b"") == b""
    assert passed.reason(Direction.REQUEST, "x" * 123) == "x" * 123
    assert plugin.opened == [("request", 101), ("response", 101), ("response", 101), ("request", 101)]


def test_text_stays_text() -> None:
    """An inspector that breaks UTF-8 breaks the WebSocket, but only of a text."""
    passed = gate(Suffix())
    assert passed.from_upstream(Message(b"bad", False)) == Message(b"\xff!", False)
    with pytest.raises(SeamgateError) as failed:
        passed.from_upstream(text("bad"))
    assert failed.value.reason is Reason.PLUGIN_FAILED


def test_a_placeholder_is_swapped_in_the_first_text_only() -> None:
    """Bytes before it don't count as the first text; after it there is none."""
    passed = gate(supplies=(Supply("key", secrets=(SECRET,), websocket=SECRET),))
    assert passed.from_guest(Message(b"bytes", False)) == Message(b"bytes", False)
    assert passed.from_guest(text("it is sgph-key")) == Message(b"it is " + SECRET, True)
    with pytest.raises(SeamgateError) as denied:
        passed.from_guest(text("it is sgph-key"))
    assert denied.value.reason is Reason.PLACEHOLDER_MISPLACED


@pytest.mark.parametrize("supplies", [(), (Supply("key", secrets=(SECRET,)),)])
def test_a_placeholder_that_is_not_to_be_swapped_is_denied(supplies: tuple[Supply, ...]) -> None:
    """Not selected, or not for WebSockets."""
    with pytest.raises(SeamgateError) as denied:
        gate(supplies=supplies).from_guest(text("sgph-key"))
    assert denied.value.reason is Reason.PLACEHOLDER_MISPLACED


def test_what_a_plugin_supplied_is_redacted_by_the_core() -> None:
    """Where no plugin does it; in messages and in what else has room for it."""
    passed = gate(Source(), supplies=(Supply("key", secrets=(SECRET,)),))
    assert passed.from_upstream(Message(b"a " + SECRET, True)) == text("a [redacted:key]")
    assert passed.control(Direction.RESPONSE, SECRET) == b"[redacted:key]"
    assert passed.reason(Direction.RESPONSE, SECRET.decode()) == "[redacted:key]"


def test_a_guest_that_kept_plugins_busy_sends_no_more() -> None:
    """Its account is asked before a message is put to anybody, in both directions, on sockets that were open before."""
    suffix = Suffix()
    opened = gate(suffix)
    opened._pipeline.plugin_time = PluginTime(1.0, clock=lambda: 5.0)
    assert opened.from_guest(text("a")).data == b"a!"
    opened._pipeline.plugin_time.charge("g", 3.0, 2.0)
    looked = len(suffix.opened)
    for ask in (
        lambda: opened.from_guest(text("a")),
        lambda: opened.from_upstream(text("a")),
        lambda: opened.control(Direction.REQUEST, b"a"),
    ):
        with pytest.raises(SeamgateError) as caught:
            ask()
        assert caught.value.reason is Reason.PLUGIN_TIME_SPENT
    assert len(suffix.opened) == looked


def test_what_the_core_takes_for_a_message_is_on_the_guests_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own search for placeholders counts as a plugin's call does, if it was slow."""
    opened = gate()
    opened._pipeline.plugin_time = PluginTime(1.0, clock=lambda: 5.0, processor=count(0.0, 0.5).__next__)
    ticks = iter((0.0, 0.01, 1.0, 1.4))
    monkeypatch.setattr("seamgate.websocket_messages.perf_counter", lambda: next(ticks))
    opened.from_guest(text("a"))
    assert opened._pipeline.plugin_time.accounts == {}
    opened.from_guest(text("a"))
    assert opened._pipeline.plugin_time.accounts["g"][0] == pytest.approx(0.4)
