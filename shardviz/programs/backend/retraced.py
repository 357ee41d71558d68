"""A traced program once more: for one device, without prints, with specs of types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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


def for_one_device(traced: Traced) -> Traced:
    """A program on one device, without shardings over a mesh of more, which jax refuses
    there.

    Raises:
        ProgramError: where something else is over such a mesh, as a `shard_map` may be.
    """
    # Most programs name no mesh, and are the same on one device.
    if all(mesh.size == 1 for mesh, _ in meshes_in(traced.stage.jaxpr)):
        return traced
    jaxpr = without_shardings(traced.stage.jaxpr)
    _refuse_meshes_of_more(jaxpr)
    return _traced_again(traced, jaxpr, ())


def trace_unsharded(
    program: Program, single: Program, on_one: Callable[[Program], Traced]
) -> Traced:
    """The unsharded function of a program, traced for one device.

    Some functions can be traced on their own mesh alone: jax refuses partial sums over
    an axis that splits nothing. Then what was traced there is taken, without its
    shardings.

    Args:
        program: the program.
        single: the same on a mesh of one device.
        on_one: traces `single`.

    Raises:
        Exception: whatever the function raises on one device.
    """
    try:
        return for_one_device(on_one(single))
    except Exception as refused:
        # Partial sums, which one device does not have, need Explicit axes.
        if "Explicit" in program.mesh.axis_types:
            with contextlib.suppress(Exception):  # what was raised first says more
                jaxpr = without_shardings(
                    trace(program, abstract_mesh(program.mesh)).stage.jaxpr
                )
                _refuse_meshes_of_more(jaxpr)
                return on_one(single.replace(fn=jaxpr_as_fun(jaxpr), tree=None))
        raise refused


def unsharded(program: Program) -> Program:
    """The program on a mesh of the same axes, all of size 1: nothing is split.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(abs, (ArraySpec("x", (8,)),), make_mesh(data=4, model=2))
    >>> unsharded(program).mesh.shape
    {'data': 1, 'model': 1}
    """
    mesh = program.mesh
    # The axes keep their names, which the function may say: psum(x, "data").
    ones = MeshSpec(mesh.axis_names, (1,) * len(mesh.axis_sizes), mesh.axis_types)
    # Nothing is donated: both runs take the same values.
    options = {k: v for k, v in program.options.items() if k != "donate"}
    arrays = tuple(a.replace(spec=Spec()) for a in program.arrays)
    return program.replace(mesh=ones, arrays=arrays, out_specs=None, options=options)


def _refuse_meshes_of_more(jaxpr: Any) -> None:
    """Refuses a program in which something is over a mesh of several devices.

    Raises:
        ProgramError: with the operation.
    """
    for mesh, equation in meshes_in(jaxpr):
        if mesh.size > 1:
            raise ProgramError(
                f"{naming_operation(equation)} is over a mesh of {plural(mesh.size, 'device')},"
                " which the function names."
            )


def spec_of_type(aval: Any) -> Spec | None:
    """How a value of a jax type is split, as Explicit axes say; else None."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return None
    # On Auto axes a type says nothing, since the compiler chooses.
    explicit = any(t.name == "Explicit" for t in sharding.mesh.axis_types or ())
    return spec_of(sharding.spec) if explicit else None


def specs_of_types(traced: Traced) -> tuple[Spec | None, ...]:
    """`spec_of_type` of every result of a program."""
    return tuple(map(spec_of_type, traced.stage.jaxpr.out_avals))


def with_specs_of_types(traced: Traced) -> Traced:
    """A program whose results are requested as their types say, where nothing else is.

    For devices jax splits a result as its type says. Without any, it has to be given
    the specs: the lowered module does not say them, and partial sums would be added up.

    Args:
        traced: a program on a mesh whose axes are all Explicit: jax takes no spec of
            some alone.
    """
    rows = zip(traced.outputs, traced.out_specs, specs_of_types(traced), strict=True)
    specs = {output.name: own or typed for output, own, typed in rows}
    program = traced.program
    found = trace(program.replace(out_specs=SpecsByName(specs)), traced.mesh)
    return replace(found, program=program, out_specs=traced.out_specs)


def with_partial_sums(traced: Traced) -> Traced:
    """`with_specs_of_types` where all axes are Explicit and one is a partial sum."""
    specs = specs_of_types(traced)
    partial = any(spec is not None and spec.unreduced for spec in specs)
    explicit = set(traced.program.mesh.axis_types) == {"Explicit"}
    return with_specs_of_types(traced) if partial and explicit else traced


def without_prints(traced: Traced) -> tuple[Traced, str]:
    """A program without `jax.debug.print` and `jax.debug.callback`, and a note on it.

    For devices that cannot call Python: no result depends on what is left out.
    """
    left_out: list[str] = []

    def change(equation: Any) -> list[Any]:
        if equation.primitive.name in DEBUG_CALLS:
            # By line, so that a print in a loop is named once.
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
        specs = tuple(own or spec for own, spec in zip(specs, typed, strict=True))
    return _traced_again(traced, jaxpr, specs), note


def _traced_again(
    traced: Traced, jaxpr: Any, out_specs: Sequence[Spec | None]
) -> Traced:
    """A program with another jaxpr, traced where it was traced before."""
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
