"""Time per policy decision at 10, 1,000 and 100,000 rules, and time to load them.

    .venv/bin/python bench/policy_bench.py [--json] [--rules 10,1000,100000]

Each row is one set of rules; the columns are microseconds per decision, median of five runs:

- connect: `judge_connect` of a known target
- warm: `judge_request`, allowed, guest and path seen before
- cold: the same with caches emptied before each decision, so that the index is walked
- denied: a path never seen before that no rule allows, its teaching message included
- body: an allowed request with a JSON body of 1 KB judged by a CEL condition

Loading: yaml (the strict reader alone), load (a file read, parsed, checked and compiled), index.

The set "hosts" has a host for each rule, "paths" has all rules on one host under different paths, "guests" has all
rules on one host and path for different guests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "proxy"), str(ROOT / "plugins")]

from seamgate.document import parse_document  # noqa: E402
from seamgate.flow import BodyState, Guest, Request, Target  # noqa: E402
from seamgate.policy.evaluation import Evaluator  # noqa: E402
from seamgate.policy.files import read_policies  # noqa: E402

NOW = 1_800_000_000.0
BODY = json.dumps({"model": "claude-x", "messages": [{"role": "user", "content": "x" * 900}]}).encode()
JSON = ((b"content-type", b"application/json"),)
SHAPES: dict[str, Callable[[int], str]] = {
    "hosts": lambda i: f"{{hosts: [api{i}.example.com], methods: [POST], paths: [/v1/messages]}}",
    "paths": lambda i: f'{{hosts: [api0.example.com], methods: [POST], paths: [/v1/org{i}/*/items, "/v2/org{i}/**"]}}',
    "guests": lambda i: "{hosts: [api0.example.com], methods: [POST], paths: [/v1/messages]}",
}


def policy_text(shape: str, rules: int) -> str:
    """Write a policy with so many allow rules, ten deny rules and a rule with a condition."""
    lines = ["seamgate: 1", "rules:"]
    for index in range(rules):
        lines.append(f"  - id: allow-{index}\n    allow: {SHAPES[shape](index)}")
        if shape == "guests":
            lines.append(f"    guests: {{agent: a{index}}}")
    lines += [f"  - id: deny-{i}\n    deny: {{hosts: ['**.example.com'], paths: [/admin{i}/**]}}" for i in range(10)]
    lines.append("  - id: body\n    allow: {hosts: [llm.example.com], methods: [POST], paths: [/v1/messages]}")
    lines.append("    when: request.json.model.startsWith('claude-')")
    return "\n".join(lines)


def request(shape: str, middle: int, guest: Guest) -> Request:
    """Return a request that the rule in the middle of the set allows."""
    host, path = {
        "hosts": (f"api{middle}.example.com", "/v1/messages"),
        "paths": ("api0.example.com", f"/v1/org{middle}/x/items"),
        "guests": ("api0.example.com", "/v1/messages"),
    }[shape]
    return Request("r", guest, Target("https", host, 443), "POST", path)


def microseconds(call: Callable[[], object], times: int) -> float:
    """Return the median of five runs, per call."""
    runs = []
    for _ in range(5):
        start = perf_counter()
        for _ in range(times):
            call()
        runs.append((perf_counter() - start) / times * 1e6)
    return statistics.median(runs)


def measure(shape: str, rules: int) -> dict[str, float | str | int]:
    """Load a set of rules and time the decisions."""
    text = policy_text(shape, rules)
    start = perf_counter()
    parse_document(text, "bench.yaml")
    yaml_s = perf_counter() - start
    with TemporaryDirectory() as folder:
        file = Path(folder) / "bench.yaml"
        file.write_text(text, encoding="utf-8")
        parsed = perf_counter()
        policies = read_policies([file])
    loaded = perf_counter()
    evaluator = Evaluator(policies)
    indexed = perf_counter()
    middle = rules // 2
    guest = Guest("g", {"agent": f"a{middle}"})
    allowed = request(shape, middle, guest)
    if not evaluator.judge_request(allowed, NOW).allowed:
        raise SystemExit(f"{shape}: the request should be allowed")
    llm = Target("https", "llm.example.com", 443)
    body = Request("r", guest, llm, "POST", "/v1/messages", None, JSON, BODY, BodyState.COMPLETE)
    if not evaluator.judge_request(body, NOW).allowed:
        raise SystemExit("the request with a body should be allowed")
    fresh = count()

    def cold() -> None:
        evaluator.forget()
        evaluator.judge_request(allowed, NOW)

    def denied() -> None:
        path = f"{allowed.path}/none/{next(fresh)}"
        evaluator.judge_request(Request("r", guest, allowed.target, "POST", path), NOW)

    return {
        "shape": shape,
        "rules": rules,
        "connect_us": microseconds(lambda: evaluator.judge_connect(guest, allowed.target, NOW), 20000),
        "warm_us": microseconds(lambda: evaluator.judge_request(allowed, NOW), 20000),
        "cold_us": microseconds(cold, 2000),
        "denied_us": microseconds(denied, 1000),
        "body_us": microseconds(lambda: evaluator.judge_request(body, NOW), 2000),
        "yaml_s": yaml_s,
        "load_s": loaded - parsed,
        "index_s": indexed - loaded,
    }


def rows(sizes: list[int]) -> Iterator[dict[str, float | str | int]]:
    """Yield a row for each shape and size."""
    for shape in SHAPES:
        for size in sizes:
            yield measure(shape, size)


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument("--rules", default="10,1000,100000", help="sizes of the sets, comma-separated")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.rules.split(",")]
    if arguments.json:
        print(json.dumps(list(rows(sizes)), indent=2))
        return
    heads = ["connect_us", "warm_us", "cold_us", "denied_us", "body_us", "yaml_s", "load_s", "index_s"]
    print(f"{'shape':8}{'rules':>8}" + "".join(f"{head:>12}" for head in heads))
    for row in rows(sizes):
        print(
            f"{row['shape']:8}{row['rules']:>8}" + "".join(f"{float(row[head]):>12.2f}" for head in heads), flush=True
        )


if __name__ == "__main__":
    main()
