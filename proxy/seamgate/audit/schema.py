"""The JSON Schema of a line of the journal, generated from `seamgate.audit.record`.

docs/audit.schema.json is its text, and a test compares them. `python -m seamgate.audit.schema` prints it. No I/O else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from seamgate.audit.record import SCHEMA, AuditLine

_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$"


def line_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12). Fields that are not in it may be added within a version."""
    (_, components) = msgspec.json.schema_components([AuditLine], ref_template="#/$defs/{name}")
    components["AuditLine"]["properties"]["prev"] |= {"pattern": "^[0-9a-f]{64}$"}
    components["AuditLine"]["properties"]["seq"] |= {"minimum": 1}
    components["AuditLine"]["properties"]["time"] |= {"pattern": _TIME, "format": "date-time"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:seamgate:{SCHEMA.replace('/', ':')}",
        "$ref": "#/$defs/AuditLine",
        "$defs": dict(sorted(components.items())),
    }


def schema_text() -> str:
    """Return the schema as it is published."""
    return msgspec.json.format(msgspec.json.encode(line_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")  # noqa: T201  its one purpose
