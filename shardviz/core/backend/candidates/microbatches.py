"""A train step that takes its batch in parts, and adds up what it sums over the batch.

The function is traced once more with a smaller batch. Values whose shapes differ have
rows of the batch; what is computed of them without having rows, such as gradients, is
a sum over the batch, in which each part is one summand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.candidates.remat import inlined, is_variable
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.tracing.edited import JaxprFunction, as_jaxpr
from shardviz.core.backend.tracing.jaxprs import plain_jaxpr, users_line, with_body
from shardviz.core.backend.tracing.trace import Traced, argument_structs, trace
from shardviz.core.errors import ProgramError
from shardviz.core.program.candidates import Edit
from shardviz.core.program.checks import Check
from shardviz.core.program.program import Program

# Operations that sum over rows, and loops, in which it is not looked for that.
_SUMS = ("dot_general", "reduce_sum", "conv_general_dilated", "scatter-add", "scan")


def batch_arrays(traced: Traced) -> tuple[int, ...]:
    """The positions of the arguments that hold a batch; `()` where none is seen.

    They are not returned with new values, as parameters are, and have as many rows as
    the largest of them.
    """
    returned = {(output.shape, str(output.dtype)) for output in traced.outputs}
    arrays = {}
    for i, array in enumerate(traced.program.arrays):
        if array.rank and (array.shape, array.dtype) not in returned:
            arrays[i] = array
    rows = max(arrays.values(), key=lambda a: a.bytes).shape[0] if arrays else 0
    return tuple(i for i, array in arrays.items() if array.shape[0] == rows)


def microbatched(
    program: Program, traced: Traced, count: int, rows: tuple[int, ...]
) -> tuple[Program, Program, Program]:
    """A program that takes its batch in parts.

    Args:
        program: the program, with the user's function.
        traced: what was traced of it.
        count: how many parts there are.
        rows: the positions of the arrays whose first dimension is the batch.

    Returns:
        The new program; and the sums alone, as the program computes them and as the new
        one does. These are to be compared, since in updated parameters a wrong gradient
        could pass for rounding.

    Raises:
        ProgramError: where the batch does not divide, or a row needs what is computed
            of the whole batch, such as its mean.
    """
    arrays = list(program.arrays)
    for i in rows:
        first, *others = arrays[i].shape
        if first % count:
            raise ProgramError(f"{first} rows cannot be split into {count} parts.")
        arrays[i] = arrays[i].replace(shape=(first // count, *others))
    smaller = trace(program.replace(arrays=tuple(arrays)), traced.mesh)
    whole, part = inlined(traced.stage.jaxpr), inlined(smaller.stage.jaxpr)
    body, small = plain_jaxpr(whole), plain_jaxpr(part)
    names = [one.primitive.name for one in body.eqns]
    if names != [one.primitive.name for one in small.eqns]:
        raise ProgramError("With a smaller batch the function does something else.")
    twins = dict(zip(body.invars, small.invars, strict=True))
    twins |= dict(zip(body.constvars, small.constvars, strict=False))
    for one, other in zip(body.eqns, small.eqns, strict=True):
        twins |= dict(zip(one.outvars, other.outvars, strict=True))

    def has_rows(variable: Any) -> bool:
        return variable.aval.shape != twins[variable].aval.shape

    early, inside, late = [], [], []
    sums: dict[Any, None] = {}
    after: set[Any] = set()
    for one, other in zip(body.eqns, small.eqns, strict=True):
        reads = list(filter(is_variable, one.invars))
        if any(map(has_rows, [*reads, *one.outvars])):
            if not after.isdisjoint(reads):
                raise ProgramError(
                    f"Each row needs a value over the whole batch: {users_line(one)}."
                )
            # Of a mean over the batch, a part divides by the rows of the whole.
            pairs = zip(one.invars, other.invars, strict=True)
            given = [mine if is_variable(mine) else full for full, mine in pairs]
            inside.append(other.replace(invars=given))
            found = [v for v in one.outvars if not has_rows(v)]
            if found and one.primitive.name not in _SUMS:
                raise ProgramError(
                    f"{one.primitive.name} is no sum over the batch: {users_line(one)}."
                )
            sums |= dict.fromkeys(found)
        elif after.isdisjoint(reads) and sums.keys().isdisjoint(reads):
            early.append(one)
        else:
            late.append(one)
            after.update(one.outvars)
    read = set(filter(is_variable, body.outvars))
    for one in late:
        read.update(filter(is_variable, one.invars))
    wanted = [v for v in sums if v in read]
    if not wanted or any(map(has_rows, filter(is_variable, body.outvars))):
        raise ProgramError("The results are no sums over the batch.")

    made = {v for one in inside for v in one.outvars}
    cut = [small.invars[i] for i in rows]
    outer = {}
    for full, mine in twins.items():
        if mine not in made and mine not in cut and mine not in small.constvars:
            if any(mine is v for one in inside for v in one.invars):
                outer[full] = mine

    def function(jaxpr: Any, **parts: Any) -> Callable[..., Any]:
        return jaxpr_as_fun(with_body(jaxpr, plain_jaxpr(jaxpr).replace(**parts)))

    begin = function(whole, eqns=early, outvars=[*outer])
    step_sums = [twins[v] for v in wanted]
    step = function(
        part, invars=[*outer.values(), *cut], eqns=inside, outvars=step_sums
    )
    end = function(whole, invars=[*body.invars, *wanted], eqns=early + late)

    def totals(*leaves: Any) -> Any:
        fixed = begin(*leaves)
        parts = []
        for i in rows:
            # Each part has rows of every device, so that none has to be sent.
            split = leaves[i].reshape(-1, count, *leaves[i].shape[1:])
            parts.append(jnp.swapaxes(split, 0, 1))

        def add(total: Any, slices: Any) -> Any:
            found = step(*fixed, *slices)
            return [a + b for a, b in zip(total, found, strict=True)], None

        zeros = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in wanted]
        return jax.lax.scan(add, zeros, parts)[0]

    def accumulated(*leaves: Any) -> Any:
        return end(*leaves, *totals(*leaves))

    frozen = as_jaxpr(program, traced)
    assert isinstance(frozen.fn, JaxprFunction)
    with traced.context():
        changed = jax.make_jaxpr(accumulated)(*argument_structs(program, traced.mesh))
    before = function(whole, outvars=wanted)
    flat = program.replace(tree=None, out_specs=None, options={})
    return (
        frozen.replace(fn=frozen.fn.with_jaxpr(changed)),
        flat.replace(fn=lambda *leaves: before(*leaves)),
        flat.replace(fn=lambda *leaves: totals(*leaves)),
    )


def compared_sums(program: Program, edit: Edit) -> Check:
    """The sums over the batch next to those over its parts, on simulated devices."""
    before, after = _of_edit(program, edit)[1:]
    return Trials(before).values(after)


def _of_edit(program: Program, edit: Edit) -> tuple[Program, Program, Program]:
    traced = trace(program, abstract_mesh(program.mesh))
    names = [array.name for array in program.arrays]
    rows = tuple(names.index(name) for name in edit.fields["arrays"])
    return microbatched(program, traced, edit.fields["count"], rows)


APPLY["microbatches"] = lambda program, edit: _of_edit(program, edit)[0]
