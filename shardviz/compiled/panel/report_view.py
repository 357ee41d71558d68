"""What the view Program shows of a job and its report, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.axis_rules.fit import Fit
from shardviz.base.axis_parts import parent_axis
from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text, seconds_text
from shardviz.base.typing import JsonDict
from shardviz.compiled.panel.memory_chart import chart_view
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import Bound, Roofline
from shardviz.compiled.words import stages as wording
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.planner import Job
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan

MAX_ROWS = 300
#: The stages of a run: where it fails there, the program was compiled.
RUN_STAGES = ("place", "run", "check", "compare")
# In the row of stages, which begins with what is requested.
COMPILED, RAN = 3, 4
MOST_TIMES = 60
_PARTS = ("arguments", "outputs", "temporaries", "generated_code")


# --- the report -----------------------------------------------------------------------


def report_view(job: Job | None, last: Report | None, revision: int) -> JsonDict:
    """The last report, and the running job if there is one."""
    view: JsonDict = {
        "state": "none",
        "revision": -1,
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
        view.update(times=_times(last), verdict=wording.run_verdict(last))
        view["passed"] = wording.checks_in_words(last)
        for check in last.checks[:MAX_ROWS]:
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
    elif job is not None and was_cancelled(job.report):
        view["cancelled"] = job.report.error.message.rstrip(".")  # type: ignore[union-attr]
    return view


def error_view(report: Report | None) -> dict[str, str] | None:
    """Why a compile or run ended early; None where it did not."""
    if report is None or report.error is None:
        return None
    error = report.error
    title = wording.stopped_at(error.stage)
    return {"title": title, "message": error.message, "source": error.source}


def was_cancelled(report: Report | None) -> bool:
    """Whether somebody cancelled it."""
    return (
        report is not None
        and report.error is not None
        and (report.error.stage == "cancelled")
    )


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
    found: Roofline | None, report: Report | None, where: str, not_run: str
) -> JsonDict:
    """What a program takes at least, what bounds it, and the memory of a device.

    Args:
        found: the least times; None where they are not known.
        report: of the compile; None before it.
        where: the devices in words.
        not_run: why there is no report.

    >>> headline_view(None, None, "", "Press Compile.")["note"]
    'Press Compile.'
    """
    view: JsonDict = {"seconds": "", "where": where, "bound": "", "parts": []}
    view.update(note="", title="", memory="", memoryTitle="", over=False)
    if report is None:
        view["note"] = not_run
        return view
    if report.fit is not None:
        view["memory"] = wording.memory_needed(report.fit)
        view.update(memoryTitle=wording.memory(report), over=report.fit.ok is False)
    if found is None or found.seconds is None:
        if report.collectives is None:  # so far, or for good
            view["note"] = not_run if report.error is None else ""
        else:
            view["note"] = wording.NO_CHIP if found is None else wording.NO_COST
        return view
    return {**view, **_least_times(found, report.collectives or ())}


def planned_headline(plan: Plan, found: Roofline) -> JsonDict:
    """The same by the plan alone, on a target for which nothing is compiled yet.

    Args:
        plan: of the program as it is now.
        found: its least times on the target.
    """
    view = headline_view(None, None, Topology.parse(found.where).title, wording.BY_PLAN)
    if found.needed is not None:
        fit = Fit(found.needed, found.capacity, found.chip.title, arrays_only=True)
        view["memory"] = wording.memory_needed(fit)
        view.update(memoryTitle=wording.planned_memory(fit), over=fit.ok is False)
    return {**view, **_least_times(found, plan.collectives)}


def _least_times(found: Roofline, collectives: Sequence[Collective]) -> JsonDict:
    """The least times of a headline, with their bars."""
    if found.seconds is None:
        return {}
    parts, longest = [], found.seconds or 1.0
    for name, label in wording.PARTS.items():
        seconds = found.parts.get(name)
        if seconds is not None:
            part = {"name": name, "label": label, "seconds": time_text(seconds)}
            over = _axes_of(found, collectives) if name == "collectives" else []
            parts.append({**part, "share": seconds / longest, "over": over})
    title = "\n".join(map(str, [found, *found.notes]))
    seconds, bound = time_text(found.seconds), wording.bound(found)
    return {"parts": parts, "seconds": seconds, "bound": bound, "title": title}


def _axes_of(found: Roofline, collectives: Sequence[Collective]) -> list[list[Any]]:
    """The sets of mesh axes that communicate, each with its share of the time."""
    axes: dict[str, tuple[str, ...]] = {}
    for collective in collectives:
        # A part of an axis has the colour of the axis.
        whole = dict.fromkeys(map(parent_axis, collective.mesh_axes))
        axes[collective.name_with_axes] = tuple(whole)
    seconds: dict[tuple[str, ...], float] = {}
    for row in found.rows:
        if row.part == "collective" and row.seconds:
            over = axes.get(row.name, ())
            seconds[over] = seconds.get(over, 0.0) + row.seconds
    most_first = sorted(seconds.items(), key=lambda item: -item[1])
    return [[list(over), each / sum(seconds.values())] for over, each in most_first]


def memory_view(report: Report | None, found: Roofline | None = None) -> JsonDict:
    """The Memory tab of a report.

    Args:
        report: of a compile; None before it.
        found: the least times of its operations; None where they are not known.

    >>> from shardviz.compiled.report import Memory
    >>> memory = Memory(arguments=1 << 30, capacity=4 << 30)
    >>> view = memory_view(Report("f", "t", memory=memory))
    >>> view["parts"], view["over"]
    ([['arguments', '1 GiB']], False)
    """
    view: JsonDict = {"parts": [], "sentence": "", "over": False}
    view.update(operations=[], chart=None)
    if report is None:
        return view
    memory = report.memory
    for name in _PARTS:
        if size := getattr(memory, name):
            view["parts"].append([name.replace("_", " "), bytes_text(size)])
    view.update(
        chart=chart_view(report),
        sentence=wording.memory(report),
        over=report.fit is not None and report.fit.ok is False,
        target=report.target,
    )
    if found is not None:
        view["operations"] = _bars(found.ops)
    return view


def _bars(bounds: Sequence[Bound]) -> list[JsonDict]:
    """Bars of least seconds, the longest first; a time that is not known has none."""
    rows = sorted(bounds, key=lambda row: -(row.seconds or 0.0))[:MOST_TIMES]
    most = max((row.seconds or 0.0 for row in rows), default=0.0) or 1.0
    bars = []
    for row in rows:
        share = (row.seconds or 0.0) / most
        bar = {"name": row.name, "seconds": seconds_text(row.seconds), "share": share}
        bars.append({**bar, "bound": row.bound, "source": row.source})
    return bars
