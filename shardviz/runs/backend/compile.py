"""Lowers a program to StableHLO, compiles it, and reads the compiler's figures."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh
from jaxlib.version import __version__ as jaxlib_version

from shardviz.base.array_spec import DTYPE_BITS, dtype_name
from shardviz.base.backend.jax_compat import call_as_jit
from shardviz.base.collective import Collective
from shardviz.base.errors import ProgramError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.source_lines import is_user_file
from shardviz.compiled.buffers import read_memory
from shardviz.compiled.checks import UnusedDonations
from shardviz.compiled.dataflow import Placement
from shardviz.compiled.inherited import inherited
from shardviz.compiled.memory import MemoryTimeline
from shardviz.compiled.module import Module
from shardviz.compiled.read_collectives import read_collectives
from shardviz.compiled.read_groups import slices_of
from shardviz.compiled.report import Memory
from shardviz.compiled.wire import Message
from shardviz.programs.backend.devices import Device
from shardviz.programs.backend.effect_rules import has_callbacks
from shardviz.programs.backend.trace import (
    Traced,
    donated_leaves,
    flat_names,
    trace,
)
from shardviz.programs.notes import BuffersNotRead, NotPartitioned
from shardviz.programs.program import Program
from shardviz.runs.backend.partitioner import ONE_DEVICE, compile_with_dump

_SOURCE_LINE = re.compile(r'loc\("((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_MOST = 8


@dataclass(frozen=True, eq=False)
class Lowered:
    """A lowered program.

    Attributes:
        traced: the trace that was lowered.
        stage: jax's own `Lowered`.
        text: StableHLO, without source lines.
        sources: a digest of the program's source lines, without the lines of the call
            that lowers it.
        effects: names of the program's effects.
        cacheable: True if the text describes the program completely: no effects, no
            callbacks and no constants passed as arguments.
        manual: True if the program has `shard_map` regions, whose code can depend on
            device coordinates.
        lower_s: seconds to trace and lower.
    """

    traced: Traced
    stage: jax.stages.Lowered
    text: str
    sources: str
    effects: tuple[str, ...]
    cacheable: bool
    manual: bool
    lower_s: float


@dataclass(eq=False)
class Executable:
    """A compiled program.

    Attributes:
        stage: jax's own `Compiled`; its arguments and results are tuples of leaves.
        compile_s: seconds to compile.
        collectives: the collectives of the final module.
        memory: bytes on each device, according to the compiler.
        cost: the compiler's cost analysis.
        partitioned: the collectives right after XLA's partitioner; None if unknown.
        partition_s: seconds until the partitioner was done; None if unknown.
        unpartitioned: why the partitioned module is unknown; else None.
        unread: why XLA's buffer assignment could not be read; else None.
        unusable: positions of donated leaves whose memory no output reuses.
        loops: number of loops in the final module.
    """

    stage: jax.stages.Compiled
    compile_s: float
    collectives: tuple[Collective, ...]
    memory: Memory
    cost: Mapping[str, float]
    partitioned: tuple[Collective, ...] | None = None
    partition_s: float | None = None
    unpartitioned: NotPartitioned | None = None
    loops: int = 0
    unusable: tuple[int, ...] = ()
    unread: BuffersNotRead | None = None
    _reference: Executable | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, *arguments: jax.Array) -> Sequence[jax.Array]:
        """Starts the program, and returns before the results are ready."""
        if any(DTYPE_BITS.get(dtype_name(a.dtype), 8) < 8 for a in arguments):
            return call_as_jit(self.stage, *arguments)
        return self.stage(*arguments)

    def reference(self, make: Callable[[], Executable]) -> Executable:
        """Returns the unsharded function's executable; calls `make` only once."""
        with self._lock:
            if self._reference is None:
                self._reference = make()
            return self._reference


