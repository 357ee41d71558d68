"""Program: a function, its array arguments, and their requested layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.libraries import mesh_of
from shardviz.axis_rules.optimizer_state import optimizer_leaves, pair_names
from shardviz.axis_rules.requests import Request, Requests, requests
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec, unique_names
from shardviz.base.display import Displayed
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural, shown
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.mesh_context import MeshContext


def function_name(fn: Any) -> str:
    """Names a function; partials use their function's name, objects their class's.

    >>> import functools
    >>> function_name(functools.partial(abs, 1)), function_name(abs)
    ('abs', 'abs')
    """
    # jax names partials in the same way.
    while isinstance(fn, functools.partial):
        fn = fn.func
    wrapped = getattr(fn, "__wrapped__", None)
    name = getattr(fn, "__name__", "") or getattr(wrapped, "__name__", "")
    # `__name__` may be any attribute of the user's object; in flax modules it is None.
    if not isinstance(name, str) or not name:
        return type(fn).__name__
    return name


@dataclass(frozen=True, eq=False, repr=False)
class Program(Displayed):
    """A function with its arrays, mesh and rules, as returned by `shardviz.program`.

    Attributes:
        fn: the function, which is called with the arrays as arranged by `tree`.
        arrays: one ArraySpec per leaf of the arguments, in order.
        mesh: the mesh to lay the arrays out on.
        rules: the axis rules, or None.
        dialect: the library whose semantics the rules follow.
        tree: PyTreeDef of the tuple of positional arguments; None if each array is one
            argument.
        out_specs: a pytree prefix of Specs for the results, like `out_shardings` in
            `jax.jit`. None, for one result or for all, lets the compiler choose.
        options: compiler options by name; `donate` holds the positions of donated
            arguments.
        name: the display name.
        notes: notes for the user on how the program was built; plans and reports list
            them first.
        context: the mesh and flax's `nn.logical_axis_rules` in force when the program
            was built; None if neither was. The program is traced in this context,
            unless another mesh or other rules are in force when the program is planned,
            compiled or run.
        mesh_from: the origin of the mesh: `"given"`, `"arrays"` (shardings of arrays or
            of `jax.jit`), `"context"` or `"function"`. A given mesh overrides the mesh
            in context; any other mesh doesn't.

    Raises:
        ProgramError: if `fn` isn't callable, or the arrays don't match `tree`.
    """

    fn: Callable[..., Any]
    arrays: tuple[ArraySpec, ...]
    mesh: MeshSpec
    rules: Rules | None = None
    dialect: NameDialect = Dialect.LINEN
    tree: Any = None
    out_specs: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    notes: tuple[str, ...] = ()
    context: MeshContext | None = None
    mesh_from: str = "given"

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ProgramError(
                f"A program needs a function to run; got {shown(self.fn)}."
            )
        # The dataclass is frozen.
        object.__setattr__(self, "arrays", tuple(self.arrays))
        object.__setattr__(self, "name", self.name or function_name(self.fn))
        unique_names(self.arrays)
        if self.tree is not None and self.tree.num_leaves != len(self.arrays):
            raise ProgramError(
                f"The arguments have {plural(self.tree.num_leaves, 'leaf', 'leaves')}"
                f" and {plural(len(self.arrays), 'array')} were given. Give one array"
                " per leaf."
            )

    def replace(self, **changes: Any) -> Program:
        """Returns a copy with the given fields changed, and validates it.

        A MeshSpec or a jax mesh keeps its own axis types (`sv.mesh` makes Auto axes). A
        mesh given as text or as a mapping has no types: existing axes keep theirs, and
        new axes get the same type if all existing axes share one, otherwise Auto.

        >>> import shardviz as sv
        >>> program = sv.Program(abs, (sv.ArraySpec("x", (8,)),), sv.mesh(data=4))
        >>> program.replace(mesh="data=8").mesh.size
        8
        """
        if "mesh" in changes:
            changes.setdefault("mesh_from", "given")
        mesh = changes.get("mesh")
        if mesh is not None and not isinstance(mesh, MeshSpec):
            changes["mesh"] = mesh_of(mesh) or _typed_alike(make_mesh(mesh), self.mesh)
        return replace(self, **changes)

    @cached_property
    def requests(self) -> tuple[Request, ...]:
        """The layouts requested for the arrays (the first stage). Needs no jax.

        The requests are rows of an audit. Their remedies therefore consider the other
        arrays, and change a parameter together with its optimizer moments.
        """
        rows = requests(self.arrays, self.mesh, self.rules, self.dialect)
        names = [array.name for array in self.arrays]
        states = frozenset[int]()
        if self.tree is not None:
            states = optimizer_leaves(self.tree)
        pairs = pair_names(names, [array.shape for array in self.arrays], states)
        paired = rows
        if pairs is not None:
            paired = Requests(names, rows, *pairs)
        table = self.rules or Rules()
        return tuple(Audit(paired, self.mesh, table, self.dialect).rows)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why arrays cannot be laid out, one sentence per array."""
        return tuple(f"{r.array.name}: {r.problem}" for r in self.requests if r.problem)

    def __repr__(self) -> str:
        return (
            f"Program({self.name}: {plural(len(self.arrays), 'array')} on {self.mesh})"
        )


def _typed_alike(mesh: MeshSpec, old: MeshSpec) -> MeshSpec:
    """Returns `mesh` with the axis types of `old`."""
    distinct_types = {*old.axis_types}
    # Axes of mixed types have no common type to copy, so new axes are Auto.
    new_type = distinct_types.pop() if len(distinct_types) == 1 else "Auto"
    old_types = dict(zip(old.axis_names, old.axis_types, strict=True))
    types = tuple(old_types.get(name, new_type) for name in mesh.axis_names)
    return mesh.replace(axis_types=types, device_kind=old.device_kind)
