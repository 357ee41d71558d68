"""Checks that this jax version has the primitives and parameters that shardviz reads.

Each primitive in `jaxpr_names.py` has an example here, which is traced. `python -m
shardviz doctor` prints the result; `commands/words/doctor.py` lists which feature is
lost without each name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardviz.programs.backend import block_values, jaxprs
from shardviz.programs.backend import jaxpr_names as names

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

_VECTOR = jax.ShapeDtypeStruct((4,), "float32")
_MATRIX = jax.ShapeDtypeStruct((4, 4), "float32")
_SPLIT = PartitionSpec("x")
_DEVICES = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
# Primitives that only newer jax versions have.
_NEWER = {"log2"}


def _traced(
    function: Callable[..., object], *arguments: jax.ShapeDtypeStruct
) -> Callable[[], ClosedJaxpr]:
    return lambda: jax.make_jaxpr(function)(*arguments)


def _on_devices(function: Callable[..., jax.Array]) -> Callable[[], ClosedJaxpr]:
    """Traces a function of a vector in a `shard_map` over two devices."""
    mapped = jax.shard_map(
        function,
        mesh=_DEVICES,
        in_specs=_SPLIT,
        out_specs=_SPLIT,
        check_vma=True,
    )
    return _traced(mapped, _VECTOR)


def _sum_of_devices(x: jax.Array) -> jax.Array:
    # psum(x) doesn't vary over "x", but x does, so jax inserts a pvary.
    return jax.lax.psum(x, "x") + x


def _unchecked_sum() -> ClosedJaxpr:
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x, "x"),
        mesh=_DEVICES,
        in_specs=_SPLIT,
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return jax.make_jaxpr(mapped)(_VECTOR)


def _resharded() -> ClosedJaxpr:
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    struct = jax.ShapeDtypeStruct(
        (4,), "float32", sharding=NamedSharding(mesh, PartitionSpec())
    )
    split = NamedSharding(mesh, _SPLIT)
    return jax.make_jaxpr(lambda x: jax.sharding.reshard(x, split))(struct)


def _constrained() -> ClosedJaxpr:
    split = NamedSharding(_DEVICES, _SPLIT)
    return jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, split))(_VECTOR)


def _added_gradients() -> ClosedJaxpr:
    return jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jnp.sin(x) * x)))(_VECTOR)


def _convolution(x: jax.Array) -> jax.Array:
    return jax.lax.conv(x[None, None], x[None, None], (1, 1), "SAME")


@jax.custom_jvp
def _with_own_jvp(x: jax.Array) -> jax.Array:
    return x


@jax.custom_vjp
def _with_own_vjp(x: jax.Array) -> jax.Array:
    return x


_with_own_jvp.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
_with_own_vjp.defvjp(lambda x: (x, None), lambda _, gradient: (gradient,))


def _by_platform(x: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)


_EXAMPLES: Mapping[str, Callable[[], ClosedJaxpr]] = {
    names.SCAN: _traced(lambda x: jax.lax.map(jnp.sin, x), _VECTOR),
    names.WHILE: _traced(
        lambda x: jax.lax.while_loop(lambda y: y[0] < 1, lambda y: y + 1, x), _VECTOR
    ),
    names.COND: _traced(lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), _VECTOR),
    names.JIT: _traced(jax.jit(jnp.sin), _VECTOR),
    names.SHARD_MAP: _on_devices(jnp.sin),
    names.CHECKPOINT: _traced(jax.checkpoint(jnp.sin), _VECTOR),
    names.CUSTOM_JVP: _traced(_with_own_jvp, _VECTOR),
    names.CUSTOM_VJP: _traced(_with_own_vjp, _VECTOR),
    names.CONSTRAINT: _constrained,
    names.RESHARD: _resharded,
    names.PSUM: _unchecked_sum,
    names.PSUM_INVARIANT: _on_devices(_sum_of_devices),
    names.PVARY: _on_devices(_sum_of_devices),
    names.PPERMUTE: _on_devices(lambda x: jax.lax.ppermute(x, "x", [(0, 1), (1, 0)])),
    names.ALL_GATHER: _on_devices(lambda x: jax.lax.all_gather(x, "x", tiled=True)),
    names.ALL_TO_ALL: _on_devices(lambda x: jax.lax.all_to_all(x, "x", 0, 0)),
    names.PMAX: _on_devices(lambda x: x + jax.lax.pmax(x, "x")),
    names.PMIN: _on_devices(lambda x: x + jax.lax.pmin(x, "x")),
    names.AXIS_INDEX: _on_devices(lambda x: x + jax.lax.axis_index("x")),
    names.DOT_GENERAL: _traced(jnp.dot, _MATRIX, _MATRIX),
    names.CONVOLUTION: _traced(_convolution, _MATRIX),
    names.RESHAPE: _traced(lambda x: x.reshape(2, 2), _VECTOR),
    names.TRANSPOSE: _traced(jnp.transpose, _MATRIX),
    names.SQUEEZE: _traced(lambda x: jnp.squeeze(x[:1]), _VECTOR),
    names.BROADCAST: _traced(lambda x: jnp.broadcast_to(x, (2, 4)), _VECTOR),
    names.IOTA: _traced(lambda: jnp.arange(4)),
    names.CONCATENATE: _traced(lambda x: jnp.concatenate([x, x]), _VECTOR),
    names.GATHER: _traced(lambda x: x[jnp.arange(2)], _VECTOR),
    names.SELECT: _traced(lambda x: jnp.where(x > 0, x, -x), _VECTOR),
    names.INTEGER_POW: _traced(lambda x: x**3, _VECTOR),
    names.REDUCE_SUM: _traced(jnp.sum, _VECTOR),
    names.ADD_ANY: _added_gradients,
    "name": _traced(lambda x: checkpoint_name(x, "x"), _VECTOR),
    names.RANDOM_BITS: _traced(
        lambda: jax.random.bits(jax.random.wrap_key_data(jnp.zeros(2, "uint32")))
    ),
    names.PLATFORM_INDEX: _traced(_by_platform, _VECTOR),
    names.DEBUG_CALLBACK: _traced(lambda x: jax.debug.callback(print, x), _VECTOR),
    names.DEBUG_PRINT: _traced(lambda x: jax.debug.print("{}", x), _VECTOR),
}


def _has_names(primitive: str) -> bool:
    """True if an example has the primitive with all parameters that shardviz reads.

    Raises:
        LookupError: if parameters are missing; lists them.
    """
    for operation in jaxprs.operations(_EXAMPLES[primitive]()):
        if operation.name != primitive:
            continue
        missing = []
        for parameter in names.PARAMETERS:
            is_read = parameter.primitive == primitive
            if is_read and parameter.name not in operation.equation.params:
                missing.append(parameter.name)
        if missing:
            raise LookupError(", ".join(missing))
        return True
    return False


def _are_primitives(table: Collection[str]) -> bool:
    """True if jax has a primitive for each name.

    Raises:
        LookupError: if names are missing; lists them.
    """
    present = {*_EXAMPLES, *_NEWER}
    for attribute in dir(jax.lax):
        if attribute.endswith("_p"):
            present.add(getattr(jax.lax, attribute).name)
    if missing := {*table} - present:
        raise LookupError(", ".join(sorted(missing)))
    return True


#: One check per example, and one for each of two tables of primitive names.
JAXPR_NAMES: Mapping[str, Callable[[], bool]] = {
    **{f"jaxpr: {name}": partial(_has_names, name) for name in _EXAMPLES},
    "jaxpr: operations on blocks": partial(_are_primitives, block_values.PRIMITIVES),
    "jaxpr: operations that keep a sign": partial(
        _are_primitives, jaxprs.SIGN_PRIMITIVES
    ),
}
