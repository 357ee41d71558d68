"""Collective: a collective operation of a plan or of a compiled program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardviz.base.cause import UNKNOWN, AxisPart, ValueName, axes_in_words
from shardviz.base.collective_kind import KINDS, CollectiveKind, Route
from shardviz.base.display import Fact
from shardviz.base.format import bytes_text, clause
from shardviz.base.plain import Plain, columns


def phase_of(op: str) -> str:
    """Returns `"forward"` or `"backward"` for an operation of a gradient, else `""`.

    Reads the phase from jax's name of the operation. Optimizer operations have no
    phase.

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
        op, source, stack: the array's operation and source lines, as in Collective.
        bytes_per_device: the array's bytes on each device, in the result; for a
            reduce-scatter, in the operand.
        shape: the array's type and shape in the result.
        operand: the name of the array.
        cause: why the array is summed or moved, as a `Cause`; `""` if not known.

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
        """`"forward"`, `"backward"`, or `""` if `op` does not show the phase."""
        return phase_of(self.op)

    @property
    def words(self) -> str:
        """Operand and source line: `argument w_in (mlp.py:31)`."""
        # If the operand is unknown, the operation is the next best name.
        name = str(self.operand)
        if self.operand == UNKNOWN and self.op:
            name = self.op.rpartition("/")[2]
        if self.source and self.source != self.operand.source:
            name += f" ({self.source})"
        return name


@columns(
    *("kind", "axes_text", "bytes_per_device", "sent_bytes", "trips", "group_size"),
    *("dtype", "shape", "phase", "op", "source", "value", "name", "in_loop"),
)
@dataclass(frozen=True, repr=False)
class Collective(Plain):
    """One collective of a plan or of a compiled program.

    Attributes:
        kind: one of `COLLECTIVE_KINDS`, such as `all-gather`.
        mesh_axes: the mesh axes or sub-axes that the collective runs over. Sub-axes are
            in Shardy's notation: `data:(1)2` is the major sub-axis of size 2 of data=4.
            `()` if the groups match no set of axes.
        bytes_per_device: the bytes of the result on each device; for a reduce-scatter,
            the bytes of the operand. The bytes that a device sends are in `sent_bytes`.
        op: jax's name of the source operation, such as `jit(f)/dot_general`; for a
            combined collective, the operation of its largest member.
        source: file and line of the operation, `block.py:31`; `""` if the compiler kept
            none.
        groups: the replica groups, as tuples of flat mesh positions; `()` if unknown.
        is_async: whether other operations can run during the collective. True for a
            pair of start and done instructions that XLA:GPU does not mark as
            synchronous (`is_sync`).
        in_loop: whether the collective is inside a loop body.
        name: the instruction's name in the compiled text.
        shape: the result's type and shape, such as `f32[8,128]`.
        trips: how often the enclosing loops run the collective; 1 outside of loops,
            None if not known.
        stack: the frames of user code that led to the collective, innermost first.
        group_size: the number of devices in each group; 0 if unknown.
        value: the name of the plan's value that needs the collective; `""` if unknown.
        cause: why the collective exists: a `Cause`, or in a plan a `PlanCause`; `""` if
            not known.
        rematerialises: whether the collective is part of a full rematerialisation: the
            partitioner found no better way than to build the full array on every device
            and split it again.
        between_slices: whether this is the step of a larger collective that crosses TPU
            slices over the data-center network. XLA:TPU compiles this step to a send
            and a receive.
        operand: the value that is summed or moved; for a combined collective, the value
            of its largest member. None in a plan, whose collectives are an estimate.
        members: the arrays of a combined collective, largest first; else `()`.
        added_in: the name of the last addition that uses the result, if the result is a
            sum used only in additions; else `""`.
        parts: the axes that the groups cover only in part, such as 2 of data=4.

    >>> from shardviz.types import Collective
    >>> reduce = Collective("all-reduce", ("model",), 4096, source="block.py:31", group_size=2)
    >>> reduce
    Collective(all-reduce over model, sends 4 KiB, block.py:31)
    >>> reduce.sent_bytes
    4096
    """

    _adds = ("axes_text", "sent_bytes", "sent_in_all", "phase", "dtype")

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
        """The CollectiveKind, with effect, route, and names in jax and StableHLO."""
        return KINDS[self.kind]

    @property
    def is_partial(self) -> bool:
        """True if the replica groups cover any mesh axis only in part."""
        return bool(self.parts)

    @property
    def axes_in_words(self) -> tuple[str, ...]:
        """The mesh axes by name; an axis covered in part as `2 of 4 along data`."""
        return axes_in_words(self.mesh_axes, self.parts)

    @property
    def axes_text(self) -> str:
        """The mesh axes as text, such as `data × model`; `""` if there are none."""
        return " × ".join(self.axes_in_words)

    @property
    def over(self) -> str:
        """The mesh axes as a phrase, such as ` over data × model`; `""` if none.

        >>> from shardviz.base.cause import AxisPart
        >>> from shardviz.types import Collective
        >>> part = AxisPart("data", 2, 4)
        >>> Collective("all-reduce", ("data:(1)2", "model"), 4, parts=(part,)).over
        ' over 2 of 4 along data × model'
        """
        return clause(" over {}", self.axes_text)

    @property
    def name_with_axes(self) -> str:
        """Kind and mesh axes, for tables: `all-gather over data × model`."""
        return f"{self.kind}{self.over}"

    @property
    def phase(self) -> str:
        """`"forward"`, `"backward"`, or `""` if `op` does not show the phase."""
        return phase_of(self.op)

    @property
    def sent_bytes(self) -> int | None:
        """The bytes that each device sends in one execution.

        None if the group size is unknown, or if the bytes depend on values at run time.
        """
        return self.sent_for(self.bytes_per_device)

    def sent_for(self, size: int) -> int | None:
        """Returns the bytes that each device sends if the array has `size` bytes."""
        if self.definition.route is Route.UNKNOWN:
            return None
        devices = self.group_size
        if not devices and self.groups:
            devices = len(self.groups[0])
        # In a permutation, each sender sends its shard once for any group size.
        if devices < 1 and not self.definition.pairs:
            return None
        return self.definition.sent_bytes(size, devices)

    @property
    def execution_count(self) -> int:
        """The number of executions; 1 if not known."""
        # Any larger guess could be wrong by an arbitrary factor.
        if self.trips is None:
            return 1
        return self.trips

    @property
    def bytes_in_all(self) -> int:
        """`bytes_per_device`, summed over all executions."""
        return self.bytes_per_device * self.execution_count

    @property
    def sent_in_all(self) -> int:
        """The bytes that each device sends in all executions; 0 if unknown."""
        return (self.sent_bytes or 0) * self.execution_count

    @property
    def drawn_bytes(self) -> int:
        """The bytes in `amount`, for all executions; pictures sort by this number."""
        return self.bytes_in_all if self.sent_bytes is None else self.sent_in_all

    @property
    def words(self) -> str:
        """A one-line summary: kind, bytes sent, mesh axes, value and source line.

        >>> from shardviz.types import Collective
        >>> loop = {"source": "f.py:3", "value": "dot", "trips": 4, "group_size": 4}
        >>> Collective("all-gather", ("data",), 512, **loop).words
        'all-gather that sends 384 B × 4 over data for dot (f.py:3)'
        """
        return self.words_with(self.amount)

    def words_with(self, amount: str) -> str:
        """Returns `words` with `amount` as the text of the bytes."""
        verb = "with a" if self.sent_bytes is None else "that sends"
        words = f"{self.kind} {verb} {amount}{self.over}"
        if self.value:
            words += f" for {self.value}"
        line = self.source
        # `source` is only the line of the largest member.
        if line and self.members:
            line += f" and {len(self.members) - 1:,} more"
        return words + (line and f" ({line})")

    @property
    def dtype(self) -> str:
        """The element type of the sent data; `""` if unknown or if there are several.

        >>> from shardviz.types import Collective
        >>> Collective("all-reduce", ("data",), 4096, shape="(f32[512], f32[512])").dtype
        'f32'
        """
        arrays = self.shape.strip("()").split(", ")
        dtypes = {array.partition("[")[0] for array in arrays}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @property
    def amount(self) -> str:
        """The bytes that each device sends, and the number of executions: `4 KiB × 12`.

        A single execution is not counted. If the sent bytes are unknown, the text has
        the bytes of the result: `result of 4 KiB`.
        """
        return f"{self.sent_text(self.bytes_per_device)}{trips_text(self.trips)}"

    def sent_text(self, size: int) -> str:
        """Formats `sent_for(size)`, or if unknown, `result of` and `size`."""
        sent = self.sent_for(size)
        return f"result of {bytes_text(size)}" if sent is None else bytes_text(sent)

    def __repr__(self) -> str:
        axes = clause(" over {}", ", ".join(self.axes_in_words))
        verb = "" if self.sent_bytes is None else "sends "
        parts = [f"{self.kind}{axes}", f"{verb}{self.amount}"]
        if self.is_async:
            parts.append("async")
        if self.source:
            parts.append(self.source)
        return f"Collective({', '.join(parts)})"


