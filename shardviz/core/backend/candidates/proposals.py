"""Which edits of a program's shardings may remove a collective: none is tried here.

An edit moves a mesh axis of the collective: off a dimension, to another one, or onto an
array that it does not split yet. The arrays and values nearest to the collective come
first: what it moves or sums, what needs that, what stands on the same line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.tracing.edited import TracedValue, values_of
from shardviz.core.errors import ShardvizError
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.remedies import Kind
from shardviz.core.program.candidates import Edit, edit
from shardviz.core.program.cause import Cause, ValueName
from shardviz.core.program.plan import Plan
from shardviz.core.program.report import Collective

_MOST_VALUES = 40
_MOST_RULED = 3  # arrays for which edits of the table are looked for
_RULE_EDITS = (Kind.RULE_NAME, Kind.MOVE, Kind.AXES, Kind.ADD, Kind.REMOVE)


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

    def with_other(self, other: Proposal) -> Proposal:
        """Both at once."""
        return Proposal(
            self.edits + other.edits,
            self.far + other.far + 1,
            tuple(sorted({*self.subject, *other.subject})),
        )


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

    @property
    def mesh(self) -> MeshSpec:
        """The mesh of the program."""
        return self.trials.program.mesh

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of more than one device that it runs over."""
        known = self.mesh.shape
        axes = [a for a in self.collective.mesh_axes if known.get(a, 1) > 1]
        # Where they are not known it may be any.
        return tuple(axes) or tuple(a for a, size in known.items() if size > 1)

    @property
    def causes(self) -> list[Cause]:
        """Why it is there; of a combined one why each member is."""
        causes = [self.collective.cause]
        causes += [member.cause for member in self.collective.members]
        return [cause for cause in causes if isinstance(cause, Cause)]

    @property
    def values_named(self) -> list[ValueName]:
        """What it moves or sums, and what needs it."""
        named: list[ValueName | None] = [self.collective.operand]
        for cause in self.causes:
            named += [cause.operand, cause.wanted_by, cause.operation]
        return [one for one in named if one is not None and one.code != "unknown"]

    @property
    def sources(self) -> set[str]:
        """The lines that it is about."""
        lines = {self.collective.source, *(one.source for one in self.values_named)}
        lines |= {member.source for member in self.collective.members}
        return lines - {""}


#: Further makers of proposals. Files beside this one add theirs.
GENERATORS: list[Callable[[Wanted], Iterable[Proposal]]] = []


def proposals(wanted: Wanted) -> list[Proposal]:
    """What to try, the nearest to the collective first."""
    found: list[Proposal] = []
    for generate in (*GENERATORS, _arguments, _values, _results):
        found += generate(wanted)
    # Sorted stably: of the same distance, in the order of the generators.
    found.sort(key=lambda one: one.far)
    return found


def variants(
    shape: Sequence[int], spec: Spec, axes: Sequence[str], mesh: MeshSpec
) -> Iterator[Spec]:
    """The specs that differ in where some mesh axes are, nowhere included.

    Each axis is moved by itself, then all are taken off together.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh = make_mesh(data=2, model=2)
    >>> list(variants((4, 4), Spec.parse("data"), ["data"], mesh))
    [P(None, None), P(None, 'data')]
    """
    dims = spec.padded(len(shape))
    seen = {dims}
    choices: list[tuple[tuple[str, ...], ...]] = []
    for axis in axes:
        without = tuple(_without(dim, (axis,)) for dim in dims)
        choices.append(without)
        for number, dim in enumerate(without):
            choices.append((*without[:number], (*dim, axis), *without[number + 1 :]))
    choices.append(tuple(_without(dim, axes) for dim in dims))
    # The order of two axes on one dimension decides on which device a shard is.
    for number, dim in enumerate(dims):
        if len(dim) > 1:
            choices.append((*dims[:number], dim[::-1], *dims[number + 1 :]))
    for choice in choices:
        if choice in seen:
            continue
        seen.add(choice)
        made = Spec(choice, frozenset(), spec.unreduced, spec.reduced)
        try:
            lay_out(tuple(shape), made, mesh)
        except ShardvizError:
            continue  # it does not divide
        yield made


def _without(dim: tuple[str, ...], axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in dim if axis not in axes)


