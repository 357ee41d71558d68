"""expect(): what should stay true of a program, as tests that fail in words.

Every method of an Expectation returns it, or raises a ContractError that says what was asked, what
was found and what to do. What is asked in a way that has no answer, such as for a mesh axis that
there is not, is a ShardvizError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from shardviz.core.errors import ContractError, ProgramError, TargetError
from shardviz.core.format import bytes_text, fold, joined, plural, shown, suggestion
from shardviz.core.hardware.topology import Topology, is_described
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import limited, parse_bytes
from shardviz.core.layout.resolution import Request
from shardviz.core.program.comparison import total_bytes
from shardviz.core.program.lock import (
    Lock,
    lock_audit,
    lock_plan,
    refuse_unknown_partitioning,
)
from shardviz.core.program.lock_files import read_lock
from shardviz.core.program.plan import Plan, fold_collectives, fold_line
from shardviz.core.program.plan_values import (
    PlannedOp,
    array_bytes,
    bytes_per_device,
    group_size,
    parent_axis,
)
from shardviz.core.program.program import Program
from shardviz.core.program.report import COLLECTIVE_KINDS, Collective, Report, needed_bytes
from shardviz.core.program.stages import Stages

STAGES = ("partitioned", "compiled")
PER = ("step", "collective", "device")
SHOWN = 5
MAX_AXES = 32


class _Found(NamedTuple):
    """Collectives and who put them in, as the end of a sentence."""

    collectives: tuple[Collective, ...]
    maker: str


class _Array(NamedTuple):
    """One array: its bytes, those on each device, and why it is not split; `""` where it is."""

    name: str
    bytes: int
    held: int
    reason: str


@dataclass(frozen=True, repr=False)
class Expectation:
    """What a project expects of a program; made by `shardviz.expect`.

    Each method returns the expectation itself, so that they can be written one after another.

    Attributes:
        subject: a Program, Plan, Report, Stages or Audit.
        target: what a Program is compiled for.
        stage: whose collectives count of what is compiled: those that XLA's partitioner put in, or
            those of the program that runs.
        compile: compiles a Program for a target.
        plan: plans a Program.

    >>> from shardviz.core.layout.audit import audit
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
        if not isinstance(self.stage, str) or self.stage not in STAGES:
            hint = suggestion(self.stage, STAGES)
            raise ProgramError(f"{shown(self.stage)} is no stage that is compiled.{hint}")

    def no(self, kind: str | None = None, *, over: Any = None) -> Expectation:
        """There is no collective of a kind, or over a mesh axis.

        Args:
            kind: such as `"all-gather"`; None for any.
            over: a mesh axis, or several as text or a tuple: a collective over any of them counts,
                also where it is over others as well. None for any.

        Raises:
            ContractError: naming each such collective, where it comes from and why it is there.
            ShardvizError: for a kind or an axis that there is not, or an audit.
        """
        __tracebackhide__ = True
        axes = self._axes(over)
        if kind is not None and (not isinstance(kind, str) or kind not in COLLECTIVE_KINDS):
            hint = suggestion(kind, COLLECTIVE_KINDS)
            raise ProgramError(f"{shown(kind)} is no kind of collective.{hint}")
        some = [c for c in self._over(axes) if kind in (None, c.kind)]
        if some:
            is_there = "is 1" if len(some) == 1 else f"are {len(some):,}"
            self._break(
                f"Expected no {kind or 'collective'}{_over_words(axes)} in {self._name}, and there"
                f" {is_there}, {bytes_text(total_bytes(some))} per device, {self._found.maker}:",
                *_lines(some),
                *self._advice(some, axes),
            )
        return self

    def at_most(self, limit: Any, per: str = "step", *, over: Any = None) -> Expectation:
        """Collectives, or the arrays in memory, take no more than some bytes on each device.

        The bytes of a collective are those of its result on each device, of a reduce-scatter those
        of its operand; a loop counts as often as it runs, and once where that is not known.

        Args:
            limit: bytes, as a number or text such as `"1 MiB"`.
            per: `"step"` for all collectives of one execution together, a kind such as
                `"all-gather"` for those of that kind together, `"collective"` for each one by
                itself, and `"device"` for memory: what the compiler says the program takes on each
                device; of a plan its arguments and results, of an audit its arrays.
            over: count only collectives over these mesh axes, as for `no`.

        Raises:
            ContractError: with the largest ones, where it is more.
            ShardvizError: for a limit, `per` or axis that cannot be read.
        """
        __tracebackhide__ = True
        most = parse_bytes(limit, "The limit", ProgramError)
        if not isinstance(per, str) or per not in (*PER, *COLLECTIVE_KINDS):
            known = (*PER, *COLLECTIVE_KINDS)
            raise ProgramError(f"A limit cannot be per {shown(per)}.{suggestion(per, known)}")
        if per == "device":
            return self._at_most_memory(most)
        axes = self._axes(over)
        some = self._over(axes)
        if per in COLLECTIVE_KINDS:
            some = [c for c in some if c.kind == per]
        if per == "collective":
            some = [c for c in some if c.bytes_per_device > most]
            if some:
                self._too_much(some, f"{bytes_text(most)} for each collective", axes)
        elif total_bytes(some) > most:
            what = "collectives" if per == "step" else f"{per}s"
            self._too_much(some, f"{bytes_text(most)} for all {what} of one step", axes)
        return self

    def fits(self, target: Any = None) -> Expectation:
        """Every device of a target has the memory for it.

        A Program is compiled for that target, unless its arguments alone do not fit. Of a plan the
        arguments and results are counted, of an audit its arrays: values in between are not.

        Args:
            target: described hardware such as `"tpu:v5p:8x8x16"`; that of the expectation or of the
                report where it is left out.

        Raises:
            ContractError: with what it takes, what a device has, and the largest arrays.
            ShardvizError: for hardware whose memory is not known, of which there are more or fewer
                devices than in the mesh, or that cannot be compiled for here.
        """
        __tracebackhide__ = True
        wanted = self.target if target is None else target
        capacity, where = self._capacity(wanted)
        held, counted = self._held()
        if isinstance(self.subject, Program) and held <= capacity:
            report = self._compiled(wanted)
            if (needed := needed_bytes(report.memory)) is None:
                raise TargetError(f"The compiler for {where} does not say what {self._name} takes.")
            held, counted = needed, "as compiled it takes"
        if held > capacity:
            self._break(
                f"Expected {self._name} to fit on {where}, and it does not: {counted}"
                f" {bytes_text(held)} on each device, which has {bytes_text(capacity)}.",
                *self._largest(),
                "Split the largest arrays over more axes, or take a larger target.",
            )
        return self

    def sharded(self, at_least: float = 1.0) -> Expectation:
        """A share of the bytes of the arrays is split over at least one mesh axis.

        Of a program, plan or report its arguments count.

        Args:
            at_least: the share, from 0 to 1, such as 0.98.

        Raises:
            ContractError: with the largest arrays that are not split, each with the reason.
            ShardvizError: for what is no share.
        """
        __tracebackhide__ = True
        number = isinstance(at_least, (int, float)) and not isinstance(at_least, bool)
        if not number or not 0 <= at_least <= 1:  # nan is no share either
            raise ProgramError(f"A share is a number from 0 to 1; got {shown(at_least)}.")
        total = sum(row.bytes for row in self._arrays)
        rest = [row for row in self._arrays if row.reason]
        lacking = sum(row.bytes for row in rest)
        if total - lacking < at_least * total:
            self._break(
                f"Expected {_percent(at_least)} of the bytes of {self._name} to be split, and"
                f" {_percent(1 - lacking / total)} are: {bytes_text(lacking)} of"
                f" {bytes_text(total)} are not, in {plural(len(rest), 'array')}.",
                *_reasons(rest),
                "Give each of them an axis by a rule or a spec, or lower the share.",
            )
        return self

    def matches(self, lock: Any) -> Expectation:
        """Everything is as in a lock: mesh, arrays, and collectives where it has some.

        A Program is compiled only where the lock has collectives.

        Args:
            lock: a Lock, or the path of its file; also a record of MaxText's shardings.

        Raises:
            ContractError: with every difference.
            ShardvizError: for what is no lock, and where the subject lacks what is locked.
        """
        __tracebackhide__ = True
        before = lock if isinstance(lock, Lock) else read_lock(lock)
        found = before.diff(self._locked(before.collectives is not None))
        if not found.same:
            where = before.name if isinstance(lock, Lock) else Path(lock).name
            self._break(
                f"{self._name} is no longer as locked in {where}:",
                *(f"  {line}" for line in found.lines),
                "If this is as it should be, write the lock again: pytest --shardviz-update,"
                " python -m shardviz check ... --update, or sv.lock(program).write(path).",
            )
        return self

    def locked(self, collectives: bool = True) -> Lock:
        """The lock of the subject as it is now.

        Args:
            collectives: whether the collectives of a Program or of Stages are locked as well.

        Raises:
            ProgramError: for a Report, which does not know all of it, and a program with an error.
        """
        try:
            return self._locked(collectives)
        except ContractError as error:
            raise ProgramError(str(error)) from None

    def _locked(self, collectives: bool) -> Lock:
        __tracebackhide__ = True
        if isinstance(self.subject, Audit):
            return lock_audit(self.subject)
        if self._plan is None:
            raise ProgramError("A report does not know all that a lock holds. Give the program.")
        return lock_plan(self._plan, self._report if collectives else None)

    # What is known of the subject.

    @cached_property
    def _name(self) -> str:
        if isinstance(self.subject, Audit):
            return f"the audit on {self.subject.mesh}"
        if isinstance(self.subject, Stages):
            return self.subject.program.name
        return self.subject.name if isinstance(self.subject, Program) else self.subject.program

    @property
    def _mesh(self) -> MeshSpec | None:
        return (self.subject.program if isinstance(self.subject, Stages) else self.subject).mesh

    @property
    def _requests(self) -> Sequence[Request]:
        """The layouts that were requested, where they are known."""
        if isinstance(self.subject, Audit):
            return tuple(self.subject.rows)
        found = self.subject.program if isinstance(self.subject, Stages) else self.subject
        return found.requests if isinstance(found, Program) else ()

    @cached_property
    def _plan(self) -> Plan | None:
        """The plan, where there is one or the subject can be planned."""
        found = self.subject.plan if isinstance(self.subject, Stages) else self.subject
        if isinstance(found, Program) and self.plan is not None:
            found = self.plan(found)
        return self._checked(found) if isinstance(found, Plan) else None

    @cached_property
    def _report(self) -> Report | None:
        """What was compiled; None for an audit or a plan."""
        if isinstance(self.subject, Program):
            return self._compiled(self.target)
        found = self.subject.report if isinstance(self.subject, Stages) else self.subject
        return self._checked(found) if isinstance(found, Report) else None

    def _compiled(self, target: Any) -> Report:
        assert self.compile is not None, "made without a compiler"
        if target == self.target and "_report" in self.__dict__:
            return self.__dict__["_report"]
        report = self.compile(self.subject, target)
        if report.error is not None and report.error.stage == "target":
            raise TargetError(report.error.message)
        return self._checked(report)

    def _checked(self, found: Any) -> Any:
        """A plan or report without an error."""
        if found.error is not None:
            self._break(f"There is nothing to check or lock of {self._name}. {found.error}")
        return found

    @cached_property
    def _found(self) -> _Found:
        """Its collectives."""
        if (report := self._report) is not None:
            if (early := self.stage == "partitioned") and report.collectives is not None:
                refuse_unknown_partitioning(report)
            some = report.partitioned if early else report.collectives
            if some is None:
                raise ProgramError(
                    f"The report of {self._name} ends before its {self.stage} stage."
                )
            who = "XLA's partitioner put in" if early else "compiled"
            return _Found(some, f"as {who} for {report.target}")
        if (plan := self._plan) is not None:
            return _Found(plan.collectives, "as Shardy estimates")
        raise ProgramError(
            "An audit knows arrays and no collectives. Give sv.expect the program that uses them."
        )

    @cached_property
    def _arrays(self) -> tuple[_Array, ...]:
        """Its arrays; of a program its arguments."""
        if self._requests:
            return tuple(_array(row) for row in self._requests)
        if isinstance(self.subject, Report):
            layouts = self._checked(self.subject).in_layouts.items()
            return tuple(_laid_out(name, layout, str(layout.spec)) for name, layout in layouts)
        plan = self._plan
        if plan is None:
            return ()
        ends = (op for op in plan.ops if op.kind == "argument")
        return tuple(_planned(op, plan.mesh) for op in ends)

    # Parts of the questions.

    def _axes(self, over: Any) -> tuple[str, ...]:
        """The mesh axes of `over`, checked."""
        if over is None:
            return ()
        words = str.split(over.replace(",", " ")) if isinstance(over, str) else over
        names: list[Any] = []
        if isinstance(words, (tuple, list)):
            names = limited(words, MAX_AXES, "The axes of over=", ProgramError)
        if not names:
            raise ProgramError(f"over= names mesh axes, such as 'data'; got {shown(over)}.")
        mesh = self._mesh or MeshSpec((), ())
        for name in names:
            if not isinstance(name, str) or name not in mesh.shape:
                raise ProgramError(
                    f"The mesh {mesh} has no axis {shown(name)}.{suggestion(name, mesh.shape)}"
                )
        return tuple(names)

    def _over(self, axes: tuple[str, ...]) -> list[Collective]:
        """The collectives over any of these axes; all where there are none."""
        some = self._found.collectives
        mesh = (self._report.mesh if self._report is not None else None) or self._mesh
        return [c for c in some if not axes or any(crosses(c, a, mesh) for a in axes)]

    def _at_most_memory(self, most: int) -> Expectation:
        __tracebackhide__ = True
        held, counted = self._held()
        if isinstance(self.subject, Program) and held <= most:
            report = self._compiled(self.target)
            held = needed_bytes(report.memory) or held
            counted = f"compiled for {report.target} it takes"
        if held > most:
            self._break(
                f"Expected {self._name} to take at most {bytes_text(most)} of each device's memory,"
                f" and {counted} {bytes_text(held)}.",
                *self._largest(),
                "Split the largest arrays over more axes, or raise the limit.",
            )
        return self

    def _too_much(self, some: list[Collective], limit: str, axes: tuple[str, ...]) -> NoReturn:
        __tracebackhide__ = True
        self._break(
            f"Expected at most {limit}{_over_words(axes)} in {self._name}, and there"
            f" are {bytes_text(total_bytes(some))} per device, {self._found.maker}:",
            *_lines(some),
            *self._advice(some, axes),
        )

    def _advice(self, some: list[Collective], axes: tuple[str, ...]) -> list[str]:
        """Which rules and specs put the axes there, and where to read on."""
        wanted = axes or tuple(dict.fromkeys(parent_axis(a) for c in some for a in c.mesh_axes))
        lines = [self._brought(axis) for axis in wanted[:SHOWN]]
        if self._report is None:
            lines.append(
                "This is an estimate, and XLA's partitioner may choose otherwise: expect the"
                " program itself for what is compiled."
            )
        lines.append(
            "sv.plan(program).why(value) says how an axis got to a value. Change that rule or spec,"
            " or constrain the value; or, if it should be there, the expectation."
        )
        return [line for line in lines if line]

    def _brought(self, axis: str) -> str:
        """Which arguments a mesh axis splits, and by which rules; `""` where that is not known."""
        found = [text for row in self._requests if (text := _split_by(row, axis))]
        return f"{axis} splits {joined(found, limit=SHOWN)}." if found else ""

    def _capacity(self, target: Any) -> tuple[int, str]:
        """Bytes of one device of a target, and the target in words."""
        if target is None and isinstance(self.subject, (Report, Stages)):
            known: Any = getattr(self._report, "roofline", None)
            if getattr(known, "capacity", None):
                return known.capacity, known.where
        if not isinstance(target, str) or not is_described(target):
            raise TargetError(
                "Whether something fits is known for described hardware, such as"
                f" 'tpu:v5p:8x8x16' or 'gpu:h100:2x8'; got {shown(target)}."
            )
        topology = Topology.parse(target)
        size = self._mesh.size if self._mesh is not None else topology.devices
        if size != topology.devices:
            raise TargetError(
                f"The mesh has {plural(size, 'device')} and {topology} has {topology.devices:,}."
                " Name hardware of as many, or use another mesh."
            )
        if topology.chip.device_bytes is None:
            raise TargetError(f"How much memory {topology.chip.title} has is not published.")
        return topology.chip.device_bytes, topology.title

    def _held(self) -> tuple[int, str]:
        """Bytes on each device, and what they are of, as the begin of a sentence."""
        if isinstance(self.subject, Audit):
            return self.subject.bytes_per_device, "its arrays alone take"
        if isinstance(self.subject, Program):
            return sum(row.held for row in self._arrays), "its arguments alone take"
        if self._report is not None:
            needed = needed_bytes(self._report.memory)
            if needed is None:
                raise TargetError(f"The compiler did not say how much memory {self._name} takes.")
            return needed, f"as compiled for {self._report.target} it takes"
        assert self._plan is not None
        ends = (op for op in self._plan.ops if op.kind != "op")
        size = sum(bytes_per_device(op, self._plan.mesh) for op in ends)
        return size, "its arguments and results alone, as planned, take"

    def _largest(self) -> list[str]:
        """A sentence on the arrays that take most of each device, where any are known."""
        rows = sorted(self._arrays, key=lambda row: -row.held)[:SHOWN]
        sizes = joined(f"{row.name} {bytes_text(row.held)}" for row in rows)
        return [f"The largest arrays: {sizes}."] if rows else []

    def _break(self, *lines: str) -> NoReturn:
        __tracebackhide__ = True
        raise ContractError("\n".join(lines))

    def __repr__(self) -> str:
        return f"Expectation({self._name})"


