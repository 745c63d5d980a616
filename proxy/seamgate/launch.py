"""Puts one program under a gateway of its own: a private configuration, the guest's environment, the child process.

Called by `seamgate run` and by the demo. What the configuration says about policies, credentials and plugins holds;
entries, guests and audit are replaced, so that the gateway is this one program's. The guest's environment holds
placeholders where the gateway's own holds credentials. Keeping a program from going around the gateway is not done
here: that is what an isolation is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hashlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from seamgate.audit.config import AuditConfig, default_path
from seamgate.audit.head import head_path
from seamgate.ca.environment import client_environment
from seamgate.ca.store import GUESTS, CaFiles, ca_directory, init_ca, is_ca_there
from seamgate.config import AdminConfig, BaseUrlEntry, Config, Entries, KvmEntry, NetnsEntry, ProxyEntry
from seamgate.credentials.config import shown_placeholder
from seamgate.entry.identity import GuestConfig, TokenSource
from seamgate.errors import ConfigError
from seamgate.flow import Isolation
from seamgate.limits import LimitsConfig
from seamgate.places import FILE_OPTION, anchored
from seamgate.watching import watched_files

GUEST = "run"
"""The guest's id, in the audit log too."""
CONNECTIONS = 1000
"""Of one program at once, where the configuration does not say how many."""
CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""Exit codes of shells (POSIX XCU 2.8.2), for a program that could not be started."""
_OF_THIS_MACHINE = frozenset("PATH HOME TMPDIR PWD OLDPWD SHELL SHLVL USER LOGNAME HOSTNAME VIRTUAL_ENV _".split())
_OF_THIS_PROCESS = ("LD_", "PYTHON", "MALLOC_", "GLIBC_", "XDG_", "DBUS_", "SSH_", "SEAMGATE_")
TRUSTED_IN_MICROVM = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
)
"""Where OpenSSL and BoringSSL of Debian, Fedora and Alpine look; guests have no certificates of the machine."""
_LOOPBACK = "127.0.0.1:0"
_PR_SET_DUMPABLE = 4  # Source: linux/prctl.h
# SIGINT and SIGQUIT come from the terminal, which sends them to the guest itself.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


def private_config(
    config: Config, *, token: str, labels: Mapping[str, str], audit_path: Path, isolation: Isolation = Isolation.PROXY
) -> Config:
    """Return the configuration for one guest: its entries, token and labels, a journal of its own.

    Args:
        config: policies, credentials, plugins and the rest are taken from it.
        token: what the guest shows to the gateway; nobody else has one. "" where the channel tells who it is.
        labels: what policies match on.
        audit_path: the journal.
        isolation: PROXY listens on free loopback ports; NETNS nowhere but in the guest's namespace; KVM nowhere.
    """
    base_url = config.entries.base_url
    if isolation is Isolation.NETNS:
        entries = Entries(netns=config.entries.netns or NetnsEntry())
    elif isolation is Isolation.KVM:
        entries = Entries(kvm=msgspec.structs.replace(config.entries.kvm or KvmEntry(), pool=None))
    else:
        entries = Entries(
            proxy=ProxyEntry(listen=_LOOPBACK),
            base_url=BaseUrlEntry(listen=_LOOPBACK, routes=base_url.routes) if base_url is not None else None,
        )
    limits = config.limits
    if limits.connections == LimitsConfig().connections:  # a service's default: no program needs so many open files
        limits = msgspec.structs.replace(limits, connections=CONNECTIONS)
    source = TokenSource(sha256=hashlib.sha256(token.encode()).hexdigest()) if token else None
    return msgspec.structs.replace(
        config,
        entries=entries,
        guests={GUEST: GuestConfig(token=source, labels=dict(labels))},
        audit=msgspec.structs.replace(config.audit, path=str(audit_path)),
        ca=msgspec.structs.replace(
            config.ca, each_guest=False
        ),  # whoever calls made one for this guest, or has it share
        admin=AdminConfig(),
        workers=1,
        limits=limits,
    )


def new_token() -> str:
    """Return a fresh token."""
    return secrets.token_urlsafe(24)


def run_journal(audit: AuditConfig) -> Path:
    """Return the journal of one run: beside the configured one, in `runs`, because a journal has one writer."""
    folder = (Path(audit.path).expanduser() if audit.path else default_path()).parent / "runs"
    return folder / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.jsonl"


def guest_environment(
    config: Config,
    addresses: Mapping[str, tuple[str, int]],
    ca_path: Path,
    token: str,
    environ: Mapping[str, str],
    no_roots: str | Path = "",
) -> dict[str, str]:
    """Return the environment for the guest.

    It is `environ` with the proxy's and the CA's variables, without the variables that credentials and tokens come
    from. Where one named a credential, it holds the credential's placeholder, so that SDKs that want a key find one.
    `no_roots` is an empty folder: see `client_environment`.
    """
    host, port = addresses["proxy"]
    environment = without_secrets(config, environ)
    user = f"{GUEST}:{token}@" if token else ""
    environment |= client_environment(f"http://{user}{_bracketed(host)}:{port}", ca_path, no_roots)
    if "base_url" in addresses:
        host, port = addresses["base_url"]
        environment["SEAMGATE_BASE_URL"] = f"http://{_bracketed(host)}:{port}" + (f"/~{token}" if token else "")
    return environment


def without_secrets(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables of tokens, and with placeholders in those that credentials come from."""
    environment = dict(environ)
    for guest in config.guests.values():
        if guest.token is not None and guest.token.env is not None:
            environment.pop(guest.token.env, None)
    login = config.upstream_proxy.login if config.upstream_proxy is not None else None
    if login is not None and login.password.env is not None:
        environment.pop(login.password.env, None)
    environment |= {
        credential.source.env: shown_placeholder(name, credential)
        for name, credential in reversed(list(config.credentials.items()))
        if credential.source.env is not None
    }
    return environment


