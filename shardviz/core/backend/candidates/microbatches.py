"""A train step that takes its batch in parts, and adds up what it sums over the batch.

The function is traced once more with a smaller batch. Values whose shapes differ have
rows of the batch; what is computed of them without having rows, such as gradients, is
a sum over the batch, in which each part is one summand.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.remat import inlined
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.tracing.edited import as_jaxpr
from shardviz.core.backend.tracing.jaxprs import plain_jaxpr, users_line, with_body
from shardviz.core.backend.tracing.trace import argument_structs, trace
from shardviz.core.errors import ProgramError
from shardviz.core.program.candidates import Edit
from shardviz.core.program.checks import Check
from shardviz.core.program.program import Program

# Operations that sum over rows, and loops, in which it is not looked for that.
_SUMS = ("dot_general", "reduce_sum", "conv_general_dilated", "scatter-add", "scan")


def microbatched(program: Program, edit: Edit) -> tuple[Program, Program, Program]:
    """A program that takes its batch in parts.

    Args:
        program: the program, with the user's function.
        edit: how many parts there are, and the arrays whose first dimension is the
            batch.

    Returns:
        The new program; and the sums alone, as the program computes them and as the new
        one does. These are to be compared, since in updated parameters a wrong gradient
        could pass for rounding.

    Raises:
        ProgramError: where the batch does not divide, or a row needs what is computed
            of the whole batch, such as its mean.
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
    sums, inside, outside = _sorted_operations(plain_jaxpr(whole), plain_jaxpr(part))

    def function(jaxpr: Any, **parts: Any) -> Any:
        return jaxpr_as_fun(with_body(jaxpr, plain_jaxpr(jaxpr).replace(**parts)))

    before = function(whole, outvars=[*sums])
    step = function(part, eqns=inside, outvars=[*sums.values()])
    given = [*plain_jaxpr(whole).invars, *sums]
    end = function(whole, invars=given, eqns=outside)

    def totals(*leaves: Any) -> Any:
        stacked = {}
        for i in rows:
            # Each part has rows of every device, so that none has to be sent.
            split = leaves[i].reshape(-1, count, *leaves[i].shape[1:])
            stacked[i] = jnp.swapaxes(split, 0, 1)

        def add(total: Any, slices: Any) -> Any:
            found = step(*(dict(enumerate(leaves)) | slices).values())
            return [*map(jnp.add, total, found)], None

        zeros = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in sums]
        return jax.lax.scan(add, zeros, stacked)[0]

    with traced.context():
        changed = jax.make_jaxpr(lambda *leaves: end(*leaves, *totals(*leaves)))(
            *argument_structs(program, traced.mesh)
        )
    frozen: Any = as_jaxpr(program, traced)
    flat = program.replace(tree=None, out_specs=None, options={})
    return (
        frozen.replace(fn=frozen.fn.with_jaxpr(changed)),
        flat.replace(fn=lambda *leaves: before(*leaves)),
        flat.replace(fn=totals),
    )


def _sorted_operations(body: Any, small: Any) -> tuple[dict[Any, Any], list, list]:
    """Sorts the operations of a jaxpr by whether they have to do with single rows.

    Args:
        body: the jaxpr of the program.
        small: that of the same program with a smaller batch.

    Returns:
        The sums over the batch, from `body` to `small`; the operations of `small` that
        make them; those of `body` that make the results of them. What has nothing to do
        with the batch is in both.

    Raises:
        ProgramError: where a row needs a value over the batch, or the results have rows.
    """
    found: dict[Any, Any] = {}
    inside, outside = [], []
    after: set[Any] = set()  # variables that come of sums over the batch
    needed = set(filter(_is_variable, body.outvars))
    if [e.primitive for e in body.eqns] != [e.primitive for e in small.eqns]:
        raise ProgramError("With a smaller batch the function does something else.")
    for one, other in zip(body.eqns, small.eqns, strict=True):
        reads = set(filter(_is_variable, one.invars))
        # Of a mean over the batch, a part divides by the rows of the whole.
        pairs = zip(one.invars, other.invars, strict=True)
        invars = [mine if _is_variable(mine) else full for full, mine in pairs]
        other = other.replace(invars=invars)
        made = dict(zip(one.outvars, other.outvars, strict=True))
        sums = {v: mine for v, mine in made.items() if not _has_rows((v, mine))}
        operands = zip(one.invars, other.invars, strict=True)
        if any(map(_has_rows, operands)) or len(sums) < len(made):
            if not after.isdisjoint(reads):
                raise ProgramError(
                    f"Each row needs a value over the whole batch: {users_line(one)}."
                )
            if sums and one.primitive.name not in _SUMS:
                raise ProgramError(
                    f"{one.primitive.name} is no sum over the batch: {users_line(one)}."
                )
            inside.append(other)
            found |= sums
            after.update(sums)
        elif after.isdisjoint(reads):
            inside.append(other)
            outside.append(one)
        else:
            outside.append(one)
            after.update(one.outvars)
            needed |= reads
    wanted = {}
    for variable, mine in found.items():
        if variable in needed:
            wanted[variable] = mine
    if not wanted or any(map(_has_rows, zip(body.outvars, small.outvars, strict=True))):
        raise ProgramError("The results are no sums over the batch.")
    return wanted, inside, outside


def _has_rows(pair: tuple[Any, Any]) -> bool:
    """Whether the shape of a value is another one for a smaller batch."""
    return pair[0].aval.shape != pair[1].aval.shape


def _is_variable(value: Any) -> bool:
    return not hasattr(value, "val")  # a literal has one, and no hash


def compared_sums(program: Program, edit: Edit) -> Check:
    """The sums over the batch next to those over its parts, on simulated devices."""
    _, before, after = microbatched(program, edit)
    return Trials(before).values(after)


APPLY["microbatches"] = lambda program, edit: microbatched(program, edit)[0]
