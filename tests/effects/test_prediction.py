"""What is predicted of a program, compared with what jax does on 1 and on 8 devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.effects import HostResults, OrderedOnOne
from tests.effects.programs import KINDS, PROGRAMS, STRUCT, in_part_of_the_mesh


def what_jax_does(fn, devices, mesh=None):
    """The stage at which jax refuses the program and its first line; `("runs", "")` if it runs."""
    mesh = mesh or Mesh(np.array(devices), ("d",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(mesh.axis_names[0]))
    x = jax.ShapeDtypeStruct(STRUCT.shape, STRUCT.dtype, sharding=sharding)
    stage = "trace"
    try:
        with jax.set_mesh(mesh):
            traced = jax.jit(lambda x: fn(x)).trace(x)
            stage = "lower"
            lowered = traced.lower()
            stage = "compile"
            compiled = lowered.compile()
            stage = "run"
            out = compiled(jax.device_put(np.zeros(8, np.float32), sharding))
            jax.block_until_ready(out)
            jax.effects_barrier()
    except Exception as error:  # noqa: BLE001  jax raises bare Exceptions, too
        return stage, str(error).strip().splitlines()[0]
    return "runs", ""


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_predicted_is_what_jax_does(name, count, eight_devices):
    fn = PROGRAMS[name]
    program = sv.program(fn, sv.array("x", (8,), spec="d"), mesh=sv.mesh(d=count))
    mesh = Mesh(np.array(eight_devices[:count]), ("d",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):  # as jax has it there
        found = sv.effects(program)
    stage, said = what_jax_does(fn, eight_devices[:count])
    compare(found, count, stage, said)


@pytest.mark.parametrize("kind", KINDS)
def test_axes_that_are_left_to_the_compiler(kind, eight_devices):
    fn = in_part_of_the_mesh(KINDS[kind])
    mesh = Mesh(np.array(eight_devices).reshape(4, 2), ("a", "b"))
    found = sv.effects(sv.program(fn, sv.array("x", (8,), spec="a"), mesh=sv.mesh(a=4, b=2)))
    compare(found, 8, *what_jax_does(fn, eight_devices, mesh))


def compare(found, count, stage, said):
    verdict = found.on(count)
    assert verdict.may is (stage == "runs"), (verdict, said)
    if verdict.may:
        assert found.refused is None
    elif "ordered effects are not supported for more than 1 device" in said:
        assert isinstance(verdict, OrderedOnOne)
    elif "Unhandled OpSharding" in said:
        assert isinstance(verdict, HostResults)
    else:
        assert found.refused is not None
        assert found.refused.stage == stage
        assert said.rstrip(".") in found.refused.said
