"""Conditions of rules on query, headers and body, in a logic of four values.

A condition is asked in the spirit of its rule. For an allow (*strict*) each reading that an origin may have of the
request must match: every one of repeated parameters, names and values exactly as written. For a deny (*lenient*) it is
enough that any reading matches: any of repeated parameters, without case. What can't be read is UNKNOWN: no for an
allow, yes for a deny. What has not arrived yet is PENDING.

Built by the loader, asked by `evaluation` with one `View` per judgement, which reads each part at most once. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from seamgate.flow import BodyState, Request
from seamgate.policy.expressions import Expression, Fields, Unevaluable
from seamgate.policy.folding import TextTooLong, fold_header, fold_text, parameter_readings
from seamgate.policy.jsonbody import JsonRefused, check_declared, media_type, parse_json
from seamgate.policy.overrides import Overrides
from seamgate.policy.own import own_method, own_path, read_overrides
from seamgate.policy.patterns import Glob
from seamgate.unquoting import unquote_parameter


class Outcome(IntEnum):
    """The value of a condition, or of all conditions of a rule."""

    NO = 0
    YES = 1
    UNKNOWN = 2
    """Can't be evaluated for this request, and more of it would not help."""
    PENDING = 3
    """Needs the body, which has not been read yet."""


Pairs: TypeAlias = list[tuple[str, str]]
MAX_REACHED = 20_000
"""Values and keys of a body that a condition looks at. The guest chooses the body, and everybody waits meanwhile."""
MAX_GROWTH = 65_536
"""Characters by which what is compared of one request may grow when it is folded: some milliseconds' worth."""
MAX_FOLDED = 300_000
"""Characters beyond ASCII that are folded for one request, for 60 ms: nobody else is served meanwhile."""
_CONTENT_TYPE = (b"content-type", b"content_type")
MOST_PARAMETERS = 500
"""Of a query that a rule reads, each of which may be known by several names; PHP and Django take twice as many."""
_SEPARATOR = re.compile("[&;]")
_TOO_LONG = "the text to compare is too long once it is normalized"
_WRONG = {
    BodyState.OVERSIZE: "the body is larger than what is held to judge it",
    BodyState.UNDECODABLE: "the body's content coding can't be decoded",
    BodyState.PENDING: "the body has not been read yet",
}


