"""The space of a search: choices of meshes, argument specs, rules and options."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from shardviz.advise.edits import ChangeMesh, ChangeRules, Edit, SplitArgument
from shardviz.axis_rules.matching import without_size_one
from shardviz.axis_rules.remedies import AddLine, RetargetLine, TableAction
from shardviz.axis_rules.rules import Rule, Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program

OVER = ("mesh", "arguments", "rules", "donate", "remat", "device order")
#: The index of the chosen option for each choice; 0 is the current state.
Point = tuple[int, ...]
# Arrays of at most 1/1000 of all bytes are not varied.
_SMALL = 1000


class Choice(NamedTuple):
    """One dimension of the search space.

    Attributes:
        kind: one of `OVER`.
        options: meshes, specs, tuples of mesh axes, or edits; None means no change.
        names: the arrays that share a spec, or the logical name of a rule.
    """

    kind: str
    options: tuple[Any, ...]
    names: tuple[str, ...] = ()


def edits_of(program: Program, choices: Sequence[Choice], point: Point) -> list[Edit]:
    """Returns the edits of a point: one per array, and one for all rules."""
    edits: list[Edit] = []
    steps: list[TableAction] = []
    rules, mesh = program.rules, program.mesh
    specs = _specs_now(program)
    for choice, number in zip(choices, point, strict=True):
        option = choice.options[number]
        if option is None:
            continue
        if choice.kind == "mesh":
            mesh = option
            edits.append(ChangeMesh(mesh))
        # An axis of size 1 splits nothing, so no edit names one.
        elif choice.kind == "rules" and rules is not None:
            axes = option and tuple(axis for axis in option if mesh.shape[axis] > 1)
            rules, step = _with_rule(rules, Rule(choice.names[0], axes))
            steps.append(step)
        elif choice.kind in ("donate", "remat"):
            edits.append(option)
        else:
            spec = without_size_one(option, mesh)
            for name in choice.names:
                # Some arrays of the group may already have the spec.
                before = specs[name]
                if before is None or not before.equivalent(spec):
                    edits.append(SplitArgument(name, spec, before))
    # A single edit for all rules, because a new table replaces the previous one.
    if steps and rules is not None:
        edits.append(ChangeRules(rules, tuple(steps)))
    return edits


def _specs_now(program: Program) -> dict[str, Any]:
    """Returns the current spec of each argument: its own, or the one from the rules."""
    return {request.array.name: request.spec for request in program.requests}


def _with_rule(rules: Rules, new: Rule) -> tuple[Rules, TableAction]:
    """Sets a rule in a table; returns the new table, and the change as an action."""
    lines = rules.by_name.get(new.logical, ())
    table = [rule for rule in rules if rule.logical != new.logical]
    place = lines[0] if lines else len(table)
    table.insert(place, new)
    step: TableAction = AddLine(rules.entries, place, new)
    if lines:
        step = RetargetLine(rules.entries, place, new)
    return Rules(tuple(table)), step


def choices_of(
    program: Program, plan: Plan, over: Sequence[str] | None
) -> tuple[Choice, ...]:
    """Returns the choices of a search, the mesh first; `sv.search` explains `over`.

    Raises:
        ProgramError: if `over` names something that cannot be varied.
    """
    if over is None:
        over = ("mesh", "arguments" if program.rules is None else "rules")
    now = _specs_now(program)
    # An argument that holds several arrays stands for all of them.
    over = [name for variation in over for name in _inside(variation, now)]
    for variation in over:
        if variation not in (*OVER, *now) or (
            variation == "rules" and program.rules is None
        ):
            raise ProgramError(
                f"A search varies {listed(OVER)} (rules only if the program has them),"
                f" or arrays given by name: {listed(now)}; got {shown(variation)}."
            )
    mesh, meshes = program.mesh, []
    axes = list(dict(_split(mesh)))
    # If the user chose device ids, other axis sizes would move devices.
    if "mesh" in over and mesh.ids_are_positions:
        meshes, axes = _meshes(mesh), list(mesh.axis_names)
    choices = [Choice("mesh", (None, *meshes))]
    for group in _alike(program, plan, over):
        names, before = [], []
        for array in group:
            names.append(array.name)
            before.append(now[array.name])
        options: list[Spec | None] = [None]
        for spec in _specs(group[0].rank, axes):
            # The current specs are already the first option.
            if not all(map(spec.equivalent, before)):
                options.append(spec)
        choices.append(Choice("arguments", tuple(options), tuple(names)))
    if "rules" in over:
        logical: dict[str, None] = {}
        for array in program.arrays:
            if array.spec is None:
                logical.update(dict.fromkeys(filter(None, array.logical or ())))
        for name in logical:
            choices.append(Choice("rules", (None, (), *zip(axes)), (name,)))
    return tuple(choices)


def _inside(variation: str, names: Iterable[str]) -> list[str]:
    """Returns the names of the arrays in an argument, or the variation itself.

    >>> _inside("params", ["params.w", "params[0]", "x"]), _inside("mesh", ["x"])
    (['params.w', 'params[0]'], ['mesh'])
    """
    starts = (f"{variation}.", f"{variation}[")
    return [name for name in names if name.startswith(starts)] or [variation]


def _meshes(mesh: MeshSpec) -> list[MeshSpec]:
    """Returns all other meshes with the same devices and axis names."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    sizes = [n for n in range(1, mesh.size + 1) if mesh.size % n == 0]
    # The current mesh is the first entry, and is not returned.
    meshes = {_split(mesh): mesh}
    for names in itertools.permutations(mesh.axis_names):
        for split_sizes in itertools.product(sizes, repeat=len(names)):
            if math.prod(split_sizes) == mesh.size:
                new_mesh = MeshSpec(
                    names, split_sizes, tuple(map(types.__getitem__, names))
                )
                meshes.setdefault(_split(new_mesh), new_mesh)
    return list(meshes.values())[1:]


