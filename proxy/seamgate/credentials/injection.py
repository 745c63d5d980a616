"""Builds the `Supply` that puts one credential into one request at the last hop.

Called by the credentials plugin once binding and scheme are checked. Pure: reads the request, never changes it.
"""

from __future__ import annotations

import base64
from urllib.parse import quote_from_bytes

from seamgate.credentials.config import CredentialConfig, InjectConfig
from seamgate.credentials.placeholders import PlaceholderIndex
from seamgate.credentials.secret import Secret
from seamgate.flow import Headers, Request, Supply
from seamgate.policy.folding import fold_header
from seamgate.protocol.whole import RANGE_HEADERS

_REMEMBERED, _REMEMBERED_SIZE_BYTES = 256, 1024
"""How many header values, up to which size, are remembered with what becomes of them: clients repeat theirs."""


class Injector:
    """Puts one credential in: swaps its placeholder where it stands, else injects.

    The supply of a request without placeholder depends on the value alone and is made once per value.
    """

    __slots__ = (
        "_config", "_index", "_injected", "_injected_for", "_name", "_removed", "_swapped", "_swapped_for",
        "_swapped_in",
    )  # fmt: skip

    def __init__(self, name: str, config: CredentialConfig, index: PlaceholderIndex) -> None:
        self._name = name
        self._config = config
        self._index = index
        self._removed = tuple(header.lower().encode("ascii") for header in config.remove_headers)
        if not config.allow_ranges:
            self._removed += RANGE_HEADERS
        # A CGI-like server takes x-key for the x_key that is set or removed here. The other way round the core sees to.
        mine = (*self._removed, *([config.inject.header_name] if config.inject is not None else []))
        folded = [fold_header(name.decode("ascii")).encode("ascii") for name in mine]
        self._removed += tuple([name for name in folded if name not in mine])
        self._swapped_in = config.swapped_in
        self._injected_for: Secret | None = None
        self._injected = Supply(name)
        self._swapped_for: Secret | None = None
        self._swapped: dict[bytes, bytes] = {}  # header value -> swapped, b"" where nothing is to swap

    def supply(self, request: Request, secret: Secret) -> Supply:
        """Return what to set. Its `secrets` hold the value itself, for whoever redacts."""
        if self._index.may_hold(request.headers, request.query):
            swapped = self._swap(request, secret)
            if swapped is not None:
                return swapped
        if self._injected_for is not secret:
            self._injected, self._injected_for = self._inject(secret), secret
        return self._injected

    def _inject(self, secret: Secret) -> Supply:
        value = secret.reveal()
        inject = self._config.inject
        headers: Headers = () if inject is None else ((inject.header_name, _header_value(inject, value)),)
        set_names = {name for name, _ in headers}
        return Supply(
            self._name,
            set_headers=headers,
            remove_headers=tuple(name for name in self._removed if name not in set_names),
            secrets=(value,),
            websocket=value if self._config.swap_websocket else None,
        )

    def _swap(self, request: Request, secret: Secret) -> Supply | None:
        """Return a supply that swaps each placeholder, or None if there is none. Headers of one name stay together."""
        if self._swapped_for is not secret:
            self._swapped, self._swapped_for = {}, secret
        value = secret.reveal()
        # A placeholder in another header stays, and is what the last check before sending refuses.
        swapped = [
            (name, self._swap_header(each, value) if name in self._swapped_in else each, each)
            for name, each in request.headers
        ]
        touched = {name for name, new, old in swapped if new is not old}
        query = self._swap_query(request.query, value)
        if not touched and query is None:
            return None
        headers = tuple([(name, new) for name, new, _ in swapped if name in touched])
        removed = tuple(name for name in self._removed if name not in touched)
        return Supply(
            self._name,
            set_headers=headers,
            remove_headers=removed,
            query=query,
            secrets=(value,),
            websocket=value if self._config.swap_websocket else None,
        )

    def _swap_header(self, text: bytes, value: bytes) -> bytes:
        """Return the header value with the placeholder swapped, or that same object if there is none."""
        swapped = self._swapped.get(text)
        if swapped is None:
            mine = self._name in self._index.names_in_value(text)
            swapped = self._index.swap_value(text, self._name, value) if mine else b""
            if len(self._swapped) >= _REMEMBERED:
                self._swapped.clear()
            if len(text) <= _REMEMBERED_SIZE_BYTES:
                self._swapped[text] = swapped
        return swapped or text

    def _swap_query(self, query: str | None, value: bytes) -> str | None:
        if not query or not self._config.swap_query:
            return None
        raw = query.encode("ascii")
        if self._name not in self._index.names_in(raw):
            return None
        return self._index.swap(raw, self._name, quote_from_bytes(value, safe="").encode("ascii")).decode("ascii")


def _header_value(inject: InjectConfig, value: bytes) -> bytes:
    if inject.basic is not None:
        username, password = inject.basic.username, inject.basic.password
        pair = value + b":" + (password or "").encode() if username is None else username.encode() + b":" + value
        return b"Basic " + base64.b64encode(pair)
    return (b"Bearer " if inject.bearer else inject.prefix.encode("ascii")) + value
