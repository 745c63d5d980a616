"""What leaves for the upstream: the judged request's head, with the supplied credentials in place. Pure.

Called by the exchange at the last hop. The result holds secrets; it goes into the session and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.errors import CredentialError, GuestProtocolError, Reason
from seamgate.flow import Request, Supply
from seamgate.headers import OF_THE_GATEWAY, Headers, any_named, apply_amendment, find_header
from seamgate.policy.folding import fold_header
from seamgate.policy.overrides import METHOD_HEADERS, PATH_HEADERS
from seamgate.protocol.coding import narrow_accept_encoding
from seamgate.protocol.whole import BODY_CODINGS, OTHER_CODINGS, RANGE_HEADERS

# A Final of the module is read at once; an imported name is looked up each time.
_OTHER_CODINGS: Final = frozenset(OTHER_CODINGS)
_OF_PARTS: Final = frozenset(RANGE_HEADERS)
_OF_THE_BODY: Final = (b"content-type", *BODY_CODINGS)
"""How a body is read: judged and searched as these say."""
_NEVER_BY_ANOTHER_NAME: Final = frozenset(
    (*OF_THE_GATEWAY, *OTHER_CODINGS, *RANGE_HEADERS, b"accept-encoding", *_OF_THE_BODY)
)
"""What frames and routes a message, says how its body is read, and what this module writes or leaves out: one name."""
_NOT_IN_TRAILERS: Final = frozenset((*OF_THE_GATEWAY, *_OF_THE_BODY))
"""Source: RFC 9110 6.5.1."""
_OVERRIDES: Final = METHOD_HEADERS | PATH_HEADERS
_MOST_NAMES: Final = 4096
_LONGEST_NAME: Final = 64
_folded: Final[dict[bytes, bytes]] = {}  # a name -> as a CGI-like server sees it
_MOST_ACCEPTED: Final = 1024
_LONGEST_ACCEPTED: Final = 128
_narrowed: Final[dict[bytes | None, bytes]] = {}  # an Accept-Encoding -> what is sent of it: clients repeat theirs


def asks_for_part(headers: Headers) -> bool:
    """Return whether any of the headers asks for a part of the answer."""
    return any_named(headers, _OF_PARTS)


def any_odd(headers: Headers) -> bool:
    """Return whether a header has a name that a CGI-like server takes for another one: `content_length`."""
    for name, _ in headers:
        known = _folded.get(name)
        if known is None:
            known = _fold(name)
        if known is not name and known != name:
            return True
    return False


def _fold(name: bytes) -> bytes:
    folded = fold_header(name.decode("latin-1")).encode("latin-1")
    if folded == name:
        folded = name
    if len(_folded) >= _MOST_NAMES:
        _folded.clear()
    if len(name) <= _LONGEST_NAME:
        _folded[name] = folded
    return folded


def _narrow(accepted: bytes | None) -> bytes:
    narrowed = narrow_accept_encoding(accepted)
    if len(_narrowed) >= _MOST_ACCEPTED:
        _narrowed.clear()
    if accepted is None or len(accepted) <= _LONGEST_ACCEPTED:
        _narrowed[accepted] = narrowed
    return narrowed


def _without_twins(headers: Headers, supplies: Sequence[Supply]) -> Headers:
    """Leave out what a server may take for a header that the gateway itself writes, sets or leaves out.

    Those were judged under both names: conditions of policies fold them the same way.
    """
    names = {name for supply in supplies for name, _ in supply.set_headers}
    names.update([name for supply in supplies for name in supply.remove_headers])
    names.update(_NEVER_BY_ANOTHER_NAME)
    kept: list[tuple[bytes, bytes]] = []
    for pair in headers:
        folded = _fold(pair[0])
        if folded == pair[0] or folded not in names:
            kept.append(pair)
    return tuple(kept)


def make_head(
    request: Request, headers: Headers, supplies: Sequence[Supply], placeholders: PlaceholderIndex, *, inspected: bool
) -> tuple[Headers, str | None]:
    """Return the headers and the query to send.

    Args:
        request: as judged.
        headers: its headers, as request inspectors left them.
        supplies: in the order of the rule.
        placeholders: all that are configured; none may be left.
        inspected: whether the answer will be inspected, or redacted while the request asks for a part of it
            (`asks_for_part`): then only codings that can be decoded are asked for, and no ranges, which would show a
            secret in two halves.

    Raises:
        CredentialError: a placeholder is left that no selected credential replaces.
    """
    query = request.query
    if any_odd(headers):
        headers = _without_twins(headers, supplies)
    for supply in supplies:
        headers = apply_amendment(headers, supply.set_headers, supply.remove_headers)
        query = supply.query if supply.query is not None else query
    if placeholders.left_over(headers, query) is not None:
        message = "a placeholder is left in the request that no credential of the deciding rule replaces"
        raise CredentialError(message, reason=Reason.PLACEHOLDER_MISPLACED)
    accepted = find_header(headers, b"accept-encoding")
    if accepted is not None or supplies or inspected:
        headers = apply_amendment(headers, ((b"accept-encoding", _narrowed.get(accepted) or _narrow(accepted)),), ())
    if any_named(headers, _OTHER_CODINGS):
        headers = apply_amendment(headers, (), OTHER_CODINGS)
    if inspected:
        headers = apply_amendment(headers, (), RANGE_HEADERS)
    return headers, query


def check_trailers(trailers: Headers, supplies: Sequence[Supply]) -> None:
    """Refuse trailers that stand for a header which a credential sets or removes: some servers merge them in the head.

    Raises:
        CredentialError: with reason CREDENTIAL_UNBOUND; there is one, in any spelling that a server may take for it, or
            one that names another method or path: the credential is bound to those of the head.
        GuestProtocolError: one stands for a header that frames or routes the message, or says how its body is read.
    """
    for name, _ in trailers:
        if _fold(name) in _NOT_IN_TRAILERS:
            raise GuestProtocolError("a trailer has the name of a field that frames, routes or describes a message")
    names = {name for supply in supplies for name, _ in supply.set_headers}
    names.update(name for supply in supplies for name in supply.remove_headers)
    kept = {fold_header(name.decode("latin-1")) for name in names}
    if any(fold_header(name.decode("latin-1")) in kept for name, _ in trailers):
        message = (
            "a trailer has the name of a header that a credential of the deciding rule sets or removes: leave it out"
        )
        raise CredentialError(message, reason=Reason.CREDENTIAL_UNBOUND)
    if supplies and any(_fold(name) in _OVERRIDES for name, _ in trailers):
        message = "a trailer asks for another method or path than those that the credential goes with: leave it out"
        raise CredentialError(message, reason=Reason.CREDENTIAL_UNBOUND)
