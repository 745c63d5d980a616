"""`make bench-dns`: the name service beside dnsmasq and unbound, with dnsperf, paired in one run.

    .venv/bin/python bench/dns_bench.py [--seconds 4] [--repetitions 3] [--rules 100] [--json]

Three scenarios, each with all servers, in turns so that a busy machine is busy for all:

- known: a thousand names that were asked before (A and AAAA)
- fresh: names that nobody asked before; a second dnsmasq, on the generator's core, is the server that all ask
- denied: names that policy refuses (unbound: local-zone always_nxdomain; dnsmasq: address=/x/)

Seamgate has a policy of `--rules` rules and its audit log on, which the others have nothing like. Each server has core
0, generator and upstream core 1. CPU is what the kernel accounts to the server, per query that was answered.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from seamgate_bench import procfs
from seamgate_bench.adapters.seamgate import COMMAND, COMPILED
from seamgate_bench.process import PeerFailed, Program, find_program, free_port, start

SERVER_CORE, LOAD_CORE = 0, 1
KNOWN = [f"n{number}.known.bench" for number in range(1000)]
SCENARIOS = ("known", "fresh", "denied")
TOOLS = ("dnsperf", "dnsmasq", "unbound")
NEEDED = "apt-get install dnsperf dnsmasq-base unbound"


@dataclass(frozen=True)
class Server:
    """A running name server: what it is called, where it is."""

    name: str
    program: Program
    port: int


@dataclass(frozen=True)
class Sample:
    """One run of dnsperf: queries a second, those lost, CPU of the server in microseconds per answered query."""

    per_s: float
    lost: int
    cpu_us: float


def dnsmasq(room: Path, name: str, core: int, port: int, *options: str) -> Program:
    """Start dnsmasq with nothing but these options."""
    fixed = ("-k", "-C", "/dev/null", "-R", "-h", "-i", "lo", "-I", "eth0", "--bind-interfaces", "-u", "root")
    command = [find_program("dnsmasq") or "dnsmasq", *fixed, "-p", str(port), "--pid-file", *options]
    return start(name, command, directory=_folder(room, name), core=core)


def start_upstream(room: Path) -> tuple[Program, int]:
    """Start the server that knows every name below `bench`: dnsmasq, which answers from its command line."""
    port = free_port()
    answers = ("--address=/bench/203.0.113.9", "--address=/bench/2001:db8::9", "--local-ttl=3600")
    program = dnsmasq(room, "upstream", LOAD_CORE, port, *answers)
    program.wait_for_port(port)
    return program, port


def start_dnsmasq(room: Path, upstream: int, _: int) -> Server:
    """Dnsmasq as the cache."""
    port = free_port()
    cache = ("-c", "10000", "-S", f"127.0.0.1#{upstream}", "--address=/denied/", "--dns-forward-max=1000")
    return Server("dnsmasq", dnsmasq(room, "dnsmasq", SERVER_CORE, port, *cache), port)


def start_unbound(room: Path, upstream: int, _: int) -> Server:
    """Unbound as the cache: one thread, no validation, as the others."""
    port, folder = free_port(), _folder(room, "unbound")
    (folder / "unbound.conf").write_text(f"""
server:
  interface: 127.0.0.1@{port}
  do-ip6: no
  do-daemonize: no
  num-threads: 1
  module-config: "iterator"
  username: ""
  chroot: ""
  directory: "{folder}"
  pidfile: ""
  use-syslog: no
  do-not-query-localhost: no
  local-zone: "denied." always_nxdomain
forward-zone:
  name: "."
  forward-addr: 127.0.0.1@{upstream}
remote-control:
  control-enable: no