class View:
    """One request, read for conditions: query, headers and JSON each at most once."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._folded: dict[str, str | None] = {}  # None: too long
        self._growth = 0
        self._spent = 0

    def fold(self, text: str) -> str:
        """Return the text folded, once for all rules that compare it.

        Raises:
            Unevaluable: what is compared of this request grows too long.
        """
        if text.isascii():
            return text.lower()
        if text not in self._folded:
            self._folded[text] = self._fold(text)
        folded = self._folded[text]
        if folded is None:
            raise Unevaluable(_TOO_LONG)
        return folded

    def _fold(self, text: str) -> str | None:
        # One of ASCII in between costs an eighth of the others.
        self._spent += len(text) - len(text.encode("ascii", "ignore")) + len(text) // 8
        if self._spent > MAX_FOLDED:
            return None
        try:
            folded = fold_text(text, MAX_GROWTH - self._growth)
        except TextTooLong:
            return None
        self._growth += max(0, len(folded) - len(text))
        return folded if self._growth <= MAX_GROWTH else None

    def readings(self, name: str) -> tuple[str, ...]:
        """Return the folded names that a decoded parameter may be known by.

        Raises:
            Unevaluable: it grows too long.
        """
        return parameter_readings(self.fold(name))

    @cached_property
    def query(self) -> Pairs:
        """The decoded parameters in order, names as sent.

        Raises:
            Unevaluable: an escape is not UTF-8, or ";" may separate parameters or not.
        """
        text = self.request.query or ""
        if ";" in text:
            raise Unevaluable('the query holds ";", which some origins take for a separator')
        return _parse_query(text, "&")

    @cached_property
    def lenient_query(self) -> Pairs:
        """The decoded parameters as the most lenient origin reads them: under each name that one may know them by.

        Raises:
            Unevaluable: an escape is not UTF-8.
        """
        pairs = _parse_query(self.request.query or "", None)
        return [(each, value) for name, value in pairs for each in self.readings(name)]

    @cached_property
    def overrides(self) -> Overrides:
        """What an origin may take instead of method and path. Raises Unevaluable: it can't be judged."""
        return read_overrides(self.request)

    @cached_property
    def headers(self) -> Pairs:
        """The headers in order, names lower-case, values as Latin-1 text."""
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.request.headers]

    @cached_property
    def lenient_headers(self) -> Pairs:
        """The same, names folded."""
        return [(fold_header(name), value) for name, value in self.headers]

    @cached_property
    def media_type(self) -> str:
        """What the body is declared as, in lower case and without parameters; "" where nothing is said of it.

        Raises:
            Unevaluable: there is more than one type, or what stands there is none.
        """
        declared = [value.decode("latin-1") for name, value in self.request.headers if name in _CONTENT_TYPE]
        try:
            return media_type(declared)[0] if declared else ""
        except JsonRefused as error:
            raise Unevaluable(str(error)) from None

    @property
    def json(self) -> Any:
        """The body's JSON value. Ask `body_outcome` before.

        Raises:
            Unevaluable: it is not declared as JSON, or is not strict JSON.
        """
        value, problem = self._json
        if problem:
            raise Unevaluable(problem)
        return value

    @cached_property
    def _json(self) -> tuple[Any, str]:
        """Value and problem: what can't be read is not read for each rule again."""
        try:
            check_declared(value.decode("latin-1") for name, value in self.request.headers if name in _CONTENT_TYPE)
            return parse_json(self.request.body or b""), ""
        except JsonRefused as error:
            return None, str(error)

    @property
    def has_body(self) -> bool:
        """Whether a body is here to be read."""
        return self.request.body_state is BodyState.COMPLETE and bool(self.request.body)

    def require_body(self) -> Outcome | None:
        """Return PENDING while the body is not here, None if it is here or there is none.

        Raises:
            Unevaluable: it will never be.
        """
        state = self.request.body_state
        if state is BodyState.PENDING:
            return Outcome.PENDING
        if state in _WRONG:
            raise Unevaluable(_WRONG[state])
        return None

    def context(self, expression: Expression) -> dict[str, Any]:
        """Return what an expression is given: the fields that it names.

        Raises:
            Unevaluable: a part can't be read, is ambiguous or too large.
        """
        context: dict[str, Any] = {}
        fields = expression.fields
        if "request" in fields:
            wanted = fields["request"]
            names = wanted if wanted is not None else dict.fromkeys(_READERS)
            context["request"] = {}
            for name, inner in names.items():
                value = _READERS[name](self, inner, expression)
                if value is not _ABSENT:
                    context["request"][name] = value
        if "guest" in fields:
            guest = self.request.guest
            context["guest"] = {"id": guest.id, "labels": dict(guest.labels), "isolation": guest.isolation.value}
        _check_size(context, expression.max_values, expression.max_chars)
        if "json" in context.get("request", ()):
            _check_keys(self, context["request"]["json"], expression)
        return context


_ABSENT: Any = object()


def _parse_query(text: str, separator: str | None) -> Pairs:
    if not text:
        return []
    parts = text.split(separator) if separator else _SEPARATOR.split(text)
    if len(parts) > MOST_PARAMETERS:
        raise Unevaluable(f"the query has more than {MOST_PARAMETERS} parameters")
    try:
        pairs = []
        for part in parts:
            if part:
                name, _, value = part.partition("=")
                pairs.append((unquote_parameter(name), unquote_parameter(value)))
        return pairs
    except UnicodeDecodeError:
        raise Unevaluable("the query has escapes that are not UTF-8") from None


