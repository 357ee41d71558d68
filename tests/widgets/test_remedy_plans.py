"""What a remedy does to the whole step: by its plan, beside what it saves of stored arrays."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.advise.panel import remedy_plans
from shardviz.advise.words.candidates import remedy_step
from shardviz.axis_rules.panel.rules_panel import RulesPanel
from shardviz.axis_rules.words import cascade as wording
from shardviz.compiled.op_costs import most_alive, step_cost
from shardviz.explorer.explorer import Explorer

MESH = "data=4, model=2"


def step(w, x):
    def loss(w):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    return w - jax.grad(loss)(w)


def opened() -> Explorer:
    """The Explorer on a step whose weight no rule splits along `embed`, asked why."""
    w = sv.array("w", (1024, 1024), "embed mlp")
    x = sv.array("x", (64, 1024), "batch embed")
    rules = [("batch", "data"), ("mlp", "model")]
    return asked(sv.explore(sv.program(step, w, x, mesh=MESH, rules=rules)))


def asked(made: Explorer) -> Explorer:
    """With the first dimension of the first array chosen in the view Rules."""
    intents = [{"kind": "show", "value": "Rules"}, {"kind": "cell", "value": "0:0"}]
    made._receive(None, {"seq": 1, "client": "a", "intents": intents}, [])
    return made


def test_each_remedy_shows_what_the_step_then_sends_and_keeps():
    made = opened()
    made.wait(60)
    remedies = made.cell["remedies"]
    assert remedies
    before = step_cost(sv.plan(made.session.program))
    for number, remedy in enumerate(remedies):
        assert "stored" in remedy["memory"]
        other = opened()
        other.session.edit("remedy", (0, made.panel(RulesPanel).shown.remedies.edits[number]))
        after = step_cost(sv.plan(other.session.program))
        assert remedy["step"]["text"] == remedy_step(before, after)
        worse = after.sent > before.sent or after.alive > before.alive
        assert remedy["step"]["worse"] == worse
        other.close()
    # Stored bytes fall, and the step sends more: both are said.
    assert any(remedy["saves"] and remedy["step"]["worse"] for remedy in remedies)
    made.close()


def test_what_was_applied_is_said_of_its_array_alone():
    made = opened()
    made._receive(
        None, {"seq": 2, "client": "a", "intents": [{"kind": "apply", "value": "0:0 0"}]}, []
    )
    assert made.cell["done"].startswith("Done: w is now P(")
    for cell, says in (("0:1", True), ("1:0", False), ("0:0", True)):
        made._receive(
            None, {"seq": 3, "client": "a", "intents": [{"kind": "cell", "value": cell}]}, []
        )
        assert ("done" in made.cell) is says
    made.close()


def test_an_edit_waits_for_no_plan_of_a_remedy(monkeypatch):
    go = threading.Event()
    plan = remedy_plans.plan_of
    monkeypatch.setattr(remedy_plans, "plan_of", lambda *of: go.wait(60) and plan(*of))
    made = opened()
    assert {r["step"]["text"] for r in made.cell["remedies"]} == {wording.PLANNING}
    made.session.edit("mesh", "data=2, model=4")
    assert made.session.mesh.size == 8
    assert made.mesh["text"] == "data=2, model=4"
    go.set()
    made.wait(60)
    made.close()


def test_a_remedy_of_arrays_without_a_program_has_no_step():
    w = sv.array("w", (64, 64), "embed mlp")
    made = asked(sv.explore([w], mesh=MESH, rules=[("mlp", "model")]))
    made.wait(60)
    assert made.cell["remedies"]
    assert all("step" not in remedy for remedy in made.cell["remedies"])
    made.close()


@pytest.mark.parametrize(
    ("function", "alive"),
    [
        (lambda x: jnp.sin(jnp.cos(x)), 3),  # the argument, and one for the next
        (lambda x: jnp.sin(x) + jnp.cos(x), 4),
        (lambda x: x.reshape(-1)[:4], 1),
    ],
)
def test_what_is_alive_at_once(function, alive):
    x = sv.array("x", (1024, 1024))
    plan = sv.plan(sv.program(function, x, mesh="data=1"))
    assert most_alive(plan) == pytest.approx(alive * 4 * 1024 * 1024, rel=1e-3)