def microvm_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a guest in a microVM: placeholders, and nothing that is about this machine.

    It needs no proxy and no CA, and it has a home, a PATH and loader settings of its own.
    """
    foreign = client_environment("http://127.0.0.1:1", "/ca.pem", "/no-roots").keys() | _OF_THIS_MACHINE
    kept = {
        name: value for name, value in environ.items() if name not in foreign and not name.startswith(_OF_THIS_PROCESS)
    }
    return without_secrets(config, kept)


def secret_files(config: Config, journal: Path) -> list[Path]:
    """Return what a guest of the same user must not read or write, where its isolation can hide files.

    The CA's key and those of guests' own, what credentials, tokens and plugins (options `..._file`) are read from, keys
    of client certificates, the journal of this run, that of the configuration, and the folder with those of other runs.
    """
    names = [credential.source.file for credential in config.credentials.values()]
    names += [guest.token.file for guest in config.guests.values() if guest.token is not None]
    if config.upstream_proxy is not None and config.upstream_proxy.login is not None:
        names.append(config.upstream_proxy.login.password.file)
    # A plugin's own: by convention an option that ends so names a file, from the configuration's folder.
    names += [
        value
        for plugin in config.plugins
        for option, value in plugin.options.items()
        if option.endswith(FILE_OPTION) and isinstance(value, str)
    ]
    shown = [origin.client_certificate for origin in config.upstream_tls.origins]
    names += [each.key or each.certificate for each in shown if each is not None]
    authority = ca_directory(config.ca, config.base)
    keys = (CaFiles(authority).key, authority / GUESTS)
    configured = config.audit.file.parent.resolve() / config.audit.file.name
    journals = (journal, head_path(journal), configured, run_journal(config.audit).parent.resolve())
    secrets = (anchored(name, config.base) for name in (*keys, *journals, *names) if name)
    return [Path(each) for each in dict.fromkeys(secrets)]


def policy_files(config: Config) -> list[Path]:
    """Return what a guest may read and must not write: what later runs, and reloads, are configured by."""
    return [Path(name) for name in watched_files(config.base / Path(config.source).name, config)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def ensure_ca(directory: Path) -> bool:
    """Make a CA if there is none; return whether one was made. Two gateways that start at once agree on one.

    Raises:
        ConfigError: it can't be written.
    """
    files = CaFiles(directory)
    if is_ca_there(files):
        return False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = Path(tempfile.mkdtemp(prefix=".ca-", dir=directory.parent))
    except OSError as error:
        raise ConfigError(f"the CA can't be written to {directory}: {error.strerror}") from None
    try:
        init_ca(draft)
        # Takes the place of a folder only if that is empty: whoever comes second uses what the first one made.
        with contextlib.suppress(OSError):
            draft.rename(directory)
            return True
        if CaFiles(directory).certificate.exists():
            return False
        raise ConfigError(f"{directory} holds other files; name another folder under ca.dir, or empty this one")
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def settle_memory() -> None:
    """Tell the garbage collector that what was loaded stays, and to look for cycles seldom.

    Exchanges form no cycles that outlive them; with Python's default it would look at all of them every few requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def forbid_inspection() -> None:
    """Keep other processes of this user from reading this one's memory and environment (prctl(2), proc(5)).

    Else a guest in the isolation `proxy` finds the credentials in /proc/<gateway>/environ. Root is not held by it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def find_program(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command with its program's path.

    Raises:
        FileNotFoundError: it is not on the PATH.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(2, "no such program", command[0])
    return [program, *command[1:]]


async def run_program(command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int] = ()) -> int:
    """Run a program with this process's terminal, pass signals to it, and return its exit code as a shell would.

    Args:
        command: a program and its arguments.
        environment: all of the program's.
        descriptors: what it inherits beside the standard streams.

    Raises:
        OSError: it could not be started.
    """
    command = find_program(command, environment)
    with _Forwarding() as forwarding:
        child = await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=descriptors)
        forwarding.reach(child)
        code = await child.wait()
    return code if code >= 0 else 128 - code


class _Forwarding:
    """Passes signals to the child; those that come before there is one wait for it."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._early: list[signal.Signals] = []

    def reach(self, child: asyncio.subprocess.Process) -> None:
        """Here is the child."""
        self._child = child
        for number in self._early:
            self._forward(number)

    def _forward(self, number: signal.Signals) -> None:
        if number in _FROM_TERMINAL and _in_foreground():
            return
        if self._child is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def __enter__(self) -> _Forwarding:
        for number in (*_FORWARDED, *_FROM_TERMINAL):
            asyncio.get_running_loop().add_signal_handler(number, self._forward, number)
        return self

    def __exit__(self, *error: object) -> None:
        for number in (*_FORWARDED, *_FROM_TERMINAL):
            asyncio.get_running_loop().remove_signal_handler(number)


def _in_foreground() -> bool:
    """Whether the terminal, if there is one, sends its signals to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
