"""What every rule of a table did, and why some do nothing."""

from __future__ import annotations

import random

import pytest

import shardviz as sv
from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.requests import requests
from shardviz.axis_rules.rule_uses import RuleUse, rule_summary
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from tests.layout.test_rules_equal_flax import random_names, random_table

MESH = make_mesh(data=4, model=2, expert=1)


def uses(table: str, *arrays: ArraySpec, dialect: str = "linen") -> tuple[RuleUse, ...]:
    rules = Rules.parse(table)
    return rule_summary(requests(arrays, MESH, rules, Dialect.of(dialect)), rules)


def array(name: str, names: str, shape: tuple[int, ...] | None = None) -> ArraySpec:
    return ArraySpec(name, shape or (8,) * len(names.split()), names)


def test_a_rule_says_what_it_decides_and_to_whom_it_lost():
    found = uses(
        "mlp -> model\nembed -> model\nembed -> None",
        array("wi", "embed mlp"), array("wo", "mlp embed"), array("norm", "embed"),
    )  # fmt: skip
    assert found[0].decides == ("wi", "wo")
    assert found[1].decides == ("norm",)
    assert [(name, one.taken) for name, one in found[1].lost] == [
        ("wi", (("model", 1, 0),)),
        ("wo", (("model", 0, 0),)),
    ]
    assert found[2].leaves_unsplit == ("wi", "wo")
    assert [(u.index, u.never) for u in found] == [(0, None), (1, None), (2, None)]


def test_a_rule_says_what_it_broke():
    found = uses(
        "a -> data\nb -> tensor\nc -> (model, model)", array("w", "a b c", (6, 8, 8))
    )  # fmt: skip
    assert [use.broken[0][1].kind for use in found] == [
        "does not divide",
        "axis not in the mesh",
        "axis named twice",
    ]
    assert all(u.never is None and u.decides == () for u in found)


W = array("w", "a b")


@pytest.mark.parametrize(
    ("table", "arrays", "dialect", "code", "by"),
    [
        ("c -> data", [W], "linen", "no such name", ()),
        ("heads -> data", [array("w", "hedas b")], "linen", "no such name", ()),
        ("a -> None\na -> data", [W], "linen", "decided before", (0,)),
        ("a -> (data, model)\na -> model", [W], "linen", "decided before", (0,)),
        (
            "b -> data\na -> data\na -> model\na -> expert", [W, array("v", "a")], "linen",
            "decided before", (1, 2),
        ),
        ("b -> data\na -> data", [W, array("v", "b a")], "linen", "loses", ()),
        (
            "b -> data\na -> model\na -> data", [W, array("v", "a b")], "linen",
            "decided before", (1,),
        ),
        (
            "c -> model\nb -> data\na -> model\na -> data", [W, array("v", "a b c")], "linen",
            "loses", (2,),
        ),
        ("a -> model\na -> data", [W], "nnx", "decided before", (1,)),
        ("a -> data", [W.replace(spec=Spec.parse("model"))], "linen", "own specs", ()),
        ("a -> data", [array("w", "a a")], "linen", "own specs", ()),
        ("a -> data", [], "linen", "no such name", ()),
        ("a -> data", [ArraySpec("w", (8,))], "linen", "no such name", ()),
    ],
)  # fmt: skip
def test_why_a_rule_never_fires(table, arrays, dialect, code, by):
    (idle,) = [u for u in uses(table, *arrays, dialect=dialect) if u.never]
    assert (idle.never.code, getattr(idle.never, "by", ())) == (code, by)
    assert str(idle.never)


def test_a_rule_for_no_name_knows_the_nearest():
    assert uses("heads -> data", array("w", "hedas b"))[0].never.near == "hedas"


@pytest.mark.parametrize("dialect", ["linen", "nnx"])
def test_summaries_add_up_to_the_verdicts(dialect):
    rng = random.Random(41)
    for _ in range(300):
        rules = Rules.of(random_table(rng))
        arrays = []
        for number in range(5):
            names = random_names(rng)
            shape = tuple(rng.choice((4, 6, 8)) for _ in names)
            arrays.append(ArraySpec(f"w{number}", shape, names))
        asked = requests(arrays, MESH, rules, Dialect.of(dialect))
        found = rule_summary(asked, rules)
        for use in found:
            expected = {name: set() for name in ("decides", "leaves_unsplit", "lost", "broken")}
            for one in asked:
                for decision in one.resolution.decisions if one.resolution else ():
                    verdict = decision.verdicts[use.index]
                    field = FIELDS.get(verdict.kind)
                    if field is not None:
                        expected[field].add(one.array.name)
            for field, names in expected.items():
                entries = getattr(use, field)
                assert {e if isinstance(e, str) else e[0] for e in entries} == names, (field, use)
                assert len(entries) == len(set(entries))
            idle = not (expected["decides"] or expected["leaves_unsplit"] or expected["broken"])
            assert (use.never is not None) == idle


def test_rules_that_say_what_arrays_have_are_not_called_unused():
    follows = W.replace(spec=Spec.parse("data"))
    differs = array("v", "c").replace(spec=Spec.parse("model"))
    found = sv.audit([follows, differs], "a -> data\nc -> data", MESH)
    assert [use.decides for use in found.rule_uses] == [("w",), ()]
    assert found.rule_uses[1].never.code == "own specs"
    (one,) = found.beside_table
    assert (one.path, str(one.first), str(one.second)) == ("v", "P('data')", "P('model')")


FIELDS = {
    "applied": "decides",
    "axis of size 1": "decides",
    "terminal None": "leaves_unsplit",
    "axis taken": "lost",
    "only part of the tuple is free": "lost",
    "does not divide": "broken",
    "axis not in the mesh": "broken",
    "axis named twice": "broken",
}
