"""A program that calls `test.Echo` as any gRPC client does: `python grpc_client.py TARGET CALL...`; prints JSON."""

from __future__ import annotations

import json
import os
import queue
import sys
from typing import Any

import grpc


def told(error: Any) -> dict[str, Any]:
    """Say how a call failed."""
    trailers = {key: str(value) for key, value in error.trailing_metadata() or ()}
    return {"code": error.code().name, "details": error.details(), "trailers": trailers}


def unary(channel: Any, method: str = "Unary", timeout: float = 20) -> dict[str, Any]:
    """One message each way."""
    call = channel.unary_unary(f"/test.Echo/{method}")
    answer, state = call.with_call(b"abc", timeout=timeout, metadata=(("x-one", "1"), ("x-raw-bin", b"\x00\x01")))
    trailers = {key: repr(value) for key, value in state.trailing_metadata()}
    return {"answer": answer.decode(), "trailers": trailers}


def server_stream(channel: Any) -> dict[str, Any]:
    """Many messages down."""
    return {"answer": [each.decode() for each in channel.unary_stream("/test.Echo/ServerStream")(b"100", timeout=20)]}


def client_stream(channel: Any) -> dict[str, Any]:
    """Many messages up."""
    messages = (b"%d" % number for number in range(100))
    return {"answer": channel.stream_unary("/test.Echo/ClientStream")(messages, timeout=20).decode()}


class Turns:
    """Messages as they are put in; None ends them."""

    def __init__(self, *first: bytes) -> None:
        self.queue: queue.Queue[bytes | None] = queue.Queue()
        for message in first:
            self.queue.put(message)

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> bytes:
        message = self.queue.get()
        if message is None:
            raise StopIteration
        return message


def bidi(channel: Any) -> dict[str, Any]:
    """Each message is sent once the answer to the one before is here."""
    answers: list[str] = []
    turns = Turns(b"m0")
    call = channel.stream_stream("/test.Echo/Bidi")(turns, timeout=20)
    early = dict(call.initial_metadata())
    for answer in call:
        answers.append(answer.decode())
        turns.queue.put(b"m%d" % len(answers) if len(answers) < 20 else None)
    return {"answer": answers, "early": early.get("x-early")}


def many(channel: Any) -> dict[str, Any]:
    """A thousand calls at once."""
    call = channel.unary_unary("/test.Echo/Unary")
    futures = [call.future(b"%d" % number, timeout=30) for number in range(1000)]
    return {"answer": sum(future.result() == (b"%d" % number)[::-1] for number, future in enumerate(futures))}


def large(channel: Any) -> dict[str, Any]:
    """A message beyond every window."""
    return {"answer": len(channel.unary_unary("/test.Echo/Unary")(bytes(3 << 20), timeout=20))}


def gzipped(channel: Any) -> dict[str, Any]:
    """Messages that the client compresses: one by itself, and a stream of which each waits for the one before."""
    gzip = grpc.Compression.Gzip
    alone = channel.unary_unary("/test.Echo/Unary")(b"abc" * 5000, timeout=20, compression=gzip)
    answers: list[bytes] = []
    turns = Turns(b"m" * 500)
    for answer in channel.stream_stream("/test.Echo/Bidi")(turns, timeout=20, compression=gzip):
        answers.append(answer)
        turns.queue.put(b"m" * 500 if len(answers) < 5 else None)
    return {"answer": [len(alone), *[len(each) for each in answers]]}


def leak(channel: Any) -> dict[str, Any]:
    """Send what must not leave in a message that is compressed."""
    message = b"x" * 500 + sys.stdin.readline().strip().encode()
    channel.unary_unary("/test.Echo/Unary")(message, timeout=20, compression=grpc.Compression.Gzip)
    return {}


def cancel(channel: Any) -> dict[str, Any]:
    """Give a call up that is under way."""
    future = channel.unary_unary("/test.Echo/Wait").future(b"", timeout=20)
    sys.stdin.readline()
    future.cancel()
    return {"cancelled": future.cancelled()}


def main(target: str, calls: list[str]) -> None:
    """Make the calls, in order, over one channel."""
    with open(os.environ["SSL_CERT_FILE"], "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    options = [("grpc.max_receive_message_length", 8 << 20)]
    with grpc.secure_channel(target, credentials, options=options) as channel:
        for name in calls:
            try:
                if name.startswith("/"):
                    result = {"answer": channel.unary_unary(name)(b"", timeout=20).decode()}
                elif name in ("Fail", "Unary"):
                    result = unary(channel, name)
                elif name == "Deadline":
                    result = unary(channel, "Wait", timeout=0.3)
                else:
                    result = globals()[name](channel)
            except grpc.RpcError as error:
                result = told(error)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
