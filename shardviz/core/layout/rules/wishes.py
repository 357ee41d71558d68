"""Wish: what somebody wants of one array, as `shardviz.remedies` reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shardviz.core.display import Fact
from shardviz.core.errors import RuleError, SpecError
from shardviz.core.format import joined, plural, shown
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import parse_bytes
from shardviz.core.layout.partition_spec import Spec, rank_problem
from shardviz.core.layout.rules.matching import Names, without_size_one
from shardviz.core.layout.rules.rules import Dialect, Rule

_SPLIT = re.compile(r"\s*split(?:\s+(?:dimension\s+|dim\s+)?(.+?))?\s*")


@dataclass(frozen=True)
class Wish(Fact):
    """What somebody wants of one array: a spec, to be split, or a limit of bytes.

    `str` of it is the rest of a sentence that begins with "to".

    Attributes:
        spec: the wanted spec, or None.
        dim: the dimension that is to be split, or None for any.
        limit: at most so many bytes per device, or None.
        path: the array, or None where it has no name.

    >>> mesh = MeshSpec(("data",), (4,))
    >>> Wish.of("8 MiB", ("embed",), mesh, Dialect.LINEN).limit
    8388608
    >>> Wish.of("split embed", ("embed",), mesh, Dialect.LINEN).dim
    0
    """

    spec: Spec | None = None
    dim: int | None = None
    limit: int | None = None
    path: str | None = None

    @staticmethod
    def of(
        want: Any,
        names: Names,
        mesh: MeshSpec | None,
        dialect: Dialect,
        path: str | None = None,
    ) -> Wish:
        """The wish that a Spec or a text is: `split`, `split 1`, `8 MiB`, or a spec.

        Raises:
            RuleError: for a dimension that the array has not.
            SpecError: for what cannot be read as a spec either.
        """
        text = want if isinstance(want, str) else ""
        if isinstance(want, int) or re.match(r"\s*[0-9]", text):
            limit = parse_bytes(want, "What is wanted", SpecError)
            return Wish(limit=limit, path=path)
        if (match := _SPLIT.fullmatch(text)) is not None:
            dim = None if match[1] is None else _dimension(match[1], names)
            return Wish(dim=dim, path=path)
        if isinstance(want, str):
            want = Spec.parse(want)
        if not isinstance(want, Spec):
            raise SpecError(
                "What is wanted of an array is a PartitionSpec, 'split', 'split 1' or a"
                f" size per device such as '8 MiB'; got {shown(want)}."
            )
        if problem := rank_problem(want, len(names)):
            raise SpecError(str(problem))
        dims = want.padded(len(names))
        spec = Spec(dims, want.unconstrained, want.unreduced, want.reduced)
        if dialect is Dialect.MAXTEXT and mesh is not None:
            spec = without_size_one(spec, mesh)
        return Wish(spec, path=path)

    def met(self, spec: Spec, layout: Layout | None) -> bool:
        """Whether the spec, or the layout that it makes, is what is wanted."""
        if self.spec is not None:
            return spec.equivalent(self.spec)
        if self.limit is not None:
            return layout is not None and layout.bytes_per_device <= self.limit
        if layout is None:
            return bool(spec.axes if self.dim is None else spec.dims[self.dim])
        if self.dim is None:
            return layout.num_blocks > 1
        return layout.block_counts[self.dim] > 1

    def missing(
        self,
        own: tuple[Rule, ...],
        names: Names,
        dialect: Dialect,
        dropped: frozenset[str],
    ) -> list[int]:
        """The dimensions for which no rule leads to the wanted spec.

        One edit can help one of them.

        Args:
            own: the rules for the array's names.
            dropped: the mesh axes that do not count.
        """
        if self.spec is None:
            return []
        missing = []
        for d, axes in enumerate(self.spec.dims):
            name, free = names[d], d in self.spec.unconstrained
            if not isinstance(name, str):
                if axes or free != (name is not None):
                    missing.append(d)
                continue
            # Without a rule a dimension is not split; in nnx its name is the mesh axis.
            bare = (name,) if dialect is Dialect.NNX else ()
            if axes == bare and not free:
                continue
            for rule in own:
                kept = tuple(a for a in rule.axes if a not in dropped)
                if rule.logical == name and rule.free == free and kept == axes:
                    break
            else:
                missing.append(d)
        return missing


def _dimension(text: str, names: Names) -> int:
    """The dimension of that number or logical name.

    Raises:
        RuleError: if the array has none.
    """
    if text in names:
        return names.index(text)
    if re.fullmatch(r"[0-9]{1,3}", text) and int(text) < len(names):
        return int(text)
    raise RuleError(
        f"The array has no dimension {shown(text)}: it has"
        f" {plural(len(names), 'dimension')} ({joined(n or 'no name' for n in names)})."
        " Write 'split 0' or 'split' and a name."
    )
