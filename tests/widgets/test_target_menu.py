import pytest

from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.explorer.session import Session
from shardviz.explorer.targets import (
    EXAMPLES,
    checked_target,
    described_options,
    fitting_mesh,
    local_options,
    target_view,
    topology_of,
)
from shardviz.gallery import programs

WRONG = (
    "moon", "0 hosts x 4",
    "cpu:0", "cpu:1.5", "cpu:99999999", "tpu:v5e:4", "tpu:v9:4x4", "gpu:h100", "attached:8",
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_target_is_refused_in_words_and_the_last_good_one_stays(text):
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("target", "tpu:v5e:4x4")
    session.edit("target", text)
    assert session.now.errors["target"]
    assert session.now.target == "tpu:v5e:4x4"
    with pytest.raises(ShardvizError):
        checked_target(text)
    session.edit("target", "")
    assert "target" not in session.now.errors


@pytest.mark.parametrize(
    ("text", "read"),
    [("", ""), (" CPU ", "cpu"), ("cpu: 64", "cpu:64"), ("Attached", "attached"), ("gpu", "gpu"),
     ("TPU : v5e : 4 x 4", "tpu:v5e:4x4"), ("tpu:v5e:4x4*2", "tpu:v5e:4x4*2")],
)  # fmt: skip
def test_targets_are_read_as_people_write_them(text, read):
    assert checked_target(text) == read


@pytest.mark.parametrize("text", [*EXAMPLES, "cpu:4"])
@pytest.mark.parametrize(
    "shape", [{"data": 4, "model": 2}, {"x": 3, "y": 5}, {"x": 8}, {"a": 2, "b": 3, "c": 4}]
)
def test_the_offered_mesh_has_the_same_axes_and_fills_the_target(text, shape):
    mesh = make_mesh(shape)
    fitting = fitting_mesh(mesh, text)
    if fitting is None:
        return
    topology = topology_of(text)
    assert fitting.axis_names == mesh.axis_names
    assert fitting.size == (topology.size if topology else int(text.partition(":")[2]))
    if topology:
        assert len(fitting.processes) == topology.hosts


def test_one_click_takes_the_mesh_that_fits():
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("target", "tpu:v5e:4x4")
    session.edit("fit", None)
    assert session.mesh.size == 16
    # Of processes on several hosts, the number of hosts alone may differ.
    session.edit("mesh", "data=4, model=2")
    session.edit("hosts", "4")
    session.edit("target", "2 hosts x 4")
    session.edit("fit", None)
    assert session.now.text["hosts"] == "2"


def test_a_target_of_ones_own_is_in_the_menu():
    view = target_view("tpu:v4:2x4x4")
    assert view["label"] == "TPU v4 2×4×4"
    for option in (*local_options(), *described_options()):
        known = target_view(option["value"])  # it is in the menu already
        assert "label" not in known, option["value"]
