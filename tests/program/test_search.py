"""Searches against compiles of every combination."""

from __future__ import annotations

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.advise.backend import search as searching
from shardviz.advise.backend.apply import apply_edit
from shardviz.advise.backend.remat import POLICIES
from shardviz.advise.edits import Rematerialise
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.partition_spec import Spec
from shardviz.compiled.report import peak_bytes
from shardviz.compiled.roofline import with_operations

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed"
)
TARGET = "tpu:v5e:2x2"


def matmul(x, w):
    return x @ w


def gradient(x, w):
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def small(fn, mesh="data=4", rows=1024):
    x, w = sv.array("x", (rows, 512), dtype="bfloat16"), sv.array("w", (512, 256), dtype="bfloat16")
    return sv.program(fn, x, w, mesh=mesh)


@pytest.fixture(scope="module")
def found():
    return sv.search(small(gradient), over="arguments", target=TARGET)


def least_of_all(program, axes):
    """The least time of any specs of both arguments, each compiled."""
    times = []
    entries = [Spec.of(*e) for e in itertools.product((None, *axes), repeat=2)]
    specs = [s for s in entries if len(set(s.axes)) == len(s.axes)]
    for pair in itertools.product(specs, repeat=2):
        arrays = [a.replace(spec=s) for a, s in zip(program.arrays, pair, strict=True)]
        report = sv.compile(program.replace(arrays=tuple(arrays)), target=TARGET)
        times.append(report.roofline.seconds)
    return min(times)


def test_the_best_is_that_of_all_combinations(found):
    assert found.ended in ("no better", "all compiled")
    assert found.planned == found.points == 9
    assert found.best.least_seconds == pytest.approx(least_of_all(small(gradient), ["data"]))
    # The best was run next to the original.
    assert found.best.values.ok
    for one in found:
        assert one.report.error is None
        assert one.report.fit.ok


def test_a_candidate_is_a_program_that_compiles_as_was_said(found):
    best = found.best
    again = sv.compile(best.program, target=TARGET)
    assert again.roofline.seconds == best.least_seconds
    kinds = [(one.kind, one.bytes_in_all) for one in again.collectives]
    assert kinds == [(one.kind, one.bytes_in_all) for one in best.collectives]
    assert best.edits
    assert best.edits[0].code == "argument"


def test_the_time_is_explained_by_what_differs(found):
    why = found.explain(found[0], found[-1])
    sides = found[0].report.roofline, found[-1].report.roofline
    for row in why.rows:
        for side, seconds in zip(sides, (row.seconds, row.other), strict=True):
            own = sum(r.seconds for r in side.rows if r.name == row.name)
            assert own == pytest.approx(seconds)
    names = {row.name for side in sides for row in side.rows}
    assert {row.name for row in why.rows} <= names
    assert why.rows


def test_todays_program_stands_below_the_frontier(found):
    assert all(one.edits for one in found.frontier)
    assert sv.text(found).splitlines()[-1].endswith(edits_in_words(()))


def test_nothing_over_the_limit_is_proposed(found):
    program = small(gradient)
    limit = min(one.peak_bytes for one in found) + 1
    tight = sv.search(program, over="arguments", under=limit, target=TARGET)
    assert tight
    assert all(one.peak_bytes <= limit for one in tight)
    assert all(refusal.code == "no memory" for refusal in tight.refused)
    assert not sv.search(program, over="arguments", under=1, target=TARGET)


def train_step():
    """A step over eight layers in a loop, which saves values for the backward pass."""

    def layer(h, w):
        return jnp.tanh(jnp.tanh(h @ w) @ w.T), None

    def loss(ws, x):
        return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)

    def step(ws, x):
        return ws - 0.1 * jax.grad(loss)(ws, x)

    x, ws = sv.array("x", (2048, 64), spec="data, None"), sv.array("ws", (8, 64, 128))
    return sv.program(step, ws, x, mesh="data=4")


@pytest.mark.long
def test_donation_and_remat_are_the_best_of_all_combinations():
    program, known = train_step(), []
    for policy in (None, *POLICIES):
        for donated in ((), (0,)):
            changed = program.replace(options={"donate": donated})
            if policy is not None:
                changed = apply_edit(changed, Rematerialise(policy))
            report = sv.compile(changed, target=TARGET)
            # Compilers count what is in a loop once.
            seconds = with_operations(report, sv.plan(changed)).seconds
            known.append((peak_bytes(report.memory), seconds, policy is not None))
    least_memory = min(known)[0]
    for limit in (None, least_memory):
        found = sv.search(program, over=("donate", "remat"), under=limit, target=TARGET)
        assert found.planned == found.points == 1 + len(POLICIES)
        fitting = [one for one in known if limit is None or one[0] <= limit]
        best = found.best
        assert best.least_seconds == pytest.approx(min(one[1] for one in fitting))
        assert limit is None or best.peak_bytes <= limit
        assert best.edits[0].code == "donate"
        if limit is not None:
            assert {one.code for one in found.refused} == {"no memory"}
            assert best.values.ok is not False
        # Which need less memory depends on the compiler.
        if all(one[2] for one in fitting):
            assert best.edits[1].code == "remat"


def test_no_time_is_the_program_as_it_is():
    found = sv.search(small(matmul), over="arguments", target=TARGET, seconds=0.0)
    assert found.ended == "seconds"
    assert not found.exhaustive
    assert len(found) <= 1
    # What nobody compiled is not said to have no room.
    head = "Best of" if found.compiled else f"{found.planned} candidate"
    assert str(found).startswith(head)


def test_an_interrupt_keeps_the_best_so_far(monkeypatch):
    compiled = searching._Run.compile

    def interrupted(run, *what):
        if len(run.compiled) == 2:
            raise KeyboardInterrupt
        return compiled(run, *what)

    monkeypatch.setattr(searching._Run, "compile", interrupted)
    found = sv.search(small(matmul), over="arguments", target=TARGET)
    assert (found.ended, found.compiled) == ("interrupted", 2)
    assert found.best is not None


def test_a_target_without_figures_is_refused():
    with pytest.raises(sv.ShardvizError, match="described target"):
        sv.search(small(matmul), target="cpu:4")


def test_a_target_of_another_size_is_refused():
    with pytest.raises(sv.ShardvizError, match=r"16 devices.* 4\."):
        sv.search(small(matmul), target="tpu:v5e:4x4")


@pytest.mark.long
def test_a_large_space_is_searched_from_several_starts():
    program = small(gradient, "data=2, model=2")
    found = sv.search(program, target=TARGET, seconds=15.0)
    assert found.points > found.planned
    assert not found.exhaustive
    assert found.best.least_seconds <= found.before.roofline.seconds


def test_what_a_function_raises_on_another_mesh_is_among_the_refused():
    def on_four(x, w):
        if jax.sharding.get_abstract_mesh().shape.get("data") != 4:
            raise RuntimeError("written for data=4")
        return x @ w

    found = sv.search(small(on_four, "data=4, model=1"), over="mesh", target=TARGET)
    assert found.best is not None
    assert {one.code for one in found.refused} == {"not made"}
    assert all("written for data=4" in one.reason for one in found.refused)
