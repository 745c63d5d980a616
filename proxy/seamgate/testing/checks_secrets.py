"""Checks that a plugin never gets hold of a secret, and tells neither secrets nor placeholders to anybody.

A request is sent with a placeholder, through a gateway in memory that puts a canary in, to an upstream that gives the
canary back in its head, its body and its trailers. Each takes a `Subject`, raises `ConformanceError`, and has its rule
as docstring. Listed by `conformance`.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from seamgate.errors import SeamgateError
from seamgate.flow import Amendment, Request
from seamgate.testing.building import make_request
from seamgate.testing.corpus import HOST
from seamgate.testing.listening import Heard
from seamgate.testing.recorded import Recorded, RecordedUpstream
from seamgate.testing.sending import Flow, send
from seamgate.testing.subject import ConformanceError, Subject, Trial, listening_to_logs

CANARY = "kit-canary-5f2b8e0d94c7a316"
PLACEHOLDER = "sgph-conformance-canary"
_HEADER = "x-kit-api-key"
_DEEPEST = 6


async def sees_no_secret(subject: Subject) -> None:
    """No hook and no inspector is ever given a credential's real value, whatever comes back from upstream."""
    if "secrets" in subject.capabilities:
        return  # it was granted; what it must not do is tell them
    async for _, trial, _, _ in _sent(subject):
        for heard in trial.listener.heard:
            for name, value in heard.given.items():
                if _holds(value, CANARY):
                    raise ConformanceError(f"{heard.hook} was given the real value of a credential, in `{name}`")


async def tells_no_secret(subject: Subject) -> None:
    """Neither real values nor placeholders get into messages, amendments, errors, logs, output or the plugin's repr."""
    needles = (CANARY, PLACEHOLDER, *subject.secrets)
    async for request, trial, flow, told in _sent(subject):
        for where, text in _outlets(trial, flow, told):
            for needle in needles:
                if needle in text:
                    what = "a placeholder" if needle == PLACEHOLDER else "the real value of a credential"
                    raise ConformanceError(f"at {request.method} {request.target.host}, {where} holds {what}")


async def _sent(subject: Subject) -> AsyncIterator[tuple[Request, Trial, Flow, str]]:
    """Yield (request, trial, flow, what was logged) for each request that was sent with a placeholder."""
    with tempfile.TemporaryDirectory(prefix="seamgate-kit-") as folder:
        secret = Path(folder) / "canary"
        secret.write_text(CANARY)
        secret.chmod(0o600)
        for request in _requests(subject):
            trial = subject.trial()
            plugin = trial.listener.listen(trial.loaded)
            with listening_to_logs() as told:
                flow = await send(
                    request,
                    upstream=_echoing(request),
                    plugins={subject.name: plugin},
                    policy=_policy(subject, request),
                    credentials={"conformance": _credential(secret, request.target.host)},
                    budget_s=60.0,
                )
            yield request, trial, flow, told.text


def _requests(subject: Subject) -> Iterator[Request]:
    own = [each for each in subject.requests if not each.upgrade and each.target.scheme == "https"]
    for request in (
        *own,
        make_request(f"GET https://{HOST}/v1"),
        make_request(f"POST https://{HOST}/v1", json={"a": 1}),
    ):
        header = (_HEADER.encode(), PLACEHOLDER.encode())
        yield msgspec.structs.replace(request, headers=(*request.headers, header))


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


def _outlets(trial: Trial, flow: Flow, told: str) -> Iterator[tuple[str, str]]:
    """Yield (where, text) of everything by which a plugin could tell something."""
    for heard in trial.listener.heard:
        yield from _said(heard)
    yield "its repr", repr(trial.loaded.plugin)
    yield "the audit record", repr(flow.record)
    yield "a log line, or what it printed,", told


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


def _holds(value: Any, needle: str, depth: int = 0) -> bool:
    """Whether the needle stands anywhere in a value, plain or in base64."""
    if isinstance(value, bytes):
        return needle.encode() in value or base64.b64encode(f"u:{needle}".encode())[4:-4] in value
    if isinstance(value, str):
        return needle in value
    if depth > _DEEPEST:
        return False
    if isinstance(value, Mapping):
        return any(_holds(each, needle, depth + 1) for pair in value.items() for each in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return any(_holds(each, needle, depth + 1) for each in value)
    if isinstance(value, msgspec.Struct):
        return any(_holds(getattr(value, name), needle, depth + 1) for name in value.__struct_fields__)
    return False
