"""`seamgate doctor --clients`: real clients through its throw-away gateway, told apart by what they do wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seamgate.ca.store import init_ca
from seamgate.cli import doctor_clients
from seamgate.cli.client_probes import PROBES, Place, Probe
from seamgate.cli.doctor_clients import ClientProof, prove_clients
from support.cli import seamgate

pytestmark = pytest.mark.clients

# What each of these is known to do on a machine where nothing of its own configuration interferes.
USUAL = (
    "curl", "git", "pip", "uv", "npm", "deno", "bun", "go", "openssl", "urllib", "requests", "httpx", "aiohttp",
    "botocore",
)  # fmt: skip


def left_out(*names: str) -> None:
    """Skip a test for want of a client; where all are required, as in CI, fail, but for what pip and apt-get lack."""
    if os.environ.get("SEAMGATE_TEST_CLIENTS") == "required" and "bun" not in names:
        pytest.fail(f"{', '.join(names)} should be installed here")
    pytest.skip(f"{' or '.join(names)} is not installed")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of whoever runs the tests don't count, and the Python of the tests is the one on the PATH."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


async def prove(ca: Path, *names: str) -> dict[str, ClientProof]:
    """Examine the built-in probes of these names."""
    probes = [probe for probe in PROBES if probe.name in names]
    return {proof.name: proof for proof in await prove_clients(ca, probes)}


async def examine(ca: Path, command: Callable[[Place], list[str]], *, gap: str = "") -> ClientProof:
    """Examine one client that is curl with some options."""
    (proof,) = await prove_clients(ca, [Probe(name="odd", program="curl", command=command, gap=gap)])
    return proof


@pytest.mark.parametrize("name", USUAL)
async def test_a_client_with_the_variables_is_proven(name: str, tmp_path: Path) -> None:
    """It comes to the gateway, shows its login, trusts the CA, and refuses what another CA signed."""
    proof = (await prove(tmp_path / "none", name))[name]
    if not proof.installed:
        left_out(name)
    assert proof.fine, proof
    assert proof.version[0].isdigit()


async def test_a_machine_without_any_is_told_so(tmp_path: Path) -> None:
    """Where none of the clients is installed, each is named as such, and nothing fails."""
    missing = Probe(name="odd", program="no-such-program-here", command=lambda at: ["no-such-program-here", at.url])
    (proof,) = await prove_clients(tmp_path / "none", [missing])
    assert (proof.name, proof.installed) == ("odd", False)


async def test_known_gaps_are_told_apart_from_faults(tmp_path: Path) -> None:
    """Java shows no login, wget is told of no roots: known, and what to do is said."""
    proofs = await prove(tmp_path / "none", "java", "wget")
    if missing := [name for name, proof in proofs.items() if not proof.installed]:
        left_out(*missing)
    assert (proofs["java"].trusted, proofs["java"].proxied, proofs["java"].known) == (True, False, True)
    assert "entries.proxy.guest" in proofs["java"].advice
    assert (proofs["wget"].trusted, proofs["wget"].known) == (False, True)
    assert "--ca-certificate" in proofs["wget"].advice


async def test_node_is_proven_or_its_gap_is_named(tmp_path: Path) -> None:
    """Old ones trust the CA but ignore the proxy's variables in fetch; new ones come by themselves."""
    proof = (await prove(tmp_path / "none", "node"))["node"]
    if not proof.installed:
        left_out("node")
    assert proof.trusted, proof
    assert proof.fine or (proof.known and "base URL" in proof.advice)


async def test_who_checks_nothing_is_found_out(tmp_path: Path) -> None:
    """A client whose verification is off is served, but not proven."""
    proof = await examine(tmp_path / "none", lambda at: ["curl", "-sk", at.url])
    assert (proof.trusted, proof.verifies, proof.fine, proof.known) == (True, False, False, False)
    assert "verification" in proof.advice


async def test_who_does_not_trust_is_found_out(tmp_path: Path) -> None:
    """A client with roots of its own in the way; the advice names the variable."""
    other = init_ca(tmp_path / "other").files.certificate
    proof = await examine(tmp_path / "none", lambda at: ["curl", "-sS", "--cacert", str(other), at.url])
    assert (proof.trusted, proof.proxied) == (False, True)
    assert proof.message.startswith("does not trust the CA: curl: (60)")
    assert "SSL_CERT_FILE" in proof.advice


async def test_who_goes_around_is_found_out(tmp_path: Path) -> None:
    """A client that ignores the proxy never comes to the gateway; one without a login is told apart."""
    around = await examine(tmp_path / "none", lambda at: ["curl", "-sS", "--noproxy", "*", at.url])
    assert (around.trusted, around.proxied) == (False, False)
    assert around.message.startswith("does not come to the gateway by itself: curl: (6)")
    nobody = await examine(tmp_path / "none", lambda at: ["curl", "-sS", "-x", f"http://{at.proxy}", at.url])
    assert (nobody.trusted, nobody.proxied) == (True, False)
    assert "no login" in nobody.message


async def test_who_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client gets its time and no more, its children included."""
    monkeypatch.setattr(doctor_clients, "LIMIT_S", 0.3)
    proof = await examine(tmp_path / "none", lambda _: ["sh", "-c", "sleep 600 & wait"])
    assert (proof.trusted, proof.message) == (False, "was not done after 0.3 s")


async def test_the_ca_that_is_there_is_the_one_that_is_examined(tmp_path: Path) -> None:
    """A CA that is limited to some names is tried with a name below them."""
    init_ca(tmp_path / "ca", names=["corp.example"])
    urls: list[str] = []

    def command(at: Place) -> list[str]:
        urls.append(at.url)
        return ["curl", "-sS", at.url]

    assert (await examine(tmp_path / "ca", command)).fine
    assert all(url.startswith("https://doctor.corp.example:") for url in urls)


def test_the_command(tmp_path: Path) -> None:
    """Findings and, with --json, facts; absent clients are named; a CA that can't be used fails the report."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("curl", "git"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    (programs / "python3").symlink_to(sys.executable)
    init_ca(tmp_path / "ca")
    options = ("doctor", "--clients", "--ca-dir", str(tmp_path / "ca"))
    done = seamgate(*options, "--json", home=tmp_path, env={"PATH": str(programs)})
    report = json.loads(done.stdout)
    clients = {each["name"]: each for each in report["clients"]}
    assert clients["curl"]["trusted"] and clients["curl"]["verifies"] and clients["curl"]["proxied"]
    assert not clients["java"]["installed"]
    findings = {each["check"]: each for each in report["findings"]}
    assert findings["client git"]["level"] == "ok"
    assert "java" in findings["clients"]["message"]
    (tmp_path / "ca" / "ca.key").chmod(0o644)
    done = seamgate(*options, home=tmp_path, env={"PATH": str(programs)})
    assert done.returncode == 3
    assert "could not be tried" in done.stdout
