"""MeshSpec: a mesh of named axes over device ids, which need not exist.

A mesh is an n-dimensional grid of device ids. A device's id does not determine its
position in the grid: JAX reorders devices on TPU, and the ids of other processes can
start at any number. Follows `jax.sharding.Mesh` and `AbstractMesh`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import cached_property
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

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
from shardviz.base.typing import AxisTypesLike, MeshLike

AXIS_TYPES = ("Auto", "Explicit", "Manual")
MAX_AXES = 32
MAX_DEVICES = 1 << 24  # 16.8 million; an array of ids takes at most 128 MiB


class DeviceKind(NamedTuple):
    """The kind of a mesh's devices, as in jax's `AbstractDevice`.

    Attributes:
        kind: jax's `device_kind`, such as `"TPU v5 lite"`.
        cores: the number of cores; None if unknown.
        platform: `"tpu"`, `"gpu"` or `"cpu"`.

    >>> import shardviz as sv
    >>> v5e = DeviceKind("TPU v5 lite", 1, "tpu")
    >>> sv.mesh(data=4).replace(device_kind=v5e).device_kind.kind
    'TPU v5 lite'
    """

    kind: str
    cores: int | None
    platform: str


class MeshSpec(Displayed):
    """Named axes over a grid of devices; build one with `shardviz.mesh`.

    Attributes:
        axis_names: one name per axis, major to minor.
        axis_sizes: one size per axis.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"` per axis.
        device_ids: int64, in mesh shape; the id of the device at each position.
        process_indices: int64, in mesh shape; the process (host) of each device. The
            constructor also accepts an int: the number of hosts, which share the
            devices evenly and in order.
        concrete: whether the ids belong to the devices of a real `Mesh`.
        ids_are_positions: whether the device at flat position `i` has id `i` for every
            `i`, which is the default.
        even_hosts: the number of processes, numbered from 0, that share the devices
            evenly and in order; None if they do not.
        device_kind: the kind of the mesh's devices, if the mesh comes from an
            AbstractMesh with an `AbstractDevice`. Meshes that differ only in their
            device kind are equal, because jax accepts them together in one program.

    Raises:
        MeshError: for invalid names, sizes, types or ids.

    >>> import shardviz as sv
    >>> mesh = sv.MeshSpec(("data", "model"), (4, 2))
    >>> mesh.size, mesh.shape["model"], mesh.device_ids[1].tolist()
    (8, 2, [2, 3])
    """

    _adds = (
        "axis_names",
        "axis_sizes",
        "axis_types",
        "size",
        "device_ids",
        "process_indices",
    )
    _is_text = True

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...]
    concrete: bool
    ids_are_positions: bool
    even_hosts: int | None
    device_kind: DeviceKind | None

    def __init__(
        self,
        axis_names: Iterable[str],
        axis_sizes: Iterable[SupportsIndex],
        axis_types: Iterable[object] = (),
        device_ids: npt.ArrayLike | None = None,
        process_indices: npt.ArrayLike | None = None,
        concrete: bool = False,
        device_kind: DeviceKind | None = None,
    ) -> None:
        # Bypass __setattr__, which raises because meshes are immutable.
        fields = self.__dict__
        names, sizes = _checked_axes(axis_names, axis_sizes)
        fields["axis_names"], fields["axis_sizes"] = names, sizes
        fields["axis_types"] = _checked_types(axis_types, names)
        fields["concrete"], fields["device_kind"] = concrete, device_kind
        # Default ids and processes are created when first needed: for 16 million
        # devices each of the two arrays takes 128 MiB.
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
            f"A MeshSpec cannot be changed; create another one to set its {name}."
        )

    def replace(self, **changes: Any) -> MeshSpec:
        """Returns a copy with some arguments changed, validated like a new MeshSpec."""
        # Don't create default ids and processes: a mesh may have millions of devices.
        ids = None
        processes: int | np.ndarray | None = self.even_hosts
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
            "device_kind": self.device_kind,
        }
        return MeshSpec(**fields | changes)

    @cached_property
    def device_ids(self) -> np.ndarray:
        """int64, in mesh shape: the id of the device at each position."""
        numbers = np.arange(self.size, dtype=np.int64).reshape(self.axis_sizes)
        numbers.flags.writeable = False
        return numbers

    @cached_property
    def process_indices(self) -> np.ndarray:
        """int64, in mesh shape: the process (host) of each device."""
        # If `even_hosts` is None, the constructor has already set this attribute.
        hosts = self.even_hosts or 1
        if hosts == 1:
            return np.broadcast_to(np.int64(0), self.axis_sizes)
        numbers = np.arange(self.size, dtype=np.int64)
        numbers //= self.size // hosts
        numbers.flags.writeable = False
        return numbers.reshape(self.axis_sizes)

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.axis_sizes)

    @cached_property
    def shape(self) -> Mapping[str, int]:
        """Axis name -> size, in mesh order."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Axis name -> position of the axis among all axes."""
        return {name: i for i, name in enumerate(self.axis_names)}

    def lane(self, axis: str) -> np.ndarray:
        """int64: coordinates 0, 1, … along one axis, broadcastable to mesh shape."""
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
        """The processes (hosts) that own devices of the mesh, in ascending order."""
        if self.even_hosts:
            hosts = range(self.even_hosts)
            # Return a range: a tuple of two million hosts would take 80 MiB.
            if len(hosts) > 1 << 16:
                return hosts
            return tuple(hosts)
        return tuple(np.unique(self.process_indices).tolist())

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [devices] each: positions sorted by device id, and the sorted ids."""
        flat = self.device_ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        return order, flat[order]

    def position(self, device_id: int) -> int:
        """The flat, row-major position of a device in the mesh.

        Raises:
            MeshError: if no device of the mesh has that id.
        """
        number = check_size(device_id, "A device id")
        # numpy cannot compare numbers beyond int64, which are not valid ids anyway.
        if 0 <= number < 1 << 62:
            if self.ids_are_positions:
                if number < self.size:
                    return number
            else:
                positions, ids = self._order
                index = int(np.searchsorted(ids, number))
                if index < len(ids) and ids[index] == number:
                    return int(positions[index])
        raise MeshError(
            f"No device {shown(number, 30)} in this mesh of"
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
        """Returns the sub-mesh of one process: the block that its devices fill.

        Follows `Mesh.local_mesh`.

        Raises:
            MeshError: if the process has no device in the mesh, or if its devices do
                not fill a block.
        """
        process = check_size(process, "A process index")
        if self.even_hosts == 1 and process == 0:
            return self
        if self.even_hosts:  # fast path: the Explorer calls this for each host
            per_host = self.size // self.even_hosts
            local = np.arange(0)
            if 0 <= process < self.even_hosts:
                local = np.arange(process * per_host, (process + 1) * per_host)
        else:
            local = np.flatnonzero(self.process_indices.reshape(-1) == process)
        if not local.size:
            raise MeshError(
                f"Process {shown(process)} has no device in this mesh."
                f" Processes here: {listed(self.processes)}."
            )
        # The devices fill a block if the smallest block around them has no others.
        coordinates = np.unravel_index(local, self.axis_sizes)
        sizes = tuple(int(i.max()) - int(i.min()) + 1 for i in coordinates)
        if math.prod(sizes) != local.size:
            raise MeshError(
                f"The {plural(local.size, 'device')} of process {process} do not form a"
                " contiguous block of the mesh: the smallest block around them is"
                f" {'×'.join(map(str, sizes))} and holds devices of other processes."
                " Order the mesh so that each process fills a block."
            )
        ids = self.device_ids.reshape(-1)[local].reshape(sizes)
        hosts = np.broadcast_to(np.int64(process), sizes)
        return self.replace(axis_sizes=sizes, device_ids=ids, process_indices=hosts)

    def require_axis(self, name: str) -> int:
        """Returns the size of an axis.

        Raises:
            MeshError: if the mesh has no such axis; the message suggests another name.
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
        # If both have default ids, don't create arrays of them to compare.
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


