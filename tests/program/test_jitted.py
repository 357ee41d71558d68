"""Functions under jax.jit: what jax.jit was asked for counts, and compiles as jax compiles it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.dialects import Dialect
from shardviz.base.errors import ProgramError
from shardviz.plans.backend.build_plan import plan_program
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.backend.calls import unjitted
from shardviz.programs.notes import JitDiffers, JitUnreadable
from shardviz.runs.backend.targets import choose, device_mesh
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import MESH, array, sentences

JAX_MESH = device_mesh(MESH, choose("cpu", 8))
W = jax.ShapeDtypeStruct((64, 32), jnp.float32)
X = jax.ShapeDtypeStruct((16, 64), jnp.float32)


def on(*spec):
    return NamedSharding(JAX_MESH, P(*spec))


def step(w, x):
    return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)


STEP = jax.jit(
    step,
    in_shardings=(on(None, "b"), on("a")),
    out_shardings=on(None, "b"),
    donate_argnums=0,
    compiler_options={"xla_cpu_enable_fast_math": False},
)


def made(fn, *args, mesh: Any = MESH, rules=None, in_specs=None, out_specs=None, donate=()):
    return build_program(fn, args, mesh, rules, Dialect.LINEN, in_specs, out_specs, donate, "")


def test_shardings_donation_and_options_are_those_of_jit():
    program = made(STEP, W, X)
    assert [str(a.spec) for a in program.arrays] == ["P(None, 'b')", "P('a')"]
    assert str(program.out_specs) == "P(None, 'b')"
    assert program.options == {"donate": (0,), "xla_cpu_enable_fast_math": False}
    assert (program.name, program.fn, program.notes) == ("step", step, ())
    assert made(STEP, W, X, mesh=None).mesh.shape == {"a": 4, "b": 2}


@pytest.mark.parametrize("target", [None, "cpu:8"])
def test_it_compiles_as_jax_compiles_it(target):
    report = compile_program(made(STEP, W, X), target, cache=ExecutableCache())
    assert report.error is None, report.error
    memory = STEP.lower(W, X).compile().memory_analysis()
    assert memory is not None
    assert report.memory.arguments == memory.argument_size_in_bytes
    assert report.memory.aliased == memory.alias_size_in_bytes > 0
    assert str(report.out_layouts["output"].spec) == "P(None, 'b')"


def test_what_was_given_to_the_program_wins_and_the_difference_is_said():
    w = array("w", (64, 32), "a")
    program = made(STEP, w, X, in_specs=(None, P("b")), out_specs=P("a"), donate=1)
    assert [str(a.spec) for a in program.arrays] == ["P('a')", "P('b')"]
    assert str(program.out_specs) == "P('a')"
    assert program.options["donate"] == (1,)
    differing = ("sharding of w", "sharding of x", "out_specs", "donation")
    assert program.notes == sentences(JitDiffers(differing))
    assert plan_program(program).notes[:1] == program.notes
    assert compile_program(program, cache=ExecutableCache()).notes[:1] == program.notes


def test_a_sharded_array_that_jit_would_refuse_is_refused(eight_devices):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, P(None, "b")))
    fn = jax.jit(lambda x: x, in_shardings=jax.NamedSharding(mesh, P("a")))
    for argument in (x, jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)):
        with pytest.raises(ValueError, match="does not match the sharding"):
            fn.lower(argument)
        with pytest.raises(sv.ShardvizError, match=r"in_shardings of jax.jit split x as P\('a'\)"):
            sv.plan(fn, argument)
    assert str(sv.program(fn, jnp.ones((8, 8))).arrays[0].spec) == "P('a')"


def test_an_axis_of_size_one_is_no_other_sharding(eight_devices):
    mesh = jax.make_mesh((8, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, P("a")))
    fn = jax.jit(lambda x: x, in_shardings=jax.NamedSharding(mesh, P("a", "b")))
    fn.lower(x)  # jax accepts it
    assert sv.plan(fn, x).ok


TREES = {
    "a prefix": (jax.jit(lambda p, x: p, in_shardings=({"a": on("a"), "b": None}, None)),
                 ["P('a')", "P('a')", "None", "None"]),
    "one for all": (jax.jit(lambda p, x: p, in_shardings=on("b")), ["P('b')"] * 4),
    "nothing": (jax.jit(lambda p, x: p), ["None"] * 4),
    "by name": (jax.jit(lambda p, x: p, donate_argnames="x"), ["None"] * 4),
    "a partial of it": (functools.partial(
        jax.jit(lambda k, p, x: p, in_shardings=(None, {"a": on("a"), "b": None}, on("b"))), 1.0),
        ["None", "P('a')", "P('a')", "None", "P('b')"]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "expected"), TREES.values(), ids=TREES)
def test_prefixes_of_jit_are_spread(fn, expected):
    program = made(fn, {"a": (X, X), "b": X}, X)
    assert [str(a.spec) for a in program.arrays] == expected


def test_donated_names_are_positions():
    assert unjitted(TREES["by name"][0]).settings.donate == (1,)
    inner = jax.jit(lambda k, p: p, donate_argnums=(0, 1))
    assert made(functools.partial(inner, X), X).options["donate"] == (0, 1)


def test_a_jax_that_does_not_tell_is_said(monkeypatch):
    monkeypatch.setattr("shardviz.programs.backend.calls.jit_settings", lambda fn: None)
    program = made(STEP, W, X)
    assert program.notes == sentences(JitUnreadable("jax.jit"))
    assert [a.spec for a in program.arrays] == [None, None]


STAGES = {
    "Compiled": lambda: STEP.lower(W, X).compile(),
    "Lowered": lambda: STEP.lower(W, X),
    "Traced": lambda: STEP.trace(W, X),
}


@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES)
def test_stages_of_jax_are_no_functions(make):
    with pytest.raises(ProgramError):
        made(make(), W, X)
