"""Converts the Explorer's list of problems to plain data.

Failures come first, then losses and then other facts, both with most bytes first.
`advise/problems.py` finds the problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardviz.advise.problems import (
    KNOW,
    LOSES,
    SEVERITIES,
    ArrayPlace,
    Problem,
    Results,
    Target,
    array_problems,
    result_problems,
)
from shardviz.advise.words.problems import copies, dimension
from shardviz.axis_rules.audit import Audit
from shardviz.base.format import plural
from shardviz.base.typing import JsonDict
from shardviz.explorer.document import Document
from shardviz.explorer.planner import StageResults
from shardviz.explorer.session_view import filled
from shardviz.explorer.targets import (
    axes_text,
    fitting_mesh,
    target_title,
    topology_of,
)

MOST_ROWS = 60


def problems_view(
    document: Document,
    audit: Audit,
    results: StageResults,
    of_arrays: Iterable[Problem] | None = None,
) -> JsonDict:
    """Returns all problems, worst first, and the sums of losses and of other facts.

    Args:
        document: the edited document.
        audit: the audit of the document's model or arrays.
        results: the plan and the report; each is ignored if it belongs to another
            program.
        of_arrays: the result of `of_document`; None to compute it here.
    """
    if of_arrays is None:
        of_arrays = of_document(document, audit)
    problems = [*of_arrays, *of_results(document, audit, results)]
    problems.sort(
        key=lambda problem: (SEVERITIES.index(problem.severity), -problem.bytes)
    )
    numbers = _Numbers(document)
    severities = [problem.severity for problem in problems]
    return {
        "revision": document.revision,
        "target": document.target,
        "rows": [numbers.row(problem) for problem in problems[:MOST_ROWS]],
        "counts": [severities.count(severity) for severity in SEVERITIES],
        "loses": _sum(problems, LOSES, "extra copies", "warning"),
        "know": _sum(problems, KNOW, "copies", "note"),
    }


def _sum(problems: Iterable[Problem], severity: str, kind: str, noun: str) -> str:
    """Returns the copies of all problems of a severity, or else their number."""
    of_severity = [problem for problem in problems if problem.severity == severity]
    size = sum(problem.bytes for problem in of_severity)
    if size:
        arrays = sum(len(problem.copied) for problem in of_severity if problem.bytes)
        return copies(size, arrays, kind)
    return plural(len(of_severity), noun) if of_severity else ""


def of_document(document: Document, audit: Audit) -> Iterator[Problem]:
    """Finds the problems of arrays and rules, which no plan or report affects."""
    return array_problems(audit, document.program)


def of_results(
    document: Document, audit: Audit, results: StageResults
) -> Iterator[Problem]:
    """Finds the problems of the target, the plan and the report."""
    name = document.target
    fitting = fitting_mesh(document.mesh, name)
    axes = "" if fitting is None else axes_text(fitting.shape)
    target = Target(name, target_title(name), topology_of(name), fitting, axes)
    latest = results.plan
    no_plan = latest is not None and latest.error is not None
    _, partitioned, compiled = results.collectives()
    return result_problems(
        audit,
        document.program,
        target,
        Results(
            results.plan_of(document.revision),
            results.report_of(document.revision, name),
            no_plan and not results.mismatched,
            partitioned,
            compiled,
        ),
    )


class _Numbers:
    """The numbers by which the page identifies arrays and model leaves."""

    def __init__(self, document: Document) -> None:
        self._arrays = {array.name: n for n, array in enumerate(document.arrays)}
        self._leaves: dict[str, int] = {}
        if document.model is not None:
            leaves = document.model.arrays
            self._leaves = {array.name: n for n, array in enumerate(leaves)}

    def row(self, problem: Problem) -> JsonDict:
        """Returns a problem for the page: `Problem` in `static/problems.js`."""
        place, label, has_remedies = problem.place, "", False
        where: JsonDict = {}
        if isinstance(place, ArrayPlace):
            where, label = self._array(place), place.path
            has_remedies = place.has_remedies
            if place.dim is not None:
                label = dimension(place.path, place.name, place.dim)
        elif place is not None:
            label = place.source
            where = {"view": place.view}
            where |= filled(tab=place.tab, collective=place.collective)
        return {
            "code": problem.code,
            "severity": problem.severity,
            "text": str(problem),
            "place": where,
            **filled(at=label, mends=has_remedies, offer=problem.offer),
        }

    def _array(self, place: ArrayPlace) -> JsonDict:
        """Returns an array's place for the page: `Place` in `static/messages.d.ts`."""
        where: JsonDict = {"view": "Layout" if place.dim is None else "Rules"}
        if place.path in self._arrays:
            where["array"] = self._arrays[place.path]
        else:
            where["leaf"] = self._leaves[place.path]
        if place.dim is not None:
            where["dim"] = place.dim
        return where
