"""The peak of a program and what is alive then: what XLA itself says, buffer by buffer."""

from __future__ import annotations

import gzip
import itertools
import pickle
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.base.axis_parts import local_shape
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.compiled.buffers import read_memory
from shardviz.compiled.memory import Buffer, MemoryPeak, MemoryTimeline
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.panel.memory_chart import chart_view
from shardviz.compiled.report import Memory, Report
from shardviz.pictures import draw
from shardviz.plans.backend.build_plan import plan_program
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program import memory_peaks
from tests.program.helpers import MESH, array, program
from tests.program.memory_oracle import heap_bytes, heap_peaks

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


def final_of(name):
    """What the compile of a program leaves on CPUs: its buffers, and its own peak."""
    fn, arrays, mesh, donate = next(p[1:] for p in memory_peaks.programs() if p[0] == name)
    return memory_peaks.compiled("cpu", fn, arrays, mesh, donate)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_peak_is_that_of_the_compilers_heap(name):
    final, own = final_of(name)
    assert memory_peaks.peak_of(final) == memory_peaks.compilers(final, own, "cpu")


def test_the_peak_of_a_tpu_is_the_compilers_own_figure():
    timeline = read_memory(STEP)
    peak = timeline.peak
    lasting, most = heap_peaks(STEP)
    assert peak.bytes == sum(b.bytes for b in peak.buffers) == STEP_PEAK
    assert lasting + most[0] == STEP_PEAK
    assert timeline.total[0] == lasting
    assert timeline.alive(peak.at) == peak.buffers
    assert int(timeline.total[peak.at]) == int(timeline.total.max()) == STEP_PEAK


def test_at_every_position_one_buffer_of_the_heap_begins():
    timeline = read_memory(STEP)
    heap = [b for b in timeline.buffers if b.kind in ("temporaries", "collectives")]
    assert len(heap) > 15
    assert [b.start for b in heap] == timeline.times[1:].tolist()
    assert timeline.filled == {b.start: b for b in heap}
    for buffer in timeline.buffers:
        if buffer not in heap:
            assert (buffer.start, buffer.end) == (0, timeline.times[-1])


@pytest.mark.parametrize("name", ["v5e", "step", "until", "unrolled_gradient"])
def test_the_live_bytes_are_those_of_the_compilers_heap_in_order(name):
    final = STEP if name == "v5e" else final_of(name)[0]
    timeline = read_memory(final)
    lasting, live = heap_bytes(final)
    # What is handed on, or written bit by bit, has no position of its own.
    waiting = iter(live[0])
    for total in timeline.total[1:].tolist():
        assert total - lasting in waiting
    # A value that is written in place of another begins where that one ends.
    ends = Counter((b.end, b.bytes) for b in timeline.buffers if b.start)
    assert any(ends[b.start - 1, b.bytes] for b in timeline.buffers if b.start)


def test_buffers_are_alive_together_where_xla_says_so():
    # XLA's own positions are instructions; a name with several spans is a tuple.
    spans: dict[str, list] = {}
    for name, start, end in re.findall(r"^    (\S+?)\{[\d,]*\}:(\d+)-(\d+)$", LIVES, re.M):
        spans.setdefault(name, []).append((int(start), int(end)))
    theirs = {name: found[0] for name, found in spans.items() if len(found) == 1}
    heap = [b for b in read_memory(STEP).buffers if b.start and b.name in theirs]
    # Of these no other value takes over the memory, so they are alive as long as it is.
    alone = {"convert.27", "convert.28", "all-reduce.11", "lt.10"}
    assert alone < {b.name for b in heap}
    pairs = list(itertools.combinations(heap, 2))
    assert len(pairs) > 30
    for one, other in pairs:
        together = one.end >= other.start
        start, end = zip(theirs[one.name], theirs[other.name], strict=True)
        if max(start) < min(end):
            assert together, (one, other)
        elif alone.issuperset((one.name, other.name)):
            assert not together, (one, other)


def test_an_update_after_the_gradient_is_of_no_phase():
    _, report = compiled()
    (made,) = (b for b in report.memory.timeline.buffers if b.kind == "outputs")
    assert (made.op, made.phase) == ("jit(step)/sub", "")


def test_what_a_loop_fills_is_one_buffer_with_the_line_of_what_it_keeps():
    peak = read_memory(STEP).peak
    kept = {b.shape: (b.source, b.phase, b.count) for b in peak.saved if b.count != 1}
    assert kept["pred[8,4096,4096]"] == ("mlp.py:10", "forward", 8)
    assert (peak.filled.phase, peak.filled.source) == ("backward", "mlp.py:10")
    large = [b for b in peak.buffers if b.shape == "f32[8,4096,4096]"]
    # The donated weights, which the results take the memory of, and their gradients.
    assert sorted(b.kind for b in large) == ["arguments"] * 2 + ["temporaries"] * 2


