"""Spec: a PartitionSpec in normal form, and a parser that evaluates no code.

A Spec has a tuple of mesh axes per dimension, major to minor. It follows
`jax.sharding.PartitionSpec`: `('x',)` is the same as `'x'` and `()` the same as `None`,
and a spec shorter than the array leaves the other dimensions unsplit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import MissingPackage, ShardvizError, SpecError
from shardviz.base.format import listed, shown, suggestion
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import (
    Call,
    check_name,
    limited,
    quoted,
    typed_value,
)

MAX_RANK = 64
#: How the values of devices combine along unreduced axes, as in jax's `UnreducedKind`.
UNREDUCED_KINDS = ("sum", "max", "min")
_NONE: frozenset = frozenset()
_new = object.__new__


@dataclass(frozen=True)
class WrongRank(Fact):
    """A spec with more entries than the array has dimensions.

    Attributes:
        spec: the spec.
        rank: the rank of the array.

    >>> WrongRank(Spec.parse("x, y"), 1).spec.rank
    2
    """

    spec: Spec
    rank: int


@dataclass(frozen=True, repr=False)
class Spec(Displayed):
    """The mesh axes that split each dimension of an array.

    A Spec equals another Spec, or a jax PartitionSpec, with the same entries. As in
    jax, `P('x')` and `P('x', None)` differ; `equivalent` compares the layouts. jax
    hashes a PartitionSpec by identity, so a Spec in a dict can be looked up only with a
    Spec.

    Attributes:
        dims: for each dimension, the mesh axes that split it, major to minor; `()` for
            none.
        unconstrained: the dimensions left to the compiler (`P.UNCONSTRAINED`).
        unreduced: mesh axes over which each device holds a partial result.
        reduced: mesh axes over which the value is already summed.
        unreduced_kind: the reduction of the partial results: `"sum"`, `"max"` or
            `"min"`.

    Raises:
        SpecError: for entries that are not axis names.

    >>> import shardviz as sv
    >>> spec = sv.Spec.parse("x, None, (y, z)")
    >>> spec.dims
    (('x',), (), ('y', 'z'))
    >>> str(spec)
    "P('x', None, ('y', 'z'))"
    """

    _adds = ("axes",)
    _is_text = True

    dims: tuple[tuple[str, ...], ...] = ()
    unconstrained: frozenset[int] = frozenset()
    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    unreduced_kind: str = "sum"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Spec:
            return (
                self.dims == other.dims
                and self.unconstrained == other.unconstrained
                and self.unreduced == other.unreduced
                and self.reduced == other.reduced
                and self.unreduced_kind == other.unreduced_kind
            )
        # Compare class names, as jax may be missing.
        if type(other).__name__ not in ("P", "PartitionSpec"):
            return NotImplemented
        try:
            return self.to_jax() == other
        except ValueError:  # jax refuses these entries, or is missing
            return False

    @staticmethod
    def of(
        *entries: object,
        unreduced: Iterable[str] = (),
        reduced: Iterable[str] = (),
        unreduced_kind: object = None,
    ) -> Spec:
        """Creates a Spec from entries as in jax's `P`: names, tuples of names, None.

        Raises:
            SpecError: for an entry or a kind that `P` doesn't accept.

        >>> import shardviz as sv
        >>> sv.Spec.of("x", None, ("y", "z")) == sv.Spec.parse("x, None, (y, z)")
        True
        """
        if len(entries) > MAX_RANK:
            raise SpecError(
                f"A spec has at most {MAX_RANK} entries; got {len(entries)}."
            )
        dims: list[tuple[str, ...]] = []
        free: set[int] = set()
        for dim, entry in enumerate(entries):
            if is_unconstrained(entry):
                free.add(dim)
                dims.append(())
            else:
                dims.append(_entry(entry))
        marks = _axis_set(unreduced, "unreduced"), _axis_set(reduced, "reduced")
        kind = _kind_of(unreduced_kind)
        if kind is not None and not marks[0]:
            raise SpecError("A spec has an unreduced_kind only with unreduced axes.")
        return Spec(tuple(dims), frozenset(free), *marks, kind or "sum")

    @staticmethod
    def trusted(
        dims: tuple[tuple[str, ...], ...], unconstrained: frozenset[int] = _NONE
    ) -> Spec:
        """Creates a Spec from normalized fields, much faster than the constructor.

        The constructor of a frozen dataclass calls a Python function for each field,
        and `resolve` creates a Spec for every array.
        """
        spec = _new(Spec)
        fields = spec.__dict__
        fields["dims"], fields["unconstrained"] = dims, unconstrained
        fields["unreduced"] = fields["reduced"] = _NONE
        fields["unreduced_kind"] = "sum"
        return spec

    @staticmethod
    def parse(text: str) -> Spec:
        """Parses a Spec from text, without evaluating anything.

        Accepts `P('x', None, ('y', 'z'))`, `x, None, (y, z)`, `P.UNCONSTRAINED`, and
        `unreduced={'x'}`. Empty text is a spec that splits no dimension.

        Raises:
            SpecError: for text that is not a spec, with the position of the problem.
        """
        return _parse(text)

    @property
    def rank(self) -> int:
        """The number of entries; the array may have more dimensions."""
        return len(self.dims)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Every mesh axis that splits a dimension, in order, repeats included."""
        return tuple(a for dim in self.dims for a in dim)

    @cached_property
    def trimmed(self) -> Spec:
        """The spec without trailing unsplit dimensions, for comparing specs."""
        rank = len(self.dims)
        while rank and not self.dims[rank - 1] and (rank - 1) not in self.unconstrained:
            rank -= 1
        return self.with_dims(self.dims[:rank], self.unconstrained)

    def with_dims(
        self, dims: Sequence[tuple[str, ...]], unconstrained: frozenset[int] = _NONE
    ) -> Spec:
        """Returns a Spec with other `dims`, and the same unreduced and reduced axes."""
        marks = self.unreduced, self.reduced, self.unreduced_kind
        return Spec(tuple(dims), unconstrained, *marks)

    def padded(self, rank: int) -> tuple[tuple[str, ...], ...]:
        """Extends `dims` to an array of this rank; the added dimensions are not split.

        >>> import shardviz as sv
        >>> sv.Spec.parse("x").padded(2)
        (('x',), ())
        """
        return self.dims + ((),) * (rank - len(self.dims))

    def of_rank(self, rank: int) -> Spec:
        """Returns the spec with its `dims` padded to an array of this rank."""
        return replace(self, dims=self.padded(rank))

    def equivalent(self, other: Spec) -> bool:
        """True if both specs give equal layouts, as `P('x')` and `P('x', None)` do.

        >>> import shardviz as sv
        >>> sv.Spec.parse("x").equivalent(sv.Spec.parse("x, None"))
        True
        """
        return self.trimmed == other.trimmed

    def check(self, mesh: MeshSpec) -> None:
        """Checks that the spec fits a mesh, as `jax.sharding.NamedSharding` does.

        Raises:
            SpecError: for an axis that the mesh lacks, a repeated axis, or an
                unconstrained, unreduced or reduced mark that the mesh's axis types
                forbid.
        """
        for _, error in self.axis_errors(mesh):
            raise error
        if self.unconstrained or self.unreduced or self.reduced:
            self._check_marks(mesh)

    def axis_errors(self, mesh: MeshSpec) -> Iterator[tuple[int, ShardvizError]]:
        """Finds axes that the mesh lacks, and repeated axes.

        Yields:
            A dimension, and the error of one of its axes.
        """
        dim_of_axis: dict[str, int] = {}
        for dim, axes in enumerate(self.dims):
            for axis in axes:
                if axis not in mesh.shape:
                    error = SpecError(
                        f"Dimension {dim} cannot be split over {shown(axis)}: the mesh"
                        f" ({mesh}) has no such axis."
                        f"{suggestion(axis, mesh.axis_names)}"
                    )
                    yield dim, error
                elif axis in dim_of_axis:
                    error = SpecError(
                        f"Mesh axis {shown(axis)} is named twice, for dimension"
                        f" {dim_of_axis[axis]} and for dimension {dim}; it can split one of them,"
                        " once."
                    )
                    yield dim, error
                else:
                    dim_of_axis[axis] = dim

    def _check_marks(self, mesh: MeshSpec) -> None:
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        if self.unconstrained and "Auto" not in types.values():
            raise SpecError(
                "P.UNCONSTRAINED leaves a dimension to the compiler, which needs an Auto"
                f" mesh axis; this mesh has only {listed(sorted(set(types.values())))}"
                " ones."
            )
        twice_marked = self.unreduced & self.reduced
        for mark, axes in self.marks:
            for axis in axes:
                conflict = axis in self.axes or axis in twice_marked
                if types.get(axis) != "Explicit" or conflict:
                    raise SpecError(
                        f"Axis {shown(axis)} cannot be {mark}: that needs an Explicit axis"
                        f" of the mesh ({mesh}) that splits no dimension and has no other"
                        " mark."
                    )

    @property
    def marks(self) -> list[tuple[str, list[str]]]:
        """`("unreduced", axes)` and `("reduced", axes)`, if the spec has such axes."""
        marks = (("unreduced", self.unreduced), ("reduced", self.reduced))
        return [(mark, sorted(axes)) for mark, axes in marks if axes]

    def to_jax(self) -> Any:  # a PartitionSpec, but type checkers may lack jax
        """Converts the spec to a `jax.sharding.PartitionSpec`.

        >>> import shardviz as sv
        >>> sv.Spec.parse("x, None, (y, z)").to_jax()
        P('x', None, ('y', 'z'))
        """
        # Cached by hand, because cached_property takes a lock before Python 3.12.
        spec = self.__dict__.get("_jax")
        if spec is None:
            PartitionSpec = _jax_sharding().PartitionSpec
            # jax turns ('x',) into 'x' and () into None.
            entries: list[object] = list(self.dims)
            for dim in self.unconstrained:
                entries[dim] = PartitionSpec.UNCONSTRAINED
            marks: dict[str, Any] = {m: frozenset(axes) for m, axes in self.marks}
            if self.unreduced_kind != "sum":
                marks["unreduced_kind"] = _jax_kind(self.unreduced_kind)
            spec = self.__dict__["_jax"] = PartitionSpec(*entries, **marks)
        return spec

    @property
    def entry_strings(self) -> tuple[str, ...]:
        """Each entry as in code: `'x'`, `('y', 'z')`, `None`, `P.UNCONSTRAINED`."""
        entries = list(map(_format_entry, self.dims))
        for dim in self.unconstrained:
            entries[dim] = "P.UNCONSTRAINED"
        return tuple(entries)

    def __str__(self) -> str:
        parts = list(self.entry_strings)
        for mark, axes in self.marks:
            parts.append(f"{mark}={{{', '.join(map(quoted, axes))}}}")
        if self.unreduced_kind != "sum":
            parts.append(
                f"unreduced_kind=jax.sharding.UnreducedKind.{self.unreduced_kind}"
            )
        return f"P({', '.join(parts)})"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class ResultSpec(Spec):
    """The Spec of a result that the program leaves in a non-default memory.

    Attributes:
        memory_kind: jax's name for that memory, such as `"pinned_host"`.
    """

    memory_kind: str = ""


