"""Every kind of collective is one entry that each consumer handles."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

from shardviz.base.cause import CAUSES, Moved, ValueName
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import (
    COLLECTIVE_KINDS,
    KIND_OF_PRIMITIVE,
    KINDS,
    CollectiveKind,
    Effect,
    Route,
)
from shardviz.base.errors import ProgramError, TargetError
from shardviz.base.mesh import make_mesh
from shardviz.base.words.causes import STEPS_WITHIN, VERBS
from shardviz.compiled.causes import MOVES
from shardviz.compiled.module import Instruction
from shardviz.compiled.roofline import collective_bound
from shardviz.hardware.interconnect import ROUTED, route
from shardviz.hardware.topology import Topology
from shardviz.move.movement import collective_movement, movement_of
from shardviz.move.words.movement import head_lines

TOPOLOGY = Topology.parse("tpu:v5e:4x4")
# Of B bytes on each of 8 devices, the parts that a device sends, counted by hand.
SENT = {
    "all-gather": 7 / 8,
    "all-reduce": 14 / 8,
    "reduce-scatter": 7 / 8,
    "all-to-all": 7 / 8,
    "collective-permute": 1,
    "collective-broadcast": 7 / 8,
}
STABLEHLO_CALLS = {"ragged_all_to_all"}
# Primitives over named axes that send nothing, or that XLA has no collective for.
NO_COLLECTIVES = {
    "axis_index",
    "precv",
    "preduced",
    "psend",
    "vary_unreduced_cast",
    "vary_unreduced_cast_p",
}


def test_contract_names():
    assert set(COLLECTIVE_KINDS) == {*SENT, "ragged-all-to-all"}
    assert list(KINDS) == [kind.name for kind in KINDS.values()]


@pytest.mark.parametrize("missing", [field.name for field in fields(CollectiveKind)])
def test_an_entry_without_a_field_fails(missing):
    complete = vars(KINDS["all-gather"])
    CollectiveKind(**complete)
    with pytest.raises(TypeError, match=missing):
        CollectiveKind(**{name: value for name, value in complete.items() if name != missing})


def test_no_name_belongs_to_two_kinds():
    for names in (
        [name for kind in KINDS.values() for name in kind.primitives],
        [kind.stablehlo for kind in KINDS.values()],
        [kind.shardy for kind in KINDS.values() if kind.shardy],
        [kind.megascale for kind in KINDS.values() if kind.megascale],
    ):
        assert len(names) == len(set(names))


def test_every_primitive_of_jax_over_named_axes_has_a_kind():
    from jax._src.lax import parallel

    names = {
        value.name
        for key, value in vars(parallel).items()
        if key.endswith("_p") and hasattr(value, "name")
    }
    assert names > {"psum", "ppermute"}
    assert names - NO_COLLECTIVES - set(KIND_OF_PRIMITIVE) == set()


def test_stablehlo_and_shardy_have_these_operations():
    from jax._src.lib.mlir.dialects import hlo, sdy

    classes = {cls.OPERATION_NAME for cls in vars(hlo).values() if hasattr(cls, "OPERATION_NAME")}
    inserted = {cls.OPERATION_NAME for cls in vars(sdy).values() if hasattr(cls, "OPERATION_NAME")}
    for kind in KINDS.values():
        assert kind.stablehlo in classes | STABLEHLO_CALLS
        assert kind.shardy is None or kind.shardy in inserted
        assert kind.shardy is not None or kind.shardy_axes is None


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_sent_bytes(kind):
    sent = Collective(kind, ("data",), 800, group_size=8).sent_bytes
    # Only a run decides what a ragged exchange sends.
    assert sent == (800 * SENT[kind] if kind in SENT else None)


def test_an_unknown_group_sends_unknown_bytes_except_over_pairs():
    known = {kind for kind in COLLECTIVE_KINDS if Collective(kind, (), 800).sent_bytes is not None}
    assert known == {"collective-permute"}


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_words(kind, cause):
    w = ValueName("argument", "w")
    moved = {"wanted_by": w, "before": kind} if issubclass(cause, Moved) else {}
    assert str(cause(kind, ("data",), operand=w, operation=w, **moved))


def test_tables_by_effect_are_complete():
    assert set(VERBS) == set(STEPS_WITHIN) == set(Effect)
    # A sum is never a move from one sharding to another.
    assert set(MOVES) == set(Effect) - {Effect.SUM}


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_routes(kind):
    groups = [[0, 1], [1, 0]] if KINDS[kind].pairs else [list(range(16))]
    if KINDS[kind].route is Route.UNKNOWN:
        with pytest.raises(TargetError):
            route(TOPOLOGY, groups, kind)
        return
    assert route(TOPOLOGY, groups, kind).used


def test_rounds_scale_the_bytes_of_rings():
    groups = [list(range(16))]
    rings = [kind for kind in KINDS.values() if kind.route is Route.RINGS]
    # Without latency, which a sum has only once.
    seconds = {}
    for kind in rings:
        (seconds[kind.name],) = route(TOPOLOGY, groups, kind.name).times(1 << 20).values()
    gather = seconds["all-gather"]
    twice = {name for name, value in seconds.items() if np.isclose(value, 2 * gather)}
    once = {name for name, value in seconds.items() if np.isclose(value, gather)}
    assert (once, twice) == (set(seconds) - {"all-reduce"}, {"all-reduce"})


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_roofline(kind):
    groups = (
        tuple((n, (n + 1) % 16) for n in range(16)) if KINDS[kind].pairs else (tuple(range(16)),)
    )
    collective = Collective(kind, ("x",), 1 << 20, groups=groups)
    bound = collective_bound(collective, TOPOLOGY.chip, TOPOLOGY, make_mesh(x=16))
    assert (bound.seconds is None) == (kind not in ROUTED)


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_players(kind):
    definition = KINDS[kind]
    if not definition.steps and not definition.pairs:
        with pytest.raises(ProgramError):
            collective_movement(kind, 4, 4096)
        return
    movement = collective_movement(kind, 4, 4096)
    assert movement.steps
    assert head_lines(movement)
    assert movement.holdings(len(movement.steps)).shape[0] == 4


@pytest.mark.parametrize("kind", sorted(kind for kind in KINDS if KINDS[kind].steps))
def test_players_on_hosts(kind):
    mesh = make_mesh("x=8").replace(process_indices=np.repeat([0, 1], 4))
    assert head_lines(movement_of(Collective(kind, ("x",), 1 << 20), mesh))


@pytest.mark.parametrize("suffix", ["", "-start", "-done"])
@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_instructions(kind, suffix):
    assert Instruction.kind.fget(SimpleNamespace(opcode=kind + suffix)) == kind


def test_estimates_read_every_written_kind():
    from shardviz.plans.backend.mlir_names import WRITTEN_COLLECTIVES

    assert set(WRITTEN_COLLECTIVES.values()) == set(KINDS)
