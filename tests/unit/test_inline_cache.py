"""An inline cache of compiled code (proxy/native/inline_cache.h) answers as the interpreter does, whatever changes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

HEADER = Path(__file__).parents[2] / "proxy" / "native" / "inline_cache.h"
# One place that reads attributes, and one that calls methods without arguments: a cache each.
SOURCE = r"""
static PyObject *get(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    return PyObject_GetAttr(given[0], given[1]);
}
static PyObject *call(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    PyObject *arguments[2] = {NULL, given[0]};
    return PyObject_VectorcallMethod(given[1], arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}
static PyMethodDef methods[] = {
    {"get", (PyCFunction)(void (*)(void))get, METH_FASTCALL, NULL},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL},
    {0},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "place", .m_size = -1, .m_methods = methods};
PyMODINIT_FUNC PyInit_place(void) { return PyModule_Create(&definition); }
"""
FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled module."""
    source = tmp_path_factory.mktemp("inline_cache") / "place.c"
    source.write_text(SOURCE)
    include = f"-I{sysconfig.get_path('include')}"
    command = ["gcc", *FLAGS, include, "-include", str(HEADER), "-o", str(source.with_suffix(".so")), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return source.with_suffix(".so")


@pytest.fixture
def place(library: Path, tmp_path: Path) -> Any:
    """Return the module with fresh caches: another file is another module."""
    spec = importlib.util.spec_from_file_location("place", shutil.copy(library, tmp_path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Point(msgspec.Struct, frozen=True):
    """What compiled code reads most: slots of a structure."""

    x: object
    y: object = None


class Slotted:
    """Slots that may be empty, and no dictionary."""

    __slots__ = ("x",)

    def tell(self) -> str:
        """A method that no instance can hide."""
        return "slotted"


class Open:
    """An instance may have anything."""

    x: Any = "of the class"

    def tell(self) -> str:
        """A method that an instance can hide."""
        return "open"


def test_slots_of_one_and_of_several_types(place: Any) -> None:
    """A place answers for whichever type comes, and for each of its names."""
    same_name = msgspec.defstruct("same_name", [("y", object), ("x", object)])
    for _ in range(100):
        for made in (Point(1, 2), same_name(2, 1), SimpleNamespace(x=1, y=2)):
            assert (place.get(made, "x"), place.get(made, "y")) == (1, 2)


def test_names_that_are_made_anew(place: Any) -> None:
    """A name is what it says, not where it lies: short-lived ones get each other's addresses."""
    point = Point("x", "y")
    for count in range(1000):
        name = "xy"[count % 2].upper().lower() + ""
        assert place.get(point, name) == name


def test_an_empty_slot(place: Any) -> None:
    """It raises, before and after it was filled."""
    one = Slotted()
    for _ in range(3):
        with pytest.raises(AttributeError, match="x"):
            place.get(one, "x")
        one.x = 1  # type: ignore[attr-defined]
        assert place.get(one, "x") == 1
        del one.x  # type: ignore[attr-defined]


def test_a_slot_of_another_class(place: Any) -> None:
    """It raises each time, and never gives what the object has at that offset."""

    class Borrower:
        __slots__ = ("y",)
        x = Slotted.__dict__["x"]

    class Heir(Slotted):
        __slots__ = ("y",)

    one, heir = Borrower(), Heir()
    one.y = "of y"  # type: ignore[attr-defined]
    heir.x = "own"  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(TypeError, match="'x' for 'Slotted' objects doesn't apply to a 'Borrower' object"):
            place.get(one, "x")
    assert [place.get(heir, "x") for _ in range(3)] == ["own"] * 3


def test_a_class_that_changes(place: Any) -> None:
    """What a class gets, loses or inherits anew counts from then on."""

    class Base:
        __slots__ = ()

        def tell(self) -> str:
            return "first"

    class Changing(Base):
        __slots__ = ("x",)

    one = Changing()
    one.x = "slot"  # type: ignore[attr-defined]
    slot = Changing.__dict__["x"]
    assert [(place.get(one, "x"), place.call(one, "tell")) for _ in range(3)] == [("slot", "first")] * 3
    Changing.x = property(lambda _: "property")  # type: ignore[attr-defined]
    Base.tell = lambda self: "second"  # type: ignore[method-assign]
    assert [(place.get(one, "x"), place.call(one, "tell")) for _ in range(3)] == [("property", "second")] * 3
    Changing.x = slot  # type: ignore[attr-defined]
    Changing.tell = lambda self: "third"  # type: ignore[method-assign]
    assert [(place.get(one, "x"), place.call(one, "tell")) for _ in range(3)] == [("slot", "third")] * 3
    Base.__getattribute__ = lambda _, name: f"any {name}"  # type: ignore[method-assign]
    assert place.get(one, "x") == "any x"
    del Base.__getattribute__
    del Changing.x  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        place.get(one, "x")


def test_what_an_instance_has_of_its_own(place: Any) -> None:
    """It hides what the class has, unless that is a descriptor that can be set."""
    one, other = Open(), Open()
    assert [(place.get(one, "x"), place.call(one, "tell")) for _ in range(3)] == [("of the class", "open")] * 3
    one.x = "own"
    one.tell = lambda: "own"  # type: ignore[method-assign]
    assert (place.get(one, "x"), place.call(one, "tell"), place.get(one, "tell")()) == ("own", "own", "own")
    assert (place.get(other, "x"), place.call(other, "tell"), place.get(other, "tell")()) == (
        "of the class", "open", "open",
    )  # fmt: skip


def test_a_method_that_its_own_call_takes_away(place: Any) -> None:
    """It runs to its end."""

    class Fading:
        __slots__ = ()

    def fade(self: Fading) -> str:
        del Fading.tell  # type: ignore[attr-defined]
        return "gone"

    for _ in range(3):
        Fading.tell = fade  # type: ignore[attr-defined]
        assert place.call(Fading(), "tell") == "gone"
        with pytest.raises(AttributeError):
            place.call(Fading(), "tell")


def test_methods_properties_and_errors_in_them(place: Any) -> None:
    """Whatever a descriptor gives or raises is what comes out, each time."""

    class Made:
        __slots__ = ()

        @property
        def good(self) -> str:
            return "good"

        @property
        def bad(self) -> str:
            raise KeyError("bad")

        @classmethod
        def of_class(cls) -> type:
            return cls

        @staticmethod
        def of_none() -> str:
            return "none"

    one = Made()
    for _ in range(3):
        assert place.get(one, "good") == "good"
        with pytest.raises(KeyError, match="bad"):
            place.get(one, "bad")
        assert place.call(one, "of_class") is Made
        assert place.get(one, "of_class")() is Made
        assert place.call(one, "of_none") == "none"
        assert place.get(one, "of_none")() == "none"


@pytest.mark.parametrize("made", [{}, [], b"", "", 1.5, {1}, Point(1), Slotted(), Open(), Open, SimpleNamespace()])
def test_all_that_there_is(place: Any, made: object) -> None:
    """Whatever an object has is what the interpreter says that it has, three times over."""
    for name in dir(made):
        try:
            expected = getattr(made, name)
        except AttributeError:
            continue
        for _ in range(3):
            found = place.get(made, name)
            assert type(found) is type(expected)
            made_anew = " at 0x" in repr(expected)
            assert made_anew or found == expected or repr(found) == repr(expected)


def test_many_types_at_one_place(place: Any) -> None:
    """A place that gives up remembering still answers."""
    kinds: list[Callable[..., Any]] = [msgspec.defstruct(f"kind_{n}", [("x", object)]) for n in range(100)]
    for _ in range(3):
        assert [place.get(kind(n), "x") for n, kind in enumerate(kinds)] == list(range(100))
