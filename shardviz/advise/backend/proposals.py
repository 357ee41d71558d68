"""Which edits of a program's shardings may remove a collective: none is tried here.

An edit moves a mesh axis of the collective: off a dimension, to another one, or onto an
array that it does not split yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardviz.advise.backend.edited import TracedValue, values_of
from shardviz.advise.backend.trials import Trials
from shardviz.advise.candidates import ARGUMENT, CONSTRAINTS, Edit, edit
from shardviz.axis_rules.remedies import TableAction
from shardviz.base.axis_parts import parent_axis
from shardviz.base.cause import Cause, ValueName
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KIND_OF_PRIMITIVE
from shardviz.base.errors import ShardvizError
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.compiled.orders import best_order
from shardviz.compiled.report import Report
from shardviz.hardware.topology import Topology, is_described
from shardviz.plans.plan import Plan
from shardviz.programs.backend.build_program import SpecsByName
from shardviz.programs.program import Program

_MOST_VALUES = 40
_MOST_RULED = 3  # arrays for which edits of the table are looked for


@dataclass(frozen=True)
class Proposal:
    """Edits to try together.

    Attributes:
        edits: the edits.
        far: how far what they change is from the collective; 0 for what it names.
        subject: what they change, whatever to: of proposals with one subject only the
            best is of interest.
    """

    edits: tuple[Edit, ...]
    far: float
    subject: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Wanted:
    """The collective that is to go, and the program that has it.

    Attributes:
        trials: tries changed programs.
        collective: the collective, with its cause.
        plan: the plan of the program.
    """

    trials: Trials
    collective: Collective
    plan: Plan

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of more than one device that it runs over."""
        split, known = [], [*map(parent_axis, self.collective.mesh_axes)]
        for axis, size in self.trials.program.mesh.shape.items():
            # Where they are not known it may be any.
            if size > 1 and (axis in known or not known):
                split.append(axis)
        return tuple(split)

    @cached_property
    def named(self) -> list[ValueName]:
        """What it and its members move or sum, and what needs that."""
        found = [self.collective.operand]
        for one in (self.collective, *self.collective.members):
            if isinstance(one.cause, Cause):
                found += one.cause.values
        return [one for one in found if one is not None and one.code != "unknown"]

    @cached_property
    def sources(self) -> set[str]:
        """The lines that it is about."""
        about = (self.collective, *self.collective.members, *self.named)
        return {one.source for one in about} - {""}

    @cached_property
    def is_written(self) -> bool:
        """Whether the program has it as an operation of a `shard_map`, or jax put it
        there for a gradient."""
        for part in self.collective.members or (self.collective,):
            names = [part.op.rpartition("/")[2]]
            if isinstance(part.cause, Cause) and part.cause.operation is not None:
                names.append(part.cause.operation.name)
            if not any(name in KIND_OF_PRIMITIVE for name in names):
                return False
        return True

    def far(self, name: str) -> float:
        """How far an argument is: whether it names that, or something else."""
        for one in self.named:
            if one.is_argument and one.name == name:
                return 0.0
        return 2.0

    def specs(self, shape: Sequence[int], spec: Spec) -> Iterator[Spec]:
        """Other specs of an array."""
        return variants(shape, spec, self.axes, self.trials.program.mesh)


#: Further makers of proposals. Files beside this one add theirs.
GENERATORS: list[Callable[[Wanted], Iterable[Proposal]]] = []


def proposals(wanted: Wanted) -> list[Proposal]:
    """What to try, the nearest to the collective first."""
    found: list[Proposal] = []
    generators = [*GENERATORS]
    # No split of an array removes a collective that the user wrote in a shard_map.
    if not wanted.is_written:
        generators += [_rules, _arguments, _values, _results]
    for generate in generators:
        found += generate(wanted)
    # Sorted stably: of the same distance, in the order of the generators.
    return sorted(found, key=lambda one: one.far)


def variants(
    shape: Sequence[int], spec: Spec, axes: Sequence[str], mesh: MeshSpec
) -> Iterator[Spec]:
    """The specs that differ in where some mesh axes are, nowhere included.

    Each axis is moved by itself, then all are taken off together.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh = make_mesh(data=2, model=2)
    >>> list(variants((4, 4), Spec.parse("data"), ["data"], mesh))
    [P(None, None), P(None, 'data')]
    """
    dims = spec.padded(len(shape))
    choices = []
    for axis in axes:
        without = _without(dims, (axis,))
        choices.append(without)
        for number, dim in enumerate(without):
            choices.append((*without[:number], (*dim, axis), *without[number + 1 :]))
    choices.append(_without(dims, axes))
    for choice in dict.fromkeys(choices):
        made = Spec(choice, frozenset(), spec.unreduced, spec.reduced)
        with contextlib.suppress(ShardvizError):  # it does not divide
            lay_out(tuple(shape), made, mesh)
            if choice != dims:
                yield made


