"""Twenty checkpoints saved on 8 devices, restored on 2 and on 16 by orbax, with its reads counted.

Run in a process of its own, which has 16 devices: `python -m tests.backend.checkpoint_cases FOLDER`
writes a line of JSON per restore, with what `sv.restore` predicts and what tensorstore counted.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv

COUNTED = {
    "asked": "/tensorstore/cache/chunk_cache/reads",
    "ocdbt": "/tensorstore/kvstore/ocdbt/read",
    "files": "/tensorstore/kvstore/file/read",
}


def grid(
    *sizes: int, names: tuple[str, ...] = ("data", "model"), kind: Any = AxisType.Auto
) -> Mesh:
    """A mesh of the first devices."""
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, names, axis_types=(kind,) * len(sizes))


def put(mesh: Mesh, shape: Any, *spec: Any, dtype: Any = "float32") -> jax.Array:
    """An array of numbers that do not compress, split over the mesh."""
    bits = np.random.default_rng(len(shape)).integers(0, 100, shape)
    return jax.device_put(bits.astype(jnp.dtype(dtype)), NamedSharding(mesh, P(*spec)))


class Case(NamedTuple):
    """A tree, how it is saved, and the specs that it is wanted with by pattern."""

    tree: Callable[[Mesh], Any]
    wanted: list[tuple[str, tuple]]
    options: dict[str, Any] = {}
    chunk_bytes: int | None = None
    shard_axes: tuple[int, ...] = ()
    mesh: tuple[int, ...] = (4, 2)
    manager: bool = False


def _one(*spec: Any, shape: Any = (64, 64), dtype: Any = "float32") -> Callable[[Mesh], Any]:
    return lambda mesh: {"w": put(mesh, shape, *spec, dtype=dtype)}


def _layers(mesh: Mesh) -> Any:
    layer = {"up": put(mesh, (32, 64), None, "model"), "bias": put(mesh, (64,), "model")}
    return {"layers": [layer, layer], "head": {"w": put(mesh, (64, 16), "data")}, "count": 3}


def _mixed(mesh: Mesh) -> Any:
    return {
        "half": put(mesh, (32, 32), "model", "data", dtype="bfloat16"),
        "flags": put(mesh, (16, 48), "data", dtype="bool"),
        "small": put(mesh, (16,), dtype="int8"),
        "plain": np.arange(48.0).reshape(16, 3),
        "number": 2.5,
        "keys": jax.random.split(jax.random.key(0), 16),
    }


def _train_state(mesh: Mesh) -> Any:
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    init = nn.with_partitioning(nn.initializers.normal(), ("data", "model"))
    model = nn.Dense(32, kernel_init=init)
    params = model.init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))
    spec = lambda x: P("data", "model") if jnp.ndim(x) == 2 else P()  # noqa: E731
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec(x))), state)


def _nnx_state(mesh: Mesh) -> Any:
    from flax import nnx

    state = nnx.state(nnx.Linear(16, 32, rngs=nnx.Rngs(0)))
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P())), state)


EVERY = (".*", ())
CASES = {
    "as saved": Case(_one("data", "model"), [("w", ("data", "model"))]),
    "from rows to columns": Case(_one("data"), [("w", (None, "data"))]),
    "split to replicated": Case(_one(("data", "model")), [EVERY]),
    "small chunks": Case(_one("data"), [("w", (None, "model"))], chunk_bytes=512),
    "chunks by axis": Case(
        _one("data"), [("w", (None, "data"))], chunk_bytes=1024, shard_axes=(1,)
    ),
    "three dimensions": Case(
        _one("model", None, "data", shape=(16, 6, 32)), [("w", (None, None, ("data", "model")))]
    ),
    "chunks that do not divide": Case(
        _one("data", shape=(48, 40)), [("w", ("data", None))], mesh=(3, 2)
    ),
    "zarr without OCDBT": Case(_layers, [("up", ("model",)), EVERY], {"use_ocdbt": False}),
    "zarr, columns": Case(_one("data"), [("w", (None, "data"))], {"use_ocdbt": False}),
    "zarr3": Case(_layers, [("up", ("data",)), EVERY], {"use_zarr3": True}),
    "zarr3 without OCDBT": Case(
        _one("data"), [("w", (None, "data"))], {"use_zarr3": True, "use_ocdbt": False}, 2048
    ),
    "layers": Case(_layers, [("up", (None, "data")), ("head", ("model", "data")), EVERY]),
    "dtypes, numbers and keys": Case(
        _mixed, [("half", (None, "data")), ("plain|small", ("data",)), ("keys", ("data",)), EVERY]
    ),
    "train state": Case(_train_state, [("kernel", ("model", "data")), EVERY]),
    "nnx": Case(_nnx_state, [("kernel", (None, "data")), EVERY], {"use_ocdbt": False}),
    "manager": Case(_layers, [("up", ("data", "model")), EVERY], manager=True),
}  # fmt: skip


def save(case: Case, folder: Path) -> Path:
    """Saves a case's tree, and returns what `sv.restore` is given."""
    tree = case.tree(grid(*case.mesh))
    if case.manager:
        with ocp.CheckpointManager(folder) as manager:
            for step in (1, 7):
                manager.save(step, args=ocp.args.StandardSave(tree))
        return folder
    args = jax.tree.map(
        lambda _: ocp.SaveArgs(chunk_byte_size=case.chunk_bytes, shard_axes=case.shard_axes), tree
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**case.options)) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(tree, save_args=args))
    return folder


