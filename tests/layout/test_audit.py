"""audit(): what comes of many arrays and one table, in numbers and in words."""

from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.audit import Audit, Unmatched, audit
from shardviz.axis_rules.remedies import RenameLine
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.bridge import adopt_mesh

MESH = make_mesh(data=4, model=2, expert=1)
RULES = Rules.parse("""
    batch -> data
    mlp -> (model, expert)
    embed -> model
    embed -> None
    embed -> data
    vocab -> tensor
    kv -> (data, model)
    kv -> data
""")
LAYER = {"wi": ((512, 2048), "embed mlp"), "wo": ((2048, 512), "mlp embed")}
MODEL = {
    "layers": [LAYER, LAYER],
    "emb": ((1000, 512), "vocab embed", "bf16"),
    "norm": ((512,), "embde"),
    "big": ((512, 1024), None),
    "head": ((512, 1001), "embed kv"),
}


@pytest.fixture(scope="module")
def found() -> Audit:
    return audit(MODEL, RULES, MESH)


def test_bytes_are_added_up(found):
    a_layer = 2 * 512 * 2048 * 4 // 2
    assert found.bytes_per_device == 2 * a_layer + 512 * 4 + 512 * 1024 * 4
    assert found.bytes == 4 * 512 * 2048 * 4 + 1000 * 512 * 2 + 512 * 4 + 512 * 1024 * 4 + (
        512 * 1001 * 4
    )  # fmt: skip


def test_findings(found):
    assert list(found.problems) == ["emb", "head"]
    assert found.unmatched == (Unmatched("embde", "embed", ("norm",)),)
    assert [r.array.name for r in found.replicated] == ["big"], "norm is small"
    assert [u.index for u in found.unused_rules] == [0, 4, 6]


def test_a_spec_of_its_own_wins_and_the_rules_owe_it_nothing():
    own = ArraySpec("own", (8, 4), "batch mlp", spec=Spec.parse("None, data"))
    row = audit([own], RULES, MESH).rows[0]
    assert row.spec_wins
    assert row.layout.shard_shape == (8, 1)
    alone = audit([own], RULES, MESH)
    assert alone.rule_uses[0].never
    assert alone.unmatched == ()


def test_nnx_takes_unmatched_names_for_mesh_axes():
    rows = [("w", (8, 8), "data mlp"), ("v", (8, 8), "nope mlp")]
    found = audit(rows, [("mlp", "model")], MESH, dialect="nnx")
    assert str(found.rows[0].spec) == "P('data', 'model')"
    assert [u.name for u in found.unmatched] == ["nope"], "the mesh has an axis 'data'"
    assert list(found.problems) == ["v"]


def shape(*sizes: int, dtype: str = "float32", **more: object) -> SimpleNamespace:
    return SimpleNamespace(shape=sizes, dtype=dtype, **more)


def test_what_nothing_is_said_of_is_unknown_and_said_to_be():
    tree = {"w": shape(512, 2048), "b": shape(2048), "count": shape()}
    found = audit(tree, [], MESH)
    assert [(r.path, r.spec, r.bytes_per_device, r.replicas) for r in found.rows] == [
        ("w", None, None, None),
        ("b", None, None, None),
        ("count", Spec(()), 4, 8),  # which has nothing to split
    ]
    assert found.bytes_per_device == 4
    assert found.replicated == ()
    assert found.problems == {}
    assert [row.path for row in found.unknown] == ["w", "b"]
    assert (found.uncounted.arrays, found.uncounted.bytes) == (2, 4 * 2048 * 513)


def test_a_function_of_names_is_asked_last():
    asked = []

    def names(path, array):
        asked.append((path, array.shape))
        return {"a": "embed mlp", "b": (None, "mlp"), "d": "data", "e": Spec.of("data")}.get(path)

    named = NamedArray(shape(8, 4), "embed mlp")
    tree = {"a": shape(8, 4), "b": shape(8, 4), "c": shape(8, 4), "d": shape(8), "e": shape(8),
            "own": named, "row": ((8, 4), None)}  # fmt: skip
    found = audit(tree, [("mlp", "model")], MESH, names=names)
    assert asked == [("a", (8, 4)), ("b", (8, 4)), ("c", (8, 4)), ("d", (8,)), ("e", (8,))]
    specs = [None if r.spec is None else str(r.spec) for r in found.rows]
    split = "P(None, 'model')"
    assert specs == [split, split, None, "P('data')", "P('data')", split, "P(None, None)"]
    with pytest.raises(ShardvizError, match=r"names\('a', …\) must return names .* got 3"):
        audit({"a": shape(8, 4)}, [], MESH, names=lambda path, array: 3)


