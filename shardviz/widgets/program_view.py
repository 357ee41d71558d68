"""What the Program view shows of a plan, a job and its report, as plain data for the page."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, count_text, plural, seconds_text
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.cache import ExecutableCache, cache_rows
from shardviz.core.program.plan import Plan, call_paths
from shardviz.core.program.plan_values import ORIGINS, Choice, Diagnosis, PlannedOp, Step
from shardviz.core.program.program import Program, nearest_difference
from shardviz.core.program.report import Collective, Memory, Report, host_bytes, largest_arrays
from shardviz.core.program.roofline import Bound, Roofline, with_operations
from shardviz.picture.palette import LIGHT
from shardviz.picture.plan import choice_words
from shardviz.picture.tables import axis_groups, short_type, split_axis
from shardviz.widgets.background import Job

KINDS = ("argument", "op", "result")
BACKWARD, NOT_COVERED = 1, 2
MOST_NOTES = 20
NOWHERE = -1  # the number of a name that is none of the plan's values


def values_view(plan: Plan | None, explanations: int = 0) -> dict[str, Any]:
    """A plan for the page: columns of numbers, and the tables that they index.

    No objects, and every string once: a plan of 2,000 values stays below 300 kB. The page steps
    through the propagation by itself, and asks for the explanation of a value, which is long.

    Args:
        plan: None where there is none yet.
        explanations: a plan of at most so many values includes the explanation of each, for pages
            without a kernel.

    Returns:
        JSON: `text` has every string once; `specs`, `types`, `scopes` and `origins` are tables;
        `columns` have one number per value; `steps` are those of the propagation in order.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> view = values_view(plan)
    >>> view["count"], view["text"][view["columns"]["name"][0]], view["words"]
    (1, 'x', '1 value, 0 split')
    """
    if plan is None:
        return {"count": 0, "error": "", "waiting": True}
    strings = _Table()
    view = {
        "waiting": False,
        "program": plan.program,
        "mesh": str(plan.mesh),
        "axes": _axes(plan),
        "count": len(plan.ops),
        "words": _words(plan),
        "seconds": seconds_text(plan.seconds) if plan.seconds else "",
        "error": str(plan.error) if plan.error else "",
        "diagnosis": _diagnosis(plan.diagnosis),
        "notes": list(plan.notes[:MOST_NOTES]),
        "moreNotes": max(0, len(plan.notes) - MOST_NOTES),
        "kinds": list(KINDS),
        "originKinds": list(ORIGINS),
        **_values(plan, strings),
        **_steps(plan),
        "moves": _moves(plan, strings),
        "explanations": _explanations(plan, strings) if len(plan.ops) <= explanations else {},
    }
    return {**view, "text": strings.items}


def explanation_view(plan: Plan | None, name: str) -> dict[str, Any]:
    """The details of a chosen value: its explanation, its sharding rule, its source lines.

    Args:
        plan: on the page; None where there is none.
        name: of the value; the view of an unknown one has an `error`.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> explanation_view(plan, "y")["error"]
    "The plan of f has 1 value, and none is 'y'. ...Name one of plan.ops."
    """
    shown: dict[str, Any] = {"value": name, "lines": [], "rule": "", "op": "", "stack": []}
    if plan is None:
        return {**shown, "error": "There is no plan yet."}
    try:
        op = plan.op(name)
        lines = plan.why(op).lines
    except ShardvizError as error:
        return {**shown, "error": str(error)}
    return {
        "value": op.name,
        "lines": list(lines),
        "rule": op.rule,
        "op": op.op,
        "stack": list(op.stack or filter(None, [op.source])),
        "error": "",
    }


class _Table:
    """A list of distinct items, each found by its number."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def add(self, key: Hashable, item: Any = None) -> int:
        """The number of the item with this key, which is added where it is new; by default the
        item is the key.
        """
        number = self._numbers.setdefault(key, len(self.items))
        if number == len(self.items):
            self.items.append(key if item is None else item)
        return number


