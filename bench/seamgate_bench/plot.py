"""Draws CPU per request as SVG: a panel a scenario, a bar a peer, on a logarithmic axis. Pure: figures in, text out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from seamgate_bench.figures import Figure, Table
from seamgate_bench.lineup import Scenario

WIDTH = 760
LABEL_WIDTH = 110
BAR_HEIGHT = 16
ROW_HEIGHT = 22
PANEL_HEAD = 34
PANEL_FOOT = 30
MARGIN = 20
OURS_COLOUR, PEER_COLOUR, FLOOR_COLOUR = "#0f766e", "#94a3b8", "#cbd5e1"
HEADING = "CPU of the proxy per request, logarithmic: shorter is better"
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#334155}.head{font-weight:600;font-size:15px}"
    ".title{font-weight:600;font-size:13px}"
    ".tick{fill:#64748b;font-size:11px}line{stroke:#e2e8f0}.bg{fill:#fff}"
)


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten that enclose two positive numbers, at least two of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def draw(table: Table, scenarios: Sequence[Scenario], base: str) -> str:
    """Return an SVG document with one panel for each timed scenario that has figures."""
    panels = [(s, _bars(table, s)) for s in scenarios if not s.idle]
    panels = [(s, bars) for s, bars in panels if bars]
    if not panels:
        raise ValueError("there is no figure to draw")
    parts, top = [f'<text class="head" x="{MARGIN}" y="{MARGIN + 8}">{HEADING}</text>'], MARGIN + 24
    for scenario, bars in panels:
        values = [value for _, value, _ in bars]
        axis = decades(min(values), max(values))
        parts.append(_panel(scenario, bars, axis, top, base))
        top += PANEL_HEAD + ROW_HEIGHT * len(bars) + PANEL_FOOT
    height = top + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img"><title>{HEADING}</title><style>{STYLE}</style>'
        f'<rect class="bg" width="{WIDTH}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


Bar = tuple[str, float, str]
"""Peer, microseconds, kind of colour ("floor" for nginx, "" else)."""


def _bars(table: Table, scenario: Scenario) -> list[Bar]:
    row = table.get(scenario.name, {})
    bars = [
        (peer, figure.cpu_us_per_request, "floor" if peer.startswith("nginx") else "")
        for peer, figure in row.items()
        if isinstance(figure, Figure) and figure.cpu_us_per_request > 0
    ]
    return sorted(bars, key=lambda bar: bar[1])


def _panel(scenario: Scenario, bars: Sequence[Bar], axis: Sequence[float], top: int, base: str) -> str:
    def x(value: float) -> float:
        share = math.log10(value / axis[0]) / math.log10(axis[-1] / axis[0])
        return LABEL_WIDTH + share * (WIDTH - LABEL_WIDTH - 70)

    bottom = top + PANEL_HEAD + ROW_HEIGHT * len(bars)
    parts = [
        f'<text class="title" x="{MARGIN}" y="{top + 16}">{escape(scenario.name)}: {escape(scenario.title)}</text>'
    ]
    for tick in axis:
        parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top + PANEL_HEAD - 6}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x(tick):.1f}" y="{bottom + 14}">{tick:,.0f} us</text>'
        )
    for n, (peer, value, kind) in enumerate(bars):
        y = top + PANEL_HEAD + n * ROW_HEIGHT
        colour = OURS_COLOUR if peer.startswith(base) else FLOOR_COLOUR if kind else PEER_COLOUR
        parts.append(f'<text text-anchor="end" x="{LABEL_WIDTH - 8}" y="{y + 12}">{escape(peer)}</text>')
        width = max(1.0, x(value) - LABEL_WIDTH)
        parts.append(
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" fill="{colour}"/>'
        )
        parts.append(f'<text x="{x(value) + 6:.1f}" y="{y + 12}">{value:,.0f}</text>')
    return "".join(parts)
