"""expect(): assertions about a program's shardings and collectives, for tests.

Every method of an Expectation returns the expectation or raises a ContractError, whose
`Violation` explains what to do. An invalid expectation, for example about a mesh axis
that doesn't exist, raises a ShardvizError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from shardviz.advise.lock import (
    Lock,
    lock_audit,
    lock_plan,
    partitioned_of,
    read_lock,
)
from shardviz.advise.violations import (
    DiffersFromLock,
    HeldArray,
    NotEnoughMemory,
    NothingToCheck,
    NotSplit,
    TooManyBytes,
    UnexpectedCollectives,
    UnknownBytes,
)
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.fit import Fit, Uncounted
from shardviz.axis_rules.requests import Request
from shardviz.base.array_spec import size_in_bytes
from shardviz.base.axis_parts import group_size, parent_axis
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import COLLECTIVE_KINDS
from shardviz.base.errors import ContractError, ProgramError, TargetError
from shardviz.base.format import plural, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import parse_bytes
from shardviz.compiled.comparison import total_bytes
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.report import Report, needed_bytes
from shardviz.compiled.stages import Stages
from shardviz.compiled.too_large import TooLarge
from shardviz.hardware.targets import TargetLike, check_target
from shardviz.hardware.topology import Topology, is_described
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import array_bytes, bytes_per_device
from shardviz.programs.program import Program

STAGES = ("partitioned", "compiled")
PER = ("step", "collective", "device", *COLLECTIVE_KINDS)


#: The values that an expectation can be about.
Subject: TypeAlias = Program | Plan | Report | Stages | Audit


@dataclass(frozen=True, repr=False)
class Expectation:
    """Assertions about a program; created by `shardviz.expect`.

    Each method returns the expectation itself, so that calls can be chained.

    Attributes:
        subject: a Program, Plan, Report, Stages or Audit.
        target: the target that a Program is compiled for.
        stage: which collectives of a compiled program to check: `"partitioned"` for the
            collectives that XLA's partitioner inserts, `"compiled"` for the collectives
            of the final program.
        compile: function that compiles a Program for a target.
        plan: function that plans a Program.

    >>> import shardviz as sv
    >>> from shardviz.types import Expectation
    >>> model = sv.audit([("w", (8, 4), "embed mlp")], [("mlp", "model")], "data=2, model=2")
    >>> Expectation(model).sharded(at_least=0.9).at_most("1 KiB", per="device")
    Expectation(the audit on data=2, model=2)
    """

    subject: Subject
    target: TargetLike = None
    stage: str = "partitioned"
    compile: Callable[[Program, TargetLike], Report] | None = None
    plan: Callable[[Program], Plan] | None = None

    def __post_init__(self) -> None:
        _check_known(self.stage, STAGES, "compiled stage")

    def no(
        self, kind: str | None = None, *, over: str | Sequence[str] | None = None
    ) -> Expectation:
        """Asserts that there is no collective of a kind, or over a mesh axis.

        Args:
            kind: a kind such as `"all-gather"`; None for any.
            over: a mesh axis, or several as text or a tuple; None for any. A collective
                over any of these axes counts, even if it also runs over others.

        Raises:
            ContractError: if there is such a collective. The message names its source
                and cause.
            ShardvizError: for an unknown kind or axis, or for an audit.
        """
        __tracebackhide__ = True
        if kind is not None:
            _check_alone(kind, "no", "over")
            _check_known(kind, COLLECTIVE_KINDS, "kind of collective")
        # Check the axes before compiling, so that a typo is reported immediately.
        axes = self._axes(over)
        matches = []
        for collective in self._over(axes):
            if kind in (None, collective.kind):
                matches.append(collective)
        if matches:
            facts = (*self._stage_and_target(), tuple(matches), axes)
            requests = tuple(self._requests)
            raise ContractError(
                UnexpectedCollectives(self._name, *facts, requests, kind or "")
            )
        return self

    def at_most(
        self,
        limit: int | float | str,
        per: str = "step",
        *,
        over: str | Sequence[str] | None = None,
    ) -> Expectation:
        """Asserts a limit on the bytes per device of collectives or of memory.

        The bytes of a collective are the bytes of its result on each device; for a
        reduce-scatter, the bytes of its operand. A collective in a loop counts once per
        iteration. If the number of iterations is unknown, so is the sum, and the check
        fails; `per="collective"` then still works.

        Args:
            limit: bytes, as a number or text such as `"1 MiB"`.
            per: `"step"` to limit the sum over all collectives of one execution; a kind
                such as `"all-gather"` to limit the sum over that kind; `"collective"`
                to limit each collective; `"device"` to limit memory. Memory is the
                compiler's figure for a program, the bytes of arguments and results for
                a plan, and the bytes of all arrays for an audit.
            over: count only collectives over these mesh axes, as in `no`.

        Raises:
            ContractError: if the limit is exceeded or the sum is unknown. The message
                names the largest collectives or arrays.
            ShardvizError: for an invalid limit, `per` or axis.
        """
        __tracebackhide__ = True
        _check_alone(limit, "at_most", "per")
        _check_alone(limit, "at_most", "over")
        most = parse_bytes(limit, "The limit", ProgramError)
        _check_known(per, PER, "kind of limit")
        if per == "device":
            self._check_memory(most, "", self.target)
            return self
        axes = self._axes(over)
        collectives = self._over(axes)
        if per in COLLECTIVE_KINDS:
            collectives = [c for c in collectives if c.kind == per]
        violation: type[TooManyBytes] = TooManyBytes
        if per == "collective":
            collectives = [c for c in collectives if c.bytes_per_device > most]
        elif total_bytes(collectives) <= most:
            violation = UnknownBytes
            collectives = [c for c in collectives if c.trips is None]
        if collectives:
            facts = (*self._stage_and_target(), tuple(collectives), axes)
            requests = tuple(self._requests)
            raise ContractError(violation(self._name, *facts, requests, most, per))
        return self

    def fits(self, target: TargetLike = None) -> Expectation:
        """Asserts that every device of a target has enough memory.

        A Program is compiled for the target, unless its arguments alone do not fit. For
        a plan, only arguments and results count; for an audit, only arrays.

        Args:
            target: described hardware such as `"tpu:v5p:8x8x16"`; by default the target
                of the expectation or of the report.

        Raises:
            ContractError: if there is too little memory. The message names the bytes
                needed and available, and the largest arrays.
            ShardvizError: if the hardware's memory is unknown, its number of devices
                differs from the mesh's, or this machine cannot compile for it.
        """
        __tracebackhide__ = True
        target = self.target if target is None else check_target(target)
        capacity, device = self._capacity(target)
        self._check_memory(capacity, device, target)
        return self

    def sharded(self, at_least: float = 1.0) -> Expectation:
        """Asserts that a share of all array bytes is split over at least one mesh axis.

        For a program, plan or report, the arrays are its arguments.

        Args:
            at_least: the least share, from 0 to 1, such as 0.98.

        Raises:
            ContractError: if the share is lower. The message names the largest unsplit
                arrays, each with the reason.
            ShardvizError: for a share outside 0 to 1, or if the subject is a module of
                HLO, which doesn't say how its arguments are split.
        """
        __tracebackhide__ = True
        # Rejects nan, too.
        if not isinstance(at_least, (int, float)) or not 0 <= at_least <= 1:
            raise ProgramError(
                "A share is a number from 0 to 1, such as 0.98 for 98 %; got"
                f" {shown(at_least)}."
            )
        if isinstance(self.subject, Report) and not self.subject.in_layouts:
            self._require_success(self.subject)
            # Only a program without arguments has none to check.
            if self.subject.memory.arguments != 0:
                raise ProgramError(
                    f"How the arguments of {self._name} are split is unknown. Give"
                    " sv.expect the program, or a report of its jax.stages.Compiled."
                )
        # Count bytes rather than arrays: an unsplit norm scale costs next to nothing.
        total = sum(array.bytes for array in self._arrays)
        unsplit = tuple(array for array in self._arrays if not array.is_split)
        lacking = sum(array.bytes for array in unsplit)
        if total - lacking < at_least * total:
            raise ContractError(NotSplit(self._name, unsplit, at_least, total))
        return self

    def matches(self, lock: Lock | str | Path) -> Expectation:
        """Asserts that mesh, arrays and collectives are as recorded in a lock.

        A Program is compiled only if the lock records collectives.

        Args:
            lock: a Lock, or the path of a lock file.

        Raises:
            ContractError: if anything differs. The message lists every difference.
            ShardvizError: if the file contains no lock, or the subject lacks facts that
                the lock records.
        """
        __tracebackhide__ = True
        if isinstance(lock, Lock):
            before, name = lock, lock.name
        else:
            before, name = read_lock(lock), Path(lock).name
        # Checking specs alone needs no compile.
        differences = before.diff(self._locked(before.collectives is not None))
        if not differences.same:
            raise ContractError(DiffersFromLock(self._name, differences, name))
        return self

    def locked(self, collectives: bool = True) -> Lock:
        """Returns a lock of the subject's current state.

        Args:
            collectives: whether to lock the collectives of a Program or of Stages too.

        Raises:
            ProgramError: for a Report, which lacks facts that a lock needs, for a
                program with an error, and for the path of a lock file.
        """
        if not isinstance(collectives, bool):
            raise ProgramError(
                f"locked() makes a new lock and takes collectives=True or False; got"
                f" {shown(collectives)}. Write .matches(...) to compare with a lock or the"
                " path of a lock file."
            )
        # There is no expectation to violate here: a failing program is an invalid
        # argument.
        try:
            return self._locked(collectives)
        except ContractError as error:
            raise ProgramError(str(error)) from None

    def _locked(self, collectives: bool) -> Lock:
        __tracebackhide__ = True
        if isinstance(self.subject, Audit):
            return lock_audit(self.subject)
        if self._plan is None:
            raise ProgramError(
                "A report lacks data that a lock needs. Give the program."
            )
        report = None
        if collectives:
            report = self._report
        return lock_plan(self._plan, report)

    # --- facts of the subject ---------------------------------------------------------

    @property
    def _checked_subject(self) -> Program | Plan | Report | Audit:
        """The subject, or its program if the subject is Stages."""
        if isinstance(self.subject, Stages):
            return self.subject.program
        return self.subject

    @property
    def _name(self) -> str:
        subject = self._checked_subject
        if isinstance(subject, Audit):
            return f"the audit on {subject.mesh}"
        return subject.name if isinstance(subject, Program) else subject.program

    @property
    def _mesh(self) -> MeshSpec | None:
        return self._checked_subject.mesh

    @property
    def _requests(self) -> Sequence[Request]:
        """The requested layouts; empty if they are unknown."""
        subject = self._checked_subject
        if isinstance(subject, Audit):
            return tuple(subject.rows)
        return subject.requests if isinstance(subject, Program) else ()

    @cached_property
    def _plan(self) -> Plan | None:
        """The subject's plan; None if it has none and cannot be planned."""
        plan = self.subject
        if isinstance(plan, Stages):
            plan = plan.plan
        if isinstance(plan, Program) and self.plan is not None:
            plan = self.plan(plan)
        if not isinstance(plan, Plan):
            return None
        self._require_success(plan)
        return plan

    @cached_property
    def _report(self) -> Report | None:
        """The compile's report; None for an audit or a plan."""
        report = self.subject
        if isinstance(report, Program):
            report = self._compiled(report, self.target)
        elif isinstance(report, Stages):
            report = report.report
        if not isinstance(report, Report):
            return None
        self._require_success(report)
        return report

    def _compiled(self, program: Program, target: TargetLike) -> Report:
        """Returns a Program's report for a target, which may have an error."""
        assert self.compile is not None
        if target not in self._by_target:
            report = self.compile(program, target)
            # An unknown target is the caller's error, not the program's.
            if report.error is not None and report.error.stage == "target":
                raise TargetError(report.error.message)
            self._by_target[target] = report
        return self._by_target[target]

    @cached_property
    def _by_target(self) -> dict[TargetLike, Report]:
        return {}

    def _with_memory(self, target: TargetLike) -> Report | None:
        """Returns the report even if the program does not fit the target.

        Returns None for an audit or a plan.

        Args:
            target: the target that a Program is compiled for.
        """
        report = self.subject
        if isinstance(report, Program):
            report = self._compiled(report, target)
        elif isinstance(report, Stages):
            report = report.report
        if not isinstance(report, Report):
            return None
        if report.too_large is None:
            self._require_success(report)
        return report

    def _require_success(self, result: Plan | Report) -> None:
        """Raises a ContractError for a plan or report with an error."""
        if result.error is not None:
            raise ContractError(NothingToCheck(self._name, result.error))

    @cached_property
    def _collectives(self) -> tuple[Collective, ...]:
        report = self._report
        if report is None:
            if self._plan is None:
                raise ProgramError(
                    "An audit has arrays but no collectives. Give sv.expect the"
                    " program that uses them."
                )
            return self._plan.collectives
        if report.collectives is None:
            raise ProgramError(
                f"The report of {self._name} ends before its {self.stage} stage."
            )
        if self.stage == "compiled":
            return report.collectives
        # XLA combines, moves and removes collectives after partitioning.
        return partitioned_of(report)

    @cached_property
    def _arrays(self) -> tuple[HeldArray, ...]:
        """The arrays of an audit, or the arguments of any other subject."""
        arrays = []
        for row in self._requests:
            is_split = row.layout is not None and row.layout.num_blocks > 1
            held, size = row.bytes_per_device or 0, row.array.bytes
            arrays.append(HeldArray(row.path, size, held, is_split, row.spec, row))
        if isinstance(self.subject, Report):
            for name, layout in self.subject.in_layouts.items():
                size = size_in_bytes(math.prod(layout.shape), layout.dtype)
                held, is_split = layout.bytes_per_device, layout.num_blocks > 1
                arrays.append(HeldArray(name, size, held, is_split, layout.spec))
        elif isinstance(self.subject, Plan):
            self._require_success(self.subject)
            arrays += _arguments(self.subject)
        return tuple(arrays)

    # --- checks -----------------------------------------------------------------------

    def _axes(self, over: str | Sequence[str] | None) -> tuple[str, ...]:
        """Returns the mesh axes in `over` after checking that they exist."""
        if over is None:
            return ()
        names = over
        if isinstance(over, str):
            names = over.replace(",", " ").split()
        if not names:
            raise ProgramError(
                f"over= names mesh axes, such as 'data'; got {shown(over)}."
            )
        mesh = self._mesh or MeshSpec((), ())
        for name in names:
            _check_known(name, mesh.shape, f"axis of {mesh}")
        return tuple(names)

    def _over(self, axes: tuple[str, ...]) -> list[Collective]:
        """Returns the collectives over any of these axes; all of them for `()`."""
        if not axes:
            return list(self._collectives)
        mesh = self._mesh
        if self._report is not None and self._report.mesh is not None:
            mesh = self._report.mesh
        over = []
        for collective in self._collectives:
            if any(crosses(collective, axis, mesh) for axis in axes):
                over.append(collective)
        return over

    def _check_memory(self, most: int, device: str, target: TargetLike) -> None:
        """Raises a ContractError if a device needs more bytes than are available.

        Args:
            most: the bytes available per device.
            device: the title of the device; `""` if `most` is a limit from the user.
            target: the target that a Program is compiled for, if its arguments fit.
        """
        __tracebackhide__ = True
        report, uncounted = None, Uncounted()
        if isinstance(self.subject, Audit):
            counted, needed = "arrays", self.subject.bytes_per_device
            uncounted = self.subject.uncounted
        elif isinstance(self.subject, Program):
            counted, needed = "arguments", sum(array.held for array in self._arrays)
            # Compiling a program that is too large may take minutes or exhaust memory
            # here.
            if needed <= most:
                report = self._with_memory(target)
        elif (report := self._with_memory(target)) is None:
            counted, needed = "ends", 0
            plan = self._plan
            assert plan is not None  # only an audit has no plan
            for op in plan.ops:
                if op.kind != "op":
                    needed += bytes_per_device(op, plan.mesh)
        else:
            counted, needed = "compiled", 0
        compiled_for, large, is_refused = "", None, False
        if report is not None:
            memory = report.without_error.memory
            program_bytes = needed_bytes(memory)
            if program_bytes is None:
                raise TargetError(
                    f"The compiler did not report how much memory {self._name} takes."
                )
            counted, needed, compiled_for = "compiled", program_bytes, report.target
            # A compiler rejects some programs that need less memory than the chip has.
            is_refused = bool(device) and report.error is not None
            if is_refused and memory.capacity is not None:
                most = min(most, memory.capacity)
        fit = Fit(needed, most, device, uncounted=uncounted)
        # `fit.ok` is None if the size of some arrays is unknown.
        if is_refused or not fit.ok:
            if report is not None:
                # Values in memory have names only in the plan.
                if isinstance(self.subject, Program) and self.plan is not None:
                    report = with_values(report, self.plan(self.subject))
                large = TooLarge.of(self._name, device, fit, report.memory)
            facts = (counted, compiled_for, fit, self._arrays, large)
            raise ContractError(NotEnoughMemory(self._name, *facts))

    def _stage_and_target(self) -> tuple[str, str]:
        """Returns the stage of the collectives, and their compile target."""
        if self._report is None:
            return "propagated", ""
        return self.stage, self._report.target

    def _capacity(self, target: TargetLike) -> tuple[int, str]:
        """Returns the memory per device of a target, in bytes, and its title."""
        is_compiled = isinstance(self.subject, (Report, Stages))
        if target is None and is_compiled:
            report = self._with_memory(target)
            if report is not None and report.too_large is not None:
                return report.too_large.fit.capacity or 0, report.too_large.target
            roofline = report and report.roofline
            if roofline is not None and roofline.capacity:
                return roofline.capacity, roofline.where
        if not isinstance(target, str) or not is_described(target):
            raise TargetError(
                "Whether something fits is known for described hardware, such as"
                f" 'tpu:v5p:8x8x16' or 'gpu:h100:2x8'; got {shown(target)}."
            )
        # A mesh with another number of devices would need a different program.
        topology, mesh = Topology.parse(target), self._mesh
        if mesh is not None and mesh.size != topology.devices:
            raise TargetError(
                f"The mesh has {plural(mesh.size, 'device')} and {topology} has"
                f" {topology.devices:,}. Name hardware with as many devices, or use"
                " another mesh."
            )
        if topology.chip.device_bytes is None:
            raise TargetError(
                f"How much memory {topology.chip.title} has is not published."
            )
        return topology.chip.device_bytes, topology.title

    def __repr__(self) -> str:
        return f"Expectation({self._name})"