def trips_text(trips: int | None) -> str:
    """Formats a trip count that follows a number of bytes; `""` for a single trip.

    >>> trips_text(12), trips_text(1), trips_text(None)
    (' × 12', '', ' × ?')
    """
    if trips is None:
        return " × ?"
    return f" × {trips:,}" if trips != 1 else ""


def sent_in_all(collectives: Iterable[Collective]) -> int:
    """Returns the bytes that each device sends in all executions of these collectives.

    Unknown bytes count as 0, and a loop of unknown length counts once.

    >>> sent_in_all([Collective("all-gather", ("data",), 800, group_size=4, trips=2)])
    1200
    """
    return sum(collective.sent_in_all for collective in collectives)


def sent_in_all_text(collectives: Sequence[Collective]) -> str:
    """Formats the bytes that each device sends; `≥` if a size or trip count is unknown.

    >>> gather = Collective("all-gather", ("data",), 800, group_size=4, trips=None)
    >>> sent_in_all_text([gather]), sent_in_all_text([Collective("all-gather", (), 8)])
    ('≥ 600 B', 'result of 8 B')
    """
    total, words = sent_in_all(collectives), ""
    if all(c.sent_bytes is None for c in collectives) and collectives:
        total, words = sum(c.bytes_in_all for c in collectives), "result of "
    elif any(c.sent_bytes is None or c.trips is None for c in collectives):
        words = "≥ "
    return f"{words}{bytes_text(total)}"
