"""expect(): what should stay true of a program, as tests that say what is not so.

Every method of an Expectation returns it, or raises a ContractError with a `Broken`
that says what is not so and what to do. A contract that is wrong in itself, such as for
a mesh axis that there is not, is a ShardvizError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from shardviz.advise.lock import (
    Lock,
    lock_audit,
    lock_plan,
    partitioned_of,
    read_lock,
)
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.fit import Fit, Uncounted
from shardviz.axis_rules.requests import Request
from shardviz.base.array_spec import size_in_bytes
from shardviz.base.axis_parts import group_size, parent_axis
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import COLLECTIVE_KINDS
from shardviz.base.display import Fact
from shardviz.base.errors import ContractError, ProgramError, TargetError
from shardviz.base.format import plural, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import parse_bytes
from shardviz.base.partition_spec import Spec
from shardviz.compiled.comparison import total_bytes
from shardviz.compiled.report import Report, needed_bytes
from shardviz.compiled.stages import Stages
from shardviz.compiled.too_large import TooLarge
from shardviz.hardware.topology import Topology, is_described
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import array_bytes, bytes_per_device
from shardviz.programs.program import Program

STAGES = ("partitioned", "compiled")
PER = ("step", "collective", "device", *COLLECTIVE_KINDS)


class HeldArray(NamedTuple):
    """One array of what is checked.

    Attributes:
        name: its name.
        bytes: its bytes, of all of it.
        held: its bytes on each device.
        is_split: whether it is split over any axis of more than one device.
        spec: its spec.
        request: what was requested for it, where that is known.
    """

    name: str
    bytes: int
    held: int
    is_split: bool
    spec: Spec | None
    request: Request | None = None


@dataclass(frozen=True)
class Broken(Fact):
    """What is expected and not so.

    Attributes:
        code: `"collectives"` (there are some), `"too much"` (they take more than a
            limit), `"too large"` (for a limit or the memory of a device), `"not
            split"`, `"differs"` (from a lock) or `"nothing"` (there is nothing to
            check).
        name: what is checked.
        of: who made the collectives: `"propagated"` (an estimate), `"partitioned"` or
            `"compiled"`; or what the bytes are of: `"arrays"` of an audit,
            `"arguments"` of a program, `"ends"` (arguments and results of a plan) or
            `"compiled"`.
        target: what it was compiled for.
        collectives: those that should not be there, or take too much.
        kind: their kind; `""` for any.
        over: the mesh axes that were named.
        requests: what was requested for each argument, where that is known.
        limit: the bytes that are allowed.
        per: what the limit is for, a kind of collective, `"step"` or `"collective"`.
        fit: what it needs of each device, and what there is.
        arrays: the arrays that it is about, of a share those that are not split.
        share: the share that should be split.
        total: the bytes of all arrays.
        differences: how it differs from the lock.
        lock: the name of the lock.
        error: of a program that has one.
        large: what fills the memory of a compiled program that takes too much.
    """

    code: str
    name: str
    of: str = ""
    target: str = ""
    collectives: tuple[Collective, ...] = ()
    kind: str = ""
    over: tuple[str, ...] = ()
    requests: tuple[Request, ...] = ()
    limit: int = 0
    per: str = ""
    fit: Fit | None = None
    arrays: tuple[HeldArray, ...] = ()
    share: float = 0.0
    total: int = 0
    differences: Any = None
    lock: str = ""
    error: Any = None
    large: TooLarge | None = None


@dataclass(frozen=True, repr=False)
class Expectation:
    """What a project expects of a program; made by `shardviz.expect`.

    Each method returns the expectation itself, so that they can be written one after
    another.

    Attributes:
        subject: a Program, Plan, Report, Stages or Audit.
        target: what a Program is compiled for.
        stage: whose collectives count of what is compiled: those that XLA's partitioner
            put in, or those of the program that runs.
        compile: compiles a Program for a target.
        plan: plans a Program.

    >>> from shardviz.axis_rules.audit import audit
    >>> model = audit([("w", (8, 4), "embed mlp")], [("mlp", "model")], "data=2, model=2")
    >>> Expectation(model).sharded(at_least=0.9).at_most("1 KiB", per="device")
    Expectation(the audit on data=2, model=2)
    """

    subject: Any
    target: Any = None
    stage: str = "partitioned"
    compile: Callable[[Program, Any], Report] | None = None
    plan: Callable[[Program], Plan] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.subject, (Program, Plan, Report, Stages, Audit)):
            raise ProgramError(
                "sv.expect takes a program, plan, report, stages or audit; got"
                f" {shown(self.subject)}. Give sv.program(step, ...) or sv.audit(state, ...)."
            )
        _check_known(self.stage, STAGES, "compiled stage")

    def no(self, kind: str | None = None, *, over: Any = None) -> Expectation:
        """There is no collective of a kind, or over a mesh axis.

        Args:
            kind: such as `"all-gather"`; None for any.
            over: a mesh axis, or several as text or a tuple: a collective over any of
                them counts, also where it is over others as well. None for any.

        Raises:
            ContractError: naming each such collective, where it comes from and why it
                is there.
            ShardvizError: for a kind or an axis that there is not, or an audit.
        """
        __tracebackhide__ = True
        if kind is not None:
            _check_known(kind, COLLECTIVE_KINDS, "kind of collective")
        # Before anything is compiled, since a typo should not take a minute.
        axes = self._axes(over)
        some = [c for c in self._over(axes) if kind in (None, c.kind)]
        if some:
            raise self._of_collectives("collectives", some, axes, kind=kind or "")
        return self

    def at_most(
        self, limit: Any, per: str = "step", *, over: Any = None
    ) -> Expectation:
        """Collectives, or the arrays in memory, take no more than some bytes on each
        device.

        The bytes of a collective are those of its result on each device; for a
        reduce-scatter, those of its operand. In a loop it counts as often as the loop
        runs, or once where that is not known.

        Args:
            limit: bytes, as a number or text such as `"1 MiB"`.
            per: `"step"` for all collectives of one execution together, a kind such as
                `"all-gather"` for those of that kind together, `"collective"` for each
                one by itself, and `"device"` for memory: what the compiler says the
                program takes on each device; of a plan its arguments and results, of an
                audit its arrays.
            over: count only collectives over these mesh axes, as for `no`.

        Raises:
            ContractError: with the largest ones, where it is more.
            ShardvizError: for a limit, `per` or axis that cannot be read.
        """
        __tracebackhide__ = True
        most = parse_bytes(limit, "The limit", ProgramError)
        _check_known(per, PER, "kind of limit")
        if per == "device":
            self._check_memory(most, "", self.target)
            return self
        axes = self._axes(over)
        some = self._over(axes)
        if per in COLLECTIVE_KINDS:
            some = [c for c in some if c.kind == per]
        if per == "collective":
            some = [c for c in some if c.bytes_per_device > most]
        elif total_bytes(some) <= most:
            some = []
        if some:
            raise self._of_collectives("too much", some, axes, limit=most, per=per)
        return self

    def fits(self, target: Any = None) -> Expectation:
        """Every device of a target has the memory for it.

        A Program is compiled for that target, unless its arguments alone do not fit. Of
        a plan the arguments and results are counted, of an audit its arrays: values in
        between are not.

        Args:
            target: described hardware such as `"tpu:v5p:8x8x16"`; that of the
                expectation or of the report where it is left out.

        Raises:
            ContractError: with what it takes, what a device has, and the largest
                arrays.
            ShardvizError: for hardware whose memory is not known, of which there are
                more or fewer devices than in the mesh, or that cannot be compiled for
                here.
        """
        __tracebackhide__ = True
        wanted = target
        if wanted is None:
            wanted = self.target
        capacity, where = self._capacity(wanted)
        self._check_memory(capacity, where, wanted)
        return self

    def sharded(self, at_least: float = 1.0) -> Expectation:
        """A share of the bytes of the arrays is split over at least one mesh axis.

        Of a program, plan or report its arguments count.

        Args:
            at_least: the share, from 0 to 1, such as 0.98.

        Raises:
            ContractError: with the largest arrays that are not split, each with the
                reason.
            ShardvizError: for what is no share.
        """
        __tracebackhide__ = True
        if not 0 <= at_least <= 1:  # nan is no share either
            raise ProgramError(
                f"A share is a number from 0 to 1; got {shown(at_least)}."
            )
        # By bytes and not by number: a norm that is not split costs nothing.
        total = sum(row.bytes for row in self._arrays)
        rest = tuple(row for row in self._arrays if not row.is_split)
        lacking = sum(row.bytes for row in rest)
        if total - lacking < at_least * total:
            raise self._broken("not split", arrays=rest, share=at_least, total=total)
        return self

    def matches(self, lock: Any) -> Expectation:
        """Everything is as in a lock: mesh, arrays, and collectives where it has some.

        A Program is compiled only where the lock has collectives.

        Args:
            lock: a Lock, or the path of its file.

        Raises:
            ContractError: with every difference.
            ShardvizError: for what is no lock, and where the subject lacks what is
                locked.
        """
        __tracebackhide__ = True
        if isinstance(lock, Lock):
            before, name = lock, lock.name
        else:
            before, name = read_lock(lock), Path(lock).name
        # A lock of specs alone needs no compile.
        differences = before.diff(self._locked(before.collectives is not None))
        if not differences.same:
            raise self._broken("differs", differences=differences, lock=name)
        return self

    def locked(self, collectives: bool = True) -> Lock:
        """The lock of the subject as it is now.

        Args:
            collectives: whether the collectives of a Program or of Stages are locked as
                well.

        Raises:
            ProgramError: for a Report, which does not know all of it, and a program
                with an error.
        """
        # Nobody expects anything here: what has an error is a wrong argument.
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
                "A report does not know all that a lock holds. Give the program."
            )
        report = None
        if collectives:
            report = self._report
        return lock_plan(self._plan, report)

    # --- what is known of the subject -------------------------------------------------

    @property
    def _own(self) -> Any:
        """What is checked: of Stages their program, else the subject itself."""
        if isinstance(self.subject, Stages):
            return self.subject.program
        return self.subject

    @property
    def _name(self) -> str:
        own = self._own
        if isinstance(own, Audit):
            return f"the audit on {own.mesh}"
        return own.name if isinstance(own, Program) else own.program

    @property
    def _requests(self) -> Sequence[Request]:
        """The layouts that were requested, where they are known."""
        if isinstance(self._own, Audit):
            return tuple(self._own.rows)
        return self._own.requests if isinstance(self._own, Program) else ()

    @cached_property
    def _plan(self) -> Plan | None:
        """The plan, where there is one or the subject can be planned."""
        plan = self.subject
        if isinstance(plan, Stages):
            plan = plan.plan
        if isinstance(plan, Program) and self.plan is not None:
            plan = self.plan(plan)
        return self._checked(plan) if isinstance(plan, Plan) else None

    @cached_property
    def _report(self) -> Report | None:
        """What was compiled; None for an audit or a plan."""
        report = self.subject
        if isinstance(report, Program):
            return self._checked(self._compiled(self.target))
        if isinstance(report, Stages):
            report = report.report
        return self._checked(report) if isinstance(report, Report) else None

    def _compiled(self, target: Any) -> Report:
        """The compile of a Program, which may have failed; made once for a target."""
        assert self.compile is not None
        if target not in self._by_target:
            report = self.compile(self.subject, target)
            # A target that is not there says nothing about the program.
            if report.error is not None and report.error.stage == "target":
                raise TargetError(report.error.message)
            self._by_target[target] = report
        return self._by_target[target]

    @cached_property
    def _by_target(self) -> dict[Any, Report]:
        return {}

    def _with_memory(self, target: Any) -> Report | None:
        """What was compiled, also if it does not fit; None for an audit or a plan.

        Args:
            target: what a Program is compiled for.
        """
        report = self.subject
        if isinstance(report, Program):
            report = self._compiled(target)
        elif isinstance(report, Stages):
            report = report.report
        if not isinstance(report, Report):
            return None
        return report if report.too_large is not None else self._checked(report)

    def _checked(self, made: Any) -> Any:
        """A plan or report without an error."""
        if made.error is not None:
            raise self._broken("nothing", error=made.error)
        return made

    @cached_property
    def _collectives(self) -> tuple[Collective, ...]:
        report = self._report
        if report is None:
            if self._plan is None:
                raise ProgramError(
                    "An audit knows arrays and no collectives. Give sv.expect the"
                    " program that uses them."
                )
            return self._plan.collectives
        if report.collectives is None:
            raise ProgramError(
                f"The report of {self._name} ends before its {self.stage} stage."
            )
        # The final ones stand for no others: they are combined, moved and removed.
        if self.stage == "compiled":
            return report.collectives
        return partitioned_of(report)

    @cached_property
    def _arrays(self) -> tuple[HeldArray, ...]:
        """Its arrays; of a program its arguments."""
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
            mesh = self.subject.mesh
            for op in self._checked(self.subject).ops:
                if op.kind == "argument":
                    size, held = (
                        array_bytes(op.shape, op.dtype),
                        bytes_per_device(op, mesh),
                    )
                    is_split = group_size(op.spec.axes, mesh) > 1
                    arrays.append(HeldArray(op.name, size, held, is_split, op.spec))
        return tuple(arrays)

    # --- what is asked, and what is not so --------------------------------------------

    def _axes(self, over: Any) -> tuple[str, ...]:
        """The mesh axes of `over`, checked."""
        if over is None:
            return ()
        names = over
        if isinstance(over, str):
            names = over.replace(",", " ").split()
        if not names:
            raise ProgramError(
                f"over= names mesh axes, such as 'data'; got {shown(over)}."
            )
        mesh = self._own.mesh or MeshSpec((), ())
        for name in names:
            _check_known(name, mesh.shape, f"axis of {mesh}")
        return tuple(names)

    def _over(self, axes: tuple[str, ...]) -> list[Collective]:
        """The collectives over any of these axes; all where there are none."""
        if not axes:
            return list(self._collectives)
        mesh = self._own.mesh
        if self._report is not None and self._report.mesh is not None:
            mesh = self._report.mesh
        over = []
        for one in self._collectives:
            if any(crosses(one, axis, mesh) for axis in axes):
                over.append(one)
        return over

    def _check_memory(self, most: int, where: str, target: Any) -> None:
        """Raises where it takes more bytes on each device.

        Args:
            most: the bytes that there are.
            where: of which device; `""` for a limit that somebody named.
            target: what a Program is compiled for, where its arguments alone have room.
        """
        __tracebackhide__ = True
        report, left_out = None, Uncounted()
        if isinstance(self.subject, Audit):
            of, held = "arrays", self.subject.bytes_per_device
            left_out = self.subject.uncounted
        elif isinstance(self.subject, Program):
            of, held = "arguments", sum(row.held for row in self._arrays)
            # Compiling what is too large anyway may take minutes, or all memory.
            if held <= most:
                report = self._with_memory(target)
        elif (report := self._with_memory(target)) is None:
            of, held = "ends", 0
            plan = self._plan
            assert plan is not None  # what has neither is an audit
            for op in plan.ops:
                if op.kind != "op":
                    held += bytes_per_device(op, plan.mesh)
        compiled_for, large, is_refused = "", None, False
        if report is not None:
            needed = needed_bytes(report.memory)
            if needed is None:
                raise TargetError(
                    f"The compiler did not say how much memory {self._name} takes."
                )
            of, held, compiled_for = "compiled", needed, report.target
            # A compiler refuses some programs that need less than the chip has.
            is_refused = bool(where) and report.error is not None
            if is_refused and report.memory.capacity is not None:
                most = min(most, report.memory.capacity)
        fit = Fit(held, most, where, uncounted=left_out)
        if is_refused or not fit.ok:  # nor if some arrays may be of any size
            if report is not None:
                large = TooLarge.of(self._name, where, fit, report.memory)
            about = {"of": of, "target": compiled_for, "fit": fit, "large": large}
            raise self._broken("too large", arrays=self._arrays, **about)

    def _of_collectives(
        self, code: str, some: list[Collective], axes: tuple[str, ...], **fields: Any
    ) -> ContractError:
        of, target = "propagated", ""
        if self._report is not None:
            of, target = self.stage, self._report.target
        fields.update(collectives=tuple(some), over=axes, of=of, target=target)
        return self._broken(code, requests=tuple(self._requests), **fields)

    def _broken(self, code: str, **fields: Any) -> ContractError:
        return ContractError(Broken(code, self._name, **fields))

    def _capacity(self, target: Any) -> tuple[int, str]:
        """Bytes of one device of a target, and its title."""
        is_compiled = isinstance(self.subject, (Report, Stages))
        if target is None and is_compiled:
            report = self._with_memory(target)
            if report is not None and report.too_large is not None:
                return report.too_large.fit.capacity or 0, report.too_large.target
            known = report and report.roofline
            if known is not None and known.capacity:
                return known.capacity, known.where
        if not isinstance(target, str) or not is_described(target):
            raise TargetError(
                "Whether something fits is known for described hardware, such as"
                f" 'tpu:v5p:8x8x16' or 'gpu:h100:2x8'; got {shown(target)}."
            )
        # A program for 8 devices on 16 would be another program.
        topology, mesh = Topology.parse(target), self._own.mesh
        if mesh is not None and mesh.size != topology.devices:
            raise TargetError(
                f"The mesh has {plural(mesh.size, 'device')} and {topology} has"
                f" {topology.devices:,}. Name hardware of as many, or use another mesh."
            )
        if topology.chip.device_bytes is None:
            raise TargetError(
                f"How much memory {topology.chip.title} has is not published."
            )
        return topology.chip.device_bytes, topology.title

    def __repr__(self) -> str:
        return f"Expectation({self._name})"


def _check_known(name: Any, known: Any, what: str) -> None:
    """Refuses a name that there is not, with the nearest one."""
    if name not in known:
        raise ProgramError(f"{shown(name)} is no {what}.{suggestion(name, known)}")


def crosses(collective: Collective, axis: str, mesh: MeshSpec | None) -> bool:
    """Whether a collective moves data between devices that differ along a mesh axis.

    True where its groups are not known, since it may.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh = make_mesh(data=2, model=2)
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
    # Positions count the mesh in row-major order.
    at = mesh.axis_names.index(axis)
    stride = math.prod(mesh.axis_sizes[at + 1 :])
    for group in collective.groups:
        # Where along the axis each of its devices is.
        coordinates = {position // stride % mesh.axis_sizes[at] for position in group}
        if len(coordinates) > 1:
            return True
    return False
