"""What happened on the demo's stage, scene by scene. Every fact was observed, every claim is checked.

An attempt of the agent is told by three witnesses: the agent (what it got), the journal (what was decided and why), and
the upstream's and the DNS server's books (what reached them). Yields scenes as they happen; prints nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from seamgate.audit.reading import read_lines, verify_journal
from seamgate.audit.view import Facts, field_of, read_facts
from seamgate.demo.agent import SHOWN_VARIABLES
from seamgate.demo.stage import KEY_VARIABLE, LABELS, DemoFailed, Stage
from seamgate.demo.upstream import EVENT_GAP_S

_RECORD_S = 3.0
_RECORD_POLL_S = 0.005
# Two events that were sent EVENT_GAP_S apart and arrive closer than this were held up on the way.
_HELD_UP_S = EVENT_GAP_S / 3


class Attempt(msgspec.Struct, frozen=True):
    """One request of the agent, as the agent and the journal tell it.

    Attributes:
        method, url: what it asked for.
        got: what it got, in a few words: a status, or the error of its HTTP library.
        verdict: "allow" or "deny".
        reason, rule, message: from the journal; rule is "" where no rule decided.
        place: file and line of the rule.
        duration_ms: from the journal.
    """

    method: str
    url: str
    got: str
    verdict: str
    reason: str
    rule: str
    message: str
    place: str
    duration_ms: float


class Check(msgspec.Struct, frozen=True):
    """A claim, and whether it holds."""

    claim: str
    holds: bool


class Event(msgspec.Struct, frozen=True):
    """One event of a stream as it reached the agent: seconds since the first, name, text."""

    at_s: float
    event: str
    text: str


class Scene(msgspec.Struct, frozen=True):
    """One part of the story.

    Attributes:
        title: what it is about; "" goes on with the scene before.
        facts: (label, text) pairs.
        attempts: the agent's requests.
        events: of a stream.
        records: journal lines.
        checks: what is claimed.
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    attempts: tuple[Attempt, ...] = ()
    events: tuple[Event, ...] = ()
    records: tuple[bytes, ...] = ()
    checks: tuple[Check, ...] = ()


