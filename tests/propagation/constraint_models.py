"""Models and contexts with constraint calls, each with what must become of its calls, in order.

`CASES` has them by name. A case is a function that makes the function to trace and its arguments,
so that one made for the plan and one made for jax share nothing that jax could keep.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.linen import with_logical_constraint as renamed
from flax.linen.spmd import RulesFallback
from jax.lax import with_sharding_constraint
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

SIZES, AXES = (4, 2), ("data", "model")
RULES = (("batch", "data"), ("embed", "model"), ("length", None))
CHANGED = (("batch", None), ("embed", "data"))
BATCH = ("batch", "embed")
TYPO = ("batch", "embad")
X = jax.ShapeDtypeStruct((8, 16), "float32")
KEEP, RAISE = RulesFallback.NO_CONSTRAINT, RulesFallback.RAISE_ERROR
YES, RULES_NONE, MESH_NONE = "constrained", "no rules in force", "no mesh in sight"
FALLBACK, SAME, ERROR = "fallback: no constraint", "identity", "error"

linen = nn.with_logical_constraint
in_rules = nn.logical_axis_rules


def axes_mesh(kind: str = "Auto") -> AbstractMesh:
    return AbstractMesh(SIZES, AXES, axis_types=(getattr(AxisType, kind),) * 2)


def devices_mesh(kind: str = "Auto") -> Mesh:
    devices = np.array(jax.devices("cpu")[:8]).reshape(SIZES)
    return Mesh(devices, AXES, axis_types=(getattr(AxisType, kind),) * 2)


@contextlib.contextmanager
def older_context_of_mesh() -> Iterator[None]:
    with contextlib.ExitStack() as entered:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            entered.enter_context(devices_mesh())
        yield


CONTEXTS: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "abstract": lambda: jax.sharding.use_abstract_mesh(axes_mesh()),
    "explicit": lambda: jax.sharding.use_abstract_mesh(axes_mesh("Explicit")),
    "set_mesh": lambda: jax.set_mesh(devices_mesh()),
    "with": older_context_of_mesh,
}


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: its name.
        make: makes the function to trace and its arguments.
        context: the mesh in force, a key of CONTEXTS.
        effects: what must become of its calls, in order.
        rules: those in force around it.
        batched: the dimension that a vmap adds to every array; None for none.
        copies: whether jax writes an operation several times, as for gradients.
        moved: whether jax writes an operation at the line of the call around it.
        raises: whether it cannot be traced.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    context: str
    effects: tuple[str, ...]
    rules: Any = ()
    batched: int | None = None
    copies: bool = False
    moved: bool = False
    raises: bool = False

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """The context that the case is planned and traced in."""
        with CONTEXTS[self.context](), in_rules(self.rules):
            yield


CASES: dict[str, Case] = {}


def case(name: str, context: str, *effects: str, **more: Any) -> Callable[[Any], Any]:
    """Adds a function of one array, or the maker of a function and its arguments, to the table."""

    def add(fn: Any) -> Any:
        make = fn if more.pop("maker", False) else lambda: ((lambda x: fn(x)), (X,))
        CASES[name] = Case(name, make, context, effects, **more)
        return fn

    return add


# linen: rules, fallbacks and meshes


@case("linen, rules argument", "abstract", YES)
def rules_argument(x):
    return linen(x, BATCH, rules=RULES)


@case("linen, rules of the context outside", "abstract", YES, rules=RULES)
def rules_outside(x):
    return linen(x, BATCH)


@case("linen, rules of a context inside", "abstract", YES, RULES_NONE)
def rules_inside(x):
    with in_rules(RULES):
        x = linen(x, BATCH)
    return linen(x, BATCH)


@case("linen, no rules", "abstract", RULES_NONE)
def no_rules(x):
    return linen(x, BATCH)


@case("linen, no mesh", "none", MESH_NONE, rules=RULES)
def no_mesh(x):
    return linen(x, BATCH) * 2


@case("linen, older context", "with", MESH_NONE, rules=RULES)
def older_context(x):
    return linen(x, BATCH) * 2


@case("linen, older context beside with_sharding_constraint", "with", MESH_NONE, YES, rules=RULES)
def older_context_and_jax(x):
    return with_sharding_constraint(linen(x, BATCH), P("data"))


@case("linen, jax.set_mesh", "set_mesh", YES, rules=RULES)
def set_mesh(x):
    return linen(x, BATCH)


@case("linen, a mesh argument and no context", "none", YES, MESH_NONE, rules=RULES)
def mesh_argument(x):
    return linen(linen(x, BATCH, mesh=axes_mesh()), BATCH)


@case("linen, AXIS_IS_UNSHARDED with a typo", "abstract", YES, rules=RULES)
def unsharded_fallback(x):
    return linen(x, TYPO, fallback=RulesFallback.AXIS_IS_UNSHARDED)


@case("linen, NO_CONSTRAINT", "abstract", FALLBACK, YES, rules=RULES)
def no_constraint(x):
    return linen(linen(x, TYPO, fallback=KEEP), BATCH, fallback=KEEP)


@case("linen, RAISE_ERROR", "abstract", YES, ERROR, rules=RULES, raises=True)
def raise_error(x):
    return linen(linen(x, BATCH, fallback=RAISE), TYPO, fallback=RAISE)


@case("linen, RAISE_ERROR for an axis that is taken", "abstract", ERROR, raises=True)
def raise_error_taken(x):
    return linen(x, BATCH, rules=(("batch", "data"), ("embed", "data")), fallback=RAISE)


@case("linen, RAISE_ERROR caught by the function", "abstract", ERROR, YES, rules=RULES)
def caught(x):
    try:
        return linen(x, TYPO, fallback=RAISE)
    except ValueError:
        return linen(x, BATCH)


@case("linen, names are None", "abstract", SAME, rules=RULES)
def names_none(x):
    return linen(x, None)


@case("linen, a tree of arrays", "abstract", YES, FALLBACK, YES, YES, rules=RULES)
def tree(x):
    found = linen({"a": x, "b": x}, {"a": BATCH, "b": TYPO}, fallback=KEEP)
    pair = linen((x.sum(0), x), (("embed",), (*TYPO[:1], "length")))
    return found["a"] + found["b"] + pair[0] + pair[1]


@case("linen, axes that are Explicit", "explicit", SAME, rules=(("batch", None),))
def explicit_axes(x):
    return linen(x, ("batch", None))


# the same function under other names


@case("another name", "abstract", YES, rules=RULES)
def another_name(x):
    return renamed(x, BATCH)


# around the call


@case("scan", "abstract", YES, rules=RULES)
def scan(x):
    def body(carry, _):
        return linen(carry * 2, BATCH), None

    return jax.lax.scan(body, x, None, length=3)[0]


@case("gradient of a scan", "abstract", YES, rules=RULES, copies=True)
def scan_gradient(x):
    return jax.grad(lambda x: (scan(x) ** 2).sum())(x)


@case("remat", "abstract", YES, rules=RULES)
def remat(x):
    return jax.checkpoint(lambda x: linen(jnp.sin(x), BATCH))(x)


@case("gradient of a remat", "abstract", YES, rules=RULES, copies=True)
def remat_gradient(x):
    return jax.grad(lambda x: (remat(x) ** 2).sum())(x)


@case("vmap", "abstract", YES, rules=RULES, batched=0)
def vmap(x):
    return jax.vmap(lambda row: linen(row, ("embed",)))(x)


@case("one branch of a cond", "abstract", YES, RULES_NONE, rules=RULES)
def branches(x):
    def without(x):
        return linen(x, BATCH, rules=())

    return jax.lax.cond(x.sum() > 0, lambda x: linen(x, BATCH), without, x)


@case("a jitted function called twice", "abstract", YES, rules=RULES)
def called_twice(x):
    inner = jax.jit(lambda x: linen(x, BATCH))
    return inner(x) + inner(x)


@jax.jit
def kept(x):
    return linen(x, BATCH)


@case("a jitted function of the module", "abstract", YES, rules=RULES)
def of_the_module(x):
    return kept(x) * 2


@case("a jitted function of the module without rules", "abstract", RULES_NONE)
def of_the_module_without_rules(x):
    with in_rules(()):
        return kept(x + 1)


@case("only for shapes", "abstract", rules=RULES)
def only_for_shapes(x):
    return x * jax.eval_shape(lambda x: linen(x, BATCH), x).shape[0]


@case("a custom gradient", "abstract", YES, YES, rules=RULES, moved=True)
def custom_gradient(x):
    @jax.custom_vjp
    def same(x):
        return linen(x, BATCH)

    def backward(_, gradient):
        return (linen(gradient, BATCH),)

    same.defvjp(lambda x: (same(x), None), backward)
    return jax.grad(lambda x: (same(x) ** 2).sum())(x)


# linen: modules and boxes


class Layer(nn.Module):
    """A layer whose weight is in a box with logical names."""

    @nn.compact
    def __call__(self, x, _=None):
        init = nn.with_logical_partitioning(nn.initializers.ones, ("embed", None))
        w = self.param("w", init, (16, 16))
        return linen(x @ w, BATCH), None


class Stack(nn.Module):
    """Layers under one of flax's lifted transforms."""

    lift: str = "loop"

    @nn.compact
    def __call__(self, x):
        by_layer = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        named = {"metadata_params": {nn.PARTITION_NAME: "layers"}}
        if self.lift == "scan":
            return nn.scan(Layer, length=3, **by_layer, **named)()(x, None)[0]
        if self.lift == "vmap":
            return nn.vmap(Layer, in_axes=0, **by_layer, **named)()(jnp.stack([x, x]))[0]
        lifted = {"remat": nn.remat, "jit": nn.jit, "loop": lambda layer: layer}[self.lift]
        for _ in range(2):
            x = lifted(Layer)()(x)[0]
        return x


