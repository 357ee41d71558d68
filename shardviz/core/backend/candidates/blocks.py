"""Operations on one device's block: what a `jax.shard_map` around them computes.

A jaxpr names every size, so it cannot be called with a block of its arguments. Here it
is traced anew. A value is split along the dimension in which it is smaller than in the
jaxpr, and one that is split nowhere is the same on all devices: where an operation needs
a block of it, the device takes its own. Sums over the split dimension are added up over
the devices. What else needs more than a device's blocks ends it (`NotInBlocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from shardviz.core.backend.tracing.jaxprs import operations, plain_jaxpr

#: The dimension of a value that is split, or None.
Split = int | None


class NotInBlocks(Exception):
    """An operation needs more than one device's block, or is not known here."""


@dataclass(frozen=True)
class Blocks:
    """How values are split.

    Attributes:
        axes: over which mesh axes.
        count: in how many blocks.
    """

    axes: tuple[str, ...]
    count: int

    def shape(self, aval: Any, split: Split) -> tuple[int, ...]:
        """The shape of a block of a value.

        Raises:
            NotInBlocks: where it cannot be split evenly.

        >>> Blocks(("data",), 4).shape(jax.ShapeDtypeStruct((3, 12), "float32"), 1)
        (3, 3)
        """
        shape = list(aval.shape)
        if split is not None:
            if shape[split] % self.count:
                raise NotInBlocks
            shape[split] //= self.count
        return tuple(shape)

    def split(self, aval: Any, value: Any) -> Split:
        """Which dimension of a value is split.

        Raises:
            NotInBlocks: where it is no block.
        """
        shape = tuple(getattr(value, "shape", ()))  # a number has none
        for dimension, size in enumerate(aval.shape):
            if shape[dimension : dimension + 1] != (size,):
                if shape != self.shape(aval, dimension):
                    raise NotInBlocks
                return dimension
        return None

    def traced(
        self, jaxpr: Any, splits: Sequence[Split], wanted: Sequence[Split] | None = None
    ) -> tuple[Any, list[Split]]:
        """A jaxpr of the blocks of its arguments, and how its results are split.

        Args:
            jaxpr: a jaxpr, or what has `constvars`, `invars`, `eqns` and `outvars`.
            splits: which dimension of each argument is split.
            wanted: which of each result has to be; None where any will do.

        Raises:
            NotInBlocks: where one block is not enough.
        """
        body, arguments, found = plain_jaxpr(jaxpr), [], list[Split]()
        for variable, split in zip(body.invars, splits, strict=True):
            aval = variable.aval
            weak = getattr(aval, "weak_type", False)
            shape = self.shape(aval, split)
            arguments.append(jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=weak))

        def evaluated(*values: Any) -> list[Any]:
            results, found[:] = self._evaluate(jaxpr, values), []
            for number, variable in enumerate(body.outvars):
                if wanted is not None:
                    value = self._block(variable.aval, results[number], wanted[number])
                    results[number] = value
                found.append(self.split(variable.aval, results[number]))
            return results

        return jax.make_jaxpr(evaluated)(*arguments), found

    def _evaluate(self, jaxpr: Any, arguments: Sequence[Any]) -> list[Any]:
        body, known = plain_jaxpr(jaxpr), {}
        constants = getattr(jaxpr, "consts", ())
        known.update(zip(body.constvars, constants, strict=True))
        known.update(zip(body.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        for equation in body.eqns:
            results = self._operation(equation, list(map(read, equation.invars)))
            known.update(zip(equation.outvars, results, strict=True))
        return list(map(read, body.outvars))

    def _operation(self, equation: Any, values: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, dict(equation.params)
        avals = [variable.aval for variable in equation.invars]
        splits = [self.split(*pair) for pair in zip(avals, values, strict=True)]
        split = next((one for one in splits if one is not None), None)
        is_sum = False
        if split is not None:
            if name in _INLINED:
                return self._evaluate(*_INLINED[name](params, values))
            if name in _ALIGNED:
                splits, params = _ALIGNED[name](self, params, splits)
            elif name in _ALIKE:
                splits = [split if _has(aval, split) else None for aval in avals]
            elif name not in _MIXES:
                raise NotInBlocks
            if split in _MIXES.get(name, _nowhere)(params, avals, splits):
                raise NotInBlocks
            if name in _SIZES:
                params |= _SIZES[name](self, equation, split)
            is_sum = name in _SUMS
        rows = zip(avals, values, splits, strict=True)
        values = [self._block(*row) for row in rows]
        params = equation.primitive.get_bind_params(params)
        try:
            made = equation.primitive.bind(*values, **params)
        except TypeError:  # blocks that do not fit one another
            raise NotInBlocks from None
        made = list(made) if equation.primitive.multiple_results else [made]
        if is_sum and self.split(equation.outvars[0].aval, made[0]) is None:
            return [jax.lax.psum(value, self.axes) for value in made]
        return made

    def _block(self, aval: Any, value: Any, wanted: Split) -> Any:
        split = self.split(aval, value)
        if split == wanted:
            return value
        if split is not None or wanted is None:
            raise NotInBlocks
        size = self.shape(aval, wanted)[wanted]
        start = jax.lax.axis_index(self.axes) * size
        return jax.lax.dynamic_slice_in_dim(value, start, size, wanted)


def _has(aval: Any, dimension: int) -> bool:
    # What has size 1 there, or no dimensions, is the same for every element.
    return dimension < aval.ndim and aval.shape[dimension] > 1


# Each element of their results is computed from those at the same place.
_ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
    "atanh", "bitcast_convert_type", "cbrt", "ceil", "clamp", "clz", "complex",
    "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div",
    "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic",
    "lt", "max", "min", "mul", "name", "ne", "neg", "nextafter", "not",
    "optimization_barrier", "or", "population_count", "pow", "random_fold_in", "real",
    "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
    "square", "stop_gradient", "sub", "tan", "tanh", "threefry2x32", "xor",
}  # fmt: skip

# What else is known here mixes along some dimensions, and does the same with each block
# along the others: from its parameters and operands, and how these are split, to the
# dimensions along which it may not be split.
_Mixes = Callable[[Any, Any, list[Split]], Any]


def _last(count: int) -> _Mixes:
    return lambda params, avals, splits: range(avals[0].ndim - count, avals[0].ndim)


def _named(parameter: str) -> _Mixes:
    def mixes(params: Any, avals: Any, splits: list[Split]) -> Any:
        mixed = params[parameter]
        return mixed if isinstance(mixed, tuple) else (mixed,)

    return mixes


def _by_convolution(params: Any, avals: Any, splits: list[Split]) -> Any:
    left, right = (params["dimension_numbers"][side] for side in (0, 1))
    is_batch = splits == [left[0], None] and params["batch_group_count"] == 1
    # The gradient of a kernel sums over what was the batch.
    is_sum = splits == [left[1], right[1]] and params["feature_group_count"] == 1
    return () if is_batch or is_sum else splits


def _nowhere(params: Any, avals: Any, splits: list[Split]) -> Any:
    return ()


_MIXES: dict[str, _Mixes] = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "top_k"), _named("axis")),
    **dict.fromkeys(("reduce_max", "reduce_min", "argmax", "argmin"), _named("axes")),
    **dict.fromkeys(("reduce_and", "reduce_or"), _named("axes")),
    **dict.fromkeys(("sort", "concatenate"), _named("dimension")),
    "unstack": _named("axis"),
    **dict.fromkeys(("cholesky", "eigh", "eig", "svd", "qr", "geqrf", "lu"), _last(2)),
    **dict.fromkeys(("householder_product", "schur", "triangular_solve"), _last(2)),
    **dict.fromkeys(("lu_pivots_to_permutation", "random_wrap"), _last(1)),
    **dict.fromkeys(("random_bits", "random_split", "random_unwrap"), _nowhere),
    **dict.fromkeys(("broadcast_in_dim", "reshape", "slice", "transpose"), _nowhere),
    **dict.fromkeys(("squeeze", "reduce_sum", "dot_general"), _nowhere),
    "fft": lambda params, *others: _last(len(params["fft_lengths"]))(params, *others),
    "conv_general_dilated": _by_convolution,
}
# Their operands are split alike.
_ALIKE = {*_ELEMENTWISE, "sort", "concatenate", "triangular_solve"}
# A block's result is a part of a sum, where it is split no more.
_SUMS = {"reduce_sum", "dot_general", "conv_general_dilated"}


