"""Makes a `Policy` of a file's text: gives the shapes of `schema` their meaning, or says where and why they have none.

Pure: text in, frozen model out; `files` reads. Called by `files`, `testing` and tests.
"""

from __future__ import annotations

import datetime
import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeVar

from msgspec import UNSET, UnsetType

from seamgate.address import AddressClass, straddles_classes
from seamgate.document import Document, Step, parse_document
from seamgate.errors import ConfigError, TargetError
from seamgate.headers import is_unseen
from seamgate.policy.conditions import Condition, JsonCondition, ValueCondition, WhenCondition
from seamgate.policy.expressions import Expression, ExpressionError
from seamgate.policy.model import SCHEMES, Exemption, LabelMatch, Layer, Match, Policy, PortRange, Rule
from seamgate.policy.patterns import HostPattern, parse_glob, parse_host, parse_path
from seamgate.policy.schema import (
    AllowSpec,
    ExceptSpec,
    JsonSpec,
    LimitsSpec,
    MatchSpec,
    PolicyFile,
    RuleSpec,
    Texts,
    ValueSpec,
)
from seamgate.verdict import Limits

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")
_TOKEN = re.compile(r"[A-Z0-9!#$%&'*+.^_`|~-]+\Z")  # RFC 9110 5.6.2, upper case
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+\Z")
_RATE = re.compile(r"([1-9][0-9]{0,8})/(s|min|h|day)\Z")
_SIZE = re.compile(r"([0-9]{1,12})(B|KB|MB|GB|KiB|MiB|GiB)?\Z")
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})\Z")
_WINDOW_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_UNIT_BYTES = {None: 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
MAX_PATTERNS = 1_000_000
"""Of one rule: each pair of a host and a path is an entry of the index."""
PRESETS = {
    "read": frozenset({"GET", "HEAD", "OPTIONS"}),
    "write": frozenset({"POST", "PUT", "PATCH", "DELETE"}),
}
_CLASSES = {each.value for each in AddressClass if each is not AddressClass.PUBLIC}


def parse_policy(text: str, source: str) -> Policy:
    """Load one policy file.

    Args:
        text: its YAML.
        source: its name, for errors and explanations.

    Raises:
        ConfigError: with line and column.
    """
    document = parse_document(text, source)
    rules = document.data.get("rules") if isinstance(document.data, dict) else None
    if not isinstance(rules, list):
        return _Loader(document).policy(document.convert(PolicyFile), ())
    # One by one, so that a thread that loads 100,000 of them never holds the others up for long.
    head = document.convert_part({**document.data, "rules": []}, PolicyFile)
    specs = (document.convert_part(rule, RuleSpec, "rules", index) for index, rule in enumerate(rules))
    policy = _Loader(document).policy(head, specs)
    document.release()
    return policy


def find_problems(text: str, source: str) -> list[ConfigError]:
    """Return all that can be found wrong in a policy file that `parse_policy` refuses, in the order of the file.

    A rule whose shape is wrong is asked no more, and of one whose shape is right the first fault of meaning is told.
    """
    try:
        document = parse_document(text, source)
    except ConfigError as error:
        return [error]
    rules = document.data.get("rules") if isinstance(document.data, dict) else None
    if not isinstance(rules, list):
        return document.problems(document.data, PolicyFile)[1]
    head, found = document.problems({**document.data, "rules": []}, PolicyFile)
    loader = _Loader(document)
    if head is not None:
        loader.begin(head)
    seen: dict[str, int] = {}
    for index, data in enumerate(rules):
        spec, problems = document.problems(data, RuleSpec, "rules", index)
        found += problems
        if spec is None:
            continue
        try:
            loader.take_id(spec.id, seen, index)
            loader.rule(spec, ("rules", index))
        except ConfigError as error:
            found.append(error)
    return sorted(found, key=lambda each: (each.line, each.column))


class _Loader:
    """One file being loaded. `path` says where in the document the thing at hand stands."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.layer = Layer.TEAM
        self.file_is_audit = False
        self.owner = ""
        self.expressions: dict[str, Expression] = {}

    def begin(self, spec: PolicyFile) -> None:
        self.layer = Layer(spec.layer)
        self.file_is_audit = spec.mode == "audit"
        self.owner = spec.owner

    def take_id(self, name: str, seen: dict[str, int], index: int) -> None:
        if name in seen:
            line, _ = self.document.position("rules", seen[name])
            self.fail(f"the id {name!r} is already that of the rule on line {line}", "rules", index, "id")
        seen[name] = index

    def policy(self, spec: PolicyFile, specs: Iterable[RuleSpec]) -> Policy:
        self.begin(spec)
        seen: dict[str, int] = {}
        rules = []
        for index, rule in enumerate(specs):
            self.take_id(rule.id, seen, index)
            rules.append(self.rule(rule, ("rules", index)))
        return Policy(
            source=self.document.source,
            layer=self.layer,
            rules=tuple(rules),
            audit=self.file_is_audit,
            owner=spec.owner,
            description=spec.description,
        )

    def fail(self, message: str, *path: Step, key: bool = False) -> NoReturn:
        raise self.document.error(message, *path, key=key)

    def rule(self, spec: RuleSpec, path: tuple[Step, ...]) -> Rule:
        if not _ID.match(spec.id):
            self.fail("an id is letters, digits, '.', '_' and '-', at most 80", *path, "id")
        allows = not isinstance(spec.allow, UnsetType)
        denies = not isinstance(spec.deny, UnsetType)
        if allows and denies:
            self.fail(f"rule {spec.id!r} has both allow and deny: make two rules of it", *path, "deny", key=True)
        if not allows and not denies:
            self.fail(f"rule {spec.id!r} has neither allow nor deny: say what it allows or denies", *path)
        if not allows:
            self.refuse_in_deny(spec, path)
        what: MatchSpec = spec.allow if allows else spec.deny  # type: ignore[assignment]  # one of them is set, see above
        if allows and isinstance(what.hosts, UnsetType):
            self.fail("an allow needs hosts: name them ('**' is every name)", *path, "allow", key=True)
        if len(what.hosts or ()) * len(what.paths or ()) > MAX_PATTERNS:
            self.fail(f"hosts times paths make more than {MAX_PATTERNS} patterns: split the rule", *path)
        line, column = self.document.position(*path)
        conditions = self.when(spec.when, (*path, "when"), lenient=not allows)
        if isinstance(what, AllowSpec) and what.protocol is not UNSET:
            self.check_tcp(spec, what, path)
        return Rule(
            id=spec.id,
            allows=allows,
            layer=self.layer,
            match=self.match(
                what, (*path, "allow" if allows else "deny"), spec.guests, path, conditions, allows=allows
            ),
            exemptions=self.exemptions(spec, allows, path),
            credentials=self.names(spec.credential, (*path, "credential")),
            limits=self.limits(spec.limits, (*path, "limits")),
            inspect=self.names(spec.inspect, (*path, "inspect")),
            addresses=tuple(self.each(spec.addresses, (*path, "addresses"), _address_set)),
            upgrade="" if isinstance(spec.upgrade, UnsetType) else spec.upgrade,
            encoded_slash=spec.encoded_slash,
            audit=self.file_is_audit or spec.mode == "audit",
            expires_at=self.expiry(spec.expires, (*path, "expires")),
            owner=spec.owner or self.owner,
            reason=spec.reason,
            ticket=spec.ticket,
            source=self.document.source,
            line=line,
            column=column,
        )

    def refuse_in_deny(self, spec: RuleSpec, path: tuple[Step, ...]) -> None:
        for key in ("credential", "limits", "inspect", "addresses", "upgrade"):
            if getattr(spec, key) is not UNSET:
                self.fail(f"{key} belongs to an allow: a deny has no use for it", *path, key, key=True)
        if spec.encoded_slash:
            self.fail("encoded_slash belongs to an allow: a deny always covers %2F", *path, "encoded_slash", key=True)

    def check_tcp(self, spec: RuleSpec, what: AllowSpec, path: tuple[Step, ...]) -> None:
        """Of a stream that nobody reads, nothing but its guest, host and port can be asked or promised."""
        if isinstance(what.ports, UnsetType):
            self.fail("protocol: tcp needs ports: name them", *path, "allow", key=True)
        for key in ("schemes", "methods", "paths", "query", "headers", "json"):
            if getattr(what, key) is not UNSET:
                self.fail(f"{key} can't be told of a tcp stream: it is passed on unread", *path, "allow", key, key=True)
        for key in ("when", "credential", "limits", "inspect", "upgrade"):
            if getattr(spec, key) is not UNSET:
                self.fail(f"{key} does not go with protocol: tcp: the stream is passed on unread", *path, key, key=True)

    def exemptions(self, spec: RuleSpec, allows: bool, path: tuple[Step, ...]) -> tuple[Exemption, ...]:
        if isinstance(spec.except_, UnsetType):
            return ()
        path = (*path, "except")
        if allows:
            self.fail("except belongs to a deny: narrow an allow by a deny of its own", *path, key=True)
        if isinstance(spec.except_, list):
            return tuple(self.exemption(each, (*path, index)) for index, each in enumerate(spec.except_))
        return (self.exemption(spec.except_, path),)

    def exemption(self, spec: ExceptSpec, path: tuple[Step, ...]) -> Exemption:
        conditions = self.when(spec.when, (*path, "when"), lenient=False)
        match = self.match(spec, path, spec.guests, path, conditions, allows=False, lifts=True)
        if match == Match():
            self.fail("this except lifts the whole ban: say for whom or what", *path)
        return Exemption(match=match, expires_at=self.expiry(spec.expires, (*path, "expires")), reason=spec.reason)

    def match(
        self,
        spec: MatchSpec,
        path: tuple[Step, ...],
        guests: dict[str, Texts] | UnsetType,
        guests_at: tuple[Step, ...],
        when: tuple[Condition, ...],
        *,
        allows: bool,
        lifts: bool = False,
    ) -> Match:
        """Compile what a rule or exception covers. In a deny, an empty list would silently cover nothing: refused."""
        if not allows:
            for key in ("hosts", "schemes", "ports", "methods", "paths", "query", "headers", "json"):
                if getattr(spec, key) in ([], {}):
                    self.fail(f"{key} is empty: name some, or leave the key out to cover all", *path, key)
        lenient = not allows and not lifts
        default_schemes = frozenset({"https"}) if allows else SCHEMES
        if isinstance(spec, AllowSpec) and spec.protocol is not UNSET:
            default_schemes = frozenset({"tcp"})
        hosts = self.listed(spec.hosts, (*path, "hosts"), parse_host)
        if lenient and hosts is not None and any(_is_everything(pattern) for pattern in hosts):
            hosts = None  # a deny of every name is meant for addresses too
        paths = self.listed(spec.paths, (*path, "paths"), parse_path)
        if lenient and paths is not None and any(pattern.everything for pattern in paths):
            paths = None  # also "OPTIONS *"
        return Match(
            hosts=hosts,
            schemes=default_schemes if isinstance(spec.schemes, UnsetType) else frozenset(spec.schemes),
            ports=self.ports(spec.ports, (*path, "ports")),
            default_ports=allows and isinstance(spec.ports, UnsetType),
            methods=self.methods(spec.methods, (*path, "methods")),
            paths=paths,
            guests=self.guests(guests, (*guests_at, "guests")),
            conditions=(*self.conditions(spec, path, lenient), *when),
        )

    def each(self, items: Iterable[str] | UnsetType, path: tuple[Step, ...], parse: Callable[[str], T]) -> Iterator[T]:
        for index, item in enumerate(() if isinstance(items, UnsetType) else items):
            try:
                yield parse(item)
            except (TargetError, ValueError) as error:
                self.fail(str(error), *path, index)

    def listed(
        self, items: list[str] | UnsetType, path: tuple[Step, ...], parse: Callable[[str], T]
    ) -> tuple[T, ...] | None:
        return None if isinstance(items, UnsetType) else tuple(dict.fromkeys(self.each(items, path, parse)))

    def ports(self, items: list[int | str] | UnsetType, path: tuple[Step, ...]) -> tuple[PortRange, ...] | None:
        if isinstance(items, UnsetType):
            return None
        return tuple(sorted(self.each([str(item) for item in items], path, _port_range)))

    def methods(self, items: Texts | UnsetType, path: tuple[Step, ...]) -> frozenset[str] | None:
        if isinstance(items, UnsetType):
            return None
        methods: set[str] = set()
        for index, item in enumerate([items] if isinstance(items, str) else items):
            at = path if isinstance(items, str) else (*path, index)
            if item in PRESETS:
                methods |= PRESETS[item]
            elif item == "*":
                return None
            elif not _TOKEN.match(item.upper()) or "*" in item:
                self.fail(f"{item!r} is not a method: write GET, POST ..., read, write or '*'", *at)
            elif item.upper() == "CONNECT":
                self.fail(
                    "CONNECT is not judged as a method: a tunnel is allowed where any of its requests may be", *at
                )
            else:
                methods.add(item.upper())
        if "GET" in methods:
            methods.add("HEAD")
        return frozenset(methods)

    def guests(self, labels: dict[str, Texts] | UnsetType, path: tuple[Step, ...]) -> tuple[LabelMatch, ...]:
        if isinstance(labels, UnsetType):
            return ()
        if not labels:
            self.fail("guests is empty: name labels, or leave the key out for every guest", *path)
        matches: list[LabelMatch] = []
        for name, values in sorted(labels.items()):
            texts = [values] if isinstance(values, str) else values
            if not texts:
                self.fail(f"the label {name!r} has no value: name some, or '*' for any", *path, name)
            for text in texts:
                if "*" in text and text != "*":
                    self.fail(f"{text!r}: a label's value is matched whole; '*' alone is any value", *path, name)
            matches.append((name, None if "*" in texts else frozenset(texts)))
        return tuple(matches)

    def conditions(self, spec: MatchSpec, path: tuple[Step, ...], lenient: bool) -> Iterator[Condition]:
        if not isinstance(spec.query, UnsetType):
            for name, value in sorted(spec.query.items()):
                yield self.value_condition("query", name, value, (*path, "query", name), lenient)
        if not isinstance(spec.headers, UnsetType):
            for name, value in sorted(spec.headers.items()):
                yield self.value_condition("headers", name, value, (*path, "headers", name), lenient)
        if not isinstance(spec.json, UnsetType):
            for name, json_value in sorted(spec.json.items()):
                yield self.json_condition(name, json_value, (*path, "json", name), lenient)

    def value_condition(
        self, kind: str, name: str, value: ValueSpec, path: tuple[Step, ...], lenient: bool
    ) -> ValueCondition:
        if kind == "headers":
            name = name.lower()
            if not _HEADER.match(name):
                self.fail(f"{name!r} is not a header name", *path, key=True)
            if is_unseen(name):
                self.fail(f"the header {name!r} is the gateway's own: policy never sees it", *path, key=True)
        if isinstance(value, bool):
            return ValueCondition(lenient, kind, name, None, value)
        texts = [value] if isinstance(value, str) else value
        if not texts:
            self.fail(f"{name!r} has no value: name some, or true (is there) or false (is not)", *path)
        return ValueCondition(lenient, kind, name, tuple(parse_glob(text) for text in sorted(set(texts))))

    def json_condition(self, name: str, value: JsonSpec, path: tuple[Step, ...], lenient: bool) -> JsonCondition:
        steps = tuple(name.split("."))
        if "" in steps:
            self.fail(f"{name!r} is not a path such as metadata.user", *path, key=True)
        values = value if isinstance(value, list) else [value]
        if not values:
            self.fail(f"{name!r} has no value: name some", *path)
        return JsonCondition(
            lenient, steps, tuple(parse_glob(each) if isinstance(each, str) else each for each in values)
        )

    def when(self, text: str | UnsetType, path: tuple[Step, ...], *, lenient: bool) -> tuple[Condition, ...]:
        if isinstance(text, UnsetType):
            return ()
        expression = self.expressions.get(text)
        if expression is None:
            try:
                expression = Expression(text)
            except ExpressionError as error:
                self.fail(str(error), *path)
            self.expressions[text] = expression
        return (WhenCondition(lenient, expression),)

    def names(self, items: Texts | UnsetType, path: tuple[Step, ...]) -> tuple[str, ...] | None:
        if isinstance(items, UnsetType):
            return None
        names = (items,) if isinstance(items, str) else tuple(items)
        for index, name in enumerate(names):
            at = path if isinstance(items, str) else (*path, index)
            if not _NAME.match(name):
                self.fail(f"{name!r} is not a name: use letters, digits and ._:/-", *at)
            if name in names[:index]:
                self.fail(f"{name!r} is there twice", *at)
        return names

    def limits(self, spec: LimitsSpec | UnsetType, path: tuple[Step, ...]) -> Limits | None:
        if isinstance(spec, UnsetType):
            return None
        rate = None
        if not isinstance(spec.requests, UnsetType):
            found = _RATE.match(spec.requests)
            if not found:
                self.fail(f"{spec.requests!r} is not a rate: write 60/min, with s, min, h or day", *path, "requests")
            rate = (int(found.group(1)), _WINDOW_S[found.group(2)])
        return Limits(
            request_body_bytes=self.size(spec.request_body, (*path, "request_body")),
            response_body_bytes=self.size(spec.response_body, (*path, "response_body")),
            requests=rate,
        )

    def size(self, value: str | int | UnsetType, path: tuple[Step, ...]) -> int | None:
        if isinstance(value, UnsetType):
            return None
        found = _SIZE.match(str(value))
        if not found:
            self.fail(f"{value!r} is not a size: write 5MiB, with B, KB, MB, GB, KiB, MiB or GiB", *path)
        return int(found.group(1)) * _UNIT_BYTES[found.group(2)]

    def expiry(self, text: str | UnsetType, path: tuple[Step, ...]) -> float:
        if isinstance(text, UnsetType):
            return math.inf
        try:
            return expiry_of(text)
        except ValueError as error:
            self.fail(str(error), *path)


def expiry_of(text: str) -> float:
    """Return the Unix time at which `expires` takes effect.

    A date lasts to its end in UTC; a time needs an offset (Z or +hh:mm).

    Raises:
        ValueError: it is neither.
    """
    try:
        if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z", text):
            day = datetime.date.fromisoformat(text) + datetime.timedelta(days=1)
            return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp()
        moment = datetime.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a date: write 2027-03-31, or 2027-03-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset: write 2027-03-31T12:00:00Z, or a date alone")
    return moment.timestamp()


def _is_everything(pattern: HostPattern) -> bool:
    return pattern.deep and not pattern.labels


def _port_range(text: str) -> PortRange:
    if text == "*":
        return 1, 65535
    found = _PORTS.match(text)
    low, high = (int(found.group(1)), int(found.group(2))) if found else (_number(text), _number(text))
    if not 1 <= low <= high <= 65535:
        raise ValueError(f"{text!r} is not a port: write a number from 1 to 65535, or \"8000-8999\", or '*'")
    return low, high


def _number(text: str) -> int:
    return int(text) if re.match(r"[1-9][0-9]{0,4}\Z", text) else 0


def _address_set(text: str) -> str:
    """Return a class of addresses, or a network in canonical CIDR form."""
    if text in _CLASSES:
        return text
    if text == AddressClass.PUBLIC:
        raise ValueError("public addresses need no naming: leave it out")
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a network such as 10.1.0.0/16 nor one of {', '.join(sorted(_CLASSES))}"
        ) from None
    if straddles_classes(network):
        raise ValueError(f"{text!r} covers more than one class: name the classes, {', '.join(sorted(_CLASSES))}")
    return str(network)
