"""Which movements a saved page can play, and that nobody waits for those of a million devices."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.core.errors import ProgramError
from shardviz.widgets import movements_view
from shardviz.widgets.movements_view import reshard_of


def constrained(before: P, after: P, mesh: sv.MeshSpec) -> sv.Plan:
    """The plan of a function that asks for one sharding and then another."""

    def move(x):
        x = jax.lax.with_sharding_constraint(x * 2, before)
        return jax.lax.with_sharding_constraint(x, after)

    x = jax.ShapeDtypeStruct((64, 64), "float32")
    return sv.plan(sv.program(move, x, mesh=mesh))


def test_a_reshard_of_very_many_devices_is_refused_in_a_sentence():
    plan = constrained(P("a"), P(None, "a"), sv.mesh(a=64, b=2048))
    value = plan.ops[-1].name
    with pytest.raises(ProgramError, match=r"at most 65,536 devices, and this mesh has 131,072"):
        reshard_of(plan, value)


def test_a_page_of_a_million_devices_is_saved_without_their_steps(monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("the steps of a million devices were made")

    monkeypatch.setattr(movements_view, "reshard_movement", never)
    mesh = sv.mesh(a=1024, b=1024)
    explorer = sv.explore(sv.layout((mesh.size, mesh.size), "(a, b)", mesh))
    assert explorer.page().startswith("<!doctype html>")
    explorer.close()
