"""How often the estimate of a plan is right, and how long a plan and the dump take."""

from __future__ import annotations

import contextlib
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.bench.timing import Table, text
from tests.stages.dumps import Entry

# How many times as long as a plan a compile has to take, both with tracing and lowering. There is
# no target for the forward block, nor against XLA's compile alone, without tracing and lowering.
RATIO = 8.0
PROGRAMS = {"transformer block": None, "transformer block, gradient": RATIO}
# Number of devices: sizes of the axes data and model.
MESHES = {8: (4, 2), 64: (16, 4), 512: (64, 8), 65_536: (8192, 8), 1_048_576: (65_536, 16)}
COMPILED = 64  # simulated devices of the compile that the plan is compared with
FLAT, DUMP = 2.0, 0.05
# Python 3.11 has only hooks that are called for every function there is.
RECORDED = 2.0 if hasattr(sys, "monitoring") else 3.0
# A plan against jax's own trace and lower: `sv.plan` alone, with layers in a scan or in a list, and
# with all of its values read.
PLANNED, PLANNED_SCAN = (2.0, 1.6) if hasattr(sys, "monitoring") else (3.0, 2.5)
READ = 6.0
DESCRIBED = "tpu:v5e:4x4"
ROUNDS = 7


def main() -> int:
    """Prints the tables; how many targets were missed."""
    return _child("live") + _child("layers") + _child("calls") + _child("agree")


