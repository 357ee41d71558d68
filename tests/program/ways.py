"""Ways to call a function: the arguments as the user writes them, and what jax traces of them.

Every entry of `WAYS` makes its functions anew, so that nothing of them is in a cache of jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AUTO = (AxisType.Auto,)


@dataclass
class Way:
    """One way to call a function.

    Attributes:
        fn: what the user calls.
        args, kwargs: with what.
        expected: the jaxpr that jax makes of the call; None for `jax.jit(fn).trace(*args)`.
        context: makes the context of the call.
        own: further arguments of `sv.program`.
        called: whether the arguments are values, so that the user can call the function.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expected: Callable[[], Any] | None = None
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    own: Mapping[str, Any] = field(default_factory=dict)
    called: bool = True

    def jaxpr(self) -> Any:
        """What jax traces in the user's own call."""
        with self.context():
            if self.expected is not None:
                return self.expected()
            jitted = self.fn if isinstance(self.fn, type(jax.jit(abs))) else jax.jit(self.fn)
            return jitted.trace(*placed(self.args), **placed(self.kwargs)).jaxpr

    def call(self) -> Any:
        """The user's own call."""
        with self.context():
            return jax.block_until_ready(self.fn(*self.args, **self.kwargs))


def placed(tree: Any) -> Any:
    """The arrays of a tree as they are on the mesh of the program, replicated."""
    return jax.tree.map(_placed, tree)


def _placed(leaf: Any) -> Any:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) or isinstance(leaf, type):
        return leaf
    if isinstance(getattr(leaf, "sharding", None), NamedSharding):
        return leaf
    typed = jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf
    return jax.ShapeDtypeStruct(
        leaf.shape,
        jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True),
        sharding=NamedSharding(devices(), P()),
        weak_type=getattr(typed, "weak_type", False),
    )


