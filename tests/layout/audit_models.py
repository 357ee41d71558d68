"""Train states of real models: what flax, nnx, Keras and optax say of every leaf of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RULES = [
    ("batch", "data"), ("layers", None), ("expert", "data"), ("embed", "data"),
    ("mlp", "model"), ("heads", "model"), ("kv", None), ("vocab", "model"), ("norm", None),
]  # fmt: skip
DEPTH, EMBED, MLP, HEADS, HEAD, VOCAB, EXPERTS = 4, 16, 32, 4, 8, 64, 4


def path_of(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def by_path(tree: Any, is_leaf: Callable[[Any], bool]) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {path_of(path): leaf for path, leaf in leaves}


def is_spec(value: Any) -> bool:
    return isinstance(value, (P, NamedSharding))


def linen_block() -> Any:
    """One block of a transformer; with `experts` its feed-forward layer is a mixture of them."""
    nn = importlib.import_module("flax.linen")

    def weight(module: Any, name: str, names: tuple, shape: tuple) -> Any:
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)
        return module.param(name, init, shape)

    class Block(nn.Module):
        experts: int = 0

        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            norm = nn.with_logical_partitioning(nn.initializers.ones_init(), ("norm",))
            y = nn.LayerNorm(use_bias=False, scale_init=norm, name="norm")(x)
            qkv = weight(self, "qkv", ("embed", "heads", "kv"), (EMBED, HEADS, 3 * HEAD))
            out = weight(self, "out", ("heads", "kv", "embed"), (HEADS, HEAD, EMBED))
            q, k, v = jnp.split(jnp.einsum("bte,ehk->bthk", y, qkv), 3, -1)
            scores = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k))
            x += jnp.einsum("bhts,bshk,hke->bte", scores, v, out)
            if not self.experts:
                wi = weight(self, "wi", ("embed", "mlp"), (EMBED, MLP))
                wo = weight(self, "wo", ("mlp", "embed"), (MLP, EMBED))
                return x + nn.relu(x @ wi) @ wo, None
            router = weight(self, "router", ("embed", None), (EMBED, self.experts))
            wi = weight(self, "wi", ("expert", None, "mlp"), (self.experts, EMBED, MLP))
            wo = weight(self, "wo", ("expert", "mlp", None), (self.experts, MLP, EMBED))
            gates = jax.nn.softmax(x @ router)
            hidden = nn.relu(jnp.einsum("bte,xem->btxm", x, wi))
            return x + jnp.einsum("btxm,xme,btx->bte", hidden, wo, gates), None

    return Block


def linen_transformer(scanned: bool = False, experts: int = 0) -> Any:
    nn = importlib.import_module("flax.linen")
    block = linen_block()

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            table = nn.with_logical_partitioning(nn.initializers.normal(), ("vocab", "embed"))
            embed = nn.Embed(VOCAB, EMBED, embedding_init=table, name="embed")
            x = embed(tokens)
            if scanned:
                stack = nn.scan(
                    block, variable_axes={"params": 0}, split_rngs={"params": True}, length=DEPTH,
                    metadata_params={nn.PARTITION_NAME: "layers"},
                )  # fmt: skip
                x, _ = stack(experts, name="layers")(x, None)
            else:
                for layer in range(DEPTH):
                    x, _ = block(experts, name=f"layers_{layer}")(x)
            return embed.attend(x)

    return Transformer()


def linen_state(mesh: Mesh, optimizer: Any, scanned: bool = False, experts: int = 0) -> Any:
    """A TrainState without arrays, and flax's and optax's answers."""
    nn = importlib.import_module("flax.linen")
    optax = importlib.import_module("optax")
    states = importlib.import_module("flax.training.train_state")
    model, made = linen_transformer(scanned, experts), optimizer(optax)

    def start() -> Any:
        params = model.init(jax.random.key(0), jnp.ones((2, 8), int))["params"]
        return states.TrainState.create(apply_fn=model.apply, params=params, tx=made)

    state = jax.eval_shape(start)
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(state), mesh, RULES)
    specs = {path: s.spec for path, s in by_path(shardings, is_spec).items()}
    boxed = jax.tree.map(lambda b: b, state.params, is_leaf=is_box)
    paths = jax.tree_util.tree_map_with_path(
        lambda path, _: f"params/{path_of(path)}", boxed, is_leaf=is_box
    )
    partners = pairs_of_optax(optax, made, state.opt_state, paths)
    return state, specs, partners


def is_box(value: Any) -> bool:
    return hasattr(value, "names") and hasattr(value, "unbox")


class Mark:
    """A leaf."""

    def __init__(self, path: str | None) -> None:
        self.path = path


def pairs_of_optax(optax: Any, made: Any, state: Any, paths: Any) -> dict[str, str]:
    marked = optax.tree_utils.tree_map_params(
        made, lambda _, path: Mark(path), state, paths,
        transform_non_params=lambda _: Mark(None), is_leaf=is_box,
    )  # fmt: skip
    found = by_path(marked, lambda x: isinstance(x, Mark))
    return {f"opt_state/{p}": m.path for p, m in found.items() if isinstance(m, Mark) and m.path}


def nnx_transformer(mesh: Mesh) -> Any:
    """The state of an nnx optimizer and its model without arrays, and nnx's answers."""
    nnx = importlib.import_module("flax.nnx")
    optax = importlib.import_module("optax")

    def weight(rngs: Any, shape: tuple, names: tuple) -> Any:
        init = nnx.initializers.lecun_normal()
        return nnx.Param(init(rngs.params(), shape), out_sharding=names)

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm = nnx.LayerNorm(EMBED, rngs=rngs)
            self.qkv = weight(rngs, (EMBED, 3 * HEADS * HEAD), ("data", "model"))
            self.out = weight(rngs, (HEADS * HEAD, EMBED), ("model", "data"))
            self.wi = weight(rngs, (EMBED, MLP), ("data", "model"))
            self.wo = weight(rngs, (MLP, EMBED), ("model", "data"))

    class Transformer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.embed = weight(rngs, (VOCAB, EMBED), ("model", None))
            self.blocks = nnx.List([Block(rngs) for _ in range(DEPTH)])

    def start() -> Any:
        model = Transformer(nnx.Rngs(0))
        return {"model": model, "optimizer": nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)}

    with nnx.use_eager_sharding(False):
        both = nnx.eval_shape(start)
        state = {name: nnx.state(part) for name, part in both.items()}
    specs = {}
    partners = {}
    for name, part in state.items():
        wanted = nnx.get_partition_spec(part)
        shardings = nnx.get_named_sharding(part, mesh)
        flat = {"/".join(map(str, k)): v for k, v in nnx.to_flat_state(wanted)}
        for path, held in nnx.to_flat_state(shardings):
            text = "/".join(map(str, path))
            assert held.get_value().spec == flat[text].get_value()
            specs[f"{name}/{text}"] = flat[text].get_value() or P()
    for path in specs:
        for moment in ("mu", "nu"):
            _, found, rest = path.partition(f"/{moment}/")
            if found and path.startswith("optimizer"):
                partners[path] = f"model/{rest}"
    return state, specs, partners