def _arguments(plan: Plan) -> Iterator[HeldArray]:
    """Yields the arguments of a plan."""
    for op in plan.ops:
        if op.kind == "argument":
            size, held = (
                array_bytes(op.shape, op.dtype),
                bytes_per_device(op, plan.mesh),
            )
            is_split = group_size(op.spec.axes, plan.mesh) > 1
            yield HeldArray(op.name, size, held, is_split, op.spec)


def _check_alone(typed: object, method: str, keyword: str) -> None:
    """Raises a ProgramError for text that contains a keyword: `all-gather over data`."""
    before, word, after = f" {typed}".partition(f" {keyword} ")
    if word:
        arguments = [shown(before.strip())] if before else []
        call = ", ".join([*arguments, f"{keyword}={shown(after)}"])
        raise ProgramError(
            f"{shown(typed)} contains {keyword}, which is an argument of its own:"
            f" .{method}({call})."
        )


def _check_known(name: str, known: Collection[str], noun: str) -> None:
    """Raises a ProgramError for an unknown name, and suggests the nearest known one."""
    if name not in known:
        article = "an" if noun[0] in "aeiou" else "a"
        raise ProgramError(
            f"{shown(name)} is not {article} {noun}.{suggestion(name, known)}"
        )


def crosses(collective: Collective, axis: str, mesh: MeshSpec | None) -> bool:
    """Whether a collective moves data between devices that differ along a mesh axis.

    Also true if the replica groups are unknown.

    >>> import shardviz as sv
    >>> mesh = sv.mesh(data=2, model=2)
    >>> crosses(Collective("all-reduce", ("data",), 4), "model", mesh)
    False
    >>> diagonal = Collective("collective-permute", (), 4, groups=((0, 3), (3, 0)))
    >>> crosses(diagonal, "model", mesh)
    True
    """
    if collective.mesh_axes:
        return axis in map(parent_axis, collective.mesh_axes)
    if not collective.groups or mesh is None:
        return True
    # Replica groups contain positions in the mesh, in row-major order.
    at = mesh.axis_names.index(axis)
    stride = math.prod(mesh.axis_sizes[at + 1 :])
    for group in collective.groups:
        # The coordinates of the group's devices along the axis.
        coordinates = {position // stride % mesh.axis_sizes[at] for position in group}
        if len(coordinates) > 1:
            return True
    return False
