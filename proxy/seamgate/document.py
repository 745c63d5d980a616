"""The one strict YAML reader: policies, seamgate.yaml and policy tests all come through here.

A file says what it means or is refused with file, line and column. From YAML 1.2 it takes mappings, sequences and
scalars, nothing else: no anchors, aliases, tags or merge keys, no second document, no duplicate key, and no plain
scalar that two YAML parsers read differently (`no`, `on`, `0o17`, `017`, `1_000`, `1:30`): the message says to quote.
Dates stay text here and become dates where the type asks for one. `load_document` gives a typed value,
`parse_document` the raw data with the place of everything in it, for errors that only meaning can find.

Called by the policy loader, the configuration and the CLI. Only `read_document` and `read_text` touch a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from seamgate.errors import ConfigError
from seamgate.hints import did_you_mean

T = TypeVar("T")
Step = str | int
"""One step of a path into a document: a mapping's key or a sequence's index."""

MAX_SIZE_BYTES = 64 * 1024 * 1024
"""Room for 200,000 rules; a file beyond it is a mistake, or a way to exhaust memory."""
_MAX_TRIALS = 1000
_MOST_PROBLEMS = 20
MAX_DEPTH = 32
"""Levels of nesting. A policy needs 6."""

# libyaml where PyYAML was built with it: ten times faster, the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?\Z")
# What YAML 1.1 or 1.2 parsers take for a boolean, null, number or sexagesimal, and others for text.
_AMBIGUOUS = re.compile(
    r"""(?:y|n|yes|no|on|off|true|false|null)\Z | ~\Z
    | [-+]?0[0-9_]+(?:\.[0-9_]*)?\Z | [-+]?0[oxb][0-9a-f_]+\Z | [-+]?[0-9][0-9_]*\Z
    | [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z
    | [-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:e[-+]?[0-9]+)?\Z | [-+]?\.(?:inf|nan)\Z | =\Z | <<\Z
    """,
    re.VERBOSE | re.IGNORECASE,
)
_QUOTE_STARS = "put a pattern that begins with * in quotes"
_ERROR_PATH = re.compile(r" - at `(?:key in )?(\$[^`]*)`\Z")
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]|\[\.\.\.\]")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)

_FIELD = re.compile(r"\AObject (?:contains unknown|missing required) field `(.*)`\Z", re.DOTALL)
_LACKS = "Object missing required field"
_UNKNOWN_VALUE = re.compile(r"Invalid enum value (.*)\Z", re.DOTALL)

# Places are packed, because a large policy has a million of them: line * 65536 + column, both 0-based. The place of a
# scalar is that number; of a sequence (number, [place...]); of a mapping (number, {key: (number of key, place)}).
_Place = Any


class Document:
    """A parsed file: plain data, and where each part of it stands.

    Attributes:
        data: dict, list, str, int, float, bool or None.
        source: the file's name as the user gave it.
    """

    def __init__(self, data: Any, source: str, places: _Place) -> None:
        self.data = data
        self.source = source
        self._places = places

    def position(self, *path: Step, key: bool = False) -> tuple[int, int]:
        """Return (line, column), both 1-based, of the value at the path, or of the nearest part that is there.

        Args:
            path: keys and indexes from the root.
            key: the place of the last step's key instead of its value.
        """
        place, packed = self._places, _packed(self._places)
        for index, step in enumerate(path):
            children = place[1] if isinstance(place, tuple) else None
            if isinstance(children, dict) and step in children:
                key_at, place = children[step]
                packed = key_at if key and index == len(path) - 1 else _packed(place)
            elif isinstance(children, list) and isinstance(step, int) and step < len(children):
                place = children[step]
                packed = _packed(place)
            else:
                break
        return (packed >> 16) + 1, (packed & 0xFFFF) + 1

    def error(self, message: str, *path: Step, key: bool = False) -> ConfigError:
        """Return the error to raise about the value (or key) at the path."""
        line, column = self.position(*path, key=key)
        return ConfigError(message, source=self.source, line=line, column=column)

    def convert(self, type_: type[T]) -> T:
        """Return the data as this type: msgspec structs with `forbid_unknown_fields=True`.

        Raises:
            ConfigError: it does not fit, with the place of what does not, and "did you mean" for an unknown key.
        """
        return self.convert_part(self.data, type_)

    def convert_part(self, data: Any, type_: type[T], *prefix: Step) -> T:
        """Return a part of the data, which stands at `prefix`, as this type.

        Raises:
            ConfigError: as `convert`.
        """
        try:
            return msgspec.convert(data, type_)
        except msgspec.ValidationError as error:
            raise self._explain(*_place_of(str(error), data, type_), type_, prefix) from None

    def release(self) -> None:
        """Let go of what stands in lists, piece by piece: a million objects freed in one go hold every thread up."""
        place = self._places[1] if isinstance(self._places, tuple) else None
        if not isinstance(self.data, dict) or not isinstance(place, dict):
            return
        for key, value in self.data.items():
            inner = place[key][1]
            for each in (value, inner[1] if isinstance(inner, tuple) else None):
                while isinstance(each, list) and each:
                    each.pop()

    def problems(self, data: Any, type_: type[T], *prefix: Step) -> tuple[T | None, list[ConfigError]]:
        """Return a part of the data as this type, or all that keeps it from being that, as far as it can be told.

        What does not fit is taken out, and the rest tried again; so what hangs together with it is not reported.

        Args:
            data: the part; not changed.
            type_: what it is to be.
            prefix: where it stands.
        """
        found: list[ConfigError] = []
        taken_out: set[tuple[Step, ...]] = set()
        while len(found) < _MOST_PROBLEMS:
            try:
                value = msgspec.convert(data, type_)
                return (None if found else value), found
            except msgspec.ValidationError as error:
                message, path = _place_of(str(error), data, type_)
            named = _FIELD.search(message)
            if named:
                path = (*path, named.group(1))
            if path in taken_out:  # it lacks what did not fit
                break
            found.append(self._explain(message, path[:-1] if named else path, type_, prefix))
            path = _mapping_path(path)
            if not path or message.startswith(_LACKS):
                break
            taken_out.add(path)
            data = _without(data, path)
        return None, found

    def _explain(self, message: str, path: tuple[Step, ...], type_: Any, prefix: tuple[Step, ...] = ()) -> ConfigError:
        """Put msgspec's words about the value at prefix and path into ours."""
        inner, path = path, (*prefix, *path)
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        unknown = _UNKNOWN_FIELD.match(message)
        if unknown:
            name = unknown.group(1)
            known = _field_names(msgspec.inspect.type_info(type_), inner)
            hint = did_you_mean(name, known, "known keys are")
            return self.error(f"unknown key {name!r}{f' in {where}' if where else ''}{hint}", *path, name, key=True)
        if message.startswith(_LACKS):
            name = message.partition("`")[2].rstrip("`")
            return self.error(f"{where or 'the file'} lacks the key {name!r}: add it", *path)
        value = _UNKNOWN_VALUE.match(message)
        if value:
            known = [str(each) for each in _values(msgspec.inspect.type_info(type_), inner)]
            write = f": write {'one of ' if len(known) > 1 else ''}{', '.join(sorted(known))}" if known else ""
            return self.error(f"{where}: {value.group(1)} means nothing here{write}", *path)
        message = message.replace("`object`", "a mapping").replace("`array`", "a list").replace("`null`", "nothing")
        if re.search(r"expected `str\b", message, re.IGNORECASE) and re.search(r"got `(?:int|float|bool)`", message):
            examples = _examples(msgspec.inspect.type_info(type_), inner)
            message += f"; write for example {examples[0]}" if examples else "; put it in quotes"
        return self.error(f"{where or 'the file'}: {message[:1].lower()}{message[1:]}", *path)


def load_document(text: str, source: str, type_: type[T]) -> T:
    """Parse and convert in one go.

    Raises:
        ConfigError: as `parse_document` and `Document.convert`.
    """
    return parse_document(text, source).convert(type_)


def read_document(path: Path | str, type_: type[T]) -> T:
    """Read, parse and convert a file.

    Raises:
        ConfigError: it can't be read, is not UTF-8, or is not what the type wants.
    """
    return load_document(read_text(path), str(path), type_)


def read_text(path: Path | str) -> str:
    """Return the file's text.

    Raises:
        ConfigError: it can't be read, is too large, or is not UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(_unreadable(error), source=str(path)) from None
    if len(raw) > MAX_SIZE_BYTES:
        raise ConfigError(f"is larger than {MAX_SIZE_BYTES} bytes: split it", source=str(path))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise ConfigError("is not UTF-8: save it as UTF-8", source=str(path), line=line, column=column) from None


def _unreadable(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "can't be read: there is no such file"
    if isinstance(error, IsADirectoryError):
        return "can't be read: it is a folder; name the files in it"
    if isinstance(error, PermissionError):
        return f"can't be read: the user {os.geteuid()} has no right to; see `ls -l`"
    return f"can't be read: {error.strerror or error}"


def parse_document(text: str, source: str) -> Document:
    """Parse YAML text into plain data with places.

    Args:
        text: the file's text.
        source: its name, for errors.

    Raises:
        ConfigError: it is not well-formed, or uses what is refused (see above).
    """
    if len(text) > MAX_SIZE_BYTES:
        raise ConfigError(f"is larger than {MAX_SIZE_BYTES} bytes: split it", source=source)
    if text.startswith("\ufeff"):
        raise ConfigError("starts with a byte order mark: save it without one", source=source, line=1, column=1)
    try:
        return _Builder(source).build(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, source) from None


class _Builder:
    """Builds data and places from the parser's events, one pass, an explicit stack instead of recursion."""

    def __init__(self, source: str) -> None:
        self.source = source

    def build(self, events: Iterator[Any]) -> Document:
        stack: list[tuple[Any, _Place, list[Any]]] = []  # (container, place, [pending key, its place] or [])
        documents = 0
        root: tuple[Any, _Place] | None = None
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                value, place = self._scalar(event), _pack(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._refuse_extras(event)
                if len(stack) >= MAX_DEPTH:
                    raise self._error(event, f"nests deeper than {MAX_DEPTH} levels")
                container: Any = {} if kind is yaml.MappingStartEvent else []
                if stack and isinstance(stack[-1][0], dict) and not stack[-1][2]:
                    raise self._error(event, "a key must be text: put it in quotes")
                stack.append((container, (_pack(event), type(container)()), []))
                continue
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                value, place, _ = stack.pop()
            elif kind is yaml.AliasEvent:
                raise self._error(event, f"alias *{event.anchor} is refused: {_QUOTE_STARS}")
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise self._error(event, "a second document (---) begins here: use one file for each")
                continue
            else:
                continue
            if stack:
                self._add(stack[-1], value, place, event)
            else:
                root = value, place
        if root is None or (root[0] is None and isinstance(root[1], int)):
            raise ConfigError("is empty", source=self.source, line=1, column=1)
        return Document(root[0], self.source, root[1])

    def _add(self, frame: tuple[Any, _Place, list[Any]], value: Any, place: _Place, event: Any) -> None:
        container, places, pending = frame
        if isinstance(container, list):
            container.append(value)
            places[1].append(place)
        elif pending:
            key, key_at = pending
            container[key] = value
            places[1][key] = (key_at, place)
            pending.clear()
        else:
            if type(value) is not str:
                raise self._error(event, f"the key {event.value!r} is not text: put it in quotes")
            if value in container:
                first = (places[1][value][0] >> 16) + 1
                raise self._error(event, f"the key {value!r} is there twice: first on line {first}")
            pending.extend((value, place))

    def _scalar(self, event: Any) -> str | int | float | bool | None:
        if event.anchor is not None or event.tag is not None:
            self._refuse_extras(event)
        text: str = event.value
        if not event.implicit[0]:
            return text  # quoted, or a block
        if not text or text == "null":
            return None
        if text == "true" or text == "false":
            return text == "true"
        first = text[0]
        if first not in "-+.~=<0123456789yYnNoOtTfF":
            return text
        if _INTEGER.match(text):
            return int(text)
        if _FLOAT.match(text):
            return float(text)
        if _AMBIGUOUS.match(text):
            raise self._error(event, f"{text} means different things to different YAML parsers: {_advice(text)}")
        return text

    def _refuse_extras(self, event: Any) -> None:
        if event.anchor is not None:
            raise self._error(event, f"anchor &{event.anchor} is refused: write the value out where it is needed")
        if event.tag is not None:
            raise self._error(event, f"tag {event.tag} is refused: remove it")

    def _error(self, event: Any, message: str) -> ConfigError:
        mark = event.start_mark
        return ConfigError(message, source=self.source, line=mark.line + 1, column=mark.column + 1)


def _advice(text: str) -> str:
    if re.match(r"(?:y|n|yes|no|on|off|true|false)\Z", text, re.IGNORECASE):
        return f'write true or false, or "{text}" in quotes for text'
    if text == "<<":
        return "merge keys are refused, write the values out"
    if text == "~" or text.lower() == "null":
        return f'write null, or "{text}" in quotes for text'
    return f'write a plain decimal number, or "{text}" in quotes for text'


def _pack(event: Any) -> int:
    mark = event.start_mark
    column: int = mark.column
    line: int = mark.line
    return line << 16 | (column if column < 0xFFFF else 0xFFFF)


def _packed(place: _Place) -> int:
    packed: int = place[0] if isinstance(place, tuple) else place
    return packed


def _syntax_error(error: yaml.YAMLError, text: str, source: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "is not well-formed YAML"
        line = text.split("\n", mark.line + 1)[mark.line] if mark.line <= text.count("\n") else ""
        hint = "; indent with spaces, not tabs" if "cannot start any token" in problem and "\t" in text else ""
        if "alphabetic or numeric" in problem and "*" in line:
            hint = f": {_QUOTE_STARS}"
        return ConfigError(f"{problem}{hint}", source=source, line=mark.line + 1, column=mark.column + 1)
    position = getattr(error, "position", None)  # a ReaderError
    if isinstance(position, int):
        before = text.encode("utf-8", "surrogatepass")[:position]
        line, column = before.count(b"\n") + 1, position - before.rfind(b"\n")
        return ConfigError("holds a character that YAML does not allow", source=source, line=line, column=column)
    return ConfigError("is not well-formed YAML", source=source)


def _place_of(text: str, data: Any, type_: Any) -> tuple[str, tuple[Step, ...]]:
    """Split a msgspec error into its message and the path that it is about.

    msgspec names fields and indexes but not the keys of a mapping of many (`$.guests[...].token`). Such a key is
    found by converting again with one key at a time.
    """
    found = _ERROR_PATH.search(text)
    if not found:
        return text, ()
    message = text[: found.start()]
    path: list[Step] = []
    for match in _PATH_STEP.finditer(found.group(1)):
        if match.group(1) is not None:
            path.append(match.group(1))
        elif match.group(2) is not None:
            path.append(int(match.group(2)))
        else:
            key = _failing_key(data, path, type_, message)
            if key is None:
                break
            path.append(key)
    return message, tuple(path)


def _mapping_path(path: tuple[Step, ...]) -> tuple[Step, ...]:
    """Cut the path off behind its last key; () if there is none."""
    last = max((index for index, step in enumerate(path) if isinstance(step, str)), default=-1)
    return path[: last + 1]


def _without(data: Any, path: tuple[Step, ...]) -> Any:
    """Return a copy of the data without the mapping's key at the path."""
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    return _replaced(data, list(path[:-1]), {key: value for key, value in inner.items() if key != path[-1]})


def _failing_key(data: Any, path: list[Step], type_: Any, message: str) -> str | None:
    mapping = data
    for step in path:
        mapping = mapping[step]
    for key in list(mapping)[:_MAX_TRIALS] if isinstance(mapping, dict) else ():
        try:
            msgspec.convert(_replaced(data, path, {key: mapping[key]}), type_)
        except msgspec.ValidationError as error:
            if str(error).startswith(message):
                return str(key)
    return None


def _replaced(data: Any, path: list[Step], value: Any) -> Any:
    """Return a copy of the data with the value at the path; only what lies on the path is copied."""
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = _replaced(data[path[0]], path[1:], value)
    return copy


def _at(info: msgspec.inspect.Type, path: tuple[Step, ...]) -> list[msgspec.inspect.Type]:
    """Return what may stand at the path."""
    infos = [info]
    for step in path:
        infos = [inner for each in infos for inner in _descend(each, step)]
    return infos


def _examples(info: msgspec.inspect.Type, path: tuple[Step, ...]) -> list[Any]:
    """Return the examples that the type at the path gives, where text alone does not tell what it is."""
    metas = [each for each in _at(info, path) if isinstance(each, msgspec.inspect.Metadata)]
    return [example for each in metas for example in (each.extra_json_schema or {}).get("examples", ())]


def _values(info: msgspec.inspect.Type, path: tuple[Step, ...]) -> list[Any]:
    """Return the values that are possible at the path, where they can be told."""
    values: list[Any] = []
    for each in (inner for outer in _at(info, path) for inner in _unfold(outer)):
        if isinstance(each, msgspec.inspect.LiteralType):
            values += each.values
        elif isinstance(each, msgspec.inspect.EnumType):
            values += [member.value for member in each.cls]
    return values


def _field_names(info: msgspec.inspect.Type, path: tuple[Step, ...]) -> list[str]:
    """Return the keys that the struct at the path knows, or [] where the path leads through a union of several."""
    structs = [
        each for outer in _at(info, path) for each in _unfold(outer) if isinstance(each, msgspec.inspect.StructType)
    ]
    return [field.encode_name for each in structs for field in each.fields]


def _descend(info: msgspec.inspect.Type, step: Step) -> Iterator[msgspec.inspect.Type]:
    for each in _unfold(info):
        if isinstance(each, msgspec.inspect.StructType):
            yield from (field.type for field in each.fields if field.encode_name == step)
        elif isinstance(each, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            yield each.item_type
        elif isinstance(each, msgspec.inspect.DictType):
            yield each.value_type


def _unfold(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    if isinstance(info, msgspec.inspect.Metadata):  # Annotated with a description
        return _unfold(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return tuple(inner for each in info.types for inner in _unfold(each))
    return (info,)
