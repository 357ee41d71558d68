"""Rematerialisation of a traced train step, as `jax.checkpoint` would do it.

A gradient through `jax.lax.scan` becomes two loops: one of the forward pass, which
stacks what the backward pass needs, and one of the backward pass, which reads the
stacks in reverse. Here the program is evaluated once more. Its loops also stack what
each step begins with, and what jax's own policies (`jax.checkpoint_policies`) let them
save; from these a backward loop computes the other stacks again, a step at a time.
Stacks that nobody reads then are dead code, which jax removes when it lowers a program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive, jaxpr_as_fun

from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.jax_compat import effect_class, scan_counts
from shardviz.core.backend.tracing.edited import JaxprFunction, as_jaxpr
from shardviz.core.backend.tracing.jaxprs import (
    JaxprOperation,
    plain_jaxpr,
    rewritten,
    users_line,
    with_body,
    with_inner,
)
from shardviz.core.errors import ProgramError
from shardviz.core.program.candidates import Edit
from shardviz.core.program.program import Program

#: Policies of `jax.checkpoint_policies`, the one that saves least first.
POLICIES = (
    "nothing_saveable",
    "dots_with_no_batch_dims_saveable",
    "dots_saveable",
)
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
_Function = Callable[..., Any]


def rematerialised(jaxpr: Any, policy: str) -> tuple[Any, tuple[str, ...]]:
    """A program whose loops save less for their backward loops.

    Args:
        jaxpr: a traced program, which takes gradients.
        policy: one of POLICIES: what a loop may still save, beside its carry.

    Returns:
        The program, and the lines of the loops that save less; none where there is no
        such loop.

    >>> import jax, jax.numpy as jnp
    >>> body = lambda h, w: (jnp.tanh(h @ w), None)
    >>> loss = lambda ws, h: jax.lax.scan(body, h, ws)[0].sum()
    >>> step = jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 8, 8)), jnp.ones((4, 8)))
    >>> len(rematerialised(step, "nothing_saveable")[1])
    1
    """
    loops = _Loops(getattr(jax.checkpoint_policies, policy))
    changed = inlined(jaxpr, loops.change)
    return (changed if loops.lines else jaxpr), tuple(loops.lines)


class _Loop(NamedTuple):
    """A loop that was evaluated, and how to evaluate a step of it again.

    Attributes:
        equation: jax's own operation.
        stacks: its results that have a value of each step.
        computed: the ids of those that are more than copies of what is saved.
        saved: the stacks from which all of them can be computed again.
        again: what computes their values of one step from those of `saved`.
    """

    equation: Any
    stacks: list[Any]
    computed: set[int]
    saved: list[Any]
    again: _Function


class _Loops:
    """The loops of a program that is evaluated under a policy of jax."""

    def __init__(self, may_save: _Function) -> None:
        self.may_save = may_save
        self.lines: dict[str, None] = {}  # of loops that save less
        self._done: list[_Loop] = []

    def change(self, equation: Any) -> _Function | None:
        """What evaluates a loop; None for other operations."""
        # What prints does so once. Collectives in a shard_map have an effect as well.
        effects = {effect_class(effect) for effect in equation.effects}
        if equation.primitive.name != "scan" or effects - {"NamedAxisEffect"}:
            return None
        return functools.partial(self._evaluate, equation)

    def _evaluate(self, equation: Any, *operands: Any) -> list[Any]:
        params, (begin, count) = equation.params, scan_counts(equation)
        consts, start = operands[:begin], operands[begin : begin + count]
        slices = operands[begin + count :]
        # Steps of microbatches are loops around the loops over layers.
        jaxpr = inlined(params["jaxpr"], self.change)
        body = plain_jaxpr(jaxpr)
        saved, computing = list(body.invars[begin : begin + count]), []
        for one in body.eqns:
            avals = [variable.aval for variable in one.invars]
            if self.may_save(one.primitive, *avals, **one.params):
                saved += one.outvars
            else:
                computing.append(one)
        whole = jaxpr_as_fun(
            with_body(jaxpr, body.replace(outvars=body.outvars + saved))
        )
        forward, stop = self._forward_of(equation, slices), len(body.outvars)

        def step(carried: Any, given: Any) -> Any:
            own, others = given
            if forward is not None:
                values = zip(forward.stacks, forward.again(*others), strict=True)
                again = {id(stack): value for stack, value in values}
                pairs = zip(slices, own, strict=True)
                own = [again.get(id(stack), value) for stack, value in pairs]
            found = whole(*consts, *carried, *own)
            return found[:count], (found[count:stop], found[stop:])

        read = (slices, () if forward is None else forward.saved)
        how = {name: params[name] for name in ("length", "reverse", "unroll")}
        end, (stacks, kept) = jax.lax.scan(step, list(start), read, **how)
        given = [*body.invars[:begin], *body.invars[begin + count :], *saved]
        made = {id(v) for one in computing for v in one.outvars}
        results = body.outvars[count:]
        computed = {
            id(s) for s, v in zip(stacks, results, strict=True) if id(v) in made
        }
        parts = {"invars": given, "eqns": computing, "outvars": results}
        again = jaxpr_as_fun(with_body(jaxpr, body.replace(**parts)))
        again = functools.partial(again, *consts)
        self._done.append(_Loop(equation, stacks, computed, [*slices, *kept], again))
        return [*end, *stacks]

    def _forward_of(self, equation: Any, slices: Any) -> _Loop | None:
        """The loop of the forward pass of which another reads what can be computed."""
        for one in self._done:
            reverse = one.equation.params["reverse"] != equation.params["reverse"]
            if reverse and not one.computed.isdisjoint(map(id, slices)):
                self.lines[users_line(one.equation)] = None
                return one
        return None


class _Call(Primitive):
    """An operation that is a Python function, called where a jaxpr is evaluated."""

    multiple_results = True

    def bind(self, *operands: Any, function: _Function) -> Any:
        return function(*operands)


def inlined(
    jaxpr: Any, change: Callable[[Any], _Function | None] = lambda _: None
) -> Any:
    """A jaxpr with the functions in place that it calls, as XLA puts them.

    Those with shardings of their own stay.

    Args:
        jaxpr: the jaxpr.
        change: gives a function to take the place of an operation; None to keep it.
    """

    def changed(equation: Any) -> list[Any]:
        function, params = change(equation), equation.params
        shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
        free = all(type(one).__name__ == "UnspecifiedValue" for one in shardings)
        if equation.primitive.name in _CALLS and free:
            function = jaxpr_as_fun(
                rewritten(JaxprOperation(equation).inner[0], changed)
            )
        elif equation.primitive.name == "shard_map":
            # It evaluates its jaxpr itself, in a context of its own.
            return [with_inner(equation, lambda one: rewritten(one, changed))]
        if function is None:
            return [equation]
        params = {"function": function}
        return [equation.replace(primitive=_Call("call"), params=params)]

    avals = [variable.aval for variable in plain_jaxpr(jaxpr).invars]
    return jax.make_jaxpr(jaxpr_as_fun(rewritten(jaxpr, changed)))(*avals)


def _remat(program: Program, edit: Edit) -> Program:
    program = as_jaxpr(program)
    function = program.fn
    assert isinstance(function, JaxprFunction)
    changed, lines = rematerialised(function.jaxpr, edit.fields["policy"])
    if not lines:
        raise ProgramError(
            "Nothing is rematerialised: no loop saves values for a loop of the backward"
            " pass."
        )
    return program.replace(fn=function.with_jaxpr(changed))


APPLY["remat"] = _remat
