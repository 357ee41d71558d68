"""The list of problems, which every view of the Explorer shows, as plain data.

Each is said once: what fails, then what loses something, most bytes first, then what is
worth knowing. Wasted bytes are those that a device holds of an array beyond an even
share, and an array counts for one problem only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardviz.advise.words import problems as wording
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.fit import Fit
from shardviz.axis_rules.requests import Request, request
from shardviz.axis_rules.rule_uses import Idle, RuleUse, rule_summary
from shardviz.axis_rules.rules import Rule
from shardviz.axis_rules.verdicts import BROKEN
from shardviz.axis_rules.words.trees import difference_lines
from shardviz.base.format import bytes_text, plural
from shardviz.compiled.comparison import total_bytes
from shardviz.compiled.panel.report_view import was_cancelled
from shardviz.compiled.words import stages
from shardviz.explorer.document import Document
from shardviz.explorer.planner import StageResults
from shardviz.explorer.session_view import filled
from shardviz.explorer.targets import (
    axes_text,
    fitting_mesh,
    target_title,
    topology_of,
)
from shardviz.explorer.words import explorer

FAILS, LOSES, KNOW = "fails", "loses", "know"
_ORDER = (FAILS, LOSES, KNOW)
MOST_ROWS = 60
MOST_IDLE = 6  # rules that are named; the others are counted
#: Less than this part of what a device holds is no loss that anybody would mend.
SMALL = 0.01


@dataclass(frozen=True)
class ListedProblem:
    """Something that fails, loses something, or is worth knowing.

    Attributes:
        code: what it is.
        severity: `"fails"`, `"loses"` or `"know"`.
        text: the sentence.
        at: the place in a few words, such as `w.embed`.
        place: where the page goes to for it; `Place` in `static/messages.d.ts`.
        bytes: what it wastes on each device.
        mends: whether that place has remedies.
        offer: what the mesh becomes with one click, or `""`.

    >>> ListedProblem("no layout", "fails", "w cannot be laid out.").bytes
    0
    """

    code: str
    severity: str
    text: str
    at: str = ""
    place: Mapping[str, Any] = field(default_factory=dict)
    bytes: int = 0
    mends: bool = False
    offer: str = ""


def problems_view(
    document: Document,
    audit: Audit,
    results: StageResults,
    of_arrays: Iterable[ListedProblem] | None = None,
) -> dict[str, Any]:
    """All problems, those that fail first, and how much is lost.

    Args:
        document: what is edited.
        audit: of its model, or of its arrays.
        results: the plan and the report; those of another program say nothing here.
        of_arrays: what `array_problems` found, where that is known.
    """
    found = list(array_problems(document, audit) if of_arrays is None else of_arrays)
    found += result_problems(document, audit, results)
    lost = sum(one.bytes for one in found if one.severity == LOSES)
    found.sort(key=lambda one: (_ORDER.index(one.severity), -one.bytes))
    rows = []
    for one in found[:MOST_ROWS]:
        row = {"code": one.code, "severity": one.severity, "text": one.text}
        more = filled(at=one.at, mends=one.mends, offer=one.offer)
        rows.append({**row, "place": dict(one.place), **more})
    view = {"revision": document.revision, "rows": rows}
    view["counts"] = [sum(one.severity == kind for one in found) for kind in _ORDER]
    return {**view, "lost": bytes_text(lost) if lost else ""}


def array_problems(document: Document, audit: Audit) -> Iterator[ListedProblem]:
    """The problems of arrays and rules, which neither a plan nor a report changes."""
    there = _Places(document, audit)
    yield from _unlaid(audit, there)
    claimed: set[str] = set()
    yield from _misspelt(document, audit, there, claimed)
    yield from _moments(audit, there, claimed)
    yield from _replicated(audit, there, claimed)
    yield from _unmatched(audit, there)
    yield from _idle(document, audit, there)


def result_problems(
    document: Document, audit: Audit, results: StageResults
) -> Iterator[ListedProblem]:
    """The problems of the target, the plan, and the report."""
    yield from _target(document, audit, results)
    yield from _planned(document, results)
    yield from _reported(document, results)


class _Places:
    """Where the page goes to for an array or one of its dimensions."""

    def __init__(self, document: Document, audit: Audit):
        self.rows = {row.path: row for row in audit.rows}
        self._arrays = {one.name: n for n, one in enumerate(document.arrays)}
        self._leaves: dict[str, int] = {}
        if document.model is not None:
            leaves = document.model.arrays
            self._leaves = {one.name: n for n, one in enumerate(leaves)}

    def of(self, path: str, dim: int | None = None) -> dict[str, Any]:
        """The fields `at`, `place` and `mends` of a ListedProblem about an array."""
        row = self.rows[path]
        where: dict[str, Any] = {"view": "Layout"}
        if path in self._arrays:
            where["array"] = self._arrays[path]
        else:
            where["leaf"] = self._leaves[path]
        # Only what rules decide can be mended there.
        if dim is None or row.array.logical is None or row.spec_wins:
            return {"at": path, "place": where}
        at = wording.dimension(path, row.array.logical[dim], dim)
        where.update(view="Rules", dim=dim)
        return {"at": at, "place": where, "mends": True}


# --- arrays ---------------------------------------------------------------------------


def _unlaid(audit: Audit, there: _Places) -> Iterator[ListedProblem]:
    """The arrays that cannot be laid out; those of one reason together."""
    alike: dict[str, list[str]] = {}
    for path, why in audit.problems.items():
        alike.setdefault(str(why), []).append(path)
    for why, paths in alike.items():
        where = there.of(paths[0], _failing_dim(there.rows[paths[0]]))
        yield ListedProblem("no layout", FAILS, wording.no_layout(paths, why), **where)


def _failing_dim(row: Request) -> int | None:
    """The dimension whose rule decides what cannot be; None where no rule does."""
    found = row.resolution
    if found is None:
        return None
    for dim, winner in enumerate(found.winners):
        if winner is not None and found.verdict(dim, winner).outcome in BROKEN:
            return dim
    return None


def _misspelt(
    document: Document, audit: Audit, there: _Places, claimed: set[str]
) -> Iterator[ListedProblem]:
    """Logical names that nearly match a rule's, and what that rule would save."""
    for name, near, paths in audit.unmatched:
        if near is None:
            continue
        lost, saves, size = [], {}, 0
        for path in paths:
            row = there.rows[path]
            # Many arrays are alike, and to lay one out again takes a while.
            key = (row.array.logical, row.shape, row.dtype)
            if key not in saves:
                saves[key] = _saves(document, row, name, near)
            if saves[key] and path not in claimed:
                lost.append(path)
                size += row.wasted_bytes
        claimed.update(lost)
        first = lost[0] if lost else paths[0]
        names = there.rows[first].array.logical or ()
        text = wording.unmatched(name, near, paths, size)
        where = there.of(first, names.index(name))
        yield ListedProblem(
            "misspelt", LOSES if lost else KNOW, text, bytes=size, **where
        )


