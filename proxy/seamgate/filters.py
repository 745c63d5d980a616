"""The chain of inspectors over one direction of one message: decode, run each in order, with its time measured.

Built by the exchange where a plugin opened an inspector; a body that nobody inspects never comes here. An inspector
that raises or overruns ends the exchange: `PluginError`, which the exchange turns into a denial or a visible cut.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

from seamgate.errors import PluginError, Reason, SeamgateError
from seamgate.flow import Headers, apply_amendment, find_header
from seamgate.hookspecs import Inspector
from seamgate.protocol.coding import Decoder, open_decoder

T = TypeVar("T")


class Filters:
    """Inspectors in order, behind a decoder where the body has a content coding.

    Args:
        inspectors: (plugin, inspector) in the order in which bytes pass.
        decoder: takes the content coding off, or None where there is none.
        budget_s: wall time that one call of one inspector may take.
    """

    def __init__(self, inspectors: list[tuple[str, Inspector]], decoder: Decoder | None, budget_s: float) -> None:
        self._inspectors = inspectors
        self._decoder = decoder
        self._budget_ns = int(budget_s * 1e9)
        self.names = tuple(plugin for plugin, _ in inspectors)

    def head(self, headers: Headers) -> Headers:
        """Return the headers that go on: those of the body's old length and coding are gone."""
        for plugin, inspector in self._inspectors:
            headers = self._call(plugin, inspector.head, headers)
        return headers

    def feed(self, data: bytes) -> bytes:
        """Pass a piece of the body through."""
        if self._decoder is not None:
            data = self._decoder.feed(data)
        for plugin, inspector in self._inspectors:
            if data:
                data = self._call(plugin, inspector.feed, data)
        return data

    def flush(self) -> bytes:
        """The stream pauses: collect what the inspectors hold back."""
        return self._drain("flush")

    def finish(self) -> bytes:
        """The body is complete: collect the rest.

        Raises:
            SeamgateError: the content coding ends too early, or a plugin failed.
        """
        rest = self._decoder.finish() if self._decoder is not None else b""
        return self._drain("finish", rest)

    def _drain(self, what: str, data: bytes = b"") -> bytes:
        """What the first inspector lets go passes through those after it."""
        for plugin, inspector in self._inspectors:
            passed = self._call(plugin, inspector.feed, data) if data else b""
            data = passed + self._call0(plugin, getattr(inspector, what))
        return data

    def _call(self, plugin: str, method: Callable[[T], T], argument: T) -> T:
        return self._call0(plugin, lambda: method(argument))

    def _call0(self, plugin: str, call: Callable[[], T]) -> T:
        start = perf_counter_ns()
        try:
            result = call()
        except SeamgateError:
            raise
        except Exception as error:
            raise PluginError(f"an inspector of plugin {plugin} failed") from error
        if perf_counter_ns() - start > self._budget_ns:
            raise PluginError(f"an inspector of plugin {plugin} overran its time", reason=Reason.PLUGIN_OVERRUN)
        return result


def open_filters(
    opened: list[tuple[str, Inspector]], headers: Headers, budget_s: float, *, bodiless: bool = False
) -> tuple[Filters, Headers]:
    """Chain the inspectors, behind a decoder where there is a coded body, and pass the headers through them.

    Raises:
        UndecodableError: the content coding is not known.
        PluginError: an inspector failed.
    """
    decoder = None if bodiless else open_decoder(find_header(headers, b"content-encoding"))
    filters = Filters(opened, decoder, budget_s)
    if decoder is not None:
        headers = apply_amendment(headers, (), _OF_THE_CODED_BODY)
    return filters, filters.head(headers)


# What describes the body as it was coded (RFC 9110 8.4, RFC 9530).
_OF_THE_CODED_BODY = (b"content-encoding", b"content-md5", b"digest", b"content-digest", b"etag")
