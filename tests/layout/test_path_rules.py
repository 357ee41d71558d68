"""Tables of paths: which pattern decides, in EasyLM's definition and in Keras's own LayoutMap."""

from __future__ import annotations

import os
import random
import re
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.rule_uses import no_pattern
from shardviz.types import PathRules

MESH = sv.mesh(data=4, model=2)
#: How many random pairs of a map and a path; the suite takes a part of what was measured once.
KERAS_CASES = int(os.environ.get("SHARDVIZ_KERAS_CASES", "2000"))

WORDS = ("mlp", "attn", "kernel", "bias", "0", "1", "wi", "layers", "dense_1")
paths = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("/".join)
pieces = st.sampled_from(
    [
        *WORDS,
        "/",
        ".*",
        r"\d",
        "[0-9]+",
        "(wi|wo)",
        "kernel$",
        "^mlp",
        ".",
        "(mlp|attn)/",
        "s?",
        "x",
    ]
)
patterns = st.lists(pieces, max_size=4).map("".join)
specs = st.sampled_from([(), ("data",), (None, "model"), ("model", None), (("data", "model"),)])
shapes = st.lists(st.sampled_from([1, 8, 16]), max_size=3).map(tuple)


def match_partition_rules(rules: list, path: str, shape: tuple[int, ...]) -> Any:
    """EasyLM's definition, in a few words; T5X-style code has the same loop."""
    if len(shape) == 0 or np.prod(shape) == 1:
        return P()
    for pattern, spec in rules:
        if re.search(pattern, path) is not None:
            return P(*spec)
    raise ValueError(path)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(patterns, specs), max_size=6), st.dictionaries(paths, shapes, min_size=1))
def test_regex_is_its_definition(table, leaves):
    tree = {path: jax.ShapeDtypeStruct(shape, "float32") for path, shape in leaves.items()}
    found = sv.audit(tree, table, MESH, dialect="regex")
    assert [row.path for row in found.rows] == list(leaves)
    for row in found.rows:
        try:
            theirs = match_partition_rules(table, row.path, row.shape)
        except ValueError:
            assert row.spec is None
            assert row.problem is not None
            assert row.by_path.problem.code == "no match"
        else:
            assert row.spec is not None
            assert row.spec.to_jax() == theirs


def keras_map(pairs: list) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    found = keras.distribution.LayoutMap(None)
    for key, axes in pairs:
        found[key] = axes
    return found


def random_pattern(rng: random.Random) -> str:
    parts = [*WORDS, "/", ".*", r"\d+", "(wi|wo)", "[a-z]+", ".", "(mlp|attn/)*", "^", "$", "s?"]
    wrong = ["(", "[", "*", "+", "(?P<", "\\"]
    found = "".join(rng.choice(parts) for _ in range(rng.randint(1, 4)))
    return found + rng.choice(wrong) if rng.random() < 0.02 else found


def test_keras_equals_the_layout_map_of_keras():
    rng, raised, nothing = random.Random(7), 0, 0
    for _ in range(KERAS_CASES // 10):
        pairs = {
            random_pattern(rng): (None, "model", "data")[: rng.randint(1, 3)] for _ in range(5)
        }
        known = ["/".join(rng.choices(WORDS, k=rng.randint(1, 4))) for _ in range(8)]
        pairs |= {rng.choice(known): ("data",)} if rng.random() < 0.3 else {}
        theirs = keras_map(list(pairs.items()))
        ours = sv.rules(theirs)
        assert isinstance(ours, PathRules)
        assert [r.pattern for r in ours] == list(pairs)
        for path in [*known, *rng.choices(list(pairs), k=2)]:
            try:
                layout = theirs[path]
            except (ValueError, re.error):
                raised += 1
                with pytest.raises(sv.ShardvizError):
                    sv.resolve(path, ours, dialect="keras")
                with pytest.raises(sv.ShardvizError):
                    sv.audit([(path, (8, 8, 8))], ours, MESH, dialect="keras")
                continue
            spec = sv.resolve(path, ours, dialect="keras", shape=(8, 8, 8)).spec
            nothing += layout is None
            assert spec == (
                sv.Spec.of(None, None, None) if layout is None else sv.Spec.of(*layout.axes)
            )
    assert raised > KERAS_CASES / 50
    assert nothing > KERAS_CASES / 50


def test_the_audit_of_a_keras_model_is_what_model_parallel_gives():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    devices = keras.distribution.DeviceMesh((1, 1), ("data", "model"), ["cpu:0"])
    layouts = keras.distribution.LayoutMap(devices)
    layouts[".*up/kernel"] = (None, "model")
    layouts["down/bias"] = ("model",)
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="data")
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(8, name="up"), keras.layers.Dense(4, name="down")]
    )
    audit = sv.audit(model, layouts, dialect="keras")  # the mesh is that of the map
    assert audit.mesh.shape == {"data": 1, "model": 1}
    assert len(audit.rows) == len(model.variables) == 4
    for row, variable in zip(audit.rows, model.variables, strict=True):
        assert row.path == variable.path
        assert row.spec == sv.Spec.of(*parallel.get_variable_layout(variable).axes)
    assert len(no_pattern(audit.rows)) == 3