def _saves(document: Document, row: Request, name: str, near: str) -> bool:
    """Whether an array takes less of a device where a name is read as another."""
    names = tuple(near if n == name else n for n in row.array.logical or ())
    array = row.array.replace(logical=names)
    program = document.program
    again = request(array, program.mesh, program.rules, program.dialect)
    now = row.bytes_per_device
    return now is not None and (again.bytes_per_device or now) < now


def _moments(
    audit: Audit, there: _Places, claimed: set[str]
) -> Iterator[ListedProblem]:
    """The moments that are held otherwise than their parameters."""
    alike: dict[Any, list[Any]] = {}
    for one in audit.differences:
        key = (one.kind, one.role, str(one.row.spec), str(one.parameter.spec))
        alike.setdefault(key, []).append(one)
    for (kind, *_), members in alike.items():
        size = 0
        for one in members:
            if kind == "lost" and one.path not in claimed:
                claimed.add(one.path)
                size += one.row.wasted_bytes
        # A moment of more bits is mostly meant so.
        severity = KNOW if kind in ("dtype", "few names") else LOSES
        where = there.of(members[0].path, _unsplit_dim(members[0].row))
        text = " ".join(f"{line}." for line in difference_lines(members))
        yield ListedProblem(f"moment: {kind}", severity, text, bytes=size, **where)


