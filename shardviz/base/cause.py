"""ValueName and Cause: what a collective is about, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardviz.base.display import Fact

#: Operations with which a program asks for a sharding, as jax calls them.
REQUESTS = ("sharding_constraint", "reshard", "shard_map")


@dataclass(frozen=True)
class ValueName(Fact):
    """What a value is called.

    Attributes:
        code: `"argument"`, `"slice"` (an iteration's slice of an argument),
            `"operation"`, `"carried"` (what a loop carries) or `"unknown"`.
        name: the name of the argument, or of the operation as jax calls it.
        source: the line of the operation or loop; `""` where it is not known.

    >>> ValueName("operation", "dot_general", "mlp.py:31").name
    'dot_general'
    """

    code: str
    name: str = ""
    source: str = ""

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of the program, or a slice of one."""
        return self.code in ("argument", "slice")

    @property
    def is_request(self) -> bool:
        """Whether it is an operation with which the program asks for a sharding."""
        return self.code == "operation" and self.name in REQUESTS


@dataclass(frozen=True)
class AxisPart(Fact):
    """A mesh axis of which each group of a collective has a part.

    Attributes:
        axis: the axis.
        devices: how many devices of it a group has.
        size: how many the axis has.

    >>> print(AxisPart("data", 2, 4))
    2 of 4 along data
    """

    axis: str
    devices: int
    size: int


#: What the compiler does not name.
UNKNOWN = ValueName("unknown")

#: The codes of a cause.
CAUSES = (
    # Put in by somebody, not by the partitioner: by the program itself, in a
    # `shard_map`, or by grad there.
    "written",
    "gradient",
    # Sums of what each device has a part of: of a product or a convolution over a split
    # dimension of its operands, of a reduction, of anything else.
    "contracted",
    "reduced",
    "summed",
    # What one device holds is brought to all, by a sum with zeros.
    "from one",
    # A step within one operation, whose result XLA brings into its sharding.
    "within",
    # Moves from one sharding to another: shards of other devices; the operand without
    # its split, or split otherwise.
    "sent",
    "gathered",
    "resplit",
    # All of the operand, for an operation that the partitioner cannot split.
    "unsplittable",
    # Every device makes the full array, and splits it again.
    "rematerialised",
    # The operand is not known.
    "unknown",
)


@dataclass(frozen=True)
class Cause(Fact):
    """Why a collective is there.

    Attributes:
        code: one of `CAUSES`.
        kind: the kind of collective.
        axes: the mesh axes it runs over.
        parts: the axes of which its groups have a part.
        operand: the value that it sums or moves.
        operation: the operation that it is for, or that it is.
        wanted_by: what needs the value in another sharding; None for the result,
            `UNKNOWN` if nothing was found.
        through: the operation that reads the moved value, if something behind it wants
            its result in another sharding; else None.
        beside: another operand of `through`, whose sharding the value must have; else
            None.
        dtype: the element type of the bytes, `f32`; `""` if there are several.
        gradient_of: of a sum that grad adds, the argument whose gradient it is; None
            if that is not known.
        reducer: the operation of a sum or maximum, `add`; else `""`.
        dimension: the dimension that is split, where it is known.
        before: what moved the operand on its way: `"all-to-all"`,
            `"collective-permute"`, `"slice"` or `""`.
        full, part: of a rematerialisation the type of the full array, and of the part
            that a device keeps.
        vmapped_loop: whether it decides if a loop under `vmap` goes on.

    >>> w = ValueName("argument", "w_in")
    >>> Cause("gathered", "all-gather", ("data",), operand=w, dimension=0).operand.name
    'w_in'
    """

    code: str
    kind: str
    axes: tuple[str, ...] = ()
    parts: tuple[AxisPart, ...] = ()
    operand: ValueName = UNKNOWN
    operation: ValueName | None = None
    wanted_by: ValueName | None = None
    through: ValueName | None = None
    beside: ValueName | None = None
    dtype: str = ""
    gradient_of: ValueName | None = None
    reducer: str = ""
    dimension: int | None = None
    before: str = ""
    full: str = ""
    part: str = ""
    vmapped_loop: bool = False

    @property
    def is_partial(self) -> bool:
        """Whether its groups are smaller than its mesh axes."""
        return bool(self.parts)


def axes_in_words(axes: Iterable[str], parts: Iterable[AxisPart]) -> tuple[str, ...]:
    """Mesh axes by their names; one of which a group has a part, by that part.

    >>> axes_in_words(("data:(1)2", "model"), (AxisPart("data", 2, 4),))
    ('2 of 4 along data', 'model')
    """
    by_axis = {part.axis: str(part) for part in parts}
    # Shardy may name several parts of one axis.
    names = dict.fromkeys(axis.partition(":(")[0] for axis in axes)
    return tuple(by_axis.get(name, name) for name in names)


def author_of(op: str) -> str:
    """Who has put a collective of `jax.lax` into a `shard_map`: `"written"` or
    `"gradient"`.

    grad turns every collective around, and sums over the devices that have the same
    value; the backward rule of a `custom_vjp` has names that look alike. What a
    checkpoint computes again is as in the program.

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
