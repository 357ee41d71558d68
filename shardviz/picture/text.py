"""to_text(value): what any value looks like in letters, for terminals, tests and screen readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, listed, plural, seconds_text, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec, format_names
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.parse import check_size
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.request import Request
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.rules import Rules
from shardviz.core.program.comparison import Comparison
from shardviz.core.program.effects import Effects, Observed
from shardviz.core.program.explanation import Explanation
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_difference import PlanDiff
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.core.program.roofline import Roofline
from shardviz.core.program.stages import Stages
from shardviz.core.program.target import Target, Targets
from shardviz.picture.layout import layout_text
from shardviz.picture.mesh import mesh_text
from shardviz.picture.picture import Picture
from shardviz.picture.plan import explanation_text, plan_text
from shardviz.picture.report import MARKS, report_notes, stage_seconds
from shardviz.picture.stages import plan_difference_text, stages_text
from shardviz.picture.tables import wrapped
from shardviz.picture.targets import target_text, targets_text
from shardviz.picture.topology import roofline_text, topology_text

LEAST_WIDTH = 20


def to_text(value: Any, width: int = 80) -> str:
    """A value as text, in lines of at most `width` letters where its words allow it.

    Args:
        value: anything that `draw` takes.
        width: letters a line, 20 or more.

    Raises:
        ShardvizError: for a value without a picture.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> print(to_text(make_mesh(data=2, model=4)))
    mesh data=2, model=4 · 8 devices · 1 host
             model 0   model 1   model 2   model 3
           ┌─────────┬─────────┬─────────┬─────────┐
    data 0 │ 0       │ 1       │ 2       │ 3       │
    data 1 │ 4       │ 5       │ 6       │ 7       │
           └─────────┴─────────┴─────────┴─────────┘
    """
    room = max(check_size(width, "The width of text", ShardvizError), LEAST_WIDTH)
    if hasattr(value, "_text_"):
        return _paragraphs(value._text_(), room)
    for kind in type(value).__mro__:
        if kind in _WRITERS:
            return _WRITERS[kind](value, room)
    names = listed([k.__name__ for k in _WRITERS], limit=30).replace("'", "")
    raise ShardvizError(
        f"There is no text for this {type(value).__name__}; got {shown(value)}. There is one for"
        f" {names}."
    )


def _paragraphs(text: str, width: int) -> str:
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += wrapped(line, width, indent + "  ") or [""]
    return "\n".join(lines)


def _spec(spec: Spec, width: int) -> str:
    dims = [
        f"dim {d} → {', '.join(axes)}" if axes
        else f"dim {d} {'left to the compiler' if d in spec.unconstrained else 'whole'}"
        for d, axes in enumerate(spec.dims)
    ]  # fmt: skip
    marks = [
        f"{mark} over {', '.join(sorted(axes))}"
        for mark, axes in (("unreduced", spec.unreduced), ("reduced", spec.reduced))
        if axes
    ]
    said = " · ".join([*dims, *marks]) or "every dimension whole"
    return _paragraphs(f"{spec}\n{said}", width)


def _array(array: ArraySpec, width: int) -> str:
    parts = [f"{array.name} {array.short}", bytes_text(array.bytes)]
    if array.logical is not None:
        parts.append(f"logical axes {format_names(array.logical)}")
    if array.spec is not None:
        parts.append(f"asks for {array.spec}")
    return _paragraphs(" · ".join(parts), width)


def _rules(rules: Rules, width: int) -> str:
    digits = len(str(len(rules)))
    lines = [f"{i + 1:>{digits}}  {rule}" for i, rule in enumerate(rules)]
    return "\n".join([plural(len(rules), "rule"), *lines])


def _resolution(found: Resolution, width: int) -> str:
    problems = [f"✗ {p}" for p in found.problems]
    return _paragraphs("\n".join([found.explain(), *problems]), width)


def _audit(found: Audit, width: int) -> str:
    return _paragraphs(found.explain(), width)


def _mesh_context(context: MeshContext, width: int) -> str:
    rows = [f"{api}: {mesh or '–'}" for api, mesh in context.table().items()]
    return _paragraphs("\n".join([context.explain(), *rows]), width)


def _effects(found: Effects | Observed, width: int) -> str:
    return _paragraphs(found.explain(), width)


def _request(asked: Request, width: int) -> str:
    if asked.layout is None:
        parts = [_array(asked.array, width), _paragraphs(f"✗ {asked.problem}", width)]
    else:
        parts = [layout_text(asked.layout, width, asked.array.name, asked.array.logical)]
    if asked.spec_wins and asked.resolution is not None:
        said = f"The spec was given outright and wins over the rules ({asked.resolution.spec})."
        parts.append(_paragraphs(said, width))
    elif asked.resolution is not None:
        parts.append(_paragraphs(asked.resolution.explain(), width))
    return "\n".join(parts)


def _program(program: Program, width: int) -> str:
    head = f"{program.name}: {plural(len(program.requests), 'array')}"
    return "\n".join([head, mesh_text(program.mesh, width), *_array_rows(program.requests, width)])


def _array_rows(asked: Sequence[Request], width: int) -> list[str]:
    rows = []
    for one in asked:
        if one.layout is None:
            rows.append((one.array.name, one.array.short, f"✗ {one.problem}"))
        else:
            size = f"{bytes_text(one.layout.bytes_per_device)} a device"
            copies = one.layout.replicas
            each = f", {plural(copies, 'replica')}" if copies > 1 else ""
            rows.append((one.array.name, one.array.short, f"{one.spec}  {size}{each}"))
    names = max([len(r[0]) for r in rows], default=0)
    types = max([len(r[1]) for r in rows], default=0)
    indent = " " * min(names + types + 4, width // 2)
    lines = []
    for name, short, said in rows:
        lines += wrapped(f"{name:<{names}}  {short:<{types}}  {said}", width, indent)
    return lines


def _report(report: Report, width: int) -> str:
    state = "failed" if report.error else "ok" if report.ok else "a check failed"
    stale = "; stale: the program was edited since" if report.stale else ""
    lines = [f"{report.program} on {report.target}: {state}{stale}"]
    if report.error:
        lines.append(f"✗ {report.error}")
    stages = [f"{name} {seconds_text(s)}" for name, s in stage_seconds(report)]
    if report.cache_hit:
        stages.append("from the cache")
    if len(report.runs_s) > 1:
        stages.append(f"median of {len(report.runs_s)} runs")
    if stages:
        lines.append(" · ".join(stages))
    lines += report_notes(report)
    if report.collectives is not None:
        lines += _collectives(report.collectives)
    lines += [f"{MARKS[c.ok]} {c.name}: {c.detail}" for c in report.checks]
    return _paragraphs("\n".join(lines), width)


def _collectives(collectives: tuple[Collective, ...]) -> list[str]:
    if not collectives:
        return ["no collectives"]
    lines = [f"{plural(len(collectives), 'collective')}:"]
    for one in sorted(collectives, key=lambda c: -c.bytes_in_all):
        over = f" over {' × '.join(one.mesh_axes)}" if one.mesh_axes else ""
        where = "".join(f" · {v}" for v in (one.source, one.op) if v)
        lines.append(f"  {one.amount} {one.kind}{over}{where}")
    return lines


def _picture(picture: Picture, width: int) -> str:
    return _paragraphs(picture.alt, width)


_WRITERS: dict[type, Callable[[Any, int], str]] = {
    MeshSpec: mesh_text,
    Layout: layout_text,
    Spec: _spec,
    ArraySpec: _array,
    Rules: _rules,
    Resolution: _resolution,
    Request: _request,
    Audit: _audit,
    MeshContext: _mesh_context,
    Effects: _effects,
    Observed: _effects,
    Program: _program,
    Report: _report,
    Plan: plan_text,
    Explanation: explanation_text,
    PlanDiff: plan_difference_text,
    Comparison: stages_text,
    Stages: stages_text,
    Topology: topology_text,
    Roofline: roofline_text,
    Target: target_text,
    Targets: targets_text,
    Picture: _picture,
}
