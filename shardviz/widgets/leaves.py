"""Leaves: the arrays of a whole model, by path, and which of them are of one kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.audit import Audit


@dataclass(frozen=True)
class Leaves:
    """The leaves of a model.

    Attributes:
        arrays: one ArraySpec for each, with its path as name.
        partners: by path, the parameter that a leaf is a moment or a copy of.
        unknown: the paths of those of which nothing says how they are split.
        kinds: an ArraySpec of each kind of leaf.
        kind_of: the number of the kind of each leaf.
    """

    arrays: tuple[ArraySpec, ...]
    partners: dict[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    kinds: tuple[ArraySpec, ...] = field(init=False)
    kind_of: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[Any, int] = {}
        kinds: list[ArraySpec] = []
        kind_of = []
        for array in self.arrays:
            key = (array.logical, array.shape, array.dtype, array.spec, array.name in self.unknown)
            if key not in numbers:
                numbers[key] = len(kinds)
                kinds.append(array)
            kind_of.append(numbers[key])
        object.__setattr__(self, "kinds", tuple(kinds))
        object.__setattr__(self, "kind_of", tuple(kind_of))

    @staticmethod
    def of_audit(audit: Audit) -> Leaves:
        """The leaves that were audited."""
        rows = audit.rows
        partners = {r.path: p for r in rows if (p := r.partner) is not None}
        unknown = frozenset(r.path for r in rows if r.spec is None and not r.problem)
        if audit.dialect.by_path:  # the session has no tables of paths: their answers are kept
            arrays = tuple(replace(r.array, spec=r.spec) if r.spec else r.array for r in rows)
        else:
            arrays = tuple(r.array for r in rows)
        return Leaves(arrays, partners, unknown)
