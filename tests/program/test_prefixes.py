"""in_specs and out_specs are pytree prefixes, as jax.jit takes them; jax is the oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.base.errors import ProgramError
from shardviz.base.partition_spec import Spec, memory_of
from shardviz.programs.backend.build_program import build_program
from shardviz.programs.program import Program
from shardviz.runs.backend.targets import choose, device_mesh
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import MESH, array, checks, program, run

X = array("x", (8, 8), "a, b")
ONE, PAIR, TREE = (lambda x: x), (lambda x: (x, x)), (lambda x: {"a": x * 1, "b": (x * 2, x * 3)})
LIST, EMPTY = (lambda x: [x, x]), (lambda x: {"a": x, "n": None})
A, B = P("a"), P(None, "b")
OUTS = {
    "one for all": (TREE, A),
    "a prefix": (TREE, {"a": A, "b": B}),
    "all leaves": (TREE, {"a": A, "b": (B, P())}),
    "none for one": (TREE, {"a": A, "b": None}),
    "a wrong key": (TREE, {"a": A, "c": B}),
    "a key too few": (TREE, {"a": A}),
    "too deep": (TREE, {"a": (A,), "b": B}),
    "a pair with none": (PAIR, (A, None)),
    "a dict for a tuple": (PAIR, {"a": A}),
    "a tuple for one": (ONE, (A,)),
    "a list": (LIST, [A, B]),
    "none is no output": (EMPTY, {"a": A, "n": None}),
    "a spec where none is": (EMPTY, {"a": A, "n": B}),
}


@pytest.mark.parametrize(("fn", "specs"), OUTS.values(), ids=OUTS)
def test_out_specs_are_what_jax_makes_of_them(fn, specs):
    mesh = device_mesh(MESH, choose("cpu", 8))
    asked = jax.tree.map(
        lambda s: s if s is None else NamedSharding(mesh, s),
        specs,
        is_leaf=lambda s: s is None or isinstance(s, P),
    )
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("a", "b")))
    report = compile_program(program(fn, X, out_specs=specs), "cpu:8", cache=ExecutableCache())
    try:
        compiled = jax.jit(fn, out_shardings=asked).lower(x).compile()
    except ValueError:
        assert report.error is not None
        assert report.error.message.startswith("out_specs ")
        return
    assert report.error is None, report.error
    expected = [s.shard_shape((8, 8)) for s in jax.tree.leaves(compiled.output_shardings)]
    assert [layout.shard_shape for layout in report.out_layouts.values()] == expected


def test_outputs_that_were_asked_for_are_checked_and_others_are_not():
    report = run(program(TREE, X, out_specs={"a": A, "b": (None, B)}))
    assert report.ok, report
    asked = {name: ok for name, ok in checks(report).items() if name.endswith("out_specs")}
    assert asked == {"output.a: out_specs": True, "output.b[1]: out_specs": True}


def _in(args, in_specs, fn=lambda t, x: x) -> Program:
    return build_program(fn, args, MESH, None, "linen", in_specs, None, (), "")  # type: ignore[arg-type]


W = jax.ShapeDtypeStruct((8, 8), jnp.float32)
TWO = ({"a": {"c": W}, "b": W}, W)
INS = {
    "a prefix": (({"a": A, "b": B}, None), ["P('a')", "P(None, 'b')", "None"]),
    "one for all": (A, ["P('a')"] * 3),
    "a list of arguments": ([A, B], ["P('a')", "P('a')", "P(None, 'b')"]),
    "text": (("a", "None, b"), ["P('a')", "P('a')", "P(None, 'b')"]),
}


@pytest.mark.parametrize(("specs", "expected"), INS.values(), ids=INS)
def test_in_specs_are_spread_over_the_arguments(specs, expected):
    assert [str(a.spec) for a in _in(TWO, specs).arrays] == expected


REFUSED = {
    "too few arguments": ((A,), "in_specs"),
    "a missing key": (({"a": A}, A), "in_specs[0]"),
    "names of arguments": ({"t": A, "x": A}, "in_specs"),
    "no spec": ((3, A), "in_specs holds 3"),
}


@pytest.mark.parametrize(("specs", "where"), REFUSED.values(), ids=REFUSED)
def test_in_specs_of_another_structure_are_refused(specs, where):
    with pytest.raises(ProgramError) as caught:
        _in(TWO, specs)
    assert where in str(caught.value)


def test_shardings_are_specs_where_they_are_on_the_programs_mesh():
    mesh = device_mesh(MESH, choose("cpu", 8))
    made = program(ONE, X, out_specs=NamedSharding(mesh, B))
    assert made.out_specs == Spec.of(None, "b")
    other = jax.make_mesh((8,), ("c",))
    with pytest.raises(ProgramError, match=r"on the mesh \(c=8.*the program is on \(a=4, b=2"):
        program(ONE, X, out_specs=NamedSharding(other, P("c")))
    host = NamedSharding(mesh, B, memory_kind="pinned_host")
    asked = program(ONE, X, out_specs=host).out_specs
    assert (asked.dims, memory_of(asked)) == (made.out_specs.dims, "pinned_host")
    alone = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    with pytest.raises(ProgramError, match="names mesh axes"):
        program(ONE, X, out_specs=alone)
