"""The values of a plan, their sharding rules, axis origins and propagation steps.

A sharding rule names every dimension by factors, like einsum: `[i, k], [k, j] ->
[i, j]`. If a mesh axis splits a factor in one operand or result, propagation may split
the same factor in all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from shardviz.base.axis_parts import (
    local_shape,
    parent_axis,
)
from shardviz.base.collective import Collective
from shardviz.base.display import Fact
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.plain import Plain, columns
from shardviz.plans.uncertain import Uncertain
from shardviz.programs.failed import CanFail, lacking_after_errors
from shardviz.programs.failure import Failure

Tensor = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShardingRule:
    """A sharding rule, with the fields of Shardy's `OpShardingRuleAttr`.

    Attributes:
        operands: for each operand and dimension, the factors, major to minor.
        results: for each result and dimension, the factors, major to minor.
        sizes: factor -> size.
        reduction: factors that the operation sums over, or reduces in another way.
        need_replication: factors that must not be split.
        permutation: factors along which shards exchange data.
        blocked_propagation: factors along which no axis propagates.

    >>> operands = (("i",), ("k",)), (("k",),)
    >>> rule = ShardingRule(operands, ((("i",),),), {"i": 4, "k": 2}, ("k",))
    >>> rule.formula
    '[i, k], [k] -> [i]'
    """

    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    sizes: Mapping[str, int] = field(hash=False)
    reduction: tuple[str, ...] = ()
    need_replication: tuple[str, ...] = ()
    permutation: tuple[str, ...] = ()
    blocked_propagation: tuple[str, ...] = ()

    @cached_property
    def formula(self) -> str:
        """The rule in einsum notation: `[i, k], [k, j] -> [i, j]`."""
        return f"{_tensors(self.operands)} -> {_tensors(self.results)}"

    @property
    def is_elementwise(self) -> bool:
        """True if all operands and results have equal, unrestricted factors."""
        has_one_shape = len({*self.operands, *self.results}) == 1
        is_restricted = (
            self.need_replication or self.permutation or self.blocked_propagation
        )
        return has_one_shape and not is_restricted

    @property
    def propagates(self) -> bool:
        """True if an axis can propagate between an operand and a result."""
        return not _factors(self.operands).isdisjoint(_factors(self.results))


def _factors(tensors: Sequence[Tensor]) -> set[str]:
    factors = set()
    for tensor in tensors:
        factors.update(*tensor)
    return factors


def _tensors(tensors: Sequence[Tensor]) -> str:
    parts = []
    for tensor in tensors:
        dims = ("".join(names) or "1" for names in tensor)
        parts.append(f"[{', '.join(dims)}]")
    return ", ".join(parts)


@dataclass(frozen=True)
class OpRule(Fact):
    """The sharding rule of one operation.

    Attributes:
        rule: the rule.
        reducer: the operation that combines values along reduced factors, as in
            `PlannedOp.reducer`.
    """

    rule: ShardingRule
    reducer: str = ""


#: The kinds of origins of a mesh axis.
ORIGINS = ("argument", "constraint", "result", "manual", "op")


@dataclass(frozen=True)
class Origin:
    """The origin of a mesh axis on a value.

    Attributes:
        axis: the mesh axis, or a sub-axis in Shardy's notation, such as `data:(1)2`.
        kind: one of ORIGINS: the kind of value or request that first had the axis.
        name: the argument (`w_in`), the result (`output`), or the constrained value.
        source: file and line of the constraint, or `""`.

    >>> str(Origin("data", "argument", "x"))
    'data from argument x'
    """

    axis: str
    kind: str
    name: str
    source: str = ""

    def __str__(self) -> str:
        source = self.source and f" ({self.source})"
        return f"{self.axis} from {self.kind} {self.name}{source}"


class Step(NamedTuple):
    """One step of the propagation: an axis crossed an operation.

    Attributes:
        number: the number of the step, counted from 0 over the whole program.
        axis: the mesh axis that propagated.
        op: the name of the PlannedOp that the axis crossed.
        origin: the name of the value that the axis came from.
        to: the names of the values that the axis reached.

    >>> Step(3, "model", "dot_general", "w_in", ("dot_general",)).to
    ('dot_general',)
    """

    number: int
    axis: str
    op: str
    origin: str
    to: tuple[str, ...]


@columns(
    *("name", "kind", "opcode", "short", "sharding", "op", "source"),
    *("region", "trips", "step", "backward", "covered"),
)
@dataclass(frozen=True, repr=False)
class PlannedOp(Plain):
    """One value of a program, and its propagated sharding.

    Attributes:
        name: the value's name, unique in the plan: an argument's name, or the
            operation's, such as `dot_general` or `dot_general_1`.
        kind: `"argument"`, `"op"` or `"result"`.
        opcode: StableHLO's name of the operation, such as `dot_general`; `""` for an
            argument.
        op: jax's name of the operation: `jit(f)/transpose(jvp(mlp))/dot_general`.
        source: the user's file and line, such as `block.py:31`, or `""`.
        stack: the distinct frames of the user's code, innermost first.
        calls: names of the user's functions around the value, outermost first.
        shape: the global shape.
        dtype: the dtype, as numpy names it.
        spec: the propagated sharding; sub-axes have Shardy's notation, `data:(1)2`.
        origins: mesh axis of `spec` -> its origin.
        step: the number of the propagation step that brought the last axis; None if the
            program requests all axes, or if the value is replicated.
        steps: the propagation steps that crossed this operation.
        factors: the operation's sharding rule; None if it has none.
        reducer: StableHLO's name of the operation that combines values along reduced
            factors, such as `"add"`; `""` if there is no single such operation.
        operands: the names of the values that the operation reads.
        scope: jax's names of the enclosing functions, outermost first.
        region: the kind of the enclosing block: `""`, `"loop body"`,
            `"loop condition"`, `"branch"` or `"manual"`.
        manual: whether the value is inside a `shard_map`, directly or in its loops and
            branches. The shape is then the shape of one device's block.
        trips: how often the enclosing loops run the operation; None outside of loops,
            or if not known.
        backward: whether the operation belongs to the backward pass.
        covered: whether Shardy decides the sharding of the value.
        notes: facts about the value, such as why it is not covered.
        uncertain: why the value's estimated collectives may differ from XLA's.
        memory_kind: for an argument, jax's name of the memory that holds it; `""` for
            the device's default memory.
        donated: for an argument, whether it is donated.
        open_dims: for an argument, a result, a constraint or a `shard_map`, the
            dimensions whose sharding the program leaves to the compiler.

    >>> op = PlannedOp("dot_general", "op", shape=(64, 2048), dtype="float32")
    >>> op
    PlannedOp(dot_general: float32[64, 2048], P())
    """

    _adds = ("short",)

    name: str
    kind: str
    opcode: str = ""
    op: str = ""
    source: str = ""
    stack: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    spec: Spec = field(default_factory=Spec)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    step: int | None = None
    steps: tuple[Step, ...] = ()
    factors: ShardingRule | None = None
    operands: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    region: str = ""
    trips: int | None = None
    backward: bool = False
    covered: bool = True
    notes: tuple[Fact, ...] = ()
    calls: tuple[str, ...] = ()
    manual: bool = False
    reducer: str = ""
    uncertain: tuple[Uncertain, ...] = ()
    memory_kind: str = ""
    donated: bool = False
    open_dims: tuple[int, ...] = ()

    @staticmethod
    def trusted(parts: Mapping[str, Any]) -> PlannedOp:
        """Creates a PlannedOp from fields, several times faster than the constructor.

        >>> PlannedOp.trusted({"name": "x", "kind": "op"}) == PlannedOp("x", "op")
        True
        """
        op = object.__new__(PlannedOp)
        fields = op.__dict__
        fields.update(_DEFAULTS)
        fields.update(parts)
        return op

    def changed(self, **changes: Any) -> PlannedOp:
        """Returns a copy with some fields changed, as fast as `trusted`."""
        return PlannedOp.trusted({**self.__dict__, **changes})

    @property
    def rule(self) -> str:
        """The sharding rule as text; `""` if there is none."""
        # Formatted only when read: a large program has thousands of rules.
        if self.factors is None or not self.factors.sizes:
            return ""
        return str(OpRule(self.factors, self.reducer))

    @property
    def note(self) -> str:
        """The notes as sentences; `""` if there are none."""
        return " ".join(map(str, self.notes))

    @property
    def remarks(self) -> str:
        """Sentences: the notes, and why the estimate is uncertain."""
        return " ".join(map(str, (*self.notes, *self.uncertain)))

    @property
    def sharding(self) -> str:
        """The spec as text: `P('data', None)`."""
        return str(self.spec)

    @property
    def short(self) -> str:
        """Type and shape: `float32[64, 2048]`."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        source = self.source and f", {self.source}"
        return f"PlannedOp({self.name}: {self.short}, {self.spec}{source})"


