"""Mesh contexts: for every nesting, what shardviz says each API sees is what JAX makes of it."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from shardviz.base.mesh_context import MeshContext
from shardviz.programs.backend import mesh_context as mesh_context_module
from shardviz.programs.backend.bridge import adopt_mesh
from shardviz.programs.backend.mesh_context import mesh_context

AUTO, EXPLICIT, MANUAL = AxisType.Auto, AxisType.Explicit, AxisType.Manual
# Every mesh has axis names of its own, so that a name tells the mesh.
FIRST_AXES = ("x", "z", "e", "half", "mix")


def mesh(sizes: tuple[int, ...], names: tuple[str, ...], kind: AxisType = AUTO) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, names, axis_types=(kind,) * len(names))


def meshes() -> dict[str, Mesh]:
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    return {
        "X": mesh((4, 2), ("x", "y")),
        "Z": mesh((8,), ("z",)),
        "E": mesh((8,), ("e",), EXPLICIT),
        "HALF": mesh((4,), ("half",)),
        "MIX": Mesh(
            np.array(jax.devices()[:8]).reshape(4, 2), ("mix", "n"), axis_types=(EXPLICIT, AUTO)
        ),
    }


@contextlib.contextmanager
def entered(text: str) -> Iterator[None]:
    """Enters contexts written as `with X > set Z > use E`, outermost first."""
    pool = meshes()
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for step in filter(None, text.split(" > ")):
            stack.enter_context(manager(step, pool))
        yield


def manager(step: str, pool: dict[str, Mesh]) -> Any:
    way, name = step.split()
    if name == "None":
        return jax.set_mesh(None)
    if way == "set":
        return jax.set_mesh(pool[name])
    return jax.sharding.use_abstract_mesh(pool[name].abstract_mesh) if way == "use" else pool[name]


def names_found(attempt: Callable[[P], Any]) -> tuple[str, ...]:
    """The mesh that an API sees, by its first axis: the one of the names it does not reject."""
    found = []
    for name in FIRST_AXES:
        seen = attempt(P(name))
        if seen is not None:
            found.append(seen)
    assert len(set(found)) <= 1, found
    return found[0] if found else ()


UNSEEN = r"not found in mesh|non-empty mesh|set a mesh|cannot be empty|not under a mesh|marked as"


def quietly(call: Callable[[], Any]) -> Any:
    """The result, or None where the API says that it sees no such axis."""
    try:
        return call()
    except (ValueError, RuntimeError) as error:
        if re.search(UNSEEN, str(error)):
            return None
        raise


def of_equation(fn: Callable[..., Any], name: str, get: Callable[[Any], Any]) -> Any:
    x = jax.ShapeDtypeStruct((8,), "float32")
    traced = quietly(lambda: jax.make_jaxpr(fn)(x))
    if traced is None:
        return None
    found = [e for e in traced.jaxpr.eqns if e.primitive.name == name]
    return tuple(get(found[0]).axis_names) if found else None


def saw_and_refused(error: Exception, words: str) -> tuple[str, ...]:
    """The axis that the error speaks of: the API found it, and refused for another reason."""
    if not re.search(words, str(error)):
        raise error
    found = [n for n in FIRST_AXES if re.search(rf"P\('{n}',|'{n}': |axis name: {n} ", str(error))]
    assert len(found) == 1, str(error)
    return (found[0],)


def constraint(spec: P) -> Any:
    def fn(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, spec)

    return _constraint_of(fn)


def _constraint_of(fn: Callable[..., Any]) -> Any:
    try:
        return of_equation(fn, "sharding_constraint", lambda e: e.params["sharding"].mesh)
    except (AssertionError, ValueError) as error:
        return saw_and_refused(error, "acts as an assert|can only refer to Auto axes")


def flax_constraint(spec: P) -> Any:
    def fn(x: Any) -> Any:
        with nn.logical_axis_rules([("rows", spec[0])]):
            return nn.with_logical_constraint(x, ("rows",))

    return _constraint_of(fn)


def in_shardings(spec: P) -> Any:
    x = jax.ShapeDtypeStruct((8,), "float32")
    traced = quietly(lambda: jax.jit(lambda x: x * 2, in_shardings=spec).trace(x))
    return None if traced is None else (spec[0],)


def device_put(spec: P) -> Any:
    placed = quietly(lambda: jax.device_put(np.zeros(8, np.float32), spec))
    return None if placed is None else tuple(placed.sharding.mesh.axis_names)


def mapped(spec: P) -> Any:
    def fn(x: Any) -> Any:
        return jax.shard_map(lambda y: y, in_specs=spec, out_specs=spec, check_vma=False)(x)

    try:
        return of_equation(fn, "shard_map", lambda e: e.params["mesh"])
    except ValueError as error:
        return saw_and_refused(error, "does not match the specs of the input")


def resharded(spec: P) -> Any:
    def fn(x: Any) -> Any:
        return jax.sharding.reshard(x, spec)

    try:
        return of_equation(fn, "reshard", lambda e: e.params["dst_sharding"].mesh)
    except ValueError as error:
        return saw_and_refused(error, "of type Auto or Manual")


PROBES: dict[str, Callable[[], tuple[str, ...]]] = {
    "with_sharding_constraint": lambda: names_found(constraint),
    "jit in_shardings": lambda: names_found(in_shardings),
    "device_put": lambda: names_found(device_put),
    "shard_map": lambda: names_found(mapped),
    "reshard": lambda: names_found(resharded),
    "flax with_logical_constraint": lambda: names_found(flax_constraint),
    "get_mesh": lambda: tuple(jax.sharding.get_mesh().axis_names),
    "get_abstract_mesh": lambda: tuple(jax.sharding.get_abstract_mesh().axis_names),
}

NESTINGS = [
    "", "with X", "set X", "set E", "use X", "use E", "with X > with Z", "with X > set Z",
    "set X > set None", "with X > use Z", "set X > use Z", "set E > use X", "use X > set E",
    "set X > with Z > use E", "with E", "use MIX", "set MIX",
]  # fmt: skip


@pytest.mark.parametrize("nesting", NESTINGS, ids=lambda n: n or "nothing")
def test_what_each_api_sees_is_what_jax_makes_of_it(nesting: str):
    with entered(nesting):
        context = mesh_context()
        for api, probe in PROBES.items():
            seen = context.sees(api)
            first = () if seen is None else seen.axis_names
            got = probe()
            assert first[:1] == got[:1], f"{api} under {nesting or 'nothing'}"
        assert not context.traced
        assert mesh_context() == context, "looking changed something"
    assert mesh_context() == MeshContext()


@pytest.mark.parametrize(
    ("nesting", "in_force", "mesh", "entered_mesh", "overlaid"),
    [
        ("", "none", None, None, False),
        ("with X", "with mesh", "x=4, y=2", "x=4, y=2", False),
        ("with X > with Z", "with mesh", "z=8", "z=8", False),
        ("set X", "set_mesh", "x=4, y=2", None, False),
        ("with Z > set X", "set_mesh", "x=4, y=2", "z=8", False),
        ("use X", "abstract mesh", "x=4, y=2", None, False),
        ("set X > use Z", "set_mesh", "z=8", None, True),
    ],
)
def test_what_is_in_force(
    nesting: str, in_force: str, mesh: Any, entered_mesh: Any, overlaid: bool
):
    with entered(nesting):
        context = mesh_context()
    assert context.in_force == in_force
    assert (context.mesh and str(context.mesh)) == mesh
    assert (context.entered and str(context.entered)) == entered_mesh
    assert context.overlaid == overlaid
    assert context.explain()


def test_inside_jit_the_mesh_of_set_mesh_is_still_known():
    found = []

    @jax.jit
    def fn(x: Any) -> Any:
        found.append(mesh_context())
        return x

    with entered("with Z > set X"):
        fn(1.0)
    (context,) = found
    assert context.traced
    assert context.current == adopt_mesh(meshes()["X"])
    assert [str(m) for m in context.legacy] == ["z=8"]


def test_inside_shard_map_axes_are_manual():
    found = []

    def fn(x: Any) -> Any:
        found.append(mesh_context())
        return x

    with entered("set X"):
        jax.shard_map(fn, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(np.zeros(8))
    assert found[0].abstract.axis_types == ("Manual", "Auto")
    assert found[0].overlaid


def test_a_jax_without_the_private_names_is_noted(monkeypatch: pytest.MonkeyPatch):
    for name in ("entered_meshes", "concrete_mesh"):
        monkeypatch.setattr(mesh_context_module, name, lambda: None)
    with entered("with X"):
        context = mesh_context()
    assert context.legacy == ()
    assert not context.readable
