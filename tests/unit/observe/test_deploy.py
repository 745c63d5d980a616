"""The files of deploy/: they parse, say what the gateway needs, and name nothing that is not there."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from seamgate.cli.serve import serve
from seamgate.config import parse_config
from seamgate.credentials.config import DEFAULT_PLACEHOLDER_PREFIX
from seamgate.policy.loader import parse_policy

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def objects() -> Iterator[dict[str, Any]]:
    """Yield every object of the manifests."""
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def of_kind(kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind."""
    return [each for each in objects() if each["kind"] == kind]


def pod() -> dict[str, Any]:
    """Return the gateway's pod."""
    [found] = of_kind("StatefulSet")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def sample_agent() -> dict[str, Any]:
    """Return the pod of the sample agent, metadata included."""
    [found] = of_kind("Pod")
    return found


def unit() -> configparser.ConfigParser:
    """Return the systemd unit; of a key that comes twice, the last value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys are case-sensitive in units
    parser.read_string((DEPLOY / "seamgate.service").read_text())
    return parser


def test_the_configuration_of_the_manifests_loads() -> None:
    """The config map's seamgate.yaml and policy are what this version reads."""
    [found] = of_kind("ConfigMap")
    config = parse_config(found["data"]["seamgate.yaml"], "seamgate.yaml", base=Path("/etc/seamgate"))
    assert config.policies == ("/etc/seamgate/policy.yaml",)
    assert parse_policy(found["data"]["policy.yaml"], "policy.yaml").rules
    assert config.admin.listen == "unix:/run/seamgate/admin.sock"


# The oldest with what the manifests use, and the newest that is known.
@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifests(path: Path, version: str) -> None:
    """Each object is of its published schema, with no field that this does not know."""
    for each in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(each, version, strict=True)


def test_a_misspelt_field_of_a_manifest_is_found() -> None:
    """The check above is a check."""
    [service] = of_kind("Service")
    service["spec"]["port"] = service["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.31", strict=True)