def _without(dims: Any, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    kept = []
    for dim in dims:
        kept.append(tuple(axis for axis in dim if axis not in axes))
    return tuple(kept)


def _arguments(wanted: Wanted) -> Iterator[Proposal]:
    """Other specs of arguments, and constraints on them; of all layers at once."""
    groups: dict[Any, dict[str, int]] = {}
    readers = _other_factors(wanted.plan)
    for number, request in enumerate(wanted.trials.program.requests):
        array, spec = request.array, request.spec or Spec()
        alike = (re.sub(r"\d+", "#", array.name), array.shape, spec)
        groups.setdefault(alike, {})[array.name] = number
    for alike, names in [*groups.items()]:
        # Such as a layer's keys and values, which are projections of one value.
        together = {**names}
        for other, more in groups.items():
            shares = any(
                readers.get(name, set()) & readers.get(another, set())
                for name in names
                for another in more
            )
            if other[1:] == alike[1:] and shares:
                together |= more
        if len(together) > len(names):
            groups.setdefault((" and ".join(sorted(together)), *alike[1:]), together)
    for (pattern, shape, before), names in groups.items():
        far = min(map(wanted.far, names))
        for spec in wanted.specs(shape, before):
            other, constrained = [], []
            for name, number in names.items():
                other.append(edit("argument", array=name, spec=spec, before=before))
                value = TracedValue(ARGUMENT, name, "", shape, ((number, None),))
                constrained.append(constraint_on(value, spec))
            yield Proposal(tuple(other), far, (f"argument {pattern}",))
            # It comes as it is split, and all that reads it has it in the other way.
            yield Proposal(tuple(constrained), far + 0.25, (f"value {pattern}",))


def _other_factors(plan: Plan) -> dict[str, set[str]]:
    """What arguments are multiplied with in products, by their names."""
    named, factors = plan.by_name, dict[str, set[str]]()

    def origin(name: str) -> str:
        # Casts and the like have one operand.
        while (
            name in named
            and named[name].kind == "op"
            and len(named[name].operands) == 1
        ):
            if named[name].opcode not in ("convert", "transpose", "reshape", "copy"):
                break
            (name,) = named[name].operands
        return name

    for op in plan.ops:
        if op.opcode == "dot_general" and len(op.operands) == 2:
            left, right = map(origin, op.operands)
            factors.setdefault(left, set()).add(right)
            factors.setdefault(right, set()).add(left)
    return factors


def _rules(wanted: Wanted) -> Iterator[Proposal]:
    """The smallest edits of the table with which rules split arguments otherwise."""
    program, ruled = wanted.trials.program, []
    for request in program.requests:
        by_name = request.array.logical is not None and program.rules is not None
        if by_name and not request.spec_wins:
            ruled.append(request)
    ruled.sort(key=lambda request: wanted.far(request.array.name))
    tables = set[str]()
    for request in ruled[:_MOST_RULED]:
        array = request.array
        # People who have rules edit these rather than one array.
        far = wanted.far(array.name) - 0.5
        for spec in wanted.specs(array.shape, request.spec or Spec()):
            for remedy in request.remedies(spec):
                # Several arrays may ask for the same table.
                table = str(remedy.rules.pairs())
                if table in tables:
                    break
                if isinstance(remedy.action, TableAction):
                    tables.add(table)
                    made = edit("rule", rules=remedy.rules, steps=(remedy.action,))
                    yield Proposal((made,), far, (f"rule {array.name}",))
                    break


def _values(wanted: Wanted) -> Iterator[Proposal]:
    """Constraints on values inside the program."""
    names = {(one.name, one.source) for one in wanted.named}
    found = []
    for value in values_of(wanted.trials.as_jaxpr):
        is_named = (value.name, value.source) in names
        far = 0.5 if is_named else 1.5 if value.source in wanted.sources else 5.0
        # Another part of an expression has no name in the code.
        if value.variable or is_named or value.name in CONSTRAINTS:
            found.append((far, value))
    found.sort(key=lambda one: one[0])
    for far, value in found[:_MOST_VALUES]:
        spec, name = planned_spec(wanted.plan, value), value.variable or value.name
        # To ask for the very split that it has may keep others from changing it.
        for changed in (spec, *wanted.specs(value.shape, spec)):
            made = constraint_on(value, changed)
            yield Proposal((made,), far, (f"value {name} {value.source}",))


def constraint_on(value: TracedValue, spec: Spec) -> Edit:
    """The edit that constrains a value to a spec."""
    fields = value._asdict() | {"value": value.name, "spec": spec}
    del fields["name"]
    return edit("constraint", **fields)


def planned_spec(plan: Plan, value: TracedValue) -> Spec:
    """How the propagation splits a value, with axes as a whole alone."""
    for op in plan.ops:
        same = op.source == value.source and op.shape == value.shape
        if same and op.name.startswith(value.name) and not op.backward:
            dims = []
            for dim in op.spec.padded(len(value.shape)):
                dims.append(tuple(axis for axis in dim if axis in plan.mesh.shape))
            return Spec(tuple(dims))
    return Spec(((),) * len(value.shape))


def _results(wanted: Wanted) -> Iterator[Proposal]:
    """Other specs of results."""
    traced, planned = wanted.trials.traced, wanted.plan.by_name
    given = {}
    for output, spec in zip(traced.outputs, traced.out_specs, strict=True):
        given[output.name] = spec
    for output, before in zip(traced.outputs, traced.out_specs, strict=True):
        spec = before
        if spec is None and output.name in planned:
            spec = planned[output.name].spec
        # One that is requested may be why.
        far = 2.0 if before is None else 1.0
        for changed in wanted.specs(output.shape, spec or Spec()):
            specs: Any = SpecsByName({**given, output.name: changed})
            # As users write them, where the results are all that the function returns.
            if not (traced.out_tree.before or traced.out_tree.others):
                specs = traced.out_tree.unflatten([*specs.values()])
            fields = {"spec": changed, "before": before, "out_specs": specs}
            made = edit("result", result=output.name, **fields)
            yield Proposal((made,), far, (f"result {output.name}",))


def order_edit(program: Program, report: Report) -> Edit | None:
    """The edit that gives a compiled program the best order of devices.

    None where none is better, or `report` is of no described devices.
    """
    where = getattr(report.roofline, "where", "")
    if report.mesh is None or not is_described(where):
        return None
    found = best_order(report.mesh, Topology.parse(where), report.collectives or ())
    if found is None:
        return None
    mesh = program.mesh.replace(device_ids=found.mesh.device_ids, concrete=True)
    return edit("device order", mesh=mesh)
