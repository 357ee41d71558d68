"""Retraces programs: for one device, without prints, or with specs of result types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.backend.jax_compat import jaxpr_as_fun
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.bridge import abstract_mesh, named_sharding
from shardviz.programs.backend.build_program import SpecsByName
from shardviz.programs.backend.effect_rules import effect_names
from shardviz.programs.backend.jaxpr_names import DEBUG_CALLS
from shardviz.programs.backend.jaxprs import (
    meshes_in,
    operations,
    rewritten,
    users_line,
    with_inner,
    without_debug_effects,
    without_shardings,
)
from shardviz.programs.backend.named_meshes import naming_operation
from shardviz.programs.backend.trace import (
    Traced,
    argument_structs,
    donated_leaves,
    named_as,
    trace,
)
from shardviz.programs.notes import WithoutPrints
from shardviz.programs.program import Program

if TYPE_CHECKING:
    from shardviz.programs.backend.jaxpr_names import AnyJaxpr


def for_one_device(traced: Traced) -> Traced:
    """Returns a program for one device, without shardings over a larger mesh.

    jax refuses such shardings on one device.

    Raises:
        ProgramError: if an operation such as a `shard_map` needs the larger mesh.
    """
    # Most programs name no mesh, so their jaxpr stays valid on one device.
    if all(mesh.size == 1 for mesh, _ in meshes_in(traced.stage.jaxpr)):
        return traced
    jaxpr = without_shardings(traced.stage.jaxpr)
    _refuse_meshes_of_more(jaxpr)
    return _traced_again(traced, jaxpr, ())


def trace_unsharded(
    traced: Traced, single: Program, on_one: Callable[[Program], Traced]
) -> Traced:
    """Traces the unsharded function of a program for one device.

    Some functions can only be traced on their original mesh: jax refuses partial sums
    over an axis of size 1, and a function that reads the size of an axis computes
    something else there. In that case we trace on that mesh, and remove the shardings.

    Args:
        traced: the original program.
        single: the program on a mesh of one device.
        on_one: traces `single`.

    Raises:
        Exception: any exception that the function raises on one device.
    """
    program = traced.program

    def from_original_mesh(original: Traced) -> Traced:
        jaxpr = without_shardings(original.stage.jaxpr)
        _refuse_meshes_of_more(jaxpr)
        return on_one(single.replace(fn=jaxpr_as_fun(jaxpr), tree=None))

    try:
        unsharded = for_one_device(on_one(single))
    except Exception as refused:
        # The function may use partial sums, which need Explicit axes.
        if "Explicit" in program.mesh.axis_types:
            with contextlib.suppress(Exception):  # the first error is more useful
                return from_original_mesh(trace(program, abstract_mesh(program.mesh)))
        raise refused
    if _computation(traced.stage.jaxpr) != _computation(unsharded.stage.jaxpr):
        # A shard_map runs only on the original mesh, so it is compared on one device.
        with contextlib.suppress(ProgramError):
            return from_original_mesh(traced)
    return unsharded


def _computation(jaxpr: AnyJaxpr) -> list[tuple[Hashable, ...]]:
    """Returns the operations of a jaxpr, with their shapes and constants.

    They are the same on every mesh unless the function reads the mesh, or a sharding,
    while it is traced.
    """
    computation: list[tuple[Hashable, ...]] = []
    for operation in operations(jaxpr):
        equation = operation.equation
        shapes = [getattr(variable.aval, "shape", ()) for variable in equation.outvars]
        # Only literals have a value.
        values = [getattr(variable, "val", None) for variable in equation.invars]
        literals = [str(value) for value in values if value is not None]
        integers = []
        for name, value in equation.params.items():
            numbers = value if isinstance(value, tuple) else (value,)
            if all(isinstance(number, int) for number in numbers):
                integers.append((name, value))
        computation.append((operation.name, *shapes, *literals, *sorted(integers)))
    return computation


def unsharded(program: Program) -> Program:
    """Returns the program on a mesh with the same axes, all of size 1.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4, model=2))
    >>> unsharded(program).mesh.shape
    {'data': 1, 'model': 1}
    """
    mesh = program.mesh
    # Keep the axis names, because the function may use them, as in psum(x, "data").
    single_mesh = MeshSpec(
        mesh.axis_names, (1,) * len(mesh.axis_sizes), mesh.axis_types
    )
    # Donate nothing, because the sharded run reads the same values.
    options = {k: v for k, v in program.options.items() if k != "donate"}
    arrays = tuple(a.replace(spec=Spec()) for a in program.arrays)
    return program.replace(
        mesh=single_mesh, arrays=arrays, out_specs=None, options=options
    )


def _refuse_meshes_of_more(jaxpr: Any) -> None:
    """Raises if an operation is over a mesh of several devices.

    Raises:
        ProgramError: names the operation.
    """
    for mesh, equation in meshes_in(jaxpr):
        if mesh.size > 1:
            raise ProgramError(
                f"{naming_operation(equation)} is over a mesh of {plural(mesh.size, 'device')},"
                " which the function names."
            )


def spec_of_type(aval: Any) -> Spec | None:
    """Returns the spec of a jax type on Explicit axes; None on other axes."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return None
    # On Auto axes, the compiler chooses the spec.
    explicit = any(t.name == "Explicit" for t in sharding.mesh.axis_types or ())
    return spec_of(sharding.spec) if explicit else None


