"""`seamgate doctor`: looks at this machine and says what works, what does not, and what to do about it.

Each check is a small function that takes the `Setting` and returns one `Finding` or several; `CHECKS` lists them in
the order of printing, and whoever adds a part of Seamgate that needs something of the machine adds a check here.
Checks read and probe, they change nothing. Exit code 3 if something that every gateway needs is missing.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.metadata
import json
import os
import re
import resource
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from seamgate.audit.writable import check_writable
from seamgate.ca.store import ca_directory, default_directory, files_of, is_ca_there, load_ca
from seamgate.cli.counting import counted
from seamgate.cli.doctor_gateway import check_credentials, check_exposure, check_ports
from seamgate.cli.findings import Finding, Level, Setting
from seamgate.config import load_config, split_listen
from seamgate.entry.netns.launcher import TRY
from seamgate.errors import AuditError, ConfigError, SeamgateError, TargetError
from seamgate.observe.logging import configure_logging
from seamgate.upstream import dns_message
from seamgate.upstream.dns_exchange import Server, exchange_udp
from seamgate.upstream.resolver import load_system_names
from seamgate.upstream.tls import TlsProfile, build_context

if TYPE_CHECKING:
    from seamgate.cli.doctor_clients import ClientProof

EXIT_MISSING = 3
_PROBE_S = 2.0
_CLIENT_S = 10.0
_ENOUGH_FILES = 4096
_SOON = datetime.timedelta(days=30)


def check_python(_: Setting) -> Finding:
    """Which Python this is. One that is too old can't even read this file."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("python", Level.OK, f"{version} ({sys.executable})")


def check_openssl(_: Setting) -> Finding:
    """OpenSSL speaks TLS 1.3 and is still maintained."""
    version = ssl.OPENSSL_VERSION
    if not ssl.HAS_TLSv1_3:
        return Finding("openssl", Level.FAIL, f"{version} has no TLS 1.3", "use a Python that is built with OpenSSL 3")
    if ssl.OPENSSL_VERSION_INFO < (3,):
        return Finding("openssl", Level.WARN, f"{version} gets no fixes any more", "use a Python with OpenSSL 3")
    return Finding("openssl", Level.OK, version)