def keras_transformer() -> Any:
    """A Keras model and its optimizer under a LayoutMap, and the distribution's answers."""
    keras = importlib.import_module("keras")
    dist = keras.distribution
    grid = dist.DeviceMesh((4, 2), ("data", "model"), dist.list_devices())
    layouts = dist.LayoutMap(grid)
    layouts[".*(query|key|value).kernel"] = (None, "model", None)
    layouts[".*up.kernel"] = ("data", "model")
    layouts[".*down.kernel"] = ("model", "data")
    layouts[".*embeddings"] = ("model", None)
    both = dist.ModelParallel(layout_map=layouts, batch_dim_name="data")
    dist.set_distribution(both)
    layers = keras.layers
    tokens = keras.Input((8,), dtype="int32")
    x = layers.Embedding(VOCAB, EMBED, name="embed")(tokens)
    for layer in range(2):
        attended = layers.MultiHeadAttention(HEADS, HEAD, name=f"attention_{layer}")(x, x)
        x = layers.LayerNormalization(name=f"norm_{layer}")(x + attended)
        hidden = layers.Dense(MLP, activation="relu", name=f"up_{layer}_up")(x)
        x = x + layers.Dense(EMBED, name=f"down_{layer}_down")(hidden)
    model = keras.Model(tokens, layers.Dense(VOCAB, name="logits")(x))
    optimizers = [keras.optimizers.Adam(name="adam"), keras.optimizers.SGD(momentum=0.9)]
    for optimizer in optimizers:
        optimizer.build(model.trainable_variables)
    dist.set_distribution(None)
    specs, partners = {}, {}
    for variable in model.variables:
        layout = both.get_variable_layout(variable)
        specs[variable.path] = P(*layout.axes)
    for optimizer in optimizers:
        for variable in optimizer.variables:
            specs[variable.path] = P(*both.get_variable_layout(variable).axes)
            for parameter in model.trainable_variables:
                start = parameter.path.replace("/", "_") + "_"
                if variable.path.partition("/")[2].startswith(start):
                    partners[variable.path] = parameter.path
    return [model, *optimizers], specs, partners


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda optax: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "MultiSteps": lambda optax: optax.MultiSteps(
        optax.inject_hyperparams(optax.lion)(1e-3), 4
    ).gradient_transformation(),
    "ademamix": lambda optax: optax.contrib.ademamix(1e-3),
}
