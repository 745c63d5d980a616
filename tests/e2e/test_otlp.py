"""The plugin `otlp` in real gateways, as processes: what a run recorded arrives, the last record included."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seamgate.audit.reading import read_lines
from support.cli import seamgate
from support.collector import Collector

_CONFIG = """\
entries: {proxy: {listen: 127.0.0.1:0}}
policies: [p.yaml]
guests: {agent: {token: {sha256: "%s"}}}
plugins: [builtin, {name: otlp, options: {endpoint: "%s", interval_s: 0.05}}]
audit: {path: audit.jsonl}
"""
_ASK = """\
import urllib.error, urllib.request
for _ in range(3):
    try:
        urllib.request.urlopen("http://denied.invalid/", timeout=20)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


def _run(folder: Path, endpoint: str) -> list[int]:
    """Run a guest whose three requests are denied; return the numbers of all records but those that only begin."""
    (folder / "p.yaml").write_text("seamgate: 1\nrules: []\n")
    (folder / "seamgate.yaml").write_text(_CONFIG % ("0" * 64, endpoint))
    command = ("run", "-c", "seamgate.yaml", "--isolation", "proxy", "--audit", "run.jsonl")
    done = seamgate(*command, "--", sys.executable, "-c", _ASK, home=folder)
    assert done.stdout.split() == ["403"] * 3, done.stderr
    lines = [json.loads(line) for line in read_lines(folder / "run.jsonl")]
    assert lines[-1]["gateway"]["event"] == "stop"
    return [line["seq"] for line in lines if line["kind"] != "begin"]


def test_a_run_delivers_its_last_record_too(tmp_path: Path) -> None:
    """Start, denials and stop: all that stands in the journal, once, before the process ends."""
    with Collector() as collector:
        written = _run(tmp_path, collector.endpoint)
    assert collector.seqs == written


def test_what_did_not_arrive_goes_with_the_next_run(tmp_path: Path) -> None:
    """The collector was away for a whole run: the run is not held up, and the next one sends both."""
    with Collector() as away:
        port = away.port
    _run(tmp_path, f"http://127.0.0.1:{port}/v1/logs")
    with Collector(port=port) as back:
        everything = _run(tmp_path, back.endpoint)
    assert back.seqs == everything
