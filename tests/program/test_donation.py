"""Donated arguments that no output takes the place of are said, by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.compiled.checks import UnusedDonations
from shardviz.runs.backend.compile import unusable_donations
from shardviz.runs.backend.targets import choose, device_mesh
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import MESH, array, program
from tests.program.hlo import parsed

S, X, T = array("s", (8, 8), "a"), array("x", (8, 8), "None, b"), array("t", (16, 8))
LAYERS = {"w": array("w", (8, 8), "a"), "b": array("b", (16, 8))}
CASES = {
    "used": (lambda s, x: s + x, (S, X), "a", (0,), ()),
    "reduced": (lambda s: s.sum(), (S,), None, (0,),
                ("s, f32[8, 8]",)),
    "one of two": (lambda s, t: (s * 2, t.sum()), (S, T), ("a", None), (0, 1),
                   ("t, f32[16, 8]",)),
    "of a tree": (lambda p: (p["w"] * 2, p["b"].sum()), (LAYERS,), ("a", None), (0,),
                  ("b, f32[16, 8]",)),
    "two": (lambda s, t: s.sum() + t.sum(), (S, T), None, (0, 1),
            ("s, f32[8, 8]", "t, f32[16, 8]")),
    "an argument that jax removes": (lambda s, x: s * 2, (S, X), "a", (0, 1), ()),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(("fn", "arrays", "out", "donate", "unused"), CASES.values(), ids=CASES)
def test_what_is_not_usable_is_said(fn, arrays, out, donate, unused):
    made = program(fn, *arrays, out_specs=out, donate=donate)
    report = compile_program(made, cache=ExecutableCache())
    assert report.error is None, report.error
    found = [note.arrays for note in report.notes if isinstance(note, UnusedDonations)]
    assert found == ([unused] if unused else [])


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_it_is_what_jax_counts():
    mesh = device_mesh(MESH, choose("cpu", 8))
    for fn, arrays, out, donate, unused in CASES.values():
        structs = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(
                a.shape,
                jnp.float32,
                sharding=NamedSharding(mesh, a.spec.to_jax() if a.spec else P()),
            ),
            arrays,
        )
        asked = jax.tree.map(
            lambda s: s if s is None else NamedSharding(mesh, P(s)),
            out,
            is_leaf=lambda s: s is None,
        )
        jitted = jax.jit(fn, donate_argnums=donate, out_shardings=asked)
        compiled = jitted.lower(*structs).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        assert (memory.alias_size_in_bytes == 0) is (len(unused) == 2 or fn is CASES["reduced"][0])


def test_the_positions_of_leaves_whose_memory_no_output_takes():
    made = program(lambda s, x: s, S, X, donate=(0, 1))
    head = "HloModule f, input_output_alias={ {}: (0, {}, may-alias) }\n"
    entry = '\nENTRY %main {\n ROOT %p = f32[2,8]{1,0} parameter(0), metadata={op_name="s"}\n}'
    assert unusable_donations(made, parsed(head + entry)) == ()
    assert unusable_donations(made, parsed("HloModule f\n" + entry)) == (0,)
    assert unusable_donations(program(lambda s: s, S), parsed("HloModule f\n" + entry)) == ()
