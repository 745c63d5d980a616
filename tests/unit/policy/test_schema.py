"""The JSON Schema accepts what the loader accepts, and refuses what it refuses for its shape."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from seamgate.document import parse_document
from seamgate.policy.schema import json_schema
from seamgate.policy.testing import TestFile

POLICIES = Path(__file__).resolve().parents[3] / "policies"


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_files_fit_their_schema(path: Path) -> None:
    """Every policy and test in policies/ is valid for an editor too."""
    schema = json_schema(TestFile) if path.name.endswith(".test.yaml") else json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(parse_document(path.read_text(encoding="utf-8"), path.name).data, schema)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"seamgate": 2},
        {"seamgate": 1, "rules": [{"id": "a", "alow": {}}]},
        {"seamgate": 1, "rules": [{"allow": {}}]},
    ],
)
def test_wrong_shapes_do_not(data: object) -> None:
    """Unknown keys, missing keys and wrong values are seen while typing."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json_schema())
