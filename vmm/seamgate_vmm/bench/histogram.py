"""Histograms of milliseconds, as text and as SVG. Used by the bench's report."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

_EDGES_MS = (0.0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, float("inf"))
_ROW, _LABEL, _BAR = 24, 110, 300  # pixels


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0..1) of the values lie; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _bins(values: Sequence[float]) -> list[tuple[str, int]]:
    """Return (label, count) of the bins that hold something."""
    found = []
    for low, high in pairwise(_EDGES_MS):
        count = sum(low <= value < high for value in values)
        if count:
            found.append((f"{low:g} - {high:g} ms" if high != float("inf") else f"over {low:g} ms", count))
    return found


def histogram_text(values: Sequence[float]) -> list[str]:
    """Return the lines of a histogram."""
    bins = _bins(values)
    most = max((count for _, count in bins), default=1)
    return [f"  {label:>16} {count:6} {'#' * max(1, round(40 * count / most))}" for label, count in bins]


def histogram_svg(series: Mapping[str, Sequence[float]]) -> str:
    """Return histograms, one below the other, as an SVG image. series: title to values in milliseconds."""
    rows: list[str] = []
    y = 10
    for title, values in series.items():
        bins = _bins(values)
        most = max((count for _, count in bins), default=1)
        rows.append(f'<text x="10" y="{y + 14}" font-weight="bold">{title}: {len(values)} guests</text>')
        for label, count in bins:
            y += _ROW
            width = round(_BAR * count / most)
            rows.append(
                f'<text x="{_LABEL - 10}" y="{y + 14}" text-anchor="end">{label}</text>'
                f'<rect x="{_LABEL}" y="{y}" width="{width}" height="18" fill="#3b6ea5"/>'
                f'<text x="{_LABEL + width + 6}" y="{y + 14}">{count}</text>'
            )
        y += 2 * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="480" height="{y}" font-family="sans-serif" font-size="12">'
        f"{''.join(rows)}</svg>\n"
    )
