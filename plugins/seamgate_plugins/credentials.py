"""The built-in plugin that supplies credentials, keeps them from leaving elsewhere, and takes them out of responses.

Loaded as `credentials` with the capability `secrets`. It implements three hooks: `supply_credential` puts a value in
at the last hop; `judge_request` denies placeholders and real values where they do not belong; `open_inspector` opens a
redactor for each response of a host that a credential is bound to, and a guard for each message that a guest sends over
a WebSocket. docs/credentials.md is its manual.

Options:
    placeholders_in_bodies: "deny" (the default) or "pass": whether a request may tell a placeholder to a host that its
        credential is not bound to, in a body that was read to be judged. A placeholder is no secret; an agent that
        prints its environment to a model is one who needs "pass".
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import msgspec

from seamgate import CredentialError, Direction, Inspector, Reason, Request, Response, Supply, Verdict, deny, hookimpl
from seamgate.credentials.binding import Binding
from seamgate.credentials.config import CredentialConfig, check_credentials
from seamgate.credentials.finding import Finding, Surface
from seamgate.credentials.injection import Injector
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.probing import Probes, probing_message
from seamgate.credentials.redaction import LeakGuard, RedactionSet, Redactor, leaking
from seamgate.credentials.scanner import RequestScanner
from seamgate.credentials.secret import Secret
from seamgate.credentials.sources import Source, open_source, secret_variables
from seamgate.errors import ConfigError
from seamgate.flow import BodyState, Target
from seamgate.headers import Headers

_RESPONSE = Direction.RESPONSE  # asked for each answer; as a name of the enumeration it is a slow look-up
_HOSTS_REMEMBERED = 4096
"""Redaction sets kept by host. Beyond it all are forgotten: only wildcard bindings get there."""


class _HasCredentials(Protocol):
    @property
    def credentials(self) -> Mapping[str, CredentialConfig]: ...


class _Context(Protocol):
    """What this plugin uses of `seamgate.registry.PluginContext`."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def config(self) -> _HasCredentials: ...


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """This plugin's options; see the module."""

    placeholders_in_bodies: Literal["deny", "pass"] = "deny"


class _Credential:
    """One credential, put together. Its repr shows its name."""

    __slots__ = ("binding", "config", "injector", "learnt", "name", "source", "swapped_in")

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
        self.learnt: tuple[Secret, ...] = ()  # the values that scanner and redactors know

    def __repr__(self) -> str:
        return f"<credential {self.name}>"


class CredentialsPlugin:
    """Supplies, guards and redacts the credentials of one generation of the configuration."""

    def __init__(self, context: _Context) -> None:
        """Open every source.

        Raises:
            ConfigError: a credential can't be used; the gateway does not start.
        """
        try:
            self._options = msgspec.convert(dict(context.options), Options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"options of the plugin credentials: {error}") from None
        configs = context.config.credentials
        check_credentials(configs)
        self.placeholders = PlaceholderIndex(configs)
        proxy = getattr(context.config, "upstream_proxy", None)
        hidden = secret_variables(configs, getattr(context.config, "guests", {}), proxy)
        self._credentials = {
            name: _Credential(name, config, self.placeholders, hidden) for name, config in configs.items()
        }
        self._redaction: dict[str, tuple[RedactionSet, bool]] = {}
        shared = getattr(context, "shared", None)
        self._probes = Probes() if shared is None else Probes(shared.findings)
        self._scanner = self._learn()

    def go_on_from(self, before: CredentialsPlugin) -> None:
        """Go on with what guests found out so far: a reload forgives nobody."""
        self._probes = before._probes

    @property
    def credential_names(self) -> frozenset[str]:
        """What this plugin can supply; the registry checks what rules select against it."""
        return frozenset(self._credentials)

    def __repr__(self) -> str:
        return f"<CredentialsPlugin: {', '.join(self._credentials) or 'no credentials'}>"

    # -- in ----------------------------------------------------------------------------------------------------------

    @hookimpl
    def supply_credential(self, request: Request, credential: str) -> Supply | Awaitable[Supply] | None:
        """Return what to put in: at once if the value is at hand, else an awaitable; None if the name is not ours.

        Raises:
            CredentialError: it must not go with this request, or there is no value.
        """
        known = self._credentials.get(credential)
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
        return self._supply_now(known, request, await known.source.fetch())

    def _supply_now(self, known: _Credential, request: Request, secret: Secret) -> Supply:
        if known.source.known is not known.learnt:
            self._scanner = self._learn()
        return known.injector.supply(request, secret)

    def _learn(self) -> RequestScanner:
        """Take note of the sources' present values; forget the redaction sets made of the former ones."""
        self._redaction.clear()
        for each in self._credentials.values():
            each.learnt = each.source.known
        self._leaving = RedactionSet(_values(self._credentials.values()))
        return RequestScanner(self.placeholders, _values(self._credentials.values()))

    # -- out ---------------------------------------------------------------------------------------------------------

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        """Deny a placeholder or a real value where it does not belong, and a guest that guesses; else no opinion."""
        if self._probes.spent(request.guest.id):
            return deny(probing_message(), reason=Reason.SECRET_PROBED)
        if not self._scanner.suspicious(request):
            return None
        for finding in self._scanner.findings(request):
            verdict = self._judge(request, finding)
            if verdict is not None:
                return verdict
        return None

    def _judge(self, request: Request, finding: Finding) -> Verdict | None:
        if finding.leaking:
            return deny(leaking(finding.name, f"the request ({finding.surface})"), reason=Reason.SECRET_LEAVING)
        known = self._credentials.get(finding.name)
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
        if self._options.placeholders_in_bodies == "pass" or known.binding.covers(request):
            return None
        return _misplaced(
            f"the body of the request holds the placeholder of the credential {known.name!r}, which is not bound to"
            f" {request.target.authority}"
        )

    # -- back --------------------------------------------------------------------------------------------------------

    @hookimpl
    def open_inspector(
        self, request: Request, direction: Direction, response: Response | None = None
    ) -> Inspector | None:
        """Open a redactor for a response of a host that any credential is bound to, a guard for what a guest sends.

        A body that was read to be judged was searched then, as a whole.
        """
        if direction is not _RESPONSE:
            if response is not None:
                return MessageGuard(self._scanner)
            unread = request.body is None and request.body_state is not BodyState.ABSENT
            return LeakGuard(self._leaving, self._probes.of(request.guest.id)) if unread and self._leaving else None
        known = self._redaction.get(request.target.host)
        patterns, needs_whole = known if known is not None else self._redaction_of(request.target)
        probe = self._probes.of(request.guest.id)
        return Redactor(patterns, probe, needs_whole=needs_whole) if patterns else None

    def _redaction_of(self, target: Target) -> tuple[RedactionSet, bool]:
        """Return what to take out of the answers of a host, and whether parts of them are refused."""
        bound = [each for each in self._credentials.values() if each.binding.covers_target(target)]
        made = RedactionSet(_values(bound)), not all(each.config.allow_ranges for each in bound)
        if len(self._redaction) >= _HOSTS_REMEMBERED:
            self._redaction.clear()
        self._redaction[target.host] = made
        return made


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


def _values(credentials: Iterable[_Credential]) -> Iterator[tuple[str, bytes]]:
    for each in credentials:
        for secret in each.learnt:
            yield each.name, secret.reveal()


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
