"""Results: what a traced function returned, in the order in which jax itself returns its arrays.

XLA combines collectives by the order of the results that need them, so a program with its results
in another order is another program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from shardviz.core.backend.arguments import (
    as_spec,
    is_array,
    leaves_with_paths,
    path_name,
    spread,
    unique,
)
from shardviz.core.backend.calls import BoundCall, is_of
from shardviz.core.errors import ProgramError
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program


@dataclass(frozen=True, eq=False)
class Returned:
    """How the arrays that a program returns form what its function returns.

    Attributes:
        tree: the structure of the result.
        others: what is no array, by its position among the leaves of `tree`.
        before: the names of those arrays before the result that the function changed in place;
            `""` for one that is no part of the result at all.
        after: the names of those after the result.
    """

    tree: Any
    others: Mapping[int, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The result; with the values of what was changed in place, by name, where anything was."""
        begin, end = len(self.before), len(leaves) - len(self.after)
        given = iter(leaves[begin:end])
        filled = [
            self.others[i] if i in self.others else next(given) for i in range(self.tree.num_leaves)
        ]
        changed = dict(zip(self.before, leaves, strict=False))
        changed |= dict(zip(self.after, leaves[end:], strict=True))
        changed.pop("", None)
        result = self.tree.unflatten(filled)
        return (result, changed) if changed else result


class SpecsByName(dict[str, Spec | None]):
    """In place of `out_specs`, one Spec per result, also for arguments that the function changed.

    >>> SpecsByName({"model.w (changed)": Spec.parse("data")})["model.w (changed)"]
    P('data')
    """


class Results:
    """What a trace finds out about the results: their tree and names, and whether specs fit.

    Attributes:
        program: what is traced.
        tree: how they form what the function returns.
        names: what they are called.
        shapes: their shapes.
        note: what the user should know about them, or `""`.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tree: Any = None
        self.names: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.note = ""
        self._own: list[str] = []

    def take(self, result: Any, changed: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arrays of what the function returned, and of arguments that it changed.

        `nnx.jit` returns its states before the result, and `jax.jit` the values of a `jax.Ref`
        after it. `eqx.filter_jit` returns a number of its own first, and drops what is no array.
        """
        fn = self.program.fn
        found, tree = leaves_with_paths(result)
        filters = is_of(fn.fn if isinstance(fn, BoundCall) else fn, "equinox", "_JitWrapper")
        loose = filters or (isinstance(fn, BoundCall) and not fn.compiles)
        others = {
            i: leaf
            for i, (_, leaf, _) in enumerate(found)
            if loose and not (is_array(leaf) or (_is_number(leaf) and not filters))
        }
        taken: set[str] = set()
        self._own = []
        for path, _, _ in found:
            taken.add(name := unique(path_name("output", path), taken))
            self._own.append(name)
        own = [(n, f[1]) for i, (n, f) in enumerate(zip(self._own, found, strict=True))
               if i not in others]  # fmt: skip
        more = [(unique(f"{name} (changed)", taken), value) for name, value in changed.items()]
        if filters:
            more = [(unique("marker of filter_jit", taken), jnp.array(0)), *more]
        names = ("",) * filters + tuple(changed)
        first = not getattr(fn, "refs", ())
        self.tree = Returned(tree, others, *((names, ()) if first else ((), names)))
        if changed and isinstance(fn, BoundCall):
            self.note = fn.change_note(list(changed))
        ordered = [*more, *own] if first else [*own, *more]
        self.names = [name for name, _ in ordered]
        leaves = tuple(leaf for _, leaf in ordered)
        self.shapes = [getattr(leaf, "shape", ()) for leaf in leaves]
        return leaves

    def specs(self) -> tuple[Spec | None, ...]:
        """One Spec for each result, from the program's `out_specs`, checked against it.

        Raises:
            ProgramError: for specs that are no prefix of the results, or do not fit one of them.
        """
        by_name = self.program.out_specs
        if not isinstance(by_name, SpecsByName):
            full = self.tree.tree.unflatten(range(len(self._own)))
            given = spread(by_name, full, "out_specs", self._own)
            by_name = dict(zip(self._own, given, strict=True))
        specs = [as_spec(by_name.get(name)) for name in self.names]
        for name, spec, shape in zip(self.names, specs, self.shapes, strict=True):
            try:
                if spec is not None:
                    lay_out(shape, spec, self.program.mesh)
            except ValueError as error:
                raise ProgramError(f"{name}: {error}") from None
        return tuple(specs)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex))
