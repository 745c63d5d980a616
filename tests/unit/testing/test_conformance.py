"""The conformance suite: the built-in plugins keep it, and each rule catches a plugin that breaks it."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seamgate import Amendment, Direction, Inspector, Request, Resolution, SeamgateError, Verdict, allow, deny, hookimpl
from seamgate.config import Config
from seamgate.credentials.config import CredentialConfig
from seamgate.headers import Headers
from seamgate.testing import ConformanceError, conformance, make_request
from seamgate_plugins.credentials import CredentialsPlugin
from seamgate_plugins.dns import DnsPlugin
from seamgate_plugins.inspection import InspectionPlugin
from seamgate_plugins.policy import PolicyPlugin
from support.bad_plugins import HIDDEN_BREAKERS, BacktracksOnTicket

_REAL = "sk-real-value-4f1c9e7a5b2d"
_POLICY = """\
seamgate: 1
rules:
  - id: messages
    allow: {hosts: [api.example.com], methods: [POST], paths: [/v1/messages], json: {model: m}}
  - id: no-hooks
    deny: {hosts: ["**"], paths: ["/repos/**"]}
    except: {guests: {team: release}}
  - id: read
    allow: {hosts: ["**.example.com"], methods: read}
    when: '!has(request.query.a)'
"""
BUSY = 20.0
"""A budget that a machine busy with other tests keeps too; the suite's own is an author's to keep."""


@pytest.fixture(params=["policy", "dns", "credentials", "inspection"])
def builtin(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, type, dict[str, Any]]:
    """A built-in plugin as its configuration makes it: (name, class, arguments of `conformance`)."""
    (tmp_path / "policy.yaml").write_text(_POLICY)
    (tmp_path / "key").write_text(_REAL)
    (tmp_path / "key").chmod(0o600)
    raw = {"key": {"source": {"file": str(tmp_path / "key")}, "inject": {"bearer": True}, "hosts": ["api.example.com"]}}
    held = msgspec.convert(raw, dict[str, CredentialConfig])
    placed = make_request("GET https://elsewhere.example/", headers={"x-key": "sgph-key"})
    leaking = make_request("GET https://api.example.com/", headers={"x-key": _REAL})
    found: dict[str, tuple[str, type, dict[str, Any]]] = {
        "policy": ("policy", PolicyPlugin, {"config": Config(policies=(str(tmp_path / "policy.yaml"),))}),
        "dns": ("dns", DnsPlugin, {}),
        "credentials": (
            "credentials",
            CredentialsPlugin,
            {
                "config": Config(credentials=held),
                "capabilities": ["secrets"],
                "secrets": [_REAL],
                "requests": [placed, leaking],
            },
        ),
        "inspection": (
            "inspection",
            InspectionPlugin,
            {
                "options": {"content_types": {"json-only": ["application/json"]}},
                "inspect_names": ["secrets", "jwt", "high-entropy", "json-only"],
            },
        ),
    }
    return found[request.param]


def test_the_built_in_plugins_keep_every_rule(builtin: tuple[str, type, dict[str, Any]]) -> None:
    """What is asked of strangers is kept at home."""
    name, kind, arguments = builtin
    checks = conformance(kind, name=name, budget_s=BUSY, **arguments)
    assert len(checks) == 18
    for check in checks:
        check()


def test_the_built_in_plugins_have_no_slow_pattern(builtin: tuple[str, type, dict[str, Any]]) -> None:
    """In twice the time that a gateway grants, which a pattern that backtracks leaves far behind."""
    name, kind, arguments = builtin
    (check,) = (
        each for each in conformance(kind, name=name, budget_s=0.5, **arguments) if str(each) == "matches_in_time"
    )
    check()


def test_a_check_has_its_rules_name_and_sentence() -> None:
    """So that a runner's report says what was asked."""
    for check in conformance(DnsPlugin):
        assert str(check).isidentifier()
        assert check.rule.endswith(".")


def test_a_module_is_a_plugin_too() -> None:
    """A module with hooks needs no context and has no options to refuse."""
    module = SimpleNamespace()
    module.judge_request = hookimpl(lambda request: None)
    for check in conformance(lambda context: module, name="module"):
        if str(check) != "refuses_unknown_options":
            check()


# -- one plugin for each rule, which breaks it ---------------------------------------------------------------------


class _Plugin:
    """Takes any options, like none of the good ones."""

    def __init__(self, context: Any) -> None:
        self.options = context.options


class Fine(_Plugin):
    """Keeps every rule but that it takes any option."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return deny("posts are not for you") if request.method == "POST" else None


class Async(_Plugin):
    """Judges asynchronously."""

    @hookimpl
    async def judge_request(self, request: Request) -> Verdict | None:
        return None


class Twice(_Plugin):
    """Its metrics are the class's, not the registry's own."""

    made = 0

    def __init__(self, context: Any) -> None:
        type(self).made += 1
        self.number = type(self).made

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        if self.number % 2 == 0:
            raise ValueError("there is one of me already")


class Utf8(_Plugin):
    """Believes that headers are UTF-8."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        for _, value in request.headers:
            value.decode()
        return None


