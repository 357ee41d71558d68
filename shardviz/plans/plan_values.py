"""The parts of a plan: values, their sharding rules, origins of axes, and steps.

A rule names every dimension by factors, as einsum does: `[i, k], [k, j] -> [i, j]`. A
mesh axis that splits a factor in one operand or result may split it in all of them.
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
from shardviz.plans.uncertain import Uncertain
from shardviz.programs.failure import Failure

Tensor = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShardingRule:
    """A sharding rule; its groups of factors are named as in Shardy's
    `OpShardingRuleAttr`.

    Attributes:
        operands: per operand, per dimension, its factors, major to minor.
        results: the same for the results.
        sizes: factor to size.
        reduction: factors that are summed, or reduced in another way.
        need_replication: factors whose dimensions must not be split.
        permutation: factors along which shards exchange data.
        blocked_propagation: factors along which no axis is propagated.

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
        """The rule as einsum would have it: `[i, k], [k, j] -> [i, j]`."""
        return f"{_tensors(self.operands)} -> {_tensors(self.results)}"

    @property
    def is_elementwise(self) -> bool:
        """True if all operands and results have the same dimensions."""
        has_one_shape = len({*self.operands, *self.results}) == 1
        is_restricted = (
            self.need_replication or self.permutation or self.blocked_propagation
        )
        return has_one_shape and not is_restricted

    @property
    def propagates(self) -> bool:
        """True if an axis can cross the operation."""
        return not _factors(self.operands).isdisjoint(_factors(self.results))


def _factors(tensors: Sequence[Tensor]) -> set[str]:
    """All factors of tensors."""
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
        reducer: the operation that combines the factors that it reduces, as in
            `PlannedOp.reducer`.
    """

    rule: ShardingRule
    reducer: str = ""


#: The kinds of origins that an axis may have.
ORIGINS = ("argument", "constraint", "result", "manual", "op")


@dataclass(frozen=True)
class Origin:
    """The origin of a mesh axis on a value.

    Attributes:
        axis: the mesh axis; a part of one as Shardy writes it, `data:(1)2`.
        kind: one of ORIGINS: what first requested the axis.
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
        number: when it happened; counts from 0 over all of the program.
        axis: the mesh axis that moved.
        op: the name of the PlannedOp whose sharding rule it followed.
        origin: the value it came from, by name.
        to: the values it reached, by name.

    >>> Step(3, "model", "dot_general", "w_in", ("dot_general",)).to
    ('dot_general',)
    """

    number: int
    axis: str
    op: str
    origin: str
    to: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class PlannedOp:
    """One value of a program, and what the propagation decided about it.

    Attributes:
        name: unique in the plan: an argument's name, or the operation's: `dot_general`,
            `dot_general_1`.
        kind: `"argument"`, `"op"` or `"result"`.
        opcode: the operation, as StableHLO names it: `dot_general`; `""` for an
            argument.
        op: the operation as jax names it: `jit(f)/transpose(jvp(mlp))/dot_general`.
        source: the user's file and line, `block.py:31`, or `""`.
        stack: every frame of the user's code, innermost first, each once.
        calls: the user's functions around the value by name, outermost first.
        shape: the global shape.
        dtype: as numpy names it.
        spec: the sharding that the propagation settled on; axes that were split into
            parts keep Shardy's notation, `data:(1)2`.
        origins: the origin of every mesh axis of `spec`.
        step: the number of the propagation step that brought the last axis; None if no
            step did: the program requests its sharding, or it is replicated.
        steps: every step that crossed this operation.
        factors: the operation's sharding rule, by its factors; None if it has none.
        reducer: the operation that combines the factors that it reduces, as StableHLO
            names it: `"add"`; `""` if it isn't a single operation.
        operands: the names of the values it reads.
        scope: the functions around it, outermost first, as jax names them.
        region: the block around it: `""`, `"loop body"`, `"loop condition"`, `"branch"`
            or `"manual"`.
        manual: whether a `shard_map` is around it, however many loops and branches lie
            between: its shape is that of one device's block.
        trips: how often it runs, if the loops around it are of known length.
        backward: whether it belongs to the backward pass.
        covered: whether the propagation looked into it.
        notes: why it is not covered, and other remarks, as facts.
        uncertain: why the estimate of its collectives may differ from XLA's.
        memory_kind: of an argument, which memory of a device holds it, as jax names it;
            `""` for the memory that holds values by default.
        donated: of an argument, whether its memory is given to the results.

    >>> op = PlannedOp("dot_general", "op", shape=(64, 2048), dtype="float32")
    >>> op
    PlannedOp(dot_general: float32[64, 2048], P())
    """

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

    @staticmethod
    def trusted(parts: Mapping[str, Any]) -> PlannedOp:
        """A value from its fields, unchecked; several times faster than the class.

        >>> PlannedOp.trusted({"name": "x", "kind": "op"}) == PlannedOp("x", "op")
        True
        """
        op = object.__new__(PlannedOp)
        object.__setattr__(op, "__dict__", {**_DEFAULTS, **parts})
        return op

    def changed(self, **changes: Any) -> PlannedOp:
        """The same value with other fields, made as fast as `trusted` makes one."""
        return PlannedOp.trusted({**self.__dict__, **changes})

    @property
    def rule(self) -> str:
        """Its sharding rule in words; `""` if it has none."""
        # Put into words only when read: a large program has thousands of rules.
        if self.factors is None or not self.factors.sizes:
            return ""
        return str(OpRule(self.factors, self.reducer))

    @property
    def note(self) -> str:
        """Its notes in sentences; `""` if it has none."""
        return " ".join(map(str, self.notes))

    @property
    def remarks(self) -> str:
        """Its notes, and why its estimate is uncertain, in sentences."""
        return " ".join(map(str, (*self.notes, *self.uncertain)))

    @property
    def short(self) -> str:
        """Type and shape: `float32[64, 2048]`."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        source = self.source and f", {self.source}"
        return f"PlannedOp({self.name}: {self.short}, {self.spec}{source})"


