"""Puzzles: programs that cost what nobody asked for. Each is a question; `shardviz.plan` and
`shardviz.stages` have the answer, and the notebook `08_known_puzzles` reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.rules import Rules
from shardviz.core.program.program import Program
from shardviz.gallery import meshes
from shardviz.gallery.registry import Example, Registry

DEFAULT = "a constraint that replicates"
IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
"""


class PuzzleEntry(NamedTuple):
    """A puzzle before it is made: `module.name` of its function, and its arrays with their specs
    (or logical names, where `table` is their rule table); and the functions that it calls, as
    `module.name`.
    """

    function: str
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]
    table: str = ""
    helpers: tuple[str, ...] = ()


_CUBE = (16, 16, 16)
_ENTRIES: tuple[tuple[str, str, PuzzleEntry], ...] = (
    (
        DEFAULT,
        "Ten rows are asked to be split over data=4, and jax says yes. Where are they? (jax#26946)",
        PuzzleEntry("uneven_constraint", (("x", (10, 16), "None, None"),)),
    ),
    (
        "a full rematerialisation",
        "Two ways to cut an array meet in one addition. How does it get from one to the other?"
        " (jax#21562)",
        PuzzleEntry(
            "swapped_tiles",
            (
                ("a", _CUBE, "model, None, data"),
                ("b", _CUBE, "model, None, data"),
                ("c", _CUBE, "None, (data, model), None"),
            ),
        ),
    ),
    (
        "a sum over a split dimension",
        "A product of two matrices, and an all-reduce as large as its result. Who asked for it?",
        PuzzleEntry(
            "matmul",
            (("x", (64, 512), "rows inner"), ("w", (512, 1024), "inner columns")),
            "rows -> data\ninner -> model",
        ),
    ),
    (
        "two orders of devices",
        "A constraint names a mesh of the same devices in another order. What does jax make of it?"
        " (jax#15903)",
        PuzzleEntry("two_orders", (("x", (64, 64), "data, model"),)),
    ),
    (
        "fsdp, gradient",
        "Weights are split over data to save memory. How often does each of them become whole"
        " again?",
        PuzzleEntry(
            "fsdp_gradient",
            (
                ("w_in", (512, 2048), "embed mlp"),
                ("w_out", (2048, 512), "mlp embed"),
                ("x", (4096, 512), "batch _"),
            ),
            "batch -> data\nembed -> data",
            ("mlp",),
        ),
    ),
)


def _make(name: str, entry: PuzzleEntry) -> Program:
    arrays = tuple(
        ArraySpec(n, s, text if entry.table else None, spec=None if entry.table else text)  # type: ignore[arg-type]  # text is read
        for n, s, text in entry.arrays
    )
    rules = Rules.parse(entry.table) if entry.table else None
    return Program(_function(entry.function), arrays, meshes.get(), rules, name=name)


def _function(name: str) -> Callable[..., Any]:
    from shardviz.gallery import functions  # it imports jax

    return getattr(functions, name)


_SHELF: Registry[Program] = Registry(
    "puzzle", [Example(name, text, partial(_make, name, entry)) for name, text, entry in _ENTRIES]
)
_BY_NAME = {name: entry for name, _, entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The names of the puzzles, in menu order.

    >>> names()[0]
    'a constraint that replicates'
    """
    return _SHELF.names()


def get(name: str = DEFAULT) -> Program:
    """The puzzle of that name, on a mesh of data=4, model=2.

    Raises:
        ShardvizError: if there is none.

    >>> get("fsdp, gradient")
    Program(fsdp, gradient: 3 arrays on data=4, model=2)
    """
    return _SHELF.get(name)


def describe(name: str) -> str:
    """The question that the puzzle of that name asks.

    Raises:
        ShardvizError: if there is none.

    >>> describe("a sum over a split dimension")[-17:]
    'Who asked for it?'
    """
    return _SHELF.describe(name)


def sources(name: str) -> tuple[str, ...]:
    """The source of every function the puzzle needs, helpers first, its own last.

    Pasted below `IMPORTS` they run as they stand.

    Raises:
        ShardvizError: if there is none.

    >>> [text.splitlines()[0] for text in sources("fsdp, gradient")]
    ['def mlp(w_in, w_out, x):', 'def fsdp_gradient(w_in, w_out, x):']
    """
    describe(name)  # complains about an unknown name
    entry = _BY_NAME[name]
    return tuple(inspect.getsource(_function(p)) for p in (*entry.helpers, entry.function))
