"""The choices of a search: meshes, specs of arguments, rules."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterator, Sequence
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
#: For each choice the number of the chosen option; 0 is the present one.
Point = tuple[int, ...]
_SMALL = 1000  # arrays with a thousandth of all bytes or less are not varied


class Choice(NamedTuple):
    """One choice of a search.

    Attributes:
        kind: one of `OVER`.
        options: meshes, specs, mesh axes or edits; the first is None for no change.
        names: the arrays that share a spec, or the logical name of a rule.
    """

    kind: str
    options: tuple[Any, ...]
    names: tuple[str, ...] = ()


def edits_of(program: Program, choices: Sequence[Choice], point: Point) -> list[Edit]:
    """The edits of a point: one for each array, and one for all rules."""
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
                # Among arrays that share a spec, some may have it already.
                before = specs[name]
                if before is None or not before.equivalent(spec):
                    edits.append(SplitArgument(name, spec, before))
    # One edit for all rules, since each table replaces the one before.
    if steps and rules is not None:
        edits.append(ChangeRules(rules, tuple(steps)))
    return edits


def _specs_now(program: Program) -> dict[str, Any]:
    """The spec of each argument, its own or that of the rules."""
    return {request.array.name: request.spec for request in program.requests}


def _with_rule(rules: Rules, new: Rule) -> tuple[Rules, TableAction]:
    """The table with one rule for a logical name, and the action that makes it."""
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
    """The choices, the mesh first. `sv.search` explains `over`.

    Raises:
        ProgramError: for something that cannot vary.
    """
    if over is None:
        over = ("mesh", "arguments" if program.rules is None else "rules")
    now = _specs_now(program)
    for variation in over:
        if variation not in (*OVER, *now) or (
            variation == "rules" and program.rules is None
        ):
            raise ProgramError(
                f"A search varies {listed(OVER)} (rules where the program has them), or"
                f" arguments by name; got {shown(variation)}."
            )
    mesh, meshes = program.mesh, []
    axes = list(dict(_split(mesh)))
    # If the user chose device ids, other sizes would move devices.
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
            # As all of them are now is the first option already.
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


def _meshes(mesh: MeshSpec) -> list[MeshSpec]:
    """The mesh with other sizes of its axes, in each order of those above 1."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    sizes = [n for n in range(1, mesh.size + 1) if mesh.size % n == 0]
    # The present mesh comes first, and is not returned.
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
    """All ways to split so many dimensions: each axis splits one of them, or none."""
    for dims in itertools.product(range(-1, rank), repeat=len(axes)):
        entries: list[tuple[str, ...]] = [()] * rank
        for axis, dim in zip(axes, dims, strict=True):
            if dim >= 0:
                entries[dim] = (*entries[dim], axis)
        yield Spec(tuple(entries))


def _alike(program: Program, plan: Plan, over: Sequence[str]) -> list[list[ArraySpec]]:
    """The arguments that may vary, in groups that share a spec.

    Arguments share a spec if they have the same shape, and either are first combined
    with the same values, like the weights of queries and keys, or their paths end
    alike, like those of the layers of a list or of a parameter and its moments.
    """
    total = sum(map(operator.attrgetter("bytes"), program.arrays))
    groups: list[list[ArraySpec]] = []
    for array in program.arrays:
        # Scales and biases would double the choices, and decide nothing.
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
        # Without the argument that it begins with, and numbers of layers; the end first.
        words = re.findall(r"\b[^\W\d]\w*", name)
        paths.append(words[:0:-1] or words)
    ends_alike = all(map(operator.eq, *paths))
    return ends_alike or _first_use(plan, first) == _first_use(plan, second)


def _first_use(plan: Plan, name: str) -> tuple[str, ...]:
    """The first operation that combines a value with others, and these others."""
    for op in plan.ops:
        if op.kind == "op" and name in op.operands:
            operands = [other for other in op.operands if other != name]
            # Conversions and copies do not show its role.
            return (op.opcode, "", *operands) if operands else _first_use(plan, op.name)
    return ("", name)
