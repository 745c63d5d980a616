"""TLS towards upstreams: which roots, which client certificate, and what went wrong. Opens no connection.

Called by the connector, which asks `UpstreamTls` for the profile of a target (part of the pool key) and for the
profile's context. Contexts are built once per profile, because loading the trust store takes some 30 ms. Every
context verifies the chain and the name; nothing here can turn that off.
"""

from __future__ import annotations

import hashlib
import ssl
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from seamgate.errors import ConfigError, TargetError, TlsFailed
from seamgate.flow import Target
from seamgate.places import anchored
from seamgate.upstream.origins import OriginPatterns

log = structlog.get_logger("seamgate.upstream.tls")

_MINIMUM = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class ClientCertificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway shows to an upstream that asks who it is (mTLS).

    Attributes:
        certificate: PEM file with the certificate, then its chain.
        key: PEM file with the key, without passphrase; "": in the certificate's file.
    """

    certificate: str
    key: str = ""


class OriginTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS settings of some origins. The first entry that fits a target holds.

    Attributes:
        hosts: exact names or addresses, or `*.domain` for one label or more below it (what a policy
            writes as `**.domain`).
        ports: which ports; empty: all.
        ca: PEM file with extra roots; "": none.
        roots: "also": `ca` besides the trust store; "only": `ca` alone.
        client_certificate: for mTLS.
        minimum_version: the lowest TLS version.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...] = ()
    ca: str = ""
    roots: Literal["also", "only"] = "also"
    client_certificate: ClientCertificate | None = None
    minimum_version: Literal["1.2", "1.3"] = "1.2"


class UpstreamTlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `upstream_tls` of seamgate.yaml.

    Attributes:
        trust_store: "system": OpenSSL's default places, SSL_CERT_FILE and SSL_CERT_DIR included; else a PEM file.
        minimum_version: the lowest TLS version.
        origins: settings for some origins.
    """

    trust_store: str = "system"
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    origins: tuple[OriginTls, ...] = ()


class TlsProfile(msgspec.Struct, frozen=True, cache_hash=True):
    """Everything about TLS that two sessions must share to be interchangeable. Part of the pool key.

    Attributes:
        trust_store: "system", a file name, or "" for none.
        ca: file name of extra roots, or "".
        certificate, key: file names of the client certificate, or "".
        minimum_version: "1.2" or "1.3".
        alpn: protocols offered, in order of preference.
        material: digest of the files' contents as they were when the configuration was loaded.
    """

    trust_store: str = "system"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    alpn: tuple[str, ...] = ()
    material: str = ""


class UpstreamTls:
    """The profiles and contexts of one loaded configuration.

    Attributes:
        default_profile: of every origin without settings of its own.
    """

    def __init__(
        self, config: UpstreamTlsConfig | None = None, *, base: Path = Path(), alpn: tuple[str, ...] = ("http/1.1",)
    ) -> None:
        """Read and check every file that the configuration names.

        Args:
            config: the section `upstream_tls`.
            base: folder that relative file names start from: that of the configuration file.
            alpn: protocols to offer.

        Raises:
            ConfigError: a file can't be read or used, or a host is none.
        """
        config = config if config is not None else UpstreamTlsConfig()
        store = config.trust_store if config.trust_store == "system" else _file(base, config.trust_store)
        self.default_profile = _profile(TlsProfile(store, minimum_version=config.minimum_version, alpn=alpn))
        self._origins = [(_patterns(entry), self._origin_profile(entry, base)) for entry in config.origins]
        self._contexts: dict[TlsProfile, ssl.SSLContext] = {}
        self.profile_for = lru_cache(maxsize=16384)(self._find)
        for _, profile in self._origins:
            self._contexts[profile] = build_context(profile)
        # Now, not at the first request, which would wait for the trust store to be loaded.
        try:
            self.context(self.default_profile)
        except TlsFailed as exc:
            # Plain http, and origins with roots of their own, work all the same.
            log.warning("no upstream can be verified", problem=exc.message)

    def _origin_profile(self, entry: OriginTls, base: Path) -> TlsProfile:
        if entry.roots == "only" and not entry.ca:
            raise ConfigError(f"upstream_tls: {entry.hosts[0]}: `roots: only` needs `ca`, the file with those roots")
        own = entry.client_certificate
        certificate = _file(base, own.certificate) if own is not None else ""
        return _profile(
            TlsProfile(
                trust_store="" if entry.roots == "only" else self.default_profile.trust_store,
                ca=_file(base, entry.ca) if entry.ca else "",
                certificate=certificate,
                key=(_file(base, own.key) if own.key else certificate) if own is not None else "",
                minimum_version=max(entry.minimum_version, self.default_profile.minimum_version),
                alpn=self.default_profile.alpn,
            )
        )

    def _find(self, target: Target) -> TlsProfile:
        """Return the profile of a target; `profile_for` is this, remembered."""
        for origin, profile in self._origins:
            if origin.fits(target):
                return profile
        return self.default_profile

    def context(self, profile: TlsProfile) -> ssl.SSLContext:
        """Return the context of a profile. Give it the target's host as server name: it is verified against that.

        Raises:
            TlsFailed: there are no roots to verify with, or the profile's files can't be used any more.
        """
        context = self._contexts.get(profile)
        if context is None:
            try:
                context = self._contexts[profile] = build_context(profile)
            except ConfigError as exc:
                raise TlsFailed(exc.message) from exc
        return context