def x(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    shape = shape or (8, 4)
    return jnp.asarray(np.arange(np.prod(shape)).reshape(shape) % 5 + 1, dtype)


W = (4, 4)
WAYS: dict[str, Callable[[], Way]] = {}


def way(name: str) -> Callable[[Callable[[], Way]], Callable[[], Way]]:
    def keep(make: Callable[[], Way]) -> Callable[[], Way]:
        assert name not in WAYS
        WAYS[name] = make
        return make

    return keep


def matmul() -> Callable[..., Any]:
    def step(x, w, scale=2.0, *, bias=None, mode="mean"):
        y = x @ w * scale
        y = y if bias is None else y + bias
        return y.mean() if mode == "mean" else y

    return step


def traced(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """The jaxpr of another function that takes arrays alone."""
    return lambda: jax.jit(fn).trace(*placed(args), **placed(kwargs)).jaxpr


# How arguments are passed.

way("by position")(lambda: Way(matmul(), (x(), x(*W))))
way("by keyword")(lambda: Way(matmul(), (x(),), {"w": x(*W)}))
way("many by star")(lambda: Way(lambda *arrays: sum(a.sum() for a in arrays), (x(), x(4), x(2, 2))))
way("no argument")(lambda: Way(lambda: jnp.arange(8.0), ()))
way("a parameter called mesh")(
    lambda: Way(
        lambda x, mesh: x * mesh,
        (jax.device_put(x(), NamedSharding(devices(), P("data"))),),
        {"mesh": jax.device_put(x(), NamedSharding(devices(), P()))},
        own={"mesh": None},
    )
)
way("a parameter called donate")(lambda: Way(lambda x, donate: x + donate, (x(), 1.0)))


# Numbers and types.

way("a Python int")(lambda: Way(lambda x, n: x * n, (x(dtype=jnp.bfloat16), 3)))
way("a Python bool")(lambda: Way(lambda x, n: jnp.where(n, x, 0), (x(), True)))
way("a number of numpy")(lambda: Way(lambda x, n: x * n, (x(dtype=jnp.bfloat16), np.float32(2))))
way("a weak array")(lambda: Way(lambda x, n: x * n, (x(dtype=jnp.bfloat16), jnp.asarray(2.0))))
way("a random key")(lambda: Way(lambda k: jax.random.normal(k, (4,)), (jax.random.key(0),)))
way("shapes and types")(
    lambda: Way(jnp.dot, (jax.ShapeDtypeStruct((8, 4), jnp.float32), x(*W)), called=False)
)


# Static arguments.


def powers() -> Callable[..., Any]:
    def step(n, x, kind="sum"):
        y = x
        for _ in range(n):
            y = y * x
        return y.sum() if kind == "sum" else y

    return step


way("static_argnums")(lambda: Way(jax.jit(powers(), static_argnums=0), (3, x())))
way("static_argnums from the end")(
    lambda: Way(jax.jit(powers(), static_argnums=(0, -1)), (3, x(), "all"))
)


@dataclass(frozen=True)
class Config:
    width: int = 4
    act: Callable[..., Any] = jax.nn.relu


class Mode(enum.Enum):
    TRAIN = "train"


def _static(fn: Callable[..., Any], *args: Any, static: tuple[int, ...], **kwargs: Any) -> Way:
    def expected() -> Any:
        return jax.jit(fn, static_argnums=static).trace(*placed(args), **kwargs).jaxpr

    return Way(fn, args, kwargs, expected)


way("text")(lambda: _static(lambda x, mode: x * len(mode), x(), "train", static=(1,)))
way("a function")(lambda: _static(lambda act, x: act(x), jax.nn.gelu, x(), static=(0,)))
way("a dict with text in it")(
    lambda: Way(
        (fn := lambda c, x: x * c["w"] if c["kind"] == "mul" else x),
        ({"kind": "mul", "w": x()}, x()),
        {},
        traced(lambda w, x: fn({"kind": "mul", "w": w}, x), x(), x()),
    )
)


# Functions in wrappers.


class Model:
    def __init__(self) -> None:
        self.w = x(*W)

    def apply(self, x):
        return x @ self.w

    def __call__(self, x):
        return x @ self.w - 1

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x, n=2):
        return x @ self.w * n

    @classmethod
    def double(cls, x):
        return 2 * x

    @staticmethod
    @jax.jit
    def half(x):
        return x / 2


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any
    name: str = dataclasses.field(default="layer", metadata={"static": True})

    @jax.jit
    def apply(self, x):
        return x @ self.w


def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def outer(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return outer


way("a bound method")(lambda: Way(Model().apply, (x(),)))


@way("a jitted method with static self")
def _() -> Way:
    model = Model()
    expected = lambda: Model.__dict__["jitted"].trace(model, placed(x()), 3).jaxpr  # noqa: E731
    return Way(model.jitted, (x(), 3), {}, expected)


@way("a jitted method of a tree")
def _() -> Way:
    layer = Layer(x(*W))
    return Way(
        layer.apply, (x(),), {}, lambda: Layer.__dict__["apply"].trace(*placed((layer, x()))).jaxpr
    )


way("a partial of a partial")(
    lambda: Way(functools.partial(functools.partial(matmul(), mode="all"), x()), (x(*W),))
)


way("a decorated function")(lambda: Way(decorated(matmul()), (x(), x(*W))))
way("a decorator around jax.jit")(lambda: Way(decorated(jax.jit(matmul())), (x(), x(*W), 3.0)))
way("jax.jit of jax.jit")(lambda: Way(jax.jit(jax.jit(lambda x: x + 1)), (x(),)))


# Trees.

Pair = namedtuple("Pair", "a b")
way("a dict")(lambda: Way(lambda p, x: x @ p["w"] + p["b"], ({"w": x(*W), "b": x(4)}, x())))
way("a registered class")(lambda: Way(lambda layer, x: x @ layer.w, (Layer(x(*W)), x())))
way("nothing but containers")(lambda: Way(lambda p: jnp.zeros(4), ({"a": (), "b": None},)))


# Donation and refs.

way("donate_argnames by keyword")(
    lambda: Way(jax.jit(lambda a, b: a + b, donate_argnames="b"), (x(),), {"b": x() + 1})
)


# Where jax finds a mesh.


def devices() -> Mesh:
    return Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=AUTO)


def explicit() -> Mesh:
    return Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=(AxisType.Explicit,))


@contextlib.contextmanager
def entered() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(devices())
        yield


def over_data(*names: Any) -> Callable[[Any], Any]:
    return lambda x: jax.lax.with_sharding_constraint(x, P(*names))


way("jax.set_mesh around jax.jit")(
    lambda: Way(
        jax.jit(lambda x: over_data("data")(x * 2)), (x(),), context=lambda: jax.set_mesh(devices())
    )
)
way("with mesh")(lambda: Way(jax.jit(lambda x: over_data("data")(x * 2)), (x(),), context=entered))


@way("shard_map under jax.set_mesh")
def _() -> Way:
    inner = jax.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
    return Way(jax.jit(inner), (x(),), context=lambda: jax.set_mesh(devices()))


@way("shard_map over a mesh")
def _() -> Way:
    body, mesh = (lambda x: jax.lax.psum(x, "data")), devices()
    inner = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())
    return Way(jax.jit(inner), (jax.device_put(x(), NamedSharding(mesh, P("data"))),))


@way("an array on a mesh with Explicit axes")
def _() -> Way:
    placed = jax.device_put(x(), NamedSharding(explicit(), P("data")))
    return Way(jax.jit(lambda x: jnp.sin(x).sum(0)), (placed,), own={"mesh": None})


@way("Explicit axes under jax.set_mesh")
def _() -> Way:
    placed = jax.device_put(x(), NamedSharding(explicit(), P("data")))
    return Way(
        jax.jit(lambda x: jax.sharding.reshard(x, P(None, "data"))),
        (placed,),
        context=lambda: jax.set_mesh(explicit()),
        own={"mesh": None},
    )