class Story:
    """Plays the demo."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._records_used: set[int] = set()
        self._attempts: list[Attempt] = []
        self._events: list[Event] = []

    async def scenes(self) -> AsyncGenerator[Scene]:
        """Yield the scenes as they happen.

        Raises:
            DemoFailed: something did not happen at all.
        """
        yield self._cast()
        held: dict[str, Attempt] = {}
        async with aclosing(self._stage.agent()) as reports:
            async for report in reports:
                scene = await self._tell(report, held)
                if scene is not None:
                    yield scene
        yield self._books()
        yield self._audit()

    async def _tell(self, report: dict[str, Any], held: dict[str, Attempt]) -> Scene | None:
        """Make a scene of what the agent reports; None where it is told together with a later one."""
        step = report["step"]
        if step == "environment":
            return self._environment(report)
        if step == "event":
            return self._on_event(report)
        held[step] = attempt = await self._attempt(report)
        self._attempts.append(attempt)
        make: Callable[[Attempt, dict[str, Any], dict[str, Attempt]], Scene | None] = getattr(self, f"_on_{step}")
        return make(attempt, report, held)

    # -- the witnesses -----------------------------------------------------------------------------------------------

    async def _attempt(self, report: dict[str, Any]) -> Attempt:
        facts = await self._record(report["method"], report["url"])
        rule = str(facts.get("rule", ""))
        status = report.get("status")
        return Attempt(
            method=report["method"],
            url=report["url"],
            got=str(status) if status is not None else str(report.get("error")),
            verdict=str(facts.get("verdict")),
            reason=str(facts.get("reason")),
            rule=rule,
            message=str(facts.get("message", "")),
            place=self._place(rule),
            duration_ms=float(facts.get("duration_ms") or 0.0),
        )

    async def _record(self, method: str, url: str) -> Facts:
        """Return the terminal record of a request, or of the tunnel that it was refused."""
        parts = urlsplit(url)
        deadline = time.monotonic() + _RECORD_S
        while time.monotonic() < deadline:
            for facts in map(read_facts, self._lines()):
                ours = field_of(facts, "host") == parts.hostname and int(facts.get("seq", 0)) not in self._records_used
                request = facts.get("kind") == "request" and (field_of(facts, "method"), field_of(facts, "path")) == (
                    method,
                    parts.path,
                )
                tunnel = facts.get("kind") == "connect" and facts.get("verdict") == "deny"
                if ours and (request or tunnel):
                    self._records_used.add(int(facts["seq"]))
                    return facts
            await asyncio.sleep(_RECORD_POLL_S)
        raise DemoFailed(f"the journal has no record of {method} {url}")

    def _lines(self) -> Iterable[bytes]:
        return read_lines(self._stage.gateway.journal_path)

    def _place(self, rule: str) -> str:
        for plugin in self._stage.gateway.seam.pipeline.plugins:
            rules = getattr(getattr(plugin.plugin, "evaluator", None), "rules", {})
            if rule in rules:
                return f"{Path(rules[rule].source).name}:{rules[rule].line}"
        return ""

    def _agent_saw_key(self) -> bool:
        return self._stage.key.encode() in self._stage.output

    def _upstream_key(self) -> str:
        """Return the key of the last request that reached the upstream; "" if none did."""
        return self._stage.upstream.book[-1].key if self._stage.upstream.book else ""

    # -- the scenes --------------------------------------------------------------------------------------------------

    def _cast(self) -> Scene:
        stage = self._stage
        host, port = stage.gateway.addresses["proxy"]
        labels = ", ".join(f"{key}={value}" for key, value in LABELS.items())
        return Scene(
            "Who plays: all of it on this machine, nothing of it prepared",
            (
                (
                    "upstream",
                    f"https://api.llm.test:{stage.upstream.port}, an LLM API behind TLS, with a CA of its own",
                ),
                ("gateway", f"http://{host}:{port}, default deny, policy demo.yaml, the real key in its environment"),
                ("agent", f"a process of its own, plain Python without libraries, label {labels}"),
            ),
        )

    def _environment(self, report: dict[str, Any]) -> Scene:
        stage = self._stage
        token = stage.environment["HTTPS_PROXY"].partition("://")[2].partition("@")[0].partition(":")[2]
        shown = report["variables"]
        facts = [(name, str(shown[name]).replace(token, "<token>")) for name in SHOWN_VARIABLES]
        everything = "\n".join(f"{name}={value}" for name, value in stage.environment.items())
        return Scene(
            "The agent holds a placeholder, not the key",
            (("process", str(report["pid"])), *facts),
            checks=(
                Check(f"the real key is in none of the agent's {len(stage.environment)} variables",
                      stage.key not in everything and shown[KEY_VARIABLE] == stage.environment[KEY_VARIABLE]),
            ),
        )  # fmt: skip

    def _on_ask(self, attempt: Attempt, report: dict[str, Any], _: dict[str, Attempt]) -> Scene:
        stage = self._stage
        answer = _json(report)
        text = "".join(part.get("text", "") for part in answer.get("content", ()))
        key = self._upstream_key()
        return Scene(
            "It asks the model; the key goes in at the last hop",
            (
                ("agent sent", f"x-api-key: {stage.environment[KEY_VARIABLE]}"),
                ("upstream saw", f"x-api-key: ...{key[-4:]}"),
                ("agent got", f"{text!r}, key_ends_with {answer.get('key_ends_with')!r}"),
            ),
            (attempt,),
            checks=(
                Check("allowed, and answered", attempt.verdict == "allow" and attempt.got == "200" and bool(text)),
                Check(
                    f"the upstream saw the real key (it ends with {stage.key[-4:]})",
                    key == stage.key and answer.get("key_ends_with") == stage.key[-4:],
                ),
                Check("the agent never saw it", not self._agent_saw_key()),
            ),
        )

    def _on_event(self, report: dict[str, Any]) -> Scene:
        first = not self._events
        self._events.append(Event(report["at_s"], report["event"], report["text"]))
        title = f"It streams; the upstream sends a piece every {EVENT_GAP_S * 1000:.0f} ms" if first else ""
        return Scene(title, events=(self._events[-1],))

    def _on_stream(self, attempt: Attempt, *_: Any) -> Scene:
        texts = [event for event in self._events if event.event == "content_block_delta"]
        gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(texts)]
        whole = bool(self._events) and self._events[-1].event == "message_stop"
        return Scene(
            "" if self._events else "It asks for a stream",
            attempts=(attempt,),
            checks=(
                Check("the stream came whole", attempt.got == "200" and whole),
                Check("each piece came by itself, when it was sent", bool(gaps) and min(gaps) > _HELD_UP_S),
            ),
        )

    def _on_leak(self, attempt: Attempt, report: dict[str, Any], _: dict[str, Attempt]) -> Scene:
        told = _json(report).get("you_sent", {}).get("x-api-key", "")
        header = _header(report, "x-debug-key")
        return Scene(
            "An endpoint that tells the caller its own key",
            (
                ("upstream sent", f"the key that it got, ...{self._upstream_key()[-4:]}, in body and header"),
                ("agent got", f'{{"you_sent": {{"x-api-key": "{told}"}}}}'),
                ("", f"x-debug-key: {header}"),
            ),
            (attempt,),
            checks=(
                Check(
                    "redacted in the body and in the header",
                    attempt.got == "200" and "redacted" in told and "redacted" in header,
                ),
                Check(f"the real key is nowhere in the {len(self._stage.output)} bytes that the agent reported so far",
                      not self._agent_saw_key()),
            ),
        )  # fmt: skip

    def _on_admin(self, attempt: Attempt, report: dict[str, Any], _: dict[str, Attempt]) -> Scene:
        advice = _json(report).get("error", {}).get("advice", "")
        return self._denied(
            "It tries what a rule forbids", attempt, "rule_denied", facts=(("agent is told", advice),) if advice else ()
        )

    def _on_model(self, attempt: Attempt, *_: Any) -> Scene:
        return self._denied("It tries another model: the rule looks into the JSON", attempt, "no_rule_matched")

    def _on_exfiltrate(self, attempt: Attempt, *_: Any) -> Scene:
        asked = [name for name in self._stage.names.asked if name.endswith("evil.test")]
        return self._denied(
            "It sends what it found to somebody else",
            attempt,
            "no_rule_matched",
            Check("the name was never looked up: a query would be a leak too", not asked),
        )

    def _on_placeholder(self, *_: Any) -> None:
        """Told together with the next one."""

    def _on_telemetry(self, attempt: Attempt, _: dict[str, Any], held: dict[str, Attempt]) -> Scene:
        first = held["placeholder"]
        return Scene(
            "It shows the placeholder to another host of the provider",
            attempts=(first, attempt),
            checks=(
                Check(
                    "denied with the placeholder, where its credential is not bound",
                    (first.verdict, first.reason) == ("deny", "placeholder_misplaced"),
                ),
                Check(
                    "allowed without it", (attempt.verdict, attempt.rule) == ("allow", "llm-telemetry")
                    and attempt.got == "202"
                ),
            ),
        )  # fmt: skip

    def _on_metadata(self, attempt: Attempt, *_: Any) -> Scene:
        return self._denied("It asks the cloud's metadata service for credentials", attempt, "no_rule_matched")

    def _on_rebinding(self, attempt: Attempt, *_: Any) -> Scene:
        return self._denied(
            "It asks for an allowed name that leads to the metadata service",
            attempt,
            "address_forbidden",
            facts=(("DNS said", "docs.llm.test is 169.254.169.254"),),
        )

    def _denied(
        self, title: str, attempt: Attempt, reason: str, *checks: Check, facts: tuple[tuple[str, str], ...] = ()
    ) -> Scene:
        denied = Check("denied, for the right reason", (attempt.verdict, attempt.reason) == ("deny", reason))
        path = urlsplit(attempt.url).path
        host = urlsplit(attempt.url).netloc
        reached = [seen for seen in self._stage.upstream.book if (seen.host, seen.path) == (host, path)]
        allowed = [a for a in self._attempts if a.url == attempt.url and a.verdict == "allow"]
        nothing = Check("nothing of it reached the upstream", len(reached) == len(allowed))
        return Scene(title, facts, (attempt,), checks=(denied, nothing, *checks))

    def _books(self) -> Scene:
        stage = self._stage
        allowed = [attempt for attempt in self._attempts if attempt.verdict == "allow"]
        book = stage.upstream.book
        names = sorted(set(stage.names.asked))
        carried = [seen for seen in book if seen.key]
        return Scene(
            "What left, by the books of the other side",
            (
                ("upstream", f"{len(book)} requests over {stage.upstream.connections} TLS sessions"),
                ("DNS server", f"{len(stage.names.asked)} queries: {', '.join(names)}"),
            ),
            checks=(
                Check(f"the {len(allowed)} allowed requests reached the upstream, the "
                      f"{len(self._attempts) - len(allowed)} denied ones did not", len(book) == len(allowed)),
                Check("the key went to api.llm.test only", bool(carried) and
                      all(seen.host.startswith("api.llm.test:") for seen in carried)),
                Check("each name was asked for once at most", len(names) == len(stage.names.asked)),
            ),
        )  # fmt: skip

    def _audit(self) -> Scene:
        journal = self._stage.gateway.journal_path
        report = verify_journal(journal)
        records = tuple(line for line in self._lines() if read_facts(line).get("kind") in ("request", "connect"))
        terminal = [facts for facts in map(read_facts, records) if facts.get("kind") == "request" or
                    facts.get("verdict") == "deny"]  # fmt: skip
        tampered, line = _tamper(journal)
        fault = verify_journal(tampered, use_head=False).fault
        found = f"{fault.problem} at line {fault.line}: {fault.message}" if fault is not None else "nothing"
        secret = self._stage.key.encode() in b"".join(self._lines())
        return Scene(
            "The audit trail",
            (
                ("journal", f"{report.lines} records, head {report.head_hash[:16]}..."),
                ("forgery", f"in a copy, line {line} says allow instead of deny"),
                ("verifier", found),
            ),
            records=records,
            checks=(
                Check("the hash chain verifies", report.fault is None and not report.losses),
                Check(f"each of the {len(self._attempts)} attempts has one terminal record",
                      len(terminal) == len(self._attempts)),
                Check("the verifier names the forged line", fault is not None and fault.line == line),
                Check("the key is nowhere in it", not secret),
            ),
        )  # fmt: skip


def _json(report: dict[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(report.get("body") or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _header(report: dict[str, Any], name: str) -> str:
    headers: dict[str, str] = report.get("headers") or {}
    return next((value for key, value in headers.items() if key.lower() == name), "")


def _tamper(journal: Path) -> tuple[Path, int]:
    """Copy the journal and turn its first denial into an allow; return the copy and the line's number."""
    lines = journal.read_bytes().splitlines(keepends=True)
    number = next(index for index, line in enumerate(lines) if b'"verdict":"deny"' in line)
    lines[number] = lines[number].replace(b'"verdict":"deny"', b'"verdict":"allow"')
    copy = journal.with_name("forged.jsonl")
    copy.write_bytes(b"".join(lines))
    return copy, number + 1
