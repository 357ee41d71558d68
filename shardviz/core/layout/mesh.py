"""MeshSpec: named axes over devices, with no device needed.

A mesh is an n-dimensional grid of device ids. Only its order counts: a device's id says nothing
about its position (JAX reorders devices on TPU, and ids of other processes start anywhere).
Follows `jax.sharding.Mesh` and `AbstractMesh`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import MeshError
from shardviz.core.format import listed, nearest, plural, shown, suggestion
from shardviz.core.layout.parse import check_name, check_size, flat_numbers, limited, quoted

AXIS_TYPES = ("Auto", "Explicit", "Manual")
MAX_AXES = 32
_MANY = 1 << 16
MAX_DEVICES = 1 << 24  # 16.8 million: arrays of ids stay under 128 MiB


def checked_axes(names: Any, sizes: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names and sizes of axes, if a mesh can have them.

    Raises:
        MeshError: otherwise.
    """
    names = tuple(limited(names, MAX_AXES, "The names of axes", MeshError))
    sizes = tuple(limited(sizes, MAX_AXES, "The sizes of axes", MeshError))
    if len(names) != len(sizes):
        raise MeshError(
            f"A mesh needs one size a name; got {plural(len(names), 'name')} and"
            f" {plural(len(sizes), 'size')}."
        )
    for name in names:
        check_name(name, "a mesh axis")
    twice = [n for i, n in enumerate(names) if n in names[:i]]
    if twice:
        raise MeshError(f"Each mesh axis has its own name; {shown(twice[0])} is given twice.")
    sizes = tuple(
        check_size(s, f"The size of axis {shown(n)}") for n, s in zip(names, sizes, strict=True)
    )
    for name, size in zip(names, sizes, strict=True):
        if size < 1:
            raise MeshError(
                f"The size of axis {shown(name)} must be 1 or more; got {shown(size, 30)}."
            )
    if math.prod(sizes) > MAX_DEVICES:
        raise MeshError(
            f"A mesh has at most {MAX_DEVICES:,} devices here;"
            f" {'×'.join(shown(s, 20) for s in sizes)[:80]} is more. Make an axis smaller."
        )
    return names, sizes