class NamedArray:
    """As haliax has it."""

    __module__ = "haliax.core"

    def __init__(self, array, names):
        self.array = array
        self.axes = tuple(SimpleNamespace(name=n) for n in names.split())


def test_names_are_mesh_axes_only_where_no_rule_is_for_them(eight_devices):
    box = nn.Partitioned(shape(8, 4), ("data", "model"))
    for rules, spec in (
        ([], "P('data', 'model')"),
        ([("embed", "data")], "P('data', 'model')"),
        ([("data", None), ("model", "data")], "P(None, 'data')"),
    ):
        assert str(audit({"w": box}, rules, MESH).rows[0].spec) == spec
    logical = nn.LogicallyPartitioned(shape(8, 4), ("data", "model"))
    assert str(audit({"w": logical}, [], MESH).rows[0].spec) == "P(None, None)"


def test_arrays_without_names_beside_others_with_are_not_split_as_flax_reads_them():
    tree = {"w": nn.Partitioned(shape(8, 4), ("data", None)), "b": shape(4)}
    found = audit(tree, [], MESH)
    assert [str(r.spec) for r in found.rows] == ["P('data', None)", "P(None)"]


def test_the_mesh_in_context_counts_if_no_array_brings_one(eight_devices):
    reverse = Mesh(np.reshape(eight_devices[::-1], (4, 2)), ("data", "model"))
    rows = [("w", (512, 2048), "embed mlp")]
    with jax.set_mesh(reverse):
        found = sv.audit(rows, [("mlp", "model")])
        assert found.mesh == adopt_mesh(reverse)
        assert found.rows[0].layout.device_ids[0] == eight_devices[-1].id
        assert sv.audit(rows, [], "data=2").mesh.size == 2
        # An array's own mesh comes first, with the devices of the one in context.
        other = Mesh(np.array(eight_devices[:2]), ("x",))
        bare = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(other, P("x")))
        assert sv.audit([bare]).mesh == adopt_mesh(other)
        like = NamedSharding(reverse.abstract_mesh, P("model"))
        bare = jax.ShapeDtypeStruct((8,), "float32", sharding=like)
        assert sv.audit([bare]).mesh.device_ids[0, 0] == eight_devices[-1].id
    with pytest.raises(ShardvizError):
        sv.audit(rows, [("mlp", "model")])


def test_replicated_on_a_mesh_without_devices_is_replicated():
    mesh = jax.sharding.AbstractMesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    w = jax.ShapeDtypeStruct((512, 512), "float32", sharding=NamedSharding(mesh, P()))
    found = sv.audit({"w": w})
    assert (found.unknown, found.rows[0].replicas) == ((), 8)
    assert found.bytes_per_device == 1 << 20
    assert [row.path for row in found.replicated] == ["w"]


def test_live_arrays_count_where_they_are(eight_devices):
    mesh = Mesh(np.reshape(eight_devices, (4, 2)), ("data", "model"))
    split = jax.device_put(np.zeros((8, 4), np.float32), NamedSharding(mesh, P("data")))
    alone = jax.device_put(np.zeros((16,), np.float32), eight_devices[3])
    every = jax.device_put(np.zeros((2, 2), np.float32), NamedSharding(mesh, P()))
    boxed = nn.Partitioned(split, (None, "model"))
    found = audit({"split": split, "alone": alone, "every": every, "boxed": boxed})
    assert found.mesh == adopt_mesh(mesh), "the arrays bring the mesh"
    assert [(str(r.spec), r.bytes_per_device) for r in found.rows] == [
        ("P('data')", 32), ("None", 64), ("P()", 16), ("P('data')", 32),
    ]  # fmt: skip
    assert found.bytes_per_device == 32 + 64 + 16 + 32, "on device 3"
    assert found.rows[3].names == (None, "model")


