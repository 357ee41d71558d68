"""Notes on how a program was built, traced or compiled: one class per kind of note."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.collective import Collective
from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec


class Note(Fact):
    """A note for the user. Its sentence is in `words/notes.py`."""


# --- building a program ---------------------------------------------------------------


@dataclass(frozen=True)
class KeywordForFunction(Note):
    """A keyword went to the user's function, but the public function has it too.

    Attributes:
        function: name of the user's function.
        keyword: name of the keyword.
        public: name of the public function, such as `"plan"`.
    """

    function: str
    keyword: str
    public: str


@dataclass(frozen=True)
class JitUnreadable(Note):
    """This jax version hides the settings of a `jax.jit` or `jax.pmap` function.

    Attributes:
        function: `"jax.jit"` or `"jax.pmap"`.
    """

    function: str


@dataclass(frozen=True)
class JitDiffers(Note):
    """`jax.jit` and `sv.program` were given different settings.

    Attributes:
        settings: the settings that differ, such as `"mesh"`.
    """

    settings: tuple[str, ...]


@dataclass(frozen=True)
class JitStays(Note):
    """A jitted function was given other arguments of `jax.jit`, which are not used.

    Attributes:
        settings: the settings that differ, such as `"donation"`.
    """

    settings: tuple[str, ...]


@dataclass(frozen=True)
class NoRules(Note):
    """An array has logical names, but the program has no rules.

    Attributes:
        array: name of the array.
        names: the array's logical names, as text.
    """

    array: str
    names: str


@dataclass(frozen=True)
class StaticNumbers(Note):
    """Arguments are static because Python code needs their values during tracing.

    Attributes:
        arguments: names of the arguments.
    """

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ChangedInPlace(Note):
    """The function changes arguments in place; the new values count as results.

    Attributes:
        function: name of the function.
        arguments: names of the arguments.
    """

    function: str
    arguments: tuple[str, ...]


# --- tracing --------------------------------------------------------------------------


@dataclass(frozen=True)
class NoArrayArguments(Note):
    """Traced with the program's mesh in context, because it has no array arguments.

    >>> print(NoArrayArguments())
    Traced with the program's mesh in context, as under jax.set_mesh: the program has no...
    """


@dataclass(frozen=True)
class MeshNeeded(Note):
    """Traced with the program's mesh in context, because tracing fails without one.

    Attributes:
        error: the exception raised without a mesh, as text.
    """

    error: str


@dataclass(frozen=True)
class OtherMesh(Note):
    """The program's mesh replaced another mesh that was in context.

    Attributes:
        set_by: how the other mesh was set, such as `"jax.set_mesh"`.
        in_force: the other mesh, as text.
        program_mesh: the program's mesh, as text.
    """

    set_by: str
    in_force: str
    program_mesh: str


@dataclass(frozen=True)
class CannotWatch(Note):
    """Calls cannot be recorded, because a profiler or debugger uses Python's hook."""


@dataclass(frozen=True)
class FunctionReplaced(Note):
    """Calls of a function cannot be recorded, because it was replaced.

    Attributes:
        function: module and name of the function.
    """

    function: str


@dataclass(frozen=True)
class RecordingFailed(Note):
    """shardviz failed while it recorded calls.

    Attributes:
        error: the exception, as text.
    """

    error: str


@dataclass(frozen=True)
class TracedBefore(Note):
    """jax cached a function's trace before the first plan, so its calls are unknown.

    Attributes:
        line: source line of the traced function; `""` if unknown.
    """

    line: str = ""


# --- contents of the program ----------------------------------------------------------


@dataclass(frozen=True)
class SumOfGradient(Note):
    """`jax.grad` added a sum over devices in a `shard_map`.

    Attributes:
        axes: mesh axes of the sum.
        line: source line of the sum, or jax's name for the sum.
    """

    axes: tuple[str, ...]
    line: str


@dataclass(frozen=True)
class SumOfEquals(Note):
    """A sum over devices in a `shard_map` adds equal values.

    Attributes:
        axes: mesh axes of the sum.
        line: source line of the sum, or jax's name for the sum.
        devices: number of values added.
    """

    axes: tuple[str, ...]
    line: str
    devices: int


@dataclass(frozen=True)
class SameRows(Note):
    """Devices in a `shard_map` compute the same rows, and the result repeats them.

    Attributes:
        axis: mesh axis of these devices.
        line: source line of the `shard_map`.
        operand: name of the argument of the body that holds the rows.
        in_spec: spec of that operand.
        result: position of the result.
        out_spec: spec of that result.
        devices: number of devices along the axis.
    """

    axis: str
    line: str
    operand: str
    in_spec: Spec
    result: int
    out_spec: Spec
    devices: int


