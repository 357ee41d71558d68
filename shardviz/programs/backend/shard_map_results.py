"""Results of a `shard_map` that differ between devices although no `out_specs` say so.

jax refuses them. Which edit is right follows from the relation between one device's
value and that of the whole arrays (`block_values.py`): a part of a sum needs a
`lax.psum`, a part of a mean a `lax.pmean`, a block `out_specs` that name the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from shardviz.programs.refusals import TypeEdit, TypeRefusal

_CODES = {
    "sum": "psum",
    "mean": "pmean",
    "max": "pmax",
    "min": "pmin",
    "block": "out_specs",
}
_COLLECTIVES = ("psum", "pmean", "pmax", "pmin")


class Body:
    """The body of a `shard_map`, from leaves of shards to leaves of results.

    Args:
        function: returns a tree of results.
        tree: the structure of the results, if the function returns only its leaves.
    """

    def __init__(self, function: Callable[..., Any], tree: Any = None) -> None:
        self.function, self.tree, self._has_tree = function, tree, tree is not None

    def __call__(self, *shards: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(self.function(*shards))
        if not self._has_tree:
            self.tree = tree
        return leaves


class _Result(NamedTuple):
    """A result on one device: its type, and the axes over which it may vary."""

    type: str
    rank: int
    varying: frozenset[str]

    @classmethod
    def of(cls, value: Any) -> _Result:
        type_ = jax.typeof(value)
        return cls(str(type_), len(type_.shape), jax_compat.varying_axes(value))


@dataclass(eq=False)
class ShardMapResults:
    """One call of a `shard_map`, and edits of its results.

    Attributes:
        bodies: makes the body for a mesh.
        mesh: its mesh.
        in_specs: of each argument's leaves.
        out_specs: as the user wrote them, for the tree of results.
        axis_names: the axes that it maps over.
        types: the arguments' leaves, as shapes.
        line: where it is called; `""` if not in the user's code.
        edits: the edits so far.
    """

    bodies: Callable[[Any], Body]
    mesh: Any
    in_specs: tuple[Any, ...]
    out_specs: Any
    axis_names: frozenset[str]
    types: Sequence[Any]
    line: str = ""
    edits: list[TypeEdit] = field(default_factory=list)

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
        """Whether the edits so far are all made in `function`."""
        return all(edit.part != "read" for edit in self.edits)

    @property
    def reads_positions(self) -> bool:
        """Whether the body depends on where a device is along the edited axes.

        Then its values on fewer devices are not those to compare with.
        """
        for operation in operations(self._jaxpr):
            if operation.name in (AXIS_INDEX, PPERMUTE):
                if not {*self.axes}.isdisjoint(collective_axes(operation.equation)):
                    return True
        return False

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the edits so far are about."""
        found = dict[str, None]()
        for edit in self.edits:
            found.update(dict.fromkeys(edit.axes))
        return tuple(found)

    def refusals(
        self, said: str, chosen: Mapping[int, int], first: int
    ) -> list[TypeRefusal]:
        """What jax refuses, one refusal for all results that need the same edit.

        Args:
            said: jax's message for the first.
            chosen: which edit to go on with, by the number of a refusal; else the first.
            first: the number of the first of these refusals.
        """
        refusals: list[TypeRefusal] = []
        while groups := self._groups():
            edits, numbers = next(iter(groups.items()))
            edits = tuple(_numbered(edit, numbers) for edit in edits)
            value = plain_jaxpr(self._jaxpr).outvars[numbers[0]]
            types = tuple(self._results[number].type for number in numbers)
            line = self._line_of(value) or self.line
            refusals.append(TypeRefusal("shard_map", line, types, said, edits))
            number = chosen.get(first + len(refusals) - 1, 0)
            self.edits.append(edits[min(number, len(edits) - 1)])
            # After the one no check follows, and the other isn't made here.
            if self.edits[-1].code == "check_vma" or self.edits[-1].part == "read":
                break
            said = said_by_jax(self.function(), self.types)
        return refusals

    def function(self, mesh: Any = None) -> Callable[..., Any]:
        """The `shard_map` with the edits so far, which takes leaves.

        Args:
            mesh: another mesh with the same axes; None for its own.
        """
        mesh, specs = mesh or self.mesh, [*self._specs]
        body = self.bodies(mesh)
        for edit in self.edits:
            for number in edit.numbers:
                if edit.code == "out_specs" and edit.spec is not None:
                    specs[number] = edit.spec

        def edited(*shards: Any) -> Any:
            leaves = body(*shards)
            for edit in self.edits:
                for number in edit.numbers if edit.code in _COLLECTIVES else ():
                    collective = getattr(jax.lax, edit.code)
                    leaves[number] = collective(leaves[number], edit.axes)
            return self._tree.unflatten(leaves)

        return jax.shard_map(
            edited,
            mesh=mesh,
            in_specs=self.in_specs,
            out_specs=self._tree.unflatten([spec.to_jax() for spec in specs]),
            axis_names={*self.axis_names},
            check_vma=not any(edit.code == "check_vma" for edit in self.edits),
        )

    def narrow_mesh(self, axes: Sequence[str]) -> AbstractMesh:
        """Its mesh with one device along some axes."""
        sizes, names = [], self.mesh.axis_names
        for axis in names:
            sizes.append(1 if axis in axes else self.mesh.shape[axis])
        return AbstractMesh(tuple(sizes), names, axis_types=self.mesh.axis_types)

    def _groups(self) -> dict[tuple[TypeEdit, ...], list[int]]:
        """The results that jax still refuses, by the edits that they need."""
        groups: dict[tuple[TypeEdit, ...], list[int]] = {}
        for number, result in enumerate(self._results):
            spec = self._specs[number]
            answered = {*spec.axes}
            for edit in self.edits:
                if number in edit.numbers:
                    answered.update(edit.axes)
                    spec = edit.spec or spec
            missing = sorted(result.varying - answered)
            if missing:
                edits = tuple(self._edits_of(number, missing, spec))
                groups.setdefault(edits, []).append(number)
        return groups

    def _edits_of(self, number: int, missing: list[str], spec: Spec) -> list[TypeEdit]:
        """The edits of one result, without its number."""
        relations = {axis: self._relation(axis)[number] for axis in missing}
        for axis, relation in relations.items():
            if relation is not None and relation.read is not None:
                kind, *reader = relation.read
                code = _CODES[kind]
                return [TypeEdit(code, "read", axes=(axis,), reader=tuple(reader))]
        if None in relations.values():
            return self._guesses(number, missing, spec)
        by_code: dict[str, list[str]] = {}
        for axis, relation in relations.items():
            code = _code_of(relation, self.mesh.shape[axis])
            if not code:
                return self._guesses(number, missing, spec)
            by_code.setdefault(code, []).append(axis)
        code, axes = next(iter(by_code.items()))
        if code == "out_specs":
            dims, is_right = [*spec.padded(self._results[number].rank)], True
            for axis in axes:
                dim = relations[axis].dim  # type: ignore[union-attr]
                dims[dim], is_ordered = self._in_order((*dims[dim], axis))
                is_right &= is_ordered
            fields = {"spec": Spec(tuple(dims)), "axes": tuple(axes)}
            return [TypeEdit(code, "result", is_right=is_right or None, **fields)]
        edit = TypeEdit(code, "result", axes=tuple(axes), is_right=True)
        if code != "check_vma":
            return [edit]
        mean = TypeEdit("pmean", "result", axes=tuple(axes), is_right=True)
        # Without the check jax makes other gradients, and it is off for all results.
        is_only = self._codes() == {code} and not self._has_gradient
        return [edit, mean] if is_only else [mean]

    def _in_order(self, axes: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        """The axes of one dimension in the order that an argument has; and whether that
        is known."""
        for spec in map(spec_of, self.in_specs):
            for dim in spec.dims:
                if {*dim} == {*axes}:
                    return dim, True
        return axes, len(axes) == 1

    def _codes(self) -> set[str]:
        """The codes of the edits that all results need."""
        codes = set[str]()
        for number, result in enumerate(self._results):
            for axis in result.varying - {*self._specs[number].axes}:
                codes.add(_code_of(self._relation(axis)[number], self.mesh.shape[axis]))
        return codes

    def _guesses(self, number: int, missing: list[str], spec: Spec) -> list[TypeEdit]:
        """Edits that jax accepts, of which one is right, if any."""
        axes, edits = tuple(missing), []
        for code in ("psum", "pmean"):
            edits.append(TypeEdit(code, "result", axes=axes))
        rank = self._results[number].rank
        if rank:
            first, *others = spec.padded(rank)
            named = Spec(((*first, *axes), *others))
            edits.append(TypeEdit("out_specs", "result", spec=named, axes=axes))
        edits.append(TypeEdit("check_vma", "result", axes=axes))
        return edits

    def _relation(self, axis: str) -> list[Relation | None]:
        if axis not in self._relations:
            try:
                whole = self._traced(self.narrow_mesh([axis]), [])
            # The user's function may raise anything on blocks of another size.
            except Exception:  # noqa: BLE001
                self._relations[axis] = [None] * len(self._results)
            else:
                size = self.mesh.shape[axis]
                self._relations[axis] = result_relations(self._jaxpr, whole, axis, size)
        return self._relations[axis]

    @property
    def _has_gradient(self) -> bool:
        for operation in operations(self._jaxpr):
            if jax_compat.is_backward(operation.equation):
                return True
        return False

    def _traced(self, mesh: Any, results: list[Any]) -> Any:
        """The jaxpr of the body with results that differ as they may; adds their types."""
        body = self.bodies(mesh)

        def accepted(*shards: Any) -> list[Any]:
            returned = body(*shards)
            self._tree = body.tree
            leaves = [*map(jnp.asarray, returned)]
            results[:] = map(_Result.of, leaves)
            # Only dimensions can be said to be split.
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
        """The user's line that makes a value of the body."""
        makers: dict[Any, Any] = {}
        for equation in plain_jaxpr(self._jaxpr).eqns:
            makers.update(dict.fromkeys(equation.outvars, equation))
        while not hasattr(variable, "val") and variable in makers:
            equation = makers[variable]
            if line := users_line(equation):
                return line
            variable = equation.invars[0]
        return ""


def _is_spec(value: Any) -> bool:
    return isinstance(value, jax.P)


def _code_of(relation: Relation | None, size: int) -> str:
    """The edit that makes the value of the whole arrays; `""` if none is known."""
    if relation is None:
        return ""
    if relation.kind == "sum" and relation.scale == size:
        return "pmean"
    if relation.kind in EQUAL:
        return "check_vma"
    return _CODES.get(relation.kind, "") if relation.scale == 1 else ""


def _numbered(edit: TypeEdit, numbers: list[int]) -> TypeEdit:
    return replace(edit, numbers=tuple(numbers))


def said_by_jax(function: Callable[..., Any], types: Sequence[Any]) -> str:
    """What jax says when it refuses a function; `""` if it doesn't."""
    try:
        jax.eval_shape(function, *types)
    # jax refuses with ValueError and classes of its own.
    except Exception as error:  # noqa: BLE001
        return str(error).strip()
    return ""
