"""Report and its parts: what one compile or run did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.core.display import Displayed, Fact
from shardviz.core.format import bytes_text
from shardviz.core.layout.fit import Fit, LargestArrays
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.cause import UNKNOWN, AxisPart, ValueName, axes_in_words
from shardviz.core.program.checks import Check
from shardviz.core.program.failure import Failure
from shardviz.core.program.memory import MemoryPeak, MemoryTimeline
from shardviz.core.program.too_large import TooLarge

COLLECTIVE_KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)


def phase_of(op: str) -> str:
    """`"forward"` or `"backward"` for an operation of a gradient, from the name that
    jax gives it; `""` for others, as those of an optimizer.

    >>> phase_of("jit(f)/transpose(jvp())/dot_general"), phase_of("jit(f)/mul")
    ('backward', '')
    """
    # jax takes gradients as the transpose of a linear map.
    if "transpose(" in op:
        return "backward"
    if "jvp(" in op:
        return "forward"
    return ""


@dataclass(frozen=True)
class Member:
    """One of the arrays that a combined collective is about.

    Attributes:
        op, source, stack: where it comes from, as of a Collective.
        bytes_per_device: the bytes of its part of the result (of its operand, for a
            reduce-scatter).
        shape: type and shape of its part of the result.
        operand: what it is.
        cause: why it is there, a `Cause`; `""` where that is not known.

    >>> Member("jit(f)/transpose(jvp())/dot_general", "mlp.py:31", 4096).phase
    'backward'
    """

    op: str
    source: str
    bytes_per_device: int
    shape: str = ""
    operand: ValueName = UNKNOWN
    stack: tuple[str, ...] = ()
    cause: Any = ""

    @property
    def phase(self) -> str:
        """`"forward"`, `"backward"`, or `""` where its op does not say."""
        return phase_of(self.op)

    @property
    def words(self) -> str:
        """Bytes, operand and line: `4 KiB of argument w_in (mlp.py:31)`."""
        # Without an operand its operation is the next best name.
        what = str(self.operand)
        if self.operand == UNKNOWN and self.op:
            what = self.op.rpartition("/")[2]
        if self.source and self.source != self.operand.source:
            what += f" ({self.source})"
        return f"{bytes_text(self.bytes_per_device)} of {what}"


@dataclass(frozen=True, repr=False)
class Collective:
    """One collective of a compiled program.

    Attributes:
        kind: one of COLLECTIVE_KINDS.
        mesh_axes: the mesh axes it runs over, or parts of them as Shardy names these:
            `data:(1)2` is the first 2 that data=4 is split into; `()` where the groups
            match no set of axes.
        bytes_per_device: the bytes of its result on each device (of its operand, for a
            reduce-scatter); not the bytes that links carry.
        op: where it comes from, as jax names it: `jit(f)/dot_general`; of a combined
            one, that of its largest member.
        source: file and line, `block.py:31`, or `""` where the compiler kept none.
        groups: the replica groups, as tuples of flat mesh positions; `()` where
            unknown.
        is_async: whether other work can run meanwhile: it is a start and a done, and
            not a pair that GPU's compiler marks as waited for at once (`is_sync`).
        in_loop: whether it is inside a loop body.
        name: the instruction's name in the compiled text.
        shape: the result's type and shape, such as `f32[8,128]`.
        trips: how often its loops run it; 1 outside of loops, None where that is not
            known.
        stack: every frame of the user's code that led to it, innermost first.
        group_size: how many devices take part in each group; 0 where unknown.
        value: the name of the plan's value that causes it; `""` where that is not
            known.
        cause: why it is there, a `Cause`; `""` where that is not known.
        rematerialises: whether it belongs to a full rematerialisation: the partitioner
            found no better way than to make the full array on every device and split it
            again.
        between_slices: whether it is the part of a collective that goes from slice to
            slice over the data-center network, which TPU's compiler writes as a send
            and a receive.
        operand: what it sums or moves; of a combined one, that of its largest member.
            None in an estimate.
        members: of a combined collective its arrays, the largest first; else `()`.
        added_in: where its result, a sum, is used for nothing but to be added to
            others, the name of the last of these additions in the text; else `""`.
        parts: the axes of which its groups have a part, such as 2 of data=4.

    >>> found = Collective("all-reduce", ("model",), 4096, source="block.py:31", group_size=2)
    >>> found
    Collective(all-reduce over model, 4 KiB, block.py:31)
    >>> found.sent_bytes
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
    cause: Any = ""
    rematerialises: bool = False
    between_slices: bool = False
    operand: ValueName | None = None
    members: tuple[Member, ...] = ()
    added_in: str = ""
    parts: tuple[AxisPart, ...] = ()

    @property
    def is_partial(self) -> bool:
        """Whether its groups are smaller than its mesh axes."""
        return bool(self.parts)

    @property
    def axes_in_words(self) -> tuple[str, ...]:
        """Each of its mesh axes by its name, or as in `2 of 4 along data`."""
        return axes_in_words(self.mesh_axes, self.parts)

    @property
    def over(self) -> str:
        """The mesh axes in words, ` over data × model`; or `""`.

        >>> part = AxisPart("data", 2, 4)
        >>> Collective("all-reduce", ("data:(1)2", "model"), 4, parts=(part,)).over
        ' over 2 of 4 along data × model'
        """
        if not self.mesh_axes:
            return ""
        return " over " + " × ".join(self.axes_in_words)

    @property
    def phase(self) -> str:
        """`"forward"`, `"backward"`, or `""` where its op does not say."""
        return phase_of(self.op)

    @property
    def sent_bytes(self) -> int | None:
        """The bytes that each device sends once, on a ring; None where the group is
        unknown.

        The factors are those of the scaling book: (n-1)/n of what is gathered,
        scattered or exchanged, twice that for an all-reduce, all of it for a
        permutation.
        """
        # Every device sends its shard once, whatever the group.
        if self.kind == "collective-permute":
            return self.bytes_per_device
        size = self.group_size
        if not size and self.groups:
            size = len(self.groups[0])
        if size < 1:
            return None
        # A ring makes an all-reduce of a reduce-scatter and an all-gather.
        rounds = 1
        if self.kind == "all-reduce":
            rounds = 2
        return rounds * self.bytes_per_device * (size - 1) // size

    @property
    def execution_count(self) -> int:
        """How often it runs; 1 where that is not known."""
        # At least once; a guess at more could be wrong by any factor.
        if self.trips is None:
            return 1
        return self.trips

    @property
    def bytes_in_all(self) -> int:
        """Its bytes on each device over all executions."""
        return self.bytes_per_device * self.execution_count

    @property
    def sent_in_all(self) -> int:
        """The bytes that each device sends over all executions; 0 where the group is
        unknown.
        """
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
        # The line is that of the largest member.
        if line and self.members:
            line += f" and {len(self.members) - 1:,} more"
        return words + (line and f" ({line})")

    @property
    def dtype(self) -> str:
        """The element type of what it sends; `""` if there are several, or unknown.

        >>> Collective("all-reduce", ("data",), 4096, shape="(f32[512], f32[512])").dtype
        'f32'
        """
        arrays = self.shape.strip("()").split(", ")
        dtypes = {array.partition("[")[0] for array in arrays}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @property
    def amount(self) -> str:
        """Its bytes on each device, and how often where that is not once: `4 KiB × 12`."""
        size = bytes_text(self.bytes_per_device)
        if self.trips is None:
            return f"{size} × ?"
        if self.trips == 1:
            return size
        return f"{size} × {self.trips:,}"

    def __repr__(self) -> str:
        parts = [f"{self.kind}{self.over.replace(' × ', ', ')}", self.amount]
        if self.is_async:
            parts.append("async")
        if self.source:
            parts.append(self.source)
        return f"Collective({', '.join(parts)})"


