"""What the player is sent: where devices stand, the mesh axis of each step, and what it sends."""

import numpy as np
import pytest

from shardviz.base.collective import Collective
from shardviz.base.mesh import make_mesh
from shardviz.hardware.topology import Topology
from shardviz.move.movement import collective_movement, movement_of
from shardviz.move.panel.movements_view import MOST_DRAWN, cells_of, player_data


def test_devices_stand_as_the_chips_of_their_group_do():
    topology = Topology.parse("tpu:v5e:4x4")
    order = np.random.default_rng(1).permutation(16)
    mesh = make_mesh({"data": 4, "model": 4}, device_ids=order.tolist())
    every = Collective("all-reduce", ("data", "model"), 1 << 20)
    movement = movement_of(every, mesh, topology)
    coords = dict(zip(topology.device_ids.tolist(), topology.coords.tolist(), strict=True))
    assert cells_of(movement).tolist() == [coords[i][:2] for i in movement.devices.tolist()]


@pytest.mark.parametrize(
    ("target", "axes", "size"),
    [
        ("tpu:v5e:4x4", ("data",), (4, 1)),
        ("tpu:v5e:4x4", ("model",), (4, 1)),
        ("tpu:v5p:2x2x4", ("data", "model"), (8, 2)),
        ("gpu:h100:2x8", ("data", "model"), (8, 2)),
        ("tpu:v5e:2x4*2", ("data",), (2, 2)),
    ],
)
def test_every_device_of_a_group_has_a_place_of_its_own(target, axes, size):
    movement = movement_of(
        Collective("all-gather", axes, 1 << 20), make_mesh(data=4, model=4), Topology.parse(target)
    )
    cells = cells_of(movement)
    assert len(set(map(tuple, cells.tolist()))) == movement.size
    assert tuple((cells.max(axis=0) + 1).tolist()) == size


def test_a_ring_that_stands_nowhere_is_a_loop_of_two_rows():
    cells = cells_of(collective_movement("all-gather", 8, 8))
    assert cells[:, 1].tolist() == [0] * 4 + [1] * 4
    assert (np.abs(np.diff(cells, axis=0)).sum(axis=1) == 1).all()


def test_steps_name_the_mesh_axis_along_which_they_send():
    mesh, topology = make_mesh(data=4, model=4), Topology.parse("tpu:v5e:4x4")
    movement = movement_of(Collective("all-reduce", ("data", "model"), 1 << 20), mesh, topology)
    data = player_data(movement, mesh)
    assert data["axes"] == [["data", 0], ["model", 1]]
    axes = [step["axis"] for step in data["steps"]]
    names = {axis: [s.about.axis for s, a in zip(movement.steps, axes, strict=True) if a == axis]
             for axis in set(axes)}  # fmt: skip
    # Ids run along x first, as `model` does.
    assert {axis: set(along) for axis, along in names.items()} == {1: {"x"}, 0: {"y"}}
    exchange = movement_of(Collective("all-to-all", ("data", "model"), 1 << 20), mesh, topology)
    assert -1 in {step["axis"] for step in player_data(exchange, mesh)["steps"]}


def test_what_is_sent_together_is_what_the_steps_send():
    movement = collective_movement("all-reduce", Topology.parse("tpu:v5e:4x4"), 1 << 20)
    for step, sent in zip(movement.steps, player_data(movement)["steps"], strict=True):
        every = set(
            zip(step.source.tolist(), step.target.tolist(), step.chunk.tolist(), strict=True)
        )
        listed = [(source, target, c) for source, target, _, some in sent["sends"] for c in some]
        assert len(listed) == len(every)
        assert set(listed) == every


def test_of_a_large_group_there_are_words_alone():
    data = player_data(collective_movement("all-gather", MOST_DRAWN + 1, 1 << 20))
    assert data["lines"]
    assert data["steps"] == []