def _split(mesh: MeshSpec) -> tuple[tuple[str, int], ...]:
    return tuple(item for item in mesh.shape.items() if item[1] > 1)


def _specs(rank: int, axes: Sequence[str]) -> Iterator[Spec]:
    """Yields all specs of a rank in which each axis splits at most one dimension."""
    for dims in itertools.product(range(-1, rank), repeat=len(axes)):
        entries: list[tuple[str, ...]] = [()] * rank
        for axis, dim in zip(axes, dims, strict=True):
            if dim >= 0:
                entries[dim] = (*entries[dim], axis)
        yield Spec(tuple(entries))


def _alike(program: Program, plan: Plan, over: Sequence[str]) -> list[list[ArraySpec]]:
    """Groups the arguments to vary; all arguments of a group share a spec.

    Arguments are in the same group if they have the same shape and the same role. They
    have the same role if they are first combined with the same values, like query and
    key weights, or if their paths end alike, like the layers in a list, or a parameter
    and its moments.
    """
    total = sum(map(operator.attrgetter("bytes"), program.arrays))
    groups: list[list[ArraySpec]] = []
    for array in program.arrays:
        # Scales and biases would add many choices without affecting the result.
        large = array.bytes * _SMALL > total and "arguments" in over
        if not array.rank or not (large or array.name in over):
            continue
        for group in groups:
            alike = any(_same_role(plan, other.name, array.name) for other in group)
            if alike and group[0].shape == array.shape:
                group.append(array)
                break
        else:
            groups.append([array])
    return groups


def _same_role(plan: Plan, first: str, second: str) -> bool:
    paths = []
    for name in (first, second):
        # The words of the path in reverse, without the argument's name and layer
        # numbers.
        words = re.findall(r"\b[^\W\d]\w*", name)
        paths.append(words[:0:-1] or words)
    ends_alike = all(map(operator.eq, *paths))
    return ends_alike or _first_use(plan, first) == _first_use(plan, second)


def _first_use(plan: Plan, name: str) -> tuple[str, ...]:
    """Finds the first operation that combines a value with others.

    Returns the opcode and the other operands.
    """
    for op in plan.ops:
        if op.kind == "op" and name in op.operands:
            operands = [other for other in op.operands if other != name]
            # Skip conversions and copies, which do not show the value's role.
            return (op.opcode, "", *operands) if operands else _first_use(plan, op.name)
    return ("", name)