@dataclass(frozen=True)
class Memory:
    """Bytes on each device, from the compiler's own analysis; None where it gave none.

    Attributes:
        arguments: what the arguments take.
        outputs: what the outputs take.
        temporaries: what intermediate values take.
        aliased: outputs that take the memory of a donated argument; counted in both.
        generated_code: the code itself, where it lives on the device.
        capacity: what one device has: its chip's; of simulated devices, their even
            share of the host's. None where that is not known.
        free_now: what an attached device had free when the report was made.
        host_arguments, host_outputs, host_temporaries: bytes beside those, in the
            memory of the host, for arrays of memory kind `pinned_host` and the like.
        timeline: what is alive over the program's order; None where the compiler does
            not say it.

    >>> Memory(arguments=1024).replace(capacity=4096)
    Memory(arguments=1024, ..., capacity=4096, ...)
    """

    arguments: int | None = None
    outputs: int | None = None
    temporaries: int | None = None
    aliased: int | None = None
    generated_code: int | None = None
    capacity: int | None = None
    free_now: int | None = None
    host_arguments: int | None = None
    host_outputs: int | None = None
    host_temporaries: int | None = None
    timeline: MemoryTimeline | None = field(default=None, repr=False)

    @property
    def peak(self) -> MemoryPeak | None:
        """The moment at which most is needed, and what is alive then."""
        return self.timeline and self.timeline.peak

    def replace(self, **changes: Any) -> Memory:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, repr=False)
