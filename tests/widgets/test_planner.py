import threading
import time

import pytest

from shardviz.core.errors import TargetError
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Failure, Report
from shardviz.gallery import programs
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.planner import Planner, why_not_automatic
from shardviz.widgets.session import Session
from tests.program.helpers import in_new_python

ONE = Collective("all-reduce", ("data",), 1024)


def program(size: int = 8) -> Program:
    return Program(abs, (), make_mesh(data=size), name=f"on {size}")


def planned(wanted: Program) -> Plan:
    return Plan(wanted.name, wanted.mesh, (PlannedOp("x", "argument"),), (ONE,))


def reported(wanted: Program, target: str, cancelled, preview) -> Report:
    return Report(wanted.name, target, partitioned=(ONE,), collectives=(ONE,), compile_s=0.1)


def planner(make_plan=planned, partition=reported, **more) -> Planner:
    return Planner(lambda: None, ExecutableCache(), make_plan, partition, settle_s=0.02, **more)


def test_the_latest_program_is_planned_and_then_partitioned():
    made = planner()
    for size in (2, 4, 8):
        made.request(program(size), size, "")
    assert made.wait(5)
    assert made.state.plan.program == made.state.report.program == "on 8"
    assert (made.state.plan_revision, made.state.report_revision) == (8, 8)
    assert made.state.running == ""
    made.close()


def test_another_target_runs_the_partitioner_again_and_plans_nothing():
    plans, targets = [], []
    made = planner(
        lambda p: plans.append(1) or planned(p),
        lambda p, t, c, v: targets.append(t) or reported(p, t, c, v),
    )
    for target in ("", "cpu:16"):
        made.request(program(), 1, target)
        assert made.wait(5)
    assert (plans, targets) == ([1], ["", "cpu:16"])
    assert made.state.target == "cpu:16"


@pytest.mark.parametrize(
    ("size", "target", "why"),
    [
        (8, "", False),
        (512, "cpu", False),
        (1024, "", True),
        (8, "tpu:v5e:2x4", True),
        (8, "attached", True),
    ],
)
def test_only_up_to_512_simulated_devices_are_partitioned_automatically(size, target, why):
    found = why_not_automatic(program(size), target)
    assert bool(found) == why
    targets: list[str] = []
    made = planner(partition=lambda p, t, c, v: targets.append(t) or reported(p, t, c, v))
    made.request(program(size), 1, target)
    assert made.wait(5)
    assert targets == ([] if why else [target])
    assert made.state.not_run == found


def test_what_cannot_be_traced_is_not_compiled():
    targets: list[str] = []
    failure = Failure("trace", "The shapes do not fit.")
    made = planner(
        lambda p: Plan(p.name, p.mesh, error=failure),
        lambda p, t, c, v: targets.append(t) or reported(p, t, c, v),
    )
    made.request(program(), 1, "")
    assert made.wait(5)
    assert made.state.plan.error == failure
    assert made.state.not_run
    assert targets == []


@pytest.mark.parametrize(
    ("error", "stage"),
    [(TargetError("There is none."), "program"), (ZeroDivisionError("oh"), "propagate")],
)
def test_whatever_planning_raises_becomes_the_plans_error(error, stage):
    def fail(wanted: Program) -> Plan:
        raise error

    made = planner(fail)
    made.request(program(), 1, "tpu:v5e:2x4")
    assert made.wait(5)
    assert made.state.plan.error.stage == stage
    assert str(error) in made.state.plan.error.message


def test_an_edit_while_the_partitioner_works_gets_its_plan_at_once_and_drops_the_old_report():
    hold, began = threading.Event(), threading.Event()

    def slow(wanted: Program, target: str, cancelled, preview) -> Report:
        began.set()
        if wanted.name == "on 2":
            hold.wait(5)
        return reported(wanted, target, cancelled, preview)

    made = planner(partition=slow)
    made.request(program(2), 1, "")
    assert began.wait(5)
    made.request(program(4), 2, "")
    until = time.monotonic() + 5
    while made.state.plan_revision != 2 and time.monotonic() < until:
        time.sleep(0.005)
    assert made.state.plan_revision == 2
    assert made.state.report is None
    hold.set()
    assert made.wait(5)
    assert made.state.report.program == "on 4"


def test_early_results_are_shown_early():
    seen: list[tuple] = []

    def slow(wanted: Program, target: str, cancelled, preview) -> Report:
        preview(Report(wanted.name, target, partitioned=(ONE,)))
        return reported(wanted, target, cancelled, preview)

    made = Planner(
        lambda: seen.append((made.state.running, made.state.report)),
        ExecutableCache(), planned, slow, settle_s=0.0,
    )  # fmt: skip
    made.request(program(), 1, "")
    assert made.wait(5)
    stages = [(s, r is not None, r is not None and r.collectives is not None) for s, r in seen]
    assert ("compiling", True, False) in stages
    assert stages[-1] == ("", True, True)


def test_closing_cancels_running_work():
    began, ended = threading.Event(), []

    def slow(wanted: Program, target: str, cancelled, preview) -> Report:
        began.set()
        while not cancelled():
            time.sleep(0.005)
        ended.append(True)
        return reported(wanted, target, cancelled, preview)

    made = planner(partition=slow)
    made.request(program(), 1, "")
    assert began.wait(5)
    made.close()
    assert ended == [True]
    assert not [t for t in threading.enumerate() if t.name.startswith("shardviz-p")]


def test_an_explorer_plans_once_a_page_shows_it_and_not_before():
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())
    made.session.edit("mesh", "data=2, model=2")
    assert made.wait(5) is None
    assert made.plan is None
    made._receive(made, {"client": "a", "seq": 1, "intents": [{"kind": "plan"}]}, [])
    made.wait(120)
    assert made.plan.ok
    assert made.stages_data["stages"][0]["state"] == "estimate"
    assert made.plan_data["count"] == len(made.plan.ops)
    made.close()


LOGS = """
import jax
import shardviz as sv
def log(x):
    jax.debug.print("sum {}", x.sum())
    return x * 2
explorer = sv.explore(sv.program(log, sv.array("x", (8, 8), spec="data"), mesh="data=4"))
explorer.follow()
explorer.wait(60)
explorer.run()
explorer.wait(60)
print([stage["text"] for stage in explorer.stages_data["stages"]], explorer.report.error)
explorer.close()
"""


def test_a_planned_program_with_callbacks_still_runs_in_its_kernel():
    # Planning starts jax, which must have enough simulated devices by then.
    stages = "['1 all-reduce', '1 all-reduce', '1 all-reduce'] None"
    assert in_new_python(LOGS).splitlines()[-1] == stages
