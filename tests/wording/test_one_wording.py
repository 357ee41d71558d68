"""One fact has one sentence: in a text, in a picture and on the page."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.axis_rules.verdicts import Outcome
from shardviz.gallery import programs
from shardviz.pictures import draw

MESH = "data=4, model=2"
ARRAYS = {"w": sv.array("w", (1 << 16, 1 << 17), "embed mlp")}


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def text_of(value: object) -> str:
    return on_one_line(sv.text(value, width=10_000))


def alt_of(value: object) -> str:
    return on_one_line(draw(value).alt)


def page_of(value: object, tmp_path, target: str = "") -> str:
    """All that a saved page of the Explorer says, as it is read and not as it is escaped."""
    file = tmp_path / "page.html"
    explorer = sv.explore(value)
    if target:
        explorer.session.edit("target", target)
    explorer.save_html(file)
    page = file.read_text(encoding="utf-8")
    plain = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), page)
    return on_one_line(plain.replace('\\"', '"'))


def places_of(value: object, page: str) -> dict[str, str]:
    return {"text": text_of(value), "picture": alt_of(value), "page": page}


RULES = [("embed", "data"), ("mlp", "data"), ("mlp", "model"), ("mlp", None), ("batch", "pod")]


def test_a_verdict(tmp_path):
    program = sv.program(
        lambda w, x: x @ w,
        sv.array("w", (512, 2048), "embed mlp"),
        sv.array("x", (64, 512), "batch embed"),
        mesh=MESH,
        rules=RULES,
    )
    page = page_of(program, tmp_path)
    said = set()
    for request in program.requests:
        for decision in request.resolution.decisions:
            for verdict in decision.verdicts:
                if verdict.outcome in (Outcome.APPLIED, Outcome.TAKEN, Outcome.MISSING_AXIS):
                    said.add(verdict.outcome)
                    for place, words in places_of(request.resolution, page).items():
                        assert str(verdict) in words, place
    assert len(said) == 3


@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "tpu:v5p:2x2x2"])
def test_whether_it_fits(target, tmp_path):
    audit = sv.audit(ARRAYS, [("mlp", "model")], MESH, target=target)
    assert audit.fit is not None
    for place, words in places_of(audit, page_of(audit, tmp_path, target)).items():
        assert str(audit.fit) in words, place


def test_the_cause_of_a_collective(tmp_path):
    program = programs.get("MLP, gradient")
    plan = sv.plan(program)
    page = page_of(program, tmp_path)
    for one in plan.collectives:
        for place, words in places_of(plan.why(one), page).items():
            assert str(one.cause) in words, place


def test_why_a_program_fails(tmp_path):
    x = sv.array("x", (8, 4), spec="data")
    program = sv.program(lambda x: jnp.dot(x, x), x, mesh="data=4")
    report, plan = sv.run(program), sv.plan(program)
    assert report.error.message == plan.error.message
    for value in (report, plan):
        for words in (text_of(value), alt_of(value)):
            assert on_one_line(report.error.message) in words


def test_why_a_dimension_is_not_split(tmp_path):
    x = sv.array("x", (16, 8), "batch embed")
    program = sv.program(lambda x: x, x, mesh=MESH, rules=[("batch", "data")])
    found = program.requests[0].resolution
    for place, words in places_of(found, page_of(program, tmp_path)).items():
        # A page begins it with a capital.
        assert str(found.decisions[1])[1:] in words, place


def test_what_an_optimizer_lost():
    state = {
        "params": {"w": ((4096, 1024), "embed mlp")},
        "opt_state": {"mu": {"w": ((4096, 1024), None)}},
    }
    audit = sv.audit(state, [("embed", "data"), ("mlp", "model")], MESH)
    (difference,) = audit.differences
    for words in (text_of(audit), alt_of(audit)):
        assert str(difference) in words


def test_why_effects_keep_a_program_from_running(tmp_path):
    def f(x):
        jax.debug.print("{}", x, ordered=True)
        return x

    program = sv.program(f, sv.array("x", (8,), spec="data"), mesh="data=4")
    effects = sv.effects(program)
    for words in (text_of(effects), page_of(program, tmp_path)):
        assert str(effects.on(4)) in words
