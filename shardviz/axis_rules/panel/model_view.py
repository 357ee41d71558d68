"""The Model view as plain data: the leaves of a model, and the sharding of each kind.

Leaves with equal names, shape and dtype are one kind. Paths are sent once; after an
edit, only the kinds are resolved and sent again. Even the largest models have only a
few dozen kinds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.fit import Fit, Uncounted
from shardviz.axis_rules.group_bytes import uncounted
from shardviz.axis_rules.optimizer_state import OTHER, PARAMETERS
from shardviz.axis_rules.requests import Request, Requests, request
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.format import bytes_text, count_text, fold, plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import JsonDict
from shardviz.explorer.targets import topology_of
from shardviz.explorer.words import explorer as wording
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program

MOST_CONSTRAINTS = 400
# Groups of leaves listed next to the memory bar; the others are summed up.
MOST_PARTS = 5


@dataclass(frozen=True)
class Leaves:
    """The leaves of a model.

    Attributes:
        arrays: one ArraySpec per leaf, with the leaf's path as name.
        partners: path of a moment or copy -> path of its parameter.
        unknown: paths of leaves for which nothing determines the spec.
        by_path: paths of leaves whose spec comes from the audit's path table, which the
            session does not have.
        roles: each leaf's group in a train state, as in `Request.group`; empty if no
            group is known.
    """

    arrays: tuple[ArraySpec, ...]
    partners: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    by_path: frozenset[str] = frozenset()
    roles: tuple[str, ...] = ()

    @staticmethod
    def of_rows(rows: Iterable[Request], from_paths: bool = False) -> Leaves:
        """Creates the leaves from the rows of an audit or a program.

        Args:
            rows: one Request per leaf.
            from_paths: whether the specs come from a path table.
        """
        partners, unknown, by_path = {}, set(), set()
        arrays, roles = [], []
        for row in rows:
            array = row.array
            roles.append(row.group)
            if row.partner is not None:
                partners[row.path] = row.partner
            if row.spec is None and not row.problem:
                unknown.add(row.path)
            # A session cannot hold a path table, so the leaf stores the resulting spec.
            if from_paths and row.spec:
                array = array.replace(spec=row.spec)
                if not row.spec_wins:
                    by_path.add(row.path)
            arrays.append(array)
        if {*roles} == {OTHER}:
            roles = []
        return Leaves(
            tuple(arrays),
            partners,
            frozenset(unknown),
            frozenset(by_path),
            tuple(roles),
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """The paths of the leaves."""
        return frozenset(array.name for array in self.arrays)

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """The kind number of each leaf."""
        numbers: dict[Hashable, int] = {}
        kind_of = []
        for a in self.arrays:
            key = (a.logical, a.shape, a.dtype, a.spec, a.memory_kind)
            key = (*key, a.name in self.unknown)
            kind_of.append(numbers.setdefault(key, len(numbers)))
        return tuple(kind_of)

    @cached_property
    def kinds(self) -> tuple[ArraySpec, ...]:
        """One leaf of each kind."""
        first: dict[int, ArraySpec] = {}
        for array, kind in zip(self.arrays, self.kind_of, strict=True):
            first.setdefault(kind, array)
        return tuple(first.values())

    @cached_property
    def groups(self) -> Mapping[str, Counter[int]]:
        """Group, or first path segment -> number of leaves of each kind."""
        groups: dict[str, Counter[int]] = {}
        roles = self.roles or (OTHER,) * len(self.arrays)
        for array, kind, role in zip(self.arrays, self.kind_of, roles, strict=True):
            name = _head(array.name) if role == OTHER else role
            groups.setdefault(name, Counter())[kind] += 1
        return groups

    def edited(self, arrays: Iterable[ArraySpec]) -> Leaves:
        """Returns a copy in which `arrays` replace the leaves with the same names."""
        new = {array.name: array for array in arrays}
        edited = tuple(new.get(old.name, old) for old in self.arrays)
        changed, described = set(), set()
        for old, array in zip(self.arrays, edited, strict=True):
            if array != old:
                changed.add(array.name)
                if array.logical is not None or array.spec is not None:
                    described.add(array.name)
        if not changed:
            return self
        unknown, by_path = self.unknown - described, self.by_path - changed
        return replace(self, arrays=edited, unknown=unknown, by_path=by_path)

    def requests(self, program: Program) -> list[Request]:
        """Resolves each kind with a program's rules, on its mesh."""
        rows = []
        for kind in self.kinds:
            if kind.name in self.unknown:
                rows.append(Request(kind, None, None, None, None))
            else:
                row = request(kind, program.mesh, program.rules, program.dialect)
                rows.append(row)
        return rows


def _head(path: str) -> str:
    """Returns the first segment of a path; `"arrays"` for long names without one."""
    for mark in ("/", ".", "["):
        if mark in path.strip(mark):
            return path.strip(mark).split(mark)[0]
    if len(path) < 24:
        return path
    return "arrays"


def audit_of(program: Program, leaves: Leaves | None) -> Audit:
    """Audits a model's leaves and a program's other arrays with the program's rules."""
    rows: Sequence[Request] = program.requests
    if leaves is not None:
        kinds = leaves.requests(program)
        names = [array.name for array in leaves.arrays]
        leaf_names = frozenset(names)
        beside = [row for row in program.requests if row.path not in leaf_names]
        names += [row.path for row in beside]
        roles = leaves.roles or (OTHER,) * len(leaves.arrays)
        rows = Requests(
            names,
            [*(kinds[number] for number in leaves.kind_of), *beside],
            [*roles, *(row.group for row in beside)],
            [leaves.partners.get(name) for name in names],
        )
    return Audit(rows, program.mesh, program.rules or Rules(), program.dialect)


