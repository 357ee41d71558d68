"""Finds edits for results of a `shard_map` that differ between devices.

jax refuses results that vary over an axis missing from `out_specs`. The correct edit
depends on how a value on one device relates to the unsharded value
(`block_values.py`): a term of a sum needs a `lax.psum`, a term of a mean a `lax.pmean`,
and a block needs `out_specs` with the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.backend import jax_compat
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.block_values import EQUAL, Relation, result_relations
from shardviz.programs.backend.jaxpr_names import (
    AXIS_INDEX,
    PPERMUTE,
    SHARD_MAP_BODY,
    collective_axes,
)
from shardviz.programs.backend.jaxprs import operations, plain_jaxpr, users_line
from shardviz.programs.refusals import (
    Combination,
    CombineBeforeRead,
    CombineResults,
    NameInOutSpecs,
    ResultEdit,
    SkipCheck,
    TypeRefusal,
)

# Collectives that turn the values on all devices into the unsharded value.
_COMBINATIONS: Mapping[str, Combination] = {
    "sum": "psum",
    "mean": "pmean",
    "max": "pmax",
    "min": "pmin",
}


# A remedy applies a collective to the result, adds the missing axes to the result's
# `out_specs`, or passes `check_vma=False`.
_Remedy = Combination | Literal["out_specs", "check_vma"]


class Body:
    """The body of a `shard_map` as a function of flat leaves.

    Args:
        function: takes the shards and returns a pytree of results.
        tree: structure of the results, if the function returns only their leaves.
    """

    def __init__(self, function: Callable[..., Any], tree: Any = None) -> None:
        self.function, self.tree, self._has_tree = function, tree, tree is not None

    def __call__(self, *shards: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(self.function(*shards))
        if not self._has_tree:
            self.tree = tree
        return leaves


class _Result(NamedTuple):
    """A result on one device: its type, rank, and the axes over which it may vary."""

    type: str
    rank: int
    varying: frozenset[str]

    @classmethod
    def of(cls, value: Any) -> _Result:
        type_ = jax.typeof(value)
        return cls(str(type_), len(type_.shape), jax_compat.varying_axes(value))


@dataclass(eq=False)
class ShardMapResults:
    """A call of a `shard_map`, and edits of its results.

    Attributes:
        bodies: a function that returns the body for a mesh.
        mesh: mesh of the `shard_map`.
        in_specs: one per leaf of the arguments.
        out_specs: the user's specs for the pytree of results.
        axis_names: mesh axes that the `shard_map` maps over.
        types: shape and dtype of each argument leaf.
        line: source line of the call; `""` if it isn't in the user's code.
        edits: the edits chosen so far.
    """

    bodies: Callable[[Any], Body]
    mesh: Any
    in_specs: tuple[Any, ...]
    out_specs: Any
    axis_names: frozenset[str]
    types: Sequence[Any]
    line: str = ""
    edits: list[ResultEdit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tree: Any = None
        results: list[_Result] = []
        self._jaxpr = self._traced(self.mesh, results)
        self._results = results
        tree = self._tree.unflatten(range(len(results)))
        specs = jax.tree.broadcast(self.out_specs, tree, is_leaf=_is_spec)
        self._specs = [*map(spec_of, jax.tree.leaves(specs, is_leaf=_is_spec))]
        self._relations: dict[str, list[Relation | None]] = {}

    @property
    def has_all(self) -> bool:
        """True if `function` can apply all edits so far."""
        return not any(isinstance(edit, CombineBeforeRead) for edit in self.edits)

    @property
    def reads_positions(self) -> bool:
        """True if the body depends on a device's position along the edited axes.

        In that case, running the body on fewer devices doesn't give the correct values.
        """
        for operation in operations(self._jaxpr):
            if operation.name in (AXIS_INDEX, PPERMUTE):
                if not {*self.axes}.isdisjoint(collective_axes(operation.equation)):
                    return True
        return False

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of the edits so far."""
        axes = dict[str, None]()
        for edit in self.edits:
            axes.update(dict.fromkeys(edit.axes))
        return tuple(axes)

    def refusals(
        self, said: str, chosen: Mapping[int, int], first: int
    ) -> list[TypeRefusal]:
        """Returns the refusals; results that need the same edit share one.

        Args:
            said: jax's message for the first refusal.
            chosen: refusal number -> index of the edit to continue with; 0 if missing.
            first: number of the first of these refusals.
        """
        refusals: list[TypeRefusal] = []
        while groups := self._groups():
            edits, numbers = next(iter(groups.items()))
            edits = tuple(replace(edit, numbers=tuple(numbers)) for edit in edits)
            value = plain_jaxpr(self._jaxpr).outvars[numbers[0]]
            types = tuple(self._results[number].type for number in numbers)
            line = self._line_of(value) or self.line
            refusals.append(TypeRefusal("shard_map", line, types, said, edits))
            number = chosen.get(first + len(refusals) - 1, 0)
            self.edits.append(edits[min(number, len(edits) - 1)])
            # After SkipCheck, jax checks nothing more. CombineBeforeRead is only shown
            # to the user, because `function` cannot apply it.
            if isinstance(self.edits[-1], (SkipCheck, CombineBeforeRead)):
                break
            said = said_by_jax(self.function(), self.types)
        return refusals

    def function(self, mesh: Any = None) -> Callable[..., Any]:
        """Returns the `shard_map` with the edits so far, as a function of leaves.

        Args:
            mesh: another mesh with the same axes; None for the original mesh.
        """
        mesh, specs = mesh or self.mesh, [*self._specs]
        body = self.bodies(mesh)
        for edit in self.edits:
            if isinstance(edit, NameInOutSpecs):
                for number in edit.numbers:
                    specs[number] = edit.spec

        def edited(*shards: Any) -> Any:
            leaves = body(*shards)
            for edit in self.edits:
                if isinstance(edit, CombineResults):
                    combine = getattr(jax.lax, edit.collective)
                    for number in edit.numbers:
                        leaves[number] = combine(leaves[number], edit.axes)
            return self._tree.unflatten(leaves)

        return jax.shard_map(
            edited,
            mesh=mesh,
            in_specs=self.in_specs,
            out_specs=self._tree.unflatten([spec.to_jax() for spec in specs]),
            axis_names={*self.axis_names},
            check_vma=not any(isinstance(edit, SkipCheck) for edit in self.edits),
        )

    def narrow_mesh(self, axes: Sequence[str]) -> AbstractMesh:
        """Returns the mesh with one device along the given axes."""
        sizes, names = [], self.mesh.axis_names
        for axis in names:
            sizes.append(1 if axis in axes else self.mesh.shape[axis])
        return AbstractMesh(tuple(sizes), names, axis_types=self.mesh.axis_types)

    def _groups(self) -> dict[tuple[ResultEdit, ...], list[int]]:
        """Groups results that jax still refuses, by the edits that they need."""
        groups: dict[tuple[ResultEdit, ...], list[int]] = {}
        for number, result in enumerate(self._results):
            spec = self._specs[number]
            answered = {*spec.axes}
            for edit in self.edits:
                if number in edit.numbers:
                    answered.update(edit.axes)
                    spec = edit.spec if isinstance(edit, NameInOutSpecs) else spec
            missing = sorted(result.varying - answered)
            if missing:
                edits = tuple(self._edits_of(number, missing, spec))
                groups.setdefault(edits, []).append(number)
        return groups

    def _edits_of(
        self, number: int, missing: list[str], spec: Spec
    ) -> list[ResultEdit]:
        """Returns the edits for one result, without the result's number."""
        relations = {axis: self._relation(axis)[number] for axis in missing}
        for axis, relation in relations.items():
            if relation is not None and relation.early_read is not None:
                kind, reader, line = relation.early_read
                collective = _COMBINATIONS[kind]
                return [CombineBeforeRead(collective, reader, line, axes=(axis,))]
        if None in relations.values():
            return self._guesses(number, missing, spec)
        by_remedy: dict[_Remedy, list[str]] = {}
        for axis, relation in relations.items():
            remedy = _remedy(relation, self.mesh.shape[axis])
            if remedy is None:
                return self._guesses(number, missing, spec)
            by_remedy.setdefault(remedy, []).append(axis)
        remedy, axes = next(iter(by_remedy.items()))
        if remedy == "out_specs":
            dims, is_right = [*spec.padded(self._results[number].rank)], True
            for axis in axes:
                dim = relations[axis].dim  # type: ignore[union-attr]
                dims[dim], is_ordered = self._in_order((*dims[dim], axis))
                is_right &= is_ordered
            named = Spec(tuple(dims))
            return [NameInOutSpecs(named, axes=tuple(axes), is_right=is_right or None)]
        if remedy != "check_vma":
            return [CombineResults(remedy, axes=tuple(axes), is_right=True)]
        mean = CombineResults("pmean", axes=tuple(axes), is_right=True)
        # check_vma=False affects all results, and the gradients that jax derives.
        if self._remedies() != {remedy} or self._has_gradient:
            return [mean]
        return [SkipCheck(axes=tuple(axes), is_right=True), mean]

    def _in_order(self, axes: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        """Orders a dimension's axes as in an argument; False if the order is unknown."""
        for spec in map(spec_of, self.in_specs):
            for dim in spec.dims:
                if {*dim} == {*axes}:
                    return dim, True
        return axes, len(axes) == 1

    def _remedies(self) -> set[_Remedy | None]:
        """Returns the remedies that the results need, and None if any is unknown."""
        remedies = set[_Remedy | None]()
        for number, result in enumerate(self._results):
            for axis in result.varying - {*self._specs[number].axes}:
                relation = self._relation(axis)[number]
                remedies.add(_remedy(relation, self.mesh.shape[axis]))
        return remedies

    def _guesses(self, number: int, missing: list[str], spec: Spec) -> list[ResultEdit]:
        """Returns edits that jax accepts, of which at most one is right."""
        axes = tuple(missing)
        edits: list[ResultEdit] = [
            CombineResults("psum", axes=axes),
            CombineResults("pmean", axes=axes),
        ]
        rank = self._results[number].rank
        if rank:
            first, *further_dims = spec.padded(rank)
            named = Spec(((*first, *axes), *further_dims))
            edits.append(NameInOutSpecs(named, axes=axes))
        edits.append(SkipCheck(axes=axes))
        return edits

    def _relation(self, axis: str) -> list[Relation | None]:
        if axis not in self._relations:
            try:
                on_whole = self._traced(self.narrow_mesh([axis]), [])
            # The user's function may raise anything for shards of another size.
            except Exception:  # noqa: BLE001
                self._relations[axis] = [None] * len(self._results)
            else:
                size = self.mesh.shape[axis]
                self._relations[axis] = result_relations(
                    self._jaxpr, on_whole, axis, size
                )
        return self._relations[axis]

    @property
    def _has_gradient(self) -> bool:
        for operation in operations(self._jaxpr):
            if jax_compat.is_backward(operation.equation):
                return True
        return False

    def _traced(self, mesh: Any, results: list[Any]) -> Any:
        """Traces the body as if all results may vary, and fills in their types."""
        body = self.bodies(mesh)

        def accepted(*shards: Any) -> list[Any]:
            returned = body(*shards)
            self._tree = body.tree
            leaves = [*map(jnp.asarray, returned)]
            results[:] = map(_Result.of, leaves)
            # A scalar gets a dimension, because `out_specs` can only split dimensions.
            return [leaf if leaf.ndim else jnp.expand_dims(leaf, 0) for leaf in leaves]

        mapped = jax.shard_map(
            accepted,
            mesh=mesh,
            in_specs=self.in_specs,
            out_specs=jax.P(tuple(sorted(self.axis_names))),
            axis_names={*self.axis_names},
            check_vma=True,
        )
        (equation,) = plain_jaxpr(jax.make_jaxpr(mapped)(*self.types)).eqns
        return SHARD_MAP_BODY.of(equation)

    def _line_of(self, variable: Any) -> str:
        """Returns the user's source line that computes a value in the body."""
        makers: dict[Any, Any] = {}
        for equation in plain_jaxpr(self._jaxpr).eqns:
            makers.update(dict.fromkeys(equation.outvars, equation))
        while not hasattr(variable, "val") and variable in makers:
            equation = makers[variable]
            if line := users_line(equation):
                return line
            variable = equation.invars[0]
        return ""


def _is_spec(value: object) -> bool:
    return isinstance(value, jax.P)


def _remedy(relation: Relation | None, size: int) -> _Remedy | None:
    """Returns the remedy that yields the unsharded value; None if unknown."""
    if relation is None:
        return None
    if relation.kind == "sum" and relation.scale == size:
        return "pmean"
    if relation.kind in EQUAL:
        return "check_vma"
    if relation.scale != 1:
        return None
    return "out_specs" if relation.kind == "block" else _COMBINATIONS.get(relation.kind)


def said_by_jax(function: Callable[..., Any], types: Sequence[Any]) -> str:
    """Returns jax's message if it refuses a function; otherwise `""`."""
    try:
        jax.eval_shape(function, *types)
    # jax raises ValueError and private exception classes.
    except Exception as error:  # noqa: BLE001
        return str(error).strip()
    return ""
