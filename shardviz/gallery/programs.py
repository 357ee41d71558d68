"""Programs that people know, each with its arrays, a mesh and a rule table that suits it.

The functions stand in files of their own, written to be read: what a student sees, and what the
Explorer pastes, is their very source. Only `get` and `sources` import jax.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.rules import Rules
from shardviz.core.program.program import Program
from shardviz.gallery import meshes, rules
from shardviz.gallery.registry import Example, Registry

DEFAULT = "MLP"
IMPORTS = "import jax\nimport jax.numpy as jnp\n"


class ProgramEntry(NamedTuple):
    """A program before it is made.

    Attributes:
        function: `module.name` of its function, inside the gallery.
        arrays: one `(name, shape, logical names)` an argument, in order.
        table: the name of its rule table in `gallery.rules`, or the table as one types it.
        helpers: the functions that it calls, as `module.name`, in the order to paste them.
    """

    function: str
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]
    table: str
    helpers: tuple[str, ...] = ()

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The helpers, then the function itself."""
        return tuple(map(_function, (*self.helpers, self.function)))


def _function(name: str) -> Callable[..., Any]:
    from shardviz.gallery import functions  # it imports jax

    return getattr(functions, name)


# Every size divides by 2, 4, 8 and 16, so that each program fits the usual meshes, and all are
# small enough for a laptop. float32, so that split and whole results agree to many digits.
_X, _W = ("x", (64, 512), "rows inner"), ("w", (512, 1024), "inner columns")

_MLP = (
    ("w_in", (512, 2048), "embed mlp"),
    ("w_out", (2048, 512), "mlp embed"),
    ("x", (64, 512), "batch embed"),
)
_ATTENTION = (
    ("w_q", (256, 16, 16), "embed heads head_dim"),
    ("w_k", (256, 16, 16), "embed heads head_dim"),
    ("w_v", (256, 16, 16), "embed heads head_dim"),
    ("w_o", (16, 16, 256), "heads head_dim embed"),
)
_TOKENS = ("x", (16, 64, 256), "batch sequence embed")
_BLOCK = (
    ("norm_1", (256,), "embed"),
    *_ATTENTION,
    ("norm_2", (256,), "embed"),
    ("w_in", (256, 1024), "embed mlp"),
    ("w_out", (1024, 256), "mlp embed"),
    _TOKENS,
)
_EXPERTS = (
    ("router", (128, 16), "embed _"),
    ("w_in", (16, 128, 256), "expert embed mlp"),
    ("w_out", (16, 256, 128), "expert mlp embed"),
    ("x", (16, 64, 128), "batch sequence embed"),
)
_TENSOR = "Megatron-style tensor parallel"
_BLOCK_HELPERS = ("rms_norm", "attention", "mlp")

_ENTRIES: tuple[tuple[str, str, ProgramEntry], ...] = (
    (
        "MLP",
        "Two matrix products and a GELU, under a table where every rule has another fate.",
        ProgramEntry("mlp", _MLP, rules.DEFAULT),
    ),
    (
        "MLP, gradient",
        "The loss of an MLP and its gradient: every weight's gradient is summed over the batch.",
        ProgramEntry("mlp_gradient", _MLP, _TENSOR, ("mlp",)),
    ),
    (
        "matmul, outer dimensions split",
        "Rows over one axis, columns over another: each device has what its block needs, and"
        " nothing moves.",
        ProgramEntry("matmul", (_X, _W), "rows -> data\ncolumns -> model"),
    ),
    (
        "matmul, inner dimension split on one side",
        "x is split along the dimension that is summed over, w is not: x is gathered first.",
        ProgramEntry("matmul", (_X, _W), "rows -> data\ncolumns -> model\ninner -> model"),
    ),
    (
        "matmul, inner dimension split on both sides",
        "Each device sums its part, and an all-reduce adds the parts.",
        ProgramEntry("matmul", (_X, _W), "rows -> data\ninner -> model"),
    ),
    (
        "matmul, outer dimensions want one axis",
        "Rows and columns are split over the same axis, which the result can have once: one side"
        " is gathered.",
        ProgramEntry("matmul", (_X, _W), "rows -> data\ncolumns -> data"),
    ),
    (
        "attention",
        "Causal attention with its heads split over model: one all-reduce, at the end.",
        ProgramEntry("attention", (*_ATTENTION, _TOKENS), _TENSOR),
    ),
    (
        "transformer block",
        "Attention and an MLP behind norms: two all-reduces, one after each.",
        ProgramEntry("transformer_block", _BLOCK, _TENSOR, _BLOCK_HELPERS),
    ),
    (
        "transformer block, gradient",
        "The loss of a transformer block and its gradient by eight weights.",
        ProgramEntry(
            "transformer_gradient",
            _BLOCK,
            _TENSOR,
            (*_BLOCK_HELPERS, "transformer_block"),
        ),
    ),
    (
        "mixture of experts",
        "Tokens are dispatched to two of sixteen experts by einsum, and combined again.",
        ProgramEntry("mixture_of_experts", _EXPERTS, _TENSOR),
    ),
)


def _make(name: str, entry: ProgramEntry) -> Program:
    table = Rules.parse(entry.table) if "->" in entry.table else rules.get(entry.table)
    arrays = tuple(ArraySpec(n, s, l) for n, s, l in entry.arrays)  # type: ignore[arg-type]
    return Program(_function(entry.function), arrays, meshes.get(), table, name=name)


_SHELF: Registry[Program] = Registry(
    "program", [Example(name, text, partial(_make, name, entry)) for name, text, entry in _ENTRIES]
)
_BY_NAME = {name: entry for name, _, entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The names of the programs, in menu order.

    >>> "transformer block, gradient" in names()
    True
    """
    return _SHELF.names()


def get(name: str = DEFAULT) -> Program:
    """The program of that name, on a mesh of data=4, model=2.

    Raises:
        ShardvizError: if there is none.

    >>> get("MLP")
    Program(MLP: 3 arrays on data=4, model=2)
    """
    return _SHELF.get(name)


def describe(name: str) -> str:
    """One sentence on the program of that name.

    Raises:
        ShardvizError: if there is none.

    >>> describe("matmul, inner dimension split on both sides")
    'Each device sums its part, and an all-reduce adds the parts.'
    """
    return _SHELF.describe(name)


def sources(name: str) -> tuple[str, ...]:
    """The source of every function the program needs, helpers first, its own last.

    Pasted below `IMPORTS` they run as they stand.

    Raises:
        ShardvizError: if there is no such program.

    >>> [text.splitlines()[0] for text in sources("MLP, gradient")]
    ['def mlp(w_in, w_out, x):', 'def mlp_gradient(w_in, w_out, x):']
    """
    describe(name)  # complains about an unknown name
    return tuple(inspect.getsource(function) for function in _BY_NAME[name].functions())
