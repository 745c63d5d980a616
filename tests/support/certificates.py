"""One throw-away CA for all fake upstreams of a test run, and the TLS contexts that tests need."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

import trustme


@lru_cache(maxsize=1)
def upstream_ca() -> trustme.CA:
    """Return the CA that signs fake upstreams."""
    return trustme.CA()


def write_upstream_ca(folder: Path) -> Path:
    """Write the CA's certificate into a folder and return its path."""
    path = folder / "upstream-ca.pem"
    upstream_ca().cert_pem.write_to_path(path)
    return path


@lru_cache(maxsize=64)
def server_context(*names: str) -> ssl.SSLContext:
    """Return the context of an upstream with a certificate for these names."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    upstream_ca().issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(["http/1.1"])
    return context


def guest_context(ca: Path) -> ssl.SSLContext:
    """Return the context of a guest that trusts the gateway's CA and checks names."""
    return ssl.create_default_context(cafile=str(ca))


def careless_context() -> ssl.SSLContext:
    """Return the context of a guest that checks nothing: for tests of what the gateway refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
