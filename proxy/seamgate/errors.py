"""The one tree of exceptions, and the closed set of reason codes.

Every refusal that a guest, an operator or the audit log ever sees carries one of the `Reason` codes below; the
codes are stable and never change meaning. A denial is a value (`seamgate.verdict.Verdict`), never an exception:
exceptions say that something could not be done (a name that does not resolve, a file that can't be read), and the
exchange turns them into a denial with the reason that they carry.

Imports nothing of ours. No message ever holds a secret; each says what to do next where there is something to do.
"""

from __future__ import annotations

from enum import StrEnum


class Blame(StrEnum):
    """Who has to change something for the same request to succeed."""

    GUEST = "guest"
    UPSTREAM = "upstream"
    OPERATOR = "operator"
    PLUGIN = "plugin"
    GATEWAY = "gateway"


class Reason(StrEnum):
    """Why a request ended as it did: stable, closed, documented, each with a test.

    `status` is the HTTP status that an HTTP guest gets, `blame` says who can mend it, `text` explains it in one
    sentence. docs/reasons.md is generated from here.
    """

    status: int
    blame: Blame
    text: str

    def __new__(cls, code: str, status: int, blame: Blame, text: str) -> Reason:
        """Build a member that is its code, with the three facts attached."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.status = status
        member.blame = blame
        member.text = text
        return member

    # The one that is not a refusal.
    ALLOWED = "allowed", 200, Blame.GUEST, "A rule allows the request and nothing denies it."

    # What the policy said.
    NO_RULE_MATCHED = "no_rule_matched", 403, Blame.GUEST, "No allow rule covers the request; the default is to deny."
    RULE_DENIED = "rule_denied", 403, Blame.GUEST, "A deny rule covers the request."
    UNEVALUABLE = "unevaluable", 403, Blame.GUEST, "A condition of a rule can't be evaluated for this request."
    RATE_LIMITED = "rate_limited", 429, Blame.GUEST, "The request exceeds a limit of the rule that allows it."
    RESPONSE_DENIED = "response_denied", 502, Blame.UPSTREAM, "A plugin denied the response."

    # What was asked for is malformed, ambiguous or never allowed.
    BAD_REQUEST = "bad_request", 400, Blame.GUEST, "The request is not well-formed HTTP, or ambiguous."
    BAD_TARGET = "bad_target", 400, Blame.GUEST, "The host or port is not a canonical name, address or number."
    BAD_PATH = "bad_path", 400, Blame.GUEST, "The path has dot segments, ambiguous escapes or characters, or is long."
    TARGET_MISMATCH = "target_mismatch", 421, Blame.GUEST, "CONNECT, SNI, Host and absolute URI do not all agree."
    ADDRESS_FORBIDDEN = "address_forbidden", 403, Blame.GUEST, "The name leads to a private or special address."
    OWN_ADDRESS = "own_address", 403, Blame.GUEST, "The target is the gateway itself."
    UPGRADE_REFUSED = "upgrade_refused", 501, Blame.GUEST, "The protocol upgrade is not supported or not allowed."
    METHOD_REFUSED = "method_refused", 501, Blame.GUEST, "The method is not one that the gateway forwards."
    VERSION_REFUSED = "version_refused", 505, Blame.GUEST, "The HTTP version is not supported."
    EXPECTATION_FAILED = "expectation_failed", 417, Blame.GUEST, "The Expect header asks for something unknown."
    HEADERS_TOO_LARGE = "headers_too_large", 431, Blame.GUEST, "The request head exceeds a limit."
    BODY_TOO_LARGE = "body_too_large", 413, Blame.GUEST, "The request body exceeds a limit."
    BODY_UNDECODABLE = "body_undecodable", 415, Blame.GUEST, "The request body can't be decoded to be judged."

    # Who asks.
    UNAUTHENTICATED = "unauthenticated", 407, Blame.GUEST, "The guest sent no token, or one that is not known."
    GUEST_TLS_FAILED = "guest_tls_failed", 400, Blame.GUEST, "The TLS handshake with the guest failed."
    GUEST_TIMEOUT = "guest_timeout", 408, Blame.GUEST, "The guest did not send its request in time."
    GUEST_GONE = "guest_gone", 499, Blame.GUEST, "The guest closed before the exchange was over."

    # Credentials.
    CREDENTIAL_UNAVAILABLE = (
        "credential_unavailable", 503, Blame.OPERATOR, "The credential's source gave no value.",
    )  # fmt: skip
    CREDENTIAL_UNBOUND = "credential_unbound", 403, Blame.GUEST, "The credential is not bound to this request."
    CREDENTIAL_OVER_PLAINTEXT = (
        "credential_over_plaintext", 403, Blame.GUEST, "A credential never goes over plain http unless configured.",
    )  # fmt: skip
    PLACEHOLDER_MISPLACED = (
        "placeholder_misplaced", 403, Blame.GUEST, "A placeholder stands where its credential is not bound.",
    )  # fmt: skip
    SECRET_LEAVING = "secret_leaving", 403, Blame.GUEST, "The request holds the real value of a credential."
    SECRET_PROBED = "secret_probed", 403, Blame.GUEST, "The guest guessed at values of credentials: it gets no more."

    # Upstream.
    RESOLVE_FAILED = "resolve_failed", 502, Blame.UPSTREAM, "The name could not be resolved."
    CONNECT_FAILED = "connect_failed", 502, Blame.UPSTREAM, "No connection to the validated addresses could be made."
    UPSTREAM_TLS_FAILED = "upstream_tls_failed", 502, Blame.UPSTREAM, "The upstream's certificate or TLS failed."
    UPSTREAM_TIMEOUT = "upstream_timeout", 504, Blame.UPSTREAM, "The upstream did not answer in time."
    UPSTREAM_PROTOCOL = "upstream_protocol", 502, Blame.UPSTREAM, "The upstream's answer is not well-formed HTTP."
    UPSTREAM_CLOSED = "upstream_closed", 502, Blame.UPSTREAM, "The upstream closed before its answer was complete."
    UPSTREAM_BUSY = "upstream_busy", 503, Blame.OPERATOR, "Every session to this origin is in use."
    RESPONSE_UNDECODABLE = (
        "response_undecodable", 502, Blame.UPSTREAM, "The response can't be decoded to be inspected.",
    )  # fmt: skip

    # The gateway itself.
    PLUGIN_FAILED = "plugin_failed", 503, Blame.PLUGIN, "A plugin raised an error, so the request is denied."
    PLUGIN_OVERRUN = "plugin_overrun", 503, Blame.PLUGIN, "A plugin took longer than its budget."
    PLUGIN_TIME_SPENT = (
        "plugin_time_spent", 429, Blame.GUEST, "The guest's requests kept plugins busy for longer than its share.",
    )  # fmt: skip
    AUDIT_UNAVAILABLE = "audit_unavailable", 503, Blame.OPERATOR, "The audit log can't be written."
    OVERLOADED = "overloaded", 503, Blame.OPERATOR, "The gateway is at a limit of connections or memory."
    REVOKED = "revoked", 403, Blame.OPERATOR, "A newly loaded policy no longer allows what was under way."
    SHUTTING_DOWN = "shutting_down", 503, Blame.OPERATOR, "The gateway is stopping and takes no new request."
    WORKER_LOST = "worker_lost", 502, Blame.GATEWAY, "The process that carried the request is gone."
    INTERNAL_ERROR = "internal_error", 500, Blame.GATEWAY, "A fault of the gateway; the request is denied."


class SeamgateError(Exception):
    """Base of all errors of Seamgate.

    Attributes:
        reason: the code that a denial made of this error carries.
        message: a sentence for people, without secrets, that says what to do next where something can be done.
    """

    default_reason = Reason.INTERNAL_ERROR

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason if reason is not None else self.default_reason


class ConfigError(SeamgateError):
    """A configuration or policy file can't be used (exit code 2).

    Attributes:
        source: the file's name as the user gave it, or "" where there is no file.
        line: 1-based line, 0 where it is not known.
        column: 1-based column, 0 where it is not known.
    """

    def __init__(self, message: str, *, source: str = "", line: int = 0, column: int = 0) -> None:
        place = f"{source}:{line}:{column}: " if line else f"{source}: " if source else ""
        super().__init__(place + message)
        self.bare_message = message
        self.source = source
        self.line = line
        self.column = column


class PrerequisiteMissing(SeamgateError):
    """Something that this command needs is not there (exit code 3)."""


class PluginError(SeamgateError):
    """A plugin can't be used."""

    default_reason = Reason.PLUGIN_FAILED


