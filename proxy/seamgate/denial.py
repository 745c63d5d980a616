"""What a guest is told when it is refused: a stable code, the rule, what was missing, whom it concerns.

Called by the guest's side of each protocol. The body has the shape that LLM SDKs look for (`error.message`), so that
an agent sees the reason in its exception. Never repeats a header, a body or a query of the request.
"""

from __future__ import annotations

from typing import Final

import msgspec

from seamgate.errors import Blame, Reason
from seamgate.flow import Headers
from seamgate.verdict import Verdict

# RFC 9209 2.3: the registered error types that say it best.
_PROXY_ERRORS: Final = {
    Reason.RESOLVE_FAILED: "dns_error",
    Reason.ADDRESS_FORBIDDEN: "destination_ip_prohibited",
    Reason.OWN_ADDRESS: "destination_ip_prohibited",
    Reason.CONNECT_FAILED: "connection_refused",
    Reason.UPSTREAM_TLS_FAILED: "tls_certificate_error",
    Reason.UPSTREAM_TIMEOUT: "connection_read_timeout",
    Reason.UPSTREAM_PROTOCOL: "http_protocol_error",
    Reason.UPSTREAM_CLOSED: "http_response_incomplete",
    Reason.UPSTREAM_BUSY: "connection_limit_reached",
    Reason.RESPONSE_UNDECODABLE: "http_response_content_coding",
    Reason.INTERNAL_ERROR: "proxy_internal_error",
    Reason.BAD_REQUEST: "http_request_error",
}
_ADVICE: Final = {
    Blame.GUEST: "This is a decision of the policy, not a fault of the network: retrying or going around the proxy "
    "will not help. Ask the owner of the policy, with the request id.",
    Blame.UPSTREAM: "The request was allowed; the other side failed. Retrying later may help.",
    Blame.OPERATOR: "The gateway's operator has to act; give them the request id.",
    Blame.PLUGIN: "A plugin of the gateway failed and the request was denied; tell its operator the request id.",
    Blame.GATEWAY: "This is a fault of the gateway; tell its operator the request id.",
}


# Where blame alone would advise wrongly: what is malformed is no decision of the policy, and a limit passes.
_ADVICE_OF_REASON: Final = {
    Reason.RATE_LIMITED: "The limit of the rule is used up: wait as long as Retry-After says, then go on more slowly.",
    Reason.PLUGIN_TIME_SPENT: "Requests like these take the gateway too long to look into: wait as long as Retry-After "
    "says, then send simpler or fewer ones.",
    Reason.UNAUTHENTICATED: "The gateway does not know who asks: give the client the token of its guest.",
    Reason.UNEVALUABLE: "The policy looks into the request and could not: send what its condition reads, in a form "
    "that it can read.",
    **dict.fromkeys(
        (
            Reason.BAD_REQUEST, Reason.BAD_TARGET, Reason.BAD_PATH, Reason.TARGET_MISMATCH, Reason.HEADERS_TOO_LARGE,
            Reason.VERSION_REFUSED, Reason.EXPECTATION_FAILED, Reason.METHOD_REFUSED, Reason.BODY_UNDECODABLE,
            Reason.GUEST_TLS_FAILED, Reason.GUEST_TIMEOUT,
        ),
        "The request itself is the problem, whatever the policy says: the message tells what to change in it.",
    ),
}  # fmt: skip


def denial_body(verdict: Verdict, request_id: str) -> bytes:
    """Return the JSON body of a denial."""
    reason = verdict.reason
    error = {
        "type": "seamgate_denied",
        "code": reason.value,
        "message": f"seamgate: {verdict.message or reason.text} [{reason.value}]",
        "rule": verdict.rule or None,
        "blame": reason.blame.value,
        "advice": denial_advice(reason),
        "request_id": request_id,
    }
    return msgspec.json.encode({"type": "error", "error": error})


def denial_answer(verdict: Verdict, request_id: str, asked: Headers = ()) -> tuple[Headers, bytes]:
    """Return headers and body of a denial, in the form that who asked shows to its user.

    Args:
        verdict: the denial.
        request_id: as in the audit log.
        asked: headers of the request. git shows what a server says only if it is plain text.
    """
    body, headers = denial_body(verdict, request_id), denial_headers(verdict)
    if any(name == b"user-agent" and value.startswith(b"git/") for name, value in asked):
        error = msgspec.json.decode(body)["error"]
        body = f"{error['message']}\n{error['advice']}\nrequest id: {request_id}\n".encode()
        headers = tuple([_PLAIN if name == b"content-type" else (name, value) for name, value in headers])
    return (*headers, (b"x-request-id", request_id.encode())), body


_PLAIN: Final = (b"content-type", b"text/plain; charset=utf-8")


def denial_remark(verdict: Verdict) -> bytes:
    """Return what is added to the reason phrase: pip, npm and most clients of a refused CONNECT print nothing else."""
    return b"seamgate: " + verdict.reason.value.encode("ascii")


def denial_advice(reason: Reason) -> str:
    """Return what a guest is told to do: by the reason, else by who can mend it."""
    return _ADVICE_OF_REASON.get(reason) or _ADVICE[reason.blame]


def denial_headers(verdict: Verdict) -> Headers:
    """Return the headers of a denial: what it is, and why, for people and for machines (RFC 9209)."""
    reason = verdict.reason
    kind = _PROXY_ERRORS.get(reason, "http_request_denied")
    rule = f"; seamgate-rule={verdict.rule}" if _is_token(verdict.rule) else ""
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"proxy-status", f"seamgate; error={kind}; details={reason.value}{rule}".encode("ascii")),
        (b"x-seamgate-reason", reason.value.encode("ascii")),
        (b"cache-control", b"no-store"),
        # What was refused is refused again: the SDKs of LLM providers honour this and don't retry.
        (b"x-should-retry", b"false" if reason.blame is Blame.GUEST and not _passes(reason) else b"true"),
    ]
    if verdict.rule and _is_token(verdict.rule):
        headers.append((b"x-seamgate-rule", verdict.rule.encode("ascii")))
    if reason.status == 407:
        headers.append((b"proxy-authenticate", b'Basic realm="seamgate"'))
    if _passes(reason):
        headers.append((b"retry-after", b"%d" % (verdict.retry_after_s or 1)))
    return tuple(headers)


def _passes(reason: Reason) -> bool:
    """Whether waiting helps."""
    return reason.status in (429, 503)


def _is_token(text: str) -> bool:
    return bool(text) and text.isascii() and all(char.isalnum() or char in "-_.:/" for char in text)
