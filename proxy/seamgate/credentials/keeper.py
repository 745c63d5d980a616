"""What the credentials plugin does: supplies values, keeps them from leaving elsewhere, takes them out of answers.

One for each generation of the configuration, made by the plugin (`seamgate_plugins.credentials`), whose hooks are those
of a `Keeper` of the same names. Called several times a request, so a room of its own that can be compiled. No I/O but
that of the sources.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from seamgate.credentials.binding import Binding
from seamgate.credentials.config import CredentialConfig
from seamgate.credentials.finding import Finding, Surface
from seamgate.credentials.guard import LeakGuard, leaking
from seamgate.credentials.injection import Injector
from seamgate.credentials.known import KnownValues, LiveSet
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.probing import Probes, probing_message
from seamgate.credentials.redaction import Redactor
from seamgate.credentials.scanner import RequestScanner
from seamgate.credentials.secret import Secret
from seamgate.credentials.sources import Source, go_on_with, open_source
from seamgate.errors import CredentialError, Reason
from seamgate.flow import BodyState, Direction, Request, Response, Supply, Target
from seamgate.headers import Headers, find_header
from seamgate.hookspecs import Inspector
from seamgate.tasks import spawn
from seamgate.verdict import Verdict, deny

if TYPE_CHECKING:
    from seamgate.registry import Hosts, SharedState

log = structlog.get_logger("seamgate.credentials")

_RESPONSE: Final = Direction.RESPONSE  # asked for each answer; as a name of the enumeration it is a slow look-up
LOAD_S: Final = 30.0
"""How long a start waits for values that take a command."""
_HOSTS_REMEMBERED: Final = 4096
"""Redaction sets kept by host. Beyond it all are forgotten: only wildcard bindings get there."""


class _Credential:
    """One credential, put together. Its repr shows its name."""

    __slots__ = ("binding", "config", "injector", "learnt", "name", "showing", "shown", "source", "swapped_in")

    def __init__(
        self, name: str, config: CredentialConfig, index: PlaceholderIndex, secret_variables: frozenset[str]
    ) -> None:
        self.name = name
        self.config = config
        self.binding = Binding(name, config)
        self.injector = Injector(name, config, index)
        self.swapped_in = config.swapped_in
        self.source: Source = open_source(
            name, config.source, environ=os.environ, monotonic=time.monotonic, secret_variables=secret_variables
        )
        self.learnt: tuple[Secret, ...] = ()  # of the source's, those that are looked for here
        self.shown: tuple[Secret, ...] = ()  # and those that all other workers look for
        self.showing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<credential {self.name}>"


class Keeper:
    """The credentials of one generation.

    Args:
        configs: all that are configured, checked.
        hidden: variables of the environment that no command of a source sees.
        shared: what all workers have in common; None where this process is all of the gateway.
        deny_in_bodies: whether a body may not tell a placeholder to just any host.

    Raises:
        ConfigError: a source can't be used.
    """

    def __init__(
        self,
        configs: Mapping[str, CredentialConfig],
        *,
        hidden: frozenset[str],
        shared: SharedState | None,
        deny_in_bodies: bool,
    ) -> None:
        self.placeholders = PlaceholderIndex(configs)
        self.credentials = {
            name: _Credential(name, config, self.placeholders, hidden) for name, config in configs.items()
        }
        self._deny_in_bodies = deny_in_bodies
        self._shared = shared
        self._probes = Probes() if shared is None else Probes(shared.findings)
        known = KnownValues()
        for name, each in self.credentials.items():
            known.bind(name, each.config.hosts, each.binding, allow_ranges=each.config.allow_ranges)
        known.expected = frozenset(self.credentials)
        if deny_in_bodies:
            known.placeholders = tuple([(self.placeholders.owner(text), text) for text in self.placeholders.texts])
        self._known = known
        self._look_for(known)

    def __repr__(self) -> str:
        return f"<Keeper of {', '.join(self.credentials) or 'no credentials'}>"

    def _look_for(self, known: KnownValues) -> None:
        """Search for what is known there from now on."""
        self._known = known
        self._learn()
        self._redaction: dict[str, _Redaction] = {}
        self._named: dict[str, bool] = {}  # host -> whether a value stands in it, of this version of what is known
        self._named_of = known.version
        self._leaving = LiveSet(known)
        self._scanner = RequestScanner(self.placeholders, known.values())
        self._scanned = known.version

    async def load_values(self, before: Keeper | None = None) -> None:
        """Fetch what takes a command, so that no request meets a value that is not known; tell it to other workers.

        One that gives none now is asked again when it is needed; until then answers of its hosts are refused.
        """
        if before is not None:
            self._take_over(before)
        pending = [
            spawn(each.source.fetch(), name=f"credential {each.name}", on_error=_told_by_the_source)
            for each in self.credentials.values()
            if not each.source.known
        ]
        if pending:
            await asyncio.wait(pending, timeout=LOAD_S)
        self._learn()
        for each in self.credentials.values():
            if not each.source.known:
                log.warning("a credential has no value yet: answers of its hosts are refused", credential=each.name)
        if self._shared is not None and self.credentials:
            try:
                await self._show(self._shared, list(self.credentials.values()))
            except CredentialError as error:  # tried again before one of them is put in
                log.warning("the values of credentials are not known to all workers", problem=error.message)

    def learn_values(self, origin: int, values: Mapping[str, tuple[bytes, ...]], hosts: Hosts) -> None:
        """Look for the values that another worker is about to put in, and in what comes from its hosts for them."""
        for name, bindings in hosts.items():
            self._known.learn_hosts(name, bindings)
        for name, exact in values.items():
            self._known.learn(name, [Secret(value, name=name) for value in exact], origin)

    def go_on_from(self, before: Keeper) -> None:
        """Go on with what was known, and what guests found out so far: a reload forgets and forgives nothing."""
        self._probes = before._probes
        self._take_over(before)
        self._learn()
        before._known.take(self._known)
        self._look_for(before._known)

    def _take_over(self, before: Keeper) -> None:
        for name, each in self.credentials.items():
            old = before.credentials.get(name)
            if old is not None and old.config.source == each.config.source:
                go_on_with(old.source, each.source)

    # -- in ----------------------------------------------------------------------------------------------------------

    def supply_credential(self, request: Request, credential: str) -> Supply | Awaitable[Supply] | None:
        """Return what to put in: at once if the value is at hand, else an awaitable; None if the name is not ours.

        Raises:
            CredentialError: it must not go with this request, or there is no value.
        """
        known = self.credentials.get(credential)
        if known is None:
            return None
        if self._probes.spent(request.guest.id):
            raise CredentialError(probing_message(), reason=Reason.SECRET_PROBED)
        if request.target.scheme != "https" and not known.config.allow_http:
            raise CredentialError(_over_plaintext(credential), reason=Reason.CREDENTIAL_OVER_PLAINTEXT)
        if not known.binding.covers(request):
            raise CredentialError(
                f"credential {credential!r} is not bound to {request.method} {request.target.authority}{request.path}",
                reason=Reason.CREDENTIAL_UNBOUND,
            )
        secret = known.source.current()
        if secret is None:
            return self._supply_later(known, request)
        return self._supply_now(known, request, secret)

    async def _supply_later(self, known: _Credential, request: Request) -> Supply:
        supply = self._supply_now(known, request, await known.source.fetch())
        return supply if isinstance(supply, Supply) else await supply

    def _supply_now(self, known: _Credential, request: Request, secret: Secret) -> Supply | Awaitable[Supply]:
        """Put a value in that all searches know: those of this process at once, those of others once they say so."""
        if known.source.known is not known.learnt:
            self._learn()
        if self._shared is not None and known.source.known is not known.shown:
            return self._supply_shown(self._shared, known, request, secret)
        return known.injector.supply(request, secret)

    async def _supply_shown(self, shared: SharedState, known: _Credential, request: Request, secret: Secret) -> Supply:
        while known.source.known is not known.shown:
            if known.showing is None or known.showing.done():
                work, name = self._show(shared, [known]), f"tell workers of {known.name}"
                known.showing = spawn(work, name=name, on_error=_told_by_the_source)
            await asyncio.shield(known.showing)
        return known.injector.supply(request, secret)

    async def _show(self, shared: SharedState, credentials: list[_Credential]) -> None:
        """Have all workers look for the present values."""
        values = {each.name: each.source.known for each in credentials if each.source.known}
        if values:
            exact = {name: tuple([each.reveal() for each in known]) for name, known in values.items()}
            await shared.share_secrets(exact, {name: self._known.hosts_of(name) for name in exact})
        for each in credentials:
            each.shown = values.get(each.name, ())

    def _learn(self) -> None:
        """Take note of the sources' present values."""
        for each in self.credentials.values():
            if each.source.known is not each.learnt:
                each.learnt = each.source.known
                self._known.learn(each.name, each.learnt)

    def _scan(self) -> RequestScanner:
        """Return what searches requests for all that is known by now."""
        if self._scanned != self._known.version:
            self._scanner = RequestScanner(self.placeholders, self._known.values())
            self._scanned = self._known.version
        return self._scanner

    def shows_secret(self, text: str) -> bool:
        """Return whether a real value stands in a text: then it is in no record."""
        return self._leaving.now().shows(text.encode("utf-8", "surrogatepass"))

    # -- out ---------------------------------------------------------------------------------------------------------

    def judge_connect(self, target: Target) -> Verdict | None:
        """Deny a name in which a real value stands: to look it up would tell the value to name servers."""
        return self._name_shown(target)

    def _name_shown(self, target: Target) -> Verdict | None:
        if self._named_of != self._known.version or len(self._named) >= _HOSTS_REMEMBERED:
            self._named, self._named_of = {}, self._known.version
        host = target.host
        shown = self._named.get(host)
        if shown is None:
            shown = self._named[host] = self.shows_secret(host)
        if not shown:
            return None
        return deny("a credential's real value stands in the host's name", reason=Reason.SECRET_LEAVING)

    def _leaks_in_lines(self, body: bytes) -> bool:
        """Return whether a value stands in a body in lines of base64 (MIME), which may stand in JSON."""
        leaving = self._leaving.now()
        if body.find(b"\n") >= 0 and leaving.hit_in_lines(body):
            return True
        if body.find(b"\\n") < 0:
            return False
        return leaving.hit_in_lines(body.replace(b"\\r", b"").replace(b"\\n", b"\n"))

    def judge_request(self, request: Request) -> Verdict | None:
        """Deny a placeholder or a real value where it does not belong, and a guest that guesses; else no opinion."""
        if self._probes.spent(request.guest.id):
            return deny(probing_message(), reason=Reason.SECRET_PROBED)
        named = self._name_shown(request.target)
        if named is not None:
            return named
        scanner = self._scan()
        if request.body is not None and self._leaks_in_lines(request.body):
            return deny(_IN_LINES, reason=Reason.SECRET_LEAVING)
        if not scanner.suspicious(request):
            return None
        for finding in scanner.findings(request):
            verdict = self._judge(request, finding)
            if verdict is not None:
                return verdict
        return None

    def _judge(self, request: Request, finding: Finding) -> Verdict | None:
        if finding.leaking:
            return deny(leaking(finding.name, f"the request ({finding.surface})"), reason=Reason.SECRET_LEAVING)
        known = self.credentials.get(finding.name)
        if known is None:
            return _misplaced("a placeholder stands in the request that belongs to no credential: check its name")
        if finding.surface is Surface.BODY:
            return self._judge_in_body(request, known)
        if not known.binding.covers(request):
            return _misplaced(
                f"the placeholder of the credential {known.name!r} stands in a request that it is not bound to:"
                f" {request.method} {request.target.authority}{request.path}"
            )
        if request.target.scheme != "https" and not known.config.allow_http:
            return deny(_over_plaintext(known.name), reason=Reason.CREDENTIAL_OVER_PLAINTEXT)
        return None if self._swapped(finding, known) else _misplaced(_not_swapped(finding, known))

    def _swapped(self, finding: Finding, known: _Credential) -> bool:
        if finding.surface is Surface.HEADERS:
            return not finding.encoded and finding.header in known.swapped_in
        return not finding.encoded and finding.surface is Surface.QUERY and known.config.swap_query

    def _judge_in_body(self, request: Request, known: _Credential) -> Verdict | None:
        if not self._deny_in_bodies or known.binding.covers(request):
            return None
        return _misplaced(_in_body(known.name, request))

    def _refuse_in_body(self, request: Request, name: str) -> None:
        """Let no placeholder leave in a body that streams past, unless its credential is bound to the request."""
        known = self.credentials.get(name)
        # One that is not of this generation is of a newer one, of which this one knows the hosts.
        covers = name in self._known.bound_to(request.target)[0] if known is None else known.binding.covers(request)
        if not covers:
            raise CredentialError(_in_body(name, request), reason=Reason.PLACEHOLDER_MISPLACED)

    # -- back --------------------------------------------------------------------------------------------------------

    def open_inspector(
        self, request: Request, direction: Direction, response: Response | None = None
    ) -> Inspector | None:
        """Open a redactor for a response of a host that any credential is bound to, a guard for what a guest sends.

        A body that was read to be judged was searched then, as a whole, but for what its coding carries beside it.
        """
        probe = self._probes.of(request.guest.id)
        if direction is not _RESPONSE:
            if response is not None:
                return MessageGuard(self._scan())
            if request.body_state is BodyState.ABSENT:
                return None
            if request.body is not None and find_header(request.headers, b"content-encoding") is None:
                return None
            leaving = self._leaving
            if not self.credentials and not leaving.now():
                return None
            refuse = partial(self._refuse_in_body, request)
            return LeakGuard(leaving.now(), probe, renew=leaving.now, refuse=refuse)
        redaction = self._redaction.get(request.target.host)
        if redaction is None or redaction.missing or redaction.version != self._known.version:
            redaction = self._redaction_of(request.target)
        if redaction.missing:
            self._refuse_unknown(redaction.missing[0], request.target)
        patterns = redaction.live.now()
        if not patterns:
            return None
        return Redactor(patterns, probe, needs_whole=redaction.needs_whole, renew=redaction.live.now)

    def _redaction_of(self, target: Target) -> _Redaction:
        """Return what to take out of the answers of a host, by what is known now."""
        known = self._known
        names, allow_ranges = known.bound_to(target)
        missing = tuple([name for name in names if self._is_missing(name)])
        made = _Redaction(LiveSet(known, target), not allow_ranges, missing, known.version)
        if len(self._redaction) >= _HOSTS_REMEMBERED:
            self._redaction.clear()
        self._redaction[target.host] = made
        return made

    def _is_missing(self, name: str) -> bool:
        """Return whether a value may come that nobody knows: those of the source before a reload tell nothing of it."""
        ours = self.credentials.get(name)
        unknown = not self._known.has(name) if ours is None else not ours.source.known
        return unknown and name in self._known.expected

    def _refuse_unknown(self, name: str, target: Target) -> None:
        """Let no answer pass that may hold a value which nobody here knows, and ask for it.

        Raises:
            CredentialError: always.
        """
        known = self.credentials.get(name)
        if known is not None:  # else it is the newer generation's to ask
            spawn(self._fetched(known.source.fetch()), name=f"credential {name}", on_error=_told_by_the_source)
        raise CredentialError(
            f"an answer of {target.host} can't be searched for the value of the credential {name!r}: its"
            " source has given none yet; see the gateway's log"
        )

    async def _fetched(self, fetch: Coroutine[Any, Any, Secret]) -> None:
        await fetch
        self._learn()