def lower(
    program: Program | Traced,
    mesh: Mesh | AbstractMesh | None = None,
    platforms: Sequence[str] | None = None,
    change: Callable[[jax.stages.Lowered], None] | None = None,
) -> Lowered:
    """Lowers a program to StableHLO, after tracing it if needed.

    Args:
        program: the program, or its trace.
        mesh: the jax mesh to trace the program on; None if `program` is a trace
            already.
        platforms: the platforms to lower for, such as `("tpu",)`; required for an
            AbstractMesh.
        change: modifies jax's own `Lowered` before its text is read.
    """
    if isinstance(program, Traced):
        traced = program
    else:
        assert mesh is not None
        traced = trace(program, mesh)
    begun = time.perf_counter()
    with traced.context():
        kinds = {} if platforms is None else {"lowering_platforms": tuple(platforms)}
        stage = traced.stage.lower(**kinds)
    if change is not None:
        change(stage)
    text = stage.as_text()
    lines = repr(source_lines(stage.as_text(debug_info=True)))
    # With this flag, jax passes closed-over arrays as arguments, so the text lacks
    # their values.
    hoisted = bool(getattr(jax.config, "jax_use_simplified_jaxpr_constants", False))
    return Lowered(
        traced,
        stage,
        text,
        sources=hashlib.sha256(lines.encode()).hexdigest(),
        effects=traced.effects,
        cacheable=not traced.effects and not has_callbacks(text) and not hoisted,
        manual="manual_computation" in text or "SPMDFullToShardShape" in text,
        lower_s=traced.seconds + time.perf_counter() - begun,
    )


def source_lines(text: str) -> list[tuple[str, str]]:
    """Lists file and line of the user's code in a lowered module, in text order.

    Omits calls that are running now, such as the user's call of `sv.run`: they are not
    part of the program, and their lines differ from cell to cell. A lambda inside such
    a call has another column, so its line is included.

    Args:
        text: StableHLO with locations.

    >>> source_lines('#loc1 = loc("/home/me/model.py":12:4 to :9)')
    [('/home/me/model.py', '12')]
    """
    frame, running = sys._getframe(), set()
    # Collect the position of every running frame, up to the calling cell.
    while frame is not None:
        running.add((frame.f_code.co_filename, *_running(frame)))
        frame = frame.f_back
    lines = []
    for file, line, column in _SOURCE_LINE.findall(text):
        if (file, line, column) not in running and is_user_file(file):
            lines.append((file, line))
    return lines


