"""trace() -> Traced: the user's function, seen by jax with the shardings that were requested.

Programs are traced flat: leaves in, leaves out. So an executable can serve every program with the
same text, whatever trees its arguments and results form.
"""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from shardviz.core.backend.arguments import as_spec, leaves_with_paths, path_name, spread, unique
from shardviz.core.backend.bridge import jax_dtype
from shardviz.core.backend.jax_effects import effect_names
from shardviz.core.backend.program_meshes import (
    NO_MESH,
    MeshConflict,
    in_context,
    noting_conflict,
    refuse_other_axes,
    refuse_other_device_order,
)
from shardviz.core.errors import ProgramError
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.partition_spec import Spec
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
        out_specs: one Spec a leaf of the result, or None where the compiler chooses.
    """

    program: Program
    mesh: Mesh | AbstractMesh
    stage: Any
    effects: tuple[str, ...]
    outputs: tuple[Output, ...]
    out_tree: Any
    seconds: float
    out_specs: tuple[Spec | None, ...] = ()


def trace(program: Program, mesh: Mesh | AbstractMesh) -> Traced:
    """Traces a program on a jax mesh, which is also the mesh in context while it is traced.

    Raises:
        ProgramError: for an array that cannot be laid out, output specs that do not fit, or a mesh
            inside the program that holds the same devices in another order.
        Exception: whatever the function raises.
    """
    conflict = MeshConflict(mesh.abstract_mesh)
    try:
        return _traced(program, mesh, mesh, conflict)
    except ValueError:
        refuse_other_axes(conflict, program.mesh)
        if conflict.named is None:
            raise
    # The function names the same axes for another kind of device: its own mesh is as good.
    own = conflict.named
    again = own if isinstance(mesh, AbstractMesh) else mesh
    conflict = MeshConflict(own)
    try:
        return _traced(program, again, own, conflict)
    except ValueError:
        if conflict.named is None:
            raise
    return _traced(program, again, NO_MESH, conflict)  # it names several, as jax allows without one


def _traced(
    program: Program,
    mesh: Mesh | AbstractMesh,
    context: Mesh | AbstractMesh,
    conflict: MeshConflict,
) -> Traced:
    """A program traced on a mesh, in the context of one."""
    begun = time.perf_counter()
    arguments = argument_structs(program, mesh)
    results = _Results(program)
    flat = noting_conflict(_flat(program, results), conflict)
    donated = donated_leaves(program)
    with in_context(context):
        stage = jax.jit(flat, donate_argnums=donated).trace(*arguments)
        specs = results.specs()
        if any(spec is not None for spec in specs):
            # How many outputs there are is known only now. jax keeps what it traced of `flat`.
            outs = tuple(s if s is None else NamedSharding(mesh, s.to_jax()) for s in specs)
            jitted = jax.jit(flat, donate_argnums=donated, out_shardings=outs)
            stage = jitted.trace(*arguments)
    refuse_other_device_order(stage.jaxpr, program.mesh)
    outputs = tuple(
        Output(name, tuple(info.shape), info.dtype)
        for name, info in zip(results.names, jax.tree.leaves(stage.out_info), strict=True)
    )
    seconds = time.perf_counter() - begun
    effects = effect_names(stage)
    return Traced(program, mesh, stage, effects, outputs, results.tree, seconds, specs)


def argument_structs(program: Program, mesh: Mesh | AbstractMesh) -> list[jax.ShapeDtypeStruct]:
    """One ShapeDtypeStruct per array, sharded over `mesh` as was requested.

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
        sharding = NamedSharding(mesh, spec.to_jax(), memory_kind=array.memory_kind)
        structs.append(jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding))
    return structs


def placed_spec(spec: Spec) -> Spec:
    """The spec an argument is placed with: a dimension left to the compiler is not split."""
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
        self.shapes: list[tuple[int, ...]] = []

    def take(self, result: Any) -> tuple[Any, ...]:
        """The leaves of what the function returned."""
        paths, self.tree = leaves_with_paths(result)
        taken: set[str] = set()
        self.names = []
        for path, _, _ in paths:
            taken.add(name := unique(path_name("output", path), taken))
            self.names.append(name)
        self.shapes = [getattr(leaf, "shape", ()) for _, leaf, _ in paths]
        return tuple(leaf for _, leaf, _ in paths)

    def specs(self) -> tuple[Spec | None, ...]:
        """One Spec a leaf, from the program's `out_specs`, checked against it.

        Raises:
            ProgramError: for specs that are no prefix of the results, or do not fit one of them.
        """
        full = self.tree.unflatten(range(len(self.names)))
        given = spread(self.program.out_specs, full, "out_specs", self.names)
        specs = [as_spec(spec) for spec in given]
        for name, spec, shape in zip(self.names, specs, self.shapes, strict=True):
            try:
                if spec is not None:
                    lay_out(shape, spec, self.program.mesh)
            except ValueError as error:
                raise ProgramError(f"{name}: {error}") from None
        return tuple(specs)


def _flat(program: Program, results: _Results) -> Callable[..., Any]:
    """The function from leaves to leaves. A new one every time: jax keeps what it traced by
    function, and would not notice that a value it closes over has changed.
    """
    fn, tree = program.fn, program.tree

    def flat(*leaves: Any) -> tuple[Any, ...]:
        return results.take(fn(*(leaves if tree is None else tree.unflatten(leaves))))

    functools.update_wrapper(flat, fn, updated=())
    # jax names arguments in its messages, and operations of the compiler after arguments.
    only = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, only) for name in flat_names(program)]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def flat_names(program: Program) -> list[str]:
    """What the compiler calls the arrays of a program: their names as Python writes names.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> flat_names(Program(abs, (ArraySpec("layers[0].w", (8,)),), make_mesh(data=4)))
    ['layers_0_w']
    """
    names = [re.sub(r"\W+", "_", a.name).strip("_") or "a" for a in program.arrays]
    taken: set[str] = set()
    for i, name in enumerate(names):
        names[i] = unique(name if name.isidentifier() else f"a_{name}", taken)
        taken.add(names[i])
    return names
