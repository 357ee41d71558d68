"""Checks: predictions that are compared with what happened.

A Finding is the evidence for a check, or a note on a compile or run. Each kind of
finding is a class with the fields that its sentence in `words/checks.py` needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact
from shardviz.base.format import plural
from shardviz.base.plain import Plain

Bounds = tuple[tuple[int, int], ...]  # (start, stop) of a block in each dimension


@dataclass(frozen=True)
class Finding(Fact):
    """Evidence for a check, or a note on a compile or run; `str` gives a sentence."""


# Findings about where shards are.


@dataclass(frozen=True)
class ShardsInPlace(Finding):
    """Every shard has the indices that the layout predicts."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ShardElsewhere(Finding):
    """A device holds a different slice of the array than the layout predicts."""

    device: int
    bounds: Bounds
    shape: tuple[int, ...]
    predicted_bounds: Bounds
    predicted_shape: tuple[int, ...]


@dataclass(frozen=True)
class ShardOutsideMesh(Finding):
    """A shard is on a device that isn't in the program's mesh."""

    device: str


@dataclass(frozen=True)
class FewerShards(Finding):
    """Fewer devices hold the array than the mesh has.

    Attributes:
        shards: number of devices that hold the array.
        devices: number of devices in the mesh.
        as_compiled: True if JAX compiled the program for fewer devices, because the
            program reads no argument.
    """

    shards: int
    devices: int
    as_compiled: bool = False


@dataclass(frozen=True)
class PartialResults(Finding):
    """Devices hold partial results over `axes`, so jax gives no shards of the array."""

    axes: tuple[str, ...]


@dataclass(frozen=True)
class SpecCompared(Finding):
    """The requested spec and the compiled one; None if no spec describes the layout."""

    requested: str
    compiled: str | None


@dataclass(frozen=True)
class UnevenBlocks(Finding):
    """The compiler's shards differ in shape, so no layout describes them."""

    requested: str


# Findings about values, compared with those of the unsharded function.


@dataclass(frozen=True)
class OtherType(Finding):
    """The results differ in dtype or shape, such as `float32[8]` and `int32[8]`."""

    result: str
    reference: str


@dataclass(frozen=True)
class ValuesEqual(Finding):
    """Values that must be equal, such as integers, are equal."""


@dataclass(frozen=True)
class HiddenBlock:
    """One block's median difference is as large as its values; other blocks hide it."""

    median: float


@dataclass(frozen=True)
class RoundingMoves:
    """The unsharded function changes when its arguments move by one rounding step.

    Attributes:
        moves: the largest change in the results.
        unlike: number of elements that change although they must be equal: integers,
            and elements that are NaN in only one result.
        conclusive: whether rounding explains the difference; False if rounding could
            also hide a mistake.
        made_up: whether shardviz generated the arguments.
    """

    moves: float
    unlike: int
    conclusive: bool
    made_up: bool


@dataclass(frozen=True)
class ElementsDiffer(Finding):
    """Some elements that must be equal, such as integers, differ."""

    count: int
    reason: RoundingMoves | None = None


@dataclass(frozen=True)
class ValuesApart(Finding):
    """The difference between floating-point values.

    Attributes:
        worst: the largest difference of an element.
        scale: the largest absolute value of the reference.
        allowed: the largest normal difference, relative to `scale`.
        unlike: number of elements that are finite in only one of the two results.
        not_finite: number of elements that are NaN or infinite in both.
        reason: what decided the check, if `allowed` did not.
    """

    worst: float
    scale: float
    allowed: float
    unlike: int = 0
    not_finite: int = 0
    reason: HiddenBlock | RoundingMoves | None = None


@dataclass(frozen=True)
class UndecidedInShardMap(Finding):
    """Values differ, but `shard_map` regions may depend on the number of devices."""

    difference: Finding


@dataclass(frozen=True)
class MeshOfOneDevice(Finding):
    """Not compared: on a mesh of one device, the unsharded function itself ran."""


@dataclass(frozen=True)
class EffectsNotRepeated(Finding):
    """Not compared: a second run would repeat the effects."""

    effects: tuple[str, ...]