def test_a_copy_of_an_argument_names_it():
    peak = read_memory(STEP, {"params['a']": "params.a"}).peak
    assert {b.value for b in peak.buffers if b.op == "params.a"} == {"params.a"}
    halves = [b for b in peak.buffers if b.shape == "bf16[8,4096,4096]" and b.value]
    assert [b.value for b in halves] == ["params.a", "params['b']"]


def test_padding_is_apart_from_what_it_is_in():
    timeline = read_memory(STEP)
    peak = timeline.peak
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
    found = with_values(report, plan_program(made)).memory
    assert len(found.timeline.buffers) == len(report.memory.timeline.buffers)
    by_name = {b.value: b for b in found.peak.buffers if b.value}
    assert by_name["w"].spec == Spec.parse("None, None, b")
    # Which value of an iteration is kept differs from one jax to the next.
    kept = [b for b in found.peak.buffers if b.spec == Spec.parse("a, b")]
    assert {b.count for b in kept} == {6}
    assert by_name["x"].split_bytes is not None
    assert by_name["w"].replicated == ("a",)


def test_values_of_one_line_are_told_apart_by_their_shards():
    def two(x, w):
        return (x @ w) @ (x @ w).T, jnp.sin(x)

    made, report = compiled(two, array("x", (64, 64), "a"), array("w", (64, 64), "None, b"))
    plan = plan_program(made)
    products = [op for op in plan.ops if op.opcode == "dot_general"]
    assert len({op.spec for op in products}) > 1
    assert len({(op.op, op.source) for op in products}) == 1
    buffers = [b for b in with_values(report, plan).memory.timeline.buffers if b.spec is not None]
    assert any("dot_general" in b.op for b in buffers)
    for buffer in buffers:
        if buffer.value in plan.by_name:
            shape = plan.op(buffer.value).shape
            assert (
                buffer.shape == f"f32[{','.join(map(str, local_shape(shape, buffer.spec, MESH)))}]"
            )


def test_what_is_saved_and_replicated_is_counted():
    kept = Buffer("a", 8, "f32[2]", "temporaries", phase="forward", replicated=("model",))
    other = replace(kept, name="b", replicated=())
    again = replace(kept, name="c.remat")
    last = replace(kept, name="d", phase="backward", source="x.py:1")
    peak = MemoryPeak(32, 5, last, (kept, other, again, last))
    assert peak.saved == (kept, other)
    words = "16 B is saved for the backward pass, 8 B of it replicated over model."
    assert str(peak) == f"Peak 32 B at x.py:1, backward: {words}"
    assert replace(peak, filled=kept).saved == ()


def test_what_is_needed_all_the_time_is_the_fault_of_no_operation():
    always = Buffer("w", 8, "f32[2]", "arguments", source="x.py:1", end=1)
    none = Buffer("a", 0, "f32[0]", "temporaries", source="x.py:2", start=1, end=1)
    peak = MemoryTimeline((always, none)).peak
    assert (peak.at, peak.filled) == (0, None)
    assert str(peak) == "Peak 8 B, all the time: 8 B of arguments."
    one = replace(none, bytes=4)
    peak = MemoryTimeline((always, one)).peak
    assert (peak.at, peak.filled) == (1, one)


def test_of_4096_devices_it_is_the_memory_of_one():
    mesh = make_mesh(data=512, model=8)
    w, x = array("w", (6, 64, 64), "None, None, model"), array("x", (4096, 64), "data, None")
    plan = plan_program(program(step, w, x).replace(mesh=mesh))
    kept = Buffer("w", 6 * 64 * 8 * 4, "f32[6,64,8]", "arguments", value="w", end=1)
    made = Buffer("dot", 512, "f32[8,8]", "temporaries", start=1, end=1)
    memory = Memory(timeline=MemoryTimeline((kept, made)), capacity=1 << 20)
    found = with_values(Report("step", "TPU", memory=memory), plan)
    assert found.memory.peak.buffers[0].spec == Spec.parse("None, None, model")
    assert found.memory.peak.buffers[0].replicated == ("data",)
    assert draw(found, view="memory").panels
    assert chart_view(found)["peak"] == 1


def test_what_explains_little_of_a_peak_is_not_said():
    saved = Buffer("a", 8, "f32[2]", "temporaries", phase="forward")
    large = replace(saved, bytes=800, kind="arguments", phase="")
    last = replace(saved, phase="backward", source="x.py:1")
    words = str(MemoryPeak(816, 5, last, (large, saved, last)))
    assert words == "Peak 816 B at x.py:1, backward: 800 B of arguments and 16 B of temporaries."


def test_it_is_sent_in_a_few_bytes():
    found = read_memory(STEP)
    assert len(pickle.dumps(found)) < len(STEP) / 2
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.peak == found.peak
    assert np.array_equal(again.total, found.total)


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
