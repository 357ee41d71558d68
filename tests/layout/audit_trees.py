"""Trees of other people's libraries on 8 simulated devices: what sv.audit says, and what they say.

Run as `python -m tests.layout.audit_trees`: one line of JSON for each kind of tree. Live trees are
compared with the bytes of `addressable_shards`, abstract ones with the library's own function from
names to shardings; both are counted without shardviz.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from tests.layout import audit_models as models

RULES = [("embed", "data"), ("mlp", "model"), ("vocab", None)]


@lru_cache
def mesh() -> Mesh:
    return Mesh(np.reshape(jax.devices(), (4, 2)), ("data", "model"))


class Kind(NamedTuple):
    """A tree, and what is true of it.

    Attributes:
        each: what each of its arrays takes on a device that holds it, in bytes; sorted.
        bytes: what all take on the device that holds most, in bytes; the sum of `each` by default.
        unknown: how many more arrays there are, of which nothing says how they are split.
        argument: what a program takes in place of a tree that jax sees no arrays in; the tree
            itself where it is None.
        specs: the path of an array to its PartitionSpec as the library says it.
        partners: the path of an optimizer's array to that of its parameter.
    """

    tree: Any
    each: list[int]
    bytes: int | None = None
    unknown: int = 0
    rules: Any = ()
    options: dict[str, Any] = {}
    argument: Any = None
    specs: Any = None
    partners: Any = None


def put(tree: Any, spec: Callable[[Any], P] | None = None) -> Any:
    """The arrays of a tree on the mesh: matrices split over both axes, all else replicated."""
    spec = spec or (lambda a: P("data", "model") if a.ndim == 2 else P())

    def place(leaf: Any) -> Any:
        return jax.device_put(leaf, NamedSharding(mesh(), spec(leaf))) if is_array(leaf) else leaf

    return jax.tree.map(place, tree)


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))


def live_bytes(arrays: Iterable[Any]) -> int:
    held: Counter[int] = Counter()
    for array in arrays:
        for shard in array.addressable_shards if isinstance(array, jax.Array) else ():
            held[shard.device.id] += shard.data.nbytes
    return max(held.values(), default=0)


def live(tree: Any, leaves: Any = None, **rest: Any) -> Kind:
    found = jax.tree.leaves(tree) if leaves is None else leaves
    each = sorted(max(s.data.nbytes for s in a.addressable_shards) for a in found)
    return Kind(tree, each, live_bytes(found), **rest)


def sharded_bytes(shapes: Any, shardings: Any) -> list[int]:
    """What each array of these shapes takes on each device under these shardings of jax."""
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
    return sorted(math.prod(s.shard_shape(a.shape)) * a.dtype.itemsize for a, s in pairs)


def named(specs: Any) -> Any:
    return jax.tree.map(
        lambda s: NamedSharding(mesh(), s), specs, is_leaf=lambda s: isinstance(s, P)
    )


def with_sharding(array: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


# linen


def dense(box: Any = None, names: Any = ("embed", "mlp")) -> Any:
    nn = importlib.import_module("flax.linen")
    init = nn.initializers.lecun_normal()
    return nn.Dense(16, kernel_init=init if box is None else getattr(nn, box)(init, names))


def shapes_of(model: Any) -> Any:
    return jax.eval_shape(model.init, jax.random.key(0), jnp.ones((2, 8)))


def linen_live_in_boxes() -> Kind:
    model = dense("with_partitioning", ("data", "model"))
    nn = importlib.import_module("flax.linen")
    shardings = nn.get_sharding(shapes_of(model), mesh())
    start = jax.jit(model.init, out_shardings=shardings)
    return live(start(jax.random.key(0), jnp.ones((2, 8))))


def linen_boxes_on_one_device() -> Kind:
    """What a plain `model.init` gives: nothing is split yet, and the names say what is meant."""
    nn = importlib.import_module("flax.linen")
    model = dense("with_partitioning", (None, "model"))
    variables = model.init(jax.random.key(0), jnp.ones((2, 8)))
    return Kind(variables, sharded_bytes(variables, nn.get_sharding(shapes_of(model), mesh())))


def linen_bound() -> Kind:
    model = dense()
    bound = model.bind(put(model.init(jax.random.key(0), jnp.ones((2, 8)))))
    return live(bound, jax.tree.leaves(bound.variables), argument=bound.variables)


def linen_logical() -> Kind:
    nn = importlib.import_module("flax.linen")
    shapes = shapes_of(dense("with_logical_partitioning"))
    specs = nn.get_partition_spec(shapes)
    wanted = sharded_bytes(shapes, nn.logical_to_mesh_sharding(specs, mesh(), RULES))
    return Kind(shapes, wanted, rules=RULES)


def train_state(model: Any) -> Any:
    optax = importlib.import_module("optax")
    states = importlib.import_module("flax.training.train_state")
    made = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def start(key: Any) -> Any:
        params = model.init(key, jnp.ones((2, 8)))["params"]
        return states.TrainState.create(apply_fn=model.apply, params=params, tx=made)

    return start


def train_state_live() -> Kind:
    state = put(train_state(dense())(jax.random.key(0)))
    return live(state.replace(step=put(jnp.int32(0))))


def train_state_abstract() -> Kind:
    nn = importlib.import_module("flax.linen")
    start = train_state(dense("with_logical_partitioning"))
    shapes = jax.eval_shape(start, jax.random.key(0))
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(shapes), mesh(), RULES)
    # jax makes an array of the step, which is a Python number; flax gives it no sharding.
    return Kind(shapes, sharded_bytes(shapes, shardings), rules=RULES)


# nnx


def net(names: Any = ("data", "model"), **metadata: Any) -> Any:
    nnx = importlib.import_module("flax.nnx")
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), names, **metadata)
    return lambda: nnx.Linear(8, 16, kernel_init=init, rngs=nnx.Rngs(0))


def nnx_module_live() -> Kind:
    nnx = importlib.import_module("flax.nnx")
    with jax.set_mesh(mesh()):
        model = net()()
    model.bias[...] = put(model.bias[...])
    return live(model, jax.tree.leaves(nnx.state(model)))


def nnx_optimizer_live() -> Kind:
    nnx, optax = importlib.import_module("flax.nnx"), importlib.import_module("optax")
    with jax.set_mesh(mesh()):
        model = net()()
        optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    state = nnx.state(optimizer)
    return live(optimizer, jax.tree.leaves(state))


def nnx_state_abstract() -> Kind:
    nnx = importlib.import_module("flax.nnx")
    with nnx.use_eager_sharding(False):
        state = nnx.state(nnx.eval_shape(net()))
    return Kind(state, sharded_bytes(state, nnx.get_named_sharding(state, mesh())))


def nnx_state_with_rules() -> Kind:
    nnx = importlib.import_module("flax.nnx")
    rules = (("embed", "data"), ("mlp", "model"))
    with nnx.use_eager_sharding(False):
        state = nnx.state(nnx.eval_shape(net(("embed", "mlp"), sharding_rules=rules)))
    return Kind(state, sharded_bytes(state, nnx.get_named_sharding(state, mesh())))


def nnx_dialect() -> Kind:
    nnx = importlib.import_module("flax.nnx")
    spmd = importlib.import_module("flax.core.spmd")
    with nnx.use_eager_sharding(False):
        state = nnx.state(nnx.eval_shape(net(("embed", "model"))))
    with spmd.logical_axis_rules(RULES):
        shardings = nnx.get_named_sharding(state, mesh())
    return Kind(state, sharded_bytes(state, shardings), rules=RULES, options={"dialect": "nnx"})


# equinox, haliax, penzai


class Block:
    """Makes an equinox module with what real ones hold: functions, numbers, text, lists."""

    def __new__(cls) -> Any:
        eqx = importlib.import_module("equinox")

        class Model(eqx.Module):
            layers: list
            dropout: Any
            name: str
            axes: tuple

            def __init__(self) -> None:
                first, second = jax.random.split(jax.random.key(0))
                self.layers = [
                    eqx.nn.Linear(8, 16, key=first),
                    jax.nn.relu,
                    eqx.nn.MLP(16, 8, 32, 2, key=second),
                ]
                self.dropout, self.name, self.axes = eqx.nn.Dropout(0.5), "block", ("a", "b")

        return Model()


def equinox_live() -> Kind:
    model = put(Block())
    return live(model, [a for a in jax.tree.leaves(model) if is_array(a)])


def equinox_abstract() -> Kind:
    eqx = importlib.import_module("equinox")
    model = eqx.filter_eval_shape(Block)
    shapes = [a for a in jax.tree.leaves(model) if isinstance(a, jax.ShapeDtypeStruct)]
    return Kind(model, [], 0, len(shapes))


def equinox_with_names() -> Kind:
    eqx = importlib.import_module("equinox")
    model = eqx.filter_eval_shape(Block)
    shapes = [a for a in jax.tree.leaves(model) if isinstance(a, jax.ShapeDtypeStruct)]
    specs = [P("data", "model") if a.ndim == 2 else P() for a in shapes]

    def names(path: str, array: Any) -> P:
        return P("data", "model") if path.endswith("weight") else P()

    wanted = sharded_bytes(shapes, named(specs))
    split = iter(named(specs))
    argument = jax.tree.map(lambda a: with_sharding(a, next(split)) if a in shapes else a, model)
    return Kind(model, wanted, options={"names": names}, argument=argument)


def haliax_linear() -> tuple[Any, Any]:
    hax = importlib.import_module("haliax")
    axes = hax.Axis("embed", 8), hax.Axis("mlp", 16)
    return hax, lambda: hax.nn.Linear.init(*axes, key=jax.random.key(0))


def haliax_abstract() -> Kind:
    hax, make = haliax_linear()
    eqx = importlib.import_module("equinox")
    model = eqx.filter_eval_shape(make)
    boxes = [a for a in jax.tree.leaves(model, is_leaf=is_named) if is_named(a)]
    specs = [hax.partitioning.pspec_for_axis(a.axes, dict(RULES)) for a in boxes]
    wanted = sharded_bytes([a.array for a in boxes], named(specs))
    return Kind(model, wanted, rules=RULES)


def is_named(node: Any) -> bool:
    return type(node).__name__ == "NamedArray"


def penzai_arrays() -> tuple[Any, Any, Any]:
    pz = importlib.import_module("penzai.pz")
    model = pz.nn.Linear.from_config("layer", jax.random.key(0), {"embed": 8}, {"mlp": 16})
    arrays = {v.label: v.value for v in pz.unbind_params(model)[1]}
    named = importlib.import_module("penzai.toolshed.sharding_util").name_to_name_sharding
    mapping = {"embed": "data", "mlp": "model"}
    return model, arrays, named(arrays, mesh(), axis_name_to_mesh_name=mapping)


def penzai_abstract() -> Kind:
    _, arrays, shardings = penzai_arrays()
    shapes = jax.eval_shape(lambda: arrays)
    return Kind(shapes, sharded_bytes(shapes, shardings), rules=RULES)


# Keras


def keras_model(distributed: bool) -> Any:
    keras = importlib.import_module("keras")
    dist = keras.distribution
    grid = dist.DeviceMesh((4, 2), ("data", "model"), dist.list_devices())
    layouts = dist.LayoutMap(grid)
    layouts[".*kernel"] = (None, "model")
    layouts[".*bias"] = ("model",)
    both = dist.ModelParallel(layout_map=layouts, batch_dim_name="data")
    dist.set_distribution(both if distributed else None)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(4)])
    model.compile(optimizer="adam", loss="mse")
    model.optimizer.build(model.trainable_variables)
    dist.set_distribution(None)
    return model, layouts


def keras_layout_map() -> Kind:
    model, layouts = keras_model(False)
    values = [v.value for v in model.trainable_variables]
    specs = [P(*layouts[v.path].axes) for v in model.trainable_variables]
    shapes = {v.path: jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.trainable_variables}
    wanted = sharded_bytes(values, named(specs))
    argument = [with_sharding(a, s) for a, s in zip(shapes.values(), named(specs), strict=True)]
    options = {"names": lambda path, _: layouts[path]}
    return Kind(shapes, wanted, options=options, argument=argument)


# optax, orbax, and no library at all


def plain() -> Any:
    return {"w": jnp.ones((8, 16)), "b": jnp.ones(16), "layers": [jnp.ones((16, 8)), None, (), {}]}


def optax_state() -> Kind:
    optax = importlib.import_module("optax")
    mask = {"w": True, "b": False, "layers": [True, None, (), {}]}
    made = optax.chain(optax.clip(1.0), optax.masked(optax.adam(1e-3), mask), optax.identity())
    return live(put(made.init(plain())))


def saved() -> tuple[Any, Any, str]:
    ocp = importlib.import_module("orbax.checkpoint")
    tree = put({"w": jnp.ones((8, 16)), "b": jnp.ones(16), "both": jnp.ones((16, 4)), "none": {}})
    both = NamedSharding(mesh(), P(("data", "model"), None))
    tree["both"] = jax.device_put(tree["both"], both)
    folder = os.path.join(tempfile.mkdtemp(), "saved")
    with ocp.StandardCheckpointer() as saver:
        saver.save(folder, tree)
    return ocp, tree, folder


def orbax_metadata() -> Kind:
    ocp, tree, folder = saved()
    with ocp.StandardCheckpointer() as reader:
        found = reader.metadata(folder)
    return live(found, jax.tree.leaves(tree), argument=tree)


def other_live() -> Kind:
    tree = {
        "replicated": put(jnp.ones((8, 4)), lambda _: P()),
        "one": jax.device_put(jnp.ones((4, 4)), jax.devices()[3]),
        "jit": jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh(), P("model")))(
            jnp.ones(8)
        ),
    }
    return live(tree)


def shape_structs() -> Kind:
    specs = {"w": P("data", "model"), "b": P("model"), "layers": [P(None, ("data", "model"))]}
    tree = plain() | {"layers": [jnp.ones((16, 8))]}
    shapes = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), tree, named(specs)
    )
    return Kind(shapes, sharded_bytes(tree, named(specs)))


def nothing_said() -> Kind:
    return Kind(jax.eval_shape(plain), [], 0, 3)


# real models


def model_state(optimizer: str, scanned: bool = False, experts: int = 0) -> Callable[[], Kind]:
    """A train state of linen: its transformer, or a mixture of experts."""

    def kind() -> Kind:
        importlib.import_module("optax.contrib")
        made = models.OPTIMIZERS[optimizer]
        state, specs, partners = models.linen_state(mesh(), made, scanned, experts)
        leaves = models.by_path(state, models.is_box)
        shapes = [getattr(leaf, "value", leaf) for leaf in leaves.values()]
        wanted = sharded_bytes(shapes, named(list(specs.values())))
        return Kind(state, wanted, rules=models.RULES, specs=specs, partners=partners)

    return kind


def nnx_model() -> Kind:
    state, specs, partners = models.nnx_transformer(mesh())
    shapes = models.by_path(state, lambda v: hasattr(v, "get_metadata"))
    values = [shapes[path].get_value() for path in specs]
    wanted = sharded_bytes(values, named(list(specs.values())))
    return Kind(state, wanted, specs=specs, partners=partners)


def keras_model_and_optimizers() -> Kind:
    parts, specs, partners = models.keras_transformer()
    values = [v.value for part in parts for v in part.variables]
    return live(parts, values, specs=specs, partners=partners, argument=values)


KINDS: dict[str, tuple[str, Callable[[], Kind]]] = {
    "linen transformer, adamw": ("optax", model_state("adamw")),
    "linen transformer, scanned, lion in MultiSteps": ("optax", model_state("MultiSteps", True)),
    "linen mixture of experts, ademamix": ("optax", model_state("ademamix", False, 4)),
    "linen mixture of experts, scanned, adamw": ("optax", model_state("adamw", True, 4)),
    "nnx transformer and its optimizer": ("optax", nnx_model),
    "Keras transformer and two optimizers": ("keras", keras_model_and_optimizers),
    "arrays on one device, on all, of jit": ("jax", other_live),
    "ShapeDtypeStructs with shardings": ("jax", shape_structs),
    "shapes of eval_shape": ("jax", nothing_said),
    "linen boxes, live": ("flax", linen_live_in_boxes),
    "linen boxes, live on one device": ("flax", linen_boxes_on_one_device),
    "linen module, bound": ("flax", linen_bound),
    "linen boxes of logical names, abstract": ("flax", linen_logical),
    "TrainState, live": ("optax", train_state_live),
    "TrainState, abstract": ("optax", train_state_abstract),
    "nnx module, live": ("flax", nnx_module_live),
    "nnx.Optimizer, live": ("optax", nnx_optimizer_live),
    "nnx state of mesh axes, abstract": ("flax", nnx_state_abstract),
    "nnx state with sharding_rules, abstract": ("flax", nnx_state_with_rules),
    "nnx state, nnx rules, abstract": ("flax", nnx_dialect),
    "optax state, live": ("optax", optax_state),
    "equinox module, live": ("equinox", equinox_live),
    "equinox module, abstract": ("equinox", equinox_abstract),
    "equinox module with names=": ("equinox", equinox_with_names),
    "haliax module, abstract": ("haliax", haliax_abstract),
    "penzai arrays, abstract": ("penzai", penzai_abstract),
    "Keras LayoutMap as names=": ("keras", keras_layout_map),
    "orbax metadata of a checkpoint": ("orbax.checkpoint", orbax_metadata),
}


def compared(kind: Kind) -> dict[str, Any]:
    """What sv.audit says of a tree beside what its library says, and whether sv.program agrees."""
    audit = sv.audit(kind.tree, kind.rules, sv.mesh(mesh()), **kind.options)
    found = {
        "arrays": len(audit.rows),
        "bytes": audit.bytes_per_device,
        "wanted": sum(kind.each) if kind.bytes is None else kind.bytes,
        "each": sorted(r.bytes_per_device for r in audit.rows if r.bytes_per_device is not None),
        "each_wanted": kind.each,
        "unknown": sum(row.spec is None and row.bytes_per_device is None for row in audit.rows),
        "unknown_wanted": kind.unknown,
        "problems": dict(audit.problems),
        "said": "unknown" in audit.explain(),
    }
    if kind.specs is not None:
        ours = {row.path: row.spec and row.spec.to_jax() for row in audit.rows}
        wanted = {path: same_length(spec, ours.get(path)) for path, spec in kind.specs.items()}
        found["specs"] = str({p: (s, ours.get(p)) for p, s in wanted.items() if ours.get(p) != s})
    if kind.partners is not None:
        paired = {row.path: row.partner for row in audit.rows if row.partner}
        found["partners"] = str(dict(paired.items() ^ kind.partners.items()))
    options = {k: v for k, v in kind.options.items() if k == "dialect"}
    program = sv.program(
        lambda tree: jnp.zeros(()), kind.tree if kind.argument is None else kind.argument,
        mesh=sv.mesh(mesh()), rules=kind.rules or None, **options,
    )  # fmt: skip
    said = [r for r in audit.rows if r.spec is not None]
    asked = [r for r in program.requests if r.array.spec or r.array.logical]
    extra = counted(said) - counted(program.requests), counted(asked) - counted(said)
    found["program"] = str(extra) if any(extra) else ""
    of_program = sv.audit(program)
    found["program_audit"] = str(counted(of_program.rows) - counted(program.requests) or "")
    return found


def same_length(spec: P, ours: Any) -> P:
    """A spec with the dimensions that it leaves out, where ours has them: flax drops some."""
    missing = len(ours or ()) - len(spec)
    return P(*spec, *[None] * max(0, missing))


def counted(rows: Iterable[Any]) -> Counter:
    """Rows by shape, type and what they take on each device."""
    return Counter((r.shape, r.dtype, r.bytes_per_device) for r in rows)


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    for name, (library, make) in KINDS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other people's
                importlib.import_module(library)
        except ImportError as error:
            print(json.dumps({"kind": name, "missing": str(error)}), flush=True)
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind = make()
            found = compared(kind)
        except Exception as error:  # noqa: BLE001  each kind fails by itself
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps({"kind": name, **found}), flush=True)


if __name__ == "__main__":
    main()
