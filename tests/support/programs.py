"""Runs real clients as programs of their own, with the environment that a guest gets."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

PROGRAM_LIMIT_S = 50.0


async def run(
    *command: str, env: Mapping[str, str], stdin: bytes | None = None, limit_s: float = PROGRAM_LIMIT_S
) -> tuple[int, bytes, bytes]:
    """Run a program to its end: (exit code, stdout, stderr)."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(env),
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate(stdin)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, out, err


async def python(script: str, env: Mapping[str, str]) -> Any:
    """Run a Python script and return the JSON that it prints."""
    code, out, err = await run(sys.executable, "-c", script, env=env)
    assert code == 0, err.decode()[-3000:]
    return json.loads(out)