""")
    command = [find_program("unbound") or "unbound", "-c", str(folder / "unbound.conf")]
    return Server("unbound", start("unbound", command, directory=folder, core=SERVER_CORE), port)


def start_seamgate(room: Path, upstream: int, rules: int) -> Server:
    """The gateway with the entry `dns`."""
    port, folder = free_port(), _folder(room, "seamgate")
    others = [{"id": f"r{number}", "allow": {"hosts": [f"s{number}.example"]}} for number in range(1, rules)]
    policy = {"seamgate": 1, "rules": [*others, {"id": "bench", "allow": {"hosts": ["**.bench"]}}]}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    settings = {
        "entries": {
            "base_url": {"listen": "127.0.0.1:0", "guest": "bench", "routes": {"x": "https://x.bench"}},
            "dns": {"listen": f"127.0.0.1:{port}", "guest": "bench", "queries_per_s": 10_000_000},
        },
        "guests": {"bench": {}},
        "policies": ["policy.yaml"],
        "audit": {"path": str(folder / "audit.jsonl")},
        "dns": {"servers": [f"127.0.0.1:{upstream}"], "hosts_file": False, "families": "both"},
        "permit_addresses": ["203.0.113.0/24", "2001:db8::/32"],
    }
    (folder / "seamgate.yaml").write_text(yaml.safe_dump(settings))
    env = {"PYTHONPATH": str(COMPILED)} if (COMPILED / "seamgate").is_dir() else {}
    command = [str(COMMAND), "serve", "-c", str(folder / "seamgate.yaml")]
    return Server("seamgate", start("seamgate", command, directory=folder, core=SERVER_CORE, env=env), port)


SERVERS: tuple[Callable[[Path, int, int], Server], ...] = (start_seamgate, start_dnsmasq, start_unbound)


def _folder(room: Path, name: str) -> Path:
    folder = room / name
    folder.mkdir(exist_ok=True)
    return folder


def questions(room: Path, scenario: str, number: int) -> Path:
    """Write what dnsperf asks; of `fresh`, other names in each run."""
    path = room / f"{scenario}.{number}"
    if scenario == "known":
        lines: Iterator[str] = (f"{name} {kind}" for name in KNOWN for kind in ("A", "AAAA"))
    elif scenario == "denied":
        lines = (f"n{each}.x.denied A" for each in range(1000))
    else:
        fresh = random.Random(number)
        lines = (f"f{fresh.getrandbits(48):012x}.fresh.bench A" for _ in range(300_000))
    path.write_text("\n".join(lines) + "\n")
    return path


def ask(server: Server, path: Path, seconds: float) -> Sample:
    """Run dnsperf once against a server."""
    before = procfs.cpu_us(server.program.pid)
    load = ["taskset", "-c", str(LOAD_CORE), find_program("dnsperf") or "dnsperf"]
    command = [*load, "-s", "127.0.0.1", "-p", str(server.port), "-d", str(path), "-l", str(seconds)]
    done = subprocess.run([*command, "-c", "8", "-q", "100"], capture_output=True, text=True, check=False)
    spent = procfs.cpu_us(server.program.pid) - before
    told = {key: re.search(rf"{key}:\s+([0-9.]+)", done.stdout) for key in ("completed", "lost", "per second")}
    completed, lost, per_s = (float(found[1]) if found else 0.0 for found in told.values())
    if done.returncode or not completed:
        raise PeerFailed(
            f"{server.name}: dnsperf got no answers: {done.stderr or done.stdout} {server.program.log_tail()}"
        )
    return Sample(per_s, int(lost), spent / completed)


def measure(seconds: float, repetitions: int, rules: int) -> dict[str, dict[str, list[Sample]]]:
    """Run everything; return samples by scenario and server."""
    found: dict[str, dict[str, list[Sample]]] = {scenario: {} for scenario in SCENARIOS}
    with TemporaryDirectory(prefix="seamgate-dns-bench-") as name:
        room = Path(name)
        upstream, upstream_port = start_upstream(room)
        servers = []
        try:
            servers += [make(room, upstream_port, rules) for make in SERVERS]
            for server in servers:
                server.program.wait_for_port(server.port)
                ask(server, questions(room, "known", 0), min(2.0, seconds))
            number = 0
            for repetition in range(repetitions):
                for scenario in SCENARIOS:
                    for place in range(len(servers)):
                        server = servers[(place + repetition) % len(servers)]
                        number += 1
                        sample = ask(server, questions(room, scenario, number), seconds)
                        found[scenario].setdefault(server.name, []).append(sample)
                        time.sleep(0.1)
        finally:
            for server in servers:
                server.program.stop()
            upstream.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    missing = [tool for tool in TOOLS if find_program(tool) is None]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}; {NEEDED}")
    rows = []
    for scenario, by_server in measure(options.seconds, options.repetitions, options.rules).items():
        ours = statistics.median(sample.cpu_us for sample in by_server["seamgate"])
        for name, samples in by_server.items():
            cpu_us = statistics.median(sample.cpu_us for sample in samples)
            per_s = statistics.median(sample.per_s for sample in samples)
            lost = sum(sample.lost for sample in samples)
            rows.append({"scenario": scenario, "server": name, "per_s": round(per_s), "cpu_us": round(cpu_us, 1),
                         "of_seamgate": round(cpu_us / ours, 2), "lost": lost})  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'scenario':9} {'server':9} {'queries/s':>10} {'CPU us/query':>13} {'of seamgate':>12} {'lost':>6}")
    for row in rows:
        print("{scenario:9} {server:9} {per_s:10,} {cpu_us:13} {of_seamgate:12} {lost:6}".format_map(row))


if __name__ == "__main__":
    main()
