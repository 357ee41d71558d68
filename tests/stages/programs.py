"""The programs that the stages are held against XLA with: what they compute and how it is split.

Every Case runs on two meshes. Specs are those of the arguments; the rest is left to the
propagation, unless the function itself says more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.gallery import programs as gallery
from shardviz.programs.program import Program
from tests.stages import blocks, functions

TWO = ("data=4, model=2", "data=4, model=4")
ONE = ("data=4", "data=8")
THREE = ("data=1, fsdp=4, model=2", "data=2, fsdp=2, model=4")
HYBRID = ("data=2, fsdp=4", "data=4, fsdp=2")
DEVICES = 16  # the largest of them


@dataclass(frozen=True)
class Case:
    """A program for several meshes.

    Attributes:
        name: what tests call it.
        fn: what it computes.
        arrays: name, shape, spec or None, and the dtype where it is not float32; one an argument.
        meshes: the meshes, as `make_mesh` reads them.
        types: the type of all mesh axes.
        rules: a table as `Rules.parse` reads it, for arrays of the gallery.
        out: the spec of every result, where it is requested.
    """

    name: str
    fn: Callable[..., Any]
    arrays: tuple[Any, ...]
    meshes: tuple[str, ...] = TWO
    types: str = "Auto"
    rules: Rules | None = None
    out: str | None = None

    def program(self, mesh: str) -> Program:
        """The Program on one of the meshes."""
        arrays = tuple(a if isinstance(a, ArraySpec) else _array(*a) for a in self.arrays)
        built = make_mesh(mesh, axis_types=self.types)
        made = Program(self.fn, arrays, built, self.rules, name=self.name)
        return made if self.out is None else made.replace(out_specs=_specs(self.out))


def _array(name: str, shape: tuple[int, ...], spec: str, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(name, shape, dtype=dtype, spec=spec)  # type: ignore[arg-type]


def _specs(text: str) -> Any:
    from shardviz.base.partition_spec import Spec

    parts = tuple(Spec.parse(part) for part in text.split(";"))
    return parts[0] if len(parts) == 1 else parts


def _of_gallery(name: str) -> Case:
    program = gallery.get(name)
    return Case(f"gallery: {name}", program.fn, program.arrays, rules=program.rules)


def pairs(cases: Iterable[Case]) -> list[tuple[Case, MeshSpec]]:
    """Every case on each of its meshes."""
    return [(c, make_mesh(m, axis_types=c.types)) for c in cases for m in c.meshes]


_X = ("x", (32, 64), "data, None")
_ROWS = ("x", (32, 64), "data, model")
_TOKENS = ("x", (16, 32, 64), "data, None, None")
_MLP = (("w_in", (64, 128), "None, model"), ("w_out", (128, 64), "model, None"))
_FSDP = (("w_in", (64, 128), "fsdp, model"), ("w_out", (128, 64), "model, fsdp"))
_GATED = (
    ("w_gate", (64, 128), "data, None"),
    ("w_up", (64, 128), "data, None"),
    ("w_down", (128, 64), "None, data"),
)
_LAYERS = (
    ("w_in", (4, 64, 128), "None, None, model"),
    ("w_out", (4, 128, 64), "None, model, None"),
)
_IMAGE = ("x", (8, 32, 16, 8), "data, model")
_TABLE = ("table", (256, 64), "model, None")
_BOTH = "data, model"
_EDGES = (("x", (64, 16), "data"), ("ids", (64,), "data", "int32"))
_IDS = ("ids", (16, 32), "data, None", "int32")

f, b = functions, blocks
CASES: tuple[Case, ...] = (
    # The gallery's, with its own rules.
    *(_of_gallery(name) for name in gallery.names()),
    # Matmuls: what is split, on which side.
    Case(
        "matmul, inner dimension split over two axes",
        f.matmul,
        (("x", (32, 64), "None, (data, model)"), ("w", (64, 48), "(data, model), None")),
    ),
    Case(
        "matmul, inner dimensions split differently",
        f.matmul,
        (("x", (32, 64), "None, data"), ("w", (64, 48), "model, None")),
    ),
    Case(
        "matmul, the result requested in parts",
        f.matmul,
        (("x", (32, 64), "None, model"), ("w", (64, 48), "model, None")),
        out="model, data",
    ),
    Case(
        "matmul, large weights alone", f.matmul, (("x", (16, 64), "data"), ("w", (64, 32), "model"))
    ),
    Case("matmul, a large left side alone", f.matmul, (("x", (64, 64), _BOTH), ("w", (64, 8), ""))),
    Case(
        "matmul, a sum over two axes, the result in parts",
        f.matmul,
        (("x", (32, 64), "None, (data, fsdp)"), ("w", (64, 16), "(data, fsdp)")),
        HYBRID,
        out="fsdp",
    ),
    Case(
        "matmul, one side alone, the result in parts",
        f.matmul,
        (("x", (32, 64), "None, (data, model)"), ("w", (64, 16), "")),
        out="None, model",
    ),
    Case(
        "matmul, gradient by both",
        f.matmul_gradient,
        (("x", (32, 64), "data, None"), ("w", (64, 48), "None, model")),
    ),
    # Blocks of models.
    Case("gated MLP under fsdp, gradient", b.gated_gradient, (*_GATED, ("x", (32, 64), "data"))),
    Case("MLP under fsdp and tensor parallelism", b.mlp, (*_FSDP, _X), THREE),
    Case(
        "MLP under fsdp and tensor parallelism, gradient",
        b.mlp_gradient,
        (*_FSDP, ("x", (32, 64), "(data, fsdp), None")),
        THREE,
    ),
    *(
        Case(
            f"MLP under hybrid fsdp, {batch}, gradient",
            b.mlp_weight_gradients,
            (("w_in", (32, 128), "fsdp"), ("w_out", (128, 8), "fsdp"), ("x", (64, 32), batch)),
            HYBRID,
            out="fsdp; fsdp",
        )
        for batch in ("(data, fsdp)", "(fsdp, data)")
    ),
    Case("MLP, sequence parallel, gradient", b.sequence_parallel_gradient, (*_MLP, _TOKENS)),
    Case("scan over layers, gradient", b.layers_gradient, (*_LAYERS, _X)),
    Case("scan over layers, remat, gradient", b.layers_remat_gradient, (*_LAYERS, _X)),
    Case(
        "convolution, gradient",
        f.convolution_gradient,
        (("x", (16, 16, 16, 8), "data"), ("k", (3, 3, 8, 32), "None, None, None, model")),
    ),
    Case(
        "convolution split in space",
        f.convolution,
        (("x", (8, 32, 16, 8), "data, model"), ("k", (3, 3, 8, 32), "")),
    ),
    Case("embedding, gradient", f.embedding_gradient, (_TABLE, _IDS)),
    Case("softmax over a split axis", f.softmax, (_ROWS,)),
    Case(
        "cross entropy over a split vocabulary, gradient",
        f.cross_entropy_gradient,
        (("logits", (16, 8, 64), "data, None, model"), ("labels", (16, 8), "data", "int32")),
    ),
    Case(
        "layer norm, gradient",
        f.layer_norm_gradient,
        (("scale", (64,), "model"), ("bias", (64,), "model"), _ROWS),
    ),
    # Shapes.
    Case("merge, outer split", f.merge, (("x", (16, 8, 4), "data, None, None"),)),
    Case("merge, both split", f.merge, (("x", (16, 16, 4), "data, model, None"),)),
    Case("split a split dimension", f.split, (("x", (64, 8), "(data, model), None"),)),
    Case("concatenate on a split axis", f.concatenate, (_ROWS, ("y", (32, 64), "data, model"))),
    Case("concatenate, split differently", f.concatenate, (_ROWS, ("y", (32, 64), "model, data"))),
    Case("slice a split axis", f.slice_middle, (_ROWS,)),
    Case("slice at a position known at run time", f.dynamic_slice, (_ROWS, ("i", (), "", "int32"))),
    Case("cumulative sum over a split axis", f.cumsum, (_ROWS,)),
    Case("sort a split axis", f.sort, (_ROWS,)),
    Case("top_k over a split axis", f.top_k, (_ROWS,)),
    Case("gather rows of a split array", f.take, (_ROWS, ("ids", (16,), "data", "int32"))),
    Case(
        "scatter into a split array",
        f.scatter_add,
        (_ROWS, ("ids", (16,), "", "int32"), ("rows", (16, 64), "None, model")),
    ),
    Case("segment sum", f.segment_sum, _EDGES, out="data"),
    Case("rows written into zeros", f.written, _EDGES, out="data"),
    Case(
        "numbers written at positions, gradient",
        f.codes_gradient,
        (("x", (16, 4), "data"), ("ids", (16, 4), "data", "int32"), ("w", (128, 32), "model")),
    ),
    Case(
        "sum over two axes, the result in parts",
        f.outer_sum,
        (("x", (64, 32), f"({_BOTH})"),),
        out="data",
    ),
    Case("functions that XLA takes apart", f.special, (_ROWS,)),
    Case("exact GELU, gradient", f.exact_gelu_gradient, (("w", (64, 128), "None, model"), _X)),
    Case("Fourier transform of a split axis", f.fourier_whole, (_ROWS,)),
    Case("associative scan over a split axis", f.associative_scan, (_ROWS,)),
    Case("pooling", f.pooling, (("x", (16, 16, 16, 8), "data, model"),)),
    Case("pooling of neighbours", f.pooling_of_neighbours, (_IMAGE,)),
    Case("one number a window", f.convolution, (_IMAGE, ("k", (1, 1, 8, 32), ""))),
    Case("patches", f.patches, (_IMAGE, ("k", (4, 4, 8, 32), ""))),
    Case("every other of a split axis", f.every_other, (_ROWS,)),
    Case("triangle of a product with itself", f.triangular, (_ROWS,)),
    # Movement that is requested.
    Case(
        "matmul, the split inner dimension moved to the result",
        f.moved_matmul,
        (("x", (8, 16), "None, model"), ("w", (16, 32), "")),
    ),
    Case(
        "reduce-scatter",
        f.reduce_scatter,
        (("x", (32, 64), "None, model"), ("w", (64, 48), "model, None")),
    ),
    Case("all-to-all", f.all_to_all, (("x", (16, 32, 8), "data, model, None"),)),
    Case("to the other order of axes", f.other_order, (("x", (32, 64), "(data, model), None"),)),
    Case("constraints on the way", f.constraints, (*_MLP, _X)),
    Case(
        "matmul, two constraints before it",
        f.constrained_twice,
        (("x", (32, 128), _BOTH), ("w", (128, 64), "model")),
    ),
    Case(
        "scores of keys that are split otherwise",
        f.scores,
        (
            ("q", (8, 16, 4, 8), "data, None, model, None"),
            ("k", (8, 16, 4, 8), "None, None, None, data"),
        ),
    ),
    # With 10 rows, the shards of 4 devices and of 8 start at different rows.
    Case("gather an uneven dimension", f.gathered_uneven, (("x", (10, 64), ""),)),
    Case("an uneven dimension in smaller parts", f.cut_anew, (("x", (10, 64), ""),)),
    Case(
        "matmul, axes in two orders",
        f.axes_in_two_orders,
        (("x", (32, 64), ""), ("w", (64, 48), "")),
    ),
    # Control flow and calls.
    Case("while loop", f.while_loop, (_ROWS, ("w", (64, 64), "None, model"))),
    Case("branches", f.branches, (_ROWS, ("w", (64, 64), "None, model"))),
    Case("vmap of a matmul", f.batched, (_TOKENS, ("w", (16, 64, 48), "data, None, model"))),
    Case("custom_vjp, gradient", f.custom_gradient, (_X, ("w", (64, 64), "None, model"))),
    Case("a jitted function on two shardings", f.called_differently, (_ROWS,)),
    Case("a composite operation", f.composite, (_ROWS, ("w", (64, 64), "None, model"))),
    # Written out by hand.
    Case("shard_map in a loop", f.manual_in_a_loop, (_ROWS,)),
    Case("a loop in a shard_map", f.loop_in_manual, (_ROWS,)),
    Case("shard_map with a psum", f.manual_sum, (_ROWS,)),
    Case("shard_map over one of two axes", f.manual_partly, (_ROWS, ("w", (64, 64), ""))),
    Case("shard_map with a psum_scatter", f.manual_scatter, (_ROWS,)),
    Case("shard_map with an all_to_all", f.manual_exchange, (_ROWS,)),
    Case("pipeline by ppermute", f.pipeline, (("w", (8, 16, 16), "data"), ("x", (8, 16), "")), ONE),
    # Axes whose sharding is part of the type.
    Case(
        "Explicit axes",
        f.typed_mlp,
        (("w_in", (64, 128), "None, model"), ("w_out", (128, 64), "model, None"), _X),
        types="Explicit",
    ),
    Case(
        "Explicit axes, the result of a sum in parts",
        f.typed_reduce_scatter,
        (("x", (32, 64), "data, model"), ("w", (64, 48), "model, None")),
        types="Explicit",
    ),
)
