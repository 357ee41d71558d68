"""Edits of a program: one class per kind of edit. Each generates code to paste.

A `ProgramEdit` replaces a field of the program, such as an argument's spec, the rules
or the mesh. `backend/apply.py` applies a `FunctionEdit` to the function's jaxpr.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from shardviz.advise.paste import Expression, argument_expression, constraint_call
from shardviz.axis_rules.remedies import TableAction
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.display import Fact
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.programs.program import Program
from shardviz.programs.refusals import TypeRefusal

#: Names of the primitives that constrain the sharding of a value.
CONSTRAINTS = ("sharding_constraint", "reshard")
#: The value to constrain in a jaxpr: the index of an equation among those with the same
#: source line and operation, and the index of its operand (None for its first result).
Place: TypeAlias = tuple[int, int | None]
#: A pytree of specs that matches the results' structure, or a tree prefix of it.
OutSpecs: TypeAlias = object


@dataclass(frozen=True)
class Edit(Fact):
    """A change of a program.

    Attributes:
        code: a short name of the kind of edit, such as `"argument"`.

    >>> from shardviz.advise.edits import Donate
    >>> Donate((0,)).code
    'donate'
    """

    code: ClassVar[str] = ""

    def to_paste(self, program: Program) -> str:
        """Returns the edit as code to paste.

        Args:
            program: the program after the edit.
        """
        raise NotImplementedError


class ProgramEdit(Edit):
    """An edit of a program's arguments, rules, mesh or options."""

    def apply(self, program: Program) -> Program:
        """Returns the program after the edit.

        Raises:
            ShardvizError: if the edit does not fit the program.
        """
        raise NotImplementedError


class FunctionEdit(Edit):
    """An edit of the function. `backend/apply.py` applies it to the jaxpr."""


# --- shardings ------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitArgument(ProgramEdit):
    """Changes the spec of an argument. A spec without axes replicates it.

    Attributes:
        array: the name of the argument.
        spec: the new spec.
        before: the old spec; None if there was none.

    >>> import shardviz as sv
    >>> from shardviz.base.array_spec import ArraySpec
    >>> program = Program(abs, (ArraySpec("x", (8,)),), sv.mesh(data=4))
    >>> edit = SplitArgument("x", Spec.parse("data"))
    >>> edit.to_paste(edit.apply(program))
    "in_specs = (P('data'),)"
    """

    code: ClassVar[str] = "argument"
    array: str
    spec: Spec
    before: Spec | None = None

    def apply(self, program: Program) -> Program:
        arrays = []
        for array in program.arrays:
            if array.name == self.array:
                lay_out(array.shape, self.spec, program.mesh)
                # An array's own spec takes precedence over the rules.
                array = array.replace(spec=self.spec)
            arrays.append(array)
        return program.replace(arrays=tuple(arrays))

    def to_paste(self, program: Program) -> str:
        specs = [str(request.spec) for request in program.requests]
        # A model has too many specs for one line.
        if program.tree is not None and len(program.tree.children()) != len(specs):
            argument = argument_expression(program, self.array)
            sharding = f"jax.sharding.NamedSharding(mesh, {self.spec})"
            return argument.replaced(f"jax.device_put({{}}, {sharding})", "")
        return f"in_specs = ({', '.join(specs)},)"


@dataclass(frozen=True)
class SplitResult(ProgramEdit):
    """Changes the spec of a result.

    Attributes:
        result: the name of the result.
        spec: the new spec.
        before: the spec that the program requested; None if it requested none.
        out_specs: the new specs of all results.
    """

    code: ClassVar[str] = "result"
    result: str
    spec: Spec
    before: Spec | None = None
    out_specs: OutSpecs = field(default=None, hash=False)

    def apply(self, program: Program) -> Program:
        return program.replace(out_specs=self.out_specs)

    def to_paste(self, program: Program) -> str:
        specs = self.out_specs
        if isinstance(specs, Spec):
            return f"out_specs = {specs}  # {self.result}"
        if type(specs) is tuple:
            if all(spec is None or isinstance(spec, Spec) for spec in specs):
                return f"out_specs = ({', '.join(map(str, specs))},)"
        call, spec = constraint_call(program, self.spec)
        return f"{call}(..., {spec})  # {self.result} of {program.name}"


