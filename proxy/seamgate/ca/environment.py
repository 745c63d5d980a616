"""The environment variables that make real clients use the gateway and trust its CA.

Called by `seamgate run` for the guest's environment, and by `seamgate ca env` for people's shells. Whether traffic
can go around the gateway is not decided here (that is the isolation's business); this only makes clients cooperate.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from seamgate.ca.store import TRUST_STORE_PASSWORD, CaFiles
from seamgate.errors import ConfigError

# Each holds the path of a PEM file with the roots to trust, or to trust besides (NODE_EXTRA_CA_CERTS, DENO_CERT).
CA_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Go, Ruby, Rust's native-certs, httpx, aiohttp, uv
    "REQUESTS_CA_BUNDLE",  # requests
    "CURL_CA_BUNDLE",  # curl, requests
    "PIP_CERT",  # pip
    "GIT_SSL_CAINFO",  # git
    "NODE_EXTRA_CA_CERTS",  # node, bun
    "npm_config_cafile",  # npm, pnpm
    "YARN_HTTPS_CA_FILE_PATH",  # yarn from 2 on
    "DENO_CERT",  # deno
    "AWS_CA_BUNDLE",  # botocore, AWS CLI
    "CARGO_HTTP_CAINFO",  # cargo
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",  # gcloud
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",  # gRPC
    "HTTPLIB2_CA_CERTS",  # httplib2
    "WEBSOCKET_CLIENT_CA_BUNDLE",  # websocket-client
    "BUNDLE_SSL_CA_CERT",  # bundler
    "HEX_CACERTS_PATH",  # hex
    "PERL_LWP_SSL_CA_FILE",  # LWP
    "NIX_SSL_CERT_FILE",  # nix
)
# The last two are what aiohttp looks at for WebSockets.
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY")


def client_environment(proxy_url: str, ca_path: str | Path = "", no_roots: str | Path = "") -> dict[str, str]:
    """Return the variables for a client whose whole traffic goes through the gateway.

    Args:
        proxy_url: http://[user:token@]host:port of the explicit proxy; "": only the CA's variables.
        ca_path: the CA's certificate (ca.pem); "": only the proxy's. A ca.p12 beside it is offered to Java.
        no_roots: an empty folder. OpenSSL and Go read a folder of roots besides SSL_CERT_FILE: that of an inherited
            SSL_CERT_DIR, or where there is none the machine's. "": they may.

    Raises:
        ConfigError: the URL is no http:// URL with host and port.
    """
    environment: dict[str, str] = {}
    if ca_path:
        environment.update(dict.fromkeys(CA_VARIABLES, str(ca_path)))
    if no_roots:
        environment["SSL_CERT_DIR"] = str(no_roots)
    if proxy_url:
        environment.update(_proxy_environment(proxy_url))
    java = _java_options(proxy_url, Path(ca_path) if ca_path else None)
    if java:
        environment["JAVA_TOOL_OPTIONS"] = java
    return environment


def _proxy_environment(proxy_url: str) -> dict[str, str]:
    _split_proxy(proxy_url)
    environment = {}
    for name in _PROXY_VARIABLES:
        environment[name] = environment[name.lower()] = proxy_url
    # Empty, not absent: an inherited one would let traffic go around the gateway.
    environment["NO_PROXY"] = environment["no_proxy"] = ""
    environment["npm_config_proxy"] = environment["npm_config_https_proxy"] = proxy_url
    environment["npm_config_noproxy"] = ""
    environment["YARN_HTTP_PROXY"] = environment["YARN_HTTPS_PROXY"] = proxy_url
    environment["CARGO_HTTP_PROXY"] = proxy_url
    # Node from 22.21 and 24.5 on: fetch and http follow the proxy's variables.
    environment["NODE_USE_ENV_PROXY"] = "1"
    return environment


def _split_proxy(proxy_url: str) -> tuple[str, int]:
    parts = urlsplit(proxy_url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or not port:
        raise ConfigError("the proxy's URL must be http://host:port, with user:token@ before the host if need be")
    return parts.hostname, port


def _java_options(proxy_url: str, ca_path: Path | None) -> str:
    """Return system properties for a JVM, which reads neither the proxy's variables nor PEM roots."""
    options = []
    if proxy_url:
        host, port = _split_proxy(proxy_url)
        for scheme in ("http", "https"):
            options += [f"-D{scheme}.proxyHost={host}", f"-D{scheme}.proxyPort={port}"]
        options.append("-Dhttp.nonProxyHosts=")
    store = CaFiles(ca_path.parent).java_store if ca_path is not None else None
    # The options are split at white space, and there is no way to quote it.
    if store is not None and store.is_file() and not any(char.isspace() for char in str(store)):
        password = TRUST_STORE_PASSWORD.decode("ascii")
        options += [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"]
        options.append("-Djavax.net.ssl.trustStoreType=PKCS12")
    return " ".join(options)


def render_environment(environment: Mapping[str, str], shell: str) -> str:
    """Return the text that sets these variables: for "sh" and "fish" to be evaluated, or as "json"."""
    if shell == "json":
        return json.dumps(environment, indent=2)
    if shell == "fish":
        return "\n".join(f"set -gx {name} {_fish_quote(value)};" for name, value in environment.items())
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())


def _fish_quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
