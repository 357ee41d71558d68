"""Proposals: edits that may remove a collective. `changes.py` tries them.

Most proposals move one of the collective's mesh axes: off a dimension, to another
dimension, or onto an array that the axis does not split yet. Others sum once after a
loop instead of in every iteration.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from shardviz.advise.backend.edited import TracedValue, values_of
from shardviz.advise.backend.loop_sums import loop_sums, name_in_loop
from shardviz.advise.backend.trials import Trials
from shardviz.advise.backend.unreduced import product_sums, spec_of_variable
from shardviz.advise.edits import (
    CONSTRAINTS,
    CastBeforeLoop,
    ChangeRules,
    ConstrainArgument,
    Edit,
    OrderDevices,
    OutSpecs,
    SplitArgument,
    SplitResult,
    SumAfterLoop,
    SumUnreduced,
)
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
from shardviz.programs.backend.jaxpr_function import JaxprFunction
from shardviz.programs.backend.jaxprs import operations, users_line
from shardviz.programs.program import Program

_MOST_VALUES = 40
_CASTS = ("convert", "transpose", "reshape", "copy")
# The most arrays to search rule edits for.
_MOST_RULED = 3


@dataclass(frozen=True)
class Proposal:
    """Edits to try together.

    Attributes:
        edits: the edits.
        distance: how far the edited value is from the collective; 0 if the collective
            names that value.
        subject: the edited value. Only the best proposal per subject is kept.
    """

    edits: tuple[Edit, ...]
    distance: float
    subject: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class UnwantedCollective:
    """A collective to remove, with its program.

    Attributes:
        trials: runs trials of changed programs.
        collective: the collective, with its cause.
        plan: the program's plan.
    """

    trials: Trials
    collective: Collective
    plan: Plan

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the collective runs over, without axes of size 1."""
        known = [parent_axis(axis) for axis in self.collective.mesh_axes]
        axes = []
        for axis, size in self.trials.program.mesh.shape.items():
            # A collective whose axes are unknown may run over any axis.
            if size > 1 and (axis in known or not known):
                axes.append(axis)
        return tuple(axes)

    @cached_property
    def values(self) -> list[ValueName]:
        """The values that the collective moves or sums, and their readers."""
        names = [self.collective.operand]
        for member in (self.collective, *self.collective.members):
            if isinstance(member.cause, Cause):
                names += member.cause.values
        return [name for name in names if name is not None and name.code != "unknown"]

    @cached_property
    def sources(self) -> set[str]:
        """The source lines of the collective, its members and its values."""
        named = (self.collective, *self.collective.members, *self.values)
        return {value.source for value in named} - {""}

    @cached_property
    def is_written(self) -> bool:
        """Whether the collective is in the jaxpr, from user code or a gradient."""
        for member in self.collective.members or (self.collective,):
            names = [member.op.rpartition("/")[2]]
            if isinstance(member.cause, Cause) and member.cause.operation is not None:
                names.append(member.cause.operation.name)
            if not any(name in KIND_OF_PRIMITIVE for name in names):
                return False
        return True

    def distance(self, argument: str) -> float:
        """Returns an argument's distance: 0 if the collective names it, else 2."""
        for value in self.values:
            if value.is_argument and value.name == argument:
                return 0.0
        return 2.0

    def specs(self, shape: Sequence[int], spec: Spec) -> Iterator[Spec]:
        """Yields copies of a spec with the collective's axes moved or removed."""
        return variants(shape, spec, self.axes, self.trials.program.mesh)


def proposals(unwanted: UnwantedCollective) -> list[Proposal]:
    """Returns the proposals to try, nearest to the collective first."""
    proposed: list[Proposal] = []
    for generate in _SUM_PROPOSALS:
        proposed += generate(unwanted)
    # Other specs don't remove a collective that the user wrote in a shard_map.
    if not unwanted.is_written:
        for generate in _SPLIT_PROPOSALS:
            proposed += generate(unwanted)
    # The sort is stable: proposals at equal distance keep the order of their
    # generators.
    return sorted(proposed, key=lambda proposal: proposal.distance)


def variants(
    shape: Sequence[int], spec: Spec, axes: Sequence[str], mesh: MeshSpec
) -> Iterator[Spec]:
    """Yields copies of a spec with some mesh axes moved or removed.

    Each copy moves or removes one axis; the last one removes all of `axes`. Specs that
    don't fit the shape are skipped.

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
        variant = spec.with_dims(choice)
        with contextlib.suppress(ShardvizError):  # skip misfits
            lay_out(tuple(shape), variant, mesh)
            if choice != dims:
                yield variant


def _without(
    dims: Sequence[tuple[str, ...]], axes: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Removes some mesh axes from the entries of a spec."""
    return tuple(tuple(axis for axis in dim if axis not in axes) for dim in dims)


# --- splits ---------------------------------------------------------------------------


