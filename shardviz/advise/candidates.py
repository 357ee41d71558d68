"""Edits of a program, and the programs that they make, each tried."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact, sentence
from shardviz.base.partition_spec import Spec
from shardviz.compiled.checks import Check
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.chips import CHIPS, Chip
from shardviz.programs.program import Program

#: The operations that split a value as a program says.
CONSTRAINTS = ("sharding_constraint", "reshard")
#: In place of an operation, where an edit constrains an argument of the program.
ARGUMENT = "argument"


# The codes of an edit, and the fields of each:
#
#   argument         array, spec, before: a Spec, and the one before it or None
#   result           result, spec, before; out_specs: those of all results
#   rule             rules, steps: another table, and each `TableAction` that changes it
#   constraint       value, shape, variable, source, spec, places: on the result of an
#                    operation, or `ARGUMENT`; the variable that its line assigns, or
#                    ""; the line; where that is in the jaxpr (`backend/edited.py`);
#                    has_other_shapes, if the line runs for more than this shape
#   mesh             mesh
#   device order     mesh: the same, over the devices in another order
#   donate           arguments: their positions
#   remat            policy: one of `jax.checkpoint_policies`; sources: lines of loops
#   pcast            value, axes, source: the variable or "", and the line in a loop of
#                    a shard_map in whose gradient jax sums over the axes
#   late sum axes, source: of a sum that a loop of a shard_map makes itself
#   unreduced        value, axes, source, spec, is_backward: of a product in a loop on
#                    Explicit axes; the spec of its sum, and whether it is in a gradient
#   types, explicit  refusals: of each the edit that sends least is its first
@dataclass(frozen=True)
class Edit(Fact):
    """One change of a program.

    Attributes:
        code: what is changed.
        fields: how, by name.

    >>> Edit("donate", {"arguments": (0,)}).code
    'donate'
    """

    code: str
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)


def edit(code: str, /, **fields: Any) -> Edit:
    """An Edit with these fields.

    >>> edit("donate", arguments=(0,)).fields["arguments"]
    (0,)
    """
    return Edit(code, fields)


# Why a change that was tried is not proposed:
#
#   not made          it does not fit the program
#   does not compile
#   no memory         on the devices of the target
#   values differ
#   same collective   it is still there, with as many bytes
#   moved elsewhere   other collectives send at least what it saves
#   more work         each device computes much more
#   hardly less       less than 1 % of the bytes are saved
#   more time         the least time on the target's chips rises
#   no less memory
#   no less planned   nor by its plan, so it was not compiled
@dataclass(frozen=True)
class Refusal(Fact):
    """A change that was tried and dropped.

    Attributes:
        edits: what was changed.
        code: why.
        said: an error or evidence, in words; `""` for none.
        bytes: what the changed program sends, or for `"no less memory"` needs.
        before: what the original sends or needs.
        seconds: the least times of the changed program and of the original, for
            `"more time"`.
    """

    edits: tuple[Edit, ...]
    code: str
    said: str = ""
    bytes: int | None = None
    before: int | None = None
    seconds: tuple[float | None, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Candidate(Displayed):
    """A changed program, compiled.

    Attributes:
        edits: what was changed.
        program: the changed program. It can be planned, compiled, run and explored.
        report: its compile.
        before: the compile of the original, for the same target.
        values: its results, compared with those of the original on simulated devices;
            `.ok` is None where they could not be. None where nobody compared them.

    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(abs, (), make_mesh(data=2))
    >>> gather = Collective("all-gather", ("data",), 800, group_size=2)
    >>> report = Report("abs", "cpu × 2", collectives=(gather,))
    >>> Candidate((edit("donate", arguments=(0,)),), program, report, report).bytes
    400
    """

    edits: tuple[Edit, ...]
    program: Program
    report: Report
    before: Report
    values: Check | None = None

    @property
    def edit(self) -> str:
        """What is changed, in a sentence."""
        return sentence(self)

    def code(self) -> str:
        """The change as code to paste."""
        lines: dict[str, None] = {}
        for one in self.edits:
            # What all layers share stands once.
            lines[code_of(one, self.program)] = None
        return "\n".join(lines)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the final program."""
        return self.report.collectives or ()

    @property
    def bytes(self) -> int:
        """The bytes that each device sends in all."""
        return sent_bytes(self.collectives)

    @property
    def least_seconds(self) -> float | None:
        """The least time on the target's chips; None where they are not known."""
        roofline = self.report.roofline
        return None if roofline is None else roofline.seconds

    @property
    def peak_bytes(self) -> int | None:
        """The peak of its memory on each device; None where the compiler said none."""
        return peak_bytes(self.report.memory)

    @property
    def fits(self) -> bool | None:
        """Whether it fits its target; None if that is unknown."""
        if self.report.too_large is not None:
            return False
        fit = self.report.fit
        return None if fit is None else fit.ok

    @property
    def chips(self) -> tuple[Chip, ...]:
        """The chips whose memory holds its peak, the smallest first.

        `()` if it was compiled for a chip, or if every chip holds the original.
        """
        here, before = self.report.on, peak_bytes(self.before.memory)
        if here is None or here.platform != "cpu" or before is None:
            return ()
        sized = [chip for chip in CHIPS.values() if chip.device_bytes is not None]
        sized.sort(key=lambda chip: chip.device_bytes or 0)
        if before <= (sized[0].device_bytes or 0):
            return ()
        needed = self.peak_bytes or 0
        return tuple(chip for chip in sized if needed <= (chip.device_bytes or 0))

    def __repr__(self) -> str:
        return f"Candidate({'; '.join(map(str, self.edits))})"


