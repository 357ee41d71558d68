"""Views that the kernel sends: devices by position, and the links of a chosen collective."""

import numpy as np
import pytest

from shardviz.base.mesh import make_mesh
from shardviz.compiled.report import Report
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.explorer.session_panel import SessionPanel
from shardviz.explorer.targets import DeviceAssignments, device_placement
from shardviz.gallery import programs
from shardviz.hardware.topology import Topology
from shardviz.runs.cache import ExecutableCache

MESH = make_mesh(data=4, model=4)


def session(target: str = "tpu:v5e:4x4", mesh: str = "data=4, model=4") -> Session:
    made = Session(programs.get(), programs.DEFAULT)
    for field, value in (("mesh", mesh), ("target", target), ("by", "position")):
        made.edit(field, value)
    return made


def explorer(**kwargs: str) -> Explorer:
    return Explorer(session(**kwargs), ExecutableCache())


def hear(made: Explorer, *intents: dict) -> None:
    made._receive(None, {"seq": 1, "client": "test", "intents": list(intents)}, None)


@pytest.mark.parametrize("target", ["tpu:v5p:2x2x4", "tpu:v5e:2x4*2", "gpu:a100:2x8"])
def test_ids_and_hosts_are_those_of_the_hardware(target):
    topology = Topology.parse(target)
    placement = device_placement(MESH, target).mesh
    ids, hosts = placement.device_ids.ravel(), placement.process_indices.ravel()
    assert ids.tolist() == sorted(topology.device_ids.tolist())
    hosts_of = dict(zip(topology.device_ids, topology.process_indices, strict=True))
    assert hosts.tolist() == [hosts_of[i] for i in ids]


def test_the_order_of_a_compile_wins_for_its_target_and_shape_only():
    order = tuple(np.random.default_rng(1).permutation(16).tolist())
    assignments = DeviceAssignments()
    report = Report("f", "tpu", mesh=make_mesh(MESH.shape, device_ids=list(order)))
    assert assignments.learn(report, MESH, "tpu:v5e:4x4")
    assert not assignments.learn(report, MESH, "tpu:v5e:4x4")
    found = assignments.placement(MESH, "tpu:v5e:4x4")
    assert tuple(found.mesh.device_ids.ravel()) == order
    assert found.compiled
    assert not assignments.placement(make_mesh(data=2, model=8), "tpu:v5e:4x4").compiled
    assert not assignments.placement(MESH, "tpu:v6e:4x4").compiled
    # It is of the ids, and not of the names of the axes.
    assert assignments.placement(make_mesh(a=4, b=4), "tpu:v5e:4x4").compiled
    permuted = make_mesh(MESH.shape, device_ids=np.roll(range(16), 1).tolist())
    assert not assignments.placement(permuted, "tpu:v5e:4x4").compiled
    assert not assignments.learn(Report("f", "", mesh=MESH), MESH, "cpu:16")


def test_tiles_are_at_the_coordinates_of_their_devices():
    made = explorer(target="tpu:v5e:2x4", mesh="data=8")
    tiles = made.devices["picture"]["data"]["tiles"]
    x, y = tiles["x"]["values"], tiles["y"]["values"]
    assert tiles["device"] == [0, 1]
    column = np.unique(x, return_inverse=True)[1]
    row = np.unique(y, return_inverse=True)[1]
    coords = Topology.parse("tpu:v5e:2x4").coords[:, :2]
    assert np.stack([column, row], 1).tolist() == coords.tolist()
    assert made.devices["hosts"]["values"] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_view_falls_back_in_one_sentence_and_comes_back():
    made = explorer()
    assert (made.devices["by"], made.devices["no_positions"], made.devices["note"]) == (
        "position", "", "",
    )  # fmt: skip
    assert made.devices["count"] == "16 · in id order"
    made.session.edit("target", "tpu:v5e:2x4")
    assert made.devices["by"] == "mesh"
    assert made.devices["no_positions"] in made.devices["note"]
    made.session.edit("target", "cpu")
    assert made.devices["note"]
    made.session.edit("target", "gpu:h100:2x8")
    assert (made.devices["by"], made.devices["note"]) == ("position", "")
    made.session.edit("by", "host")
    assert (made.devices["by"], made.devices["count"]) == ("host", "")


def test_a_choice_by_position_shows_its_links_and_none_without_it():
    made = explorer()
    made.page()  # plans
    hear(made, {"kind": "links", "value": "0:0"})
    made.wait(60)
    assert made.link_data["key"] == "0:0"
    assert made.link_data["edges"]["count"] == 24
    made.session.edit("by", "mesh")
    assert made.link_data == {}
    made.session.edit("by", "position")
    made.wait(60)
    assert made.link_data["key"] == "0:0"
    hear(made, {"kind": "links", "value": None})
    assert made.link_data == {}
    made.close()


@pytest.mark.parametrize("by", ["mesh", "position"])
def test_as_many_hosts_are_written_as_are_drawn(by):
    made = explorer()
    made.session.edit("by", by)
    assert set(made.devices["hosts"]["values"]) == {0, 1, 2, 3}
    assert made.mesh["hosts"] == "4"
    assert "hostsOf" in made.mesh
    assert made.mesh["count"] == "16 devices · 4 hosts"
    made.session.edit("target", "cpu")
    assert made.mesh["hosts"] == "2"
    assert "hostsOf" not in made.mesh
    made.close()


def test_arrays_name_the_devices_that_a_compile_chose():
    order = np.random.default_rng(1).permutation(16)
    made = explorer()
    made.session.edit("by", "mesh")
    report = Report("f", "tpu", mesh=make_mesh(MESH.shape, device_ids=order.tolist()))
    made._assignments.learn(report, MESH, "tpu:v5e:4x4")
    made.refresh(made.panel(SessionPanel))
    assert made.devices["ids"]["values"] == order.tolist()
    # w_in is split over `model`, the second axis: a block is on the devices of a column.
    blocks = np.reshape(made.layout_0["picture"]["data"]["tiles"]["holders"]["values"], (4, 4))
    assert np.sort(blocks).tolist() == np.sort(order.reshape(4, 4).T).tolist()
    made.close()
