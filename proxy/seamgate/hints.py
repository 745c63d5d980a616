"""What somebody meant who wrote a name that there is not: one wording for keys, plugins, fields, commands, reasons.

Used wherever a name from outside is looked up. No I/O.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like this one, "" if none is like it."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return close[0] if close else ""


def did_you_mean(name: str, known: Iterable[str], listed: str = "") -> str:
    """Return what to append to "there is no NAME": `: did you mean 'x'?`, else all that there is, else "".

    Args:
        name: what was written.
        known: what there is.
        listed: words before the list of all that there is, "" for no list.
    """
    known = sorted(known)
    close = closest(name, known)
    if close:
        return f": did you mean {close!r}?"
    return f": {listed} {', '.join(known)}" if listed and known else ""
