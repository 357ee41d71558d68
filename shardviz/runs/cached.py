"""Cache hits and misses of `sv.cached` and of jax's own caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardviz.base.display import Displayed, Fact, explanation


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
class ArrayChanged(Difference):
    """An array has a different shape, dtype, weak type, sharding or type.

    Attributes:
        name: the array's path in the arguments.
        aspect: the property that changed; `"type"` if none of the other four did.
        before, after: this property in the earlier call and in the new call.
    """

    name: str
    aspect: Literal["shape", "dtype", "weak type", "sharding", "type"]
    before: str
    after: str


@dataclass(frozen=True)
class StaticChanged(Difference):
    """A static argument has a different value; None if a call does not pass it."""

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
class SameAsDropped(Difference):
    """The cache held the same signature before, and dropped it."""

    entry: int


@dataclass(frozen=True)
class NeverCompiled(Fact):
    """No call has compiled the function yet."""

    function: str


@dataclass(frozen=True)
class Miss(Fact):
    """The first call had to compile; subclasses describe later compiles.

    Attributes:
        function: the name of the function.
        signature: the arguments, as short text.
        entry: number of the new cache entry, counted from 1.

    >>> print(Miss("step", "(x: float32[8])", 1))
    step was compiled for (x: float32[8]), entry 1; nothing was compiled before.
    """

    function: str
    signature: str
    entry: int

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences from the nearest earlier entry."""
        return ()


@dataclass(frozen=True)
class NewSignature(Miss):
    """A call had to compile because it differs from every earlier one.

    Attributes:
        nearest: number of the earlier entry that differs least.
        differs_in: the differences from that entry.
    """

    nearest: int
    differs_in: tuple[Difference, ...]

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences from the nearest earlier entry."""
        return self.differs_in


@dataclass(frozen=True)
class DroppedSignature(Miss):
    """A call had to compile because the cache had dropped its signature.

    Attributes:
        dropped: number of the entry that the signature had before.
        size: how many signatures the cache holds.
    """

    dropped: int
    size: int

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The only difference: the earlier entry was dropped."""
        return (SameAsDropped(self.dropped),)


@dataclass(frozen=True)
class CallEntry:
    """A signature for which a CachedFunction holds an executable or a failure.

    Attributes:
        entry: number of the entry, counted from 1 in the order of compiles.
        signature: the arguments, as short text.
        trace_s: seconds to trace and lower.
        compile_s: seconds to compile.
        hits: number of calls that used this entry.
        difference: differences from the nearest earlier signature.
        error: why the compile failed; `""` if it succeeded.

    >>> CallEntry(1, "(x: float32[8])", 0.01, 0.02, 3).hits
    3
    """

    entry: int
    signature: str
    trace_s: float
    compile_s: float
    hits: int
    difference: tuple[Difference, ...] = ()
    error: str = ""


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
    Nothing was done again for the second mesh: it has the devices of the first.
    """

    first: MeshCall
    again: MeshCall
    second: MeshCall

    def explain(self) -> str:
        """Describes in sentences which stages jax repeated for the second mesh."""
        return explanation(self)