def _named(
    pairs: Pairs, wanted: Fields, expression: Expression, readings: Callable[[str], tuple[str, ...]], what: str
) -> dict[str, str]:
    """Return name to value for the wanted names. One that occurs twice has no value that all origins agree on."""
    result: dict[str, str] = {}
    names = expression.names if wanted is None else wanted
    spelled = {readings(name)[0] for name in names}
    seen = set()
    for name, value in pairs:
        folded, *others = readings(name)
        named = folded in spelled or any(each in spelled for each in others)
        if wanted is not None and not named:
            continue
        if folded in seen or (named and name not in names):
            raise Unevaluable(f"the {what} {name!r} occurs more than once, or in another spelling")
        seen.add(folded)
        result[name] = value
    return result


def _header_readings(name: str) -> tuple[str, ...]:
    return (fold_header(name),)


def _read_headers(view: View, wanted: Fields, asker: Expression) -> dict[str, str]:
    result = _named(view.headers, wanted, asker, _header_readings, "header")
    if "content-type" in result:
        view.media_type  # noqa: B018 - raises where servers would read it differently
    return result


def _read_json(view: View, wanted: Fields, _: Expression) -> Any:
    return pick(view, view.json, wanted) if view.has_body else _ABSENT


_READERS: dict[str, Any] = {
    "method": lambda view, *_: own_method(view.request.method, view.overrides),
    "scheme": lambda view, *_: view.request.target.scheme,
    "host": lambda view, *_: view.request.target.host,
    "port": lambda view, *_: view.request.target.port,
    "path": lambda view, *_: own_path(view.request.path, view.overrides),
    "query": lambda view, wanted, asker: _named(view.query, wanted, asker, view.readings, "parameter"),
    "headers": lambda view, wanted, asker: _read_headers(view, wanted, asker),
    "json": _read_json,
}


def pick(view: View, value: Any, wanted: Fields) -> Any:
    """Return the part of a JSON value that the fields name; where they name what a value has not, that value whole.

    Raises:
        Unevaluable: a key that is named is there in another spelling, or an object on the way is too large.
    """
    if wanted is None or type(value) is not dict:
        return value
    result = {}
    for name, inner in wanted.items():
        found = _member(view, value, name, alone=True)
        if found is not _ABSENT:
            result[name] = pick(view, found, inner)
    return result


def _member(view: View, mapping: dict[str, Any], name: str, *, alone: bool = False) -> Any:
    """Return the member of this name. Some JSON libraries match keys without case, so a second spelling is refused.

    Args:
        view: folds.
        mapping: an object.
        name: as written in the rule.
        alone: refuse another spelling also where this one is not there: to CEL it would be no member at all.
    """
    if len(mapping) > MAX_REACHED:
        raise Unevaluable(f"an object in the body has more than {MAX_REACHED} keys")
    folded = fold_text(name)
    spellings = [key for key in mapping if view.fold(key) == folded]
    if len(spellings) > 1 or (alone and spellings not in ([], [name])):
        raise Unevaluable(f"the body's JSON has the key {name!r} in another spelling")
    return mapping.get(name, _ABSENT)


def _check_keys(view: View, value: Any, expression: Expression) -> None:
    """Refuse what CEL, which knows keys in one spelling only, would not see as some origins do.

    Raises:
        Unevaluable: an object has a key in two spellings, or one in another spelling than the expression's.
    """
    names, folded_names = expression.names, expression.folded_names
    level = [value]
    while level:
        below: list[Any] = []
        for each in level:
            if type(each) is list:
                below.extend(each)
            elif type(each) is dict:
                folded = {key: view.fold(key) for key in each}
                if len(set(folded.values())) < len(each):
                    raise Unevaluable("the body's JSON has a key in two spellings")
                if any(key not in names and text in folded_names for key, text in folded.items()):
                    raise Unevaluable("the body's JSON has a key in another spelling than the condition's")
                below.extend(each.values())
        level = below


