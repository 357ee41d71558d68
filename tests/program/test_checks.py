"""Checks: each passes where it should, and fails where something is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.layout import lay_out
from shardviz.base.partition_spec import Spec
from shardviz.compiled import checks as findings
from shardviz.programs.backend.trace import Output
from shardviz.runs.backend.checks import output_layouts, shards_check, spec_checks
from shardviz.runs.backend.rounding import Comparison, tolerance
from shardviz.runs.backend.targets import choose, device_mesh
from tests.program.helpers import MESH


def on_mesh(values, *spec):
    return jax.device_put(values, NamedSharding(device_mesh(MESH, choose("cpu", 8)), P(*spec)))


def ids():
    return {d: d.id for d in jax.devices("cpu")[:8]}


def boxes(actual, predicted):
    array = on_mesh(np.zeros((8, 8), np.float32), *actual)
    return shards_check("x", lay_out((8, 8), predicted, MESH), array, ids())


@pytest.mark.parametrize("spec", [P(), P("a"), P("b", "a"), P(None, ("b", "a"))], ids=str)
def test_boxes_that_are_right_pass(spec):
    check = boxes(spec, Spec.of(*spec))
    assert check.ok
    assert check.name == "x: indices of 8 shards"


@pytest.mark.parametrize(
    ("actual", "predicted", "device", "held"),
    [
        (P("a"), Spec.of(None, "a"), 0, [(0, 2), (0, 8)]),
        (P(("a", "b")), Spec.of(("b", "a")), 1, [(1, 2), (0, 8)]),
        (P(), Spec.of("b"), 0, [(0, 8), (0, 8)]),
    ],
    ids=["other dimension", "other order", "not split"],
)
def test_boxes_that_are_wrong_fail_at_the_first_difference(actual, predicted, device, held):
    check = boxes(actual, predicted)
    assert (check.ok, type(check.finding)) == (False, findings.ShardElsewhere)
    assert (check.finding.device, [*check.finding.bounds]) == (device, held)


def test_a_shard_outside_the_mesh_fails():
    array = on_mesh(np.zeros(8, np.float32))
    few = dict(list(ids().items())[:4])
    check = shards_check("x", lay_out((8,), Spec(), MESH), array, few)
    assert (check.ok, type(check.finding)) == (False, findings.ShardOutsideMesh)


def test_an_array_on_some_of_the_devices_fails():
    array = jax.device_put(np.zeros(8, np.float32), jax.devices("cpu")[0])
    check = shards_check("x", lay_out((8,), Spec(), MESH), array, ids())
    assert check.ok is False
    assert check.finding == findings.FewerShards(shards=1, devices=8)


def test_specs_are_held_against_layouts():
    other = lay_out((8, 8), Spec.of("b"), MESH)
    same = lay_out((8, 8), Spec.of("a", None), MESH)
    output = Output("y", (8, 8), np.dtype("float32"))
    for layouts, ok in (({"y": same}, True), ({"y": other}, False), ({}, False)):
        (check,) = spec_checks([output], [Spec.of("a")], MESH, layouts)
        assert check.ok is ok


def compared(values, reference, inputs=("float32",), platform="cpu", spec=()):
    values, reference = jnp.asarray(values), jnp.asarray(reference)
    comparison = Comparison("y", on_mesh(values, *spec), reference, inputs, platform)
    # Rounding moves nothing, so any difference beyond the tolerance fails.
    if not comparison.decided:
        comparison.add(reference)
    return comparison.check()


NAN, INF = float("nan"), float("inf")
GOOD = {
    "equal": ([1.0, 2.0], [1.0, 2.0]),
    "rounding": ([1.0, 1e-6], [1.00001, 0.0]),
    "both NaN": ([NAN, 1.0], [NAN, 1.0]),
    "both infinite": ([INF, -INF], [INF, -INF]),
    "nothing": (np.zeros(0, np.float32), np.zeros(0, np.float32)),
    "scalars": (3.0, 3.0),
    "integers": ([1, 2], [1, 2]),
    "booleans": ([True, False], [True, False]),
    "complex": ([1 + 2j], [1.00001 + 2j]),
}
BAD = {
    "far apart": ([1.0, 2.0], [1.0, 2.1], findings.ValuesApart, {"unlike": 0}),
    "summed too often": ([8.0], [1.0], findings.ValuesApart, {"worst": 7.0, "allowed": 1e-4}),
    "NaN in one": ([NAN, 1.0], [0.0, 1.0], findings.ValuesApart, {"unlike": 1}),
    "infinite the other way": ([INF], [-INF], findings.ValuesApart, {"unlike": 1}),
    "one integer": ([1, 2, 3], [1, 2, 4], findings.ElementsDiffer, {"count": 1}),
    "one boolean": ([True], [False], findings.ElementsDiffer, {"count": 1}),
    "another shape": ([1.0], [1.0, 2.0], findings.OtherType, {}),
    "another type": ([1.0], [1], findings.OtherType, {"reference": "int32[1]"}),
    "imaginary": ([1 + 2j], [1 + 3j], findings.ValuesApart, {"worst": 1.0}),
}


@pytest.mark.parametrize(("values", "reference"), GOOD.values(), ids=GOOD)
def test_results_that_agree_pass(values, reference):
    check = compared(values, reference)
    assert check.ok is True, check.detail


@pytest.mark.parametrize(("values", "reference", "kind", "fields"), BAD.values(), ids=BAD)
def test_results_that_differ_fail(values, reference, kind, fields):
    check = compared(values, reference)
    assert (check.ok, type(check.finding)) == (False, kind)
    assert fields.items() <= vars(check.finding).items()


def test_results_are_as_coarse_as_what_they_came_from():
    assert compared([1.01], [1.0]).ok is False
    assert compared([1.01], [1.0], inputs=["bfloat16"]).ok
    assert compared([1.001], [1.0], platform="gpu").ok
    assert compared([1.1], [1.0], platform="gpu").ok is False
    assert tolerance(["int32", "float16"], "cpu") == 5e-3
    assert tolerance(["float8_e4m3fn"], "gpu") == 0.3


def test_results_on_fewer_devices_than_the_mesh_have_a_layout():
    """jax runs a program that reads no argument on fewer devices than its mesh has."""
    device = jax.devices("cpu")[0]
    alone = jax.make_mesh((1,), ("x",), devices=[device])
    output = Output("y", (8,), np.dtype("float32"))
    layouts, without = output_layouts([output], [NamedSharding(alone, P())], MESH, {device: 0})
    assert not without
    assert layouts["y"].box(0) == (slice(0, 8),)


def test_a_result_on_one_device_of_several_has_no_layout():
    """jax shows a callback's result on all devices; only one has its values."""
    double = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) * 2, x, x))
    ones = on_mesh(np.ones(8, np.float32), "a")
    held = {float(shard.data[0]) for shard in double(ones).addressable_shards}
    report = sv.report(double.lower(ones).compile())
    assert held == {2.0, 0.0}
    assert report.out_layouts == {}
    (check,) = report.checks
    assert check.ok is None
    assert "Only one device has the values of output" in check.detail
