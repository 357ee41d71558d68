"""Rematerialisation of a traced train step, as `jax.checkpoint` would do it.

A gradient through `jax.lax.scan` becomes two loops: one of the forward pass, which
stacks what the backward pass needs, and one of the backward pass, which reads the
stacks in reverse. Here the first loop stacks less, and the second computes what is
missing again, before its own operations. What may be stacked is asked of jax's own
policies (`jax.checkpoint_policies`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardviz.core.backend.candidates.apply import APPLY
from shardviz.core.backend.jax_compat import effect_class
from shardviz.core.backend.tracing.edited import JaxprFunction, as_jaxpr
from shardviz.core.backend.tracing.jaxprs import (
    plain_jaxpr,
    users_line,
    with_body,
    with_equations,
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
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
_CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
_Names = dict[Any, Any]  # a variable to the one that takes its place


def rematerialised(jaxpr: Any, policy: str) -> tuple[Any, tuple[str, ...]]:
    """A program whose loops save less for their backward loops.

    Args:
        jaxpr: a traced program, which takes gradients.
        policy: one of POLICIES: what a loop may still save, beside its carry.

    Returns:
        The program, and the line of each loop that saves less; none where there is no
        such loop.

    >>> import jax, jax.numpy as jnp
    >>> body = lambda h, w: (jnp.tanh(h @ w), None)
    >>> loss = lambda ws, h: jax.lax.scan(body, h, ws)[0].sum()
    >>> step = jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 8, 8)), jnp.ones((4, 8)))
    >>> changed, lines = rematerialised(step, "nothing_saveable")
    >>> [len(e.outvars) for e in changed.eqns if e.primitive.name == "scan"], len(lines)
    ([2, 2], 1)
    """
    lines: list[str] = []
    return _changed(jaxpr, getattr(jax.checkpoint_policies, policy), lines), (*lines,)


@dataclass(frozen=True)
class _Loop:
    """A scan of a program.

    Attributes:
        equation: jax's own equation.
        body: its body with constants, and with what it calls in place.
        inner: the body without constants.
        consts: how many operands are the same at each step; they are the first.
        carry: how many operands and results are carried; the others are slices.
    """

    equation: Any
    body: Any
    inner: Any
    consts: int
    carry: int

    @classmethod
    def of(cls, equation: Any) -> _Loop:
        """A scan of any version of jax, which call these numbers differently."""
        body = inlined(equation.params["jaxpr"])
        inner = plain_jaxpr(body)
        carry = _not_split(equation.outvars, inner.outvars)
        consts = _not_split(equation.invars, inner.invars) - carry
        return cls(equation, body, inner, consts, carry)

    @property
    def read(self) -> list[Any]:
        """The variables of the operands that are read slice by slice."""
        return self.equation.invars[self.consts + self.carry :]

    def saves_for(self, other: _Loop) -> bool:
        """Whether another loop can be that of its backward pass."""
        one, two = self.equation.params, other.equation.params
        return one["length"] == two["length"] and one["reverse"] != two["reverse"]

    def changed(self, operands: list[Any], results: list[Any], inner: Any) -> Any:
        """The operation with other operands and results, and another body."""
        consts = _not_split(operands, inner.invars) - self.carry
        read = len(operands) - consts - self.carry
        counts = _counts(consts, self.carry, read, len(results) - self.carry)
        kept = {name: self.equation.params[name] for name in ("length", "reverse")}
        kept["jaxpr"] = with_body(self.body, inner)
        kept["unroll"] = self.equation.params["unroll"]
        return self.equation.replace(
            invars=operands, outvars=results, params=counts | kept
        )


def _not_split(variables: list[Any], inside: list[Any]) -> int:
    """How many variables of a loop have as many dimensions inside of it."""
    pairs = zip(variables, inside, strict=True)
    return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in pairs)


@functools.cache
def _counts(consts: int, carry: int, read: int, stacked: int) -> dict[str, Any]:
    """The parameters of a scan of so many operands and results, as this jax says it."""

    def scan(*values: Any) -> Any:
        def step(carried: Any, slices: Any) -> Any:
            total = sum((*values[:consts], *carried, *slices))
            return (total,) * carry, (total,) * stacked

        start, slices = values[consts : consts + carry], values[consts + carry :]
        return jax.lax.scan(step, start, slices, length=1)

    values = [np.zeros(())] * (consts + carry) + [np.zeros(1)] * read
    (made,) = jax.make_jaxpr(scan)(*values).eqns
    return made.params


def _changed(jaxpr: Any, policy: Callable[..., Any], lines: list[str]) -> Any:
    """The same for one level of a program; `lines` gets the lines of its loops."""
    flat, found = inlined(jaxpr), []
    body = plain_jaxpr(flat)
    changed = dict(enumerate(body.eqns))
    inside = set(changed)
    for i, j, again in _pairs(body):
        if not {i, j} <= inside:
            continue
        made = _saving_less(
            _Loop.of(body.eqns[i]), _Loop.of(body.eqns[j]), again, policy
        )
        if made is not None:
            changed[i], changed[j] = made
            inside -= {i, j}
            found.append(users_line(body.eqns[i]))
    for i in inside:
        # Steps of microbatches are loops around the loops over layers.
        changed[i] = with_inner(changed[i], lambda one: _changed(one, policy, found))
    lines += found
    # What is not changed keeps its calls.
    return with_equations(flat, list(changed.values())) if found else jaxpr


def _pairs(body: Any) -> Iterator[tuple[int, int, list[Any]]]:
    """Two loops of which the second, backward one alone reads results of the first."""
    readers = Counter(filter(is_variable, body.outvars))
    loops: dict[int, _Loop] = {}
    for i, equation in enumerate(body.eqns):
        readers.update(set(filter(is_variable, equation.invars)))
        if equation.primitive.name == "scan":
            loops[i] = _Loop.of(equation)
    for i, forward in loops.items():
        saved = [
            v for v in forward.equation.outvars[forward.carry :] if readers[v] == 1
        ]
        for j, backward in loops.items():
            again = [v for v in saved if v in backward.read]
            if again and forward.saves_for(backward):
                yield i, j, again
                break


def _saving_less(
    forward: _Loop, backward: _Loop, again: list[Any], policy: Callable[..., Any]
) -> tuple[Any, Any] | None:
    """Both loops anew; None where the first would save no less.

    Args:
        forward, backward: the loops.
        again: the results of the first that the second may compute.
        policy: which other values the first may save.
    """
    inner, equation = forward.inner, forward.equation
    values = dict(zip(equation.outvars, inner.outvars, strict=True))
    operations, roots = _needed(inner, [values[v] for v in again], policy)
    if not operations or _acts(inner) or _acts(backward.inner):
        return None
    # The second loop is given what the first one is, except its carry; what else it
    # begins with has to be saved.
    given = dict(zip(inner.invars, equation.invars, strict=True))
    for value in inner.invars[forward.consts :][: forward.carry]:
        del given[value]
    stacks = {
        v: _stack_of(v, equation.params["length"]) for v in roots if v not in given
    }
    kept = [v for v in equation.outvars if v not in again]
    first = inner.replace(outvars=[*(values[v] for v in kept), *stacks])
    # What is the same at each step comes before all else, slices after all else.
    same = [v for v in roots if v in inner.invars[: forward.consts]]
    split = [v for v in roots if v not in same]
    operands, invars, anew = [given[v] for v in same], list(same), {}
    for operand, own in zip(
        backward.equation.invars, backward.inner.invars, strict=True
    ):
        if is_variable(operand) and operand in again:
            anew[own] = values[operand]
        else:
            operands.append(operand)
            invars.append(own)
    second = backward.inner.replace(
        invars=invars + split,
        outvars=[_named(v, anew) for v in backward.inner.outvars],
        eqns=operations + [_renamed(one, anew) for one in backward.inner.eqns],
    )
    operands += [(given | stacks)[v] for v in split]
    return (
        forward.changed(equation.invars, [*kept, *stacks.values()], first),
        backward.changed(operands, backward.equation.outvars, second),
    )


def _stack_of(value: Any, length: int) -> Any:
    """A new variable for all values that one takes in a loop."""
    aval, split = value.aval, value.aval.sharding
    if not split.mesh.empty:
        split = jax.NamedSharding(split.mesh, jax.P(None, *split.spec))
    return type(value)(aval.update(shape=(length, *aval.shape), sharding=split))


def _needed(
    body: Any, wanted: Iterable[Any], policy: Callable[..., Any]
) -> tuple[list[Any], list[Any]]:
    """The operations that compute some values, and what they begin with.

    Args:
        body: a jaxpr.
        wanted: variables of it.
        policy: says of an operation, as of jax, whether its results are there already.
    """
    missing = dict.fromkeys(filter(is_variable, wanted))
    chosen = []
    for equation in reversed(body.eqns):
        if missing.keys().isdisjoint(equation.outvars):
            continue
        avals = [v.aval for v in equation.invars]
        # What prints or draws does so once.
        if _acts(equation) or policy(equation.primitive, *avals, **equation.params):
            continue
        chosen.append(equation)
        for variable in equation.outvars:
            missing.pop(variable, None)
        missing |= dict.fromkeys(filter(is_variable, equation.invars))
    return chosen[::-1], list(missing)


def _acts(thing: Any) -> bool:
    """Whether an operation or a jaxpr does more than compute its results."""
    # Collectives in a shard_map are listed by the axes that they name.
    return any(effect_class(effect) != "NamedAxisEffect" for effect in thing.effects)


def is_variable(value: Any) -> bool:
    """Whether an operand is a variable, and no number."""
    return not hasattr(value, "val")  # a literal has one, and no hash


def _named(value: Any, names: _Names) -> Any:
    return names.get(value, value) if is_variable(value) else value


def _renamed(equation: Any, names: _Names) -> Any:
    return equation.replace(invars=[_named(v, names) for v in equation.invars])


def inlined(jaxpr: Any) -> Any:
    """The same with the functions in place that it calls, as XLA puts them.

    Those with shardings of their own stay.
    """
    body = plain_jaxpr(jaxpr)
    eqns: list[Any] = []
    names: _Names = {}
    _copy(body, names, eqns, None)
    outvars = [_named(v, names) for v in body.outvars]
    return with_body(jaxpr, body.replace(eqns=eqns, outvars=outvars))


def _copy(body: Any, names: _Names, eqns: list[Any], caller: Any) -> None:
    """Adds the operations of a jaxpr to others, under names of their own."""
    for own in body.eqns:
        equation = _renamed(own, names)
        if caller is not None:
            # jax names an operation after the calls around it.
            stack = caller.source_info.name_stack + own.source_info.name_stack
            source = own.source_info.replace(name_stack=stack)
            equation = equation.replace(source_info=source)
        called = _called(equation)
        if called is None:
            if caller is not None:
                # A function may be called twice, each time with results of its own.
                fresh = [type(v)(v.aval) for v in own.outvars]
                names |= dict(zip(own.outvars, fresh, strict=True))
                equation = equation.replace(outvars=fresh)
            eqns.append(equation)
            continue
        inside = dict(zip(called.invars, equation.invars, strict=True))
        _copy(called, inside, eqns, equation)
        results = [_named(v, inside) for v in called.outvars]
        names |= dict(zip(own.outvars, results, strict=True))


def _called(equation: Any) -> Any | None:
    """The jaxpr that an operation only calls; None where it does more."""
    name = _CALLS.get(equation.primitive.name)
    if name is None:
        return None
    shardings = [*equation.params.get("in_shardings", ())]
    shardings += equation.params.get("out_shardings", ())
    free = all(type(s).__name__ == "UnspecifiedValue" for s in shardings)
    called = plain_jaxpr(equation.params[name])
    return called if free and not called.constvars else None


def _remat(program: Program, edit: Edit) -> Program:
    program = as_jaxpr(program)
    function = program.fn
    assert isinstance(function, JaxprFunction)
    changed, lines = rematerialised(function.constrained_jaxpr, edit.fields["policy"])
    if not lines:
        raise ProgramError(
            "Nothing is rematerialised: no loop saves values for a loop of the backward"
            " pass."
        )
    return program.replace(fn=function.with_jaxpr(changed))


APPLY["remat"] = _remat