def _check_size(value: Any, max_values: int, max_chars: int) -> None:
    count, chars, level = 0, 0, [value]
    while level:
        count += len(level)
        if count > max_values:
            raise Unevaluable(f"it needs more than {max_values} values of the request")
        below: list[Any] = []
        for each in level:
            if type(each) is str:
                chars += len(each)
            elif type(each) is dict:
                chars += sum(map(len, each))
                below.extend(each.values())
            elif type(each) is list:
                below.extend(each)
        if chars > max_chars:
            raise Unevaluable(f"it needs more than {max_chars} characters of the request")
        level = below


class Condition(msgspec.Struct, frozen=True):
    """One condition. `lenient`: it belongs to a deny.

    Attributes:
        lenient: see the module.
    """

    lenient: bool

    @property
    def needs_body(self) -> bool:
        """Whether it may be PENDING."""
        return False

    @property
    def label(self) -> str:
        """What it asks for, for people, without any value of a request."""
        raise NotImplementedError

    def judge(self, view: View) -> Outcome:
        """Return the outcome; whatever can't be read is UNKNOWN."""
        try:
            return self._judge(view)
        except Unevaluable:
            return Outcome.UNKNOWN

    def explain(self, view: View) -> str:
        """Say why the outcome is not YES, without any value of the request."""
        try:
            outcome = self._judge(view)
        except Unevaluable as error:
            return f"{self.label} can't be evaluated: {error}"
        return f"{self.label} needs the body" if outcome is Outcome.PENDING else f"{self.label} does not hold"

    def _judge(self, view: View) -> Outcome:
        raise NotImplementedError


class ValueCondition(Condition, frozen=True):
    """On a query parameter or header.

    Attributes:
        kind: "query" or "headers".
        name: as written; lower-case for a header.
        globs: any of which; None: see `present`.
        present: whether it must be there, or must not be.
    """

    kind: str
    name: str
    globs: tuple[Glob, ...] | None = None
    present: bool = True

    @property
    def label(self) -> str:
        """As written."""
        if self.globs is None:
            return f"{self.kind} {self.name}: {'true' if self.present else 'false'}"
        return f"{self.kind} {self.name}: {' or '.join(glob.text for glob in self.globs)}"

    def _judge(self, view: View) -> Outcome:
        folded = self._fold(view, self.name)
        if self.globs is None:
            # Present in the strict sense: under its own name. Absent in the strict sense: under none.
            lenient = self.lenient == self.present
            found = any(name == (folded if lenient else self.name) for name, _ in self._pairs(view, lenient))
            return Outcome(found == self.present)
        kind = view.media_type if self.kind == "headers" and folded == "content-type" else ""
        if self.lenient:
            globs = [glob.folded() for glob in self.globs]
            texts = [text for name, value in self._pairs(view, True) if name == folded for text in self._texts(value)]
            if kind and texts:
                texts.append(kind)
            return Outcome(any(glob.matches(view.fold(text)) for text in texts for glob in globs))
        pairs = [(name, value) for name, value in self._pairs(view, False) if folded in self._readings(view, name)]
        matched = all(any(glob.matches(value) for glob in self.globs) for _, value in pairs)
        return Outcome(bool(pairs) and matched and all(name == self.name for name, _ in pairs))

    def _fold(self, view: View, name: str) -> str:
        return fold_header(name) if self.kind == "headers" else view.fold(name)

    def _readings(self, view: View, name: str) -> tuple[str, ...]:
        return _header_readings(name) if self.kind == "headers" else view.readings(name)

    def _pairs(self, view: View, lenient: bool) -> Pairs:
        if self.kind == "headers":
            return view.lenient_headers if lenient else view.headers
        return view.lenient_query if lenient else view.query

    def _texts(self, value: str) -> Iterator[str]:
        yield value
        if self.kind == "headers" and "," in value:
            yield from (part.strip() for part in value.split(","))


