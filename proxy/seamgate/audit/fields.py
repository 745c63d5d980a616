"""The names by which one asks for fields of a line, and the values that some of them are limited to.

Read off the types of `AuditLine`, so that a question for what no line ever has is refused, and not answered with
nothing. Used by `seamgate audit`. No I/O.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from seamgate.audit.record import AuditLine
from seamgate.errors import AuditError
from seamgate.hints import did_you_mean

SHORT: Final[Mapping[str, str]] = {
    "guest": "guest.id",
    "host": "request.host",
    "method": "request.method",
    "path": "request.path",
    "port": "request.port",
}
"""Short names of fields, and what each is short for."""


def check_field(name: str, value: str) -> None:
    """Refuse a question that no line can answer.

    Raises:
        AuditError: no line has such a field, or the field never has this value.
    """
    known = _fields()
    full = SHORT.get(name, name)
    if any(full.startswith(f"{prefix}.") for prefix in _mappings()):
        return  # a label or a fact may have any name
    if full not in known:
        hint = did_you_mean(name, [*known, *SHORT]) or "; `seamgate audit schema` lists all that there are"
        raise AuditError(f"no record has a field {name!r}{hint}")
    values = known[full]
    if values and value not in values:
        raise AuditError(f"{name} is never {value!r}{did_you_mean(value, values, 'it is one of')}")


@lru_cache(maxsize=1)
def _fields() -> dict[str, tuple[str, ...]]:
    """Dotted name -> the values that the field can have, () for any."""
    return {name: values for name, values in _walk(AuditLine, "") if values is not None}


@lru_cache(maxsize=1)
def _mappings() -> tuple[str, ...]:
    return tuple([name for name, values in _walk(AuditLine, "") if values is None])


def _walk(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield each field with its possible values; None for a mapping with names of its own."""
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        name = f"{prefix}{field.encode_name}"
        kind = _without_none(hints[field.name])
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _walk(kind, f"{name}.")
        elif isinstance(kind, type) and issubclass(kind, Enum):
            yield name, tuple([str(each.value) for each in kind])
        elif typing.get_origin(kind) is Literal:
            yield name, tuple([str(each) for each in typing.get_args(kind)])
        else:
            origin = typing.get_origin(kind)
            yield name, None if isinstance(origin, type) and issubclass(origin, Mapping) else ()


def _without_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (kind,) = [each for each in typing.get_args(kind) if each is not type(None)]
    return kind