def crosses(collective: Collective, axis: str, mesh: MeshSpec | None) -> bool:
    """Whether a collective moves data between devices that differ along a mesh axis.

    One whose groups are not known counts, since it may.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh = make_mesh(data=2, model=2)
    >>> crosses(Collective("all-reduce", ("data",), 4), "model", mesh)
    False
    >>> diagonal = Collective("collective-permute", (), 4, groups=((0, 3), (3, 0)))
    >>> crosses(diagonal, "model", mesh)
    True
    """
    if collective.mesh_axes:
        return any(parent_axis(a) == axis for a in collective.mesh_axes)
    if not collective.groups or mesh is None:
        return True
    at = mesh.axis_names.index(axis)
    stride = math.prod(mesh.axis_sizes[at + 1 :])
    size = mesh.axis_sizes[at]
    return any(len({p // stride % size for p in group}) > 1 for group in collective.groups)


def _over_words(axes: tuple[str, ...]) -> str:
    return f" over {joined(axes, 'or')}" if axes else ""


def _lines(some: Sequence[Collective]) -> list[str]:
    """The largest collectives, folded by layer, each with its cause."""
    folds = fold_collectives(some)
    lines = []
    for one in folds[:SHOWN]:
        first = one.items[0]
        unknown = "" if first.mesh_axes else " (its groups are those of no mesh axes)"
        lines.append(f"  {fold_line(one)}{unknown}{f'. {first.cause}' if first.cause else ''}")
    more = len(folds) - SHOWN
    return [*lines, f"  … and {more:,} more kinds"] if more > 0 else lines


def _reasons(rows: Sequence[_Array]) -> list[str]:
    """The largest arrays that are not split, folded by layer, each with the reason."""
    folds = fold(rows, lambda row: row.name, lambda row: (row.bytes, row.reason))
    folds.sort(key=lambda one: -sum(row.bytes for row in one.items))
    lines = [
        f"  {one.count}{one.name} ({bytes_text(one.items[0].bytes)}): {one.items[0].reason}"
        for one in folds[:SHOWN]
    ]
    more = len(folds) - SHOWN
    return [*lines, f"  … and {more:,} more"] if more > 0 else lines


def _split_by(row: Request, axis: str) -> str:
    """`w (dimension 0: rule 2, embed → data)`, or `""` where the axis does not split it."""
    for dim, axes in enumerate(row.spec.dims if row.spec is not None else ()):
        if axis not in axes:
            continue
        how = "its own spec" if _pattern(row) is None else str(_pattern(row))
        if row.resolution is not None and not row.spec_wins:
            verdict = row.resolution.decisions[dim].deciding
            how = "its name"
            if verdict is not None:
                how = f"rule {verdict.rule + 1}, {row.resolution.rules[verdict.rule]}"
        return f"{row.path} (dimension {dim}: {how})"
    return ""


def _pattern(row: Request) -> str | None:
    """Of a table of paths the pattern that decides, in words; None for all else."""
    matched = getattr(row, "by_path", None)
    if matched is None or row.spec_wins:
        return None
    return "no pattern" if matched.winner is None else f"pattern {matched.winner + 1}"


def _array(row: Request) -> _Array:
    held = row.bytes_per_device or 0
    if row.layout is not None and row.layout.num_blocks > 1:
        return _Array(row.path, row.array.bytes, held, "")
    return _Array(row.path, row.array.bytes, held, _why_not_split(row))


def _why_not_split(row: Request) -> str:
    if row.problem:
        return row.problem
    if row.spec is None:
        return "nothing says how it is split."
    if (pattern := _pattern(row)) is not None:
        return f"{pattern} gives it {row.spec}."
    if row.resolution is None or row.spec_wins:
        return f"its spec is {row.spec}." if row.spec_wins else "it has no names and no spec."
    if row.spec.axes:
        return f"its spec is {row.spec}, over axes of size 1."
    named = [d for d in row.resolution.decisions if d.logical is not None]
    found = " ".join(row.resolution.explain_dimension(d.dimension) for d in named)
    return found or "its dimensions have no names."


def _laid_out(name: str, layout: Layout, spec: str) -> _Array:
    reason = "" if layout.num_blocks > 1 else f"its spec is {spec}."
    size = size_in_bytes(math.prod(layout.shape), layout.dtype)
    return _Array(name, size, layout.bytes_per_device, reason)


def _planned(op: PlannedOp, mesh: MeshSpec) -> _Array:
    reason = "" if group_size(op.spec.axes, mesh) > 1 else f"its spec is {op.spec}."
    return _Array(op.name, array_bytes(op.shape, op.dtype), bytes_per_device(op, mesh), reason)


def _percent(share: float) -> str:
    """Rounded down to a tenth, so that what is too little never reads as enough."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"
