"""PolicyBypass: a plugin without a capability can't turn a request that was judged into another one."""

from __future__ import annotations

import pytest

from seamgate import Amendment, Direction, Request, Response, hookimpl
from seamgate.flow import Headers
from support.lab import ALLOW_ALL, SECRET, WITH_KEY, Lab
from support.line import Line
from support.upstream import HttpUpstream, RawUpstream, echo, ok, says
from support.websocket import accept, open_socket

FORGED = {
    "a second host": (b"host", b"evil.test"),
    "framing": (b"transfer-encoding", b"chunked"),
    "a length": (b"content-length", b"0"),
    "hop-by-hop": (b"connection", b"authorization"),
    "a proxy's": (b"proxy-authorization", b"Basic eA=="),
    "a line break": (b"x", b"1\r\nhost: evil.test"),
    "a name in upper case": (b"Host", b"evil.test"),
    "a name with a line break": (b"x: 1\r\nhost", b"evil.test"),
}


class Amends:
    """Sets a field."""

    def __init__(self, field: tuple[bytes, bytes]) -> None:
        self.field = field

    @hookimpl
    def amend_request(self, request: Request) -> Amendment:
        return Amendment(set_headers=(self.field,))


class Adds:
    """An inspector of one direction that sets a field of the head."""

    def __init__(self, field: tuple[bytes, bytes]) -> None:
        self.field = field

    def head(self, headers: Headers) -> Headers:
        return (*[pair for pair in headers if pair[0] != self.field[0]], self.field)

    def feed(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class Inspects:
    """Opens it."""

    def __init__(self, direction: Direction, field: tuple[bytes, bytes]) -> None:
        self.direction = direction
        self.field = field

    @hookimpl
    def open_inspector(self, request: Request, response: Response | None, direction: Direction) -> Adds | None:
        return Adds(self.field) if direction is self.direction else None


@pytest.mark.parametrize("what", FORGED)
@pytest.mark.parametrize("how", ["amends", "inspects"])
async def test_a_forged_field_of_a_request_is_denied(how: str, what: str) -> None:
    """No plugin may set a field that frames or routes, or one that the upstream would read as several."""
    plugin = Amends(FORGED[what]) if how == "amends" else Inspects(Direction.REQUEST, FORGED[what])
    async with Lab(RawUpstream(says(ok())), rules=[WITH_KEY], plugins=[("p", plugin)]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", body=b"C1")
        assert answer.reason == "plugin_failed"
        client.close()
        await lab.refused("POST /x deny plugin_failed 503 denied")


@pytest.mark.parametrize("what", FORGED)
async def test_a_forged_field_of_a_response_is_denied(what: str) -> None:
    """An inspector can't split the response that the guest reads either."""
    plugin = Inspects(Direction.RESPONSE, FORGED[what])
    async with Lab(HttpUpstream(echo), plugins=[("p", plugin)]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        assert answer.reason == "plugin_failed" and b"evil" not in answer.body
        client.close()
        await lab.audited("GET /x deny plugin_failed 503 denied")


async def test_what_an_inspector_makes_of_a_head_is_judged_again() -> None:
    """A field that a rule denies is denied, whoever put it in; one that no rule looks at goes on."""
    deny = {"id": "no", "deny": {"hosts": ["**.test"]}, "when": 'request.headers["x-role"] == "admin"'}
    for value, expected in ((b"admin", "rule_denied"), (b"user", "")):
        plugin = Inspects(Direction.REQUEST, (b"x-role", value))
        async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, deny], plugins=[("p", plugin)]) as lab:
            client = await lab.tunnel()
            answer = await client.ask("POST", "/x", b"x-role: none", body=b"C1")
            client.close()
            if expected:
                assert answer.reason == expected
                await lab.refused(f"POST /x deny {expected} 403 denied")
            else:
                assert ["x-role", "user"] in answer.json["headers"]
                await lab.audited("POST /x allow allowed 200 complete")


async def test_an_inspector_can_not_choose_another_credential() -> None:
    """A head that another rule would decide is not sent with the credentials of the first."""
    other = {**WITH_KEY, "id": "other", "when": 'request.headers["x-tenant"] == "b"'}
    plugin = Inspects(Direction.REQUEST, (b"x-tenant", b"b"))
    async with Lab(HttpUpstream(echo), rules=[ALLOW_ALL, other], plugins=[("p", plugin)]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("POST", "/x", b"x-tenant: a", body=b"C1")
        assert answer.status >= 400
        client.close()
        await lab.refused(f"POST /x deny {answer.reason} {answer.status} denied")


class Curious:
    """Keeps the head of every response that it is asked about."""

    def __init__(self) -> None:
        self.seen: list[Response] = []

    @hookimpl
    def open_inspector(self, response: Response | None) -> None:
        self.seen += [] if response is None else [response]

    @hookimpl
    def judge_response(self, response: Response) -> None:
        self.seen.append(response)


@pytest.mark.parametrize("rule", [WITH_KEY, ALLOW_ALL], ids=["sent", "bound"])
async def test_no_plugin_is_opened_with_a_head_in_which_a_secret_stands(rule: dict[str, object]) -> None:
    """Also a head, early hints and a cookie are redacted before a plugin without the capability sees them."""
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </" + SECRET.encode() + b">\r\n\r\n"
    curious = Curious()
    upstream = RawUpstream(says(early, ok(b"fine", b"x-echo: " + SECRET.encode(), b"set-cookie: k=" + SECRET.encode())))
    async with Lab(upstream, rules=[rule], plugins=[("curious", curious)]) as lab:
        client = await lab.tunnel()
        answer = await client.ask("GET", "/x")
        assert (answer.status, answer.informational) == (200, [])
        client.close()
        await lab.audited("GET /x allow allowed 200 complete")
    assert {response.status for response in curious.seen} == {200}
    assert all(response.header(b"x-echo") == b"[redacted:key]" for response in curious.seen)
    assert SECRET not in repr(curious.seen)


async def test_no_plugin_is_opened_with_the_secret_of_a_websocket() -> None:
    """The head of the 101, as each message's inspector is opened with it."""

    async def script(line: Line) -> None:
        _, peer = await accept(line, b"x-echo: " + SECRET.encode())
        await peer.say("hello")
        await peer.closed()

    curious = Curious()
    rule = {**WITH_KEY, "upgrade": "websocket"}
    async with Lab(RawUpstream(script), rules=[rule], plugins=[("curious", curious)]) as lab:
        client = await lab.tunnel()
        peer = await open_socket(client, "/ws")
        assert await peer.hear() == "hello"
        await peer.close()
        await lab.audited("GET /ws allow allowed 101 complete")
    assert len(curious.seen) >= 3
    assert SECRET not in repr(curious.seen)