def counted() -> dict[str, int]:
    """What tensorstore has counted in this process."""
    found = {}
    for short, name in COUNTED.items():
        metrics = ts.experimental_collect_matching_metrics(name)
        found[short] = sum(v["value"] for m in metrics if m["name"] == name for v in m["values"])
    return found


def restores(folder: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """Every case on 2 and on 16 devices: what is predicted and what was counted."""
    for name in names:
        case = CASES[name]
        path = save(case, folder / name.replace(" ", "_"))
        for sizes in ((2, 1), (8, 2)):
            mesh = grid(*sizes)
            plan = sv.restore(path, case.wanted, sv.mesh(mesh), dialect="regex")
            assert not plan.problems, (name, plan.problems)
            yield {
                "case": name,
                "devices": mesh.size,
                **_predicted(plan),
                **_restored(case, plan, mesh),
            }


def _shared(plan: Any) -> bool:
    """Whether arrays share files (OCDBT)."""
    return (Path(plan.checkpoint.path) / "manifest.ocdbt").exists()


def _predicted(plan: Any) -> dict[str, Any]:
    (process,) = plan.processes
    return {
        "ocdbt": _shared(plan),
        "arrays": len(plan.rows),
        "chunks": process.chunks,
        "reads": process.reads,
        "by_array": {row.path: int(row.reads.reads.sum()) for row in plan.rows},
    }


def _restored(case: Case, plan: Any, mesh: Mesh) -> dict[str, Any]:
    """What orbax reads for all arrays at once, and for each alone."""
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=_shared(plan), use_zarr3=case.options.get("use_zarr3", False)
    )
    path = Path(plan.checkpoint.path)
    specs = {row.path: P(*row.spec.to_jax()) for row in plan.rows}
    with ocp.Checkpointer(handler) as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
        paths = {k: "/".join(_key(part) for part in k) for k, _ in _leaves(tree)}
        leaves = {paths[k]: (k, v) for k, v in _leaves(tree) if paths[k] in specs}
        args = {
            path: ocp.ArrayRestoreArgs(sharding=NamedSharding(mesh, specs[path])) for path in leaves
        }
        full = jax.tree_util.tree_map_with_path(
            lambda k, v: args.get("/".join(_key(p) for p in k), ocp.RestoreArgs()),
            tree,
            is_leaf=lambda v: not isinstance(v, (dict, list, tuple)),
        )
        total = _count(
            lambda: checkpointer.restore(
                path, args=ocp.args.PyTreeRestore(item=tree, restore_args=full)
            )
        )
        alone = {}
        if len(leaves) < 5 and mesh.size > 2:
            for name, (keys, leaf) in leaves.items():
                only = ocp.args.PyTreeRestore(
                    item=_nested(keys, leaf),
                    restore_args=_nested(keys, args[name]),
                    partial_restore=True,
                )
                found = _count(partial(checkpointer.restore, path, args=only))
                alone[name] = found["asked"]
    return {"counted": total, "alone": alone}


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    leaf = lambda v: not isinstance(v, (dict, list, tuple))  # noqa: E731
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=leaf)[0]


def _key(part: Any) -> str:
    return str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part))))


def _nested(keys: Any, leaf: Any) -> Any:
    for key in reversed(keys):
        leaf = {key.key: leaf} if hasattr(key, "key") else [leaf]
    return leaf


def _count(restore: Callable[[], Any]) -> dict[str, int]:
    before = counted()
    jax.block_until_ready(jax.tree.leaves(restore()))
    after = counted()
    return {name: after[name] - before[name] for name in after}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_num_cpu_devices", 16)
    for found in restores(Path(sys.argv[1]), sys.argv[2:] or list(CASES)):
        print(json.dumps(found), flush=True)
