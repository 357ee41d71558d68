"""Right and wrong answers to the exercises on layouts, rules and memory.

Of each exercise: right answers, each of another form or another way, and wrong ones, each with
words that its hint must have.
"""

from __future__ import annotations

import datetime
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz import exercises
from shardviz.core.layout.layout import layout_from_indices


class Late:
    """An answer that is made when it is needed."""

    def __init__(self, make: Any):
        self.make = make


def mesh_of(**sizes: int) -> AbstractMesh:
    kinds = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def named(spec: P, **sizes: int) -> NamedSharding:
    return NamedSharding(mesh_of(**sizes), spec)


def opened(mesh: str, rules: str, *arrays: sv.ArraySpec) -> Late:
    """An Explorer with a mesh, rules and arrays typed into it."""

    def make() -> Any:
        return sv.explore(sv.audit(list(arrays) or [GIVEN_OUT], sv.rules(rules), sv.mesh(mesh)))

    return Late(make)


RACK = {"host": 4, "chip": 2}
X = exercises.setup("arrays/eight-shards").x
GIVEN_OUT = exercises.setup("rules/two-rules").w_out
GRID = sv.mesh(x=4, y=2)
W_IN = exercises.setup("rules/shadowed").w_in
W_Q = exercises.setup("rules/twelve-heads").w_q
TABLE = exercises.setup("debugging/one-rule").rules.text()
LOST = exercises.setup("debugging/lost-moments")
LOST_AUDIT = sv.audit(LOST.arrays, LOST.rules, LOST.mesh)
MISSPELT = exercises.setup("debugging/unmatched")
MISSPELT_AUDIT = sv.audit(MISSPELT.arrays, MISSPELT.rules, MISSPELT.mesh)
BLOCKS = ("params/block_0/mlp/wo", "params/block_1/mlp/wo")
MOMENTS = ("opt_state/0/mu/block_1/mlp/wi", "opt_state/0/nu/embed/table")


def rows(audit: sv.Audit, *paths: str) -> list:
    return [row for row in audit.rows if row.path in paths]


def laid_out(spec: str) -> sv.Layout:
    return sv.layout(X, spec, sv.mesh(**RACK))


def asserts_bytes(audit: sv.Audit) -> None:
    assert audit.bytes_per_device < 12 << 20, "too many bytes"


def asserts_differences(audit: sv.Audit) -> None:
    assert not audit.differences


def at_most(audit: sv.Audit) -> None:
    sv.expect(audit).at_most("11 MiB", per="device")


def raises_too_soon(audit: sv.Audit) -> None:
    raise AssertionError("always")


def asks_too_much(audit: sv.Audit) -> None:
    sv.expect(audit).at_most("1 MiB", per="device")


def breaks_with_another_error(audit: sv.Audit) -> None:
    raise KeyError("audit")