def apply(lift: str, gradient: bool = False) -> Callable[[], Any]:
    def make():
        model = Stack(lift)
        with in_rules(()):
            variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(X.shape))
        if gradient:
            return jax.grad(lambda v, x: model.apply(v, x).sum()), (variables, X)
        return (lambda v, x: model.apply(v, x)), (variables, X)

    return make


for _lift, _effects in (
    ("loop", (YES, YES) * 2), ("remat", (YES, YES) * 2), ("jit", (YES, YES) * 2),
    ("scan", (YES, YES)), ("vmap", (YES, YES)),
):  # fmt: skip
    _more = {"maker": True, "rules": RULES, "batched": 0 if _lift == "vmap" else None}
    case(f"nn.{_lift}, boxed weights", "abstract", *_effects, **_more)(apply(_lift))
    case(f"nn.{_lift}, gradient", "abstract", *_effects, copies=True, **_more)(apply(_lift, True))

case("boxed weights without a mesh", "none", MESH_NONE, MESH_NONE, maker=True, rules=RULES)(
    apply("loop")
)
case("boxed weights without rules", "abstract", *(RULES_NONE,) * 4, maker=True)(apply("loop"))


@case("the initialization of boxed weights", "abstract", YES, YES, rules=RULES, maker=True)
def initialization():
    return (lambda x: Layer().init(jax.random.key(0), x)), (X,)


