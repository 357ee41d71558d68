"""What a search may vary of a program: meshes, specs of arguments, rules."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.remedies import Kind, Step
from shardviz.core.layout.rules.rules import Rule, Rules
from shardviz.core.program.candidates import Edit, edit
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program

OVER = ("mesh", "arguments", "rules", "device order")
#: For each choice the number of the option that is taken; 0 is how it is now.
Point = tuple[int, ...]
_SMALL = 1000  # arrays that have a thousandth of all bytes or less stay as they are


class Choice(NamedTuple):
    """One thing that may vary, of a kind of `OVER`.

    Attributes:
        options: meshes, Specs, or mesh axes of a logical name; the first, None, is how
            it is now.
        names: the arrays that share a spec, or the logical name.

    >>> Choice("rules", (None, (), ("model",)), ("mlp",)).options[2]
    ('model',)
    """

    kind: str
    options: tuple[Any, ...]
    names: tuple[str, ...] = ()


def edits_of(program: Program, choices: Sequence[Choice], point: Point) -> list[Edit]:
    """What a point changes of a program, one edit for all rules."""
    edits, steps, rules = [], [], program.rules
    known = {array.name: array.spec for array in program.arrays}
    for choice, number in zip(choices, point, strict=True):
        option = choice.options[number]
        if number == 0:
            continue
        if choice.kind == "mesh":
            edits.append(edit("mesh", mesh=option))
        elif choice.kind == "rules" and rules is not None:
            rules, step = _with_rule(rules, Rule(choice.names[0], option))
            steps.append(step)
        for name in choice.names if choice.kind == "arguments" else ():
            before = known[name]
            if before is None or not before.equivalent(option):
                edits.append(edit("argument", array=name, spec=option, before=before))
    if steps:
        edits.append(edit("rule", rules=rules, steps=tuple(steps)))
    return edits


def names_unsplit(edits: Sequence[Edit], mesh: MeshSpec) -> bool:
    """Whether edits name an axis of size 1, which splits nothing: others say the same."""
    axes = []
    for one in edits:
        if one.code == "argument":
            axes += one.fields["spec"].axes
        for step in one.fields.get("steps", ()):
            axes += step.new.axes
    return any(mesh.shape[axis] == 1 for axis in axes)


def choices_of(
    program: Program, plan: Plan, over: Sequence[str] | None
) -> tuple[Choice, ...]:
    """What varies; the mesh first, where it does. `sv.search` explains `over`.

    Raises:
        ProgramError: for what cannot vary.
    """
    if over is None:
        over = ("mesh", "arguments" if program.rules is None else "rules")
    known = (*OVER, *(array.name for array in program.arrays))
    for one in over:
        if one not in known or (one == "rules" and program.rules is None):
            raise ProgramError(
                f"A search varies {listed(OVER)} (rules where the program has them), or"
                f" arguments by name; got {shown(one)}."
            )
    choices, mesh = [], program.mesh
    axes = [axis for axis in mesh.axis_names if mesh.shape[axis] > 1]
    # Ids that somebody chose say where each device is, whatever the sizes.
    if "mesh" in over and mesh.ids_are_positions:
        choices.append(Choice("mesh", (None, *_meshes(mesh))))
        axes = list(mesh.axis_names)
    now = {array.name: array.spec for array in program.arrays}
    for rank, names in _alike(program, plan, over):
        options: list[Spec | None] = [None]
        for spec in _specs(rank, axes):
            # As it is now is the first option already.
            before = [now[name] for name in names]
            if not all(one is not None and one.equivalent(spec) for one in before):
                options.append(spec)
        choices.append(Choice("arguments", tuple(options), names))
    if "rules" in over:
        found = (array.logical or () for array in program.arrays if array.spec is None)
        targets = (None, (), *((axis,) for axis in axes))
        for name in dict.fromkeys(itertools.chain.from_iterable(found)):
            if name:
                choices.append(Choice("rules", targets, (name,)))
    return tuple(choices)


def _meshes(mesh: MeshSpec) -> Iterator[MeshSpec]:
    """The mesh with other sizes of its axes, in each order of those above 1."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    sizes = [n for n in range(1, mesh.size + 1) if mesh.size % n == 0]
    seen = {tuple(item for item in mesh.shape.items() if item[1] > 1)}
    for names in itertools.permutations(mesh.axis_names):
        for some in itertools.product(sizes, repeat=len(names)):
            split = tuple(item for item in zip(names, some, strict=True) if item[1] > 1)
            if math.prod(some) == mesh.size and split not in seen:
                seen.add(split)
                yield MeshSpec(names, some, tuple(types[name] for name in names))


def _specs(rank: int, axes: Sequence[str]) -> Iterator[Spec]:
    """All ways to split so many dimensions: each axis splits one of them, or none."""
    for dims in itertools.product(range(-1, rank), repeat=len(axes)):
        entries: list[tuple[str, ...]] = [()] * rank
        for axis, dim in zip(axes, dims, strict=True):
            if dim >= 0:
                entries[dim] = (*entries[dim], axis)
        yield Spec(tuple(entries))


def _alike(
    program: Program, plan: Plan, over: Sequence[str]
) -> list[tuple[int, tuple[str, ...]]]:
    """Rank and names of the arguments that may vary, those that share a spec together.

    They share one where they have one shape, and either meet the same values first, as
    the weights of queries and keys, or have one path below their argument, as layers of
    a list and what an optimizer keeps of a parameter.
    """
    total, groups = sum(array.bytes for array in program.arrays), []
    paths = {_path(array.name) for array in program.arrays}
    for array in program.arrays:
        large = array.bytes * _SMALL > total and "arguments" in over
        if not array.rank or not (large or array.name in over):
            continue
        path = _path(array.name)
        ends = [path[i:] for i in range(len(path) - 1, -1, -1)]
        roles = {
            next(end for end in ends if end in paths),
            _first_use(plan, array.name),
        }
        for shape, others, names in groups:
            if shape == array.shape and not others.isdisjoint(roles):
                others |= roles
                names.append(array.name)
                break
        else:
            groups.append((array.shape, roles, [array.name]))
    return [(len(shape), tuple(names)) for shape, _, names in groups]


def _path(name: str) -> tuple[str, ...]:
    """The words of a name below its argument, without numbers of layers."""
    words = [word for word in re.findall(r"\w+", name) if not word.isdigit()]
    return tuple(words[1:] or words)


def _first_use(plan: Plan, name: str) -> tuple[str, ...]:
    """The operation that a value first meets others in, and these others."""
    for op in plan.ops:
        if op.kind == "op" and name in op.operands:
            others = [other for other in op.operands if other != name]
            # What only converts or moves it says nothing of its role.
            return (op.opcode, "", *others) if others else _first_use(plan, op.name)
    return ("", name)


def _with_rule(rules: Rules, new: Rule) -> tuple[Rules, Step]:
    """The table with one rule for a logical name, and what that changes."""
    lines = rules.by_name.get(new.logical, ())
    table = [rule for rule in rules if rule.logical != new.logical]
    place = lines[0] if lines else len(table)
    table.insert(place, new)
    step = Step(Kind.ADD, place=place, new=new, rules=tuple(rules))
    if lines:
        step = Step(Kind.AXES, place, new=new, rules=tuple(rules))
    return Rules(tuple(table)), step