@dataclass(frozen=True)
class NoCollectives(Note):
    """Parts of the program are traced within a `jax.sharding.no_collectives`.

    Attributes:
        axes: the axes that the `no_collectives` names.
        lines: source lines of the operations in it.
        planned: the plan's collectives in it. jax refuses them on Explicit axes and in a
            `shard_map`, but doesn't look for them on Auto axes.
    """

    axes: tuple[str, ...]
    lines: tuple[str, ...]
    planned: tuple[Collective, ...]


@dataclass(frozen=True)
class OperandNote(Note):
    """An operation can't use its operands as they are split.

    Attributes:
        line: source line of the operation.
    """

    line: str


@dataclass(frozen=True)
class KernelNotMapped(OperandNote):
    """A Pallas kernel is called outside of a `shard_map`, on several devices.

    Attributes:
        in_specs, out_specs: specs of the operands and results; None if unknown.
    """

    in_specs: tuple[Spec | None, ...]
    out_specs: tuple[Spec | None, ...]


@dataclass(frozen=True)
class ScalesApart(OperandNote):
    """The scales of a block-scaled array are not split like its blocks.

    Attributes:
        operand: position of the array: 0 for the left operand, 1 for the right.
        dim: dimension in which the specs differ.
        axes, scale_axes: mesh axes that split the blocks and the scales.
    """

    operand: int
    dim: int
    axes: tuple[str, ...]
    scale_axes: tuple[str, ...]


@dataclass(frozen=True)
class StraddledBlocks(OperandNote):
    """Blocks of a block-scaled array are split, so parts get scales of other blocks.

    Attributes:
        operand, dim: as in `ScalesApart`.
        blocks: number of blocks in the dimension.
        axes: mesh axes that split the dimension.
        shards: number of shards of the dimension.
    """

    operand: int
    dim: int
    blocks: int
    axes: tuple[str, ...]
    shards: int


@dataclass(frozen=True)
class RandomNumbers(Note):
    """The program generates random numbers that jax is configured not to partition."""


@dataclass(frozen=True)
class UnknownJaxprParameter(Note):
    """This jax version lacks a primitive parameter that other notes depend on.

    Attributes:
        primitive: name of the primitive.
        parameter: name of the parameter.
    """

    primitive: str
    parameter: str


# --- compilation ----------------------------------------------------------------------


@dataclass(frozen=True)
class WithoutPrints(Note):
    """Compiled without its `jax.debug.print` and `jax.debug.callback` calls.

    Attributes:
        lines: source lines of the removed calls.
    """

    lines: tuple[str, ...]


class NotPartitioned(Note):
    """Why the output of XLA's partitioner is unknown."""


@dataclass(frozen=True)
class OneDevice(NotPartitioned):
    """The program runs on one device, so XLA partitions nothing."""


@dataclass(frozen=True)
class CompiledByJax(NotPartitioned):
    """jax compiled the program without shardviz, so XLA wrote no dump."""


@dataclass(frozen=True)
class NotCompiled(NotPartitioned):
    """The program is lowered and not compiled, so XLA has not partitioned it yet."""


@dataclass(frozen=True)
class FileOfStages(NotPartitioned):
    """The report was read from a file or a dump, which has only some of the four stages.

    Attributes:
        file: name of the file or folder.
        stages: the stages that it has; empty for HLO before the partitioner.
        devices: number of devices of a program in HLO.
        names_mesh: whether the names of the mesh axes are known.
        programs: number of programs in a folder; the largest one was read.
    """

    file: str
    stages: tuple[str, ...]
    devices: int = 1
    names_mesh: bool = True
    programs: int = 1


@dataclass(frozen=True)
class OwnDump(NotPartitioned):
    """The user's `XLA_FLAGS` already request a dump, so we don't add ours."""


@dataclass(frozen=True)
class NoDump(NotPartitioned):
    """XLA wrote no module after partitioning."""


@dataclass(frozen=True)
class NoDumpFolder(NotPartitioned):
    """XLA's dump cannot be written.

    Attributes:
        folder: path of the dump folder.
        reason: the operating system's error.
    """

    folder: str
    reason: str


@dataclass(frozen=True)
class DumpRefused(NotPartitioned):
    """XLA cannot dump this program.

    Attributes:
        reason: XLA's error.
    """

    reason: str


@dataclass(frozen=True)
class BuffersNotRead(Note):
    """XLA wrote its buffers in a format that shardviz doesn't know.

    Attributes:
        reason: what could not be parsed.
    """

    reason: str
