"""Well-known programs, and puzzles (programs with unexpected costs).

Each program has arrays, a suitable rule table, and a mesh. Students see the source of
its function, and the Explorer includes that source in the code that it generates.

>>> get("MLP")
Program(MLP: 3 arrays on data=4, model=2)
>>> describe("matmul, inner dimension split on both sides")
'Each device sums its part, and an all-reduce adds the parts.'
>>> [text.splitlines()[0] for text in sources("MLP, gradient")]
['def mlp(w_in, w_out, x):', 'def mlp_gradient(w_in, w_out, x):']
>>> puzzles.names()[0], puzzles.describe("a sum over a split dimension")[-17:]
('a constraint that replicates', 'Who asked for it?')
>>> puzzles.get("fsdp, gradient")
Program(fsdp, gradient: 3 arrays on data=4, model=2)
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec, read_names
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.gallery.layouts import Example, Registry, meshes, rules
from shardviz.programs.program import Program

DEFAULT = "MLP"
# The imports that the functions need when they are pasted.
IMPORTS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
"""


def _examples(
    text: str, arrays: dict[str, tuple[tuple[str, tuple[int, ...], str], ...]]
) -> list[Example[Program]]:
    """Parses programs from blocks of four lines. All use the gallery's first mesh.

    The lines are the name, a sentence, the function names, and the rule table. The
    functions are in `gallery.functions`: first the helpers, in the order to paste them,
    then the main function. The rule table is a name in `gallery.rules`, a table as
    users type it, or missing.

    Args:
        text: the blocks, with empty lines between them.
        arrays: for each program, one `(name, shape, logical names)` per argument, in
            order. Programs without a rule table have PartitionSpecs as the third item.
    """
    examples = []
    for block in text.strip().split("\n\n"):
        name, sentence, functions, *table = block.split("\n")
        make = partial(_program, name, functions.split()[-1], arrays[name], *table)
        examples.append(Example(name, sentence, make, tuple(functions.split())))
    return examples


def _program(
    name: str,
    function: str,
    arrays: tuple[tuple[str, tuple[int, ...], str], ...],
    table: str = "",
) -> Program:
    from shardviz.gallery import functions

    rule_table, specs = None, []
    if table in rules.names():
        rule_table = rules.get(table)
    elif table:
        rule_table = Rules.parse(table.replace("; ", "\n"))
    for argument, shape, text in arrays:
        array = ArraySpec(argument, shape)
        if table:
            specs.append(array.replace(logical=read_names(text)))
        else:
            specs.append(array.replace(spec=Spec.parse(text)))
    fn = getattr(functions, function)
    return Program(fn, tuple(specs), meshes.get(), rule_table, name=name)


# Every size is divisible by 2, 4, 8 and 16, so that each program fits the usual meshes,
# and small enough for a laptop. With float32, split and unsplit results agree to many
# digits.
_MATMUL = (("x", (64, 512), "rows inner"), ("w", (512, 1024), "inner columns"))
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
_CUBE = (16, 16, 16)
_ARRAYS = {
    "MLP": _MLP,
    "MLP, gradient": _MLP,
    "matmul, outer dimensions split": _MATMUL,
    "matmul, inner dimension split on one side": _MATMUL,
    "matmul, inner dimension split on both sides": _MATMUL,
    "matmul, outer dimensions want one axis": _MATMUL,
    "attention": (*_ATTENTION, _TOKENS),
    "transformer block": _BLOCK,
    "transformer block, gradient": _BLOCK,
    "mixture of experts": _EXPERTS,
    "a constraint that replicates": (("x", (10, 16), "None, None"),),
    "a full rematerialisation": (
        ("a", _CUBE, "model, None, data"),
        ("b", _CUBE, "model, None, data"),
        ("c", _CUBE, "None, (data, model), None"),
    ),
    "a sum over a split dimension": _MATMUL,
    "two orders of devices": (("x", (64, 64), "data, model"),),
    "fsdp, gradient": (*_MLP[:2], ("x", (4096, 512), "batch _")),
}

