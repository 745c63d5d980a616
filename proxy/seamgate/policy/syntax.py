"""Says in words what is wrong with the syntax of a CEL condition, where the parser speaks of its own tokens.

Called by `expressions` for what does not compile. No I/O.
"""

from __future__ import annotations

import re
from typing import Final

_ERROR = re.compile(r"ERROR: <input>:[0-9]+:([0-9]+): (.*)")
_MISSING = re.compile(r"missing ('[^']')")
_WORD = re.compile(r"\w+|\S")
_OPERATORS: Final = {"and": "&&", "or": "||", "not": "!", "=": "==", "&": "&&", "|": "||"}
"""What people write who think of another language, and what CEL has for it."""


def explain_syntax(said: str, text: str) -> str:
    """Return where and why a condition is not CEL.

    Args:
        said: what the library says; of several errors the first is taken.
        text: the condition.
    """
    found = _ERROR.search(said)
    if found is None:
        return "the condition is not valid CEL"
    column, problem = int(found.group(1)), found.group(2)
    if "Incomplete" in problem:
        column = len(text) + 1
    return f"the condition is not valid CEL at character {column}: {_meaning(problem, text, column)}"


def _meaning(problem: str, text: str, column: int) -> str:
    rest = text[column - 1 :].lstrip()
    missing = _MISSING.search(problem)
    if missing:
        return f"{missing.group(1)} is missing"
    if not rest:
        return "it ends where something has to follow"
    if "literal" in problem:
        return "the number is too large, or is none"
    word = _WORD.match(rest)
    first = word.group() if word else rest[:1]
    before = text[: column - 1].split()
    if first.lower() in _OPERATORS:
        return f"{first!r} is no operator: write {_OPERATORS[first.lower()]}"
    if before and before[-1].lower() == "not":
        return "'not' is no operator: write !"
    if "token recognition" in problem:
        return "the text that begins here has no closing quote" if first in "'\"" else f"{first!r} means nothing here"
    return f"{first!r} can't stand here: an operator, a comma or a quote is missing before it"