@dataclass(frozen=True)
class ChangeRules(ProgramEdit):
    """Replaces the rule table.

    Attributes:
        rules: the new table.
        steps: the actions that turn the old table into the new one.
    """

    code: ClassVar[str] = "rule"
    rules: Rules | PathRules = field(hash=False)
    steps: tuple[TableAction, ...] = field(default=(), hash=False)

    def apply(self, program: Program) -> Program:
        return program.replace(rules=self.rules)

    def to_paste(self, program: Program) -> str:
        return f"rules = sv.rules({', '.join(map(str, self.rules.pairs()))})"


@dataclass(frozen=True)
class ConstrainArgument(FunctionEdit):
    """Constrains an argument at the start of the function.

    Attributes:
        array: the name of the argument.
        number: the argument's index among all argument arrays.
        spec: the spec to constrain it to.
    """

    code: ClassVar[str] = "constraint"
    array: str
    number: int
    spec: Spec

    def to_paste(self, program: Program) -> str:
        call, spec = constraint_call(program, self.spec)
        argument = argument_expression(program, self.array)
        return argument.replaced(f"{call}({{}}, {spec})", f"first in {program.name}")


@dataclass(frozen=True)
class ConstrainValue(FunctionEdit):
    """Constrains the result of an operation.

    Attributes:
        operation: jax's name of the operation, or of a function under `jax.jit`.
        variable: the variable that holds the value; `""` for a subexpression.
        source: the source line that computes the value.
        shape: the value's shape.
        spec: the spec to constrain it to.
        places: the value's occurrences in the jaxpr. There may be several, including
            cotangents.
        has_other_shapes: whether the line also runs with other shapes, for example in
            other layers of a model.

    >>> import shardviz as sv
    >>> value = {"shape": (8,), "source": "f.py:3", "spec": Spec.parse("data")}
    >>> from shardviz.base.mesh_context import MeshContext
    >>> mesh = sv.mesh(data=4)
    >>> set_mesh = Program(abs, (), mesh, context=MeshContext(abstract=mesh))
    >>> ConstrainValue("exp", "y", **value).to_paste(set_mesh)
    "y = jax.lax.with_sharding_constraint(y, P('data'))  # f.py:3"
    >>> print(ConstrainValue("exp", "", **value).to_paste(set_mesh))
    jax.lax.with_sharding_constraint(..., P('data'))  # exp[8], f.py:3
    """

    code: ClassVar[str] = "constraint"
    operation: str
    variable: str
    source: str
    shape: tuple[int, ...]
    spec: Spec
    places: tuple[Place, ...] = ()
    has_other_shapes: bool = False

    @property
    def value(self) -> str:
        """The value as text: the variable, or the operation and shape.

        The shape distinguishes several products on one line.

        >>> ConstrainValue("dot_general", "", "f.py:3", (8, 4), Spec()).value
        'dot_general[8,4]'
        """
        if self.variable and not self.has_other_shapes:
            return self.variable
        sizes = ",".join(map(str, self.shape))
        return f"{self.variable or self.operation}[{sizes}]"

    def to_paste(self, program: Program) -> str:
        call, spec = constraint_call(program, self.spec)
        if not self.variable:
            return f"{call}(..., {spec})  # {self.value}, {self.source}"
        condition = ""
        if self.has_other_shapes:
            condition = f"if {self.variable}.shape == {tuple(self.shape)}: "
        variable = Expression(self.variable)
        return condition + variable.replaced(f"{call}({{}}, {spec})", self.source)


@dataclass(frozen=True)
class ChangeConstraint(ConstrainValue):
    """Changes the spec of a constraint that is already in the code.

    `operation` is one of `CONSTRAINTS`.
    """

    def to_paste(self, program: Program) -> str:
        call, spec = constraint_call(program, self.spec)
        return f"{call}(..., {spec})  # {self.source}"


# --- the mesh -------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeMesh(ProgramEdit):
    """Replaces the mesh.

    Attributes:
        mesh: the new mesh.
    """

    code: ClassVar[str] = "mesh"
    mesh: MeshSpec

    def apply(self, program: Program) -> Program:
        return program.replace(mesh=self.mesh)

    def to_paste(self, program: Program) -> str:
        mesh = program.mesh
        arguments = [f"{axis}={size}" for axis, size in mesh.shape.items()]
        if not mesh.ids_are_positions:
            arguments.append(f"device_ids={mesh.device_ids.reshape(-1).tolist()}")
        return f"mesh = sv.mesh({', '.join(arguments)})"


@dataclass(frozen=True)
class OrderDevices(ChangeMesh):
    """Reorders the devices of the mesh."""

    code: ClassVar[str] = "device order"