def _broadcast(blocks: Blocks, equation: Any, split: int) -> dict[str, Any]:
    out = int(equation.params["broadcast_dimensions"][split])
    (operand, *_), (result,) = equation.invars, equation.outvars
    if result.aval.shape[out] != operand.aval.shape[split]:
        raise NotInBlocks
    return {"shape": blocks.shape(result.aval, out)}


def _reshape(blocks: Blocks, equation: Any, split: int) -> dict[str, Any]:
    old, result = equation.invars[0].aval.shape, equation.outvars[0].aval
    for out, size in enumerate(result.shape):
        # A block stays one where its dimension becomes the major part of another one,
        # or another one is the major part of it.
        starts_there = prod(result.shape[:out]) == prod(old[:split]) and size > 1
        if starts_there and (size % old[split] == 0 or old[split] % size == 0):
            return {"new_sizes": blocks.shape(result, out)}
    raise NotInBlocks


def _slice(blocks: Blocks, equation: Any, split: int) -> dict[str, Any]:
    operand, limits = equation.invars[0].aval, list(equation.params["limit_indices"])
    if operand.shape[split] != equation.outvars[0].aval.shape[split]:
        raise NotInBlocks
    limits[split] = blocks.shape(operand, split)[split]
    return {"limit_indices": tuple(limits)}


