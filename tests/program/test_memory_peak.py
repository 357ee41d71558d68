"""The peak of a program and what is alive then: what XLA itself says, buffer by buffer."""

from __future__ import annotations

import gzip
import pickle
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.core.backend.run.worker.run import compile_program
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.memory import Buffer, MemoryPeak
from shardviz.core.program.memory_in_plan import with_plan
from shardviz.core.xla.buffers import read_memory
from tests.bench import memory_peaks
from tests.program.helpers import array, program
from tests.program.memory_oracle import heap_peaks

FILES = Path(__file__).parent / "memory"
# A train step of 8 layers on TPU v5e 4x4: loops, donated weights, memory on the core.
STEP = gzip.decompress((FILES / "v5e.hlo.pb.gz").read_bytes())
LIVES = (FILES / "v5e-live-range.txt").read_text()
# Of XLA's own analysis, `peak_memory_in_bytes`.
STEP_PEAK = 3_623_885_312
SAMPLE = ("step", "donated_step", "until", "branches", "normal_noise", "MLP, gradient")
W, X = array("w", (6, 64, 64), "None, None, b"), array("x", (64, 64), "a, None")


def layer(x, w):
    return jnp.tanh(x @ w) + x


def loss(w, x):
    return jnp.sum(jax.lax.scan(lambda c, w: (layer(c, w), None), x, w)[0] ** 2)


def step(w, x):
    return w - jax.grad(loss)(w, x)


def compiled(fn=step, *arrays, target="attached", **options):
    made = program(fn, *(arrays or (W, X)), **options)
    report = compile_program(made, target, cache=ExecutableCache())
    assert report.error is None, report.error
    return made, report


@pytest.mark.parametrize("name", SAMPLE)
def test_the_peak_is_that_of_the_compilers_heap(name):
    fn, arrays, mesh, donate = next(p[1:] for p in memory_peaks.programs() if p[0] == name)
    final, own = memory_peaks.compiled("cpu", fn, arrays, mesh, donate)
    assert memory_peaks.peak_of(final) == memory_peaks.compilers(final, own, "cpu")


def test_the_peak_of_a_tpu_is_the_compilers_own_figure():
    peak, timeline = read_memory(STEP)
    lasting, most = heap_peaks(STEP)
    assert peak.bytes == sum(b.bytes for b in peak.buffers) == STEP_PEAK
    assert lasting + most[0] == STEP_PEAK
    assert timeline.alive(peak.at) == peak.buffers
    assert int(timeline.total[peak.at]) == int(timeline.total.max()) == STEP_PEAK


def test_the_order_is_that_of_xla():
    _, timeline = read_memory(STEP)
    assert list(timeline.names) == re.findall(r"^    \d+:(\S+)$", LIVES, re.MULTILINE)


def test_every_buffer_of_the_heap_lives_as_long_as_xla_says():
    _, timeline = read_memory(STEP)
    spans = re.findall(r"^    (\S+?)\{[\d,]*\}:(\d+)-(\d+)$", LIVES, re.MULTILINE)
    first, last = {}, {}
    for name, start, end in spans:
        first.setdefault(int(start), set()).add(name)
        last.setdefault(int(end), set()).add(name)
    heap = [b for b in timeline.buffers if b.kind in ("temporaries", "collectives")]
    assert len(heap) == 15
    for buffer in heap:
        # A buffer that holds several values begins with one and ends with another.
        assert buffer.start in first, buffer
        assert buffer.end in last, buffer
    alone = {n for n, *_ in spans if sum(n == other for other, *_ in spans) == 1}
    known = {name: (int(start), int(end)) for name, start, end in spans}
    single = [b for b in heap if b.name in ("convert.27", "convert.28", "all-reduce.11", "lt.10")]
    assert {b.name for b in single} <= alone
    assert [(b.start, b.end) for b in single] == [known[b.name] for b in single]


def test_what_a_loop_fills_is_one_buffer_with_the_line_of_what_it_keeps():
    peak, _ = read_memory(STEP)
    kept = {b.shape: (b.source, b.phase, b.count) for b in peak.saved if b.count != 1}
    assert kept["pred[8,4096,4096]"] == ("mlp.py:10", "forward", 8)
    assert peak.phase == "backward"
    assert peak.source == "mlp.py:10"
    large = [b for b in peak.buffers if b.shape == "f32[8,4096,4096]"]
    # The donated weights, which the results take the memory of, and their gradients.
    assert sorted(b.kind for b in large) == ["arguments"] * 2 + ["temporaries"] * 2


def test_a_copy_of_an_argument_names_it():
    peak, _ = read_memory(STEP, {"params['a']": "params.a"})
    assert {b.value for b in peak.buffers if b.op == "params.a"} == {"params.a"}
    halves = [b for b in peak.buffers if b.shape == "bf16[8,4096,4096]" and b.value]
    assert [b.value for b in halves] == ["params.a", "params['b']"]