def _axes(plan: Plan) -> list[dict[str, Any]]:
    groups, mesh = axis_groups(plan.mesh), plan.mesh
    return [
        {"name": name, "size": size, "colour": LIGHT.groups[groups[name]]}
        for name, size in mesh.shape.items()
    ]


def _words(plan: Plan) -> str:
    split = sum(1 for op in plan.ops if op.spec.axes)
    parts = [f"{plural(len(plan.ops), 'value')}, {split:,} split"]
    if plan.collectives:
        parts.append(f"{plural(len(plan.collectives), 'collective')} estimated")
    return " · ".join(parts)


def _diagnosis(found: Diagnosis | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "op": found.op,
        "source": found.source,
        "problem": found.problem,
        "operands": list(found.operands),
        "choices": [_choice(c) for c in found.choices],
    }


def _choice(choice: Choice) -> dict[str, str]:
    cost, words = choice_words(choice)
    return {"spec": str(choice.out_sharding), "cost": cost, "words": words}


def _values(plan: Plan, strings: _Table) -> dict[str, Any]:
    """The columns, and the tables that their numbers index."""
    specs, types, scopes, origins = _Table(), _Table(), _Table(), _Table()
    index = {op.name: i for i, op in enumerate(plan.ops)}
    columns: dict[str, list[int]] = {
        name: []
        for name in ("name", "kind", "opcode", "type", "spec", "source", "scope", "region",
                     "origins", "flags")
    }  # fmt: skip
    for op, path in zip(plan.ops, call_paths(plan.ops), strict=True):
        row = {
            "name": strings.add(op.name),
            "kind": KINDS.index(op.kind),
            "opcode": strings.add(op.opcode),
            "type": types.add((op.dtype, op.shape), [short_type(op.dtype, op.shape), *op.shape]),
            "spec": specs.add((op.spec, len(op.shape)), _spec(op.spec, op.shape, plan)),
            "source": strings.add(op.source),
            "scope": scopes.add(path),
            "region": strings.add(op.region),
            "origins": origins.add(_origins(op, strings)),
            "flags": BACKWARD * op.backward + NOT_COVERED * (not op.covered),
        }
        for name, number in row.items():
            columns[name].append(number)
    return {
        "columns": columns,
        "specs": specs.items,
        "types": types.items,
        "scopes": scopes.items,
        "origins": origins.items,
        "operands": [[index[n] for n in op.operands if n in index] for op in plan.ops],
        "trips": {i: op.trips for i, op in enumerate(plan.ops) if op.trips not in (None, 1)},
        "valueNotes": {i: strings.add(op.remarks) for i, op in enumerate(plan.ops) if op.remarks},
    }


def _spec(spec: Spec, shape: Sequence[int], plan: Plan) -> list[Any]:
    """The text, the axes of each dimension as [number in the mesh, parts, text], the unreduced."""
    names, sizes = plan.mesh.axis_names, plan.mesh.shape
    dims = []
    for dim in range(len(shape)):
        axes = []
        for axis in spec.dims[dim] if dim < len(spec.dims) else ():
            parent, parts = split_axis(axis, sizes)
            axes.append([names.index(parent) if parent in names else NOWHERE, parts, axis])
        dims.append(axes)
    return [str(spec), dims, sorted(spec.unreduced)]


def _origins(op: PlannedOp, strings: _Table) -> tuple[tuple[str, int, int, int], ...]:
    return tuple(
        (axis, ORIGINS.index(o.kind), strings.add(o.name), strings.add(o.source))
        for axis, o in op.origins.items()
    )


def _steps(plan: Plan) -> dict[str, Any]:
    """Every step as [number, op, moves], a move as [axis, from, to]: values and axes by number.

    `to` is one number where the axis reached one value, and a list where it reached several.
    """
    axes, index = _Table(), {op.name: i for i, op in enumerate(plan.ops)}
    found = sorted({s for op in plan.ops for s in op.steps}, key=_when)
    steps = [
        [number, index.get(op, NOWHERE), [_move(s, index, axes) for s in some]]
        for (number, op), some in groupby(found, key=lambda s: (s.number, s.op))
    ]
    return {"steps": steps, "stepAxes": axes.items}


