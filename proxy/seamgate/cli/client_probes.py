"""The clients that `seamgate doctor --clients` sends through a gateway: how each one is made to ask for one URL.

A table, and nothing that runs: who adds a client adds a `Probe`. A probe uses what the client does by itself (no option
that names a proxy or a root), because that is what is examined.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

NOT_INSTALLED = 77
"""Exit code of a probe whose library is not there."""


class Place(msgspec.Struct, frozen=True):
    """What a probe's command is made of.

    Attributes:
        url: to ask for.
        host, port: of the URL.
        proxy: host:port of the gateway; with a login: `user`, `password`, else "".
        folder: empty, the client's own.
    """

    url: str
    host: str
    port: int
    proxy: str
    user: str
    password: str
    folder: Path


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One client.

    Attributes:
        name: of the client.
        program: what has to be on the PATH; "" for this Python.
        version: arguments that print the version.
        command: arguments for a place.
        variables: what tells it which roots to trust.
        stdin: what it reads.
        environment: variables that the probe needs, which are not about proxies or roots.
        by_hand: arguments that make it use the proxy where its own ways do not, to tell whether it trusts the CA.
        gap: what is known to be missing, and what to do; "" where everything works.
    """

    name: str
    program: str
    version: tuple[str, ...] = ("--version",)
    command: Callable[[Place], list[str]]
    variables: tuple[str, ...] = ("SSL_CERT_FILE",)
    stdin: Callable[[Place], str] | None = None
    environment: Callable[[Place], dict[str, str]] | None = None
    by_hand: Callable[[Place], list[str]] | None = None
    gap: str = ""


def python_program() -> str:
    """Return the Python that a guest would get: the one on the PATH, else this one."""
    return shutil.which("python3") or shutil.which("python") or sys.executable


def _python(module: str, code: str) -> Callable[[Place], list[str]]:
    guarded = f"import sys\ntry:\n    import {module}\nexcept ImportError:\n    sys.exit({NOT_INSTALLED})\n{code}"
    return lambda place: [python_program(), "-c", guarded, place.url]


def _library(name: str, code: str, *variables: str) -> Probe:
    version = f"import importlib.metadata as m; print(m.version({name!r}))"
    return Probe(
        name=name,
        program="",
        version=("-c", version),
        command=_python(name, code),
        variables=variables or ("SSL_CERT_FILE",),
    )


_AIOHTTP = """
import asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as client:
        async with client.get(sys.argv[1]) as response:
            await response.read()
asyncio.run(main())
"""
_BOTOCORE = """
from urllib.parse import urlsplit
import botocore.session, botocore.config, botocore.exceptions, botocore
config = botocore.config.Config(
    signature_version=botocore.UNSIGNED, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
)
parts = urlsplit(sys.argv[1])
s3 = botocore.session.get_session().create_client(
    "s3", region_name="us-east-1", endpoint_url=f"{parts.scheme}://{parts.netloc}", config=config
)
bucket, _, key = parts.path.strip("/").partition("/")
s3.get_object(Bucket=bucket, Key=key)
"""
_JAVA = """
import java.net.URI;
import java.net.http.*;
public class Probe {
    public static void main(String[] a) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(a[0])).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""
_NODE_BY_HAND = """
const [url, proxy, login] = process.argv.slice(1), to = new URL(url), at = new URL("http://" + proxy);
const head = `GET ${to.pathname} HTTP/1.1\\r\\nhost: ${to.host}\\r\\n\\r\\n`;
const headers = {host: to.host, ...(login ? {"proxy-authorization": "Basic " + btoa(login)} : {})};
require("http").request({host: at.hostname, port: at.port, method: "CONNECT", path: to.host, headers})
  .on("connect", (_, socket) => {
    const inner = require("tls").connect({socket, servername: to.hostname});
    inner.resume().on("secureConnect", () => inner.end(head));
  }).end();
