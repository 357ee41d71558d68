"""Collective: one exchange between devices, in a plan or in a compiled program."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.cause import UNKNOWN, AxisPart, ValueName, axes_in_words
from shardviz.base.collective_kind import KINDS, CollectiveKind
from shardviz.base.display import Fact
from shardviz.base.format import bytes_text, clause


def phase_of(op: str) -> str:
    """`"forward"` or `"backward"` for an operation of a gradient, else `""`.

    The phase is read from jax's name of the operation. An optimizer's operations have
    none.

    >>> phase_of("jit(f)/transpose(jvp())/dot_general"), phase_of("jit(f)/mul")
    ('backward', '')
    """
    # jax computes gradients by transposing a linearized function.
    if "transpose(" in op:
        return "backward"
    if "jvp(" in op:
        return "forward"
    return ""


@dataclass(frozen=True)
class Member:
    """One array in a combined collective.

    Attributes:
        op, source, stack: its operation and source lines, as in Collective.
        bytes_per_device: the bytes of its part of the result (of its operand, for a
            reduce-scatter).
        shape: type and shape of its part of the result.
        operand: the name of the array.
        cause: the `Cause` of its movement; `""` if not known.

    >>> Member("jit(f)/transpose(jvp())/dot_general", "mlp.py:31", 4096).phase
    'backward'
    """

    op: str
    source: str
    bytes_per_device: int
    shape: str = ""
    operand: ValueName = UNKNOWN
    stack: tuple[str, ...] = ()
    cause: Fact | str = ""

    @property
    def phase(self) -> str:
        """`"forward"`, `"backward"`, or `""` if its op does not show it."""
        return phase_of(self.op)

    @property
    def words(self) -> str:
        """Bytes, operand and line: `4 KiB of argument w_in (mlp.py:31)`."""
        # Without an operand its operation is the next best name.
        name = str(self.operand)
        if self.operand == UNKNOWN and self.op:
            name = self.op.rpartition("/")[2]
        if self.source and self.source != self.operand.source:
            name += f" ({self.source})"
        return f"{bytes_text(self.bytes_per_device)} of {name}"


@dataclass(frozen=True, repr=False)
class Collective:
    """One collective of a plan or of a compiled program.

    Attributes:
        kind: its kind, one of `COLLECTIVE_KINDS`.
        mesh_axes: the mesh axes it runs over, or parts of axes in Shardy's notation:
            `data:(1)2` is the major part, of size 2, of data=4. `()` if the groups
            match no set of axes.
        bytes_per_device: the bytes of its result on each device (of its operand, for a
            reduce-scatter); not the bytes that links carry.
        op: jax's name of the operation it comes from: `jit(f)/dot_general`; for a
            combined collective, that of its largest member.
        source: file and line, `block.py:31`, or `""` if the compiler kept none.
        groups: the replica groups, as tuples of flat mesh positions; `()` if unknown.
        is_async: whether other work can run meanwhile: it is a pair of start and done
            that XLA:GPU does not mark as synchronous (`is_sync`).
        in_loop: whether it is inside a loop body.
        name: the instruction's name in the compiled text.
        shape: the result's type and shape, such as `f32[8,128]`.
        trips: how often its loops run it; 1 outside of loops, None if not known.
        stack: every frame of the user's code that led to it, innermost first.
        group_size: the number of devices in each group; 0 if unknown.
        value: the name of the plan's value that causes it; `""` if not known.
        cause: the `Cause`, in a plan a `PlanCause`; `""` if not known.
        rematerialises: whether it is part of a full rematerialisation: the partitioner
            found no better way than to build the full array on every device and split
            it again.
        between_slices: whether it is the part of a collective that crosses slices over
            the data-center network, which XLA:TPU writes as a send and a receive.
        operand: the value that it sums or moves; for a combined collective, that of its
            largest member. None in an estimate.
        members: the arrays of a combined collective, largest first; else `()`.
        added_in: if its result, a sum, is only used in additions, the name of the last
            of these in the text; else `""`.
        parts: the axes that its groups cover only in part, such as 2 of data=4.

    >>> reduce = Collective("all-reduce", ("model",), 4096, source="block.py:31", group_size=2)
    >>> reduce
    Collective(all-reduce over model, 4 KiB, block.py:31)
    >>> reduce.sent_bytes
    4096
    """

    kind: str
    mesh_axes: tuple[str, ...]
    bytes_per_device: int
    op: str = ""
    source: str = ""
    groups: tuple[tuple[int, ...], ...] = ()
    is_async: bool = False
    in_loop: bool = False
    name: str = ""
    shape: str = ""
    trips: int | None = 1
    stack: tuple[str, ...] = ()
    group_size: int = 0
    value: str = ""
    cause: Fact | str = ""
    rematerialises: bool = False
    between_slices: bool = False
    operand: ValueName | None = None
    members: tuple[Member, ...] = ()
    added_in: str = ""
    parts: tuple[AxisPart, ...] = ()

    @property
    def definition(self) -> CollectiveKind:
        """The definition of its kind: its effect, its route, its names elsewhere."""
        return KINDS[self.kind]

    @property
    def is_partial(self) -> bool:
        """True if its groups are smaller than its mesh axes."""
        return bool(self.parts)

    @property
    def axes_in_words(self) -> tuple[str, ...]:
        """The name of each mesh axis, or `2 of 4 along data` for a part of one."""
        return axes_in_words(self.mesh_axes, self.parts)

    @property
    def axes_text(self) -> str:
        """The mesh axes in words, `data × model`; `""` if it has none."""
        return " × ".join(self.axes_in_words)

    @property
    def over(self) -> str:
        """The mesh axes in words, ` over data × model`; or `""`.

        >>> part = AxisPart("data", 2, 4)
        >>> Collective("all-reduce", ("data:(1)2", "model"), 4, parts=(part,)).over
        ' over 2 of 4 along data × model'
        """
        return clause(" over {}", self.axes_text)

    @property
    def name_with_axes(self) -> str:
        """Its name in a table: `all-gather over data × model`."""
        return f"{self.kind}{self.over}"

    @property
    def phase(self) -> str:
        """`"forward"`, `"backward"`, or `""` if its op does not show it."""
        return phase_of(self.op)

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that each device sends per execution; None if the group size is unknown."""
        devices = self.group_size
        if not devices and self.groups:
            devices = len(self.groups[0])
        # In a permutation every sender sends its shard once, for any groups.
        if devices < 1 and not self.definition.pairs:
            return None
        return self.definition.sent_bytes(self.bytes_per_device, devices)

    @property
    def execution_count(self) -> int:
        """How often it runs; 1 if not known."""
        # Any guess above 1 could be wrong by any factor.
        if self.trips is None:
            return 1
        return self.trips

    @property
    def bytes_in_all(self) -> int:
        """Its bytes on each device over all executions."""
        return self.bytes_per_device * self.execution_count

    @property
    def sent_in_all(self) -> int:
        """Bytes that each device sends over all executions; 0 if unknown."""
        return (self.sent_bytes or 0) * self.execution_count

    @property
    def words(self) -> str:
        """Kind, bytes, mesh axes, value and source line, in one line.

        >>> Collective("all-gather", ("data",), 512, source="f.py:3", value="dot", trips=4).words
        'all-gather of 512 B × 4 over data for dot (f.py:3)'
        """
        words = f"{self.kind} of {self.amount}{self.over}"
        if self.value:
            words += f" for {self.value}"
        line = self.source
        # The line belongs to the largest member.
        if line and self.members:
            line += f" and {len(self.members) - 1:,} more"
        return words + (line and f" ({line})")

    @property
    def dtype(self) -> str:
        """The element type of the data it sends; `""` if several or unknown.

        >>> Collective("all-reduce", ("data",), 4096, shape="(f32[512], f32[512])").dtype
        'f32'
        """
        arrays = self.shape.strip("()").split(", ")
        dtypes = {array.partition("[")[0] for array in arrays}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @property
    def amount(self) -> str:
        """Its bytes on each device, with the trip count unless that is 1: `4 KiB × 12`."""
        size = bytes_text(self.bytes_per_device)
        if self.trips is None:
            return f"{size} × ?"
        if self.trips == 1:
            return size
        return f"{size} × {self.trips:,}"

    def __repr__(self) -> str:
        axes = clause(" over {}", ", ".join(self.axes_in_words))
        parts = [f"{self.kind}{axes}", self.amount]
        if self.is_async:
            parts.append("async")
        if self.source:
            parts.append(self.source)
        return f"Collective({', '.join(parts)})"
