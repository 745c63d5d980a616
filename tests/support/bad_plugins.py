"""Plugins that break a rule of the conformance suite out of sight: in a thread, in an encoding, in a slow pattern.

Each is in `HIDDEN_BREAKERS` with the rule and what the suite's message has to say. Used by its tests.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import queue
import re
import smtplib
import socketserver
import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

from seamgate import Amendment, Direction, Inspector, Request, Response, Verdict, deny, hookimpl
from seamgate.headers import Headers


class BadPlugin:
    """Takes any options, like none of the good ones."""

    def __init__(self, context: Any) -> None:
        self.options = context.options


# -- bytes in usual headers --------------------------------------------------------------------------------------------


class DecodesAgent(BadPlugin):
    """Believes that a User-Agent is UTF-8."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        (request.header(b"user-agent") or b"").decode()
        return None


class DecodesLocation(BadPlugin):
    """Believes that a Location is ASCII."""

    @hookimpl
    def judge_response(self, request: Request, response: Response) -> Verdict | None:
        for name, value in response.headers:
            if name == b"location":
                value.decode("ascii")
        return None


class Passing:
    """An inspector that changes nothing."""

    def head(self, headers: Headers) -> Headers:
        return headers

    def feed(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class Inspecting(BadPlugin):
    """Opens its inspector for answers."""

    inspector: ClassVar[type[Any]] = Passing

    @hookimpl
    def open_inspector(self, request: Request, direction: Direction) -> Inspector | None:
        made: Inspector | None = self.inspector() if direction is Direction.RESPONSE else None
        return made


class DecodesType(Inspecting):
    """Its inspector believes that a Content-Type is UTF-8."""

    class inspector(Passing):
        """See above."""

        def head(self, headers: Headers) -> Headers:
            for name, value in headers:
                if name == b"content-type":
                    value.decode()
            return headers


# -- what others do for a judge ----------------------------------------------------------------------------------------


def _read_null() -> None:
    with Path("/dev/null").open() as file:
        file.read()


class StartsThread(BadPlugin):
    """Starts a thread for each request."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        thread = threading.Thread(target=_read_null, daemon=True)
        thread.start()
        thread.join()
        return None


class HandsToThread(BadPlugin):
    """Has a thread of its own read a file for each request."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[bool] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._asked.get():
            _read_null()
            self._answered.put(True)

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        self._asked.put(True)
        self._answered.get(timeout=30)
        return None

    def __del__(self) -> None:
        self._asked.put(False)


class BeginsTask(BadPlugin):
    """Has a task read a file later."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        self._task = asyncio.get_running_loop().create_task(self._read())
        return None

    async def _read(self) -> None:
        _read_null()


# -- what all share ----------------------------------------------------------------------------------------------------


class SetsEnvironment(BadPlugin):
    """Has its settings in the environment."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        os.environ["BAD_PLUGIN"] = "1"

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return None


class SetsEnvironmentLater(BadPlugin):
    """Leaves a trace in the environment for a moment while it judges."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        os.environ["LAST_HOST"] = request.target.host
        del os.environ["LAST_HOST"]
        return None


class ChangesFolder(BadPlugin):
    """Goes where its files are."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        os.chdir("/")

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return None


# -- what is told in another spelling ----------------------------------------------------------------------------------


def _credentials(request: Request) -> bytes:
    return request.header(b"x-kit-api-key") or request.header(b"authorization") or b""


class LogsEncoded(BadPlugin):
    """Logs headers in base64, so that no secret scanner of logs finds them."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        logging.getLogger("encoded").info("%s", base64.b64encode(b"key=" + _credentials(request)).decode())
        return None


class LogsBasic(BadPlugin):
    """Logs the Authorization of clients that speak Basic, in which the key stands in base64."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        logging.getLogger("basic").info("%s", request.header(b"authorization"))
        return None


class AmendsEncoded(BadPlugin):
    """Gives the header to the upstream once more, in hex."""

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        value = request.header(b"x-kit-api-key")
        return None if value is None else Amendment(set_headers=((b"x-trace", value.hex().encode()),))


class DeniesEncoded(BadPlugin):
    """Tells whoever asked their Authorization in base64."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        value = request.header(b"authorization")
        return deny(f"not with {base64.b64encode(value).decode()}") if value else None


class DeniesDecoded(BadPlugin):
    """Tells whoever asked what stands in their Basic."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        for _, value in request.headers:
            if value.startswith(b"Basic dXNl"):
                return deny(f"not as {base64.b64decode(value[6:]).decode()}")
        return None


class StoresEncoded(BadPlugin):
    """Writes base64 of headers to a file."""

    @hookimpl
    def request_done(self, record: Any) -> None:
        self._path.write_bytes(base64.urlsafe_b64encode(self._last))

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        self._last = _credentials(request)
        return None

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._last = b""
        descriptor, name = tempfile.mkstemp(prefix="seamgate-bad-")
        os.close(descriptor)
        self._path = Path(name)

    def __del__(self) -> None:
        self._path.unlink()


class _Mailbox(socketserver.StreamRequestHandler):
    """Takes mail as a server does (RFC 5321), and forgets it."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                while self.rfile.readline() not in (b".\r\n", b""):
                    pass
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 fine\r\n")


class Mails(BadPlugin):
    """Mails the headers of each request, in base64."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        self._last = base64.b64encode(_credentials(request)).decode()
        return None

    @hookimpl
    def request_done(self, record: Any) -> None:
        with socketserver.TCPServer(("127.0.0.1", 0), _Mailbox) as server:
            thread = threading.Thread(target=server.handle_request)
            thread.start()
            with smtplib.SMTP(*server.server_address, timeout=30) as mail:  # type: ignore[misc]
                mail.sendmail("a@example.com", ["b@example.com"], f"Subject: seen\r\n\r\n{self._last}\r\n")
            thread.join()


class Measures(BadPlugin):
    """Counts by key."""

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        from prometheus_client import Counter

        self._seen = Counter("seen_keys", "By key.", ["key"], registry=registry)

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        self._seen.labels(_credentials(request).decode("latin-1")).inc()
        return None


# -- patterns that backtrack -------------------------------------------------------------------------------------------


class BacktracksOnAgent(BadPlugin):
    """Doubles its time with each letter of a User-Agent."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        re.fullmatch(rb"([A-Za-z]+\s?)*", request.header(b"user-agent") or b"")
        return None


class BacktracksOnPath(BadPlugin):
    """Is quadratic in the hyphens of a path."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        re.search(r"-+-+x", request.path)
        return None


class BacktracksOnTicket(BadPlugin):
    """Only what looks like a ticket comes as far as its repetition."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        re.fullmatch(rb"OPS-(\d+)+", request.header(b"x-ticket") or b"")
        return None


class BacktracksInBody(Inspecting):
    """Its inspector looks for what is quoted."""

    class inspector(Passing):
        """See above."""

        def finish(self) -> bytes:
            return b""

        def feed(self, data: bytes) -> bytes:
            re.search(rb"<(\s*<?\s*)*>", data)
            return data


class BacktracksOnAnswer(BadPlugin):
    """Doubles its time with each part of a Set-Cookie."""

    @hookimpl
    def judge_response(self, request: Request, response: Response) -> Verdict | None:
        for name, value in response.headers:
            if name == b"set-cookie":
                re.fullmatch(rb"(\w+=?)*;", value)
        return None


HIDDEN_BREAKERS: list[tuple[type, str, str]] = [
    (
        DecodesAgent,
        "withstands_the_field",
        "a user-agent of bytes that are not UTF-8, judge_request raised UnicodeDecode",
    ),
    (
        DecodesLocation,
        "withstands_the_field",
        "a location of bytes that are not UTF-8, judge_response raised UnicodeDecode",
    ),
    (
        DecodesType,
        "takes_heads_and_trailers",
        "a content-type of bytes that are not UTF-8: UnicodeDecodeError at the head",
    ),
    (StartsThread, "judges_without_io", "it started a thread; judging has to be pure"),
    (HandsToThread, "judges_without_io", "it opened the file /dev/null in a thread of its own; judging has to be pure"),
    (BeginsTask, "judges_without_io", "it opened the file /dev/null in a task; judging has to be pure"),
    (SetsEnvironment, "leaves_the_process_alone", "it set the environment variable BAD_PLUGIN: all of the gateway"),
    (SetsEnvironmentLater, "leaves_the_process_alone", "it set the environment variable LAST_HOST"),
    (SetsEnvironmentLater, "judges_without_io", "it set the environment variable LAST_HOST; judging has to be pure"),
    (ChangesFolder, "leaves_the_process_alone", "it changed the working directory"),
    (LogsEncoded, "tells_no_secret", "a log line, or what it printed, holds a placeholder, encoded"),
    (LogsBasic, "tells_no_secret", "a log line, or what it printed, holds a placeholder, encoded"),
    (AmendsEncoded, "tells_no_secret", "its amendment holds a placeholder, encoded"),
    (DeniesEncoded, "tells_why", "repeats the value of the header authorization, encoded"),
    (DeniesDecoded, "tells_why", "repeats the value of the header authorization, decoded"),
    (StoresEncoded, "tells_no_secret", "a file that it wrote holds a placeholder, encoded"),
    (Mails, "tells_no_secret", "what it sent over a connection holds a placeholder, encoded"),
    (Measures, "tells_no_secret", "a metric holds a placeholder, as it is"),
    (BacktracksOnAgent, "matches_in_time", "in the header user-agent, judge_request took"),
    (BacktracksOnPath, "matches_in_time", "times '-' and '!' in the path, judge_request took"),
    (BacktracksInBody, "matches_in_time", "in a response of application/json, an inspector took"),
    (BacktracksOnAnswer, "matches_in_time", "in the header set-cookie of an answer, judge_response took"),
]
"""(plugin, rule that it breaks, what the message says)."""
