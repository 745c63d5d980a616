"""A small S3 for client tests: objects of buckets, listings, multipart uploads; every request's signature is checked.

Source: Amazon S3 API reference (PutObject, GetObject, ListObjectsV2, CreateMultipartUpload ...) and AWS Signature
Version 4, "Authenticating requests: using the Authorization header"; chunked bodies as of "Using trailing checksums".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from support.upstream import Talk

KEY_ID, KEY = "AKIDEXAMPLE", "guests-own-s3-key-wJalrXUtnFEMI"
_XML = [("content-type", "application/xml")]
_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class S3:
    """An app that keeps objects by path.

    Attributes:
        objects: "/bucket/key" -> content.
        payloads: x-amz-content-sha256 of each upload, which says how its body was sent.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.payloads: list[str] = []
        self._parts: dict[str, dict[int, bytes]] = {}

    async def __call__(self, talk: Talk) -> None:
        """Answer one request."""
        body = await talk.body()
        if not _signed(talk):
            await _fail(talk, 403, "SignatureDoesNotMatch")
            return
        path, _, query = talk.target.partition("?")
        path, parameters = unquote(path), dict(parse_qsl(query, keep_blank_values=True))
        if talk.method in ("PUT", "POST"):
            content = _payload(talk, body)
            if content is None:
                await _fail(talk, 400, "BadDigest")
            else:
                await self._write(talk, path, parameters, content)
        elif "list-type" in parameters:
            await self._list(talk, path, parameters.get("prefix", ""))
        elif talk.method == "DELETE":
            self.objects.pop(path, None)
            await talk.respond(204)
        elif path in self.objects:
            await talk.respond(200, self.objects[path], [("etag", _etag(self.objects[path]))])
        else:
            await _fail(talk, 404, "NoSuchKey")

    async def _write(self, talk: Talk, path: str, parameters: dict[str, str], content: bytes) -> None:
        upload = parameters.get("uploadId", "")
        if "uploads" in parameters:
            self._parts[path] = {}
            text = f"<Bucket/><Key>{escape(path)}</Key><UploadId>{escape(path)}</UploadId>"
            await talk.respond(
                200, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode(), _XML
            )
        elif "partNumber" in parameters:
            self._parts[upload][int(parameters["partNumber"])] = content
            await talk.respond(200, b"", [("etag", _etag(content))])
        elif upload:
            parts = self._parts.pop(upload)
            self.objects[path] = b"".join(parts[number] for number in sorted(parts))
            text = f"<Key>{escape(path)}</Key><ETag>x</ETag>"
            await talk.respond(
                200, f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>".encode(), _XML
            )
        else:
            self.payloads.append(talk.header("x-amz-content-sha256") or "")
            self.objects[path] = content
            await talk.respond(200, b"", [("etag", _etag(content))])

    async def _list(self, talk: Talk, bucket: str, prefix: str) -> None:
        names = sorted(path.removeprefix(f"{bucket.rstrip('/')}/") for path in self.objects if path.startswith(bucket))
        kept = [name for name in names if name.startswith(prefix)]
        contents = "".join(f"<Contents><Key>{escape(name)}</Key></Contents>" for name in kept)
        text = f"<IsTruncated>false</IsTruncated><KeyCount>{len(kept)}</KeyCount>{contents}"
        await talk.respond(200, f"<ListBucketResult>{text}</ListBucketResult>".encode(), _XML)


def _signed(talk: Talk) -> bool:
    """Whether the request, as it came here, is the one that the client signed."""
    algorithm, _, rest = (talk.header("authorization") or "").partition(" ")
    fields = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
    credential = fields.get("Credential", "").split("/")
    if algorithm != "AWS4-HMAC-SHA256" or len(credential) != 5 or credential[0] != KEY_ID:
        return False
    names = fields["SignedHeaders"].split(";")
    path, _, query = talk.target.partition("?")
    pairs = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in parse_qsl(query, keep_blank_values=True))
    canonical = "\n".join(
        (
            talk.method,
            path,
            "&".join(f"{name}={value}" for name, value in pairs),
            *(f"{name}:{' '.join((talk.header(name) or '').split())}" for name in names),
            "",
            ";".join(names),
            talk.header("x-amz-content-sha256") or "",
        )
    )
    scope = "/".join(credential[1:])
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((algorithm, talk.header("x-amz-date") or "", scope, digest))
    key = f"AWS4{KEY}".encode()
    for part in credential[1:]:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(hmac.new(key, text.encode(), "sha256").hexdigest(), fields["Signature"])


def _payload(talk: Talk, body: bytes) -> bytes | None:
    """Return the content of an upload; None if it is not what its checksum says."""
    declared = talk.header("x-amz-content-sha256")
    if declared == _UNSIGNED_TRAILER:
        content = b""
        while (size := int(body[: (end := body.index(b"\r\n"))].partition(b";")[0], 16)) > 0:
            content += body[end + 2 : end + 2 + size]
            body = body[end + 2 + size + 2 :]
        name, _, value = body[end + 2 :].strip().partition(b":")
        checksum = base64.b64encode(zlib.crc32(content).to_bytes(4)) if name == b"x-amz-checksum-crc32" else b""
        return content if value == checksum else None
    if declared not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
        return None
    return body


async def _fail(talk: Talk, status: int, code: str) -> None:
    await talk.respond(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(), _XML)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