class Changes(tuple[Candidate, ...], Displayed):
    """Changes of a program, each tried, the best first.

    Attributes:
        collective: the collective that is to go; None where no one is meant.
        refused: what was tried and dropped, with why.
        advice: what was found but is no edit that can be tried here.
        untried: how many more were not tried, since time was up.

    >>> Changes.of([], refused=[Refusal((), "values differ")]).refused[0].code
    'values differ'
    """

    collective: Collective | None = None
    refused: tuple[Refusal, ...] = ()
    advice: tuple[Fact, ...] = ()
    untried: int = 0

    @classmethod
    def of(
        cls,
        candidates: Any,
        collective: Collective | None = None,
        refused: Any = (),
        advice: Any = (),
        untried: int = 0,
    ) -> Changes:
        """Changes with what belongs to them."""
        made = cls(candidates)
        made.collective = collective
        made.refused, made.advice = tuple(refused), tuple(advice)
        made.untried = untried
        return made

    def __repr__(self) -> str:
        return f"Changes({', '.join(map(repr, self))})"


def value_of(edit: Edit) -> str:
    """The value that an edit constrains: its variable in the code, or its operation and
    shape, since a line may have several products.

    >>> value_of(edit("constraint", variable="", value="dot_general", shape=(8, 4)))
    'dot_general[8,4]'
    """
    value, variable = edit.fields["value"], edit.fields["variable"]
    if variable and not edit.fields.get("has_other_shapes"):
        return variable
    return f"{variable or value}[{','.join(map(str, edit.fields['shape']))}]"


def code_of(edit: Edit, program: Program) -> str:
    """One edit as code to paste; `program` is the one after it.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> x = ArraySpec("x", (8,), spec="data")
    >>> program = Program(abs, (x,), make_mesh(data=4))
    >>> code_of(edit("argument", array="x", spec=x.spec), program)
    "in_specs = (P('data'),)"
    >>> value = {"value": "exp", "shape": (8,), "source": "f.py:3", "spec": x.spec}
    >>> from shardviz.base.mesh_context import MeshContext
    >>> set_mesh = program.replace(context=MeshContext(abstract=program.mesh))
    >>> code_of(edit("constraint", variable="y", **value), set_mesh)
    "y = jax.lax.with_sharding_constraint(y, P('data'))  # f.py:3"
    >>> print(code_of(edit("constraint", variable="", **value), set_mesh))
    jax.lax.with_sharding_constraint(..., P('data'))  # exp[8], f.py:3
    """
    fields, tree = edit.fields, program.tree
    match edit.code:
        case "argument":
            specs = [str(request.spec) for request in program.requests]
            # Specs of a model are not written in one line.
            if tree is not None and len(tree.children()) != len(specs):
                argument = argument_in_code(program, fields["array"])
                sharding = f"jax.sharding.NamedSharding(mesh, {fields['spec']})"
                return argument.replaced(f"jax.device_put({{}}, {sharding})", "")
            return f"in_specs = ({', '.join(specs)},)"
        case "result":
            specs, name = fields["out_specs"], fields["result"]
            if isinstance(specs, Spec):
                return f"out_specs = {specs}  # {name}"
            if type(specs) is tuple and _are_specs(specs):
                return f"out_specs = ({', '.join(map(str, specs))},)"
            call, spec = _constraint_in_code(program, fields["spec"])
            return f"{call}(..., {spec})  # {name} of {program.name}"
        case "constraint":
            name, line = value_of(edit), fields["source"]
            call, spec = _constraint_in_code(program, fields["spec"])
            if fields["value"] in CONSTRAINTS:
                return f"{call}(..., {spec})  # {line}"
            if not fields["variable"]:
                return f"{call}(..., {spec})  # {name}, {line}"
            if fields["value"] == ARGUMENT:
                line = f"first in {program.name}"
                value = argument_in_code(program, name)
                return value.replaced(f"{call}({{}}, {spec})", line)
            variable, shape, condition = fields["variable"], fields["shape"], ""
            if fields.get("has_other_shapes"):
                condition = f"if {variable}.shape == {tuple(shape)}: "
            return condition + InCode(variable).replaced(f"{call}({{}}, {spec})", line)
        case "rule":
            return f"rules = sv.rules({', '.join(map(str, fields['rules'].pairs()))})"
        case "mesh" | "device order":
            mesh = program.mesh
            given = [f"{axis}={size}" for axis, size in mesh.shape.items()]
            if not mesh.ids_are_positions:
                given.append(f"device_ids={mesh.device_ids.reshape(-1).tolist()}")
            return f"mesh = sv.mesh({', '.join(given)})"
        case "donate":
            # nnx.jit takes them as well, and is not to be replaced by jax.jit.
            return f"donate_argnums={fields['arguments']}  # for {program.name}"
        case "remat":
            policy = f"jax.checkpoint_policies.{fields['policy']}"
            lines = ", ".join(fields["sources"])
            return f"jax.checkpoint(body, policy={policy})  # {lines}"
        case "pcast":
            name, axes = fields["value"] or "...", tuple(fields["axes"])
            cast = f'jax.lax.pcast({name}, {axes}, to="varying")'
            cast = f"{name} = {cast}" if fields["value"] else cast
            return f"{cast}  # before {fields['source']}"
        case "unreduced":
            spec, axes, line = (
                fields["spec"],
                frozenset(fields["axes"]),
                fields["source"],
            )
            part = Spec(spec.dims, unreduced=axes)
            product = f"out_sharding={part}  # {line}"
            if fields["is_backward"]:
                reduced = Spec(spec.dims, reduced=axes)
                name = fields["value"] or "..."
                call = f"jax.sharding.reshard({name}, {reduced})  # before {line}"
                product = f"{name} = {call}" if fields["value"] else call
            first = f"jax.sharding.reshard(zeros, {part})  # total before {line}"
            last = f"total = jax.sharding.reshard(total, {spec})  # after {line}"
            return f"{product}\ntotal = {first}\n{last}"
        case "late sum":
            sum_ = f"jax.lax.psum(..., {tuple(fields['axes'])})"
            comment = f"after {fields['source']}"
            return f"{sum_}  # {comment}"
        case "types" | "explicit":
            lines = []
            for one in fields["refusals"]:
                lines.append(f"{one.edits[0]}  # {one.operation}, {one.source}")
            return "\n".join(lines)
    return ""