# -- patterns --------------------------------------------------------------------------------

INVALID = {
    "bracket": "a[b",
    "star": "*a",
    "group": "(a",
    "long": "a" * 5000,
    "deep": "(" * 990,
    "reference": r"\3",
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_what_is_no_pattern_is_refused(text):
    with pytest.raises(sv.ShardvizError):
        sv.audit([("w", (8,))], [(".*", ()), (text, ())], MESH, dialect="regex")


def test_keras_reads_a_key_that_is_no_pattern_where_it_is_the_path():
    table = [("a[b", ("data",)), ("c", ())]
    assert sv.resolve("a[b", table, dialect="keras").spec == sv.Spec.of("data")
    with pytest.raises(sv.ShardvizError):
        sv.resolve("c/d", table, dialect="keras")


# -- verdicts --------------------------------------------------------------------------------

TABLE = [
    ("mlp/.*/kernel", (None, "model")),  # 1
    ("kernel", ("data",)),  # 2
    ("bias", ("data", "model")),  # 3
    ("scale", ("modle",)),  # 4
    ("embedding", ("data", None)),  # 5
    ("pair", ("data", "data")),  # 6
    ("count", ("data",)),  # 7
]
#: path -> shape, the deciding pattern, its verdict
VERDICTS = {
    "mlp/0/kernel": ((8, 8), 1, "matched"),
    "attn/kernel": ((8, 8), 2, "matched"),
    "mlp/0/bias": ((8,), 3, "wrong rank"),
    "norm/scale": ((8,), 4, "axis not in the mesh"),
    "embedding": ((510, 8), 5, "does not divide"),
    "pair": ((8, 8), 6, "axis named twice"),
    "opt/count": ((), 7, "one element"),
}


@pytest.mark.parametrize(("path", "case"), VERDICTS.items(), ids=VERDICTS)
def test_the_deciding_pattern_has_this_verdict(path, case):
    shape, number, kind = case
    row = sv.audit([(path, shape)], TABLE, MESH, dialect="regex").rows[0]
    found = row.by_path
    assert found is not None
    assert found.winner == number - 1
    assert [v.decides for v in found.verdicts] == [i == number - 1 for i in range(len(TABLE))]
    assert found.verdicts[number - 1].kind == kind
    assert (row.problem is None) == (kind in ("matched", "one element"))
    assert (row.layout is None) == (row.problem is not None)


def test_every_pattern_has_a_verdict():
    found = sv.resolve("mlp/0/kernel", TABLE, mesh=MESH, shape=(8, 8), dialect="regex")
    assert [v.kind for v in found.verdicts] == ["matched", "shadowed", *["does not match"] * 5]
    assert found.verdicts[1].by_rule == 0
    assert [v.lacks for v in found.verdicts[2:]] == [(p,) for p, _ in TABLE[2:]]
    assert len(found.explain().splitlines()) == 8


def test_keras_knows_that_a_pattern_is_only_in_a_part_of_the_path():
    found = sv.resolve("model/dense/kernel", [("dense/kernel", ("data",))], dialect="keras")
    assert found.spec == sv.Spec()
    assert found.verdicts[0].wider == ".*dense/kernel.*"
    rows = [("model/dense_1/kernel", (8, 8)), ("model/dense_1/bias", (8,))]
    audit = sv.audit(rows, {"dense.*kernel": (None, "model")}, MESH, dialect="keras")
    never = audit.rule_uses[0].never
    assert (never.code, never.near) == ("no such path", ".*dense.*kernel.*")
    assert [str(row.spec) for row in audit.rows] == ["P(None, None)", "P(None)"]


def test_keras_refuses_two_patterns_and_names_the_path():
    table = {"dense.*": ("data",), ".*kernel": (), "x": ()}
    with pytest.raises(sv.ShardvizError) as caught:
        sv.audit([("w", (8,)), ("dense/kernel", (8, 8))], table, MESH, dialect="keras")
    assert "dense/kernel" in str(caught.value)
    exact = {**table, "dense/kernel": ("model",)}
    found = sv.resolve("dense/kernel", exact, dialect="keras")
    assert found.spec == sv.Spec.of("model")
    kinds = [v.kind for v in found.verdicts]
    assert kinds == ["shadowed", "shadowed", "does not match", "matched"]


def test_keras_refuses_a_key_that_is_there_twice():
    with pytest.raises(sv.ShardvizError):
        sv.audit([("w", (8,))], [("a", ()), ("b", ()), ("a", ())], MESH, dialect="keras")


# -- the table over a tree -------------------------------------------------------------------


def tree() -> dict:
    layers = [{"kernel": np.zeros((8, 4)), "bias": np.zeros(4)} for _ in range(2)]
    return {"mlp": layers, "embed": np.zeros((16, 4)), "step": np.zeros(())}


def test_what_a_pattern_did_in_the_tree():
    table = [
        ("mlp/.*/kernal", ("data",)),
        ("mlp/.*/kernel", (None, "model")),
        ("kernel", ("data",)),
        ("embed", ("data", "model", None)),
        ("mlp/0$", ()),
        (".*", ()),
    ]
    audit = sv.audit(tree(), table, MESH, dialect="regex")
    uses = audit.rule_uses
    assert uses[1].decides == ("mlp/0/kernel", "mlp/1/kernel")
    assert uses[5].leaves_unsplit == ("mlp/0/bias", "mlp/1/bias", "step")
    assert [path for path, _ in uses[3].broken] == ["embed"]
    assert [u.index for u in audit.unused_rules] == [0, 2, 4]
    assert (uses[0].never.code, uses[0].never.near) == ("no such path", "mlp/.*/kernel")
    assert (uses[2].never.code, uses[2].never.by) == ("shadowed", (1,))
    assert uses[4].never.code == "no such path"


def test_paths_are_joined_as_jax_joins_them_and_may_be_long():
    deep = {f"level_{i}" * 2: None for i in range(2)}
    inner: Any = np.zeros((8, 8))
    for i in range(12):
        inner = {f"a_long_name_of_level_{i}": inner}
    state = {"deep": inner, "list": [np.zeros(8), (np.zeros(8),)], 7: np.zeros(8), **deep}
    wanted = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path({str(k): v for k, v in state.items()})
    ]
    found = [row.by_path.path for row in sv.audit(state, {".*": ()}, MESH, dialect="regex").rows]
    assert sorted(found) == sorted(wanted)
    assert max(map(len, found)) > 250
    start = sv.audit(state, [("^deep/a_long", ("data",)), (".*", ())], MESH, dialect="regex")
    assert start.rows[0].spec == sv.Spec.of("data")
    assert start.rows[0].path.startswith("…")


