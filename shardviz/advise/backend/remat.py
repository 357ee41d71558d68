"""Rematerialisation of a traced train step, as `jax.checkpoint` would do it.

A gradient through `jax.lax.scan` becomes two loops: one stacks what the backward pass
needs, the other reads the stacks in reverse. Here the program is evaluated once more.
Its loops also stack what each step begins with, and what jax's own policies let them
save; from these the second loop computes the other stacks again, a step at a time.
Stacks without readers are then dead code, which jax removes from every program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from shardviz.advise.edits import Rematerialise
from shardviz.base.backend.jax_compat import (
    Primitive,
    effect_class,
    jaxpr_as_fun,
    scan_counts,
)
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import MeshSpec
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend import jaxprs

#: Policies of `jax.checkpoint_policies`, the one that saves least first.
POLICIES = ("nothing_saveable", "dots_with_no_batch_dims_saveable", "dots_saveable")
_Function = Callable[..., Any]


def rematerialised(jaxpr: Any, policy: str) -> tuple[Any, tuple[str, ...]]:
    """A program whose loops save less for their backward loops.

    Args:
        jaxpr: a traced program, which takes gradients.
        policy: one of POLICIES: what a loop may still save, beside its carry.

    Returns:
        The program, and the lines of the loops that save less, which may be none.

    >>> import jax, jax.numpy as jnp
    >>> body = lambda h, w: (jnp.tanh(h @ w), None)
    >>> loss = lambda ws, h: jax.lax.scan(body, h, ws)[0].sum()
    >>> step = jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 8, 8)), jnp.ones((4, 8)))
    >>> len(rematerialised(step, "nothing_saveable")[1])
    1
    """
    loops = _Loops(getattr(jax.checkpoint_policies, policy))
    changed = inlined(jaxpr, loops.function_for)
    return (changed if loops.lines else jaxpr), tuple(loops.lines)


@dataclass(frozen=True)
class _Loops:
    """The loops of a program that is evaluated, under a policy of jax."""

    may_save: _Function
    lines: dict[str, None] = field(default_factory=dict)  # of loops that save less
    # By the id of a stack, and whether the loop that may compute it again is in reverse:
    # a line, the stacks that it needs, and what gives values of a step by those ids.
    again: dict[tuple[int, bool], tuple[Any, ...]] = field(default_factory=dict)

    def function_for(self, equation: Any) -> _Function | None:
        """What evaluates a loop; None for other operations."""
        # A print must run only once. Collectives in a shard_map have an effect, too.
        effects = set(map(effect_class, equation.effects)) - {"NamedAxisEffect"}
        is_loop = equation.primitive.name == names.SCAN and not effects
        return partial(self._evaluate, equation) if is_loop else None

    def _evaluate(self, equation: Any, *operands: Any) -> list[Any]:
        consts, count = scan_counts(equation)
        reverse = names.REVERSE.of(equation)
        start = consts + count
        constants, slices = operands[:consts], operands[start:]
        # Steps of microbatches are loops around the loops over layers.
        jaxpr = inlined(names.SCAN_BODY.of(equation), self.function_for)
        body = jaxprs.plain_jaxpr(jaxpr)
        before, after = body.invars, body.outvars
        saved, computing, computed = before[consts:start], [], set()
        for operation in body.eqns:
            avals = [variable.aval for variable in operation.invars]
            if self.may_save(operation.primitive, *avals, **operation.params):
                saved = saved + operation.outvars
            else:
                computing.append(operation)
                computed.update(map(id, operation.outvars))
        once = function_of(jaxpr, outvars=after + saved)
        values = before[:consts] + before[start:] + saved
        again = function_of(jaxpr, invars=values, eqns=computing, outvars=after[count:])
        needed, values_of_step = (), dict  # none
        for stack in slices:
            step_results = self.again.get((id(stack), reverse))
            if step_results is not None:
                line, needed, values_of_step = step_results
                self.lines[line] = None

        def step(carried: Any, values: Any) -> Any:
            own_slices, saved_slices = list(values[0]), values[1]
            # The values that the forward loop would have stacked in this step.
            again_values = values_of_step(*saved_slices)
            for i, stack in enumerate(slices):
                own_slices[i] = again_values.get(id(stack), own_slices[i])
            step_results = once(*constants, *carried, *own_slices)
            return step_results[:count], (
                step_results[count : len(after)],
                step_results[len(after) :],
            )

        length, unroll = names.LENGTH.of(equation), names.UNROLL.of(equation)
        carry = list(operands[consts:start])
        end, (stacks, saved_stacks) = jax.lax.scan(
            step, carry, (slices, needed), length=length, reverse=reverse, unroll=unroll
        )

        def values_again(*values: Any) -> dict[int, Any]:
            return dict(zip(map(id, stacks), again(*constants, *values), strict=True))

        for stack, variable in zip(stacks, after[count:], strict=True):
            # To copy what is saved is not worth another loop.
            if id(variable) in computed:
                key = id(stack), not reverse
                line = jaxprs.users_line(equation)
                self.again[key] = line, (*slices, *saved_stacks), values_again
        return [*end, *stacks]


def function_of(jaxpr: Any, **parts: Any) -> _Function:
    """A jaxpr as a function, with other operations, arguments or results."""
    body = jaxprs.plain_jaxpr(jaxpr).replace(**parts)
    return jaxpr_as_fun(jaxprs.with_body(jaxpr, body))


class _Call(Primitive):
    """An operation that is a Python function, called where a jaxpr is evaluated."""

    multiple_results = True

    def bind(self, *operands: Any, function: _Function) -> Any:
        return function(*operands)


def inlined(jaxpr: Any, function_for: _Function = lambda _: None) -> Any:
    """A jaxpr with the functions under `jax.jit` in place, as XLA puts them.

    Args:
        jaxpr: the jaxpr. Functions in it that have shardings stay.
        function_for: gives what takes the place of an operation; None to keep it.
    """

    def changed(equation: Any) -> list[Any]:
        function = function_for(equation)
        if equation.primitive.name == names.SHARD_MAP:
            # It evaluates its jaxpr itself, in a context of its own.
            inside = partial(jaxprs.rewritten, change=changed)
            return [jaxprs.with_inner(equation, inside)]
        if equation.primitive.name == names.JIT:
            shardings = [*names.IN_SHARDINGS.of(equation)]
            shardings += names.OUT_SHARDINGS.of(equation)
            if set(map(str, shardings)) <= {"UnspecifiedValue"}:
                function = jaxpr_as_fun(
                    jaxprs.rewritten(names.CALL_BODY.of(equation), changed)
                )
        if function is None:
            return [equation]
        params = {"function": function}
        return [equation.replace(primitive=_Call("call"), params=params)]

    function = jaxpr_as_fun(jaxprs.rewritten(jaxpr, changed))
    return jax.make_jaxpr(function)(*jaxpr.in_avals)


def with_rematerialisation(jaxpr: Any, edit: Rematerialise, mesh: MeshSpec) -> Any:
    """A jaxpr whose loops save less for their backward loops.

    Raises:
        ProgramError: if no loop saves less.
    """
    changed, lines = rematerialised(jaxpr, edit.policy)
    if not lines:
        raise ProgramError("No loop saves values for a loop of the backward pass.")
    return changed