def check_libraries(_: Setting) -> Iterable[Finding]:
    """Every library that Seamgate depends on is installed."""
    try:
        needed = [
            re.split(r"[ ;<>=!~\[]", line, maxsplit=1)[0] for line in importlib.metadata.requires("seamgate") or ()
        ]
    except importlib.metadata.PackageNotFoundError:
        needed = ["cryptography", "dnslib", "msgspec", "pluggy", "uvloop"]
    missing = [name for name in needed if not _version(name)]
    if missing:
        yield Finding("libraries", Level.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        named = ", ".join(
            f"{name} {_version(name)}" for name in ("uvloop", "cryptography", "msgspec") if _version(name)
        )
        yield Finding("libraries", Level.OK, f"all {len(needed)} are installed ({named})")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_trust_store(setting: Setting) -> Finding:
    """Upstreams can be verified, and not with the gateway's own CA."""
    own = files_of(setting.ca_dir).certificate
    named = os.environ.get("SSL_CERT_FILE", "")
    if named and _is_same_file(own, Path(named)):
        advice = "unset SSL_CERT_FILE in the gateway's own environment; it is for guests only"
        return Finding("trust store", Level.FAIL, "SSL_CERT_FILE names the gateway's own CA as the only root", advice)
    try:
        context = build_context(TlsProfile())
    except ConfigError as exc:
        return Finding("trust store", Level.FAIL, exc.message, "apt install ca-certificates")
    count = context.cert_store_stats()["x509_ca"]
    return Finding("trust store", Level.OK, counted(count, "root") if count else "a folder of roots")


def _is_same_file(one: Path, other: Path) -> bool:
    """Return whether both are there and one; what this user may not look at is no root of ours."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def check_resolver(setting: Setting) -> Iterable[Finding]:
    """DNS servers are known and answer."""
    try:
        servers = load_system_names(setting.dns).servers
    except ConfigError as exc:
        yield Finding("resolver", Level.FAIL, exc.message)
        return
    if not servers:
        advice = "name servers under dns.servers, or mend /etc/resolv.conf"
        yield Finding("resolver", Level.WARN, "no DNS server is known", advice)
    for server in servers:
        problem = asyncio.run(_ask(server))
        if problem:
            advice = "names will not resolve by it; check the network, or name other servers under dns.servers"
            yield Finding("resolver", Level.WARN, f"{server[0]} port {server[1]}: {problem}", advice)
        else:
            yield Finding("resolver", Level.OK, f"{server[0]} port {server[1]} answers")


async def _ask(server: Server) -> str:
    """Ask a server for the address of a root server; whatever it answers, it is alive. Return the problem, or ""."""
    query = dns_message.build_query("a.root-servers.net", dns_message.TYPE_A, int.from_bytes(os.urandom(2), "big"))
    try:
        async with asyncio.timeout(_PROBE_S):
            await exchange_udp(server, query)
    except TimeoutError:
        return f"no answer within {_PROBE_S:g} s"
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


def check_ca(setting: Setting) -> Iterable[Finding]:
    """The gateway's CA is there, valid, and its key is private; or those that guests have of their own."""
    each_guest = setting.config is not None and setting.config.ca.each_guest
    guests = sorted(setting.config.guests) if setting.config is not None and each_guest else [""]
    for guest in guests:
        yield _ca(setting.ca_dir, guest)


def _ca(directory: Path, guest: str) -> Finding:
    files, check = files_of(directory, guest), f"ca of {guest}" if guest else "ca"
    try:
        if not is_ca_there(files):
            advice = "`seamgate serve` makes it at its start" if guest else "make one with `seamgate ca init`"
            return Finding(check, Level.WARN, f"none in {files.directory}", advice)
        certificate = load_ca(directory, guest=guest).certificate
    except ConfigError as exc:
        return Finding(check, Level.FAIL, exc.message)
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if left < _SOON:
        advice = f"plan the change: `{files.command} --force`, then give guests the new ca.pem"
        return Finding(check, Level.WARN, f"expires in {left.days} days", advice)
    return Finding(check, Level.OK, f"{files.certificate}, {left.days} days left")


def check_audit(setting: Setting) -> Iterable[Finding]:
    """The journal can be written, and has room."""
    folder = setting.audit_dir
    if folder is None:
        return
    journal = setting.config.audit.file if setting.config is not None else folder / "audit.jsonl"
    try:
        check_writable(journal)
    except AuditError as error:
        yield Finding("audit", Level.FAIL, error.message)
        return
    there = next(each for each in (folder, *folder.absolute().parents) if _is_there(each))
    free_mib = shutil.disk_usage(there).free >> 20
    if free_mib < 512:
        advice = "make room: what can't be recorded is denied"
        yield Finding("audit", Level.WARN, f"only {free_mib} MiB are free for {folder}", advice)
    else:
        yield Finding("audit", Level.OK, f"{folder}, {free_mib >> 10} GiB free")


def _is_there(path: Path) -> bool:
    """Return whether something is there, as far as this user may see."""
    return os.path.exists(path)  # Path.exists() raises where a folder may not be looked into


def check_files(_: Setting) -> Finding:
    """Enough descriptors may be open: each exchange needs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES:
        return Finding(
            "open files", Level.WARN, f"at most {hard}", "raise the limit: LimitNOFILE=, or `ulimit -Hn 65536`"
        )
    return Finding("open files", Level.OK, f"{soft}, can be raised to {'any' if hard < 0 else hard}")


def check_kvm(_: Setting) -> Finding:
    """A first guest runs, for the isolation `kvm`; the finding says what the boundary is worth here."""
    try:
        from seamgate_vmm.errors import KvmUnusable
        from seamgate_vmm.host import describe, open_host
    except ImportError:
        return Finding("kvm", Level.WARN, "its C parts are not built here", "`make build`, or use --isolation netns")
    try:
        open_host()
    except KvmUnusable as error:
        problem, _semicolon, advice = str(error).partition("; ")
        return Finding("kvm", Level.WARN, problem, f"{advice or 'see docs/vmm.md'}; else use --isolation netns")
    return Finding("kvm", Level.OK, describe())


def check_kvm_workers(_: Setting) -> Iterable[Finding]:
    """What the processes that run microVMs are kept small by, beside their jail."""
    try:
        from seamgate_vmm.confinement import missing
    except ImportError:
        return  # `kvm` has said so
    for each in missing():
        what, advice = each.split(": ", 1)
        yield Finding("kvm workers", Level.WARN, f"{what}; each keeps its guests' limits by itself", advice)


def check_namespaces(_: Setting) -> Finding:
    """What the isolation `netns` needs: namespaces, and rules in them. Tried in a child process."""
    try:
        child = subprocess.run(  # noqa: S603 - this very interpreter
            [sys.executable, "-m", _LAUNCHER, TRY], capture_output=True, text=True, timeout=_CLIENT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return Finding("namespaces", Level.WARN, f"could not be tried: {type(exc).__name__}", "use --isolation proxy")
    if child.returncode == 0:
        found = "user, process and network namespaces with rules in them may be made"
        if pairs_only := child.stdout.strip():
            found += f", but programs have no unix sockets other than pairs: {pairs_only}"
            return Finding("namespaces", Level.WARN, found, "`sysctl kernel.yama.ptrace_scope=1` as root")
        return Finding("namespaces", Level.OK, found)
    said = child.stderr.strip().splitlines()
    problem, *advice = said[-1].split("; ", 1) if said else ["the attempt was killed"]
    return Finding("namespaces", Level.WARN, problem, advice[0] if advice else _namespace_advice())


_LAUNCHER = "seamgate.entry.netns.launcher"


def _namespace_advice() -> str:
    if _text("/proc/sys/kernel/unprivileged_userns_clone").strip() == "0":
        return "`sysctl kernel.unprivileged_userns_clone=1` as root"
    if _text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1":
        return "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` as root, or an AppArmor profile for python"
    if _text("/proc/sys/user/max_user_namespaces").strip() == "0":
        return "`sysctl user.max_user_namespaces=15000` as root"
    return "a container's seccomp profile may forbid it; use --isolation proxy, or run outside of the container"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# (name, command that prints its version)
_CLIENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("curl", ("curl", "--version")),
    ("git", ("git", "--version")),
    ("pip", (sys.executable, "-m", "pip", "--version")),
    ("uv", ("uv", "--version")),
    ("node", ("node", "--version")),
    ("npm", ("npm", "--version")),
    ("deno", ("deno", "--version")),
    ("bun", ("bun", "--version")),
    ("go", ("go", "version")),
    ("java", ("java", "-version")),
    ("cargo", ("cargo", "--version")),
    ("aws", ("aws", "--version")),
    ("openssl", ("openssl", "version")),
    ("wget", ("wget", "--version")),
)
_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def check_clients(setting: Setting) -> Iterable[Finding]:
    """Which clients are here, and what must be known of them."""
    if not setting.names_clients:
        return
    with ThreadPoolExecutor(max_workers=4) as pool:
        versions = dict(zip((name for name, _ in _CLIENTS), pool.map(_client_version, _CLIENTS), strict=True))
    for name, version in versions.items():
        if version:
            problem = _client_advice(name, version)
            yield Finding(f"client {name}", Level.WARN if problem else Level.OK, version, problem)
    absent = [name for name, version in versions.items() if not version]
    if absent:
        yield Finding("clients", Level.OK, f"not installed: {', '.join(absent)}")


def _client_version(client: tuple[str, tuple[str, ...]]) -> str:
    """Return the version, "unknown" if the program says none, "" if it is not there."""
    _, command = client
    path = shutil.which(command[0])
    if path is None:
        return ""
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_TOOL_OPTIONS"}
    try:
        result = subprocess.run(  # noqa: S603 - fixed commands
            [path, *command[1:]], capture_output=True, text=True, timeout=_CLIENT_S, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if result.returncode != 0:
        return ""
    found = _NUMBER.search(result.stdout + result.stderr)
    return found.group() if found else "unknown"


def _client_advice(name: str, version: str) -> str:
    if name == "wget":
        return "wget reads no variable for roots: pass --ca-certificate, or use curl"
    if name == "node" and version != "unknown":
        major, minor = (int(part) for part in version.split(".")[:2])
        if (major, minor) < (22, 21) or major == 23 or (major, minor) == (24, 0):
            return "its fetch ignores proxy variables (NODE_USE_ENV_PROXY needs 22.21 or 24.5); use netns or a base URL"
    return ""


Check = Callable[[Setting], "Finding | Iterable[Finding]"]
CHECKS: tuple[Check, ...] = (
    check_python,
    check_openssl,
    check_libraries,
    check_trust_store,
    check_resolver,
    check_ca,
    check_audit,
    check_credentials,
    check_exposure,
    check_ports,
    check_files,
    check_kvm,
    check_kvm_workers,
    check_namespaces,
    check_clients,
)


def examine(setting: Setting, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Run the checks, return what they found, in order."""
    findings: list[Finding] = []
    for check in checks:
        try:
            found = check(setting)
            findings.extend([found] if isinstance(found, Finding) else found)
        except OSError as error:  # what can't be looked at is a finding too, and the other checks go on
            name = check.__name__.removeprefix("check_").replace("_", " ")
            where = f" ({error.filename})" if error.filename else ""
            advice = "run it as the gateway's user, and give that user what it needs to read"
            findings.append(Finding(name, Level.FAIL, f"{error.strerror or error}{where}", advice))
    return findings


_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def render(findings: Iterable[Finding]) -> str:
    """Return the report for people: one line a finding, what to do below it."""
    lines = []
    for finding in findings:
        mark = click.style(f"{finding.level:4}", fg=_COLOURS[finding.level], bold=finding.level is not Level.OK)
        lines.append(f"{mark}  {finding.check:15}  {finding.message}")
        if finding.advice:
            lines.append(f"{'':23}-> {finding.advice}")
    return "\n".join(lines)


@click.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path, dir_okay=False), help="Check what this seamgate.yaml names."
)
@click.option(
    "--ca-dir", type=click.Path(path_type=Path), help="Folder of the CA. [default: $XDG_DATA_HOME/seamgate/ca]"
)
@click.option("--audit-dir", type=click.Path(path_type=Path), help="Folder of the journal: can it be written?")
@click.option("--listen", multiple=True, metavar="ADDRESS:PORT", help="Should be free; repeatable.")
@click.option("--clients", is_flag=True, help="Send each client that is here through a gateway: does it trust the CA?")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    config: Path | None,
    ca_dir: Path | None,
    audit_dir: Path | None,
    listen: tuple[str, ...],
    clients: bool,
    as_json: bool,
) -> None:
    """Look at this machine: what works, what does not, and what to do about it."""
    setting = setting_of(config) if config is not None else Setting(ca_dir=default_directory())
    changed = {"ca_dir": ca_dir, "audit_dir": audit_dir, "listen": tuple(_parse_listen(text) for text in listen)}
    setting = msgspec.structs.replace(setting, **{name: value for name, value in changed.items() if value})
    setting = msgspec.structs.replace(setting, names_clients=not clients)
    findings = examine(setting)
    proofs: list[ClientProof] = []
    if clients:
        try:
            proofs = _prove_clients(setting.ca_dir)
        except SeamgateError as error:
            findings.append(Finding("clients", Level.FAIL, f"could not be tried: {error.message}", "see `ca` above"))
    findings += _client_findings(proofs)
    healthy = not any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        report = {"healthy": healthy, "findings": msgspec.to_builtins(findings)}
        click.echo(json.dumps(report | ({"clients": msgspec.to_builtins(proofs)} if clients else {}), indent=2))
    else:
        click.echo(render(findings))
    if not healthy:
        raise SystemExit(EXIT_MISSING)


