"""Right and wrong answers to the exercises on layouts, rules and memory.

Each exercise has right answers in different forms, and wrong answers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz import exercises


class Late:
    """An answer that is created only when it is checked."""

    def __init__(self, make: Any):
        self.make = make


def mesh_of(**sizes: int) -> AbstractMesh:
    kinds = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def named(spec: P, **sizes: int) -> NamedSharding:
    return NamedSharding(mesh_of(**sizes), spec)


def opened(mesh: str, rules: str, *arrays: sv.ArraySpec) -> Late:
    """An Explorer on a mesh, with rules and arrays."""

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
LOST = exercises.setup("keep/lost-moments")
LOST_AUDIT = sv.audit(LOST.arrays, LOST.rules, LOST.mesh)
MISSPELT = exercises.setup("debugging/unmatched")
MISSPELT_AUDIT = sv.audit(MISSPELT.arrays, MISSPELT.rules, MISSPELT.mesh)
COPIED = exercises.setup("debugging/replicated")
COPIED_AUDIT = sv.audit(COPIED.arrays, COPIED.rules, COPIED.mesh)
ATTENTION = tuple(f"params/block_{n}/attention/{w}" for n in (0, 1) for w in ("wq", "wo"))
BLOCKS = ("params/block_0/mlp/wo", "params/block_1/mlp/wo")
MOMENTS = ("opt_state/0/mu/block_1/mlp/wi", "opt_state/0/nu/embed/table")


SHADOWED = "width -> x\nwidth -> y\nhidden -> y\ntokens -> x\nwidth -> None"
TOKENS, OVER_Y = ("tokens", "x"), [("vocab", "y"), ("heads", "y"), ("hidden", "y")]


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


# fmt: off
ANSWERS: dict[str, tuple[list[Any], list[Any]]] = {
    "arrays/eight-shards": (
        [
            P(("host", "chip")), (("chip", "host"), None), "(host, chip), None",
            sv.Spec.of(("host", "chip")), named(P(("chip", "host"), None), **RACK),
            laid_out("(host, chip)"), X.replace(spec=sv.Spec.parse("(chip, host)")),
            jax.ShapeDtypeStruct(X.shape, "bfloat16", sharding=named(P(("host", "chip")), **RACK)),
            [["host", "chip"]],
            opened("host=4, chip=2", "a -> host", X.replace(spec=sv.Spec.of(("host", "chip")))),
        ],
        [
            P("host"), "chip", "", "host, chip", "None, (host, chip)", ("host", "host"),
            "(host, chips)", P("host", None, "chip"), named(P(("x", "y")), x=4, y=2),
            sv.layout((8, 8), "(host, chip)", sv.mesh(**RACK)), sv.layout(X, "x", sv.mesh(x=8)),
            "(host, chip", None, 8,
        ],
    ),
    "arrays/memory": (
        [
            16 << 20, 16777216.0, "16 MiB", "16777216", "16,777,216", np.int64(1 << 24),
            Fraction(1 << 24), "16384 KiB", np.array(1 << 24), "16777216 bytes",
            "16.8 MB", "16.78 MB", "16,777 KB", "0.0168 GB", "16.0 MiB",
        ],
        [
            "128 MiB", "8 MiB", "32 MiB", 256 << 20, 8 << 20, 16, "16 MB", "20 MiB", "17 MB",
            "16.7 MB", "16.80 MB", 16.8, "33.6 MB", 0, -16777216,
            "16 miles", True, [16 << 20], float("nan"),
        ],
    ),
    "arrays/same-shard": (
        [
            {0, 2, 7}, {0, 2, 5, 7}, [7, 2, 0], "0, 2, 7", (0, 2, 5, 7), np.array([0, 2, 7]),
            frozenset({7, 0, 2}), "{0 2 7}",
        ],
        [
            {1, 3, 7}, {4}, {0, 2, 4, 6}, {0, 2}, {5}, set(), {0, 2, 7, 8}, range(8), "0, 2 and 7",
            [0.5, 2], 2, None,
        ],
    ),
    "arrays/second-half": (
        [
            P(("chip", "host")), "(chip, host)", (("chip", "host"),),
            sv.Spec.parse("(chip, host), None"), named(P(("chip", "host")), **RACK),
            laid_out("(chip, host)"),
        ],
        [
            P(("host", "chip")), "host", "chip", "chip, host", "", "None, (chip, host)",
            "(chip, hosts)", named(P(("host", "chip")), chip=2, host=4), laid_out("(host, chip)"),
            1,
        ],
    ),
    "arrays/square-shards": (
        [
            "rows=8, columns=2", sv.mesh(columns=2, rows=8), {"rows": 8, "columns": 2},
            [("rows", 4), ("columns", 1), ("spare", 4)], mesh_of(rows=8, columns=2),
            sv.mesh(rows=4, columns=1, other=2, more=2),
            NamedSharding(mesh_of(rows=8, columns=2), P("rows")),
        ],
        [
            "rows=4, columns=4", "rows=16, columns=1", "rows=2, columns=8", "rows=4, columns=1",
            "rows=16, columns=4", sv.mesh(x=8, y=2), {"rows": 8, "column": 2},
            "rows=8, columns=two", 16, None, {"rows": -8, "columns": -2},
        ],
    ),
    "rules/two-rules": (
        [
            "hidden -> x\nwidth -> y", [("hidden", "y"), ("width", "x")], (("hidden", ("x", "y")),),
            sv.rules(("width", ("y", "x"))), {"rules": [["hidden", "x"], ["width", "y"]]}["rules"],
            {"hidden": "x", "width": "y"},
            opened("x=4, y=2", "width -> x\nhidden -> y"),
            sv.resolve("hidden width", "hidden -> x\nwidth -> y", mesh=GRID),
        ],
        [
            "hidden -> x", "hidden -> y", "hidden -> x\nwidth -> x",
            "hidden -> x\nwidth -> y\ntokens -> x", "mlp -> x\nembed -> y",
            "hidden -> None\nwidth -> y", "hidden -> z\nwidth -> y", "",
            {"hidden": "x", "width": "x"}, opened("x=2, y=2", "width -> x\nhidden -> y"),
            "hidden x", 2 << 20,
        ],
    ),
    "rules/shadowed": (
        [
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> None",
            [("hidden", "y"), ("width", "x"), ("tokens", "x"), ("width", "y"), ("width", None)],
            sv.rules(("width", "x"), ("width", None), ("width", "y"), ("hidden", "y"), TOKENS),
            opened("x=4, y=2", SHADOWED, W_IN),
            (("width", "x"), ("tokens", ("x",)), ("width", ()), ("hidden", "y"), ("width", "y")),
        ],
        [
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> None\nwidth -> x",
            "tokens -> x\nhidden -> y\nwidth -> None\nwidth -> y\nwidth -> x",
            "width -> y\nwidth -> x\nwidth -> None\nhidden -> y\ntokens -> x",
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x", "hidden -> y\nwidth -> x",
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> x",
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nheads -> None",
            "width -> None\n" * 5, "", [("hidden", "y")], None, ["a", "b"],
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
            "width -> x\nhidden -> y", "width -> x", "width -> x\nwidth -> x\nhidden -> y",
            "width -> x\nhidden -> x", "width -> None\nhidden -> None",
            "tokens -> x\nhidden -> y\nwidth -> None", "width -> z\nwidth -> x\nhidden -> y",
            "width -> x\nhidden -> (y", opened("x=2, y=2", "width -> x", W_IN), "", "nnx",
        ],
    ),
    "rules/twelve-heads": (
        [
            "width -> y", [("heads", "x"), ("head_dim", "y")],
            (("head_dim", ("x", "y")), ("heads", None)), sv.rules(("width", ("x", "y"))),
            opened("x=2, y=8", "head_dim -> y\nwidth -> x", W_Q),
        ],
        [
            "heads -> y", "heads -> x", "heads -> (x, y)", "width -> x", "width -> x\nheads -> y",
            "head -> y", "width -> z", "width -> x\nheads -> x", "width -> None", [("width", 8)],
            opened("x=2, y=4", "width -> y", W_Q),
        ],
    ),
    "far/step-seconds": (
        [
            0.43, "430 ms", "0.43 s", np.float64(0.4299), "430,000 us", Fraction(43, 100),
        ],
        [
            0.1433, "287 ms", 0.215, "440.3 s", 430, 430e3, 0.6, 0.3, 0, -0.43, "430 m", None,
            "half a second",
        ],
    ),
    "pods/8b-train-state": (
        [
            "embed -> (fsdp, model)",
            [("embed", "fsdp"), *((n, "model") for n in ("vocab", "heads", "kv_heads", "mlp"))],
            sv.rules(("embed", ("model", "fsdp")), ("norm", "model")),
            (("embed", "fsdp"), ("head_dim", "model"), ("mlp", "model"), ("vocab", "model")),
            opened("fsdp=8, model=4", "embed -> (fsdp, model)\nnorm -> fsdp"),
        ],
        [
            "embed -> fsdp", "embed -> model", "mlp -> (fsdp, model)", "width -> (fsdp, model)",
            "embed -> fsdp\nmlp -> model", "layers -> (fsdp, model)", "kv_heads -> (fsdp, model)",
            "embed -> (data, model)", "", "3 GiB",
            opened("fsdp=4, model=8", "embed -> (fsdp, model)"),
        ],
    ),
    "pods/70b-mesh": (
        [
            "fsdp=16, model=8", sv.mesh(fsdp=32, model=4), {"model": 2, "fsdp": 64},
            mesh_of(fsdp=128, model=1), [("fsdp", 16), ("model", 8), ("data", 1)],
        ],
        [
            "fsdp=8, model=16", "data=2, fsdp=16, model=4", "data=16, fsdp=1, model=8",
            "fsdp=64, model=1, data=2", "fsdp=16, model=4", "fsdp=1, model=128", "data=16, model=8",
            "fsdp=16, tensor=8", 128, None, "fsdp=0, model=128",
        ],
    ),
    "arithmetic/cache-batch": (
        [
            152, "152", 152.0, np.int32(152), np.array(152), Fraction(152),
        ],
        [
            156, 148, 4, 400, 153, 0, 152.5, -152, "many", 10**9, None,
        ],
    ),
    "debugging/unmatched": (
        [
            set(BLOCKS), list(BLOCKS), ", ".join(BLOCKS), rows(MISSPELT_AUDIT, *BLOCKS),
            [a for a in MISSPELT.arrays if a.name in BLOCKS], dict.fromkeys(BLOCKS, "hiden"),
            "\n".join(BLOCKS), MISSPELT_AUDIT.unmatched, MISSPELT_AUDIT.unmatched[0],
        ],
        [
            BLOCKS[:1], BLOCKS[1], [*BLOCKS, "params/embed/table"],
            [a.name for a in MISSPELT.arrays], "params/block_0/mlp/wi", "hiden",
            "params/block_0/mlp/w", [], None, [1, 2], {"mlp/wo"},
        ],
    ),
    "debugging/one-rule": (
        [
            "vocab -> y\nheads -> y\nhidden -> y\nwidth -> x",
            "vocab -> y\nheads -> y\nhidden -> y\nwidth -> y\nwidth -> x",
            [("width", "x"), *OVER_Y, ("width", None), ("width", "x")],
            sv.rules(("width", "x"), *OVER_Y, ("width", None)),
            opened("x=4, y=2", "vocab -> y\nheads -> y\nhidden -> y\nwidth -> x\nwidth -> None"),
            (("vocab", "y"), ("heads", "y"), ("hidden", "y"), ("wide", None), ("width", "x")),
        ],
        [
            TABLE, "vocab -> y\nheads -> y\nhidden -> y", "width -> x",
            "vocab -> x\nheads -> y\nhidden -> y\nwidth -> None\nwidth -> x",
            TABLE + "\ntokens -> x",
            "vocab -> y\nheads -> x\nhidden -> y\nwidth -> None\nwidth -> x",
            "vocab -> y\nheads -> y\nhidden -> (x, y)\nwidth -> None\nwidth -> x",
            "vocab -> y\nheads -> y\nhidden -> y\nwidth -> z\nwidth -> x", "",
            opened("x=2, y=4", TABLE), 6,
        ],
    ),
    "debugging/replicated": (
        [
            set(ATTENTION), list(ATTENTION), ", ".join(ATTENTION), COPIED_AUDIT.replicated,
            rows(COPIED_AUDIT, *ATTENTION), dict.fromkeys(ATTENTION, "all"),
        ],
        [
            ATTENTION[:2], ATTENTION[0], [*ATTENTION, "params/embed/table"],
            [a.name for a in COPIED.arrays], "params/block_0/mlp/wi", "heads", "attention/wq", [],
            None, [1, 2], COPIED_AUDIT.rows, ATTENTION[1:],
        ],
    ),
    "keep/lost-moments": (
        [
            set(MOMENTS), " ".join(MOMENTS), list(LOST_AUDIT.differences),
            rows(LOST_AUDIT, *MOMENTS), tuple(a for a in LOST.arrays if a.name in MOMENTS),
            [MOMENTS[1], LOST_AUDIT.differences[0]],
        ],
        [
            MOMENTS[0], MOMENTS[1:], [*MOMENTS, "params/embed/table"], "params/block_1/mlp/wi",
            "opt_state/0/nu/block_1/mlp/wi", "opt_state/0/mu/embed", "mu", (), LOST_AUDIT.rows, 7,
            [None],
        ],
    ),
    "keep/contract": (
        [
            lambda audit: sv.expect(audit).sharded(at_least=0.99), asserts_bytes,
            asserts_differences, at_most, lambda audit: asserts_differences(audit),
        ],
        [
            lambda audit: None, lambda audit: sv.expect(audit).sharded(at_least=0.5),
            lambda audit: sv.expect(audit).at_most("1 GiB", per="device"), raises_too_soon,
            asks_too_much, lambda audit: sv.expect(audit).sharded(at_least=1.5),
            breaks_with_another_error, lambda: None, lambda audit: audit.no_such_name,
            "sv.expect(audit).sharded()", None, True,
        ],
    ),
}
# fmt: on