"""


def _java(place: Place) -> list[str]:
    source = place.folder / "Probe.java"
    source.write_text(_JAVA, encoding="utf-8")
    return ["java", str(source), place.url]


def _openssl(place: Place) -> list[str]:
    login = ["-proxy_user", place.user, "-proxy_pass", f"pass:{place.password}"] if place.user else []
    verify = ["-verify_return_error", "-verify_hostname", place.host, "-servername", place.host]
    proxy = ["-proxy", place.proxy, *login, "-connect", f"{place.host}:{place.port}"]
    return ["openssl", "s_client", "-quiet", "-ign_eof", *verify, *proxy]


def _request(place: Place) -> str:
    path = place.url.partition(f":{place.port}")[2]
    return f"GET {path} HTTP/1.1\r\nHost: {place.host}:{place.port}\r\nConnection: close\r\n\r\n"


def _go(place: Place) -> dict[str, str]:
    folder = str(place.folder)
    quiet = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOSUMDB": "off", "GO111MODULE": "on"}
    return {"GOPROXY": place.url, "GOPATH": folder, "GOCACHE": folder, "GONOPROXY": "none", **quiet}


PROBES: tuple[Probe, ...] = (
    Probe(name="curl", program="curl", command=lambda at: ["curl", "-sS", at.url], variables=("CURL_CA_BUNDLE",)),
    Probe(
        name="git",
        program="git",
        command=lambda at: ["git", "ls-remote", at.url],
        variables=("GIT_SSL_CAINFO",),
        environment=lambda _: {"GIT_TERMINAL_PROMPT": "0"},
    ),
    Probe(
        name="pip",
        program="",
        version=("-m", "pip", "--version"),
        command=lambda at: [
            python_program(),
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--retries",
            "0",
            "--no-input",
            "-d",
            str(at.folder),
            "-i",
            at.url,
            "seamgate-doctor",
        ],
        variables=("PIP_CERT",),
    ),
    Probe(
        name="uv",
        program="uv",
        command=lambda at: [
            "uv",
            "pip",
            "install",
            "--dry-run",
            "--no-config",
            "--no-cache",
            "--target",
            str(at.folder),
            "--default-index",
            at.url,
            "seamgate-doctor",
        ],
    ),
    Probe(
        name="npm",
        program="npm",
        command=lambda at: [
            "npm",
            "view",
            "seamgate-doctor",
            f"--registry={at.url}",
            "--fetch-retries=0",
            "--no-update-notifier",
            f"--cache={at.folder}",
        ],
        variables=("NODE_EXTRA_CA_CERTS", "npm_config_cafile"),
    ),
    Probe(
        name="node",
        program="node",
        command=lambda at: ["node", "-e", "fetch(process.argv[1]).then((answer) => answer.text())", at.url],
        variables=("NODE_EXTRA_CA_CERTS",),
        by_hand=lambda at: [
            "node",
            "-e",
            _NODE_BY_HAND,
            at.url,
            at.proxy,
            f"{at.user}:{at.password}" if at.user else "",
        ],
        gap="its fetch follows proxy variables from 22.21 and 24.5 on only: use netns, or a base URL",
    ),
    Probe(
        name="deno",
        program="deno",
        command=lambda at: ["deno", "eval", f"await (await fetch({at.url!r})).text()"],
        variables=("DENO_CERT",),
    ),
    Probe(
        name="bun",
        program="bun",
        command=lambda at: ["bun", "-e", f"await (await fetch({at.url!r})).text()"],
        variables=("NODE_EXTRA_CA_CERTS",),
    ),
    Probe(
        name="go",
        program="go",
        version=("version",),
        command=lambda _: ["go", "list", "-m", "seamgate.test/doctor@latest"],
        environment=_go,
    ),
    Probe(
        name="java",
        program="java",
        version=("-version",),
        command=_java,
        variables=("JAVA_TOOL_OPTIONS",),
        gap="it takes no login for the proxy from a variable: give its guests a listener of their own "
        "(`entries.proxy.guest`), or use netns",
    ),
    Probe(
        name="wget",
        program="wget",
        command=lambda at: ["wget", "--no-verbose", "--tries=1", "-O", "/dev/null", at.url],
        variables=(),
        gap="it reads no variable for roots: pass --ca-certificate, or use curl",
    ),
    Probe(name="openssl", program="openssl", version=("version",), command=_openssl, stdin=_request),
    Probe(
        name="urllib",
        program="",
        command=_python("urllib.request", "urllib.request.urlopen(sys.argv[1]).read()"),
    ),
    _library("requests", "requests.get(sys.argv[1])", "REQUESTS_CA_BUNDLE"),
    _library("httpx", "httpx.get(sys.argv[1])"),
    _library("aiohttp", _AIOHTTP),
    _library("botocore", _BOTOCORE, "AWS_CA_BUNDLE"),
)
