"""What somebody types who has read nothing: it works, or a sentence names what to type instead."""

from __future__ import annotations

import importlib
import pydoc

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv

WORKS = """
sv.plot(params)
sv.plot(x)
sv.plot(mesh)
sv.plot(x.sharding)
sv.plot(fn, x, w)
sv.plot(fn, plain, w, mesh=mesh)
sv.plot(x, mesh=mesh)
sv.plot(plain, P("data"), mesh)
sv.plot((16, 32), spec=P("data"), mesh=mesh)
sv.plot(params, mesh=mesh)
sv.text(plain, spec=P(), mesh=mesh)
sv.text({"x": plain}, mesh=mesh)
sv.text(mesh)
sv.text(x)
sv.text(params)
sv.text(x.sharding.spec)
sv.mesh([4, 2], ["data", "model"])
sv.mesh({"data": 4, "model": 2})
sv.Spec("data", None)
sv.Spec(P("data"))
sv.layout(x)
sv.layout((16, 32), P("data"), mesh)
sv.plan(jitted, x, w)
sv.plan(fn, x, w, in_shardings=(x.sharding, None))
sv.compile(jitted, x, w)
sv.run(fn, x, w)
sv.explore(params)
sv.explore(x)
sv.audit(params)
sv.rules({"batch": "data"})
sv.resolve("batch embed", {"batch": "data"})
sv.array((16, 32))
sv.exercises.names()
"""
# The answer contains the call that leads on.
ANSWERED = {
    "sv.show(x)": "sv.plot",
    "sv.visualize(params)": "sv.plot",
    "sv.explain(fn, x, w)": "sv.text",
    "sv.spec('data', None)": "sv.Spec",
    "sv.sharding(x)": "sv.layout",
    "sv.memory(fn, x, w)": "sv.compile",
    "sv.collectives(fn, x, w)": "sv.compile",
    "sv.optimize(fn, x, w)": "sv.search",
    "sv.simulate(fn, x, w)": "sv.run",
    "sv.comple(fn, x, w)": "sv.compile",
    "sv.something(fn)": "help(sv)",
    "sv.make_mesh((4, 2), ('data', 'model'))": "sv.mesh?",
    "sv.DeviceMesh((4, 2))": "sv.mesh?",
    "sv.visualize_array_sharding(x)": "sv.plot?",
    "sv.device_put(plain, P('data'))": "jax.device_put",
    "sv.plan(fn, (16, 32), (32, 64), mesh=mesh, in_shardings=P('data'))": "sv.array((32, 64))",
    "sv.plan(fn, (16, 32), (32, 64), mesh=mesh).collectives": "sv.array((32, 64))",
    "sv.run(fn, (16, 32), (32, 64), mesh=mesh).collectives": "sv.array((32, 64))",
    "sv.mesh(8)": "data=4",
    "sv.mesh('4x2')": "data=4",
    "sv.mesh((4, 2))": "data=4",
    "sv.mesh(4, 2)": "sv.mesh((4, 2), ('data', 'model'))",
    "sv.layout((16, 32), P('data'))": "sv.mesh",
    "sv.layout(plain, mesh)": "sv.layout(x, P('data'), mesh)",
    "sv.layout(plain, mesh=mesh)": "sv.layout(x, P('data'), mesh)",
    "sv.plot(plain, mesh)": "sv.layout(x, P('data'), mesh)",
    "sv.plot(P('data', 'model'), mesh)": "an array or its shape; got P('data'",
    "sv.layout(x.sharding)": "sv.layout(x, sharding)",
    "sv.text(3)": "no text of 3. Give an array",
    "sv.plot('hello')": "no text of 'hello'. Give an array",
    "sv.text(sv.cache)": "Give an array",
    "sv.text(fn)": "sv.plan(f, *args)",
    "sv.plot(jitted)": "sv.plan(f, *args)",
    "sv.text(plain.sharding)": "sv.layout(shape, sharding)",
    "sv.plot(None)": "no array to lay out",
    "sv.text([])": "no array to lay out",
    "sv.text({'a': 3})": "no array to lay out",
    "sv.audit({})": "no array to lay out",
    "sv.audit({'a': jax.ShapeDtypeStruct((8,), 'float32')})": "mesh=sv.mesh(data=4, model=2)",
    "sv.plan(fn, plain, plain.T)": "mesh=sv.mesh(data=4, model=2)",
    "sv.explore(fn, plain, plain.T)": "mesh=sv.mesh(data=4, model=2)",
    "sv.compile(jitted)": "sv.compile(fn, x, w)",
    "sv.plan(fn)": "sv.plan(fn, x, w)",
    "sv.lock(fn)": "sv.lock(fn, x, w)",
    "sv.explore(fn)": "sv.explore(",
    "sv.plan(x)": "sv.plan(fn, *args)",
    "sv.search(fn, x, w)": "target=",
    "sv.topology('v5e')": "tpu:v5e:4x4",
    "sv.report(jitted)": "sv.compile(f, *args)",
}


@pytest.fixture
def names(eight_devices):
    """What the person has in hand."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), devices=eight_devices)
    x = jax.device_put(jnp.ones((16, 32)), NamedSharding(mesh, P("data")))
    w = jax.device_put(jnp.ones((32, 64)), NamedSharding(mesh, P(None, "model")))

    def fn(x, w):
        return x @ w

    hand = {
        "plain": jnp.ones((16, 32)),
        "mesh": mesh,
        "x": x,
        "w": w,
        "params": {"dense": {"w": w}},
        "fn": fn,
    }
    return {**hand, "jitted": jax.jit(fn), "sv": sv, "P": P, "jax": jax}


@pytest.mark.parametrize("typed", WORKS.split("\n")[1:-1])
def test_it_works(names, typed):
    assert eval(typed, names) is not None  # noqa: S307


@pytest.mark.parametrize(("typed", "leads_to"), ANSWERED.items(), ids=ANSWERED)
def test_it_is_answered_in_a_sentence_that_leads_on(names, typed, leads_to):
    with pytest.raises((sv.ShardvizError, AttributeError)) as caught:
        eval(typed, names)  # noqa: S307
    assert leads_to in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_opens_with_an_example_and_has_every_function():
    text = pydoc.plain(pydoc.render_doc(sv))
    start = text[: text.index("PACKAGE CONTENTS")]
    assert start.index("import shardviz as sv") < start.index("Meshes and arrays")
    listed = set(start.replace(",", " ").split())
    functions = {name for name in sv.__all__ if name.islower() and not name.startswith("_")}
    assert functions <= listed
    assert max(map(len, start.splitlines())) <= 100


def test_a_name_that_is_nobodys_is_not_guessed():
    for name in ("_repr_html_", "__wrapped__", "_ipython_canary_method_should_not_exist_"):
        assert not hasattr(sv, name)
    with pytest.raises(ImportError):
        importlib.import_module("shardviz.nothing")
