"""The shape of a policy file: what `document` converts YAML into, and what editors get as JSON Schema.

Only shapes and the words for people are here; `loader` gives them meaning. Every key is refused unless it is listed,
so that nothing is ever ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Texts = str | list[str]
ValueSpec = bool | str | list[str]
"""true: is there; false: is not there; text: matches, with * for any run of characters; list: any of them."""
JsonSpec = bool | int | float | str | None | list[bool | int | float | str | None]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of every mapping in a policy file: trees without cycles, of which large files have a million parts."""


class MatchSpec(_Strict, frozen=True):
    """What a rule covers. Keys are and-ed; the elements of a list are or-ed."""

    hosts: Annotated[
        list[str] | UnsetType,
        Meta(description="Names, `*.example.com` (one label), `**.example.com` (one or more), or single addresses."),
    ] = UNSET
    schemes: Annotated[
        list[Literal["https", "http"]] | UnsetType, Meta(description="Absent in an allow: https only; in a deny: both.")
    ] = UNSET
    ports: Annotated[
        list[int | str] | UnsetType,
        Meta(description='Numbers and "low-high". Absent in an allow: the default port; in a deny: every port.'),
    ] = UNSET
    methods: Annotated[
        Texts | UnsetType, Meta(description="Methods, or read, or write. GET implies HEAD. Absent: every method.")
    ] = UNSET
    paths: Annotated[
        list[str] | UnsetType,
        Meta(description="`*` is one segment, `**` one or more; `v*` within a segment. Absent: every path."),
    ] = UNSET
    query: Annotated[
        dict[str, ValueSpec] | UnsetType, Meta(description="Parameter names to values, true (is there) or false.")
    ] = UNSET
    headers: Annotated[
        dict[str, ValueSpec] | UnsetType, Meta(description="Header names to values, true (is there) or false.")
    ] = UNSET
    json: Annotated[
        dict[str, JsonSpec] | UnsetType, Meta(description="Dotted paths in a JSON body to values; text may hold *.")
    ] = UNSET


class AllowSpec(MatchSpec, frozen=True):
    """What an allow covers."""

    protocol: Annotated[
        Literal["tcp"] | UnsetType,
        Meta(description="tcp: any stream to these hosts and ports, passed on unread. Only with hosts and ports."),
    ] = UNSET


class ExceptSpec(MatchSpec, frozen=True):
    """What lifts the ban that it stands in. Absent keys leave the ban's own extent."""

    guests: Annotated[dict[str, Texts] | UnsetType, Meta(description="Labels of the guests that it lifts it for.")] = (
        UNSET
    )
    when: Annotated[str | UnsetType, Meta(description="A CEL condition; unknown means no.")] = UNSET
    expires: Annotated[str | UnsetType, Meta(description="A date (its end, UTC) or a time with offset.")] = UNSET
    reason: str = ""


class LimitsSpec(_Strict, frozen=True):
    """Limits on what the rule allows."""

    requests: Annotated[str | UnsetType, Meta(description="Such as 60/min: s, min, h or day; per guest and rule.")] = (
        UNSET
    )
    request_body: Annotated[str | int | UnsetType, Meta(description="Such as 5MiB.")] = UNSET
    response_body: Annotated[str | int | UnsetType, Meta(description="Such as 5MiB.")] = UNSET


class RuleSpec(_Strict, frozen=True):
    """One rule: exactly one of allow and deny."""

    id: Annotated[str, Meta(description="Unique in all policies of a gateway; audit and denials name it.")]
    allow: AllowSpec | UnsetType = UNSET
    deny: MatchSpec | UnsetType = UNSET
    guests: Annotated[
        dict[str, Texts] | UnsetType, Meta(description='Labels to value, values, or "*" (any). Absent: every guest.')
    ] = UNSET
    when: Annotated[str | UnsetType, Meta(description="A CEL condition; unknown means no for allow, yes for deny.")] = (
        UNSET
    )
    except_: Annotated[
        ExceptSpec | list[ExceptSpec] | UnsetType, Meta(description="What lifts this ban. Only in a deny.")
    ] = msgspec.field(default=UNSET, name="except")
    credential: Annotated[Texts | UnsetType, Meta(description="Names of credentials to put in. Only in an allow.")] = (
        UNSET
    )
    limits: LimitsSpec | UnsetType = UNSET
    inspect: Annotated[list[str] | UnsetType, Meta(description="Names of inspectors. Only in an allow.")] = UNSET
    addresses: Annotated[
        list[str] | UnsetType,
        Meta(description="Classes (private, loopback ...) or networks that the hosts may resolve to beyond public."),
    ] = UNSET
    upgrade: Annotated[
        Literal["websocket"] | UnsetType, Meta(description="websocket: the allow covers requests to become one too.")
    ] = UNSET
    encoded_slash: Annotated[bool, Meta(description="Whether the allow covers paths that hold %2F.")] = False
    mode: Annotated[Literal["enforce", "audit"], Meta(description="audit: record, do not enforce.")] = "enforce"
    expires: Annotated[
        str | UnsetType, Meta(description="A date (its end, UTC) or a time with offset, after which it is void.")
    ] = UNSET
    owner: str = ""
    reason: str = ""
    ticket: str = ""


class PolicyFile(_Strict, frozen=True):
    """A whole policy file."""

    seamgate: Annotated[Literal[1], Meta(description="Version of the language.")]
    layer: Annotated[
        Literal["org", "team", "sandbox"], Meta(description="Every layer that is there must allow a request.")
    ] = "team"
    mode: Annotated[Literal["enforce", "audit"], Meta(description="audit: record, do not enforce.")] = "enforce"
    owner: str = ""
    description: str = ""
    rules: Annotated[list[RuleSpec], Meta(description="Empty: the layer allows nothing.")] = []


def json_schema(type_: type[Any] = PolicyFile) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a kind of file, for editors."""
    schema = msgspec.json.schema(type_)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
