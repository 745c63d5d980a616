"""Which way imports go: the arrows of docs/architecture.md, read from the source, conditional ones included."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_COMPONENTS = {"seamgate": ROOT / "proxy", "seamgate_plugins": ROOT / "plugins", "seamgate_vmm": ROOT / "vmm"}
NOUNS = frozenset(f"seamgate.{name}" for name in ("errors", "verdict", "headers", "flow", "address", "hookspecs"))
_IO_MODULES = frozenset(
    "asyncio socket ssl selectors subprocess multiprocessing threading urllib.request http.client http.server uvloop "
    "sqlite3 tempfile shutil signal select socketserver".split()
)
_PURE_FOLDERS = ("seamgate.policy", "seamgate.protocol")
# The one part of `policy` that touches a disk, and says so.
_READS_FILES = frozenset({"seamgate.policy.files"})


def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name."""
    found = {}
    for package, folder in _COMPONENTS.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path, *, typing_only: bool = False) -> Iterator[str]:
    """Return what a file imports: modules, and names that may be modules. Those under TYPE_CHECKING only if asked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_only:
            skipped.update(below for statement in node.body for below in ast.walk(statement))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _ours(name: str) -> bool:
    return any(_within(name, package) for package in _COMPONENTS)


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name in NOUNS))
def test_nouns_import_nothing_but_nouns(name: str) -> None:
    """errors, verdict, headers, flow, address and hookspecs stand below everything, and do no I/O.

    The parts in C (`seamgate._native`) are pure functions over bytes that import nothing of ours.
    """
    found = {each for each in imports(MODULES[name]) if not _within(each, "seamgate._native")}
    above = {each for each in found if _ours(each) and not any(_within(each, noun) for noun in NOUNS)}
    assert not above - {"seamgate"}
    assert not found & _IO_MODULES


@pytest.mark.parametrize("name", sorted(n for n in MODULES if any(_within(n, f) for f in _PURE_FOLDERS)))
def test_policy_and_protocol_do_no_io(name: str) -> None:
    """What decides and what parses can be run anywhere: no socket, no process, no file, and no room that has any."""
    found = set(imports(MODULES[name]))
    assert not found & _IO_MODULES
    rooms = {"entry", "upstream", "audit", "ca", "cli", "demo", "gateway", "exchange", "seam", "observe", "streams"}
    assert not {each for each in found if any(_within(each, f"seamgate.{room}") for room in rooms)}
    if name not in _READS_FILES:
        source = MODULES[name].read_text(encoding="utf-8")
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
        assert not {call for call in calls if call == "open" or call.endswith((".read_text", ".write_text", ".open"))}


@pytest.mark.parametrize("name", sorted(name for name in MODULES if _within(name, "seamgate_plugins")))
def test_plugins_import_seamgate_and_libraries_only(name: str) -> None:
    """The built-in plugins are written as a stranger's: nothing of ours but `seamgate`, and never the wiring."""
    found = {each for each in imports(MODULES[name]) if _ours(each)}
    assert not {each for each in found if _within(each, "seamgate_vmm")}
    wiring = ("gateway", "exchange", "seam", "entry", "cli", "demo", "pipeline")
    assert not {each for each in found if any(_within(each, f"seamgate.{room}") for room in wiring)}


@pytest.mark.parametrize("name", sorted(name for name in MODULES if _within(name, "seamgate_vmm")))
def test_guests_know_no_plugins(name: str) -> None:
    """The side that runs untrusted code has nothing to do with the side that decides."""
    assert not {each for each in imports(MODULES[name], typing_only=True) if _within(each, "seamgate_plugins")}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_nothing_imports_the_command_line(name: str) -> None:
    """`cli` is on top: only `python -m seamgate` and the command line itself know it."""
    if _within(name, "seamgate.cli") or name == "seamgate.__main__":
        return
    assert not {each for each in imports(MODULES[name], typing_only=True) if _within(each, "seamgate.cli")}


@pytest.mark.parametrize("name", sorted(name for name in MODULES if _within(name, "seamgate")))
def test_the_gateway_does_not_know_its_plugins(name: str) -> None:
    """Plugins are found by entry points; only the command line, which tests policies, may name one."""
    if _within(name, "seamgate.cli"):
        return
    assert not {each for each in imports(MODULES[name]) if _within(each, "seamgate_plugins")}


def test_the_agent_of_the_demo_knows_only_the_standard_library() -> None:
    """So that what it shows is true of any program."""
    found = {each.partition(".")[0] for each in imports(MODULES["seamgate.demo.agent"])}
    assert found <= sys.stdlib_module_names


def test_what_is_compiled_finds_what_it_imports() -> None:
    """Where a wheel is built nothing of ours is installed: the compiler is told of each component that is imported."""
    told = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "hatch_build.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("COMPILED", "SOURCES")
    }
    compiled = [ROOT / "proxy" / name for name in told["COMPILED"] if (ROOT / "proxy" / name).exists()]
    assert len(compiled) > 20
    found = {each.partition(".")[0] for path in compiled for each in imports(path, typing_only=True) if _ours(each)}
    assert {_COMPONENTS[each].name for each in found} <= set(told["SOURCES"])
    assert set(told["SOURCES"]) == {folder.name for folder in _COMPONENTS.values()}


def test_there_is_no_circle_at_run_time() -> None:
    """Modules form floors: whoever is imported does not import back, however far around."""
    graph = {
        name: {each for each in imports(path) if each in MODULES and each != name} for name, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"circle: {' -> '.join((*trail[trail.index(name) :], name))}"
        if name not in done:
            for each in sorted(graph[name]):
                # `from package import name` runs the package's __init__, which is a floor of its own.
                if not _within(name, each):
                    visit(each, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
