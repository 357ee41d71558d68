"""Movements as data: their JSON, large groups, what is chosen for a group, and every error."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

import shardviz as sv
from shardviz.core.errors import ShardvizError
from shardviz.core.layout.layout import lay_out, layout_from_indices
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.movement import Movement, collective_movement, reshard_movement
from shardviz.core.program.movement_steps import MOST_LISTED, REGULAR
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.core.program.stages import Stages
from shardviz.picture.serialization import movement_data


def counts_of_data(data: dict[str, Any]) -> list[np.ndarray]:
    """What a page makes of the JSON: the contributions on each device, at the start and on."""
    chunks = range(data["chunks"]["count"])
    start = data["start"] or [chunks] * data["size"]
    now = np.array([[int(c in own) for c in chunks] for own in start])
    found = [now.copy()]
    for step in data["steps"]:
        route, chunk = data["routes"][step["route"]], step["chunk"]
        sent = now[route["source"], chunk]
        if not step["keeps"]:
            now[route["source"], chunk] = 0
        now[route["target"], chunk] = sent + step["adds"] * now[route["target"], chunk]
        found.append(now.copy())
    end = data["end"] or [chunks] * data["size"]
    needed = np.array([[c in own for c in chunks] for own in end])
    assert (found[-1][needed] == data["contributors"]).all()
    return found


def reshard(before: str, after: str, **axes: int) -> Movement:
    mesh = make_mesh(**axes)
    return reshard_movement(*(lay_out((8, 8), Spec.parse(s), mesh) for s in (before, after)))


DATA = {
    **{f"{kind} {a}": lambda kind=kind, a=a: collective_movement(kind, 6, 720, algorithm=a)
       for kind in REGULAR[:3] for a in ("ring", "both directions")},
    "exchange": lambda: collective_movement("all-to-all", 6, 720),
    "torus": lambda: sv.movement("all-reduce", topology="tpu:v5p:4x4x4", size="1 MiB"),
    "two levels": lambda: sv.movement("all-gather", topology="gpu:h100:2x4", size="1 MiB"),
    "permutation": lambda: sv.movement("collective-permute", devices=5, size=8),
    "reshard": lambda: reshard("x, y", "None, x", x=4, y=2),
    "one device": lambda: sv.movement("all-gather", devices=1, size=8),
}  # fmt: skip


@pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())
def test_a_page_finds_the_same_holdings_in_the_json(make):
    m = make()
    data = json.loads(json.dumps(movement_data(m)))
    counts = list(m.counts())
    for number, found in enumerate(counts_of_data(data)):
        last = number == len(m.steps)
        if not (m.layouts and last):  # the page drops the old shard by itself
            np.testing.assert_array_equal(found, counts[number])
    assert [s["bytes"] for s in data["steps"]] == [s.bytes for s in m.steps]
    assert data["filledIn"] == m.filled_in
    assert len(json.dumps(data)) < 130_000


def test_a_large_group_is_summed_up():
    m = sv.movement("all-reduce", topology="tpu:v5p:16x16x16", size="64 MiB")
    assert (m.size, len(m.steps)) == (4096, 6 * 15)
    assert m.sent_bytes == 2 * (64 << 20) * 4095 // 4096
    assert m.summed_up
    assert sum(step.bytes for step in m.steps) == m.sent_bytes
    assert max(len(step) for step in m.steps) <= MOST_LISTED * m.size
    assert m.steps[-1].target.max() == MOST_LISTED - 1
    data = movement_data(m)
    assert [s["times"] for s in data["steps"]] == [15] * 6
    assert len(json.dumps(data)) < 5000
    with pytest.raises(ShardvizError):
        m.holdings(1)
    million = sv.movement("all-gather", devices=1 << 20, size="1 GiB")
    assert len(million.steps) == (1 << 20) - 1
    assert len(million.steps[77]) == MOST_LISTED


@pytest.mark.parametrize("kind", REGULAR)
def test_a_group_beyond_what_is_listed_can_be_executed(kind):
    way = None if kind == "all-to-all" else "both directions"
    m = collective_movement(kind, 70, 70 * 140, algorithm=way)
    values = np.random.default_rng(3).integers(0, 9, (70, 140)).astype(np.int64)
    got = m.execute(list(values))
    whole = values.sum(0)
    wanted = {
        "all-gather": [values.reshape(-1)] * 70,
        "all-reduce": [whole] * 70,
        "reduce-scatter": np.split(whole, 70),
        "all-to-all": list(values.reshape(70, 70, 2).swapaxes(0, 1).reshape(70, 140)),
    }[kind]
    np.testing.assert_array_equal(got, wanted)


def test_reshards_of_many_devices_are_listed_by_their_steps():
    mesh = make_mesh(x=128)
    rows, columns = (lay_out((128, 128), Spec.parse(s), mesh) for s in ("x", "None, x"))
    m = sv.movement(rows, columns)
    assert len(m.steps) == 127
    assert [times for _, times in m.runs()] == [127]


def test_what_a_device_has_is_not_sent():
    for same in (reshard("x", "x", x=4), reshard("x", "x, None", x=4), reshard("None", "x", x=4)):
        assert (len(same.steps), same.sent_bytes) == (0, 0)
        assert len(list(same.counts())) == 1


def test_movements_and_their_steps_can_be_pickled():
    for make in DATA.values():
        m = make()
        again = pickle.loads(pickle.dumps(m))
        assert (again.title, len(again.steps)) == (m.title, len(m.steps))
        np.testing.assert_array_equal([s.bytes for s in again.steps], [s.bytes for s in m.steps])


def test_devices_of_one_host_are_asked_first():
    mesh = make_mesh(x=2, y=2, processes=2)
    m = reshard_movement(*(lay_out((4, 4), Spec.parse(s), mesh) for s in ("y", "None")))
    assert all((step.link == 0).all() for step in m.steps)


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
    assert {name: (m.method.name, len(m.method.ways)) for name, m in said.items()} == {
        "no topology": ("ring", 1),
        "one open axis": ("ring", 1),
        "a closed axis": ("both directions", 2),
        "axes of a torus": ("torus", 2),
        "hosts": ("hosts", 1),
        "an exchange": ("direct", 1),
    }
    assert said["a closed axis"].link_names[0].startswith("ICI ")
    for name in ("ring", "both directions"):
        m = sv.movement("all-gather", devices=8, size=8, algorithm=name)
        assert m.method.name == name


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
LAYOUT = lay_out((8, 8), Spec.parse("x"), make_mesh(x=8))
PERMUTE = Collective("collective-permute", ("a",), 8)
TWO = sv.movement("all-gather", size=8, devices=2)
WRONG = {
    "kind": lambda: sv.movement("gather", devices=4, size=8),
    "ragged": lambda: sv.movement("ragged-all-to-all", devices=4, size=8),
    "no size": lambda: sv.movement("all-gather", devices=4),
    "bad size": lambda: sv.movement("all-gather", devices=4, size="much"),
    "no devices": lambda: sv.movement("all-gather", size=8),
    "too many ways": lambda: sv.movement("all-gather", size=8, devices=4, topology="v5e-4"),
    "0 devices": lambda: sv.movement("all-gather", size=8, devices=0),
    "text for devices": lambda: sv.movement("all-gather", size=8, devices="8"),
    "axis": lambda: sv.movement("all-gather", size=8, mesh="a=4", axes="b"),
    "axis twice": lambda: sv.movement("all-gather", size=8, mesh="a=4, b=2", axes=("a", "a")),
    "unknown axes": lambda: sv.movement(Collective("all-gather", ("c",), 8), mesh="a=4"),
    "estimated permutation": lambda: sv.movement(
        Collective("collective-permute", ("a",), 8), mesh="a=4"
    ),
    "algorithm": lambda: sv.movement("all-gather", size=8, devices=4, algorithm="rings"),
    "no torus": lambda: sv.movement("all-gather", size=8, devices=4, algorithm="torus"),
    "no hosts": lambda: sv.movement("all-gather", size=8, devices=4, algorithm="hosts"),
    "topology": lambda: sv.movement("all-gather", size=8, topology=3),
    "group": lambda: sv.movement(GATHER, mesh="a=4, b=2", group=2),
    "no mesh": lambda: sv.movement(GATHER),
    "none": lambda: sv.movement(gathered()),
    "number": lambda: sv.movement(gathered(GATHER), 1),
    "stages": lambda: sv.movement(Stages(Program(abs, (), make_mesh(a=2)))),
    "one layout": lambda: sv.movement(LAYOUT),
    "other array": lambda: sv.movement(LAYOUT, lay_out((8, 4), Spec.parse("x"), LAYOUT.mesh)),
    "other devices": lambda: sv.movement(LAYOUT, lay_out((8, 8), Spec.parse("x"), make_mesh(x=4))),
    "other ids": lambda: sv.movement(
        LAYOUT, lay_out((8, 8), Spec(), make_mesh(x=8, device_ids=range(8, 16)))
    ),
    "too many": lambda: sv.movement(
        *(lay_out((4096, 4096), Spec.parse(s), make_mesh(x=4096)) for s in ("x", "None, x"))
    ),
    "step": lambda: sv.movement("all-gather", size=8, devices=4).holdings(4),
    "values": lambda: sv.movement("all-gather", size=8, devices=3).execute([np.zeros(2)] * 2),
    "shapes": lambda: TWO.execute([np.zeros(2), np.zeros(3)]),
    "split": lambda: sv.movement("reduce-scatter", size=8, devices=2).execute([np.zeros(3)] * 2),
    "shard": lambda: sv.movement(LAYOUT, LAYOUT).execute([np.zeros((8, 1))] * 8),
    "still": lambda: sv.plot(sv.movement("all-gather", size=8, devices=4), step=5),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_has_no_steps_is_refused(case):
    with pytest.raises(ShardvizError):
        WRONG[case]()


def test_blocks_that_nobody_holds_cannot_be_sent():
    half = layout_from_indices((4,), "int8", {0: (slice(0, 2),), 1: (slice(0, 2),)})
    with pytest.raises(ShardvizError):
        reshard_movement(half, lay_out((4,), Spec(), half.mesh, "int8"))
