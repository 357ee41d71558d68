"""Notes on how a program was made, traced or compiled: one class per kind."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec


class Note(Fact):
    """A note that the user should read. `words/notes.py` has its sentence."""


# --- how a program was made -----------------------------------------------------------


@dataclass(frozen=True)
class KeywordForFunction(Note):
    """A keyword went to the function, although the public function has it, too.

    Attributes:
        function: the user's function.
        keyword: the keyword.
        public: the public function, such as `"plan"`.
    """

    function: str
    keyword: str
    public: str


@dataclass(frozen=True)
class JitUnreadable(Note):
    """This version of jax does not show the settings of a `jax.jit` or `jax.pmap`.

    Attributes:
        function: which of them.
    """

    function: str


@dataclass(frozen=True)
class JitDiffers(Note):
    """`jax.jit` and `sv.program` were given different settings.

    Attributes:
        settings: those that differ, such as `"mesh"`.
    """

    settings: tuple[str, ...]


@dataclass(frozen=True)
class NoRules(Note):
    """An array has logical names, and the program has no rules.

    Attributes:
        array: its name.
        names: its logical names, as text.
    """

    array: str
    names: str


@dataclass(frozen=True)
class StaticNumbers(Note):
    """Arguments are static, because Python reads a number while it traces.

    Attributes:
        arguments: their names.
    """

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ChangedInPlace(Note):
    """The function changes arguments in place; this counts as results.

    Attributes:
        function: its name.
        arguments: the names of the arguments.
    """

    function: str
    arguments: tuple[str, ...]


# --- how it was traced ----------------------------------------------------------------


@dataclass(frozen=True)
class NoArrayArguments(Note):
    """Traced with the program's mesh in context, because it has no array arguments.

    >>> print(NoArrayArguments())
    Traced with the program's mesh in context, as under jax.set_mesh: it has no array...
    """


@dataclass(frozen=True)
class MeshNeeded(Note):
    """Traced with the program's mesh in context, because it fails without one.

    Attributes:
        error: the exception without a mesh, in words.
    """

    error: str


@dataclass(frozen=True)
class OtherMesh(Note):
    """A mesh other than the program's is in force, and was replaced.

    Attributes:
        set_by: how it was set, such as `"jax.set_mesh"`.
        in_force: the mesh in force, as text.
        program_mesh: the program's mesh, as text.
    """

    set_by: str
    in_force: str
    program_mesh: str


@dataclass(frozen=True)
class CannotWatch(Note):
    """A profiler or a debugger uses Python's hook, so calls cannot be watched."""


@dataclass(frozen=True)
class FunctionReplaced(Note):
    """A function whose calls should be watched was replaced by something else.

    Attributes:
        function: its module and name.
    """

    function: str


@dataclass(frozen=True)
class RecordingFailed(Note):
    """shardviz failed while it recorded calls.

    Attributes:
        error: the exception, in words.
    """

    error: str


@dataclass(frozen=True)
class TracedBefore(Note):
    """jax had traced a function before any plan, and does not call it again.

    Attributes:
        line: its source line; `""` if unknown.
    """

    line: str = ""


# --- what is in it --------------------------------------------------------------------


@dataclass(frozen=True)
class SumOfGradient(Note):
    """`jax.grad` added a sum over devices in a `shard_map`.

    Attributes:
        axes: the mesh axes.
        line: the source line, or jax's name of the sum.
    """

    axes: tuple[str, ...]
    line: str


@dataclass(frozen=True)
class SumOfEquals(Note):
    """A sum over devices in a `shard_map` adds the same value several times.

    Attributes:
        axes: the mesh axes.
        line: the source line, or jax's name of the sum.
        devices: how many values are added.
    """

    axes: tuple[str, ...]
    line: str
    devices: int


@dataclass(frozen=True)
class SameRows(Note):
    """Devices compute the same rows in a `shard_map`, and the result has them all.

    Attributes:
        axis: the mesh axis of these devices.
        line: the source line of the `shard_map`.
        operand: the number of the operand whose rows they are.
        in_spec: its spec.
        result: the number of the result.
        out_spec: its spec.
        devices: how many devices are along the axis.
    """

    axis: str
    line: str
    operand: int
    in_spec: Spec
    result: int
    out_spec: Spec
    devices: int


@dataclass(frozen=True)
class RandomNumbers(Note):
    """The program makes random numbers that jax is set not to partition."""


@dataclass(frozen=True)
class UnknownJaxprParameter(Note):
    """This version of jax lacks a parameter that other notes need.

    Attributes:
        primitive: the operation.
        parameter: its parameter.
    """

    primitive: str
    parameter: str


# --- how it was compiled --------------------------------------------------------------


@dataclass(frozen=True)
class WithoutPrints(Note):
    """Compiled without `jax.debug.print` and `jax.debug.callback`.

    Attributes:
        lines: the source lines that were left out.
    """

    lines: tuple[str, ...]


class NotPartitioned(Note):
    """Why it is unknown what XLA's partitioner made of a program."""


@dataclass(frozen=True)
class OneDevice(NotPartitioned):
    """The program is for one device, so nothing is partitioned."""


@dataclass(frozen=True)
class OwnDump(NotPartitioned):
    """`XLA_FLAGS` ask for a dump, which is left alone."""


@dataclass(frozen=True)
class NoDump(NotPartitioned):
    """XLA wrote no module after partitioning."""


@dataclass(frozen=True)
class NoDumpFolder(NotPartitioned):
    """XLA's dump cannot be written.

    Attributes:
        folder: where to.
        reason: the system's reason.
    """

    folder: str
    reason: str


@dataclass(frozen=True)
class DumpRefused(NotPartitioned):
    """XLA cannot dump this program.

    Attributes:
        reason: XLA's reason.
    """

    reason: str


@dataclass(frozen=True)
class BuffersNotRead(Note):
    """XLA wrote its buffers in a form that shardviz does not know.

    Attributes:
        reason: what could not be read.
    """

    reason: str
