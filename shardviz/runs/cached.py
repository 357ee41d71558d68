"""What was compiled, and what was found in a cache: by `sv.cached`, and by jax itself."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Displayed, Fact, explanation


@dataclass(frozen=True)
class Difference(Fact):
    """One thing in which two calls of a function differ.

    Attributes:
        code: `"dropped"`: the cache had it as entry `name`, and dropped that; `"added"`
            or `"removed"`: an array among the arguments; `"tree"`: how they are nested;
            `"shape"`, `"dtype"`, `"weak type"`, `"sharding"` or `"type"` of an array;
            `"static"`: a static argument; `"setting"`: a setting of jax or a mesh.
        name: of the array, the static argument or the setting.
        before, after: what it was and became, as short text; `""`: it was not given, or
            jax does not say.

    >>> print(Difference("shape", "x", "[8]", "[16]"))
    argument x: shape [8] became [16]
    """

    code: str
    name: str = ""
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Miss(Fact):
    """Why a call had to compile.

    Attributes:
        function: its name.
        signature: the arguments, as short text.
        entry: the number of the entry that was made, counted from 1; 0: nothing was
            compiled yet.
        nearest: the earlier entry that differs least; None where there is none.
        differences: in what it differs from that entry.
        dropped: the number that the same signature had before the cache dropped it.
        size: how many signatures the cache holds.

    >>> print(Miss("step", "(x: float32[8])", 1))
    step was compiled for (x: float32[8]), entry 1; nothing was compiled before.
    """

    function: str
    signature: str
    entry: int
    nearest: int | None = None
    differences: tuple[Difference, ...] = ()
    dropped: int | None = None
    size: int = 0


@dataclass(frozen=True)
class CallEntry:
    """One signature that a CachedFunction holds an executable, or a failure, for.

    Attributes:
        entry: its number, counted from 1 in the order of their compiles.
        signature: the arguments, as short text.
        trace_s: seconds to trace and lower.
        compile_s: seconds to compile.
        hits: how many calls found it.
        difference: in what its signature differed from the nearest earlier one.
        error: why the compile failed, or an empty text.

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


#: What jax does with a function before it runs, in order.
STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class MeshCall:
    """What jax did when a function was called with arrays on a mesh.

    Attributes:
        counts: `"trace"`, `"lower"` and `"compile"` to how often jax did it; 0 where it
            found an earlier result.
        error: what jax raised, in a sentence; empty where it ran.

    >>> MeshCall({"trace": 0, "lower": 0, "compile": 1}).misses
    ('compile',)
    """

    counts: dict[str, int]
    error: str = ""

    @property
    def misses(self) -> tuple[str, ...]:
        """The stages that jax went through again."""
        return tuple(stage for stage in STAGES if self.counts[stage])


@dataclass(frozen=True)
class MeshComparison(Displayed):
    """One function on two meshes, one after the other; made by `sv.compare_meshes`.

    Attributes:
        first: the call on the first mesh.
        again: the call on the first mesh once more.
        second: the call on the second mesh.

    >>> none = MeshCall(dict.fromkeys(STAGES, 0))
    >>> print(MeshComparison(none, none, none).explain())
    Nothing was done again for the second mesh: it has the devices of the first.
    """

    first: MeshCall
    again: MeshCall
    second: MeshCall

    def explain(self) -> str:
        """What jax did again for the second mesh, in sentences."""
        return explanation(self)
