"""Bytes of collectives are those that each device sends, unless they are of the result."""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.format import bytes_text
from shardviz.compiled.panel.stages_view import stages_view
from shardviz.compiled.roofline import roofline
from shardviz.explorer.links_view import LinkRequest, link_view
from shardviz.explorer.planner import StageResults
from shardviz.explorer.targets import device_placement
from shardviz.hardware.topology import Topology
from shardviz.plans.panel.values_view import values_view

# Each device's block: f32[32, 28].
BLOCK = 32 * 28 * 4


def looped(x):
    return lax.scan(lambda carry, _: (lax.psum(carry, "x") / 2, None), x, length=5)[0]


# Program on x=4, y=2 -> the bytes that each device sends, counted by hand.
SENT = {
    "sum": (lambda x: lax.psum(x, "x"), 2 * BLOCK * 3 // 4),
    "sum over all": (lambda x: lax.psum(x, ("x", "y")), 2 * BLOCK * 7 // 8),
    "gather": (lambda x: lax.all_gather(x, "x", tiled=True), 4 * BLOCK * 3 // 4),
    "gather over y": (lambda x: lax.all_gather(x, "y"), 2 * BLOCK // 2),
    "scatter": (lambda x: lax.psum_scatter(x, "x", tiled=True), BLOCK * 3 // 4),
    "exchange": (lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True), BLOCK * 3 // 4),
    "shift": (lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)]), BLOCK),
    "loop": (looped, 5 * 2 * BLOCK * 3 // 4),
    "two": (lambda x: lax.psum(lax.all_gather(x, "y"), "x"), BLOCK + 4 * BLOCK * 3 // 4),
}  # fmt: skip


def compiled(body, sizes: tuple[int, int] = (4, 2)):
    mesh = jax.make_mesh(sizes, ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = P(("x", "y"))
    step = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(step).lower(jnp.zeros((8 * 32, 28), "float32")).compile()


@pytest.mark.parametrize(("body", "sent"), SENT.values(), ids=SENT)
def test_bytes_sent_are_those_counted_by_hand(body, sent):
    report = sv.report(compiled(body))
    assert sum(c.sent_in_all for c in report.collectives) == sent
    shown = [f"{c.amount} {c.dtype} {c.kind}" for c in report.collectives]
    assert all(text in sv.text(report) for text in shown)


def test_a_group_of_one_device_sends_nothing():
    report = sv.report(compiled(lambda x: lax.psum(x, "y"), (8, 1)))
    assert sum(c.sent_in_all for c in report.collectives) == 0


def program(spec: str = "x, None") -> sv.Program:
    x = sv.array("x", (64, 24), spec="x, None")
    w = sv.array("w", (24, 40), spec=spec)
    return sv.program(lambda x, w: x @ w, x, w, mesh="x=8")


@pytest.fixture(scope="module")
def stages() -> sv.Stages:
    return sv.stages(program())


def on_page(stages: sv.Stages) -> str:
    view = stages_view(StageResults(stages.plan, 0, stages.report))
    for stage in view["collectives"]:
        for row in stage:
            # `shape` is a type, and `groups` has device ids.
            row.pop("shape")
    return json.dumps([view, values_view(stages.plan)["text"]], ensure_ascii=False)


TOPOLOGY = Topology.parse("tpu:v5e:2x4")
SHOWN = {
    "plan": lambda s: sv.text(s.plan),
    "report": lambda s: sv.text(s.report),
    "stages": lambda s: sv.text(s),
    "between stages": lambda s: str(s.between("propagated", "compiled")),
    "changes of plans": lambda s: str(s.plan.diff(sv.plan(program("None")))),
    "collective": lambda s: f"{s.report.collectives[0]!r} {s.report.collectives[0].words}",
    "why": lambda s: str(s.plan.why(s.plan.collectives[0].value)),
    "roofline": lambda s: sv.text(roofline(s.report, TOPOLOGY, s.report.mesh, s.plan)),
    "movement": lambda s: sv.text(sv.movement(s.report)),
    "Explorer": on_page,
    "links": lambda s: link_view(
        LinkRequest("2:0", s.report.collectives[0], device_placement(sv.mesh("x=8"), str(TOPOLOGY)))
    )["words"],
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_every_view_shows_the_bytes_sent_and_labels_those_of_a_result(stages, name):
    gather = stages.report.collectives[0]
    assert (gather.kind, gather.bytes_per_device) == ("all-gather", 24 * 40 * 4)
    assert gather.sent_bytes == 24 * 40 * 4 * 7 // 8
    text, result = SHOWN[name](stages), bytes_text(gather.bytes_per_device)
    if name != "links":
        assert bytes_text(gather.sent_bytes) in text
    for place in re.finditer(rf"(?<![\d.]){re.escape(result)}(?!iB)", text):
        before = text[max(0, place.start() - 60) : place.start()]
        assert re.search(r"result|temporaries|[Pp]eak|\(n - 1\) / n", before), f"{before}{result}"
