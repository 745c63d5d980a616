"""Package registries for client tests: a simple index (PEP 503) for pip, and an npm registry, with packages made here.

Both serve only whoever shows the secret, as private registries do: pip by Basic, npm by Bearer.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile

from support.lab import SECRET
from support.upstream import Talk


def wheel(name: str, version: str) -> bytes:
    """Return a wheel (PEP 427) with one module that holds its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return out.getvalue()


def npm_package(name: str, version: str) -> bytes:
    """Return an npm tarball with one module that exports its version."""
    files = {
        "package/package.json": json.dumps({"name": name, "version": version, "main": "index.js"}),
        "package/index.js": f"module.exports = {json.dumps(version)};\n",
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


class PythonIndex:
    """An app: `/simple/NAME/` lists wheels, `/files/FILE` gives one. Each package has the versions 1.0 and 2.0."""

    def __init__(self, *names: str) -> None:
        self._wheels = {
            f"{name}-{version}-py3-none-any.whl": wheel(name, version) for name in names for version in ("1.0", "2.0")
        }

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        if talk.header("authorization") != "Basic " + base64.b64encode(f"ci:{SECRET}".encode()).decode():
            await talk.respond(401, b"", [("www-authenticate", 'Basic realm="index"')])
            return
        folder, _, rest = talk.target.strip("/").partition("/")
        listed = [file for file in self._wheels if file.startswith(f"{rest}-")]
        if folder == "files" and rest in self._wheels:
            await talk.respond(200, self._wheels[rest], [("content-type", "application/octet-stream")])
        elif folder == "simple" and listed:
            links = "".join(f'<a href="/files/{file}#sha256={self._digest(file)}">{file}</a>\n' for file in listed)
            page = f"<!DOCTYPE html><html><body>\n{links}</body></html>".encode()
            await talk.respond(200, page, [("content-type", "text/html")])
        else:
            await talk.respond(404)

    def _digest(self, file: str) -> str:
        return hashlib.sha256(self._wheels[file]).hexdigest()


class NpmRegistry:
    """An app: `/NAME` is a packument, `/NAME/-/NAME-VERSION.tgz` a tarball. Each package has the version 1.0.0."""

    def __init__(self, *names: str) -> None:
        self._tarballs = {name: npm_package(name, "1.0.0") for name in names}
        self.origin = ""

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        if talk.header("authorization") != f"Bearer {SECRET}":
            await talk.respond(401, b"{}")
            return
        name = talk.target.strip("/").partition("/")[0]
        if name not in self._tarballs:
            await talk.respond(404, b"{}")
        elif talk.target.endswith(".tgz"):
            await talk.respond(200, self._tarballs[name], [("content-type", "application/octet-stream")])
        else:
            await talk.respond(200, self._packument(name), [("content-type", "application/json")])

    def _packument(self, name: str) -> bytes:
        digest = base64.b64encode(hashlib.sha512(self._tarballs[name]).digest()).decode()
        tarball = f"{self.origin}/{name}/-/{name}-1.0.0.tgz"
        dist = {"tarball": tarball, "integrity": f"sha512-{digest}"}
        version = {"name": name, "version": "1.0.0", "dist": dist}
        return json.dumps({"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).encode()
