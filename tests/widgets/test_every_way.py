"""However the Explorer was opened, it says why a dimension is not split, and what would split it.

The oracle of a remedy is the audit that is made anew after it was applied.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

import shardviz as sv
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.audit import audit as audit_of
from shardviz.axis_rules.panel.model_view import Leaves, model_view
from shardviz.axis_rules.panel.rules_panel import RulesPanel
from shardviz.base.format import bytes_text
from tests.widgets.ways_to_open import WAYS

MOST_CELLS = 12  # of one way, whose remedies are all applied


def tell(explorer: Any, **intent: Any) -> None:
    """What the page sends when somebody acts; nothing of it may fail."""
    explorer._receive(explorer, {"seq": 1, "client": "page", "intents": [intent]}, [])
    assert "failed" not in explorer.answer, explorer.answer


@pytest.fixture(scope="module", params=WAYS)
def opened(request) -> Iterator[Any]:
    explorer = sv.explore(WAYS[request.param]())
    session = explorer.session
    for kind in session.now.model.kinds if session.now.model else ():  # one leaf of each is opened
        session.edit("open", session.now.model.arrays.index(kind))
    tell(explorer, kind="show", value="Rules")
    yield explorer
    explorer.close()


def unsplit(session: Any) -> list[tuple[int, int]]:
    """The number of the array and the dimension, of all that are not split."""
    return [
        (number, dim)
        for number, row in enumerate(session.program.requests)
        for dim in range(row.array.rank)
        if row.layout is None or row.layout.block_counts[dim] == 1
    ]


def audit_anew(session: Any) -> Audit:
    """An audit of the model as the session has it now, made by nothing of the Explorer."""
    leaves = {leaf.name: leaf for leaf in session.now.model.arrays} if session.now.model else {}
    leaves |= {array.name: array for array in session.arrays}
    found = session.program
    return audit_of(list(leaves.values()), found.rules or [], found.mesh, found.dialect)


def held(audit: Audit) -> dict[str, int]:
    """Bytes per device of each array; one that cannot be laid out counts as not split."""
    return {
        row.path: row.array.bytes if row.layout is None else row.layout.bytes_per_device
        for row in audit.rows
    }


def specs(audit: Audit) -> dict[str, Any]:
    return {row.path: row.spec for row in audit.rows}


def test_every_dimension_that_is_not_split_has_a_reason(opened):
    session = opened.session
    assert unsplit(session)
    for number, dim in unsplit(session):
        tell(opened, kind="cell", value=f"{number}:{dim}")
        cell = opened.cell
        assert cell["text"], (number, dim)
        assert cell["head"].endswith(" is not split."), cell
        named = session.arrays[number].logical is not None
        assert cell["remedies"] or cell.get("reason") or not named, cell
        assert not (cell["remedies"] and "reason" in cell)


def test_a_remedy_that_the_page_shows_for_another_dimension_is_not_applied(opened):
    session = opened.session
    cells = unsplit(session)
    for (number, dim), (other, there) in itertools.pairwise(cells):
        tell(opened, kind="cell", value=f"{number}:{dim}")
        before = session.now.revision
        tell(opened, kind="cell", value=f"{other}:{there}")
        tell(opened, kind="apply", value=f"{number}:{dim} 0")  # as it was on the page
        assert session.now.revision == before


def test_every_remedy_does_what_it_says(opened):
    session = opened.session
    before, size = audit_anew(session), session.mesh.shape
    for number, dim in unsplit(session)[:MOST_CELLS]:
        name, broken = session.arrays[number].name, session.program.requests[number].problem
        tell(opened, kind="cell", value=f"{number}:{dim}")
        found = opened.panel(RulesPanel).shown.remedies.edits
        for which, remedy in enumerate(found):
            view = opened.cell["remedies"][which]
            tell(opened, kind="apply", value=f"{number}:{dim} {which}")
            assert session.now.errors == {}
            row, after = session.program.requests[number], audit_anew(session)
            case = f"{name}, dimension {dim}: {remedy}"
            assert row.layout is not None, case
            assert (row.layout.block_counts[dim] == 1) == remedy.leaves_unsplit, case
            assert str(row.spec) == view["spec"], case
            assert row.spec == specs(after)[name] == remedy.spec, case
            was, now = held(before), held(after)
            assert sum(was.values()) - sum(now.values()) == remedy.bytes_saved, case
            if broken:
                assert view["memory"] == f"takes {bytes_text(now[name])} on every device", case
            old = specs(before)
            changed = {p for p, spec in specs(after).items() if spec != old[p] and p != name}
            assert changed == set(remedy.others), case
            assert not (set(after.problems) - set(before.problems)), case
            new = [rule for rule in remedy.rules if rule.axes and rule not in tuple(before.rules)]
            assert all(any(size[axis] > 1 for axis in rule.axes) for rule in new), case
            assert row.layout.block_counts == tuple(
                math.prod(size[a] for a in axes) for axes in row.spec.dims
            )
            model = session.now.model or Leaves(session.arrays)
            shown = model_view(session.program, "", model, None)["kinds"]
            kind = model.kind_of[[a.name for a in model.arrays].index(name)]
            assert shown[kind]["spec"] == view["spec"], case
            tell(opened, kind="undo")
            assert specs(audit_anew(session)) == old, case
            tell(opened, kind="cell", value=f"{number}:{dim}")


def test_a_layout_or_a_resolution_opens_with_its_name_axes_and_rules():
    made = sv.array("w", (512, 2048), "embed mlp", dtype="bfloat16")
    mesh, rules = sv.mesh(data=4, model=2), sv.rules(("mlp", "model"), ("embed", "data"))
    layout = sv.layout(made, mesh=mesh, rules=rules, dialect="nnx")
    assert sv.layout((512, 2048), "data", mesh).request is None
    session = sv.explore(layout).session
    assert session.arrays == (made,)
    assert (session.mesh, session.rules, session.program.dialect.value) == (mesh, rules, "nnx")
    session.edit("rules", "embed -> model")  # the array follows: no spec was frozen
    assert str(session.program.requests[0].spec) == "P('model', 'mlp')"
    found = sv.resolve("embed mlp", rules, mesh=mesh, shape=(512, 2048), dialect="maxtext")
    session = sv.explore(found).session
    assert (session.mesh, session.rules, session.program.dialect.value) == (mesh, rules, "maxtext")
    assert session.program.requests[0].spec == found.spec


def test_what_cannot_be_opened_says_what_can():
    for wrong, words in (
        (object(), "The Explorer opens on a program, a mesh"),
        ({"shardviz": 0}, "not an Explorer state"),
        (sv.resolve("embed", [("embed", "data")]), "mesh= and shape="),
        (sv.resolve("embed", [("embed", "data")], mesh="data=2"), "mesh= and shape="),
    ):
        with pytest.raises(sv.ShardvizError, match=re.escape(words)):
            sv.explore(wrong)
