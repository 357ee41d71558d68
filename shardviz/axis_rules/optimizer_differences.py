"""differences(): optimizer arrays that are stored differently from their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardviz.axis_rules.requests import Request
from shardviz.base.display import Fact

_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}


@dataclass(frozen=True)
class Difference(Fact):
    """An optimizer array that is stored differently from its parameter.

    Attributes:
        row: the optimizer's array.
        parameter: the array's parameter.
        kind: `"lost"` if the array is split less than the parameter; `"unknown"` if
            nothing determines how the array is split; `"otherwise"` if the array is
            split over other or more mesh axes; `"dtype"` if its dtype needs more
            memory; or `"few names"` if the array and the parameter are abstract and
            have fewer names than dimensions. If layers are stacked, the real parameter
            then has other dimensions split.
        bytes_per_device: additional bytes per device; negative if the difference saves
            memory.

    >>> from shardviz.axis_rules.audit import audit
    >>> tree = {"params": {"w": ((512, 8), "embed mlp")},
    ...         "opt_state": {"mu": {"w": ((512, 8), None)}}}
    >>> one, = audit(tree, [("embed", "data")], "data=4").differences
    >>> one.role, one.kind, one.bytes_per_device
    ('mu', 'lost', 12288)
    """

    row: Request
    parameter: Request
    kind: str
    bytes_per_device: int = 0

    @property
    def path(self) -> str:
        """The path of the optimizer's array."""
        return self.row.path

    @property
    def role(self) -> str:
        """The optimizer's name for the array, such as `mu`."""
        return role(self.row)


def differences(rows: Iterable[Request]) -> tuple[Difference, ...]:
    """Compares each optimizer array with its parameter, in the order of `rows`."""
    rows = tuple(rows)
    by_path = {row.path: row for row in rows}
    found_differences: list[Difference] = []
    for row in rows:
        parameter = by_path.get(row.partner or "")
        if parameter is None or row.problem or parameter.problem:
            continue
        for kind, cost in _found(row, parameter):
            found_differences.append(Difference(row, parameter, kind, cost))
    return tuple(found_differences)


def role(row: Request) -> str:
    """Returns the optimizer's name for an array: `mu` for `opt_state/0/mu/w`.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> role(Request(ArraySpec("o/0/nu/a/w", (8,)), None, None, None, None, partner="p/a/w"))
    'nu'
    """
    segments, parameter_segments = row.path.split("/"), (row.partner or "").split("/")
    flat = "_".join(parameter_segments)
    # Keras replaces `/` in the parameter's path by `_`.
    if segments[-1].startswith(flat + "_"):
        return segments[-1][len(flat) + 1 :]
    # In sm3, segments can follow the parameter's path.
    for end in range(len(segments), 0, -1):
        common = 0
        while common < min(end, len(parameter_segments)):
            if segments[end - 1 - common] != parameter_segments[-1 - common]:
                break
            common += 1
        if 0 < common < end:
            return segments[end - common - 1]
    return segments[-1]


def _found(row: Request, parameter: Request) -> Iterator[tuple[str, int]]:
    """Yields (kind of difference, cost in bytes per device)."""
    layout, parameter_layout = row.layout, parameter.layout
    if parameter.spec is None or parameter_layout is None:
        return
    if layout is None:
        if parameter_layout.num_blocks > 1:
            yield "unknown", 0
        return
    # Skip arrays whose sizes are not the parameter's, and placeholders of one element.
    dimensions = _kept_dimensions(row.shape, parameter.shape)
    if dimensions is None or max(row.shape, default=1) <= 1:
        return
    dims, parts_wanted, lost = parameter_layout.spec, 1, False
    for dim, parameter_dim in enumerate(dimensions):
        axes = ()
        if dims is not None:
            axes = dims.padded(parameter_layout.rank)[parameter_dim]
        parts = math.prod(parameter_layout.mesh.shape[axis] for axis in axes)
        # An indivisible dimension could not be split like the parameter's.
        if row.shape[dim] % parts == 0:
            parts_wanted *= parts
            row_axes = ()
            if row.spec is not None:
                row_axes = row.spec.padded(row.array.rank)[dim]
            lost = lost or (parts > 1 and not set(axes) <= set(row_axes))
    cost = layout.bytes_per_device - -(-row.array.bytes // parts_wanted)
    if layout.num_blocks < parts_wanted:
        yield "lost", cost
    elif row.shape == parameter.shape and (lost or layout.num_blocks > parts_wanted):
        yield "otherwise", cost
    elif row.few_names == parameter.few_names == "abstract":
        yield "few names", 0
    bits, fewer = _BITS.get(row.dtype, 0), _BITS.get(parameter.dtype, 64)
    if bits > fewer:
        yield "dtype", layout.bytes_per_device * (bits - fewer) // bits


def _kept_dimensions(shape: tuple[int, ...], full: tuple[int, ...]) -> list[int] | None:
    """Maps a factored array's dimensions to the parameter's; None if sizes differ.

    >>> _kept_dimensions((4, 16), (4, 8, 16)), _kept_dimensions((5,), (4, 8))
    ([0, 2], None)
    """
    dimensions: list[int] = []
    begin = 0
    for size in shape:
        if size not in full[begin:]:
            return None
        dimensions.append(full.index(size, begin))
        begin = dimensions[-1] + 1
    return dimensions