@dataclass(frozen=True)
class SpecOnMesh(Displayed):
    """A spec together with its mesh, as in a jax `NamedSharding`.

    >>> import shardviz as sv
    >>> print(SpecOnMesh(Spec.parse("x, None"), sv.mesh(x=4, y=2)))
    P('x', None) on x=4, y=2
    """

    spec: Spec
    mesh: MeshSpec

    def __str__(self) -> str:
        return f"{self.spec} on {self.mesh}"

    @property
    def copy_axes(self) -> tuple[str, ...]:
        """The mesh axes along which devices hold copies: neither split nor unreduced."""
        split = {axis for axes in self.spec.dims for axis in axes}
        summed = self.spec.unreduced
        return tuple(
            axis for axis in self.mesh.axis_names if axis not in split | summed
        )


def memory_of(spec: Spec | None) -> str | None:
    """The memory kind that the spec of a result requests; None for the default memory.

    >>> memory_of(ResultSpec((("x",),), memory_kind="pinned_host")), memory_of(Spec())
    ('pinned_host', None)
    """
    return spec.memory_kind if isinstance(spec, ResultSpec) else None


@cache
def _jax_sharding() -> Any:
    # The only import of jax outside of the `backend` folders.
    try:
        from jax import sharding
    except ImportError as error:
        raise MissingPackage(
            "A PartitionSpec needs jax, which is not installed: pip install jax."
        ) from error
    return sharding


