"""What `seamgate vm bench` prints: the six numbers, beside their goals and what was published elsewhere."""

from dataclasses import asdict, dataclass
from typing import Any

from seamgate_vmm.bench.agents import Measured
from seamgate_vmm.bench.histogram import histogram_svg, histogram_text, percentile

_GIB, _MB = 1 << 30, 1e6
# Figures of the design's ancestor, as it published them for 1,500 agents on 128 vCPUs.
PUBLISHED = {
    "warm_start_s": 0.42, "agents_per_gib": 10.8, "idle_mb": 3.0, "first_call_p50_ms": 44.0, "first_call_p99_ms": 105.0,
    "upstream_sessions": 338,
}  # fmt: skip
GOALS = {
    "warm_start_s": 1.5, "agents_per_gib": 200.0, "idle_mb": 1.0, "first_call_p50_ms": 5.0, "first_call_p99_ms": 40.0,
    "upstream_sessions": 64,
}  # fmt: skip
"""What is to be reached with 1,500 agents on 2 cores and 24 GiB."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """What the gateway and the upstream counted meanwhile."""

    sessions: int  # TLS connections that the upstream had open at once, at most
    connections: int  # that it took, all told
    requests: int  # that reached it
    audit_records: int
    names_hits: int  # of the gateway's own look-ups: requests whose name it knew, or waited for with others
    names_misses: int
    name_hit_us: float
    name_miss_us: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All that was measured."""

    measured: Measured
    upstream: Upstream

    def figures(self) -> dict[str, float]:
        """Return the six numbers, by the names of `GOALS`."""
        m, u = self.measured, self.upstream
        looked_up = u.names_hits + u.names_misses
        return {
            "warm_start_s": round(m.warm_start_s, 3),
            "agents_per_gib": round(_GIB / m.loaded_bytes, 1) if m.loaded_bytes else 0.0,
            "idle_mb": round(m.idle_bytes / _MB, 3),
            "name_hit_rate": round(u.names_hits / looked_up, 4) if looked_up else 0.0,
            "name_hit_us": round(u.name_hit_us, 2),
            "name_miss_us": round(u.name_miss_us, 1),
            "first_call_p50_ms": percentile(m.paced_call_ms, 0.5),
            "first_call_p99_ms": percentile(m.paced_call_ms, 0.99),
            "upstream_sessions": float(u.sessions),
            "mb_per_s_out_of_guests": round(m.bytes_in / m.calls_s / _MB, 3) if m.calls_s else 0.0,
            "mb_per_s_into_guests": round(m.bytes_out / m.calls_s / _MB, 3) if m.calls_s else 0.0,
        }

    def json(self) -> dict[str, Any]:
        """Return everything, the single times included."""
        goals, published = dict(GOALS), dict(PUBLISHED)
        return {
            "figures": self.figures(), "goals": goals, "published": published, "measured": asdict(self.measured),
            "upstream": asdict(self.upstream),
        }  # fmt: skip

    def svg(self) -> str:
        """Return the histograms of first calls and first answers as an image."""
        return histogram_svg({title: values for title, values in self._series().items() if values})

    def _series(self) -> dict[str, list[float]]:
        m = self.measured
        return {
            "Dispatch to first call, one agent at a time": m.paced_call_ms,
            "Dispatch to first answer, one agent at a time": m.paced_answer_ms,
            "First answer, all agents at once": m.crowd_answer_ms,
        }

    def __str__(self) -> str:
        lines = [f"{'':40}{'here (' + self.measured.tier + ')':>22}{'goal':>12}{'published':>12}"]
        lines += [f"{name:40}{here:>22}{goal:>12}{there:>12}" for name, here, goal, there in self._rows()]
        lines += ["", f"Memory by {self.measured.memory_method}: template, gateway and rings included.", ""]
        for title, values in self._series().items():
            lines += [f"{title}:", *histogram_text(values)]
        return "\n".join([*lines, *self.measured.wrong])

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return the table: what, here, goal, published."""
        m, u, f = self.measured, self.upstream, self.figures()

        def both(name: str, unit: str = "") -> tuple[str, str]:
            return f"{GOALS[name]:g}{unit}", f"{PUBLISHED[name]:g}{unit}"

        def pair(a: str, b: str) -> tuple[str, str]:
            return f"{GOALS[a]:g}/{GOALS[b]:g} ms", f"{PUBLISHED[a]:g}/{PUBLISHED[b]:g} ms"

        def times(values: list[float]) -> str:
            return f"{percentile(values, 0.5):.1f}/{percentile(values, 0.99):.1f} ms"

        rate = m.calls / m.calls_s if m.calls_s else 0.0
        first = pair("first_call_p50_ms", "first_call_p99_ms")
        none = ("", "")
        return [
            ("warm start, all confirmed", f"{m.warm_start_s:.2f} s", *both("warm_start_s", " s")),
            ("agents per GiB under load", f"{f['agents_per_gib']:.0f}", *both("agents_per_gib")),
            ("idle guest", f"{m.idle_bytes / _MB:.2f} MB", *both("idle_mb", " MB")),
            ("names: known, or being looked up", f"{f['name_hit_rate']:.2%} of {u.names_hits + u.names_misses}", *none),
            ("names: cost if known / not", f"{u.name_hit_us:.1f} us / {u.name_miss_us / 1e3:.2f} ms", *none),
            ("dispatch to first call p50/p99", times(m.paced_call_ms), *first),
            (f"upstream sessions for {m.guests} agents", f"{u.sessions}", *both("upstream_sessions")),
            (
                "throughput out of / into guests",
                f"{f['mb_per_s_out_of_guests']:.2f}/{f['mb_per_s_into_guests']:.2f} MB/s",
                *none,
            ),
            ("", "", "", ""),
            ("agents, all answers right", f"{m.right} of {m.guests}", *none),
            ("calls, requests upstream, audit records", f"{m.calls}, {u.requests}, {u.audit_records}", *none),
            ("upstream connections, all told", f"{u.connections}", *none),
            ("calls a second", f"{rate:.0f}", *none),
            ("dispatch to first answer p50/p99", times(m.paced_answer_ms), *none),
            ("first answer, all at once p50/p99", times(m.crowd_answer_ms), *none),
            ("machines made warm", f"{m.make_warm_s:.1f} s", *none),
            ("warm machine / guest under load", f"{m.warm_bytes / _MB:.2f}/{m.loaded_bytes / _MB:.2f} MB", *none),
            ("CPU per agent", f"{m.cpu_ms_per_guest:.1f} ms", *none),
            ("CPU of the gateway per call", f"{m.gateway_cpu_ms_per_call:.2f} ms", *none),
            ("names asked at the seam", f"{m.names_asked}", *none),
        ]  # fmt: skip