class _Redaction:
    """What is taken out of the answers of one host.

    Attributes:
        missing: the credentials of which no value is known.
        version: of what is known, when this was made.
    """

    __slots__ = ("live", "missing", "needs_whole", "version")

    def __init__(self, live: LiveSet, needs_whole: bool, missing: tuple[str, ...], version: int) -> None:
        self.live = live
        self.needs_whole = needs_whole
        self.missing = missing
        self.version = version


_IN_LINES: Final = (
    "the real value of a credential stands in the request (body), in base64 in lines: no guest should know it;"
    " replace it at its issuer"
)


def _told_by_the_source(_: BaseException) -> None:
    """Who waits has it, and the log: there is nothing to add."""


class MessageGuard:
    """Keeps real values from leaving in a message of a WebSocket. Placeholders there are the core's matter."""

    def __init__(self, scanner: RequestScanner) -> None:
        self._scanner = scanner
        self._held = b""

    def head(self, headers: Headers) -> Headers:
        """Return the headers, which a message does not have."""
        return headers

    def feed(self, data: bytes) -> bytes:
        """Hold the message until it is whole."""
        self._held += data
        return b""

    def flush(self) -> bytes:
        """Give out nothing before it is looked through."""
        return b""

    def finish(self) -> bytes:
        """Return the message.

        Raises:
            CredentialError: a real value stands in it.
        """
        for finding in self._scanner.body_findings(self._held):
            if finding.leaking:
                raise CredentialError(leaking(finding.name, "a message"), reason=Reason.SECRET_LEAVING)
        return self._held


def _in_body(name: str, request: Request) -> str:
    return (
        f"the body of the request holds the placeholder of the credential {name!r}, which is not bound to"
        f" {request.target.authority}"
    )


def _misplaced(message: str) -> Verdict:
    return deny(message, reason=Reason.PLACEHOLDER_MISPLACED)


def _not_swapped(finding: Finding, known: _Credential) -> str:
    """The sentence, without anything that the guest sent but a header's name, which is a token of ASCII."""
    headers = " or ".join(sorted(name.decode("ascii") for name in known.swapped_in))
    place = f"header {finding.header.decode('ascii', 'replace')[:64]}" if finding.header else str(finding.surface)
    return (
        f"the placeholder of the credential {known.name!r} stands where it is not swapped ({place}): send it as it is"
        f" in the header {headers}, or name the header in swap_headers"
    )


def _over_plaintext(name: str) -> str:
    return f"the credential {name!r} never goes over plain http: ask over https"