def test_a_sharding_of_its_own_wins():
    row = sv.array("w", (8, 8), spec="model")
    found = sv.audit([row], [("w", ("data",))], MESH, dialect="regex")
    assert found.rows[0].spec == sv.Spec.of("model")
    assert found.rule_uses[0].never.code == "own specs"


LIVE = [("a/kernel", (None, "model")), ("b/kernel", ("model",)), ("b/bias", ("data",))]


@pytest.mark.parametrize("dialect", ["regex", "keras"])
def test_arrays_with_shardings_are_compared_with_the_table(dialect):
    rows = [sv.array(path, (8, 8), spec=spec) for path, spec in LIVE]
    table = [("./kernel", (None, "model")), ("c/kernel", ("data",))]
    found = sv.audit(rows, table, MESH, dialect=dialect)
    assert [row.spec.dims[0] for row in found.rows] == [(), ("model",), ("data",)]
    deciding, idle = found.rule_uses
    assert (deciding.decides, deciding.never, idle.never.code) == (
        ("a/kernel",),
        None,
        "no such path",
    )
    differs = {one.path: (str(one.first), str(one.second)) for one in found.beside_table}
    wanted = {"b/kernel": ("P(None, 'model')", "P('model')")}
    if dialect == "keras":  # which replicates what matches no pattern
        wanted["b/bias"] = ("P(None, None)", "P('data')")
    assert differs == wanted
    assert no_pattern(found.rows) == ["b/bias"]


