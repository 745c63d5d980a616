"""The method and path of a request where nothing lets an origin read others: what an expression may compare exactly.

Called by `conditions`. No I/O.
"""

from __future__ import annotations

from seamgate.errors import TargetError
from seamgate.flow import Request
from seamgate.policy.expressions import Unevaluable
from seamgate.policy.overrides import Overrides, find_overrides
from seamgate.policy.patterns import reads_alike


def read_overrides(request: Request) -> Overrides:
    """Return `find_overrides`.

    Raises:
        Unevaluable: they can't be judged.
    """
    try:
        return find_overrides(request)
    except TargetError as error:
        raise Unevaluable(str(error)) from None


def own_method(method: str, overrides: Overrides) -> str:
    """Return the method.

    Raises:
        Unevaluable: an origin may take another one.
    """
    if overrides and any(each != method for each in overrides[0]):
        raise Unevaluable("a header or _method asks for another method")
    return method


def own_path(path: str, overrides: Overrides) -> str:
    """Return the path.

    Raises:
        Unevaluable: an origin may take another one, or read this one as another.
    """
    if overrides and any(each != path for each in overrides[1]):
        raise Unevaluable("a header asks for another path")
    if not reads_alike(path):
        raise Unevaluable("some origins may read the path as another one")
    return path
