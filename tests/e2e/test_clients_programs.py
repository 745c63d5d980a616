"""Clients that are programs: curl and node, with the environment that a guest gets."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from support.api import EVENTS, Api
from support.lab import SECRET, WITH_KEY, Lab
from support.programs import run
from support.upstream import HttpUpstream, echo

pytestmark = pytest.mark.clients
SETTINGS = {"entries": {"proxy": {"guest": ""}}}


async def curl(lab: Lab, *arguments: str, stdin: bytes | None = None) -> tuple[int, str]:
    """Run curl; return (exit code, stdout)."""
    code, out, _ = await run("curl", "-sS", "--max-time", "60", *arguments, env=lab.environment(), stdin=stdin)
    return code, out.decode()


async def test_curl_reuses_its_tunnel() -> None:
    """Two URLs of one curl go through one tunnel and one upstream session, and carry the key."""
    async with Lab(HttpUpstream(echo), rules=[WITH_KEY], settings=SETTINGS) as lab:
        code, out = await curl(lab, "-w", "%{num_connects} ", lab.url("/one?x=1"), lab.url("/two"))
        assert code == 0
        assert out.rstrip().endswith("0")
        assert [talk.target for talk in lab.upstream.talks] == ["/one?x=1", "/two"]  # type: ignore[attr-defined]
        assert {talk.header("x-api-key") for talk in lab.upstream.talks} == {SECRET}  # type: ignore[attr-defined]
        assert len(lab.upstream.lines) == 1
        records = await lab.audited("GET /one allow allowed 200 complete", "GET /two allow allowed 200 complete")
        assert [record.upstream and record.upstream.reused for record in records] == [False, True]


async def test_curl_uploads_with_expect() -> None:
    """A large upload with Expect: 100-continue, and one of unknown length in chunks, arrive whole."""
    async with Lab(HttpUpstream(echo), settings=SETTINGS) as lab:
        body = b"0123456789abcdef" * 131072
        expecting = ("-H", "Expect: 100-continue", "--data-binary", "@-")
        code, out = await curl(lab, *expecting, lab.url("/up"), stdin=body)
        assert (code, json.loads(out)["body"]) == (0, body.decode())
        code, out = await curl(lab, "-T", "-", "-X", "PUT", lab.url("/up"), stdin=body)
        assert (code, json.loads(out)["body"]) == (0, body.decode())
        await lab.audited("POST /up allow allowed 200 complete", "PUT /up allow allowed 200 complete")


async def test_curl_head_and_compressed() -> None:
    """HEAD keeps the length that GET would have; a compressed answer is passed on as it is where nobody inspects."""
    async with Lab(HttpUpstream(echo), settings=SETTINGS, credential=False) as lab:
        code, out = await curl(lab, "-I", lab.url("/h"))
        assert code == 0
        assert "content-length: " in out.lower()
        code, out = await curl(lab, "--compressed", lab.url("/g"))
        assert (code, json.loads(out)["target"]) == (0, "/g")
        await lab.audited("HEAD /h allow allowed 200 complete", "GET /g allow allowed 200 complete")


async def test_curl_is_told_why() -> None:
    """Without a token 407; a denied host fails CONNECT; a denied path is a 403 that says why; -f makes it an error."""
    rules: list[dict[str, Any]] = [
        {"id": "r", "allow": {"hosts": ["api.test"], "ports": ["1-65535"], "paths": ["/ok"]}}
    ]
    async with Lab(HttpUpstream(echo), rules=rules, settings=SETTINGS) as lab:
        address = "{}:{}".format(*lab.gateway.addresses["proxy"])
        code, _ = await curl(lab, "-x", f"http://{address}", lab.url("/ok"))
        assert code == 56
        code, _ = await curl(lab, "https://elsewhere.test/ok")
        assert code == 56
        code, out = await curl(lab, lab.url("/no"))
        assert code == 0 and "no_rule_matched" in json.loads(out)["error"]["message"]
        code, _ = await curl(lab, "-f", lab.url("/no"))
        assert code == 22
        await lab.refused(
            "CONNECT - deny unauthenticated 407 denied",
            "CONNECT elsewhere.test:443 deny no_rule_matched 403 denied",
            "GET /no deny no_rule_matched 403 denied",
            "GET /no deny no_rule_matched 403 denied",
        )


async def test_curl_refuses_us_without_the_ca() -> None:
    """A client that does not trust the gateway's CA fails, and the audit says what to do about it."""
    async with Lab(HttpUpstream(echo), settings=SETTINGS) as lab:
        environment = {**lab.environment(), "CURL_CA_BUNDLE": str(lab.folder / "upstream-ca.pem")}
        code, _, err = await run("curl", "-sS", lab.url("/x"), env=environment)
        assert code == 60, err
        records = await lab.refused(f"CONNECT {lab.authority()} deny guest_tls_failed 200 denied")
        assert "ca env" in records[0].message


NODE = """
const base = process.env.BASE, out = {events: []};
const main = async () => {
  out.json = await (await fetch(base + "/json")).json();
  out.upload = await (await fetch(base + "/upload", {method: "POST", body: "x".repeat(100000)})).json();
  const response = await fetch(base + "/events");
  const decoder = new TextDecoder();
  for await (const piece of response.body) {
    for (const line of decoder.decode(piece, {stream: true}).split("\\n")) {
      if (!line) continue;
      out.events.push(line);
      await fetch(base + "/ack/" + (out.events.length - 1));
    }
  }
  const denied = await fetch(base + "/denied");
  out.denied = [denied.status, (await denied.json()).error.message];
  console.log(JSON.stringify(out));
};
main().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_node_fetch_by_base_url() -> None:
    """node's fetch by base URL: JSON, upload, events one by one, a readable denial."""
    rules = [{**WITH_KEY, "allow": {**WITH_KEY["allow"], "paths": ["/json", "/upload", "/events", "/ack/*"]}}]
    async with Lab(HttpUpstream(Api()), rules=rules) as lab:
        environment = {"PATH": lab.environment()["PATH"], "BASE": lab.base_url}
        code, out, err = await run("node", "-e", NODE, env=environment)
        assert code == 0, err.decode()
        said = json.loads(out)
        assert said["json"] == {"ok": True, "has_key": True}
        assert said["events"] == [f"data: {number} [redacted:key]" for number in range(EVENTS)]
        assert said["denied"][0] == 403
        await lab.audited(
            "GET /json allow allowed 200 complete",
            "POST /upload allow allowed 201 complete",
            *(f"GET /ack/{number} allow allowed 204 complete" for number in range(EVENTS)),
            "GET /events allow allowed 200 complete",
            "GET /denied deny no_rule_matched 403 denied",
        )
