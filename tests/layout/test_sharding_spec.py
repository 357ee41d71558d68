"""pmap's ShardingSpec: index tables of jax 0.4.13, a reading by hand, and the way to meshes."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardviz.base.errors import LayoutError, ShardvizError, SpecError
from shardviz.base.layout import lay_out
from shardviz.legacy import sharding_spec
from shardviz.legacy.equivalents import on_mesh
from shardviz.legacy.sharding_spec import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
    sharding_spec_layout,
)
from shardviz.legacy.typed import is_sharding_spec, parse_sharding_spec

TABLES = Path(__file__).parents[3] / "shared" / "data" / "sharding_spec_cases.json"
CASES, SEEDS = 3_000, 4


def part(entry: list[Any]) -> Any:
    return getattr(sharding_spec, entry[0])(*entry[1:])


def test_index_tables_of_jax_0_4_13() -> None:
    if not TABLES.exists():
        pytest.skip("passes without it: ../shared/data/sharding_spec_cases.json is not here")
    cases = json.loads(TABLES.read_text())["cases"]
    assert len(cases) >= 200
    for case in cases:
        spec = ShardingSpec(
            tuple(map(part, case["sharding"])), tuple(map(part, case["mesh_mapping"]))
        )
        wanted = [
            tuple(e if isinstance(e, int) else slice(*e) for e in row) for row in case["indices"]
        ]
        assert spec.indices(case["shape"]) == wanted, spec
        assert spec.num_devices == len(wanted)


def random_sharding_spec(rng: random.Random) -> tuple[ShardingSpec, tuple[int, ...]]:
    dims: list[Any] = []
    shape = []
    for _ in range(rng.randint(0, 5)):
        kind = rng.choice((NoSharding, Chunked, Chunked, Unstacked))
        if kind is NoSharding:
            dims.append(NoSharding())
            shape.append(rng.randint(0, 7))
        elif kind is Chunked:
            chunks = [rng.choice((1, 2, 2, 3)) for _ in range(rng.randint(1, 2))]
            dims.append(Chunked(chunks))
            shape.append(math.prod(chunks) * rng.randint(0, 3))
        else:
            shape.append(rng.randint(1, 3))
            dims.append(Unstacked(shape[-1]))
    axes = sum(len(d.chunks) if isinstance(d, Chunked) else isinstance(d, Unstacked) for d in dims)
    mapping: list[Any] = [ShardedAxis(i) for i in range(axes)]
    mapping += [Replicated(rng.randint(1, 3)) for _ in range(rng.randint(0, 2))]
    rng.shuffle(mapping)
    return ShardingSpec(dims, mapping), tuple(shape)


def held_elements(spec: ShardingSpec, array: np.ndarray) -> list[np.ndarray]:
    """What every device holds, by cutting up a real array, cut after cut; then device by device."""
    axes = itertools.count()
    cuts: list[tuple[int, int, str, int]] = []
    for number, dim in enumerate(spec.sharding):
        if isinstance(dim, Chunked):
            cuts += [(number, next(axes), "cut", chunks) for chunks in dim.chunks]
        elif isinstance(dim, Unstacked):
            cuts.append((number, next(axes), "pick", dim.size))
    sizes = {axis: size for _, axis, _, size in cuts}
    cuts.sort(key=lambda cut: -cut[0])  # from the back, so that picking shifts no number
    held: dict[tuple[int, ...], np.ndarray] = {(): array}
    for dim, _, how, size in cuts:
        held = {
            (*along, at): part
            for along, piece in held.items()
            for at, part in enumerate(
                np.split(piece, size, axis=dim)
                if how == "cut"
                else [np.take(piece, at, axis=dim) for at in range(size)]
            )
        }
    places = [
        range(sizes[m.axis]) if isinstance(m, ShardedAxis) else range(m.replicas)
        for m in spec.mesh_mapping
    ]
    order = [next(n for n, m in enumerate(spec.mesh_mapping)
                  if isinstance(m, ShardedAxis) and m.axis == axis)
             for _, axis, _, _ in cuts]  # fmt: skip
    return [held[tuple(place[n] for n in order)] for place in itertools.product(*places)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_indices_take_what_cutting_by_hand_takes(seed: int) -> None:
    rng = random.Random(f"sharding spec {seed}")
    for number in range(CASES // SEEDS):
        spec, shape = random_sharding_spec(rng)
        array = np.arange(math.prod(shape)).reshape(shape)
        wanted = held_elements(spec, array)
        got = [array[i] for i in spec.indices(shape)]
        assert len(got) == len(wanted) == spec.num_devices, number
        for mine, theirs in zip(got, wanted, strict=True):
            assert mine.shape == theirs.shape, (number, spec, shape)
            assert (mine == theirs).all(), (number, spec, shape)
        assert spec == parse_sharding_spec(str(spec)) == pickle.loads(pickle.dumps(spec))
        check_layout(spec, shape)


def check_layout(spec: ShardingSpec, shape: tuple[int, ...]) -> None:
    layout = sharding_spec_layout(spec, shape, "int8")
    one = [slice(i, i + 1) for i in range(max(shape, default=0) + 1)]
    wanted = [
        tuple(
            one[e] if isinstance(e, int) else slice(*e.indices(n)[:2])
            for e, n in zip(row, shape, strict=True)
        )
        for row in spec.indices(shape)
    ]
    assert [layout.box(i) for i in range(spec.num_devices)] == wanted
    mesh = spec.mesh
    if spec.unstacked:
        with pytest.raises(SpecError):
            on_mesh(spec, mesh)
        return
    named = on_mesh(spec, mesh)
    again = lay_out(shape, named, mesh, "int8")
    assert [again.box(i) for i in range(spec.num_devices)] == wanted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (NoSharding(), "NoSharding()"), (Chunked([2]), "Chunked(2)"), (Chunked([]), "Chunked()"),
        (Chunked([2, 4]), "Chunked(2,4)"), (Unstacked(4), "Unstacked(4)"),
        (ShardedAxis(0), "ShardedAxis(axis=0)"), (Replicated(2), "Replicated(replicas=2)"),
        (ShardingSpec((Chunked([2]), None), (ShardedAxis(0), Replicated(4))),
         "ShardingSpec((Chunked(2), NoSharding()), (ShardedAxis(axis=0), Replicated(replicas=4)))"),
    ],
)  # fmt: skip
def test_representation(value: Any, text: str) -> None:
    assert repr(value) == text


X, R = ShardedAxis(0), Replicated(2)


@pytest.mark.parametrize(
    ("sharding", "mapping"),
    [
        ((Chunked([2]),), ()), ((Chunked([2, 2]),), (X,)), ((Chunked([2]),), (X, X)),
        ((Chunked([2]),), (X, ShardedAxis(1))), ((NoSharding(),), (X,)), ((2,), ()),
        ((), (Chunked([2]),)), ("Chunked", ()), ((), None), ((None,) * 65, ()),
        ((), (R,) * 33), ((), (Replicated(1 << 20),) * 3),
    ],
)  # fmt: skip
def test_specs_that_are_none(sharding: Any, mapping: Any) -> None:
    with pytest.raises(SpecError):
        ShardingSpec(sharding, mapping)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Chunked([0]), lambda: Chunked([2.5]), lambda: Chunked("22"),
        lambda: Chunked([10**5000]), lambda: Unstacked(0), lambda: Unstacked("4"),
        lambda: ShardedAxis(-1), lambda: ShardedAxis("x"), lambda: Replicated(0),
    ],
)  # fmt: skip
def test_parts_that_are_none(make: Any) -> None:
    with pytest.raises(SpecError):
        make()


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (ShardingSpec((Chunked([2, 2]),), (X, ShardedAxis(1))), (5,)),
        (ShardingSpec((Chunked([4]),), (X,)), (2,)),
        (ShardingSpec((Unstacked(2),), (X,)), (4,)),
        (ShardingSpec((Unstacked(2),), (X,)), (0,)),
        (ShardingSpec((Chunked([2]),), (X,)), (2, 2)),
        (ShardingSpec((), ()), (2,)),
    ],
)
def test_shapes_that_do_not_fit(spec: ShardingSpec, shape: tuple[int, ...]) -> None:
    for asked in (spec.indices, spec.check, lambda s: sharding_spec_layout(spec, s)):
        with pytest.raises(LayoutError):
            asked(shape)


@pytest.mark.parametrize(
    "text",
    [
        "ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))",
        " legacy.ShardingSpec( [legacy.Chunked(2), None],"
        " [legacy.ShardedAxis(axis=0), legacy.Replicated(4),], )",
        "pxla.ShardingSpec(sharding=(Chunked(chunks=[2]), NoSharding()),\n"
        "  mesh_mapping=(ShardedAxis(axis=0), Replicated(replicas=4)))",
        "ShardingSpec(mesh_mapping=(ShardedAxis(0), Replicated(4)), sharding=(Chunked(2), None))",
    ],
)
def test_typed_specs(text: str) -> None:
    wanted = ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))
    assert is_sharding_spec(text)
    assert parse_sharding_spec(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "", "P('x')", "ShardingSpec(", "ShardingSpec(())", "ShardingSpec((), ()) x",
        "ShardingSpec(sharding=(), sharding=())", "ShardingSpec(shape=(), x=())",
        "ShardingSpec((Chunk([2]),), ())", "ShardingSpec((2,), ())",
        "ShardingSpec((Chunked([-2]),), ())", "ShardingSpec((Chunked([1e3]),), ())",
        "ShardingSpec((Chunked([" + "9" * 400 + "]),), ())",
        "ShardingSpec((Chunked([__import__('os')]),), ())",
        "ShardingSpec((NoSharding(),), (NoSharding(),))", "ShardingSpec(" + "(" * 3000,
    ],
)  # fmt: skip
def test_typed_specs_that_are_none(text: Any) -> None:
    with pytest.raises(ShardvizError):
        parse_sharding_spec(text)


def test_layout_over_given_devices() -> None:
    spec = ShardingSpec((Unstacked(2), None), (Replicated(2), X))
    layout = sharding_spec_layout(spec, (2, 3), device_ids=[7, 5, 3, 1])
    assert [layout.box(i)[0].start for i in (7, 5, 3, 1)] == [0, 1, 0, 1]
    assert layout.replicas == 2
    with pytest.raises(LayoutError):
        sharding_spec_layout(spec, (2, 3), device_ids=[1, 2, 3])


def test_layout_takes_a_sharding_spec_parts_and_typed_text() -> None:
    import shardviz as sv
    import shardviz.legacy as legacy

    cut, whole = legacy.Chunked([2]), legacy.NoSharding()
    spec = legacy.ShardingSpec((cut, whole), (legacy.Replicated(2), legacy.ShardedAxis(0)))
    wanted = sharding_spec_layout(spec, (8, 3)).indices()
    assert sv.layout((8, 3), spec).indices() == wanted
    assert sv.layout("8, 3", str(spec), dtype="int8").indices() == wanted
    over = sv.layout((8, 3), spec, sv.mesh("x=4", device_ids=[3, 2, 1, 0]))
    assert over.indices() == {3 - i: box for i, box in wanted.items()}
    assert sv.layout((8, 3), legacy.Parts(4, 1)).shard_shape == (2, 3)
    assert "devices: replica0=2 × axis0=2" in sv.text(spec)
    with pytest.raises(LayoutError):
        sv.layout((8, 3), spec, "x=2")
