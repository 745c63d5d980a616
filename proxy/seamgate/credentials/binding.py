"""Which requests may carry a credential: its hosts, methods and paths, with the same meaning as in policy.

The credentials plugin builds one `Binding` per credential at start. Pure but for two bounded caches, which make the
answer for a host or path seen before a dictionary look-up.
"""

from __future__ import annotations

from seamgate.credentials.config import CredentialConfig
from seamgate.errors import ConfigError, TargetError
from seamgate.flow import Request, Target
from seamgate.policy.overrides import find_overrides
from seamgate.policy.patterns import PathPattern, covers_as_allow, parse_host, parse_path, strict_readings

_CACHED, _CACHED_SIZE = 512, 512
"""Answers kept per credential, for paths up to which length. Guests choose the paths, so there must be an end; then all
are forgotten."""


class HostBinding:
    """The hosts of one credential, ready to match."""

    __slots__ = ("_by_host", "_hosts")

    def __init__(self, name: str, hosts: tuple[str, ...]) -> None:
        """Compile the patterns.

        Raises:
            ConfigError: one of them is not a pattern.
        """
        try:
            self._hosts = tuple([parse_host(text) for text in hosts])
        except TargetError as error:
            raise ConfigError(f"credential {name!r}: {error.message}") from None
        self._by_host: dict[str, bool] = {}

    def covers_target(self, target: Target) -> bool:
        """Return whether the credential is for this host, whatever the port, scheme and request."""
        known = self._by_host.get(target.host)
        if known is None:
            known = any(pattern.matches(target.host, target.is_address) for pattern in self._hosts)
            _remember(self._by_host, target.host, known)
        return known


class Binding(HostBinding):
    """Hosts, methods and paths of one credential, ready to match."""

    __slots__ = ("_by_path", "_exact_paths", "_methods", "_paths")

    def __init__(self, name: str, config: CredentialConfig) -> None:
        """Compile the patterns.

        Raises:
            ConfigError: one of them is not a pattern.
        """
        super().__init__(name, config.hosts)
        try:
            paths = () if config.paths is None else tuple([parse_path(text) for text in config.paths])
        except TargetError as error:
            raise ConfigError(f"credential {name!r}: {error.message}") from None
        self._methods = _methods(name, config.methods)
        self._paths: tuple[PathPattern, ...] | None = None if config.paths is None else paths
        self._exact_paths = frozenset(each.text for each in paths if not each.wild)
        self._by_path: dict[str, bool] = {}

    def covers(self, request: Request) -> bool:
        """Return whether this request may carry the credential (its scheme is another matter).

        As in an allow of policy, methods and paths that an origin may take instead of the request's own must fit, too.
        """
        if not self.covers_target(request.target):
            return False
        if self._methods is None and self._paths is None:
            return True
        try:
            methods, paths = find_overrides(request) or ((), ())
        except TargetError:
            return False
        return all(map(self._covers_method, (request.method, *methods))) and all(
            map(self._covers_path, (request.path, *paths))
        )

    def _covers_method(self, method: str) -> bool:
        return self._methods is None or method in self._methods

    def _covers_path(self, path: str) -> bool:
        if self._paths is None or path in self._exact_paths:
            return True
        known = self._by_path.get(path)
        if known is None:
            readings = strict_readings(path)
            known = any(pattern.matches(path) for pattern in self._paths) and (
                readings is None or covers_as_allow(self._paths, path, readings)
            )
            _remember(self._by_path, path, known)
        return known


def _remember(cache: dict[str, bool], key: str, answer: bool) -> None:
    if len(cache) >= _CACHED:
        cache.clear()
    if len(key) <= _CACHED_SIZE:
        cache[key] = answer


def _methods(name: str, methods: tuple[str, ...] | None) -> frozenset[str] | None:
    """Methods are case-sensitive tokens (RFC 9110 9.1); GET implies HEAD, as in policy."""
    if methods is None:
        return None
    for method in methods:
        if not (method.isascii() and method.isalpha() and method.isupper()):
            raise ConfigError(f"credential {name!r}: {method!r} is not a method: write it in capitals, as GET")
    return frozenset(methods) | ({"HEAD"} if "GET" in methods else frozenset())
