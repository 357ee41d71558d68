"""Every way to open the Explorer, by name: what `sv.explore` is called with."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import shardviz as sv

MESH = sv.mesh(data=4, model=2, expert=1)
RULES = sv.rules(("batch", "data"), ("mlp", "model"), ("heads", "expert"), ("embed", "model"))
SMALL = [("mlp", "model"), ("batch", "data")]

WAYS: dict[str, Callable[[], Any]] = {}


def way(name: str, *needs: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def keep(make: Callable[[], Any]) -> Callable[[], Any]:
        if all(importlib.util.find_spec(library) for library in needs):
            WAYS[name] = make
        return make

    return keep


def arrays() -> tuple[Any, Any, Any]:
    return (
        sv.array("w_in", (512, 2048), "embed mlp"),
        sv.array("w_out", (2048, 510), "mlp embd"),
        sv.array("x", (64, 512), "batch embed"),
    )


def step(w_in: Any, w_out: Any, x: Any) -> Any:
    return jax.nn.relu(x @ w_in) @ w_out


class Model:
    def loss(self, params: Any, x: Any) -> Any:
        return (x @ params["w_in"] @ params["w_out"]).sum()


def params() -> dict[str, Any]:
    w_in, w_out, _ = arrays()
    return {"w_in": w_in, "w_out": w_out}


@way("nothing")
def _() -> Any:
    return None


@way("a mesh")
def _() -> Any:
    return MESH


@way("a program of a function")
def _() -> Any:
    return sv.program(step, *arrays(), mesh=MESH, rules=RULES)


@way("a program without rules")
def _() -> Any:
    return sv.program(step, *arrays(), mesh=MESH)


@way("a program of a bound method")
def _() -> Any:
    return sv.program(Model().loss, params(), arrays()[2], mesh=MESH, rules=RULES)


@way("a program with optimizer state")
def _() -> Any:
    def train(state: Any, x: Any) -> Any:
        grads = jax.grad(Model().loss)(state["params"], x)
        return jax.tree.map(lambda p, g, m: p - g - m, state["params"], grads, state["mu"])

    w_in, w_out, x = arrays()
    mu = {"w_in": w_in.replace(dtype="bfloat16"), "w_out": w_out.replace(dtype="bfloat16")}
    return sv.program(train, {"params": params(), "mu": mu}, x, mesh=MESH, rules=RULES)


@way("a program of a linen module", "flax")
def _() -> Any:
    from tests.layout.audit_models import RULES as table
    from tests.layout.audit_models import linen_transformer

    model = linen_transformer()
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((2, 8), int))
    tokens = jax.ShapeDtypeStruct((8, 8), "int32")
    return sv.program(model.apply, variables, tokens, mesh=MESH, rules=table)


@way("a program of an nnx module", "flax")
def _() -> Any:
    nnx = importlib.import_module("flax.nnx")

    def start() -> Any:
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
        return nnx.Linear(64, 128, kernel_init=init, rngs=nnx.Rngs(0))

    with nnx.use_eager_sharding(False):
        model = start()
    call = lambda model, x: model(x)  # noqa: E731
    return sv.program(call, model, sv.array("x", (64, 64), "batch embed"), mesh=MESH, rules=SMALL)


@way("a program of an equinox module", "equinox")
def _() -> Any:
    equinox = importlib.import_module("equinox")
    model = equinox.nn.MLP(16, 8, 32, 1, key=jax.random.key(0))
    call = lambda model, x: jax.vmap(model)(x)  # noqa: E731
    return sv.program(call, model, sv.array("x", (64, 16), "batch embed"), mesh=MESH, rules=SMALL)


@way("a list of arrays")
def _() -> Any:
    return list(arrays())


@way("a layout")
def _() -> Any:
    return sv.layout(arrays()[0], mesh=MESH, rules=SMALL)


@way("a resolution")
def _() -> Any:
    return sv.resolve("embed mlp heads", RULES, mesh=MESH, shape=(512, 2048, 12))


@way("a report")
def _() -> Any:
    w_in, _, x = arrays()
    return sv.compile(sv.program(jnp.matmul, x, w_in, mesh=sv.mesh(data=2, model=2), rules=SMALL))


def rows(layers: int = 3) -> list[tuple[str, tuple[int, ...], str]]:
    found = []
    for tree in ("params", "opt_state/0/mu", "opt_state/0/nu"):
        for layer in range(layers):
            found += [
                (f"{tree}/layers_{layer}/wi", (512, 2048), "embed mlp"),
                (f"{tree}/layers_{layer}/wo", (2048, 512), "mlp embd"),
                (f"{tree}/layers_{layer}/scale", (510,), "norm"),
                (f"{tree}/layers_{layer}/heads", (64, 64), "heads heads"),
            ]
    return [*found, ("params/odd", (6, 510), "batch mlp"), ("opt_state/0/count", (), "")]


def audited(dialect: str = "linen", rules: Any = RULES) -> Any:
    return sv.audit(rows(), rules, MESH, dialect=dialect)


@way("an audit")
def _() -> Any:
    return audited()


@way("an audit by paths")
def _() -> Any:
    return audited("regex", [("wi", (None, "model")), (".*", ())])


@way("the audit of a train state of linen", "flax", "optax")
def _() -> Any:
    from tests.layout.audit_models import RULES as table
    from tests.layout.audit_models import linen_state

    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    state, _, _ = linen_state(mesh, lambda optax: optax.adam(1e-3), experts=4)
    return sv.audit(state, [r for r in table if r[0] != "embed"], sv.mesh(data=4, model=2))


@way("the audit of an nnx module", "flax")
def _() -> Any:
    nnx = importlib.import_module("flax.nnx")
    boxed = lambda *names: nnx.with_partitioning(nnx.initializers.ones_init(), names)  # noqa: E731

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up = nnx.Linear(16, 32, kernel_init=boxed("embed", "mlp"), rngs=rngs)
            self.down = nnx.Linear(32, 16, kernel_init=boxed("mlp", "embed"), rngs=rngs)

    with nnx.use_eager_sharding(False):
        state = nnx.state(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))
    return sv.audit(state, SMALL, MESH)


@way("the audit of a Keras model", "keras")
def _() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = importlib.import_module("keras")
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, name="up")])
    return sv.audit(model, [("up.kernel", (None, "model"))], MESH, dialect="keras")


@way("a live model on its own mesh")
def _() -> Any:
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    return [jax.device_put(jnp.ones((8, 8)), sharding)]


def edited_state(thing: Any) -> Any:
    """The state of an Explorer in which a name was misspelt."""
    explorer = sv.explore(thing)
    explorer.session.edit("logical", "embed mpl", 0)
    state = explorer.state()
    explorer.close()
    return state


@way("the state of a program")
def _() -> Any:
    return edited_state(sv.program(step, *arrays(), mesh=MESH, rules=RULES))


@way("the state of an audit")
def _() -> Any:
    return edited_state(audited())


#: Those that are looked at in a real browser, too.
IN_A_BROWSER = ("nothing", "a program without rules", "an audit", "the state of an audit")
