"""Meshes, rule tables and arrays: every one can be taken, and says what it is."""

import math
import subprocess
import sys

import pytest

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.dialects import DIALECTS
from shardviz.axis_rules.resolution import resolve
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.gallery import arrays, meshes, programs, rules, scenarios
from shardviz.gallery.layouts import Registry
from shardviz.hardware.topology import Topology

REGISTRIES = {
    "arrays": arrays,
    "meshes": meshes,
    "programs": programs,
    "rules": rules,
    "scenarios": scenarios,
}
LONG_MESH = make_mesh(data=2, fsdp=4, expert=2, sequence=2, tensor=2)


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_each_name_has_a_value_and_one_sentence(registry):
    assert registry.names()
    default = registry.default if isinstance(registry, Registry) else registry.DEFAULT
    assert registry.names()[0] == default
    for name in registry.names():
        assert registry.get(name)
        sentence = registry.describe(name)
        assert sentence.endswith(".")
        assert len(sentence) <= 100


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
@pytest.mark.parametrize("function", ["get", "describe"])
def test_an_unknown_name_gets_the_nearest_one(registry, function):
    known = registry.names()[-1]
    with pytest.raises(ShardvizError, match=r"Did you mean") as caught:
        getattr(registry, function)(known + "s")
    assert known in str(caught.value)


@pytest.mark.parametrize("name", [n for n in meshes.names() if "devices:" in n])
def test_the_name_of_a_mesh_says_its_size_and_axes(name):
    count, axes = name.split(" devices: ")
    assert meshes.get(name).size == int(count.replace(",", ""))
    assert str(meshes.get(name)) == axes


@pytest.mark.parametrize("table", rules.names())
@pytest.mark.parametrize("dialect", [d for d in DIALECTS if not d.by_path])
def test_each_table_resolves_every_name_it_knows(table, dialect):
    found = rules.get(table)
    own_axes = ("MaxText-like", "fsdp and tensor axes")
    mesh = LONG_MESH if table in own_axes else make_mesh(data=4, model=2)
    for name in found.logical_names:
        resolution = resolve((name,), found, mesh=mesh, shape=(4096,), dialect=dialect)
        assert resolution.problems == ()
        assert resolution.unmatched() == ()
        assert resolution.decisions[0].rule is not None


# Published: https://arxiv.org/abs/2307.09288 (Llama 2), 2407.21783 (Llama 3) and 2401.04088
# (Mixtral of experts), and the parameter counts of the released checkpoints.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("7B model", 6_738_415_616),
        ("Llama 3 8B", 8_030_261_248),
        ("70B model", 68_976_648_192),
        ("8 × 7B experts", 46_702_792_704),
    ],
)
def test_models_have_the_published_number_of_parameters(name, parameters):
    assert sum(math.prod(a.shape) for a in arrays.get(name)) == parameters


@pytest.mark.parametrize("name", scenarios.names())
def test_a_scenario_fills_its_hardware(name):
    scenario = scenarios.get(name)
    assert Topology.parse(scenario.target).size == scenario.mesh.size
    found = audit(scenario.arrays, scenario.rules, scenario.mesh)
    # The one on the cache is there to be mended.
    assert bool(found.problems) == ("answers" in name)
    assert not found.unmatched


def test_names_sentences_sources_and_layouts_need_no_jax():
    code = """
import sys
import shardviz.gallery
from shardviz.gallery import arrays, meshes, programs, rules
for registry in (arrays, meshes, programs, rules):
    assert all(map(registry.describe, registry.names()))
for name in programs.names():
    programs.get(name).requests, programs.sources(name)
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
