"""botocore against an S3 that checks signatures: what the gateway sends on is what the client signed."""

from __future__ import annotations

from typing import Any

import pytest

from support.lab import Lab
from support.programs import python
from support.s3 import KEY, KEY_ID, S3
from support.upstream import HttpUpstream

pytestmark = pytest.mark.clients

RULES: list[dict[str, Any]] = [
    {
        "id": "own-bucket",
        "allow": {
            "hosts": ["api.test"],
            "ports": ["1-65535"],
            "methods": ["GET", "PUT", "POST"],
            "paths": ["/mine/**", "/mine"],
        },
    }
]
SETTINGS = {"entries": {"proxy": {"guest": ""}}}
CLIENT = """
import io, json, os, botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
session = botocore.session.get_session()
s3 = session.create_client("s3", region_name="eu-central-1", endpoint_url=os.environ["BASE"],
    config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}))
out = {}

def refused(call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        metadata = error.response["ResponseMetadata"]
        return [metadata["HTTPStatusCode"], metadata["HTTPHeaders"].get("x-seamgate-reason")]

s3.put_object(Bucket="mine", Key="small", Body=b"in memory")
s3.put_object(Bucket="mine", Key="a b/\\u00e4+~.txt", Body=b"odd name")
with open(os.environ["FILE"], "rb") as file:
    s3.put_object(Bucket="mine", Key="file", Body=file)
upload = s3.create_multipart_upload(Bucket="mine", Key="parts")["UploadId"]
parts = []
for number, data in enumerate((b"one," * 300000, b"two"), 1):
    part = s3.upload_part(Bucket="mine", Key="parts", UploadId=upload, PartNumber=number, Body=data)
    parts.append({"PartNumber": number, "ETag": part["ETag"]})
s3.complete_multipart_upload(Bucket="mine", Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
out["keys"] = [each["Key"] for each in s3.list_objects_v2(Bucket="mine")["Contents"]]
out["small"] = s3.get_object(Bucket="mine", Key="small")["Body"].read().decode()
out["size"] = s3.head_object(Bucket="mine", Key="parts").get("ContentLength")
out["absent"] = refused(s3.get_object, Bucket="mine", Key="absent")
out["delete"] = refused(s3.delete_object, Bucket="mine", Key="small")
out["other"] = refused(s3.put_object, Bucket="other", Key="x", Body=b"x")
print(json.dumps(out))
"""
SEEN = {
    "keys": ["a b/ä+~.txt", "file", "parts", "small"],
    "small": "in memory",
    "size": 1_200_003,
    "absent": [404, None],
    "delete": [403, "no_rule_matched"],
    "other": [403, "no_rule_matched"],
}
DENIED = ["DELETE /mine/small deny no_rule_matched 403 denied", "PUT /other/x deny no_rule_matched 403 denied"]


@pytest.mark.parametrize("searched", [False, True], ids=["no credential", "searched for one"])
async def test_botocore_with_s3(*, searched: bool) -> None:
    """Uploads from memory, from a file and in parts, odd names, listings; another bucket and DELETE are denied.

    The same where bodies are searched for the value of a credential: S3's own framing is looked through. Only what a
    GET would weigh nobody knows then (docs/inspection.md).
    """
    s3 = S3()
    async with Lab(HttpUpstream(s3), rules=RULES, settings=SETTINGS, credential=searched) as lab:
        (lab.folder / "large").write_bytes(b"0123456789abcdef" * 65536)
        environment = {
            **lab.environment(),
            "BASE": lab.url(""),
            "FILE": str(lab.folder / "large"),
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        assert await python(CLIENT, environment) == {**SEEN, "size": None if searched else SEEN["size"]}
        assert s3.objects["/mine/file"] == (lab.folder / "large").read_bytes()
        assert s3.objects["/mine/parts"] == b"one," * 300000 + b"two"
        assert "STREAMING-UNSIGNED-PAYLOAD-TRAILER" in s3.payloads
        told = await lab.told()
        assert told[-2:] == DENIED
        assert all(" allow allowed " in each for each in told[:-2])
