"""Memory over the order: the stack is the live bytes, no peak is lost, the table is the peak's."""

from __future__ import annotations

import numpy as np
import pytest

from shardviz.base.errors import ShardvizError
from shardviz.compiled.draw.memory import COLUMNS, HIGH, WIDE, chart_columns, peak_table
from shardviz.compiled.memory import KINDS, Buffer, MemoryTimeline
from shardviz.compiled.report import Report
from shardviz.draw.tables import HIGHLIGHTED
from shardviz.pictures import draw, to_text
from tests.widgets.memory_examples import MIB, peak, report


def stacks(picture) -> tuple[np.ndarray, np.ndarray]:
    """Of each moment of the chart, the height of its stack and the width that it has."""
    tiles = picture.tiles
    lefts = np.unique(tiles.x)
    heights = np.array([tiles.height[tiles.x == left].sum() for left in lefts])
    return heights, np.array([tiles.width[tiles.x == left][0] for left in lefts])


def test_the_stack_is_the_live_bytes_and_the_highest_is_the_peak():
    made = report(capacity=None)
    chart = draw(made, view="memory").panels[0][2]
    heights, widths = stacks(chart)
    assert heights.max() == pytest.approx(HIGH)
    assert widths.sum() == pytest.approx(WIDE)
    # At the beginning there is what lasts: the argument and the output.
    assert heights[0] / heights.max() == pytest.approx(12 * MIB / peak().bytes)
    assert [entry.text for entry in chart.legend] == [
        "arguments", "outputs", "temporaries", "collectives", "padding",
    ]  # fmt: skip
    assert {KINDS[group] for group in chart.tiles.group.tolist()} == {e.text for e in chart.legend}


@pytest.mark.parametrize(("capacity", "lines"), [(64 * MIB, 2), (16 << 30, 1), (None, 1)])
def test_the_capacity_is_a_line_unless_it_would_flatten_the_chart(capacity, lines):
    chart = draw(report(capacity=capacity), view="memory").panels[0][2]
    assert len(chart.frames) == lines  # one is the moment of the peak
    heights, _ = stacks(chart)
    if lines == 1:
        assert heights.max() == pytest.approx(HIGH)
    else:
        assert heights.max() < HIGH


@pytest.mark.parametrize("at", [0, 4_999, 9_998, 9_999])
def test_a_peak_of_one_position_among_ten_thousand_is_not_lost(at):
    spike = Buffer("a", 1 << 30, "f32[1]", "temporaries", start=at, end=at)
    always = Buffer("b", 8, "f32[2]", "arguments", end=9_999)
    found = MemoryTimeline((spike, always))
    shown = chart_columns(found, None, COLUMNS)[0]
    assert len(shown) == COLUMNS
    assert at in shown
    assert (np.diff(shown) > 0).all()


def test_rows_of_layers_are_one_and_what_could_be_split_stands_out():
    most = peak(layers=12)
    table, more = peak_table(most, 4)
    first = table.rows[0]
    alive = [b for b in most.buffers if b.op.endswith("dot_general")]
    assert len(alive) > 1
    assert first.value == sum(b.bytes for b in alive)
    assert first.group == HIGHLIGHTED
    assert "block.py:20" in first.words
    assert [row.group for row in table.rows[1:]] == [0, 0, 0]
    assert more == []
    shorter, more = peak_table(most, 1)
    assert len(shorter.rows) == 1
    assert len(more) == 1
    # The text of a report has the same rows.
    text = to_text(report(layers=12, capacity=None), 300)
    assert all(line in text for line in table.lines())


def test_without_buffers_there_is_no_chart_and_no_other_view():
    picture = draw(Report("f", "cpu × 8"), view="memory")
    assert not picture.panels
    assert picture.alt
    with pytest.raises(ShardvizError):
        draw(report(), view="devices")


def test_a_limit_shortens_the_table_of_buffers():
    all_rows = draw(report(layers=12, capacity=None), view="memory")
    one_row = draw(report(layers=12, capacity=None), view="memory", limit=1)
    assert len(one_row.alt) < len(all_rows.alt)
