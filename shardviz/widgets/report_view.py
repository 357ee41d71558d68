"""Jobs, reports, memory and caches, as plain data for the page."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from shardviz.core.format import bytes_text, count_text, plural, seconds_text
from shardviz.core.program.cache import ExecutableCache, cache_rows
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program, nearest_difference
from shardviz.core.program.report import Collective, Memory, Report, host_bytes
from shardviz.core.program.roofline import Bound, Roofline, largest_arrays, with_operations
from shardviz.widgets.background import Job

MAX_ROWS = 300
_EMPTY: dict[str, Any] = {
    "state": "none",
    "revision": -1,
    "stage": "",
    "started": 0,
    "times": [],
    "checks": [],
    "verdict": "",
    "error": None,
}


def report_view(job: Job | None, last: Report | None, revision: int) -> dict[str, Any]:
    """The last report, and the running job if there is one.

    Args:
        job: the last one that was started.
        last: the last report.
        revision: of the program that it is of; the page says when that is no longer the last one.
    """
    view = dict(_EMPTY) if last is None else _report(last)
    if last is not None:
        view["revision"] = revision
    if job is not None and job.report is not None and was_cancelled(job.report):
        view["cancelled"] = verdict(job.report)
    if job is not None and not job.done:
        view |= {
            "state": "running",
            "stage": f"{job.progress.kind}: {job.progress.stage}",
            "started": job.progress.started,
        }
    return view


def _report(report: Report) -> dict[str, Any]:
    return {
        **_EMPTY,
        "state": "done" if report.error is None else "failed",
        "times": _times(report),
        "verdict": verdict(report),
        "checks": [dataclasses.asdict(c) for c in report.checks[:MAX_ROWS]],
        "error": error_view(report),
    }


def error_view(report: Report | None) -> dict[str, str] | None:
    """Why a compile or run ended early; None where it did not."""
    if report is None or report.error is None:
        return None
    error = report.error
    title = "Cancelled" if was_cancelled(report) else f"Stopped at: {error.stage}"
    return {"title": title, "message": error.message, "source": error.source}


def was_cancelled(report: Report) -> bool:
    """Whether somebody cancelled it.

    >>> was_cancelled(Report("f", ""))
    False
    """
    return report.error is not None and report.error.stage == "cancelled"


def verdict(report: Report) -> str:
    """The result of a run in a few words; `""` where nothing ran.

    >>> verdict(Report("f", "cpu × 8", run_s=0.002)), verdict(Report("f", "cpu × 8"))
    ('ran in 2 ms', '')
    """
    if report.error is not None and was_cancelled(report):
        return report.error.message.rstrip(".")
    if report.run_s is None:
        return ""
    failed = sum(1 for c in report.checks if c.ok is False)
    words = f"{failed} of {plural(len(report.checks), 'check')} failed"
    if not failed:
        few = {0: "", 1: "its check holds"}
        words = few.get(len(report.checks), f"all {len(report.checks)} checks hold")
    return " · ".join(filter(None, [f"ran in {seconds_text(report.run_s)}", words]))


def collective_summary(collectives: Iterable[Collective]) -> str:
    """`2 all-reduce, 1 all-gather`, the most frequent first."""
    counts = Counter(c.kind for c in collectives).most_common()
    return ", ".join(f"{n} {kind}" for kind, n in counts) or "no collectives"


def _times(report: Report) -> list[list[str]]:
    stages = (
        ("lower", report.lower_s),
        ("compile", report.compile_s),
        ("place", report.place_s),
        ("run", report.run_s),
    )
    times = [[name, seconds_text(value)] for name, value in stages if value is not None]
    if report.target:
        times.insert(0, ["on", report.target])
    if report.effects:
        times.append(["effects", ", ".join(report.effects)])
    return times


_COMBINED = re.compile(r"^(jit\([^/]*\))/\((.*)\)$")


def cause(op: str) -> str:
    """An op name in words: which scope of the program, forward or backward.

    >>> cause("jit(f)/transpose(jvp(mlp))/dot_general")
    'dot_general in mlp, backward'
    >>> cause("jit(f)/(jvp()/add:jvp()/mul)"), cause("")
    ('2 combined: add, forward; mul, forward', 'the compiler names no cause')
    """
    if not op:
        return "the compiler names no cause"
    combined = _COMBINED.match(op)
    if combined is not None:
        parts = combined[2].split(":")
        words = list(dict.fromkeys(cause(f"{combined[1]}/{part}") for part in parts))
        more = f"; and {len(words) - 3} more kinds" if len(words) > 3 else ""
        return f"{len(parts)} combined: " + "; ".join(words[:3]) + more
    *scopes, last = op.split("/")
    names = [_scope_name(scope) for scope in scopes[1:]]
    inside = "/".join(name for name in names if name)
    backward = any("transpose(" in scope for scope in scopes)
    forward = any("jvp(" in scope for scope in scopes)
    way = ", backward" if backward else ", forward" if forward else ""
    return last + (f" in {inside}" if inside else "") + way


def _scope_name(scope: str) -> str:
    inner = scope.replace("transpose(", "").replace("jvp(", "").rstrip(")").strip("(")
    return "" if inner.startswith(("jit(", "while", "body", "checkpoint")) else inner


def cache_view(cache: ExecutableCache) -> dict[str, Any]:
    """The entries and the hits of the executable cache, as plain data."""
    rows = [
        {
            "key": row["key"][:12],
            "name": row["name"],
            "compile": seconds_text(row["compile_s"]),
            "hits": row["hits"],
            "waited": row["waited"],
        }
        for row in cache_rows(cache)[:MAX_ROWS]
    ]
    return {"rows": rows, "hits": cache.hits, "misses": cache.misses, "size": cache.size}


# They take memory at the same time; in the order of the bar.
_PARTS = ("arguments", "outputs", "temporaries", "generated_code")
_TITLES = {"generated_code": "generated code"}
MOST_COSTS = 12
MOST_TIMES = 60


def memory_view(report: Report | None, plan: Plan | None = None) -> dict[str, Any]:
    """The Memory tab of a report.

    >>> view = memory_view(Report("f", "t", memory=Memory(arguments=1 << 30, capacity=4 << 30)))
    >>> view["sentence"], [part["share"] for part in view["parts"]]
    ('1 GiB of 4 GiB on each device: 25 %.', [0.25])
    """
    empty: dict[str, Any] = {"parts": [], "sentence": "", "over": False, "cost": []}
    empty |= {"times": [], "operations": [], "timesNote": ""}
    if report is None:
        return empty
    memory = report.memory
    sizes = [(name, getattr(memory, name) or 0) for name in _PARTS]
    # Donated outputs reuse the memory of an argument.
    total = max(0, sum(size for _, size in sizes) - (memory.aliased or 0))
    full = max(total, memory.capacity or 0) or 1
    over = bool(memory.capacity and total > memory.capacity)
    sentence = _sentence(memory, total) if total or host_bytes(memory) else ""
    return {
        **empty,
        "parts": [
            {"name": _TITLES.get(n, n), "bytes": bytes_text(size), "share": size / full}
            for n, size in sizes
            if size
        ],
        "capacity": (memory.capacity or 0) / full,
        "sentence": f"{sentence} {largest_arrays(report) if over else ''}".rstrip(),
        "over": over,
        "target": report.target,
        "cost": [[n, _cost(n, v)] for n, v in list(report.cost.items())[:MOST_COSTS]],
        **_roofline(with_operations(report, plan)),
    }


def _cost(name: str, value: float) -> str:
    if "bytes" in name:
        return bytes_text(int(value))
    return seconds_text(value) if "seconds" in name else count_text(value)


def _sentence(memory: Memory, total: int) -> str:
    reused = ""
    if memory.aliased:
        reused = f" {bytes_text(memory.aliased)} of outputs reuse donated arguments."
    if on_host := host_bytes(memory):
        reused += f" In addition, {bytes_text(on_host)} per device are in host memory."
    if not memory.capacity:
        return f"{bytes_text(total)} on each device; its capacity is not known.{reused}"
    share = total / memory.capacity
    words = "less than 1 %" if share < 0.01 else f"{share:.0%}".replace("%", " %")
    if share > 1:
        words = f"{share:.3g} times what it has"
    return f"{bytes_text(total)} of {bytes_text(memory.capacity)} on each device: {words}.{reused}"


def _roofline(found: Roofline | None) -> dict[str, Any]:
    """The least time of each part and operation, the longest first."""
    if found is None:
        return {}
    return {
        "times": _roofline_times(found.rows),
        "operations": _roofline_times(found.ops),
        "timesNote": found.words if found.rows else "",
    }


def _roofline_times(some: Sequence[Bound]) -> list[dict[str, Any]]:
    """Bars of seconds; a time that is not known has none."""
    rows = sorted(some, key=lambda row: -(row.seconds or 0.0))[:MOST_TIMES]
    most = max((row.seconds or 0.0 for row in rows), default=0.0) or 1.0
    return [
        {
            "name": row.name,
            "seconds": seconds_text(row.seconds),
            "share": (row.seconds or 0.0) / most,
            "bound": row.bound,
            "source": row.source,
        }
        for row in rows
    ]


MOST_JOBS = 50


class History:
    """The last fifty jobs as plain rows, the latest first.

    >>> History().rows
    []
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._compiled: list[Program] = []

    def add(self, kind: str, program: Program, report: Report, jax_events: str) -> None:
        """Adds one job that has ended.

        Args:
            kind: `"compile"` or `"run"`.
            program: what was compiled or run.
            report: its result.
            jax_events: the work that jax's own caches did not save, in words.
        """
        if report.compile_s is None:
            found, why = "not compiled", str(report.error or "")
        elif report.cache_hit:
            found, why = "hit", "The same program was compiled before."
        else:
            found, why = "miss", nearest_difference(self._compiled, program)
            if report.effects:
                why = "It has effects, and programs with effects are compiled every time."
        if report.compile_s is not None:
            self._compiled = [*self._compiled[-MOST_JOBS:], program]
        row = {"what": f"{kind} {program.name}", "found": found, "why": why, "jax": jax_events}
        self.rows = [row, *self.rows[: MOST_JOBS - 1]]