def test_a_table_that_was_never_applied_is_compared_with_replicated_arrays():
    rows = [sv.array(path, (8, 8), spec="") for path, _ in LIVE]
    found = sv.audit(rows, [(".*kernel", (None, "model"))], MESH, dialect="keras")
    assert [one.path for one in found.beside_table] == ["a/kernel", "b/kernel"]
    assert found.rule_uses[0].never.code == "own specs"


def test_axes_of_size_1_make_no_difference_beside_a_table():
    mesh = sv.mesh(data=4, one=1)
    found = sv.audit(
        [sv.array("w", (8, 8), spec="data")], [("w", ("data", "one"))], mesh, dialect="regex"
    )
    assert (len(found.beside_table), found.rule_uses[0].decides) == (0, ("w",))


def test_names_beside_an_array_do_not_count():
    found = sv.audit([("w", (8, 8), "data model")], [("w", (None, "data"))], MESH, dialect="regex")
    assert found.rows[0].spec == sv.Spec.of(None, "data")
    assert found.rows[0].bytes_per_device == 64
    assert found.rows[0].replicas == 2


def test_each_kind_of_table_is_refused_by_the_other_dialects():
    with pytest.raises(sv.ShardvizError):
        sv.audit(tree(), sv.rules(("a", "data")), MESH, dialect="regex")
    with pytest.raises(sv.ShardvizError):
        sv.audit(tree(), sv.rules(("a", P("data"))), MESH)


# -- two dialects side by side ---------------------------------------------------------------

NAMES = "mlp->model; embed->model; embed->None; embed->data; batch->one"
ONE = sv.mesh(data=4, model=2, one=1)
#: names, dialects -> what differs
CAUSES = {
    ("embed mlp", "linen", "nnx"): (0,),
    ("heads mlp", "linen", "nnx"): (0,),
    ("batch mlp", "linen", "maxtext"): (0,),
    ("embed embed", "linen", "nnx"): (None,),
}


@pytest.mark.parametrize(("case", "dimensions"), CAUSES.items(), ids=lambda v: str(v)[:30])
def test_two_dialects_differ_for_this_reason(case, dimensions):
    names, first, second = case
    rows = [("w", (8, 8), names), ("same", (8,), "mlp")]
    audit = sv.audit(rows, NAMES, ONE, dialect=first)
    found = audit.diff(second)
    assert found.labels == (first, second)
    (row,) = found
    assert (row.path, row.dimensions) == ("w", dimensions)
    assert found.alike == 1
    other = sv.audit(rows, NAMES, ONE, dialect=second)
    assert audit.diff(other).explain() == found.explain()
    assert len(audit.diff(first)) == 0


def test_two_dialects_of_paths_differ_for_this_reason():
    table = [("kernel", ("data",)), ("mlp/.*", ("model",)), (".*/bias", ())]
    audit = sv.audit([("mlp/kernel", (8,)), ("mlp/bias", (8,))], table, MESH, dialect="regex")
    found = audit.diff("keras").rows
    winners = [tuple(row.by_path.winner for row in one.rows) for one in found]
    assert winners == [(0, 1), (1, None)]
    assert audit.under("keras").rows[1].problem is not None


def test_every_difference_of_random_tables_has_a_cause():
    rng = random.Random(5)
    names = ("a", "b", "c", "d")
    for _ in range(200):
        table = [
            (rng.choice(names), rng.choice([None, "data", "model", "one", ("data", "one")]))
            for _ in range(rng.randint(1, 6))
        ]
        rows = [(f"w{i}", (8, 8), tuple(rng.sample(names, 2))) for i in range(3)]
        audits = {d: sv.audit(rows, table, ONE, dialect=d) for d in ("linen", "nnx", "maxtext")}
        for one in audits.values():
            for two in audits.values():
                found = one.diff(two)
                differ = [
                    a.path for a, b in zip(one.rows, two.rows, strict=True)
                    if not (a.spec and b.spec and a.spec.equivalent(b.spec))
                ]  # fmt: skip
                assert [row.path for row in found] == differ
                assert all(row.dimensions and row.why for row in found)
