"""What an Effects value holds, and effects of classes that jax does not know."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import effects as jax_sets
from jax.extend.core import Primitive
from jax.interpreters import mlir

import shardviz as sv
from shardviz.base.backend import jax_compat
from shardviz.base.errors import ProgramError
from shardviz.programs.backend import effect_rules
from shardviz.programs.effects import DeviceCount, Effects, EffectUse, NamesOwnMesh
from tests.effects.programs import KINDS, PLACES, STRUCT


def on(count, fn, spec="d"):
    return sv.program(fn, sv.array("x", (8,), spec=spec), mesh=sv.mesh(d=count))


CLASSES = {
    "no effects": [],
    "print": ["debug callback"],
    "print, ordered": ["debug callback, ordered"],
    "debug callback": ["debug callback"],
    "io": ["io callback"],
    "io, ordered": ["io callback, ordered"],
    "pure callback": [],
    "ref": ["makes a ref"],
    "two orders": ["debug callback, ordered", "io callback, ordered"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_named_and_its_tokens_are_those_of_jax(kind, eight_devices):
    found = sv.effects(KINDS[kind], STRUCT)
    lowered = jax.jit(lambda x: KINDS[kind](x)).lower(STRUCT).as_text()
    [main] = [line for line in lowered.splitlines() if "@main" in line]
    assert list(found.names) == CLASSES[kind]
    assert [use.ordered for use in found.uses] == ["ordered" in n for n in found.names]
    assert len(found.host_calls) == (kind == "pure callback")
    tokens = main.count("!stablehlo.token") + main.count("tensor<0xi1>")
    assert 2 * found.tokens == tokens
    assert effect_rules.has_callbacks(lowered) is (kind not in ("no effects", "ref"))


def test_what_lapack_computes_is_no_callback():
    text = jax.jit(jnp.linalg.inv).lower(jnp.eye(2)).as_text()
    assert not effect_rules.has_callbacks(text)


def test_a_mesh_larger_than_the_machine_needs_no_devices(eight_devices):
    found = sv.effects(on(1 << 20, KINDS["io, ordered"], spec=""))
    assert found.refused is None
    assert found.runs_on(1 << 20)[0]


def test_it_says_where_the_operations_are(eight_devices):
    found = sv.effects(on(8, PLACES["scan in shard_map"](KINDS["print"])))
    assert found.uses[0].nesting == ("shard_map > scan",)
    assert found.uses[0].calls == 1


@pytest.mark.parametrize("place", ["top", "scan", "cond", "gradient of remat", "vmap"])
def test_nothing_is_called(place, eight_devices):
    called = []

    def noisy(x):
        jax.debug.callback(called.append, x)
        return x

    assert sv.effects(on(8, PLACES[place](noisy))).names == ("debug callback",)
    jax.effects_barrier()
    assert called == []


@pytest.mark.parametrize("kind", ["print", "io", "io, ordered", "print, ordered"])
def test_where_an_effect_is_allowed_is_what_jax_lists(kind, eight_devices):
    [use] = sv.effects(KINDS[kind], STRUCT).uses
    [effect] = jax.jit(lambda x: KINDS[kind](x)).trace(STRUCT).jaxpr.effects
    listed = set()
    for construct, name in jax_compat.CONSTRUCTS.items():
        if getattr(jax_sets, name).contains(effect):
            listed.add(construct)
    assert set(use.allowed) == listed


def test_a_function_that_names_its_own_mesh_runs_on_that_many(eight_devices):
    mesh = jax.sharding.Mesh(np.array(eight_devices), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    own = jax.shard_map(KINDS["print"], mesh=mesh, in_specs=spec, out_specs=spec)
    found = sv.effects(own, STRUCT)
    assert found.devices == "8 devices"
    assert found.runs_on(8)[0]
    assert found.on(1) == NamesOwnMesh(1, 8)


def test_a_layout_that_cannot_be_is_refused_before_tracing():
    found = sv.effects(on(8, KINDS["print"]).replace(mesh=sv.mesh(other=8)))
    assert found.refused.stage == "program"
    assert found.devices == "none"


@pytest.mark.parametrize(
    "call",
    [
        lambda: sv.effects(3),
        lambda: sv.effects(on(1, jnp.sin), 3),
        lambda: sv.effects(jnp.sin, STRUCT).runs_on(0),
    ],
)
def test_wrong_inputs_are_refused(call):
    with pytest.raises(ProgramError):
        call()


def test_a_jax_without_its_lists(monkeypatch, eight_devices):
    monkeypatch.setattr(effect_rules, "effect_sets", lambda: None)
    [use] = sv.effects(KINDS["print, ordered"], STRUCT).uses
    assert (use.ordered, use.shardable) == (True, False)


# An effect of a class that jax does not know, allowed only where a test allows it.

SETS = {"control flow": "control_flow_allowed_effects", "lowering": "lowerable_effects"}


def strange(allowed, monkeypatch):
    class StrangeEffect(jax_sets.Effect):
        __str__ = __repr__ = lambda self: "Strange"

    effect, primitive = StrangeEffect(), Primitive("strange")
    primitive.def_effectful_abstract_eval(lambda x: (x, {effect}))
    mlir.register_lowering(primitive, lambda ctx, x: [x])
    for place in allowed:
        known = getattr(jax_sets, SETS[place])
        monkeypatch.setattr(known, "_effect_types", {*known._effect_types, StrangeEffect})
    return lambda x: primitive.bind(x)


@pytest.mark.parametrize(
    ("place", "allowed", "stage"),
    [
        ("top", (), "lower"),
        ("top", ("lowering",), ""),
        ("scan", ("lowering",), "trace"),
        ("scan", ("control flow",), "lower"),
        ("scan", ("control flow", "lowering"), ""),
    ],
)
def test_what_jax_does_not_list_is_refused(place, allowed, stage, monkeypatch, eight_devices):
    found = sv.effects(on(1, PLACES[place](strange(allowed, monkeypatch))))
    if stage:
        assert found.refused.stage == stage
    else:
        assert found.names == ("StrangeEffect",)


SINGLE = EffectUse("debug callback, ordered", "OrderedDebugEffect", True, False)


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (Effects("f"), None),
        (Effects("f", (SINGLE,)), 1),
        (Effects("f", (SINGLE,), fixed=8), 0),
        (Effects("f", fixed=8), 8),
    ],
)
def test_on_how_many_devices_it_runs(found, count):
    assert found.devices == str(DeviceCount(count))
