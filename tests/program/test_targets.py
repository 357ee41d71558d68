"""Targets: what is chosen, in fresh kernels and in ones where jax has already started."""

from __future__ import annotations

import jax
import pytest

from shardviz.base.backend.jax_compat import backend_started
from shardviz.base.errors import TargetError
from shardviz.base.mesh import make_mesh
from shardviz.runs.backend import targets as targets_module
from shardviz.runs.backend.targets import (
    choose,
    decide,
    device_mesh,
    devices_of,
    targets,
)
from tests.program.helpers import each_in_new_jax, in_new_python

START = "from shardviz.runs.backend.targets import *; import jax\n"
HUGE = """
try:
    choose({text!r}, 1 << 20)
except ValueError as error:
    print(error)
print(len(jax.devices()))
"""
STARTED = """
jax.devices()
print([str(t) for t in targets() if not t.text], choose(None, 1))
for text in (None, "cpu:8", "cpu"):
    try:
        choose(text, 8)
    except ValueError as error:
        print(error)
"""
CHOSEN = (
    "jax.config.update('jax_num_cpu_devices', {count})\nchoose(None, 8); print(len(jax.devices()))"
)
FRESH = {
    "listed": "print([str(t) for t in targets()], backend_started())",
    "a bigger mesh": (
        "t = choose(None, 8); print(t, len(jax.devices()), choose(None, 64), backend_started())"
    ),
    **{f"huge, {text}": HUGE.format(text=text) for text in (None, "cpu")},
    "enough by config": CHOSEN.format(count=12),
    "too few by config": CHOSEN.format(count=4),
    "started": STARTED,
    # A subclass that takes no change: whoever sets an option of jax to ask fails here.
    "asked": """
class Fixed(type(jax.config)):
    def update(self, name, value):
        raise AssertionError(name)
jax.config.__class__ = Fixed
print(backend_started(), jax.config.jax_num_cpu_devices, len(jax.devices()), backend_started())
""",
}


@pytest.fixture(scope="module")
def fresh():
    """What each of these prints in a kernel where jax has not started."""
    found = each_in_new_jax({name: START + code for name, code in FRESH.items()})
    assert all(status == 0 for status, _ in found.values()), found
    return {name: text for name, (_, text) in found.items()}


def test_a_fresh_kernel_lists_targets_without_starting_jax(fresh):
    assert "simulated: as many devices as the mesh has" in fresh["listed"]
    assert fresh["listed"].endswith("False")


def test_a_fresh_kernel_gets_devices_for_bigger_meshes(fresh):
    assert fresh["a bigger mesh"] == "CPU × 8, simulated 64 CPU × 64, simulated True"


@pytest.mark.parametrize("text", [None, "cpu"])
def test_a_huge_mesh_does_not_start_a_million_devices(text, fresh):
    words, count = fresh[f"huge, {text}"].splitlines()
    assert "1,048,576" in words
    assert count == "1024"


@pytest.mark.parametrize(("name", "count"), [("enough by config", 12), ("too few by config", 8)])
def test_a_number_of_the_config_is_kept_where_it_is_enough(name, count, fresh):
    assert fresh[name] == str(count)


@pytest.mark.parametrize(("flag", "count"), [(12, 12), (2, 8)], ids=["enough", "too few"])
def test_a_number_of_a_flag_is_kept_where_it_is_enough(flag, count):
    flags = f"--xla_force_host_platform_device_count={flag}"
    code = f"{START}choose(None, 8); print(len(jax.devices()))"
    assert in_new_python(code, XLA_FLAGS=flags) == str(count)


def test_where_jax_has_started_with_one_device_it_is_said_what_to_do(fresh):
    first, *refusals = fresh["started"].splitlines()
    assert first == "['CPU × 1, attached'] CPU × 1, attached"
    assert len(refusals) == 3
    for words in refusals:
        assert "1 CPU device" in words
        assert "jax.config.update('jax_num_cpu_devices', 8)" in words


def test_all_devices_that_jax_simulates_are_attached():
    cpus = f"CPU × {jax.device_count()}"
    here = [str(t) for t in targets() if not t.text]
    assert here == [f"{cpus}, attached", f"{cpus}, simulated"]
    assert str(choose("attached", jax.device_count())) == here[0]


def test_a_plan_names_the_variable_that_keeps_jax_from_starting():
    code = (
        "import jax, numpy as np, shardviz as sv\n"
        "fn = lambda x: x * len(jax.devices())\n"  # a plan alone starts nothing
        "plan = sv.plan(sv.program(fn, np.ones(8, np.float32), mesh='data=4'))\n"
        "print(plan.error or 'planned')"
    )
    no_gpu = {"JAX_PLATFORMS": "cpu", "JAX_PLATFORM_NAME": "gpu"}
    assert "JAX_PLATFORM_NAME" in in_new_python(code, **no_gpu)
    assert in_new_python(code, JAX_PLATFORMS="cuda,cpu") == "planned"


def test_asking_whether_jax_started_changes_nothing(fresh):
    assert jax.devices("cpu")
    before = jax.config.jax_num_cpu_devices
    assert backend_started()
    assert jax.config.jax_num_cpu_devices == before
    assert fresh["asked"] == "False -1 1 True"


