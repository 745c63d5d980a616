"""`seamgate init`: a folder with everything that a first gateway needs, each file commented and ready to be changed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import click

from seamgate import launch
from seamgate.ca.store import CaConfig, ca_directory
from seamgate.errors import ConfigError

_CONFIG = """\
# How this gateway runs. What agents may do stands in the policy file. Every key: docs/configuration.md
entries:
  proxy: {{listen: 127.0.0.1:8080}}        # HTTPS_PROXY=http://agent:TOKEN@127.0.0.1:8080

policies: [policy.yaml]

guests:
  agent:
    token: {{sha256: "{digest}"}}  # of agent.token
    labels: {{team: research}}           # what policies match on

# A credential goes in at the last hop; agents only ever hold its placeholder. The policy says which requests get it.
# credentials:
#   anthropic:
#     source: {{env: ANTHROPIC_API_KEY}}     # or {{file: ...}}, {{command: [...]}}
#     inject: {{header: x-api-key}}
#     hosts: [api.anthropic.com]

audit: {{path: audit/audit.jsonl}}
"""
_POLICY = """\
# What agents may do. Everything else is denied. Every key: docs/policy.md
seamgate: 1
layer: team
owner: you@example.com
rules:
  - id: read-packages
    allow:
      hosts: [packages.acme.example]     # put your mirror of packages here, and in the test
      methods: read                      # GET, HEAD, OPTIONS
    reason: agents install packages

  # - id: llm-messages
  #   allow:
  #     hosts: [api.anthropic.com]
  #     methods: [POST]
  #     paths: [/v1/messages]
  #   guests: {team: research}           # only agents with this label
  #   credential: anthropic              # see seamgate.yaml
  #   limits: {requests: 60/min, request_body: 5MiB}
  #   reason: agents of team research call the LLM

  - id: no-uploads
    deny: {hosts: ["*.acme.example"], methods: write}   # a deny outweighs every allow, wherever it stands
    reason: agents publish nothing
"""
_TEST = """\
# `seamgate policy test .` judges these through the real pipeline. What no case lists is expected to be denied.
seamgate_test: 1
policy: [policy.yaml]
now: 2026-12-01T09:00:00Z
cases:
  - request: GET https://packages.acme.example/simple/requests/
    guest: {team: research}
    expect: allow
    rule: read-packages
  - {request: POST https://packages.acme.example/legacy/, guest: {team: research}, expect: deny, rule: no-uploads}
  - {request: GET https://upload.acme.example/, guest: {team: research}, expect: deny}
  - {request: GET https://example.com/, guest: {team: research}, expect: deny}
"""
_IGNORED = "agent.token\naudit/\n"


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: what was written, and where the CA is.")
def init(folder: Path, as_json: bool) -> None:
    """Write a starter configuration, policy and policy test into FOLDER, with a fresh token for one agent.

    Makes the gateway's CA too if there is none yet. Replaces no file.
    """
    token = launch.new_token()
    files = {
        "seamgate.yaml": _CONFIG.format(digest=hashlib.sha256(token.encode()).hexdigest()),
        "policy.yaml": _POLICY,
        "policy.test.yaml": _TEST,
        "agent.token": f"{token}\n",
        ".gitignore": _IGNORED,
    }
    _write(folder, files)
    directory = ca_directory(CaConfig(), folder)
    made = launch.ensure_ca(directory)
    if as_json:
        told = {"folder": str(folder), "files": list(files), "ca": str(directory), "ca_made": made}
        click.echo(json.dumps(told))
        return
    click.echo(_report(folder, list(files), f"{'made' if made else 'uses'} the CA in {directory}"))


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files or none.

    Raises:
        ConfigError: one of them is there already, or the folder can't be written to.
    """
    there = [name for name in files if (folder / name).exists() and name != ".gitignore"]
    if there:
        raise ConfigError(f"{folder / there[0]} is there already; name another folder, or move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if not (folder / name).exists():
                _create(folder / name, text, 0o600 if name == "agent.token" else 0o644)
    except OSError as error:
        raise ConfigError(f"{folder} can't be written to: {error.strerror}") from None


def _create(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _report(folder: Path, names: list[str], ca: str) -> str:
    here = "" if folder == Path() else f"cd {folder} && "
    about = {
        "seamgate.yaml": "how the gateway runs",
        "policy.yaml": "what agents may do",
        "policy.test.yaml": "the policy's test",
        "agent.token": "what the agent shows to the gateway; readable by you only",
        ".gitignore": "keeps token and journal out of version control",
    }
    lines = [f"  {click.style(f'{name:18}', fg='green')}{about[name]}" for name in names]
    return "\n".join(
        [
            *lines,
            f"  {ca}",
            "",
            f"Next:  {here}seamgate policy test .",
            "       seamgate run -c seamgate.yaml --label team=research -- CMD    one agent, its own gateway",
            "       seamgate serve                                                a gateway for many",
        ]
    )
