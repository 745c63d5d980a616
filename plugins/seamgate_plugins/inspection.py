"""The built-in plugin that inspects responses where a rule asks for it: `inspect: [secrets]`.

Loaded as `inspection`; needs no capability, so it sees responses after the credentials were redacted. Inspectors that
a rule can name:

- `secrets`: access keys, tokens and private keys of well-known shapes are replaced by `[redacted:<shape>]`;
- `jwt`: JSON Web Tokens too, which many services hand out on purpose;
- `high-entropy`: any long run of mixed letters and digits that looks random; finds what has no shape, and more;
- each name under the option `content_types`: a response of another media type is denied.

Options:
    shapes: further shapes for `secrets`, by name: {prefix: "acme_", characters: alnum, least: 20, most: 64};
        characters is one of alnum, hex, upper, word, base64.
    content_types: by name, the media types that pass: {json-only: [application/json, text/*]}.

docs/inspection.md is its manual.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from seamgate import Direction, Inspector, Reason, Request, Response, SeamgateError, Verdict, hookimpl
from seamgate.credentials.shapes import (
    HIGH_ENTROPY_SHAPES,
    JWT_SHAPES,
    KNOWN_SHAPES,
    Run,
    Shape,
    ShapeRedactor,
    ShapeSet,
)
from seamgate.errors import ConfigError
from seamgate.headers import Headers, find_header

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/(?:\*|[a-z0-9][a-z0-9!#$&^_.+-]*)\Z")
_CHARACTERS = {
    "alnum": "A-Za-z0-9",
    "hex": "0-9A-Fa-f",
    "upper": "A-Z0-9",
    "word": "A-Za-z0-9_-",
    "base64": "A-Za-z0-9+/_=-",
}
_HIGH_ENTROPY_FLUSH_BYTES = 16
"""Half of the shortest run that is looked at: a word at the end of a piece must not stall a stream."""
_BODILESS = frozenset((204, 304))


class _Context(Protocol):
    """What this plugin uses of `seamgate.registry.PluginContext`."""

    @property
    def options(self) -> Mapping[str, Any]: ...


class ShapeOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One further shape: a prefix, then a run of characters."""

    prefix: str
    characters: Literal["alnum", "hex", "upper", "word", "base64"] = "alnum"
    least: int
    most: int

    def __post_init__(self) -> None:
        """Refuse what would match ordinary text or could not be streamed."""
        if not 3 <= len(self.prefix) <= 64 or not self.prefix.isascii() or not self.prefix.isprintable():
            raise ValueError("prefix must be 3 to 64 visible ASCII characters")
        if not 8 <= self.least <= self.most <= 1000:
            raise ValueError("a shape needs 8 <= least <= most <= 1000")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """This plugin's options; see the module."""

    shapes: dict[str, ShapeOption] = {}
    content_types: dict[str, tuple[str, ...]] = {}


class InspectionPlugin:
    """Opens the inspectors that the verdict names."""

    def __init__(self, context: _Context) -> None:
        """Prepare the shapes.

        Raises:
            ConfigError: an option can't be used.
        """
        try:
            options = msgspec.convert(dict(context.options), Options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"options of the plugin inspection: {error}") from None
        own = tuple(_own_shape(name, option) for name, option in options.shapes.items())
        self._shapes = {
            "secrets": ShapeSet((*own, *KNOWN_SHAPES)),
            "jwt": ShapeSet(JWT_SHAPES),
            "high-entropy": ShapeSet(HIGH_ENTROPY_SHAPES),
        }
        self._content_types = {name: _media_types(name, texts) for name, texts in options.content_types.items()}
        for name in self._content_types:
            if name in self._shapes or not _NAME.match(name):
                raise ConfigError(f"options of the plugin inspection: content_types: {name!r} is taken or not a name")
        self.inspector_names = frozenset((*self._shapes, *self._content_types))

    def __repr__(self) -> str:
        return f"<InspectionPlugin: {', '.join(sorted(self.inspector_names))}>"

    @hookimpl
    def open_inspector(
        self, request: Request, response: Response | None, direction: Direction, verdict: Verdict
    ) -> Inspector | None:
        """Open what the rule asks for of this plugin, in the rule's order; names of other plugins are left to them."""
        if not verdict.inspect or direction is not Direction.RESPONSE:
            return None
        bodiless = request.method == "HEAD" or (response is not None and response.status in _BODILESS)
        opened: list[Inspector] = []
        for name in verdict.inspect:
            if name in self._shapes:
                limit = _HIGH_ENTROPY_FLUSH_BYTES if name == "high-entropy" else 3
                opened.append(ShapeRedactor(self._shapes[name], flush_limit_bytes=limit))
            elif name in self._content_types and not bodiless:
                opened.append(ContentTypeGate(name, self._content_types[name]))
        return opened[0] if len(opened) == 1 else Chain(opened) if opened else None