WRONG = {
    "no such": ("cloud", "'cloud'"),
    "no number": ("cpu:", "'cpu:'"),
    "huge": ("cpu:99999999999999999999", "'cpu:8'"),
    "numbered gpu": ("gpu:2", "'gpu:2'"),
    "too few": ("cpu:4", "'cpu:4'"),
    "no tpu": ("tpu", "TPU"),
    "no text": (8, "8"),
    "described": ("tpu:v5e:2x4", "'tpu:v5e:2x4'"),
    "no such shape": ("gpu:h100:2xx", "gpu:h100:2x8"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_wrong_targets_are_refused(text, words):
    with pytest.raises(TargetError) as error:
        choose(text, 8)
    assert words in str(error.value)


class Fake:
    """A device of a machine with one GPU and eight CPU devices, as far as targets look."""

    def __init__(self, platform: str, number: int) -> None:
        self.platform, self.id, self.process_index = platform, number, 0


@pytest.fixture
def one_gpu(monkeypatch):
    assert jax.devices("cpu")  # started, so that nothing here asks it for more
    there = {"gpu": [Fake("gpu", 0)], "cpu": [Fake("cpu", i) for i in range(8)]}

    def devices(platform=None):
        if (platform or "gpu") not in there:
            raise RuntimeError(f"Unknown backend {platform}")
        return there[platform or "gpu"]

    monkeypatch.setattr(jax, "devices", devices)


@pytest.mark.usefixtures("one_gpu")
def test_beside_a_gpu_both_can_be_had():
    here = [str(t) for t in targets() if not t.text]
    assert here == ["GPU × 1, attached", "CPU × 8, simulated"]
    assert str(choose(None, 1)) == str(choose("attached", 1)) == str(choose("gpu", 1))
    assert str(choose("cuda", 1)) == "GPU × 1, attached"
    assert str(choose(None, 8)) == str(choose("cpu:8", 8)) == "CPU × 8, simulated"
    assert [d.platform for d in devices_of(choose("cpu:2", 2))] == ["cpu", "cpu"]
    assert str(choose("cpu", 1)) == "CPU × 1, simulated"


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(("text", "there"), [("gpu", "1 GPU"), (None, "8 CPU"), ("cpu", "8 CPU")])
def test_beside_a_gpu_it_is_said_what_is_too_few(text, there):
    with pytest.raises(TargetError) as error:
        choose(text, 16)
    assert f"{there} device" in str(error.value)


def ids(mesh):
    return [d.id for d in mesh.devices.flat]


def test_ids_that_are_there_are_those_devices():
    mesh = device_mesh(make_mesh(a=2, device_ids=[6, 3]), choose("cpu", 2))
    assert ids(mesh) == [6, 3]


def test_ids_that_are_not_there_are_names():
    mesh = device_mesh(make_mesh(a=4, device_ids=[2051, 2048, 2050, 2049]), choose("cpu", 4))
    assert ids(mesh) == [3, 0, 2, 1]


def test_a_mesh_that_is_too_big_is_refused():
    with pytest.raises(TargetError, match="8 CPU devices"):
        device_mesh(make_mesh(a=16), choose("cpu", 8))


DECIDED = {
    "nothing said": (None, 8, "cpu:8", True),
    "nothing said, one device": (None, 1, "attached", False),
    "as many as the mesh": ("cpu", 16, "cpu:16", True),
    "a number": ("cpu:8", 8, "cpu:8", True),
    "more than the mesh": (" CPU:64 ", 8, "cpu:64", True),
    "attached": ("attached", 1, "attached", False),
    "described": ("TPU:v5e:4x4", 16, "tpu:v5e:4x4", True),
    "GPUs": ("gpu:h100:2x8", 16, "gpu:h100:2x8", True),
}


@pytest.mark.parametrize(("text", "size", "name", "worker"), DECIDED.values(), ids=DECIDED)
def test_where_a_program_goes(text, size, name, worker, monkeypatch):
    assert jax.devices("cpu")
    monkeypatch.setattr("shardviz.runs.backend.targets._installed", lambda platform: "libtpu")
    chosen = decide(text, size)
    assert (chosen.name, chosen.worker) == (name, worker)
    assert decide(chosen, size) == chosen


UNDECIDED = {
    "not installed": ("tpu:v5e:4x4", 16, "shardviz[tpu]"),
    "another size": ("tpu:v5e:4x4", 8, "8 devices"),
    "too many to simulate": ("cpu:2048", 8, "1,024"),
    "a mesh too big to simulate": (None, 1 << 20, "1,048,576"),
    "too few": ("cpu:4", 8, "'cpu:8'"),
    "no such": ("cloud", 8, "'cloud'"),
    "no text": (8, 8, "8"),
}


@pytest.mark.parametrize(("text", "size", "words"), UNDECIDED.values(), ids=UNDECIDED)
def test_what_nothing_can_be_compiled_for(text, size, words, monkeypatch):
    assert jax.devices("cpu")
    monkeypatch.setattr(targets_module, "_installed", lambda platform: "")
    with pytest.raises(TargetError) as error:
        decide(text, size)
    assert words in str(error.value)


def test_examples_of_described_hardware_say_what_to_install(monkeypatch):
    monkeypatch.setattr(targets_module, "_installed", lambda platform: "")
    found = [t for t in targets() if t.kind == "described"]
    assert {t.platform for t in found} == {"tpu", "gpu"}
    for target in found:
        assert f'pip install "shardviz[{target.platform}]"' in target.missing
        assert target.topology is not None
        assert target.topology.devices == target.count
        with pytest.raises(TargetError, match="described and not attached"):
            assert devices_of(target)
