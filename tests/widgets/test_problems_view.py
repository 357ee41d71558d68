"""The list of problems: what fails, what loses bytes, what is worth knowing; each said once."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import shardviz as sv
from shardviz.advise import problems as finding
from shardviz.advise.panel.problems_view import of_document, of_results, problems_view
from shardviz.advise.problems import (
    ArrayPlace,
    MisspeltName,
    MomentsDiffer,
    Problem,
    Replicated,
    Results,
    Target,
    result_problems,
)
from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.panel.model_view import Leaves, model_view
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text
from shardviz.base.mesh import make_mesh
from shardviz.compiled.checks import Check
from shardviz.compiled.orders import DeviceOrder
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
    assert view(made) == {"revision": 0, "target": "", **none}
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
    (row,) = model_view(made.program, "", Leaves.of_rows(made.audit.rows), None)["kinds"]
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


def test_each_dimension_that_cannot_be_split_is_a_problem_of_its_own():
    alike = [(f"layers.{n}.w", (510, 8191), "batch mlp") for n in range(3)]
    twice = ArraySpec("c", (8, 8), spec="data, data")
    unknown = ArraySpec("d", (6, 8), spec="data, expert")
    program = sv.program(lambda *arrays: arrays, twice, unknown, mesh="data=4, model=2")
    rows = [r for r in view(session(alike))["rows"] if r["code"] == "no layout"]
    assert [(r["at"], r["place"]["dim"], r["mends"]) for r in rows] == [
        ("layers.0.w.batch", 0, True),
        ("layers.0.w.mlp", 1, True),
    ]
    assert all("layers 0 to 2" in r["text"] for r in rows)
    texts = [r["text"] for r in view(session_on(program))["rows"] if r["severity"] == "fails"]
    assert [text.split(".")[0] for text in texts] == ["c cannot be laid out"] + 2 * [
        "d cannot be laid out"
    ]
    for text, words in zip(texts, ("named twice", "'expert'", "6 is not divisible"), strict=True):
        assert words in text


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
    again = Collective("all-gather", ("data",), 8192, group_size=2, rematerialises=True)
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


# --- edges, with counts by hand -------------------------------------------------------

# What is unsplit, and the dimension to look at: the largest that has a name.
UNSPLIT = {
    "the larger of two": ((64, 8, 512), "batch y x", 2),
    "not one that is split": ((512, 64, 8), "batch x y", 1),
    "not one without a name": ((8, 512), ("y", None), 0),
    "the first of two as large": ((64, 64), "x y", 0),
}


@pytest.mark.parametrize(("shape", "names", "dim"), UNSPLIT.values(), ids=UNSPLIT)
def test_the_dimension_where_to_look(shape, names, dim):
    (one,) = (p for p in problems(session([("a", shape, names)])) if p.code == "replicated")
    assert one.place.dim == dim


@pytest.mark.parametrize(
    ("names", "shape", "dim"),
    [
        # 6 is not divisible by 4; a dimension before it has no rule, or one that holds.
        ("zzz batch", (64, 6), 1),
        ("mlp batch", (64, 6), 1),
        ("batch mlp", (6, 64), 0),
    ],
)
def test_the_dimension_that_fails(names, shape, dim):
    one = found(session([("a", shape, names)]))["no layout"]
    assert one.place["dim"] == dim


def test_an_array_whose_own_spec_fails_has_no_dimension_and_no_remedies():
    made = session([ArraySpec("a", (6, 64), None, spec="data"), ("b", (64, 64), "batch mlp")])
    one = found(made)["no layout"]
    assert (one.at, one.place, one.mends) == ("a", {"view": "Layout", "array": 1}, False)


def test_arrays_without_names_are_a_problem_of_their_own():
    made = session([("a", (64, 64), None), ("b", (64, 32), "x y"), ("c", (64, 64), "batch mlp")])
    listed = found(made)
    # Each device holds all of 64 x 64 numbers of 4 bytes instead of an eighth; likewise of 64 x 32.
    assert (listed["no names"].bytes, listed["no names"].at) == (64 * 64 * 4 * 7 // 8, "a")
    assert (listed["replicated"].bytes, listed["replicated"].at) == (64 * 32 * 4 * 7 // 8, "b.x")


# The name of the moment's second dimension, its type, and the bytes that it loses: 'mlp' halves
# 64 x 32 numbers of 4 bytes that 'batch' has split in four.
MOMENTS = {
    "a split that is lost": ("batch y", "float32", {"moment: lost": 64 * 32 * 4 * (2 - 1) // 8}),
    "more bits": ("batch mlp", "float64", {"moment: dtype": 0}),
    "the same": ("batch mlp", "float32", {}),
}


@pytest.mark.parametrize(("names", "dtype", "lost"), MOMENTS.values(), ids=MOMENTS)
def test_moments_lose_bytes_only_with_a_split(names, dtype, lost):
    tree = {
        "params": {"w": ((64, 32), "batch mlp", "float32")},
        "opt_state": {"mu": {"w": ((64, 32), names, dtype)}},
    }
    table = [("batch", "data"), ("mlp", "model")]
    listed = found(session(tree, table))
    moments = {code: row.bytes for code, row in listed.items() if code.startswith("moment")}
    assert moments == lost
    assert "replicated" not in listed, "what a moment loses is counted once"


def test_alike_arrays_are_laid_out_once_for_a_misspelt_name(monkeypatch):
    asked, request = [], finding.request

    def counted(array, *rest):
        asked.append(array.name)
        return request(array, *rest)

    monkeypatch.setattr(finding, "request", counted)
    alike = [(name, (64, 64), "batch mpl") for name in "abc"]
    one = found(session([*alike, ("d", (64, 32), "batch mpl"), ("e", (64, 64), "mpl y")]))[
        "misspelt"
    ]
    assert asked == ["a", "d", "e"] * 2, "once for the list, once for the page"
    assert one.severity == "loses"


def test_a_name_whose_rule_cannot_split_the_array_loses_nothing():
    # 'mlp' would split 3 over the 2 devices of 'model'.
    listed = found(session([("a", (8, 3), "batch mpl")]))
    assert (listed["misspelt"].severity, listed["misspelt"].bytes) == ("know", 0)
    # An array of one byte is not smaller with the right name, one of two bytes is.
    for size, severity in ((1, "know"), (2, "loses")):
        made = session([("a", (size,), "mpl", "int8")], [("mlp", "model")], f"model={size}")
        assert found(made)["misspelt"].severity == severity


@pytest.mark.parametrize(("idle", "more"), [(5, None), (6, None), (7, 1), (9, 3)])
def test_six_idle_rules_are_named_and_the_others_counted(idle, more):
    # Each repeats a rule that comes first, so it never decides.
    table = [("batch", "data"), ("mlp", "model"), *[("mlp", f"other{n}") for n in range(idle)]]
    listed = problems(session([("a", (64, 64), "batch mlp")], table))
    assert [p.code for p in listed].count("idle rule") == min(idle, 6)
    assert [p.count for p in listed if p.code == "idle rules"] == ([] if more is None else [more])


def test_a_rule_that_loses_is_shown_without_remedies():
    made = session([("a", (64, 64), "mlp embed")], [("mlp", "model"), ("embed", "model")])
    one = found(made)["idle rule"]
    assert (one.at, one.mends, one.place["dim"]) == ("a.embed", False, 1)


SMALL_MESH = make_mesh(data=4, model=2)


def of_target(**facts: object) -> list[Problem]:
    made = session(SPLIT)
    target = Target("cpu:8", "8 CPUs", **facts)
    return list(result_problems(made.audit, made.now.program, target, Results()))


def test_a_target_of_as_many_devices_can_have_other_hosts():
    two = make_mesh("data=4, model=2", processes=2)
    (hosts,) = of_target(fitting=two)
    assert (hosts.code, hosts.severity, hosts.offer) == ("other hosts", "loses", "2 hosts")
    assert (hosts.mesh_hosts, hosts.target_hosts) == (1, 2)
    (size,) = of_target(fitting=make_mesh(data=16), fitting_axes="data=16")
    assert (size.code, size.devices, size.mesh_size) == ("other size", 16, 8)
    assert of_target() == []


def of_program(tree: object = SPLIT, **results: object) -> list[str]:
    made = session(tree)
    listed = result_problems(made.audit, made.now.program, Target("", ""), Results(**results))
    return [
        f"{p.code}: {p.place.collective}" if p.code == "rematerialised" else p.code for p in listed
    ]


PLAIN = Collective("all-reduce", ("data",), 64)
AGAIN = Collective("all-gather", ("data",), 4096, rematerialises=True)
STOPPED = Report("f", "cpu", error=Failure("compile", "No."))
NOT_PLANNED = Plan("f", SMALL_MESH, error=Failure("trace", "No."))
ORDER = DeviceOrder(SMALL_MESH, ("data",), 3, 1, 3e-3, 1e-3)
DONE = Report("f", "cpu")
UNEVEN = [("a", (6, 64), "batch mlp")]
# The arrays, the results, and the codes of the problems.
OF_RESULTS = {
    "nothing": (SPLIT, {}, []),
    "no report for collectives": (SPLIT, {"partitioned": (PLAIN, AGAIN)}, []),
    "the partitioner's": (
        SPLIT, {"report": DONE, "partitioned": (PLAIN, AGAIN)}, ["rematerialised: 1:1"]),
    "those of the final program": (
        SPLIT, {"report": DONE, "partitioned": (PLAIN, AGAIN), "compiled": (AGAIN, AGAIN)},
        ["rematerialised: 2:0"]),
    "none in the final program": (
        SPLIT, {"report": DONE, "partitioned": (AGAIN,), "compiled": (PLAIN,)}, []),
    "no collectives": (SPLIT, {"report": DONE, "partitioned": (), "compiled": ()}, []),
    "an error": (SPLIT, {"report": STOPPED}, ["stopped"]),
    "an error after that of the plan": (SPLIT, {"report": STOPPED, "has_no_plan": True}, []),
    "an error of arrays": (UNEVEN, {"report": STOPPED}, []),
    "an error of a plan": (SPLIT, {"plan": NOT_PLANNED}, ["no plan"]),
    "an error of a plan of such arrays": (UNEVEN, {"plan": NOT_PLANNED}, []),
    "a slow order of devices": (
        SPLIT, {"report": Report("f", "cpu", roofline=SimpleNamespace(order=ORDER))},
        ["device order"]),
    "checks": (
        SPLIT, {"report": Report("f", "cpu", checks=(
            Check("x", True, "fine"), Check("y", None, "unknown"), Check("z", False, "unequal")))},
        ["check"]),
}  # fmt: skip


@pytest.mark.parametrize(("tree", "results", "codes"), OF_RESULTS.values(), ids=OF_RESULTS)
def test_results_and_their_problems(tree, results, codes):
    assert of_program(tree, **results) == codes


def test_the_check_that_failed_is_named():
    checks = (Check("x", True, "fine"), Check("y", False, "unequal"))
    assert "unequal" in found(session(SPLIT), reported(session(SPLIT), checks=checks))["check"].text


def test_facts_that_are_left_out_are_no_loss():
    place = ArrayPlace("w", 0, "embd")
    assert not place.has_remedies
    misspelt = MisspeltName("embd", "embed", ("w",), place)
    assert (misspelt.severity, misspelt.bytes) == ("know", 0)
    assert MomentsDiffer((), place).bytes == 0
    # Copies are a loss only if a rule meant to avoid them, and not if they are few.
    assert Replicated(("data",), ("w",), 8, place).severity == "know"
    assert Replicated(("data",), ("w",), 8, place, ("data",)).severity == "loses"
    assert Replicated(("data",), ("w",), 8, place, ("data",), is_small=True).severity == "know"


@pytest.mark.parametrize(("split", "severity"), [(194, "loses"), (196, "loses"), (198, "know")])
def test_a_hundredth_of_a_device_is_a_loss(split, severity):
    # Each of two devices holds both bytes of `a`, one too many, and half of `b`: 100 bytes for 196.
    tree = [("a", (2,), "x", "int8"), ("b", (split,), "mlp", "int8")]
    table = [("mlp", "model"), ("x", None), ("x", "model")]
    assert found(session(tree, table, "model=2"))["replicated"].severity == severity


def test_a_table_of_paths_has_no_idle_rules():
    by_path = audit(
        [("mlp/a", (64, 64))], [("mlp", ("data",)), ("x", ())], "data=4, model=2", dialect="regex"
    )
    assert list(found(session_on(by_path))) == ["replicated"]
