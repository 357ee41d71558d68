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
from shardviz.core.layout.rules.rules import Dialect

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
        text = ""
        if isinstance(want, str):
            text = want
        if isinstance(want, int) or re.match(r"\s*[0-9]", text):
            limit = parse_bytes(want, "What is wanted", SpecError)
            return Wish(limit=limit, path=path)
        if (match := _SPLIT.fullmatch(text)) is not None:
            dim = None
            if match[1] is not None:
                dim = _dimension(match[1], names)
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
        # MaxText drops axes of size 1, so a spec that has them is never met.
        if dialect is Dialect.MAXTEXT and mesh is not None:
            spec = without_size_one(spec, mesh)
        return Wish(spec, path=path)

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        """Whether the spec, or the layout that it makes, is what is wanted."""
        if self.spec is not None:
            return spec.equivalent(self.spec)
        if self.limit is not None:
            return layout is not None and layout.bytes_per_device <= self.limit
        axes = spec.axes
        if self.dim is not None:
            axes = spec.dims[self.dim]
        # An axis of size 1 splits nothing.
        return any(mesh is None or mesh.shape[axis] > 1 for axis in axes)

    def distance(self, spec: Spec, layout: Layout | None) -> int:
        """How far a spec is from the wish: dimensions or bytes, 0 where neither says."""
        if self.spec is not None:
            marks = zip(spec.dims, self.spec.dims, strict=True)
            return sum(mine != wanted for mine, wanted in marks)
        if self.limit is not None and layout is not None:
            return layout.bytes_per_device
        return 0


def _dimension(text: str, names: Names) -> int:
    """The dimension of that number or logical name."""
    if text in names:
        return names.index(text)
    if re.fullmatch(r"[0-9]{1,3}", text) and int(text) < len(names):
        return int(text)
    raise RuleError(
        f"The array has no dimension {shown(text)}: it has"
        f" {plural(len(names), 'dimension')} ({joined(n or 'no name' for n in names)})."
        " Write 'split 0' or 'split' and a name."
    )
