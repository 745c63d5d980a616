"""How far an exchange is: plain numbers that rise, because each piece of a body asks for them."""

from __future__ import annotations

from typing import Final

JUDGING: Final = 0
GATHERING: Final = 1
WAITING: Final = 2
SENDING: Final = 3
RESPONDING: Final = 4
DONE: Final = 5
NAMES: Final = ("JUDGING", "GATHERING", "WAITING", "SENDING", "RESPONDING", "DONE")
"""For people, by number."""
