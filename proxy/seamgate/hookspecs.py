"""Every hook, in one flat file: signature, types, when it runs, what it may do.

The name says what a hook may do. `judge_*` may deny: synchronous, pure, returns `Verdict | None`, where None is "no
opinion". `amend_request` returns amendments, never mutates. `resolve_name` and `supply_credential` return a value, or
an awaitable of one where it takes I/O; they have a deadline. `open_inspector` opens a filter for one direction of one
body. `connected`, `request_done`, `denied` and `export_audit` (past tense, or the audit) observe and can't change
anything. A hook implementation may take any subset of the arguments, by name.

Run by `seamgate.pipeline`; the plugins are found by `seamgate.registry`. docs/hooks.md repeats each signature and a
test compares them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

from seamgate.flow import Amendment, Direction, Guest, Headers, Request, Resolution, Response, Supply, Target
from seamgate.verdict import Verdict

if TYPE_CHECKING:
    from seamgate.audit.record import AuditRecord

PROJECT = "seamgate"

F = TypeVar("F", bound=Callable[..., Any])
_mark_specification = pluggy.HookspecMarker(PROJECT)
_mark_implementation = pluggy.HookimplMarker(PROJECT)


def hookspec(function: F) -> F:
    """Mark a function of this module as the specification of a hook."""
    marked: F = _mark_specification(function)
    return marked


def hookimpl(function: F) -> F:
    """Mark a function or method as an implementation of the hook of the same name."""
    marked: F = _mark_implementation(function)
    return marked


def direct_hooks(plugin: object) -> Mapping[str, Callable[..., Any]]:
    """Return what to call in place of a plugin's own methods, by hook: its attribute of this name, if it has one.

    For a plugin whose hook does nothing but call a compiled method with its arguments, in their order: a frame less for
    each call. Compiled methods can't be marked with `hookimpl` themselves, so the plugin keeps its own, which says what
    the hook takes. Asked once, when a generation's hooks are compiled: what may change later has to do so in place.
    """
    given: Mapping[str, Callable[..., Any]] = getattr(plugin, "direct_hooks", {})
    return given


class Inspector(Protocol):
    """A filter over one direction of one message: what it returns is what goes on.

    Called in order: `head` once, `feed` for each piece, `finish` once at the clean end (never after a cut). It sees
    bodies without transfer and content coding. It may hold bytes back, but gives them out by `flush` when the stream
    pauses, so that an event stream is never delayed. An exception, or more than its time, ends the exchange with
    `plugin_failed` or `plugin_overrun`.

    One that never changes a byte may say so: `only_looks = True`, as an attribute. Where all inspectors of a request's
    body do, it keeps its length and coding upstream; of what they return only the size counts. If such a one has
    `of_coded()`, the inspector that this returns looks at the coded bytes: a coding has room beside the content.

    One of a response that would miss something in a part of it may say so: `needs_whole = True`. Then no part is asked
    for (`Range`), and one that comes all the same (206) is refused.

    One of a plugin with the capability `secrets` that can begin within a body may have `join(keeps_length: bool)`,
    called in the place of `head`. When a reload may have changed what to look for, such are opened by the newest
    generation for all that is under way, but where that plugin has one already: that one has to follow by itself. With
    `keeps_length` it has to give out as many bytes as it gets. What can't be looked at from its middle (a coded body, a
    part) is ended.
    """

    def head(self, headers: Headers) -> Headers:
        """Return the headers to pass on."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the body, return what may go on now."""
        ...

    def flush(self) -> bytes:
        """The stream pauses: return what was held back, as far as that is safe."""
        ...

    def finish(self) -> bytes:
        """The body is complete: return the rest."""
        ...


@hookspec
def judge_connect(guest: Guest, target: Target) -> Verdict | None:
    """Judge a tunnel before anything is resolved: may this guest ask anything of this target?

    DEFER says "its requests will be judged one by one"; ALLOW says the same for now. With the scheme "tcp" nothing is
    judged after it, since it is passed on unread: then only an ALLOW whose `upgrade` is "tcp" opens it. A port of 0
    asks the same of the host at any port and scheme: a guest wants its name resolved.
    """


@hookspec
def judge_request(request: Request) -> Verdict | None:
    """Judge a request before anything is resolved or sent.

    Runs with the head, again with the body if any verdict was DEFER, and again after an amendment.
    """


@hookspec
def amend_request(request: Request) -> Amendment | None:
    """Say which headers to set or remove on an allowed request. The result is judged again."""


@hookspec
def resolve_name(name: str) -> Resolution | Awaitable[Resolution | None] | None:
    """Resolve a canonical name; the first plugin with an answer wins. The core checks the addresses afterwards.

    Raises:
        ResolveFailed: the name has no address; no further plugin is asked.
    """


@hookspec
def supply_credential(request: Request, credential: str) -> Supply | Awaitable[Supply | None] | None:
    """Supply the credential of this name for this request; the first plugin with an answer wins; nobody: denied.

    Needs the capability `secrets`.

    Raises:
        CredentialError: it can't be supplied; the request is denied with the error's reason.
    """


@hookspec
def open_inspector(
    request: Request, response: Response | None, direction: Direction, verdict: Verdict
) -> Inspector | None:
    """Open a filter for this direction of this exchange, or None. `verdict.inspect` names what the rule asks for.

    Plugins with the capability `secrets` come first on responses, so that the others see redacted bytes, and are opened
    with a redacted head. Of a WebSocket one is opened for each message, either way, with the 101 as its response.
    """


@hookspec
def judge_response(request: Request, response: Response) -> Verdict | None:
    """Judge the head of a response before any of it reaches the guest. Only a denial has an effect."""


@hookspec
def connected(guest: Guest, target: Target, address: str) -> None:
    """A new upstream session was opened: TCP to this validated address, and TLS verified if it is https."""


@hookspec
def request_done(record: AuditRecord) -> None:
    """An exchange ended, well or not; this is its terminal record."""


@hookspec
def denied(record: AuditRecord) -> None:
    """A request or tunnel was refused; this is its terminal record. Runs besides `request_done`."""


@hookspec
def export_audit(records: list[AuditRecord]) -> None:
    """A batch of records is safely in the journal: send it on. Must not block; the journal stays the truth."""


@hookspec
def register_metrics(registry: Any) -> None:
    """At start: add collectors to this `prometheus_client.CollectorRegistry`."""