def _prove_clients(ca_dir: Path) -> list[ClientProof]:
    # Not above: it needs every library, and the doctor is to say which one is missing.
    from seamgate.cli.doctor_clients import prove_clients

    configure_logging("auto", "error")
    return asyncio.run(prove_clients(ca_dir))


def _client_findings(proofs: Iterable[ClientProof]) -> Iterable[Finding]:
    absent = []
    for proof in proofs:
        level = Level.OK if proof.fine else Level.WARN if proof.known else Level.FAIL
        if proof.installed:
            yield Finding(f"client {proof.name}", level, f"{proof.version}: {proof.message}".lstrip(": "), proof.advice)
        else:
            absent.append(proof.name)
    if absent:
        yield Finding("clients", Level.OK, f"not installed: {', '.join(absent)}")


def setting_of(path: Path) -> Setting:
    """Return what a configuration file names.

    Raises:
        ConfigError: it can't be used.
    """
    config = load_config(path)
    entries = (config.entries.proxy, config.entries.base_url, config.entries.socks5)
    return Setting(
        ca_dir=ca_directory(config.ca, config.base),
        audit_dir=config.audit.file.parent,
        listen=tuple(split_listen(entry.listen) for entry in entries if entry is not None),
        dns=config.dns,
        config=config,
    )


def _parse_listen(text: str) -> tuple[str, int]:
    try:
        return split_listen(text)
    except TargetError as exc:
        raise click.BadParameter(exc.message, param_hint="--listen") from None
