"""Operations on blocks of their operands, as the devices of a `jax.shard_map` have them.

A jaxpr names every size, so it cannot be called with blocks of its arguments. Here it is
evaluated anew. A value is split along the dimension in which it is smaller than in the
jaxpr, and one that is split nowhere is the same on all devices.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from shardviz.core.backend.jax_compat import at_line_of, is_backward, scan_counts
from shardviz.core.backend.tracing.jaxprs import (
    JaxprOperation,
    operations,
    plain_jaxpr,
)

#: The dimension along which a value is split, or None.
Split = int | None

_CALLS = ("jit", "custom_jvp_call", "custom_vjp_call")
# They name the shape of their result, or where it ends.
_SIZES = {"broadcast_in_dim": "shape", "reshape": "new_sizes", "slice": "limit_indices"}
_CONVOLUTION = "conv_general_dilated"
# They have rules here. In the results a dimension is another one, summed, or the same.
_RULES = {*_SIZES, "transpose", "dot_general", "gather", "scan", _CONVOLUTION}
_RULES |= {"psum", "pmax", "pmin"}
# Parameters that count dimensions.
_DIMENSIONS = {"axis", "axes", "dimension", "dimensions"}
_DIMENSIONS |= {"all_gather_dimension", "scatter_dimension"}


class NotInBlocks(ValueError):
    """An operation needs more than one device's block, or is not known here."""


