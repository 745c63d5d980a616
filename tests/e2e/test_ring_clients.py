"""More real clients in microVMs, unmodified: WebSockets of two libraries, botocore with an S3 that checks signatures.

The same programs run against the explicit proxy in `test_websocket_clients` and `test_clients_s3`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.lab import SECRET, Lab
from support.microvm import own_template, run_guest
from support.s3 import KEY, KEY_ID, S3
from support.upstream import HttpUpstream

from . import test_clients_s3 as of_s3
from . import test_websocket_clients as of_sockets

pytestmark = [pytest.mark.kvm, pytest.mark.clients, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The template of this virtual environment, as `seamgate run` makes it."""
    with own_template(tmp_path_factory.mktemp("templates")) as name:
        yield name


@pytest.mark.parametrize("client", of_sockets.CLIENTS)
async def test_websockets(client: str, template: str) -> None:
    """Subprotocol, compression, large and fragmented messages, pings, tokens, closes, denials: as behind the proxy."""
    server = of_sockets.SERVERS["websockets"]()
    settings = {"credentials": of_sockets.SETTINGS["credentials"]}
    async with Lab(server, rules=of_sockets.RULES, settings=settings) as lab:
        done = await run_guest(lab, template, of_sockets.CLIENTS[client], env={"BASE": f"wss://{lab.authority()}"})
        assert done.outcome.code == 0, done
        assert json.loads(done.out) == of_sockets.SEEN
        assert SECRET not in done.out + done.err
        records = await lab.audited(*of_sockets.AUDITED)
        assert {record.entry for record in records} == {"ring"}
        assert records[0].websocket is not None
        assert records[0].websocket.from_guest == records[0].websocket.from_upstream == 5


async def test_botocore_with_s3(template: str) -> None:
    """Uploads from memory, from a file and in parts, odd names, listings, with the signatures that the client made;
    another bucket and DELETE are denied."""
    s3 = S3()
    async with Lab(HttpUpstream(s3), rules=of_s3.RULES, credential=False) as lab:
        (lab.folder / "large").write_bytes(b"0123456789abcdef" * 65536)
        env = {
            "BASE": f"https://{lab.authority()}",
            "FILE": str(lab.folder / "large"),
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        done = await run_guest(lab, template, of_s3.CLIENT, env=env)
        assert done.outcome.code == 0, done
        assert json.loads(done.out) == of_s3.SEEN
        assert s3.objects["/mine/file"] == (lab.folder / "large").read_bytes()
        assert s3.objects["/mine/parts"] == b"one," * 300000 + b"two"
        told = await lab.told()
        assert told[-2:] == of_s3.DENIED
        assert {record.entry for record in lab.records} == {"ring"}
