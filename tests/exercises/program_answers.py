"""Right and wrong answers to the exercises on programs; as `layout_answers`."""

from __future__ import annotations

import datetime
import functools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz import exercises
from shardviz.core.program.program import Target
from tests.exercises.layout_answers import Late, mesh_of, named

XY = {"U": 4, "V": 2}
GRID = sv.mesh(**XY)
A, B = vars(exercises.setup("matmul/nothing-moves"))["A"], exercises.setup("matmul/nothing-moves").B
BLOCK = sv.plan(exercises.setup("compiler/origin").program)
MLP = exercises.setup("debugging/unasked-gather").program


def pair(a: str, b: str) -> sv.Program:
    arrays = (A.replace(spec=sv.Spec.parse(a)), B.replace(spec=sv.Spec.parse(b)))
    return sv.program(jnp.matmul, *arrays, mesh=GRID)


def ruled(name: str, rules: str, mesh: str = "outer=4, inner=2") -> Late:
    """An Explorer on the program of an exercise, with rules typed into it."""

    def make() -> Any:
        program = exercises.setup(name).program
        explorer = sv.explore(program.replace(mesh=sv.mesh(mesh)))
        explorer.session.edit("rules", rules)
        return explorer

    return Late(make)


def constrained(a: Any, b: Any) -> Any:
    return jax.lax.with_sharding_constraint(a @ b, P("V", "U"))


def by_name(a: Any, b: Any) -> Any:
    product = jnp.einsum("ij,jk->ik", a, b)
    return jax.lax.with_sharding_constraint(product, NamedSharding(mesh_of(**XY), P("V", "U")))


class Product:
    def __call__(self, a: Any, b: Any) -> Any:
        return constrained(a, b)


def to_spec(spec: P, a: Any, b: Any) -> Any:
    return jax.lax.with_sharding_constraint(a @ b, spec)


def other_values(a: Any, b: Any) -> Any:
    return constrained(a, b) + 1


def too_small(a: Any, b: Any) -> Any:
    return constrained(a, b)[:256]


def edited(spec: str) -> sv.Program:
    w_in, w_out, x = MLP.arrays
    return MLP.replace(arrays=(w_in, w_out.replace(spec=sv.Spec.parse(spec)), x))


