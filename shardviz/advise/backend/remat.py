"""Rematerialises a traced train step, as `jax.checkpoint` would.

A gradient through `jax.lax.scan` becomes two loops: the forward loop stacks residuals,
and the backward loop reads them in reverse. This module evaluates the program again.
Each forward loop now also stacks its carry and the values that a jax policy lets it
save. From these, the backward loop recomputes the other residuals, one iteration at a
time. The stacks that nothing reads any more are dead code, which jax removes.
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

#: Names in `jax.checkpoint_policies`, starting with the one that saves least.
POLICIES = ("nothing_saveable", "dots_with_no_batch_dims_saveable", "dots_saveable")
_Function = Callable[..., Any]


def rematerialised(jaxpr: Any, policy: str) -> tuple[Any, tuple[str, ...]]:
    """Returns a program whose loops save fewer residuals for their backward loops.

    Args:
        jaxpr: a traced program that computes a gradient.
        policy: one of POLICIES. It decides what a loop may save in addition to its
            carry.

    Returns:
        The program, and the source lines of loops that now save less; can be empty.

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
    """Evaluates the loops of a program under a jax checkpoint policy."""

    may_save: _Function
    # Source lines of the loops that save less.
    lines: dict[str, None] = field(default_factory=dict)
    # (id of a stack, whether the recomputing loop is reversed) -> (source line of the
    # forward loop, stacks to recompute from, function that recomputes one iteration).
    again: dict[tuple[int, bool], tuple[Any, ...]] = field(default_factory=dict)

    def function_for(self, equation: Any) -> _Function | None:
        """Returns a function that evaluates a loop; None for other operations."""
        # A loop with a print can't be recomputed. NamedAxisEffect, the effect of
        # collectives in a shard_map, is harmless.
        effects = set(map(effect_class, equation.effects)) - {"NamedAxisEffect"}
        is_loop = equation.primitive.name == names.SCAN and not effects
        return partial(self._evaluate, equation) if is_loop else None

    def _evaluate(self, equation: Any, *operands: Any) -> list[Any]:
        consts, count = scan_counts(equation)
        reverse = names.REVERSE.of(equation)
        start = consts + count
        constants, slices = operands[:consts], operands[start:]
        # Loops can be nested: one over microbatches around one over layers.
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
        needed, values_of_step = (), dict  # nothing to recompute
        for stack in slices:
            step_results = self.again.get((id(stack), reverse))
            if step_results is not None:
                line, needed, values_of_step = step_results
                self.lines[line] = None

        def step(carried: Any, values: Any) -> Any:
            own_slices, saved_slices = list(values[0]), values[1]
            # Recompute the values that the forward loop would have stacked here.
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
            # Only values that the body computes are worth recomputing.
            if id(variable) in computed:
                key = id(stack), not reverse
                line = jaxprs.users_line(equation)
                self.again[key] = line, (*slices, *saved_stacks), values_again
        return [*end, *stacks]


def function_of(jaxpr: Any, **parts: Any) -> _Function:
    """Converts a jaxpr to a function after replacing some of its `parts`."""
    body = jaxprs.plain_jaxpr(jaxpr).replace(**parts)
    return jaxpr_as_fun(jaxprs.with_body(jaxpr, body))


class _Call(Primitive):
    """A primitive that calls a Python function when a jaxpr is evaluated."""

    multiple_results = True

    def bind(self, *operands: Any, function: _Function) -> Any:
        return function(*operands)


def inlined(jaxpr: Any, function_for: _Function = lambda _: None) -> Any:
    """Inlines the functions under `jax.jit` in a jaxpr, as XLA does.

    Args:
        jaxpr: the jaxpr. Calls with explicit shardings are not inlined.
        function_for: returns a function to evaluate in place of an equation, or None.
    """

    def changed(equation: Any) -> list[Any]:
        function = function_for(equation)
        if equation.primitive.name == names.SHARD_MAP:
            # A shard_map evaluates its own jaxpr, in a separate mesh context.
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
    """Returns a jaxpr whose loops save fewer residuals for their backward loops.

    Raises:
        ProgramError: if no loop saves less.
    """
    changed, lines = rematerialised(jaxpr, edit.policy)
    if not lines:
        raise ProgramError("No loop saves values for a loop of the backward pass.")
    return changed