class Bool(_Plugin):
    """Answers with True."""

    @hookimpl
    def judge_request(self, request: Request) -> Any:
        return True


class NoGuest(_Plugin):
    """Believes that every record has a guest."""

    @hookimpl
    def request_done(self, record: Any) -> None:
        assert record.guest.id


class Reads(_Plugin):
    """Reads a file at each request."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        Path(__file__).with_suffix(".txt").exists()
        with Path("/dev/null").open() as file:
            file.read()
        return None


class Sleeps(_Plugin):
    """Sleeps while others wait."""

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        time.sleep(0)
        return None


class Moody(_Plugin):
    """Says something else each time."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return deny("not today") if random.random() < 0.5 else None


class Mutates(_Plugin):
    """Writes into the labels of a guest."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        request.guest.labels["seen"] = "yes"  # type: ignore[index]
        return None


class Slow(_Plugin):
    """Takes 30 ms for each request."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        until = time.perf_counter() + 0.03
        while time.perf_counter() < until:
            pass
        return None


class Silent(_Plugin):
    """Denies without a word."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return deny("")


class Repeats(_Plugin):
    """Says a header's value in its message."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        value = request.header(b"x-forwarded-host") or request.header(b"authorization") or request.header(b"cookie")
        return deny(f"not with {value.decode('latin-1')}") if value else None


class Framing(_Plugin):
    """Sets what is the gateway's own."""

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        return Amendment(set_headers=((b"host", b"elsewhere.example"),))


class Restless(_Plugin):
    """Amends its own amendment."""

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        count = int(request.header(b"x-count") or b"0")
        return Amendment(set_headers=((b"x-count", b"%d" % (count + 1)),))


