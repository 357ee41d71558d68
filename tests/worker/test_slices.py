"""Collectives of real compiles for several slices, inside of them and from one to another.

The oracle is XLA's partitioner, whose text is that of the whole mesh: where the TPU compiler does
not cut a collective into parts, the final program has the same, with the same axes and bytes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardviz.base.mesh import make_mesh
from shardviz.compiled.comparison import compare
from shardviz.compiled.module import Module
from shardviz.compiled.read_collectives import read_collectives
from shardviz.hardware.topology import FIRST_ID
from shardviz.runs.backend.targets import missing
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, program
from tests.program.hlo import parsed

X = array("x", (64, 512), "a, b")
TWO = ("tpu:v5e:2x2*2", make_mesh(a=2, b=4))
#: the second slice backwards, so that no device meets its like
BACKWARDS = make_mesh(
    a=2, b=4, device_ids=[FIRST_ID + i for i in range(4)] + [2 * FIRST_ID + 3 - i for i in range(4)]
)
#: slices side by side: neighbours along b are of different slices
MIXED = make_mesh(a=4, b=2, device_ids=[(1 + i % 2) * FIRST_ID + i // 2 for i in range(8)])


def manual(body, specs, out):
    """A program that asks for its collectives by name."""

    def named(x):
        return jax.shard_map(body, in_specs=jax.P(*specs), out_specs=jax.P(*out))(x)

    return named


def turn(size):
    return [(i, (i + 1) % size) for i in range(size)]


def around(axis, size):
    """Sends blocks on along an axis."""
    return manual(lambda x: lax.ppermute(x, axis, turn(size)), "ab", "ab")


def scattered(x):
    return lax.psum_scatter(x, "a", tiled=True)


# name: target and mesh, function; kind, axes, group, bytes on each device, between slices
KEPT = {
    "a sum inside": (*TWO, manual(lambda x: lax.psum(x, "b"), "ab", ("a", None)),
                     ("all-reduce", ("b",), 4, 32 * 128 * 4, False)),
    "a sum across": (*TWO, manual(lambda x: lax.psum(x, "a"), "ab", (None, "b")),
                     ("all-reduce", ("a",), 2, 32 * 128 * 4, True)),
    "a gather inside": (*TWO, lambda x: lax.with_sharding_constraint(x, jax.P("a")),
                        ("all-gather", ("b",), 4, 32 * 512 * 4, False)),
    "a scattered sum": (*TWO, manual(scattered, "ab", "ab"),
                        ("reduce-scatter", ("a",), 2, 32 * 128 * 4, True)),
    "an exchange": (*TWO, manual(lambda x: lax.all_to_all(x, "a", 1, 0, tiled=True), "ab", "ab"),
                    ("all-to-all", ("a",), 2, 32 * 128 * 4, True)),
    "a permutation across": (*TWO, around("a", 2),
                             ("collective-permute", ("a",), 2, 32 * 128 * 4, True)),
    "a slice backwards": (TWO[0], BACKWARDS, manual(lambda x: lax.psum(x, "a"), "ab", (None, "b")),
                          ("all-reduce", ("a",), 2, 32 * 128 * 4, True)),
    "slices side by side": (TWO[0], MIXED, manual(lambda x: lax.psum(x, "b"), "ab", ("a", None)),
                            ("all-reduce", ("b",), 2, 16 * 256 * 4, True)),
}  # fmt: skip


def compiled(target, mesh, fn, given=X):
    if error := missing("tpu"):
        pytest.skip(str(error))
    report = compile_program(program(fn, given, mesh=mesh), target, cache=ExecutableCache())
    assert report.error is None, report.error
    return report


def facts(collective):
    return collective.kind, collective.mesh_axes, collective.group_size, collective.bytes_per_device


@pytest.mark.parametrize("name", KEPT)
def test_a_collective_is_the_partitioners_own_in_the_final_text(name):
    target, mesh, fn, wanted = KEPT[name]
    report = compiled(target, mesh, fn)
    (before,), (after,) = report.partitioned, report.collectives
    assert (*facts(after), after.between_slices) == wanted
    assert facts(before) == wanted[:-1]
    assert sorted(map(sorted, after.groups)) == sorted(map(sorted, before.groups))
    assert after.source == before.source
    assert after.source.startswith("test_slices.py:")
    assert report.roofline.rows[-1].seconds > 0


def test_a_turn_through_all_slices_has_a_part_inside_and_a_part_across():
    ring = manual(lambda x: lax.ppermute(x, ("a", "b"), turn(8)), [("a", "b")], [("a", "b")])
    report = compiled(*TWO, ring, X.replace(spec="('a', 'b')"))
    (whole,) = report.partitioned
    parts = {c.between_slices: set(c.groups) for c in report.collectives}
    assert parts[True] == {(3, 4), (7, 0)}
    assert parts[False] == set(whole.groups) - parts[True]
    assert_split(report)


def assert_split(report):
    """The one change from the partitioner's module to the final one is a split."""
    (change,) = compare(report.partitioned, report.collectives).changes
    assert change.kind == "split"
    assert {c.source for c in change.after} == {c.source for c in change.before} != {""}
    assert any(c.between_slices for c in change.after)


