"""The list of problems: what fails, what loses bytes, what is worth knowing; each said once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest

from shardviz.advise.panel.problems_view import of_document, of_results, problems_view
from shardviz.advise.problems import Problem
from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.panel.model_view import Leaves, model_view
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text
from shardviz.base.mesh import make_mesh
from shardviz.compiled.checks import Check
from shardviz.compiled.report import Memory, Report
from shardviz.explorer.planner import StageResults
from shardviz.explorer.session import Session
from shardviz.explorer.state import session_on
from shardviz.gallery import arrays, meshes, rules
from shardviz.plans.plan import Plan
from shardviz.programs.constraints import NO_MESH, NO_RULES, Constraint
from shardviz.programs.failure import Failure

RULES = [("batch", "data"), ("mlp", "model"), ("embed", "model"), ("embed", None), ("x", None)]
NOTHING_KNOWN = StageResults()


def session(tree: object, table: object = RULES, mesh: object = "data=4, model=2") -> Session:
    return session_on(audit(tree, table, mesh))


def problems(made: Session, results: StageResults = NOTHING_KNOWN) -> list[Problem]:
    of_arrays = of_document(made.now, made.audit)
    return [*of_arrays, *of_results(made.now, made.audit, results)]


class Row(NamedTuple):
    """A problem, with the fields of its row on the page."""

    bytes: int
    severity: str
    text: str
    at: str
    place: dict[str, object]
    mends: bool
    offer: str


def found(made: Session, results: StageResults = NOTHING_KNOWN) -> dict[str, Row]:
    """The problems by their codes."""
    listed = problems(made, results)
    rows = {row["text"]: row for row in view(made, results)["rows"]}
    by_code: dict[str, Row] = {}
    for problem in listed:
        row = rows[str(problem)]
        assert row["code"] == problem.code
        assert problem.code not in by_code or problem.code == "idle rule", "each once"
        fields = {"at": "", "mends": False, "offer": "", "bytes": problem.bytes} | row
        del fields["code"]
        by_code.setdefault(problem.code, Row(**fields))
    return by_code


def view(made: Session, results: StageResults = NOTHING_KNOWN) -> dict:
    return problems_view(made.now, made.audit, results)


def wasted(made: Session, paths: Iterable[str] | None = None) -> int:
    """Bytes on one device minus bytes over devices, counted on an array of owners by numpy."""
    total = 0
    mesh = made.mesh
    for row in made.audit.rows:
        if paths is not None and row.path not in paths:
            continue
        owned = np.zeros(row.shape, np.int64)
        parts = row.layout.box(int(mesh.device_ids.flat[0]))
        owned[tuple(parts)] = np.dtype(row.dtype).itemsize
        total += int(owned.sum()) - row.array.bytes // mesh.size
    return total


# --- bytes ----------------------------------------------------------------------------


TREES = {
    "free axes": [("a", (64, 32), "mlp embed"), ("b", (64, 64), "batch mlp"), ("c", (512,), "x")],
    "a misspelt name": [("a", (64, 32), "mlp embed"), ("b", (64, 64), "batch mpl")],
    "moments": {
        "params": {"w": ((64, 32), "batch mlp")},
        "opt_state": {"mu": {"w": ((64, 32), "x y")}, "nu": {"w": ((64, 32), "batch mlp")}},
    },
    "both in one array": [("a", (64, 32), "mpl embd"), ("b", (1024, 2), "batch mlp")],
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_what_is_lost_is_what_a_device_holds_beyond_its_share(tree):
    made = session(tree)
    listed = problems(made)
    assert sum(one.bytes for one in listed) == wasted(made) > 0


def test_of_a_whole_model_every_array_counts_once():
    made = session_on(audit(arrays.get("7B model"), rules.get("FSDP"), meshes.get()))
    listed = problems(made)
    shares = [row.bytes_per_device - row.array.bytes // 8 for row in made.audit.rows]
    assert sum(one.bytes for one in listed) == sum(shares)
    assert sum(row.wasted_bytes for row in made.audit.rows) == sum(shares)


def test_a_moment_with_a_misspelt_name_counts_once():
    tree = {
        "params": {"w": ((64, 32), "batch mlp")},
        "opt_state": {"mu": {"w": ((64, 32), "batch mpl")}},
    }
    made = session(tree)
    listed = found(made)
    assert listed["misspelt"].bytes == wasted(made) > 0
    assert listed["moment: lost"].bytes == 0


def test_nothing_is_lost_where_all_is_split():
    made = session([("a", (64, 32), "batch mlp")], [("batch", "data"), ("mlp", "model")])
    none = {"rows": [], "counts": [0, 0, 0], "loses": "", "know": ""}
    assert view(made) == {"revision": 0, **none}
    alone = session([("a", (64, 32), "x y")], mesh="data=1")
    assert "copies" not in view(alone)["know"]


DATA_PARALLEL = {
    "no rule splits it": ([("batch", "data"), ("x", None)], ""),
    "a rule is out of reach": ([("x", None), ("x", "data")], "data"),
    "a rule needs more than is free": ([("y", "model"), ("x", ("data", "model"))], "data"),
    "a rule would use the axis of another": ([("y", "data"), ("x", "data")], ""),
}


@pytest.mark.parametrize(("table", "denied"), DATA_PARALLEL.values(), ids=DATA_PARALLEL)
def test_copies_are_a_loss_only_where_a_rule_meant_to_split(table, denied):
    made = session([("a", (1024, 64), "x y")], table)
    (one,) = [one for one in problems(made) if one.code == "replicated"]
    said = view(made)
    assert one.severity == ("loses" if denied else "know")
    assert one.denied == tuple(denied.split())
    kind = "loses" if denied else "know"
    copies = "extra copies" if denied else "copies"
    assert said[kind].startswith(f"{bytes_text(wasted(made))} of {copies} (1 array)")
    (row,) = model_view(made.program, "", Leaves.of_audit(made.audit), None)["kinds"]
    assert row.get("lost", False) == bool(denied)


def test_an_own_spec_that_undoes_a_rule_loses_bytes():
    made = session([("a", (1024, 64), "batch x")])
    made.edit("spec", "None", 0)
    assert found(made)["replicated"].severity == "loses"


def test_copies_in_the_memory_of_the_host_cost_the_device_nothing():
    array = ArraySpec("a", (64, 64), ("x", "y"), memory_kind="pinned_host")
    assert "replicated" not in found(session([array]))


def test_little_is_no_loss():
    made = session([("a", (1024, 1024), "batch mlp"), ("norm", (8,), "x")])
    assert found(made)["replicated"].severity == "know"


# --- arrays and rules -----------------------------------------------------------------


def test_arrays_that_cannot_be_laid_out_fail_at_their_dimension():
    made = session([("a", (6, 64), "batch mlp"), ("b", (6, 64), "batch mlp")])
    one = found(made)["no layout"]
    assert (one.severity, one.at, one.mends) == ("fails", "a.batch", True)
    assert one.place == {"view": "Rules", "array": 0, "dim": 0}
    assert view(made)["counts"][0] == 1, "those of one reason are one"


def test_a_typed_spec_is_mended_where_it_was_typed():
    made = session([("a", (64, 64), "batch mlp")])
    made.edit("spec", "nowhere", 0)
    one = found(made)["no layout"]
    assert (one.at, one.place, one.mends) == ("a", {"view": "Layout", "array": 0}, False)


def test_a_misspelt_name_that_splits_nothing_anyway_is_worth_knowing():
    made = session([("a", (64, 64), "mlp embd")])
    one = found(made)["misspelt"]
    assert (one.severity, one.bytes, one.place["dim"]) == ("know", 0, 1)


def test_the_largest_unsplit_dimension_is_where_to_look():
    made = session([("a", (64, 8, 512), "batch y x")])
    one = found(made)["replicated"]
    assert one.at == "a.x"
    assert one.place["dim"] == 2


def test_rules_for_no_array_are_one_line_and_those_that_lose_have_their_own():
    table = [*RULES, *((f"name{i}", None) for i in range(25))]
    made = session([("a", (64, 64), "mlp embed"), ("b", (8, 64), "batch mlp")], table)
    listed = found(made)
    assert listed["no array"].text.startswith("26 ")
    assert listed["idle rule"].at == "a.embed"
    assert "rule 2" in listed["idle rule"].text


def test_a_leaf_that_is_not_opened_is_named_by_its_number():
    made = session([("big", (1024, 1024), "batch mlp"), ("a", (512, 512), "x y")])
    assert found(made)["replicated"].place == {"view": "Rules", "leaf": 1, "dim": 0}


# --- target, plan and report ----------------------------------------------------------


def planned(made: Session, **plan: object) -> StageResults:
    now = made.now
    return StageResults(Plan("f", now.mesh, **plan), now.revision)


def reported(made: Session, **report: object) -> StageResults:
    now = made.now
    done = Report("f", "cpu", **report)
    return StageResults(report=done, report_revision=now.revision, target=now.target)


SPLIT = [("a", (64, 64), "batch mlp")]


def test_a_target_of_another_size_fails_with_the_mesh_that_fits():
    made = session(SPLIT)
    made.edit("target", "tpu:v5e:4x4")
    one = found(made)["other size"]
    assert (one.severity, one.offer) == ("fails", "data=8, model=2")
    made.edit("fit", None)
    assert "other size" not in found(made)


def test_what_does_not_fit_in_memory_fails_and_the_report_knows_best():
    made = session([("a", (1 << 19, 1 << 18), "batch mlp")], mesh="data=8, model=2")
    made.edit("target", "tpu:v5e:4x4")
    assert found(made)["does not fit"].place == {"view": "Model"}
    fits = Memory(arguments=1 << 20, capacity=1 << 30)
    assert "does not fit" not in found(made, reported(made, memory=fits))
    more = Memory(arguments=1 << 31, capacity=1 << 30)
    assert found(made, reported(made, memory=more))["does not fit"].place["tab"] == "Memory"


def test_the_plan_that_fails_and_constraints_that_do_nothing():
    made = session(SPLIT)
    refused = Failure("trace", "The shapes do not fit.", "block.py:31")
    one = found(made, planned(made, error=refused))["no plan"]
    assert (one.severity, one.at) == ("fails", "block.py:31")
    calls = (
        Constraint("unbox", "m.py:1", effect=NO_RULES),
        Constraint("unbox", "m.py:2", effect=NO_RULES),
        Constraint("reshard", "m.py:3"),
    )
    one = found(made, planned(made, constraints=calls))["constraint"]
    assert one.severity == "loses"
    assert "m.py:2" in one.text
    assert "m.py:3" not in one.text
    two = planned(made, constraints=(*calls, Constraint("unbox", "m.py:4", effect=NO_MESH)))
    assert view(made, two)["counts"] == [0, 2, 1]


def test_what_a_compile_and_a_run_found():
    made = session(SPLIT)
    checks = (Check("x", True, "fine"), Check("y", False, "unequal"), Check("z", None, "unknown"))
    again = Collective("all-gather", ("data",), 4096, rematerialises=True)
    plain = Collective("all-reduce", ("data",), 64)
    listed = found(made, reported(made, checks=checks, collectives=(plain, again)))
    assert listed["check"].severity == "fails"
    assert listed["rematerialised"].place == {"view": "Program", "collective": "2:1"}
    assert "4 KiB" in listed["rematerialised"].text
    stopped = found(made, reported(made, error=Failure("compile", "No.", "a.py:1")))
    assert stopped["stopped"].severity == "fails"
    assert found(made, reported(made, error=Failure("cancelled", "Cancelled."))) == found(made)


def test_results_of_another_program_or_target_say_nothing():
    made = session(SPLIT)
    results = reported(made, error=Failure("compile", "No."))
    made.edit("mesh", "data=2, model=2")
    assert "stopped" not in found(made, results)
    made.undo()
    assert "stopped" in found(made, results)
    made.edit("target", "cpu:8")
    assert "stopped" not in found(made, results)


def test_those_that_fail_come_first_then_losses_then_notes():
    tree = [("a", (6, 64), "batch mlp"), ("b", (4096, 64), "batch x"), ("c", (64, 8), "batch mpl")]
    rows = view(session(tree))["rows"]
    assert [row["severity"] for row in rows[:3]] == ["fails", "loses", "know"]
    assert [row["code"] for row in rows[1:3]] == ["misspelt", "replicated"]


def test_an_empty_table_is_said_once():
    made = session([("a", (64, 64), "x y")], Rules())
    codes = [row["code"] for row in view(made)["rows"]]
    assert codes == ["replicated", "unmatched"]
    assert make_mesh(data=4, model=2).size == made.mesh.size


def test_a_report_that_stopped_for_a_known_reason_is_not_said_again():
    made = session(SPLIT)
    error = Failure("compile", "No.")
    plan = Plan("f", made.now.mesh, error=Failure("trace", "No."))
    report = Report("f", "cpu", error=error)
    now = made.now
    both = StageResults(
        plan, now.revision, report=report, report_revision=now.revision, target=now.target
    )
    assert {"no plan"} <= found(made, both).keys()
    assert "stopped" not in found(made, both)
    unlaid = session([("a", (6, 64), "batch mlp")])
    assert "stopped" not in found(unlaid, reported(unlaid, error=error))


def test_axes_that_are_free_and_names_without_rules_are_named():
    made = session([("a", (64, 64), "batch x")], mesh="data=4, model=2, flat=1")
    assert {p.code: p for p in problems(made)}["replicated"].axes == ("model",)
    names = found(session([("a", (64, 64), "batch zzz")]))["unmatched"]
    assert (names.severity, names.mends) == ("know", False)
