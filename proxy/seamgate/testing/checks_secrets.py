"""Checks that a plugin never gets hold of a secret, and tells neither secrets nor placeholders to anybody.

A request is sent with a placeholder, through a gateway in memory that puts a canary in, to an upstream that gives the
canary back in its head, its body and its trailers. What counts as told is every spelling of it that the gateway's own
redaction knows: base64 of a header that holds it, its digits in hex, its escapes in a URL.

Each takes a `Subject`, raises `ConformanceError`, and has its rule as docstring. Listed by `conformance`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from seamgate.credentials.encodings import all_forms
from seamgate.errors import SeamgateError
from seamgate.flow import Amendment, Request
from seamgate.testing.building import make_request
from seamgate.testing.corpus import HOST
from seamgate.testing.listening import Heard
from seamgate.testing.outlets import outlets
from seamgate.testing.purity import known_threads, let_others_run
from seamgate.testing.recorded import Recorded, RecordedUpstream
from seamgate.testing.sending import Flow, send
from seamgate.testing.subject import ConformanceError, Subject, Trial, listening_to_logs

CANARY = "kit-canary-5f2b8e0d94c7a316"
PLACEHOLDER = "sgph-conformance-canary"
_HEADER = "x-kit-api-key"
_DEEPEST = 6
_AFTER_S = 0.05
"""So long after a request a thread of the plugin has to tell what it was handed."""


async def sees_no_secret(subject: Subject) -> None:
    """No hook and no inspector is ever given a credential's real value, whatever comes back from upstream."""
    if "secrets" in subject.capabilities:
        return  # it was granted; what it must not do is tell them
    canary = _Spelt(CANARY)
    async for each in sent(subject):
        for heard in each.trial.listener.heard:
            for name, value in heard.given.items():
                if _holds(value, canary):
                    raise ConformanceError(f"{heard.hook} was given the real value of a credential, in `{name}`")


async def tells_no_secret(subject: Subject) -> None:
    """No real value and no placeholder, in whatever spelling, gets into what a plugin says, logs, sends or stores."""
    real, stand_in = _Spelt(CANARY, *subject.secrets), _Spelt(PLACEHOLDER)
    async for each in sent(subject):
        for where, text in _outlets(each):
            for what, spelt in (("the real value of a credential", real), ("a placeholder", stand_in)):
                how = spelt.found_in(text)
                if how:
                    at = f"{each.request.method} {each.request.target.host}"
                    raise ConformanceError(f"at {at}, {where} holds {what}, {how}")


class _Spelt:
    """Values in all their spellings."""

    def __init__(self, *values: str) -> None:
        self._plain = tuple([value.encode() for value in values])
        self._others = tuple([form for value in self._plain for form in all_forms(value)[1:]])

    def found_in(self, text: bytes) -> str:
        """Return how one of them stands there: "as it is" or "encoded"; "" if none does."""
        if any(value in text for value in self._plain):
            return "as it is"
        return "encoded" if any(form in text for form in self._others) else ""


class Sent(msgspec.Struct, frozen=True):
    """One request that was sent with a placeholder.

    Attributes:
        request: as the guest sent it.
        trial: the plugin, with what it was given and what it answered.
        flow: what became of it.
        told: what was logged and printed meanwhile.
        left: what left the process meanwhile: (where, what).
        metrics: the plugin's own, as they are scraped.
    """

    request: Request
    trial: Trial
    flow: Flow
    told: str
    left: tuple[tuple[str, bytes], ...]
    metrics: bytes


async def sent(subject: Subject) -> AsyncIterator[Sent]:
    """Yield each request that was sent with a placeholder, once it is over."""
    with tempfile.TemporaryDirectory(prefix="seamgate-kit-") as folder:
        secret = Path(folder) / "canary"
        secret.write_text(CANARY)
        secret.chmod(0o600)
        for request in _requests(subject):
            trial, known, registry = subject.trial(), known_threads(), CollectorRegistry(auto_describe=True)
            trial.pipeline.register_metrics(registry)
            plugin = trial.listener.listen(trial.loaded)
            with listening_to_logs() as told, outlets() as found:
                flow = await send(
                    request,
                    upstream=_echoing(request),
                    plugins={subject.name: plugin},
                    policy=_policy(subject, request),
                    credentials={"conformance": _credential(secret, request.target.host)},
                    budget_s=60.0,
                )
                let_others_run(known, _AFTER_S)
            yield Sent(request, trial, flow, told.text, tuple(found.all()), _scraped(registry))


