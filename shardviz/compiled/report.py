"""Report: the result of one compile or run, and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.axis_rules.fit import Fit, LargestArrays
from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import PyTree
from shardviz.compiled.checks import Check
from shardviz.compiled.memory import MemoryPeak, MemoryTimeline
from shardviz.compiled.too_large import TooLarge
from shardviz.hardware.targets import Target
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program


@dataclass(frozen=True)
class Memory:
    """Bytes on each device, from the compiler's analysis; None if it reports none.

    Attributes:
        arguments: the bytes of the arguments.
        outputs: the bytes of the outputs.
        temporaries: the bytes of intermediate values.
        aliased: the bytes of outputs that reuse the memory of donated arguments. They
            are counted in `arguments` and in `outputs`.
        generated_code: the bytes of the code, if it is on the device.
        capacity: the memory of one device: that of its chip, or for simulated devices an
            equal share of the host's. None if unknown.
        free_now: the free memory of an attached device when the report was made.
        host_arguments, host_outputs, host_temporaries: additional bytes in the memory of
            the host, for arrays of memory kinds such as `pinned_host`.
        timeline: the live buffers over the program's order; None if the compiler does
            not report them.

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
        """The moment with the most live bytes, and the buffers that are alive then."""
        return self.timeline and self.timeline.peak

    def replace(self, **changes: Any) -> Memory:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, repr=False)
class Report(Displayed):
    """The result of one compile or run.

    Attributes:
        program: the name of the program.
        target: the target as text: `"cpu × 8, simulated"`.
        key: the fingerprint under which the executable is cached; `""` before lowering.
        cache_hit: whether the executable came from the cache.
        lower_s, compile_s, place_s, run_s: the seconds of each stage; None if it did not
            run. `run_s` is the median over repeats.
        runs_s: the seconds of every repeat.
        outputs: the outputs, in the form that the function returns; None for a compile.
        in_layouts, out_layouts: the compiled Layout of each argument and output, by
            name.
        partitioned: the collectives right after XLA's partitioner; None if it left no
            module.
        collectives: the collectives of the final program; None before it is compiled.
        memory: the bytes on each device.
        cost: the compiler's cost analysis, name to number (`flops`, `bytes accessed`).
            It counts the body of a loop once.
        loops: how many loops the compiled program has.
        effects: the effects of the program, by name.
        checks: predictions, compared with what happened.
        error: None, or the Failure that ended it.
        partition_s: the seconds until XLA's partitioner was done; None if it left no
            module.
        roofline: the least time of each part on the target's chips; None if their rates
            are unknown.
        notes: what the user should know about the compile, such as a mesh that does not
            fit the torus of the target.
        mesh: the program's mesh with the devices it was compiled for; None before these
            were chosen.
        processes: the report of each of several processes, by rank; `()` for a single
            process.
        of: the `Program` that was compiled or run; None for a report from a worker.
        on: the `Target` it was for; None if unknown.
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
    outputs: PyTree = None
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
    roofline: Any = None  # a Roofline, whose module imports this one
    notes: tuple[Fact | str, ...] = ()
    mesh: MeshSpec | None = None
    loops: int = 0
    processes: tuple[Any, ...] = ()  # each a ProcessReport, as above
    of: Program | None = field(default=None, compare=False)
    on: Target | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, object]:
        # A program contains the user's function, which may not be picklable.
        return {**vars(self), "of": None}

    @property
    def ok(self) -> bool:
        """True if there was no error, it fits its target, and no check failed.

        >>> Report("f", "cpu × 8").ok
        True
        """
        # An undecided check (None) is not a failure.
        none_failed = all(check.ok is not False for check in self.checks)
        return self.error is None and self.too_large is None and none_failed

    @property
    def fit(self) -> Fit | None:
        """Whether each device has enough memory; None if the need is unknown.

        >>> Report("f", "cpu × 8", memory=Memory(arguments=3 << 30, capacity=4 << 30)).fit.code
        'fits'
        """
        needed = needed_bytes(self.memory)
        if needed is None:
            return None
        capacity, chip = self.memory.capacity, ""
        if self.on is not None and self.on.platform == "cpu":
            # Simulated CPUs stand for other devices, with another memory.
            capacity = None
        elif self.roofline is not None:
            # The device's own figure is better than the published one of its chip.
            chip = self.roofline.chip.title
            capacity = capacity or self.roofline.capacity
        elif self.on is not None and self.on.topology is not None:
            chip = self.on.topology.chip.title
        return Fit(needed, capacity, chip)

    @property
    def too_large(self) -> TooLarge | None:
        """The values that fill the memory, if it does not fit its target; None if it
        fits, or if that is unknown.
        """
        fit, error = self.fit, self.error
        refused = error is not None and error.lacks_memory and error.stage == "compile"
        # A program that ran had enough memory, no matter how it is counted.
        if fit is None or self.run_s is not None or not (refused or fit.ok is False):
            return None
        target = self.target
        if self.on is not None and self.on.topology is not None:
            target = self.on.topology.title
        return TooLarge.of(self.program, target, fit, self.memory)

    @property
    def largest_arrays(self) -> LargestArrays:
        """The arguments and results with the most bytes on each device."""
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
    """The bytes that a program needs on each device; None if the compiler reports none.

    They are those of arguments, outputs, temporaries, and the code if it is on the
    device. Outputs that reuse the memory of donated arguments count once.

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
    # A compiler may report only some of them.
    reported = [part for part in parts if part is not None]
    if not reported:
        return None
    return sum(reported) - (memory.aliased or 0)


def peak_bytes(memory: Memory) -> int | None:
    """The live bytes at the peak on each device. If they are unknown, all bytes that it
    needs, which on TPUs include memory on the cores.

    >>> peak_bytes(Memory(arguments=100, temporaries=5))
    105
    """
    return needed_bytes(memory) if memory.peak is None else memory.peak.bytes


def host_bytes(memory: Memory) -> int:
    """The bytes that a program keeps for each device in the memory of the host.

    >>> host_bytes(Memory(arguments=100, host_arguments=40)), host_bytes(Memory())
    (40, 0)
    """
    parts = (memory.host_arguments, memory.host_outputs, memory.host_temporaries)
    return sum(part or 0 for part in parts)