def _replicated(
    audit: Audit, there: _Places, claimed: set[str]
) -> Iterator[ListedProblem]:
    """The arrays with copies, by the axes of the mesh that are free to split them."""
    groups: dict[tuple[bool, tuple[str, ...]], list[tuple[int, Request]]] = {}
    unnamed = {row.path for row in audit.unnamed}
    split = {name for name, size in audit.mesh.shape.items() if size > 1}
    for row in audit.rows:
        wasted = row.wasted_bytes
        if not wasted or row.spec is None or row.path in claimed:
            continue
        free = split - set(row.spec.axes)
        axes = tuple(name for name in audit.mesh.axis_names if name in free)
        groups.setdefault((row.path in unnamed, axes), []).append((wasted, row))
    for (lacks_names, axes), members in groups.items():
        members.sort(key=lambda pair: -pair[0])
        size, (_, largest) = sum(wasted for wasted, _ in members), members[0]
        small = size < SMALL * audit.bytes_per_device
        paths = [row.path for _, row in members]
        code, text = "replicated", wording.not_split_over(axes, paths, size)
        if lacks_names:
            code, text = "no names", wording.no_names(paths, size)
        where = there.of(largest.path, _unsplit_dim(largest))
        severity = KNOW if small else LOSES
        yield ListedProblem(code, severity, text, bytes=size, **where)


def _unsplit_dim(row: Request) -> int | None:
    """The largest dimension that has a name and is not split; None where there is none."""
    if row.array.logical is None or row.layout is None:
        return None
    dims = []
    for dim, name in enumerate(row.array.logical):
        if isinstance(name, str) and row.layout.block_counts[dim] == 1:
            dims.append(dim)
    return max(dims, key=lambda dim: row.shape[dim], default=None)


def _unmatched(audit: Audit, there: _Places) -> Iterator[ListedProblem]:
    """The logical names that no rule knows and that are close to none, in one."""
    names = [one for one in audit.unmatched if one.nearest is None]
    if not names:
        return
    first = names[0]
    logical = there.rows[first.arrays[0]].array.logical or ()
    where = there.of(first.arrays[0], logical.index(first.name))
    text = wording.unmatched_others([one.name for one in names])
    yield ListedProblem("unmatched", KNOW, text, **{**where, "mends": False})


# --- rules ----------------------------------------------------------------------------


def _idle(document: Document, audit: Audit, there: _Places) -> Iterator[ListedProblem]:
    """The rules that never decide."""
    uses = rule_summary(audit.rows, document.rules)
    absent, named = 0, []
    for use in uses:
        if use.never is None:
            continue
        if use.never.code == "no such name":
            absent += 1
        else:
            named.append((use, use.never))
    rules = {"view": "Rules"}
    for use, never in named[:MOST_IDLE]:
        where = {"place": rules, **_where_idle(use, never, there)}
        yield ListedProblem("idle rule", KNOW, wording.idle(use), **where)
    rest = len(named) - MOST_IDLE
    if rest > 0:
        text = wording.idle_others(rest)
        yield ListedProblem("idle rules", KNOW, text, place=rules)
    if absent:
        text = wording.no_array(absent)
        yield ListedProblem("no array", KNOW, text, place=rules)


def _where_idle(use: RuleUse, never: Idle, there: _Places) -> dict[str, Any]:
    """The first dimension that the rule is for."""
    if never.code != "loses" or not isinstance(use.rule, Rule):
        return {}
    path = use.lost[0][0]
    names = there.rows[path].array.logical or ()
    return {**there.of(path, names.index(use.rule.logical)), "mends": False}


