"""Whether a Python program starts other programs or listens, as far as its source says: then a microVM is not for it.

Called by `seamgate.cli.isolation` for `--isolation auto` only, which must not take away what a program was written to
use. It reads the program's own files, never runs them, and knows nothing of what installed packages do: a program
that needs more than it seems gets an OSError that says what to do.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_MOST_FILES = 200
_MOST_BYTES = 1 << 20
_MODULES = frozenset({"subprocess", "multiprocessing", "pty", "socketserver", "http.server", "xmlrpc.server"})
_PROCESSES = frozenset(
    "system popen fork forkpty execl execle execlp execlpe execv execve execvp execvpe posix_spawn posix_spawnp "
    "spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe".split()
)
_NAMES = {
    "os": _PROCESSES,
    "asyncio": frozenset({"create_subprocess_exec", "create_subprocess_shell", "start_server", "start_unix_server"}),
    "concurrent.futures": frozenset({"ProcessPoolExecutor"}),
}


def what_needs_a_kernel(arguments: Sequence[str], folder: Path) -> str:
    """Return what in a program a microVM does not have, and where: `agent.py line 3 uses subprocess`; "": nothing seen.

    Args:
        arguments: as after `python`.
        folder: where the program would be started.
    """
    words = list(arguments)
    while words and words[0].startswith("-") and words[0] not in ("-c", "-m"):
        words.pop(0)
    if words[:1] == ["-c"]:
        return _in_source(" ".join(words[1:2]), "-c")
    if words[:1] == ["-m"] and len(words) > 1:
        root, names = folder, [words[1], f"{words[1]}.__main__"]
    elif words:
        script = folder / words[0]
        found = _in_file(script, script.name)
        if found:
            return found
        root, names = script.parent, list(_imported(script))
    else:
        return ""
    return _in_modules(root, names)


def _in_modules(root: Path, names: list[str]) -> str:
    """Look into the modules of a folder, and into what of that folder they import."""
    seen: set[Path] = set()
    while names and len(seen) < _MOST_FILES:
        path = _file_of(root, names.pop())
        if path is None or path in seen:
            continue
        seen.add(path)
        found = _in_file(path, os.path.relpath(path, root))
        if found:
            return found
        names += _imported(path)
    return ""


def _file_of(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((each for each in (base.with_suffix(".py"), base / "__init__.py") if each.is_file()), None)


def _tree(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # whoever runs it will say what is wrong with it


def _imported(path: Path) -> Iterator[str]:
    tree = _tree(path)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _in_file(path: Path, name: str) -> str:
    tree = _tree(path)
    return "" if tree is None else _in_tree(tree, name)


def _in_source(source: str, name: str) -> str:
    try:
        return _in_tree(ast.parse(source), name)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def _in_tree(tree: ast.Module, name: str) -> str:
    for node in ast.walk(tree):
        used = _used(node)
        if used:
            return f"{name} line {getattr(node, 'lineno', 1)} uses {used}"
    return ""


def _used(node: ast.AST) -> str:
    """Return what a piece of source uses of what needs a kernel, or ""."""
    if isinstance(node, ast.Import):
        return next((alias.name for alias in node.names if _is_known(alias.name)), "")
    if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        if _is_known(node.module):
            return node.module
        wanted = _NAMES.get(node.module, frozenset())
        for alias in node.names:
            if alias.name in wanted or _is_known(f"{node.module}.{alias.name}"):
                return f"{node.module}.{alias.name}"
    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else ""
        if node.attr in _NAMES.get(owner, frozenset()):
            return f"{owner}.{node.attr}"
    return ""


def _is_known(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in _MODULES)
