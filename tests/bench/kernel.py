"""Random programs, planned and then run: does the kernel live, and is each as plain jit has it?

    python -m tests.bench.kernel 2000          the first 2,000
    python -m tests.bench.kernel 500 600       those from 500 on
    python -m tests.bench.kernel --only 1 139  these alone
    python -m tests.bench.kernel --kinds 2000  only which operations the first 2,000 are made of

Two processes get each program. The kernel plans it and runs it with `sv.run`, which is in the
worker. The other compiles and runs the same function under plain `jax.jit` on simulated devices of
its own, with the same compiler options. Their values are compared, and the collectives, which are
counted in the text that jax compiled by a regular expression of its own. Either process may end:
that is counted, and a new one takes the next program.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shardviz.programs.backend.jaxprs import operations
from tests.bench.operations import MORE
from tests.quick_compiles import quick_options
from tests.stages.programs import Case
from tests.stages.random_programs import program

_DEVICES = 8
_SECONDS = 240  # the longest that one program may take
_REPORT_EVERY = 50
# An instruction that moves data; of an asynchronous pair the start.
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all)"
    r"(?:-start)?\("
)


@dataclass
class Answer:
    """What one process found.

    Attributes:
        error: why there are no values, in words.
        planned: why there is no plan, in words.
        values: the results.
        collectives: how many of each kind.
        notes: checks of the run that failed.
        kinds: the operations that the program is made of.
        seconds: how long it took.
        ended: whether the process ended or hung, and did not answer itself.
    """

    error: str = ""
    planned: str = ""
    values: list[np.ndarray] = field(default_factory=list)
    collectives: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    seconds: float = 0.0
    ended: bool = False


def made(seed: int) -> tuple[Case, Any, list[np.ndarray]]:
    """The program of a number: its case, the Program and the values of its arguments."""
    case = program(seed, MORE)
    one = case.program(case.meshes[0]).replace(options=quick_options())
    rng = np.random.default_rng(0)
    return case, one, [rng.uniform(0.1, 1, a.shape).astype(a.dtype) for a in one.arrays]


def in_kernel(seed: int) -> Answer:
    """The program in shardviz: planned, then run."""
    import shardviz as sv

    _, one, values = made(seed)
    plan = sv.plan(one)
    report = sv.run(one, *values)
    planned = str(plan.error or "")
    if report.error:
        return Answer(str(report.error), planned=planned)
    return Answer(
        planned=planned,
        values=[np.asarray(v) for v in jax.tree.leaves(report.outputs)],
        collectives=Counter(c.kind for c in report.collectives or ()),
        notes=[f"{c.name}: {c.detail}" for c in report.checks if c.ok is False],
    )


def in_plain_jax(seed: int) -> Answer:
    """The program under plain `jax.jit`, on devices of this process."""
    case, one, values = made(seed)
    shape = one.mesh.axis_sizes
    mesh = Mesh(np.array(jax.devices()[: one.mesh.size]).reshape(shape), one.mesh.axis_names)
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(value, NamedSharding(mesh, request.spec.to_jax()))
            for value, request in zip(values, one.requests, strict=True)
        ]
        out = None if case.out is None else NamedSharding(mesh, one.out_specs.to_jax())
        try:
            traced = jax.jit(case.fn, out_shardings=out).trace(*placed)
            kinds = {o.name for o in operations(traced.jaxpr)}
            compiled = traced.lower().compile(compiler_options=quick_options())
            results = jax.device_get(jax.tree.leaves(compiled(*placed)))
        except Exception as error:  # noqa: BLE001  whatever jax refuses
            return Answer(f"{type(error).__name__}: {error}")
    found = Counter(_COLLECTIVE.findall(compiled.as_text() or ""))
    return Answer(values=results, collectives=found, kinds=kinds)


def _serve(answer: Callable[[int], Answer], devices: int, connection: Connection) -> None:
    if devices > 1:
        jax.config.update("jax_num_cpu_devices", devices)
    while True:
        try:
            seed, begun = connection.recv(), time.perf_counter()
        except EOFError:  # there are no more
            return
        found = answer(seed)
        found.seconds = time.perf_counter() - begun
        connection.send(found)


class Process:
    """Answers for one program after the other; started anew where it ends.

    Args:
        answer: what it does.
        devices: how many it simulates.
    """

    def __init__(self, answer: Callable[[int], Answer], devices: int = 1) -> None:
        self._answer, self._devices = answer, devices
        self._process: Any = None
        self._connection: Any = None

    def ask(self, seed: int) -> None:
        """Begins with a program."""
        if self._process is None or not self._process.is_alive():
            spawn = multiprocessing.get_context("spawn")
            self._connection, other = spawn.Pipe()
            arguments = self._answer, self._devices, other
            self._process = spawn.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            other.close()
        self._connection.send(seed)

    def answer(self) -> Answer:
        """What it found; waits for it."""
        try:
            if self._connection.poll(_SECONDS):
                return self._connection.recv()
            words = f"no answer after {_SECONDS} s"
            self._process.kill()
        except (EOFError, ConnectionResetError):
            words = "the process ended"
        self._process.join()
        return Answer(f"{words}, exit code {self._process.exitcode}", ended=True)


def differences(ours: Answer, plain: Answer) -> dict[str, str]:
    """How the kernel's answer differs from that of plain jit: kind to words."""
    if ours.ended:
        return {"dead kernels": ours.error}
    if plain.error:
        what = "plain jit ends its process" if plain.ended else "plain jit refuses"
        if ours.error:
            return {what: f"{plain.error[:200]} | ours: {ours.error[:200]}"}
        return {f"{what}, sv.run does not": plain.error}
    if ours.error:
        return {"refused by sv.run alone": ours.error}
    found = {"refused by sv.plan": ours.planned} if ours.planned else {}
    for one, other in zip(ours.values, plain.values, strict=True):
        if not np.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True):
            found["values different"] = f"by {np.max(np.abs(one - other))}"
        elif not np.array_equal(one, other, equal_nan=True):
            found["values equal but for the last bits"] = f"by {np.max(np.abs(one - other))}"
    if ours.collectives != plain.collectives:
        found["collectives different"] = f"{dict(ours.collectives)}, {dict(plain.collectives)}"
    if ours.notes:
        found["differs from the unsharded function"] = "; ".join(ours.notes)
    return found


