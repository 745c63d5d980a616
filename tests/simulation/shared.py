"""What is the same in every schedule of a process, and is therefore made once: keys, contexts, policies, vouching.

Each schedule has a gateway of its own, so that nothing of one is in another. What is shared here is what a function
of its arguments returns anyway; a test compares a seed alone with the same seed among many.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from seamgate import pipeline, registry, signing
from seamgate.audit import line
from seamgate.ca.leaf import CertificateAuthority
from seamgate.ca.store import init_ca
from seamgate.config import Config, parse_config
from seamgate.credentials import known, redaction, scanner
from seamgate.credentials.redaction import RedactionSet
from seamgate.errors import SeamgateError
from seamgate.registry import LoadedPlugin, load_aside
from seamgate.upstream import dns_exchange, tls
from simulation.chance import CHANCE, of_usual_length, with_signatures_of_one_length
from simulation.clock import CLOCK
from simulation.guests import TOKEN
from simulation.network import DatagramSocket
from simulation.servers import SECRET
from support.certificates import guest_context, write_upstream_ca

EVERYWHERE = {"hosts": ["**.sim"], "schemes": ["http", "https"]}
ORDERS = 4
"""In how many orders the rules of a policy are written: none may matter."""


def quicken() -> None:
    """Have done once what depends on nothing but its arguments: only what is looked up again and again, no decision."""
    distribution: Any = metadata.Distribution
    point: Any = metadata.EntryPoint
    distribution.metadata = property(lru_cache(distribution.metadata.fget))
    point.load = _by_value(point.load)
    _replace(metadata, "entry_points", lru_cache)
    _replace(tls, "build_context", lambda build: lru_cache(CHANCE.apart(build)))
    _replace(signing, "load_authority", lambda load: lru_cache(with_signatures_of_one_length(load)))
    _replace(CertificateAuthority, "mint", of_usual_length)
    _replace(CertificateAuthority, "_make_leaf", CHANCE.apart)
    CHANCE.install()
    _replace(registry, "_manager", lru_cache)
    for module, names in ((redaction, ("all_forms", "mime_forms")), (scanner, ("all_forms", "base64_forms"))):
        for name in names:
            _replace(module, name, lru_cache)
    _replace(known, "RedactionSet", _by_values)
    _replace(line, "native_lines", lru_cache)
    _replace(registry, "_checked", _vouched_once)
    sockets = SimpleNamespace(**{**vars(socket), "socket": DatagramSocket})
    _replace(dns_exchange, "socket", lambda _: sockets)
    looked_up = SimpleNamespace(**{**vars(inspect), "signature": _signature_once()})
    _replace(registry, "inspect", lambda _: looked_up)
    _replace(pipeline, "inspect", lambda _: looked_up)


def _replace(module: Any, name: str, by: Callable[[Any], Any]) -> None:
    setattr(module, name, by(getattr(module, name)))


def _by_value(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def loaded(point: Any) -> Any:
        if point.value not in known:
            known[point.value] = load(point)
        return known[point.value]

    return loaded


def _by_values(make: Callable[..., RedactionSet]) -> Callable[..., RedactionSet]:
    remembered = lru_cache(make)
    return lambda *given: remembered(*map(tuple, given))


def _vouched_once(check: Callable[..., LoadedPlugin]) -> Callable[..., LoadedPlugin]:
    """Vouch for a plugin's class once: each object of it has the same hooks."""
    known: dict[tuple[Any, ...], LoadedPlugin] = {}

    def vouched(manager: Any, name: str, plugin: object, capabilities: frozenset[str], *source: str) -> LoadedPlugin:
        key = (name, type(plugin), capabilities)
        if key not in known:
            known[key] = check(manager, name, plugin, capabilities, *source)
        return msgspec.structs.replace(known[key], plugin=plugin)

    return vouched


def _signature_once() -> Callable[[Any], inspect.Signature]:
    known: dict[tuple[Any, bool], inspect.Signature] = {}

    def signature(function: Any) -> inspect.Signature:
        plain = getattr(function, "__func__", function)
        key = (plain, plain is function)
        if key not in known:
            known[key] = inspect.signature(function)
        return known[key]

    return signature


