"""Whatever the user calls is traced as jax traces it, and is as it was before."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.mesh_context import in_context
from shardviz.programs.backend.trace import trace
from shardviz.programs.notes import MeshNeeded
from shardviz.programs.program import Program
from tests.program.helpers import sentences
from tests.program.library_ways import LIBRARY_WAYS, inner
from tests.program.ways import WAYS, Way, over_data, x
from tests.watch.cache_events import jax_cache_events

EVERY = {**WAYS, **LIBRARY_WAYS}


def made(way: Way) -> Program:
    own = {"mesh": "data=2", **way.own}
    if own["mesh"] is None:
        del own["mesh"]
    with way.context():
        return sv.program(way.fn, *way.args, **way.kwargs, **own)


def ours(way: Way) -> Any:
    program = made(way)
    with way.context():
        return trace(program, abstract_mesh(program.mesh))


def written(jaxpr: Any) -> str:
    """A jaxpr as text, without the kind of device that a mesh is for."""
    return re.sub(r", device_kind=\w+, num_cores=\w+, platform=\w+", "", str(jaxpr))


@pytest.mark.parametrize("name", EVERY)
def test_the_program_is_the_one_that_jax_traces(name):
    way = EVERY[name]()
    traced = ours(way)
    jaxpr = traced.stage.jaxpr if not name.startswith("nnx.jit") else inner(traced.stage.jaxpr)
    if name in ("no argument", "nothing but containers"):  # nothing but the mesh says where it runs
        assert [note.partition(":")[0] for note in traced.notes] == [
            "Traced with the program's mesh in context, as under jax.set_mesh"
        ]
        with in_context(traced.mesh):
            assert written(jaxpr) == written(way.jaxpr())
        return
    assert written(jaxpr) == written(way.jaxpr())
    assert traced.notes == ()
    assert [v.aval.weak_type for v in jaxpr.jaxpr.invars] == [
        v.aval.weak_type for v in way.jaxpr().jaxpr.invars
    ]


def events_of_a_call(way: Way) -> tuple[list[tuple[str, str]], Any]:
    with jax_cache_events() as events:
        result = way.call()
    return [(e.kind, e.name) for e in events], result


def same(first: Any, second: Any) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(_values(a), _values(b)) for a, b in pairs)


def _values(leaf: Any) -> Any:
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


CALLED = [name for name, make in WAYS.items() if make().called]
RUN = CALLED[::20]


@pytest.mark.parametrize("name", CALLED)
def test_the_users_own_call_is_as_without_us(name):
    EVERY[name]().call()  # what jax itself jits is compiled once
    alone, expected = events_of_a_call(EVERY[name]())
    way = EVERY[name]()
    before = dict(jax.config.values)
    program = made(way)
    with way.context():
        assert sv.plan(program).error is None
        if name in RUN:
            assert sv.compile(program, "attached").error is None
            report = sv.run(program, target="attached")
            assert report.error is None
            assert report.ok, report.checks
    assert sv.plan(program).error is None  # in another context than the program was made in
    assert dict(jax.config.values) == before
    with_us, result = events_of_a_call(way)
    assert with_us == alone
    assert same(result, expected)
    again, _ = events_of_a_call(way) if "donat" not in name else ([], None)
    assert [e for e in again if e[0] == "compile"] == []


def test_a_shard_map_bound_to_the_mesh_in_sight_can_be_called_before_and_after():
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    for calls_first in (True, False):
        body = jax.shard_map(
            lambda x: jax.lax.psum(x, "data"), in_specs=jax.P("data"), out_specs=jax.P()
        )
        inner = jax.jit(body)
        step = jax.jit(lambda x, inner=inner: inner(x) + 1)
        with jax.set_mesh(mesh):
            value = jax.device_put(x(), jax.P("data"))
            first = step(value) if calls_first else None
            program = sv.program(step, value)
            assert sv.plan(program).error is None
            assert sv.compile(program, "attached").error is None
            assert np.array_equal(step(value), x()[:4] + x()[4:] + 1)
            assert first is None or same(first, step(value))
        assert sv.plan(program).error is None
        assert np.array_equal(step(value), x()[:4] + x()[4:] + 1)
        with jax.set_mesh(mesh):
            assert np.array_equal(inner(value), x()[:4] + x()[4:])


def test_a_mesh_is_put_in_context_only_where_jax_asks_for_one():
    program = sv.program(lambda x: over_data("data")(x * 2), x(), mesh="data=2")
    plan = sv.plan(program)
    assert plan.error is None
    said = "RuntimeError: with_sharding_constraint requires a non-empty mesh in context if"
    (note,) = plan.notes
    assert note.startswith(sentences(MeshNeeded(said))[0])
    assert sv.compile(program, "attached").notes[0] == plan.notes[0]


def test_the_context_of_the_program_is_kept():
    seen = []

    def step(x):
        seen.append(jax.sharding.get_abstract_mesh().axis_names)
        return x * 2

    with jax.set_mesh(jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])):
        program = sv.program(step, x())
    assert program.mesh.axis_types == ("Explicit",)
    assert sv.plan(program).error is None
    assert sv.plan(sv.program(step, x(), mesh="data=2")).error is None
    assert seen == [("data",), ()]


REFUSED = {
    "text to jax.jit": (
        lambda: sv.program(jax.jit(lambda x, mode: x), x(), "train", mesh="data=2"),
        "mode holds 'train', which is not an array, and jax.jit takes only arrays. Name the"
        " argument in static_argnames of jax.jit, or give sv.program the function without jax.jit.",
    ),
    "an unknown keyword": (
        lambda: sv.program(lambda x: x, x(), mesh="data=2", tules=3),
        "sv.program takes no tules=, and neither does the function. Did you mean 'rules'?",
    ),
    "a keyword of another function": (
        lambda: sv.plan(lambda x: x, x(), mesh="data=2", target="v5e-2"),
        "sv.program takes no target=, and neither does the function. sv.compile takes target=.",
    ),
    "a spec for several arrays that one of them cannot have": (
        lambda: sv.plan(lambda p: p, {"w": x()}, mesh="data=2", in_specs=jax.P(None, None, "data")),
        "p.w: The spec P(None, None, 'data') has 3 entries, but the array has ",
    ),
    "a number that is too large": (
        lambda: sv.program(lambda x, n: x, x(), 2**40, mesh="data=2"),
        "n is 1099511627776, which does not fit into jax's integers of 32 bits.",
    ),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_what_jax_would_refuse_is_refused_in_a_sentence(call, words):
    with pytest.raises(sv.ShardvizError) as caught:
        call()
    assert str(caught.value).startswith(words)