class Blocks:
    """Evaluates operations on blocks.

    Args:
        axes: the mesh axes that values are split over.
        mesh: the sizes of these and of others, over which operations may communicate.
    """

    def __init__(self, axes: Sequence[str], mesh: Mapping[str, int]) -> None:
        self.axes, self.sizes = tuple(axes), [*mesh.items()]
        self.count = prod(mesh[axis] for axis in axes)

    def traced(self, jaxpr: Any, splits: Sequence[Split]) -> tuple[Any, list[Split]]:
        """A jaxpr on blocks, and how its results are split.

        Args:
            jaxpr: the jaxpr.
            splits: how each argument is split.

        Raises:
            NotInBlocks: where one device's block is not enough, or the blocks do not
                fit one another.
        """
        if self.count == 1 or {*splits} == {None}:
            raise NotInBlocks
        for one in operations(jaxpr):
            # It is told which device it runs on, or adds up what is no longer the same.
            params = one.equation.params
            named = jax.tree.leaves([params.get("axes"), params.get("axis_name")])
            if not {*named}.isdisjoint(self.axes):
                raise NotInBlocks
        # Without the mesh outside, which their types name.
        body, blocks = plain_jaxpr(jaxpr), []
        for variable, split in zip(body.invars, splits, strict=True):
            blocks.append(_struct(variable, self._shape(variable, split)))
        run = jax.make_jaxpr(lambda *v: self._evaluated(jaxpr, v), axis_env=self.sizes)
        try:
            local = run(*blocks)
        # Rules of operations, jax's own and those that others define, raise of any class
        # for blocks that do not fit. It is kept as the cause; without it there is merely
        # one proposal less.
        except Exception as error:
            raise NotInBlocks from error
        return local, [*map(self._split, body.outvars, local.out_avals)]

    def _results(self, equation: Any, values: Sequence[Any]) -> list[Any]:
        """The results of an operation for blocks of its operands."""
        params = dict(equation.params)
        splits = [*map(self._split, equation.invars, values)]
        # jax's own functions name a sharding over the mesh outside.
        for name in {"sharding", "out_sharding"}.intersection(params):
            params[name] = None
        with at_line_of(equation):
            # A sum over other axes has a name of its own where jax checks what varies.
            if equation.primitive.name == "psum_invariant":
                return [jax.lax.psum(values[0], params["axes"])]
            if equation.primitive.name == "pvary":
                return [*values]
            if splits == [None] * len(splits):
                return _bound(equation, params, values)
            return self._of_blocks(equation, params, values, splits)

    def _shape(self, variable: Any, split: Split) -> tuple[int, ...]:
        """The shape of a block."""
        shape = list(variable.aval.shape)
        if split is not None:
            shape[split], rest = divmod(shape[split], self.count)
            if rest:
                raise NotInBlocks
        return tuple(shape)

    def _split(self, variable: Any, value: Any) -> Split:
        """How a value is split."""
        for dimension, size in enumerate(variable.aval.shape):
            if value.shape[dimension] != size:
                if value.shape != self._shape(variable, dimension):
                    raise NotInBlocks
                return dimension
        return None

    def _block(self, variable: Any, value: Any, wanted: Split) -> Any:
        """A value split as wanted: a part of what is the same on all devices."""
        split = self._split(variable, value)
        if split == wanted:
            return value
        if split is not None or wanted is None:
            raise NotInBlocks
        if variable.aval.shape[wanted] == 1:
            return value  # one element for all
        size = self._shape(variable, wanted)[wanted]
        start = jax.lax.axis_index(self.axes) * size
        return jax.lax.dynamic_slice_in_dim(value, start, size, wanted)

    def _evaluated(self, jaxpr: Any, values: Sequence[Any]) -> list[Any]:
        body = plain_jaxpr(jaxpr)
        known = dict(zip(body.constvars, getattr(jaxpr, "consts", ()), strict=True))
        known.update(zip(body.invars, values, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        for equation in body.eqns:
            results = self._results(equation, [*map(read, equation.invars)])
            known.update(zip(equation.outvars, results, strict=True))
        return [*map(read, body.outvars)]

    def _of_blocks(
        self, equation: Any, params: dict[str, Any], values: Sequence[Any], splits: Any
    ) -> list[Any]:
        """The results of an operation, some of whose operands are split."""
        name, (split, *_) = equation.primitive.name, {*splits} - {None}
        if name in _CALLS:
            return self._evaluated(JaxprOperation(equation).inner[0], values)
        if name == "custom_linear_solve":
            # The other functions are for its gradient.
            used = params["const_lengths"]
            start = used.matvec + used.vecmat
            values = [*values[start : start + used.solve], *values[sum(used) :]]
            return self._evaluated(params["jaxprs"].solve, values)
        if name == "while":
            return self._loop(equation, params, values, split)
        if name in _SIZES:
            self._set_shape(equation, params, split)
        if name == "scan":
            params["length"] //= self.count
        splits = _aligned(equation, splits, split)
        values = [*map(self._block, equation.invars, values, splits)]
        results = _bound(equation, params, values)
        outs = [*map(self._split, equation.outvars, results)]
        if name not in _RULES:
            _check_same(equation, splits, outs, split)
        elif None in outs:
            # Each device has a part of a sum, which jax adds up in a kernel's gradient.
            if name != _CONVOLUTION or not is_backward(equation):
                raise NotInBlocks
            results = [jax.lax.psum(results[0], self.axes)]
        return results

    def _loop(
        self, equation: Any, params: dict[str, Any], values: Sequence[Any], split: int
    ) -> list[Any]:
        """The results of a loop under `jax.vmap`, where each member ends by itself."""
        tested = params["cond_nconsts"]
        first = tested + params["body_nconsts"]
        # Elsewhere a loop has one predicate, and all go on together.
        if not params["cond_jaxpr"].out_avals[0].ndim:
            raise NotInBlocks

        def blocks(variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
            return [*map(self._block, variables, values, [split] * len(values))]

        def run(jaxpr: Any, *values: Any) -> list[Any]:
            return blocks(plain_jaxpr(jaxpr).outvars, self._evaluated(jaxpr, values))

        state = blocks(equation.invars[first:], values[first:])
        given = {"cond_jaxpr": values[:tested], "body_jaxpr": values[tested:first]}
        for name, before in given.items():
            traced = jax.make_jaxpr(functools.partial(run, params[name]))
            params[name] = traced(*before, *state)
            for one in operations(params[name]):
                # A sum would wait for devices that have ended already.
                if one.name.startswith("psum"):
                    raise NotInBlocks
        return _bound(equation, params, [*values[:first], *state])

    def _set_shape(self, equation: Any, params: dict[str, Any], split: int) -> None:
        """Makes the shape that an operation names that of a block."""
        name, (result,) = equation.primitive.name, equation.outvars
        old, new, out = equation.invars[0].aval.shape, result.aval.shape, split
        if name == "broadcast_in_dim":
            out = int(params["broadcast_dimensions"][split])
        is_kept = new[out : out + 1] == old[split : split + 1]
        if name == "reshape":
            # Of what is in order an equal part stays that, in fewer rows or in more.
            is_kept = new[:out] == old[:out] and len(new) > out
        if not is_kept:
            raise NotInBlocks
        shape = list(params[_SIZES[name]])
        shape[out] = self._shape(result, out)[out]
        params[_SIZES[name]] = tuple(shape)


def _struct(variable: Any, shape: Sequence[int]) -> Any:
    aval = variable.aval
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)


def _bound(equation: Any, params: Any, values: Sequence[Any]) -> list[Any]:
    primitive = equation.primitive
    results = primitive.bind(*values, **primitive.get_bind_params(params))
    return [*results] if primitive.multiple_results else [results]


def _aligned(equation: Any, splits: list[Any], split: int) -> list[Any]:
    """How the operands of an operation have to be split."""
    name, params = equation.primitive.name, equation.params
    if name == "gather":
        numbers = params["dimension_numbers"]
        batch = numbers.operand_batching_dims, numbers.start_indices_batching_dims
        # An index counts from the start of what it indexes, except along a batch.
        for pair in zip(*batch, strict=True):
            if splits[0] == pair[0] or splits[1] == pair[1]:
                return [*pair]
        if splits[0] is not None:
            raise NotInBlocks
    elif name == _CONVOLUTION:
        (batch, features, *_), (_, inner, *_), _ = params["dimension_numbers"]
        is_batch = splits == [batch, None] and params["batch_group_count"] == 1
        # The gradient of a kernel, with what was the batch.
        is_sum = splits == [features, inner] and params["feature_group_count"] == 1
        if not is_batch and not is_sum:
            raise NotInBlocks
    elif name == "scan":
        # The steps are split, which do not read what others wrote.
        same, carry = scan_counts(equation)
        if carry:
            raise NotInBlocks
        return [None] * same + [0] * (len(splits) - same)
    elif name not in _RULES:
        # What has no such dimension is a number.
        for number, variable in enumerate(equation.invars):
            splits[number] = split if variable.aval.ndim > split else None
    return splits


def _check_same(equation: Any, splits: Any, outs: Any, split: int) -> None:
    """Refuses an operation that is not the same for each index of a dimension.

    It is where `jax.vmap` makes it of the operation without that dimension.
    """
    primitive, params = equation.primitive, dict(equation.params)
    # Dimensions after the one that is left out count one less.
    for name in _DIMENSIONS.intersection(params):
        named = np.asarray(params[name])
        fewer = (named - (named > split)).tolist()
        params[name] = tuple(fewer) if named.ndim else fewer
    avals, size = [], equation.outvars[0].aval.shape[outs[0]]
    for variable, axis in zip(equation.invars, splits, strict=True):
        shape = list(variable.aval.shape)
        if axis is not None:
            shape[split] = size  # also where one element is that for all
        avals.append(_struct(variable, shape))

    def without(*values: Any) -> Any:
        return primitive.bind(*values, **primitive.get_bind_params(params))

    out_axes = outs if primitive.multiple_results else outs[0]
    made = jax.make_jaxpr(jax.vmap(without, tuple(splits), out_axes))(*avals)
    # Some rules for vmap are functions with a jit around them.
    first, *others = [one.equation for one in operations(made) if one.name != "jit"]
    if others or (first.primitive, first.params) != (primitive, equation.params):
        raise NotInBlocks
