"""trace() -> Traced: the user's function, seen by jax with the shardings that were asked for.

Programs are traced flat: leaves in, leaves out. So an executable can serve every program with the
same text, whatever trees its arguments and results form.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardviz.core.errors import ProgramError, plural
from shardviz.core.layout.shards import lay_out
from shardviz.core.layout.spec import Spec
from shardviz.core.program.arguments import path_name, unique
from shardviz.core.program.bridge import jax_dtype
from shardviz.core.program.device_orders import refuse_other_orders
from shardviz.core.program.effects.names import effect_names
from shardviz.core.program.program import Program


@dataclass(frozen=True, eq=False)
class Output:
    """One leaf of the result: its name, global shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced program.

    Attributes:
        program: what was traced.
        mesh: the jax mesh it was traced on.
        stage: jax's own `Traced`.
        effects: its effects, in words.
        outputs: one Output a leaf of the result.
        out_tree: how the leaves form what the function returns.
        seconds: how long it took.
    """

    program: Program
    mesh: Mesh | AbstractMesh
    stage: Any
    effects: tuple[str, ...]
    outputs: tuple[Output, ...]
    out_tree: Any
    seconds: float


def trace(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    """Traces a program on a jax mesh, which is also the mesh in context while it is traced.

    Raises:
        ProgramError: for an array that cannot be laid out, output specs that do not fit, or a mesh
            inside the program that holds the same devices in another order.
        Exception: whatever the function raises.
    """
    begun = time.perf_counter()
    arguments = argument_structs(program, mesh)
    results = _Results(program)
    options = {"donate_argnums": donated_leaves(program), **_output_shardings(program, mesh)}
    with in_context(mesh):
        stage = jax.jit(_flat(program, results), **options).trace(*arguments)
    refuse_other_orders(stage.jaxpr, program.mesh)
    outputs = tuple(
        Output(name, tuple(info.shape), info.dtype)
        for name, info in zip(results.names, jax.tree.leaves(stage.out_info), strict=True)
    )
    seconds = time.perf_counter() - begun
    return Traced(program, mesh, stage, effect_names(stage), outputs, results.tree, seconds)


def argument_structs(program: Program, mesh: Mesh | AbstractMesh) -> list[jax.ShapeDtypeStruct]:
    """One ShapeDtypeStruct an array, sharded over `mesh` as was asked.

    Raises:
        ProgramError: naming the first array that cannot be laid out.
    """
    if program.problems:
        raise ProgramError(program.problems[0])
    structs = []
    for request in program.requests:
        array, spec = request.array, placed_spec(request.spec or Spec())
        try:
            dtype = jax_dtype(array.dtype)
        except ProgramError as error:
            raise ProgramError(f"{array.name}: {error}") from None
        sharding = NamedSharding(mesh, spec.to_jax())
        structs.append(jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding))
    return structs


def placed_spec(spec: Spec) -> Spec:
    """The spec an argument is placed with: a dimension left to the compiler stays whole there."""
    return Spec(spec.dims, frozenset(), spec.unreduced, spec.reduced)


def donated_leaves(program: Program) -> tuple[int, ...]:
    """The positions, among the leaves, of arguments whose memory may be reused."""
    donate = tuple(program.options.get("donate", ()))
    if program.tree is None or not donate:
        return donate
    sizes = [child.num_leaves for child in program.tree.children()]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(starts[a] + i for a in donate for i in range(sizes[a]))


class _Results:
    """What a trace finds out about the results: their tree and names, and whether specs fit."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tree: Any = None
        self.names: list[str] = []

    def take(self, result: Any) -> tuple[Any, ...]:
        """The leaves of what the function returned."""
        paths, self.tree = jax.tree_util.tree_flatten_with_path(result)
        taken: set[str] = set()
        for path, _ in paths:
            taken.add(name := unique(path_name("output", path), taken))
            self.names.append(name)
        leaves = tuple(leaf for _, leaf in paths)
        if self.program.out_specs is not None:
            self._check(self.program.out_specs, leaves)
        return leaves

    def _check(self, specs: tuple[Spec, ...], leaves: tuple[Any, ...]) -> None:
        if len(specs) not in (1, len(leaves)):
            raise ProgramError(
                f"out_specs gives {plural(len(specs), 'spec')} and the function returns"
                f" {plural(len(leaves), 'array')}: {', '.join(self.names)}. Give one spec an array,"
                " or one for all."
            )
        specs = specs * len(leaves) if len(specs) == 1 else specs
        for name, spec, leaf in zip(self.names, specs, leaves, strict=True):
            try:
                lay_out(getattr(leaf, "shape", ()), spec, self.program.mesh)
            except ValueError as error:
                raise ProgramError(f"{name}: {error}") from None


def _flat(program: Program, results: _Results) -> Callable[..., Any]:
    """The function from leaves to leaves. A new one every time: jax keeps what it traced by
    function, and would not notice that a value it closes over has changed.
    """
    fn, tree = program.fn, program.tree

    def flat(*leaves: Any) -> tuple[Any, ...]:
        return results.take(fn(*(leaves if tree is None else tree.unflatten(leaves))))

    functools.update_wrapper(flat, fn, updated=())
    names = [re.sub(r"\W+", "_", a.name).strip("_") or "a" for a in program.arrays]
    taken: set[str] = set()
    for i, name in enumerate(names):
        names[i] = unique(name if name.isidentifier() else f"a_{name}", taken)
        taken.add(names[i])
    # jax names arguments in its messages, and operations of the compiler after arguments.
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _output_shardings(program: Program, mesh: Mesh | AbstractMesh) -> dict[str, Any]:
    if program.out_specs is None:
        return {}
    for spec in program.out_specs:
        spec.check(program.mesh)
    shardings = tuple(NamedSharding(mesh, s.to_jax()) for s in program.out_specs)
    # How many outputs there are is not known yet: jit takes one sharding for all, or one each.
    return {"out_shardings": shardings[0] if len(shardings) == 1 else shardings}


def in_context(mesh: Mesh | AbstractMesh) -> contextlib.AbstractContextManager[Any]:
    """The context in which a program is traced and lowered: its mesh is the mesh."""
    # Functions may name mesh axes without a mesh: with_sharding_constraint(x, P("data")).
    return jax.sharding.use_abstract_mesh(mesh) if isinstance(mesh, AbstractMesh) else (
        jax.set_mesh(mesh)
    )  # fmt: skip
