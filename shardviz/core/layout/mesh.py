"""MeshSpec: named axes over devices, with no device needed.

A mesh is an n-dimensional grid of device ids. Its order is the truth: a device's id says nothing
about its position (JAX reorders devices on TPU, and ids of other processes start anywhere).
Follows `jax.sharding.Mesh` and `AbstractMesh`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import MeshError, listed, plural, shown, suggestion
from shardviz.core.layout.checks import check_size
from shardviz.core.layout.mesh_checks import (
    checked_axes,
    checked_ids,
    checked_processes,
    checked_types,
    reshaped,
    spread_processes,
    spread_types,
)
from shardviz.core.layout.reading import quoted


@dataclass(frozen=True, eq=False, repr=False)
class MeshSpec(Displayed):
    """Named axes over a grid of devices; build one with `shardviz.mesh`.

    Attributes:
        axis_names: one name an axis, major to minor.
        axis_sizes: one size an axis.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"` an axis.
        device_ids: int64, in mesh shape; which device stands at which position.
        process_indices: int64, in mesh shape; the process (host) of each device.
        concrete: whether the ids name devices that a real `Mesh` held.

    Raises:
        MeshError: for names, sizes, types or ids that no mesh can have.

    >>> mesh = MeshSpec(("data", "model"), (4, 2))
    >>> mesh.size, mesh.shape["model"], mesh.device_ids[1].tolist()
    (8, 2, [2, 3])
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...] = ()
    device_ids: np.ndarray = None  # type: ignore[assignment]  # None is replaced at construction
    process_indices: np.ndarray = None  # type: ignore[assignment]
    concrete: bool = False

    def __post_init__(self) -> None:
        names, sizes = checked_axes(self.axis_names, self.axis_sizes)
        put = lambda field, value: object.__setattr__(self, field, value)  # noqa: E731
        put("axis_names", names)
        put("axis_sizes", sizes)
        put("axis_types", checked_types(self.axis_types, names))
        put("_plain", self.device_ids is None)
        put("device_ids", checked_ids(self.device_ids, sizes))
        put("process_indices", checked_processes(self.process_indices, sizes))

    @property
    def size(self) -> int:
        """How many devices."""
        return self.device_ids.size

    @cached_property
    def shape(self) -> Mapping[str, int]:
        """Axis name to size, in order."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Axis name to its position among the axes."""
        return {name: i for i, name in enumerate(self.axis_names)}

    def lane(self, axis: str) -> np.ndarray:
        """int64: the index along one axis, broadcastable to the mesh: 0, 1, … in that direction."""
        found = self._lanes.get(axis)
        if found is None:
            shape = [1] * len(self.axis_sizes)
            shape[self.positions[axis]] = -1
            found = np.arange(self.shape[axis], dtype=np.int64).reshape(shape)
            found.flags.writeable = False
            self._lanes[axis] = found
        return found

    @cached_property
    def _lanes(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The processes (hosts) that own devices here, in ascending order."""
        held = self.process_indices.ravel()
        if held.size and held.max() < held.size:
            return tuple(np.flatnonzero(np.bincount(held)).tolist())  # no sort: a million in 1 ms
        return tuple(np.unique(held).tolist())

    @property
    def ids_are_positions(self) -> bool:
        """Whether device `i` stands at flat position `i`, as when nobody said otherwise."""
        return self._plain  # type: ignore[attr-defined]

    @cached_property
    def _position_of(self) -> dict[int, int]:
        return {int(d): i for i, d in enumerate(self.device_ids.ravel())}

    def position(self, device_id: int) -> int:
        """The flat, row-major position of a device in the mesh.

        Raises:
            MeshError: if no device of the mesh has that id.
        """
        wanted = check_size(device_id, "A device id")
        if self.ids_are_positions:
            if 0 <= wanted < self.size:
                return wanted
        elif wanted in self._position_of:
            return self._position_of[wanted]
        raise MeshError(
            f"No device {shown(wanted, 30)} in this mesh of {plural(self.size, 'device')}."
        )

    def coordinates(self, device_id: int) -> tuple[int, ...]:
        """Where a device stands: one index an axis."""
        flat, coords = self.position(device_id), []
        for size in reversed(self.axis_sizes):
            flat, index = divmod(flat, size)
            coords.append(index)
        return tuple(reversed(coords))

    def local(self, process: int) -> MeshSpec:
        """The sub-mesh of one process: the smallest box that holds its devices.

        Follows `Mesh.local_mesh`.

        Raises:
            MeshError: if the process has no device here, or its devices do not fill a box.
        """
        process = check_size(process, "A process index")
        mine = self.process_indices == process
        if not mine.any():
            raise MeshError(
                f"Process {shown(process)} has no device in this mesh."
                f" Processes here: {listed(self.processes)}."
            )
        box = tuple(slice(int(i.min()), int(i.max()) + 1) for i in np.nonzero(mine))
        if not mine[box].all():
            raise MeshError(
                f"The {plural(int(mine.sum()), 'device')} of process {process} form no contiguous"
                f" block of the mesh: the smallest block around them is"
                f" {'×'.join(str(s.stop - s.start) for s in box)} and holds devices of other"
                " processes. Order the mesh so that each process fills a box."
            )
        return MeshSpec(
            self.axis_names,
            tuple(s.stop - s.start for s in box),
            self.axis_types,
            self.device_ids[box],
            self.process_indices[box],
            self.concrete,
        )

    def require_axis(self, name: str) -> int:
        """The size of an axis.

        Raises:
            MeshError: if the mesh has no such axis, with the nearest name.
        """
        if name in self.shape:
            return self.shape[name]
        raise MeshError(f"The mesh has no axis {shown(name)}.{suggestion(name, self.axis_names)}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshSpec):
            return NotImplemented
        return self is other or (
            self._key == other._key
            and np.array_equal(self.device_ids, other.device_ids)
            and np.array_equal(self.process_indices, other.process_indices)
        )

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple:
        return (self.axis_names, self.axis_sizes, self.axis_types, self.concrete)

    def __str__(self) -> str:
        return ", ".join(f"{_typed_axis(n)}={s}" for n, s in self.shape.items())

    def __repr__(self) -> str:
        types = "" if set(self.axis_types) <= {"Auto"} else f", axis_types={self.axis_types}"
        order = "" if self.ids_are_positions else ", device_ids=…"
        return f"MeshSpec({str(self)!r}{types}{order})"


def make_mesh(
    axes: Any = None,
    *,
    axis_types: Any = None,
    device_ids: Any = None,
    processes: Any = None,
    **sizes: Any,
) -> MeshSpec:
    """A MeshSpec from text, a mapping, pairs, or keywords.

    Args:
        axes: `"data=4, model=2"`, `{"data": 4}`, `[("data", 4)]`, or nothing with keywords.
        axis_types: one type for all axes, or one an axis; Auto where not said.
        device_ids: ids in mesh order, any shape of the right size; `0, 1, 2, …` where not said.
        processes: how many hosts share the devices evenly and in order, or the process index
            of each device, any shape of the right size; one host where not said.

    Raises:
        MeshError: where no mesh comes out of it.

    >>> make_mesh("data=4, model=2") == make_mesh(data=4, model=2)
    True
    """
    if axes is not None and sizes:
        raise MeshError(
            "A mesh is written either as one value or as keywords, not both;"
            f" got {shown(axes)} and {listed(sizes)}."
        )
    pairs = _pairs(axes) if axes is not None else list(sizes.items())
    names, lengths = tuple(n for n, _ in pairs), tuple(s for _, s in pairs)
    if not names:
        raise MeshError("A mesh needs at least one axis. Write one as data=4.")
    names, lengths = checked_axes(names, lengths)
    return MeshSpec(
        names,
        lengths,
        spread_types(axis_types, len(names)),
        reshaped(device_ids, lengths, "device ids"),  # type: ignore[arg-type]
        spread_processes(processes, lengths),  # type: ignore[arg-type]
        device_ids is not None,
    )


_PAIR = re.compile(
    r"\s*(?:(?P<q>['\"])(?P<quoted>(?:\\.|(?!(?P=q)).)*)(?P=q)|(?P<bare>[^\s=:,;'\"]+))"
    r"\s*(?:[=:]|\s)\s*(?P<size>[^\s,;]+)\s*(?:[,;]|\s|$)"
)


def _typed_axis(name: str) -> str:
    return name if re.fullmatch(r"[^\s=:,;'\"]+", name) else quoted(name)


def parse_mesh_text(text: str) -> list[tuple[str, int]]:
    """The `(name, size)` pairs in what a person typed; nothing is evaluated.

    Raises:
        MeshError: with the part that could not be read.

    >>> parse_mesh_text("data=4, model: 2")
    [('data', 4), ('model', 2)]
    """
    if len(text) > 4000:
        raise MeshError(f"A mesh is short text such as data=4, model=2; got {len(text):,} letters.")
    pairs: list[tuple[str, int]] = []
    rest = text.strip()
    while rest:
        match = _PAIR.match(rest)
        if match is None:
            raise MeshError(
                f"Cannot read {shown(rest)} as a mesh axis. Write name=size, such as"
                " data=4, model=2."
            )
        name = match["bare"] or re.sub(r"\\(.)", r"\1", match["quoted"])
        pairs.append((name, _typed_size(name, match["size"])))
        rest = rest[match.end() :].lstrip()
    return pairs


def _typed_size(name: str, text: str) -> int:
    digits = text.replace("_", "")
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", digits):
        raise MeshError(
            f"The size of axis {shown(name)} must be a whole number; got {shown(text)}."
            " Write it as data=4."
        )
    return int(digits)


def _pairs(axes: Any) -> list[tuple[Any, Any]]:
    if isinstance(axes, str):
        return list(parse_mesh_text(axes))
    if isinstance(axes, Mapping):
        return list(axes.items())
    if isinstance(axes, Sequence) and not isinstance(axes, (bytes, bytearray)):
        pairs = [tuple(p) if isinstance(p, (tuple, list)) else (p,) for p in axes]
        if all(len(p) == 2 for p in pairs):
            return pairs  # type: ignore[return-value]
    raise MeshError(
        f"Cannot read a mesh from {shown(axes)}. Give text such as 'data=4, model=2',"
        " a mapping of names to sizes, or a jax Mesh."
    )