def test_arrays_on_fewer_devices_than_the_mesh_are_named_with_their_devices(eight_devices):
    mesh = Mesh(np.reshape(eight_devices, (4, 2)), ("data", "model"))
    w = jax.device_put(np.zeros((64, 256), np.float32), NamedSharding(mesh, P(None, "model")))
    adam = jax.tree.map(lambda x: jax.device_put(x, eight_devices[3]), optax.adam(1).init({"w": w}))
    found = sv.audit({"params": {"w": w}, "opt": adam})
    number = eight_devices[3].id
    assert "each device:" not in found.explain()
    assert "is replicated" not in found.explain()
    assert f": up to 160 KiB on a device (device {number})." in found.explain()
    assert str(found).endswith(f": up to 160 KiB on a device (device {number})")
    assert f"mu of 'params/w' is on device {number} while the" in found.explain()
    assert f": +32 KiB on device {number}." in found.explain()
    assert found.total.waste == 24 << 10, "of the parameter alone"
    # Devices that hold as much, to the digits shown, are not distinguished.
    counter = sv.audit({"params": {"w": w}, "opt": {"count": adam[0].count}})
    assert str(counter).endswith(": 32 KiB on each device")


def test_a_wrong_tree_is_refused_and_wrong_names_are_the_problem_of_their_leaf():
    box = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((8, 4), "float32"), ("a", "b", "c"))
    assert list(sv.audit({"a": {"w": box, "b": shape(4)}}, RULES, MESH).problems) == ["a/w"]
    for wrong in ({1}, "x", SimpleNamespace(shape=(8,), dtype="float99")):
        with pytest.raises(ShardvizError, match=r"^'a/w': "):
            sv.audit({"a": {"w": wrong}}, RULES, MESH)


def test_a_target_gives_the_memory_to_compare_with():
    rows = [("w", (1 << 20, 1 << 13), "batch mlp")]
    found = sv.audit(rows, RULES, MESH, target="tpu:v5e:2x4")
    assert (found.capacity, found.target, found.fits) == (16 << 30, "TPU v5e 2×4", True)
    assert (found.fit.code, found.fit.share) == ("fits", 0.25)
    assert str(found.fit) in found.explain().splitlines()
    whole = sv.audit(rows, [], MESH, target=sv.topology("tpu:v5e:2x4"))
    assert (whole.fits, whole.bytes_per_device) == (False, 32 << 30)
    assert str(whole.fit) in whole.explain()
    assert sv.audit(rows, RULES, MESH).fits is None
    with pytest.raises(ShardvizError):
        sv.audit(rows, RULES, MESH, target="cpu:8")


def test_whether_arrays_fit_is_not_known_where_one_could_not_be_counted():
    odd = [("w", (64, 64), "batch mlp"), ("odd", (3, 64), "batch mlp")]
    found = sv.audit(odd, RULES, MESH, target="tpu:v5e:2x4")
    assert (found.fits, len(found.problems)) == (None, 1)
    assert (found.fit.code, found.uncounted.arrays) == ("unknown", 1)
    whole = sv.audit([*odd, ("w2", (1 << 20, 1 << 13), "_ _")], [], MESH, target="tpu:v5e:2x4")
    assert whole.fits is False


def test_groups_say_what_replication_costs():
    tree = {"params": {"w": ((8, 4), "batch mlp")}, "grads": {"w": ((8, 4), None)}}
    found = sv.audit(tree, RULES, MESH)
    assert [astuple(g) for g in (*found.groups, found.total)] == [
        ("parameters", 1, 128, 16, 1.0, 0, 0),
        ("gradients", 1, 128, 128, 8.0, 112, 0),
        ("total", 2, 256, 144, 4.5, 112, 0),
    ]
    assert found.rows[1].partner == "params/w"


