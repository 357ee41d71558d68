"""Report: the result of one compile or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.axis_rules.fit import Fit, LargestArrays
from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.plain import Plain
from shardviz.base.typing import PyTree
from shardviz.compiled.checks import Check
from shardviz.compiled.memory import MemoryPeak, MemoryTimeline
from shardviz.compiled.too_large import TooLarge
from shardviz.hardware.targets import Target
from shardviz.plans.plan import Plan
from shardviz.programs.failed import CanFail, lacking_after_errors
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program


@dataclass(frozen=True)
class Memory(Plain):
    """Memory per device in bytes; None for figures that the compiler doesn't report.

    Attributes:
        arguments: bytes of the arguments.
        outputs: bytes of the outputs.
        temporaries: bytes of intermediate values; for TPUs, only of the values that are
            alive at the peak.
        aliased: bytes of outputs that reuse the memory of donated arguments. These
            bytes are counted in both `arguments` and `outputs`.
        generated_code: bytes of the code, if it is on the device.
        capacity: memory of one device: the memory of its chip, or for a simulated
            device an equal share of the host's memory. None if unknown.
        free_now: free memory of an attached device when the report was made.
        host_arguments, host_outputs, host_temporaries: additional bytes in host memory,
            for memory kinds such as `pinned_host`.
        timeline: the live buffers in execution order; None if the compiler doesn't
            report them.

    >>> Memory(arguments=1024).replace(capacity=4096)
    Memory(arguments=1024, ..., capacity=4096, ...)
    """

    _adds = ("peak",)

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
        """The point with the most live bytes, and the buffers that are alive there."""
        return self.timeline and self.timeline.peak

    def replace(self, **changes: Any) -> Memory:
        """Returns a copy with some fields changed."""
        return replace(self, **changes)


@lacking_after_errors(
    mesh=(),
    lower_s=("key", "effects"),
    collectives=(
        *("cache_hit", "compile_s", "partition_s", "partitioned", "out_layouts"),
        *("memory", "cost", "loops", "roofline"),
    ),
    run_s=("place_s", "runs_s", "outputs", "checks"),
)
@dataclass(frozen=True, repr=False, eq=False)
class Report(CanFail, Displayed):
    """The result of one compile or run.

    If the compile or run failed, attributes without a value raise the error; `.error`
    has the error, and `.ok` is False.

    Attributes:
        program: the name of the program.
        target: the target as text, such as `"cpu × 8, simulated"`.
        key: the executable's cache key; `""` before lowering.
        cache_hit: whether the executable came from the cache.
        lower_s, compile_s, place_s, run_s: the seconds to lower, to compile, to place
            the inputs on their devices, and to run. None for a step that did not
            happen. `run_s` is the median over repeats.
        runs_s: seconds of every repeat.
        outputs: the outputs, as the function returns them; None for a compile.
        in_layouts, out_layouts: the compiled Layout of each argument and output, by
            name.
        partitioned: the collectives right after XLA's partitioner; None if XLA kept no
            module of this stage.
        collectives: the collectives of the final program; None before it is compiled.
        memory: memory per device.
        cost: the compiler's cost analysis, such as `flops` and `bytes accessed`. The
            analysis counts each loop body once.
        loops: number of loops in the compiled program.
        effects: the names of the program's effects.
        checks: the predictions, each compared with the compile or run.
        error: the Failure that ended the compile or run; None if it succeeded.
        partition_s: seconds until XLA's partitioner was done; None if XLA kept no
            module of this stage.
        roofline: the least times of arithmetic, memory and collectives on the target's
            chips; None if the chips' rates are unknown.
        measured: the Measured times of three calls. None without `measure=True`, or if
            the calls could not be measured; a note then gives the reason.
        notes: remarks on the compile, such as a mesh that does not fit the target's
            torus.
        mesh: the program's mesh with the devices it was compiled for; None if its
            devices were never chosen.
        processes: the ProcessReport of each process, by rank; `()` for a single
            process.
        plan: the plan of a program that is lowered and not compiled; None otherwise.
        of: the `Program` that was compiled or run; None for a report from a worker.
        on: the `Target` of the compile or run; None if unknown.
    """

    _adds = ("ok", "fit")
    _omits = ("outputs",)

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
    roofline: Any = None  # typed Any, because Roofline's module imports this one
    notes: tuple[Fact | str, ...] = ()
    mesh: MeshSpec | None = None
    loops: int = 0
    plan: Plan | None = None
    measured: Any = None  # typed Any, like the roofline
    # A tuple of ProcessReports; typed Any, because their module imports this one.
    processes: tuple[Any, ...] = ()
    of: Program | None = field(default=None, compare=False)
    on: Target | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, object]:
        # A program contains the user's function, which may not be picklable.
        return {**vars(self), "of": None}

    @property
    def ok(self) -> bool:
        """True if there was no error, the program fits its target, and no check failed.

        >>> import shardviz as sv
        >>> sv.Report("f", "cpu × 8").ok
        True
        """
        if self.error is not None:
            return False
        # An undecided check (None) is not a failure.
        none_failed = all(check.ok is not False for check in self.checks)
        return self.too_large is None and none_failed

    @property
    def fit(self) -> Fit | None:
        """The memory needed, compared with a device's memory; None if unknown.

        >>> import shardviz as sv
        >>> from shardviz.compiled.report import Memory
        >>> sv.Report("f", "cpu × 8", memory=Memory(arguments=3 << 30, capacity=4 << 30)).fit.code
        'fits'
        """
        needed = needed_bytes(self.memory)
        if needed is None:
            return None
        capacity, chip, reserved = self.memory.capacity, "", 0
        topology = self.on.topology if self.on is not None else None
        if self.on is not None and self.on.platform == "cpu":
            # Simulated CPUs represent other devices, whose memory sizes differ.
            capacity = None
        elif self.has("roofline") and self.roofline is not None:
            # The device's own figure is better than the chip's published one.
            chip = self.roofline.chip.title
            capacity = capacity or self.roofline.capacity
        elif topology is not None:
            chip = topology.chip.title
        if topology is not None and topology.chip.device_bytes and capacity:
            # Compilers for described hardware leave programs less than the chip has.
            reserved = max(0, topology.chip.device_bytes - capacity)
        return Fit(needed, capacity, chip, reserved=reserved)

    @property
    def too_large(self) -> TooLarge | None:
        """The values that fill the memory, if the program does not fit its target.

        None if the program fits, or if its memory or the target's is unknown.
        """
        # A program that ran had enough memory, whatever the byte counts say.
        if not self.has("memory") or (self.has("run_s") and self.run_s is not None):
            return None
        fit, error = self.fit, self.error
        refused = error is not None and error.lacks_memory and error.stage == "compile"
        if fit is None or not (refused or fit.ok is False):
            return None
        target = self.target
        if self.on is not None and self.on.topology is not None:
            target = self.on.topology.title
        return TooLarge.of(self.program, target, fit, self.memory)

    @property
    def largest_arrays(self) -> LargestArrays:
        """The arguments and results with the most bytes per device."""
        results = self.out_layouts if self.has("out_layouts") else {}
        return LargestArrays.of({**self.in_layouts, **results})

    def replace(self, **changes: Any) -> Report:
        """Returns a copy with some fields changed."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        state = "ok"
        if self.too_large is not None:
            state = "does not fit"
        elif self.error is not None:
            state = f"failed at {self.error}"
        elif not self.ok:
            state = "a check failed"
        elif self.collectives is None:
            state = "not compiled"
        where = self.target and f" on {self.target}"
        return f"Report({self.program}{where}: {state})"


def needed_bytes(memory: Memory) -> int | None:
    """Returns the bytes a program needs per device; None if the compiler reports none.

    Adds up arguments, outputs, temporaries, and the code if it is on the device.
    Outputs that reuse the memory of donated arguments count once.

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
    # A compiler may report only some of the sizes.
    reported = [part for part in parts if part is not None]
    if not reported:
        return None
    return sum(reported) - (memory.aliased or 0)


def peak_bytes(memory: Memory) -> int | None:
    """Returns the live bytes per device at the peak.

    If the peak is unknown, returns all bytes that the program needs.

    >>> peak_bytes(Memory(arguments=100, temporaries=5))
    105
    """
    return needed_bytes(memory) if memory.peak is None else memory.peak.bytes


def host_bytes(memory: Memory) -> int:
    """Returns the bytes of host memory that a program uses for each device.

    >>> host_bytes(Memory(arguments=100, host_arguments=40)), host_bytes(Memory())
    (40, 0)
    """
    parts = (memory.host_arguments, memory.host_outputs, memory.host_temporaries)
    return sum(part or 0 for part in parts)