def _scraped(registry: CollectorRegistry) -> bytes:
    """Return the plugin's metrics; none if they can't be collected, which `starts_again` is about."""
    with contextlib.suppress(Exception):
        return generate_latest(registry)
    return b""


def _requests(subject: Subject) -> Iterator[Request]:
    own = [each for each in subject.requests if not each.upgrade and each.target.scheme == "https"]
    for request in (
        *own,
        make_request(f"GET https://{HOST}/v1"),
        make_request(f"POST https://{HOST}/v1", json={"a": 1}),
        make_request(f"GET https://{HOST}/v1", headers={"authorization": _basic(PLACEHOLDER)}),
    ):
        header = (_HEADER.encode(), PLACEHOLDER.encode())
        yield msgspec.structs.replace(request, headers=(*request.headers, header))


def _basic(value: str) -> str:
    """Return what a client makes of a key as password, or of a placeholder that it takes for one (RFC 7617)."""
    return f"Basic {base64.b64encode(f'u:{value}'.encode()).decode()}"


def _echoing(request: Request) -> RecordedUpstream:
    """An upstream that gives back what it got, in every place and in base64 too."""
    body = json.dumps({"got": CANARY, "basic": base64.b64encode(f"u:{CANARY}".encode()).decode()}).encode()
    pieces = (body[:20], body[20:31], body[31:])
    head = {"content-type": "application/json", "x-echo": CANARY}
    answer = Recorded(headers=head, pieces=pieces, trailers={"x-late": CANARY})
    return RecordedUpstream({f"{request.method} {request.url}": answer})


def _policy(subject: Subject, request: Request) -> str:
    rule = {
        "id": "conformance",
        "allow": {"hosts": [request.target.host], "ports": ["1-65535"]},
        "encoded_slash": True,
        "credential": "conformance",
        **({"inspect": list(subject.inspect)} if subject.inspect else {}),
    }
    return json.dumps({"seamgate": 1, "rules": [rule]})


def _credential(secret: Path, host: str) -> Mapping[str, Any]:
    return {
        "source": {"file": str(secret)},
        "inject": {"header": _HEADER},
        "placeholder": PLACEHOLDER,
        "hosts": [host],
    }


def _outlets(each: Sent) -> Iterator[tuple[str, bytes]]:
    """Yield (where, text) of everything by which a plugin could tell something."""
    for heard in each.trial.listener.heard:
        for where, said in _said(heard):
            yield where, said.encode("utf-8", "surrogateescape")
    yield "its repr", repr(each.trial.loaded.plugin).encode()
    yield "the audit record", repr(each.flow.record).encode()
    got = (each.flow.headers, each.flow.trailers)
    yield "what the guest got", repr(got).encode() + each.flow.body
    yield "a log line, or what it printed,", each.told.encode("utf-8", "surrogateescape")
    yield "a metric", each.metrics
    yield from each.left


def _said(heard: Heard) -> Iterator[tuple[str, str]]:
    if isinstance(heard.answer, Amendment):
        own = [value for name, value in heard.answer.set_headers if name != _HEADER.encode()]
        yield "its amendment", repr(own)
    elif heard.hook.startswith("judge_") and heard.answer is not None:
        yield f"its verdict in {heard.hook}", repr(heard.answer)
    if isinstance(heard.raised, SeamgateError):
        yield f"its error in {heard.hook}", heard.raised.message
    elif heard.raised is not None:
        yield f"its error in {heard.hook}", str(heard.raised)


def _holds(value: Any, needle: _Spelt, depth: int = 0) -> bool:
    """Whether the needle stands anywhere in a value, in whatever spelling."""
    if isinstance(value, bytes | str):
        return bool(needle.found_in(value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")))
    if depth > _DEEPEST:
        return False
    if isinstance(value, Mapping):
        return any(_holds(each, needle, depth + 1) for pair in value.items() for each in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return any(_holds(each, needle, depth + 1) for each in value)
    if isinstance(value, msgspec.Struct):
        return any(_holds(getattr(value, name), needle, depth + 1) for name in value.__struct_fields__)
    return False