FSDP = "batch -> (outer, inner)\nembed -> (outer, inner)"
ANSWERS: dict[str, tuple[list[Any], list[tuple[Any, str]]]] = {
    "matmul/nothing-moves": (
        [
            "A[I_U, J] B[J, K_V]",
            "A[I_V,J] · B[J,K_{U}]",
            (P("U"), P(None, "V")),
            {"B": "None, U", "A": "V"},
            [sv.Spec.parse("U"), named(P(None, "V"), **XY)],
            pair("V", "None, U"),
            Late(lambda: sv.explore(pair("U", "None, V"))),
        ],
        [
            ("A[I, J_U] B[J_U, K]", "all-reduce of 4 MiB over U"),
            ("A[I_U, J] B[J, K_U]", "all-gather"),
            ("A[I_UV, J] B[J, K]", "all of B"),
            ("A[I, J] B[J, K_UV]", "all of A"),
            ("A[I_U, J_V] B[J_V, K]", "all-reduce of 1 MiB over V"),
            (("U", "V"), "B as P('V')"),
            ("A[I_U, J] B[J, K_Z]", "B is split over Z"),
            ("A[I_U, J]", "A[I, J_U] B"),
            ((P("U"),), "got 1"),
            ({"A": "U"}, "'A': 'U'"),
            (pair("U", ""), "all of B"),
            (("U", "None, None, V"), "Take away"),
            (5, "got 5"),
        ],
    ),
    "matmul/one-all-reduce": (
        [
            "A[I, J_UV] B[J_UV, K]",
            "A[I, J_VU] B[J_VU, K]",
            ("None, (U, V)", "(U, V)"),
            (P(None, ("V", "U")), P(("V", "U"))),
            {"A": (None, ("U", "V")), "B": sv.Spec.of(("U", "V"))},
            pair("None, (U, V)", "(U, V), None"),
        ],
        [
            ("A[I, J_U] B[J_U, K]", "A: With P(None, 'U')"),
            ("A[I_UV, J] B[J, K_UV]", "all-gather"),
            ("A[I_U, J_V] B[J_V, K_U]", "all-gather"),
            ("A[I, J_UV] B[J_U, K]", "2 devices hold each shard"),
            ("A[I, J_UV] B[J_VU, K]", "P(('V', 'U'), None)"),
            ("A[I_UV, J] B[J_UV, K]", "all-to-all"),
            ("A[I_V, J_U] B[J_U, K_V]", "A as P('V', 'U')"),
            ("A[I, J] B[J, K]", "8 devices hold each shard"),
            ("A[I, J_UU] B[J_UV, K]", "named twice"),
            ("A[I, J_UV], B", "Write both arrays"),
            (None, "None"),
        ],
    ),
    "matmul/move-the-small-one": (
        [
            P(None, "U"),
            (None, "V"),
            "None, (U, V)",
            named(P(None, "U"), **XY),
            sv.layout((8, 8192), "None, U", GRID),
            sv.Spec.of(None, ("U",)),
        ],
        [
            ("U", "128 MiB over U"),
            ("", "8 devices hold each shard. It has to be split"),
            ("U, V", "all-gather of 128 MiB"),
            ("(U, V)", "more than 1 MiB"),
            (P("U", None), "each device sends"),
            (named(P("U"), **XY), "128 MiB"),
            ("None, Z", "'Z'"),
            ("None, U, V", "Take away"),
            (named(P(None, "V"), U=2, V=4), "U=2, V=4"),
            ("U, U", "'U' splits both"),
            (1 << 20, "1048576"),
            (None, "None"),
        ],
    ),
    "matmul/sent-bytes": (
        ["3 MiB", 3 << 20, 3145728.0, np.int64(3 << 20), "3072 KiB", Fraction(3 << 20)],
        [
            ("2 MiB", "what the all-reduce gives"),
            ("1.5 MiB", "around the ring"),
            ("4 MiB", "keeps its own part"),
            ("6 MiB", "not split along I"),
            (24 << 20, "all devices send together"),
            (3, "unit"),
            ("3 MB", "too little"),
            ("5 MiB", "5 MiB is too much"),
            ("-3 MiB", "'-3 mib'"),
            (None, "got None"),
            (float("inf"), "got inf"),
        ],
    ),
    "collectives/one-all-to-all": (
        [
            ("U", "None, U"),
            (P(None, "V"), P("V")),
            {"before": "(U, V)", "after": "U, V"},
            [sv.Spec.parse("None, U"), named(P("U"), **XY)],
            "before[I_V, J] after[I, J_V]",
        ],
        [
            (("U", ""), "all-gather of 2 MiB over U"),
            (("", "U"), "no collective"),
            (("U", "V"), "collective-permute"),
            (("U", "U"), "no collective"),
            (("U", "None, V"), "all-gather"),
            (("U, V", "V, U"), "collective-permute"),
            (("U, V", ""), "all-gather"),
            (("V", "U, V"), "From P('V') to P('U', 'V')"),
            ("before[I_U, J]", "Write both arrays"),
            (("U", "None, U", ""), "got 3"),
            (("U", "Z"), "'Z'"),
            (None, "None"),
        ],
    ),
    "collectives/all-reduce-sends": (
        ["112 MiB", 112 << 20, 117440512.0, np.int64(112 << 20), "0.109375 GiB"],
        [
            ("64 MiB", "the gradient itself"),
            ("56 MiB", "a reduce-scatter alone"),
            ("128 MiB", "everything twice"),
            ("448 MiB", "which no ring does"),
            ("8 MiB", "one device's part"),
            ("896 MiB", "all devices send together"),
            (112, "unit"),
            ("112 MB", "too little"),
            ("200 MiB", "200 MiB is too much"),
            ("112 miB/s", "'112 mib/s'"),
            (None, "got None"),
        ],
    ),
    "collectives/ring-seconds": (
        [
            "10 ms",
            0.01007,
            "10.07 ms",
            np.float32(0.01),
            datetime.timedelta(milliseconds=10),
            "10000 us",
        ],
        [
            ("20 ms", "one way around the ring only"),
            ("5 ms", "links of both axes"),
            ("1.31 ms", "reads or writes memory"),
            (40.3e-3, "40 ms is too much"),
            ("80 ms", "in bytes"),
            (1.34e-3, "memory"),
            (10, "unit"),
            ("15 ms", "15 ms is too much"),
            ("7 ms", "7 ms is too little"),
            ("10", "unit"),
            ("10 min", "'10 min'"),
            (None, "got None"),
            (-0.01, "not negative"),
        ],
    ),
    "collectives/all-rings": (
        [
            "tpu:v5p:4x4x12",
            "tpu:v4:4x4x12",
            sv.topology("tpu:7x:4x4x12"),
            "TPU : v5p : 4 x 4 x 12",
            "tpu:v5p:4x12x4",
            Target("described", "tpu", 192, "tpu:v4:4x4x12"),
        ],
        [
            ("tpu:v5e:12x16", "192 chips of TPU v5e as 12×16"),
            ("tpu:v5p:2x8x12", "2×8×12"),
            ("tpu:v5p:4x4x4", "64 chips; it takes 192"),
            ("tpu:v6e:12x16", "v6e"),
            ("gpu:h100:24x8", "no torus"),
            ("tpu:v5e:16x16", "256 chips"),
            ("tpu:v5p:4x4x6*2", "2 slices"),
            ("tpu:v5p:12x16x1", "12×16×1"),
            ("tpu:v5q:4x4x8", "v5q"),
            ("192", "'192'"),
            (192, "192"),
            (None, "None"),
        ],
    ),
    "parallelism/data": (
        [
            "batch -> (outer, inner)",
            [("batch", ("inner", "outer"))],
            sv.rules(("batch", ("outer", "inner")), ("mlp", None)),
            (("embed", None), ("batch", ("outer", "inner")), ("mlp", ())),
            ruled("parallelism/data", "batch -> (outer, inner)"),
        ],
        [
            ("batch -> outer", "x is in 4 shards"),
            ("batch -> inner", "x is in 2 shards"),
            ("batch -> outer\nmlp -> inner", "w_in is in 2 shards"),
            ("embed -> (outer, inner)", "w_in is in 8 shards"),
            ("batch -> outer\nembed -> inner", "w_in is in 2 shards"),
            ("mlp -> None", "x is in 1 shard"),
            ("batch -> (outer, data)", "'data'"),
            ("batches -> (outer, inner)", "x is in 1 shard"),
            ("batch (outer, inner)", "expected ->"),
            ("", "no rules"),
            (8, "8"),
        ],
    ),
    "parallelism/tensor": (
        [
            "batch -> outer\nmlp -> inner",
            [("batch", "inner"), ("mlp", "outer")],
            sv.rules(("mlp", "inner"), ("batch", ("outer",)), ("embed", None)),
            (("batch", "outer"), ("embed", ()), ("mlp", "inner")),
            ruled("parallelism/tensor", "batch -> outer\nmlp -> inner"),
        ],
        [
            ("batch -> (outer, inner)", "w_in is in 1 shard"),
            ("mlp -> inner", "x is in 1 shard"),
            ("batch -> outer\nmlp -> outer", "all-gather"),
            ("batch -> outer\nembed -> outer", "all-gather"),
            ("batch -> outer\nmlp -> (outer, inner)", "inserts"),
            ("batch -> outer\nembed -> inner\nmlp -> outer", "one all-reduce is enough"),
            ("batch -> outer\nmlp -> model", "'model'"),
            ("batch -> outer\nhidden -> inner", "1 shard"),
            (ruled("parallelism/tensor", "batch -> outer"), "w_in"),
            ("", "no rules"),
            (None, "None"),
        ],
    ),
    "parallelism/fsdp": (
        [
            FSDP,
            [("batch", ("outer", "inner")), ("mlp", ("outer", "inner"))],
            sv.rules(("mlp", ("inner", "outer")), ("batch", ("outer", "inner"))),
            (("embed", "outer"), ("mlp", "inner"), ("batch", ("outer", "inner"))),
            ruled("parallelism/fsdp", FSDP),
        ],
        [
            ("batch -> (outer, inner)", "w_in is in 1 shard"),
            ("embed -> (outer, inner)", "x is in 1 shard"),
            ("batch -> outer\nembed -> outer", "w_in is in 4 shards"),
            ("batch -> outer\nembed -> (outer, inner)", "x is in 4 shards"),
            ("batch -> (outer, inner)\nmlp -> inner", "w_in is in 2 shards"),
            ("batch -> outer\nmlp -> inner\nembed -> outer", "x is in 4 shards"),
            ("batch -> (data, model)\nembed -> (data, model)", "'data'"),
            ("", "no rules"),
            ("fsdp", "'fsdp'"),
            (("batch", ("outer", "inner")), "w_in"),
            (None, "None"),
        ],
    ),
    "parallelism/experts": (
        [
            "expert -> (outer, inner)",
            [("expert", ("inner", "outer"))],
            sv.rules(("expert", ("outer", "inner")), ("sequence", None)),
            (("expert", ("outer", "inner")), ("embed", None)),
            ruled("parallelism/experts", "expert -> (outer, inner)"),
        ],
        [
            ("expert -> outer", "[4, 128, 256]"),
            ("expert -> inner", "[8, 128, 256]"),
            ("expert -> outer\nmlp -> inner", "[4, 128, 128]"),
            ("batch -> (outer, inner)\nexpert -> (outer, inner)", "do not stay where they are"),
            ("mlp -> (outer, inner)", "[16, 128, 32]"),
            ("embed -> (outer, inner)", "[16, 16, 256]"),
            ("experts -> (outer, inner)", "16, 128, 256"),
            ("expert -> (data, model)", "'data'"),
            ("", "no rules"),
            (None, "None"),
            (2, "2"),
        ],
    ),
    "compiler/origin": (
        [
            "w_v",
            "argument w_v",
            ["w_v"],
            BLOCK.op("w_v"),
            next(o.origins["inner"] for o in BLOCK.ops if "bhqk,bkhd" in o.op),
            exercises.setup("compiler/origin").program.arrays[3],
        ],
        [
            ("w_q", "w_q has the axis inner, but"),
            ("w_k", "w_k has the axis inner"),
            ("x", "x is P('outer'"),
            ("norm_1", "no axis inner to give"),
            ("w_o", "w_o has the axis"),
            (["w_v", "w_q"], "2 arguments"),
            ("w_inn", "Did you mean 'w_in'?"),
            ("inner", "'inner'"),
            ([], "0 arguments"),
            (BLOCK.op("dot_general"), "dot_general"),
            (None, "None"),
        ],
    ),
    "compiler/rows": (
        [
            1024,
            "1,004",
            np.int64(1040),
            (1008, 16),
            sv.array("x", (1012, 16)),
            1016.0,
            np.zeros((1020, 16)),
        ],
        [
            (1001, "1,001 rows leave 1 over"),
            (1010, "leave 2 over"),
            ("1023", "leave 3 over"),
            (1000, "from 1001 to 1040"),
            (1044, "got 1044"),
            (1024.5, "1024.5"),
            (-1024, "not negative"),
            ("four", "'four'"),
            ((1024, 8), "(1024, 8)"),
            (None, "None"),
            (10**4000, "digits"),
        ],
    ),
    "compiler/pin-the-result": (
        [
            constrained,
            by_name,
            jax.jit(constrained),
            functools.partial(to_spec, P("V", "U")),
            Product(),
            Late(
                lambda: sv.program(
                    constrained,
                    A.replace(spec=sv.Spec.parse("U")),
                    B.replace(spec=sv.Spec.parse("None, V")),
                    mesh=GRID,
                )
            ),
        ],
        [
            (lambda a, b: a @ b, "The result is P('U', 'V'), not P('V', 'U')"),
            (functools.partial(to_spec, P("U", "V")), "P('U', 'V')"),
            (functools.partial(to_spec, P("V")), "The result is P('V'"),
            (functools.partial(to_spec, P("Z")), "Z"),
            (other_values, "not A @ B"),
            (too_small, "[256, 2048]"),
            (lambda a, b: None, "returns nothing"),
            (lambda a: a, "argument"),
            (lambda a, b: a @ b + 1 / 0, "division"),
            (pair("V", "None, U"), "arguments have to stay"),
            (P("V", "U"), "function of A"),
            ("lambda a, b: a @ b", "function of A and B"),
            (None, "None"),
        ],
    ),
    "compiler/no-rematerialisation": (
        [
            P("U", "V"),
            "U, V",
            ("U", "V"),
            named(P("U", "V"), **XY),
            sv.Spec.parse("U, V"),
            sv.layout((512, 1024), "U, V", GRID),
        ],
        [
            ("U", "By way of P('U') there is a full rematerialisation"),
            ("None, V", "all-gather of 2 MiB"),
            ("", "1.5 MiB, no less than now"),
            ("V", "By way of P('V')"),
            ("None, (U, Z)", "'Z'"),
            ("U, V, None", "Take away"),
            ("U, U", "'U' splits both"),
            (named(P("U", "V"), V=2, U=4), "V=2, U=4"),
            (None, "None"),
            (2, "got 2"),
            ({"U": 0}, "{'U': 0}"),
        ],
    ),
    "debugging/unasked-gather": (
        [
            "inner",
            P("inner", None),
            ("inner",),
            named(P("inner"), outer=4, inner=2),
            edited("inner"),
            Late(lambda: sv.explore(edited("inner, None"))),
            sv.Spec.of("inner"),
        ],
        [
            ("None, inner", "all-gather"),
            ("outer", "w_out as P('outer')"),
            ("", "It has to stay split"),
            ("None, outer", "P(None, 'outer')"),
            ("(outer, inner)", "P(('outer', 'inner'))"),
            ("inner, inner", "'inner' splits both"),
            ("model", "'model'"),
            (MLP, "P(None, 'inner')"),
            (MLP.replace(mesh=sv.mesh(outer=2, inner=2)), "outer=2, inner=2"),
            (
                MLP.replace(arrays=tuple(a.replace(spec=sv.Spec()) for a in MLP.arrays)),
                "Only w_out",
            ),
            (None, "None"),
        ],
    ),
}
