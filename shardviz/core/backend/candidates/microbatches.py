"""A train step that takes its batch in parts, and adds up what it sums over the batch.

The function is traced once more with a smaller batch. Values whose shapes differ have
rows of the batch; what is computed of them without having rows, such as gradients, is
a sum over the batch, in which each part is one summand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    operations = _sorted_operations(body, small, has_rows)
    inside, wanted = operations.inside, operations.wanted
    made = {v for one in inside for v in one.outvars}
    cut = [small.invars[i] for i in rows]
    outer = {}
    for full, mine in twins.items():
        if mine not in made and mine not in cut and mine not in small.constvars:
            if any(mine is v for one in inside for v in one.invars):
                outer[full] = mine

    def function(jaxpr: Any, **parts: Any) -> Callable[..., Any]:
        return jaxpr_as_fun(with_body(jaxpr, plain_jaxpr(jaxpr).replace(**parts)))

    begin = function(whole, eqns=operations.early, outvars=[*outer])
    step_sums = [twins[v] for v in wanted]
    step = function(
        part, invars=[*outer.values(), *cut], eqns=inside, outvars=step_sums
    )
    others = operations.early + operations.late
    end = function(whole, invars=[*body.invars, *wanted], eqns=others)

    def totals(*leaves: Any) -> Any:
        fixed = begin(*leaves)
        stacked = []
        for i in rows:
            # Each part has rows of every device, so that none has to be sent.
            split = leaves[i].reshape(-1, count, *leaves[i].shape[1:])
            stacked.append(jnp.swapaxes(split, 0, 1))

        def add(total: Any, slices: Any) -> Any:
            found = step(*fixed, *slices)
            return [a + b for a, b in zip(total, found, strict=True)], None

        zeros = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in wanted]
        return jax.lax.scan(add, zeros, stacked)[0]

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


@dataclass(frozen=True)
class _Operations:
    """The operations of a program, by what they have to do with the batch.

    Attributes:
        early: what reads nothing of the batch.
        inside: what has rows of the batch, as it is in the program of a smaller one.
        late: what reads sums over the batch.
        wanted: the sums that are read by `late`, or are results.
    """

    early: list[Any]
    inside: list[Any]
    late: list[Any]
    wanted: list[Any]


def _sorted_operations(
    body: Any, small: Any, has_rows: Callable[[Any], bool]
) -> _Operations:
    """Sorts the operations of a jaxpr.

    Args:
        body: the jaxpr of the program.
        small: that of the same program with a smaller batch.
        has_rows: whether a variable of `body` has rows of the batch.

    Raises:
        ProgramError: where a row needs a value over the batch, or the results have rows.
    """
    early, inside, late = [], [], []
    sums: dict[Any, None] = {}
    after: set[Any] = set()  # variables that come of sums over the batch
    for one, other in zip(body.eqns, small.eqns, strict=True):
        reads = list(filter(is_variable, one.invars))
        if any(map(has_rows, [*reads, *one.outvars])):
            if not after.isdisjoint(reads):
                raise ProgramError(
                    f"Each row needs a value over the whole batch: {users_line(one)}."
                )
            inside.append(_with_literals_of(one, other))
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
    results = list(filter(is_variable, body.outvars))
    read = set(results)
    for one in late:
        read.update(filter(is_variable, one.invars))
    wanted = [v for v in sums if v in read]
    if not wanted or any(map(has_rows, results)):
        raise ProgramError("The results are no sums over the batch.")
    return _Operations(early, inside, late, wanted)


def _with_literals_of(one: Any, other: Any) -> Any:
    """The operation of a smaller batch, with the numbers of the whole one.

    Of a mean over the batch, a part divides by the rows of the whole.
    """
    given = []
    for full, mine in zip(one.invars, other.invars, strict=True):
        given.append(mine if is_variable(mine) else full)
    return other.replace(invars=given)


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