ANSWERS: dict[str, tuple[list[Any], list[tuple[Any, str]]]] = {
    "arrays/eight-shards": (
        [
            P(("host", "chip")),
            (("chip", "host"), None),
            "(host, chip), None",
            sv.Spec.of(("host", "chip")),
            named(P(("chip", "host"), None), **RACK),
            laid_out("(host, chip)"),
            X.replace(spec=sv.Spec.parse("(chip, host)")),
            jax.ShapeDtypeStruct(X.shape, "bfloat16", sharding=named(P(("host", "chip")), **RACK)),
            [["host", "chip"]],
            layout_from_indices(
                X.shape, "bfloat16", {i: np.s_[512 * i : 512 * (i + 1), 0:1024] for i in range(8)}
            ),
            opened("host=4, chip=2", "a -> host", X.replace(spec=sv.Spec.of(("host", "chip")))),
        ],
        [
            (P("host"), "Nothing is split over 'chip'"),
            ("chip", "Nothing is split over 'host'"),
            ("", "8 devices hold each shard"),
            ("host, chip", "parts of rows"),
            ("None, (host, chip)", "[4096, 128]"),
            (("host", "host"), "'host' splits both"),
            ("(host, chips)", "Did you mean 'chip'?"),
            (P("host", None, "chip"), "Take away"),
            (named(P(("x", "y")), x=4, y=2), "x=4, y=2"),
            (sv.layout((8, 8), "(host, chip)", sv.mesh(**RACK)), "(8, 8)"),
            (sv.layout(X, "x", sv.mesh(x=8)), "x=8; this exercise is about host=4, chip=2"),
            ("(host, chip", "position"),
            (None, "None"),
            (8, "got 8"),
        ],
    ),
    "arrays/memory": (
        [
            16 << 20,
            16777216.0,
            "16 MiB",
            "16777216",
            "16,777,216",
            np.int64(1 << 24),
            Fraction(1 << 24),
            "16384 KiB",
            np.array(1 << 24),
            "16777216 bytes",
        ],
        [
            ("128 MiB", "all of q"),
            ("8 MiB", "all 16 devices"),
            ("32 MiB", "4 bytes for each element"),
            (256 << 20, "what all devices hold together"),
            (8 << 20, "8 MiB"),
            (16, "Is its unit right?"),
            ("16 MB", "too little"),
            ("20 MiB", "20 MiB is too much"),
            (0, "0 B"),
            (-16777216, "not negative"),
            ("16 miles", "'16 miles'"),
            (True, "got True"),
            ([16 << 20], "got [16777216]"),
            (float("nan"), "got nan"),
        ],
    ),
    "arrays/same-shard": (
        [
            {0, 2, 7},
            {0, 2, 5, 7},
            [7, 2, 0],
            "0, 2, 7",
            (0, 2, 5, 7),
            np.array([0, 2, 7]),
            frozenset({7, 0, 2}),
            "{0 2 7}",
        ],
        [
            ({1, 3, 7}, "Device 1 is at"),
            ({4}, "host 3, chip 1"),
            ({0, 2, 4, 6}, "Device 4"),
            ({0, 2}, "2 other devices"),
            ({5}, "0 other devices"),
            (set(), "0 other devices"),
            ({0, 2, 7, 8}, "no device 8"),
            (range(8), "Device 1"),
            ("0, 2 and 7", "'0, 2 and 7'"),
            ([0.5, 2], "0.5"),
            (2, "1 other device;"),
            (None, "None"),
        ],
    ),
    "arrays/second-half": (
        [
            P(("chip", "host")),
            "(chip, host)",
            (("chip", "host"),),
            sv.Spec.parse("(chip, host), None"),
            named(P(("chip", "host")), **RACK),
            laid_out("(chip, host)"),
        ],
        [
            (P(("host", "chip")), "rows 512 to 1023"),
            ("host", "2 devices hold each shard"),
            ("chip", "4 devices hold each shard"),
            ("chip, host", "rows of its own"),
            ("", "8 devices hold each shard"),
            ("None, (chip, host)", "rows of its own"),
            ("(chip, hosts)", "'hosts'"),
            (named(P(("host", "chip")), chip=2, host=4), "chip=2, host=4"),
            (laid_out("(host, chip)"), "begins at row 2048"),
            (1, "got 1"),
        ],
    ),
    "arrays/square-shards": (
        [
            "rows=8, columns=2",
            sv.mesh(columns=2, rows=8),
            {"rows": 8, "columns": 2},
            [("rows", 4), ("columns", 1), ("spare", 4)],
            mesh_of(rows=8, columns=2),
            sv.mesh(rows=4, columns=1, other=2, more=2),
            NamedSharding(mesh_of(rows=8, columns=2), P("rows")),
        ],
        [
            ("rows=4, columns=4", "[1024, 256], higher than wide"),
            ("rows=16, columns=1", "[256, 1024], wider than high"),
            ("rows=2, columns=8", "[2048, 128]"),
            ("rows=4, columns=1", "has 4 devices; it takes 16"),
            ("rows=16, columns=4", "64 devices"),
            (sv.mesh(x=8, y=2), "'rows'"),
            ({"rows": 8, "column": 2}, "Did you mean 'column'?"),
            ("rows=8, columns=two", "two"),
            (16, "16"),
            (None, "at least one axis"),
            ({"rows": -8, "columns": -2}, "-8"),
        ],
    ),
    "rules/two-rules": (
        [
            "hidden -> x\nwidth -> y",
            [("hidden", "y"), ("width", "x")],
            (("hidden", ("x", "y")),),
            sv.rules(("width", ("y", "x"))),
            {"rules": [["hidden", "x"], ["width", "y"]]}["rules"],
            opened("x=4, y=2", "width -> x\nhidden -> y"),
            sv.resolve("hidden width", "hidden -> x\nwidth -> y", mesh=GRID),
        ],
        [
            ("hidden -> x", "P('x', None), which is 4 MiB per device, not 2 MiB"),
            ("hidden -> y", "8 MiB per device"),
            ("hidden -> x\nwidth -> x", "4 MiB"),
            ("hidden -> x\nwidth -> y\ntokens -> x", "3 rules"),
            ("mlp -> x\nembed -> y", "'embed' or 'mlp'"),
            ("hidden -> None\nwidth -> y", "P(None, 'y')"),
            ("hidden -> z\nwidth -> y", "'z'"),
            ("", "no rules"),
            ({"hidden": "x", "width": "y"}, "dict"),
            (opened("x=2, y=2", "width -> x\nhidden -> y"), "x=2, y=2"),
            ("hidden x", "expected ->"),
            (2 << 20, "2097152"),
        ],
    ),
    "rules/shadowed": (
        [
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> None",
            [("hidden", "y"), ("width", "x"), ("tokens", "x"), ("width", "y"), ("width", None)],
            sv.rules(
                ("width", "x"), ("width", None), ("width", "y"), ("hidden", "y"), ("tokens", "x")
            ),
            opened(
                "x=4, y=2",
                "width -> x\nwidth -> y\nhidden -> y\ntokens -> x\nwidth -> None",
                W_IN,
            ),
            (("width", "x"), ("tokens", ("x",)), ("width", ()), ("hidden", "y"), ("width", "y")),
        ],
        [
            ("tokens -> x\nhidden -> y\nwidth -> y\nwidth -> None\nwidth -> x", "P(None, 'y')"),
            ("tokens -> x\nhidden -> y\nwidth -> None\nwidth -> y\nwidth -> x", "None"),
            ("width -> y\nwidth -> x\nwidth -> None\nhidden -> y\ntokens -> x", "P('y', None)"),
            ("tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x", "width → None is missing"),
            ("hidden -> y\nwidth -> x", "missing"),
            (
                "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> x",
                "width → None is missing",
            ),
            (
                "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nheads -> None",
                "heads → None is not in the table",
            ),
            ("width -> None\n" * 5, "hidden → y is missing"),
            ("", "no rules"),
            ([("hidden", "y")], "missing"),
            (None, "None"),
            (["a", "b"], "a → b"),
        ],
    ),
    "rules/dialects": (
        [
            "width -> x\nwidth -> None\nhidden -> y",
            [("width", "x"), ("width", "y"), ("hidden", None)],
            sv.rules(("hidden", "x"), ("hidden", "y"), ("width", None)),
            (("width", "x"), ("hidden", ("y",)), ("hidden", None)),
            opened("x=4, y=2", "hidden -> None\nhidden -> y\nwidth -> x", W_IN),
        ],
        [
            ("width -> x\nhidden -> y", "No name has two rules"),
            ("width -> x", "'hidden', which is no axis"),
            ("width -> x\nwidth -> x\nhidden -> y", "Both decide alike here"),
            ("width -> x\nhidden -> x", "Read as nnx"),
            ("width -> None\nhidden -> None", "P(None, None)"),
            ("tokens -> x\nhidden -> y\nwidth -> None", "P(None, 'y')"),
            ("width -> z\nwidth -> x\nhidden -> y", "'z'"),
            ("width -> x\nhidden -> (y", "(y"),
            (opened("x=2, y=2", "width -> x", W_IN), "x=2, y=2"),
            ("", "no rules"),
            ("nnx", "nnx"),
        ],
    ),
    "rules/twelve-heads": (
        [
            "width -> y",
            [("heads", "x"), ("head_dim", "y")],
            (("head_dim", ("x", "y")), ("heads", None)),
            sv.rules(("width", ("x", "y"))),
            opened("x=2, y=8", "head_dim -> y\nwidth -> x", W_Q),
        ],
        [
            ("heads -> y", "12 does not divide by 8"),
            ("heads -> x", "2 shards of [1024, 6, 64]"),
            ("heads -> (x, y)", "16"),
            ("width -> x", "[512, 12, 64]"),
            ("width -> x\nheads -> y", "12 does not divide"),
            ("head -> y", "No dimension is called 'head'"),
            ("width -> z", "'z'"),
            ("width -> x\nheads -> x", "P('x', None, None)"),
            ("width -> None", "1 shard"),
            ([("width", 8)], "8"),
            (opened("x=2, y=4", "width -> y", W_Q), "x=2, y=4"),
        ],
    ),
    "pods/step-seconds": (
        [
            0.43,
            "430 ms",
            "0.43 s",
            datetime.timedelta(milliseconds=430),
            np.float64(0.4299),
            "430,000 us",
            Fraction(43, 100),
        ],
        [
            (0.1433, "forward pass alone"),
            ("287 ms", "backward pass alone"),
            (0.215, "as one operation"),
            ("440.3 s", "one chip"),
            (430, "one chip"),
            (430e3, "Is its unit right?"),
            (0.6, "600 ms is too much"),
            (0.3, "300 ms is too little"),
            (0, "unit"),
            (-0.43, "not negative"),
            ("430 m", "'430 m'"),
            (None, "got None"),
            ("half a second", "'half a second'"),
        ],
    ),
    "pods/8b-train-state": (
        [
            "embed -> (fsdp, model)",
            [
                ("embed", "fsdp"),
                ("vocab", "model"),
                ("heads", "model"),
                ("kv_heads", "model"),
                ("mlp", "model"),
            ],
            sv.rules(("embed", ("model", "fsdp")), ("norm", "model")),
            (("embed", "fsdp"), ("head_dim", "model"), ("mlp", "model"), ("vocab", "model")),
            opened("fsdp=8, model=4", "embed -> (fsdp, model)\nnorm -> fsdp"),
        ],
        [
            ("embed -> fsdp", "more than 3 GiB"),
            ("embed -> model", "per device"),
            ("mlp -> (fsdp, model)", "28.7 GiB"),
            ("width -> (fsdp, model)", "'width'"),
            ("embed -> fsdp\nmlp -> model", "5.3 GiB"),
            ("layers -> (fsdp, model)", "embedding, split P(None, None)"),
            ("kv_heads -> (fsdp, model)", "8 does not divide by 32"),
            ("embed -> (data, model)", "'data'"),
            ("", "no rules"),
            ("3 GiB", "3 GiB"),
            (opened("fsdp=4, model=8", "embed -> (fsdp, model)"), "fsdp=4, model=8"),
        ],
    ),
    "pods/70b-mesh": (
        [
            "fsdp=16, model=8",
            sv.mesh(fsdp=32, model=4),
            {"model": 2, "fsdp": 64},
            mesh_of(fsdp=128, model=1),
            [("fsdp", 16), ("model", 8), ("data", 1)],
        ],
        [
            ("fsdp=8, model=16", "8 does not divide by 16"),
            ("data=2, fsdp=16, model=4", "12.1 GiB"),
            ("data=16, fsdp=1, model=8", "too much"),
            ("fsdp=64, model=1, data=2", "12.1 GiB"),
            ("fsdp=16, model=4", "64 devices"),
            ("fsdp=1, model=128", "does not divide"),
            ("data=16, model=8", "'fsdp'"),
            ("fsdp=16, tensor=8", "'model'"),
            (128, "128"),
            (None, "at least one axis"),
            ("fsdp=0, model=128", "0"),
        ],
    ),
    "pods/cache-batch": (
        [152, "152", 152.0, np.int32(152), np.array(152), Fraction(152)],
        [
            (156, "16.2 GiB"),
            (148, "more would fit"),
            (4, "are free on each device"),
            (400, "16 GiB"),
            (153, "multiple of 4"),
            (0, "got 0"),
            (152.5, "got 152.5"),
            (-152, "not negative"),
            ("many", "'many'"),
            (10**9, "1000000000"),
            (None, "got None"),
        ],
    ),
    "debugging/unmatched": (
        [
            set(BLOCKS),
            list(BLOCKS),
            ", ".join(BLOCKS),
            rows(MISSPELT_AUDIT, *BLOCKS),
            [a for a in MISSPELT.arrays if a.name in BLOCKS],
            dict.fromkeys(BLOCKS, "hiden"),
            "\n".join(BLOCKS),
        ],
        [
            (BLOCKS[:1], "1 array; there are more"),
            (BLOCKS[1], "1 array"),
            ([*BLOCKS, "params/embed/table"], "vocab width"),
            ([a.name for a in MISSPELT.arrays], "as it should be"),
            ("params/block_0/mlp/wi", "width hidden"),
            ("hiden", "'hiden'"),
            ("params/block_0/mlp/w", "Did you mean"),
            ([], "0 arrays"),
            (None, "None"),
            ([1, 2], "1 is none of the arrays"),
            ({"mlp/wo"}, "'mlp/wo'"),
        ],
    ),
    "debugging/one-rule": (
        [
            "vocab -> y\nheads -> y\nhidden -> y\nwidth -> x",
            "vocab -> y\nheads -> y\nhidden -> y\nwidth -> y\nwidth -> x",
            [
                ("width", "x"),
                ("vocab", "y"),
                ("heads", "y"),
                ("hidden", "y"),
                ("width", None),
                ("width", "x"),
            ],
            sv.rules(
                ("width", "x"), ("vocab", "y"), ("heads", "y"), ("hidden", "y"), ("width", None)
            ),
            opened("x=4, y=2", "vocab -> y\nheads -> y\nhidden -> y\nwidth -> x\nwidth -> None"),
            (("vocab", "y"), ("heads", "y"), ("hidden", "y"), ("wide", None), ("width", "x")),
        ],
        [
            (TABLE, "14 MiB per device, more than 6 MiB"),
            ("vocab -> y\nheads -> y\nhidden -> y", "2 rules differ"),
            ("width -> x", "4 rules differ"),
            ("vocab -> x\nheads -> y\nhidden -> y\nwidth -> None\nwidth -> x", "P('x', None)"),
            (TABLE + "\ntokens -> x", "14 MiB"),
            ("vocab -> y\nheads -> x\nhidden -> y\nwidth -> None\nwidth -> x", "13 MiB"),
            ("vocab -> y\nheads -> y\nhidden -> (x, y)\nwidth -> None\nwidth -> x", "per device"),
            ("vocab -> y\nheads -> y\nhidden -> y\nwidth -> z\nwidth -> x", "'z'"),
            ("", "no rules"),
            (opened("x=2, y=4", TABLE), "x=2, y=4"),
            (6, "6"),
        ],
    ),
    "debugging/lost-moments": (
        [
            set(MOMENTS),
            " ".join(MOMENTS),
            list(LOST_AUDIT.differences),
            rows(LOST_AUDIT, *MOMENTS),
            tuple(a for a in LOST.arrays if a.name in MOMENTS),
            [MOMENTS[1], LOST_AUDIT.differences[0]],
        ],
        [
            (MOMENTS[0], "1 array; there are more"),
            (MOMENTS[1:], "1 array"),
            ([*MOMENTS, "params/embed/table"], "params/embed/table is as it should be"),
            ("params/block_1/mlp/wi", "P('x', 'y')"),
            ("opt_state/0/nu/block_1/mlp/wi", "as its parameter"),
            ("opt_state/0/mu/embed", "Did you mean"),
            ("mu", "'mu'"),
            ((), "0 arrays"),
            (LOST_AUDIT.rows, "as it should be"),
            (7, "7"),
            ([None], "None"),
        ],
    ),
    "debugging/contract": (
        [
            lambda audit: sv.expect(audit).sharded(at_least=0.99),
            asserts_bytes,
            asserts_differences,
            at_most,
            lambda audit: asserts_differences(audit),
        ],
        [
            (lambda audit: None, "passes for the bad audit, too"),
            (lambda audit: sv.expect(audit).sharded(at_least=0.5), "for the bad audit, too"),
            (lambda audit: sv.expect(audit).at_most("1 GiB", per="device"), "bad audit"),
            (raises_too_soon, "It fails for the good audit: 'always'"),
            (asks_too_much, "10.5 MiB"),
            (lambda audit: sv.expect(audit).sharded(at_least=1.5), "1.5"),
            (breaks_with_another_error, "KeyError"),
            (lambda: None, "TypeError"),
            (lambda audit: audit.no_such_name, "AttributeError"),
            ("sv.expect(audit).sharded()", "function of an audit"),
            (None, "got None"),
            (True, "got True"),
        ],
    ),
}
