"""How often loops run: where XLA writes it, where it does not, and where nobody knows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from shardviz.compiled.loops import ExecutionCount, Loops
from shardviz.compiled.module import Instruction
from shardviz.compiled.read_collectives import read_collectives
from shardviz.runs.backend.compile import final_module
from tests.program import hlo
from tests.program.hlo import parsed
from tests.program.test_hlo_programs import MODULES, read


def loop(first="constant(0)", last="constant(6)", step="constant(1)", way="LT", known=""):
    """A module with one loop, whose index stands first in what it carries."""
    return f"""HloModule loop

%body {{
  %b = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %step = s32[] {step}
  %next = s32[] add(%i, %step)
  %x = f32[4]{{0}} get-tuple-element(%b), index=1
  %sum = f32[4]{{0}} all-reduce(%x), replica_groups={{}}, to_apply=%add
  ROOT %out = (s32[], f32[4]{{0}}) tuple(%next, %sum)
}}

%condition {{
  %c = (s32[], f32[4]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %last = s32[] {last}
  ROOT %less = pred[] compare(%j, %last), direction={way}
}}

ENTRY %main {{
  %p = f32[4]{{0}} parameter(0)
  %q = s32[] parameter(1)
  %first = s32[] {first}
  %init = (s32[], f32[4]{{0}}) tuple(%first, %p)
  %while = (s32[], f32[4]{{0}}) while(%init), condition=%condition, body=%body{known}
  ROOT %r = f32[4]{{0}} get-tuple-element(%while), index=1
}}
"""


KNOWN_AS_7 = ', backend_config={"known_trip_count":{"n":"7"}}'
LOOPS = {
    "written by XLA": (loop(known=KNOWN_AS_7), 7),
    "up to": (loop(), 6),
    "in steps": (loop(last="constant(7)", step="constant(3)"), 3),
    "from elsewhere": (loop(first="constant(4)"), 2),
    "from below zero": (loop(first="constant(-2)"), 8),
    "never": (loop(last="constant(0)"), 0),
    "through a copy": (
        loop().replace("%init =", "%again = s32[] copy(%first)\n  %init =").replace(
            "tuple(%first", "tuple(%again"), 6),
    "without an end": (loop(step="constant(-1)"), None),
    "from an argument": (loop(first="copy(%q)"), None),
    "to what is worked out": (loop(last="negate(%j)"), None),
    "by what is worked out": (loop(step="negate(%i)"), None),
    "by multiplying": (loop().replace("add(%i", "multiply(%i"), None),
    "of another form": (loop("constant(6)", "constant(0)", "constant(-1)", "GT"), None),
    "by itself": (loop().replace("add(%i, %step)", "add(%i, %i)"), None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "trips"), LOOPS.values(), ids=LOOPS)
def test_how_often_a_loop_runs(text, trips):
    (found,) = read_collectives(parsed(text), ("x",), (4,))
    assert (found.in_loop, found.trips) == (True, trips)


def test_the_condition_is_asked_once_more_than_the_body_runs():
    loops, module = Loops(), parsed(loop())
    counts = {each.name: loops.count(each) for each in module.computations}
    assert counts["condition"] == ExecutionCount(True, 7)
    assert counts["body"] == ExecutionCount(True, 6)
    assert counts["main"] == ExecutionCount(False, 1)


def test_a_computation_that_two_loops_share_runs_for_both():
    one = "  %while = (s32[], f32[4]{0}) while(%init), condition=%condition, body=%body\n"
    text = loop().replace(one, one + one.replace("%while", "%again"))
    (found,) = read_collectives(parsed(text), ("x",), (4,))
    assert found.trips == 12


CALLED = """HloModule called

%f {
  %p = f32[4]{0} parameter(0)
  ROOT %sum = f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add
}

ENTRY %main {
  %x = f32[4]{0} parameter(0)
  %i = s32[] parameter(1)
  %a = f32[4]{0} call(%x), to_apply=%f
  ROOT %b = f32[4]{0} conditional(%i, %a, %x), branch_computations={%f, %f}
}
"""


def test_calls_and_branches_are_no_loops():
    module = parsed(CALLED)
    (found,) = read_collectives(module, ("x",), (4,))
    assert (found.in_loop, found.trips) == (False, 1)
    (called,) = [each for each in module.computations if each.name == "f"]
    assert [c.opcode for c in called.callers] == ["call", "conditional"]


WITH_TRIPS = [c for c in MODULES if c[2] in ("layers", "nested", "ring", "remade_loop")]


@pytest.mark.parametrize("case", WITH_TRIPS, ids="-".join)
def test_what_xla_writes_is_what_follows_from_the_loop(case, monkeypatch):
    written = [c.trips for c in read(*case)]
    monkeypatch.setattr(Instruction, "trips", None)  # as if XLA had not written it
    module = hlo.kept(case[0], "-".join(case[1:]))
    found = [c.trips for c in read_collectives(module, ("data", "model"), (4, 2))]
    # CPU's and GPU's compilers fuse what counts; then only they know.
    assert all(a in (b, None) for a, b in zip(found, written, strict=True))
    if case[1][:3] == "tpu" or case[3] == "partitioned":
        assert found == written


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(2, 9), min_size=1, max_size=3), st.integers(-3, 3))
def test_nested_loops_multiply(counts, first):
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",), axis_types=(AxisType.Auto,))

    def part(x):
        def turn(depth, x):
            if depth == len(counts):
                return jnp.tanh(lax.psum(x, "x"))
            body = lambda i, y: turn(depth + 1, y) + i  # noqa: E731
            return lax.fori_loop(first, first + counts[depth], body, x)

        return turn(0, x)

    fn = jax.shard_map(part, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    compiled = jax.jit(fn).lower(jax.ShapeDtypeStruct((8,), np.float32)).compile()
    (found,) = read_collectives(final_module(compiled), ("x",), (4,))
    assert (found.in_loop, found.trips) == (True, int(np.prod(counts)))