_PROGRAMS = """
MLP
Two matrix products and a GELU, under a table whose rules all end differently.
mlp
first look

MLP, gradient
The loss of an MLP and its gradient: every weight's gradient is summed over the batch.
mlp mlp_gradient
Megatron-style tensor parallel

matmul, outer dimensions split
Rows over one axis, columns over another: each device has what it needs, and nothing moves.
matmul
rows -> data; columns -> model

matmul, inner dimension split on one side
x is split along the dimension that is summed over, w is not: x is gathered first.
matmul
rows -> data; columns -> model; inner -> model

matmul, inner dimension split on both sides
Each device sums its part, and an all-reduce adds the parts.
matmul
rows -> data; inner -> model

matmul, outer dimensions want one axis
Rows and columns are split over the same axis, which the result can have once: one is gathered.
matmul
rows -> data; columns -> data

attention
Causal attention with its heads split over model: one all-reduce, at the end.
attention
Megatron-style tensor parallel

transformer block
Attention and an MLP behind norms: two all-reduces, one after each.
rms_norm attention mlp transformer_block
Megatron-style tensor parallel

transformer block, gradient
The loss of a transformer block and its gradient by eight weights.
rms_norm attention mlp transformer_block transformer_gradient
Megatron-style tensor parallel

mixture of experts
Tokens are dispatched to two of sixteen experts by einsum, and combined again.
mixture_of_experts
Megatron-style tensor parallel
"""

# Each puzzle is a question. `sv.plan` and `sv.stages` give the answer, which the
# notebook `a4_known_puzzles` works out.
_PUZZLES = """
a constraint that replicates
Ten rows are asked to be split over data=4, and jax says yes. Where are they? (jax#26946)
uneven_constraint

a full rematerialisation
Two ways to split an array meet in one addition. How does it get from one to the other? (jax#21562)
swapped_tiles

a sum over a split dimension
A product of two matrices, and an all-reduce as large as its result. Who asked for it?
matmul
rows -> data; inner -> model

two orders of devices
A constraint names a mesh of the same devices in another order. What does jax make of it? (jax#15903)
reordered_devices

fsdp, gradient
Weights are split over data to save memory. How often is each of them gathered again?
mlp fsdp_gradient
batch -> data; embed -> data
"""

_REGISTRY: Registry[Program] = Registry("program", *_examples(_PROGRAMS, _ARRAYS))
puzzles: Registry[Program] = Registry("puzzle", *_examples(_PUZZLES, _ARRAYS))
names, get = _REGISTRY.names, _REGISTRY.get
describe, sources = _REGISTRY.describe, _REGISTRY.sources


def known_names() -> tuple[str, ...]:
    """Returns the names of all programs, puzzles last."""
    return (*names(), *puzzles.names())


def is_known(name: Any) -> bool:
    """Whether a program or puzzle has this name."""
    return name in known_names()


def known_program(name: str, mesh: MeshSpec | None = None) -> Program:
    """Returns a program or puzzle by name.

    Args:
        name: one of `known_names()`.
        mesh: a mesh to use instead of the program's own; ignored if it lacks an axis
            of the program's own mesh. A puzzle always keeps its own mesh, because its
            answer depends on the mesh.

    Raises:
        ShardvizError: if no program or puzzle has this name.

    >>> from shardviz.base.mesh import make_mesh
    >>> here = make_mesh(data=2, model=2)
    >>> known_program("MLP", here).mesh.size, known_program("fsdp, gradient", here).mesh.size
    (4, 8)
    """
    if name in puzzles.names():
        return puzzles.get(name)
    program = get(name)
    if mesh is not None and set(program.mesh.axis_names) <= set(mesh.axis_names):
        return program.replace(mesh=mesh)
    return program


@lru_cache(maxsize=64)
def known_source(name: str) -> str:
    r"""Returns the source of all functions that a program or puzzle needs.

    The main function is last.

    >>> [known_source(name).count("\ndef ") + 1 for name in ("MLP, gradient", "fsdp, gradient")]
    [2, 2]
    """
    sources_of = puzzles.sources if name in puzzles.names() else sources
    return "\n\n".join(text.rstrip() for text in sources_of(name)) + "\n"