def leaves_view(leaves: Leaves) -> JsonDict:
    """Returns data that edits of rules or mesh don't change: paths, kinds, folds."""
    arrays = leaves.arrays
    numbers, kind_of = range(len(arrays)), leaves.kind_of
    folded = []
    for layers in fold(numbers, lambda i: arrays[i].name, kind_of.__getitem__):
        if len(layers.items) > 1:
            folded.append([layers.name, list(layers.items)])
    position = {array.name: i for i, array in enumerate(arrays)}
    partners = [position.get(leaves.partners.get(a.name, ""), -1) for a in arrays]
    roles, counted = leaves.roles, arrays
    if PARAMETERS in roles:
        pairs = zip(arrays, roles, strict=True)
        counted = tuple(array for array, role in pairs if role == PARAMETERS)
    elements = count_text(sum(math.prod(array.shape) for array in counted))
    return {
        "paths": [array.name for array in arrays],
        "kinds": list(kind_of),
        "folds": folded,
        "partners": partners if leaves.partners else [],
        "roles": [role if role != OTHER else "" for role in roles],
        "words": wording.leaf_count(len(arrays), elements, PARAMETERS in roles),
    }


def model_view(
    program: Program, target: str, leaves: Leaves, plan: Plan | None
) -> JsonDict:
    """Returns how each kind of leaf is split, the bytes of all, and the constraints."""
    # Resolve kinds, not leaves: a model with 10,000 leaves has a few dozen kinds.
    requests = leaves.requests(program)
    rows = [_kind_view(kind_request, program.mesh) for kind_request in requests]
    times = Counter(leaves.kind_of)
    left_out = uncounted(
        (kind_request, times[n]) for n, kind_request in enumerate(requests)
    )
    return {
        "kinds": rows,
        **_memory(target, leaves, rows, left_out),
        "constraints": _constraints(plan),
    }


def _kind_view(kind_request: Request, mesh: MeshSpec) -> JsonDict:
    """Returns a kind's shape, names, split and bytes per device."""
    array, layout = kind_request.array, kind_request.layout
    view: JsonDict = {"short": array.short, "bytes": 0, "copies": 0}
    view.update(spec="", dims=[])
    if kind_request.spec is not None:
        view.update(spec=str(kind_request.spec), dims=_dims(kind_request.spec, mesh))
    if array.logical is not None:
        view["names"] = ["_" if n is None else str(n) for n in array.logical]
    if kind_request.spec is None and not kind_request.problem:
        return {**view, "note": wording.UNKNOWN_SPLIT}
    if layout is not None and array.memory_kind is not None:
        view["text"] = wording.bytes_in(layout.bytes_per_device, array.memory_kind)
    elif layout is not None:
        view["bytes"] = layout.bytes_per_device
        view["text"] = bytes_text(layout.bytes_per_device)
        view["copies"] = kind_request.wasted_bytes
        if view["copies"] and kind_request.denied_axes:
            view["lost"] = True
    if kind_request.problem:
        view["problem"] = kind_request.problem
    if kind_request.resolution is not None and not kind_request.spec_wins:
        notes = []
        for dim, name, near in kind_request.resolution.unmatched():
            notes.append(wording.no_rule_names(name, near, dim))
        if notes:
            view["note"] = " ".join(notes)
    return view


def _dims(spec: Spec, mesh: MeshSpec) -> list[list[list[int]]]:
    """Returns the mesh axes of each dimension as [number in the mesh, size]."""
    names, dims = mesh.axis_names, []
    for axes in spec.dims:
        # Skip axes that the mesh doesn't have, which a rule can name.
        mesh_axes = [axis for axis in axes if axis in names]
        dims.append([[names.index(axis), mesh.shape[axis]] for axis in mesh_axes])
    return dims


def _memory(
    target: str, leaves: Leaves, rows: Sequence[JsonDict], left_out: Uncounted
) -> JsonDict:
    """Returns the leaves' bytes per device, of each group."""
    sizes: Counter[str] = Counter()
    copies = 0
    for name, times in leaves.groups.items():
        for kind, count in times.items():
            sizes[name] += rows[kind]["bytes"] * count
            copies += rows[kind]["copies"] * count
    total = sizes.total()
    topology = topology_of(target)
    capacity, device = None, ""
    if topology is not None:
        capacity, device = topology.chip.device_bytes, topology.title
    fit = Fit(total, capacity, device, arrays_only=True, uncounted=left_out)
    scale = max(capacity or 0, total, 1)
    largest = [(name, size) for name, size in sizes.most_common() if size]
    parts = [[name, bytes_text(size)] for name, size in largest[:MOST_PARTS]]
    remaining_bytes = sum(size for _, size in largest[MOST_PARTS:])
    if remaining_bytes:
        parts.append(
            [plural(len(largest) - MOST_PARTS, "other"), bytes_text(remaining_bytes)]
        )
    return {
        "parts": parts,
        "words": wording.model_memory(fit),
        "copies": wording.model_copies(copies) if copies else "",
        "needed": (total - copies) / scale,
        "copied": copies / scale,
        "over": fit.ok is False,
        "capacity": (capacity or 0) / scale,
    }


def _constraints(plan: Plan | None) -> list[JsonDict]:
    """Returns the calls that constrain activations, and the effect of each."""
    if plan is None:
        return []
    rows = []
    for call in plan.without_error.constraints[:MOST_CONSTRAINTS]:
        row = {"where": call.where, "effect": call.effect}
        row |= {"spec": str(call.spec or ""), "text": call.sentence}
        rows.append({**row, "warns": call.wants_attention})
    return rows