@dataclass(frozen=True)
class NotRepeatable(Finding):
    """Two calls of the unsharded function with the same arguments differ."""


@dataclass(frozen=True)
class TooBigForOneDevice(Finding):
    """Not compared: one device has fewer free bytes than needed."""

    needed: int
    free: int


@dataclass(frozen=True)
class ValuesOnSeveralProcesses(Finding):
    """Not compared: no process has all of the values."""


@dataclass(frozen=True)
class NotOnOneDevice(Finding):
    """Not compared: the unsharded function fails on one device, with this error."""

    error: str


# Findings about a changed program's values, compared with the original's.


@dataclass(frozen=True)
class SameAsOriginal(Finding):
    """The changed program returns the same values, except for rounding."""


@dataclass(frozen=True)
class DiffersFromOriginal(Finding):
    """The named result differs from the original's."""

    result: str


@dataclass(frozen=True)
class OriginalAmplifiesRounding(Finding):
    """The named result cannot be compared, because rounding changes it too much."""

    result: str


@dataclass(frozen=True)
class ChangeNotRun(Finding):
    """The changed program was not run for comparison with the original."""

    why: str


# Notes on a compile, and on several processes.


@dataclass(frozen=True)
class UnusedDonations(Finding):
    """Donated arrays whose memory no output reuses: the first few, and the total."""

    arrays: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class NotOnTorus(Finding):
    """JAX's `mesh_utils` refused to lay the mesh over the target's torus."""

    sizes: str
    target: str
    error: str


@dataclass(frozen=True)
class OwnShards(Finding):
    """Each of several processes checks only its own shards."""

    process: int
    processes: int


@dataclass(frozen=True)
class NoStore(Finding):
    """Processes can't be compared: jax's key-value store was not found."""


@dataclass(frozen=True)
class IdleProcesses(Finding):
    """These processes have no device in the mesh."""

    devices: int
    processes: tuple[int, ...]


@dataclass(frozen=True)
class InProcesses(Finding):
    """The findings of several processes for the same check, by rank."""

    findings: tuple[tuple[int, Finding | str], ...]


@dataclass(frozen=True)
class OutputsStay(Finding):
    """The outputs are larger than `most` bytes, so they are not sent to the kernel."""

    most: int


@dataclass(frozen=True, repr=False)
class Check(Plain):
    """One prediction, compared with what happened.

    Attributes:
        about: the property that was checked, such as `"indices"`.
        ok: True, False, or None if the property could not be checked.
        finding: the evidence or the reason; plain text from another package or an
            error.
        shards: number of shards compared; 0 for other checks.
        process: number of the process that made the check; None for a single process.
        array: the array that was checked; `""` for the program.

    >>> Check("indices", True, "Every shard is where the layout puts it.", 8, array="x")
    Check(name='x: indices of 8 shards', ok=True, detail='Every shard is where the layout puts it.')
    """

    _adds = ("name", "detail")

    about: str
    ok: bool | None
    finding: Finding | str
    shards: int = 0
    process: int | None = None
    array: str = ""

    @property
    def name(self) -> str:
        """The array and the check: `"x: indices of 8 shards in process 1"`."""
        return f"{self.array}: {self.of_any_array}" if self.array else self.of_any_array

    @property
    def of_any_array(self) -> str:
        """The name without the array: `"indices of 8 shards in process 1"`."""
        name = self.about
        if self.shards:
            name += f" of {plural(self.shards, 'shard')}"
        if self.process is not None:
            name += f" in process {self.process}"
        return name

    @property
    def of_any_number(self) -> str:
        """The name without array and numbers: `"indices of … shards in process …"`."""
        name = self.about
        if self.shards:
            name += " of … shards"
        if self.process is not None:
            name += " in process …"
        return name

    @property
    def detail(self) -> str:
        """A sentence with the evidence or the reason."""
        return str(self.finding)

    def __repr__(self) -> str:
        return f"Check(name={self.name!r}, ok={self.ok}, detail={self.detail!r})"
