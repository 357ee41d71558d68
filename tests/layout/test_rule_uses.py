"""What every rule of a table did, and why some do nothing."""

from __future__ import annotations

import random

import pytest

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import requests
from shardviz.core.layout.rule_uses import RuleUse, rule_summary
from shardviz.core.layout.rules import Dialect, Rules
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
    assert found[1].lost == (
        ("wi", "'model' goes to 'mlp' through rule 1"),
        ("wo", "'model' goes to 'mlp' through rule 1"),
    )
    assert found[2].leaves_unsplit == ("wi", "wo")
    assert found[2].unreached == ("norm",)
    assert [u.never for u in found] == [None] * 3
    assert [u.index for u in found] == [0, 1, 2]


def test_a_rule_says_what_it_broke():
    found = uses(
        "a -> data\nb -> tensor\nc -> (model, model)", array("w", "a b c", (6, 8, 8))
    )  # fmt: skip
    assert found[0].broken == (
        ("w", "dimension 0: 6 does not divide by 4 (data): 2 left over. Sizes that do: 4 and 8; or"
              " pad by 2."),
    )  # fmt: skip
    assert found[1].broken == (
        ("w", "dimension 1: the mesh (data=4, model=2, expert=1) has no axis 'tensor'. Known:"
              " 'data', 'model' and 'expert'."),
    )  # fmt: skip
    assert found[2].broken == (
        ("w", "dimension 2: names 'model' twice; a mesh axis can split a dimension once."),
    )
    assert all(u.never is None and u.decides == () for u in found)


def test_two_axes_that_go_to_two_rules():
    found = uses("a -> data\nb -> model\nc -> (data, model, expert)", array("w", "a b c"))
    assert found[2].lost == (
        ("w", "'data' goes to 'a' through rule 1 and 'model' goes to 'b' through rule 2"),
    )
    one = uses("a -> (data, model)\nc -> (data, model)", array("w", "a c"))
    assert one[1].lost == (("w", "'data' and 'model' go to 'a' through rule 1"),)


W = array("w", "a b")


@pytest.mark.parametrize(
    ("table", "arrays", "dialect", "never"),
    [
        ("c -> data", [W], "linen", "never fires: no array has a dimension 'c'"),
        (
            "heads -> data", [array("w", "hedas b")], "linen",
            "never fires: no array has a dimension 'heads'; an array has 'hedas'",
        ),
        (
            "a -> None\na -> data", [W], "linen",
            "never fires: rule 1 ends every search for 'a' first",
        ),
        (
            "a -> UNCONSTRAINED\na -> data", [W], "linen",
            "never fires: rule 1 ends every search for 'a' first",
        ),
        (
            "a -> data\na -> data", [W], "linen",
            "never fires: rule 1 (a → data) takes every 'a' that this one could",
        ),
        (
            "b -> data\na -> data\na -> (data, model)", [W, array("v", "a")], "linen",
            "never fires: rule 2 (a → data) takes every 'a' that this one could",
        ),
        (
            "a -> (data, model)\na -> model", [W], "linen",
            "never fires: rule 1 decides every 'a' first",
        ),
        (
            "b -> data\na -> data\na -> model\na -> expert", [W, array("v", "a")], "linen",
            "never fires: rules 2 and 3 decide every 'a' first",
        ),
        ("b -> data\na -> data", [W], "linen", "never fires: it loses 'data' to 'b' (rule 1)"),
        (
            "b -> data\na -> data", [W, array("v", "b a")], "linen",
            "never fires: it loses 'data' to 'b' (rule 1) in every array",
        ),
        (
            "b -> data\na -> model\na -> data", [W, array("v", "a b")], "linen",
            "never fires: rule 2 decides every 'a' first",
        ),
        (
            "c -> model\nb -> data\na -> model\na -> data", [W, array("v", "a b c")], "linen",
            "never fires: it loses 'data' to 'b' (rule 2) in 1 array, and other rules decide first"
            " in 1",
        ),
        (
            "a -> model\na -> data", [W], "nnx",
            "never fires: rule 2 replaces it: nnx takes the last of a name",
        ),
        (
            "a -> data", [W.replace(spec=Spec.parse("data"))], "linen",
            "never fires: each array with 'a' has a PartitionSpec of its own, which wins",
        ),
        (
            "a -> data", [array("w", "a a")], "linen",
            "never fires: the names of the arrays with 'a' cannot be resolved",
        ),
        ("a -> data", [], "linen", "never fires: no array has a dimension 'a'"),
        ("a -> data", [ArraySpec("w", (8,))], "linen",
         "never fires: no array has a dimension 'a'"),
    ],
)  # fmt: skip
def test_why_a_rule_never_fires(table, arrays, dialect, never):
    idle = [u for u in uses(table, *arrays, dialect=dialect) if u.never]
    assert [u.never for u in idle] == [never]
    assert idle[0].absent == ("no array has" in never)


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
            expected = {name: set() for name in ("decides", "leaves_unsplit", "lost", "unreached",
                                             "broken")}  # fmt: skip
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


FIELDS = {
    "applied": "decides",
    "axis of size 1": "decides",
    "terminal None": "leaves_unsplit",
    "axis taken": "lost",
    "only part of the tuple is free": "lost",
    "dimension already decided": "unreached",
    "overridden by a later rule": "unreached",
    "does not divide": "broken",
    "axis not in the mesh": "broken",
    "axis named twice": "broken",
}


def test_a_rule_said_to_be_cut_off_fires_for_no_array_whatever():
    """The claim is about the table alone, so no array may contradict it."""
    rng, claims = random.Random(43), 0
    for _ in range(400):
        rules = Rules.of(random_table(rng))
        arrays = [ArraySpec(f"w{i}", (8,) * len(n), n) for i, n in
                  enumerate(random_names(rng) for _ in range(12))]  # fmt: skip
        found = rule_summary(requests(arrays[:2], MESH, rules), rules)
        everywhere = rule_summary(requests(arrays, MESH, rules), rules)
        for few, all_ in zip(found, everywhere, strict=True):
            if few.never and ("ends every search" in few.never or "takes every" in few.never):
                claims += 1
                assert all_.never is not None
    assert claims > 50
