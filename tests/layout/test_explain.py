"""What explain() says, word for word: the sentences that people read."""

from __future__ import annotations

import pytest

from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.resolution import resolve
from shardviz.core.layout.rules import Rules

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

LINEN = "(linen rules, 12 rules)"


@pytest.mark.parametrize(
    ("names", "shape", "dialect", "explanation"),
    [
        (
            "batch embed", (8, 4), "linen",
            f"""\
P('data', 'model')  {LINEN}
dimension 0 “batch” → data: rule 1 (batch → data) splits 4 ways over 'data'.
dimension 1 “embed” → model: rule 4 (embed → model) splits 2 ways over 'model'.""",
        ),
        (
            "embed mlp", (512, 2048), "linen",
            f"""\
P(None, ('model', 'expert'))  {LINEN}
dimension 0 “embed” is not split: rule 5 (embed → None) leaves the dimension unsplit and ends the\
 search. Before it, rule 4 (embed → model) does not apply: rule 2 already uses 'model' for\
 dimension 1.
dimension 1 “mlp” → model, expert: rule 2 (mlp → (model, expert)) splits 2 ways over 'model'.\
 'expert' of size 1 splits nothing.""",
        ),
        (
            "mlp heads", (7, 8), "linen",
            f"""\
P(('model', 'expert'), None)  {LINEN}
dimension 0 “mlp” → model, expert: rule 2 (mlp → (model, expert)) decides, but 7 does not divide\
 by 2 (model × expert): 1 left over. Sizes that do: 6 and 8; or pad by 1.
dimension 1 “heads” is not split: rule 3 (heads → model) does not apply: rule 2 already uses\
 'model' for dimension 0.
To split dimension 0: make dimension 0 a multiple of 2: 8 instead of 7.""",
        ),
        (
            "mlp _", (9, 8), "linen",
            f"""\
P(('model', 'expert'), None)  {LINEN}
dimension 0 “mlp” → model, expert: rule 2 (mlp → (model, expert)) decides, but 9 does not divide\
 by 2 (model × expert): 1 left over. Sizes that do: 8 and 10; or pad by 1.
dimension 1 (no name) is not split: no rule can match a dimension without a name.
To split dimension 0: make dimension 0 a multiple of 2: 10 instead of 9.""",
        ),
        (
            "batch", (510,), "linen",
            f"""\
P('data')  {LINEN}
dimension 0 “batch” → data: rule 1 (batch → data) decides, but 510 does not divide by 4 (data): 2\
 left over. Sizes that do: 508 and 512; or pad by 2. It would divide over 'model'.
To split dimension 0: give rule 1 (batch → data) the axis 'model' in place of 'data'.""",
        ),
        (
            "vocab seq", (8, 8), "linen",
            f"""\
P('tensor', 'expert')  {LINEN}
dimension 0 “vocab” → tensor: rule 7 (vocab → tensor) decides, but the mesh (data=4, model=2,\
 expert=1) has no axis 'tensor'. Known: 'data', 'model' and 'expert'.
dimension 1 “seq” → expert: rule 8 (seq → expert) decides, and nothing is split: 'expert' of size 1\
 splits nothing.
To split dimension 0: give rule 7 (vocab → tensor) the axis 'data' in place of 'tensor'.""",
        ),
        (
            "seq heads", (8, 8), "maxtext",
            """\
P(None, 'model')  (maxtext rules, 12 rules)
dimension 0 “seq” is not split: rule 8 (seq → expert) decides, and nothing is split: 'expert' of\
 size 1 is dropped.
dimension 1 “heads” → model: rule 3 (heads → model) splits 2 ways over 'model'.""",
        ),
        (
            "kv mlp", (8, 8), "linen",
            f"""\
P('data', ('model', 'expert'))  {LINEN}
dimension 0 “kv” → data: rule 10 (kv → data) splits 4 ways over 'data'. Before it, rule 9 (kv →\
 (data, model)) needs all of (data, model), and rule 2 already uses 'model' for dimension 1;\
 'data' is free.
dimension 1 “mlp” → model, expert: rule 2 (mlp → (model, expert)) splits 2 ways over 'model'.\
 'expert' of size 1 splits nothing.""",
        ),
        (
            "hedas zzz", (8, 8), "linen",
            f"""\
P(None, None)  {LINEN}
dimension 0 “hedas” is not split: no rule knows “hedas”. Did you mean “heads”?
dimension 1 “zzz” is not split: no rule knows “zzz”.
To split dimension 0: rename 'hedas' to 'heads' in the array.""",
        ),
        (
            "embed nope", (8, 8), "nnx",
            """\
P('data', 'nope')  (nnx rules, 12 rules)
dimension 0 “embed” → data: rule 6 (embed → data) splits 4 ways over 'data'.
dimension 1 “nope” → nope: no rule is for it, so nnx takes the name for a mesh axis.
Dimension 1: no rule is for 'nope', and nnx takes it for a mesh axis, which the mesh lacks.
To split dimension 1: add the rule nope → model at the end.""",
        ),
        (
            "batch embed", (8, 8), "nnx",
            """\
P('data', 'data')  (nnx rules, 12 rules)
dimension 0 “batch” → data: rule 1 (batch → data) decides, but dimension 1 has 'data', too.
dimension 1 “embed” → data: rule 6 (embed → data) decides, but dimension 0 has 'data', too.
Mesh axis 'data' splits both dimension 0 and dimension 1; it can split one. Take it out of one of\
 them.
To split dimension 0: move rule 4 (embed → model) after rule 6.""",
        ),
        (
            "two free", None, "linen",
            f"""\
P(('data', 'data'), P.UNCONSTRAINED)  {LINEN}
dimension 0 “two” → data, data: rule 11 (two → (data, data)) decides, but names 'data' twice; a\
 mesh axis can split a dimension once.
dimension 1 “free” is left to the compiler: rule 12 (free → UNCONSTRAINED) leaves the dimension to\
 the compiler and ends the search.
To split dimension 0: give rule 11 (two → (data, data)) the axis 'data' in place of (data,\
 data).""",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) and len(v) < 20 else "",
)  # fmt: skip
def test_explain(names, shape, dialect, explanation):
    mesh = None if shape is None else MESH
    assert resolve(names, RULES, mesh=mesh, shape=shape, dialect=dialect).explain() == explanation


def reasons(names: str, dim: int, dialect: str = "linen") -> list[str]:
    found = resolve(names, RULES, mesh=MESH, dialect=dialect)
    return [v.reason for v in found.decisions[dim].verdicts]


def test_verdicts_that_do_not_decide_say_why():
    found = reasons("embed _", 0)
    assert found[0] == "is for 'batch'; this dimension has 'embed'."
    assert found[4] == "comes after rule 4, which already decided this dimension."
    assert reasons("embed _", 1)[0] == "is for 'batch'; this dimension has no name."
    assert reasons("kv batch mlp", 0)[8:10] == [
        "does not apply: rule 1 already uses 'data' for dimension 1 and rule 2 already uses 'model'"
        " for dimension 2.",
        "does not apply: rule 1 already uses 'data' for dimension 1.",
    ]
    assert reasons("embed", 0, "nnx")[3] == (
        "is replaced by rule 6: this dialect reads the table as a dict, where the last repeat wins."
    )


def test_kinds_have_a_name_each():
    found = resolve("embed mlp", RULES, mesh=MESH)
    kinds = [v.kind for v in found.decisions[0].verdicts[3:6]]
    assert kinds == ["axis taken", "terminal None", "dimension already decided"]


@pytest.mark.parametrize(
    ("names", "shape", "dialect", "problems"),
    [
        ("batch mlp", (8, 8), "linen", ()),
        (
            "mlp heads", (7, 8), "linen",
            ("Dimension 0: rule 2 (mlp → (model, expert)) decides, but 7 does not divide by 2"
             " (model × expert): 1 left over. Sizes that do: 6 and 8; or pad by 1.",),
        ),
        (
            "nope", (8,), "nnx",
            ("Dimension 0: no rule is for 'nope', and nnx takes it for a mesh axis, which the"
             " mesh lacks.",),
        ),
        (
            "batch embed", (8, 8), "nnx",
            ("Mesh axis 'data' splits both dimension 0 and dimension 1; it can split one. Take it"
             " out of one of them.",),
        ),
    ],
)  # fmt: skip
def test_problems(names, shape, dialect, problems):
    assert resolve(names, RULES, mesh=MESH, shape=shape, dialect=dialect).problems == problems


def test_a_resolution_shows_itself():
    assert repr(resolve("embed _", RULES)) == "Resolution(embed, _ → P('model', None), linen)"


def test_no_remedy_makes_a_misspelt_name_permanent():
    table = [("mlp", "model"), ("embed", "model"), ("embed", None)]
    found = resolve("embded mlp", table, mesh=MESH)
    assert "Did you mean “embed”?" in found.explain()
    assert "To split" not in found.explain()  # renamed it would not be split, either
    assert found.remedies("split 0")[0].edit.startswith("Add the rule embded")
