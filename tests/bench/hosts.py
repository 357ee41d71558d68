"""Programs on several processes: are they right, what do they cost, what happens at faults?

python -m tests.bench.hosts right             20 programs x {1, 2, 4} processes x 2 mesh orders
python -m tests.bench.hosts many 60           the same of the 60 programs of tests/stages
python -m tests.bench.hosts cost              what sv.run adds to running the same by hand
python -m tests.bench.hosts faults 50 7       50 engines ended or stopped at random, seed 7
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import replace
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import numpy as np

import shardviz as sv
from tests.bench.processes import apart
from tests.hosts.programs import CASES, orders, wrong
from tests.spmd.same_script import of_eight
from tests.stages import programs

DEVICES = 8
SIZE, STEPS = 384, 5  # of the program that is timed: about 100 ms
REPEATS = 15
CLOSE = 1e-5  # of the largest value: sums in another order


def started(count: int) -> Any:
    begun = time.perf_counter()
    hosts = sv.hosts(count, devices=DEVICES // count)
    print(f"{hosts.name}: up in {time.perf_counter() - begun:.1f} s", flush=True)
    return hosts


def right() -> None:
    """Every program, on every number of processes, in both orders of the mesh."""
    runs, problems = 0, []
    for count in (1, 2, 4):
        with started(count) as hosts:
            for order, mesh in orders(hosts.device_ids).items():
                for case in CASES:
                    values = case.values()
                    report = sv.run(case.program(mesh), *values, target=hosts)
                    problems += [f"{count} x {order}: {w}" for w in wrong(case, report, values)]
                    runs += 1
    print(f"{runs} runs, {len(problems)} problems")
    print("\n".join(problems))


def many(most: int = 60) -> None:
    """Programs of the tests of stages: their results are held against those of one engine."""
    reference: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    problems: list[str] = []
    runs = equal = 0
    for count in (1, 2, 4):
        with started(count) as hosts:
            for order in ("in order", "interleaved"):
                for number, case in enumerate(programs.CASES[:most]):
                    made = case.program(of_eight(case))
                    ids = orders(hosts.device_ids)[order].device_ids.reshape(made.mesh.axis_sizes)
                    report = sv.run(
                        made.replace(mesh=replace(made.mesh, device_ids=ids)), target=hosts
                    )
                    leaves = enumerate(jax.tree.leaves(report.outputs))
                    found = {str(at): plain(leaf) for at, leaf in leaves}
                    far = apart(found, reference.setdefault((order, number), found))
                    bad = [f"{c.name}: {c.detail}" for c in report.checks if c.ok is False]
                    if report.error is not None:
                        bad.append(report.error.message)
                    if far > CLOSE:
                        bad.append(f"results are apart by {far:.2g} of the largest value")
                    problems += [f"{count} x {order}: {case.name}: {words}" for words in bad]
                    runs, equal = runs + 1, equal + (far == 0)
            print(
                f"   {runs} runs, {equal} equal in every bit, {len(problems)} problems", flush=True
            )
    print("\n".join(problems))


def plain(array: Any) -> np.ndarray:
    """The numbers of an array, of random keys, too."""
    keys = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if keys else array)


def work(x):
    def step(_, c):
        return jnp.tanh(c @ c.T @ c / SIZE) + c.sum() / 1e6

    return jax.lax.fori_loop(0, STEPS, step, x)


# What a person writes who has no sv.run: on each engine, once and then per run.
BY_HAND = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
SIZE, STEPS = {size}, {steps}
def work(x):
    def step(_, c):
        return jnp.tanh(c @ c.T @ c / SIZE) + c.sum() / 1e6
    return jax.lax.fori_loop(0, STEPS, step, x)
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, P("data"))
jitted = jax.jit(work, in_shardings=sharding)
def once(values):
    x = jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])
    y = jax.block_until_ready(jitted(x))
    return [np.asarray(s.data) for s in y.addressable_shards]
"""