# --- the target, the plan, the report -------------------------------------------------


def _target(
    document: Document, audit: Audit, results: StageResults
) -> Iterator[ListedProblem]:
    """A target of another size than the mesh, or with too little memory."""
    mesh, target = document.mesh, document.target
    fitting = fitting_mesh(mesh, target)
    if fitting is not None and fitting.size != mesh.size:
        note = explorer.other_size(target_title(target), fitting.size, mesh.size)
        offer = axes_text(fitting.shape)
        yield ListedProblem("other size", FAILS, note, offer=offer)
    elif fitting is not None:
        note = explorer.OTHER_HOSTS.format(plural(len(mesh.processes), "host"), target)
        offer = plural(len(fitting.processes), "host")
        yield ListedProblem("other hosts", LOSES, note, offer=offer)
    report, topology = (
        results.report_of(document.revision, document.target),
        topology_of(target),
    )
    place = {"view": "Program", "tab": "Memory"}
    fit = None
    if report is not None and report.fit is not None:
        fit = report.fit
    elif topology is not None:
        capacity, left = topology.chip.device_bytes, audit.uncounted
        needed, title = audit.bytes_per_device, topology.title
        fit = Fit(needed, capacity, title, arrays_only=True, uncounted=left)
        place = {"view": "Model"}
    if fit is not None and fit.ok is False:
        yield ListedProblem("does not fit", FAILS, str(fit), place=place)


def _planned(document: Document, results: StageResults) -> Iterator[ListedProblem]:
    """Why there is no plan, and the constraints in the model that do nothing."""
    plan = results.plan_of(document.revision)
    if plan is None:
        return
    place = {"view": "Program", "tab": "Values"}
    # Arrays that cannot be laid out are the reason then, and have been said.
    if plan.error is not None and not document.program.problems:
        text = wording.STOPPED.format(wording.NO_PLAN, plan.error.message)
        yield ListedProblem("no plan", FAILS, text, at=plan.error.source, place=place)
    alike: dict[str, list[Any]] = {}
    for call in plan.constraints:
        if not call.acts:
            alike.setdefault(call.effect, []).append(call)
    for effect, calls in alike.items():
        text = wording.constraints(effect, calls)
        yield ListedProblem("constraint", LOSES, text, place={"view": "Model"})


def _reported(document: Document, results: StageResults) -> Iterator[ListedProblem]:
    """What a compile or a run found."""
    report, plan = results.report_of(document.revision, document.target), results.plan
    if report is None:
        return
    error = report.error
    # What cannot be planned is not compiled, for the same reason.
    planned = plan is None or plan.error is None or results.mismatched
    if error is not None and planned and not was_cancelled(report):
        if not document.program.problems:
            text = wording.STOPPED.format(stages.stopped_at(error.stage), error.message)
            place = {"view": "Program", "tab": "Checks"}
            yield ListedProblem("stopped", FAILS, text, at=error.source, place=place)
    for check in report.checks:
        if check.ok is False:
            text = wording.CHECK.format(check.name, check.detail)
            place = {"view": "Program", "tab": "Checks"}
            yield ListedProblem("check", FAILS, text, place=place)
    order = getattr(report.roofline, "order", None)
    if order is not None:
        yield ListedProblem(
            "device order", LOSES, str(order), place={"view": "Program"}
        )
    yield from _rematerialised(results.collectives())


def _rematerialised(known: Iterable[Any]) -> Iterator[ListedProblem]:
    """The collectives of full rematerialisations, of the last stage that is known."""
    _, partitioned, compiled = known
    stage, some = (1, partitioned) if compiled is None else (2, compiled)
    numbers = [n for n, one in enumerate(some or ()) if one.rematerialises]
    if not numbers:
        return
    text = wording.rematerialised(
        len(numbers), total_bytes(some[number] for number in numbers)
    )
    place = {"view": "Program", "collective": f"{stage}:{numbers[0]}"}
    yield ListedProblem("rematerialised", LOSES, text, place=place)
