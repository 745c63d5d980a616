"""`seamgate.credentials.secret`: a value that can't be shown by accident."""

from __future__ import annotations

import copy
import json
import pickle
import traceback

import msgspec
import pytest

from seamgate.credentials.secret import MAX_SIZE_BYTES, Secret
from seamgate.errors import CredentialError

CANARY = b"canary-4f1c9e7a"


def test_no_text_form_shows_the_value() -> None:
    """repr, str, format, f-string and %-formatting show no part of the value."""
    secret = Secret(CANARY, name="a")
    shown = f"{secret} {secret!r} {secret!s} {secret:>40} {f'{secret}'} {[secret]} { {'k': secret} }"
    assert "canary" not in shown
    assert "<secret>" in shown


def test_it_can_not_be_serialised() -> None:
    """Pickle, copy, JSON and msgspec fail, and their errors do not show the value."""
    secret = Secret(CANARY, name="a")
    for attempt in (
        lambda: pickle.dumps(secret),
        lambda: copy.copy(secret),
        lambda: copy.deepcopy({"a": [secret]}),
        lambda: json.dumps(secret),
        lambda: msgspec.json.encode(secret),
        lambda: secret.__getstate__(),
    ):
        with pytest.raises(TypeError) as caught:
            attempt()
        assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_it_has_no_dictionary_and_no_hash() -> None:
    """vars() and hash() are no way around."""
    secret = Secret(CANARY, name="a")
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError):
        hash(secret)


def test_it_compares_by_value() -> None:
    """Two secrets are equal if their values are; nothing else equals a secret."""
    assert Secret(CANARY, name="a") == Secret(CANARY, name="b")
    assert Secret(CANARY, name="a") != Secret(CANARY + b"x", name="a")
    assert Secret(CANARY, name="a") != CANARY


@pytest.mark.parametrize(
    "value",
    [
        b"", b"short", b"canary\r\nx-evil: 1", b"canary\nmore", b"canary\0more", b"canary\tmore", b"canary\x7fmore",
        b" canary-lead", b"canary-trail ", b"canary" * MAX_SIZE_BYTES,
    ],
)  # fmt: skip
def test_values_that_can_not_be_sent_or_redacted_are_refused(value: bytes) -> None:
    """CR, LF, NUL, other controls, outer spaces, too short and too long are refused by name, without the value."""
    with pytest.raises(CredentialError, match="credential 'key'") as caught:
        Secret(value, name="key")
    assert "canary" not in str(caught.value)
