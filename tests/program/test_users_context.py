"""Programs are traced in the user's own context: refused if and only if jax refuses the call."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.libraries import spec_of
from shardviz.base.errors import ProgramError

SIZES = {"rows": {"s": 8}, "grid": {"s": 2, "t": 4}, "half": {"s": 4}}
VALUES = np.arange(64, dtype=np.float32).reshape(8, 8)


def a_mesh(name: str) -> Mesh:
    """The mesh of a name such as `"rows, Auto"`, on the first devices."""
    axes, kind = name.split(", ")
    sizes = tuple(SIZES[axes].values())
    devices = np.array(jax.devices("cpu")[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, tuple(SIZES[axes]), axis_types=(AxisType[kind],) * len(sizes))


@contextlib.contextmanager
def entered(context: str) -> Iterator[None]:
    """The context of a text such as `"set rows, Auto"`; `""` for none."""
    way, _, name = context.partition(" ")
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if way == "set":
            stack.enter_context(jax.set_mesh(a_mesh(name)))
        elif way == "abstract":
            mesh = a_mesh(name).abstract_mesh
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        elif way == "with":
            stack.enter_context(a_mesh(name))
        yield


CONTEXTS = (
    "",
    "set rows, Auto",
    "set grid, Auto",
    "set rows, Explicit",
    "set grid, Explicit",
    "set half, Auto",
    "abstract rows, Auto",
    "with rows, Auto",
    "with grid, Auto",
)


def on(name: str) -> Any:
    return jax.device_put(VALUES, NamedSharding(a_mesh(name), P("s")))


ARRAYS = {
    "numpy": lambda: VALUES,
    "uncommitted": lambda: jnp.asarray(VALUES),
    "rows, Auto": lambda: on("rows, Auto"),
    "grid, Auto": lambda: on("grid, Auto"),
    "rows, Explicit": lambda: on("rows, Explicit"),
    "grid, Explicit": lambda: on("grid, Explicit"),
    "described": lambda: jax.ShapeDtypeStruct(
        (8, 8), "float32", sharding=NamedSharding(a_mesh("rows, Auto"), P("s"))
    ),
}


def adds(x):
    return x + 1


def constrains_by_name(x):
    return jax.lax.with_sharding_constraint(x * 2, P("t"))


def constrains_by_sharding(x):
    sharding = NamedSharding(a_mesh("rows, Auto"), P(None, "s"))
    return jax.lax.with_sharding_constraint(x * 2, sharding)


def reshards(x):
    return jax.sharding.reshard(x * 2, P(None, "s"))


def maps(x):
    return jax.shard_map(lambda v: v * 2, in_specs=P("s"), out_specs=P("s"))(x)


def maps_over_its_own(x):
    mesh = a_mesh("grid, Auto")
    split = P("t", "s")
    return jax.shard_map(lambda v: v * 2, mesh=mesh, in_specs=split, out_specs=split)(x)


FUNCTIONS = (
    adds,
    constrains_by_name,
    constrains_by_sharding,
    reshards,
    maps,
    maps_over_its_own,
)


def refused_by_jax(fn: Any, x: Any, lowers: bool) -> bool:
    try:
        traced = jax.jit(lambda x: fn(x)).trace(x)
        if lowers:
            traced.lower()
    except (ValueError, RuntimeError, TypeError, AssertionError):
        return True
    return False


@functools.cache
def kind_of_the_note_of_a_refusal() -> type:
    program = sv.program(constrains_by_name, sv.array("x", (8, 8)), mesh="s=2, t=4")
    return type(sv.plan(program).notes[0])


def refused_here(plan: Any) -> bool:
    """Whether a plan says that jax refuses the call, in an error or a note."""
    kind = kind_of_the_note_of_a_refusal()
    return plan.error is not None or any(type(note) is kind for note in plan.notes)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("context", CONTEXTS, ids=lambda text: text or "none")
def test_plans_are_refused_where_jax_refuses_the_call(context, fn, eight_devices):
    for name, make in ARRAYS.items():
        x = make()
        with entered(context):
            # Without devices jax can trace a call, and not lower it.
            refused = refused_by_jax(fn, x, not context.startswith("abstract"))
            try:
                plan = sv.plan(fn, x)
            except ProgramError:
                plan = None
        if plan is None:
            # A program without any mesh runs on one device, and needs no plan.
            assert refused or (context in NO_MESH and fn is adds), name
            continue
        two_meshes = plan.error is not None and plan.error.stage == "propagate"
        assert two_meshes or refused_here(plan) == refused, (name, plan.error)


NO_MESH = ("",)
RUNS = [
    ("", "numpy", constrains_by_sharding),
    ("", "numpy", maps_over_its_own),
    ("", "uncommitted", constrains_by_sharding),
    ("", "rows, Auto", maps_over_its_own),
    ("", "grid, Explicit", constrains_by_sharding),
    ("set rows, Auto", "numpy", maps),
    ("set rows, Auto", "grid, Auto", constrains_by_sharding),
    ("set grid, Auto", "numpy", constrains_by_name),
    ("set grid, Auto", "uncommitted", constrains_by_sharding),
    ("set grid, Auto", "rows, Auto", constrains_by_name),
    ("set grid, Explicit", "grid, Explicit", reshards),
    ("set grid, Explicit", "numpy", reshards),
    ("set grid, Explicit", "uncommitted", reshards),
    ("with grid, Auto", "rows, Auto", constrains_by_name),
]


@pytest.mark.parametrize("target", ["attached", None], ids=["here", "worker"])
@pytest.mark.parametrize(
    ("context", "array", "fn"),
    RUNS,
    ids=[f"{c or 'none'}-{a}-{fn.__name__}" for c, a, fn in RUNS],
)
def test_runs_give_what_jax_gives(context, array, fn, target, eight_devices):
    x = ARRAYS[array]()
    with entered(context):
        expected = jax.jit(fn)(x)
        report = sv.run(fn, x, target=target)
    assert report.ok, report.error or report.checks
    np.testing.assert_array_equal(np.asarray(report.outputs), np.asarray(expected))
    assert str(report.out_layouts["output"].spec) == str(spec_of(expected.sharding.spec))
    # As jax places arguments for which nobody chose devices.
    if array in ("numpy", "uncommitted"):
        with entered(context):
            (sharding,) = jax.jit(fn).lower(x).compile().input_shardings[0]
        layout = report.in_layouts["x"]
        boxes = sharding.devices_indices_map((8, 8))
        assert layout.shard_shape == sharding.shard_shape((8, 8))
        assert {device.id: layout.box(device.id) for device in boxes} == {
            device.id: tuple(slice(*part.indices(8)[:2]) for part in box)
            for device, box in boxes.items()
        }


def test_the_context_of_where_a_program_was_made_is_entered_again(eight_devices):
    x = on("rows, Explicit")
    with entered("set grid, Explicit"):
        made = sv.program(adds, x)
        assert refused_by_jax(adds, x, True)
    assert sv.plan(made).error is not None
    assert sv.run(made, x).error is not None
    # A mesh that is given takes the place of that in context.
    with entered("set grid, Explicit"):
        assert sv.plan(adds, x, mesh=a_mesh("rows, Explicit")).error is None


def test_an_array_on_one_device_beside_a_mesh_is_refused(eight_devices):
    x = jax.device_put(VALUES, jax.devices("cpu")[0])
    for context, fn in [("set rows, Auto", adds), ("", constrains_by_sharding)]:
        with entered(context):
            assert refused_by_jax(fn, x, True)
            with pytest.raises(ProgramError):
                sv.plan(fn, x)


def test_devices_in_another_order_than_in_context_are_refused(eight_devices):
    other = Mesh(a_mesh("rows, Auto").devices[::-1], ("s",), axis_types=(AxisType.Auto,))
    x = on("rows, Auto")
    with jax.set_mesh(other):
        assert refused_by_jax(adds, x, True)
        assert sv.plan(adds, x).error is not None
        assert sv.run(adds, x, target="attached").error is not None


NAMED = {
    "constraint": constrains_by_sharding,
    "shard_map": maps_over_its_own,
    "inner jit": lambda x: jax.jit(adds, in_shardings=NamedSharding(a_mesh("rows, Auto"), P("s")))(
        x
    ),
    "device_put": lambda x: jax.device_put(x, NamedSharding(a_mesh("rows, Auto"), P("s"))) + 1,
    "static number": lambda x, times: constrains_by_sharding(x) if times > 1 else x,
}


@pytest.mark.parametrize("name", NAMED)
def test_a_mesh_that_the_function_names_is_found(name, eight_devices):
    numbers = (2,) if name == "static number" else ()
    program = sv.program(NAMED[name], VALUES, *numbers)
    assert program.mesh.size == 8
    assert sv.plan(program).error is None
