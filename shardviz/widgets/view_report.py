"""What the page shows of a job and its Report, as plain data."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from shardviz.core.program.cache import ExecutableCache, cache_rows
from shardviz.core.program.report import Collective, Memory, Report
from shardviz.picture.units import bytes_text, count_text, seconds_text
from shardviz.widgets.jobs import Job

MAX_ROWS = 300
_EMPTY: dict[str, Any] = {
    "state": "none",
    "stale": False,
    "stage": "",
    "started": 0,
    "rung": {"title": "Compiled", "text": "not yet: press Compile", "more": ""},
    "times": [],
    "collectives": [],
    "memory": [],
    "cost": [],
    "checks": [],
    "error": None,
}
_MEMORY = {
    "arguments": "arguments",
    "outputs": "outputs",
    "temporaries": "temporaries",
    "aliased": "outputs that reuse an argument's memory",
    "generated_code": "generated code",
}


def report_view(job: Job | None, last: Report | None, stale: bool, code: str) -> dict[str, Any]:
    """The job under way, if any, over the last report there is."""
    view = dict(_EMPTY) if last is None else _report(last)
    view |= {"stale": stale and last is not None, "code": code}
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
        "rung": _rung(report),
        "times": _times(report),
        "collectives": collective_rows(report.collectives or ()),
        "memory": memory_rows(report.memory),
        "cost": [[name, count_text(value)] for name, value in list(report.cost.items())[:12]],
        "checks": [dataclasses.asdict(c) for c in report.checks[:MAX_ROWS]],
        "error": None
        if report.error is None
        else {
            "title": "Cancelled"
            if report.error.stage == "cancelled"
            else f"Stopped at: {report.error.stage}",
            "message": report.error.message,
            "source": report.error.source,
        },
    }


def _rung(report: Report) -> dict[str, str]:
    title = "Compiled"
    if report.compile_s is not None:
        took = seconds_text(report.compile_s)
        title += " · from the cache" if report.cache_hit else f" · {took}"
    if report.collectives is None:
        text = "nothing: it did not get that far" if report.error else "not yet: press Compile"
        return {"title": title, "text": text, "more": ""}
    total = sum(c.bytes_per_device for c in report.collectives)
    more = f"{bytes_text(total)} · {report.target}" if total else report.target
    return {"title": title, "text": collective_summary(report.collectives), "more": more}


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


def collective_rows(collectives: Iterable[Collective]) -> list[dict[str, Any]]:
    """One row a collective, the most bytes first."""
    rows = sorted(collectives, key=lambda c: -c.bytes_per_device)[:MAX_ROWS]
    most = max((c.bytes_per_device for c in rows), default=0) or 1
    return [
        {
            "bytes": bytes_text(c.bytes_per_device),
            "share": c.bytes_per_device / most,
            "kind": c.kind,
            "axes": list(c.mesh_axes) or ["?"],
            "cause": cause(c.op),
            "op": c.op,
            "source": c.source,
            "tags": [t for t, on in (("async", c.is_async), ("in loop", c.in_loop)) if on],
        }
        for c in rows
    ]


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


def memory_rows(memory: Memory) -> list[dict[str, Any]]:
    """One row a kind of memory, in bytes on each device."""
    values = [(text, getattr(memory, name)) for name, text in _MEMORY.items()]
    known = [(text, value) for text, value in values if value]
    most = max((v for _, v in known), default=0) or 1
    total = sum(v for t, v in known if not t.startswith("outputs that"))
    rows = [
        {"name": t, "bytes": bytes_text(v), "share": v / most, "note": "a device"} for t, v in known
    ]
    if rows and memory.capacity:
        note = f"{bytes_text(total)} of {bytes_text(memory.capacity)} a device has"
        rows.append({"name": "capacity", "bytes": bytes_text(memory.capacity),
                     "share": 1.0, "note": note})  # fmt: skip
    return rows


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