def _running(frame: FrameType) -> tuple[str, str]:
    """Returns the line and column that a frame is executing, as jax writes them."""
    positions = frame.f_code.co_positions()  # one entry per 2-byte instruction
    line, _, column, _ = next(itertools.islice(positions, frame.f_lasti // 2, None))
    return str(line or 0), str(column or 0)


def compile_lowered(lowered: Lowered, mesh: MeshSpec) -> Executable:
    """Compiles for the devices of the traced mesh, and reads the compiler's results.

    Args:
        lowered: the lowered program.
        mesh: the mesh whose axes describe the replica groups.
    """
    program = lowered.traced.program
    dumped = compile_with_dump(lowered.stage, compiler_options(program))
    arguments, ids = compiled_names(program), _device_ids(lowered)

    def collectives_of(module: Module) -> tuple[Collective, ...]:
        return read_collectives(
            module, mesh.axis_names, mesh.axis_sizes, ids, arguments
        )

    final = final_module(dumped.compiled)
    timeline, unread = _buffers(dumped.final, lowered, mesh, final)
    collectives, partitioned = collectives_of(final), None
    if mesh.size == 1:
        partitioned = ()  # nothing to partition
    elif dumped.partitioned is not None:
        partitioned = collectives_of(dumped.partitioned)
    # Copy facts such as a collective's cause, which only the partitioned module has.
    if partitioned is not None:
        collectives = inherited(partitioned, collectives)
    return Executable(
        dumped.compiled,
        dumped.seconds,
        collectives,
        memory=read_sizes(dumped.compiled, timeline, _platform(lowered)),
        cost=read_cost(dumped.compiled),
        partitioned=partitioned,
        partition_s=dumped.partition_s,
        unpartitioned=None if dumped.reason == ONE_DEVICE else dumped.reason,
        loops=final.loops,
        unusable=unusable_donations(program, final),
        unread=unread,
    )


def _device_ids(lowered: Lowered) -> tuple[int, ...]:
    """Returns the device ids of the lowered program's mesh; `()` without devices."""
    mesh = lowered.traced.mesh
    if not isinstance(mesh, Mesh):
        return ()
    return tuple(device.id for device in mesh.devices.flat)


def _platform(lowered: Lowered) -> str:
    """Returns the platform of the lowered program's mesh; `""` without devices."""
    mesh = lowered.traced.mesh
    return mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else ""


def fingerprint(
    lowered: Lowered, devices: Sequence[Device], options: Mapping[str, object]
) -> str:
    """Hashes everything that a compile depends on, as the executable's cache key.

    The program's text alone is not enough: it stays the same if devices are permuted or
    code moves to other lines, although collectives report source lines. Programs that
    are not `cacheable` can differ despite equal fingerprints.
    """
    program = lowered.traced.program
    first = devices[0]
    parts = (
        lowered.text,
        lowered.sources,
        [(d.id, d.process_index) for d in devices],
        (
            first.platform,
            first.device_kind,
            getattr(first.client, "platform_version", ""),
        ),
        sorted((str(k), repr(v)) for k, v in options.items()),
        donated_leaves(program),
        [str(r.spec) for r in program.requests],
        [str(s) for s in lowered.traced.out_specs],
        [a.memory_kind for a in program.arrays],
        (jax.__version__, jaxlib_version),
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def compiler_options(program: Program) -> dict[str, Any]:
    """Returns the compiler options: all of the program's options except `donate`."""
    options = {k: v for k, v in program.options.items() if k != "donate"}
    for name, value in options.items():
        # The fingerprint contains the value's repr, which must not vary.
        if not (isinstance(name, str) and isinstance(value, PLAIN)):
            raise ProgramError(
                f"The compiler option {shown(name)} is {shown(value)}, which no"
                " compiler accepts. Give text, a number or a boolean."
            )
    return options


PLAIN = (str, bool, int, float)


def final_module(compiled: jax.stages.Compiled) -> Module:
    """Reads the HLO module that an executable runs."""
    # All devices run the same program, so there is only one module.
    runtime: Any = compiled.runtime_executable()
    (module,) = runtime.hlo_modules()
    return Module(module.as_serialized_hlo_module_proto())


def compiled_names(program: Program) -> dict[str, str]:
    """Maps the compiler's name of each array, such as `state_params_w`, to ours."""
    names = [array.name for array in program.arrays]
    return dict(zip(flat_names(program), names, strict=True))


_SIZES = {
    "arguments": "argument",
    "outputs": "output",
    "temporaries": "temp",
    "aliased": "alias",
    "generated_code": "generated_code",
    "host_arguments": "host_argument",
    "host_outputs": "host_output",
    "host_temporaries": "host_temp",
}


def _buffers(
    dumped: bytes | None, lowered: Lowered, mesh: MeshSpec, final: Module | None = None
) -> tuple[MemoryTimeline | None, BuffersNotRead | None]:
    """Reads memory over time from XLA's dump, or returns a note on the failure.

    Args:
        dumped: XLA's dump of the final module and its buffers; None without a dump.
        lowered: the lowered program.
        mesh: the program's mesh.
        final: the final module without buffers, if already read.
    """
    if dumped is None:
        return None, None
    program = lowered.traced.program
    arguments, ids = compiled_names(program), _device_ids(lowered)
    splits: dict[str, tuple[str, ...]] = {}
    for name, request in zip(arguments, program.requests, strict=True):
        spec = request.spec
        # For unconstrained dimensions, the compiler chooses the sharding.
        if spec is not None and not spec.unconstrained:
            splits[name] = (*spec.axes, *spec.unreduced)
    try:
        # Don't parse the dumped module again: `final` has the same instructions.
        final = final or Module(Message(dumped).bytes(1))
        slices = slices_of(final, ids)
        placement = Placement(mesh.axis_names, mesh.axis_sizes, splits, slices)
        return read_memory(dumped, arguments, final, placement), None
    # XLA's format may change; the rest of the report doesn't need the dump.
    except (ValueError, LookupError) as error:
        return None, BuffersNotRead(repr(error))


def refused_memory(final: bytes, lowered: Lowered, mesh: MeshSpec) -> Memory:
    """Returns the peak memory of a module that the compiler rejected.

    Args:
        final: XLA's dump of the module and its buffers.
        lowered: the lowered program.
        mesh: the program's mesh.
    """
    timeline, _ = _buffers(final, lowered, mesh)
    if timeline is None:
        return Memory()
    at_peak = Counter[str]()
    for buffer in timeline.peak.buffers:
        # Count constants and collectives' buffers as temporaries, like the compiler.
        kind = buffer.kind if buffer.kind in _SIZES else "temporaries"
        at_peak[kind] += buffer.bytes
    return Memory(
        arguments=at_peak["arguments"],
        outputs=at_peak["outputs"],
        temporaries=at_peak["temporaries"],
        timeline=timeline,
    )


def read_sizes(
    stage: jax.stages.Compiled,
    timeline: MemoryTimeline | None = None,
    platform: str = "",
) -> Memory:
    """Collects the compiler's memory figures and the timeline of its buffers.

    For TPUs, the temporaries are at most the temporaries at the program's peak, which
    the compiler compares with the memory of the chip. The temporaries that the compiler
    reports can be larger: it accepts programs whose arguments, outputs and reported
    temporaries add up to 21 GiB on a chip of 16 GiB. They can also be smaller than the
    temporaries at the peak.
    """
    fields: dict[str, Any] = {"timeline": timeline}
    try:
        analysis = stage.memory_analysis()
    except (NotImplementedError, RuntimeError):
        return Memory(**fields)  # not supported on every platform
    for field_name, name in _SIZES.items():
        fields[field_name] = getattr(analysis, f"{name}_size_in_bytes", None)
    memory = Memory(**fields)
    peak = getattr(analysis, "peak_memory_in_bytes", 0)
    if platform == "tpu" and peak:
        lasting = (
            (memory.arguments or 0) + (memory.outputs or 0) - (memory.aliased or 0)
        )
        at_peak = max(0, peak - lasting)
        reported = at_peak if memory.temporaries is None else memory.temporaries
        memory = memory.replace(temporaries=min(reported, at_peak))
    return memory


def read_cost(stage: jax.stages.Compiled) -> dict[str, float]:
    """Reads the totals of the compiler's cost analysis; empty if it has none."""
    try:
        analysis: Mapping[str, object] = stage.cost_analysis() or {}
    except (NotImplementedError, RuntimeError):
        return {}  # not supported on every platform
    costs = {}
    for name, value in analysis.items():
        # Entries with braces are for one operand and included in the totals. Negative
        # values mean unknown.
        if "{" not in name and isinstance(value, (int, float)) and value >= 0:
            costs[name] = float(value)
    return costs


def unusable_donations(program: Program, module: Module) -> tuple[int, ...]:
    """Returns the positions of donated leaves whose memory no output reuses.

    Reads the compiled module, because jax does not warn if the compiler can't use a
    donated argument. Leaves that the function doesn't use are left out: jax removes
    them from the module, and keeps the caller's array.
    """
    names = {name: position for position, name in enumerate(flat_names(program))}
    kept = set()
    for number, parameter in module.entry.parameters.items():
        if number not in module.aliased:
            kept.add(names.get(parameter.op))
    return tuple(position for position in donated_leaves(program) if position in kept)


def donation_note(program: Program, positions: Sequence[int]) -> UnusedDonations | None:
    """Returns a note on the donated arguments at `positions`, or None without any.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> x = ArraySpec("x", (8, 8))
    >>> program = Program(abs, (x,), make_mesh(data=4), options={"donate": (0,)})
    >>> donation_note(program, ()), donation_note(program, (0,)).arrays
    (None, ('x, f32[8, 8]',))
    """
    if not positions:
        return None
    arrays = []
    for position in positions[:_MOST]:
        array = program.arrays[position]
        arrays.append(f"{array.name}, {array.short}")
    return UnusedDonations(tuple(arrays), len(positions))
