"""Problems of an Explorer session: failures, extra copies and other notable facts.

Each kind of problem has a class, a function below that finds it, and a sentence in
`words/problems.py`. An array's copies are its bytes on a device beyond an even share of
the array; they are a loss only if a rule should have split the array. The copies of an
array count for one problem only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.fit import Fit
from shardviz.axis_rules.optimizer_differences import Difference
from shardviz.axis_rules.requests import Request, request
from shardviz.axis_rules.rule_uses import Idle, RuleUse, rule_summary
from shardviz.axis_rules.rules import Rule, Rules
from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.display import Fact
from shardviz.base.format import plural
from shardviz.base.layout import layout_errors
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.checks import Check
from shardviz.compiled.orders import DeviceOrder
from shardviz.compiled.report import Report
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan
from shardviz.programs.constraints import Constraint
from shardviz.programs.failure import Failure
from shardviz.programs.notes import OperandNote, StraddledBlocks
from shardviz.programs.program import Program

FAILS, LOSES, KNOW = "fails", "loses", "know"
#: Worst first.
SEVERITIES = (FAILS, LOSES, KNOW)
#: The most idle rules to name; the others are only counted.
MOST_IDLE = 6
#: A loss below this fraction of a device's bytes is not worth an edit.
SMALL = 0.01


# --- places ---------------------------------------------------------------------------


class ArrayPlace(NamedTuple):
    """An array, or one of its dimensions if rules decide the split.

    Attributes:
        path: the array's path.
        dim: the dimension; None for the whole array.
        name: the logical name of the dimension, if it has one.
        has_remedies: whether the page offers remedies for the dimension.
    """

    path: str
    dim: int | None = None
    name: object = None
    has_remedies: bool = False


class ViewPlace(NamedTuple):
    """A view of the Explorer.

    Attributes:
        view: `"Rules"`, `"Model"` or `"Program"`.
        tab: a tab of the Program view, or `""`.
        collective: the stage and index of a collective in the Program view, such as
            `"2:0"`.
        source: the source line of the problem.
    """

    view: str
    tab: str = ""
    collective: str = ""
    source: str = ""


Place = ArrayPlace | ViewPlace


# --- the kinds of problems ------------------------------------------------------------


@dataclass(frozen=True)
class Problem(Fact):
    """A failure, a loss or a notable fact.

    Each subclass sets `kind` and `usual_severity`, and overrides properties as needed.

    >>> MoreIdleRules(3).code, MoreIdleRules(3).severity
    ('idle rules', 'know')
    """

    kind: ClassVar[str] = ""
    usual_severity: ClassVar[str] = FAILS
    view: ClassVar[ViewPlace | None] = None

    @property
    def code(self) -> str:
        """The kind of problem."""
        return self.kind

    @property
    def severity(self) -> str:
        """The severity, one of `SEVERITIES`."""
        return self.usual_severity

    @property
    def bytes(self) -> int:
        """The bytes of copies on each device."""
        return 0

    @property
    def copied(self) -> tuple[str, ...]:
        """The paths of the arrays with these copies."""
        return ()

    @property
    def place(self) -> Place | None:
        """The array or view that the problem is about; None if there is none."""
        return self.view

    @property
    def offer(self) -> str:
        """The mesh that the page offers to switch to, as text; `""` for none."""
        return ""


class ProblemOfArray(Problem):
    """A problem with a field `array`; some kinds have a field `wasted`."""

    array: ArrayPlace

    @property
    def bytes(self) -> int:
        return getattr(self, "wasted", 0)

    @property
    def place(self) -> ArrayPlace:
        return self.array


@dataclass(frozen=True)
class NoLayout(ProblemOfArray):
    """Arrays that cannot be laid out for the same reason.

    Attributes:
        paths: the arrays' paths.
        reason: why they cannot be laid out, as a sentence.
        array: the first array, with the dimension that cannot be split as requested.
    """

    kind = "no layout"
    paths: tuple[str, ...]
    reason: str
    array: ArrayPlace


@dataclass(frozen=True)
class MisspeltName(ProblemOfArray):
    """A logical name that matches no rule, but resembles a rule's name.

    Attributes:
        name, nearest: the unmatched name, and the similar name that a rule has.
        paths: paths of the arrays with the unmatched name.
        array: an array with the name, and the dimension that has the name.
        wasted: bytes of copies per device of the arrays in `copied`.
        copied: paths of the arrays that would be smaller with the rule's name.
    """

    kind = "misspelt"
    name: str
    nearest: str
    paths: tuple[str, ...]
    array: ArrayPlace
    wasted: int = 0
    copied: tuple[str, ...] = ()

    @property
    def severity(self) -> str:
        return LOSES if self.copied else KNOW


@dataclass(frozen=True)
class MomentsDiffer(ProblemOfArray):
    """Optimizer moments that differ from their parameters in the same way.

    Attributes:
        differences: one difference per moment, all of the same kind.
        array: the first moment, with a dimension that could be split.
        wasted: bytes of copies per device of the moments in `copied`.
        copied: paths of the moments that lost a split.
    """

    differences: tuple[Difference, ...]
    array: ArrayPlace
    wasted: int = 0
    copied: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        return f"moment: {self.differences[0].kind}"

    @property
    def severity(self) -> str:
        # Moments with more bits than their parameters are usually intended.
        return KNOW if self.differences[0].kind in ("dtype", "few names") else LOSES


@dataclass(frozen=True)
class Replicated(ProblemOfArray):
    """Arrays that are replicated over mesh axes that could split them.

    Attributes:
        axes: the mesh axes that could split the arrays.
        paths: the arrays' paths, most copies first.
        wasted: the bytes of copies per device.
        array: the first array, with a dimension that could be split.
        denied: the axes among them that a rule would split the arrays over.
        is_small: whether the copies are too small to matter.
    """

    kind = "replicated"
    axes: tuple[str, ...]
    paths: tuple[str, ...]
    wasted: int
    array: ArrayPlace
    denied: tuple[str, ...] = ()
    is_small: bool = False

    @property
    def copied(self) -> tuple[str, ...]:
        return self.paths

    @property
    def severity(self) -> str:
        return LOSES if self.denied and not self.is_small else KNOW


@dataclass(frozen=True)
class NoNames(Replicated):
    """Replicated arrays that no rule can split, because they have no logical names."""

    kind = "no names"


@dataclass(frozen=True)
class UnmatchedNames(ProblemOfArray):
    """Logical names that match no rule and resemble no rule's name.

    Attributes:
        names: the logical names.
        array: the first array that uses the first name.
    """

    kind = "unmatched"
    usual_severity = KNOW
    names: tuple[str, ...]
    array: ArrayPlace


@dataclass(frozen=True)
class IdleRule(Problem):
    """A rule that never decides a split.

    Attributes:
        use: how the arrays use the rule, and why it never decides.
        array: the first array in which the rule loses its axes; None if there is none.
    """

    kind = "idle rule"
    usual_severity = KNOW
    use: RuleUse
    array: ArrayPlace | None = None

    @property
    def place(self) -> Place:
        return self.array or ViewPlace("Rules")


@dataclass(frozen=True)
class MoreIdleRules(Problem):
    """More rules that never decide a split.

    Attributes:
        count: the number of rules.
    """

    kind = "idle rules"
    usual_severity = KNOW
    view = ViewPlace("Rules")
    count: int


@dataclass(frozen=True)
class RulesForNoArray(Problem):
    """Rules for logical names that no array has.

    Attributes:
        count: the number of rules.
    """

    kind = "no array"
    usual_severity = KNOW
    view = ViewPlace("Rules")
    count: int


@dataclass(frozen=True)
class OtherSize(Problem):
    """A target with more or fewer devices than the mesh.

    Attributes:
        title: the target's title.
        devices: the target's number of devices.
        mesh_size: the mesh's number of devices.
        axes: a mesh that fits the target, as text.
    """

    kind = "other size"
    title: str
    devices: int
    mesh_size: int
    axes: str

    @property
    def offer(self) -> str:
        return self.axes


@dataclass(frozen=True)
class OtherHosts(Problem):
    """A mesh whose number of hosts differs from the number of running hosts.

    Attributes:
        target: the running hosts, as text.
        mesh_hosts, target_hosts: number of hosts in the mesh, and number of running
            hosts.
    """

    kind = "other hosts"
    usual_severity = LOSES
    target: str
    mesh_hosts: int
    target_hosts: int

    @property
    def offer(self) -> str:
        return plural(self.target_hosts, "host")


@dataclass(frozen=True)
class DoesNotFit(Problem):
    """Arrays or a compiled program that need more memory than a device has.

    Attributes:
        fit: the bytes needed and available.
    """

    kind = "does not fit"
    fit: Fit

    @property
    def place(self) -> ViewPlace:
        if self.fit.arrays_only:
            return ViewPlace("Model")
        return ViewPlace("Program", "Memory")


@dataclass(frozen=True)
class NoPlan(Problem):
    """A program that cannot be planned.

    Attributes:
        error: the error of the plan.
    """

    kind = "no plan"
    error: Failure

    @property
    def place(self) -> ViewPlace:
        return ViewPlace("Program", "Values", source=self.error.source)


@dataclass(frozen=True)
class IdleConstraints(Problem):
    """Constraint calls that have no effect, for the same reason.

    Attributes:
        effect: the reason, as in `Constraint.effect`.
        calls: the calls.
    """

    kind = "constraint"
    usual_severity = LOSES
    view = ViewPlace("Model")
    effect: str
    calls: tuple[Constraint, ...]


@dataclass(frozen=True)
class UnsuitedOperands(Problem):
    """A Pallas kernel or block-scaled product whose operands are split unsuitably.

    Attributes:
        note: the plan's note about the operands.
    """

    kind = "operands"
    note: OperandNote

    @property
    def severity(self) -> str:
        # The results of the other programs are right.
        return FAILS if isinstance(self.note, StraddledBlocks) else LOSES

    @property
    def place(self) -> ViewPlace:
        return ViewPlace("Program", "Values", source=self.note.line)


@dataclass(frozen=True)
class Stopped(Problem):
    """A compile or run that ended with an error.

    Attributes:
        error: the error.
    """

    kind = "stopped"
    error: Failure

    @property
    def place(self) -> ViewPlace:
        return ViewPlace("Program", "Checks", source=self.error.source)


@dataclass(frozen=True)
class FailedCheck(Problem):
    """A check of a run that failed.

    Attributes:
        check: the check.
    """

    kind = "check"
    view = ViewPlace("Program", "Checks")
    check: Check


@dataclass(frozen=True)
class SlowDeviceOrder(Problem):
    """A device order whose collectives are slower than with another order.

    Attributes:
        order: the better order.
    """

    kind = "device order"
    usual_severity = LOSES
    view = ViewPlace("Program")
    order: DeviceOrder


@dataclass(frozen=True)
class FullRematerialisation(Problem):
    """Collectives that gather whole arrays on every device only to split them again.

    Attributes:
        stage: 1 for the partitioner's collectives, 2 for the final program's.
        numbers: indices of these collectives in their stage.
        size: the bytes that each device sends.
    """

    kind = "rematerialised"
    usual_severity = LOSES
    stage: int
    numbers: tuple[int, ...]
    size: int

    @property
    def place(self) -> ViewPlace:
        return ViewPlace("Program", collective=f"{self.stage}:{self.numbers[0]}")


# --- inputs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """The facts about a session's target that problems depend on.

    Attributes:
        name: the target's name as typed.
        title: the target's title.
        topology: the described hardware; None for any other target.
        fitting: a mesh that fits the target; None if the session's mesh already fits.
        fitting_axes: `fitting` as text.
    """

    name: str
    title: str
    topology: Topology | None = None
    fitting: MeshSpec | None = None
    fitting_axes: str = ""


@dataclass(frozen=True)
class Results:
    """The plan and the report of a session's program, if available.

    Attributes:
        plan: the plan.
        report: the compile or run for the session's target.
        has_no_plan: whether the report's program could not be planned. The plan's error
            then explains why it could not be compiled either.
        partitioned, compiled: the last compile's collectives, after partitioning and in
            the final program; None if unknown.
    """

    plan: Plan | None = None
    report: Report | None = None
    has_no_plan: bool = False
    partitioned: Sequence[Collective] | None = None
    compiled: Sequence[Collective] | None = None


def array_problems(audit: Audit, program: Program) -> Iterator[Problem]:
    """Finds the problems of arrays and rules, which no plan or report affects.

    Args:
        audit: the audit of the session's model or arrays.
        program: the session's program, with its rules.
    """
    arrays = _Arrays(audit, program)
    for find in _OF_ARRAYS:
        yield from find(arrays)


def result_problems(
    audit: Audit, program: Program, target: Target, results: Results
) -> Iterator[Problem]:
    """Finds the problems of the target, the plan and the report."""
    yield from _target(program.mesh, target)
    yield from _memory(audit, target, results)
    yield from _plan(program, results)
    yield from _report(program, results)


class _Arrays:
    """The arrays of an audit, and the arrays that a problem already counts.

    Attributes:
        counted: paths of the arrays whose waste is already part of a problem.
    """

    def __init__(self, audit: Audit, program: Program) -> None:
        self.audit, self.program = audit, program
        self.rows = {row.path: row for row in audit.rows}
        self.counted: set[str] = set()

    def place(
        self, path: str, dim: int | None = None, has_remedies: bool = True
    ) -> ArrayPlace:
        """Returns the place of an array, or of a dimension that rules split."""
        row = self.rows[path]
        if dim is None or row.array.logical is None or row.spec_wins:
            return ArrayPlace(path)
        return ArrayPlace(path, dim, row.array.logical[dim], has_remedies)


# --- arrays ---------------------------------------------------------------------------


def _without_layout(arrays: _Arrays) -> Iterator[NoLayout]:
    by_reason: dict[tuple[int | None, str], list[str]] = {}
    for path in arrays.audit.problems:
        for reason in _layout_problems(arrays.rows[path], arrays.audit.mesh):
            by_reason.setdefault(reason, []).append(path)
    for (dim, reason), paths in by_reason.items():
        yield NoLayout(tuple(paths), reason, arrays.place(paths[0], dim))


def _layout_problems(row: Request, mesh: MeshSpec) -> list[tuple[int | None, str]]:
    """Returns all dimensions that cannot be split, each with the reason.

    The dimension is None if the array cannot be laid out for another reason.
    """
    problems: list[tuple[int | None, str]] = []
    if row.spec is not None and row.spec.rank <= len(row.shape):
        for dim, error in layout_errors(row.shape, row.spec, mesh):
            problems.append((dim, str(error)))
    return problems or [(None, str(row.problem))]


def _misspelt(arrays: _Arrays) -> Iterator[MisspeltName]:
    for name, nearest, paths in arrays.audit.unmatched:
        if nearest is None:
            continue
        losing, wasted = [], 0
        # Laying out an array is slow, and many arrays are alike.
        saves: dict[object, bool] = {}
        for path in paths:
            row = arrays.rows[path]
            key = (row.array.logical, row.shape, row.dtype)
            if key not in saves:
                saves[key] = _saves(arrays.program, row, name, nearest)
            if saves[key] and path not in arrays.counted:
                losing.append(path)
                wasted += row.wasted_bytes
        arrays.counted.update(losing)
        first = losing[0] if losing else paths[0]
        names = arrays.rows[first].array.logical or ()
        place = arrays.place(first, names.index(name))
        yield MisspeltName(name, nearest, tuple(paths), place, wasted, tuple(losing))


def _saves(program: Program, row: Request, name: str, nearest: str) -> bool:
    """Whether an array needs less memory if a name is replaced by the similar one."""
    names = tuple(nearest if n == name else n for n in row.array.logical or ())
    array = row.array.replace(logical=names)
    renamed = request(array, program.mesh, program.rules, program.dialect)
    held, needed = row.bytes_per_device, renamed.bytes_per_device
    return held is not None and needed is not None and needed < held


def _moments(arrays: _Arrays) -> Iterator[MomentsDiffer]:
    alike: dict[tuple[str, str, str, str], list[Difference]] = {}
    for difference in arrays.audit.differences:
        specs = str(difference.row.spec), str(difference.parameter.spec)
        key = (difference.kind, difference.role, *specs)
        alike.setdefault(key, []).append(difference)
    for differences in alike.values():
        losing, wasted = [], 0
        for difference in differences:
            if difference.kind == "lost" and difference.path not in arrays.counted:
                losing.append(difference.path)
                wasted += difference.row.wasted_bytes
        arrays.counted.update(losing)
        first = differences[0]
        place = arrays.place(first.path, _unsplit_dim(first.row))
        yield MomentsDiffer(tuple(differences), place, wasted, tuple(losing))


def _replicated(arrays: _Arrays) -> Iterator[Replicated]:
    audit = arrays.audit
    groups: dict[Any, list[Request]] = {}
    unnamed = set[str]()
    # Without rules, names would not split an array either.
    if len(audit.rules):
        unnamed = {row.path for row in audit.unnamed}
    for row in audit.rows:
        if not row.wasted_bytes or row.spec is None or row.path in arrays.counted:
            continue
        free = []
        for axis, size in audit.mesh.shape.items():
            if size > 1 and axis not in row.spec.axes:
                free.append(axis)
        key = row.path in unnamed, tuple(free), row.denied_axes
        groups.setdefault(key, []).append(row)
    for (lacks_names, axes, denied), rows in groups.items():
        rows.sort(key=lambda row: -row.wasted_bytes)
        wasted = sum(row.wasted_bytes for row in rows)
        problem = NoNames if lacks_names else Replicated
        yield problem(
            axes,
            tuple(row.path for row in rows),
            wasted,
            arrays.place(rows[0].path, _unsplit_dim(rows[0])),
            denied,
            is_small=wasted < SMALL * audit.bytes_per_device,
        )


def _unsplit_dim(row: Request) -> int | None:
    """Returns the largest unsplit dimension that has a logical name, or None."""
    if row.array.logical is None or row.layout is None:
        return None
    dims = []
    for dim, name in enumerate(row.array.logical):
        if isinstance(name, str) and row.layout.block_counts[dim] == 1:
            dims.append(dim)
    return max(dims, key=lambda dim: row.shape[dim], default=None)


def _unmatched(arrays: _Arrays) -> Iterator[UnmatchedNames]:
    unmatched = [name for name in arrays.audit.unmatched if name.nearest is None]
    if not unmatched:
        return
    name, path = unmatched[0].name, unmatched[0].arrays[0]
    logical = arrays.rows[path].array.logical or ()
    place = arrays.place(path, logical.index(name), has_remedies=False)
    yield UnmatchedNames(tuple(row.name for row in unmatched), place)


# --- rules ----------------------------------------------------------------------------


def _idle_rules(arrays: _Arrays) -> Iterator[Problem]:
    absent, idle = 0, []
    rules = arrays.program.rules
    if not isinstance(rules, Rules):
        return
    for use in rule_summary(arrays.audit.rows, rules):
        if use.never is None:
            continue
        if use.never.code == "no such name":
            absent += 1
        else:
            idle.append((use, use.never))
    for use, never in idle[:MOST_IDLE]:
        yield IdleRule(use, _where_it_loses(arrays, use, never))
    if len(idle) > MOST_IDLE:
        yield MoreIdleRules(len(idle) - MOST_IDLE)
    if absent:
        yield RulesForNoArray(absent)


def _where_it_loses(arrays: _Arrays, use: RuleUse, never: Idle) -> ArrayPlace | None:
    """Returns the first dimension in which the rule loses its mesh axes."""
    if never.code != "loses" or not isinstance(use.rule, Rule):
        return None
    path = use.lost[0][0]
    names = arrays.rows[path].array.logical or ()
    dim = names.index(use.rule.logical)
    return arrays.place(path, dim, has_remedies=False)


#: The waste of an array counts for the first problem that includes it.
_OF_ARRAYS: tuple[Callable[[_Arrays], Iterable[Problem]], ...] = (
    _without_layout,
    _misspelt,
    _moments,
    _replicated,
    _unmatched,
    _idle_rules,
)


# --- the target, the plan, the report -------------------------------------------------


def _target(mesh: MeshSpec, target: Target) -> Iterator[Problem]:
    fitting = target.fitting
    if fitting is None:
        return
    if fitting.size != mesh.size:
        yield OtherSize(target.title, fitting.size, mesh.size, target.fitting_axes)
    else:
        hosts = len(mesh.processes), len(fitting.processes)
        yield OtherHosts(target.name, *hosts)


def _memory(audit: Audit, target: Target, results: Results) -> Iterator[DoesNotFit]:
    fit, topology = None, target.topology
    if results.report is not None:
        fit = results.report.without_error.fit
    if fit is None and topology is not None:
        fit = Fit(
            audit.bytes_per_device,
            topology.chip.device_bytes,
            topology.title,
            arrays_only=True,
            uncounted=audit.uncounted,
        )
    if fit is not None and fit.ok is False:
        yield DoesNotFit(fit)


def _plan(program: Program, results: Results) -> Iterator[Problem]:
    plan = results.plan
    if plan is None:
        return
    # If arrays cannot be laid out, they are the cause, and they are already reported.
    if plan.error is not None and not program.problems:
        yield NoPlan(plan.error)
    by_effect: dict[str, list[Constraint]] = {}
    for call in plan.without_error.constraints:
        if not call.acts:
            by_effect.setdefault(call.effect, []).append(call)
    for effect, calls in by_effect.items():
        yield IdleConstraints(effect, tuple(calls))
    for note in plan.notes:
        if isinstance(note, OperandNote):
            yield UnsuitedOperands(note)


def _report(program: Program, results: Results) -> Iterator[Problem]:
    report = results.report
    if report is None:
        return
    error = report.error
    if error is not None and error.stage != "cancelled":
        if not results.has_no_plan and not program.problems:
            yield Stopped(error)
    reached = report.without_error
    for check in reached.checks:
        if check.ok is False:
            yield FailedCheck(check)
    order = getattr(reached.roofline, "order", None)
    if order is not None:
        yield SlowDeviceOrder(order)
    stage, collectives = 2, results.compiled
    if collectives is None:
        stage, collectives = 1, results.partitioned
    numbers = []
    for number, collective in enumerate(collectives or ()):
        if collective.rematerialises:
            numbers.append(number)
    if collectives is not None and numbers:
        size = sent_in_all(collectives[number] for number in numbers)
        yield FullRematerialisation(stage, tuple(numbers), size)