WRONG = (
    "dead kernels",
    "refused by sv.run alone",
    "refused by sv.plan",
    "values different",
    "collectives different",
)


def run(seeds: Sequence[int]) -> int:
    """Compares the programs of these numbers; how many are wrong."""
    kernel, other = Process(in_kernel), Process(in_plain_jax, _DEVICES)
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    begun = time.perf_counter()
    spent = [0.0, 0.0]
    for done, seed in enumerate(seeds, 1):
        other.ask(seed)
        plain = other.answer()
        kernel.ask(seed)
        ours = kernel.answer()
        kinds |= plain.kinds
        spent = [spent[0] + ours.seconds, spent[1] + plain.seconds]
        counts["programs"] += 1
        for what, words in differences(ours, plain).items():
            counts[what] += 1
            print(f"random {seed}: {what}: {' '.join(words.split())[:500]}", flush=True)
        if done % _REPORT_EVERY == 0 or done == len(seeds):
            seconds = time.perf_counter() - begun
            print(
                f"-- {seeds[0]} to {seed}, jax {jax.__version__}: {dict(counts)};"
                f" {seconds / done:.2f} s per program (shardviz {spent[0] / done:.2f}, plain jit"
                f" {spent[1] / done:.2f}); {len(kinds)} kinds of operation",
                flush=True,
            )
    return sum(counts[what] for what in WRONG)


def count_kinds(count: int) -> None:
    """Prints of which operations the first programs are made, and how many have each."""
    from shardviz.programs.backend.bridge import abstract_mesh
    from shardviz.programs.backend.trace import trace

    found: Counter[str] = Counter()
    for seed in range(count):
        _, one, _ = made(seed)
        found.update({o.name for o in operations(trace(one, abstract_mesh(one.mesh)).stage.jaxpr)})
    for name, programs in found.most_common():
        print(f"{programs:6,} {name}")
    print(f"{len(found)} kinds of operation in {count:,} programs")


def command(words: Sequence[str]) -> int:
    """What the words of the command line ask for; how many programs are wrong."""
    numbers = [int(word) for word in words if not word.startswith("--")] or [2000]
    if "--kinds" in words:
        count_kinds(numbers[0])
        return 0
    if "--only" in words:
        return run(numbers)
    return run(range(*numbers[:2]))


if __name__ == "__main__":
    sys.exit(bool(command(sys.argv[1:])))