# --- memory ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Donate(ProgramEdit):
    """Donates arguments, so that results can reuse their memory.

    Attributes:
        arguments: the positions of all donated arguments.
    """

    code: ClassVar[str] = "donate"
    arguments: tuple[int, ...]

    def apply(self, program: Program) -> Program:
        options = {**program.options, "donate": tuple(self.arguments)}
        return program.replace(options=options)

    def to_paste(self, program: Program) -> str:
        # Give only the keyword, because the user may call nnx.jit instead of jax.jit.
        return f"donate_argnums={self.arguments}  # for {program.name}"


@dataclass(frozen=True)
class Rematerialise(FunctionEdit):
    """Makes loops save fewer residuals and recompute them in the backward pass.

    Attributes:
        policy: a name in `jax.checkpoint_policies`, which selects the values to save.
        sources: the source lines of the loops.
    """

    code: ClassVar[str] = "remat"
    policy: str
    sources: tuple[str, ...] = ()

    def to_paste(self, program: Program) -> str:
        policy = f"jax.checkpoint_policies.{self.policy}"
        return f"jax.checkpoint(body, policy={policy})  # {', '.join(self.sources)}"


# --- sums in loops --------------------------------------------------------------------


@dataclass(frozen=True)
class SumAfterLoop(FunctionEdit):
    """Sums over devices once after a `shard_map` loop, not in every iteration.

    Attributes:
        source: the source line of the sum.
        axes: the mesh axes to sum over.
    """

    code: ClassVar[str] = "late sum"
    source: str
    axes: tuple[str, ...]

    def to_paste(self, program: Program) -> str:
        return f"jax.lax.psum(..., {tuple(self.axes)})  # after {self.source}"


@dataclass(frozen=True)
class CastBeforeLoop(FunctionEdit):
    """Casts a value to varying before a loop, so its gradient is summed after the loop.

    Attributes:
        source: the source line in the loop that reads the value.
        axes: the mesh axes that jax sums the gradient over.
        value: the variable to cast; `""` if the value has no variable.
    """

    code: ClassVar[str] = "pcast"
    source: str
    axes: tuple[str, ...]
    value: str = ""

    def to_paste(self, program: Program) -> str:
        cast = f'jax.lax.pcast({self.value or "..."}, {tuple(self.axes)}, to="varying")'
        if self.value:
            cast = f"{self.value} = {cast}"
        return f"{cast}  # before {self.source}"


@dataclass(frozen=True)
class SumUnreduced(FunctionEdit):
    """Keeps a product in a loop on Explicit axes unreduced, and sums it after the loop.

    Attributes:
        source: the source line of the product.
        axes: the mesh axes to sum over.
        spec: the spec of the sum.
        value: in a gradient, the variable that is a factor of the product; `""` if
            there is none.
        is_backward: whether the product is part of a gradient.
    """

    code: ClassVar[str] = "unreduced"
    source: str
    axes: tuple[str, ...]
    spec: Spec
    value: str = ""
    is_backward: bool = False

    def to_paste(self, program: Program) -> str:
        axes, line = frozenset(self.axes), self.source
        unreduced = Spec(self.spec.dims, unreduced=axes)
        product = f"out_sharding={unreduced}  # {line}"
        if self.is_backward:
            reduced = Spec(self.spec.dims, reduced=axes)
            name = self.value or "..."
            product = f"jax.sharding.reshard({name}, {reduced})  # before {line}"
            if self.value:
                product = f"{name} = {product}"
        first = f"jax.sharding.reshard(zeros, {unreduced})  # total before {line}"
        last = f"total = jax.sharding.reshard(total, {self.spec})  # after {line}"
        return f"{product}\ntotal = {first}\n{last}"


# --- types ----------------------------------------------------------------------------


@dataclass(frozen=True)
class EditTypes(Edit):
    """Edits a program so that jax accepts its types.

    `backend/types.py` creates the edited program, so this class has no `apply`.

    Attributes:
        refusals: the operations that jax refuses. Each refusal's first edit sends the
            fewest bytes.
    """

    code: ClassVar[str] = "types"
    refusals: tuple[TypeRefusal, ...] = field(default=(), hash=False)

    def to_paste(self, program: Program) -> str:
        lines = []
        for refusal in self.refusals:
            comment = f"{refusal.operation}, {refusal.source}"
            lines.append(f"{refusal.edits[0]}  # {comment}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MakeExplicit(EditTypes):
    """Makes all mesh axes Explicit, and edits the operations that jax then refuses."""

    code: ClassVar[str] = "explicit"
