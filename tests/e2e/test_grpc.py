"""grpcio's own client and server through interception: every kind of call, statuses, trailers, policy by method."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import support.grpc_client
from support.grpc_upstream import GrpcUpstream
from support.http2 import claimed
from support.lab import ALLOW_ALL, SECRET, Lab

PROGRAM = Path(support.grpc_client.__file__)
pytestmark = pytest.mark.clients


async def begin(lab: Lab, *calls: str) -> asyncio.subprocess.Process:
    """Start the client program under the gateway."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        lab.authority(),
        *calls,
        env={**lab.environment(), "GRPC_VERBOSITY": "NONE"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def call(lab: Lab, *calls: str) -> list[Any]:
    """Make these calls over one channel; return what each came to."""
    process = await begin(lab, *calls)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


def rule(path: str, **more: Any) -> dict[str, Any]:
    """Allow a method of a service."""
    allow = {**ALLOW_ALL["allow"], "methods": ["POST"], "paths": [path]}
    return {"id": "grpc", "allow": allow, **more}


async def test_every_kind_of_call() -> None:
    """Unary, server, client and bidirectional streaming; metadata early and late, binary too."""
    async with Lab(GrpcUpstream()) as lab:
        upstream: Any = lab.upstream
        results = await call(lab, "Unary", "server_stream", "client_stream", "bidi")
        assert results[0]["answer"] == "cba"
        assert results[0]["trailers"] == {"x-late": "'1'", "x-bin-bin": repr(b"\x00\xff")}
        assert results[1]["answer"] == [f"item {number}" for number in range(100)]
        assert results[2]["answer"] == "+".join(map(str, range(100)))
        assert results[3] == {"answer": [f"M{number}" for number in range(20)], "early": "1"}
        assert upstream.metadata[0]["x-one"] == "1" and upstream.metadata[0]["x-raw-bin"] == b"\x00\x01"
        names = ("Unary", "ServerStream", "ClientStream", "Bidi")
        await lab.audited(*[f"POST /test.Echo/{name} allow allowed 200 complete" for name in names])


async def test_a_thousand_calls_at_once_and_a_large_message() -> None:
    """More than the streams of any connection; longer than any window."""
    async with Lab(GrpcUpstream()) as lab:
        results = await call(lab, "many", "large")
        assert [result["answer"] for result in results] == [1000, 3 << 20]
        records = await claimed(lab, 1001)
        assert {record.status for record in records} == {200}


async def test_messages_that_grpcio_compresses_are_searched_and_pass() -> None:
    """They are looked into for values of credentials one by one; none waits for the next, and a value ends the call."""
    async with Lab(GrpcUpstream()) as lab:
        assert await call(lab, "gzipped") == [{"answer": [15000, *[500] * 5]}]
        process = await begin(lab, "leak")
        out, err = await process.communicate(SECRET.encode() + b"\n")
        assert process.returncode == 0, err.decode()
        result = json.loads(out)
        assert result["code"] == "PERMISSION_DENIED" and "secret_leaving" in result["details"]
        upstream: Any = lab.upstream
        assert len(upstream.metadata) == 2, "a call whose message was not whole was answered"
        *passed, leaked = await claimed(lab, 3)
        assert [record.reason.value for record in passed if record.reason is not None] == ["allowed"] * 2
        assert leaked.reason is not None and leaked.reason.value == "secret_leaving"


async def test_the_upstreams_status_is_the_guests() -> None:
    """Code, message and trailers, also where they are all of the response (Trailers-Only)."""
    async with Lab(GrpcUpstream()) as lab:
        fail, unknown = await call(lab, "Fail", "/test.Echo/Nothing")
        assert fail == {
            "code": "FAILED_PRECONDITION",
            "details": "not ready: é %",
            "trailers": {"x-why": "because"},
        }
        assert unknown["code"] == "UNIMPLEMENTED"
        await lab.audited(
            "POST /test.Echo/Fail allow allowed 200 complete", "POST /test.Echo/Nothing allow allowed 200 complete"
        )


async def test_policy_is_by_service_and_method_and_denials_are_statuses() -> None:
    """PERMISSION_DENIED, with reason, rule and request id; the channel goes on; nothing reached the server."""
    async with Lab(GrpcUpstream(), rules=[rule("/test.Echo/Unary")]) as lab:
        upstream: Any = lab.upstream
        denied, streamed, allowed = await call(lab, "/test.Echo/Fail", "bidi", "Unary")
        assert denied["code"] == "PERMISSION_DENIED" and "[no_rule_matched]" in denied["details"]
        assert denied["trailers"]["x-seamgate-reason"] == "no_rule_matched"
        assert streamed["code"] == "PERMISSION_DENIED"
        assert allowed["answer"] == "cba" and len(upstream.metadata) == 1
        records = await lab.audited(
            "POST /test.Echo/Fail deny no_rule_matched 403 denied",
            "POST /test.Echo/Bidi deny no_rule_matched 403 denied",
            "POST /test.Echo/Unary allow allowed 200 complete",
        )
        assert denied["trailers"]["x-request-id"] == records[0].id


async def test_a_limit_is_resource_exhausted() -> None:
    """So that clients back off instead of giving up."""
    limited = rule("/test.Echo/*", limits={"requests": "1/min"})
    async with Lab(GrpcUpstream(), rules=[limited]) as lab:
        first, second = await call(lab, "Unary", "Unary")
        assert first["answer"] == "cba" and second["code"] == "RESOURCE_EXHAUSTED"
        await claimed(lab, 2)


async def test_an_upstream_that_is_gone_is_unavailable() -> None:
    """As if it had not been there without a gateway."""
    async with Lab(GrpcUpstream()) as lab:
        lab.gateway.seam.permit = type(lab.gateway.seam.permit)()
        (result,) = await call(lab, "Unary")
        assert result["code"] == "PERMISSION_DENIED" and "[address_forbidden]" in result["details"]
        await claimed(lab, 1)
    async with Lab(GrpcUpstream(), settings={"dns": {"addresses": None}}) as lab:
        (result,) = await call(lab, "Unary")
        assert result["code"] == "UNAVAILABLE" and "[resolve_failed]" in result["details"]
        await claimed(lab, 1)


async def test_a_credential_is_metadata_that_the_guest_never_holds() -> None:
    """Injected into each call."""
    async with Lab(GrpcUpstream(), rules=[rule("/test.Echo/*", credential="key")]) as lab:
        upstream: Any = lab.upstream
        (result,) = await call(lab, "Unary")
        assert result["answer"] == "cba"
        assert upstream.metadata[0]["x-api-key"] == SECRET
        await lab.audited("POST /test.Echo/Unary allow allowed 200 complete")


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    """RST_STREAM goes through, and the record says who left."""
    async with Lab(GrpcUpstream()) as lab:
        upstream: Any = lab.upstream
        process = await begin(lab, "cancel", "Unary")
        await lab.until(lambda: bool(upstream.metadata))
        out, _ = await process.communicate(b"\n")
        cancelled, unary = [json.loads(line) for line in out.splitlines()]
        assert cancelled == {"cancelled": True} and unary["answer"] == "cba"
        assert await asyncio.to_thread(upstream.cancelled.wait, 40)
        await lab.audited(
            "POST /test.Echo/Wait allow guest_gone 0 aborted", "POST /test.Echo/Unary allow allowed 200 complete"
        )


async def test_a_deadline_holds_through_the_gateway() -> None:
    """grpc-timeout goes along, and the client's own deadline ends the call."""
    async with Lab(GrpcUpstream()) as lab:
        upstream: Any = lab.upstream
        (result,) = await call(lab, "Deadline")
        assert result["code"] == "DEADLINE_EXCEEDED"
        assert await asyncio.to_thread(upstream.cancelled.wait, 40)
        (record,) = await claimed(lab, 1)
        assert record.request is not None and record.request.path == "/test.Echo/Wait"


def documented_rules(lab_port_range: str = "1-65535") -> list[dict[str, Any]]:
    """Return the rules that docs/protocols.md shows, for the test's host and any port."""
    page = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text()
    text = page.partition("## gRPC")[2].partition("```yaml\n")[2].partition("```")[0]
    rules: list[dict[str, Any]] = yaml.safe_load(text)["rules"]
    for each in rules:
        pattern = each.get("allow") or each["deny"]
        assert pattern["hosts"] == ["api.acme.example"]
        pattern.update(hosts=["api.test"], ports=[lab_port_range])
    return rules


async def test_the_documented_policy_does_what_it_says() -> None:
    """Reading methods reach the server (which does not know them); others, and deletes, are denied."""
    async with Lab(GrpcUpstream(), rules=documented_rules()) as lab:
        service = "/acme.store.v1.Catalog"
        paths = [f"{service}/GetItem", f"{service}/ListItems", "/grpc.health.v1.Health/Check"]
        denied = [f"{service}/PutItem", f"{service}/DeleteItem", "/other.Service/Get"]
        results = await call(lab, *paths, *denied)
        codes = [result["code"] for result in results]
        assert codes == ["UNIMPLEMENTED"] * 3 + ["PERMISSION_DENIED"] * 3
        assert "[rule_denied]" in results[4]["details"]
        await claimed(lab, 6)
