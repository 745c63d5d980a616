"""A registry of container images for client tests, with a token service beside it, and an image to put there.

Speaks the distribution API (OCI distribution-spec 1.1) as far as pushing and pulling take it, and asks for tokens as
registries do: 401 with a Bearer challenge that names the service, which gives a token to whoever logs in by Basic.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import secrets
import tarfile
from pathlib import Path
from urllib.parse import parse_qs

from support.lab import SECRET
from support.upstream import Talk

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class TokenService:
    """An app: `/token?service=&scope=` gives a token to who logs in as `ci` with the secret.

    Attributes:
        tokens: what it gave, and for which scope.
        logins: what came in Authorization.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.logins: list[str] = []

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        self.logins.append(talk.header("authorization") or "")
        if self.logins[-1] != "Basic " + base64.b64encode(f"ci:{SECRET}".encode()).decode():
            await talk.respond(401, b"{}", [("www-authenticate", 'Basic realm="tokens"')])
            return
        asked = parse_qs(talk.target.partition("?")[2])
        token = secrets.token_urlsafe(32)
        self.tokens[token] = asked.get("scope", [""])[0]
        body = json.dumps({"token": token, "access_token": token, "expires_in": 300}).encode()
        await talk.respond(200, body, [("content-type", "application/json")])


class ImageRegistry:
    """An app: blobs and manifests of any repository, for tokens of the service.

    Attributes:
        realm: where tokens are to be had; set before the first request.
        blobs, manifests: by digest, and by name.
    """

    def __init__(self, tokens: TokenService) -> None:
        self.realm = ""
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self._tokens = tokens
        self._uploads: dict[str, bytes] = {}

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        body = await talk.body()
        path, _, query = talk.target.partition("?")
        scheme, _, token = (talk.header("authorization") or "").partition(" ")
        needed = self._scope(talk.method, path)
        if scheme != "Bearer" or token not in self._tokens.tokens or not self._permits(token, needed):
            challenge = f'Bearer realm="{self.realm}",service="registry"' + (f',scope="{needed}"' if needed else "")
            await talk.respond(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', [("www-authenticate", challenge)])
            return
        status, answer, headers = self._serve(talk, path, query, body)
        await talk.respond(status, answer, headers)

    @staticmethod
    def _scope(method: str, path: str) -> str:
        found = re.fullmatch(r"/v2/(.+)/(?:blobs|manifests)/.*", path)
        actions = "pull" if method in ("GET", "HEAD") else "pull,push"
        return f"repository:{found[1]}:{actions}" if found else ""

    def _permits(self, token: str, needed: str) -> bool:
        given, _, actions = self._tokens.tokens[token].rpartition(":")
        place, _, wanted = needed.rpartition(":")
        return not needed or (given == place and set(wanted.split(",")) <= set(actions.split(",")))

    def _serve(self, talk: Talk, path: str, query: str, body: bytes) -> tuple[int, bytes, list[tuple[str, str]]]:
        if path == "/v2/":
            return 200, b"{}", []
        name, kind, rest = re.fullmatch(r"/v2/(.+?)/(blobs/uploads|blobs|manifests)/(.*)", path).groups()  # type: ignore[union-attr]
        if kind == "blobs/uploads":
            return self._upload(talk.method, path, name, rest, query, body)
        if kind == "manifests" and talk.method == "PUT":
            self.manifests[rest] = body
            return 201, b"", [("location", path), ("docker-content-digest", _digest(body))]
        held = self.manifests.get(rest) if kind == "manifests" else self.blobs.get(rest)
        if held is None:
            return 404, b'{"errors":[{"code":"UNKNOWN"}]}', []
        media_type = _MANIFEST if kind == "manifests" else "application/octet-stream"
        return 200, held, [("content-type", media_type), ("docker-content-digest", _digest(held))]

    def _upload(
        self, method: str, path: str, name: str, upload: str, query: str, body: bytes
    ) -> tuple[int, bytes, list[tuple[str, str]]]:
        if method == "POST":
            upload = secrets.token_hex(8)
            self._uploads[upload] = b""
            return 202, b"", [("location", f"/v2/{name}/blobs/uploads/{upload}"), ("range", "0-0")]
        self._uploads[upload] += body
        if method == "PATCH":
            return 202, b"", [("location", path), ("range", f"0-{len(self._uploads[upload]) - 1}")]
        data, digest = self._uploads.pop(upload), parse_qs(query)["digest"][0]
        assert _digest(data) == digest, "it did not arrive whole"
        self.blobs[digest] = data
        return 201, b"", [("location", f"/v2/{name}/blobs/{digest}"), ("docker-content-digest", digest)]


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_image(folder: Path, layer_bytes: bytes) -> None:
    """Write an image of one layer with one file, as an OCI layout with the tag `v1`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("data")
        member.size = len(layer_bytes)
        archive.addfile(member, io.BytesIO(layer_bytes))
    layer = out.getvalue()
    config = {
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }  # fmt: skip
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, object]:
        (blobs / _digest(data).removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}

    described = put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    layers = [put(layer, "application/vnd.oci.image.layer.v1.tar")]
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": layers}
    entry = put(json.dumps(manifest).encode(), _MANIFEST)
    entry["annotations"] = {"org.opencontainers.image.ref.name": "v1"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
