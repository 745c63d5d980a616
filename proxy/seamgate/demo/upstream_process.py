"""The demo's upstream in a process of its own, so that what is measured beside it is not slowed down by it.

    python -m seamgate.demo.upstream_process CA_FOLDER     the key in $LLM_API_KEY

Says its port on standard output; then answers each line of standard input with what it has counted so far, as JSON.
Ends with its input. Started by `seamgate vm bench`; it makes the CA that signs for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import uvloop

from seamgate.ca.leaf import CertificateAuthority
from seamgate.ca.store import init_ca
from seamgate.demo.upstream import Upstream


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def _serve(folder: Path) -> None:
    upstream = Upstream(CertificateAuthority(init_ca(folder)), os.environ["LLM_API_KEY"])
    await upstream.start()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    _say(upstream.port)
    while await lines.readline():
        _say({"connections": upstream.connections, "open": upstream.open_most, "requests": len(upstream.book)})
    upstream.stop()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