def checked_types(types: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """One axis type per axis, Auto by default.

    Raises:
        MeshError: otherwise.
    """
    types = tuple(limited(types, MAX_AXES, "The types of axes", MeshError)) or ("Auto",) * len(
        names
    )
    if len(types) != len(names):
        raise MeshError(
            f"A mesh needs one axis type an axis; got {plural(len(types), 'type')} for"
            f" {plural(len(names), 'axis', 'axes')}."
        )
    return tuple(_axis_type(t) for t in types)


def _axis_type(value: object) -> str:
    # jax's AxisType members have a name; text may come in any case.
    name = getattr(value, "name", value)
    text = name.capitalize() if isinstance(name, str) else ""
    if text not in AXIS_TYPES:
        near = nearest(text, AXIS_TYPES)
        hint = f" Did you mean {near}?" if near else ""
        raise MeshError(
            f"An axis type is one of {listed(AXIS_TYPES, 'or')}; got {shown(value)}.{hint}"
        )
    return text


def spread_types(types: Any, count: int) -> tuple[str, ...]:
    """One type for all axes, or one per axis."""
    if types is None:
        return ()
    one = isinstance(types, str) or getattr(types, "ndim", 1) == 0
    if one or not isinstance(types, Iterable):
        return (types,) * count
    return tuple(islice(types, MAX_AXES + 1))  # it may be endless


def reshaped(values: Any, sizes: tuple[int, ...], what: str) -> np.ndarray | None:
    """One value per position, in mesh shape.

    Raises:
        MeshError: otherwise.
    """
    if values is None:
        return None
    wanted = math.prod(sizes)
    flat = flat_numbers(values, wanted, f"The {what}", MeshError)
    array = np.asarray(flat)
    if isinstance(flat, (list, range)):
        array.flags.writeable = False  # made here: it needs no copy
    if array.size != wanted:
        given = f"{array.size:,}" if array.size <= wanted else f"more than {wanted:,}"
        raise MeshError(
            f"The mesh has {plural(wanted, 'position')} and {given} {what} were"
            " given. Give one for each position."
        )
    return array.reshape(sizes)


def checked_hosts(hosts: Any, sizes: tuple[int, ...]) -> int:
    """How many hosts share the devices evenly.

    Raises:
        MeshError: where they cannot.
    """
    count, total = check_size(hosts, "The number of hosts"), math.prod(sizes)
    if count < 1 or total % count:
        fits = [n for n in range(1, min(total, 512) + 1) if total % n == 0]
        raise MeshError(
            f"{plural(total, 'device')} cannot be shared evenly by {shown(count, 30)} hosts."
            f" Numbers that work: {listed(fits)}."
        )
    return count


def _whole_numbers(array: Any, sizes: tuple[int, ...], what: str) -> np.ndarray:
    """The caller's own array, checked."""
    array = np.asarray(array)
    if array.shape != sizes:
        raise MeshError(f"The {what} have shape {array.shape}; the mesh has {sizes}.")
    if array.dtype.kind not in "iu":
        raise MeshError(f"The {what} must be whole numbers; got {array.dtype}.")
    return array.astype(np.int64) if array.dtype.kind == "u" else array  # the largest are below 0


def _kept(array: np.ndarray) -> np.ndarray:
    """As int64, read-only; a copy where the caller may change theirs."""
    if array.dtype != np.int64 or array.flags.writeable:
        array = array.astype(np.int64)
        array.flags.writeable = False
    return array


def checked_ids(ids: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """Device ids in mesh shape, read-only and each once.

    Raises:
        MeshError: otherwise.
    """
    array = _whole_numbers(ids, sizes, "device ids")
    if array.size and array.min() < 0:
        raise MeshError(f"A device id is 0 or more; got {int(array.min())}.")
    if not _each_once(array.reshape(-1)):
        flat = np.sort(array, axis=None)
        twice = flat[1:][flat[1:] == flat[:-1]]
        raise MeshError(f"Each device is in a mesh once; {int(twice[0])} is given twice.")
    return _kept(array)


def _each_once(ids: np.ndarray) -> bool:
    """Whether no id, each 0 or more, occurs twice. Sorting 16 million takes more than a second."""
    if ascending(ids):
        return True
    largest = int(ids.max())
    if largest > 8 * ids.size:
        return len(np.unique(ids)) == len(ids)
    seen = np.zeros(largest + 1, bool)
    seen[ids] = True
    return int(np.count_nonzero(seen)) == len(ids)


def ascending(values: np.ndarray, equal: bool = False) -> bool:
    """Whether each value is larger than the one before; of millions in chunks, up to the first.

    Args:
        values: [n].
        equal: whether a value may equal the one before.

    >>> ascending(np.array([1, 4, 9])), ascending(np.array([1, 4, 4]))
    (True, False)
    """
    compare = np.greater_equal if equal else np.greater
    chunks = (values[i : i + _MANY + 1] for i in range(0, len(values), _MANY))
    return all(bool(compare(some[1:], some[:-1]).all()) for some in chunks)


def _not_given() -> Any:
    """A default that leaves no attribute on the class, so that `__getattr__` is asked."""
    return None


def checked_processes(processes: Any, sizes: tuple[int, ...]) -> np.ndarray | int:
    """The process of each device, read-only, or how many hosts share them evenly and in order.

    Raises:
        MeshError: otherwise.
    """
    if processes is None:
        return 1
    if np.isscalar(processes):
        return checked_hosts(processes, sizes)
    array = _whole_numbers(processes, sizes, "process indices")
    if array.size and array.min() < 0:
        raise MeshError(f"A process index is 0 or more; got {int(array.min())}.")
    # A copy of millions takes longer than to see that one number says the same.
    return _even_hosts(array.reshape(-1)) or _kept(array)


def _even_hosts(processes: np.ndarray) -> int | None:
    """How many hosts share devices evenly and in order, counted from 0; None where they do not."""
    hosts = int(processes[-1]) + 1
    each, left = divmod(len(processes), hosts)
    if left or not ascending(processes, equal=True):
        return None
    ends = processes.reshape(hosts, each)[:, [0, -1]]
    return hosts if (ends == np.arange(hosts)[:, None]).all() else None


@dataclass(frozen=True, eq=False, repr=False)
class MeshSpec(Displayed):
    """Named axes over a grid of devices; build one with `shardviz.mesh`.

    Attributes:
        axis_names: one name an axis, major to minor.
        axis_sizes: one size an axis.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"` an axis.
        device_ids: int64, in mesh shape; the device at each position.
        process_indices: int64, in mesh shape; the process (host) of each device. Given as a number,
            it is how many hosts share the devices evenly and in order.
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
    device_ids: np.ndarray = field(default_factory=_not_given)
    process_indices: np.ndarray = field(default_factory=_not_given)
    concrete: bool = False

    def __post_init__(self) -> None:
        names, sizes = checked_axes(self.axis_names, self.axis_sizes)
        put = lambda field, value: object.__setattr__(self, field, value)  # noqa: E731
        put("axis_names", names)
        put("axis_sizes", sizes)
        put("_typed", bool(self.axis_types))
        put("axis_types", checked_types(self.axis_types, names))
        put("_plain", self.device_ids is None)
        if self.device_ids is None:
            object.__delattr__(self, "device_ids")
        else:
            put("device_ids", checked_ids(self.device_ids, sizes))
        processes = checked_processes(self.process_indices, sizes)
        if isinstance(processes, int):
            put("_hosts", processes)
            object.__delattr__(self, "process_indices")
        else:
            put("_hosts", None)
            put("process_indices", processes)

    def __getattr__(self, name: str) -> Any:
        # A number for each of 16 million devices takes 128 MiB, and is seldom needed.
        if name not in ("device_ids", "process_indices") or "_hosts" not in self.__dict__:
            raise AttributeError(f"A MeshSpec has no {name}.")
        hosts = self.even_hosts if name == "process_indices" else None
        if hosts == 1:
            return np.broadcast_to(np.int64(0), self.axis_sizes)
        numbers = np.arange(self.size, dtype=np.int64)
        if hosts:
            numbers //= self.size // hosts
        found = numbers.reshape(self.axis_sizes)
        found.flags.writeable = False
        object.__setattr__(self, name, found)
        return found

    @property
    def has_chosen_types(self) -> bool:
        """Whether the types of the axes were chosen, and are not those by default."""
        return self._typed  # type: ignore[attr-defined]

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
    def processes(self) -> Sequence[int]:
        """The processes (hosts) that own devices here, in ascending order.

        A tuple; a range where there are a million that are numbered without gaps.
        """
        if self.even_hosts:
            return _numbers_up_to(self.even_hosts)
        held = self.process_indices.ravel()
        largest = int(held.max())
        if largest > 8 * held.size:
            return tuple(np.unique(held).tolist())
        seen = np.zeros(largest + 1, bool)
        seen[held] = True  # no sort: 16 million in 0.1 s
        return _numbers_up_to(len(seen)) if seen.all() else tuple(np.flatnonzero(seen).tolist())

    @property
    def even_hosts(self) -> int | None:
        """How many processes, counted from 0, share the devices evenly and in order.

        None where each device has a process of its own choice.
        """
        return self._hosts  # type: ignore[attr-defined]

    @property
    def ids_are_positions(self) -> bool:
        """Whether device `i` is at flat position `i`, as by default."""
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
        elif self.size > _MANY:  # a dict of 16 million takes gigabytes
            found = np.flatnonzero(self.device_ids.reshape(-1) == wanted)
            if len(found):
                return int(found[0])
        elif wanted in self._position_of:
            return self._position_of[wanted]
        raise MeshError(
            f"No device {shown(wanted, 30)} in this mesh of {plural(self.size, 'device')}."
        )

    def coordinates(self, device_id: int) -> tuple[int, ...]:
        """The coordinates of a device: one index per axis."""
        flat, coords = self.position(device_id), []
        for size in reversed(self.axis_sizes):
            flat, index = divmod(flat, size)
            coords.append(index)
        return tuple(reversed(coords))

    def local(self, process: int) -> MeshSpec:
        """The sub-mesh of one process: the smallest block of the mesh with all its devices.

        Follows `Mesh.local_mesh`.

        Raises:
            MeshError: if the process has no device here, or its devices do not fill a block.
        """
        process = check_size(process, "A process index")
        if self.even_hosts == 1 and process == 0:
            return self  # all devices
        own = self._positions_of(process)
        if not own.size:
            raise MeshError(
                f"Process {shown(process)} has no device in this mesh."
                f" Processes here: {listed(self.processes)}."
            )
        lines = np.unravel_index(own, self.axis_sizes)
        sizes = tuple(int(i.max()) - int(i.min()) + 1 for i in lines)
        if math.prod(sizes) != own.size:
            raise MeshError(
                f"The {plural(own.size, 'device')} of process {process} form no contiguous"
                f" block of the mesh: the smallest block around them is"
                f" {'×'.join(map(str, sizes))} and holds devices of other"
                " processes. Order the mesh so that each process fills a block."
            )
        ids = own if self.ids_are_positions else self.device_ids.reshape(-1)[own]
        hosts = np.broadcast_to(np.int64(process), sizes)
        return MeshSpec(
            self.axis_names, sizes, self.axis_types, ids.reshape(sizes), hosts, self.concrete
        )

    def _positions_of(self, process: int) -> np.ndarray:
        """The flat positions of a process's devices; no search where hosts follow each other."""
        if self.even_hosts:
            each = self.size // self.even_hosts
            first = process * each if 0 <= process < self.even_hosts else self.size
            return np.arange(first, min(first + each, self.size))
        held = self.process_indices.reshape(-1)
        if not self._hosts_in_order:
            return np.flatnonzero(held == process)
        return np.arange(*np.searchsorted(held, (process, process + 1)))

    @cached_property
    def _hosts_in_order(self) -> bool:
        return ascending(self.process_indices.reshape(-1), equal=True)

    def require_axis(self, name: str) -> int:
        """The size of an axis.

        Raises:
            MeshError: if the mesh has no such axis, with the nearest name.
        """
        if isinstance(name, str) and name in self.shape:
            return self.shape[name]
        raise MeshError(f"The mesh has no axis {shown(name)}.{suggestion(name, self.axis_names)}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshSpec):
            return NotImplemented
        return self is other or (
            self._key == other._key
            # Two arrays of 16 million are not compared, nor made, where both are the default.
            and (
                (self.ids_are_positions and other.ids_are_positions)
                or np.array_equal(self.device_ids, other.device_ids)
            )
            and self.even_hosts == other.even_hosts
            and (
                self.even_hosts is not None
                or np.array_equal(self.process_indices, other.process_indices)
            )
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


def _numbers_up_to(count: int) -> Sequence[int]:
    return range(count) if count > _MANY else tuple(range(count))


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
        processes if np.isscalar(processes) else reshaped(processes, lengths, "process indices"),  # type: ignore[arg-type]
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
    if not re.fullmatch(r"[+-]?[0-9]+", digits):
        raise MeshError(
            f"The size of axis {shown(name)} must be a whole number; got {shown(text)}."
            " Write it as data=4."
        )
    return int(digits)


def _pairs(axes: Any) -> list[tuple[Any, Any]]:
    if isinstance(axes, str):
        return list(parse_mesh_text(axes))
    if isinstance(axes, (Mapping, Sequence)) and not isinstance(axes, (bytes, bytearray)):
        pairs = limited(axes, MAX_AXES, "The axes of a mesh", MeshError)
        pairs = [(name, axes[name]) for name in pairs] if isinstance(axes, Mapping) else pairs
        if all(isinstance(p, (tuple, list)) and len(p) == 2 for p in pairs):
            return [(name, size) for name, size in pairs]
    raise MeshError(
        f"Cannot read a mesh from {shown(axes)}. Give text such as 'data=4, model=2',"
        " a mapping of names to sizes, or a jax Mesh."
    )
