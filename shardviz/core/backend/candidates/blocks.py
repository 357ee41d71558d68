"""An operation in a `jax.shard_map`, as each device computes it on its own block.

A jaxpr names every size, so it cannot be called with blocks of its arguments. Here it is
evaluated anew. A value is split along the dimension in which it is smaller than in the
jaxpr, and one that is split nowhere is the same on all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.jax_compat import at_line_of, is_backward
from shardviz.core.backend.tracing.jaxprs import operations, plain_jaxpr
from shardviz.core.layout.mesh import MeshSpec

# They evaluate the jaxpr of this parameter, once.
_CALLS = {
    "jit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
# They name the shape of their result, or where it ends.
_SHAPES = {
    "broadcast_in_dim": "shape",
    "reshape": "new_sizes",
    "slice": "limit_indices",
}
_CONVOLUTION = "conv_general_dilated"
# Of these a dimension may be another one in the result, or none: then it was added up.
_MOVING = (*_SHAPES, "transpose", "dot_general", "gather", _CONVOLUTION)


class NotInBlocks(ValueError):
    """An operation needs more than one device's block, or is not known here."""


@dataclass(frozen=True)
class Blocks:
    """Values in blocks over some axes of a mesh."""

    mesh: MeshSpec
    axes: tuple[str, ...]

    def in_shard_map(self, equation: Any, dimension: int) -> Any:
        """An operation in a `jax.shard_map`, as an operation.

        One dimension is split, of all operands that are as large there as the largest.

        Raises:
            NotInBlocks: where one device's block is not enough.
        """
        variables, splits = equation.invars, list[int | None]()
        largest = max(variables, key=lambda v: v.aval.size).aval.shape[dimension:][:1]
        for variable in variables:
            alike = variable.aval.shape[dimension:][:1] == largest > (1,)
            splits.append(dimension if alike else None)
        if {*splits} == {None}:
            raise NotInBlocks
        sizes = [(axis, self.mesh.shape[axis]) for axis in self.axes]

        def run(*blocks: Any) -> list[Any]:
            with at_line_of(equation):
                return self._results(equation, blocks)

        traced = jax.make_jaxpr(run, axis_env=sizes)
        try:
            local = traced(
                *map(_struct, variables, map(self._shape, variables, splits))
            )
            outs = [*map(self._split, equation.outvars, local.out_avals)]
            call = jax.shard_map(
                jaxpr_as_fun(local),
                mesh=abstract_mesh(self.mesh),
                in_specs=tuple(map(self._spec, splits)),
                out_specs=[*map(self._spec, outs)],
                axis_names=set(self.axes),
                check_vma=False,
            )
            (made,) = jax.make_jaxpr(call)(*(v.aval for v in variables)).eqns
        # What does not fit blocks jax refuses, with errors of many classes.
        except Exception as error:
            raise NotInBlocks from error
        made = made.replace(invars=variables, outvars=equation.outvars)
        return made.replace(source_info=equation.source_info)

    def _spec(self, split: int | None) -> Any:
        return jax.P() if split is None else jax.P(*[None] * split, self.axes)

    def _shape(self, variable: Any, split: int | None) -> tuple[int, ...]:
        """The shape of a block."""
        sharding = jax.NamedSharding(abstract_mesh(self.mesh), self._spec(split))
        return sharding.shard_shape(variable.aval.shape)

    def _split(self, variable: Any, value: Any) -> int | None:
        """The dimension along which a value is split, or None."""
        for dimension, size in enumerate(variable.aval.shape):
            if value.shape[dimension] != size:
                if value.shape != self._shape(variable, dimension):
                    raise NotInBlocks
                return dimension
        return None

    def _block(self, variable: Any, value: Any, wanted: int | None) -> Any:
        """A value split as wanted: a part of what is the same on all devices."""
        split = self._split(variable, value)
        if split == wanted:
            return value
        if split is not None or wanted is None:
            raise NotInBlocks
        size = self._shape(variable, wanted)[wanted]
        start = jax.lax.axis_index(self.axes) * size
        return jax.lax.dynamic_slice_in_dim(value, start, size, wanted)

    def _evaluated(self, jaxpr: Any, values: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr."""
        body = plain_jaxpr(jaxpr)
        known = dict(zip(body.constvars, getattr(jaxpr, "consts", ()), strict=True))
        known.update(zip(body.invars, values, strict=True))

        def read(atom: Any) -> Any:
            if hasattr(atom, "val"):  # a literal, whose type names the mesh
                return np.asarray(atom.val, atom.aval.dtype)
            return known[atom]

        for equation in body.eqns:
            with at_line_of(equation):
                results = self._results(equation, [*map(read, equation.invars)])
            known.update(zip(equation.outvars, results, strict=True))
        return [*map(read, body.outvars)]

    def _results(self, equation: Any, values: Sequence[Any]) -> list[Any]:
        """The results of an operation."""
        primitive, params = equation.primitive, dict(equation.params)
        name, variables = primitive.name, equation.invars
        for key in ("sharding", "out_sharding"):
            if key in params:
                params[key] = None  # of the mesh outside
        splits = [*map(self._split, variables, values)]
        split = next(iter({*splits} - {None}), None)
        if split is not None:
            if name in _CALLS:
                return self._evaluated(params[_CALLS[name]], values)
            if name == "custom_linear_solve":
                # The other functions are for its gradient.
                used = params["const_lengths"]
                start = used.matvec + used.vecmat
                values = [*values[start : start + used.solve], *values[sum(used) :]]
                return self._evaluated(params["jaxprs"].solve, values)
            if name == "while":
                return self._loop(equation, values, split)
            splits = _aligned(equation, splits, split)
            params |= self._sizes(equation, split)
            values = [*map(self._block, variables, values, splits)]
        results = primitive.bind(*values, **primitive.get_bind_params(params))
        results = [*results] if primitive.multiple_results else [results]
        outs = [*map(self._split, equation.outvars, results)]
        if split is not None and name not in _MOVING:
            _check_same(equation, outs, split)
        elif split is not None and None in outs:
            # Each device has a part of a sum, which jax adds up in a kernel's gradient.
            if name != _CONVOLUTION or not is_backward(equation):
                raise NotInBlocks
            results = [jax.lax.psum(results[0], self.axes)]
        return results

    def _loop(self, equation: Any, values: Sequence[Any], split: int) -> list[Any]:
        """The results of a loop under `jax.vmap`, where each member ends by itself."""
        params, tested = equation.params, equation.params["cond_nconsts"]
        start = tested + params["body_nconsts"]
        if not params["cond_jaxpr"].out_avals[0].ndim:
            raise NotInBlocks  # its members go on together

        def blocks(variables: Sequence[Any], values: Sequence[Any]) -> list[Any]:
            return [*map(self._block, variables, values, [split] * len(values))]

        def traced(jaxpr: Any, *values: Any) -> Any:
            def run(*values: Any) -> list[Any]:
                return blocks(
                    plain_jaxpr(jaxpr).outvars, self._evaluated(jaxpr, values)
                )

            return jax.make_jaxpr(run)(*values)

        state = blocks(equation.invars[start:], values[start:])
        test = traced(params["cond_jaxpr"], *values[:tested], *state)
        step = traced(params["body_jaxpr"], *values[tested:start], *state)
        changed = params | {"cond_jaxpr": test, "body_jaxpr": step}
        return equation.primitive.bind(*values[:start], *state, **changed)

    def _sizes(self, equation: Any, split: int) -> dict[str, Any]:
        """The parameters that are other ones for blocks."""
        key = _SHAPES.get(equation.primitive.name)
        if key is None:
            return {}
        out, shape = _moved(equation, split), list(equation.params[key])
        shape[out] = self._shape(equation.outvars[0], out)[out]
        return {key: tuple(shape)}


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
    elif name not in _MOVING:
        for number, variable in enumerate(equation.invars):
            # What has one element there, or no such dimension, is the same for all.
            is_split = variable.aval.shape[split:][:1] > (1,)
            splits[number] = split if is_split else None
    return splits


def _struct(variable: Any, shape: Sequence[int]) -> Any:
    """A value of another shape."""
    aval = variable.aval
    return jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type)


def _moved(equation: Any, split: int) -> int:
    """Where a dimension of an operand is in a result whose shape is a parameter."""
    old, new = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if equation.primitive.name == "reshape":
        # A block stays one where as much is before its dimension as was.
        for out, size in enumerate(new):
            if size > 1 and prod(new[:out]) == prod(old[:split]):
                return out
        raise NotInBlocks
    out = int(equation.params.get("broadcast_dimensions", range(len(old)))[split])
    if new[out] != old[split]:
        raise NotInBlocks
    return out


def _check_same(equation: Any, outs: Any, split: int) -> None:
    """Refuses an operation that is not the same for each index of a dimension.

    It is where `jax.vmap` makes it of the operation without that dimension.
    """
    primitive, params = equation.primitive, dict(equation.params)
    for name in ("axis", "axes", "dimension", "dimensions"):
        named = params.get(name)
        if isinstance(named, (int, np.integer)):
            params[name] = named - (named > split)
        elif isinstance(named, tuple):
            params[name] = tuple(d - (d > split) for d in named)

    def without(*values: Any) -> Any:
        return primitive.bind(*values, **primitive.get_bind_params(params))

    avals, axes = [], list[int | None]()
    size = max(variable.aval.shape[split:][:1] for variable in equation.invars)
    for variable in equation.invars:
        shape, is_there = list(variable.aval.shape), variable.aval.ndim > split
        # What has one element there is taken as that for all.
        shape[split : split + 1] = size if is_there else ()
        avals.append(_struct(variable, shape))
        axes.append(split if is_there else None)
    out_axes = outs if primitive.multiple_results else outs[0]
    made = jax.make_jaxpr(jax.vmap(without, tuple(axes), out_axes))(*avals)
    first, *others = [one.equation for one in operations(made) if one.name != "jit"]
    if others or (first.primitive, first.params) != (primitive, equation.params):
        raise NotInBlocks
