"""How often loops run: where XLA writes it, where it does not, and where nobody knows."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from shardviz.core.hlo.collectives import read_collectives
from shardviz.core.hlo.module import ExecutionCount, Loops, Module, Operand, opcode, operands
from tests.program.test_hlo_programs import TEXT_IDS, TEXTS, read

KNOWN = re.compile(r'"known_trip_count":\{"n":"\d+"\},?')


def loop(first="constant(0)", last="constant(6)", step="constant(1)", way="LT", known=""):
    """A module with one loop, whose index stands first in what it carries."""
    return f"""HloModule loop

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %b = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %step = s32[] {step}
  %next = s32[] add(%i, %step)
  %x = f32[4]{{0}} get-tuple-element(%b), index=1
  %sum = f32[4]{{0}} all-reduce(%x), replica_groups={{}}, to_apply=%add
  ROOT %out = (s32[], f32[4]{{0}}) tuple(%next, %sum)
}}

%condition (c: (s32[], f32[4])) -> pred[] {{
  %c = (s32[], f32[4]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %last = s32[] {last}
  ROOT %less = pred[] compare(%j, %last), direction={way}
}}

ENTRY %main (p: f32[4], q: s32[]) -> f32[4] {{
  %p = f32[4]{{0}} parameter(0)
  %q = s32[] parameter(1)
  %first = s32[] {first}
  %init = (s32[], f32[4]{{0}}) tuple(%first, %p)
  %while = (s32[], f32[4]{{0}}) while(%init), condition=%condition, body=%body{known}
  ROOT %r = f32[4]{{0}} get-tuple-element(%while), index=1
}}
"""


KNOWN_AS_7 = ', backend_config={"known_trip_count":{"n":"7"}}'
FLIPPED = loop().replace("compare(%j, %last), direction=LT", "compare(%last, %j), direction=GT")
LOOPS = {
    "written by XLA": (loop(known=KNOWN_AS_7), 7),
    "up to": (loop(), 6),
    "up to and with": (loop(way="LE"), 7),
    "in steps": (loop(last="constant(7)", step="constant(3)"), 3),
    "from elsewhere": (loop(first="constant(4)"), 2),
    "from below zero": (loop(first="constant(-2)"), 8),
    "down to": (loop("constant(6)", "constant(0)", "constant(-1)", "GT"), 6),
    "down to and with": (loop("constant(6)", "constant(0)", "constant(-2)", "GE"), 4),
    "until it is": (loop(way="NE"), 6),
    "never": (loop(last="constant(0)"), 0),
    "the other way about": (FLIPPED, 6),
    "through a copy": (
        loop().replace("%init =", "%again = s32[] copy(%first)\n  %init =").replace(
            "tuple(%first", "tuple(%again"), 6),
    "with elements named at once": (
        loop().replace("add(%i,", "add(%b#0,").replace("compare(%j,", "compare(%c#0,"), 6),
    "without an end": (loop(step="constant(-1)"), None),
    "misses its end": (loop(step="constant(4)", way="NE"), None),
    "from an argument": (loop(first="copy(%q)"), None),
    "to what is worked out": (loop(last="negate(%j)"), None),
    "by what is worked out": (loop(step="negate(%i)"), None),
    "equal": (loop(way="EQ"), None),
    "by multiplying": (loop().replace("add(%i", "multiply(%i"), None),
    "by itself": (loop().replace("add(%i, %step)", "add(%i, %i)"), None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "trips"), LOOPS.values(), ids=LOOPS)
def test_how_often_a_loop_runs(text, trips):
    (found,) = read_collectives(text, ("x",), (4,))
    assert (found.in_loop, found.trips) == (True, trips)


def test_the_condition_is_asked_once_more_than_the_body_runs():
    loops = Loops(Module(loop()))
    assert loops.count("condition") == ExecutionCount(True, 7)
    assert loops.count("body") == ExecutionCount(True, 6)
    assert loops.count("main") == ExecutionCount(False, 1)
    assert loops.count("nowhere") == ExecutionCount(False, 1)


def test_a_computation_that_two_loops_share_runs_for_both():
    one = "  %while = (s32[], f32[4]{0}) while(%init), condition=%condition, body=%body\n"
    text = loop().replace(one, one + one.replace("%while", "%again"))
    (found,) = read_collectives(text, ("x",), (4,))
    assert found.trips == 12


CALLED = """HloModule called

%f (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %sum = f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %a = f32[4]{0} call(%x), to_apply=%f
  ROOT %b = f32[4]{0} conditional(%i, %a, %x), branch_computations={%f, %g}
}
"""


def test_calls_and_branches_are_no_loops():
    (found,) = read_collectives(CALLED, ("x",), (4,))
    assert (found.in_loop, found.trips) == (False, 1)
    assert [c.attribute for c in Module(CALLED).calls["f"]] == ["to_apply", "branch"]


WITH_TRIPS = [c for c in TEXT_IDS if c[2] in ("layers", "nested", "ring", "remade_loop")]


@pytest.mark.parametrize("case", WITH_TRIPS, ids="-".join)
def test_what_xla_writes_is_what_follows_from_the_loop(case):
    import gzip

    path = TEXTS / case[0] / f"{case[1]}-{case[2]}-{case[3]}.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    bare = KNOWN.sub("", text)
    assert "known_trip_count" not in bare
    found = [c.trips for c in read_collectives(bare, ("data", "model"), (4, 2))]
    written = [c.trips for c in read(*case)]
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
    text = jax.jit(fn).lower(jax.ShapeDtypeStruct((8,), np.float32)).compile().as_text() or ""
    (found,) = read_collectives(text, ("x",), (4,))
    assert (found.in_loop, found.trips) == (True, int(np.prod(counts)))


LINES = {
    "plain": ("  %a.1 = f32[4]{0:T(256)} add(%b, %c.2), metadata={op_name=\"f(%x)\"}",
              "add", [("b", None), ("c.2", None)]),
    "a root with a tuple": ("  ROOT %t = (s32[], f32[4]{0}) tuple(%i, /*index=1*/%p#3)",
                            "tuple", [("i", None), ("p", 3)]),
    "no operands": ("  %id = u32[] partition-id()", "partition-id", []),
    "a constant": ("  %k = s32[] constant(-4)", "constant", []),
    "typed operands": ("  %a = f32[] copy(f32[]{:T(256)} %b)", "copy", [("b", None)]),
    "a head": ("%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {", "", []),
    "nothing": ("", "", []),
}  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "reads"), LINES.values(), ids=LINES)
def test_an_instruction_by_its_parts(line, kind, reads):
    assert opcode(line) == kind
    assert operands(line) == [Operand(*r) for r in reads]
