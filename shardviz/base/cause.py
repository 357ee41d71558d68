"""ValueName and Cause: the value that a collective sums or moves, and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from shardviz.base.display import Fact

#: Names of jax primitives by which a program requests a sharding.
REQUESTS = ("sharding_constraint", "reshard", "shard_map")


@dataclass(frozen=True)
class ValueName(Fact):
    """The name of a value, and the kind of value it is.

    Attributes:
        code: the kind: `"argument"`, `"slice"` (an iteration's slice of an argument),
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
    """A mesh axis that the replica groups of a collective cover only in part.

    Attributes:
        axis: the name of the axis.
        devices: the number of devices along the axis in each group.
        size: the size of the axis.

    >>> print(AxisPart("data", 2, 4))
    2 of 4 along data
    """

    axis: str
    devices: int
    size: int


#: The name of a value that the compiler does not name.
UNKNOWN = ValueName("unknown")


@dataclass(frozen=True)
class Cause(Fact):
    """Why a program has a collective.

    Each subclass is one reason. An instance of this base class means that the operand,
    and so the reason, is unknown.

    Attributes:
        code: a short name for the reason, one per class.
        kind: the kind of collective.
        axes: the mesh axes that the collective runs over.
        parts: the axes that the replica groups cover only in part.
        operand: the value that the collective sums or moves.
        operation: the operation that the compiler inserted the collective for, or the
            collective itself if the program has it.

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
        """True if the replica groups cover any mesh axis only in part."""
        return bool(self.parts)

    @property
    def reader(self) -> ValueName:
        """The operation that reads the result if known, else the operand."""
        return self.operation or self.operand

    @property
    def values(self) -> tuple[ValueName, ...]:
        """The values that the cause's sentence names: the operand and operations."""
        return tuple(filter(None, (self.operand, self.operation)))


@dataclass(frozen=True)
class Written(Cause):
    """The program itself calls the collective, in a `shard_map`.

    >>> Written("all-reduce").code
    'written'
    """

    code: ClassVar[str] = "written"


@dataclass(frozen=True)
class AddedByGrad(Cause):
    """`jax.grad` added the collective in a `shard_map`.

    Attributes:
        gradient_of: the argument whose gradient the collective sums; None if that is
            not known, or if the collective doesn't sum.

    >>> AddedByGrad("all-reduce").code
    'gradient'
    """

    code: ClassVar[str] = "gradient"
    gradient_of: ValueName | None = None


@dataclass(frozen=True)
class Summed(Cause):
    """The collective combines partial values, one from each device.

    Attributes:
        reducer: the operation that combines them, such as `add`; `""` if unknown.

    >>> Summed("all-reduce", reducer="add").code
    'summed'
    """

    code: ClassVar[str] = "summed"
    reducer: str = ""


@dataclass(frozen=True)
class Reduced(Summed):
    """The collective completes a reduction over a split dimension.

    Attributes:
        vmapped_loop: whether the result decides if a loop under `vmap` continues.

    >>> Reduced("all-reduce", reducer="or").code
    'reduced'
    """

    code: ClassVar[str] = "reduced"
    vmapped_loop: bool = False


@dataclass(frozen=True)
class Contracted(Reduced):
    """The collective completes a matrix product or convolution over a split dimension.

    >>> Contracted("all-reduce", reducer="add").code
    'contracted'
    """

    code: ClassVar[str] = "contracted"


@dataclass(frozen=True)
class WantedCause(Cause):
    """The collective provides a value in the form that an operation needs.

    Attributes:
        wanted_by: the operation that needs the value; None if the program's result
            needs it, `UNKNOWN` if no such operation was found.
    """

    wanted_by: ValueName | None = None

    @property
    def reader(self) -> ValueName:
        """The operation that reads the result if known, else the operand."""
        return self.wanted_by or self.operation or self.operand

    @property
    def values(self) -> tuple[ValueName, ...]:
        """The values that the cause's sentence names: the operand and operations."""
        return tuple(filter(None, (self.operand, self.wanted_by, self.operation)))


@dataclass(frozen=True)
class FromOneDevice(WantedCause):
    """The collective copies one device's value to its group: other devices add zeros.

    >>> FromOneDevice("all-reduce").code
    'from one'
    """

    code: ClassVar[str] = "from one"


@dataclass(frozen=True)
class WithinOperation(Cause):
    """The collective is one step of how XLA computes a single operation.

    >>> WithinOperation("all-gather").code
    'within'
    """

    code: ClassVar[str] = "within"


@dataclass(frozen=True)
class Moved(WantedCause):
    """The collective moves a value from one sharding to another.

    Attributes:
        through: the operation that reads the moved value, if only a later operation
            needs the new sharding; else None.
        beside: another operand of `through`, whose sharding the value must match; else
            None.
        dtype: the element type of the moved bytes, such as `f32`; `""` if there are
            several, or if `through` is None.
        before: an earlier move of the operand: a kind of collective, or `"slice"`; `""`
            if there is none.
    """

    through: ValueName | None = None
    beside: ValueName | None = None
    dtype: str = ""
    before: str = ""


@dataclass(frozen=True)
class Sent(Moved):
    """Devices need shards of the value that other devices hold.

    >>> Sent("collective-permute").code
    'sent'
    """

    code: ClassVar[str] = "sent"


@dataclass(frozen=True)
class Resplit(Moved):
    """The reader needs the value split along other dimensions.

    >>> Resplit("all-to-all").code
    'resplit'
    """

    code: ClassVar[str] = "resplit"


@dataclass(frozen=True)
class Gathered(Moved):
    """The reader needs the value not split over the collective's mesh axes.

    Attributes:
        dimension: the dimension that was split over these axes; None if unknown.

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
    """Every device builds the full array and keeps only its new shard.

    Attributes:
        full: type and shape of the full array, such as `f32[16]`.
        part: type and shape of the shard that a device keeps.

    >>> Rematerialised("all-gather", full="f32[16]", part="f32[2]").code
    'rematerialised'
    """

    code: ClassVar[str] = "rematerialised"
    full: str = ""
    part: str = ""


#: Code -> class, for all causes of collectives in compiled programs.
CAUSES: Mapping[str, type[Cause]] = MappingProxyType({
    cause.code: cause
    for cause in (
        Written, AddedByGrad, Contracted, Reduced, Summed, FromOneDevice,
        WithinOperation, Sent, Gathered, Resplit, Unsplittable, Rematerialised, Cause,
    )
})  # fmt: skip


def axes_in_words(axes: Iterable[str], parts: Iterable[AxisPart]) -> tuple[str, ...]:
    """Names of mesh axes; an axis covered in part is named as `2 of 4 along data`.

    >>> axes_in_words(("data:(1)2", "model"), (AxisPart("data", 2, 4),))
    ('2 of 4 along data', 'model')
    """
    by_axis = {part.axis: str(part) for part in parts}
    # `axes` may have several sub-axes of one axis.
    names = dict.fromkeys(axis.partition(":(")[0] for axis in axes)
    return tuple(by_axis.get(name, name) for name in names)


def author_of(op: str) -> str:
    """Whether the program or `jax.grad` put a collective into a `shard_map`.

    Returns `"written"` for the program and `"gradient"` for `jax.grad`, which
    transposes collectives, and sums over devices that have the same value. The backward
    rule of a `custom_vjp` has similar names, so it counts as `"gradient"` too.
    Collectives that `jax.checkpoint` recomputes count as `"written"`.

    Args:
        op: jax's name of the collective.

    >>> author_of("jit(f)/shard_map/psum_invariant")
    'written'
    >>> author_of("jit(f)/shard_map/transpose(jvp())/psum_invariant")
    'gradient'
    """
    _, transposed, inside = op.rpartition("transpose(")
    if not transposed or "rematted_computation" in inside:
        return "written"
    return "gradient"
