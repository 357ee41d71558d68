"""Moves sums over devices from inside a loop on Explicit axes to after the loop.

A product that contracts a split dimension sums over devices in every iteration. If the
types of the product and of the carry have `unreduced` axes instead, each device
accumulates its own partial sums, and one `jax.reshard` after the loop sums over
devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shardviz.advise.backend.loop_sums import LoopSums, waiting_sums
from shardviz.advise.edits import SumUnreduced
from shardviz.axis_rules.libraries import spec_of
from shardviz.base.backend import jax_compat
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.bridge import named_sharding
from shardviz.programs.backend.jaxprs import (
    JaxprOperation,
    operations,
    plain_jaxpr,
    rewritten,
    users_line,
    with_inner,
)


def product_sums(loop: Any) -> Iterator[LoopSums]:
    """Yields the products in a loop whose sums over devices can be postponed."""
    if loop.primitive.name != names.SCAN or names.LENGTH.of(loop) < 2:
        return
    by_axes: dict[tuple[str, ...], dict[int, Any]] = {}
    is_backward = jax_compat.is_backward(loop)
    for operation in operations(names.SCAN_BODY.of(loop)):
        is_nested = not {*operation.around} <= {*names.CALLS}
        if operation.name != names.DOT_GENERAL or is_nested:
            continue
        equation = operation.equation
        if axes := _summed_axes(equation):
            by_axes.setdefault(axes, {})[id(equation)] = equation
    for waiting in waiting_sums(loop, by_axes):
        backward = is_backward or any(map(jax_compat.is_backward, waiting.sums))
        yield LoopSums(loop, waiting.sums, waiting.carries, waiting.axes, backward)


def _summed_axes(product: Any) -> tuple[str, ...]:
    """Returns the mesh axes that split a contracted dimension of both operands."""
    left_spec, right_spec = (spec_of_variable(variable) for variable in product.invars)
    (lefts, rights), _ = names.DOT_DIMENSIONS.of(product)
    axes: list[str] = []
    for left_dim, right_dim in zip(lefts, rights, strict=True):
        if left_spec.dims[left_dim] == right_spec.dims[right_dim]:
            axes += left_spec.dims[left_dim]
    result = spec_of_variable(product.outvars[0])
    return () if result.unreduced or result.reduced else tuple(axes)


def spec_of_variable(variable: Any) -> Spec:
    return spec_of(variable.aval.sharding.spec).of_rank(len(variable.aval.shape))


def _unreduced(spec: Spec, axes: Sequence[str]) -> Spec:
    return Spec(spec.dims, unreduced=frozenset(axes))


class _Evaluation:
    """Evaluates a loop body with unreduced types for postponed sums."""

    def __init__(self, waiting: Sequence[LoopSums], mesh: Any) -> None:
        self._mesh, self._axes = mesh, dict[int, tuple[str, ...]]()
        for sums in waiting:
            self._axes |= dict.fromkeys(map(id, sums.sums), sums.axes)

    def run(self, jaxpr: Any, *arguments: Any) -> list[Any]:
        body = plain_jaxpr(jaxpr)
        values = dict(zip(body.constvars, getattr(jaxpr, "consts", ()), strict=False))
        values.update(zip(body.invars, arguments, strict=True))

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else values[variable]

        for equation in body.eqns:
            operands = [*map(read, equation.invars)]
            with jax_compat.at_line_of(equation):
                results = self._results(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))
        return [*map(read, body.outvars)]

    def _results(self, equation: Any, operands: list[Any]) -> Sequence[Any]:
        primitive, params = equation.primitive, {**equation.params}
        inner = JaxprOperation(equation).inner
        if primitive.name in names.CALLS and len(inner) == 1:
            return self.run(inner[0], *operands)
        if axes := self._axes.get(id(equation)):
            spec = _unreduced(spec_of_variable(equation.outvars[0]), axes)
            params[names.DOT_SHARDING.name] = named_sharding(self._mesh, spec)
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
        return results if primitive.multiple_results else [results]


def with_unreduced_products(jaxpr: Any, edit: SumUnreduced, mesh: MeshSpec) -> Any:
    """Returns a jaxpr that sums the products of the edit's line after their loop."""

    def change(equation: Any) -> list[Any]:
        waiting = []
        for sums in product_sums(equation):
            lines = {*map(users_line, sums.sums)}
            if edit.source in lines and sums.axes == edit.axes:
                waiting.append(sums)
        if not waiting:
            return [with_inner(equation, lambda inner: rewritten(inner, change))]
        return [_summed_after(equation, waiting)]

    return rewritten(jaxpr, change)


def _summed_after(loop: Any, waiting: Sequence[LoopSums]) -> Any:
    """Returns an equation that calls the loop with the sums after it."""
    first, count = jax_compat.scan_counts(loop)
    end, body = first + count, names.SCAN_BODY.of(loop)
    variables = [variable for variable in loop.invars if not hasattr(variable, "val")]
    on = loop.outvars[waiting[0].carries[0]].aval.sharding.mesh
    evaluation = _Evaluation(waiting, on)
    options: dict[str, Any] = {}
    for parameter in (names.LENGTH, names.REVERSE, names.UNROLL):
        options[parameter.name] = parameter.of(loop)

    def call(*values: Any) -> list[Any]:
        by_variable = dict(zip(variables, values, strict=True))
        operands = []
        for variable in loop.invars:
            is_literal = hasattr(variable, "val")
            operands.append(variable.val if is_literal else by_variable[variable])
        before, carry = {}, operands[first:end]
        for sums in waiting:
            for number in sums.carries:
                before[number] = carry[number]
                spec = _unreduced(spec_of_variable(loop.outvars[number]), sums.axes)
                zeros = jnp.zeros_like(carry[number])
                carry[number] = jax.sharding.reshard(zeros, named_sharding(on, spec))

        def step(carry: Any, rows: Any) -> Any:
            results = evaluation.run(body, *operands[:first], *carry, *rows)
            return results[:count], results[count:]

        last, stacked = jax.lax.scan(step, carry, operands[end:], **options)
        for sums in waiting:
            with jax_compat.at_line_of(sums.sums[0]):
                for number in sums.carries:
                    sharding = loop.outvars[number].aval.sharding
                    summed = jax.sharding.reshard(last[number], sharding)
                    last[number] = before[number] + summed
        return [*last, *stacked]

    with jax.sharding.use_abstract_mesh(on):
        types = [
            jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, sharding=v.aval.sharding)
            for v in variables
        ]
        (call_equation,) = plain_jaxpr(jax.make_jaxpr(jax.jit(call))(*types)).eqns
    call_equation = call_equation.replace(invars=variables, outvars=loop.outvars)
    return call_equation.replace(source_info=loop.source_info)
