"""Listens in on plugins: a plugin that behaves as it does, and keeps what it was given and what it answered.

Used by `judging`, which tells what each plugin said, and by `conformance`, which looks through what it saw. The
pipeline runs it like any other plugin.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from seamgate.flow import Headers
from seamgate.hookspecs import Inspector, direct_hooks
from seamgate.registry import LoadedPlugin


class Heard(msgspec.Struct):
    """One call of one hook: what it was given, by name, and what it answered or raised."""

    plugin: str
    hook: str
    given: dict[str, Any]
    answer: Any = None
    raised: BaseException | None = None


class Listener:
    """Keeps every call of the plugins that it listens to, in order, inspectors included."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def listen(self, loaded: LoadedPlugin) -> LoadedPlugin:
        """Return the plugin, listened to."""
        spoken, direct = _Spoken(), direct_hooks(loaded.plugin)
        for hook in loaded.hooks:
            marked = getattr(loaded.plugin, hook)
            setattr(spoken, hook, self._wrapped(loaded.name, hook, marked, direct.get(hook, marked)))
        return msgspec.structs.replace(loaded, plugin=spoken)

    def answers(self, plugin: str, hook: str) -> list[Any]:
        """Return what this plugin answered in this hook, in order."""
        return [each.answer for each in self.heard if (each.plugin, each.hook) == (plugin, hook)]

    def note(self, plugin: str, hook: str, given: dict[str, Any]) -> Heard:
        """Keep a call that is about to be made."""
        heard = Heard(plugin, hook, given)
        self.heard.append(heard)
        return heard

    def _wrapped(
        self, plugin: str, hook: str, marked: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return what has the arguments of the marked method, calls what the gateway would, and keeps what it said."""
        names = tuple(inspect.signature(marked).parameters)

        @functools.wraps(marked)
        def called(*arguments: Any) -> Any:
            heard = self.note(plugin, hook, dict(zip(names, arguments, strict=True)))
            try:
                heard.answer = function(*arguments)
            except BaseException as error:
                heard.raised = error
                raise
            if hook == "open_inspector" and heard.answer is not None:
                return _HeardInspector(self, plugin, heard.answer)
            return heard.answer

        return called


class _Spoken:
    """Has the hooks of a plugin that is listened to, and nothing else."""


class _HeardInspector:
    """An inspector that is listened to."""

    def __init__(self, listener: Listener, plugin: str, inspector: Inspector) -> None:
        self._listener = listener
        self._plugin = plugin
        self._inspector = inspector

    def head(self, headers: Headers) -> Headers:
        """Pass on, and keep."""
        heard = self._listener.note(self._plugin, "inspector.head", {"headers": headers})
        heard.answer = self._inspector.head(headers)
        return heard.answer  # type: ignore[no-any-return]

    def feed(self, data: bytes) -> bytes:
        """Pass on, and keep."""
        heard = self._listener.note(self._plugin, "inspector.feed", {"data": data})
        heard.answer = self._inspector.feed(data)
        return heard.answer  # type: ignore[no-any-return]

    def flush(self) -> bytes:
        """Pass on."""
        return self._inspector.flush()

    def finish(self) -> bytes:
        """Pass on."""
        return self._inspector.finish()