def _are_specs(specs: tuple[Any, ...]) -> bool:
    return all(spec is None or isinstance(spec, Spec) for spec in specs)


def _constraint_in_code(program: Program, spec: Spec) -> tuple[str, str]:
    """The function that constrains a value inside of a program, and how it is given a
    spec."""
    context, sharding = program.context, str(spec)
    if context is None or context.sees("with_sharding_constraint") is None:
        # jax takes a spec alone only if a mesh is in context.
        sharding = f"jax.sharding.NamedSharding(mesh, {spec})"
    if set(program.mesh.axis_types) == {"Explicit"}:
        # There a constraint is an assertion.
        return "jax.sharding.reshard", sharding
    return "jax.lax.with_sharding_constraint", sharding


class InCode(NamedTuple):
    """How the user's code writes a value, and whether it can assign to that.

    >>> InCode("x").replaced("f({})", "f.py:3")
    'x = f(x)  # f.py:3'
    >>> InCode("c[0]", is_assignable=False).replaced("f({})", "")
    'f(c[0])  # for c[0]'
    """

    expression: str
    is_assignable: bool = True

    def replaced(self, call: str, comment: str) -> str:
        """The code that gives a value in place of this one."""
        code = call.format(self.expression)
        if self.is_assignable:
            return f"{self.expression} = {code}" + (f"  # {comment}" if comment else "")
        comments = filter(None, (f"for {self.expression}", comment))
        return f"{code}  # " + ", ".join(comments)


def argument_in_code(program: Program, name: str) -> InCode:
    """How the function's code writes an argument: `batch["y"]`; its name if the tree of
    the arguments is unknown."""
    unknown = InCode(name, name.isidentifier())
    if program.tree is None:
        return unknown
    try:
        arguments = program.tree.unflatten([array.name for array in program.arrays])
    # A class of the user's may refuse names in place of its arrays.
    except Exception:  # noqa: BLE001
        return unknown
    root = re.match(r"[^.\[]*", name)
    for argument in arguments:
        path = _path_to(argument, name, InCode(root[0] if root else name))
        if path is not None:
            return path
    return unknown


def _path_to(tree: Any, name: str, path: InCode) -> InCode | None:
    """The expression that reads the leaf of a name in a tree; None if it isn't there."""
    steps: list[tuple[str, Any]] = []
    if isinstance(tree, str):
        return path if tree == name else None
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            steps.append(
                (f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", value)
            )
    elif isinstance(tree, (tuple, list)):
        names = getattr(tree, "_fields", None)
        for number, value in enumerate(tree):
            steps.append((f".{names[number]}" if names else f"[{number}]", value))
    elif hasattr(tree, "__dict__"):
        for attribute, value in vars(tree).items():
            steps.append((f".{attribute}", value))
    # Tuples and most classes keep their parts.
    is_assignable = isinstance(tree, (dict, list))
    for step, value in steps:
        part = InCode(path.expression + step, is_assignable)
        found = _path_to(value, name, part)
        if found is not None:
            return found
    return None


def sent_bytes(collectives: Any) -> int:
    """The bytes that each device sends for some collectives, over all executions.

    >>> sent_bytes([Collective("all-gather", ("data",), 800, group_size=4, trips=2)])
    1200
    """
    return sum(one.sent_in_all for one in collectives)
