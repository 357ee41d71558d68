"""What the page shows of a job and its Report, as plain data."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from shardviz.core.errors import plural
from shardviz.core.program.cache import ExecutableCache, cache_rows
from shardviz.core.program.report import Collective, Report
from shardviz.picture.units import seconds_text
from shardviz.widgets.jobs import Job

MAX_ROWS = 300
_EMPTY: dict[str, Any] = {
    "state": "none",
    "stale": False,
    "stage": "",
    "started": 0,
    "times": [],
    "checks": [],
    "verdict": "",
    "error": None,
}


def report_view(job: Job | None, last: Report | None, stale: bool, code: str) -> dict[str, Any]:
    """The job under way, if any, over the last report there is."""
    view = dict(_EMPTY) if last is None else _report(last)
    # One that was cancelled says nothing of the program, so that it is never out of date.
    view |= {"stale": stale and last is not None and not was_cancelled(last), "code": code}
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
    """Whether it ended because somebody said so.

    >>> was_cancelled(Report("f", ""))
    False
    """
    return report.error is not None and report.error.stage == "cancelled"


def verdict(report: Report) -> str:
    """What came of a run, in a few words; `""` where nothing ran.

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
        held = {0: "", 1: "its check holds"}
        words = held.get(len(report.checks), f"all {len(report.checks)} checks hold")
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
    """What an op name says in words: where in the program, forward or backward.

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
    """What the executable cache holds and how it was used, as plain data."""
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
