"""The plugin that is put to the checks: made anew for each, listened to, run by the real pipeline, its logs kept.

Used by `conformance` and the modules of checks.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import structlog

from seamgate.config import Config
from seamgate.errors import Reason
from seamgate.flow import Direction, Request, Response
from seamgate.hookspecs import Inspector
from seamgate.pipeline import Pipeline
from seamgate.registry import LoadedPlugin, register
from seamgate.testing import corpus
from seamgate.testing.building import make_context
from seamgate.testing.listening import Listener
from seamgate.verdict import Effect, Verdict

_PATIENCE_S = 60.0
"""The pipeline's own budget while a check is not about time."""


class ConformanceError(AssertionError):
    """A plugin breaks a rule; the message says which, with what, and what to do."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What `conformance` was given.

    Attributes:
        make: the plugin's class (or whatever makes it of a context), or its module.
        name, options, config, capabilities: of its context.
        requests: the author's own, beside those of the corpus.
        inspect: names that a rule's `inspect` asks this plugin for.
        secrets: values that it must not tell.
        budget_s: what one call of a hook may take.
    """

    make: Any
    name: str
    options: Mapping[str, Any]
    config: Config
    capabilities: frozenset[str]
    requests: tuple[Request, ...]
    inspect: tuple[str, ...]
    secrets: tuple[str, ...]
    budget_s: float

    def load(self, *, more: Mapping[str, Any] | None = None, generation: int = 1) -> LoadedPlugin:
        """Make a plugin as the registry does, and vouch for it.

        Args:
            more: further options.
            generation: of the context.

        Raises:
            SeamgateError: it refuses its options, or can't be vouched for.
        """
        context = make_context(
            self.name,
            options={**self.options, **(more or {})},
            config=self.config,
            generation=generation,
            capabilities=self.capabilities,
        )
        made = self.make if inspect.ismodule(self.make) else self.make(context)
        return register(self.name, made, self.capabilities)

    def trial(self) -> Trial:
        """Return a new plugin under a pipeline of its own, listened to."""
        return Trial(self, self.load())

    def all_requests(self) -> Iterator[tuple[str, Request]]:
        """Yield (what it is, request): the author's own first, then the corpus."""
        yield from ((f"your request {request.method} {request.url}", request) for request in self.requests)
        yield from corpus.requests()

    @property
    def verdict(self) -> Verdict:
        """An allow that asks for every inspector of the plugin."""
        return Verdict(Effect.ALLOW, Reason.ALLOWED, "conformance", inspect=self.inspect)


class Trial:
    """One plugin under test.

    Attributes:
        loaded: the plugin.
        listener: what it was given and what it answered.
        pipeline: runs it, and nothing else.
    """

    def __init__(self, subject: Subject, loaded: LoadedPlugin) -> None:
        self.subject = subject
        self.loaded = loaded
        self.listener = Listener()
        self.pipeline = Pipeline([self.listener.listen(loaded)], budget_s=_PATIENCE_S)

    def has(self, *hooks: str) -> bool:
        """Whether the plugin implements any of these."""
        return any(hook in self.loaded.hooks for hook in hooks)

    def opener(
        self, request: Request, response: Response | None, direction: Direction
    ) -> Callable[[], Inspector] | None:
        """Return what makes the inspector of this direction, None if the plugin wants none."""
        if not self.has("open_inspector"):
            return None

        def opened() -> Inspector | None:
            found = self.pipeline.open_inspectors(request, response, direction, self.subject.verdict, [])
            return found[0][1] if found else None

        def certainly() -> Inspector:
            inspector = opened()
            if inspector is None:
                raise ConformanceError("open_inspector opened one at first and none for the same exchange later")
            return inspector

        return certainly if opened() is not None else None


class Told:
    """What was written meanwhile: logs (structlog and logging), standard output and error."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._out = io.StringIO()

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join((*self._parts, self._out.getvalue()))

    def keep(self, _logger: Any, _method: str, event: Any) -> Any:
        """Keep a structlog event, as its last processor."""
        self._parts.append(repr(event))
        raise structlog.DropEvent


class _Handler(logging.Handler):
    def __init__(self, parts: list[str]) -> None:
        super().__init__(level=0)
        self._parts = parts

    def emit(self, record: logging.LogRecord) -> None:
        self._parts.append(record.getMessage())


@contextlib.contextmanager
def listening_to_logs() -> Iterator[Told]:
    """Keep what is logged, at every level, and printed away from the terminal, and in hand."""
    told = Told()
    before = structlog.get_config()
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    structlog.configure(processors=[told.keep], wrapper_class=structlog.make_filtering_bound_logger(0))
    root.level, root.handlers = logging.NOTSET, [_Handler(told._parts)]
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
    try:
        with contextlib.redirect_stdout(told._out), contextlib.redirect_stderr(told._out):
            yield told
    finally:
        root.level, root.handlers = level, handlers
        logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
        structlog.configure(**before)