class Folder:
    """What all schedules of a process share on the disk: keys, tokens, the CA. `with Folder() as folder:`"""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self._kept = tempfile.TemporaryDirectory(prefix="sim-", dir=memory if memory.is_dir() else None)
        self.path = Path(self._kept.name)
        self._ready: dict[tuple[Any, ...], dict[str, object] | SeamgateError] = {}
        self.base: Config

    def __enter__(self) -> Folder:
        quicken()
        init_ca(self.path / "ca")
        write_upstream_ca(self.path)
        # The system's bundle of roots takes 75 ms to read.
        os.environ["SSL_CERT_FILE"] = str(self.path / "upstream-ca.pem")
        os.environ["SSL_CERT_DIR"] = str(self.path)
        for name, text in (("key", SECRET), ("token", TOKEN)):
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o600)
        for turn, order, broken in product((0, 1), range(ORDERS), (False, True)):
            rules = _rules(turn, order)
            policy = {"seamgate": 1, "rules": [*rules, {"id": "x"}] if broken else rules}
            self.policy(turn, order, broken=broken).write_text(json.dumps(policy))
        self.base = parse_config(json.dumps(_settings(self.path)), "seamgate.yaml", base=self.path)
        self.contexts = {
            alpn: _guest_context(self.path / "ca" / "ca.pem", alpn) for alpn in ("h2", "http/1.1")
        }  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.cleanup()

    def policy(self, turn: int, order: int, *, broken: bool) -> Path:
        """Return the policy of a turn: `/flip/` is allowed in each other one, `/deny/` in none."""
        return self.path / f"policy-{turn % 2}-{order}{'-broken' if broken else ''}.yaml"

    def journal(self) -> Path:
        """Return where the next schedule's journal is; that of the one before is gone."""
        journals = self.path / f"journals-{os.getpid()}"
        shutil.rmtree(journals, ignore_errors=True)
        journals.mkdir()
        return journals / "audit.jsonl"

    def aside(self, config: Config, generation: int) -> dict[str, object]:
        """Return what `load_aside` does for these policies, or raise what it does, done once."""
        key = (config.policies, generation)
        if key not in self._ready:
            try:
                self._ready[key] = load_aside(config, generation, CLOCK.unix)
            except SeamgateError as error:
                self._ready[key] = error
        ready = self._ready[key]
        if isinstance(ready, SeamgateError):
            raise ready.with_traceback(None)
        return ready

    def config(self, rng: random.Random, journal: Path, turn: int, *, broken: bool = False) -> Config:
        """Dice a configuration."""
        base, change = self.base, msgspec.structs.replace
        versions = rng.choice(((False, False), (True, False), (False, True), (True, True), (True, True)))
        return change(
            base,
            policies=(str(self.policy(turn, rng.randrange(ORDERS), broken=broken)),),
            audit=change(
                base.audit, path=str(journal), denials_per_minute=rng.choice((5, 1000)),
                max_size_bytes=rng.choice((4096, 1 << 20, 1 << 20)),
            ),
            limits=change(
                base.limits, held_bytes=rng.choice((50_000, 1 << 30, 1 << 30)),
                connections=rng.choice((2, 100, 1000, 1000)),
            ),
            pool=change(
                base.pool, sessions_per_origin=rng.choice((1, 3, 256)), preconnect=rng.random() < 0.5,
                isolation=rng.choice(("guest", "group")),
            ),
            dns=change(base.dns, families=rng.choice(("ipv4", "both"))),
            http2=change(base.http2, guests=versions[0], upstreams=versions[1]),
        )  # fmt: skip


def _guest_context(ca: Path, alpn: str) -> ssl.SSLContext:
    context = guest_context(ca)
    context.set_alpn_protocols([alpn] if alpn == "http/1.1" else [alpn, "http/1.1"])
    return context


def _rules(turn: int, order: int) -> list[dict[str, Any]]:
    def allows(name: str, **more: Any) -> dict[str, Any]:
        return {"id": name, "allow": {**EVERYWHERE, "paths": [f"/{name}/*"]}, **more}

    rules = [
        allows("ok"),
        allows("ws", upgrade="websocket"),
        {"id": "key", "allow": {**EVERYWHERE, "hosts": ["key.sim"], "paths": ["/key/*"]}, "credential": "key"},
        allows("judged", when="request.json.ok == true"),
        {"id": "no", "deny": {**EVERYWHERE, "paths": ["/deny/*"]}},
    ]
    if turn % 2:
        rules.append(allows("flip"))
    random.Random(order).shuffle(rules)
    return rules


def _settings(folder: Path) -> dict[str, Any]:
    credential = {
        "source": {"file": str(folder / "key")}, "inject": {"header": "x-api-key"}, "hosts": ["key.sim"],
        "allow_http": True,
    }  # fmt: skip
    return {
        "entries": {
            "proxy": {"listen": "127.0.0.1:0", "guest": "g"},
            "base_url": {
                "listen": "127.0.0.1:0", "guest": "g", "routes": {"api": "http://key.sim"}, "hosts": ["key.sim"],
            },
        },
        "ca": {"dir": str(folder / "ca")},
        "policies": ["policy-0-0.yaml"],
        "plugins": ["policy", "dns", {"name": "credentials", "capabilities": ["secrets"]}],
        "guests": {"g": {"token": {"file": str(folder / "token")}}},
        "credentials": {"key": credential},
        "audit": {"path": "audit.jsonl", "fsync": "never", "keep": 1000},
        "dns": {
            "hosts_file": False, "servers": ["93.184.216.53:53"], "timeout_s": 3.0, "attempts": 2,
            "addresses": {"dead.sim": ["93.184.216.9"]},
        },
        "limits": {
            "head_timeout_s": 10.0, "idle_timeout_s": 20.0, "body_timeout_s": 15.0, "response_timeout_s": 30.0,
            "judged_body_bytes": 50_000,
        },
        "pool": {"queue_timeout_s": 5.0},
        "upstream_tls": {"origins": [{"hosts": ["*.sim"], "ca": str(folder / "upstream-ca.pem")}]},
    }  # fmt: skip
