"""Report and its parts: what one compile or run did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.axis_rules.fit import Fit, LargestArrays
from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.checks import Check
from shardviz.compiled.memory import MemoryPeak, MemoryTimeline
from shardviz.compiled.too_large import TooLarge
from shardviz.programs.failure import Failure


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