def _child(what: str) -> int:
    """In a process of its own, since the number of simulated devices is fixed once per process."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-m", "tests.bench.stages", what]
    ran = subprocess.run(command, env={**environment, "JAX_PLATFORMS": "cpu"}, check=False)
    return ran.returncode


def live() -> int:
    """The time of a plan at every size, compared with a compile in the same process."""
    import jax

    jax.config.update("jax_num_cpu_devices", COMPILED)
    jax.devices()
    table = Table()
    for name, ratio in PROGRAMS.items():
        plans = {size: _program(name, *MESHES[size]) for size in MESHES}
        # Alternating with the compile, so that other load on the machine slows both alike.
        runs = {size: _planner(p) for size, p in plans.items()}
        taken = _in_turn({**runs, 0: _compiler(plans[COMPILED])})
        xla = taken.pop(0)
        compiled = xla + _in_turn({0: _lowerer(plans[COMPILED])})[0]
        for size, seconds in taken.items():
            table.row(f"{name}: plan for {size:,} devices", "", text(seconds), True)
        most = max(taken.values())
        table.at_most(f"{name}: the slowest against 8 devices", FLAT, most, taken[8])
        table.at_least(f"{name}: compiled against planned", ratio, taken[COMPILED], compiled)
        table.at_least(f"{name}: compiled against the slowest plan", None, most, compiled)
        table.at_least(f"{name}: XLA's compile alone against the plan", None, taken[COMPILED], xla)
        _dump_row(table, name, plans[COMPILED], ratio is not None)
        _described_row(table, name, _program(name, 4, 4))
    return table.missed


def _described_row(table: Table, name: str, program: Any) -> None:
    """The plan against the compiler of hardware that is not attached; without a target."""
    from shardviz.runs.backend.compile import lower
    from shardviz.runs.backend.targets import compile_only_mesh, missing

    what = f"{name}: a compile for {DESCRIBED} against the plan"
    if error := missing("tpu"):
        table.row(what, "", "-", True, str(error))
        return
    mesh = compile_only_mesh(program.mesh, DESCRIBED)[0]
    found = _in_turn({0: _planner(program)}, 3)[0]
    compiled = _in_turn({0: lambda: _seconds(lower(program, mesh).stage)}, 1)[0]
    table.at_least(what, None, found, compiled)


def layers() -> int:
    """Plans of train steps, beside what jax itself takes to trace and lower them."""
    from tests.stages.train_step import LAYERS, of_equal_layers, train_program

    programs = {
        "a list": (train_program(), PLANNED),
        "a list, checkpointed": (of_equal_layers(in_scan=False), PLANNED),
        "a scan, checkpointed": (of_equal_layers(in_scan=True), PLANNED_SCAN),
    }
    table = Table()
    for way, (program, ratio) in programs.items():
        # Processor time, the least of each: a thread does it all, and other load slows it.
        runs = {
            0: _planner(program, time.thread_time, read=False),
            1: _planner(program, time.thread_time),
            2: _tracer(program),
        }
        unread, total, jaxs = _in_turn(runs, rounds=3).values()
        name = f"train step of {LAYERS} layers in {way}"
        table.row(f"{name}: jax's own trace and lower", "", text(jaxs), True)
        table.at_most(f"{name}: sv.plan against jax's own", ratio, unread, jaxs)
        table.at_most(f"{name}: with all values read", READ, total, jaxs)
    return table.missed


def calls() -> int:
    """What it costs to record the constraint calls of flax models while they are traced."""
    import jax

    import shardviz as sv
    from shardviz.programs.backend.bridge import abstract_mesh
    from shardviz.programs.backend.constraint_calls import recorded_calls
    from shardviz.programs.backend.trace import trace
    from tests.propagation import constraint_models as models
    from tests.real_programs.flax_linen import RULES, Language

    def run(program: Any, recorded: bool) -> float:
        begun = time.thread_time()
        with recorded_calls() if recorded else contextlib.nullcontext():
            trace(program, abstract_mesh(program.mesh))
        return time.thread_time() - begun

    mesh, ids = sv.mesh(models.axes_mesh()), jax.ShapeDtypeStruct((8, 16), "int32")
    table = Table()
    for layers in (1, 2, 8):
        model = Language(layers)
        variables = jax.eval_shape(model.init, jax.random.key(0), jax.numpy.zeros((8, 16), int))
        for what, fn in (
            ("forward", model.apply),
            ("gradient", jax.grad(lambda v, i, m=model: m.apply(v, i).sum())),
        ):
            with models.CONTEXTS["abstract"](), models.in_rules(RULES):
                program = sv.program(lambda v, i, fn=fn: fn(v, i), variables, ids, mesh=mesh)
                count = len(sv.plan(program).constraints)
                runs = {0: lambda p=program: run(p, False), 1: lambda p=program: run(p, True)}
                found = _in_turn(runs)
            name = f"flax, {layers} layers, {what}: {count} calls recorded against none"
            table.at_most(name, RECORDED, found[1], found[0])
    return table.missed


def _tracer(program: Any) -> Callable[[], float]:
    """The time that jax takes by itself to trace and lower a program, without devices."""
    import jax

    from shardviz.programs.backend.bridge import abstract_mesh
    from shardviz.programs.backend.trace import argument_structs

    leaves = argument_structs(program, abstract_mesh(program.mesh))
    arguments = program.tree.unflatten(leaves)

    def run() -> float:
        begun = time.thread_time()
        # A new function every time, since jax keeps what it traced by function.
        fresh = jax.jit(lambda *args: program.fn(*args))
        lowered = fresh.trace(*arguments).lower(lowering_platforms=("cpu",))
        lowered.compiler_ir("stablehlo")
        return time.thread_time() - begun

    return run


def _program(name: str, data: int, model: int) -> Any:
    from shardviz.base.mesh import make_mesh
    from shardviz.gallery import programs

    program = programs.get(name)
    arrays = tuple(
        # A batch that is divisible by data; each device holds no more of it than before.
        a.replace(shape=(max(a.shape[0], data), *a.shape[1:])) if a.name == "x" else a
        for a in program.arrays
    )
    return program.replace(mesh=make_mesh(data=data, model=model), arrays=arrays)


def _planner(
    program: Any, clock: Callable[[], float] = time.perf_counter, read: bool = True
) -> Callable[[], float]:
    from shardviz.plans.backend.build_plan import plan_program

    def run() -> float:
        begun = clock()
        plan = plan_program(program)
        if read:  # propagates
            assert plan.ok, plan.error
        seconds = clock() - begun
        assert plan.ok, plan.error
        return seconds

    return run


def _lowered(program: Any) -> Any:
    from shardviz.runs.backend.compile import lower
    from shardviz.runs.backend.targets import choose, device_mesh

    return lower(program, device_mesh(program.mesh, choose("cpu", program.mesh.size))).stage


def _compiler(program: Any) -> Callable[[], float]:
    """The time of XLA's compile alone, without tracing and lowering."""
    return lambda: _seconds(_lowered(program))


def _lowerer(program: Any) -> Callable[[], float]:
    """The time of tracing and lowering."""

    def run() -> float:
        begun = time.perf_counter()
        _lowered(program)
        return time.perf_counter() - begun

    return run


