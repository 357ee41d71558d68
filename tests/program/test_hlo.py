"""Collectives of modules: kept ones of two jax versions for three platforms, and live."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.compiled.module import Module
from shardviz.compiled.read_collectives import read_collectives
from shardviz.runs.backend.compile import final_module
from tests.program.hlo import parsed

AB = (("a", "b"), (4, 2))

WRAPPED = """HloModule wrapped

%inner (p: bf16[16,64]) -> bf16[4,64] {
  %p = bf16[16,64]{1,0} parameter(0)
  ROOT %rs = bf16[4,64]{1,0} reduce-scatter(%p), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), \
dimensions={0}, to_apply=%add, metadata={op_name="jit(f)/psum_scatter" source_file="/home/me/f.py" \
source_line=7}
}

ENTRY %main (x: bf16[16,64]) -> bf16[4,64] {
  %x = bf16[16,64]{1,0} parameter(0)
  %start = ((bf16[16,64]{1,0}), bf16[4,64]{1,0}) async-start(%x), calls=%inner
  ROOT %done = bf16[4,64]{1,0} async-done(%start), calls=%inner
}
"""


def test_a_collective_inside_a_generic_async_start():
    (found,) = read_collectives(parsed(WRAPPED), *AB)
    assert (found.kind, found.mesh_axes, found.is_async) == ("reduce-scatter", ("a",), True)
    assert found.bytes_per_device == 16 * 64 * 2  # of its operand
    assert (found.op, found.source) == ("jit(f)/psum_scatter", "f.py:7")


# TPU's compiler cuts a gather into three pieces, each fused with other work, in one chain.
CHAINED = """HloModule chained, is_scheduled=true

%begin (p: f32[4]) -> f32[16] {
  %p = f32[4]{0} parameter(0)
  ROOT %g.1 = f32[16]{0} all-gather(%p), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), \
dimensions={0}, frontend_attributes={chain_id="0"}
}

%async_collective_fusion (p: f32[4]) -> f32[16] {
  %p.1 = f32[4]{0} parameter(0)
  ROOT %g.2 = f32[16]{0} all-gather(%p.1), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), \
dimensions={0}, frontend_attributes={chain_id="0"}
}

ENTRY %main (x: f32[4]) -> f32[16] {
  %x = f32[4]{0} parameter(0)
  %a = f32[16]{0} fusion(%x), kind=kCustom, calls=%begin
  %b = f32[16]{0} fusion(%x), kind=kCustom, calls=%async_collective_fusion
  ROOT %other = f32[16]{0} all-gather(%x), channel_id=4, replica_groups=[2,4]<=[4,2]T(1,0), \
dimensions={0}, frontend_attributes={chain_id="1"}
}
"""


def test_the_pieces_of_a_chain_are_one_collective():
    found = read_collectives(parsed(CHAINED), *AB)
    assert [(c.kind, c.mesh_axes, c.is_async, c.name) for c in found] == [
        ("all-gather", ("a",), True, "g.1"),
        ("all-gather", ("a",), True, "other"),
    ]


def test_a_start_whose_done_is_missing_leaves_out_operands_and_contexts():
    module = parsed(
        "  %x = f32[4]{0} parameter(0)\n"
        "  ROOT %s = (f32[4], f32[4], u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x),"
        " source_target_pairs={{0,1},{1,0}}"
    )
    (found,) = read_collectives(module, *AB)
    assert (found.bytes_per_device, found.mesh_axes) == (16, ("b",))


SHAPES = {
    "f32[]": 4, "pred[3]": 3, "s4[5]": 3, "u2[9]": 3, "bf16[8,128]{1,0:T(8,128)(2,1)S(1)}": 2048,
    "f8e4m3fn[16]": 16, "f4e2m1fn[3]": 2, "c64[2]": 16, "c128[2]": 32, "token[]": 0,
    "(f32[2], (s32[3], bf16[1]))": 22, "f32[<=10]": 40, "f32[0,8]": 0, "f64[2]": 16,
}  # fmt: skip
TYPES = """pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 f32 f64 bf16 c64 c128 f8e5m2
 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e4m3fnuz f8e5m2fnuz f8e3m4 f8e8m0fnu f4e2m1fn token"""


@pytest.mark.parametrize(("shape", "size"), SHAPES.items())
def test_bytes_of_shapes(shape, size):
    module = parsed(f"  ROOT %p = {shape} parameter(0)")
    assert sum(s.bytes for s in module.entry.root.shapes) == size


@pytest.mark.parametrize("name", TYPES.split())
def test_types_have_the_names_that_xla_prints(name):
    dims = "" if name == "token" else "3"
    module = parsed(f"  ROOT %p = {name}[{dims}] parameter(0)")
    assert list(map(str, module.entry.root.shapes)) == [f"{name}[{dims}]"]


@pytest.mark.parametrize("data", [b"", b"\x00", b"nonsense", b"\x0a\x05ab"])
def test_what_is_no_module_is_refused(data):
    with pytest.raises(ValueError, match=r"no entry|cut off|field of kind"):
        Module(data)


def test_whose_files_are_whose():
    import shardviz.compiled.read_collectives as ours
    import shardviz.gallery as gallery

    # The gallery's examples are there to be looked at.
    files = [ours, np, pytest, gallery]
    assert [is_user_file(m.__file__) for m in files] == [False, False, False, True]
    assert line_in_words("/tmp/ipykernel_12/3456.py", 2) == "cell:2"


def compiled_sum(sizes, axes):
    names = tuple(f"m{i}" for i in range(len(sizes)))
    mesh = Mesh(
        np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes),
        names,
        axis_types=(AxisType.Auto,) * len(sizes),
    )

    def body(x):
        return jax.lax.psum(x, axes)

    fn = jax.shard_map(body, mesh=mesh, in_specs=P(names), out_specs=P(), check_vma=False)
    struct = jax.ShapeDtypeStruct((16,), np.float32, sharding=NamedSharding(mesh, P(names)))
    return names, final_module(jax.jit(fn).lower(struct).compile())


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (2, 1, 4), (1, 2, 2)]), st.data())
def test_the_axes_of_a_sum_are_those_that_were_asked_for(sizes, data):
    names = [f"m{i}" for i, size in enumerate(sizes) if size > 1]
    axes = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    all_names, module = compiled_sum(sizes, tuple(axes))
    (found,) = read_collectives(module, all_names, sizes)
    assert found.kind == "all-reduce"
    assert set(found.mesh_axes) == set(axes)
    assert found.source.startswith("test_hlo.py:")


@pytest.mark.parametrize(
    ("groups", "mesh", "partial"),
    [
        ("{{0,1},{2,3}}", {"data": 4}, True),
        ("{{0,2},{1,3}}", {"data": 4}, True),
        ("{{0,1,2,3}}", {"data": 4}, False),
        ("{{0,1},{2,3}}", {"data": 2, "model": 2}, False),
        ("{{0,1,2,3},{4,5,6,7}}", {"data": 4, "model": 2}, True),
        ("{}", {"data": 4, "model": 2}, False),
    ],
)
def test_groups_smaller_than_their_axes_are_over_a_part_of_them(groups, mesh, partial):
    argument = '  %p = f32[16,32]{1,0} parameter(0), metadata={op_name="x"}'
    summed = f"  %r = f32[16,32]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    module = parsed(f"{argument}\n{summed}")
    [found] = read_collectives(module, tuple(mesh), tuple(mesh.values()))
    assert (found.is_partial, found.cause.is_partial) == (partial, partial)
    assert found.cause.axes == found.mesh_axes
