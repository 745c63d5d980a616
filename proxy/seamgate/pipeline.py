"""Runs the hooks: in the configuration's order, one by one, with name, clock and verdict of each; fails closed.

Called by the exchange (and by `policy test`, `policy explain` and the plugin kit, so that they judge as the gateway
does). pluggy finds and checks the hooks; calling them is done here, because its own calls lose names, results and
order. The hooks of a generation are compiled once into tuples per stage, so that a stage that nobody implements costs
a truth test.

An exception in a plugin, or more time than its budget, denies with `plugin_failed` or `plugin_overrun`; a guest whose
requests make plugins slow again and again is refused with `plugin_time_spent`. Observers can't deny: their failures are
counted and logged.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from seamgate import hookspecs
from seamgate.credentials.probing import Probes
from seamgate.errors import PluginError, Reason, SeamgateError
from seamgate.flow import (
    Amendment,
    BodyState,
    Direction,
    Guest,
    Request,
    Resolution,
    Response,
    Step,
    Supply,
    Target,
)
from seamgate.headers import Headers, apply_amendment, field_problem
from seamgate.hookspecs import Inspector, direct_hooks
from seamgate.plugin_time import SLOW_PART, PluginTime
from seamgate.registry import LoadedPlugin
from seamgate.verdict import NO_OPINION, Effect, Verdict, deny, fold

if TYPE_CHECKING:
    from seamgate.audit.record import AuditRecord

log = structlog.get_logger("seamgate.pipeline")

DEFAULT_BUDGET_S = 0.25
"""Wall time that one synchronous hook call may take: some 1,000 times what the built-in ones do, so that only a hang
or an accidental scan trips it, and short enough that other guests are not starved."""
DEFAULT_GUEST_S = 2.0
"""What slow calls may cost on behalf of one guest: see `seamgate.plugin_time`."""

_ALLOW: Final = Effect.ALLOW
_DENY: Final = Effect.DENY
# What is asked for several times a request, without a look-up by name each time.
_now_ns: Final = perf_counter_ns
_step: Final = Step
_Verdict: Final = Verdict
_Supply: Final = Supply
_Resolution: Final = Resolution


class PluginStats:
    """What one plugin's hook, or its inspectors (hook "inspector"), cost so far. Read by metrics and status.

    Attributes:
        denials: calls that denied or refused; those that failed or overran are not among them.
    """

    __slots__ = ("calls", "denials", "failures", "hook", "overruns", "plugin", "total_ns")

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin = plugin
        self.hook = hook
        self.calls = 0
        self.denials = 0
        self.failures = 0
        self.overruns = 0
        self.total_ns = 0


class _Call:
    """One implementation of one hook, called with the hook's arguments in the specification's order.

    A plugin takes a subset of them by name; `_places` says where each of those stands. `direct`: what is called in
    place of the method.
    """

    __slots__ = ("_function", "_places", "plugin", "stats")

    def __init__(
        self,
        plugin: str,
        hook: str,
        function: Callable[..., Any],
        stats: PluginStats,
        direct: Callable[..., Any] | None = None,
    ) -> None:
        every = tuple(inspect.signature(getattr(hookspecs, hook)).parameters)
        self.plugin = plugin
        self.stats = stats
        self._function = function if direct is None else direct
        self._places = tuple([every.index(name) for name in inspect.signature(function).parameters])

    def ask(self, given: tuple[Any, ...]) -> Any:
        """Call it. Spelt out for the few that occur, since a general call costs three times as much per request."""
        places, function = self._places, self._function
        wanted = len(places)
        if wanted == 1:
            return function(given[places[0]])
        if wanted == 2:
            return function(given[places[0]], given[places[1]])
        if wanted == 3:
            return function(given[places[0]], given[places[1]], given[places[2]])
        if wanted == 4:
            return function(given[places[0]], given[places[1]], given[places[2]], given[places[3]])
        return function(*[given[place] for place in places])


class _Lineage:
    """What all generations of one gateway's pipeline have in common."""

    __slots__ = ("newest",)

    def __init__(self, newest: Pipeline) -> None:
        self.newest = newest