class Report(Displayed):
    """What one compile or run did.

    Attributes:
        program: the name of the program.
        target: the target, in words: `"cpu × 8, simulated"`.
        key: the fingerprint under which the executable is cached; `""` before lowering.
        cache_hit: whether the executable came out of the cache.
        lower_s, compile_s, place_s, run_s: seconds of each stage; None where it did not
            happen. `run_s` is the median over repeats.
        runs_s: seconds of every repeat.
        outputs: the outputs, in the form the function returns them; None for a compile.
        in_layouts, out_layouts: name to Layout, as compiled.
        partitioned: collectives right after XLA's partitioner; None where it left no
            text.
        collectives: collectives in the final program; None before it is compiled.
        memory: bytes on each device.
        cost: the compiler's cost analysis: name to number (`flops`, `bytes accessed`),
            with the body of a loop counted once.
        loops: how many loops the compiled program has.
        effects: the effects of the program, by name.
        checks: predictions, compared with what happened.
        error: None, or the Failure that ended it.
        partition_s: seconds until XLA's partitioner was done; None where it left no
            text.
        roofline: the least time each part can take on the target's chips; None where
            the chips' figures are not known.
        notes: what the user should know about the target, such as a mesh that its torus
            refuses.
        mesh: the program's mesh with the devices it was compiled for; None before these
            were chosen.
        processes: what each of several processes did, a `ProcessReport` each, by rank;
            `()` where it was one process.
        of: the `Program` that was compiled or run; None for what a worker sends.
        on: the `Target` it was for; None where that was not known.
    """

    program: str
    target: str
    key: str = ""
    cache_hit: bool = False
    lower_s: float | None = None
    compile_s: float | None = None
    place_s: float | None = None
    run_s: float | None = None
    runs_s: tuple[float, ...] = ()
    outputs: Any = None
    in_layouts: Mapping[str, Layout] = field(default_factory=dict)
    out_layouts: Mapping[str, Layout] = field(default_factory=dict)
    partitioned: tuple[Collective, ...] | None = None
    collectives: tuple[Collective, ...] | None = None
    memory: Memory = Memory()
    cost: Mapping[str, float] = field(default_factory=dict)
    effects: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    error: Failure | None = None
    partition_s: float | None = None
    roofline: Any = None
    notes: tuple[Fact | str, ...] = ()
    mesh: MeshSpec | None = None
    loops: int = 0
    processes: tuple[Any, ...] = ()
    of: Any = field(default=None, compare=False)
    on: Any = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        # A program holds the user's function, which may not be picklable.
        return {**vars(self), "of": None}

    @property
    def ok(self) -> bool:
        """Whether there was no error, it fits its target, and no check failed.

        >>> Report("f", "cpu × 8").ok
        True
        """
        # A check of which nobody knows (None) is no failure.
        checked = all(check.ok is not False for check in self.checks)
        return self.error is None and self.too_large is None and checked

    @property
    def fit(self) -> Fit | None:
        """Whether it has room on each device; None where the compiler said no bytes.

        >>> Report("f", "cpu × 8", memory=Memory(arguments=3 << 30, capacity=4 << 30)).fit.code
        'fits'
        """
        needed = needed_bytes(self.memory)
        if needed is None:
            return None
        capacity, chip = self.memory.capacity, ""
        if self.on is not None and self.on.platform == "cpu":
            # CPUs stand for the devices that it will run on, which have other memory.
            capacity = None
        elif self.roofline is not None:
            # What the device itself says comes before what is published of its kind.
            chip = self.roofline.chip.title
            capacity = capacity or self.roofline.capacity
        elif self.on is not None and self.on.topology is not None:
            chip = self.on.topology.chip.title
        return Fit(needed, capacity, chip)

    @property
    def too_large(self) -> TooLarge | None:
        """What fills the memory if it does not fit its target; None if it fits or
        that is unknown.
        """
        fit, error = self.fit, self.error
        refused = error is not None and error.lacks_memory and error.stage == "compile"
        # What has run had enough memory, however that was counted.
        if fit is None or self.run_s is not None or not (refused or fit.ok is False):
            return None
        target = self.target
        if self.on is not None and self.on.topology is not None:
            target = self.on.topology.title
        return TooLarge.of(self.program, target, fit, self.memory)

    @property
    def largest_arrays(self) -> LargestArrays:
        """The arguments and results that take the most of each device."""
        return LargestArrays.of({**self.in_layouts, **self.out_layouts})

    def replace(self, **changes: Any) -> Report:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        state = "ok"
        if self.too_large is not None:
            state = "does not fit"
        elif self.error is not None:
            state = f"failed at {self.error}"
        elif not self.ok:
            state = "a check failed"
        where = self.target and f" on {self.target}"
        return f"Report({self.program}{where}: {state})"


