"""What the fake upstreams of client tests serve: a small API with events, and the APIs of two LLM providers.

An event stream sends its next event only once the client has asked for `/ack/N` for the one before, on another
connection: a gateway that held an event back would be stuck, so no clock is needed to tell.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from support.lab import SECRET
from support.upstream import Talk

EVENTS = 3
WORDS = ("Hello", " from", " afar")


class Api:
    """The app `Api()` of an `HttpUpstream`: /json, /upload, /events, /ack/N, and anything else is 404."""

    def __init__(self) -> None:
        self._acked = [asyncio.Event() for _ in range(EVENTS)]

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        path = talk.target.partition("?")[0]
        if path == "/json":
            said = {"ok": True, "has_key": talk.header("x-api-key") == SECRET}
            await talk.respond(200, json.dumps(said).encode(), [("content-type", "application/json")])
        elif path == "/upload":
            await talk.respond(201, json.dumps({"size": len(await talk.body())}).encode())
        elif path == "/events":
            await self._events(talk)
        elif path.startswith("/ack/"):
            self._acked[int(path.rpartition("/")[2])].set()
            await talk.respond(204)
        else:
            await talk.respond(404)

    async def _events(self, talk: Talk) -> None:
        await talk.begin(200, [("content-type", "text/event-stream"), ("cache-control", "no-cache")])
        for number, acked in enumerate(self._acked):
            await talk.data(f"data: {number} {SECRET}\n\n".encode())
            await acked.wait()
            acked.clear()
        await talk.finish()


class LlmApi:
    """OpenAI's chat completions and Anthropic's messages, in JSON and as events, as their documentation has them.

    Whoever shows no valid key gets the provider's own 401. A stream sends one word after the other, each once `/ack/N`
    was asked for.
    """

    def __init__(self) -> None:
        self._acked = [asyncio.Event() for _ in WORDS]

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        if talk.target.startswith("/v1/ack/"):
            self._acked[int(talk.target.rpartition("/")[2])].set()
            await talk.respond(204)
            return
        if SECRET not in (talk.header("x-api-key"), (talk.header("authorization") or "").removeprefix("Bearer ")):
            error = {"type": "error", "error": {"type": "authentication_error", "message": "invalid key"}}
            await self._json(talk, 401, error)
            return
        asked = json.loads(await talk.body() or b"{}")
        answers = {
            "/v1/chat/completions": (_completion, _completion_events),
            "/v1/messages": (_message, _message_events),
        }
        if talk.target not in answers:
            await self._json(talk, 404, {"error": {"message": "no such path", "type": "invalid_request_error"}})
            return
        whole, events = answers[talk.target]
        if asked.get("stream"):
            await self._stream(talk, events(asked["model"]))
        else:
            await self._json(talk, 200, whole(asked["model"]))

    async def _json(self, talk: Talk, status: int, body: Any) -> None:
        await talk.respond(status, json.dumps(body).encode(), [("content-type", "application/json")])

    async def _stream(self, talk: Talk, groups: list[str]) -> None:
        """Send groups of events; the groups in the middle hold one word each, and wait for it to be seen."""
        await talk.begin(200, [("content-type", "text/event-stream")])
        for place, group in enumerate(groups):
            await talk.data(group.encode())
            if 0 < place <= len(WORDS):
                await self._acked[place - 1].wait()
                self._acked[place - 1].clear()
        await talk.finish()


def _completion(model: str) -> Any:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "".join(WORDS), "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


def _completion_events(model: str) -> list[str]:
    def event(delta: Any, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
        return f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"

    words = [event({"content": word}) for word in WORDS]
    return [event({"role": "assistant", "content": ""}), *words, event({}, "stop") + "data: [DONE]\n\n"]


def _message(model: str) -> Any:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "".join(WORDS)}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 3},
    }


def _message_events(model: str) -> list[str]:
    def event(kind: str, **more: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n"

    start = {**_message(model), "content": [], "stop_reason": None}
    begin = event("message_start", message=start) + event(
        "content_block_start", index=0, content_block={"type": "text", "text": ""}
    )
    words = [event("content_block_delta", index=0, delta={"type": "text_delta", "text": word}) for word in WORDS]
    end = (
        event("content_block_stop", index=0)
        + event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 3})
        + event("message_stop")
    )
    return [begin, *words, end]