# Operations that name a size: from how their operand is split to other parameters.
_SIZES = {"broadcast_in_dim": _broadcast, "reshape": _reshape, "slice": _slice}


def _gather(
    blocks: Blocks, params: dict[str, Any], splits: list[Split]
) -> tuple[list[Split], dict[str, Any]]:
    numbers, (split, indices) = params["dimension_numbers"], splits
    # An index counts from the start of what it indexes, except along a batch.
    batch = [int(d) for d in numbers.operand_batching_dims]
    of_indices = [int(d) for d in numbers.start_indices_batching_dims]
    if split in batch:
        indices = of_indices[batch.index(split)]
    elif split is None and indices in of_indices:
        split = batch[of_indices.index(indices)]
    elif split is not None:
        raise NotInBlocks
    return [split, indices], params


def _while(
    blocks: Blocks, params: dict[str, Any], splits: list[Split]
) -> tuple[list[Split], dict[str, Any]]:
    tests = params["cond_nconsts"]
    start = tests + params["body_nconsts"]
    constants, carried = splits[tests:start], splits[start:]
    while True:
        _, after = blocks.traced(params["body_jaxpr"], [*constants, *carried])
        pairs = zip(carried, after, strict=True)
        wider = [new if old is None else old for old, new in pairs]
        if wider == carried:
            break
        carried = wider
    body, _ = blocks.traced(params["body_jaxpr"], [*constants, *carried], carried)
    test, (going,) = blocks.traced(params["cond_jaxpr"], [*splits[:tests], *carried])
    # A vmapped loop has one predicate for each member: a device ends with its own, and
    # then does not answer others.
    waits = any(one.name.startswith("psum") for one in operations(body))
    if (going is None and test.out_avals[0].ndim) or (going is not None and waits):
        raise NotInBlocks
    changed = {"body_jaxpr": body, "cond_jaxpr": test}
    return [*splits[:start], *carried], params | changed


# Operations whose operands have to be split otherwise: to how, and to parameters.
_ALIGNED = {"while": _while, "gather": _gather}


def _solve(params: dict[str, Any], values: list[Any]) -> tuple[Any, list[Any]]:
    # What computes the result is its third function; the others are for gradients.
    lengths = params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    used = values[start : start + lengths.solve]
    return params["jaxprs"].solve, [*used, *values[sum(lengths) :]]


# Operations that call a jaxpr once: from their parameters to that and its arguments.
_INLINED: dict[str, Callable[[dict[str, Any], list[Any]], tuple[Any, list[Any]]]] = {
    "jit": lambda params, values: (params["jaxpr"], values),
    "custom_jvp_call": lambda params, values: (params["call_jaxpr"], values),
    "custom_vjp_call": lambda params, values: (params["call_jaxpr"], values),
    "custom_linear_solve": _solve,
}

#: Operations that XLA always splits as their operands are.
ALWAYS_SPLIT = _ELEMENTWISE | {"broadcast_in_dim", "reshape", "transpose", "squeeze"}