_DEFAULTS = dict(PlannedOp("", "").__dict__)


@dataclass(frozen=True, repr=False)
class Record:
    """The values of a program on a mesh, in the order in which the program makes them.

    Attributes:
        program: the name of the program.
        mesh: the mesh it was planned on.
        ops: arguments first, then operations in program order, then results.
        collectives: Shardy's own plan of collectives: an estimate, since XLA's
            partitioner may choose otherwise. Each names its PlannedOp in `value`.
        error: None, or why there is no plan.

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
        """True if there is a plan."""
        return self.error is None

    @cached_property
    def by_name(self) -> Mapping[str, PlannedOp]:
        """Name to value."""
        return {op.name: op for op in self.ops}

    @cached_property
    def arrivals(self) -> Mapping[tuple[str, str], Step]:
        """The step that first brought an axis to a value, by value and axis."""
        # The value itself notes only the steps that crossed its own operation.
        arrivals: dict[tuple[str, str], Step] = {}
        for op in self.ops:
            for step in op.steps:
                for name in step.to:
                    first = arrivals.get((name, step.axis))
                    if first is None or step.number < first.number:
                        arrivals[name, step.axis] = step
        return arrivals

    def op(self, value: Any) -> PlannedOp:
        """One value: by name, by number, by a collective that it causes, or itself.

        Raises:
            ProgramError: if the plan has no such value, or there is no plan.
        """
        if self.error is not None:
            raise ProgramError(
                f"There is no plan of {self.program}, so it has no values. {self.error}"
            )
        # A value of another plan may have the same name and another sharding.
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
    """The step that brought an axis, or the axis that it is a part of, to a value."""
    return arrivals.get((name, axis)) or arrivals.get((name, parent_axis(axis)))


def bytes_per_device(op: PlannedOp, mesh: MeshSpec) -> int:
    """The bytes of a value's shard on each device, as XLA counts them.

    >>> from shardviz.base.mesh import make_mesh
    >>> split = Spec.parse("data")
    >>> x = PlannedOp("x", "argument", shape=(8, 6), dtype="bfloat16", spec=split)
    >>> bytes_per_device(x, make_mesh(data=4))
    24
    """
    return array_bytes(local_shape(op.shape, op.spec, mesh), op.dtype)


def array_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of an array as XLA counts them: types below a byte are packed.

    >>> array_bytes((3,), "int4"), array_bytes((2, 2), "bfloat16"), array_bytes((), "bool")
    (2, 8, 1)
    """
    width = re.search(r"\d+", dtype)
    bits = 8  # of a bool, and of types without a width in their name
    if width is not None:
        bits = int(width[0])
    return -(-math.prod(shape) * bits // 8)