def _argument_proposals(unwanted: UnwantedCollective) -> Iterator[Proposal]:
    """Proposes other specs for arguments, and constraints on arguments.

    Arguments that occur once per layer of a model are changed together.
    """
    # Group arguments of equal shape and spec whose names differ only in numbers.
    groups: dict[tuple[str, tuple[int, ...], Spec], dict[str, int]] = {}
    factors = _other_factors(unwanted.plan)
    for number, request in enumerate(unwanted.trials.program.requests):
        array, spec = request.array, request.spec or Spec()
        key = (re.sub(r"\d+", "#", array.name), array.shape, spec)
        groups.setdefault(key, {})[array.name] = number
    for (pattern, shape, spec), names in [*groups.items()]:
        # Also group arguments that multiply the same value, such as the key and value
        # weights of a layer.
        together = {**names}
        for (_, other_shape, other_spec), other_names in groups.items():
            alike = (other_shape, other_spec) == (shape, spec)
            if alike and _share_a_factor(factors, names, other_names):
                together |= other_names
        if len(together) > len(names):
            pattern = " and ".join(sorted(together))
            groups.setdefault((pattern, shape, spec), together)
    for (pattern, shape, before), names in groups.items():
        distance = min(map(unwanted.distance, names))
        for spec in unwanted.specs(shape, before):
            splits = [SplitArgument(name, spec, before) for name in names]
            constraints = []
            for name, number in names.items():
                constraints.append(ConstrainArgument(name, number, spec))
            yield Proposal(tuple(splits), distance, (f"argument {pattern}",))
            # With a constraint, the argument keeps its spec; only its readers see the
            # new one.
            subject = (f"value {pattern}",)
            yield Proposal(tuple(constraints), distance + 0.25, subject)


def _share_a_factor(
    factors: dict[str, set[str]], names: Collection[str], others: Collection[str]
) -> bool:
    """Whether both groups have an argument that is multiplied with the same value."""
    first, second = set[str](), set[str]()
    for name in names:
        first |= factors.get(name, set())
    for name in others:
        second |= factors.get(name, set())
    return not first.isdisjoint(second)


def _other_factors(plan: Plan) -> dict[str, set[str]]:
    """Maps each factor of a matrix product to all values it is multiplied with."""
    by_name, factors = plan.by_name, dict[str, set[str]]()

    def before_casts(name: str) -> str:
        """Returns the value at the start of a chain of casts and transposes."""
        while name in by_name:
            op = by_name[name]
            if op.kind != "op" or op.opcode not in _CASTS or len(op.operands) != 1:
                break
            (name,) = op.operands
        return name

    for op in plan.ops:
        if op.opcode == "dot_general" and len(op.operands) == 2:
            left, right = map(before_casts, op.operands)
            factors.setdefault(left, set()).add(right)
            factors.setdefault(right, set()).add(left)
    return factors


def _rule_proposals(unwanted: UnwantedCollective) -> Iterator[Proposal]:
    """Proposes the smallest rule edits that give an argument another spec."""
    program, ruled = unwanted.trials.program, []
    for request in program.requests:
        by_name = request.array.logical is not None and program.rules is not None
        if by_name and not request.spec_wins:
            ruled.append(request)
    ruled.sort(key=lambda request: unwanted.distance(request.array.name))
    tables = set[str]()
    for request in ruled[:_MOST_RULED]:
        array = request.array
        # Users with a rule table would rather edit it than the spec of one array.
        distance = unwanted.distance(array.name) - 0.5
        for spec in unwanted.specs(array.shape, request.spec or Spec()):
            for remedy in request.remedies(spec):
                # Several arrays may lead to the same table.
                table = str(remedy.rules.pairs())
                if table in tables:
                    break
                if isinstance(remedy.action, TableAction):
                    tables.add(table)
                    edit = ChangeRules(remedy.rules, (remedy.action,))
                    yield Proposal((edit,), distance, (f"rule {array.name}",))
                    break


def _value_proposals(unwanted: UnwantedCollective) -> Iterator[Proposal]:
    """Proposes constraints on intermediate values of the program."""
    names = {(value.name, value.source) for value in unwanted.values}
    values = []
    for value in values_of(unwanted.trials.as_jaxpr):
        is_named = (value.operation, value.source) in names
        distance = 5.0
        if is_named:
            distance = 0.5
        elif value.source in unwanted.sources:
            distance = 1.5
        # Skip other subexpressions: the code has no name for their values.
        if value.variable or is_named or value.operation in CONSTRAINTS:
            values.append((distance, value))
    values.sort(key=lambda row: row[0])
    for distance, value in values[:_MOST_VALUES]:
        spec = planned_spec(unwanted.plan, value)
        subject = f"value {value.variable or value.operation} {value.source}"
        # A constraint to the current spec may help, too: it pins the value's sharding.
        for variant in (spec, *unwanted.specs(value.shape, spec)):
            yield Proposal((value.constrained(variant),), distance, (subject,))