def needed_bytes(memory: Memory) -> int | None:
    """Bytes that the program takes on each device; None where the compiler said
    nothing.

    Arguments, outputs and temporaries, and the code where it lives on the device; an
    output that takes the memory of a donated argument counts once.

    >>> needed_bytes(Memory(arguments=100, outputs=40, temporaries=5, aliased=40))
    105
    >>> needed_bytes(Memory()) is None
    True
    """
    parts = (
        memory.arguments,
        memory.outputs,
        memory.temporaries,
        memory.generated_code,
    )
    # A compiler may say some of them only.
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return sum(known) - (memory.aliased or 0)


def peak_bytes(memory: Memory) -> int | None:
    """Bytes alive at the peak on each device; where that is not known, all that it
    takes, which on TPUs counts memory on the core as well.

    >>> peak_bytes(Memory(arguments=100, temporaries=5))
    105
    """
    return needed_bytes(memory) if memory.peak is None else memory.peak.bytes


def host_bytes(memory: Memory) -> int:
    """Bytes that the program keeps for each device in the memory of the host.

    >>> host_bytes(Memory(arguments=100, host_arguments=40)), host_bytes(Memory())
    (40, 0)
    """
    parts = (memory.host_arguments, memory.host_outputs, memory.host_temporaries)
    return sum(part or 0 for part in parts)
