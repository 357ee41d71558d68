"""plan_program: errors as data, one cost for any mesh, and what a plan says about itself."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.axis_rules.dialects import Dialect
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend import build_plan, pipeline
from shardviz.plans.backend.build_plan import plan_program
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.backend.devices import MOST_NAMED
from tests.propagation.planning import MESH, W, X, plan, program


def fails(x):
    raise KeyError("mine")


def same(x):
    return x


def calls_back(x):
    return jax.pure_callback(same, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def prints_in_order(x):
    jax.debug.print("{}", x[0, 0], ordered=True)
    return x


def shapes_do_not_fit(x):
    return x @ x


LARGE = make_mesh(data=MOST_NAMED, model=2)
# name: program, stage, how the message begins, whether a line of this file is named
ERRORS = {
    "an array that does not divide": (
        lambda: program(jnp.sin, x=((6, 4), "data")),
        "program",
        "x: Dimension 0: 6 is not divisible by 4 (data)",
        False,
    ),
    "an exception of the function": (
        lambda: program(fails, x=X),
        "trace",
        "jax could not trace the function. KeyError: 'mine'",
        True,
    ),
    "shapes": (
        lambda: program(shapes_do_not_fit, x=X),
        "trace",
        "jax could not trace the function. TypeError: dot_general requires contracting",
        True,
    ),
    "shapes instead of arrays": (
        lambda: sv.program(lambda x, w: x @ w, (32, 64), (64, 16), mesh="data=2"),
        "trace",
        "jax could not trace the function. TypeError: unsupported operand type(s) for @: 'tuple'"
        " and 'tuple'. An argument is a tuple of numbers, and a tree to jax. If it is a shape,"
        " write sv.array((32, 64))",
        True,
    ),
    "output specs": (
        lambda: program(jnp.sin, x=X).replace(out_specs=(Spec(), Spec(), Spec())),
        "trace",
        "out_specs ",
        False,
    ),
    "an effect for one device": (
        lambda: program(prints_in_order, x=X),
        "program",
        "",
        False,
    ),
    "a callback on too many devices": (
        lambda: program(calls_back, LARGE, x=((MOST_NAMED, 4), "data")),
        "lower",
        "The program calls Python on the host, which jax lowers only where every device is named;"
        " the mesh has 131,072.",
        False,
    ),
    "types that disagree": (
        lambda: program(
            lambda x, w: x @ w,
            MeshSpec(("data", "model"), (4, 2), ("Explicit", "Explicit")),
            x=((64, 32), "data, model"),
            w=((32, 128), "data, None"),
        ),
        "trace",
        "",
        True,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_data(eight_devices, name):
    make, stage, words, ours = ERRORS[name]
    found = plan_program(make())
    assert not found.ok
    assert not found.has("ops")
    assert (found.error.stage, found.error.message[: len(words)]) == (stage, words)
    assert found.error.source.startswith("test_build.py:") == ours
    assert repr(found).startswith("Plan(")


def test_what_is_no_program_is_refused():
    with pytest.raises(ProgramError, match=r"sv\.plan takes a program"):
        plan_program("x @ w")


def test_a_pass_that_fails_is_an_error_of_the_plan(eight_devices, monkeypatch):
    def broken(*_):
        raise RuntimeError("pass failed")

    monkeypatch.setattr(build_plan.pipeline, "propagate", broken)
    found = plan_program(program(jnp.sin, x=X))
    assert (found.error.stage, found.error.said) == ("propagate", "RuntimeError: pass failed")


# name: what is asked of a plan that was not propagated yet, whether it has to be propagated for it
ASKED = {
    "values": (lambda plan: plan.ops, True),
    "collectives": (lambda plan: plan.collectives, True),
    "success": (lambda plan: plan.ok, True),
    "an error": (lambda plan: plan.error, True),
    "notes": (lambda plan: plan.notes, True),
    "duration": (lambda plan: plan.seconds, True),
    "text": (repr, True),
    "a copy": (lambda plan: replace(plan, program="copy"), True),
    "a pickle": (lambda plan: pickle.loads(pickle.dumps(plan)) == plan, True),
    "constraints": (lambda plan: plan.constraints, False),
    "time of the trace": (lambda plan: (plan.trace_s, plan.lower_s), False),
    "the program": (lambda plan: (plan.of, plan.program, plan.mesh), False),
}


@pytest.mark.parametrize(("ask", "propagates"), ASKED.values(), ids=ASKED)
def test_shardings_are_propagated_when_they_are_asked_for(monkeypatch, ask, propagates):
    calls = []

    def propagate(*arguments):
        calls.append(arguments)
        return propagate_now(*arguments)

    propagate_now = pipeline.propagate
    monkeypatch.setattr(pipeline, "propagate", propagate)
    found = plan_program(program(jnp.sin, x=X))
    assert not calls
    for _ in range(2):
        assert ask(found) is not False
        assert len(calls) == propagates


def test_threads_that_read_one_plan_propagate_it_once(monkeypatch):
    calls, together = [], threading.Barrier(4)

    def propagate(*arguments):
        calls.append(arguments)
        return propagate_now(*arguments)

    propagate_now = pipeline.propagate
    monkeypatch.setattr(pipeline, "propagate", propagate)
    found = plan_program(program(jax.grad(block, 1), x=X, w=W))

    def read(_):
        together.wait()
        return found.ops

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(read, range(4))
    assert len(calls) == 1
    assert all(ops is first for ops in others)


def test_an_interrupted_propagation_is_repeated(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    found = plan_program(program(jnp.sin, x=X))
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "propagate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _ = found.ok
    assert found.ok
    assert str(found.op("sin").spec) == str(found.op("x").spec)


def test_without_shardy_nothing_is_traced(monkeypatch):
    def missing():
        raise ProgramError("Shardy is not there.")

    monkeypatch.setattr(pipeline, "check_available", missing)
    found = plan_program(program(fails, x=X))
    assert (found.error.stage, found.error.said) == ("propagate", "Shardy is not there.")
    assert not found.has("trace_s")


def block(x, w):
    hidden = jax.nn.relu(x @ w)
    return jnp.sum(jax.nn.softmax(hidden @ w.T) ** 2)


def summary(found):
    """A plan without the sizes that grow with the mesh."""
    values = [
        (op.name, op.op, op.spec, op.origins, op.steps, op.operands, op.source) for op in found.ops
    ]
    return values, [
        (c.kind, c.mesh_axes, c.value, c.op, c.bytes_per_device) for c in found.collectives
    ]


@pytest.mark.parametrize("devices", [512, 65_536, 1_048_576, 1 << 24])
def test_a_plan_is_the_same_from_8_devices_to_a_million(eight_devices, devices):
    def on(size):
        mesh = make_mesh(data=size // 2, model=2)
        return plan(jax.grad(block, 1), mesh, x=((8 * size, 32), "data"), w=W)

    small, large = on(8), on(devices)
    assert summary(small) == summary(large)
    assert all(not c.groups for c in large.collectives)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_plans_for_16_million_devices_take_no_memory_for_each():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    mesh, size = make_mesh(a=1 << 12, b=1 << 12), 1 << 24
    plan(jnp.dot, MESH, x=X, y=W)
    before = resident()
    # jax would keep 128 MiB for each of these.
    for spec in ("a", "b", "(a, b)", "(b, a)", "None, a"):
        found = plan(jnp.sin, mesh, x=((size, size), spec))
        assert str(found.op("output").spec) == str(found.op("x").spec)
    assert resident() - before < 64 << 20


def test_arguments_in_trees_keep_their_names(eight_devices):
    struct = jax.ShapeDtypeStruct
    params = {"a b": {"w": struct((32, 64), "float32")}, "layers": [struct((4,), "int8")]}

    def fn(params, x):
        return {"y": x @ params["a b"]["w"], "z": x.sum()}

    specs = (jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data"))
    arguments = (params, struct((64, 32), "float32"))
    made = build_program(fn, arguments, MESH, None, Dialect.LINEN, specs, None, (1,), "")
    found = plan_program(made)
    names = [op.name for op in found.ops if op.kind != "op"]
    assert names == ["params.a b.w", "params.layers[0]", "x", "output.y", "output.z"]
    assert str(found.op("output.y").origins["data"]) == "data from argument x"
