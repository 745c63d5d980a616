"""The SDKs of LLM providers, unmodified: JSON, streams and readable denials, through the proxy and by base URL.

The key that they are given is a placeholder; the provider checks the real one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.api import WORDS, LlmApi
from support.lab import SECRET, Lab
from support.programs import python
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

PLACEHOLDER = "sk-ant-api03-placeholder-0000000000"
RULES: list[dict[str, Any]] = [
    {
        "id": "llm",
        "allow": {
            "hosts": ["api.test"],
            "ports": ["1-65535"],
            "methods": ["POST"],
            "paths": ["/v1/chat/completions", "/v1/messages"],
        },
        "when": 'request.json.model.startsWith("small-")',
        "credential": "key",
    },
    {"id": "ack", "allow": {"hosts": ["api.test"], "ports": ["1-65535"], "paths": ["/v1/ack/*"]}},
]

OPENAI = """
import json, os, openai
client = openai.OpenAI(base_url=os.environ["BASE"] + "/v1", api_key=os.environ["KEY"])
plain = openai.DefaultHttpxClient()

def ask(model, **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], **more)

out = {"json": ask("small-1").choices[0].message.content, "stream": []}
for chunk in ask("small-1", stream=True):
    if chunk.choices[0].delta.content:
        out["stream"].append(chunk.choices[0].delta.content)
        plain.get(os.environ["BASE"] + f"/v1/ack/{len(out['stream']) - 1}").raise_for_status()
try:
    ask("large-1")
except openai.PermissionDeniedError as error:
    out["denied"] = [error.status_code, str(error)]
print(json.dumps(out))
"""

ANTHROPIC = """
import json, os, anthropic
client = anthropic.Anthropic(base_url=os.environ["BASE"], api_key=os.environ["KEY"])
plain = anthropic.DefaultHttpxClient()

def ask(model, make=client.messages.create):
    return make(model=model, max_tokens=100, messages=[{"role": "user", "content": "hi"}])

out = {"json": ask("small-1").content[0].text, "stream": []}
with ask("small-1", client.messages.stream) as stream:
    for text in stream.text_stream:
        out["stream"].append(text)
        plain.get(os.environ["BASE"] + f"/v1/ack/{len(out['stream']) - 1}").raise_for_status()
try:
    ask("large-1")
except anthropic.PermissionDeniedError as error:
    out["denied"] = [error.status_code, str(error)]
print(json.dumps(out))
"""


def check(out: dict[str, Any]) -> None:
    """Hold what a script printed to what it must have seen."""
    assert out["json"] == "".join(WORDS)
    assert out["stream"] == [*WORDS]
    status, message = out["denied"]
    assert status == 403 and "no_rule_matched" in message
    assert SECRET not in json.dumps(out)


def records(path: str) -> list[str]:
    """Return what was audited of a script."""
    acknowledged = [f"GET /v1/ack/{number} allow allowed 204 complete" for number in range(len(WORDS))]
    allowed = f"POST {path} allow allowed 200 complete"
    return [allowed, *acknowledged, allowed, f"POST {path} deny no_rule_matched 403 denied"]


@pytest.mark.parametrize("way", ["proxy", "base_url"])
@pytest.mark.parametrize(
    ("script", "path", "inject"),
    [
        pytest.param(OPENAI, "/v1/chat/completions", {"header": None, "bearer": True}, id="openai"),
        pytest.param(ANTHROPIC, "/v1/messages", {"header": "x-api-key"}, id="anthropic"),
    ],
)
async def test_sdk(script: str, path: str, inject: dict[str, Any], way: str) -> None:
    """A whole answer, a stream word by word, and a denial that is an exception which says why; no retry of it."""
    settings = {
        "entries": {"proxy": {"guest": ""}},
        "credentials": {"key": {"inject": inject, "placeholder": PLACEHOLDER}},
    }
    async with Lab(HttpUpstream(LlmApi()), rules=RULES, settings=settings) as lab:
        environment = {**lab.environment(), "KEY": PLACEHOLDER, "BASE": f"https://{lab.authority()}"}
        if way == "base_url":
            environment = {"PATH": environment["PATH"], "KEY": PLACEHOLDER, "BASE": lab.base_url}
        check(await python(script, environment))
        await lab.audited(*records(path))
