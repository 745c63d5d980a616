"""Whether two patterns could cover the same host, path or text: never no where they could. Pure.

Used where rules are compared with each other (`selection`), and with what a credential is bound to.
"""

from __future__ import annotations

from seamgate.policy.patterns import DEEP, Glob, HostPattern


def globs_meet(one: Glob, two: Glob) -> bool:
    """Whether some text may match both; exact but for pieces between stars, which are assumed to fit."""
    if len(one.pieces) == 1:
        return two.matches(one.pieces[0])
    if len(two.pieces) == 1:
        return one.matches(two.pieces[0])
    heads = one.pieces[0].startswith(two.pieces[0]) or two.pieces[0].startswith(one.pieces[0])
    tails = one.pieces[-1].endswith(two.pieces[-1]) or two.pieces[-1].endswith(one.pieces[-1])
    return heads and tails


def hosts_meet(one: HostPattern, two: HostPattern) -> bool:
    """Whether some host matches both."""
    if one.is_address or two.is_address:
        return one == two
    # The labels below which there have to be more, and how many there are where none may follow.
    if not one.deep and not two.deep and len(one.labels) != len(two.labels):
        return False
    if (one.deep and not two.deep and len(two.labels) <= len(one.labels)) or (
        two.deep and not one.deep and len(one.labels) <= len(two.labels)
    ):
        return False
    return all("*" in (mine, other) or mine == other for mine, other in zip(one.labels, two.labels, strict=False))


def paths_meet(one: tuple[Glob, ...], two: tuple[Glob, ...]) -> bool:
    """Whether some path matches both: walk both patterns at once."""
    seen: set[tuple[int, int]] = set()
    todo = [(0, 0)]
    while todo:
        state = todo.pop()
        if state == (len(one), len(two)):
            return True
        if state in seen:
            continue
        seen.add(state)
        for mine, next_one in _moves(one, state[0]):
            todo.extend((next_one, next_two) for other, next_two in _moves(two, state[1]) if globs_meet(mine, other))
    return False


def _moves(pattern: tuple[Glob, ...], at: int) -> list[tuple[Glob, int]]:
    """Return (what the next segment must match, state after it)."""
    moves = [(pattern[at], at + 1)] if at < len(pattern) else []
    return [*moves, (DEEP, at)] if at and pattern[at - 1] is DEEP else moves
