"""differences(): how optimizer arrays are held otherwise than their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardviz.axis_rules.requests import Request
from shardviz.base.display import Fact

_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}


@dataclass(frozen=True)
class Difference(Fact):
    """How an array of the optimizer is held otherwise than its parameter.

    Attributes:
        row: the array.
        parameter: its parameter.
        kind: `"lost"` where it is split less than the parameter, `"unknown"` where
            nothing says how it is split, `"otherwise"` where it is split over other or
            more axes, `"dtype"` where its type costs memory, `"few names"` where both
            are abstract and have fewer names than dimensions: if layers are stacked,
            the parameter is made with other dimensions split.
        bytes_per_device: what it costs on each device, in bytes; negative where it
            saves some.

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
        """The path of the array."""
        return self.row.path

    @property
    def role(self) -> str:
        """What the optimizer calls it, such as `mu`."""
        return role(self.row)


def differences(rows: Iterable[Request]) -> tuple[Difference, ...]:
    """What differs between an optimizer's arrays and their parameters, in order."""
    rows = tuple(rows)
    by_path = {row.path: row for row in rows}
    made: list[Difference] = []
    for row in rows:
        parameter = by_path.get(row.partner or "")
        if parameter is None or row.problem or parameter.problem:
            continue
        for kind, cost in _found(row, parameter):
            made.append(Difference(row, parameter, kind, cost))
    return tuple(made)


def role(row: Request) -> str:
    """What the optimizer calls an array: `mu` of `opt_state/0/mu/w`, beside `params/w`.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> role(Request(ArraySpec("o/0/nu/a/w", (8,)), None, None, None, None, partner="p/a/w"))
    'nu'
    """
    own, other = row.path.split("/"), (row.partner or "").split("/")
    flat = "_".join(other)
    # As Keras names it.
    if own[-1].startswith(flat + "_"):
        return own[-1][len(flat) + 1 :]
    # sm3 has more parts below a parameter.
    for end in range(len(own), 0, -1):
        common = 0
        while common < min(end, len(other)):
            if own[end - 1 - common] != other[-1 - common]:
                break
            common += 1
        if 0 < common < end:
            return own[end - common - 1]
    return own[-1]


def _found(row: Request, parameter: Request) -> Iterator[tuple[str, int]]:
    """The kinds of differences, and the bytes that each costs."""
    mine, theirs = row.layout, parameter.layout
    if parameter.spec is None or theirs is None:
        return
    if mine is None:
        if theirs.num_blocks > 1:
            yield "unknown", 0
        return
    # An array of other sizes is compared with nothing, nor is a placeholder of one
    # element.
    kept = _kept_dimensions(row.shape, parameter.shape)
    if kept is None or max(row.shape, default=1) <= 1:
        return
    dims, wanted, lost = theirs.spec, 1, False
    for dim, of in enumerate(kept):
        axes = ()
        if dims is not None:
            axes = dims.padded(theirs.rank)[of]
        parts = math.prod(theirs.mesh.shape[axis] for axis in axes)
        # What does not divide could not be split as the parameter is.
        if row.shape[dim] % parts == 0:
            wanted *= parts
            own = ()
            if row.spec is not None:
                own = row.spec.padded(row.array.rank)[dim]
            lost = lost or (parts > 1 and not set(axes) <= set(own))
    cost = mine.bytes_per_device - -(-row.array.bytes // wanted)
    if mine.num_blocks < wanted:
        yield "lost", cost
    elif row.shape == parameter.shape and (lost or mine.num_blocks > wanted):
        yield "otherwise", cost
    elif row.few_names == parameter.few_names == "abstract":
        yield "few names", 0
    bits, fewer = _BITS.get(row.dtype, 0), _BITS.get(parameter.dtype, 64)
    if bits > fewer:
        yield "dtype", mine.bytes_per_device * (bits - fewer) // bits


def _kept_dimensions(shape: tuple[int, ...], full: tuple[int, ...]) -> list[int] | None:
    """Which dimensions of the parameter a factored array has; None where it has others.

    >>> _kept_dimensions((4, 16), (4, 8, 16)), _kept_dimensions((5,), (4, 8))
    ([0, 2], None)
    """
    kept: list[int] = []
    begin = 0
    for size in shape:
        if size not in full[begin:]:
            return None
        kept.append(full.index(size, begin))
        begin = kept[-1] + 1
    return kept