@case("a box with rules of its own", "abstract", YES, rules=RULES)
def box_with_rules(x):
    return nn.LogicallyPartitioned(x, BATCH, rules=CHANGED).unbox()


@case("a box with mesh axes", "abstract", YES)
def box_with_axes(x):
    return nn.Partitioned(x, ("data", "model")).unbox()


# nnx


def variable(**metadata: Any) -> Callable[[Any], Any]:
    return lambda x: nnx.Param(x * 2, **metadata).get_value()


case("nnx, out_sharding of mesh axes", "abstract", YES)(variable(out_sharding=AXES))
case("nnx, out_sharding and rules of a context", "abstract", YES, rules=RULES)(
    variable(out_sharding=BATCH)
)
case("nnx, sharding_rules", "abstract", YES)(variable(out_sharding=BATCH, sharding_rules=RULES))
case("nnx, rules that do not agree", "abstract", ERROR, rules=RULES, raises=True)(
    variable(out_sharding=BATCH, sharding_rules=(("batch", "model"),))
)
case("nnx, a name without a rule", "abstract", ERROR, rules=RULES, raises=True)(
    variable(out_sharding=("batch", "embad"))
)
case("nnx, no names", "abstract", SAME)(variable(out_sharding=()))
case("nnx, axes that are Explicit", "explicit", YES)(variable(out_sharding=("data", None)))


class Block(nnx.Module):
    """An nnx model whose weights have logical names, made in the traced function."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(nnx.initializers.ones, ("embed", "mlp"))
        self.up = nnx.Linear(16, 16, kernel_init=init, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return with_sharding_constraint(self.up(x), P("data"))


@case("nnx, a model made inside", "abstract", YES, YES, rules=(*RULES, ("mlp", None)))
def nnx_model(x):
    return Block(nnx.Rngs(0))(x)


# jax itself


@case("jax, a PartitionSpec", "abstract", YES)
def plain_spec(x):
    return with_sharding_constraint(x, P("data", "model"))


@case("jax, a NamedSharding and no context", "none", YES)
def plain_named(x):
    return with_sharding_constraint(x, NamedSharding(axes_mesh(), P(None, ("data", "model"))))


@case("jax, an axis that the mesh lacks", "abstract", ERROR, raises=True)
def plain_missing(x):
    return with_sharding_constraint(x, P("dota"))


@case("jax, Explicit axes that are so already", "explicit", SAME)
def plain_explicit(x):
    return with_sharding_constraint(x, P(None, None))


@case("jax, reshard", "explicit", YES)
def plain_reshard(x):
    return reshard(x, P("data"))


@case("jax, auto_axes reshards by itself", "explicit")
def inside_auto_axes(x):
    return jax.sharding.auto_axes(lambda x: x * 2, out_sharding=P("data", None))(x)
