"""CEL conditions: compiled once, checked at load, given only the fields that they name.

The library is `common-expression-language` (the Rust `cel` crate); this is the one place that knows it. Handing it a
value costs more than evaluating, so `Expression.fields` is read from the text: `request.json.model` costs the same
whatever else the body holds. Whatever goes wrong at run time is `Unevaluable`, never a value.

Called by the loader (compile) and `conditions` (evaluate). No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from seamgate.headers import is_unseen
from seamgate.hints import closest
from seamgate.policy.cel_library import cel
from seamgate.policy.folding import fold_text
from seamgate.policy.syntax import explain_syntax

REQUEST_FIELDS = ("headers", "host", "json", "method", "path", "port", "query", "scheme")
GUEST_FIELDS = ("id", "isolation", "labels")
MAX_TEXT = 4096
"""Characters of an expression; longer ones belong into several rules."""
# How many values (leaves and containers), and characters of text in them, an expression may be given: the work grows
# with their number to the power of how deep its macros nest, and they come from the guest. Each is worth some 100 ms,
# more than which a request should not hold everybody up. `map` and `filter` count as one level more, because the
# library copies what they have collected for each further element; `matches` compiles its expression for each text
# anew.
MAX_VALUES = {0: 20_000, 1: 10_000, 2: 250, 3: 60}
MAX_CHARS = {0: 16_000_000, 1: 8_000_000, 2: 500_000, 3: 30_000}
_MATCHES_WEIGHT = 3
_MAX_NESTING = 2

Fields: TypeAlias = "dict[str, Fields] | None"
"""The fields that an expression names, nested; None: the whole value."""

_FUNCTIONS = frozenset(
    "size contains startsWith endsWith matches int uint double string bytes timestamp duration type dyn has all exists "
    "exists_one map filter getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes "
    "getSeconds getMilliseconds".split()
)
_MACROS = frozenset(("all", "exists", "exists_one", "map", "filter"))
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    | (?P<text>[bB]?[rR]?[bB]?
        (?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>[0-9][0-9A-Za-z.]*) | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_SIMPLE_TEXT = re.compile(r"""(["'])([^"'\\]*)\1\Z""")


class Unevaluable(Exception):
    """The condition has no value for this request. The message says why, without any value of the request."""


class ExpressionError(ValueError):
    """The text is not a condition. The message says what to do."""


class Expression:
    """A compiled condition.

    Attributes:
        text: as written.
        fields: what to give it.
        names: every name and text in it: keys of the request under another spelling of one are another reading.
        folded_names: the same, folded.
        needs_body: whether it names `request.json`.
        needs_readings: whether it names the method or path, which an origin may read otherwise.
        max_values: how many values it may be given.
        max_chars: how many characters, in texts and keys.
    """

    def __init__(self, text: str) -> None:
        """Compile.

        Raises:
            ExpressionError: syntax, an unknown name or function, macros nested too deep, a bad literal regex.
        """
        if len(text) > MAX_TEXT:
            raise ExpressionError(f"the condition is longer than {MAX_TEXT} characters: split the rule")
        try:
            self._program = cel.compile(text)
        except (ValueError, RuntimeError, TypeError) as error:
            raise ExpressionError(explain_syntax(str(error), text)) from None
        self.text = text
        tokens = [(match.lastgroup or "", match.group()) for match in _TOKEN.finditer(text)]
        tokens = [token for token in tokens if token[0] != "space"]
        _check_functions(tokens)
        self.fields = _fields(tokens, self._program.variables())
        self.names = frozenset(_names(tokens))
        self.folded_names = frozenset(map(fold_text, self.names))
        nesting = _macro_nesting(tokens)
        if nesting > _MAX_NESTING:
            raise ExpressionError("the condition nests all/exists/map/filter more than twice: its cost would explode")
        self.max_values, self.max_chars = _budget(tokens, nesting)
        request = self.fields.get("request", {}) if self.fields is not None else None
        self.needs_body = request is None or "json" in request
        self.needs_readings = request is None or "method" in request or "path" in request

    def evaluate(self, context: Mapping[str, Any]) -> bool:
        """Return the condition's value.

        Args:
            context: "request" and "guest", with the fields that it names.

        Raises:
            Unevaluable: an error, or a value that is not a boolean.
        """
        try:
            value = self._program.execute(dict(context))
        except KeyError as error:
            raise Unevaluable(f"{str(error.args[0])!r} is not there") from None
        except BaseException as error:
            # A panic in the Rust library is a BaseException without a class that could be imported. It must deny,
            # and must not end the gateway.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise Unevaluable("a value has the wrong type or is out of range") from None
        if value is True or value is False:
            return bool(value)
        raise Unevaluable("its value is not true or false")


def _check_functions(tokens: list[tuple[str, str]]) -> None:
    for index, (kind, text) in enumerate(tokens[:-1]):
        if kind != "name" or tokens[index + 1][1] != "(" or text == "in":
            continue
        if text not in _FUNCTIONS:
            close = closest(text, _FUNCTIONS)
            hint = f"did you mean {close!r}?" if close else f"there are {', '.join(sorted(_FUNCTIONS))}"
            raise ExpressionError(f"the condition calls an unknown function {text!r}: {hint}")
        if text == "matches" and tokens[index + 2][0] == "text" and tokens[index + 3][1] == ")":
            try:
                cel.evaluate(f'"".matches({tokens[index + 2][1]})')
            except (ValueError, RuntimeError, TypeError):
                raise ExpressionError(f"{tokens[index + 2][1]} is not a valid regular expression") from None


def _macro_nesting(tokens: list[tuple[str, str]]) -> int:
    """How deep calls of macros stand inside calls of macros."""
    deepest = 0
    open_marks: list[bool] = []
    for index, (_, text) in enumerate(tokens):
        if text == "(":
            macro = index > 1 and tokens[index - 1][1] in _MACROS and tokens[index - 2][1] == "."
            open_marks.append(macro)
            deepest = max(deepest, sum(open_marks))
        elif text in ("[", "{"):
            open_marks.append(False)
        elif text in (")", "]", "}") and open_marks:
            open_marks.pop()
    return deepest


def _budget(tokens: list[tuple[str, str]], nesting: int) -> tuple[int, int]:
    """Return how many values and characters an expression may be given."""
    called = [text for index, (kind, text) in enumerate(tokens[:-1]) if kind == "name" and tokens[index + 1][1] == "("]
    collects = "map" in called or "filter" in called
    level = nesting + collects
    beside = sum(name in _MACROS for name in called) - nesting
    weight = 1 + beside + _MATCHES_WEIGHT * called.count("matches")
    # What nests is asked for each pair (each three) of values: the root of the weight comes off their number.
    values = MAX_VALUES[level] if not level else int(MAX_VALUES[level] / weight ** (1 / level))
    return values, MAX_CHARS[level] // weight


def _fields(tokens: list[tuple[str, str]], variables: list[str]) -> dict[str, Fields]:
    bound = {tokens[index + 2][1] for index, (_, text) in enumerate(tokens[:-2]) if text in _MACROS}
    for name in variables:
        if name not in ("request", "guest") and name not in bound:
            raise ExpressionError(f"the condition names {name!r}: there are request and guest")
    fields: dict[str, Fields] = {}
    for index, (kind, text) in enumerate(tokens):
        if kind == "name" and text in ("request", "guest") and (index == 0 or tokens[index - 1][1] != "."):
            if text in bound:
                raise ExpressionError(f"a macro may not call its variable {text!r}: choose another name")
            chain = list(_chain(tokens, index + 1))
            asked = _asked_in(tokens, index, chain[-1][1] if chain else index + 1)
            _add(fields, [text, *(name for name, _ in chain), *asked])
    for root, known in (("request", REQUEST_FIELDS), ("guest", GUEST_FIELDS)):
        inner = fields.get(root, {})
        for name in inner if inner is not None else ():
            if name not in known:
                close = closest(name, known)
                hint = f"did you mean {root}.{close}?" if close else f"there are {', '.join(known)}"
                raise ExpressionError(f"the condition names {root}.{name}: {hint}")
    request = fields.get("request") or {}
    for name in request.get("headers") or ():
        if name != name.lower():
            raise ExpressionError(f"header names are lower-case here: write {name.lower()!r}")
        if is_unseen(name):
            raise ExpressionError(f"the header {name!r} is the gateway's own: policy never sees it")
    return fields


def _chain(tokens: list[tuple[str, str]], index: int) -> Iterator[tuple[str, int]]:
    """Yield the names in `.a["b"].c` as far as they are literal and not a method's, each with the index after it."""
    while index + 1 < len(tokens):
        mark = tokens[index][1]
        kind, text = tokens[index + 1]
        after = tokens[index + 2][1] if index + 2 < len(tokens) else ""
        if mark == "." and kind == "name" and after != "(":
            index += 2
            yield text, index
        elif mark == "[" and kind == "text" and after == "]" and (simple := _SIMPLE_TEXT.match(text)):
            index += 3
            yield simple.group(2), index
        else:
            return


def _asked_in(tokens: list[tuple[str, str]], start: int, end: int) -> Iterator[str]:
    """Yield the name in `"name" in request.query`, if that is all there is on both sides of `in`."""
    before = tokens[start - 3][1] if start > 2 else ""
    after = tokens[end][1] if end < len(tokens) else ""
    if start > 1 and end - start > 1 and tokens[start - 1] == ("name", "in") and tokens[start - 2][0] == "text":
        simple = _SIMPLE_TEXT.match(tokens[start - 2][1])
        if simple and before in ("", "(", "&", "|", "?", ":", ",") and after in ("", ")", "&", "|", "?", ":", ","):
            yield simple.group(2)


def _names(tokens: list[tuple[str, str]]) -> Iterator[str]:
    """Yield every selected name and every text, its escapes resolved: a key may be named by either."""
    for index, (kind, text) in enumerate(tokens):
        after = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if kind == "name" and index and tokens[index - 1][1] == "." and after != "(":
            yield text
        elif kind == "text":
            value = cel.evaluate(text)
            if type(value) is str:
                yield value


def _add(fields: dict[str, Fields], path: list[str]) -> None:
    for step in path[:-1]:
        inner = fields.setdefault(step, {})
        if inner is None:
            return  # the whole of it is asked for already
        fields = inner
    fields[path[-1]] = None
