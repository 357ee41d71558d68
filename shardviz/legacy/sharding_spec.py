"""ShardingSpec: how `jax.pmap` wrote down a sharding, before there were named axes.

Two tuples. The first says for each dimension of the array whether it is not split (`NoSharding`),
split into chunks (`Chunked`), or indexed by the device (`Unstacked`); every chunk count and every
unstacked dimension is one *sharded axis*, numbered in order. The second describes the devices as a
grid, major to minor: each axis of it belongs to one sharded axis (`ShardedAxis`), or holds copies
(`Replicated`).

Follows `jax.interpreters.pxla` up to jax 0.4 and the `pmap_lib` of its time, representation
included; checked against index tables of jax 0.4.13 in `tests/layout`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError, SpecError
from shardviz.core.format import joined, listed, plural, shown, suggestion
from shardviz.core.layout.array_spec import read_shape
from shardviz.core.layout.layout import block_numbers, sizes_that_divide
from shardviz.core.layout.mesh import MAX_AXES, MAX_DEVICES, MeshSpec
from shardviz.core.layout.parse import Cursor, check_size
from shardviz.core.layout.partition_spec import MAX_RANK, Spec

if TYPE_CHECKING:
    from shardviz.picture.picture import Picture


@dataclass(frozen=True, slots=True)
class NoSharding:
    """A dimension that is not split.

    >>> NoSharding(), NoSharding() == NoSharding()
    (NoSharding(), True)
    """

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of the sharded axes it makes: none."""
        return ()


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Chunked:
    """A dimension split into equal chunks, then each of them again, and so on.

    Every number makes one sharded axis; the first is the major one. The numbers may be a
    list or separate arguments, as in its representation.

    Attributes:
        chunks: into how many chunks, one number for each split.

    Raises:
        SpecError: for anything but whole numbers from 1 on.

    >>> Chunked([2, 4]), Chunked(2, 4) == Chunked([2, 4])
    (Chunked(2,4), True)
    """

    chunks: tuple[int, ...]

    def __init__(self, *chunks: Any) -> None:
        given: Any = chunks
        if len(chunks) == 1 and isinstance(chunks[0], Iterable):
            given = chunks[0]
        if isinstance(given, (str, bytes)):
            raise SpecError(f"Chunked takes whole numbers, as Chunked([2, 4]); got {shown(given)}.")
        checked = tuple(_count(c, "The number of chunks") for c in given)
        object.__setattr__(self, "chunks", checked)

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of the sharded axes it makes: its chunks."""
        return self.chunks

    def __repr__(self) -> str:
        return f"Chunked({','.join(map(str, self.chunks))})"


@dataclass(frozen=True, slots=True, repr=False)
class Unstacked:
    """A dimension of which each device holds one index; its own array lacks the dimension.

    Attributes:
        size: the size of the dimension, and of the sharded axis it makes.

    Raises:
        SpecError: for anything but a whole number from 1 on.

    >>> Unstacked(4)
    Unstacked(4)
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _count(self.size, "The size of an Unstacked dimension"))

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of the sharded axes it makes: one, as long as the dimension."""
        return (self.size,)

    def __repr__(self) -> str:
        return f"Unstacked({self.size})"


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """An axis of the devices along which they hold the parts of one sharded axis of the array.

    Attributes:
        axis: which one: the chunks and unstacked dimensions, counted from 0 through the dimensions.

    Raises:
        SpecError: for anything but a whole number from 0 on.

    >>> ShardedAxis(0)
    ShardedAxis(axis=0)
    """

    axis: int

    def __post_init__(self) -> None:
        axis = check_size(self.axis, "The number of a sharded axis", SpecError)
        if axis < 0:
            raise SpecError(f"Sharded axes are counted from 0; got ShardedAxis({shown(axis)}).")
        object.__setattr__(self, "axis", axis)


@dataclass(frozen=True, slots=True)
class Replicated:
    """An axis of the devices along which all hold the same part.

    Attributes:
        replicas: how many.

    Raises:
        SpecError: for anything but a whole number from 1 on.

    >>> Replicated(2)
    Replicated(replicas=2)
    """

    replicas: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "replicas", _count(self.replicas, "The number of replicas"))


def _count(value: object, what: str) -> int:
    count = check_size(value, what, SpecError)
    if not 1 <= count <= MAX_DEVICES:
        raise SpecError(f"{what} is between 1 and {MAX_DEVICES:,}; got {shown(count)}.")
    return count


Dimension = NoSharding | Chunked | Unstacked
Assignment = ShardedAxis | Replicated


@dataclass(frozen=True, repr=False)
class ShardingSpec(Displayed):
    """A sharding as `jax.pmap` wrote it: how dimensions are split, and what device axes hold.

    Attributes:
        sharding: one `NoSharding`, `Chunked` or `Unstacked` per dimension; None is `NoSharding`.
        mesh_mapping: one `ShardedAxis` or `Replicated` per axis of the devices, major to minor.

    Raises:
        SpecError: for parts of another kind, or if not every sharded axis is used exactly once.

    >>> spec = ShardingSpec((Chunked([2]), NoSharding()), (Replicated(2), ShardedAxis(0)))
    >>> spec.num_devices, spec.indices((8, 3))[3]
    (4, (slice(4, 8, None), slice(None, None, None)))
    >>> ShardingSpec((Unstacked(2), NoSharding()), (ShardedAxis(0),)).indices((2, 3))
    [(0, slice(None, None, None)), (1, slice(None, None, None))]
    """

    sharding: tuple[Dimension, ...]
    mesh_mapping: tuple[Assignment, ...]

    def __post_init__(self) -> None:
        dims = _entries(self.sharding, "sharding", "dimension", MAX_RANK)
        axes = _entries(self.mesh_mapping, "mesh_mapping", "axis of the devices", MAX_AXES)
        dims = tuple(NoSharding() if d is None else d for d in dims)
        for at, dim in enumerate(dims):
            if not isinstance(dim, Dimension):
                raise SpecError(
                    f"Entry {at} of sharding is NoSharding(), Chunked([2]) or Unstacked(2); got"
                    f" {shown(dim)}."
                )
        for at, axis in enumerate(axes):
            if not isinstance(axis, Assignment):
                raise SpecError(
                    f"Entry {at} of mesh_mapping is ShardedAxis(0) or Replicated(2); got"
                    f" {shown(axis)}."
                )
        object.__setattr__(self, "sharding", dims)
        object.__setattr__(self, "mesh_mapping", axes)
        self._check_axes()
        if self.num_devices > MAX_DEVICES:
            raise SpecError(
                f"{shown(self, 100)} asks for {self.num_devices:,} devices; at most"
                f" {MAX_DEVICES:,}, please."
            )

    def _draw_(self, shape: Sequence[int] | str | None = None, title: str | None = None) -> Picture:
        """The blocks of an array where a shape is given, else a tile per dimension."""
        from shardviz.legacy.equivalents import sharding_spec_layout
        from shardviz.picture.layout import draw_layout_array
        from shardviz.picture.rules import draw_spec

        named = str(self) if title is None else title
        if shape is not None:
            return draw_layout_array(sharding_spec_layout(self, shape), title=named)
        return draw_spec(Spec(self.axis_names), named)

    def _text_(self) -> str:
        """Each dimension in words, and the grid of the devices."""
        kinds = {"NoSharding": "not split", "Chunked": "chunked", "Unstacked": "unstacked"}
        dims = []
        for at, (dim, axes) in enumerate(zip(self.sharding, self.axis_names, strict=True)):
            over = f" over {joined(axes)}" if axes else ""
            dims.append(f"dimension {at} {kinds[type(dim).__name__]}{over}")
        grid = " × ".join(f"{n}={s}" for n, s in self.mesh.shape.items())
        return "\n".join([str(self), " · ".join(dims) or "a scalar", f"devices: {grid}"])

    def _check_axes(self) -> None:
        known, used = range(len(self.sharded_axes)), [0] * len(self.sharded_axes)
        for axis in self.mesh_mapping:
            if not isinstance(axis, ShardedAxis):
                continue
            if axis.axis not in known:
                raise SpecError(
                    f"mesh_mapping uses sharded axis {shown(axis.axis)}, and the sharding has"
                    f" {self._axes_in_words()}."
                )
            used[axis.axis] += 1
            if used[axis.axis] > 1:
                raise SpecError(
                    f"mesh_mapping uses sharded axis {axis.axis} twice; each is used exactly once."
                    " Use Replicated for devices that hold the same."
                )
        missing = [i for i in known if not used[i]]
        if missing:
            raise SpecError(
                f"No entry of mesh_mapping uses sharded axis {listed(missing)}, and the sharding"
                f" has {self._axes_in_words()}; each is used exactly once. Add"
                f" {joined(f'ShardedAxis({i})' for i in missing[:4])}."
            )

    def _axes_in_words(self) -> str:
        sizes = self.sharded_axes
        if not sizes:
            return "none: no dimension is Chunked or Unstacked"
        if len(sizes) == 1:
            return f"one: 0, of size {sizes[0]}"
        return f"{len(sizes)}: 0 to {len(sizes) - 1}, of sizes {listed(sizes)}"

    @property
    def rank(self) -> int:
        """How many dimensions the array has."""
        return len(self.sharding)

    @cached_property
    def sharded_axes(self) -> tuple[int, ...]:
        """The size of every sharded axis: chunk counts and unstacked dimensions, in order."""
        return tuple(n for dim in self.sharding for n in dim.counts)

    @cached_property
    def mesh_shape(self) -> tuple[int, ...]:
        """The grid of the devices, one size for each entry of `mesh_mapping`.

        >>> ShardingSpec((Chunked([4]),), (Replicated(2), ShardedAxis(0))).mesh_shape
        (2, 4)
        """
        return tuple(
            self.sharded_axes[a.axis] if isinstance(a, ShardedAxis) else a.replicas
            for a in self.mesh_mapping
        )

    @property
    def num_devices(self) -> int:
        """How many devices it is for."""
        return math.prod(self.mesh_shape)

    @property
    def unstacked(self) -> tuple[int, ...]:
        """The dimensions that are unstacked."""
        return tuple(d for d, dim in enumerate(self.sharding) if isinstance(dim, Unstacked))

    @cached_property
    def mesh(self) -> MeshSpec:
        """The devices as a grid: its axes are `axis0` for sharded axis 0, `replica0` for copies."""
        names, replicas = [], 0
        for axis in self.mesh_mapping:
            if isinstance(axis, ShardedAxis):
                names.append(f"axis{axis.axis}")
            else:
                names.append(f"replica{replicas}")
                replicas += 1
        return MeshSpec(tuple(names) or ("device",), self.mesh_shape or (1,))

    @cached_property
    def axis_names(self) -> tuple[tuple[str, ...], ...]:
        """For each dimension the axes of `mesh` that split it, major to minor."""
        found, first = [], 0
        for dim in self.sharding:
            found.append(tuple(f"axis{i}" for i in range(first, first + len(dim.counts))))
            first += len(dim.counts)
        return tuple(found)

    def check(self, shape: Sequence[int] | str) -> tuple[int, ...]:
        """The shape as numbers, if the spec fits it.

        Raises:
            LayoutError: if the rank differs, chunks do not come out equal, or an unstacked
                dimension has another size.
        """
        sizes = read_shape(shape)
        if len(sizes) != self.rank:
            raise LayoutError(
                f"The array has {plural(len(sizes), 'dimension')} and {shown(self, 100)} is for"
                f" {self.rank}. Give one entry for each dimension, NoSharding() for one that is not"
                " split."
            )
        for at, (size, dim) in enumerate(zip(sizes, self.sharding, strict=True)):
            if isinstance(dim, Unstacked) and dim.size != size:
                raise LayoutError(
                    f"Dimension {at} is {dim}, one index per device, and has {size:,}. Write"
                    f" {f'Unstacked({size})' if size else 'NoSharding()'}."
                )
            chunks = math.prod(dim.counts)
            if size % chunks:
                raise LayoutError(
                    f"Dimension {at}: {size:,} does not divide into {chunks:,} chunks ({dim}):"
                    f" {sizes_that_divide(size, chunks)}"
                )
        return sizes

    def indices(self, shape: Sequence[int] | str) -> list[tuple[int | slice, ...]]:
        """What each device holds of an array, in device order: one tuple per device.

        An entry is a slice, or for an unstacked dimension the index. A dimension that is not split
        is `slice(None)`. (Beside an unstacked dimension, `Chunked([1])` has both ends given, as it
        had in `pmap`.)

        Args:
            shape: the global shape, in elements.

        Raises:
            LayoutError: if the shape does not fit.

        >>> spec = ShardingSpec((Chunked([2]),), (ShardedAxis(0), Replicated(2)))
        >>> [i[0].start for i in spec.indices((4,))]
        [0, 0, 2, 2]
        """
        sizes = self.check(shape)
        columns = [self._column(dim, size) for dim, size in enumerate(sizes)]
        if not columns:
            return [() for _ in range(self.num_devices)]
        return list(zip(*columns, strict=True))

    def _column(self, dim: int, size: int) -> list[Any]:
        part, count = self.sharding[dim], math.prod(self.sharding[dim].counts)
        blocks: Sequence[int | slice]
        if isinstance(part, Unstacked):
            blocks = range(count)
        elif isinstance(part, NoSharding) or (count == 1 and not self.unstacked):
            blocks = [slice(None)]
        else:
            step = size // count
            blocks = [slice(i * step, (i + 1) * step) for i in range(count)]
        numbers = block_numbers(self.axis_names[dim], self.mesh)
        if numbers is None:
            return [blocks[0]] * self.num_devices
        spread = np.broadcast_to(numbers, self.mesh.axis_sizes)
        return [blocks[i] for i in spread.reshape(-1).tolist()]

    def __repr__(self) -> str:
        return f"ShardingSpec({self.sharding}, {self.mesh_mapping})"


def _entries(value: Any, what: str, each: str, limit: int) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SpecError(f"{what} is a tuple with one entry for each {each}; got {shown(value)}.")
    if len(value) > limit:
        raise SpecError(f"{what} has at most {limit} entries; got {len(value):,}.")
    return tuple(value)


_KINDS = {
    "NoSharding": NoSharding,
    "Chunked": Chunked,
    "Unstacked": Unstacked,
    "ShardedAxis": ShardedAxis,
    "Replicated": Replicated,
}
_KEYWORDS = {"chunks": Chunked, "size": Unstacked, "axis": ShardedAxis, "replicas": Replicated}
_FIELDS = ("sharding", "mesh_mapping")


def parse_sharding_spec(text: str) -> ShardingSpec:
    """A ShardingSpec from what a person typed; nothing is evaluated.

    Takes `ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))`, with or
    without a module before the names and `sharding=` and `mesh_mapping=`, None for `NoSharding()`,
    and the `repr` of a ShardingSpec.

    Raises:
        SpecError: with the position that could not be read.

    >>> text = "ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))"
    >>> parse_sharding_spec(text)
    ShardingSpec((Chunked(2), NoSharding()), (ShardedAxis(axis=0), Replicated(replicas=4)))
    """
    if not isinstance(text, str):
        raise SpecError(
            "A ShardingSpec is typed as text such as ShardingSpec((Chunked([2]),),"
            f" (ShardedAxis(0),)); got {shown(text)}."
        )
    cursor = Cursor(text, SpecError)
    if not is_sharding_spec(text):
        raise cursor.complain("expected ShardingSpec(")
    cursor.take()
    cursor.take()
    found: dict[str, tuple[Any, ...]] = {}
    for field in _FIELDS:
        name = _keyword(cursor, _FIELDS) or field
        if name in found:
            raise cursor.complain(f"{name} is given twice")
        found[name] = _parsed_entries(cursor)
        if field == _FIELDS[0] and not cursor.skip(","):
            raise cursor.complain("expected a comma and mesh_mapping")
    cursor.skip(",")
    _expect(cursor, ")")
    if not cursor.done:
        raise cursor.complain("expected nothing more")
    return ShardingSpec(**found)


def is_sharding_spec(text: str) -> bool:
    """Whether text begins as a ShardingSpec does, so that a field can tell it from a P(…).

    >>> is_sharding_spec(" legacy.ShardingSpec("), is_sharding_spec("P('x')")
    (True, False)
    """
    return re.match(r"\s*(\w{1,40}\.){0,8}ShardingSpec\s*\(", text) is not None


def _keyword(cursor: Cursor, known: tuple[str, ...]) -> str:
    """Takes `name =` if it comes next, and returns the name; else returns `""`."""
    if cursor.here.kind != "word" or cursor.peek().value != "=":
        return ""
    name = cursor.here.value
    if name not in known:
        raise cursor.complain(f"expected {joined(known, 'or')}")
    cursor.take()
    cursor.take()
    return name


def _parsed_entries(cursor: Cursor) -> tuple[Any, ...]:
    closing = {"(": ")", "[": "]"}.get(cursor.here.value) if cursor.at("(", "[") else None
    if closing is None:
        raise cursor.complain("expected a tuple, such as (NoSharding(),)")
    cursor.take()
    entries: list[Any] = []
    while not cursor.skip(closing):
        entries.append(_part(cursor))
        if not cursor.skip(",") and not cursor.at(closing):
            raise cursor.complain(f"expected a comma or {closing}")
    return tuple(entries)


def _part(cursor: Cursor) -> Any:
    if cursor.here.kind != "word":
        raise cursor.complain("expected a part such as Chunked([2])")
    if cursor.at("None"):
        cursor.take()
        return NoSharding()
    name = cursor.here.value.split(".")[-1]
    if name not in _KINDS:
        problem = f"{shown(name)} is no part of a ShardingSpec.{suggestion(name, _KINDS)} Stopped"
        raise cursor.complain(problem)
    cursor.take()
    _expect(cursor, "(")
    kind = _KINDS[name]
    _keyword(cursor, tuple(k for k, owner in _KEYWORDS.items() if owner is kind))
    numbers = _numbers(cursor)
    if kind is NoSharding and numbers:
        raise cursor.complain("NoSharding() takes nothing")
    if kind not in (NoSharding, Chunked) and len(numbers) != 1:
        raise cursor.complain(f"{name} takes one number")
    _expect(cursor, ")")
    return kind(*numbers)


def _numbers(cursor: Cursor) -> list[int]:
    """Numbers with commas between them, in brackets or bare, up to the closing `)`."""
    closing = ""
    if cursor.at("[", "("):
        closing = "]" if cursor.take().value == "[" else ")"
    numbers: list[int] = []
    while not cursor.at(closing or ")"):
        if not re.fullmatch(r"[0-9]{1,18}", cursor.here.value) or cursor.here.kind != "word":
            raise cursor.complain("expected a whole number")
        numbers.append(int(cursor.take().value))
        if not cursor.skip(",") and not cursor.at(closing or ")"):
            raise cursor.complain("expected a comma or a closing bracket")
    if closing:
        cursor.take()
    return numbers


def _expect(cursor: Cursor, value: str) -> None:
    if not cursor.skip(value):
        raise cursor.complain(f"expected {value}")
