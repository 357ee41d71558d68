"""Broken: what a project expects of a program and is not so, as codes and fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardviz.core.display import Fact
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.fit import Fit
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import Request
from shardviz.core.program.plan_values import (
    PlannedOp,
    array_bytes,
    bytes_per_device,
    group_size,
)
from shardviz.core.program.report import Collective


class HeldArray(NamedTuple):
    """One array of what is checked.

    Attributes:
        name: its name.
        bytes: its bytes, of all of it.
        held: its bytes on each device.
        is_split: whether it is split over any axis of more than one device.
        spec: its spec, where that is all that is known of it.
        request: what was requested for it, where that is known.
    """

    name: str
    bytes: int
    held: int
    is_split: bool
    spec: Spec | None = None
    request: Request | None = None


def requested_array(row: Request) -> HeldArray:
    """An array of a program or an audit."""
    is_split = row.layout is not None and row.layout.num_blocks > 1
    held = row.bytes_per_device or 0
    return HeldArray(row.path, row.array.bytes, held, is_split, row.spec, row)


def compiled_array(name: str, layout: Layout) -> HeldArray:
    """An argument of a compiled program."""
    size = size_in_bytes(math.prod(layout.shape), layout.dtype)
    held, is_split = layout.bytes_per_device, layout.num_blocks > 1
    return HeldArray(name, size, held, is_split, layout.spec)


def planned_array(op: PlannedOp, mesh: MeshSpec) -> HeldArray:
    """An argument of a plan."""
    size = array_bytes(op.shape, op.dtype)
    is_split = group_size(op.spec.axes, mesh) > 1
    return HeldArray(op.name, size, bytes_per_device(op, mesh), is_split, op.spec)


@dataclass(frozen=True)
class Made(Fact):
    """Who made the collectives that are counted.

    Attributes:
        stage: `"propagated"` (an estimate), `"partitioned"` or `"compiled"`.
        target: what they were compiled for.
    """

    stage: str
    target: str = ""


@dataclass(frozen=True)
class Counted(Fact):
    """What a number of bytes on each device is of.

    Attributes:
        code: `"arrays"` of an audit, `"arguments"` of a program, `"ends"` (arguments
            and results of a plan) or `"compiled"`.
        target: what it was compiled for.
    """

    code: str
    target: str = ""


@dataclass(frozen=True)
class Broken(Fact):
    """What is expected and not so.

    Attributes:
        code: `"collectives"` (there are some), `"too much"` (they take more than a
            limit), `"memory"` (it takes more than a limit), `"too large"` (it does not
            fit), `"not split"`, `"differs"` (from a lock) or `"nothing"` (there is
            nothing to check).
        name: what is checked.
        collectives: those that should not be there, or take too much.
        kind: their kind; `""` for any.
        over: the mesh axes that were named.
        made: who made them.
        requests: what was requested for each argument, where that is known.
        limit: the bytes that are allowed.
        per: what the limit is for, a kind of collective, `"step"` or `"collective"`.
        held: bytes on each device.
        counted: what these are of.
        fit: whether they fit.
        arrays: the arrays that it is about, of a share those that are not split.
        share: the share that should be split.
        total: the bytes of all arrays.
        differences: how it differs from the lock.
        lock: the name of the lock.
        error: of a program that has one.
    """

    code: str
    name: str
    collectives: tuple[Collective, ...] = ()
    kind: str = ""
    over: tuple[str, ...] = ()
    made: Made | None = None
    requests: tuple[Request, ...] = ()
    limit: int = 0
    per: str = ""
    held: int = 0
    counted: Counted | None = None
    fit: Fit | None = None
    arrays: tuple[HeldArray, ...] = ()
    share: float = 0.0
    total: int = 0
    differences: Any = None
    lock: str = ""
    error: Any = None