def _seconds(lowered: Any) -> float:
    begun = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - begun


def _in_turn(
    runs: dict[int, Callable[[], float]], rounds: int = ROUNDS, of: Callable[..., float] = min
) -> dict[int, float]:
    """The least time of each, run alternately, so that other load slows them alike."""
    for run in runs.values():
        run()
    times: dict[int, list[float]] = {size: [] for size in runs}
    for _ in range(rounds):
        for size, run in runs.items():
            times[size].append(run())
    return {size: of(found) for size, found in times.items()}


def _dump_row(table: Table, name: str, program: Any, has_target: bool) -> None:
    from shardviz.runs.backend.partitioner import compile_with_dump

    found = _in_turn(
        {0: _compiler(program), 1: lambda: compile_with_dump(_lowered(program)).seconds},
        rounds=11,
        of=statistics.median,
    )
    share = found[1] / found[0] - 1
    note = f"({text(found[1])} / {text(found[0])})"
    measured = f"{100 * share:+.1f}%"
    target = f"<= {DUMP:.0%}" if has_target else ""
    met = share <= DUMP or not has_target
    table.row(f"{name}: the dump's share", target, measured, met, note)


def agree() -> int:
    """Compares the estimate of every case with the partitioner, by kind, axes and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dumps.pickle"
        subprocess.run([sys.executable, "-m", "tests.stages.dumps", str(path)], check=True)
        entries: dict[tuple[str, str], Entry] = pickle.loads(path.read_bytes())
    same = {
        key: _counted(e.plan.collectives) == _counted(e.collectives) for key, e in entries.items()
    }
    noted = {key: any(op.uncertain for op in e.plan.ops) for key, e in entries.items()}
    print(f"  the estimate equals the partitioner's answer: {_rate(same.values())}")
    print(
        f"  it is wrong and has no note: {_rate(not s and not noted[k] for k, s in same.items())}"
    )
    print(f"  it is right and has a note: {_rate(s and noted[k] for k, s in same.items())}")
    for what, count in (("kind and axes", _kinds), ("bytes sent per device", _sent)):
        alike = [count(e.plan.collectives) == count(e.collectives) for e in entries.values()]
        print(f"  by {what}: {_rate(alike)}")
    print(f"  collective by collective: {_overlap(entries.values())}")
    moved = {key: bool(e.collectives) for key, e in entries.items()}
    print(f"  where the partitioner inserts any: {_rate(s for k, s in same.items() if moved[k])}")
    print("  where they differ:")
    for name in dict.fromkeys(name for name, _ in entries):
        meshes = [mesh for case, mesh in entries if case == name and not same[case, mesh]]
        if meshes:
            entry = entries[name, meshes[-1]]
            words = "" if noted[name, meshes[-1]] else ", without a note"
            print(f"    {name} ({len(meshes)} of 3 meshes{words}), {meshes[-1]}:")
            print(f"      estimate     {_described(entry.plan.collectives)}")
            print(f"      partitioner  {_described(entry.collectives)}")
    return 0


def _counted(collectives: Iterable[Any]) -> Counter[Any]:
    return Counter((c.kind, c.mesh_axes, c.bytes_per_device) for c in collectives)


def _kinds(collectives: Iterable[Any]) -> Counter[Any]:
    return Counter((c.kind, c.mesh_axes) for c in collectives)


def _sent(collectives: Iterable[Any]) -> int:
    return sum(c.sent_bytes or 0 for c in collectives)


def _overlap(entries: Iterable[Entry]) -> str:
    both = estimated = real = 0
    for entry in entries:
        ours, theirs = _counted(entry.plan.collectives), _counted(entry.collectives)
        both += (ours & theirs).total()
        estimated, real = estimated + ours.total(), real + theirs.total()
    return f"{both} alike, of {estimated} estimated and {real} inserted"


def _rate(same: Iterable[bool]) -> str:
    found = list(same)
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.0%})"


def _described(collectives: Iterable[Any]) -> str:
    parts = (
        f"{n} x {kind} over {', '.join(axes) or '?'} of {size:,} B"
        for (kind, axes, size), n in sorted(_counted(collectives).items())
    )
    return "; ".join(parts) or "none"


if __name__ == "__main__":
    sys.exit({"live": live, "layers": layers, "calls": calls, "agree": agree}[sys.argv[1]]())
