"""The view Model as plain data: the leaves of a whole state, and what the rules make of each kind.

Leaves of the same names, shape and type are of one kind. Paths and kinds are sent once; an edit
resolves and sends only the kinds, of which the largest models have some dozens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, count_text, fold, plural
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.optimizer_state import not_counted
from shardviz.core.layout.resolution import Request, Requests, request
from shardviz.core.layout.rules import Rules
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.widgets.targets import target_title, topology_of

MOST_CONSTRAINTS = 400


@dataclass(frozen=True)
class Leaves:
    """The leaves of a model.

    Attributes:
        arrays: one ArraySpec for each, with its path as name.
        partners: by path, the parameter that a leaf is a moment or a copy of.
        unknown: the paths of those of which nothing says how they are split.
        by_path: the paths of those whose spec a table of paths gave, which the session has not.
        kinds: an ArraySpec of each kind of leaf.
        kind_of: the number of the kind of each leaf.
        groups: by the first part of their paths, how many leaves there are of each kind.
    """

    arrays: tuple[ArraySpec, ...]
    partners: dict[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    by_path: frozenset[str] = frozenset()
    kinds: tuple[ArraySpec, ...] = field(init=False)
    kind_of: tuple[int, ...] = field(init=False)
    groups: dict[str, Counter[int]] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[Any, int] = {}
        kinds: list[ArraySpec] = []
        kind_of = []
        for array in self.arrays:
            described = (array.logical, array.shape, array.dtype, array.spec, array.memory_kind)
            key = (*described, array.name in self.unknown)
            if key not in numbers:
                numbers[key] = len(kinds)
                kinds.append(array)
            kind_of.append(numbers[key])
        object.__setattr__(self, "kinds", tuple(kinds))
        object.__setattr__(self, "kind_of", tuple(kind_of))
        groups: dict[str, Counter[int]] = {}
        for array, kind in zip(self.arrays, kind_of, strict=True):
            groups.setdefault(_head(array.name), Counter())[kind] += 1
        object.__setattr__(self, "groups", groups)

    @staticmethod
    def of_audit(audit: Audit) -> Leaves:
        """The leaves that were audited."""
        rows = audit.rows
        partners = {r.path: p for r in rows if (p := r.partner) is not None}
        unknown = frozenset(r.path for r in rows if r.spec is None and not r.problem)
        if not audit.dialect.by_path:
            return Leaves(tuple(r.array for r in rows), partners, unknown)
        # The session has no tables of paths: what this one says of each leaf is kept.
        arrays = tuple(replace(r.array, spec=r.spec) if r.spec else r.array for r in rows)
        given = frozenset(r.path for r in rows if r.spec and not r.spec_wins)
        return Leaves(arrays, partners, unknown, given)

    def edited(self, arrays: Iterable[ArraySpec]) -> Leaves:
        """The leaves with these arrays in the place of the leaves of their names."""
        now = {array.name: array for array in arrays}
        kept = tuple(now.get(old.name, old) for old in self.arrays)
        both = zip(kept, self.arrays, strict=True)
        changed = [new for new, old in both if new is not old and new != old]
        if not changed:
            return self
        described = {a.name for a in changed if a.logical is not None or a.spec is not None}
        by_path = self.by_path - {array.name for array in changed}
        return Leaves(kept, self.partners, self.unknown - described, by_path)

    def requests(self, program: Program) -> list[Request]:
        """How each kind is split under the rules of a program, on its mesh."""
        return [
            Request(kind, None, None, None, None)
            if kind.name in self.unknown
            else request(kind, program.mesh, program.rules, program.dialect)
            for kind in self.kinds
        ]


def audit_of(program: Program, leaves: Leaves | None) -> Audit:
    """The leaves of a model under the rules of a program, and the arrays that are no leaves."""
    rows: Sequence[Request] = program.requests
    if leaves is not None:
        kinds = leaves.requests(program)
        paths = [array.name for array in leaves.arrays]
        known = frozenset(paths)
        beside = [row for row in program.requests if row.path not in known]
        names = [*paths, *(row.path for row in beside)]
        rows = Requests(
            names,
            [*(kinds[number] for number in leaves.kind_of), *beside],
            ["other"] * len(names),  # the Explorer does not show groups of arrays
            [leaves.partners.get(name) for name in names],
        )
    return Audit(rows, program.mesh, program.rules or Rules(), program.dialect)


def leaves_view(leaves: Leaves) -> dict[str, Any]:
    """What no edit of rules or mesh changes: paths, kinds, and which leaves are layers of one."""
    numbers = range(len(leaves.arrays))
    position = {array.name: i for i, array in enumerate(leaves.arrays)}
    folds = fold(numbers, lambda i: leaves.arrays[i].name, lambda i: leaves.kind_of[i])
    own = [array for array in leaves.arrays if array.name not in leaves.partners]
    elements = sum(math.prod(array.shape) for array in own)
    return {
        "paths": [array.name for array in leaves.arrays],
        "kinds": list(leaves.kind_of),
        "folds": [[one.name, list(one.items)] for one in folds if len(one.items) > 1],
        "partners": [position.get(leaves.partners.get(a.name, ""), -1) for a in leaves.arrays]
        if leaves.partners
        else [],
        "words": f"{plural(len(leaves.arrays), 'leaf', 'leaves')} of"
        f" {plural(len(leaves.kinds), 'kind')} · {count_text(elements)} elements",
    }


def model_view(program: Program, target: str, leaves: Leaves, plan: Plan | None) -> dict[str, Any]:
    """How every kind of leaf is split, what all of them take, and the constraints of the program.

    Args:
        program: with the mesh and the rules.
        target: the target, checked.
        leaves: of the model.
        plan: the last plan, for the constraints on activations.
    """
    mesh = program.mesh
    found = leaves.requests(program)
    rows = [_kind(one, mesh) for one in found]
    times = sum(leaves.groups.values(), Counter())
    left = not_counted((one, times[number]) for number, one in enumerate(found))
    return {
        "kinds": rows,
        "axes": list(mesh.axis_names),
        **_memory(target, leaves, rows, left),
        "constraints": _constraints(plan),
    }


def _kind(one: Request, mesh: MeshSpec) -> dict[str, Any]:
    """A kind of leaf: its shape and names, how it is split, and its bytes on each device."""
    array, layout = one.array, one.layout
    view: dict[str, Any] = {"short": array.short, "spec": "", "bytes": 0, "waste": 0, "dims": []}
    if array.logical is not None:
        view["names"] = ["_" if n is None else str(n) for n in array.logical]
    if one.spec is None and not one.problem:
        return {**view, "note": "Nothing says how it is split."}
    if one.spec is not None:
        numbers = {name: i for i, name in enumerate(mesh.axis_names)}
        view["spec"] = str(one.spec)
        view["dims"] = [
            [[numbers[a], mesh.shape[a]] for a in axes if a in numbers] for axes in one.spec.dims
        ]
    if layout is not None and array.memory_kind is not None:
        view["text"] = f"{bytes_text(layout.bytes_per_device)} in {array.memory_kind}"
    elif layout is not None:
        held = layout.bytes_per_device
        view |= {"bytes": held, "text": bytes_text(held)}
        if (waste := held - array.bytes // mesh.size) > 0:
            view["waste"] = waste
    if one.problem:
        view["problem"] = one.problem
    if one.resolution is not None and not one.spec_wins:
        view["rules"] = sorted({w for w in one.resolution.winners if w is not None})
        if missing := [_missing(*m) for m in one.resolution.unmatched()]:
            view["note"] = " ".join(missing)
    return view


def _missing(dim: int, name: str, near: str | None) -> str:
    hint = f" Did you mean “{near}”?" if near else ""
    return f"No rule knows “{name}” (dimension {dim}).{hint}"


def _memory(
    target: str, leaves: Leaves, rows: Sequence[dict[str, Any]], left: str
) -> dict[str, Any]:
    """What the leaves take on each device, by the first part of their paths.

    Args:
        target: the target, checked.
        leaves: of the model.
        rows: the view of each kind.
        left: which arrays are not counted, in words.
    """
    groups = [
        (name, sum(rows[k]["bytes"] * times for k, times in of.items()))
        for name, of in leaves.groups.items()
    ]
    total = sum(size for _, size in groups)
    waste = sum(rows[k]["waste"] * n for of in leaves.groups.values() for k, n in of.items())
    capacity = _capacity(target)
    scale = max(capacity or 0, total, 1)
    largest = sorted(groups, key=lambda one: -one[1])
    shown = largest[:5]
    if rest := sum(size for _, size in largest[5:]):
        shown.append((f"{len(largest) - 5} others", rest))
    words = f"{bytes_text(total)} per device"
    if capacity is not None:
        title = target_title(target)
        words = f"{bytes_text(total)} of {bytes_text(capacity)} on each device of {title}"
    return {
        "parts": [
            {"name": name, "text": bytes_text(size), "share": size / scale} for name, size in shown
        ],
        "words": f"{words}{left}",
        "waste": f"{bytes_text(waste)} more than an even share" if waste else "",
        "over": bool(capacity) and total > (capacity or 0),
        "capacity": (capacity or 0) / scale,
    }


def _head(path: str) -> str:
    for mark in ("/", ".", "["):
        if mark in path.strip(mark):
            return path.strip(mark).split(mark)[0]
    return path if len(path) < 24 else "arrays"


def _capacity(target: str) -> int | None:
    """The memory of one device of the target, in bytes."""
    try:
        topology = topology_of(target)
    except ShardvizError:
        return None
    return None if topology is None else topology.chip.device_bytes


def _constraints(plan: Plan | None) -> list[dict[str, Any]]:
    """The calls that constrain activations, and what became of each."""
    calls = plan.constraints if plan is not None else ()
    return [
        {
            "where": call.where,
            "effect": call.effect,
            "spec": "" if call.spec is None else str(call.spec),
            "text": call.sentence,
            "warns": call.wants_attention,
        }
        for call in calls[:MOST_CONSTRAINTS]
    ]
