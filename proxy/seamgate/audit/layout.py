"""Where the fields of a record stand, for the C part that writes lines (`seamgate._native.Lines`).

Asked once by `audit.line`. The structures of `audit.record` stay the only place that knows the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from seamgate.audit import record
from seamgate.flow import Step

if TYPE_CHECKING:
    from seamgate._native import Lines

_STRUCTURES: tuple[type[msgspec.Struct], ...] = (
    record.AuditRecord, record.AuditGuest, record.AuditRequest, record.AuditUpstream, record.AuditBytes, Step,
    record.AuditWebSocket, record.AuditGateway, record.AuditGap,
)  # fmt: skip


def native_lines() -> Lines | None:
    """Return what writes records, or None where nobody built it."""
    try:
        from seamgate._native import Lines as lines
    except ImportError:
        return None
    return lines([layout(each) for each in _STRUCTURES])


def native_sha256_hex() -> Callable[[bytes], str] | None:
    """Return a SHA-256 in hex that costs no more than the hashing, or None where there is none."""
    try:
        from seamgate._native import sha256_hex
    except ImportError:
        return None
    return sha256_hex


def native_chain() -> Callable[[int, str, list[bytes], int], tuple[bytes, list[int], str]] | None:
    """Return `audit.line.chain` in C, or None where there is none."""
    try:
        from seamgate._native import chain
    except ImportError:
        return None
    return chain


def layout(structure: type[msgspec.Struct]) -> tuple[type, bool, list[tuple[bytes, Any, Any]]]:
    """Return (structure, whether it is written as an array, [(`"name":`, descriptor, default or NotImplemented)]).

    A field is left out where it has its default, if the structure says so (`omit_defaults`).
    """
    config, names = structure.__struct_config__, structure.__struct_fields__
    defaults = (msgspec.NODEFAULT,) * (len(names) - len(structure.__struct_defaults__)) + structure.__struct_defaults__
    return (
        structure,
        config.array_like,
        [
            (
                b'"%s":' % name.encode(),
                getattr(structure, name),
                _left_out(default) if config.omit_defaults else NotImplemented,
            )
            for name, default in zip(names, defaults, strict=True)
        ],
    )


def _left_out(default: Any) -> Any:
    """Return the default with which a field is left out; of those that are made anew, an empty one."""
    if default is msgspec.NODEFAULT:
        return NotImplemented
    return {} if type(default).__name__ == "Factory" else default