IN, OUT = False, True
STEPS = {
    "a sum": (manual(lambda x: lax.psum(x, ("a", "b")), "ab", (None, None)), 4096,
              [("reduce-scatter", IN), ("all-reduce", OUT), ("all-gather", IN)]),
    "a sum of what does not divide": (
        manual(lambda x: lax.psum(x, ("a", "b")), "ab", (None, None)), 4090,
        [("all-reduce", IN), ("all-reduce", OUT), ("all-gather", IN)]),
    "a small sum": (manual(lambda x: lax.psum(x, ("a", "b")), "ab", (None, None)), 64,
                    [("all-reduce", IN), ("all-reduce", OUT), ("all-gather", IN)]),
    "a sum of one number": (manual(lambda x: lax.psum(x.sum(), ("a", "b")), "ab", ()), 64,
                            [("all-reduce", IN), ("all-reduce", OUT)]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("mesh", [TWO[1], make_mesh(b=4, a=2)], ids=str)
def test_what_all_slices_do_together_is_split_into_steps(name, mesh):
    fn, rows, steps = STEPS[name]
    report = compiled(TWO[0], mesh, fn, X.replace(shape=(rows, 512)))
    assert [(c.kind, c.between_slices) for c in report.collectives] == steps
    assert_split(report)


def test_a_gather_of_everything_is_split_too():
    report = compiled(*TWO, lambda x: lax.with_sharding_constraint(x, jax.P(None, None)), X)
    steps = [(c.kind, c.mesh_axes, c.between_slices) for c in report.collectives]
    assert steps == [("all-gather", ("a",), True), ("all-gather", ("b",), False)]
    assert_split(report)


def test_sums_that_were_two_before_stay_two():
    def both(x):
        return lax.psum(jnp.tanh(lax.psum(x, "b")), "a")

    report = compiled(*TWO, manual(both, "ab", (None, None)))
    changes = compare(report.partitioned, report.collectives).changes
    assert [c.kind for c in changes] == ["kept", "made asynchronous"]


def test_permutations_that_slices_do_differently_are_counted_once():
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w @ w.T) ** 2)

    x, w = array("x", (1024, 2048), "a"), array("w", (2048, 1024), "a, b")
    made = program(lambda x, w: jax.grad(loss)(w, x), x, w, mesh=make_mesh(a=2, c=2, b=4))
    if error := missing("tpu"):
        pytest.skip(str(error))
    report = compile_program(made, "tpu:v5e:2x2*4", cache=ExecutableCache())
    assert report.error is None, report.error
    assert all(c.mesh_axes for c in report.collectives), report.collectives
    kinds = [[c.kind for c in stage] for stage in (report.partitioned, report.collectives)]
    assert [k.count("collective-permute") for k in kinds] == [5, 5]
    crossing = [c for c in report.collectives if "b" not in c.mesh_axes]
    assert crossing
    assert all(c.between_slices for c in crossing)


BRANCHES = """HloModule f

%localizer {{
  %p = f32[4]{{0}} parameter(0)
  ROOT %moves = f32[4]{{0}} collective-permute(%p), source_target_pairs={first}
}}

%localizer.1 {{
  %p.1 = f32[4]{{0}} parameter(0)
  ROOT %moves.1 = f32[4]{{0}} collective-permute(%p.1), source_target_pairs={second}
}}

ENTRY %main {{
  %x = f32[4]{{0}} parameter(0)
  %i = s32[] parameter(1)
  ROOT %c = f32[4]{{0}} conditional(%i, %x, %x), branch_computations={{%localizer, %localizer.1}}
}}
"""
IDS = [FIRST_ID, FIRST_ID + 1, 2 * FIRST_ID, 2 * FIRST_ID + 1]


@pytest.fixture(autouse=True)
def _of_one_slice(monkeypatch):
    """Modules that are made from text do not say how many devices they are for."""
    known = Module.partitions
    monkeypatch.setattr(Module, "partitions", property(lambda m: known.fget(m) or 2))


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("{{0,1},{1,0}}", "{}", [((0, 1), (1, 0))]),
        ("{{0,0}}", "{{0,1}}", [((0, 0), (2, 3))]),
        ("{{0,0},{1,1}}", "{}", []),
    ],
    ids=["one slice alone", "both, in their own way", "nothing moves"],
)
def test_what_each_slice_moves_inside_is_read_from_its_own_branch(first, second, pairs):
    module = parsed(BRANCHES.format(first=first, second=second))
    found = read_collectives(module, ("a", "b"), (2, 2), IDS)
    assert [c.groups for c in found] == pairs
    assert all(c.mesh_axes == ("b",) for c in found)


def test_groups_of_one_slice_are_no_groups_of_the_mesh_where_devices_are_not_named():
    module = parsed(
        "  %p = f32[4]{0} parameter(0)\n"
        "  ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%add"
    )
    (found,) = read_collectives(module, ("a", "b"), (2, 2))
    assert found.mesh_axes == ()
    (found,) = read_collectives(module, ("a", "b"), (2, 2), IDS)
    assert (found.mesh_axes, found.groups) == (("b",), ((0, 1), (2, 3)))
