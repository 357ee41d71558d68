"""Every program of the gallery, compared with plain jax on eight simulated devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from shardviz.axis_rules.verdicts import Outcome
from shardviz.base.mesh import make_mesh
from shardviz.gallery import programs

COMMON_MESHES = {
    "data=4, model=2": make_mesh(data=4, model=2),
    "data=8": make_mesh(data=8, model=1),
    "model=16": make_mesh(data=1, model=16),
    "64 devices": make_mesh(data=8, model=8),
}
COLLECTIVE = re.compile(
    r"= .* (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def values_for(program):
    """Numbers of the size that a trained model has: weights shrink with what they sum over."""
    random = np.random.default_rng(0)
    return [
        random.standard_normal(a.shape, np.float32) * (1 if a.name == "x" else a.shape[0] ** -0.5)
        for a in program.arrays
    ]


def jitted(program, devices):
    """The program as one writes it in plain jax, on the mesh and with the specs it asks for."""
    grid = np.array(devices).reshape(program.mesh.axis_sizes)
    mesh = Mesh(grid, program.mesh.axis_names)
    shardings = [NamedSharding(mesh, r.spec.to_jax()) for r in program.requests]
    return jax.jit(program.fn, in_shardings=shardings)


def collectives(program, devices):
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.arrays]
    text = jitted(program, devices).lower(*shapes).compile().as_text()
    return COLLECTIVE.findall(text)


@pytest.mark.parametrize("name", programs.names())
def test_split_over_eight_devices_it_equals_the_unsplit_function(name, eight_devices):
    program = programs.get(name)
    values = values_for(program)
    split = jax.tree.leaves(jitted(program, eight_devices)(*values))
    unsplit = jax.tree.leaves(jax.jit(program.fn)(*values))
    for ours, theirs in zip(split, unsplit, strict=True):
        assert len(ours.sharding.device_set) == 8
        scale = float(jnp.abs(theirs).max())
        assert scale > 0
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MLP", ["all-gather", "all-reduce"]),
        ("matmul, outer dimensions split", []),
        ("matmul, inner dimension split on one side", ["all-gather"]),
        ("matmul, inner dimension split on both sides", ["all-reduce"]),
        ("matmul, outer dimensions want one axis", ["all-gather"]),
        ("attention", ["all-reduce"]),
        ("transformer block", ["all-reduce", "all-reduce"]),
    ],
)
def test_it_costs_what_its_sentence_says(name, expected, eight_devices):
    assert sorted(collectives(programs.get(name), eight_devices)) == expected


@pytest.mark.parametrize("name", ["MLP, gradient", "transformer block, gradient"])
def test_gradients_are_those_of_finite_differences(name):
    program = programs.get(name)
    values = values_for(program)
    function = jax.jit(program.fn)
    _, gradients = function(*values)
    # Each weight moves along the sign of its gradient, so far that each adds 1e-3 to the loss.
    steps = [np.sign(np.asarray(g)) * 1e-3 / np.abs(np.asarray(g)).sum() for g in gradients]
    steps += [0.0] * (len(values) - len(steps))
    up, _ = function(*[v + s for v, s in zip(values, steps, strict=True)])
    down, _ = function(*[v - s for v, s in zip(values, steps, strict=True)])
    assert float(up - down) == pytest.approx(2e-3 * len(gradients), rel=0.02)


@pytest.mark.parametrize("mesh", COMMON_MESHES.values(), ids=COMMON_MESHES)
@pytest.mark.parametrize("name", programs.names())
def test_it_divides_over_common_meshes(name, mesh):
    assert programs.get(name).replace(mesh=mesh).problems == ()


@pytest.mark.parametrize("name", programs.names())
def test_its_sources_run_as_they_are_pasted(name):
    namespace = {"jax": jax, "jnp": jnp}
    exec(programs.IMPORTS + "\n\n".join(programs.sources(name)), namespace)  # noqa: S102
    program = programs.get(name)
    pasted = namespace[program.fn.__name__]
    assert pasted is not program.fn
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.arrays]
    assert jax.eval_shape(pasted, *shapes) == jax.eval_shape(program.fn, *shapes)


def test_causal_attention_never_looks_ahead():
    program = programs.get("attention")
    *weights, x = values_for(program)
    changed = x.copy()
    changed[:, 40:] += 1
    before, after = program.fn(*weights, x), program.fn(*weights, changed)
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert float(jnp.abs(before[:, 40:] - after[:, 40:]).min(axis=-1).max()) > 0


def test_the_first_program_shows_one_rule_of_every_fate():
    by_name = {r.array.name: r.resolution for r in programs.get().requests}
    assert str(by_name["w_in"].spec) == "P(None, 'model')"
    assert str(by_name["x"].spec) == "P('data', 'model')"
    assert str(by_name["w_out"].spec) == "P('model', None)"
    embed = [v.outcome for v in by_name["w_in"].decisions[0].verdicts]
    assert embed == [
        Outcome.OTHER_NAME, Outcome.OTHER_NAME, Outcome.TAKEN, Outcome.UNSPLIT, Outcome.DECIDED,
    ]  # fmt: skip
    decided = {d.rule for found in by_name.values() for d in found.decisions}
    assert decided == {0, 1, 2, 3}  # the last rule never fires
