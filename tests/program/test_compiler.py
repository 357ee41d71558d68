"""What is traced, lowered and compiled, and the key it is kept under."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardviz.base.errors import ShardvizError
from shardviz.base.mesh import make_mesh
from shardviz.programs.backend.bridge import to_jax
from shardviz.programs.backend.trace import donated_leaves, trace
from shardviz.runs.backend.compile import compile_lowered, fingerprint, lower
from shardviz.runs.backend.targets import choose, device_mesh
from tests.program.helpers import MESH, array, program

X, W = array("x", (8, 16), "a"), array("w", (16, 8), "None, b")
FACTOR = 2.0


def matmul(x, w):
    return x @ w


def scaled(x):
    return x * FACTOR


def lowered(made):
    return lower(made, device_mesh(made.mesh, choose("cpu", made.mesh.size)))


def key(made, **options):
    found = lowered(made)
    return fingerprint(found, list(found.traced.mesh.devices.flat), options)


def test_no_devices_are_needed_to_lower():
    made = program(matmul, X, W, mesh=make_mesh(a=1024, b=1024)).replace(
        arrays=(array("x", (8192, 16), "a"), array("w", (16, 8192), "None, b"))
    )
    found = lower(made, to_jax(made.mesh), platforms=("tpu",))
    assert '"a"=1024' in found.text


def test_outputs_are_named_by_their_path():
    made = program(lambda x: {"loss": x.sum(), "grads": [x, (x,)], "none": None}, X)
    traced = trace(made, device_mesh(MESH, choose("cpu", 8)))
    assert [o.name for o in traced.outputs] == [
        "output.grads[0]",
        "output.grads[1][0]",
        "output.loss",
    ]
    assert [o.shape for o in traced.outputs] == [(8, 16), (8, 16), ()]


def test_donated_arguments_are_counted_in_leaves():
    made = program(lambda p, q, r: 0, {"a": X, "b": W}, [X.replace(name="q")],
                   W.replace(name="r"), donate=(0, 2))  # fmt: skip
    assert donated_leaves(made) == (0, 1, 3)
    assert donated_leaves(made.replace(tree=None)) == (0, 2)


def test_the_same_program_has_the_same_key():
    assert key(program(matmul, X, W)) == key(program(matmul, X, W))


DIFFERENT = {
    "a shape": lambda: program(matmul, X.replace(shape=(16, 16)), W),
    "a dtype": lambda: program(matmul, X.replace(dtype="bfloat16"), W),
    "an argument's spec": lambda: program(matmul, X.replace(spec=None), W),
    "an output's spec": lambda: program(matmul, X, W, out_specs="a"),
    "donation": lambda: program(matmul, X, W, donate=0),
    "the order of devices": lambda: program(
        matmul, X, W, mesh=make_mesh({"a": 4, "b": 2}, device_ids=range(7, -1, -1))
    ),
    "the mesh": lambda: program(matmul, X, W, mesh=make_mesh(a=2, b=4)),
    "axis types": lambda: program(
        matmul, X, W, mesh=make_mesh({"a": 4, "b": 2}, axis_types="Explicit")
    ),
    "the function": lambda: program(lambda x, w: 2 * x @ w, X, W),
}


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_anything_else_has_another_key(make):
    assert key(make()) != key(program(matmul, X, W))


def test_options_are_in_the_key():
    made = program(matmul, X, W)
    assert key(made, xla_cpu_enable_fast_math=True) != key(made)
    assert key(made, a=1, b=2) == key(made, b=2, a=1)


def test_a_changed_global_has_another_key(monkeypatch):
    before = key(program(scaled, X))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert key(program(scaled, X)) != before


def test_where_the_text_does_not_say_it_all_nothing_is_kept():
    def printing(x):
        jax.debug.print("{}", x.sum())
        return x

    def calling(x):
        return jax.pure_callback(np.negative, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert lowered(program(matmul, X, W)).cacheable
    assert not lowered(program(printing, X)).cacheable
    assert not lowered(program(calling, X)).cacheable
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        assert not lowered(program(matmul, X, W)).cacheable
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", False)


def test_regions_of_shard_map_are_found():
    inside = program(
        lambda x: jax.shard_map(lambda y: y * 2, in_specs=P("a"), out_specs=P("a"))(x), X
    )
    assert lowered(inside).manual
    assert not lowered(program(matmul, X, W)).manual


def test_what_the_compiler_says_is_read():
    executable = compile_lowered(lowered(program(matmul, X, W)), MESH)
    assert executable.memory.arguments == (2 * 16 + 16 * 4) * 4
    assert executable.memory.outputs == 2 * 4 * 4
    assert executable.cost["flops"] == 2 * 2 * 4 * 16
    assert not any("{" in name for name in executable.cost)
    assert executable.collectives == ()


WRONG_OUT = {
    "too many": (("a", "a", "a"), r"out_specs .*length 3.* length 2"),
    "no such axis": (("c", "a"), r"output\[0\]: .*split over 'c': the mesh .*has no such axis"),
    "does not divide": (
        ("a", "None, (a, b)"),
        r"output\[1\]: Dimension 1: 12 is not divisible by 8",
    ),
    "too long": (("a, b, None", "a"), r"output\[0\]: The spec .* has 3 entries"),
}


@pytest.mark.parametrize(("specs", "words"), WRONG_OUT.values(), ids=WRONG_OUT)
def test_output_specs_that_do_not_fit_are_refused(specs, words):
    made = program(lambda x: (x, x[:, :12]), X, out_specs=specs)
    with pytest.raises(ShardvizError, match=words):
        trace(made, device_mesh(MESH, choose("cpu", 8)))
