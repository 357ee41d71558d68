"""MeshSpec: named axes over devices, with no device needed.

A mesh is an n-dimensional grid of device ids. Only its order counts: a device's id says
nothing about its position (JAX reorders devices on TPU, and ids of other processes
start anywhere). Follows `jax.sharding.Mesh` and `AbstractMesh`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.base.display import Displayed
from shardviz.base.errors import MeshError
from shardviz.base.format import listed, plural, shown, suggestion
from shardviz.base.parse import (
    DIGITS,
    NAME,
    check_name,
    check_size,
    limited,
    name_in,
    scan,
    typed_name,
)

AXIS_TYPES = ("Auto", "Explicit", "Manual")
MAX_AXES = 32
MAX_DEVICES = 1 << 24  # 16.8 million: arrays of ids stay under 128 MiB


class MeshSpec(Displayed):
    """Named axes over a grid of devices; build one with `shardviz.mesh`.

    Attributes:
        axis_names: one name per axis, major to minor.
        axis_sizes: one size per axis.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"` per axis.
        device_ids: int64, in mesh shape; the device at each position.
        process_indices: int64, in mesh shape; the process (host) of each device. Given
            as a number, it is how many hosts share the devices evenly and in order.
        concrete: whether the ids name devices that a real `Mesh` held.
        ids_are_positions: whether device `i` is at flat position `i`, as by default.
        even_hosts: how many processes, counted from 0, share the devices evenly and in
            order; None where they do not.

    Raises:
        MeshError: for names, sizes, types or ids that no mesh can have.

    >>> mesh = MeshSpec(("data", "model"), (4, 2))
    >>> mesh.size, mesh.shape["model"], mesh.device_ids[1].tolist()
    (8, 2, [2, 3])
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...]
    concrete: bool
    ids_are_positions: bool
    even_hosts: int | None

    def __init__(
        self,
        axis_names: Any,
        axis_sizes: Any,
        axis_types: Any = (),
        device_ids: Any = None,
        process_indices: Any = None,
        concrete: bool = False,
    ) -> None:
        # Attributes are written past __setattr__, which refuses: a mesh is a key of dicts.
        fields = self.__dict__
        names, sizes = _checked_axes(axis_names, axis_sizes)
        fields["axis_names"], fields["axis_sizes"] = names, sizes
        fields["axis_types"] = _checked_types(axis_types, names)
        fields["concrete"] = concrete
        # Ids and processes by default are made when they are first needed: a number for
        # each of 16 million devices takes 128 MiB.
        fields["ids_are_positions"] = device_ids is None
        if device_ids is not None:
            fields["device_ids"] = checked_ids(device_ids, sizes)
        processes = _checked_processes(process_indices, sizes)
        fields["even_hosts"] = None
        if isinstance(processes, int):
            fields["even_hosts"] = processes
        else:
            fields["process_indices"] = processes

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"A MeshSpec does not change; make another for its {name}."
        )

    def replace(self, **changes: Any) -> MeshSpec:
        """A copy with some arguments changed, checked again."""
        # No arrays where none is needed: a mesh may have millions of devices.
        ids = None
        processes: Any = self.even_hosts
        if not self.ids_are_positions:
            ids = self.device_ids
        if processes is None:
            processes = self.process_indices
        fields = {
            "axis_names": self.axis_names,
            "axis_sizes": self.axis_sizes,
            "axis_types": self.axis_types,
            "device_ids": ids,
            "process_indices": processes,
            "concrete": self.concrete,
        }
        return MeshSpec(**fields | changes)

    @cached_property
    def device_ids(self) -> np.ndarray:
        """int64, in mesh shape: the device at each position."""
        numbers = np.arange(self.size, dtype=np.int64).reshape(self.axis_sizes)
        numbers.flags.writeable = False
        return numbers

    @cached_property
    def process_indices(self) -> np.ndarray:
        """int64, in mesh shape: the process (host) of each device."""
        # A constructor without this number has set the attribute itself.
        hosts = self.even_hosts or 1
        if hosts == 1:
            return np.broadcast_to(np.int64(0), self.axis_sizes)
        numbers = np.arange(self.size, dtype=np.int64)
        numbers //= self.size // hosts
        numbers.flags.writeable = False
        return numbers.reshape(self.axis_sizes)

    @cached_property
    def size(self) -> int:
        """How many devices."""
        return math.prod(self.axis_sizes)

    @cached_property
    def shape(self) -> Mapping[str, int]:
        """Axis name to size, in order."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Axis name to its position among the axes."""
        return {name: i for i, name in enumerate(self.axis_names)}

    def lane(self, axis: str) -> np.ndarray:
        """int64: the index along one axis, 0, 1, …, broadcastable to the mesh."""
        lane = self._lanes.get(axis)
        if lane is None:
            shape = [1] * len(self.axis_sizes)
            shape[self.positions[axis]] = -1
            lane = np.arange(self.shape[axis], dtype=np.int64).reshape(shape)
            lane.flags.writeable = False
            self._lanes[axis] = lane
        return lane

    @cached_property
    def _lanes(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def processes(self) -> Sequence[int]:
        """The processes (hosts) that own devices here, in ascending order."""
        if self.even_hosts:
            hosts = range(self.even_hosts)
            # A tuple of a number for each of two million hosts takes 80 MiB.
            if len(hosts) > 1 << 16:
                return hosts
            return tuple(hosts)
        return tuple(np.unique(self.process_indices).tolist())

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """The positions in the order of their ids, and the ids in that order."""
        flat = self.device_ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        return order, flat[order]

    def position(self, device_id: int) -> int:
        """The flat, row-major position of a device in the mesh.

        Raises:
            MeshError: if no device of the mesh has that id.
        """
        wanted = check_size(device_id, "A device id")
        # A number beyond int64 is no id, and numpy cannot compare it.
        if 0 <= wanted < 1 << 62:
            if self.ids_are_positions:
                if wanted < self.size:
                    return wanted
            else:
                order, ids = self._order
                at = int(np.searchsorted(ids, wanted))
                if at < len(ids) and ids[at] == wanted:
                    return int(order[at])
        raise MeshError(
            f"No device {shown(wanted, 30)} in this mesh of"
            f" {plural(self.size, 'device')}."
        )

    def coordinates(self, device_id: int) -> tuple[int, ...]:
        """The coordinates of a device: one index per axis."""
        flat, coords = self.position(device_id), []
        for size in reversed(self.axis_sizes):
            flat, index = divmod(flat, size)
            coords.append(index)
        return tuple(reversed(coords))

    def local(self, process: int) -> MeshSpec:
        """The sub-mesh of one process: the block of the mesh that its devices fill.

        Follows `Mesh.local_mesh`.

        Raises:
            MeshError: if the process has no device here, or its devices fill no block.
        """
        process = check_size(process, "A process index")
        if self.even_hosts == 1 and process == 0:
            return self
        if self.even_hosts:  # the Explorer asks for all hosts of a pod
            each = self.size // self.even_hosts
            own = np.arange(0)
            if 0 <= process < self.even_hosts:
                own = np.arange(process * each, (process + 1) * each)
        else:
            own = np.flatnonzero(self.process_indices.reshape(-1) == process)
        if not own.size:
            raise MeshError(
                f"Process {shown(process)} has no device in this mesh."
                f" Processes here: {listed(self.processes)}."
            )
        # The devices fill a block where the smallest block around them has as many.
        lines = np.unravel_index(own, self.axis_sizes)
        sizes = tuple(int(i.max()) - int(i.min()) + 1 for i in lines)
        if math.prod(sizes) != own.size:
            raise MeshError(
                f"The {plural(own.size, 'device')} of process {process} form no"
                " contiguous block of the mesh: the smallest block around them is"
                f" {'×'.join(map(str, sizes))} and holds devices of other processes."
                " Order the mesh so that each process fills a block."
            )
        ids = self.device_ids.reshape(-1)[own].reshape(sizes)
        hosts = np.broadcast_to(np.int64(process), sizes)
        types = self.axis_types
        return MeshSpec(self.axis_names, sizes, types, ids, hosts, self.concrete)

    def require_axis(self, name: str) -> int:
        """The size of an axis.

        Raises:
            MeshError: if the mesh has no such axis, with the nearest name.
        """
        if isinstance(name, str) and name in self.shape:
            return self.shape[name]
        raise MeshError(
            f"The mesh has no axis {shown(name)}.{suggestion(name, self.axis_names)}"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshSpec):
            return NotImplemented
        if self is other:
            return True
        if self._key != other._key or self.even_hosts != other.even_hosts:
            return False
        # Arrays of 16 million are neither made nor compared where both are the default.
        if not (self.ids_are_positions and other.ids_are_positions):
            if not np.array_equal(self.device_ids, other.device_ids):
                return False
        if self.even_hosts is not None:
            return True
        return np.array_equal(self.process_indices, other.process_indices)

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple:
        return (self.axis_names, self.axis_sizes, self.axis_types, self.concrete)

    def __str__(self) -> str:
        return ", ".join(f"{typed_name(n)}={s}" for n, s in self.shape.items())

    def __repr__(self) -> str:
        types = order = ""
        if set(self.axis_types) - {"Auto"}:
            types = f", axis_types={self.axis_types}"
        if not self.ids_are_positions:
            order = ", device_ids=…"
        return f"MeshSpec({str(self)!r}{types}{order})"


def _checked_axes(names: Any, sizes: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names = limited(names, MAX_AXES, "The axes of a mesh", MeshError)
    sizes = limited(sizes, MAX_AXES, "The axis sizes of a mesh", MeshError)
    if len(names) != len(sizes) or len(names) > MAX_AXES:
        raise MeshError(
            f"A mesh has at most {MAX_AXES} axes and one size per name; got"
            f" {plural(len(names), 'name')} and {plural(len(sizes), 'size')}."
        )
    plain = []
    for name, size in zip(names, sizes, strict=True):
        check_name(name, "a mesh axis")
        if names.count(name) > 1:
            raise MeshError(
                f"Each mesh axis has its own name; {shown(name)} is given twice."
            )
        size = check_size(size, f"The size of axis {shown(name)}")
        if size < 1:
            raise MeshError(
                f"The size of axis {shown(name)} must be 1 or more;"
                f" got {shown(size, 30)}."
            )
        plain.append(size)
    if math.prod(plain) > MAX_DEVICES:
        raise MeshError(
            f"A mesh has at most {MAX_DEVICES:,} devices here;"
            f" {'×'.join(shown(s, 20) for s in plain)[:80]} is more. Make an axis"
            " smaller."
        )
    return tuple(map(str, names)), tuple(plain)


def _checked_types(types: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    types = limited(types, MAX_AXES, "The axis types of a mesh", MeshError)
    if not types:
        return ("Auto",) * len(names)
    if len(types) != len(names):
        raise MeshError(
            f"A mesh needs one axis type per axis; got {plural(len(types), 'type')} for"
            f" {plural(len(names), 'axis', 'axes')}."
        )
    names_of_types = []
    for given in types:
        # jax's AxisType members have a name; text may come in any case.
        name = str(getattr(given, "name", given)).capitalize()
        if name not in AXIS_TYPES:
            raise MeshError(
                f"An axis type is one of {listed(AXIS_TYPES, 'or')}; got"
                f" {shown(given)}."
            )
        names_of_types.append(name)
    return tuple(names_of_types)


def _numbers(values: Any, sizes: tuple[int, ...], what: str) -> np.ndarray:
    """int64 in mesh shape, read-only: a number of 0 or more for each position."""
    positions = math.prod(sizes)
    array = None
    # Ragged lists and sizes beyond an int are errors of numpy's.
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        if not isinstance(values, Sized) or len(values) <= positions:
            array = np.asarray(values)
    if array is None or not _are_counts(array, positions):
        raise MeshError(
            f"The {what} are whole numbers, 0 or more, one for each of"
            f" {plural(positions, 'position')} of the mesh; got {shown(values)}."
        )
    array = array.astype(np.int64, copy=False).reshape(sizes)
    # A copy where the caller may change theirs.
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def _are_counts(array: np.ndarray, positions: int) -> bool:
    """Whether an array holds one int64 of 0 or more for each position."""
    if array.dtype.kind not in "iu" or array.size != positions:
        return False
    return int(array.min()) >= 0 and int(array.max()) <= np.iinfo(np.int64).max


def checked_ids(ids: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """Device ids in mesh shape, read-only and each once."""
    array = _numbers(ids, sizes, "device ids")
    flat = array.reshape(-1)
    # Sorting 16 million takes a second.
    if not ascending(flat):
        flat = np.sort(flat)
        twice = flat[1:][flat[1:] == flat[:-1]]
        if len(twice):
            raise MeshError(
                f"Each device is in a mesh once; {int(twice[0])} is given twice."
            )
    return array


def ascending(values: np.ndarray) -> bool:
    """Whether each value is larger than the one before.

    >>> ascending(np.array([1, 4, 9])), ascending(np.array([1, 4, 4]))
    (True, False)
    """
    return bool((values[1:] > values[:-1]).all())


def _checked_processes(processes: Any, sizes: tuple[int, ...]) -> np.ndarray | int:
    """The process of each device, or how many hosts share the devices in order."""
    total = math.prod(sizes)
    if processes is None:
        return 1
    if np.isscalar(processes):
        count = check_size(processes, "The number of hosts")
        if count < 1 or total % count:
            fits = [n for n in range(1, min(total, 512) + 1) if total % n == 0]
            raise MeshError(
                f"{plural(total, 'device')} cannot be shared evenly by"
                f" {shown(count, 30)} hosts. Numbers that work: {listed(fits)}."
            )
        return count
    array = _numbers(processes, sizes, "process indices")
    # Where one number says the same, it is kept instead.
    hosts = int(array.flat[-1]) + 1
    if total % hosts == 0:
        each = array.reshape(hosts, -1)
        if (each == np.arange(hosts)[:, None]).all():
            return hosts
    return array


def make_mesh(
    axes: Any = None,
    *,
    axis_types: Any = None,
    device_ids: Any = None,
    processes: Any = None,
    count_devices: Callable[[], int] | None = None,
    **sizes: Any,
) -> MeshSpec:
    """A MeshSpec from text, a mapping, pairs, or keywords.

    Args:
        axes: `"data=4, model=2"`, `{"data": 4}`, `[("data", 4)]`, or keywords instead.
        axis_types: one type for all axes, or one per axis; Auto where not said.
        device_ids: ids in mesh order, any shape of the right size; by default 0, 1, 2,
            …
        processes: how many hosts share the devices evenly and in order, or the process
            index of each device, any shape of the right size; by default one host.
        count_devices: how many devices there are, called if a size is -1, which stands
            for the devices that are left; by default the number of `device_ids`.

    >>> make_mesh("data=4, model=2") == make_mesh(data=4, model=2)
    True
    """
    if axes is not None and sizes:
        raise MeshError(
            "A mesh is written either as one value or as keywords, not both;"
            f" got {shown(axes)} and {listed(sizes)}."
        )
    if isinstance(axes, str):
        axes = _parsed(axes)
    pairs = list(sizes.items())
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif axes is not None:
        pairs = _pairs(axes)
    if not pairs:
        raise MeshError("A mesh needs at least one axis. Write one as data=4.")
    # Names may be anything here; MeshSpec checks them, as for all callers.
    names, lengths = zip(*pairs, strict=True)
    if device_ids is not None:
        count_devices = lambda: int(np.size(device_ids))  # noqa: E731
    lengths = filled_sizes(lengths, count_devices)
    if axis_types is None:
        axis_types = ()
    elif isinstance(axis_types, str) or not isinstance(axis_types, Iterable):
        axis_types = (axis_types,) * len(names)
    # Whoever names devices means those; numbers in order may be any devices.
    concrete = device_ids is not None
    return MeshSpec(names, lengths, axis_types, device_ids, processes, concrete)


def filled_sizes(
    sizes: Sequence[Any], count_devices: Callable[[], int] | None
) -> tuple[Any, ...]:
    """Sizes with the number of devices that are left in place of one -1.

    Args:
        sizes: one for each axis.
        count_devices: how many devices there are; called if a size is -1.

    Raises:
        MeshError: several sizes are -1, nothing says how many devices there are, or the
            other sizes do not divide that number.

    >>> filled_sizes((-1, 2), lambda: 8)
    (4, 2)
    """
    others = [n for n in sizes if type(n) is not int or n != -1]
    if len(others) == len(sizes):
        return tuple(sizes)
    if len(sizes) - len(others) > 1:
        raise MeshError(
            "One axis of a mesh may have the size -1, for the devices that are left; got"
            f" {shown(tuple(sizes))}."
        )
    if count_devices is None:
        raise MeshError(
            "The size -1 stands for the devices that are left, and nothing says how many"
            " devices there are. Write the size."
        )
    used = math.prod(check_size(n, "The size of an axis") for n in others)
    total = count_devices()
    if used < 1 or total % used:
        raise MeshError(
            f"{plural(total, 'device')} cannot be shared evenly by axes of"
            f" {'×'.join(map(str, others))}, so no size is left for -1."
        )
    return tuple(total // used if n == -1 else n for n in sizes)


_AXIS = re.compile(
    rf"\s*({NAME})(?:\s*[=:]\s*|\s+)([+-]?{DIGITS})(?:\s*[,;]|\s|$)", re.ASCII
)


def _parsed(text: str) -> list[tuple[str, int]]:
    """The `(name, size)` pairs in what a person typed; nothing is evaluated."""
    pairs = []
    for match in scan(_AXIS, text, MeshError, "an axis and its size, as data=4,"):
        pairs.append((name_in(match[1]), int(match[2])))
    return pairs


def _pairs(axes: Any) -> list[tuple[Any, Any]]:
    if isinstance(axes, (tuple, list)):
        if all(isinstance(p, (tuple, list)) and len(p) == 2 for p in axes):
            return [(name, size) for name, size in axes]
    raise MeshError(
        f"Cannot read a mesh from {shown(axes)}. Give text such as 'data=4, model=2',"
        " a mapping of names to sizes, or a jax Mesh."
    )
