"""What the page is sent of the memory over a program's order."""

from __future__ import annotations

import json
from dataclasses import replace

from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.draw.memory import chart_columns
from shardviz.compiled.memory import Buffer
from shardviz.compiled.panel.memory_chart import (
    MOST_ALIVE,
    MOST_COLUMNS,
    chart_view,
    estimate_view,
)
from shardviz.compiled.panel.plain_names import name_of_buffer
from shardviz.compiled.panel.report_view import memory_view
from shardviz.compiled.report import Report
from shardviz.hardware.targets import Target
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp
from shardviz.programs.failure import Failure
from tests.widgets.memory_examples import MIB, report, timeline


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


def test_buffers_have_names_of_the_program_and_the_compilers_on_hover():
    view = chart_view(report())
    assert view is not None
    saved = next(b for b in view["buffers"] if b["value"] == "dot_general_0")
    assert (saved["name"], saved["compiler"]) == ("dot_general", "dot_general_0")
    assert name_of_buffer(Buffer("copy.3", 8, "f32[2]", "temporaries")) == "made by XLA"
    einsum = Buffer("dot.1", 8, "f32[2]", "temporaries", "jit(f)/jvp(ab,bc->ac)/dot_general")
    assert name_of_buffer(einsum) == "einsum"
    assert name_of_buffer(replace(einsum, value="mul_{3..6}")) == "mul"
    argument = replace(einsum, value="w_1", kind="temporaries")
    assert name_of_buffer(argument, ["w_1"]) == "w_1"


def test_before_a_compile_the_plan_estimates_arguments_and_saved_values():
    mesh = make_mesh(data=4)
    shape = {"shape": (64, 256), "dtype": "float32", "spec": Spec.parse("data, None")}
    ops = [PlannedOp("x", "argument", **shape)]
    for layer in range(2):
        name = f"tanh_{layer}"
        source = {"op": "jit(f)/jvp()/tanh", "source": "block.py:3"}
        ops.append(PlannedOp(name, "op", "tanh", operands=("x",), **source, **shape))
        back = {"operands": ("x", name), "backward": True}
        ops.append(PlannedOp(f"mul_{layer}", "op", "multiply", **back, **shape))
    ops.append(PlannedOp("result", "result", operands=("mul_1",), **shape))
    view = estimate_view(Plan("f", mesh, tuple(ops)))
    assert view["parts"] == [
        ["arguments and results", "32 KiB"], ["saved for the backward pass", "32 KiB"],
    ]  # fmt: skip
    assert view["values"] == [["32 KiB", "tanh × 2", "f32[16, 256]", "block.py:3"]]
    assert "estimate" in view["note"]
    refused = memory_view(None, Plan("f", mesh, error=Failure("trace", "oh")))
    assert refused["estimate"] is None


def test_simulated_devices_have_no_capacity():
    on_cpus = report().replace(on=Target("cpu", "cpu", 8))
    assert chart_view(report())["capacity"] == 64 * MIB
    assert on_cpus.fit.capacity is None
    assert chart_view(on_cpus)["capacity"] == 0


def test_without_buffers_there_is_no_chart():
    assert chart_view(Report("f", "cpu × 8")) is None