def test_every_mount_has_its_volume() -> None:
    """What is mounted is declared, and what is declared is mounted."""
    for spec in (pod(), sample_agent()["spec"]):
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_pods_have_no_rights() -> None:
    """No root, no capability, no writable root, no token of the cluster, in each container."""
    for spec in (pod(), sample_agent()["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            rights = container["securityContext"]
            assert rights == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert "memory" in container["resources"]["limits"]


def test_no_service_leads_to_the_admin_listener() -> None:
    """Ports of the pod, of the service and of the policies are those of the entries."""
    [service] = of_kind("Service")
    entries = {8080, 8081}
    [container] = pod()["containers"]
    assert {port["containerPort"] for port in container["ports"]} == entries
    assert {port["port"] for port in service["spec"]["ports"]} == entries
    for policy in of_kind("NetworkPolicy"):
        rules = [*policy["spec"].get("egress", []), *policy["spec"].get("ingress", [])]
        assert {port["port"] for rule in rules for port in rule["ports"]} == entries


def test_agents_are_held_by_default() -> None:
    """Agents may reach nothing but the gateway: the policy is of both directions, and no rule is without a peer."""
    held = next(each for each in of_kind("NetworkPolicy") if each["metadata"]["name"].startswith("agents"))
    assert held["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert held["spec"]["ingress"] == []
    assert all(rule["to"] and rule["ports"] for rule in held["spec"]["egress"])


def test_the_sample_agent_finds_the_gateway() -> None:
    """Held by the policies, it needs no DNS: the service's address, which Kubernetes gives it."""
    [service] = of_kind("Service")
    [config_map] = of_kind("ConfigMap")
    config = parse_config(config_map["data"]["seamgate.yaml"], "seamgate.yaml", base=Path("/etc/seamgate"))
    agent = sample_agent()
    assert agent["metadata"]["labels"] == {"seamgate.dev/guest": "true"}
    assert agent["spec"]["enableServiceLinks"] is True
    [container] = agent["spec"]["containers"]
    values = {each["name"]: each.get("value", "") for each in container["env"]}
    host = f"$({service['metadata']['name'].upper()}_SERVICE_HOST)"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    [guest] = config.guests
    assert values["HTTPS_PROXY"] == values["HTTP_PROXY"] == f"http://{guest}:$(SEAMGATE_TOKEN)@{host}:{ports['proxy']}"
    assert config.entries.base_url is not None
    [route] = config.entries.base_url.routes
    assert values["ANTHROPIC_BASE_URL"] == f"http://{host}:{ports['base-url']}/~$(SEAMGATE_TOKEN)/{route}"


def test_the_sample_agent_holds_no_secret_but_its_token() -> None:
    """The key is a placeholder of a credential that is there; the CA is its certificate alone."""
    [config_map] = of_kind("ConfigMap")
    config = parse_config(config_map["data"]["seamgate.yaml"], "seamgate.yaml", base=Path("/etc/seamgate"))
    spec = sample_agent()["spec"]
    [container] = spec["containers"]
    values = {each["name"]: each.get("value", "") for each in container["env"]}
    assert values["ANTHROPIC_API_KEY"] == f"{DEFAULT_PLACEHOLDER_PREFIX}anthropic"
    assert "anthropic" in config.credentials
    assert [each["name"] for each in container["env"] if "valueFrom" in each] == ["SEAMGATE_TOKEN"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "ca"]
    assert values["SSL_CERT_FILE"] == f"{mount['mountPath']}/ca.pem"
    assert not [volume for volume in spec["volumes"] if "secret" in volume]


def test_stops_are_longer_than_the_grace() -> None:
    """Who kills waits for the grace that the gateway was given, and some seconds more."""
    service = unit()["Service"]
    grace = float(re.search(r"--grace (\d+)", service["ExecStart"])[1])  # type: ignore[index]
    assert float(service["TimeoutStopSec"]) >= grace + 5
    assert pod()["terminationGracePeriodSeconds"] >= grace + 5
    container = (DEPLOY / "Containerfile").read_text()
    assert f'"--grace", "{grace:.0f}"' in container


def test_the_unit_calls_commands_that_are_there() -> None:
    """The options in ExecStart are those of `seamgate serve`."""
    known = {option for parameter in serve.params for option in parameter.opts}
    for key in ("ExecStart", "ExecStartPre"):
        assert set(re.findall(r" (--?[a-z-]+)", unit()["Service"][key])) <= known


def test_the_unit_is_hardened() -> None:
    """The sandbox that the documentation promises."""
    service = unit()["Service"]
    for key in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome", "MemoryDenyWriteExecute"):
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["User"] == "seamgate"


def analyzed(text: str, folder: Path) -> tuple[int, str]:
    """Return what `systemd-analyze security` says to a unit: exit code, by the rating of the docs, and last line."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit_file = folder / "seamgate.service"
    unit_file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=15", str(unit_file)],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()[-1]


def test_systemd_rates_the_unit_as_the_docs_say(tmp_path: Path) -> None:
    """`systemd-analyze security`: 1.5; without one line of the sandbox it would be more, and fail."""
    text = (DEPLOY / "seamgate.service").read_text()
    code, told = analyzed(text, tmp_path)
    assert (code, "for seamgate.service: 1.5 OK" in told) == (0, True), told
    assert "rates it 1.5" in (DEPLOY.parent / "docs" / "operations.md").read_text()
    code, told = analyzed(text.replace("RestrictNamespaces=yes\n", ""), tmp_path)
    assert code != 0, told


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the programs of the unit are there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    text = (DEPLOY / "seamgate.service").read_text().replace("/opt/seamgate/bin/seamgate", sys.executable)
    (tmp_path / "seamgate.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "seamgate.service")],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert "seamgate.service" not in done.stderr, done.stderr


def test_there_is_one_unit() -> None:
    """No page shows a unit of its own, which nobody would check: pages point to the one that is verified here."""
    docs = DEPLOY.parent / "docs"
    assert [page.name for page in docs.glob("*.md") if "[Service]" in page.read_text()] == []
    assert "(../deploy/seamgate.service)" in (docs / "tutorial-operator.md").read_text()


def test_the_environment_of_the_unit_is_made_as_that_of_the_image() -> None:
    """The tutorial makes /opt/seamgate from locked packages, by the steps that the container's build takes."""
    tutorial = (DEPLOY.parent / "docs" / "tutorial-operator.md").read_text()
    for steps in (tutorial, (DEPLOY / "Containerfile").read_text()):
        assert re.search(r"pip download .*--require-hashes --only-binary :all: .*-r requirements.lock", steps)
        assert re.search(r"pip wheel .*--no-deps --no-build-isolation", steps)
        assert re.search(r"/opt/seamgate/bin/pip install (.* )?seamgate( \\)?$", steps, re.MULTILINE)


def test_the_container_runs_without_root() -> None:
    """A user by number, in the last stage, and the probe that asks only whether it lives."""
    text = (DEPLOY / "Containerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert '"status", "--live"' in last
    assert "gcc" not in last


def instructions() -> list[list[tuple[str, str]]]:
    """Return the container file by stage: (instruction, its arguments), lines joined, comments left out."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages: list[list[tuple[str, str]]] = [[]]
    for line in filter(str.strip, text.splitlines()):
        name, _, arguments = line.strip().partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, " ".join(arguments.split())))
    return stages


def of_stage(stage: int, name: str) -> list[str]:
    """Return the arguments of all instructions of this name in a stage."""
    return [arguments for each, arguments in instructions()[stage] if each == name]


def test_the_container_file_has_two_stages_of_one_pinned_base() -> None:
    """The base names version and release, is no `latest`, and is one that the package says that it supports."""
    (argument,) = of_stage(0, "ARG")
    version = re.fullmatch(r"PYTHON=(3\.\d+)-slim-[a-z]+", argument)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in (DEPLOY.parent / "pyproject.toml").read_text()
    assert [of_stage(stage, "FROM") for stage in (1, 2)] == [["python:${PYTHON} AS build"], ["python:${PYTHON}"]]
    assert len(instructions()) == 3


def test_every_command_of_the_container_file_is_sound() -> None:
    """The shell reads it; apt installs named versions only, and leaves no lists; nothing is piped or fetched."""
    commands = [command for stage in (1, 2) for command in of_stage(stage, "RUN")]
    for command in commands:
        done = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True, check=False, timeout=10)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert not re.search(r"\||;|\b(?:sudo|curl|wget|chmod 777)\b", command), (
            "a failure would go unseen, or is too much"
        )
        if "apt-get" in command:
            found = re.search(r"apt-get update && apt-get install --yes --no-install-recommends (.*?) &&", command)
            assert found is not None, command
            assert all("=" in package for package in found[1].split()), found[1]
            assert "rm -rf /var/lib/apt/lists/*" in command
        for call in re.findall(r"pip (?:install|download|wheel) [^&]*", command):
            assert "--no-cache-dir" in call, call
    assert not [name for stage in instructions() for name, _ in stage if name == "ADD"]


def test_what_the_container_file_copies_is_there() -> None:
    """Of the context, without what is ignored, or of the stage before; nothing of the build but the environment."""
    for arguments in of_stage(1, "COPY"):
        *sources, _ = arguments.split()
        assert all((DEPLOY.parent / source).exists() for source in sources)
    assert of_stage(2, "COPY") == ["--from=build /opt/seamgate /opt/seamgate"]
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().split()
    assert {".git", ".venv", "tests", "**/*.jsonl"} <= set(ignored)
    needed = ("proxy", "plugins", "vmm", "shim", "hatch_build.py", "pyproject.toml", "Makefile", "README.md", "LICENSE")
    assert not set(ignored) & set(needed)


def test_the_container_runs_what_is_there() -> None:
    """Programs in the form that no shell reads, so that signals arrive; with options that the command has."""
    last = dict(instructions()[2])
    assert json.loads(last["ENTRYPOINT"]) == ["seamgate"]
    command = json.loads(last["CMD"])
    known = {option for parameter in serve.params for option in parameter.opts}
    assert command[0] == "serve" and {each for each in command if each.startswith("--")} <= known
    assert json.loads(last["HEALTHCHECK"].rpartition(" CMD ")[2]) == ["seamgate", "status", "--live"]
    assert last["STOPSIGNAL"] == "SIGTERM"
    names = [name for name, _ in instructions()[2]]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))


def test_the_user_of_the_container_owns_what_it_writes() -> None:
    """The folders that are volumes, and only those."""
    last = dict(instructions()[2])
    volumes = json.loads(last["VOLUME"])
    made = re.search(r"install -d -o seamgate -g seamgate -m 0700 ([^&]*?) &&", last["RUN"])
    assert made is not None and made[1].split() == volumes
    assert f"--uid {last['USER'].partition(':')[0]} " in last["RUN"]
    assert set(map(int, last["EXPOSE"].split())) == {port["containerPort"] for port in pod()["containers"][0]["ports"]}
