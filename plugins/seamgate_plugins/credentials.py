"""The built-in plugin that supplies credentials, keeps them from leaving elsewhere, and takes them out of responses.

Loaded as `credentials` with the capability `secrets`. It implements three hooks: `supply_credential` puts a value in
at the last hop; `judge_request` denies placeholders and real values where they do not belong; `open_inspector` opens a
redactor for each response of a host that a credential is bound to, and a guard for each message that a guest sends over
a WebSocket. What they do is in `seamgate.credentials.keeper`. docs/credentials.md is its manual.

Options:
    placeholders_in_bodies: "deny" (the default) or "pass": whether a request may tell a placeholder to a host that its
        credential is not bound to, in a body. A placeholder is no secret; an agent that prints its environment to a
        model is one who needs "pass".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from seamgate import Direction, Inspector, Request, Response, Supply, Target, Verdict, hookimpl
from seamgate.credentials.config import CredentialConfig, check_credentials
from seamgate.credentials.keeper import Keeper
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.sources import secret_variables
from seamgate.errors import ConfigError
from seamgate.registry import Hosts, SharedState


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


class CredentialsPlugin:
    """Supplies, guards and redacts the credentials of one generation of the configuration.

    Attributes:
        keeper: what does it.
        direct_hooks: see `seamgate.hookspecs.direct_hooks`.
    """

    def __init__(self, context: _Context) -> None:
        """Open every source.

        Raises:
            ConfigError: a credential can't be used; the gateway does not start.
        """
        try:
            options = msgspec.convert(dict(context.options), Options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"options of the plugin credentials: {error}") from None
        configs = context.config.credentials
        check_credentials(configs)
        proxy = getattr(context.config, "upstream_proxy", None)
        shared: SharedState | None = getattr(context, "shared", None)
        self.keeper = keeper = Keeper(
            configs,
            hidden=secret_variables(configs, getattr(context.config, "guests", {}), proxy),
            shared=shared,
            deny_in_bodies=options.placeholders_in_bodies == "deny",
        )
        self.direct_hooks: Mapping[str, Callable[..., Any]] = {
            "supply_credential": keeper.supply_credential,
            "judge_request": keeper.judge_request,
            "open_inspector": keeper.open_inspector,
        }

    def __repr__(self) -> str:
        return f"<CredentialsPlugin: {', '.join(self.keeper.credentials) or 'no credentials'}>"

    @property
    def placeholders(self) -> PlaceholderIndex:
        """What stands for the credentials at guests."""
        return self.keeper.placeholders

    @property
    def credential_names(self) -> frozenset[str]:
        """What this plugin can supply; the registry checks what rules select against it."""
        return frozenset(self.keeper.credentials)

    async def load_values(self, before: CredentialsPlugin | None = None) -> None:
        """Fetch what takes a command, so that no request meets a value that is not known; tell it to other workers."""
        await self.keeper.load_values(None if before is None else before.keeper)

    def learn_values(self, origin: int, values: Mapping[str, tuple[bytes, ...]], hosts: Hosts) -> None:
        """Look for the values that another worker is about to put in, and in what comes from its hosts for them."""
        self.keeper.learn_values(origin, values, hosts)

    def go_on_from(self, before: CredentialsPlugin) -> None:
        """Go on with what was known, and what guests found out so far: a reload forgets and forgives nothing."""
        self.keeper.go_on_from(before.keeper)

    def shows_secret(self, text: str) -> bool:
        """Return whether a real value stands in a text: then it is in no record."""
        return self.keeper.shows_secret(text)

    @hookimpl
    def supply_credential(self, request: Request, credential: str) -> Supply | Awaitable[Supply] | None:
        """Return what to put in: at once if the value is at hand, else an awaitable; None if the name is not ours.

        Raises:
            CredentialError: it must not go with this request, or there is no value.
        """
        return self.keeper.supply_credential(request, credential)

    @hookimpl
    def judge_connect(self, target: Target) -> Verdict | None:
        """Deny a name in which a real value stands: to look it up would tell the value to name servers."""
        return self.keeper.judge_connect(target)

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        """Deny a placeholder or a real value where it does not belong, and a guest that guesses; else no opinion."""
        return self.keeper.judge_request(request)

    @hookimpl
    def open_inspector(
        self, request: Request, direction: Direction, response: Response | None = None
    ) -> Inspector | None:
        """Open a redactor for a response of a host that any credential is bound to, a guard for what a guest sends."""
        return self.keeper.open_inspector(request, direction, response)
