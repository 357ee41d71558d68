"""Run as a notebook would be: programs over its functions, and the code that their Explorer gives.

Prints JSON: of every program its code, and the shard indices of its arrays and outputs.
"""

# ruff: noqa: F821  the functions' names come from the cell above
import json
import sys
from functools import partial
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 8)

FUNCTIONS = Path(__file__).with_name("notebook_functions.py")
exec(compile(FUNCTIONS.read_text(), str(FUNCTIONS), "exec"))  # noqa: S102  the cell above

from flax.linen import LogicallyPartitioned  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import shardviz as sv  # noqa: E402
from shardviz.explorer.explorer import open_explorer  # noqa: E402
from shardviz.runs.cache import ExecutableCache  # noqa: E402

A = sv.array
MESH = sv.mesh(data=2, model=4)
X, W = A("x", (8, 8), spec="data"), A("w", (8, 8), spec="None, model")
JAX_MESH = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
NAMED = NamedSharding(JAX_MESH, P("a", "b"))
TRAIN_STATE = {
    "layers": [A("first", (8, 8), "embed mlp"), A("second", (8, 8), "embed mlp")],
    "opt": Moments(A("count", (), dtype="int32"), (A("mu", (8,), "mlp"),)),
    "none": None,
    "step": A("step", (), dtype="int32"),
}
BATCH = {"x": A("rows", (16, 8), "batch embed")}
RULES = "batch -> data; mlp -> model"
DTYPES = ("bfloat16", "float8_e4m3fn", "bool", "complex64", "uint8", "float16")


def program(fn, *arrays, mesh=MESH, **more):
    return sv.program(fn, *arrays, mesh=mesh, **more)


def some_devices():
    return jax.sharding.Mesh(
        [[d] for d in jax.devices()[4:]], ("data", "model"), axis_types=(AxisType.Auto,) * 2
    )


def boxed():
    return {
        "params": {"kernel": LogicallyPartitioned(A("kernel", (8, 8), "embed mlp"), ("e", "m"))}
    }


PROGRAMS = {
    "a function": lambda: program(dot, X, W),
    "a lambda": lambda: program(lambda x, w: x @ w + 1, X, W),
    "a partial": lambda: program(partial(scaled_by, 3.0), X, W),
    "a callable object": lambda: program(scaled, X, W),
    "a method": lambda: program(scaled.less, X, W),
    "pytrees": lambda: program(train, TRAIN_STATE, BATCH, rules=RULES),
    "pytrees, donated": lambda: program(train, TRAIN_STATE, BATCH, rules=RULES, donate=(0,)),
    "a pytree of its own kind": lambda: program(of_held, Held({"b": A("b", (8,)), "w": W}), X),
    "boxes of flax": lambda: program(of_boxes, boxed(), X, rules=RULES),
    "one spec for the output": lambda: program(dot, X, W, donate=(0,), out_specs="data"),
    "a spec for each output": lambda: program(
        both, X, W, out_specs=("None, data", {"w": "model, data"})
    ),
    "under jit": lambda: program(
        jax.jit(both, donate_argnums=1, out_shardings=(None, {"w": NamedSharding(JAX_MESH, P())})),
        *(jax.ShapeDtypeStruct((8, 8), "float32", sharding=NAMED) for _ in "xw"),
        mesh=None,
    ),
    "a name of the function": lambda: program(dot, A("dot", (8, 8), spec="data"), W),
    "names of the code": lambda: program(
        every, *(A(n, (8,), spec="data") for n in ("mesh", "P", "jax", "output", "print", "ids"))
    ),
    "names that are none": lambda: program(
        every, *(A(n, (8,), spec="data") for n in ("class", "ü b", "1st", "a.b", "a b"))
    ),
    "a name that the function reads": lambda: program(
        reads_a_global, X, A("SCALE", (8, 8), spec="None, model")
    ),
    "a key": lambda: program(noisy, A("key", (), dtype="key<fry>"), X),
    "keys": lambda: program(
        many_keys,
        A("keys", (8,), dtype="key<rbg>", spec="data"),
        A("x", (8, 4), spec="data, model"),
    ),
    "dtypes": lambda: program(
        every, *(A(f"x{i}", (8, 8), dtype=d, spec="model") for i, d in enumerate(DTYPES))
    ),
    "no arrays, a spec": lambda: program(nothing, out_specs="data"),
    "the last four devices": lambda: program(dot, X, A("w", (8, 8)), mesh=some_devices()),
    "devices in another order": lambda: program(
        dot, X, W, mesh=sv.mesh(data=2, model=4, device_ids=[3, 1, 0, 2, 7, 6, 5, 4])
    ),
    "explicit axes": lambda: program(
        dot, X, A("w", (8, 8)), mesh=sv.mesh(data=2, model=4, axis_types="Explicit")
    ),
}


def shard_indices(layout):
    return {
        str(device): [
            [s.start or 0, n if s.stop is None else s.stop]
            for s, n in zip(index, layout.shape, strict=True)
        ]
        for device, index in layout.indices().items()
    }


def described(made):
    report = sv.run(made)
    assert report.error is None, report.error
    return {
        "code": open_explorer(made, ExecutableCache()).code(),
        "names": [a.name.replace(".", "_") for a in made.arrays],
        "inputs": [shard_indices(r.layout) for r in made.requests],
        "outputs": [shard_indices(layout) for layout in report.out_layouts.values()],
    }


if __name__ == "__main__":
    json.dump({name: described(make()) for name, make in PROGRAMS.items()}, sys.stdout)
