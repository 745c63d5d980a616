"""`seamgate doctor`: each check tells good from bad, says what to do, and the exit code follows."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from seamgate.ca.store import init_ca
from seamgate.cli import doctor
from seamgate.cli.doctor import Finding, Level, Setting, examine, render
from seamgate.upstream.resolver import DnsConfig
from seamgate_vmm.host import open_host


def setting(tmp_path: Path, **more: object) -> Setting:
    """Make a setting with an empty folder for the CA."""
    return Setting(ca_dir=tmp_path / "ca", **more)  # type: ignore[arg-type]


def only(found: object) -> Finding:
    """Return the one finding of a check."""
    if isinstance(found, Finding):
        return found
    assert isinstance(found, Iterable)
    findings = list(found)
    assert len(findings) == 1
    assert isinstance(findings[0], Finding)
    return findings[0]


def test_this_machine_can_run_the_tests(tmp_path: Path) -> None:
    """Where the suite runs, Python, OpenSSL, libraries and descriptors are fine."""
    for check in (doctor.check_python, doctor.check_openssl, doctor.check_libraries, doctor.check_files):
        assert only(check(setting(tmp_path))).level is not Level.FAIL


def test_every_finding_that_is_not_ok_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning without advice or a message that holds it."""
    monkeypatch.setattr(doctor, "_CLIENTS", doctor._CLIENTS[:1])
    here = setting(tmp_path, audit_dir=Path("/proc/none"), dns=DnsConfig(servers=("127.0.0.1:1",)))
    for finding in examine(here):
        assert finding.message
        assert finding.level is Level.OK or finding.advice or "`" in finding.message


def test_ca_missing_good_and_damaged(tmp_path: Path) -> None:
    """No CA is a warning with the command that makes one; a good one is fine; an open key is a failure."""
    here = setting(tmp_path)
    missing = only(doctor.check_ca(here))
    assert (missing.level, missing.advice) == (Level.WARN, "make one with `seamgate ca init`")
    init_ca(tmp_path / "ca")
    assert only(doctor.check_ca(here)).level is Level.OK
    (tmp_path / "ca" / "ca.key").chmod(0o644)
    damaged = only(doctor.check_ca(here))
    assert damaged.level is Level.FAIL
    assert "chmod 600" in damaged.message


def test_trust_store_must_not_be_our_own_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE with the gateway's own CA, as guests have it, would break every upstream: a failure."""
    init_ca(tmp_path / "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca" / "ca.pem"))
    finding = only(doctor.check_trust_store(setting(tmp_path)))
    assert finding.level is Level.FAIL
    assert "unset SSL_CERT_FILE" in finding.advice


def test_audit_folder(tmp_path: Path) -> None:
    """A folder that can be made is fine, one below a file is a failure; without a folder nothing is said."""
    assert only(doctor.check_audit(setting(tmp_path, audit_dir=tmp_path / "a" / "b"))).level is not Level.FAIL
    (tmp_path / "file").write_text("")
    assert only(doctor.check_audit(setting(tmp_path, audit_dir=tmp_path / "file" / "b"))).level is Level.FAIL
    assert list(doctor.check_audit(setting(tmp_path))) == []


def test_ports(tmp_path: Path) -> None:
    """A free port is fine, a taken one is a failure that says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = only(doctor.check_ports(setting(tmp_path, listen=(("127.0.0.1", port),))))
        assert (finding.level, "in use" in finding.message) == (Level.FAIL, True)
    assert only(doctor.check_ports(setting(tmp_path, listen=(("127.0.0.1", port),)))).level is Level.OK


def test_dead_and_missing_resolvers_are_warnings(tmp_path: Path) -> None:
    """A server that refuses is a warning that names it; so is a configuration without sense."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    dead = only(doctor.check_resolver(setting(tmp_path, dns=DnsConfig(servers=(f"127.0.0.1:{port}",)))))
    assert dead.level is Level.WARN
    assert str(port) in dead.message
    assert only(doctor.check_resolver(setting(tmp_path, dns=DnsConfig(servers=("x",))))).level is Level.FAIL


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EBUSY])
def test_kvm_says_why_not(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which /dev/kvm can't be opened is a warning with what to do."""

    def refuse(*_: object) -> int:
        raise OSError(code, "no")

    open_host.cache_clear()
    monkeypatch.setattr(os, "open", refuse)
    finding = only(doctor.check_kvm(setting(tmp_path)))
    assert finding.level is Level.WARN
    assert finding.message.startswith("/dev/kvm: ")
    assert "--isolation netns" in finding.advice


@pytest.mark.parametrize(
    ("version", "warned"),
    [("20.20.2", True), ("22.20.0", True), ("22.21.0", False), ("23.9.0", True), ("24.5.0", False), ("unknown", False)],
)
def test_node_is_told_when_it_ignores_the_proxy(version: str, warned: bool) -> None:
    """Versions of node whose fetch ignores proxy variables are warned of."""
    assert bool(doctor._client_advice("node", version)) is warned


def test_report_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command exits 3 exactly if something failed; --json carries the same findings."""
    for level, code in ((Level.OK, 0), (Level.WARN, 0), (Level.FAIL, 3)):
        finding = Finding("thing", level, "found", "do this")
        monkeypatch.setattr(doctor, "examine", lambda _, finding=finding: [finding])
        result = CliRunner().invoke(doctor.doctor, ["--ca-dir", str(tmp_path), "--json"])
        assert result.exit_code == code
        assert json.loads(result.output) == {
            "healthy": code == 0,
            "findings": [{"check": "thing", "level": level.value, "message": "found", "advice": "do this"}],
        }
        assert "-> do this" in render([finding])


def test_odd_listen_is_a_usage_error(tmp_path: Path) -> None:
    """--listen takes ADDRESS:PORT; anything else is exit code 2."""
    result = CliRunner().invoke(doctor.doctor, ["--listen", "8080"])
    assert result.exit_code == 2


def test_configuration_says_what_to_look_at(tmp_path: Path) -> None:
    """With -c, the folders, listeners and servers are those of seamgate.yaml."""
    path = tmp_path / "seamgate.yaml"
    path.write_text(
        'entries: {proxy: {listen: "127.0.0.1:0", guest: g}}\nguests: {g: {}}\npolicies: [p.yaml]\n'
        'ca: {dir: my-ca}\naudit: {path: log/audit.jsonl}\ndns: {servers: ["192.0.2.53"]}\n'
    )
    here = doctor.setting_of(path)
    assert (here.ca_dir, here.audit_dir) == (tmp_path / "my-ca", tmp_path / "log")
    assert (here.listen, here.dns.servers) == ((("127.0.0.1", 0),), ("192.0.2.53",))