def test_arrays_without_logical_names_are_named_with_a_remedy():
    rows = [
        *[(f"layers/{i}/wi", (1024, 4096), "embed mlp") for i in range(2)],
        *[(f"layers/{i}/wo", (4096, 1024), None) for i in range(2)],
        ("scale", (1024,), (None,)),
    ]
    table = [("batch", ("data", "model")), ("mlp", ("model", "expert")), ("embed", "data")]
    found = sv.audit(rows, table, MESH)
    assert [row.path for row in found.unnamed] == ["layers/0/wo", "layers/1/wo", "scale"]
    first = sv.remedies(found["1/wo"], "split")[0]
    # `batch` would save more, and no weight has that name.
    assert (first.action.new, first.alike) == ("embed", ("layers/0/wo",))
    assert first.bytes_saved == 2 * found["1/wo"].array.bytes * 3 // 4
    assert str(sv.remedies(found["0/wo"], "split")[0]) in found.explain()
    assert str(first) in found.why("1/wo")
    # Names of other arrays are missing only if names decide anything.
    assert sv.audit(rows[2:4], (), MESH).unnamed == ()
    assert sv.resolve((None, None), table, mesh=MESH, shape=(8, 8)).first_remedy() is not None
    assert sv.resolve("embed _", table, mesh=MESH, shape=(8, 8)).first_remedy() is None


def test_without_rules_no_rule_is_blamed(eight_devices):
    mesh = Mesh(np.reshape(eight_devices, (4, 2)), ("data", "model"))
    w = nn.LogicallyPartitioned(jax.device_put(np.ones((8, 8)), eight_devices[1]), ("embed", "mlp"))
    bias = jax.device_put(np.ones(8), NamedSharding(mesh, P()))
    words = sv.audit({"w": w, "bias": bias}, mesh=mesh).explain()
    assert "No rules were given, so the logical names 'embed' and 'mlp' (in w) split no" in words
    assert "1 array has no logical names: bias" in words
    for blame in ("No rule names", "no rule splits", "the table"):
        assert blame not in words
    assert "no rule" not in sv.audit({"w": w, "bias": bias}, mesh=mesh).why("bias")


def test_one_idle_rule_never_fires_and_two_never_fire():
    rows, idle = [("w", (8, 8), "embed mlp")], [("heads", "data"), ("vocab", "data")]
    table = [("embed", "data"), ("mlp", "model")]
    unused = "no array has a dimension named"
    for rules, words in (
        ([*table, idle[0]], f"1 of 3 rules never fires: {unused} 'heads'."),
        ([*table, *idle], f"2 of 4 rules never fire: {unused} 'heads' or 'vocab'."),
        (idle[:1], f"The only rule never fires: {unused} 'heads'."),
        (
            [*table, idle[0], ("mlp", None)],
            f"2 of 4 rules never fire. N{unused[1:]} 'heads'. The other rule:\n  rule 4 (mlp",
        ),
    ):
        assert words in sv.audit(rows, rules, MESH).explain()


def test_copies_are_described_with_the_bytes_that_splitting_saves():
    (one,) = sv.audit([("w", (8, 4), None)], [], "data=4").copies_by_axis
    assert str(one) == (
        "data does not split w, so there are 4 copies; splitting it would save 96 B per device"
    )
    rows = [("b", (8, 8), None), ("l/0/w", (8, 4), None), ("l/1/w", (8, 4), None)]
    (several,) = sv.audit(rows, [], "data=4").copies_by_axis
    assert str(several) == (
        "data does not split 3 arrays, so there are 4 copies; splitting them would save 384 B"
        " per device: 192 B for b and 2 × 96 B for l/{0..1}/w"
    )


def test_a_misspelt_rule_is_corrected_and_not_spread():
    rows = [("w", (8, 8), "embed mlp"), ("bias", (8,), None)]
    found = sv.audit(rows, [("embed", None), ("mpl", "model")], MESH)
    assert isinstance(sv.remedies(found["w"], "split")[0].action, RenameLine)
    assert not sv.remedies(found["bias"], "split")
    assert "A rule names 'mpl', which no array has: one of the two" in found.explain()
    # A rule for a name that other arrays have is not misspelt.
    named = sv.audit([*rows, ("v", (8,), "mpl")], [("mpl", "model")], MESH)
    assert sv.remedies(named["bias"], "split")[0].action.new == "mpl"
    assert "No rule names 'mlp' (in w). Did you mean 'mpl'?" in named.explain()


