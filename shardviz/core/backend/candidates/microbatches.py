"""A train step that takes its batch in parts, and adds up what it sums over the batch.

The function is traced once more with a smaller batch. Values whose shapes differ have
rows of the batch; what is computed of them without having rows, such as gradients, is
a sum over the batch, in which each part is one summand.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.remat import function_of, inlined
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.tracing.edited import as_jaxpr
from shardviz.core.backend.tracing.jaxprs import plain_jaxpr, users_line
from shardviz.core.backend.tracing.trace import argument_structs, trace
from shardviz.core.errors import ProgramError
from shardviz.core.format import clause
from shardviz.core.program.candidates import Edit
from shardviz.core.program.checks import Check
from shardviz.core.program.program import Program

# Operations that sum over rows, and loops, in which it is not looked for that.
_SUMS = ("dot_general", "reduce_sum", "conv_general_dilated", "scatter-add", "scan")


def microbatched(program: Program, edit: Edit) -> tuple[Program, Program, Program]:
    """A program that takes its batch in parts.

    Returns:
        The new program; and the sums alone, as the program computes them and as the new
        one does. These are to be compared, since in updated parameters a wrong gradient
        could pass for rounding.

    Raises:
        ProgramError: where the batch does not divide, or more is done with it than
            adding up what is computed of its rows.
    """
    count, arrays, rows = edit.fields["count"], list(program.arrays), []
    for i, array in enumerate(arrays):
        if array.name in edit.fields["arrays"]:
            first, *others = array.shape
            if first % count:
                raise ProgramError(f"{first} rows cannot be split into {count} parts.")
            arrays[i] = array.replace(shape=(first // count, *others))
            rows.append(i)
    traced = trace(program, abstract_mesh(program.mesh))
    smaller = trace(program.replace(arrays=tuple(arrays)), traced.mesh)
    whole, part = inlined(traced.stage.jaxpr), inlined(smaller.stage.jaxpr)
    body = plain_jaxpr(whole)
    sums, operations = _sums_over_rows(body, plain_jaxpr(part))
    # What is after the sums is dead code in a step; what makes them is dead code where
    # they are given.
    step = function_of(part, eqns=operations, outvars=[*sums.values()])
    after = []
    for one in body.eqns:
        after.append(one.replace(outvars=[sums.get(v, v) for v in one.outvars]))
    end = function_of(whole, invars=[*body.invars, *sums], eqns=after)
    before = function_of(whole, outvars=[*sums])

    def totals(*leaves: Any) -> Any:
        split = {}
        for i in rows:
            # Each part has rows of every device, so that none has to be sent.
            parts = leaves[i].reshape(-1, count, *leaves[i].shape[1:])
            split[i] = jnp.swapaxes(parts, 0, 1)

        def add(total: Any, slices: Any) -> Any:
            # Arguments that are no batch are the same in each part.
            found = step(*(dict(enumerate(leaves)) | slices).values())
            return [*map(jnp.add, total, found)], None

        zeros = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in sums]
        return jax.lax.scan(add, zeros, split)[0]

    def accumulated(*leaves: Any) -> Any:
        return end(*leaves, *totals(*leaves))

    with traced.context():
        changed = jax.make_jaxpr(accumulated)(*argument_structs(program, traced.mesh))
    frozen: Any = as_jaxpr(program, traced)
    flat = program.replace(tree=None, out_specs=None, options={})
    return (
        frozen.replace(fn=frozen.fn.with_jaxpr(changed)),
        flat.replace(fn=lambda *leaves: before(*leaves)),
        flat.replace(fn=totals),
    )


def _sums_over_rows(body: Any, small: Any) -> tuple[dict[Any, Any], list[Any]]:
    """The sums over the batch, and the operations that compute them of a part of it.

    Each sum is a variable of `body`, to that of `small`, in which the batch is smaller.
    """
    sums: dict[Any, Any] = {}
    operations: list[Any] = []
    after: set[int] = set()  # ids of variables that come of sums
    for one, other in zip(body.eqns, small.eqns, strict=True):
        if one.primitive is not other.primitive:
            raise ProgramError("With a smaller batch the function does something else.")
        operands = list(other.invars)
        for i, operand in enumerate(one.invars):
            # Of a mean over the batch, a part divides by the rows of the whole.
            if hasattr(operand, "val"):
                operands[i] = operand
        operations.append(other.replace(invars=operands))
        read = zip(one.invars, other.invars, strict=True)
        made = list(zip(one.outvars, other.outvars, strict=True))
        found = dict(itertools.filterfalse(_has_rows, made))
        is_late = not after.isdisjoint(map(id, one.invars))
        if any(map(_has_rows, read)) or len(found) < len(made):
            if is_late or (found and one.primitive.name not in _SUMS):
                raise ProgramError(
                    f"{one.primitive.name}{clause(' ({})', users_line(one))} may do more"
                    " with the batch than adding up what is computed of each row."
                )
            sums |= found
            after.update(map(id, found))
        elif is_late:
            after.update(map(id, one.outvars))
    if not sums:
        raise ProgramError("The results are no sums over the batch.")
    return sums, operations


def _has_rows(pair: tuple[Any, Any]) -> bool:
    """Whether the shape of a value is another one for a smaller batch."""
    return pair[0].aval.shape != pair[1].aval.shape


def compared_sums(program: Program, edit: Edit) -> Check:
    """The sums over the batch next to those over its parts, on simulated devices."""
    _, before, after = microbatched(program, edit)
    return Trials(before).values(after)


APPLY["microbatches"] = lambda program, edit: microbatched(program, edit)[0]
