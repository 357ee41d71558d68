"""Puzzles: programs that cost what nobody asked for.

Each is a question. `sv.plan` and `sv.stages` have the answer, which the notebook
`08_known_puzzles` works out.

>>> names()[0], describe("a sum over a split dimension")[-17:]
('a constraint that replicates', 'Who asked for it?')
>>> get("fsdp, gradient")
Program(fsdp, gradient: 3 arrays on data=4, model=2)
>>> [text.splitlines()[0] for text in sources("fsdp, gradient")]
['def mlp(w_in, w_out, x):', 'def fsdp_gradient(w_in, w_out, x):']
"""

from __future__ import annotations

from shardviz.core.program.program import Program
from shardviz.gallery.layouts import Registry
from shardviz.gallery.programs import program_example

DEFAULT = "a constraint that replicates"
IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
"""

_CUBE = (16, 16, 16)
_REGISTRY: Registry[Program] = Registry(
    "puzzle",
    program_example(
        DEFAULT,
        "Ten rows are asked to be split over data=4, and jax says yes. Where are they? (jax#26946)",
        "uneven_constraint",
        (("x", (10, 16), "None, None"),),
    ),
    program_example(
        "a full rematerialisation",
        "Two ways to split an array meet in one addition. How does it get from one to the other?"
        " (jax#21562)",
        "swapped_tiles",
        (
            ("a", _CUBE, "model, None, data"),
            ("b", _CUBE, "model, None, data"),
            ("c", _CUBE, "None, (data, model), None"),
        ),
    ),
    program_example(
        "a sum over a split dimension",
        "A product of two matrices, and an all-reduce as large as its result. Who asked for it?",
        "matmul",
        (("x", (64, 512), "rows inner"), ("w", (512, 1024), "inner columns")),
        "rows -> data\ninner -> model",
    ),
    program_example(
        "two orders of devices",
        "A constraint names a mesh of the same devices in another order. What does jax make of it?"
        " (jax#15903)",
        "reordered_devices",
        (("x", (64, 64), "data, model"),),
    ),
    program_example(
        "fsdp, gradient",
        "Weights are split over data to save memory. How often is each of them gathered again?",
        "fsdp_gradient",
        (
            ("w_in", (512, 2048), "embed mlp"),
            ("w_out", (2048, 512), "mlp embed"),
            ("x", (4096, 512), "batch _"),
        ),
        "batch -> data\nembed -> data",
        ("mlp",),
    ),
)

names, get = _REGISTRY.names, _REGISTRY.get
describe, sources = _REGISTRY.describe, _REGISTRY.sources