def test_bare_arrays_beside_flax_boxes_lack_names():
    bare = jax.ShapeDtypeStruct((8, 8), "float32")
    boxed = nn.LogicallyPartitioned(bare, ("embed", "mlp"))
    found = sv.audit({"w": boxed, "v": bare}, [("embed", "data")], MESH)
    assert [row.path for row in found.unnamed] == ["v"]
    assert found["v"].replicas == 8


def test_rows_by_the_ends_of_their_paths():
    found = sv.audit(
        {"a": LAYER, "b": LAYER, "wi": ((8,), None), "c": {"x": ((8,), None)}}, (), MESH
    )
    assert [found[path].path for path in ("a/wi", "wi", "x", "c/x")] == ["a/wi", "wi", "c/x", "c/x"]
    for path, candidates in {"wo": ("a/wo", "b/wo"), "b/w": (), "i": ()}.items():
        with pytest.raises(ShardvizError) as error:
            found[path]
        assert all(candidate in str(error.value) for candidate in candidates)


def test_copies_by_axis():
    rows = [
        sv.array("wq", (64, 64), spec="data"),
        sv.array("wi", (4, 64, 64), spec="model, data"),
        sv.array("host", (64, 64), spec="data").replace(memory_kind="pinned_host"),
        sv.array("step", ()),
    ]
    (model,) = sv.audit(rows, (), MESH).copies_by_axis
    assert (model.axis, model.copies, [row.path for row in model.rows]) == ("model", 2, ["wq"])
    assert model.bytes_per_device == 64 * 64 * 4 // 4 // 2
    data = sv.audit([sv.array("x", (8, 8))], (), "data=4, model=2").copies_by_axis
    assert [(fact.axis, fact.bytes_per_device) for fact in data] == [("data", 192), ("model", 128)]
    assert all(
        str(fact) in sv.audit([sv.array("x", (8, 8))], (), "data=4, model=2").explain()
        for fact in data
    )


def test_live_arrays_without_names_and_arrays_off_the_mesh_are_said(eight_devices):
    mesh = Mesh(np.reshape(eight_devices, (4, 2)), ("data", "model"))
    split = jax.device_put(np.zeros((8, 8), "float32"), NamedSharding(mesh, P("data")))
    bare = jax.device_put(np.zeros((8, 8), "float32"), NamedSharding(mesh, P()))
    alone = jax.device_put(np.zeros((8, 8), "float32"), eight_devices[1])
    tree = {
        "w": nn.LogicallyPartitioned(split, ("embed", None)),
        "bare": bare,
        "alone": nn.LogicallyPartitioned(alone, ("embed", None)),
    }
    found = sv.audit(tree, [("embed", "data")], adopt_mesh(mesh))
    assert [row.path for row in found.unnamed] == ["bare"]
    assert found.unplaced == ("alone",)
    assert sv.remedies(found["bare"], "split")[0].action.new == "embed"
    # What somebody wrote is no lack of names.
    written = sv.audit([sv.array("w", (8, 8), spec="")], [("embed", "data")], adopt_mesh(mesh))
    assert written.unnamed == ()
    by_path = sv.audit({"alone": alone}, [("alone", ("data",))], adopt_mesh(mesh), dialect="regex")
    assert by_path.unplaced == ("alone",)


def test_an_array_is_found_by_a_path_that_its_row_has_only_the_end_of():
    folder = "/".join(["a_folder_of_many"] * 9)
    paths = [f"{folder}/{name}" for name in ("wi", "wo")]
    found = audit([(path, (8, 8), "embed mlp") for path in paths], "mlp -> model", "model=2")
    assert all(row.path not in paths for row in found.rows)
    assert [found[path].path[-2:] for path in paths] == ["wi", "wo"]
    alike = audit([(f"{n}/{folder}", (8, 8), "embed mlp") for n in "ab"], "", "model=2")
    with pytest.raises(ShardvizError, match="2 paths end with"):
        alike[f"b/{folder}"]