def _checked_axes(
    names: Iterable[str], sizes: Iterable[SupportsIndex]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names = limited(names, MAX_AXES, "The axes of a mesh", MeshError)
    sizes = limited(sizes, MAX_AXES, "The axis sizes of a mesh", MeshError)
    if len(names) != len(sizes) or len(names) > MAX_AXES:
        raise MeshError(
            f"A mesh has at most {MAX_AXES} axes and one size per name; got"
            f" {plural(len(names), 'name')} and {plural(len(sizes), 'size')}."
        )
    checked_sizes = []
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
        checked_sizes.append(size)
    if math.prod(checked_sizes) > MAX_DEVICES:
        raise MeshError(
            f"A mesh has at most {MAX_DEVICES:,} devices here;"
            f" {'×'.join(shown(s, 20) for s in checked_sizes)[:80]} is more. Make an axis"
            " smaller."
        )
    return tuple(map(str, names)), tuple(checked_sizes)


def _checked_types(types: Iterable[object], names: tuple[str, ...]) -> tuple[str, ...]:
    types = limited(types, MAX_AXES, "The axis types of a mesh", MeshError)
    if not types:
        return ("Auto",) * len(names)
    if len(types) != len(names):
        raise MeshError(
            f"A mesh needs one axis type per axis; got {plural(len(types), 'type')} for"
            f" {plural(len(names), 'axis', 'axes')}."
        )
    names_of_types = []
    for axis_type in types:
        # jax's AxisType members have a name; text may be in upper or lower case.
        name = str(getattr(axis_type, "name", axis_type)).capitalize()
        if name not in AXIS_TYPES:
            raise MeshError(
                f"An axis type is one of {listed(AXIS_TYPES, 'or')}; got"
                f" {shown(axis_type)}."
            )
        names_of_types.append(name)
    return tuple(names_of_types)


def _numbers(values: npt.ArrayLike, sizes: tuple[int, ...], noun: str) -> np.ndarray:
    """Validates one number >= 0 per mesh position. Returns read-only int64."""
    positions = math.prod(sizes)
    array = None
    # numpy raises for ragged lists and for numbers beyond int64.
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        if not isinstance(values, Sized) or len(values) <= positions:
            array = np.asarray(values)
    if array is None or not _are_counts(array, positions):
        raise MeshError(
            f"The {noun} are whole numbers, 0 or more, one for each of"
            f" {plural(positions, 'position')} of the mesh; got {shown(values)}."
        )
    array = array.astype(np.int64, copy=False).reshape(sizes)
    # A writable array is copied, since the caller may change it.
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def _are_counts(array: np.ndarray, positions: int) -> bool:
    """True if an array holds one int64 of 0 or more for each position."""
    if array.dtype.kind not in "iu" or array.size != positions:
        return False
    return int(array.min()) >= 0 and int(array.max()) <= np.iinfo(np.int64).max


def checked_ids(ids: npt.ArrayLike, sizes: tuple[int, ...]) -> np.ndarray:
    """Validates device ids, and returns them as read-only int64 in mesh shape.

    Raises:
        MeshError: for repeated ids, or if there isn't one valid id per position.
    """
    array = _numbers(ids, sizes, "device ids")
    flat = array.reshape(-1)
    # Sorting 16 million ids takes a second.
    if not ascending(flat):
        flat = np.sort(flat)
        repeated = flat[1:][flat[1:] == flat[:-1]]
        if len(repeated):
            raise MeshError(
                f"Each device is in a mesh once; {int(repeated[0])} is given twice."
            )
    return array


def ascending(values: np.ndarray) -> bool:
    """True if each value is larger than the previous value.

    >>> ascending(np.array([1, 4, 9])), ascending(np.array([1, 4, 4]))
    (True, False)
    """
    return bool((values[1:] > values[:-1]).all())


def _checked_processes(
    processes: npt.ArrayLike | None, sizes: tuple[int, ...]
) -> np.ndarray | int:
    """Process indices, or the number of hosts if they share devices evenly in order."""
    total = math.prod(sizes)
    if processes is None:
        return 1
    if np.isscalar(processes):
        count = check_size(processes, "The number of hosts")
        if count < 1 or total % count:
            divisors = [n for n in range(1, min(total, 512) + 1) if total % n == 0]
            raise MeshError(
                f"{plural(total, 'device')} cannot be shared evenly by"
                f" {shown(count, 30)} hosts. Numbers that work: {listed(divisors)}."
            )
        return count
    array = _numbers(processes, sizes, "process indices")
    # If hosts share the devices evenly in order, store only the number of hosts.
    hosts = int(array.flat[-1]) + 1
    if total % hosts == 0:
        by_host = array.reshape(hosts, -1)
        if (by_host == np.arange(hosts)[:, None]).all():
            return hosts
    return array


def make_mesh(
    axes: MeshLike | None = None,
    *,
    axis_types: AxisTypesLike | None = None,
    device_ids: npt.ArrayLike | None = None,
    processes: npt.ArrayLike | None = None,
    count_devices: Callable[[], int] | None = None,
    **sizes: int,
) -> MeshSpec:
    """Creates a MeshSpec from text, a mapping, pairs, or keywords.

    Args:
        axes: `"data=4, model=2"`, `{"data": 4}` or `[("data", 4)]`; None if `sizes` has
            them.
        axis_types: one type for all axes, or one per axis; Auto by default.
        device_ids: ids in mesh order, in an array of any shape; by default 0, 1, 2, …
        processes: the number of hosts, which share the devices evenly and in order, or
            the process index of each device, in an array of any shape; by default one
            host.
        count_devices: returns the number of devices, from which a size of -1 is
            computed. With `device_ids`, their number is used and this function is not
            called.
        **sizes: axes as keywords, instead of `axes`.

    Raises:
        MeshError: for invalid axes, types, ids or processes.

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
    # MeshSpec checks the names.
    names, lengths = zip(*pairs, strict=True)
    if device_ids is not None:
        count_devices = lambda: int(np.size(device_ids))  # noqa: E731
    lengths = filled_sizes(lengths, count_devices)
    type_per_axis: Iterable[object] = ()
    if isinstance(axis_types, Iterable) and not isinstance(axis_types, str):
        type_per_axis = axis_types
    elif axis_types is not None:
        type_per_axis = (axis_types,) * len(names)
    # Given ids mean particular devices. The default ids 0, 1, 2, … don't.
    concrete = device_ids is not None
    return MeshSpec(names, lengths, type_per_axis, device_ids, processes, concrete)


def filled_sizes(
    sizes: Sequence[int], count_devices: Callable[[], int] | None
) -> tuple[int, ...]:
    """Replaces a size of -1 by the size that uses all devices.

    Args:
        sizes: one size per axis; at most one may be -1.
        count_devices: returns the number of devices; called if a size is -1.

    Raises:
        MeshError: if several sizes are -1, if `count_devices` is None, or if the other
            sizes do not divide the number of devices.

    >>> filled_sizes((-1, 2), lambda: 8)
    (4, 2)
    """
    fixed = [n for n in sizes if type(n) is not int or n != -1]
    if len(fixed) == len(sizes):
        return tuple(sizes)
    if len(sizes) - len(fixed) > 1:
        raise MeshError(
            "One axis of a mesh may have the size -1, for all remaining devices; got"
            f" {shown(tuple(sizes))}."
        )
    if count_devices is None:
        raise MeshError(
            "The size -1 stands for all remaining devices, but the number of devices"
            " is unknown. Write the size."
        )
    used = math.prod(check_size(n, "The size of an axis") for n in fixed)
    total = count_devices()
    if used < 1 or total % used:
        raise MeshError(
            f"{plural(total, 'device')} cannot be shared evenly by axes of"
            f" {'×'.join(map(str, fixed))}, so no size is left for -1."
        )
    return tuple(total // used if n == -1 else n for n in sizes)


_AXIS = re.compile(
    rf"\s*({NAME})(?:\s*[=:]\s*|\s+)([+-]?{DIGITS})(?:\s*[,;]|\s|$)", re.ASCII
)


def _parsed(text: str) -> list[tuple[str, int]]:
    """Parses `(name, size)` pairs from text, without evaluating anything."""
    pairs = []
    for match in scan(_AXIS, text, MeshError, "an axis and its size, as data=4,"):
        pairs.append((name_in(match[1]), int(match[2])))
    return pairs


def _pairs(axes: object) -> list[tuple[str, int]]:
    if isinstance(axes, (tuple, list)):
        if all(isinstance(p, (tuple, list)) and len(p) == 2 for p in axes):
            return [(name, size) for name, size in axes]
    raise MeshError(
        f"Cannot read a mesh from {shown(axes)}. Give text such as 'data=4, model=2',"
        " a mapping of names to sizes, or a jax Mesh."
    )
