"""ValueName and Cause: the values that a collective sums or moves, and why it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from shardviz.base.display import Fact

#: jax's names of the operations by which a program requests a sharding.
REQUESTS = ("sharding_constraint", "reshard", "shard_map")


@dataclass(frozen=True)
class ValueName(Fact):
    """The name of a value.

    Attributes:
        code: `"argument"`, `"slice"` (an iteration's slice of an argument),
            `"operation"`, `"carried"` (a value that a loop carries) or `"unknown"`.
        name: the name of the argument, or jax's name of the operation.
        source: the line of the operation or loop; `""` if not known.

    >>> ValueName("operation", "dot_general", "mlp.py:31").name
    'dot_general'
    """

    code: str
    name: str = ""
    source: str = ""

    @property
    def is_argument(self) -> bool:
        """True for an argument of the program or a slice of one."""
        return self.code in ("argument", "slice")

    @property
    def is_request(self) -> bool:
        """True for an operation by which the program requests a sharding."""
        return self.code == "operation" and self.name in REQUESTS


@dataclass(frozen=True)
class AxisPart(Fact):
    """A mesh axis that the groups of a collective cover partly.

    Attributes:
        axis: the axis.
        devices: how many devices along it are in a group.
        size: the size of the axis.

    >>> print(AxisPart("data", 2, 4))
    2 of 4 along data
    """

    axis: str
    devices: int
    size: int


#: A value that the compiler does not name.
UNKNOWN = ValueName("unknown")


@dataclass(frozen=True)
class Cause(Fact):
    """Why a collective is there; its operand is unknown, so this is all that is known.

    The subclasses are for collectives whose operand is known.

    Attributes:
        code: a short name of the cause, the same for all of its class.
        kind: the kind of collective.
        axes: the mesh axes it runs over.
        parts: the axes that its groups cover partly.
        operand: the value that it sums or moves.
        operation: the operation that it is for, or that it is.

    >>> w = ValueName("argument", "w_in")
    >>> Gathered("all-gather", ("data",), operand=w, dimension=0).operand.name
    'w_in'
    """

    code: ClassVar[str] = "unknown"

    kind: str
    axes: tuple[str, ...] = ()
    parts: tuple[AxisPart, ...] = ()
    operand: ValueName = UNKNOWN
    operation: ValueName | None = None

    @property
    def is_partial(self) -> bool:
        """Whether its groups are smaller than its mesh axes."""
        return bool(self.parts)

    @property
    def reader(self) -> ValueName:
        """The operation that it is for: the one that reads its result, if known."""
        return self.operation or self.operand

    @property
    def values(self) -> tuple[ValueName, ...]:
        """The operand, and the operations that the sentence of the cause names."""
        return tuple(filter(None, (self.operand, self.operation)))


@dataclass(frozen=True)
class Written(Cause):
    """The program itself has the collective, in a `shard_map`.

    >>> Written("all-reduce").code
    'written'
    """

    code: ClassVar[str] = "written"


@dataclass(frozen=True)
class AddedByGrad(Cause):
    """`jax.grad` added the collective in a `shard_map`.

    Attributes:
        gradient_of: the argument whose gradient it sums; None if that is not known, or
            if it doesn't sum.

    >>> AddedByGrad("all-reduce").code
    'gradient'
    """

    code: ClassVar[str] = "gradient"
    gradient_of: ValueName | None = None


@dataclass(frozen=True)
class Summed(Cause):
    """It reduces values of which each device has a part.

    Attributes:
        reducer: the operation that it reduces with, such as `add`; `""` if unknown.

    >>> Summed("all-reduce", reducer="add").code
    'summed'
    """

    code: ClassVar[str] = "summed"
    reducer: str = ""


@dataclass(frozen=True)
class Reduced(Summed):
    """It completes a reduction over a dimension that is split.

    Attributes:
        vmapped_loop: whether the result decides if a loop under `vmap` goes on.

    >>> Reduced("all-reduce", reducer="or").code
    'reduced'
    """

    code: ClassVar[str] = "reduced"
    vmapped_loop: bool = False


@dataclass(frozen=True)
class Contracted(Reduced):
    """It completes a product or a convolution whose inner dimension is split.

    >>> Contracted("all-reduce", reducer="add").code
    'contracted'
    """

    code: ClassVar[str] = "contracted"


@dataclass(frozen=True)
class FromOneDevice(Cause):
    """It brings a value that one device of each group holds to all, adding zeros.

    Attributes:
        wanted_by: the operation that needs the value on all devices; None for the
            result of the program.

    >>> FromOneDevice("all-reduce").code
    'from one'
    """

    code: ClassVar[str] = "from one"
    wanted_by: ValueName | None = None

    @property
    def reader(self) -> ValueName:
        """The operation that it is for."""
        return self.wanted_by or self.operation or self.operand

    @property
    def values(self) -> tuple[ValueName, ...]:
        """The operand, and the operations that the sentence of the cause names."""
        return tuple(filter(None, (self.operand, self.wanted_by, self.operation)))


@dataclass(frozen=True)
class WithinOperation(Cause):
    """A step of one operation, whose result XLA brings into its sharding.

    >>> WithinOperation("all-gather").code
    'within'
    """

    code: ClassVar[str] = "within"


@dataclass(frozen=True)
class Moved(Cause):
    """It moves a value from one sharding to another.

    Attributes:
        wanted_by: the operation that needs the value in the other sharding; None for
            the result of the program, `UNKNOWN` if none was found.
        through: the operation that reads the moved value, if an operation behind it
            needs its result in another sharding; else None.
        beside: another operand of `through` whose sharding the value must have; else
            None.
        dtype: the element type of the moved bytes, `f32`; `""` if there are several, or
            if `through` is None.
        before: the step that moved the operand earlier: a kind of collective,
            `"slice"` or `""`.
    """

    wanted_by: ValueName | None = None
    through: ValueName | None = None
    beside: ValueName | None = None
    dtype: str = ""
    before: str = ""

    @property
    def reader(self) -> ValueName:
        """The operation that it is for: the one that reads its result, if known."""
        return self.wanted_by or self.operation or self.operand

    @property
    def values(self) -> tuple[ValueName, ...]:
        """The operand, and the operations that the sentence of the cause names."""
        return tuple(filter(None, (self.operand, self.wanted_by, self.operation)))


@dataclass(frozen=True)
class Sent(Moved):
    """Devices need shards that other devices hold.

    >>> Sent("collective-permute").code
    'sent'
    """

    code: ClassVar[str] = "sent"


@dataclass(frozen=True)
class Resplit(Moved):
    """The value must be split along other dimensions.

    >>> Resplit("all-to-all").code
    'resplit'
    """

    code: ClassVar[str] = "resplit"


@dataclass(frozen=True)
class Gathered(Moved):
    """The value must not be split over these axes.

    Attributes:
        dimension: the dimension that was split; None if unknown.

    >>> Gathered("all-gather").code
    'gathered'
    """

    code: ClassVar[str] = "gathered"
    dimension: int | None = None


@dataclass(frozen=True)
class Unsplittable(Gathered):
    """XLA's partitioner cannot split the operation that reads the value.

    >>> Unsplittable("all-gather").code
    'unsplittable'
    """

    code: ClassVar[str] = "unsplittable"


@dataclass(frozen=True)
class Rematerialised(Moved):
    """Every device makes the full array and splits it again.

    Attributes:
        full: the type of the full array.
        part: the type of the part that a device keeps.

    >>> Rematerialised("all-gather", full="f32[16]", part="f32[2]").code
    'rematerialised'
    """

    code: ClassVar[str] = "rematerialised"
    full: str = ""
    part: str = ""


#: The causes that a collective of a compiled program may have, by their codes.
CAUSES: Mapping[str, type[Cause]] = MappingProxyType({
    cause.code: cause
    for cause in (
        Written, AddedByGrad, Contracted, Reduced, Summed, FromOneDevice,
        WithinOperation, Sent, Gathered, Resplit, Unsplittable, Rematerialised, Cause,
    )
})  # fmt: skip


def axes_in_words(axes: Iterable[str], parts: Iterable[AxisPart]) -> tuple[str, ...]:
    """Mesh axes by their names, or by the part of them that a group covers.

    >>> axes_in_words(("data:(1)2", "model"), (AxisPart("data", 2, 4),))
    ('2 of 4 along data', 'model')
    """
    by_axis = {part.axis: str(part) for part in parts}
    # Shardy may name several parts of one axis.
    names = dict.fromkeys(axis.partition(":(")[0] for axis in axes)
    return tuple(by_axis.get(name, name) for name in names)


def author_of(op: str) -> str:
    """Who put a collective of `jax.lax` into a `shard_map`: `"written"` for the program,
    `"gradient"` for `jax.grad`.

    `jax.grad` transposes every collective, and sums over devices that have the same
    value. The backward rule of a `custom_vjp` has similar names, so it counts as
    `"gradient"` too. Collectives that a checkpoint computes again count as `"written"`.

    Args:
        op: the operation, as jax names it.

    >>> author_of("jit(f)/shard_map/psum_invariant")
    'written'
    >>> author_of("jit(f)/shard_map/transpose(jvp())/psum_invariant")
    'gradient'
    """
    _, transposed, inside = op.rpartition("transpose(")
    if not transposed or "rematted_computation" in inside:
        return "written"
    return "gradient"