class ContentTypeGate:
    """An inspector that denies a response whose media type is not listed. Changes nothing."""

    __slots__ = ("_allowed", "_name", "_passed")

    def __init__(self, name: str, allowed: frozenset[str]) -> None:
        self._name = name
        self._allowed = allowed
        self._passed = False

    def head(self, headers: Headers) -> Headers:
        """Return the headers as they are; what comes after the first ones are trailers, which have no media type.

        Raises:
            SeamgateError: with reason RESPONSE_DENIED; the media type is absent or not listed.
        """
        if not self._passed:
            self._judge(headers)
            self._passed = True
        return headers

    def _judge(self, headers: Headers) -> None:
        values = [value for name, value in headers if name == b"content-type"]
        if not values and find_header(headers, b"content-length") == b"0":
            return
        # Two values would be read differently by different clients.
        media_type = values[0].partition(b";")[0].strip(b" \t").lower().decode("latin-1") if len(values) == 1 else ""
        if media_type in self._allowed or f"{media_type.partition('/')[0]}/*" in self._allowed:
            return
        shown = f"{media_type[:80]!r}" if media_type else "not given once"
        raise SeamgateError(
            f"the response's media type is {shown}; inspector {self._name!r} passes {', '.join(sorted(self._allowed))}",
            reason=Reason.RESPONSE_DENIED,
        )

    def feed(self, data: bytes) -> bytes:
        """Return the piece."""
        return data

    def flush(self) -> bytes:
        """Return nothing; nothing is held."""
        return b""

    def finish(self) -> bytes:
        """Return nothing; nothing is held."""
        return b""


class Chain:
    """Several inspectors as one: what one lets go passes through those after it."""

    __slots__ = ("_links",)

    def __init__(self, links: Sequence[Inspector]) -> None:
        self._links = tuple(links)

    def head(self, headers: Headers) -> Headers:
        """Pass the headers through each."""
        for link in self._links:
            headers = link.head(headers)
        return headers

    def feed(self, data: bytes) -> bytes:
        """Pass a piece through each."""
        for link in self._links:
            if not data:
                break
            data = link.feed(data)
        return data

    def flush(self) -> bytes:
        """Collect what each gives out in a pause."""
        data = b""
        for link in self._links:
            data = (link.feed(data) if data else b"") + link.flush()
        return data

    def finish(self) -> bytes:
        """Collect the rest of each."""
        data = b""
        for link in self._links:
            data = (link.feed(data) if data else b"") + link.finish()
        return data


def _own_shape(name: str, option: ShapeOption) -> Shape:
    if not _NAME.match(name):
        raise ConfigError(f"options of the plugin inspection: shapes: {name!r} is not a name of a-z, 0-9, _ and -")
    return Shape(name, ((option.prefix,), Run(_CHARACTERS[option.characters], option.least, option.most)))


def _media_types(name: str, texts: tuple[str, ...]) -> frozenset[str]:
    for text in texts:
        if not _MEDIA_TYPE.match(text):
            raise ConfigError(
                f"options of the plugin inspection: content_types: {name}: {text!r} is not a media type in lower case,"
                " such as application/json or text/*"
            )
    if not texts:
        raise ConfigError(f"options of the plugin inspection: content_types: {name} is empty: nothing would pass")
    return frozenset(texts)
