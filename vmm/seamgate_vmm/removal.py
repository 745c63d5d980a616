"""Deletes what a guest left in its scratch folder, whatever it made there.

Called by `spares.py` in a worker and by `pool.py` and `dormant.py` in the gateway. Never recursive, and never at a path
that a guest made long: a guest may nest thousands of folders (by moving one tree into another one also deeper than it
can name), at which `shutil.rmtree` exceeds the interpreter's stack and the kernel's PATH_MAX.
"""

import contextlib
import itertools
import os
from pathlib import Path


def remove_tree(root: Path) -> None:
    """Delete a folder with all that is in it, as far as that can be; what is not there is no error.

    Each folder within it is first moved up, beside the others, so that no path grows. Links are deleted, not followed.
    """
    lifted = root.with_name(f"{root.name}.gone")
    with contextlib.suppress(OSError):
        lifted.mkdir(mode=0o700, exist_ok=True)
    todo = [entry.name for entry in _entries(lifted)]  # of a removal that was cut short
    numbers = itertools.count(1 + max([int(name) for name in todo if name.isdecimal()], default=-1))
    try:
        own = str(next(numbers))
        os.rename(root, lifted / own)
        todo.append(own)
    except OSError:
        pass  # it is not there
    while todo:
        folder = lifted / todo.pop()
        for entry in _entries(folder):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    name = str(next(numbers))
                    os.rename(entry.path, lifted / name)
                    todo.append(name)
                else:
                    os.unlink(entry.path)
        with contextlib.suppress(OSError):
            folder.rmdir()
    with contextlib.suppress(OSError):
        lifted.rmdir()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
