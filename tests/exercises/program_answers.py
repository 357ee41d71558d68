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

XY = {"X": 4, "Y": 2}
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
    return jax.lax.with_sharding_constraint(a @ b, P("Y", "X"))


def by_name(a: Any, b: Any) -> Any:
    product = jnp.einsum("ij,jk->ik", a, b)
    return jax.lax.with_sharding_constraint(product, NamedSharding(mesh_of(**XY), P("Y", "X")))


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
            "A[I_X, J] B[J, K_Y]",
            "A[I_Y,J] · B[J,K_{X}]",
            (P("X"), P(None, "Y")),
            {"B": "None, X", "A": "Y"},
            [sv.Spec.parse("X"), named(P(None, "Y"), **XY)],
            pair("Y", "None, X"),
            Late(lambda: sv.explore(pair("X", "None, Y"))),
        ],
        [
            ("A[I, J_X] B[J_X, K]", "all-reduce of 4 MiB over X"),
            ("A[I_X, J] B[J, K_X]", "all-gather"),
            ("A[I_XY, J] B[J, K]", "all of B"),
            ("A[I, J] B[J, K_XY]", "all of A"),
            ("A[I_X, J_Y] B[J_Y, K]", "all-reduce of 1 MiB over Y"),
            (("X", "Y"), "B as P('Y')"),
            ("A[I_X, J] B[J, K_Z]", "B is split over Z"),
            ("A[I_X, J]", "A[I, J_X] B"),
            ((P("X"),), "got 1"),
            ({"A": "X"}, "'A': 'X'"),
            (pair("X", ""), "all of B"),
            (("X", "None, None, Y"), "Take away"),
            (5, "got 5"),
        ],
    ),
    "matmul/one-all-reduce": (
        [
            "A[I, J_XY] B[J_XY, K]",
            "A[I, J_YX] B[J_YX, K]",
            ("None, (X, Y)", "(X, Y)"),
            (P(None, ("Y", "X")), P(("Y", "X"))),
            {"A": (None, ("X", "Y")), "B": sv.Spec.of(("X", "Y"))},
            pair("None, (X, Y)", "(X, Y), None"),
        ],
        [
            ("A[I, J_X] B[J_X, K]", "A: With P(None, 'X')"),
            ("A[I_XY, J] B[J, K_XY]", "all-gather"),
            ("A[I_X, J_Y] B[J_Y, K_X]", "all-gather"),
            ("A[I, J_XY] B[J_X, K]", "2 devices hold each shard"),
            ("A[I, J_XY] B[J_YX, K]", "P(('Y', 'X'), None)"),
            ("A[I_XY, J] B[J_XY, K]", "all-to-all"),
            ("A[I_Y, J_X] B[J_X, K_Y]", "A as P('Y', 'X')"),
            ("A[I, J] B[J, K]", "8 devices hold each shard"),
            ("A[I, J_XX] B[J_XY, K]", "named twice"),
            ("A[I, J_XY], B", "Write both arrays"),
            (None, "None"),
        ],
    ),
    "matmul/move-the-small-one": (
        [
            P(None, "X"),
            (None, "Y"),
            "None, (X, Y)",
            named(P(None, "X"), **XY),
            sv.layout((8, 8192), "None, X", GRID),
            sv.Spec.of(None, ("X",)),
        ],
        [
            ("X", "128 MiB over X"),
            ("", "8 devices hold each shard. It has to be split"),
            ("X, Y", "all-gather of 128 MiB"),
            ("(X, Y)", "more than 1 MiB"),
            (P("X", None), "each device sends"),
            (named(P("X"), **XY), "128 MiB"),
            ("None, Z", "'Z'"),
            ("None, X, Y", "Take away"),
            (named(P(None, "Y"), X=2, Y=4), "X=2, Y=4"),
            ("X, X", "'X' splits both"),
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
            ("X", "None, X"),
            (P(None, "Y"), P("Y")),
            {"before": "(X, Y)", "after": "X, Y"},
            [sv.Spec.parse("None, X"), named(P("X"), **XY)],
            "before[I_Y, J] after[I, J_Y]",
        ],
        [
            (("X", ""), "all-gather of 2 MiB over X"),
            (("", "X"), "no collective"),
            (("X", "Y"), "collective-permute"),
            (("X", "X"), "no collective"),
            (("X", "None, Y"), "all-gather"),
            (("X, Y", "Y, X"), "collective-permute"),
            (("X, Y", ""), "all-gather"),
            (("Y", "X, Y"), "From P('Y') to P('X', 'Y')"),
            ("before[I_X, J]", "Write both arrays"),
            (("X", "None, X", ""), "got 3"),
            (("X", "Z"), "'Z'"),
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
            "tpu:v5p:4x4x4",
            "tpu:v4:4x4x4",
            sv.topology("tpu:7x:4x4x4"),
            "TPU : v5p : 4 x 4 x 4",
            "v5p-128",
            Target("described", "tpu", 64, "tpu:v4:4x4x4"),
        ],
        [
            ("tpu:v5e:8x8", "64 chips of TPU v5e as 8×8"),
            ("tpu:v5p:2x4x8", "2×4×8"),
            ("tpu:v5p:4x4x8", "128 chips; it takes 64"),
            ("tpu:v6e:8x8", "v6e"),
            ("gpu:h100:8x8", "no torus"),
            ("tpu:v5e:16x16", "256 chips"),
            ("tpu:v5p:4x4x2*2", "2 slices"),
            ("tpu:v5p:4x16x1", "4×16×1"),
            ("tpu:v5q:4x4x4", "v5q"),
            ("64", "'64'"),
            (64, "64"),
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
            functools.partial(to_spec, P("Y", "X")),
            Product(),
            Late(
                lambda: sv.program(
                    constrained,
                    A.replace(spec=sv.Spec.parse("X")),
                    B.replace(spec=sv.Spec.parse("None, Y")),
                    mesh=GRID,
                )
            ),
        ],
        [
            (lambda a, b: a @ b, "The result is P('X', 'Y'), not P('Y', 'X')"),
            (functools.partial(to_spec, P("X", "Y")), "P('X', 'Y')"),
            (functools.partial(to_spec, P("Y")), "The result is P('Y'"),
            (functools.partial(to_spec, P("Z")), "Z"),
            (other_values, "not A @ B"),
            (too_small, "[256, 2048]"),
            (lambda a, b: None, "returns nothing"),
            (lambda a: a, "argument"),
            (lambda a, b: a @ b + 1 / 0, "division"),
            (pair("Y", "None, X"), "arguments have to stay"),
            (P("Y", "X"), "function of A"),
            ("lambda a, b: a @ b", "function of A and B"),
            (None, "None"),
        ],
    ),
    "compiler/no-rematerialisation": (
        [
            P("X", "Y"),
            "X, Y",
            ("X", "Y"),
            named(P("X", "Y"), **XY),
            sv.Spec.parse("X, Y"),
            sv.layout((512, 1024), "X, Y", GRID),
        ],
        [
            ("X", "By way of P('X') there is a full rematerialisation"),
            ("None, Y", "all-gather of 2 MiB"),
            ("", "1.5 MiB, no less than now"),
            ("Y", "By way of P('Y')"),
            ("None, (X, Z)", "'Z'"),
            ("X, Y, None", "Take away"),
            ("X, X", "'X' splits both"),
            (named(P("X", "Y"), Y=2, X=4), "Y=2, X=4"),
            (None, "None"),
            (2, "got 2"),
            ({"X": 0}, "{'X': 0}"),
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
