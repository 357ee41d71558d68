"""What lowers the peak: each change compiled, with less memory and the same values."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import optax
import pytest

import shardviz as sv
from shardviz.advise.backend import lower
from shardviz.advise.backend.lower import edits_to_try, lower_peak
from shardviz.advise.backend.trials import Trials
from shardviz.advise.candidates import Candidate
from shardviz.advise.words.candidates import costs
from shardviz.base.errors import ProgramError
from shardviz.compiled.memory import Buffer, MemoryTimeline
from shardviz.compiled.report import Memory, Report, peak_bytes

LAYERS, ROWS, WIDTH, HIDDEN = 4, 256, 16, 64
WS = {
    "up": jax.ShapeDtypeStruct((LAYERS, WIDTH, HIDDEN), jnp.float32),
    "down": jax.ShapeDtypeStruct((LAYERS, HIDDEN, WIDTH), jnp.float32),
}
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
MASS = jax.ShapeDtypeStruct((ROWS,), jnp.float32)


def layer(h, w):
    up = jnp.tanh(h @ w["up"])
    return h + jax.nn.relu(up) @ w["down"], None


def scanned(ws, x):
    return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)


def unrolled(ws, x):
    for i in range(LAYERS):
        x, _ = layer(x, jax.tree.map(lambda w, i=i: w[i], ws))
    return jnp.mean(x**2)


def step_of(loss):
    """A step of SGD, which returns the new parameters and the loss."""

    def step(ws, *batch):
        found, gradients = jax.value_and_grad(loss)(ws, *batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients), found

    return step


def program_of(fn, *args, mesh="data=4", donate=()):
    specs = [jax.P()] * (len(args) - 1) + [jax.P("data")]
    return sv.program(fn, args=args, mesh=mesh, in_specs=tuple(specs), donate=donate)


def test_the_peak_of_a_scanned_mlp():
    program = program_of(step_of(scanned), WS, X)
    found = lower_peak(Trials(program, "cpu:4"))
    before = peak_bytes(found[0].before.memory)
    peaks = [one.peak_bytes for one in found]
    assert peaks == sorted(peaks)
    assert peaks[-1] < before
    assert all(one.values.ok for one in found)
    codes = {one.edits[0].code for one in found if len(one.edits) == 1}
    assert "remat" in codes
    # Each is an ordinary program.
    again = sv.compile(found[0].program, target="cpu:4")
    assert peak_bytes(again.memory) == peaks[0]
    codes = [one.code for one in found.refused]
    assert set(codes) <= {"no less memory"}


def test_an_unrolled_loop_has_no_loop_that_saves_less():
    program = program_of(step_of(unrolled), WS, X)
    found = lower_peak(Trials(program, "cpu:4"))
    codes = {each.code for one in found for each in one.edits}
    assert "remat" not in codes


def test_what_a_line_saves_is_split_over_a_free_axis():
    trials = Trials(program_of(step_of(scanned), WS, X, mesh="data=2, model=2"), "cpu:4")
    splits = [edits for edits in edits_to_try(trials) if edits[0].code == "constraint"]
    compiled = trials.compiled(trials.edited(splits[0]))
    assert compiled.memory.temporaries < 0.7 * trials.before.memory.temporaries


def test_a_weight_is_split_along_the_dimension_that_sends_least():
    def mlp(up, down, x):
        return jax.nn.relu(x @ up) @ down

    shapes = [(512, 1024), (1024, 512), (64, 512)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

    def with_up(spec):
        specs = (spec, jax.P("model"), jax.P("data"))
        return sv.program(mlp, *arrays, mesh="data=4, model=2", in_specs=specs)

    changes = lower_peak(Trials(with_up(jax.P()), "cpu:8"))
    peak = peak_bytes(sv.compile(with_up(jax.P(None, "model")), target="cpu:8").memory)
    alone = [c for c in changes if [str(e.spec) for e in c.edits] == ["P(None, 'model')"]]
    assert [candidate.peak_bytes for candidate in alone] == [peak]
    assert changes[0].peak_bytes <= peak < peak_bytes(changes[0].before.memory)
    arguments = [edit.array for edit in changes[0].edits]
    assert len(set(arguments)) == len(arguments) == 2, "both weights are split at last"


def adam_step():
    optimizer = optax.adam(0.1)

    def step(ws, state, x):
        gradients = jax.grad(lambda ws: jnp.mean((x @ ws["up"][0]) ** 2))(ws)
        updates, state = optimizer.update(gradients, state, ws)
        return optax.apply_updates(ws, updates), state

    return step, jax.eval_shape(optimizer.init, WS)


def test_donated_arguments_give_their_memory_to_results():
    step, state = adam_step()
    trials = Trials(program_of(step, WS, state, X, mesh="data=2"), "cpu:2")
    (found,) = (one for one in lower_peak(trials) if [e.code for e in one.edits] == ["donate"])
    aliased = found.report.memory.aliased
    assert aliased >= sum(array.bytes for array in found.program.arrays[:6])
    assert found.peak_bytes < peak_bytes(found.before.memory)
    assert found.values.ok


def test_what_is_beyond_the_budget_is_counted(monkeypatch):
    step, state = adam_step()
    program = program_of(step, WS, state, X, mesh="data=2")
    monkeypatch.setattr(lower, "_MOST_COMPILED", 1)
    found = lower_peak(Trials(program, "cpu:2"))
    assert len(found) + len(found.refused) == 1
    assert found.untried > 1
    assert f"{found.untried} more changes were not tried." in sv.text(found)


def test_an_interrupt_keeps_the_changes_so_far(monkeypatch):
    compiled, reports = Trials.compiled, []

    def interrupted(trials, *what):
        if len(reports) == 2:
            raise KeyboardInterrupt
        reports.append(compiled(trials, *what))
        return reports[-1]

    monkeypatch.setattr(Trials, "compiled", interrupted)
    found = lower_peak(Trials(program_of(step_of(scanned), WS, X), "cpu:4"))
    # A change is compiled, and its report is taken again as that of the candidate.
    assert len(found) + len(found.refused) >= 1
    assert found.untried > 1


def test_what_is_donated_already_is_not_proposed():
    step, state = adam_step()
    # What is donated, what is proposed
    for donated, proposed in (((), (0, 1)), ((1,), (0, 1)), ((0, 1), None)):
        program = program_of(step, WS, state, X, mesh="data=2", donate=donated)
        tried = [edits[0] for edits in edits_to_try(Trials(program))]
        found = [edit.arguments for edit in tried if edit.code == "donate"]
        assert found == ([] if proposed is None else [proposed])


def test_a_program_that_fails_has_no_changes():
    with pytest.raises(ProgramError):
        lower_peak(Trials(program_of(lambda ws, x: x @ x, WS, X), "cpu:4"))


def test_the_peak_of_a_tpu_is_of_its_main_memory():
    # Beside it XLA counts code, gaps, and what is on the core: more where this is donated.
    memory = Memory(100, 40, 60, timeline=MemoryTimeline((Buffer("a", 90, "u8[90]", "arguments"),)))
    report = Report("step", "tpu", memory=memory)
    found = Candidate((), program_of(step_of(scanned), WS, X), report, report)
    assert found.peak_bytes == memory.peak.bytes == 90
    assert "memory per device 90 B" in costs(found)


needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed"
)


@needs_tpu
def test_changes_work_from_a_program_that_does_not_fit():
    ws, x = sv.array("ws", (8, 1024, 1024)), sv.array("x", (1 << 19, 1024), spec="data")
    quick = jax.jit(wide_step, compiler_options={"optimization_level": 9})
    program = sv.program(quick, ws, x, mesh="data=4")
    report = sv.compile(program, target="tpu:v5e:2x2")
    found = sv.changes(report, goal="memory")
    assert report.error.lacks_memory
    assert found[0].fits
    assert found[0].edits[0].code == "remat"
    # jax itself compiles what is proposed.
    again = sv.compile(found[0].program, target="tpu:v5e:2x2")
    assert again.ok
    assert peak_bytes(again.memory) == found[0].peak_bytes
    sizes = [one.peak_bytes for one in found]
    assert sizes == sorted(sizes)


def wide_step(ws, x):
    def body(h, w):
        return jnp.tanh(jnp.tanh(jnp.tanh(h @ w) * 2) * 3), None

    def loss(ws):
        return jnp.mean(jax.lax.scan(body, x, ws)[0] ** 2)

    return ws - 0.1 * jax.grad(loss)(ws)


@needs_tpu
def test_arguments_that_do_not_fit_are_split():
    a, b = sv.array("a", (1 << 16, 1 << 16)), sv.array("b", (1 << 16, 128))
    program = sv.program(jnp.dot, a, b, mesh="data=4")
    found = sv.changes(program, goal="memory", target="tpu:v5e:2x2")
    assert found[0].fits
    assert found[0].edits[0].code == "argument"


def test_a_goal_that_is_unknown_or_beside_a_collective_is_refused():
    program = program_of(step_of(scanned), WS, X)
    with pytest.raises(sv.ShardvizError, match=r"no goal 'memroy'\. Did you mean 'memory'\?"):
        sv.changes(program, goal="memroy")
    with pytest.raises(sv.ShardvizError, match="goal"):
        sv.changes(program, 0, goal="memory")


def test_a_function_with_its_arguments_is_changed_as_its_program_is():
    def step(w, x):
        return x @ w

    arrays = sv.array("w", (64, 64), spec="model, None"), sv.array("x", (64, 64), spec="data, None")
    mesh = "data=2, model=2"
    of_function = sv.changes(step, *arrays, mesh=mesh, target="cpu:4", collective=0)
    of_program = sv.changes(sv.program(step, *arrays, mesh=mesh), 0, target="cpu:4")
    assert [change.edit for change in of_function] == [change.edit for change in of_program] != []
    plan = sv.plan(step, *arrays, mesh=mesh)
    for arguments, keywords in (((0, 1), {}), ((0,), {"mesh": mesh}), ((0,), {"collective": 0})):
        with pytest.raises(sv.ShardvizError, match="one collective or goal"):
            sv.changes(plan, *arguments, **keywords)


def test_layers_in_a_python_loop_get_a_checkpoint_in_words():
    x = jax.ShapeDtypeStruct((1 << 13, WIDTH), jnp.float32)
    found = lower_peak(Trials(program_of(step_of(unrolled), WS, x, donate=(0,)), "cpu:4"))
    in_parts, layers = found.advice
    assert (in_parts.kind, layers.large.code) == ("accumulation", "layers")
    assert "jax.checkpoint(" in sv.text(found)
