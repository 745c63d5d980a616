"""Which files of the host no guest may open, wherever its view shows them: by name, so that rotation changes nothing.

A secret is replaced while guests run: by a rename within its folder, or by a link beside a folder of the new values
(`key -> ..data/key`, `..data -> ..2026_12_01`, as Kubernetes does). A journal goes on in another file. So what a name
means is looked up anew for every file that a guest opens, link by link, and these are hidden:

- what the name and each link on the way name, with what is put in its place in the same folder, or was there before:
  `key.new`, `.key.x1`, `audit.jsonl.0000000000000042`, `audit.jsonl.head`. What is named so and ends as source or a
  document does is another file (`key.py`): nobody replaces a secret by way of that;
- where the name is that of a folder, all that is below it;
- behind a link to a folder, the same path in the folders beside that one: where the next value is put before it counts;
- the file itself under its other names (hard links).

Used by `image.View`. Reads names and links of the host, never a file.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_MAX_LINKS = 40  # as Linux
_SUFFIXES = (".", "~", "-")
# Endings that no copy of a secret or journal is given while it is replaced. Every other one may be random (mkstemp).
_OTHER_FILES = frozenset(".py .pyi .pyc .pyx .ipynb .so .c .h .js .mjs .cjs .ts .sh .sql .html .css .md .rst".split())


@dataclass(frozen=True, slots=True)
class _Step:
    """What a name meets on its way: an entry of a real folder, and what of the path follows it."""

    folder: str
    name: str
    rest: tuple[str, ...]


class HiddenFiles:
    """See the module.

    Args:
        paths: of the host, absolute, whether or not there is a file yet.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        # What is known at the start stays hidden: the worker of a guest may not be able to look everywhere later.
        self._first = {path: tuple(_steps(path)) for path in self._paths}
        self._first_files = frozenset(file for path in self._paths if (file := _file(path)) is not None)

    def holds(self, path: str, status: os.stat_result) -> bool:
        """Whether a file that was opened at this path of the host is hidden. Folders never are: they can be listed."""
        if not self._paths or stat.S_ISDIR(status.st_mode):
            return False
        if (status.st_dev, status.st_ino) in self._first_files:
            return True
        real = os.path.realpath(path)
        return any(self._names(each, real, status) for each in self._paths)

    def _names(self, path: str, real: str, status: os.stat_result) -> bool:
        return (
            any(_is_at(step, real) for step in self._first[path])
            or any(_is_at(step, real) for step in _steps(path))
            or _file(path) == (status.st_dev, status.st_ino)
        )


def _file(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None  # it may come later: its name is known
    return status.st_dev, status.st_ino


def _steps(path: str) -> Iterator[_Step]:
    """Return each link on the way of a path, and at last the file."""
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    current, links = "", 0
    while todo:
        part = todo.pop()
        if part == "..":
            current = os.path.dirname(current).rstrip("/")
            continue
        target = _link(f"{current}/{part}")
        if target is None and todo:
            current = f"{current}/{part}"
            continue
        yield _Step(current, part, tuple(reversed(todo)))
        if target is None:
            return
        links += 1
        if links > _MAX_LINKS:
            return  # no file is there for anybody
        if todo:
            # The folders beside the one that a link names hold what it may name next.
            beside = os.path.realpath(os.path.join(current or "/", target))
            yield _Step(os.path.dirname(beside).rstrip("/"), "", tuple(reversed(todo)))
        if target.startswith("/"):
            current = ""
        todo.extend(each for each in reversed(target.split("/")) if each not in ("", "."))


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            raise
        return None


def _is_at(step: _Step, real: str) -> bool:
    """Whether this real path is what a step names, or is named alike."""
    if not real.startswith(step.folder + "/"):
        return False
    first, *rest = real[len(step.folder) + 1 :].split("/")
    if step.rest:
        # A folder that a link names, now or next; what follows may itself be a link by then.
        return len(rest) == len(step.rest) and tuple(rest[:-1]) == step.rest[:-1] and _alike(rest[-1], step.rest[-1])
    return first == step.name if rest else _alike(first, step.name)


def _alike(found: str, name: str) -> bool:
    """Whether a file's name is this one, or what programs make of it while they replace or rotate the file."""
    for each in (found, found.removeprefix(".")):
        if each == name:
            return True
        if each.startswith(name) and each[len(name) :].startswith(_SUFFIXES):
            return os.path.splitext(found)[1].lower() not in _OTHER_FILES
    return False
