"""The time of layouts next to JAX's, of rules next to flax's, and of audits. No compiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh, logical_to_mesh_axes

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.requests import requests
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rule_uses import rule_summary
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from tests.bench.timing import Table, best, each, side_by_side
from tests.layout.fakes import jax_mesh

MESHES = {512: (32, 16), 4096: (64, 64), 65_536: (256, 256), 1 << 20: (1024, 1024)}
FOLDED = {512: (8, 8, 8), 4096: (16, 16, 16), 65_536: (64, 32, 32), 1 << 20: (128, 128, 64)}
TARGETS = {512: 5, 4096: 40, 65_536: 400}
#: name, spec, meshes, and whether the targets apply
CASES = (
    ("a shard each", "x, y", MESHES, True),
    ("one dimension", "(y, x)", MESHES, True),
    # JAX makes one slice for all replicas; a Layout writes the bounds of every device.
    ("replicas", "x, y", FOLDED, False),
)


def mesh_of(sizes: tuple[int, ...]) -> MeshSpec:
    """A mesh of axes x, y, z of these sizes."""
    return make_mesh(dict(zip("xyz", sizes, strict=False)))


def shapes(mesh: MeshSpec, spec: Spec) -> Callable[[int], tuple[int, ...]]:
    """Shapes never used before, so that no cache has them."""
    fresh = itertools.count(1)

    def next_shape(_: int) -> tuple[int, ...]:
        number = next(fresh)
        return tuple(
            number * int(np.prod([mesh.shape[a] for a in dim], dtype=int)) for dim in spec.dims
        )

    return next_shape


def cold_layouts(table: Table) -> None:
    """The bounds of the shards of all devices, for a new shape."""
    for devices, target in TARGETS.items():
        for name, written, meshes, bound in CASES:
            ours, theirs = cold_layout(mesh_of(meshes[devices]), Spec.parse(written))
            what = f"shards of {devices:,} devices, {name}, cold"
            table.at_least(what, target if bound else None, ours, theirs)


def cold_layout(mesh: MeshSpec, spec: Spec) -> tuple[float, float]:
    """Our seconds and JAX's."""
    real, theirs_spec, shape = jax_mesh(mesh), spec.to_jax(), shapes(mesh, spec)

    def by_jax(size: tuple[int, ...]) -> Any:
        return jax.sharding.NamedSharding(real, theirs_spec).devices_indices_map(size)

    def by_us(size: tuple[int, ...]) -> Any:
        layout = lay_out(size, spec, mesh)
        return layout.starts, layout.stops

    rounds, batch = (7, 1) if mesh.size > 10_000 else (9, 20)
    return side_by_side(
        lambda: each(shape, by_us, 9, 20), lambda: each(shape, by_jax, rounds, batch), rounds=3
    )


def parts_of_layouts(table: Table) -> None:
    """The shard of one device, cold."""
    spec = Spec.parse("(y, x), None, z")
    for devices, sizes in FOLDED.items():
        mesh = mesh_of(sizes)
        shape = shapes(mesh, spec)
        last = devices - 1
        box = each(shape, lambda s, m=mesh, n=last: lay_out(s, spec, m).box(n), 20, 50)
        table.within(f"one shard of {devices:,} devices", 50e-6, box)


def rules_and_names(count: int) -> tuple[tuple, tuple[str, ...]]:
    """A table of `count` rules with repeats and shared axes, and the names of one array."""
    pairs = tuple((f"name{i % 7}", f"axis{i % 9}") for i in range(count))
    return pairs, ("name1", "name3", "name5", "name6")


def resolving(table: Table) -> None:
    """The time to a PartitionSpec, against flax."""
    for count, target in ((10, 1.5), (100, 3.0)):
        pairs, names = rules_and_names(count)
        rules = Rules.of(pairs)

        def ours(rules: Any = rules, names: Any = names) -> Any:
            for _ in range(200):
                resolve(names, rules).partition_spec  # noqa: B018  computed on access

        def flax(pairs: Any = pairs, names: Any = names) -> Any:
            for _ in range(200):
                logical_to_mesh_axes(names, pairs)

        assert resolve(names, rules).partition_spec == logical_to_mesh_axes(names, pairs)
        times = side_by_side(
            lambda run=ours: best(run, 0.15) / 200, lambda run=flax: best(run, 0.15) / 200
        )
        table.at_least(f"a PartitionSpec from {count} rules", target, *times)


