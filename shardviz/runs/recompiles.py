"""Why jax compiled a call, for `sv.watch`, and its stages on two meshes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardviz.base.display import Displayed, Fact, explanation
from shardviz.compiled.comparison import Comparison


@dataclass(frozen=True)
class Difference(Fact):
    """A difference between two calls of a function; `str()` gives a sentence.

    >>> print(ArrayChanged("x", "shape", "[8]", "[16]"))
    argument x: shape [8] became [16]
    """


@dataclass(frozen=True)
class ArrayAdded(Difference):
    """The new call has an additional array, such as `params['b']`."""

    name: str


@dataclass(frozen=True)
class ArrayRemoved(Difference):
    """The new call lacks an array that the earlier call had."""

    name: str


@dataclass(frozen=True)
class TreeChanged(Difference):
    """The same arrays are nested in different containers."""

    before: str
    after: str


@dataclass(frozen=True)
class PassingChanged(Difference):
    """Arguments that were passed by position are passed by keyword, or the reverse.

    jax compiles `f(x)` and `f(x=x)` separately.

    Attributes:
        names: the names of the arguments.
        by_keyword: True if the new call passes them by keyword.
    """

    names: tuple[str, ...]
    by_keyword: bool


@dataclass(frozen=True)
class ArrayChanged(Difference):
    """An array has a different shape, dtype, weak type, sharding, layout or type.

    Attributes:
        name: the array's path in the arguments.
        aspect: the property that changed; `"type"` if none of the others did.
        before, after: this property in the earlier call and in the new call.
    """

    name: str
    aspect: Literal["shape", "dtype", "weak type", "sharding", "memory layout", "type"]
    before: str
    after: str


@dataclass(frozen=True)
class StaticChanged(Difference):
    """A static argument has a different value; None if a call does not pass it.

    jax also compiles again if a call passes the argument by name: `3` became `n=3`.
    """

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class SettingChanged(Difference):
    """A jax setting or a context mesh changed; `name` is `""` if jax names none."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class CachesCleared(Difference):
    """jax no longer has the executable, such as after `jax.clear_caches()`."""


@dataclass(frozen=True)
class NewFunction(Difference):
    """Another function object from the same source line compiled this signature before.

    jax keeps executables by function object, so each new one compiles again.
    """

    function: str


@dataclass(frozen=True)
class WatchedAgain(Difference):
    """Another `sv.watch` of the same function compiled this signature before.

    jax has one executable for all `jax.jit` of a function with equal options, but one
    for each `sv.watch` of a function that is not jitted.
    """

    function: str


@dataclass(frozen=True)
class Unexplained(Difference):
    """jax compiled again, although nothing that shardviz compares has changed."""


@dataclass(frozen=True)
class NeverCompiled(Fact):
    """No call has compiled the function yet; `""` stands for all functions."""

    function: str


@dataclass(frozen=True)
class CompiledBefore(Fact):
    """jax had every executable already, such as from another `jax.jit` of the function."""

    function: str


@dataclass(frozen=True)
class Miss(Fact):
    """The first compile that sv.watch has seen; subclasses describe other calls.

    Attributes:
        function: the name of the function.
        signature: the arguments, as short text.
        entry: number of the signature, counted from 1.
        differences: why the call had to compile; `()` if it was the first.
        refused: whether a RecompileError came before the compile.

    >>> print(Miss("step", "(x: float32[8])", 1))
    step was compiled for (x: float32[8]) (entry 1). No earlier compile is known.
    """

    function: str
    signature: str
    entry: int
    differences: tuple[Difference, ...] = ()
    refused: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class NewSignature(Miss):
    """A call had to compile because it differs from every earlier one.

    Attributes:
        nearest: number of the earlier entry that differs least.
    """

    nearest: int = 0


@dataclass(frozen=True)
class CompiledAgain(Miss):
    """A signature that had been compiled before was compiled again."""


@dataclass(frozen=True)
class AlreadyCompiled(Miss):
    """No call with this signature had to compile, because jax had its executable.

    >>> print(AlreadyCompiled("step", "(x: float32[8])", 1))
    step was not compiled for (x: float32[8]) (entry 1): jax already had the executable.
    """


@dataclass(frozen=True)
class SignatureRow:
    """A signature of a watched function, as a row of a table.

    Attributes:
        entry: number of the signature, counted from 1.
        signature: the arguments, as short text.
        calls: number of calls.
        compiles: number of compiles; 0 if jax already had the executable.
        seconds: time to trace, lower and compile.
        differences: why it was compiled; `()` for the first.
        collectives: number of collectives; None if the report is unknown.
        sent_bytes: bytes that a device sends, in all collectives.
        peak_bytes: peak memory per device, in bytes.
        comparison: the collectives, compared with the collectives of the previous row.

    >>> SignatureRow(1, "(x: float32[8])", 3, 1, 0.2).calls
    3
    """

    entry: int
    signature: str
    calls: int
    compiles: int
    seconds: float
    differences: tuple[Difference, ...] = ()
    collectives: int | None = None
    sent_bytes: int = 0
    peak_bytes: int = 0
    comparison: Comparison | None = None


@dataclass(frozen=True)
class WatchTable(Displayed):
    """The signatures of a function under `sv.watch`.

    >>> print(WatchTable("step", ()).explain())
    No call has compiled step.
    """

    function: str
    rows: tuple[SignatureRow, ...]

    def explain(self) -> str:
        """Describes each signature in a few lines."""
        return explanation(self)


@dataclass(frozen=True)
class Compile(Fact):
    """A compile of jax, as its own events report it.

    Attributes:
        function: jax's name of the function.
        trace_s: seconds to trace; 0 if jax reused an earlier trace, such as for new
            shardings, devices or memory layouts of arguments, or under `jax.vmap`.
        lower_s, compile_s: seconds to lower and to compile.
        reason: why jax traced the function: `"new function"`,
            `"function created again"` on the same line, `"context"` for settings and
            meshes, `"tree"` for containers and static values, or `"types"`.
            `"not traced"` if jax did not trace it, and `""` if jax gives no reason.
        message: jax's own explanation; `""` if it gives none.
        thread: name of the thread.
    """

    function: str
    trace_s: float
    lower_s: float
    compile_s: float
    reason: str
    message: str
    thread: str


#: The stages that jax runs before it executes a function, in order.
STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class MeshCall:
    """The stages that jax ran for one call of a function with arrays on a mesh.

    Attributes:
        counts: stage (`"trace"`, `"lower"`, `"compile"`) -> number of times jax ran it;
            0 if jax reused an earlier result.
        error: jax's error, as a sentence; `""` if the function ran.

    >>> MeshCall({"trace": 0, "lower": 0, "compile": 1}).misses
    ('compile',)
    """

    counts: Mapping[str, int]
    error: str = ""

    @property
    def misses(self) -> tuple[str, ...]:
        """The stages that jax ran, rather than reusing an earlier result."""
        return tuple(stage for stage in STAGES if self.counts[stage])


@dataclass(frozen=True)
class MeshComparison(Displayed):
    """Calls of a function on two meshes in turn; see `sv.compare_meshes`.

    Attributes:
        first: the first call on the first mesh.
        again: a second call on the first mesh.
        second: the call on the second mesh.

    >>> none = MeshCall(dict.fromkeys(STAGES, 0))
    >>> print(MeshComparison(none, none, none).explain())
    jax repeated nothing for the second mesh, because both meshes have the same devices.
    """

    first: MeshCall
    again: MeshCall
    second: MeshCall

    def explain(self) -> str:
        """Describes in sentences which stages jax repeated for the second mesh."""
        return explanation(self)