def _patterns(entry: OriginTls) -> OriginPatterns:
    if not entry.hosts:
        raise ConfigError("upstream_tls: an entry of `origins` has no hosts")
    try:
        return OriginPatterns(entry.hosts, entry.ports)
    except TargetError as exc:
        raise ConfigError(f"upstream_tls: {exc.message}") from None


def _file(base: Path, name: str) -> str:
    return anchored(name, base)


def _profile(draft: TlsProfile) -> TlsProfile:
    """Return the profile with the digest of its files.

    Raises:
        ConfigError: one can't be read.
    """
    digest = hashlib.sha256()
    for name in (draft.trust_store, draft.ca, draft.certificate, draft.key):
        if name not in ("", "system"):
            digest.update(hashlib.sha256(_read(name)).digest())
    return msgspec.structs.replace(draft, material=digest.hexdigest())


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as exc:
        raise ConfigError(f"can't be read: {exc.strerror}", source=name) from None


def build_context(profile: TlsProfile) -> ssl.SSLContext:
    """Build the client context of a profile: chain and name always verified, TLS 1.2 at least, no compression.

    Not `ssl.create_default_context`: that obeys SSLKEYLOGFILE, which would write the keys of credentialed sessions to
    a file, and its verification flags differ between versions of Python.

    Raises:
        ConfigError: a file holds no usable certificate or key, or the system's trust store is empty.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _MINIMUM[profile.minimum_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    # A root that the operator names may be an intermediate one, or the very certificate of the origin.
    context.verify_flags |= ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    if profile.trust_store == "system":
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    for name in (profile.trust_store, profile.ca):
        if name not in ("", "system"):
            _load_roots(context, name)
    _require_roots(context)
    if profile.certificate:
        _load_client_certificate(context, profile)
    if profile.alpn:
        context.set_alpn_protocols(list(profile.alpn))
    return context


def _require_roots(context: ssl.SSLContext) -> None:
    if context.cert_store_stats()["x509"]:
        return
    paths = ssl.get_default_verify_paths()
    # A folder of hashed certificates is read at the handshake, so its certificates can't be counted here.
    if paths.capath is not None and any(Path(paths.capath).glob("*.0")):
        return
    raise ConfigError(
        "this machine has no trusted root certificates: install the package ca-certificates, or name a PEM file as "
        "upstream_tls.trust_store"
    )


def _load_roots(context: ssl.SSLContext, name: str) -> None:
    try:
        context.load_verify_locations(cafile=name)
    except (ssl.SSLError, OSError, ValueError):
        raise ConfigError("holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)", source=name) from None


def _load_client_certificate(context: ssl.SSLContext, profile: TlsProfile) -> None:
    def no_passphrase() -> str:
        # Without this, OpenSSL would ask for it on the terminal.
        raise ConfigError("the key has a passphrase; store it without one, readable by the gateway only")

    try:
        context.load_cert_chain(profile.certificate, profile.key, no_passphrase)
    except ssl.SSLError as exc:
        mismatch = exc.reason == "KEY_VALUES_MISMATCH"
        problem = "does not belong to the key" if mismatch else "and its key are no usable PEM certificate and key"
        raise ConfigError(f"the client certificate {problem} ({profile.key})", source=profile.certificate) from None


# Source: openssl/x509_vfy.h
_VERIFY_TEXTS = {
    2: "the issuer of its certificate is unknown",
    9: "its certificate is not valid yet; is this machine's clock right?",
    10: "its certificate has expired",
    18: "its certificate is self-signed",
    19: "its chain ends in a self-signed root that is not trusted",
    20: "the issuer of its certificate is unknown",
    21: "the issuer of its certificate is unknown: the server does not send the intermediate certificates",
    23: "its certificate is revoked",
    24: "its chain holds a certificate that may not sign others",
    25: "its chain is longer than a certificate in it permits",
    26: "its certificate is not made for servers",
    47: "a certificate authority of its chain may not sign this name",
    62: "its certificate is for other names",
    64: "its certificate is for other addresses",
    66: "the key of its certificate is too weak",
    67: "a key in its chain is too weak",
    68: "a signature in its chain is too weak",
}
_TRUST_HINT = frozenset({2, 18, 19, 20, 21})
_REASON_TEXTS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port",
    "HTTP_REQUEST": "it speaks plain HTTP on this port",
    "UNSUPPORTED_PROTOCOL": "it offers no TLS version that is permitted (1.2 at least)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it offers no TLS version that is permitted (1.2 at least)",
    "NO_PROTOCOLS_AVAILABLE": "it offers no TLS version that is permitted (1.2 at least)",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refused the handshake; it may ask for a client certificate",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY": "it refused the handshake as too weak",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a client certificate; name one under upstream_tls.origins",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the issuer of our client certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refused our client certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that our client certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it says that our client certificate is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refused our client certificate",
    "TLSV1_ALERT_ACCESS_DENIED": "it refused our client certificate",
    "TLSV1_UNRECOGNIZED_NAME": "it does not know this server name",
    "TLSV1_ALERT_UNRECOGNIZED_NAME": "it does not know this server name",
    "TLSV1_ALERT_INTERNAL_ERROR": "it failed in the handshake; it may not know this server name",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": "it speaks none of the protocols that are offered",
    "DH_KEY_TOO_SMALL": "its key exchange is too weak",
    "UNSAFE_LEGACY_RENEGOTIATION_DISABLED": "it lacks secure renegotiation (RFC 5746)",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection in the handshake",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "what it sent is damaged",
}


def describe_tls_error(exc: BaseException) -> str:
    """Say in one clause what went wrong, as in "its certificate has expired". Never holds what a peer wrote."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        code = exc.verify_code
        # Python's own name check (no SAN at all, say) has no code of OpenSSL.
        text = _VERIFY_TEXTS.get(code) or exc.verify_message or "its certificate is for other names"
        hint = "; if it is right, name its issuer as `ca` under upstream_tls.origins" if code in _TRUST_HINT else ""
        return f"{text}{hint}"
    if isinstance(exc, ssl.SSLEOFError):
        return "it closed the connection in the handshake"
    if isinstance(exc, ssl.SSLError):
        reason = exc.reason or "unknown error"
        return _REASON_TEXTS.get(reason) or reason.replace("_", " ").lower()
    if isinstance(exc, TimeoutError):
        return "it did not finish the handshake in time"
    if isinstance(exc, ConnectionError):
        return "it closed the connection in the handshake"
    return type(exc).__name__


def tls_failed(exc: BaseException, host: str) -> TlsFailed:
    """Make the error of a failed handshake with this host."""
    return TlsFailed(f"TLS with {host} failed: {describe_tls_error(exc)}")