class PluginRejected(PluginError):
    """A plugin was refused at start: unknown, misspelt hook, wrapper or async judge (exit code 2)."""


class ProtocolError(SeamgateError):
    """A peer broke its protocol."""


class GuestProtocolError(ProtocolError):
    """The guest sent something malformed, ambiguous or too large. `reason.status` is what it is told."""

    default_reason = Reason.BAD_REQUEST


class UpstreamProtocolError(ProtocolError):
    """The upstream sent something malformed, ambiguous or too large."""

    default_reason = Reason.UPSTREAM_PROTOCOL


class TargetError(GuestProtocolError):
    """A host, port, authority or path that is not canonical and can't be made so without guessing."""

    default_reason = Reason.BAD_TARGET


class UpstreamError(SeamgateError):
    """The upstream could not be reached or did not answer."""

    default_reason = Reason.CONNECT_FAILED


class ResolveFailed(UpstreamError):
    """The name has no usable address.

    Attributes:
        exists: whether the name is there all the same; False: there is no such name; None: nobody could tell.
    """

    default_reason = Reason.RESOLVE_FAILED

    def __init__(self, message: str, *, reason: Reason | None = None, exists: bool | None = None) -> None:
        super().__init__(message, reason=reason)
        self.exists = exists


class AddressForbidden(UpstreamError):
    """The name leads to an address that nothing may be sent to."""

    default_reason = Reason.ADDRESS_FORBIDDEN


class ConnectFailed(UpstreamError):
    """TCP to every validated address failed."""


class TlsFailed(UpstreamError):
    """The TLS handshake or the verification of the upstream failed."""

    default_reason = Reason.UPSTREAM_TLS_FAILED


class NotProcessed(UpstreamError):
    """The upstream says that it did not look at the request (RFC 9113 8.7): it may be sent again, whatever it asks."""

    default_reason = Reason.UPSTREAM_CLOSED


class UpstreamTimeout(UpstreamError):
    """The upstream took longer than a limit."""

    default_reason = Reason.UPSTREAM_TIMEOUT


class CredentialError(SeamgateError):
    """A credential can't be supplied. Never holds the value."""

    default_reason = Reason.CREDENTIAL_UNAVAILABLE


class AuditError(SeamgateError):
    """The audit log can't be written, read or verified."""

    default_reason = Reason.AUDIT_UNAVAILABLE