def cost() -> None:
    """The time of sv.run and of the same by hand on the same processes, in turn."""
    with started(2) as hosts:
        engines = hosts.client[:]
        engines.execute(BY_HAND.format(size=SIZE, steps=STEPS), block=True)
        values = np.random.default_rng(0).uniform(0, 1, (SIZE, SIZE)).astype(np.float32)
        x = sv.array("x", (SIZE, SIZE), spec="data, None")
        program = sv.program(work, x, mesh=hosts.mesh(data=DEVICES), name="work")
        by_hand: list[float] = []
        ours: list[float] = []
        parts: list[float] = []
        engines.push({"values": values}, block=True)
        for number in range(REPEATS + 2):
            begun = time.perf_counter()
            engines.push({"values": values}, block=True)
            engines.execute("result = once(values)", block=True)
            engines.pull("result", block=True)
            middle = time.perf_counter()
            report = sv.run(program, values, target=hosts)
            end = time.perf_counter()
            assert report.ok, report.error
            if number >= 2:  # both have compiled
                by_hand.append(middle - begun)
                ours.append(end - middle)
                parts.append(max(p.seconds["check"] for p in report.processes))
        hand, own, check = map(statistics.median, (by_hand, ours, parts))
        print(f"by hand {hand * 1e3:.0f} ms, sv.run {own * 1e3:.0f} ms: {own / hand - 1:+.0%}")
        print(f"  of which the comparison with the unsharded function {check * 1e3:.0f} ms;")
        print(f"  without it {(own - check) * 1e3:.0f} ms: {(own - check) / hand - 1:+.0%}")


def faults(count: int, seed: int) -> None:
    """Engines ended or stopped at random moments of a run; then the next run on new ones."""
    rng, late, wrong_rank, left = random.Random(seed), 0, 0, 0
    hosts = sv.hosts(2, devices=2)
    x = sv.array("x", (64, 64), spec="data, None")
    for number in range(count):
        rank, what = rng.randrange(2), rng.choice([signal.SIGKILL, signal.SIGSTOP])
        pids, delay, hit = [p.pid for p in hosts.processes], rng.uniform(0, 2.5), []

        def end(pid=pids[rank], what=what, hit=hit) -> None:
            hit.append(time.monotonic())
            os.kill(pid, what)

        timer = threading.Timer(delay, end)
        timer.start()
        program = sv.program(endless, x, mesh=hosts.mesh(data=4), name=f"endless {number}")
        report = sv.run(program, target=hosts)
        seconds = time.monotonic() - hit[0]
        timer.join()
        message = report.error.message if report.error else "no error"
        stage = report.error.stage if report.error else "-"
        named = message.startswith(f"Process {rank} (pid {pids[rank]}")
        named = named and (f"in the stage {stage!r}" in message or "in the stage" not in message)
        named = named and "no exit code" not in message
        late += seconds > hosts.heartbeat + 5
        wrong_rank += not named
        time.sleep(0.2)
        left += sum(os.path.exists(f"/proc/{pid}") for pid in pids)
        print(f"{number}: {what.name} of {rank} after {delay:.2f} s: {seconds:.1f} s, {stage}")
        print(f"    {message[:110]}", flush=True)
        hosts.close()
        hosts = sv.hosts(2, devices=2)
        quick = sv.program(lambda x: x.sum(), x, mesh=hosts.mesh(data=4))
        assert sv.run(quick, target=hosts).ok
    hosts.close()
    print(f"{count} faults: {late} late, {wrong_rank} not named, {left} processes left")


def endless(x):
    return jax.lax.fori_loop(0, 10_000_000, lambda _, c: jnp.tanh(c @ c.T) + c.sum() / 1e6, x)


if __name__ == "__main__":
    name, *numbers = sys.argv[1:] or ["cost"]
    {"right": right, "many": many, "cost": cost, "faults": faults}[name](*map(int, numbers))