def specs_of_types(traced: Traced) -> tuple[Spec | None, ...]:
    """Returns `spec_of_type` for every result of a program."""
    return tuple(map(spec_of_type, traced.stage.jaxpr.out_avals))


def with_specs_of_types(traced: Traced) -> Traced:
    """Retraces a program, with specs from result types where it has no `out_specs`.

    On devices, jax splits a result by its type. On an abstract mesh, the lowered module
    lacks these specs, so XLA would add up partial sums.

    Args:
        traced: a program on a mesh with only Explicit axes, because jax needs a spec
            for every result.
    """
    rows = zip(traced.outputs, traced.out_specs, specs_of_types(traced), strict=True)
    specs = {output.name: spec or typed for output, spec, typed in rows}
    program = traced.program
    traced_again = trace(program.replace(out_specs=SpecsByName(specs)), traced.mesh)
    return replace(traced_again, program=program, out_specs=traced.out_specs)


def with_partial_sums(traced: Traced) -> Traced:
    """Applies `with_specs_of_types` if axes are Explicit and a result is unreduced."""
    specs = specs_of_types(traced)
    partial = any(spec is not None and spec.unreduced for spec in specs)
    explicit = set(traced.program.mesh.axis_types) == {"Explicit"}
    return with_specs_of_types(traced) if partial and explicit else traced


def without_prints(traced: Traced) -> tuple[Traced, str]:
    """Removes `jax.debug.print` and `jax.debug.callback`; also returns a note.

    Used for devices that cannot call Python. No result depends on the removed calls.
    """
    left_out: list[str] = []

    def change(equation: Any) -> list[Any]:
        if equation.primitive.name in DEBUG_CALLS:
            # Record source lines, so that a print in a loop is listed once.
            left_out.append(users_line(equation) or equation.primitive.name)
            return []
        return [with_inner(equation, without)]

    def without(jaxpr: Any) -> Any:
        return without_debug_effects(rewritten(jaxpr, change))

    jaxpr = without(traced.stage.jaxpr)
    if not left_out:
        return traced, ""
    note = str(WithoutPrints(tuple(dict.fromkeys(left_out))))
    specs = traced.out_specs
    if set(traced.program.mesh.axis_types) == {"Explicit"}:
        typed = specs_of_types(traced)
        specs = tuple(
            spec or by_type for spec, by_type in zip(specs, typed, strict=True)
        )
    return _traced_again(traced, jaxpr, specs), note


def _traced_again(
    traced: Traced, jaxpr: Any, out_specs: Sequence[Spec | None]
) -> Traced:
    """Retraces a program with another jaxpr, in the same context."""
    program, mesh = traced.program, traced.mesh
    arguments = argument_structs(program, mesh)
    options: dict[str, Any] = {}
    if any(spec is not None for spec in out_specs):
        outs = tuple(s if s is None else named_sharding(mesh, s) for s in out_specs)
        options["out_shardings"] = outs
    flat = named_as(program, jaxpr_as_fun(jaxpr))
    jitted = jax.jit(flat, donate_argnums=donated_leaves(program), **options)
    with traced.around():
        stage = jitted.trace(*arguments)
        return replace(traced, stage=stage, effects=effect_names(stage.jaxpr))
