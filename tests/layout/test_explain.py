"""Decisions, verdicts, failures and the first remedy of one array, by their codes."""

from __future__ import annotations

import pytest

from shardviz.axis_rules.remedies import AddLine, MoveLine, NameDimension, RetargetLine
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.axis_rules.verdicts import Outcome, Verdict
from shardviz.base.mesh import make_mesh

MESH = make_mesh(data=4, model=2, expert=1)
RULES = Rules.parse("""
    batch -> data
    mlp -> (model, expert)
    heads -> model
    embed -> model
    embed -> None
    embed -> data
    vocab -> tensor
    seq -> expert
    kv -> (data, model)
    kv -> data
    two -> (data, data)
    free -> UNCONSTRAINED
""")


@pytest.mark.parametrize(
    ("names", "shape", "dialect", "spec", "kinds", "remedy"),
    [
        ("batch embed", (8, 4), "linen", "P('data', 'model')", ["applied", "applied"], None),
        (
            "embed mlp", (512, 2048), "linen", "P(None, ('model', 'expert'))",
            ["terminal None", "applied"], None,
        ),
        (
            "mlp heads", (7, 8), "linen", "P(('model', 'expert'), None)",
            ["does not divide", None], (0, RetargetLine),
        ),
        (
            "mlp _", (9, 8), "linen", "P(('model', 'expert'), None)",
            ["does not divide", None], (0, RetargetLine),
        ),
        ("batch", (510,), "linen", "P('data')", ["does not divide"], (0, RetargetLine)),
        (
            "vocab seq", (8, 8), "linen", "P('tensor', 'expert')",
            ["axis not in the mesh", "axis of size 1"], (0, RetargetLine),
        ),
        ("seq heads", (8, 8), "maxtext", "P(None, 'model')", ["axis of size 1", "applied"], None),
        ("kv mlp", (8, 8), "linen", "P('data', ('model', 'expert'))", ["applied", "applied"], None),
        ("hedas zzz", (8, 8), "linen", "P(None, None)", [None, None], (0, NameDimension)),
        ("embed nope", (8, 8), "nnx", "P('data', 'nope')", ["applied", None], (1, AddLine)),
        (
            "batch embed", (8, 8), "nnx", "P('data', 'data')",
            ["axis named twice", "axis named twice"], (0, MoveLine),
        ),
        (
            "two free", None, "linen", "P(('data', 'data'), P.UNCONSTRAINED)",
            ["axis named twice", "applied"], (0, RetargetLine),
        ),
    ],
    ids=lambda v: v if isinstance(v, str) and len(v) < 12 else "",
)  # fmt: skip
def test_what_decides_and_what_to_change(names, shape, dialect, spec, kinds, remedy):
    mesh = None if shape is None else MESH
    found = resolve(names, RULES, mesh=mesh, shape=shape, dialect=dialect)
    assert str(found.spec) == spec
    assert [d.deciding.kind if d.deciding else None for d in found.decisions] == kinds
    first = found.first_remedy()
    assert (first and (first[0], type(first[1].action))) == remedy
    # The spec, a line per dimension, further failures and the remedy.
    further = sum(failure.code != "verdict" for failure in found.failures)
    lines = 1 + len(kinds) + further + (remedy is not None)
    assert len(found.explain().splitlines()) == lines


def verdicts(names: str, dim: int, dialect: str = "linen") -> list[Verdict]:
    return list(resolve(names, RULES, mesh=MESH, dialect=dialect).decisions[dim].verdicts)


def test_verdicts_that_do_not_decide_know_why():
    found = verdicts("embed _", 0)
    assert (found[0].outcome, found[0].name) == (Outcome.OTHER_NAME, "embed")
    assert (found[4].outcome, found[4].by_rule) == (Outcome.DECIDED, 3)
    assert verdicts("embed _", 1)[0].name is None
    assert [v.taken for v in verdicts("kv batch mlp", 0)[8:10]] == [
        (("data", 1, 0), ("model", 2, 1)),
        (("data", 1, 0),),
    ]
    nnx = verdicts("embed", 0, "nnx")[3]
    assert (nnx.outcome, nnx.by_rule) == (Outcome.OVERRIDDEN, 5)


@pytest.mark.parametrize(
    ("names", "shape", "dialect", "codes"),
    [
        ("batch mlp", (8, 8), "linen", []),
        ("mlp heads", (7, 8), "linen", ["verdict"]),
        ("nope", (8,), "nnx", ["name is no axis"]),
        ("batch embed", (8, 8), "nnx", ["spec"]),
    ],
)
def test_problems(names, shape, dialect, codes):
    found = resolve(names, RULES, mesh=MESH, shape=shape, dialect=dialect)
    assert [failure.code for failure in found.failures] == codes
    assert found.problems == tuple(map(str, found.failures))
