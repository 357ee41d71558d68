"""Steps for random programs of all that jax has: transforms, convolutions, loops, callbacks ...

Each takes two arrays of one shape, of any sizes, and returns one like them. Inside a shard_map they
see a block, whose dimensions may have size 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.stages.random_programs import Body, Builder, Makers


def _of(fn: Callable[[Any, Any, int], Any]) -> Callable[[Builder], Body]:
    """A step along a dimension that is chosen."""

    def make(b: Builder) -> Body:
        dim = b.dim()
        return lambda x, y: fn(x, y, dim)

    return make


def _rows(x: Any) -> Any:
    """As a matrix, for what takes two dimensions."""
    return x.reshape(-1, x.shape[-1])


def _indices(x: Any, dim: int, factor: int = 3) -> Any:
    return (jnp.arange(x.shape[dim]) * factor) % x.shape[dim]


def _at(dim: int, entry: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * dim, entry)


def _transformed(x: Any, y: Any, dim: int) -> Any:
    return jnp.real(jnp.fft.ifft(jnp.fft.fft(x, axis=dim) * 0.5, axis=dim))


def _real_transformed(x: Any, y: Any, dim: int) -> Any:
    return jnp.fft.irfft(jnp.fft.rfft(x, axis=dim), n=x.shape[dim], axis=dim)


def _convolved(b: Builder) -> Body:
    def run(x: Any, y: Any) -> Any:
        kernel = jnp.linspace(-1, 1, 3, dtype=x.dtype).reshape(1, 1, 3)
        lines = _rows(x)[:, None, :]
        out = lax.conv_general_dilated(lines, kernel, (1,), "SAME")
        return out.reshape(x.shape)

    return run


def _convolved_in_groups(b: Builder) -> Body:
    def run(x: Any, y: Any) -> Any:
        lines = _rows(x).T[None]  # channels are the last dimension
        kernel = jnp.full((lines.shape[1], 1, 3), 0.5)
        names = lax.conv_dimension_numbers(lines.shape, kernel.shape, ("NCH", "OIH", "NCH"))
        out = lax.conv_general_dilated(
            lines,
            kernel,
            (1,),
            "SAME",
            dimension_numbers=names,
            feature_group_count=kernel.shape[0],
        )
        return out[0].T.reshape(x.shape)

    return run


def _padded(x: Any, y: Any, dim: int) -> Any:
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (2, -1, 0)
    return lax.slice_in_dim(lax.pad(x, jnp.float32(1), config), 0, x.shape[dim], axis=dim)


def _padded_between(x: Any, y: Any, dim: int) -> Any:
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (0, 1, 1)
    wide = lax.pad(x, jnp.float32(0), config)
    return lax.slice_in_dim(wide, 0, 2 * x.shape[dim], 2, axis=dim) + y


def _halves(x: Any, y: Any, dim: int) -> Any:
    if x.shape[dim] < 2:
        return x - y
    one, two = jnp.split(x, 2, axis=dim)
    return jnp.concatenate([two, one * 2], axis=dim)


def _every_second(x: Any, y: Any, dim: int) -> Any:
    return jnp.repeat(lax.slice_in_dim(x, 0, x.shape[dim], 2, axis=dim), 2, axis=dim)[
        tuple(slice(0, n) for n in x.shape)
    ] + jnp.zeros_like(y)


def _gathered(x: Any, y: Any, dim: int) -> Any:
    return x[_at(dim, _indices(x, dim))]


def _gathered_by_value(x: Any, y: Any, dim: int) -> Any:
    return jnp.take_along_axis(x, jnp.argsort(y, axis=dim), axis=dim)


def _scattered(x: Any, y: Any, dim: int) -> Any:
    return x.at[_at(dim, _indices(x, dim, 2))].add(y)


def _set_at(x: Any, y: Any, dim: int) -> Any:
    return x.at[_at(dim, 0)].set(y.sum(axis=dim))


def _largest_at(x: Any, y: Any, dim: int) -> Any:
    return x.at[_at(dim, _indices(x, dim, 2))].max(y)


def _top(x: Any, y: Any, dim: int) -> Any:
    return x + lax.top_k(x, 1)[0]


def _sorted_pairs(x: Any, y: Any, dim: int) -> Any:
    return lax.sort((x, y), dimension=dim, num_keys=1)[1]


def _segments(x: Any, y: Any, dim: int) -> Any:
    rows = jnp.moveaxis(x, dim, 0)
    sums = jax.ops.segment_sum(rows, jnp.arange(rows.shape[0]) // 2, num_segments=rows.shape[0])
    return jnp.moveaxis(sums, 0, dim)


def _windows(kind: str) -> Callable[[Any, Any, int], Any]:
    def run(x: Any, y: Any, dim: int) -> Any:
        window = [1] * x.ndim
        window[dim] = min(2, x.shape[dim])
        if kind == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, window, [1] * x.ndim, "SAME")
        return lax.reduce_window(x, 0.0, lax.add, window, [1] * x.ndim, "SAME")

    return run


def _batched_product(b: Builder) -> Body:
    def run(x: Any, y: Any) -> Any:
        x3, y3 = (v.reshape(-1, *v.shape[-2:]) for v in (x, y))
        scores = jnp.einsum("bij,bkj->bik", x3, y3)
        return jnp.einsum("bik,bkj->bij", scores / x.shape[-1], y3).reshape(x.shape)

    return run


def _outer_product(x: Any, y: Any, dim: int) -> Any:
    rest = tuple(d for d in range(x.ndim) if d != dim)
    line = x.mean(axis=rest)
    table = jnp.einsum("i,j->ij", line, line)
    return y + jnp.moveaxis(
        jnp.broadcast_to(table.sum(axis=0), (*_moved(x, dim)[:-1], line.size)), -1, dim
    )


def _moved(x: Any, dim: int) -> tuple[int, ...]:
    return (*(n for d, n in enumerate(x.shape) if d != dim), x.shape[dim])


def _low_product(x: Any, y: Any, dim: int) -> Any:
    one, two = (_rows(v).astype(jnp.bfloat16) for v in (x, y))
    table = lax.dot_general(one, two, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    return x + jnp.sum(table) / table.size


def _integers(x: Any, y: Any, dim: int) -> Any:
    number = (x * 8).astype(jnp.int32)
    mixed = (number ^ (number << 1)) & 0xFF | (number % 5)
    return (mixed >> 1).astype(x.dtype) + lax.population_count(number).astype(x.dtype)


def _same_bits(x: Any, y: Any, dim: int) -> Any:
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint32) ^ 1, x.dtype)


def _complex(x: Any, y: Any, dim: int) -> Any:
    number = lax.complex(x, y) * (1 + 2j)
    return jnp.real(number) + jnp.imag(jnp.conj(number))


def _rounded(x: Any, y: Any, dim: int) -> Any:
    return jnp.floor(x) + jnp.round(y) * jnp.sign(x) + lax.reduce_precision(x, 8, 7)


def _compared(x: Any, y: Any, dim: int) -> Any:
    return jnp.where((x >= y) & jnp.isfinite(x) | ~(y != x), x, -y)


def _reductions(x: Any, y: Any, dim: int) -> Any:
    low, high = jnp.min(x, axis=dim, keepdims=True), jnp.max(y, axis=dim, keepdims=True)
    return (x - low) * jnp.any(high > low) + jnp.all(x > y)


def _special(x: Any, y: Any, dim: int) -> Any:
    return lax.erf(x) + lax.lgamma(jnp.abs(y) + 1) + lax.digamma(jnp.abs(x) + 1)


def _powers(x: Any, y: Any, dim: int) -> Any:
    positive = jnp.abs(x) + 0.5
    return jnp.power(positive, 0.3) * lax.rsqrt(positive) + jnp.cbrt(y) + x**3 - jnp.log1p(positive)


def _angles(x: Any, y: Any, dim: int) -> Any:
    return jnp.arctan2(x, jnp.abs(y) + 1) + jnp.sinh(jnp.clip(x, -1, 1)) + jnp.expm1(jnp.tanh(y))


def _remainders(x: Any, y: Any, dim: int) -> Any:
    return jnp.mod(x, 1.5) + lax.rem(y, jnp.float32(0.7)) + jnp.nextafter(x, y)


def _random(b: Builder) -> Body:
    number = b.rng.randrange(1000)

    def run(x: Any, y: Any) -> Any:
        key, other = jax.random.split(jax.random.key(number))
        noise = jax.random.normal(key, x.shape, x.dtype)
        return x + noise * jax.random.bernoulli(jax.random.fold_in(other, 3), 0.5, x.shape)

    return run


def _chosen(b: Builder) -> Body:
    one, two = (b.rng.choice([jnp.sin, jnp.cos, jnp.tanh, jnp.exp2]) for _ in range(2))

    def run(x: Any, y: Any) -> Any:
        number = jnp.int32(jnp.sum(y) > 1) + jnp.int32(jnp.sum(x) > 1)
        steps = [lambda v: one(v) + 1, lambda v: two(v) * 2, lambda v: v - 1]
        return lax.switch(number, steps, x)

    return run


def _mapped(b: Builder) -> Body:
    return lambda x, y: lax.map(lambda rows: jnp.sin(rows[0]) * rows[1], (x, y))


def _cumulated(fn: Callable[..., Any]) -> Callable[[Any, Any, int], Any]:
    return lambda x, y, dim: fn(x, axis=dim)


def _associative(x: Any, y: Any, dim: int) -> Any:
    return lax.associative_scan(lambda one, two: one * 0.5 + two, x, axis=dim)


def _barrier(x: Any, y: Any, dim: int) -> Any:
    one, two = lax.optimization_barrier((x, y))
    return one - two


def _solved(x: Any, y: Any, dim: int) -> Any:
    side = _rows(x)
    table = side.T @ side / side.shape[0] + 4 * jnp.eye(side.shape[1])
    root = jnp.linalg.cholesky(table)
    return lax.linalg.triangular_solve(root, _rows(y), left_side=False, lower=True).reshape(x.shape)


def _jvp(b: Builder) -> Body:
    return lambda x, y: jax.jvp(lambda v: jnp.sin(v) * jnp.sum(v), (x,), (y,))[1]


def _hessian_product(b: Builder) -> Body:
    def run(x: Any, y: Any) -> Any:
        slope = jax.grad(lambda v: jnp.sum(jnp.tanh(v) ** 2))
        return jax.jvp(slope, (x,), (y,))[1]

    return run


def _two_results(b: Builder) -> Body:
    @jax.jit
    def both(x: Any, y: Any) -> Any:
        return {"one": jnp.sin(x), "two": (y, x * y)}

    def run(x: Any, y: Any) -> Any:
        found = both(x, y)
        return found["one"] - found["two"][1]

    return run


def _resharded_inside(b: Builder) -> Body:
    spec = b.spec()

    def run(x: Any, y: Any) -> Any:
        if b.manual or not b.axes:
            return x * 3
        mesh = jax.sharding.get_abstract_mesh()
        sharding = jax.sharding.NamedSharding(mesh, spec)
        return jax.device_put(x, sharding) + y

    return run


#: What a collective makes of a block, the same on each device of the axis as without it in shape.
_COLLECTIVES: dict[str, Callable[[Any, str], Any]] = {
    "psum": lambda x, a: lax.psum(x, a),
    "pmean": lambda x, a: lax.pmean(x, a) + x,
    "pmax": lambda x, a: lax.pmax(x, a) - lax.pmin(x, a),
    "all_gather": lambda x, a: lax.all_gather(x, a).sum(0),
    "all_gather, tiled": lambda x, a: lax.all_gather(x, a, tiled=True)[: x.shape[0]],
    "psum_scatter": lambda x, a: lax.psum_scatter(
        jnp.concatenate([x] * lax.axis_size(a)), a, tiled=True
    ),
    "ppermute": lambda x, a: lax.ppermute(
        x, a, [(i, (i + 1) % lax.axis_size(a)) for i in range(lax.axis_size(a))]
    ),
    "all_to_all": lambda x, a: lax.all_to_all(
        jnp.stack([x] * lax.axis_size(a)), a, 0, 0, tiled=True
    ).sum(0),
    "axis_index": lambda x, a: x + lax.axis_index(a),
}


def _collective(b: Builder) -> Body:
    name, axis = b.rng.choice(list(_COLLECTIVES)), b.rng.choice(b.axes) if b.axes else ""
    inside = b.spec(b.axes, some=True)

    def run(x: Any, y: Any) -> Any:
        if b.manual or not axis:
            return x - 1
        options: dict[str, Any] = {"in_specs": (inside, inside), "out_specs": inside}
        local = lambda x, y: _COLLECTIVES[name](x, axis) * y  # noqa: E731
        return jax.shard_map(local, **options, check_vma=False)(x, y)

    return run


def _summed_over_one_axis(b: Builder) -> Body:
    axis = b.rng.choice(b.axes) if b.axes else ""
    dim = b.dim()

    def run(x: Any, y: Any) -> Any:
        if b.manual or not axis:
            return x + 1
        spec = P(*(axis if d == dim else None for d in range(x.ndim)))
        options: dict[str, Any] = {"in_specs": spec, "out_specs": spec, "axis_names": {axis}}
        return jax.shard_map(lambda x: x * lax.psum(x, axis), check_vma=False, **options)(x)

    return run


def _host_sine(x: Any, y: Any, dim: int) -> Any:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.sin, result, x, vmap_method="expand_dims")


def _debugged(x: Any, y: Any, dim: int) -> Any:
    jax.debug.callback(lambda total: None, jnp.sum(x))
    return x * 2


def _host_io(x: Any, y: Any, dim: int) -> Any:
    from jax.experimental import io_callback

    total = io_callback(lambda v: np.float32(v), jax.ShapeDtypeStruct((), x.dtype), jnp.sum(x))
    return x + total


def _outside_shard_map(fn: Callable[[Any, Any, int], Any]) -> Callable[[Builder], Body]:
    """A callback where it is easily said how often it is called, at any depth but in a block."""
    return lambda b: lambda x, y: x * 0.5 if b.manual else fn(x, y, 0)


SMOOTH: Makers = {
    "fft": _of(_transformed),
    "rfft": _of(_real_transformed),
    "convolution": _convolved,
    "convolution in groups": _convolved_in_groups,
    "pad": _of(_padded),
    "pad between": _of(_padded_between),
    "split": _of(_halves),
    "strided slice": _of(_every_second),
    "gather": _of(_gathered),
    "scatter-add": _of(_scattered),
    "scatter": _of(_set_at),
    "segment sum": _of(_segments),
    "top_k": _of(_top),
    "window sum": _of(_windows("sum")),
    "window maximum": _of(_windows("max")),
    "batched product": _batched_product,
    "outer product": _of(_outer_product),
    "product in bfloat16": _of(_low_product),
    "complex": _of(_complex),
    "comparisons": _of(_compared),
    "minimum and maximum": _of(_reductions),
    "special functions": _of(_special),
    "powers": _of(_powers),
    "angles": _of(_angles),
    "random keys": _random,
    "switch": _chosen,
    "map": _mapped,
    "cumulative product": _of(_cumulated(lax.cumprod)),
    "cumulative maximum": _of(_cumulated(lax.cummax)),
    "cumulative logsumexp": _of(_cumulated(lax.cumlogsumexp)),
    "associative scan": _of(_associative),
    "barrier": _of(_barrier),
    "cholesky": _of(_solved),
    "jvp": _jvp,
    "hessian product": _hessian_product,
    "jit with several results": _two_results,
    "device_put": _resharded_inside,
    "shard_map with a collective": _collective,
    "shard_map over one axis": _summed_over_one_axis,
}
NOT_SMOOTH: Makers = {
    "gather by value": _of(_gathered_by_value),
    "scatter-max": _of(_largest_at),
    "sort of pairs": _of(_sorted_pairs),
    "integers": _of(_integers),
    "bits": _of(_same_bits),
    "rounding": _of(_rounded),
    "remainders": _of(_remainders),
    "pure_callback": _outside_shard_map(_host_sine),
    "debug callback": _outside_shard_map(_debugged),
    "io_callback": _outside_shard_map(_host_io),
}
#: For `random_programs.program`.
MORE = (SMOOTH, NOT_SMOOTH)