class Contradicts(_Plugin):
    """Takes off what it asks for."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        return deny("say x-tab") if request.header(b"x-tab") is None else None

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        return Amendment(remove_headers=(b"x-tab",))


class _Passing:
    def head(self, headers: Headers) -> Headers:
        return headers

    def feed(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class _Inspects(_Plugin):
    inspector: type[Any] = _Passing

    @hookimpl
    def open_inspector(self, request: Request, direction: Direction) -> Inspector | None:
        made: Inspector | None = self.inspector() if direction is Direction.RESPONSE else None
        return made


class PerPiece(_Inspects):
    """Replaces within a piece only."""

    class inspector(_Passing):
        """See above."""

        def feed(self, data: bytes) -> bytes:
            return data.replace(b"fox", b"[fox]")


class Holds(_Inspects):
    """Holds the last byte back, also in a pause, and forgets it."""

    class inspector(_Passing):
        """See above."""

        held = b""

        def feed(self, data: bytes) -> bytes:
            data = self.held + data
            self.held = data[-1:]
            return data[:-1]

        def flush(self) -> bytes:
            self.held = b""
            return b""

        def finish(self) -> bytes:
            return self.held


class Shares(_Inspects):
    """Keeps its state in the class."""

    class inspector(_Passing):
        """See above."""

        seen = 0

        def feed(self, data: bytes) -> bytes:
            type(self).seen += len(data)
            return data if type(self).seen % 3 else data + b"!"

        def finish(self) -> bytes:
            type(self).seen = 0
            return b""


class OneHead(_Inspects):
    """Does not expect trailers."""

    class inspector(_Passing):
        """See above."""

        heads = 0

        def head(self, headers: Headers) -> Headers:
            self.heads += 1
            assert self.heads == 1, "a second head"
            return headers


class Leaks(_Plugin):
    """Logs the headers of every request."""

    @hookimpl
    def judge_request(self, request: Request) -> Verdict | None:
        logging.getLogger("leaks").warning("request %s", request.headers)
        return None


class Copies(_Plugin):
    """Copies a placeholder into another header."""

    @hookimpl
    def amend_request(self, request: Request) -> Amendment | None:
        value = request.header(b"x-kit-api-key")
        return None if value is None else Amendment(set_headers=((b"x-copy", value),))


_BREAKERS = [
    (Fine, "refuses_unknown_options", "was accepted"),
    (Async, "is_vouched_for", "must be a plain function"),
    (Twice, "starts_again", "there is one of me already"),
    (Utf8, "withstands_the_field", "a header of Latin-1 bytes, judge_request raised UnicodeDecodeError"),
    (Bool, "withstands_the_field", "answered with a bool"),
    (NoGuest, "withstands_records", "a refusal before anything was known"),
    (Reads, "judges_without_io", "opened the file /dev/null"),
    (Sleeps, "judges_without_io", "it slept"),
    (Moody, "judges_alike", "count in `request_done`"),
    (Mutates, "changes_nothing", "changed the request in place"),
    (Slow, "keeps_its_budget", "the budget is 20 ms"),
    (Silent, "tells_why", "say in one printable sentence"),
    (Repeats, "tells_why", "repeats the value of the header"),
    (Framing, "withstands_the_field", "the field host is the gateway's own"),
    (Restless, "amends_what_it_allows", "has to be final"),
    (Contradicts, "amends_what_it_allows", "denies its own amendment"),
    (PerPiece, "inspects_alike", "pieces"),
    (Holds, "inspects_alike", "with pauses between them"),
    (Shares, "inspects_apart", "beside another exchange"),
    (OneHead, "takes_heads_and_trailers", "a second head"),
    (Leaks, "tells_no_secret", "a log line, or what it printed, holds a placeholder"),
    (Copies, "tells_no_secret", "its amendment holds a placeholder, as it is"),
    *HIDDEN_BREAKERS,
]


@pytest.mark.parametrize(("kind", "rule", "told"), _BREAKERS, ids=[f"{kind.__name__}-{r}" for kind, r, _ in _BREAKERS])
def test_a_rule_catches_who_breaks_it(kind: type, rule: str, told: str) -> None:
    """Each rule fails for a plugin that breaks it, and the message says what to do."""
    (check,) = (each for each in conformance(kind) if str(each) == rule)
    with pytest.raises(ConformanceError) as caught:
        check()
    assert told in str(caught.value)
    assert f"rule: {check.rule}" in str(caught.value)


def test_every_rule_has_its_breaker() -> None:
    """None of them holds for everybody; what the gateway itself keeps (`sees_no_secret`) is tested with it."""
    names = {str(check) for check in conformance(DnsPlugin)}
    assert names - {rule for _, rule, _ in _BREAKERS} == {"sees_no_secret"}


def test_an_authors_own_request_leads_to_the_pattern() -> None:
    """What repeats only after a beginning of its own is reached from a request that has that beginning."""
    (blind,) = (each for each in conformance(BacktracksOnTicket) if str(each) == "matches_in_time")
    blind()
    ticket = make_request("GET https://api.example.com/", headers={"x-ticket": "OPS-12"})
    (check,) = (each for each in conformance(BacktracksOnTicket, requests=[ticket]) if str(each) == "matches_in_time")
    with pytest.raises(ConformanceError, match=r"in the header x-ticket of your request, judge_request took"):
        check()


@pytest.mark.parametrize(("spelling", "how"), [(bytes.decode, "as it is"), (bytes.hex, "encoded")])
def test_an_error_of_a_granted_plugin_is_told_to_others(spelling: Callable[[bytes], str], how: str) -> None:
    """What a plugin that may see values says in an error gets to the guest and on record: it holds none."""

    class Refuses(_Plugin):
        @hookimpl
        def open_inspector(self, response: Any) -> None:
            if response is not None:
                raise SeamgateError(f"odd: {[spelling(value) for _, value in response.headers]}")

    (check,) = (each for each in conformance(Refuses, capabilities=["secrets"]) if str(each) == "tells_no_secret")
    with pytest.raises(ConformanceError, match=f"holds the real value of a credential, {how}"):
        check()


def test_what_a_thread_does_unasked_is_its_own_time() -> None:
    """A plugin that reads a file every now and then, whatever is asked, does no I/O for a request."""

    class Polls:
        def __init__(self, context: Any) -> None:
            if context.options:
                raise SeamgateError("no options")
            self._over = threading.Event()
            threading.Thread(target=self._poll, daemon=True).start()

        def _poll(self) -> None:
            while not self._over.wait(0.002):
                Path("/dev/null").read_bytes()

        @hookimpl
        def judge_request(self, request: Request) -> Verdict | None:
            return None

        def __del__(self) -> None:
            self._over.set()

    (check,) = (each for each in conformance(Polls) if str(each) == "judges_without_io")
    check()


def test_a_granted_plugin_that_tells_what_it_saw_is_caught() -> None:
    """The capability `secrets` is a leave to see, not to tell."""

    class Vault(_Plugin):
        @hookimpl
        def open_inspector(self, response: Any) -> None:
            if response is not None:
                logging.getLogger("vault").error("saw %s", response.headers)

    checks = {str(each): each for each in conformance(Vault, capabilities=["secrets"])}
    checks["sees_no_secret"]()
    with pytest.raises(ConformanceError, match="the real value of a credential"):
        checks["tells_no_secret"]()


def test_what_a_plugin_does_in_its_own_time_is_no_io_of_its_judge() -> None:
    """Resolving and constructing may take I/O; only judging is watched."""

    class Resolver:
        def __init__(self, context: Any) -> None:
            with Path("/dev/null").open() as file:
                file.read()
            if context.options:
                raise SeamgateError("no options")

        @hookimpl
        async def resolve_name(self, name: str) -> Resolution | None:
            await asyncio.sleep(0)
            return None

        @hookimpl
        def judge_connect(self) -> Verdict | None:
            return allow()

    for check in conformance(Resolver):
        check()
