"""What the page is sent of the memory over a program's order."""

from __future__ import annotations

import json

from shardviz.compiled.draw.memory import chart_columns
from shardviz.compiled.panel.memory_chart import MOST_ALIVE, MOST_COLUMNS, chart_view
from shardviz.compiled.report import Report
from tests.widgets.memory_examples import report, timeline


def test_each_column_has_its_largest_buffers_and_all_its_bytes():
    made = report(layers=200, small=10_000)
    view = chart_view(made)
    assert view is not None
    order = timeline(layers=200, small=10_000)
    at = chart_columns(order, None, MOST_COLUMNS)[0]
    assert len(at) == len(view["where"]) == MOST_COLUMNS
    for column in (0, 17, view["peak"], MOST_COLUMNS - 1):
        sums = sum(live[column] for _, live in view["kinds"])
        assert sums == order.total[at[column]]
        shown = [b for b in view["buffers"] if b["start"] <= column <= b["end"]]
        largest = [b.bytes for b in order.alive(at[column])[:MOST_ALIVE]]
        assert [b["bytes"] for b in shown[:MOST_ALIVE]] == largest
        # None is listed where it is not alive.
        assert len(shown) <= len(order.alive(at[column]))
    peak = sum(live[view["peak"]] for _, live in view["kinds"])
    assert peak == order.peak.bytes
    # Ten thousand buffers make no message that a page would wait for.
    assert len(json.dumps(view)) < 200_000


def test_a_buffer_has_its_line_its_value_and_its_spec():
    view = chart_view(report())
    assert view is not None
    saved = next(b for b in view["buffers"] if b["value"] == "dot_general_0")
    assert (saved["source"], saved["spec"]) == ("block.py:20", "P('data', None)")
    gathered = next(b for b in view["buffers"] if b["value"] == "" and b["bytes"] == 9 << 20)
    assert gathered["name"] == "all_gather"


def test_without_buffers_there_is_no_chart():
    assert chart_view(Report("f", "cpu × 8")) is None