def planned_spec(plan: Plan, value: TracedValue) -> Spec:
    """Returns the spec that propagation gives a value, without sub-axes."""
    for op in plan.without_error.ops:
        is_value = op.source == value.source and op.shape == value.shape
        if is_value and op.name.startswith(value.operation) and not op.backward:
            dims = []
            for dim in op.spec.padded(len(value.shape)):
                dims.append(tuple(axis for axis in dim if axis in plan.mesh.shape))
            return Spec(tuple(dims))
    return Spec(((),) * len(value.shape))


def _result_proposals(unwanted: UnwantedCollective) -> Iterator[Proposal]:
    """Proposes other specs for results."""
    traced, planned = unwanted.trials.traced, unwanted.plan.by_name
    requested = {}
    for output, spec in zip(traced.outputs, traced.out_specs, strict=True):
        requested[output.name] = spec
    for output, before in zip(traced.outputs, traced.out_specs, strict=True):
        spec = before
        if spec is None and output.name in planned:
            spec = planned[output.name].spec
        # A spec that the user requested for a result is more likely to be the cause.
        distance = 2.0 if before is None else 1.0
        for variant in unwanted.specs(output.shape, spec or Spec()):
            specs: OutSpecs = SpecsByName({**requested, output.name: variant})
            # If all leaves of the result are arrays, write the specs as a pytree, as
            # users do.
            if not (traced.out_tree.before or traced.out_tree.non_arrays):
                leaves = {**requested, output.name: variant}
                specs = traced.out_tree.unflatten([*leaves.values()])
            edit = SplitResult(output.name, variant, before, specs)
            yield Proposal((edit,), distance, (f"result {output.name}",))


# --- sums after loops -----------------------------------------------------------------


def _late_sum_proposals(unwanted: UnwantedCollective) -> Iterator[Proposal]:
    """Proposes one sum after a `shard_map` loop in place of one per iteration."""
    for waiting in loop_sums(_jaxpr_of(unwanted)):
        if {*unwanted.axes}.isdisjoint(waiting.axes):
            continue
        edits = dict[SumAfterLoop | CastBeforeLoop, None]()
        for equation in waiting.sums:
            line, axes = users_line(equation), waiting.axes
            if waiting.is_backward:
                edits[CastBeforeLoop(line, axes, name_in_loop(equation))] = None
            else:
                edits[SumAfterLoop(line, axes)] = None
        yield _loop_proposal(unwanted, [*edits])


def _unreduced_proposals(unwanted: UnwantedCollective) -> Iterator[Proposal]:
    """Proposes one sum after a loop on Explicit axes in place of one per iteration."""
    if set(unwanted.trials.program.mesh.axis_types) != {"Explicit"}:
        return
    for operation in operations(_jaxpr_of(unwanted)):
        for waiting in product_sums(operation.equation):
            if {*unwanted.axes}.isdisjoint(waiting.axes):
                continue
            edits = dict[SumUnreduced, None]()
            for equation in waiting.sums:
                name = name_in_loop(equation) if waiting.is_backward else ""
                spec = spec_of_variable(equation.outvars[0])
                line, axes = users_line(equation), waiting.axes
                edit = SumUnreduced(line, axes, spec, name, waiting.is_backward)
                edits[edit] = None
            yield _loop_proposal(unwanted, [*edits])


def _jaxpr_of(unwanted: UnwantedCollective) -> Any:
    return cast(JaxprFunction, unwanted.trials.as_jaxpr.fn).jaxpr


def _loop_proposal(
    unwanted: UnwantedCollective,
    edits: Sequence[SumAfterLoop | CastBeforeLoop | SumUnreduced],
) -> Proposal:
    lines = tuple(edit.source for edit in edits)
    distance = 0.25 if unwanted.sources.intersection(lines) else 3.0
    return Proposal(tuple(edits), distance, ("loop", *lines))


_Generator = Callable[[UnwantedCollective], Iterator[Proposal]]
_SUM_PROPOSALS: tuple[_Generator, ...] = (_late_sum_proposals, _unreduced_proposals)
_SPLIT_PROPOSALS: tuple[_Generator, ...] = (
    _rule_proposals,
    _argument_proposals,
    _value_proposals,
    _result_proposals,
)


# --- device orders --------------------------------------------------------------------


def order_edit(program: Program, report: Report) -> OrderDevices | None:
    """Returns the edit that gives a compiled program the best device order.

    Returns:
        The edit; None if no order is better or the target's topology is not described.
    """
    report = report.without_error
    target = getattr(report.roofline, "where", "")
    if report.mesh is None or not is_described(target):
        return None
    topology = Topology.parse(target)
    order = best_order(report.mesh, topology, report.collectives or ())
    if order is None:
        return None
    ids = order.mesh.device_ids
    return OrderDevices(program.mesh.replace(device_ids=ids, concrete=True))
