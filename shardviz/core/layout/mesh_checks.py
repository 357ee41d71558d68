"""The parts of a mesh, checked before they become one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from shardviz.core.errors import MeshError, listed, nearest, plural, shown
from shardviz.core.layout.checks import check_name, check_size

AXIS_TYPES = ("Auto", "Explicit", "Manual")
MAX_AXES = 32
MAX_DEVICES = 1 << 24  # 16.8 million: arrays of ids stay under 128 MiB


def checked_axes(names: Any, sizes: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names and sizes of axes, if a mesh can have them.

    Raises:
        MeshError: otherwise.
    """
    names, sizes = tuple(names), tuple(sizes)
    if len(names) != len(sizes):
        raise MeshError(
            f"A mesh needs one size a name; got {plural(len(names), 'name')} and"
            f" {plural(len(sizes), 'size')}."
        )
    if len(names) > MAX_AXES:
        raise MeshError(f"A mesh has at most {MAX_AXES} axes; got {len(names)}.")
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
    """One axis type an axis, Auto where none is given.

    Raises:
        MeshError: otherwise.
    """
    types = tuple(types) or ("Auto",) * len(names)
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
    """One type for every axis, or one each."""
    if types is None:
        return ()
    if isinstance(types, str) or not isinstance(types, Iterable):
        return (types,) * count
    return tuple(islice(types, MAX_AXES + 1))  # it may be endless


def reshaped(values: Any, sizes: tuple[int, ...], what: str) -> np.ndarray | None:
    """One value a position, in mesh shape.

    Raises:
        MeshError: otherwise.
    """
    if values is None:
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        raise MeshError(f"The {what} must be whole numbers in one regular array.") from None
    if array.size != math.prod(sizes):
        raise MeshError(
            f"The mesh has {plural(math.prod(sizes), 'position')} and {array.size:,} {what} were"
            " given. Give one for each position."
        )
    return array.reshape(sizes)


def spread_processes(processes: Any, sizes: tuple[int, ...]) -> np.ndarray | None:
    """The process of each device, from how many hosts share them evenly or from the indices.

    Raises:
        MeshError: otherwise.
    """
    if processes is None or not np.isscalar(processes):
        return reshaped(processes, sizes, "process indices")
    count, total = check_size(processes, "The number of hosts"), math.prod(sizes)
    if count < 1 or total % count:
        fits = [n for n in range(1, min(total, 512) + 1) if total % n == 0]
        raise MeshError(
            f"{plural(total, 'device')} cannot be shared evenly by {shown(count, 30)} hosts."
            f" Numbers that work: {listed(fits)}."
        )
    return (np.arange(total) // (total // count)).reshape(sizes)


def _whole(array: np.ndarray, sizes: tuple[int, ...], what: str) -> np.ndarray:
    array = np.asarray(array)
    if array.shape != sizes:
        raise MeshError(f"The {what} have shape {array.shape}; the mesh has {sizes}.")
    if array.dtype.kind not in "iu":
        raise MeshError(f"The {what} must be whole numbers; got {array.dtype}.")
    return array.astype(np.int64)  # a copy: the caller's array stays the caller's


def checked_ids(ids: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """Device ids in mesh shape, read-only and each once; 0, 1, 2, … where none are given.

    Raises:
        MeshError: otherwise.
    """
    if ids is None:
        array = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    else:
        array = _whole(ids, sizes, "device ids")
        flat = np.sort(array, axis=None)
        twice = flat[1:][flat[1:] == flat[:-1]]
        if twice.size:
            raise MeshError(f"Each device stands in a mesh once; {int(twice[0])} is given twice.")
        if flat.size and flat[0] < 0:
            raise MeshError(f"A device id is 0 or more; got {int(flat[0])}.")
    array.flags.writeable = False
    return array


def checked_processes(processes: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """The process of each device, read-only; all of process 0 where none are given.

    Raises:
        MeshError: otherwise.
    """
    if processes is None:
        return np.broadcast_to(np.int64(0), sizes)  # one number, however many devices
    array = _whole(processes, sizes, "process indices")
    if array.size and array.min() < 0:
        raise MeshError(f"A process index is 0 or more; got {int(array.min())}.")
    array.flags.writeable = False
    return array
