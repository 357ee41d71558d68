"""Full rematerialisations: XLA's own warning is the oracle.

The partitioner logs "Involuntary full rematerialization" to stderr, so programs are compiled in a
child process that keeps its stderr: resharding at random, in five forms, on 2 x 2 x 4 devices.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import cache

import pytest

from shardviz.base.cause import ValueName
from shardviz.compiled.inherited import inherited
from shardviz.compiled.module import Module
from shardviz.compiled.read_collectives import read_collectives
from tests.program.hlo import parsed

MESH = (("a", "b", "c"), (2, 2, 4))

CHILD = r"""
import glob, itertools, os, pickle, random, sys, tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 16)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 4), ("a", "b", "c"),
            axis_types=(AxisType.Auto,) * 3)
log = tempfile.TemporaryFile()
os.dup2(log.fileno(), 2)


def logged():
    log.seek(0)
    text = log.read().decode(errors="replace")
    log.seek(0)
    log.truncate()
    return text


def specs(rank):
    for count in range(4):
        for axes in itertools.permutations("abc", count):
            for where in itertools.product(range(rank), repeat=count):
                yield tuple(tuple(a for a, w in zip(axes, where) if w == d) for d in range(rank))


def program(form, shape, first, second):
    def put(x, spec):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def fn(x):
        if form == "between":
            return jnp.cos(put(jnp.sin(x), second))
        if form == "used twice":
            y = put(jnp.sin(x), first)
            return put(y, second) + 1, jnp.sum(y)
        if form == "reshaped":
            y = put(jnp.sin(x), first).reshape(shape[0] * 2, shape[1] // 2, *shape[2:])
            return jnp.cos(put(y, second))
        if form == "asked whole":
            return put(put(x, ()) + 1, second)
        return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(put(jnp.sin(put(y, first)), second)), x)

    return jax.jit(fn, in_shardings=NamedSharding(mesh, P(*first)))


FORMS = ("between", "used twice", "reshaped", "asked whole", "in a loop")
random.seed(int(sys.argv[1]))
known = {rank: sorted(set(specs(rank))) for rank in (2, 3)}
result = []
for form in FORMS * int(sys.argv[2]):
    rank = random.choice((2, 3))
    shape = {2: (64, 96), 3: (16, 32, 16)}[rank]
    first, second = random.sample(known[rank], 2)
    lowered = program(form, shape, first, second).lower(jax.ShapeDtypeStruct(shape, jnp.float32))
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd",
                   "xla_dump_hlo_as_proto": True}
        logged()
        compiled = lowered.compile(compiler_options=options)
        warned = logged().count("nvoluntary full rematerialization")
        (dump,) = glob.glob(folder + "/*after_spmd-partitioning*")
        (module,) = compiled.runtime_executable().hlo_modules()
        final = module.as_serialized_hlo_module_proto()
        result.append([form, first, second, warned, open(dump, "rb").read(), final])
sys.stdout.buffer.write(pickle.dumps(result))
"""
FORMS = ("between", "used twice", "reshaped", "asked whole", "in a loop")
QUICK = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # nothing of it runs
SEED, EACH = "7", 8  # 600 programs of other seeds agreed too


@cache
def compiled():
    quick = {k: v for k, v in os.environ.items() if k in QUICK}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, SEED, str(EACH)], capture_output=True, check=True,
        env={**quick, "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "1"},
    )  # fmt: skip
    return pickle.loads(done.stdout)


def remade(data):
    return [c for c in read_collectives(Module(data), *MESH) if c.rematerialises]


@pytest.mark.parametrize("form", FORMS)
def test_after_the_partitioner_it_is_found_exactly_where_xla_warns(form):
    cases = [case for case in compiled() if case[0] == form]
    warned = [bool(case[3]) for case in cases]
    assert [bool(remade(case[4])) for case in cases] == warned
    assert len(cases) == EACH
    assert any(warned) == (form != "asked whole")
    assert not all(warned)


def test_a_final_program_tells_none_that_xla_did_not_warn_of():
    assert not [case[:3] for case in compiled() if remade(case[5]) and not case[3]]


def test_a_final_program_has_all_with_what_the_partitioner_found():
    for *_, warned, partitioned, final in compiled():
        before, after = (read_collectives(Module(data), *MESH) for data in (partitioned, final))
        found = [c for c in inherited(before, after) if c.rematerialises]
        assert bool(found) == bool(warned)
        assert all(c.cause.code == "rematerialised" and c.cause.part for c in found)


GATHERED = """HloModule gathered

ENTRY %main {
  %p = f32[4,8]{1,0} parameter(0)
  %f = f32[] constant(0)
  %g = f32[16,8]{1,0} all-gather(%p), replica_groups=[1,4]<=[4], dimensions={0}OF
  %k = s32[4]{0} constant({0, 2, 4, 6})
  %id = u32[] partition-id()
  %at = s32[1]{0} dynamic-slice(%k, %id), dynamic_slice_sizes={1}
  %to = s32[] reshape(%at)
  %zero = s32[] constant(0)
  ROOT %cut = f32[16,2]{1,0} dynamic-slice(%g, %zero, %to), dynamic_slice_sizes={16,2}
}
"""
BY_HAND = ', metadata={op_name="jit(f)/shard_map/all_gather"}'
CUT = "dynamic-slice(%g, %zero, %to), dynamic_slice_sizes={16,2}"
HANDS = {
    "by the partitioner": (GATHERED.replace("OF", ""), True),
    "by hand": (GATHERED.replace("OF", BY_HAND), False),
    "cut at one place by all": (
        GATHERED.replace("OF", "").replace("slice(%g, %zero, %to)", "slice(%g, %zero, %zero)"),
        False),
    "a copy between": (
        GATHERED.replace("OF", "\n  %h = f32[16,8]{1,0} copy(%g)").replace(
            "slice(%g,", "slice(%h,"), False),
    "parts that overlap, for a window that slides": (
        GATHERED.replace("OF", "\n  %h = f32[16,11]{1,0} pad(%g, %f), padding=0_0x3_0").replace(
            "f32[16,2]{1,0} dynamic-slice(%g,", "f32[16,5]{1,0} dynamic-slice(%h,"), False),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HANDS.values(), ids=HANDS)
def test_only_what_the_partitioner_gathers_and_each_device_slices(text, expected):
    found = read_collectives(parsed(text), ("x",), (4,))
    assert {c.rematerialises for c in found} == {expected}
    if expected:
        cause = found[0].cause
        assert (cause.code, cause.full, cause.part) == ("rematerialised", "f32[16,8]", "f32[16,2]")
        assert cause.operand == ValueName("argument", "number 0")