Scalar: TypeAlias = bool | int | float | str | None


class JsonCondition(Condition, frozen=True):
    """On a member of a JSON body. Lists on the way are entered.

    Attributes:
        path: keys from the root.
        values: any of which; text is a `Glob`.
    """

    path: tuple[str, ...]
    values: tuple[Glob | bool | int | float | None, ...]

    @property
    def needs_body(self) -> bool:
        """Always."""
        return True

    @property
    def label(self) -> str:
        """As written."""
        texts = [value.text if isinstance(value, Glob) else _json_text(value) for value in self.values]
        return f"json {'.'.join(self.path)}: {' or '.join(texts)}"

    def _judge(self, view: View) -> Outcome:
        pending = view.require_body()
        if pending is not None:
            return pending
        if not view.has_body:
            return Outcome.NO
        found = self._reach(view)
        if self.lenient:
            wanted = [value.folded() if isinstance(value, Glob) else value for value in self.values]
            found = [view.fold(value) if type(value) is str else value for value in found]
            return Outcome(any(_matches(value, wanted) for value in found))
        return Outcome(bool(found) and all(_matches(value, self.values) for value in found))

    def _reach(self, view: View) -> list[Any]:
        """Return every value that the path leads to, _ABSENT for each way that ends early.

        Raises:
            Unevaluable: there is more on the way than is looked at.
        """
        budget = _Budget()
        values = budget.enter_lists([view.json])
        for step in self.path:
            folded = fold_text(step)
            following: list[Any] = []
            for value in values:
                if type(value) is not dict:
                    following.append(_ABSENT)
                    continue
                budget.spend(len(value))
                if self.lenient:
                    following.extend(inner for key, inner in value.items() if view.fold(key) == folded)
                else:
                    following.append(_member(view, value, step))
            values = budget.enter_lists(following)
        return values


class _Budget:
    """Counts what is looked at of a body."""

    def __init__(self) -> None:
        self.left = MAX_REACHED

    def spend(self, count: int) -> None:
        """Take so many off.

        Raises:
            Unevaluable: there are not so many left.
        """
        self.left -= count
        if self.left < 0:
            raise Unevaluable(f"the body has more than {MAX_REACHED} values where it looks")

    def enter_lists(self, values: list[Any]) -> list[Any]:
        """Return the values with lists, and lists in them, replaced by their elements."""
        while any(type(value) is list for value in values):
            flat: list[Any] = []
            for value in values:
                if type(value) is list:
                    self.spend(len(value) + 1)
                    flat.extend(value)
                else:
                    flat.append(value)
            values = flat
        return values


def _matches(value: Any, wanted: Iterable[Glob | bool | int | float | None]) -> bool:
    for mine in wanted:
        if isinstance(mine, Glob):
            if type(value) is str and mine.matches(value):
                return True
        elif type(mine) is bool or mine is None or type(value) is bool:
            if value is mine:
                return True
        elif isinstance(value, int | float) and value == mine:
            return True
    return False


def _json_text(value: bool | int | float | None) -> str:
    return "null" if value is None else str(value).lower()


class WhenCondition(Condition, frozen=True):
    """A CEL condition.

    Attributes:
        expression: compiled.
    """

    expression: Expression

    @property
    def needs_body(self) -> bool:
        """Whether it names `request.json`."""
        return self.expression.needs_body

    @property
    def label(self) -> str:
        """As written, shortened."""
        text = " ".join(self.expression.text.split())
        return f"when {text if len(text) <= 80 else text[:77] + '...'}"

    def _judge(self, view: View) -> Outcome:
        expression = self.expression
        if expression.needs_body:
            pending = view.require_body()
            if pending is not None:
                return pending
        return Outcome(expression.evaluate(view.context(expression)))
