"""Movements as data: large groups, what is chosen for a group, and every error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import shardviz as sv
from shardviz.base.collective import Collective
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.compiled.report import Report
from shardviz.compiled.stages import Stages
from shardviz.move.movement import collective_movement
from shardviz.move.movement_steps import REGULAR
from shardviz.move.panel.movements_view import player_data
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program


def counts_of_data(data: dict[str, Any]) -> list[np.ndarray]:
    """What a page makes of the JSON: the contributions on each device, at the start and on."""
    chunks = range(len(data["chunks"]))
    start = data["start"] or [chunks] * len(data["devices"])
    now = np.array([[int(c in own) for c in chunks] for own in start])
    found = [now.copy()]
    for step in data["steps"]:
        before = now.copy()
        if not step["keeps"]:
            for source, _, _, moved in step["sends"]:
                now[source, moved] = 0
        for source, target, _, moved in step["sends"]:
            now[target, moved] = before[source, moved] + step["adds"] * now[target, moved]
        found.append(now.copy())
    return found


DATA = {
    **{kind: lambda kind=kind: collective_movement(kind, 6, 720) for kind in REGULAR},
    "torus": lambda: sv.movement("all-reduce", topology="tpu:v5e:4x4", size="1 MiB"),
    "two levels": lambda: sv.movement("all-gather", topology="gpu:h100:2x4", size="1 MiB"),
    "permutation": lambda: sv.movement("collective-permute", devices=5, size=8),
    "one device": lambda: sv.movement("all-gather", devices=1, size=8),
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())
def test_a_page_finds_the_same_holdings_in_the_json(make):
    m = make()
    data = json.loads(json.dumps(player_data(m)))
    counts = list(m.counts())
    np.testing.assert_array_equal(counts_of_data(data), counts)
    assert len(json.dumps(data)) < 30_000


def test_a_large_group_is_summed_up():
    m = sv.movement("all-reduce", topology="tpu:v5p:16x16x16", size="64 MiB")
    assert (m.size, len(m.steps)) == (4096, 6 * 15)
    assert m.sent_bytes == 2 * (64 << 20) * 4095 // 4096
    assert sum(step.bytes for step in m.steps) == m.sent_bytes
    data = player_data(m)
    assert (data["steps"], data["cells"]) == ([], [])
    assert data["lines"]
    assert len(json.dumps(data)) < 5000
    for asked in (lambda: m.holdings(1), lambda: m.execute([np.zeros(4096)] * 4096)):
        with pytest.raises(ShardvizError):
            asked()
    assert len(sv.movement("all-gather", devices=1 << 16, size="1 GiB").steps) == (1 << 16) - 1


def test_what_suits_a_group_is_chosen_for_it():
    said = {
        "no topology": sv.movement("all-gather", devices=8, size=8),
        "one open axis": sv.movement("all-gather", mesh="x=2, y=4", axes="y", size=8,
                                     topology="tpu:v5e:4x2"),
        "a closed axis": sv.movement("all-reduce", mesh="x=16, y=16", axes="y", size=4096,
                                     topology="tpu:v5e:16x16"),
        "axes of a torus": sv.movement("reduce-scatter", topology="tpu:v5p:4x4x4", size=4096),
        "hosts": sv.movement("all-reduce", topology="gpu:h100:2x8", size=4096),
        "an exchange": sv.movement("all-to-all", topology="tpu:v5p:4x4x4", size=4096),
    }  # fmt: skip
    assert {name: (m.method.name, len(m.method.directions)) for name, m in said.items()} == {
        "no topology": ("ring", 1),
        "one open axis": ("ring", 1),
        "a closed axis": ("both directions", 2),
        "axes of a torus": ("torus", 2),
        "hosts": ("hosts", 1),
        "an exchange": ("direct", 1),
    }


def gathered(*collectives: Collective) -> Report:
    return Report("step", "cpu × 8", collectives=collectives, mesh=make_mesh(a=4, b=2))


def test_the_largest_collective_of_a_program_is_taken():
    small, large = Collective("all-gather", ("a",), 64), Collective("all-reduce", ("b",), 4096)
    report = gathered(small, large)
    plan = Plan("step", make_mesh(a=4, b=2), collectives=(small,))
    program = Program(abs, (), make_mesh(a=4, b=2))
    assert sv.movement(report).kind == "all-reduce"
    assert sv.movement(report, 0).devices.tolist() == [0, 2, 4, 6]
    assert sv.movement(report, small, group=1).devices.tolist() == [1, 3, 5, 7]
    assert sv.movement(plan).kind == "all-gather"
    assert sv.movement(Stages(program, plan, report)).kind == "all-reduce"
    assert sv.movement(Stages(program, plan)).kind == "all-gather"
    assert sv.movement(large, mesh="a=4, b=2").bytes_per_device == 4096


GATHER = Collective("all-gather", ("a",), 64)
PERMUTE = Collective("collective-permute", ("a",), 8)
TWO = sv.movement("all-gather", size=8, devices=2)
WRONG = {
    "kind": lambda: sv.movement("gather", devices=4, size=8),
    "ragged": lambda: sv.movement("ragged-all-to-all", devices=4, size=8),
    "no size": lambda: sv.movement("all-gather", devices=4),
    "bad size": lambda: sv.movement("all-gather", devices=4, size="much"),
    "no devices": lambda: sv.movement("all-gather", size=8),
    "0 devices": lambda: sv.movement("all-gather", size=8, devices=0),
    "axis": lambda: sv.movement("all-gather", size=8, mesh="a=4", axes="b"),
    "axis twice": lambda: sv.movement("all-gather", size=8, mesh="a=4, b=2", axes=("a", "a")),
    "unknown axes": lambda: sv.movement(Collective("all-gather", ("c",), 8), mesh="a=4"),
    "estimated permutation": lambda: sv.movement(
        Collective("collective-permute", ("a",), 8), mesh="a=4"
    ),
    "group": lambda: sv.movement(GATHER, mesh="a=4, b=2", group=2),
    "no mesh": lambda: sv.movement(GATHER),
    "none": lambda: sv.movement(gathered()),
    "number": lambda: sv.movement(gathered(GATHER), 1),
    "stages": lambda: sv.movement(Stages(Program(abs, (), make_mesh(a=2)))),
    "step": lambda: sv.movement("all-gather", size=8, devices=4).holdings(4),
    "values": lambda: sv.movement("all-gather", size=8, devices=3).execute([np.zeros(2)] * 2),
    "shapes": lambda: TWO.execute([np.zeros(2), np.zeros(3)]),
    "still": lambda: sv.plot(sv.movement("all-gather", size=8, devices=4), step=5),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_has_no_steps_is_refused(case):
    with pytest.raises(ShardvizError):
        WRONG[case]()


def test_a_kind_of_several_collectives_is_not_said_to_be_missing():
    report = gathered(GATHER, Collective("all-reduce", ("b",), 4096), GATHER)
    for choice in ("all-gather", "all-gather over a"):
        with pytest.raises(ShardvizError, match=r"has 2 all-gathers.*\.collectives, 0 or 2;"):
            sv.movement(report, choice)


@pytest.mark.parametrize(("place", "value"), [("topology", "v5e-16"), ("mesh", "data=16")])
def test_devices_come_from_one_place(place, value):
    with pytest.raises(ShardvizError, match=f"only one of devices= and {place}="):
        sv.movement("all-gather", size=8, devices=16, **{place: value})


HINTS = {
    "a function of jax": ("psum", "it compiles to: 'all-reduce'."),
    "a spelling": ("allreduce", "No steps are known for 'allreduce'. Did you mean 'all-reduce'?"),
    "another word": ("xyz", "No steps are known for 'xyz'. Known: 'all-gather', 'all-reduce'"),
    "a kind without steps": ("pbroadcast", "No steps are known for 'pbroadcast'."),
    "an unhashable value": ([1], "or a kind such as 'all-gather'; got [1]"),
    "another object": (3, "For a compiled program, give sv.report(compiled)."),
}


@pytest.mark.parametrize("case", HINTS)
def test_a_wrong_source_gets_a_hint(case):
    source, words = HINTS[case]
    with pytest.raises(ShardvizError) as caught:
        sv.movement(source)
    assert words in str(caught.value)