class Pipeline:
    """The hooks of one generation. Immutable after construction, apart from its counters."""

    def __init__(
        self,
        plugins: Sequence[LoadedPlugin],
        *,
        generation: int = 1,
        budget_s: float = DEFAULT_BUDGET_S,
        guest_plugin_s: float = DEFAULT_GUEST_S,
    ) -> None:
        self.plugins = tuple(plugins)
        self.generation = generation
        self.stats: list[PluginStats] = []
        self._calls: list[_Call] = []
        self.redacts_supplies = any(
            "supply_credential" in plugin.hooks and "open_inspector" not in plugin.hooks for plugin in plugins
        )
        """Whether a plugin supplies credentials without redacting answers: then the core does it for it."""
        asked = [getattr(each.plugin, "shows_secret", None) for each in plugins if "secrets" in each.capabilities]
        self._shows_secret: list[Callable[[str], bool]] = [shows for shows in asked if shows is not None]
        self.knows_secrets = bool(self._shows_secret)
        """Whether a plugin can say if a text shows a credential's real value."""
        self.departed: tuple[Guest, ...] = ()
        """Guests that a reload has removed or changed: nothing is allowed in the name of these very objects."""
        self._departed: frozenset[int] = frozenset()
        self.probes = Probes()
        """Who guesses at what the core redacts; lasts over reloads."""
        self.plugin_time = PluginTime(guest_plugin_s)
        """What slow calls cost on behalf of each guest; lasts over reloads."""
        self._budget_s = budget_s
        self._budget_ns = int(budget_s * 1e9)
        self._slow_ns = int(budget_s * 1e9 * SLOW_PART)
        self._judge_connect = self._compile("judge_connect")
        self._judge_request = self._compile("judge_request")
        self._judge_response = self._compile("judge_response")
        self._amend_request = self._compile("amend_request")
        self._resolve_name = self._compile("resolve_name")
        self._supply_credential = self._compile("supply_credential")
        self._open_trusted = self._compile("open_inspector", trusted=True)
        self._open_others = self._compile("open_inspector", trusted=False)
        self._lineage = _Lineage(self)
        self.inspector_stats = {
            call.plugin: PluginStats(call.plugin, "inspector") for call in self._open_trusted + self._open_others
        }
        self.stats += self.inspector_stats.values()
        self._connected = self._compile("connected")
        self._request_done = self._compile("request_done")
        self._denied = self._compile("denied")
        self._export_audit = self._compile("export_audit")
        self._register_metrics = self._compile("register_metrics")

    def __repr__(self) -> str:
        return f"<Pipeline generation {self.generation}: {', '.join(plugin.name for plugin in self.plugins)}>"

    def _compile(self, hook: str, *, trusted: bool | None = None) -> tuple[_Call, ...]:
        plugins: Iterable[LoadedPlugin] = (plugin for plugin in self.plugins if hook in plugin.hooks)
        if trusted is not None:
            plugins = (plugin for plugin in plugins if ("secrets" in plugin.capabilities) is trusted)
        calls = []
        for plugin in plugins:
            stats = PluginStats(plugin.name, hook)
            self.stats.append(stats)
            direct = direct_hooks(plugin.plugin).get(hook)
            calls.append(_Call(plugin.name, hook, getattr(plugin.plugin, hook), stats, direct))
        self._calls += calls
        return tuple(calls)

    def go_on_counting(self, before: Pipeline) -> None:
        """Go on with the very counters of the generation before, so that none ever falls.

        What outlives the reload goes on counting in the pipeline that it began with: what it counts is not lost.
        Nor is forgotten who guesses, or keeps plugins busy.
        """
        self._lineage = before._lineage
        self._lineage.newest = self
        self.probes = before.probes
        before.plugin_time.most_s = self.plugin_time.most_s
        self.plugin_time = before.plugin_time
        known = {(stats.plugin, stats.hook): stats for stats in before.stats}
        shared = {id(stats): known.get((stats.plugin, stats.hook), stats) for stats in self.stats}
        self.stats = [shared[id(stats)] for stats in self.stats]
        self.inspector_stats = {plugin: shared[id(stats)] for plugin, stats in self.inspector_stats.items()}
        for call in self._calls:
            call.stats = shared[id(call.stats)]

    def see_off(self, guests: Iterable[Guest]) -> None:
        """Deny from now on whatever is asked in the name of these guests, as far as it is these very objects."""
        self.departed = (*self.departed, *guests)
        self._departed = frozenset(id(guest) for guest in self.departed)

    # -- what decides ------------------------------------------------------------------------------------------------

    def judge_connect(
        self, guest: Guest, target: Target, steps: list[Step] | None = None, *, late_denies: bool = True
    ) -> Verdict:
        """Judge a tunnel: DEFER or ALLOW let it be opened, each of its requests is judged anyway.

        `late_denies=False` is for what was admitted once: a late answer is counted as an overrun, and counts as it is.
        """
        if self._departed and id(guest) in self._departed:
            return _departed(guest)
        if late_denies and self.plugin_time.accounts and (spent := self.plugin_time.refusal(guest.id)) is not None:
            return spent
        return self._judge(self._judge_connect, (guest, target), steps, late_denies=late_denies)

    def judge_request(self, request: Request, steps: list[Step] | None = None, *, late_denies: bool = True) -> Verdict:
        """Judge a request in its present phase. DEFER: judge again with the body. For `late_denies` see above."""
        if self._departed and id(request.guest) in self._departed:
            return _departed(request.guest)
        if late_denies and self.plugin_time.accounts:
            spent = self.plugin_time.refusal(request.guest.id)
            if spent is not None:
                return spent
        return self._judge(self._judge_request, (request,), steps, late_denies=late_denies)

    def judge_trailers(
        self, request: Request, trailers: Headers, steps: list[Step], *, late_denies: bool = True
    ) -> Verdict | None:
        """Judge what came late as if it had come with the head. None if that is allowed: what can't be told denies.

        What a rule asks of a body that was not held can't be told any more.
        """
        state = BodyState.OVERSIZE if request.body_state is BodyState.PENDING else request.body_state
        late = msgspec.structs.replace(request, headers=(*request.headers, *trailers), body_state=state)
        verdict = self.judge_request(late, steps, late_denies=late_denies)
        if verdict.effect is Effect.DEFER:
            return deny(verdict.message, reason=Reason.UNEVALUABLE, rule=verdict.rule)
        return None if verdict.allowed else verdict

    def judge_all(self, request: Request, trailers: Headers, steps: list[Step], *, late_denies: bool = True) -> Verdict:
        """Judge a request whose trailers may be here: it must be allowed without them, and not denied with them."""
        verdict = self.judge_request(request, steps, late_denies=late_denies)
        if not (trailers and verdict.allowed):
            return verdict
        return self.judge_trailers(request, trailers, steps, late_denies=late_denies) or verdict

    def judge_response(self, request: Request, response: Response, steps: list[Step]) -> Verdict | None:
        """Judge a response head. None unless a plugin denies."""
        if not self._judge_response:
            return None
        verdict = self._judge(self._judge_response, (request, response), steps)
        return verdict if verdict.effect is Effect.DENY and verdict is not NO_OPINION else None

    def _judge(
        self,
        calls: tuple[_Call, ...],
        arguments: tuple[Any, ...],
        steps: list[Step] | None,
        *,
        late_denies: bool = True,
    ) -> Verdict:
        """Ask each plugin, even after a denial, so that the audit record is whole; then fold."""
        verdicts: list[Verdict] = []
        for call in calls:
            stats = call.stats
            stats.calls += 1
            start = _now_ns()
            try:
                verdict = call.ask(arguments)
                if type(verdict) is _Verdict and verdict.effect is _DENY:
                    stats.denials += 1
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises denies
                verdict = self._failed(call, error)
            spent_ns = _now_ns() - start
            stats.total_ns += spent_ns
            if verdict is not None and type(verdict) is not _Verdict:
                verdict = self._failed(call, TypeError(f"it returned a {type(verdict).__name__}"))
            if spent_ns > self._slow_ns:
                self._charge(arguments[0], spent_ns)
                if spent_ns > self._budget_ns:
                    overrun = _overrun(call, spent_ns)
                    if late_denies:
                        verdict = overrun
            if verdict is not None:
                verdicts.append(verdict)
            if steps is not None:
                outcome = "none" if verdict is None else _outcome(verdict)
                steps.append(_step(call.plugin, stats.hook, spent_ns / 1000, outcome))
        return verdicts[0] if len(verdicts) == 1 else fold(verdicts)

    def _charge(self, asked: Any, spent_ns: int) -> None:
        """Put a slow call on the account of the guest, where it is known whose it was: not where names are resolved."""
        guest = asked if type(asked) is Guest else asked.guest if type(asked) is Request else None
        if guest is not None:
            self.plugin_time.charge(guest.id, spent_ns / 1e9, self._budget_s)

    def _failed(self, call: _Call, error: Exception) -> Verdict:
        """Whatever a plugin raises, or a value that is no verdict, denies."""
        call.stats.failures += 1
        hook = call.stats.hook
        log.error("plugin failed", plugin=call.plugin, hook=hook, error=type(error).__name__, exc_info=error)
        return deny(f"plugin {call.plugin} failed in {hook}; its log says why", reason=Reason.PLUGIN_FAILED)

    # -- what changes ------------------------------------------------------------------------------------------------

    @property
    def amends(self) -> bool:
        """Whether any plugin may amend requests."""
        return bool(self._amend_request)

    def amend_request(self, request: Request, steps: list[Step]) -> Request:
        """Return the request with all amendments applied, in order.

        Raises:
            PluginError: a plugin failed, or sets a field that none may set; the request is denied.
        """
        for call in self._amend_request:
            amendment = self._value(call, (request,), Amendment, steps, "amended")
            if amendment is not None:
                problem = field_problem(amendment.set_headers)
                if problem:
                    call.stats.failures += 1
                    raise PluginError(f"plugin {call.plugin} may not amend the request so: {problem}")
                headers = apply_amendment(request.headers, amendment.set_headers, amendment.remove_headers)
                request = msgspec.structs.replace(request, headers=headers)
        return request

    def resolve_name(self, name: str, steps: list[Step]) -> Resolution | Awaitable[Resolution | None] | None:
        """Ask for the addresses of a name: at once if the first plugin knows them, else an awaitable.

        Raises:
            SeamgateError: the name has no address, or a plugin failed.
        """
        found: Resolution | Awaitable[Resolution | None] | None = self._first(
            self._resolve_name, (name,), _Resolution, steps, "resolved"
        )
        return found

    def supply_credential(
        self, request: Request, credential: str, steps: list[Step]
    ) -> Supply | Awaitable[Supply | None] | None:
        """Ask for a credential: at once where a plugin holds it, else an awaitable. None: nobody has it.

        Raises:
            SeamgateError: it can't be supplied, or a plugin failed.
        """
        found: Supply | Awaitable[Supply | None] | None = self._first(
            self._supply_credential, (request, credential), _Supply, steps, "supplied"
        )
        return found

    def open_inspectors(
        self,
        request: Request,
        response: Response | None,
        direction: Direction,
        verdict: Verdict,
        steps: list[Step],
        *,
        trusted: bool | None = None,
    ) -> list[tuple[str, Inspector]]:
        """Open the filters of one direction: (plugin, inspector), those with the capability `secrets` first.

        `trusted` asks only those with it, or only those without: these may see a response's head after redaction only.
        Those with it are also the ones that a newer generation has and this one has not.

        Raises:
            PluginError: a plugin failed; the exchange is denied.
        """
        opened = []
        calls = self._open_others if trusted is False else self._open_trusted
        if trusted is not False and self._lineage.newest is not self:
            calls = self._with_newer(calls)
        for call in calls + self._open_others if trusted is None else calls:
            inspector = self._value(call, (request, response, direction, verdict), None, steps, "opened")
            if inspector is not None:
                opened.append((call.plugin, inspector))
        return opened

    def _with_newer(self, calls: tuple[_Call, ...]) -> tuple[_Call, ...]:
        known = {call.plugin for call in calls}
        return (*calls, *[call for call in self._lineage.newest._open_trusted if call.plugin not in known])

    def open_anew(
        self, request: Request, response: Response | None, direction: Direction, verdict: Verdict, steps: list[Step]
    ) -> list[tuple[str, Inspector]]:
        """Open what the newest generation's plugins with the capability `secrets` look for in a body under way.

        Raises:
            SeamgateError: one of them refuses it, or failed.
        """
        return self._lineage.newest.open_inspectors(request, response, direction, verdict, steps, trusted=True)

    def _value(
        self, call: _Call, arguments: tuple[Any, ...], kind: type | None, steps: list[Step], outcome: str
    ) -> Any:
        """One call of a hook that returns a value; a wrong type is a failure. None leaves no step."""
        stats = call.stats
        stats.calls += 1
        start = _now_ns()
        try:
            value = call.ask(arguments)
        except SeamgateError:
            stats.denials += 1
            steps.append(_step(call.plugin, stats.hook, (_now_ns() - start) / 1000, "refused"))
            raise
        except Exception as error:
            self._failed(call, error)
            steps.append(_step(call.plugin, stats.hook, (_now_ns() - start) / 1000, "failed"))
            raise PluginError(f"plugin {call.plugin} failed in {stats.hook}") from error
        spent_ns = _now_ns() - start
        stats.total_ns += spent_ns
        if spent_ns > self._slow_ns:
            self._charge(arguments[0], spent_ns)
        if spent_ns > self._budget_ns:
            stats.overruns += 1
            steps.append(_step(call.plugin, stats.hook, spent_ns / 1000, "overrun"))
            raise PluginError(f"plugin {call.plugin} overran in {stats.hook}", reason=Reason.PLUGIN_OVERRUN)
        if value is None:
            return None
        steps.append(_step(call.plugin, stats.hook, spent_ns / 1000, outcome))
        if kind is not None and type(value) is not kind and not inspect.isawaitable(value):
            self._failed(call, TypeError(f"it returned a {type(value).__name__}"))
            raise PluginError(f"plugin {call.plugin} returned a {type(value).__name__} from {stats.hook}")
        return value

    def _first(
        self, calls: tuple[_Call, ...], arguments: tuple[Any, ...], kind: type, steps: list[Step], outcome: str
    ) -> Any:
        """The first answer wins. Once one is awaitable, the rest of the walk is awaitable too."""
        for place, call in enumerate(calls):
            value = self._value(call, arguments, kind, steps, outcome)
            if value is None:
                continue
            if type(value) is kind:
                return value
            return self._first_later(calls, place, value, arguments, kind, steps, outcome)
        return None

    async def _first_later(
        self,
        calls: tuple[_Call, ...],
        place: int,
        pending: Awaitable[Any],
        arguments: tuple[Any, ...],
        kind: type,
        steps: list[Step],
        outcome: str,
    ) -> Any:
        """Await the pending answer of the call at `place`; if it is None, go on with those after it."""
        call = calls[place]
        start = _now_ns()
        try:
            value = await pending
        except SeamgateError:
            call.stats.denials += 1
            raise
        except Exception as error:
            call.stats.failures += 1
            log.error("plugin failed", plugin=call.plugin, hook=call.stats.hook, error=type(error).__name__)
            raise PluginError(f"plugin {call.plugin} failed in {call.stats.hook}") from error
        steps.append(_step(call.plugin, call.stats.hook, (_now_ns() - start) / 1000, "awaited"))
        if value is None:
            following = self._first(calls[place + 1 :], arguments, kind, steps, outcome)
            return await following if inspect.isawaitable(following) else following
        if not isinstance(value, kind):
            raise PluginError(f"plugin {call.plugin} returned a {type(value).__name__} from {call.stats.hook}")
        return value

    def shows_secret(self, text: str) -> bool:
        """Return whether a text shows a credential's real value, as far as plugins know; one that fails says yes."""
        for shows in self._shows_secret:
            try:
                if shows(text):
                    return True
            except Exception as error:  # noqa: BLE001 - what can't be said is withheld
                log.error("plugin failed", hook="shows_secret", error=type(error).__name__)
                return True
        return False

    # -- what observes -----------------------------------------------------------------------------------------------

    @property
    def observes(self) -> bool:
        """Whether any plugin wants to see terminal records."""
        return bool(self._request_done or self._denied)

    def connected(self, guest: Guest, target: Target, address: str) -> None:
        """Tell the observers of a new upstream session."""
        self._tell(self._connected, guest, target, address)

    def request_done(self, record: AuditRecord, *, denied: bool) -> None:
        """Tell the observers of a terminal record."""
        if self._request_done:
            self._tell(self._request_done, record)
        if denied and self._denied:
            self._tell(self._denied, record)

    @property
    def exports(self) -> bool:
        """Whether any plugin exports the audit log."""
        return bool(self._export_audit)

    def export_audit(self, records: list[AuditRecord]) -> None:
        """Hand a batch of written records to the exporters."""
        if self._export_audit:
            self._tell(self._export_audit, records)

    def register_metrics(self, registry: Any) -> None:
        """Let plugins add their collectors."""
        self._tell(self._register_metrics, registry)

    def _tell(self, calls: tuple[_Call, ...], *arguments: object) -> None:
        for call in calls:
            call.stats.calls += 1
            start = _now_ns()
            try:
                call.ask(arguments)
            except Exception as error:  # noqa: BLE001 - an observer can't change anything, not even by failing
                call.stats.failures += 1
                log.error("plugin failed", plugin=call.plugin, hook=call.stats.hook, error=type(error).__name__)
            call.stats.total_ns += _now_ns() - start


def _departed(guest: Guest) -> Verdict:
    message = f"the guest {guest.id!r} was removed from the configuration, or its token or labels are others now"
    return deny(message, reason=Reason.UNAUTHENTICATED)


def _outcome(verdict: Verdict) -> str:
    if verdict.effect is _ALLOW:
        return "allow"
    if verdict.effect is Effect.DEFER:
        return "defer"
    if verdict.reason is Reason.PLUGIN_FAILED:
        return "failed"
    return "overrun" if verdict.reason is Reason.PLUGIN_OVERRUN else "deny"


def _overrun(call: _Call, spent_ns: int) -> Verdict:
    call.stats.overruns += 1
    message = f"plugin {call.plugin} took {spent_ns // 1_000_000} ms in {call.stats.hook}"
    return deny(message, reason=Reason.PLUGIN_OVERRUN)