def _arguments(wanted: Wanted) -> Iterator[Proposal]:
    """Other specs of arguments: of those that are alike in all layers at once."""
    program, far = wanted.trials.program, _distances(wanted)
    groups: dict[Any, list[Any]] = {}
    for request in program.requests:
        array, spec = request.array, request.spec or Spec()
        alike = (re.sub(r"\d+", "#", array.name), array.shape, spec)
        groups.setdefault(alike, []).append(request)
    nearest = sorted(
        groups.items(), key=lambda item: min(far(one.array.name) for one in item[1])
    )
    ruled = 0
    for (pattern, shape, spec), requests in nearest:
        distance = min(far(one.array.name) for one in requests)
        by_rules = requests[0].array.logical is not None and not requests[0].spec_wins
        by_rules = by_rules and program.rules is not None and ruled < _MOST_RULED
        ruled += by_rules
        for changed in variants(shape, spec, wanted.axes, wanted.mesh):
            edits = []
            for one in requests:
                name = one.array.name
                edits.append(edit("argument", array=name, spec=changed, before=spec))
            yield Proposal(tuple(edits), distance, (f"argument {pattern}",))
            if by_rules:
                yield from _rules(requests[0], changed, distance)


def _rules(request: Any, spec: Spec, distance: float) -> Iterator[Proposal]:
    """The smallest edit of the table that splits an array so."""
    for remedy in request.remedies(spec):
        if all(step.kind in _RULE_EDITS for step in remedy.steps):
            made = edit("rule", rules=remedy.rules, steps=remedy.steps)
            # People who have rules edit these rather than one array.
            yield Proposal((made,), distance - 0.5, (f"rule {request.array.name}",))
            return


def _distances(wanted: Wanted) -> Callable[[str], float]:
    """How far each argument and result is: named, read on a line of it, or anything."""
    near = set()
    for op in wanted.plan.ops:
        if op.source in wanted.sources or op.name == wanted.collective.value:
            near.update(op.operands)
        if op.kind == "result" and near.intersection(op.operands):
            near.add(op.name)
    named = {one.name for one in wanted.values_named if one.is_argument}
    return lambda name: 0.0 if name in named else 1.0 if name in near else 4.0


def _values(wanted: Wanted) -> Iterator[Proposal]:
    """Constraints on values inside the program."""
    names = {(one.name, one.source) for one in wanted.values_named}
    values = values_of(wanted.trials.as_jaxpr)
    named = [v.number for v in values if (v.name, v.source) in names]
    named = named or [v.number for v in values if v.source in wanted.sources]

    def far(value: TracedValue) -> float:
        if (value.name, value.source) in names:
            return 0.5
        away = min((abs(value.number - number) for number in named), default=0)
        # On its line, or a few operations from it.
        return 1.5 + min(away, 40) * (0.25 if value.source in wanted.sources else 0.5)

    # What stands in no place of the code cannot be pasted there.
    usable = [v for v in values if v.places]
    usable = [v for v in usable if v.is_read or (v.name, v.source) in names]
    for value in sorted(usable, key=far)[:_MOST_VALUES]:
        spec = planned_spec(wanted.plan, value)
        for changed in (spec, *variants(value.shape, spec, wanted.axes, wanted.mesh)):
            made = constraint_on(value, changed)
            subject = f"value {value.variable or value.name} {value.source}"
            yield Proposal((made,), far(value), (subject,))


def constraint_on(value: TracedValue, spec: Spec) -> Edit:
    """The edit that constrains a value to a spec."""
    return edit(
        "constraint",
        value=value.name,
        variable=value.variable,
        source=value.source,
        spec=spec,
        places=value.places,
    )


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
    """Other specs of results; of a state that comes back, of its argument as well."""
    trials, planned = wanted.trials, {op.name: op for op in wanted.plan.ops}
    far = _distances(wanted)
    for output, given in zip(
        trials.traced.outputs, trials.traced.out_specs, strict=True
    ):
        spec = given
        if spec is None and output.name in planned:
            spec = planned[output.name].spec
        spec = spec or Spec()
        # No result is what the collective names, but one that is requested may be why.
        distance = max(1.0, far(output.name)) + (given is None)
        for changed in variants(output.shape, spec, wanted.axes, wanted.mesh):
            made = edit("result", result=output.name, spec=changed, before=given)
            yield Proposal((made,), distance, (f"result {output.name}",))
