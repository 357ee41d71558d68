"""Why the planner inserts a collective, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.layout.spec import Spec
from shardviz.core.program.propagation.estimate.walk import Site
from shardviz.core.program.propagation.planned import PlannedOp

CONSTRAINTS = ("reshard", "sharding_constraint")
_REDUCERS = {
    "add": "sums",
    "maximum": "takes the maximum",
    "minimum": "takes the minimum",
    "multiply": "multiplies",
    "and": "takes the logical and",
    "or": "takes the logical or",
}


@dataclass(frozen=True)
class Served:
    """What a collective stands between.

    Attributes:
        made: the name of the value that it moves.
        before: that value's sharding.
        after: the sharding in which it is used.
        user: the name of what uses it; `""` where that is not one operation.
        kind: what that is: `"op"`, `"call"`, `"loop"`, `"result"`, `"return"`.
        constraint: the constraint or reshard that asks for it, or None.
    """

    made: str
    before: Spec
    after: Spec
    user: str
    kind: str
    constraint: PlannedOp | None = None


def why_reduced(
    site: Site, name: str, axes: Sequence[str], before: Spec, scattered: bool = False
) -> str:
    """Why an operation's result is a sum over devices.

    Args:
        site: the operation whose result it is.
        name: its name in the plan.
        axes: the mesh axes.
        before: the sharding of its first operand.
        scattered: whether each device keeps a part of the result alone.
    """
    split = f"split over {_and(axes)}"
    part = "each device has a part of the result"
    if site.opcode == "dot_general":
        words = f"{name} sums over its inner dimension, which is {split}"
        part = "each device has a part of the sum"
    elif site.opcode == "reduce":
        dims = [d for d in _dims(site.op) if d in _where(before, axes)] or _dims(site.op)
        words = f"{name} {_reducer(site.op)} over {_along(dims)}, {split}"
    elif site.opcode == "convolution":
        words = f"{name} sums over a dimension of its operands that is {split}"
        part = "each device has a part of the sum"
    elif site.opcode == "gather":
        words = f"{name} looks things up in an array that is {split}"
        part = "each device finds those that it holds"
    elif site.opcode == "scatter":
        words = f"{name} writes updates that are {split} into one array"
        part = "each device has written its own"
    else:
        words = f"{name} combines values that are {split}"
    kept = ", and keeps its block of the whole" if scattered else ""
    return f"{words}: {part}{kept}."


def why_moved(kind: str, axes: Sequence[str], served: Served) -> str:
    """Why a value changes its sharding on the way to its user.

    Args:
        kind: the kind of collective.
        axes: the mesh axes that it runs over.
        served: what it stands between.
    """
    made, over = served.made, _and(axes)
    if served.constraint is not None:
        return f"{_asks(served.constraint)} asks for {served.after}, and {_has(served, axes)}."
    if served.kind == "result":
        return f"The result is asked for as {served.after}, and {_has(served, axes)}."
    if served.kind == "loop":
        return f"The loop carries it as {served.after}, and {_has(served, axes)}."
    if served.kind == "return":
        return f"{served.user} gives it as {served.after}, and {_has(served, axes)}."
    user = served.user or "what reads it"
    if served.kind == "call":
        return f"{user} is called with it as {served.after}, and {_has(served, axes)}."
    from_dims, to_dims = _where(served.before, axes), _where(served.after, axes)
    if kind == "all-gather":
        which = "that dimension" if len(from_dims) == 1 else "those dimensions"
        return f"{made} is split over {over} and {user} needs {which} whole."
    if kind == "all-to-all" and from_dims and to_dims and from_dims != to_dims:
        return (
            f"{made} is split over {over} along {_along(from_dims)} and {user} needs it split"
            f" along {_along(to_dims)}."
        )
    return f"{made} comes as {served.before} and {user} needs {served.after}."


def why_manual(site: Site, inside: str) -> str:
    """Why there is a collective that the user wrote.

    Args:
        site: the collective.
        inside: the name of what it stands in, such as `shard_map`.
    """
    where = f" at {site.place.source}" if site.place.source else ""
    called = site.place.op.rpartition("/")[2] or site.opcode
    return f"It is written in the program: {called}{where}, inside {inside}."


def _asks(constraint: PlannedOp) -> str:
    where = f" at {constraint.source}" if constraint.source else ""
    last = constraint.op.rpartition("/")[2]
    if last == "shard_map":
        return f"The shard_map{where}"
    return f"A reshard{where}" if last == "reshard" else f"A constraint{where}"


def _has(served: Served, axes: Sequence[str]) -> str:
    if _where(served.before, axes):
        return f"{served.made} is split over {_and(axes)}"
    return f"{served.made} comes as {served.before}"


def _where(spec: Spec, axes: Sequence[str]) -> tuple[int, ...]:
    wanted = set(axes)
    return tuple(
        n for n, dim in enumerate(spec.dims) if wanted & {a.partition(":(")[0] for a in dim}
    )


def _along(dims: Sequence[int]) -> str:
    return f"dimension {dims[0]}" if len(dims) == 1 else f"dimensions {_and(dims)}"


def _dims(op: Any) -> list[int]:
    text = str(op.attributes["dimensions"])  # array<i64: 0, 1>
    return [int(n) for n in text.partition(":")[2].strip(" >").split(",")]


def _reducer(op: Any) -> str:
    body = [o.operation.name for o in op.regions[0].blocks[0].operations]
    return _REDUCERS.get(body[0].rpartition(".")[2], "combines") if len(body) == 2 else "combines"


def _and(parts: Sequence[Any]) -> str:
    words = [str(part) for part in parts]
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)