def test_padding_is_apart_from_what_it_is_in():
    peak, timeline = read_memory(STEP)
    small = next(b for b in peak.buffers if b.shape == "s32[]")
    assert (small.bytes, small.padding) == (512, 508)
    assert timeline.bytes["padding"][peak.at] == sum(b.padding for b in peak.buffers)
    with pytest.raises(ValueError, match="read-only"):
        timeline.bytes["arguments"][0] = 1


def test_a_module_without_buffers_has_no_peak():
    module = b"".join(_message(STEP, 1))
    assert read_memory(module) is None


def test_a_heap_without_its_events_has_no_peak():
    head, rest = _message(STEP, 3)
    (size, start) = _length(rest)
    assignment = rest[start : start + size]
    kept = b"".join(part for field, part in _fields(assignment) if field != 4)
    assert read_memory(b"".join(_message(STEP, 1)) + head[:1] + _number(len(kept)) + kept) is None


def test_attached_and_simulated_devices_say_the_same():
    _, here = compiled()
    _, there = compiled(target="cpu:8")
    lives = []
    for report in (here, there):
        found = report.memory.timeline.buffers
        lives.append([(b.name, b.bytes, b.kind, b.source, b.start, b.end) for b in found])
    assert lives[0] == lives[1]
    assert here.memory.peak.bytes == there.memory.peak.bytes
    assert here.memory.peak.bytes > here.memory.arguments + here.memory.outputs
    assert here.memory.timeline.names == there.memory.timeline.names


def test_a_donated_argument_is_one_buffer():
    found = []
    for options in ({}, {"donate": (0,)}):
        _, report = compiled(step, W, X, out_specs="None, None, b", **options)
        kinds = [b.kind for b in report.memory.timeline.buffers if b.shape == "f32[6,64,32]"]
        found.append(kinds.count("arguments") + kinds.count("outputs"))
    assert found == [2, 1]


def test_one_device_has_a_peak_too():
    made = program(step, W, X)
    made = made.replace(mesh=make_mesh(a=1, b=1))
    report = compile_program(made, "cpu:1", cache=ExecutableCache())
    assert report.memory.peak.bytes == sum(b.bytes for b in report.memory.peak.buffers)


def test_a_plan_names_the_values_and_how_they_are_split():
    made, report = compiled()
    assert all(b.spec is None for b in report.memory.peak.buffers)
    found = with_plan(report, plan_program(made)).memory
    assert len(found.timeline.buffers) == len(report.memory.timeline.buffers)
    by_name = {b.value: b for b in found.peak.buffers if b.value}
    assert by_name["w"].spec == Spec.parse("None, None, b")
    # Which value of an iteration is kept differs from one jax to the next.
    kept = [b for b in found.peak.buffers if b.spec == Spec.parse("a, b")]
    assert {b.count for b in kept} == {6}
    assert by_name["x"].split_bytes is not None
    assert found.peak.axes == ("a", "b")


def test_one_of_several_values_of_a_line_is_not_guessed():
    def two(x, w):
        return (x @ w) @ (x @ w).T, jnp.sin(x)

    made, report = compiled(two, array("x", (64, 64), "a"), array("w", (64, 64), "None, b"))
    plan = plan_program(made)
    places = {(op.op, op.source) for op in plan.ops if op.opcode == "dot_general"}
    several = [op for op in plan.ops if (op.op, op.source) in places and op.kind == "op"]
    assert len({op.spec for op in several}) > 1
    for buffer in with_plan(report, plan).memory.timeline.buffers:
        if (buffer.op, buffer.source) in places:
            assert buffer.value == ""
            assert buffer.spec is None


def test_what_is_saved_and_replicated_is_counted():
    kept = Buffer("a", 8, "f32[2]", "temporaries", phase="forward", spec=Spec.parse("data"))
    other = replace(kept, name="b", spec=None)
    again = replace(kept, name="c.remat", end=9)
    late = replace(kept, name="d", start=5)
    peak = MemoryPeak(32, 5, phase="backward", buffers=(kept, other, again, late))
    peak = replace(peak, axes=("data", "model"))
    assert peak.saved == (kept, other)
    assert [peak.replicated(b) for b in peak.saved] == [("model",), ()]
    assert replace(peak, phase="forward").saved == ()


def test_it_is_sent_in_a_few_bytes():
    found = read_memory(STEP)
    assert len(pickle.dumps(found)) < len(STEP) / 2
    peak, timeline = pickle.loads(pickle.dumps(found))
    assert peak == found[0]
    assert np.array_equal(timeline.total, found[1].total)


# --- the wire format ------------------------------------------------------------------


def _message(data, wanted):
    """The field's key with its length, and what follows it."""
    for field, part in _fields(data):
        if field == wanted:
            return part[:1], part[1:]
    raise LookupError(wanted)


def _fields(data):
    """Field number and bytes of every field, all of which have a length here."""
    at = 0
    while at < len(data):
        size, start = _length(data[at + 1 :])
        end = at + 1 + start + size
        yield data[at] >> 3, data[at:end]
        at = end


def _length(data):
    size = shift = at = 0
    while True:
        size |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return size, at


def _number(value):
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])
