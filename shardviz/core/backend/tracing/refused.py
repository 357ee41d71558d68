"""All that jax refuses of a program for its types, and the program that it accepts."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.failures import source_of
from shardviz.core.backend.jax_compat import (
    complete_tracebacks,
    is_backward,
    shard_map_call,
)
from shardviz.core.backend.tracing.edited import JaxprFunction, as_jaxpr
from shardviz.core.backend.tracing.jaxprs import operations
from shardviz.core.backend.tracing.mesh_context import NO_MESH, in_context
from shardviz.core.backend.tracing.trace import argument_structs, trace
from shardviz.core.backend.tracing.typed import TypedEvaluation, Unanswered
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.program import Program
from shardviz.core.program.refusals import TypeRefusal
from shardviz.core.xla.module import is_user_file

# What jax says of types inside of a shard_map, or at its end.
_OF_SHARD_MAP = re.compile(r"varying|manual ax|shard_map|check_vma|out_specs")


@dataclass(frozen=True, eq=False)
class TypedForm:
    """A program under types that jax refuses.

    Attributes:
        refusals: what it refuses, in the order of the program.
        program: the program with an edit for each; None where one has none.
        base: the program without these types; None where there is no other.
    """

    refusals: tuple[TypeRefusal, ...] = ()
    program: Program | None = None
    base: Program | None = None


def typed_form(
    program: Program, error: BaseException, chosen: Mapping[int, int] | None = None
) -> TypedForm:
    """All that jax refuses of a program for its types, where it refused it with `error`.

    Nothing is said where what is found does not begin with that error: then the program
    cannot be traced without these types, or does something else than with them.

    Args:
        program: the program.
        error: what tracing raised.
        chosen: which edit to go on with, by the number of a refusal; else the first.
    """
    form = TypedForm()
    try:
        if _OF_SHARD_MAP.search(str(error)):
            form = _varying_form(program, chosen)
        if not form.refusals and "Explicit" in program.mesh.axis_types:
            form = explicit_form(program, chosen)
    # The user's function may raise anything without these types. `error`, which jax
    # raised with them, is shown in any case; only what comes after it stays unknown.
    except Exception:  # noqa: BLE001
        return TypedForm()
    if not form.refusals:
        return form
    first = form.refusals[0]
    # Of the results of a shard_map jax says no line.
    if first.operation != "shard_map" and source_of(error) not in ("", first.source):
        return TypedForm()
    # In jax's message arguments have the user's names.
    first = replace(first, said=str(error).strip())
    return replace(form, refusals=(first, *form.refusals[1:]))


def explicit_form(
    program: Program, chosen: Mapping[int, int] | None = None
) -> TypedForm:
    """What jax refuses of a program on Explicit axes, and the program that it accepts.

    Args:
        program: a program whose mesh has Explicit axes.
        chosen: which edit to go on with, by the number of a refusal; else the first.

    Raises:
        Exception: what the function raises where nothing is split, either.
    """
    base, mesh = _without_types(program), abstract_mesh(program.mesh)
    assert isinstance(base.fn, JaxprFunction)
    jaxpr, evaluation = base.fn.jaxpr, TypedEvaluation(mesh, chosen)
    with in_context(mesh):
        made = _made(evaluation, jaxpr, argument_structs(program, mesh))
    if made is None:
        return TypedForm(tuple(evaluation.refusals))
    edited = base.replace(
        fn=base.fn.with_jaxpr(made), arrays=program.arrays, mesh=program.mesh
    )
    return TypedForm(tuple(evaluation.refusals), edited, base)


def _made(evaluation: TypedEvaluation, jaxpr: Any, arguments: Any) -> Any | None:
    """The jaxpr of the edited program; None where an operation has no edit."""
    try:
        return jax.make_jaxpr(lambda *values: evaluation.run(jaxpr, *values))(
            *arguments
        )
    except Unanswered:
        return None


def _without_types(program: Program) -> Program:
    """A program as a jaxpr, traced where types say nothing: on Auto axes, or, as what
    names Explicit axes needs them, with arguments that are not split.
    """
    auto = program.mesh.replace(axis_types=("Auto",) * len(program.mesh.axis_names))
    whole = [a.replace(spec=Spec(), logical=None) for a in program.arrays]
    last: Exception | None = None
    for one in (program.replace(mesh=auto), program.replace(arrays=tuple(whole))):
        try:
            return as_jaxpr(one, trace(one, abstract_mesh(one.mesh)))
        # The other one may be traced; what the last one said is raised below.
        except Exception as error:  # noqa: BLE001
            last = error
    assert last is not None
    raise last


def _varying_form(program: Program, chosen: Mapping[int, int] | None) -> TypedForm:
    """The same for types in the `shard_map` that jax refuses first.

    Where it is not the whole program, what comes after it is not known.
    """
    call = _refused_shard_map(program)
    if call is None:
        return TypedForm()
    function, arguments, leaves = call["f"], call["args"], jax.tree.leaves(call["args"])
    options = {k: call[k] for k in ("mesh", "in_specs", "out_specs", "axis_names")}
    types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    inputs = jax.tree.unflatten(jax.tree.structure(arguments), types)
    with in_context(NO_MESH):
        unchecked = jax.shard_map(function, check_vma=False, **options)
        jaxpr = jax.make_jaxpr(unchecked)(*inputs)
        if any(is_backward(operation.equation) for operation in operations(jaxpr)):
            # jax makes another gradient where it knows what varies.
            return TypedForm()
        evaluation = TypedEvaluation(None, chosen)
        made = _made(evaluation, jaxpr, types)
    refusals = tuple(evaluation.refusals)
    if made is None or not call["whole"]:
        return TypedForm(refusals)
    forms = [
        program.replace(fn=jaxpr_as_fun(one), tree=None, out_specs=None)
        for one in (made, jaxpr)
    ]
    return TypedForm(refusals, *forms)


def _refused_shard_map(program: Program) -> dict[str, Any] | None:
    """What the innermost `shard_map` was given in which tracing ends; None for none."""
    found: dict[str, Any] | None = None
    with complete_tracebacks():
        try:
            trace(program, abstract_mesh(program.mesh))
        # Whatever it is: only the frames of its traceback are looked at.
        except Exception as error:  # noqa: BLE001
            whole = True  # nothing of the user's around it
            for frame, _ in traceback.walk_tb(error.__traceback__):
                call = shard_map_call(frame)
                if call is not None:
                    found = {**call, "whole": whole and found is None}
                whole &= not is_user_file(frame.f_code.co_filename)
    return found
