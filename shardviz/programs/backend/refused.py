"""Finds operations that jax refuses for their types, and builds an edited program."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.array_spec import ArraySpec
from shardviz.base.backend import jax_compat
from shardviz.base.backend.jax_compat import jaxpr_as_fun
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.programs.backend import mesh_context
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.failures import failure, source_of
from shardviz.programs.backend.jaxpr_function import as_jaxpr
from shardviz.programs.backend.jaxpr_names import SHARD_MAP_BODY
from shardviz.programs.backend.jaxprs import operations, plain_jaxpr
from shardviz.programs.backend.shard_map_results import (
    Body,
    ShardMapResults,
    said_by_jax,
)
from shardviz.programs.backend.trace import argument_structs, trace
from shardviz.programs.backend.typed import TypedEvaluation, Unanswered
from shardviz.programs.failure import (
    Failure,
    Raised,
    RaisedForNumbers,
    RefusedByTypes,
)
from shardviz.programs.program import Program
from shardviz.programs.refusals import TypeRefusal

# Patterns in jax's messages about types in a shard_map, or about its results.
_OF_SHARD_MAP = re.compile(r"varying|manual ax|shard_map|check_vma|out_specs")


@dataclass(frozen=True, eq=False)
class TypedForm:
    """A program whose types jax refuses, and its variants.

    Attributes:
        refusals: the refused operations, in program order.
        program: the program with an edit for each refusal; None if one has no edit.
        base: the program without these types; None if `program` is None.
        meaning: the edited program with one device along the axes over which results
            differed, to compute the correct values; None if unavailable.
        is_part: True if these programs cover only the `shard_map` that jax refuses,
            because the user's function around it cannot be edited.
    """

    refusals: tuple[TypeRefusal, ...] = ()
    program: Program | None = None
    base: Program | None = None
    meaning: Program | None = None
    is_part: bool = False


def trace_failure(program: Program, error: BaseException) -> Failure:
    """Returns the Failure of a program that jax could not trace."""
    failed, refusals = failure("trace", error), typed_form(program, error).refusals
    if refusals and type(error).__name__ == "ShardingTypeError":
        # jax's message often does not name the refused operation.
        failed = replace(failed, cause=RefusedByTypes(refusals[0].operation))
    elif failed.cause == Raised() and _has_tuple_of_numbers(program):
        failed = replace(failed, cause=RaisedForNumbers())
    return replace(failed, refusals=refusals)


def _has_tuple_of_numbers(program: Program) -> bool:
    """True if an argument is a tuple of whole numbers."""
    if program.tree is None:
        return False
    for argument in program.tree.unflatten(program.arrays):
        if type(argument) is tuple and argument and all(map(_is_integer, argument)):
            return True
    return False


def _is_integer(value: object) -> bool:
    if not isinstance(value, ArraySpec):
        return False
    return not value.shape and value.dtype.startswith("int")


def typed_form(
    program: Program, error: BaseException, chosen: Mapping[int, int] | None = None
) -> TypedForm:
    """Finds all operations of a program that jax refuses for their types.

    Returns an empty form if the first refusal isn't `error`. In that case the program
    cannot be traced without these types, or behaves differently without them.

    Args:
        program: the program.
        error: the error that tracing raised.
        chosen: refusal number -> index of the edit to continue with; 0 if missing.
    """
    find_forms = []
    if _OF_SHARD_MAP.search(str(error)):
        find_forms.append(_varying_form)
    if "Explicit" in program.mesh.axis_types:
        find_forms.append(explicit_form)
    for find_form in find_forms:
        try:
            form = find_form(program, chosen)
        # The user's function may raise anything without these types. `error` is shown
        # in any case; only later refusals stay unknown.
        except Exception:  # noqa: BLE001
            continue
        first = next(iter(form.refusals), None)
        # For results of a shard_map, jax reports the line of the shard_map call, if any.
        is_result = first is not None and first.operation == "shard_map"
        if first and (is_result or source_of(error) in ("", first.source)):
            # jax's message uses the user's names for arguments.
            first = replace(first, said=str(error).strip())
            return replace(form, refusals=(first, *form.refusals[1:]))
    return TypedForm()


def explicit_form(
    program: Program, chosen: Mapping[int, int] | None = None
) -> TypedForm:
    """Finds all operations that jax refuses on Explicit axes, and edits the program.

    Raises:
        Exception: any exception that the function raises even with unsplit arrays.
    """
    auto = ("Auto",) * len(program.mesh.axis_names)
    try:
        base = as_jaxpr(program.replace(mesh=program.mesh.replace(axis_types=auto)))
    # A function that names Explicit axes needs them, so we keep them and leave the
    # arrays unsplit. Exceptions of this second trace are raised.
    except Exception:  # noqa: BLE001
        arrays = [one.replace(spec=Spec(), logical=None) for one in program.arrays]
        base = as_jaxpr(program.replace(arrays=tuple(arrays)))
    fn: Any = base.fn
    mesh = abstract_mesh(program.mesh)
    # As in the user's call: without a mesh in context, jax refuses fewer operations.
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
    """Returns the refusals and the edited jaxpr; None if an operation has no edit."""
    evaluation, edited = TypedEvaluation(mesh, chosen or {}), None
    with contextlib.suppress(Unanswered):
        edited = jax.make_jaxpr(partial(evaluation.run, jaxpr))(*arguments)
    return tuple(evaluation.refusals.values()), edited


def _varying_form(program: Program, chosen: Mapping[int, int] | None) -> TypedForm:
    """Finds the operations that jax refuses in the first failing `shard_map`.

    If the program does more than this `shard_map`, later refusals stay unknown.
    """
    call, line = _refused_call(program)
    if call is None:
        return TypedForm()
    fn, arguments, mesh = call["f"], call["args"], call["mesh"]
    leaves, tree = jax.tree.flatten(arguments)
    types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    specs = jax.tree.broadcast(call["in_specs"], arguments, is_leaf=_is_spec)
    in_specs = tuple(jax.tree.leaves(specs, is_leaf=_is_spec))
    options = {**call, "in_specs": in_specs, "check_vma": False}
    del options["f"], options["args"]
    evaluations: list[TypedEvaluation] = []

    def users(*shards: Any) -> Any:
        return fn(*tree.unflatten(shards))

    def unchecked(mesh: Any = mesh) -> Any:
        mapped = jax.shard_map(users, **{**options, "mesh": mesh})
        jaxpr, shape = jax.make_jaxpr(mapped, return_shape=True)(*types)
        return jaxpr, jax.tree.structure(shape)

    def as_written(_: Any) -> Any:
        return Body(users)

    def evaluated(mesh: Any) -> Any:
        jaxpr, returned = unchecked(mesh)
        (equation,) = plain_jaxpr(jaxpr).eqns
        evaluation = TypedEvaluation(None, chosen or {})
        evaluations.append(evaluation)
        return Body(partial(evaluation.run, SHARD_MAP_BODY.of(equation)), returned)

    with mesh_context.in_context(mesh_context.NO_MESH):
        base, _ = unchecked()
        arguments = in_specs, call["out_specs"], frozenset(call["axis_names"])
        try:
            results = ShardMapResults(as_written, mesh, *arguments, types, line)
        # jax refuses an operation in the body, or the function raises without a mesh.
        except Exception:  # noqa: BLE001
            for operation in operations(base):
                if jax_compat.is_backward(operation.equation):
                    # With check_vma, jax would derive a different gradient.
                    return TypedForm()
            try:
                results = ShardMapResults(evaluated, mesh, *arguments, types, line)
            except Unanswered:
                return TypedForm(tuple(evaluations[0].refusals.values()))
        refusals = [*evaluations[0].refusals.values()] if evaluations else []
        message = said_by_jax(results.function(), types)
        refusals += results.refusals(message, chosen or {}, len(refusals))
        if not results.has_all:
            return TypedForm(tuple(refusals))
        edited, axes = results.function(), results.axes
        narrow = results.narrow_mesh(axes)
        edited_jaxpr = jax.make_jaxpr(edited)(*types)
    arrays = program.arrays
    if line:
        arrays = _arrays(types, in_specs)
    mapped_program = program.replace(
        arrays=arrays, tree=None, out_specs=None, rules=None
    )
    meaning = None
    if axes and not results.reads_positions:
        sizes: dict[str, Any] = {**program.mesh.shape, **dict.fromkeys(axes, 1)}
        small = make_mesh(axis_types=program.mesh.axis_types, **sizes)
        meaning = mapped_program.replace(fn=results.function(narrow), mesh=small)
    return TypedForm(
        tuple(refusals),
        mapped_program.replace(fn=jaxpr_as_fun(edited_jaxpr)),
        mapped_program.replace(fn=jaxpr_as_fun(base)),
        meaning,
        is_part=bool(line),
    )


def _refused_call(program: Program) -> tuple[dict[str, Any] | None, str]:
    """Returns the arguments of the `shard_map` call in which jax raises, and the user's
    line of that call; `""` if the `shard_map` is the entire program."""
    call, line, users = None, "", ""
    with jax_compat.complete_tracebacks():
        try:
            trace(program, abstract_mesh(program.mesh))
        # Only the traceback's frames are used, so any exception will do.
        except Exception as error:  # noqa: BLE001
            for frame, number in traceback.walk_tb(error.__traceback__):
                if shard_map_call := jax_compat.shard_map_call(frame):
                    call, line = shard_map_call, users
                name = frame.f_code.co_filename
                if is_user_file(name):
                    users = line_in_words(name, number)
    return call, line


def _arrays(types: Sequence[Any], specs: Sequence[Any]) -> tuple[ArraySpec, ...]:
    """Converts the arguments of a `shard_map` to ArraySpecs with numbered names."""
    arrays = []
    for number, (struct, spec) in enumerate(zip(types, specs, strict=True)):
        array = ArraySpec(f"argument {number}", struct.shape, None, str(struct.dtype))
        arrays.append(array.replace(spec=spec_of(spec)))
    return tuple(arrays)


def _is_spec(value: object) -> bool:
    return isinstance(value, jax.P)