def _when(step: Step) -> tuple[int, str, str]:
    return step.number, step.op, step.axis


def _move(step: Step, index: dict[str, int], axes: _Table) -> list[Any]:
    to = [index[name] for name in step.to if name in index]
    return [axes.add(step.axis), index.get(step.origin, NOWHERE), to[0] if len(to) == 1 else to]


def _moves(plan: Plan, strings: _Table) -> dict[int, list[list[Any]]]:
    """The estimated collectives by the number of the value that causes them, each as
    [kind, axes, bytes in words, trips, cause].
    """
    index = {op.name: i for i, op in enumerate(plan.ops)}
    moves: dict[int, list[list[Any]]] = {}
    for one in plan.collectives:
        moves.setdefault(index.get(one.value, NOWHERE), []).append(_collective(one, strings))
    return moves


def _collective(one: Collective, strings: _Table) -> list[Any]:
    size = strings.add(bytes_text(one.bytes_per_device))
    axes = [strings.add(axis) for axis in one.mesh_axes]
    return [strings.add(one.kind), axes, size, one.trips or 0, strings.add(one.cause)]


def _explanations(plan: Plan, strings: _Table) -> dict[str, dict[str, Any]]:
    """The explanation of every value, its strings by number: values share most sentences."""
    found = {}
    for op in plan.ops:
        explanation = explanation_view(plan, op.name)
        found[op.name] = {
            name: [*map(strings.add, part)] if isinstance(part, list) else strings.add(part)
            for name, part in explanation.items()
        }
    return found


MAX_ROWS = 300
MOST_ENGINES = 64
RESTARTING = "…"
_EMPTY: dict[str, Any] = {
    "state": "none", "revision": -1, "stage": "", "started": 0, "times": [], "checks": [],
    "verdict": "", "error": None,
}  # fmt: skip


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


def engines_view(
    group: Any, job: Job | None, report: Report | None, restarting: str = ""
) -> dict[str, Any]:
    """A line per engine, while it runs and afterwards; empty where no engines are the target.

    Args:
        group: the processes (`sv.hosts`) that are the target; None where they do not run.
        job: the last one that was started.
        report: the last report.
        restarting: what is known of a restart: `"…"` while it goes on, or why it failed.
    """
    running = job is not None and not job.done
    if running and job is not None and group is not None and job.target == group.name:
        lines = [_running_engine(process, job) for process in group.processes]
    elif report is not None and (did := report.processes):
        lines = [_engine(process) for process in did]
        if group is not None and group.problem:  # none of them is there any more
            lines = [_lost(line) if line["state"] == "done" else line for line in lines]
    elif group is not None:
        lines = [{**_whose(p), "state": "ready", "words": ""} for p in group.processes]
        lines = [_lost(line) for line in lines] if group.problem else lines
    else:
        return {}
    return {
        "lines": lines[:MOST_ENGINES],
        "more": max(0, len(lines) - MOST_ENGINES),
        "restart": group is not None and not running and restarting != RESTARTING,
        "restarting": restarting == RESTARTING,
        "problem": "" if restarting == RESTARTING else restarting or getattr(group, "problem", ""),
    }


def _whose(process: Any) -> dict[str, Any]:
    return {"rank": process.rank, "where": f"pid {process.pid} on {process.host}"}


def _lost(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "state": "lost", "words": ""}


def _running_engine(process: Any, job: Job) -> dict[str, Any]:
    stage, since = job.engines.get(process.rank, ("waits", job.progress.started))
    return {**_whose(process), "state": "running", "words": stage, "since": since}


def _engine(process: Any) -> dict[str, Any]:
    """What a process did: its stages with their times, or why it ended."""
    if process.error is not None:
        words = f"{process.error.stage}: {process.error.message}"
        return {**_whose(process), "state": "failed", "words": words}
    times = [f"{stage} {seconds_text(took)}" for stage, took in process.seconds.items()]
    failed = sum(1 for check in process.checks if check.ok is False)
    times += [f"{failed} of {plural(len(process.checks), 'check')} failed"] if failed else []
    return {**_whose(process), "state": "failed" if failed else "done", "words": ", ".join(times)}


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