def auditing(table: Table) -> None:
    """An audit of 10,000 arrays, against flax's specs of them; and the summary of rules."""
    pairs, _ = rules_and_names(76)
    rng = np.random.default_rng(0)
    kinds = [
        (tuple(f"name{i}" for i in rng.permutation(7)[:rank]), (8,) * rank)
        for rank in (1, 2, 2, 3, 3, 4) for _ in range(8)
    ]  # fmt: skip
    rows = [
        (f"layers/{i}/kernel", shape, names)
        for i, (names, shape) in zip(range(10_000), itertools.cycle(kinds), strict=False)
    ]
    mesh = make_mesh({f"axis{i}": 2 for i in range(9)})
    by_flax = best(lambda: [logical_to_mesh_axes(n, pairs) for _, _, n in rows], 1, 2)
    ours = best(lambda: audit(rows, Rules.of(pairs), mesh).bytes_per_device, 1, 3)
    table.at_least("10,000 arrays audited, against flax's specs of them", 2, ours, by_flax)

    rules = Rules.of(pairs)
    arrays = [ArraySpec(f"w{i}", shape, names) for i, (names, shape) in enumerate(kinds[:10])]
    found = requests(arrays, mesh, rules)
    table.within("what 76 rules did for 10 arrays", 2e-3, best(lambda: rule_summary(found, rules)))


def auditing_a_model(table: Table) -> None:
    """An audit of 10,000 boxes of linen and 100 rules, against `flax.linen.logical_to_mesh`.

    flax gets the names alone, and nothing of it can be explained. An audit reads every array, and
    has the layout and the spec of each kind of array; rows and explanations are made when somebody
    looks at them, and the second row of the table has the time of all rows.
    """
    rng = np.random.default_rng(0)
    axes = ("data", "fsdp", "tensor", "expert", "stage")
    targets = (None, *axes, ("data", "fsdp"), ("tensor", "expert"))
    pairs = [(f"name{rng.integers(60)}", targets[rng.integers(8)]) for _ in range(100)]
    mesh = make_mesh(dict.fromkeys(axes, 2))
    kinds = [
        tuple(f"name{i}" for i in rng.permutation(60)[: 1 + n % 4]) for n in range(60)
    ]  # fmt: skip
    tree: dict[str, dict[str, Any]] = {}
    for number, names in zip(range(10_000), itertools.cycle(kinds), strict=False):
        shape = jax.ShapeDtypeStruct((256,) * len(names), np.float32)
        box = nn.LogicallyPartitioned(shape, names)
        tree.setdefault(f"block_{number // 8}", {})[f"w{number % 8}"] = box
    specs = nn.get_partition_spec(tree)

    def audited() -> Any:
        return audit(tree, Rules.of(pairs), mesh)

    def read() -> Any:
        return [row.spec for row in audited().rows]

    by_flax = jax.tree.leaves(
        logical_to_mesh(specs, pairs),
        is_leaf=lambda s: isinstance(s, jax.sharding.PartitionSpec),
    )
    assert {r.path: r.resolution.partition_spec for r in audited().rows} == {
        "/".join(str(k.key) for k in path): spec
        for (path, _), spec in zip(
            jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda b: hasattr(b, "names")),
            by_flax, strict=True,
        )
    }  # fmt: skip
    runs: tuple[tuple[str, int | None, Callable[[], Any]], ...] = (
        ("10,000 boxes audited by 100 rules, against flax's specs", 10,
         lambda: audited().bytes_per_device),
        ("10,000 boxes audited, and every row read", None, read),
    )  # fmt: skip
    for what, target, run in runs:
        ours, theirs = side_by_side(
            lambda run=run: best(run, 0.3, 3),
            lambda: best(lambda: logical_to_mesh(specs, pairs), 0.3, 2),
        )
        table.at_least(what, target, ours, theirs)


def main() -> int:
    """Prints the table; how many targets were missed."""
    table = Table()
    for measure in (
        cold_layouts,
        parts_of_layouts,
        resolving,
        auditing,
        auditing_a_model,
    ):
        measure(table)
    return table.missed
