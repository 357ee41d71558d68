"""All that jax refuses of a program for its types, and the program that it accepts."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from shardviz.core.backend import jax_compat
from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.failures import source_of
from shardviz.core.backend.jax_compat import jaxpr_as_fun
from shardviz.core.backend.tracing import mesh_context
from shardviz.core.backend.tracing.edited import as_jaxpr
from shardviz.core.backend.tracing.jaxprs import operations
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
    ways = []
    if _OF_SHARD_MAP.search(str(error)):
        ways.append(_varying_form)
    if "Explicit" in program.mesh.axis_types:
        ways.append(explicit_form)
    for way in ways:
        try:
            form = way(program, chosen)
        # The user's function may raise anything without these types. `error`, which jax
        # raised with them, is shown in any case; only what comes after stays unknown.
        except Exception:  # noqa: BLE001
            continue
        first = next(iter(form.refusals), None)
        # Of the results of a shard_map jax says no line.
        if first and source_of(error) in ("", first.source or source_of(error)):
            # In jax's message arguments have the user's names.
            first = replace(first, said=str(error).strip())
            return replace(form, refusals=(first, *form.refusals[1:]))
    return TypedForm()


def explicit_form(
    program: Program, chosen: Mapping[int, int] | None = None
) -> TypedForm:
    """What jax refuses of a program on Explicit axes, and the program that it accepts.

    Raises:
        Exception: what the function raises where nothing is split, either.
    """
    auto = ("Auto",) * len(program.mesh.axis_names)
    try:
        base = as_jaxpr(program.replace(mesh=program.mesh.replace(axis_types=auto)))
    # What names Explicit axes needs them, so that nothing may be split. What the
    # function raises then is raised.
    except Exception:  # noqa: BLE001
        arrays = [one.replace(spec=Spec(), logical=None) for one in program.arrays]
        base = as_jaxpr(program.replace(arrays=tuple(arrays)))
    fn: Any = base.fn
    mesh = abstract_mesh(program.mesh)
    # As the user's own call: without a mesh in context fewer operations are refused.
    users = mesh_context.is_set(mesh_context.context_of(program.context))
    with mesh_context.in_context(mesh if users else mesh_context.NO_MESH):
        structs = argument_structs(program, mesh)
        refusals, made = _evaluated(fn.jaxpr, structs, mesh, chosen)
    if made is None:
        return TypedForm(refusals)
    edited = base.replace(
        fn=fn.with_jaxpr(made), arrays=program.arrays, mesh=program.mesh
    )
    return TypedForm(refusals, edited, base)


def _evaluated(
    jaxpr: Any, arguments: Any, mesh: Any, chosen: Mapping[int, int] | None
) -> tuple[tuple[TypeRefusal, ...], Any]:
    """What is refused, and the edited jaxpr; None where an operation has no edit."""
    evaluation, made = TypedEvaluation(mesh, chosen or {}), None
    with contextlib.suppress(Unanswered):
        made = jax.make_jaxpr(partial(evaluation.run, jaxpr))(*arguments)
    return tuple(evaluation.refusals.values()), made


def _varying_form(program: Program, chosen: Mapping[int, int] | None) -> TypedForm:
    """The same for types in the `shard_map` that jax refuses first.

    Where it is not the whole program, what comes after it is not known.
    """
    call, around = None, False  # whether the user's code is around it
    with jax_compat.complete_tracebacks():
        try:
            trace(program, abstract_mesh(program.mesh))
        # Whatever it is: only the frames of its traceback are looked at.
        except Exception as error:  # noqa: BLE001
            users = False
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if found := jax_compat.shard_map_call(frame):
                    call, around = found, users
                users |= is_user_file(frame.f_code.co_filename)
    if call is None:
        return TypedForm()
    fn, arguments = call.pop("f"), call.pop("args")
    leaves, tree = jax.tree.flatten(arguments)
    types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    with mesh_context.in_context(mesh_context.NO_MESH):
        unchecked = jax.shard_map(fn, **{**call, "check_vma": False})
        jaxpr = jax.make_jaxpr(unchecked)(*tree.unflatten(types))
        for operation in operations(jaxpr):
            if jax_compat.is_backward(operation.equation):
                # jax makes another gradient where it knows what varies.
                return TypedForm()
        refusals, made = _evaluated(jaxpr, types, None, chosen)
    if made is None or around:
        return TypedForm(refusals)
    edited = program.replace(fn=jaxpr_as_fun(made), tree=None, out_specs=None)
    return TypedForm(refusals, edited, edited.replace(fn=jaxpr_as_fun(jaxpr)))
