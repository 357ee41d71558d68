"""What an Effects value holds: rows, tokens; and effects of classes that jax does not know."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import effects as jax_sets
from jax.extend.core import Primitive
from jax.interpreters import mlir

import shardviz as sv
from shardviz.core.backend import jax_compat
from shardviz.core.backend.tracing import effect_rules
from shardviz.core.errors import ProgramError
from shardviz.core.program.effects import (
    DeviceCount,
    Effects,
    EffectToken,
    EffectUse,
    RunsOn,
)
from tests.effects.programs import KINDS, PLACES, STRUCT


def on(count, fn, spec="d"):
    return sv.program(fn, sv.array("x", (8,), spec=spec), mesh=sv.mesh(d=count))


CLASSES = {
    "no effects": [],
    "print": ["debug callback"],
    "print, ordered": ["debug callback, ordered"],
    "debug callback": ["debug callback"],
    "debug callback, ordered": ["debug callback, ordered"],
    "io": ["io callback"],
    "io, ordered": ["io callback, ordered"],
    "pure callback": [],
    "ref": ["makes a ref"],
    "two orders": ["debug callback, ordered", "io callback, ordered"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_named(kind, eight_devices):
    found = sv.effects(KINDS[kind], STRUCT)
    assert list(found.names) == CLASSES[kind]
    assert [use.ordered for use in found.uses] == ["ordered" in name for name in found.names]
    assert [c.operation for c in found.host_calls] == ["pure_callback"] * (kind == "pure callback")


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_tokens_go_in_and_out_as_there_are_ordered_effects(kind, eight_devices):
    found = sv.effects(on(1, KINDS[kind]))
    ordered = sum(use.ordered for use in found.uses)
    assert [t.direction for t in found.tokens] == ["in"] * ordered + ["out"] * ordered


def test_tokens_are_read_where_the_mesh_is_refused(eight_devices):
    found = sv.effects(on(8, KINDS["print, ordered"]))
    assert len(found.tokens) == 2
    assert found.lowered_for == 1
    assert found.devices == "1 device"


def test_tokens_are_read_on_many_devices(eight_devices):
    found = sv.effects(on(8, KINDS["io, ordered"]))
    assert found.tokens == (EffectToken("in", 0), EffectToken("out", 0))
    assert found.lowered_for == 8


def test_a_mesh_larger_than_the_machine_needs_no_devices(eight_devices):
    found = sv.effects(on(1 << 20, KINDS["io, ordered"], spec=""))
    assert found.refused is None
    assert found.runs_on(1 << 20)[0]
    assert len(found.tokens) == 2


def test_where_an_effect_is_allowed_is_said(eight_devices):
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


def test_rows_are_plain_json(eight_devices):
    rows = sv.effects(KINDS["two orders"], STRUCT).rows()
    assert json.loads(json.dumps(rows)) == rows
    assert [r["shardable"] for r in rows] == [False, True]
    assert sv.effects(KINDS["pure callback"], STRUCT).rows()[0]["name"] == "pure_callback"


def test_where_an_effect_is_allowed_is_what_jax_lists(eight_devices):
    for kind in ("print", "io", "io, ordered", "print, ordered"):
        [use] = sv.effects(KINDS[kind], STRUCT).uses
        [effect] = jax.jit(lambda x, f=KINDS[kind]: f(x)).trace(STRUCT).jaxpr.effects
        listed = {
            p for p, s in jax_compat.CONSTRUCTS.items() if getattr(jax_sets, s).contains(effect)
        }
        assert set(use.allowed) == listed


def test_a_function_that_names_its_own_mesh_runs_on_that_many(eight_devices):
    mesh = jax.sharding.Mesh(np.array(eight_devices), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    own = jax.shard_map(KINDS["print"], mesh=mesh, in_specs=spec, out_specs=spec)
    found = sv.effects(own, STRUCT)
    assert found.devices == "8 devices"
    assert found.runs_on(8)[0]
    assert found.on(1) == RunsOn("own mesh", 1, own=8)


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
        lambda: sv.effects(jnp.sin, STRUCT).runs_on(True),
        lambda: sv.observed_order(jnp.sin),
    ],
)
def test_wrong_inputs_are_refused(call):
    with pytest.raises(ProgramError):
        call()


def test_a_jax_without_its_lists(monkeypatch, eight_devices):
    monkeypatch.setattr(effect_rules, "effect_sets", lambda: None)
    effect = next(iter(jax.jit(lambda x: KINDS["print, ordered"](x)).trace(STRUCT).jaxpr.effects))
    assert effect_rules.is_ordered_effect(effect)
    assert not effect_rules.is_shardable(effect)
    assert effect_rules.allowed_constructs(effect) is None


# An effect of a class that jax does not know, allowed only where a test allows it.

SETS = {"control flow": "control_flow_allowed_effects",
        "lowering": "lowerable_effects"}  # fmt: skip
WRAPS = {"control flow": PLACES["scan"], "lowering": PLACES["top"]}


def strange(allowed, monkeypatch):
    class StrangeEffect(jax_sets.Effect):
        __str__ = __repr__ = lambda self: "Strange"

    effect, primitive = StrangeEffect(), Primitive("strange")
    primitive.def_effectful_abstract_eval(lambda x: (x, {effect}))
    mlir.register_lowering(primitive, lambda ctx, x: [x])
    for place in allowed:
        types = getattr(jax_sets, SETS[place])._effect_types
        monkeypatch.setattr(
            getattr(jax_sets, SETS[place]), "_effect_types", {*types, StrangeEffect}
        )
    return lambda x: primitive.bind(x)


@pytest.mark.parametrize("place", ["control flow", "lowering"])
@pytest.mark.parametrize("allowed", [(), ("control flow",), ("lowering",), ("control flow", "lowering")])  # noqa: E501  # fmt: skip
def test_what_jax_does_not_list_is_refused(place, allowed, monkeypatch, eight_devices):
    fn = WRAPS[place](strange(allowed, monkeypatch))
    found = sv.effects(on(1, fn))
    needed = {"control flow": {"control flow", "lowering"}, "lowering": {"lowering"}}[place]
    missing = needed - set(allowed)
    assert (found.refused is None) is (not missing)
    if missing:
        stage = "trace" if "control flow" in missing else "lower"
        assert found.refused.stage == stage
        assert found.refused.cause == ("not lowered" if stage == "lower" else "not allowed there")
    else:
        assert found.names == ("StrangeEffect",)
        assert set(found.uses[0].allowed) == set(allowed)


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
