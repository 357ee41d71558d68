"""Right and wrong answers to the exercises on programs, as in `layout_answers`."""

from __future__ import annotations

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
from tests.exercises.layout_answers import Late, mesh_of, named

XY = {"U": 4, "V": 2}
GRID = sv.mesh(**XY)
A, B = vars(exercises.setup("matmul/nothing-moves"))["A"], exercises.setup("matmul/nothing-moves").B
BLOCK = sv.plan(exercises.setup("compiler/origin").program)
MLP = exercises.setup("keep/unasked-gather").program


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


def as_given(function: Any) -> sv.Program:
    specs = {"A": "U", "B": "None, V"}
    arrays = [a.replace(spec=sv.Spec.parse(specs[a.name])) for a in (A, B)]
    return sv.program(function, *arrays, mesh=GRID)


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


def few_tokens() -> sv.Program:
    """The program of `parallelism/few-tokens` with the specs of tensor parallelism."""
    specs = {"w_in": "None, (outer, inner)", "w_out": "(outer, inner)", "x": ""}
    mlp = exercises.setup("parallelism/few-tokens").program
    arrays = [a.replace(spec=sv.Spec.parse(specs[a.name])) for a in mlp.arrays]
    return mlp.replace(arrays=tuple(arrays))


FSDP = "batch -> (outer, inner)\nembed -> (outer, inner)"
# fmt: off
ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "matmul/nothing-moves": (
        [
            "A[I_U, J] B[J, K_V]", "A[I_V,J] · B[J,K_{U}]", (P("U"), P(None, "V")),
            {"B": "None, U", "A": "V"}, [sv.Spec.parse("U"), named(P(None, "V"), **XY)],
            pair("V", "None, U"), Late(lambda: sv.explore(pair("U", "None, V"))),
            "A[I_U, J] · B[J, K_V] → C[I_U, K_V]", "A[I_V, J] B[J, K_U] -> C[I_V, K_U]",
        ],
        [
            "A[I, J_U] B[J_U, K]", "A[I_U, J] B[J, K_U]", "A[I_UV, J] B[J, K]",
            "A[I, J] B[J, K_UV]", "A[I_U, J_V] B[J_V, K]", ("U", "V"), "A[I_U, J] B[J, K_Z]",
            "A[I_U, J] · B[J, K_V] → C[I_U, K]", "A[I_U, J] · B[J, K_V] → ",
            "A[I_U, J] → B[J, K_V]", "A[I_U, J] · B[J, K_V] → C[I_Z, K]",
            "A[I_U, J]", (P("U"),), {"A": "U"}, pair("U", ""), ("U", "None, None, V"), 5,
        ],
    ),
    "matmul/one-all-reduce": (
        [
            "A[I, J_UV] B[J_UV, K]", "A[I, J_VU] B[J_VU, K]", ("None, (U, V)", "(U, V)"),
            (P(None, ("V", "U")), P(("V", "U"))),
            {"A": (None, ("U", "V")), "B": sv.Spec.of(("U", "V"))},
            pair("None, (U, V)", "(U, V), None"), "A[I, J_UV] · B[J_UV, K] → C[I, K]",
            "A[I, J_UV] · B[J_UV, K] → C[I, K] {U_UV}",
        ],
        [
            "A[I, J_U] B[J_U, K]", "A[I_UV, J] B[J, K_UV]", "A[I_U, J_V] B[J_V, K_U]",
            "A[I, J_UV] B[J_U, K]", "A[I, J_UV] B[J_VU, K]", "A[I_UV, J] B[J_UV, K]",
            "A[I_V, J_U] B[J_U, K_V]", "A[I, J] B[J, K]", "A[I, J_UU] B[J_UV, K]", "A[I, J_UV], B",
            None,
        ],
    ),
    "matmul/move-the-small-one": (
        [
            P(None, "U"), (None, "V"), "None, (U, V)", named(P(None, "U"), **XY),
            sv.layout((8, 8192), "None, U", GRID), sv.Spec.of(None, ("U",)),
        ],
        [
            "U", "", "U, V", "(U, V)", P("U", None), named(P("U"), **XY), "None, Z", "None, U, V",
            named(P(None, "V"), U=2, V=4), "U, U", 1 << 20, None,
        ],
    ),
    "matmul/sent-bytes": (
        [
            "3 MiB", 3 << 20, 3145728.0, np.int64(3 << 20), "3072 KiB", Fraction(3 << 20),
            "3.15 MB", "3.146 MB",
        ],
        [
            "3.1 MB", "3.14 MB",
            "2 MiB", "1.5 MiB", "4 MiB", "6 MiB", 24 << 20, 3, "3 MB", "5 MiB", "-3 MiB", None,
            float("inf"),
        ],
    ),
    "collectives/one-all-to-all": (
        [
            ("U", "None, U"), (P(None, "V"), P("V")), {"before": "(U, V)", "after": "U, V"},
            [sv.Spec.parse("None, U"), named(P("U"), **XY)], "before[I_V, J] after[I, J_V]",
            "x[I_U, J] → x[I, J_U]", "before[I_V, J] -> after[I, J_V]",
        ],
        [
            ("U", ""), ("", "U"), ("U", "V"), ("U", "U"), ("U", "None, V"), ("U, V", "V, U"),
            ("U, V", ""), ("V", "U, V"), "before[I_U, J]", "x[I_U, J] → x[I, J_V]",
            "x[I_U, J] → y[I, J_U]", "x[I_U, J] x[I, J_U]", ("U", "None, U", ""), ("U", "Z"), None,
        ],
    ),
    "collectives/all-reduce-sends": (
        [
            "112 MiB", 112 << 20, 117440512.0, np.int64(112 << 20), "0.109375 GiB",
            "117 MB", "117.44 MB", "0.109 GiB",
        ],
        [
            "64 MiB", "56 MiB", "128 MiB", "448 MiB", "8 MiB", "896 MiB", 112, "112 MB", "200 MiB",
            "112 miB/s", None,
        ],
    ),
    "parallelism/few-tokens": (
        [
            ("None, (outer, inner)", "(outer, inner)", ""),
            [P(None, ("outer", "inner")), P(("outer", "inner")), P()],
            {"x": "", "w_out": P(("inner", "outer")), "w_in": (None, ("inner", "outer"))},
            few_tokens(), Late(lambda: sv.explore(few_tokens())),
        ],
        [
            ("None, outer", "outer", ""), ("", "", "(outer, inner)"), ("", "", ""),
            ("(outer, inner)", "(outer, inner)", "(outer, inner)"),
            ("None, inner", "inner", "outer"), ("None, (outer, inner)", "None, (outer, inner)", ""),
            ("None, (outer, inner)", "(inner, outer)", ""), ("None, model", "model", ""),
            ("None, (outer, inner)", "(outer, inner)"), {"w_in": "None, outer"}, P("outer"),
            "None, outer", None, 3,
        ],
    ),
    "parallelism/fsdp-sends": (
        [
            "960 MiB", 960 << 20, "0.9375 GiB", np.int64(960 << 20), Fraction(960 << 20),
            "1.007 GB", 1006632960.0,
        ],
        [
            "480 MiB", "1440 MiB", "1 GiB", "15 GiB", "512 MiB", "240 MiB", "64 MiB", 960, "960 MB",
            "2 GiB", -1, None, "960 miles",
        ],
    ),
    "parallelism/gated-tokens": (
        [3072, "3,072", 3072.0, np.int32(3072), Fraction(3072), np.array(3072)],
        [2048, 6144, 1536, 768, 384, 24576, 512, 4096, 0, -3072, None, "many", [3072], 10**9],
    ),
    "tables/tensor": (
        [
            "batch -> outer\nmlp -> inner", [("batch", "inner"), ("mlp", "outer")],
            sv.rules(("mlp", "inner"), ("batch", ("outer",)), ("embed", None)),
            (("batch", "outer"), ("embed", ()), ("mlp", "inner")),
            ruled("tables/tensor", "batch -> outer\nmlp -> inner"),
        ],
        [
            "batch -> (outer, inner)", "mlp -> inner", "batch -> outer\nmlp -> outer",
            "batch -> outer\nembed -> outer", "batch -> outer\nmlp -> (outer, inner)",
            "batch -> outer\nembed -> inner\nmlp -> outer", "batch -> outer\nmlp -> model",
            "batch -> outer\nhidden -> inner", ruled("tables/tensor", "batch -> outer"), "",
            None,
        ],
    ),
    "tables/fsdp": (
        [
            FSDP, [("batch", ("outer", "inner")), ("mlp", ("outer", "inner"))],
            sv.rules(("mlp", ("inner", "outer")), ("batch", ("outer", "inner"))),
            (("embed", "outer"), ("mlp", "inner"), ("batch", ("outer", "inner"))),
            ruled("tables/fsdp", FSDP),
        ],
        [
            "batch -> (outer, inner)", "embed -> (outer, inner)", "batch -> outer\nembed -> outer",
            "batch -> outer\nembed -> (outer, inner)", "batch -> (outer, inner)\nmlp -> inner",
            "batch -> outer\nmlp -> inner\nembed -> outer",
            "batch -> (data, model)\nembed -> (data, model)", "", "fsdp",
            ("batch", ("outer", "inner")), None,
        ],
    ),
    "tables/experts": (
        [
            "expert -> (outer, inner)", [("expert", ("inner", "outer"))],
            sv.rules(("expert", ("outer", "inner")), ("sequence", None)),
            (("expert", ("outer", "inner")), ("embed", None)),
            ruled("tables/experts", "expert -> (outer, inner)"),
        ],
        [
            "expert -> outer", "expert -> inner", "expert -> outer\nmlp -> inner",
            "batch -> (outer, inner)\nexpert -> (outer, inner)", "mlp -> (outer, inner)",
            "embed -> (outer, inner)", "experts -> (outer, inner)", "expert -> (data, model)", "",
            None, 2,
        ],
    ),
    "compiler/origin": (
        [
            "w_v", ["w_v"], BLOCK.op("w_v"),
            next(o.origins["inner"] for o in BLOCK.ops if "bhqk,bkhd" in o.op),
            exercises.setup("compiler/origin").program.arrays[3],
        ],
        [
            "w_q", "w_k", "x", "norm_1", "w_o", ["w_v", "w_q"], "w_inn", "inner", [],
            BLOCK.op("dot_general"), None,
        ],
    ),
    "compiler/rows": (
        [
            1024, "1,004", np.int64(1040), (1008, 16), sv.array("x", (1012, 16)), 1016.0,
            np.zeros((1020, 16)),
        ],
        [
            1001, 1010, "1023", 1000, 1044, 1024.5, -1024, "four", (1024, 8), None, 10**4000,
        ],
    ),
    "compiler/pin-the-result": (
        [
            constrained, by_name, jax.jit(constrained), functools.partial(to_spec, P("V", "U")),
            Product(), Late(lambda: as_given(constrained)),
        ],
        [
            lambda a, b: a @ b, functools.partial(to_spec, P("U", "V")),
            functools.partial(to_spec, P("V")), functools.partial(to_spec, P("Z")), other_values,
            too_small, lambda a, b: None, lambda a: a, lambda a, b: a @ b + 1 / 0,
            pair("V", "None, U"), P("V", "U"), "lambda a, b: a @ b", None,
        ],
    ),
    "compiler/no-rematerialisation": (
        [
            P("U", "V"), "U, V", ("U", "V"), named(P("U", "V"), **XY), sv.Spec.parse("U, V"),
            sv.layout((512, 1024), "U, V", GRID),
        ],
        [
            "U", "None, V", "", "V", "None, (U, Z)", "U, V, None", "U, U",
            named(P("U", "V"), V=2, U=4), None, 2, {"U": 0},
        ],
    ),
    "keep/unasked-gather": (
        [
            "inner", P("inner", None), ("inner",), named(P("inner"), outer=4, inner=2),
            edited("inner"), Late(lambda: sv.explore(edited("inner, None"))), sv.Spec.of("inner"),
        ],
        [
            "None, inner", "outer", "", "None, outer", "(outer, inner)", "inner, inner", "model",
            MLP, MLP.replace(mesh=sv.mesh(outer=2, inner=2)),
            MLP.replace(arrays=tuple(a.replace(spec=sv.Spec()) for a in MLP.arrays)), None,
        ],
    ),
}
# fmt: on
