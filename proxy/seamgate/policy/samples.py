"""Examples of what a rule covers, and of what lies just beside it: requests that tell two policies apart.

A pattern's examples put words into its stars that no pattern has, so that what covers all of them covers the pattern.
Used by `difference`. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from seamgate.flow import Guest, Headers
from seamgate.policy.conditions import Condition, JsonCondition, ValueCondition
from seamgate.policy.model import Match, Rule
from seamgate.policy.patterns import ANY, DEEP, Glob, HostPattern, PathPattern
from seamgate.policy.testing import Case, Expectation

_WORD, _OTHER = "sample-7f3a", "sample-9c1e"
_MOST = 24
"""Examples of one pattern: a path with many stars has more, of which the first suffice."""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ELSEWHERE = "sample-7f3a.invalid"


def hosts_of(pattern: HostPattern) -> list[str]:
    """Return hosts that a pattern covers."""
    labels = [_WORD if label == "*" else label for label in reversed(pattern.labels)]
    if pattern.is_address or not pattern.wild:
        return [pattern.text]
    if not pattern.deep:
        return [".".join(labels)]
    return [".".join([*front, *labels]) for front in ([_WORD], [_OTHER, _WORD])]


def hosts_beside(pattern: HostPattern) -> list[str]:
    """Return hosts just outside of a pattern: below it, and its apex."""
    if pattern.is_address:
        return []
    first = hosts_of(pattern)[0]
    return [f"{_OTHER}.{first}", *([first.partition(".")[2]] if "." in first else [])]


def paths_of(pattern: PathPattern) -> list[str]:
    """Return paths that a pattern covers."""
    choices = [_segments(glob, last=place == len(pattern.segments)) for place, glob in enumerate(pattern.segments, 1)]
    joined = ("/" + "/".join(itertools.chain(*parts)) for parts in itertools.islice(itertools.product(*choices), _MOST))
    return list(dict.fromkeys(path for path in joined if "//" not in path))


def _segments(glob: Glob, *, last: bool) -> list[list[str]]:
    if glob is DEEP or glob == DEEP:
        return [[_WORD], [_WORD, _OTHER], *([[""]] if last else [])]
    if glob == ANY:
        return [[_WORD]]
    return [[_WORD.join(glob.pieces)], *([["".join(glob.pieces)]] if len(glob.pieces) > 1 else [])]


def paths_beside(pattern: PathPattern) -> list[str]:
    """Return paths just outside of a pattern: below it, above it, another."""
    first = paths_of(pattern)[0].rstrip("/")
    return [f"{first}/{_OTHER}/{_OTHER}", first.rpartition("/")[0] or "/", f"/{_OTHER}"]


def covers_hosts(wide: tuple[HostPattern, ...] | None, narrow: tuple[HostPattern, ...] | None) -> bool:
    """Whether every host of one list is of the other."""
    if wide is None or narrow is None:
        return wide is None
    return all(
        any(each.matches(host, pattern.is_address) for each in wide) for pattern in narrow for host in hosts_of(pattern)
    )


def covers_paths(wide: tuple[PathPattern, ...] | None, narrow: tuple[PathPattern, ...] | None) -> bool:
    """Whether every path of one list is of the other."""
    if wide is None or narrow is None:
        return wide is None
    return all(any(each.matches(path) for each in wide) for pattern in narrow for path in paths_of(pattern))


class _Shape(msgspec.Struct, frozen=True):
    """One request to be."""

    host: str
    scheme: str = "https"
    port: int = 0
    method: str = "GET"
    path: str = "/"
    labels: tuple[tuple[str, str], ...] = ()
    headers: Headers = ()
    query: str = ""
    json: bytes | None = None


def cases_of(rule: Rule, now: float) -> Iterator[Case]:
    """Yield requests that a rule covers, and such that differ from these in one thing.

    Conditions on headers, query and JSON are met where that is possible from their text; those in CEL are not.
    """
    matches = [rule.match, *(each.match for each in rule.exemptions)]
    base = _Shape(next(iter(_hosts(rule.match)), _ELSEWHERE))
    for match in matches:
        base = _within(base, match)
    shapes = dict.fromkeys([base, *(shape for match in matches for shape in _around(base, match, rule))])
    for shape in shapes:
        yield _case(shape, rule, now)


def _within(base: _Shape, match: Match) -> _Shape:
    """Return the shape changed so that the match covers it, as far as its text says how."""
    replace = msgspec.structs.replace
    if "tcp" in match.schemes and len(match.schemes) == 1:
        base = replace(base, scheme="tcp", method="CONNECT", path="*")
    elif "https" not in match.schemes and "http" in match.schemes:
        base = replace(base, scheme="http")
    if match.ports is not None:
        base = replace(base, port=match.ports[0][0])
    if match.methods:
        base = replace(base, method=next((each for each in _METHODS if each in match.methods), min(match.methods)))
    if match.paths:
        base = replace(base, path=paths_of(match.paths[0])[0])
    labels = {**dict(base.labels), **{name: min(values) if values else _WORD for name, values in match.guests}}
    return _meeting(replace(base, labels=tuple(sorted(labels.items()))), match.conditions)


def _meeting(base: _Shape, conditions: Iterable[Condition]) -> _Shape:
    """Return the shape with headers, query and JSON that meet the conditions."""
    headers, query, body = list(base.headers), base.query, dict[str, Any]()
    for condition in conditions:
        if isinstance(condition, ValueCondition) and (condition.globs is not None or condition.present):
            value = _filled(condition.globs[0]) if condition.globs else _WORD
            if condition.kind == "headers":
                headers.append((condition.name.encode(), value.encode("latin-1", "replace")))
            else:
                query = f"{query}&{condition.name}={value}".lstrip("&")
        elif isinstance(condition, JsonCondition):
            inner = body
            for step in condition.path[:-1]:
                inner = inner.setdefault(step, {})
            wanted = condition.values[0]
            inner[condition.path[-1]] = _filled(wanted) if isinstance(wanted, Glob) else wanted
    changed = msgspec.structs.replace(base, headers=tuple(headers), query=query)
    if not body:
        return changed
    typed = (*changed.headers, (b"content-type", b"application/json"))
    return msgspec.structs.replace(changed, headers=typed, json=msgspec.json.encode(body))


def _filled(glob: Glob) -> str:
    return _WORD.join(glob.pieces)


def _around(base: _Shape, match: Match, rule: Rule) -> Iterator[_Shape]:
    """Yield the shape with one thing changed: within the match, and out of it."""
    replace = msgspec.structs.replace
    yield from (replace(base, host=host) for host in _hosts(match))
    yield from (replace(base, host=host) for each in match.hosts or () for host in hosts_beside(each))
    if base.scheme != "tcp":
        yield from (
            replace(base, path=path) for each in match.paths or () for path in (*paths_of(each), *paths_beside(each))
        )
        yield from (replace(base, method=method) for method in {*_METHODS, *(match.methods or ())})
        yield from (replace(base, scheme=scheme, port=0) for scheme in ("http", "https"))
        yield replace(base, path=f"/{_WORD}%2F{_OTHER}" if rule.match.paths is None else base.path)
    for low, high in match.ports or ():
        yield from (replace(base, port=port) for port in (low, high, min(high + 1, 65535)))
    yield replace(base, port=8443)
    for name, values in match.guests:
        rest = tuple(pair for pair in base.labels if pair[0] != name)
        yield replace(base, labels=rest)
        yield from (replace(base, labels=tuple(sorted((*rest, (name, value))))) for value in (*(values or ()), _OTHER))
    yield replace(base, labels=())
    yield replace(base, headers=(), query="", json=None)


def _hosts(match: Match) -> list[str]:
    if match.hosts is None:
        return [_ELSEWHERE]
    return [host for pattern in match.hosts for host in hosts_of(pattern)]


def _case(shape: _Shape, rule: Rule, now: float) -> Case:
    host = f"[{shape.host}]" if ":" in shape.host else shape.host
    authority = f"{host}:{shape.port}" if shape.port else host
    query = f"?{shape.query}" if shape.query else ""
    url = f"{shape.scheme}://{authority}{'' if shape.scheme == 'tcp' else shape.path}{query}"
    guest = Guest("sample", dict(shape.labels))
    expected = Expectation()
    return Case(f"from rule {rule.id}", guest, shape.method, url, shape.headers, shape.json, expected, 1, now, 0)
