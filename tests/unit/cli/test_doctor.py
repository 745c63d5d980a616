"""`seamgate doctor`: each check tells good from bad, says what to do, and the exit code follows."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from seamgate.audit.config import AuditConfig
from seamgate.audit.journal import Journal
from seamgate.ca.store import CaConfig, init_ca
from seamgate.cli import doctor, doctor_gateway
from seamgate.cli.doctor import examine, render
from seamgate.cli.findings import Finding, Level, Setting
from seamgate.config import Config
from seamgate.entry.identity import GuestConfig
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


def test_what_cannot_be_looked_at_is_a_finding(tmp_path: Path) -> None:
    """A check that the system refuses fails by itself, with its name, and the others go on."""

    def check_some_folder(_: Setting) -> Finding:
        return Finding("some folder", Level.OK, str((tmp_path / "loop" / "x").stat()))

    (tmp_path / "loop").symlink_to("loop")
    looped = setting(tmp_path / "loop", audit_dir=tmp_path / "loop" / "audit")
    found = examine(looped, (check_some_folder, doctor.check_ca, doctor.check_trust_store, doctor.check_audit))
    assert [each.check for each in found] == ["some folder", "ca", "trust store", "audit"]
    assert [each.level for each in found[:2]] == [Level.FAIL, Level.FAIL]
    assert str(tmp_path / "loop") in found[0].message
    assert found[0].advice


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


def test_each_guests_ca_is_looked_at(tmp_path: Path) -> None:
    """With `ca: each_guest`, one finding for each guest: one that is missing is made by `serve`."""
    init_ca(tmp_path / "ca", guest="a")
    config = Config(ca=CaConfig(each_guest=True), guests={"b": GuestConfig(), "a": GuestConfig()})
    found = list(doctor.check_ca(setting(tmp_path, config=config)))
    assert [(each.check, each.level) for each in found] == [("ca of a", Level.OK), ("ca of b", Level.WARN)]
    assert "seamgate serve" in found[1].advice


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
        finding = only(doctor_gateway.check_ports(setting(tmp_path, listen=(("127.0.0.1", port),))))
        assert (finding.level, "in use" in finding.message) == (Level.FAIL, True)
    assert only(doctor_gateway.check_ports(setting(tmp_path, listen=(("127.0.0.1", port),)))).level is Level.OK


def test_a_port_that_the_own_gateway_holds_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway hides what it has open; that it writes the journal of this configuration tells that it runs."""
    config = Config(audit=AuditConfig(path=str(tmp_path / "audit.jsonl")), base=tmp_path)
    monkeypatch.setattr(doctor_gateway, "_holders", lambda port: iter(()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = setting(tmp_path, listen=(("127.0.0.1", taken.getsockname()[1]),), config=config)
        assert only(doctor_gateway.check_ports(here)).level is Level.FAIL
        journal = Journal(config.audit)
        finding = only(doctor_gateway.check_ports(here))
        journal.close()
        assert (finding.level, "your own gateway is running" in finding.message) == (Level.OK, True)
        assert only(doctor_gateway.check_ports(here)).level is Level.FAIL


SECRET = "doctor-5ecret-value"
SOURCES: dict[str, tuple[dict[str, Any], Level, str]] = {
    "env": ({"env": "DOCTOR_KEY"}, Level.OK, "the variable DOCTOR_KEY gives a value"),
    "no env": ({"env": "DOCTOR_NONE"}, Level.WARN, "the environment variable DOCTOR_NONE is not set here"),
    "file": ({"file": "key"}, Level.OK, "gives a value"),
    "open file": ({"file": "open"}, Level.WARN, "is open to other users"),
    "no file": ({"file": "none"}, Level.FAIL, "can't be read: No such file"),
    "command": ({"command": ["cat", "key"]}, Level.OK, "the command cat gives a value"),
    "bad command": ({"command": ["false"]}, Level.FAIL, "its command gave no value"),
    "no command": ({"command": ["no-such-program"]}, Level.FAIL, "is not found or not executable"),
}


@pytest.mark.parametrize("what", SOURCES)
def test_credentials_are_looked_up(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source is asked as the gateway would ask it; what it gives is shown nowhere."""
    monkeypatch.setenv("DOCTOR_KEY", SECRET)
    for name, mode in (("key", 0o600), ("open", 0o644)):
        (tmp_path / name).write_text(SECRET)
        (tmp_path / name).chmod(mode)
    source, level, message = SOURCES[what]
    source = {key: [*value[:-1], str(tmp_path / value[-1])] if value == ["cat", "key"] else value
              for key, value in source.items()}  # fmt: skip
    config = {
        "entries": {"proxy": {"listen": "127.0.0.1:0"}},
        "guests": {"g": {"token": {"env": "DOCTOR_KEY"}}, "h": {"token": {"env": "DOCTOR_NONE"}}},
        "policies": ["p.yaml"],
        "credentials": {"key": {"source": source, "inject": {"header": "x-key"}, "hosts": ["a.test"]}},
    }
    (tmp_path / "seamgate.yaml").write_text(json.dumps(config))
    found = list(doctor_gateway.check_credentials(doctor.setting_of(tmp_path / "seamgate.yaml")))
    assert [each.check for each in found] == ["credential key", "guest g", "guest h"]
    assert (found[0].level, message in found[0].message) == (level, True), found[0]
    assert [each.level for each in found[1:]] == [Level.OK, Level.WARN]
    assert SECRET not in repr(found)
    assert all(each.advice for each in found if each.level is not Level.OK)


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