# The class itself has the defaults of the other fields.
_DEFAULTS = {"spec": Spec(), "origins": {}}


@lacking_after_errors(ops=("collectives",))
@dataclass(frozen=True, repr=False, eq=False)
class Record(CanFail):
    """The values of a program on a mesh, in program order.

    If planning failed, attributes without a value raise the error. `Plan` describes
    the attributes.

    >>> from shardviz.base.mesh import make_mesh
    >>> ops = (PlannedOp("x", "argument", shape=(8,)),)
    >>> Record("f", make_mesh(data=2), ops).op("x").shape
    (8,)
    """

    program: str
    mesh: MeshSpec
    ops: tuple[PlannedOp, ...] = ()
    collectives: tuple[Collective, ...] = ()
    error: Failure | None = field(default=None, kw_only=True)

    @property
    def ok(self) -> bool:
        """True if planning succeeded."""
        return self.error is None

    @cached_property
    def by_name(self) -> Mapping[str, PlannedOp]:
        """Name -> value."""
        return {op.name: op for op in self.ops}

    @cached_property
    def arrivals(self) -> Mapping[tuple[str, str], Step]:
        """`(value name, axis)` -> the step that first brought the axis to the value."""
        # A PlannedOp only lists the steps that crossed its own operation.
        arrivals: dict[tuple[str, str], Step] = {}
        for op in self.ops:
            for step in op.steps:
                for name in step.to:
                    first = arrivals.get((name, step.axis))
                    if first is None or step.number < first.number:
                        arrivals[name, step.axis] = step
        return arrivals

    def op(self, value: Any) -> PlannedOp:
        """Looks up a value by name, by number, by PlannedOp, or by collective.

        Raises:
            ProgramError: if the plan has no such value, or if planning failed.
        """
        # A value from another plan may have this name, but another sharding.
        if isinstance(value, PlannedOp) and self.by_name.get(value.name) == value:
            return value
        if isinstance(value, Collective) and value.value in self.by_name:
            return self.by_name[value.value]
        if isinstance(value, str) and value in self.by_name:
            return self.by_name[value]
        if isinstance(value, int) and not isinstance(value, bool):
            if 0 <= value < len(self.ops):
                return self.ops[value]
        hint = suggestion(value, self.by_name) if isinstance(value, str) else ""
        raise ProgramError(
            f"The plan of {self.program} has {plural(len(self.ops), 'value')}, and none"
            f" is {shown(value)}.{hint} Name one of plan.ops."
        )


def arrival(
    arrivals: Mapping[tuple[str, str], Step], name: str, axis: str
) -> Step | None:
    """The step that brought an axis, or the full axis of a sub-axis, to a value."""
    return arrivals.get((name, axis)) or arrivals.get((name, parent_axis(axis)))


def bytes_per_device(op: PlannedOp, mesh: MeshSpec) -> int:
    """Returns the bytes of a value's shard on each device, as XLA counts them.

    >>> from shardviz.base.mesh import make_mesh
    >>> split = Spec.parse("data")
    >>> x = PlannedOp("x", "argument", shape=(8, 6), dtype="bfloat16", spec=split)
    >>> bytes_per_device(x, make_mesh(data=4))
    24
    """
    return array_bytes(local_shape(op.shape, op.spec, mesh), op.dtype)


def array_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Returns the bytes of an array as XLA counts them: types below 8 bits are packed.

    >>> array_bytes((3,), "int4"), array_bytes((2, 2), "bfloat16"), array_bytes((), "bool")
    (2, 8, 1)
    """
    width = re.search(r"\d+", dtype)
    bits = 8  # for bool, and for types without a width in their name
    if width is not None:
        bits = int(width[0])
    return -(-math.prod(shape) * bits // 8)
