"""The bench's drawing."""

import xml.etree.ElementTree as ET

import pytest

from seamgate_bench import figures, lineup, plot


def figure(cpu_us: float) -> figures.Figure:
    return figures.summarise([figures.Sample(1, 1.0, cpu_us, 1.0, 1.0, 1.0, 0, 0.0, 0.0)])


def test_a_plot_is_well_formed_and_has_a_bar_for_each_figure() -> None:
    """Peers without CPU figures (direct) have no bar; names are escaped."""
    small = lineup.choose_scenarios(["small"], None)
    table: figures.Table = {"small": {"seamgate": figure(50.0), "a<b": figure(100.0)}}
    root = ET.fromstring(plot.draw(table, small, "seamgate"))
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if "fill" in r.attrib]
    assert len(bars) == 2
    assert [b.attrib["fill"] for b in bars] == [plot.OURS_COLOUR, plot.PEER_COLOUR]


def test_nothing_to_draw_is_said() -> None:
    """An empty drawing would look like a result."""
    with pytest.raises(ValueError, match="no figure to draw"):
        plot.draw({}, lineup.choose_scenarios(["small"], None), "seamgate")


@pytest.mark.parametrize(
    ("low", "high", "axis"), [(20, 1500, [10, 100, 1000, 10000]), (10, 10, [10, 100]), (0.5, 9, [0.1, 1, 10])]
)
def test_the_axis_encloses_all_bars(low: float, high: float, axis: list[float]) -> None:
    """Powers of ten below and above, at least two."""
    assert plot.decades(low, high) == pytest.approx(axis)