def _jax_kind(kind: str) -> Any:  # an UnreducedKind, which jax 0.10 lacks
    kinds = getattr(_jax_sharding(), "UnreducedKind", None)
    if kinds is None:
        raise SpecError(
            f"The installed jax has no unreduced_kind; a partial {kind} needs jax 0.12."
        )
    return kinds[kind]


def _kind_of(kind: object) -> str | None:
    """The name of jax's UnreducedKind, or of text such as `"max"`."""
    if kind is None:
        return None
    name = str(getattr(kind, "name", kind))
    if name not in UNREDUCED_KINDS:
        raise SpecError(
            f"An unreduced_kind is one of {listed(UNREDUCED_KINDS, 'or')};"
            f" got {shown(kind)}."
        )
    return name


def is_unconstrained(value: object) -> bool:
    """True for jax's UNCONSTRAINED. Compares class names, as jax may be missing."""
    return type(value).__name__ == "UnconstrainedSingleton"


def _entry(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (check_name(value, "a mesh axis", SpecError),)
    if not isinstance(value, (tuple, list)):
        raise SpecError(
            "An entry of a spec is a mesh axis, a tuple of them, or None;"
            f" got {shown(value)}."
        )
    axes = limited(value, MAX_RANK, "The mesh axes of one dimension", SpecError)
    return tuple(check_name(axis, "a mesh axis", SpecError) for axis in axes)


def _axis_set(axes: Iterable[str], mark: str) -> frozenset[str]:
    if isinstance(axes, str):
        axes = (axes,)
    return frozenset(check_name(a, f"an axis in {mark}", SpecError) for a in axes)


def _format_entry(axes: Sequence[str]) -> str:
    if not axes:
        return "None"
    if len(axes) == 1:
        return quoted(axes[0])
    return f"({', '.join(map(quoted, axes))})"


_KEYWORDS = ("unreduced", "reduced", "unreduced_kind")
_CALL = re.compile(r"\s*[\w.]*\b(?:P|PS|PartitionSpec)\s*\(")


def _parse(text: str) -> Spec:
    if not isinstance(text, str):
        raise SpecError(f"A spec is typed as text; got {shown(text)}.")
    # Entries without P(...) are read as the arguments of a call.
    within = "{}"
    if not _CALL.match(text):
        # The bracket is on a new line, in case the text ends with a comment.
        within = "P({}\n)"
    value = typed_value(text, SpecError, within=within)
    if not isinstance(value, Call):
        raise SpecError(
            f"A spec is typed as text such as P('x', None); got {shown(text)}."
        )
    return spec_of_call(value)


def spec_of_call(call: Call) -> Spec:
    """Converts a call of PartitionSpec in typed text to a Spec.

    Raises:
        SpecError: for keywords or entries that PartitionSpec does not accept.
    """
    if unknown := call.keywords.keys() - _KEYWORDS:
        raise SpecError(
            "A spec is written as P('x', None), and its only keywords are"
            f" {listed(_KEYWORDS)}; got {listed(sorted(unknown))}."
        )
    keywords = dict(call.keywords)
    kind = keywords.pop("unreduced_kind", None)
    marks = {mark: axes or () for mark, axes in keywords.items()}
    return Spec.of(*call.args, unreduced_kind=kind, **marks)


def rank_problem(spec: Spec, rank: int) -> WrongRank | None:
    """Returns a WrongRank if the spec is longer than the array, else None."""
    return None if len(spec.dims) <= rank else WrongRank(spec, rank)
