"""The steps of a propagation, replayed one by one, lead from what was requested to the plan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import make_mesh
from shardviz.plans.plan import Plan
from shardviz.plans.plan_notes import AfterStep
from shardviz.programs.failure import Failure


def w(name: str, shape: tuple[int, ...], spec: str | None = None):
    return sv.array(name, shape, spec=spec)


def scanned(x, w1):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w1), None), x, None, length=3)[0]


PROGRAMS = {
    "mlp": lambda: sv.program(
        lambda x, w1, w2: jax.nn.relu(x @ w1) @ w2,
        w("x", (64, 32), "data"), w("w1", (32, 128), "None, model"), w("w2", (128, 32)),
        mesh="data=4, model=2",
    ),
    "gradient": lambda: sv.program(
        jax.grad(lambda w1, x: jnp.sum(jnp.tanh(x @ w1) ** 2)),
        w("w1", (32, 128), "None, model"), w("x", (64, 32), "data"), mesh="data=4, model=2",
    ),
    "loop": lambda: sv.program(
        scanned, w("x", (64, 32), "data"), w("w1", (32, 32)), mesh="data=4, model=2"
    ),
    "reshape": lambda: sv.program(
        lambda x: jnp.swapaxes(x.reshape(8, 8, 32), 0, 1),
        w("x", (64, 32), "data, model"), mesh="data=4, model=2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_each_step_brings_what_it_says(make):
    plan = sv.plan(make())
    replay = plan.replay()
    assert replay
    assert [s.number for s in replay] == sorted(s.number for s in replay)
    start = plan.after(-1)
    requested = {op.name for op in plan.ops if op.kind == "argument"}
    for op in start.ops:
        assert op.name in requested or not op.spec.axes or op.step is None or op.kind == "result"
    before = start
    for step in {s.number: s for s in replay}.values():
        now = plan.after(step.number)
        moves = [m for s in replay if s.number == step.number for m in s.moves]
        for op in now.ops:
            gained = set(op.spec.axes) - set(before.op(op.name).spec.axes)
            brought = {m.axis for m in moves if m.target == op.name}
            assert gained <= brought | {a for a in gained if op.kind == "result"}, op
        for move in moves:
            if move.axis in plan.op(move.target).spec.axes:
                assert move.axis in now.op(move.target).spec.axes
        before = now
    assert [op.spec for op in before.ops] == [op.spec for op in plan.ops]
    assert [op.origins for op in before.ops] == [op.origins for op in plan.ops]
    assert sum(len(s.moves) for s in replay) == len(
        {(s.number, s.op, s.axis, name) for op in plan.ops for s in op.steps for name in s.to}
    )


def test_a_still_and_a_text_of_a_step():
    plan = sv.plan(PROGRAMS["mlp"]())
    early = plan.after(-1)
    assert early.collectives == ()
    for number in (-1, 0):
        note = plan.after(number).notes[0]
        assert note == AfterStep(number)
        assert str(note) in " ".join(sv.text(plan.after(number)).split())
    assert len(sv.plot(early).axes) == 1


def test_what_cannot_be_replayed_says_so():
    failed = Plan("f", make_mesh(data=2), error=Failure("trace", "The shapes do not fit."))
    for ask in (failed.replay, lambda: failed.after(0)):
        with pytest.raises(ProgramError, match="The shapes do not fit"):
            ask()
    plan = Plan("f", make_mesh(data=2))
    with pytest.raises(ProgramError, match="A propagation step must be a whole number"):
        plan.after("first")
