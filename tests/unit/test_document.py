"""The strict YAML reader: what is refused, where, and with which advice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from seamgate.document import MAX_DEPTH, load_document, parse_document, read_document, read_text
from seamgate.errors import ConfigError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """An inner mapping."""

    hosts: list[str] = []
    size: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """A file."""

    name: str
    rules: list[Inner] = []
    named: dict[str, Inner] = {}
    either: Inner | list[Inner] | None = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: true", True),
        ("a: false", False),
        ("a: null", None),
        ("a:", None),
        ("a: 12", 12),
        ("a: -3", -3),
        ("a: 0", 0),
        ("a: 1.5", 1.5),
        ("a: 1.5e3", 1500.0),
        ("a: text", "text"),
        ('a: "no"', "no"),
        ("a: '0o17'", "0o17"),
        ("a: 2027-03-31", "2027-03-31"),
        ("a: 2026-12-01T09:00:00Z", "2026-12-01T09:00:00Z"),
        ("a: 60/min", "60/min"),
        ("a: 5MiB", "5MiB"),
        ("a: 1.2.3.4", "1.2.3.4"),
        ("a: 10.0.0.0/8", "10.0.0.0/8"),
        ("a: nobody", "nobody"),
        ("a: only", "only"),
        ("a: .hidden", ".hidden"),
        ("a: |\n  no\n", "no\n"),
        ("a: /v1/**", "/v1/**"),
    ],
)
def test_plain_scalars_mean_what_everybody_reads(text: str, value: object) -> None:
    """Scalars without doubt are read as YAML 1.2 reads them; dates stay text."""
    data = parse_document(text, "f").data
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


@pytest.mark.parametrize(
    "scalar",
    [
        "no",
        "No",
        "yes",
        "on",
        "OFF",
        "y",
        "N",
        "True",
        "FALSE",
        "Null",
        "~",
        "0o17",
        "017",
        "0x1F",
        "0b1",
        "1_000",
        "1:30",
        "190:20:30",
        "+1",
        "1e3",
        ".5",
        "5.",
        ".inf",
        "-.INF",
        ".nan",
        "00",
        "99999999999999999999",
        "=",
        "<<",
    ],
)
def test_scalars_that_parsers_read_differently_are_refused(scalar: str) -> None:
    """YAML 1.1 booleans, octals, sexagesimals and the like need quotes, and the message says so."""
    with pytest.raises(ConfigError, match=r"^f:1:4: .*different") as caught:
        parse_document(f"a: {scalar}", "f")
    assert (caught.value.line, caught.value.column) == (1, 4)
    assert "quotes" in str(caught.value) or "merge keys" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: 1\nb: 2\na: 3", "3:1", "the key 'a' is there twice: first on line 1"),
        ("x:\n  - {a: 1, a: 2}", "2:12", "the key 'a' is there twice"),
        ("a: &x 1", "1:4", "anchor &x is refused"),
        ("a: &x {b: 1}", "1:4", "anchor &x is refused"),
        ("a: *x", "1:4", "alias *x is refused"),
        ("a: !!str 1", "1:4", "tag tag:yaml.org,2002:str is refused"),
        ("a: !!python/object:os.system {}", "1:4", "is refused"),
        ("<<: {a: 1}", "1:1", "merge keys are refused"),
        ("a: 1\n---\nb: 2", "2:1", "a second document"),
        ("on: 1", "1:1", "quotes"),
        ("1: a", "1:1", "the key '1' is not text"),
        ("? [a]\n: 1", "1:3", "a key must be text"),
        ("a: [1", "2:1", "did not find expected"),
        ("a:\n\t- b", "2:1", "indent with spaces, not tabs"),
        ("a: [*.example.com]", "1:6", "put a pattern that begins with * in quotes"),
        ("a: \x01", "1:4", "holds a character that YAML does not allow"),
        ("\ufeffa: 1", "1:1", "byte order mark"),
        ("", "1:1", "is empty"),
        ("# nothing\n", "1:1", "is empty"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(text: str, place: str, message: str) -> None:
    """Each refusal names file, line and column and says what to do."""
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "f")
    assert str(caught.value).startswith(f"f:{place}: ")
    assert message in str(caught.value)


def test_depth_is_bounded() -> None:
    """Nesting beyond the limit is refused, however deep; up to it, it is read."""
    parse_document("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f")
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(ConfigError, match="nest"):
            parse_document("[" * depth + "]" * depth, "f")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("nam: x", "1:1", "unknown key 'nam': did you mean 'name'?"),
        ("name: x\nzzz: 1", "2:1", "unknown key 'zzz': known keys are either, name, named, rules"),
        (
            "name: x\nrules:\n  - hosts: []\n  - host: []",
            "4:5",
            "unknown key 'host' in rules[1]: did you mean 'hosts'?",
        ),
        ("name: x\nnamed: {a: {sise: 1}}", "2:13", "unknown key 'sise'"),
        ("name: x\neither: {host: []}", "2:10", "unknown key 'host' in either: did you mean 'hosts'?"),
        ("rules: []", "1:1", "lacks the key 'name': add it"),
        ("name: 5", "1:7", "name: expected `str`, got `int`; put it in quotes"),
        ("name: x\nrules:\n  - size: big", "3:11", "rules[0].size: expected `int`, got `str`"),
        ("name: x\nrules:\n  - hosts: [a, 1]", "3:16", "rules[0].hosts[1]: expected `str`"),
        ("name: x\nrules:", "2:7", "rules: expected a list, got nothing"),
        ("[]", "1:1", "expected a mapping, got a list"),
    ],
)
def test_what_does_not_fit_the_type_is_refused_with_its_place(text: str, place: str, message: str) -> None:
    """Unknown keys, missing keys and wrong types are found where they stand."""
    with pytest.raises(ConfigError) as caught:
        load_document(text, "f", Outer)
    assert str(caught.value).startswith(f"f:{place}: "), str(caught.value)
    assert message in str(caught.value)


def test_positions_are_known_after_loading() -> None:
    """Any path leads to its place, or to the nearest part that is there."""
    document = parse_document("a:\n  - x: 1\n    'y z': [p, q]\n", "f")
    assert document.position() == (1, 1)
    assert document.position("a", 0, "y z", 1) == (3, 16)
    assert document.position("a", 0, "y z", key=True) == (3, 5)
    assert document.position("a", 7, "nowhere") == (2, 3)
    assert str(document.error("odd", "a", 0, "x")) == "f:2:8: odd"


def test_columns_count_characters() -> None:
    """A column is one of characters, also after text beyond ASCII."""
    assert parse_document("ä: {ü: 1}", "f").position("ä", "ü") == (1, 8)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A missing file, a folder and a file that is not UTF-8 are errors with the file's name."""
    with pytest.raises(ConfigError, match=r"none\.yaml: can't be read: there is no such file"):
        read_document(tmp_path / "none.yaml", Outer)
    with pytest.raises(ConfigError, match="can't be read"):
        read_text(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"name: x\nrules: \xff\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml:2:8: is not UTF-8"):
        read_document(bad, Outer)


def test_a_good_file_becomes_its_type(tmp_path: Path) -> None:
    """Reading gives the typed value."""
    good = tmp_path / "good.yaml"
    good.write_text("name: x\nrules:\n  - {hosts: [a], size: 3}\n", encoding="utf-8")
    assert read_document(good, Outer) == Outer("x", [Inner(["a"], 3)])
