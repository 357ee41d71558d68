"""Rematerialisation of a traced train step, as `jax.checkpoint` would do it.

A gradient through `jax.lax.scan` becomes two loops: one of the forward pass, which
stacks what the backward pass needs, and one of the backward pass, which reads the
stacks in reverse. Here the first loop stacks less, and the second computes what is
missing again, before its own operations. What may be stacked is asked of jax's own
policies (`jax.checkpoint_policies`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
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
    """A scan of a program, with what its operands and results are.

    Attributes:
        equation: jax's own equation.
        body: its body with constants, and with what it calls in place.
    """

    equation: Any
    body: Any

    @property
    def inner(self) -> Any:
        """The body without constants."""
        return plain_jaxpr(self.body)

    @cached_property
    def counts(self) -> tuple[int, int, int, int]:
        """How many operands are the same at each step, carried, and read slice by
        slice; and how many results are stacked."""
        read = _more_dims(self.equation.invars, self.inner.invars)
        stacked = _more_dims(self.equation.outvars, self.inner.outvars)
        carry = len(self.equation.outvars) - stacked
        return len(self.equation.invars) - carry - read, carry, read, stacked

    @property
    def carry(self) -> int:
        """How many results are carried: the first ones."""
        return self.counts[1]

    @property
    def fixed(self) -> list[Any]:
        """What is the same at each step, as the body names it."""
        return self.inner.invars[: self.counts[0]]

    @property
    def carried(self) -> list[Any]:
        """What is carried, as the body names it at the begin of a step."""
        return self.inner.invars[self.counts[0] :][: self.carry]

    @property
    def read(self) -> list[Any]:
        """The variables of the operands that are read slice by slice."""
        return self.equation.invars[self.counts[0] + self.carry :]

    @property
    def saved(self) -> list[Any]:
        """The variables of the results that are stacked."""
        return self.equation.outvars[self.carry :]

    def changed(self, operands: list[Any], results: list[Any], inner: Any) -> Any:
        """The operation with other operands and results, and another body."""
        read = _more_dims(operands, inner.invars)
        consts = len(operands) - self.carry - read
        counts = (consts, self.carry, read, len(results) - self.carry)
        settings = {n: self.equation.params[n] for n in ("length", "reverse", "unroll")}
        params = _scan_of(*counts).params | settings
        params["jaxpr"] = with_body(self.body, inner)
        return self.equation.replace(invars=operands, outvars=results, params=params)


def _more_dims(variables: list[Any], inside: list[Any]) -> int:
    """How many variables of a loop have a dimension more than inside of it."""
    pairs = zip(variables, inside, strict=True)
    return sum(len(a.aval.shape) > len(b.aval.shape) for a, b in pairs)


@functools.cache
def _scan_of(consts: int, carry: int, read: int, stacked: int) -> Any:
    """A scan of so many operands and results.

    Its parameters say how many there are, in words that differ between versions of jax.
    """

    def scan(*values: Any) -> Any:
        fixed, start = values[:consts], values[consts : consts + carry]

        def step(carried: Any, slices: Any) -> Any:
            total = sum((*fixed, *carried, *slices))
            return (total,) * carry, (total,) * stacked

        return jax.lax.scan(step, start, values[consts + carry :], length=1)

    values = [np.zeros(())] * (consts + carry) + [np.zeros(1)] * read
    (made,) = jax.make_jaxpr(scan)(*values).eqns
    return made


def _changed(jaxpr: Any, policy: Callable[..., Any], lines: list[str]) -> Any:
    """The same for one level of a program; `lines` gets the lines of its loops."""
    flat = inlined(jaxpr)
    body = plain_jaxpr(flat)
    loops = {}
    for i, equation in enumerate(body.eqns):
        if equation.primitive.name == "scan":
            loops[i] = _Loop(equation, inlined(equation.params["jaxpr"]))
    anew: dict[int, Any] = {}
    found: list[str] = []
    for i, j in _pairs(loops, body):
        again = _dropped(loops[i], loops[j], _only_read_by(body, j))
        made = _saving_less(loops[i], loops[j], again, policy)
        if made is not None:
            anew[i], anew[j] = made
            found.append(users_line(loops[i].equation))
    changed: list[Any] = []
    for i, equation in enumerate(body.eqns):
        if i not in anew:
            # Steps of microbatches are loops around the loops over layers.
            equation = with_inner(equation, lambda one: _changed(one, policy, found))
        changed.append(anew.get(i, equation))
    lines += found
    if not found:
        return jaxpr
    return with_body(flat, body.replace(eqns=changed))


def _pairs(loops: dict[int, _Loop], body: Any) -> Iterator[tuple[int, int]]:
    """The loops that save for a later loop, which reads in the opposite order."""
    for i, forward in loops.items():
        for j, backward in loops.items():
            one, other = forward.equation.params, backward.equation.params
            opposite = one["reverse"] != other["reverse"]
            if opposite and one["length"] == other["length"]:
                if not set(forward.saved).isdisjoint(backward.read):
                    yield i, j
                    break


def _only_read_by(body: Any, position: int) -> set[Any]:
    """The variables that no other operation reads, and that are no result."""
    others = set(filter(_is_variable, body.outvars))
    for i, equation in enumerate(body.eqns):
        if i != position:
            others |= set(filter(_is_variable, equation.invars))
    return set(filter(_is_variable, body.eqns[position].invars)) - others


def _dropped(forward: _Loop, backward: _Loop, only_there: set[Any]) -> list[int]:
    """The positions of results of the forward loop that need not be saved."""
    found = []
    for i, variable in enumerate(forward.equation.outvars):
        value = forward.inner.outvars[i]
        if i < forward.carry or variable not in only_there:
            continue
        if _is_variable(value) and value not in forward.carried:
            found.append(i)
    return found


def _saving_less(
    forward: _Loop, backward: _Loop, again: list[int], policy: Callable[..., Any]
) -> tuple[Any, Any] | None:
    """Both loops anew; None where the first would save no less.

    Args:
        forward, backward: the loops.
        again: the positions of the results of the first that the second may compute.
        policy: which other values the first may save.
    """
    inner, equation = forward.inner, forward.equation
    wanted = {equation.outvars[i]: inner.outvars[i] for i in again}
    operations, roots = _needed(inner, wanted.values(), policy)
    if not operations or _acts(inner) or _acts(backward.inner):
        return None
    # What the forward loop returns: as before what is read elsewhere, then the roots
    # that the backward loop is not given anyway.
    given = dict(zip(inner.invars, equation.invars, strict=True))
    results, outs, stacks = [], [], {}
    for i, result in enumerate(equation.outvars):
        value = inner.outvars[i]
        if i in again:
            continue
        results.append(result)
        outs.append(value)
        if i >= forward.carry and _is_variable(value):
            stacks[value] = result
    for value in roots:
        if value in given and value not in forward.carried:
            stacks[value] = given[value]
        elif value not in stacks:
            stacks[value] = _stack_of(value, equation.params["length"])
            results.append(stacks[value])
            outs.append(value)
    kept, _ = _needed(inner, outs)
    first = inner.replace(eqns=kept, outvars=outs)

    # What the backward loop is given: what is the same at each step before all else,
    # slices after all else.
    same = [v for v in roots if v in forward.fixed]
    split = [v for v in roots if v not in same]
    operands, invars = [stacks[v] for v in same], list(same)
    anew: _Names = {}
    for i, operand in enumerate(backward.equation.invars):
        own = backward.inner.invars[i]
        if _is_variable(operand) and operand in wanted:
            anew[own] = wanted[operand]
        else:
            operands.append(operand)
            invars.append(own)
    second = backward.inner.replace(
        invars=invars + split,
        outvars=[_named(v, anew) for v in backward.inner.outvars],
        eqns=operations + [_renamed(one, anew) for one in backward.inner.eqns],
    )
    operands += [stacks[v] for v in split]
    return (
        forward.changed(equation.invars, results, first),
        backward.changed(operands, backward.equation.outvars, second),
    )


def _stack_of(value: Any, length: int) -> Any:
    """A new variable for all values that one takes in a loop."""
    aval = value.aval
    mesh, spec = aval.sharding.mesh, aval.sharding.spec
    split = aval.sharding
    if not mesh.empty:
        split = jax.NamedSharding(mesh, jax.P(None, *spec))
    return type(value)(aval.update(shape=(length, *aval.shape), sharding=split))


def _needed(
    body: Any, wanted: Iterable[Any], policy: Callable[..., Any] | None = None
) -> tuple[list[Any], list[Any]]:
    """The operations that compute some values, and what they begin with.

    Args:
        body: a jaxpr.
        wanted: variables of it.
        policy: says of an operation, as of jax, whether its results are there already.
    """
    missing = set(filter(_is_variable, wanted))
    chosen = []
    for equation in reversed(body.eqns):
        made = missing.intersection(equation.outvars)
        if policy is not None:
            avals = [v.aval for v in equation.invars]
            # What prints or draws does so once.
            if _acts(equation) or policy(equation.primitive, *avals, **equation.params):
                continue
        if made or (policy is None and _acts(equation)):
            chosen.append(equation)
            missing -= made
            missing |= set(filter(_is_variable, equation.invars))
    # In an order that is the same each time.
    order = list(body.constvars) + list(body.invars)
    for equation in body.eqns:
        order += equation.outvars
    return chosen[::-1], [v for v in order if v in missing]


def _acts(thing: Any) -> bool:
    """Whether an operation or a jaxpr does more than compute its results."""
    # Collectives in a shard_map are listed by the axes that they name.
    return any(effect_class(effect) != "NamedAxisEffect" for effect in thing.effects)


def _is_variable(value: Any) -> bool:
    return not hasattr(value, "val")  # a literal has one, and no hash


def _named(value: Any, names: _Names) -> Any:
    return names.get(value, value) if _is_variable(value) else value


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
