"""A job and its report, as plain data for the Program view."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from shardviz.axis_rules.fit import Fit
from shardviz.base.axis_parts import parent_axis
from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text, seconds_text
from shardviz.base.typing import JsonDict
from shardviz.compiled.op_costs import most_alive
from shardviz.compiled.panel.memory_chart import chart_view, estimate_view
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import Bound, Roofline
from shardviz.compiled.words import stages as wording
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.planner import Job
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan
from shardviz.programs.failure import Failure

MAX_ROWS = 300
#: The stages of a run. A program that fails in one of them was compiled.
RUN_STAGES = ("place", "run", "check", "compare")
# Positions in the row of stages; position 0 is the requested stage.
COMPILED, RAN = 3, 4
_PARTS = ("arguments", "outputs", "temporaries", "generated_code")


# --- the report -----------------------------------------------------------------------


def report_view(
    job: Job | None, last: Report | None, revision: int, target: str = ""
) -> JsonDict:
    """Returns the last report, and the running job if there is one.

    Args:
        job: the last job that the user started.
        last: the last report.
        revision, target: the revision of the last report's program, and the report's
            target.
    """
    view: JsonDict = {
        "state": "none",
        "revision": -1,
        "target": target,
        "stage": "",
        "at": 0,
        "started": 0,
        "times": [],
        "checks": [],
        "verdict": "",
        "passed": "",
        "error": error_view(last),
    }
    if last is not None:
        view["state"] = "done"
        if last.error is not None:
            view["state"] = "failed"
        reached = last.without_error
        view.update(times=_times(reached), verdict=wording.run_verdict(reached))
        view["passed"] = wording.checks_in_words(reached)
        for check in reached.checks[:MAX_ROWS]:
            row = {"name": check.name, "ok": check.ok, "detail": check.detail}
            view["checks"].append(row)
        view["revision"] = revision
    if job is not None and job.report is None:
        view["state"], view["started"] = "running", job.started
        view["stage"] = wording.DOING.get(job.stage, wording.STARTING)
        if job.kind == "changes":
            view["stage"] = f"{wording.TRYING} {job.stage},"
            return view
        view["at"] = RAN if job.stage in RUN_STAGES else COMPILED
    elif (error := cancellation(job)) is not None:
        view["cancelled"] = error.message.rstrip(".")
    return view


def error_view(report: Report | None) -> dict[str, str] | None:
    """Explains why a compile or run ended early; None if it did not."""
    if report is None or report.error is None:
        return None
    error = report.error
    title = wording.stopped_at(error.stage)
    return {"title": title, "message": error.message, "source": error.source}


def cancellation(job: Job | None) -> Failure | None:
    """Returns the error of a job that the user cancelled; None for any other job."""
    if job is None or job.report is None or not was_cancelled(job.report):
        return None
    return job.report.error


def was_cancelled(report: Report | None) -> bool:
    """Whether a report belongs to a job that the user cancelled."""
    if report is None or report.error is None:
        return False
    return report.error.stage == "cancelled"


def _times(report: Report) -> list[list[str]]:
    times = []
    if report.target:
        times.append(["on", report.target])
    for stage in ("lower", "compile", "place", "run"):
        seconds = getattr(report, f"{stage}_s")
        if seconds is None:
            continue
        if stage == "compile" and report.cache_hit:
            times.append([stage, wording.CACHED])
        else:
            times.append([stage, seconds_text(seconds)])
    if report.effects:
        times.append(["effects", ", ".join(report.effects)])
    return times


# --- memory and least times -----------------------------------------------------------


def headline_view(
    roofline: Roofline | None, report: Report | None, where: str, not_run: str
) -> JsonDict:
    """Returns a program's least time, its bound, and the memory of a device.

    Args:
        roofline: the least times; None if unknown.
        report: the report of the compile; None before compiling.
        where: the devices in words.
        not_run: why there is no report.

    >>> headline_view(None, None, "", "Press Compile.")["note"]
    'Press Compile.'
    """
    view: JsonDict = {"seconds": "", "where": where, "bound": "", "parts": []}
    view.update(note="", title="", memory="", memoryTitle="", over=False)
    view.update(suggested="", costliest=None)
    if report is None:
        view["note"] = not_run
        return view
    reached = report.without_error
    if reached.fit is not None:
        view["memory"] = wording.memory_needed(reached.fit)
        view.update(memoryTitle=wording.memory(report), over=reached.fit.ok is False)
    if roofline is None or roofline.seconds is None:
        if reached.collectives is None:  # the compile failed or has not run
            view["note"] = not_run if report.error is None else ""
        else:
            view["note"] = wording.NO_CHIP if roofline is None else wording.NO_COST
        return view
    return {**view, **_least_times(roofline, reached.collectives or (), stage=2)}


def planned_headline(plan: Plan, roofline: Roofline, suggested: str = "") -> JsonDict:
    """Returns the headline from the plan alone, before the program is compiled.

    Args:
        plan: the current program's plan.
        roofline: the plan's least times on the target.
        suggested: the target of `roofline`, if it is not the chosen one.
    """
    where = wording.by_plan(Topology.parse(roofline.where).title)
    view = headline_view(None, None, where, "")
    held, alive = roofline.needed or 0, most_alive(plan)
    fit = Fit(held, roofline.capacity, roofline.chip.title, arrays_only=True)
    view["memory"] = wording.memory_planned(alive, roofline.capacity)
    view["memoryTitle"] = wording.planned_memory(fit, alive)
    # Only arguments and results are certain to need memory.
    view["over"] = fit.ok is False and not suggested
    # The headline has the memory by the plan, so the tooltip has no second figure.
    times = _least_times(replace(roofline, needed=None), plan.collectives, stage=0)
    return {**view, "suggested": suggested, **times}


def _least_times(
    roofline: Roofline, collectives: Sequence[Collective], stage: int
) -> JsonDict:
    """Returns the least times for the page's headline, with the lengths of their bars.

    Args:
        roofline: the least times.
        collectives: the collectives that `roofline` contains.
        stage: the stage of the collectives: 0 for the plan, 2 for the compiled program.
    """
    if roofline.seconds is None:
        return {}
    parts, longest = [], roofline.seconds or 1.0
    for name, label in wording.PARTS.items():
        seconds = roofline.parts.get(name)
        if seconds is not None:
            part = {"name": name, "label": label, "seconds": time_text(seconds)}
            over = _axes_of(roofline, collectives) if name == "collectives" else []
            parts.append({**part, "share": seconds / longest, "over": over})
    title = "\n".join(map(str, [roofline, *roofline.notes]))
    seconds, bound = time_text(roofline.seconds), wording.bound(roofline)
    view = {"parts": parts, "seconds": seconds, "bound": bound, "title": title}
    return {**view, "costliest": _costliest(roofline, collectives, stage)}


def _costliest(
    roofline: Roofline, collectives: Sequence[Collective], stage: int
) -> dict[str, str] | None:
    """Returns the collectives that take longest: of one kind, over the same axes and of one size.

    Returns None without collectives of a known time. The key is the first collective's.
    """
    alike: dict[Hashable, list[Bound]] = {}
    for row in roofline.rows:
        if row.part == "collective" and row.seconds:
            alike.setdefault((row.name, row.amount, row.trips), []).append(row)
    if not alike:
        return None
    rows = max(alike.values(), key=_seconds)
    lines = wording.lines([row.source for row in rows])
    times = wording.times(
        sum(row.trips or 1 for row in rows), rows[0].trips is not None
    )
    places = [(c.name_with_axes, c.source) for c in collectives]
    text = wording.costliest(rows[0].name, times, lines, time_text(_seconds(rows)))
    return {
        "key": f"{stage}:{places.index((rows[0].name, rows[0].source))}",
        "text": text,
    }


def _seconds(rows: Sequence[Bound]) -> float:
    return sum(row.seconds or 0.0 for row in rows)


def _axes_of(
    roofline: Roofline, collectives: Sequence[Collective]
) -> list[list[object]]:
    """Returns mesh axes that collectives run over, and their shares of the time."""
    axes: dict[str, tuple[str, ...]] = {}
    for collective in collectives:
        # A sub-axis has the colour of its full axis.
        parents = dict.fromkeys(map(parent_axis, collective.mesh_axes))
        axes[collective.name_with_axes] = tuple(parents)
    seconds: dict[tuple[str, ...], float] = {}
    for row in roofline.rows:
        if row.part == "collective" and row.seconds:
            over = axes.get(row.name, ())
            seconds[over] = seconds.get(over, 0.0) + row.seconds
    most_first = sorted(seconds.items(), key=lambda item: -item[1])
    return [
        [list(over), axis_seconds / sum(seconds.values())]
        for over, axis_seconds in most_first
    ]


def memory_view(report: Report | None, plan: Plan | None = None) -> JsonDict:
    """Returns the data of the Memory tab.

    Args:
        report: the report of a compile; None before compiling.
        plan: the program's plan, for an estimate; None if unknown.

    >>> from shardviz.compiled.report import Memory
    >>> memory = Memory(arguments=1 << 30, capacity=4 << 30)
    >>> view = memory_view(Report("f", "t", memory=memory))
    >>> view["parts"], view["over"]
    ([['arguments', '1 GiB']], False)
    """
    view: JsonDict = {"parts": [], "sentence": "", "over": False}
    view.update(chart=None, estimate=None)
    if plan is not None and plan.error is None:
        view["estimate"] = estimate_view(plan)
    if report is None:
        return view
    reached = report.without_error
    memory = reached.memory
    for name in _PARTS:
        if size := getattr(memory, name):
            view["parts"].append([name.replace("_", " "), bytes_text(size)])
    view.update(
        chart=chart_view(reached),
        sentence=wording.memory(report),
        over=reached.fit is not None and reached.fit.ok is False,
        target=report.target,
    )
    return view
