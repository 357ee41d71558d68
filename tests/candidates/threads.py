"""Public threads in which somebody named the edit that removes a collective.

Each case is a small program of our own with the collective that the thread is about, and
the edit that was named there. `python -m tests.candidates.threads [number ...]` runs
them all and prints at which place `sv.changes` proposes that edit.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.candidates import Candidate, Edit

wsc = jax.lax.with_sharding_constraint


@dataclass(frozen=True)
class Case:
    """One thread.

    Attributes:
        thread: repository and number.
        fn, arrays, specs: the program.
        unwanted: kind and mesh axes of the collective that is to go.
        edit: whether an edit is the one that was named.
        mesh: its mesh.
        out_specs: the results' specs.
        partitionable: `jax_threefry_partitionable`.
        target: what it is compiled for.
        fixed: the version of jax from which on XLA needs no edit.
    """

    thread: str
    fn: Callable[..., Any]
    arrays: Sequence[Any]
    specs: Sequence[Any]
    unwanted: tuple[str, tuple[str, ...]]
    edit: Callable[[Edit], bool]
    mesh: str = "data=8"
    out_specs: Any = None
    partitionable: bool = True
    target: str | None = None
    fixed: str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether this version of XLA does without an edit."""

        def numbers(version: str) -> tuple[int, ...]:
            return tuple(map(int, version.split(".")[:2]))

        return bool(self.fixed) and numbers(jax.__version__) >= numbers(self.fixed)

    def program(self) -> Any:
        """The program of the thread, as we write it."""
        return sv.program(
            self.fn,
            *self.arrays,
            mesh=sv.mesh(self.mesh),
            in_specs=tuple(self.specs),
            out_specs=self.out_specs,
        )

    def context(self) -> Any:
        """The options of jax that the thread has."""
        return jax.threefry_partitionable(self.partitionable)

    def collective(self, report: Any) -> Any:
        """The collective that is to go, the largest of its kind."""
        kind, axes = self.unwanted
        alike = []
        for one in report.collectives:
            if one.kind == kind and set(one.mesh_axes) == set(axes):
                alike.append(one)
        return max(alike, key=lambda one: one.sent_in_all)


def place(case: Case, changes: Sequence[Candidate]) -> int:
    """At which place the edit of the thread is proposed; 0 for nowhere."""
    for number, candidate in enumerate(changes, 1):
        if any(map(case.edit, candidate.edits)):
            return number
    return 0


# Edits, as cases name them.


def _same(spec: Any, wanted: Any) -> bool:
    dims = list(spec.dims)
    while dims and not dims[-1]:
        dims.pop()
    return tuple(dims) == Spec.of(*wanted).dims


def argument(name: str, *specs: P) -> Callable[[Edit], bool]:
    """The argument of that name, with one of these specs."""

    def is_it(edit: Edit) -> bool:
        named = edit.code == "argument" and edit.fields["array"] == name
        return named and any(_same(edit.fields["spec"], spec) for spec in specs)

    return is_it


def result(*specs: P) -> Callable[[Edit], bool]:
    """A result with one of these specs."""

    def is_it(edit: Edit) -> bool:
        found = edit.code == "result"
        return found and any(_same(edit.fields["spec"], spec) for spec in specs)

    return is_it


def constraint(*specs: P) -> Callable[[Edit], bool]:
    """A constraint of a value to one of these specs."""

    def is_it(edit: Edit) -> bool:
        found = edit.code == "constraint"
        return found and any(_same(edit.fields["spec"], spec) for spec in specs)

    return is_it


def shard_map(*operations: str) -> Callable[[Edit], bool]:
    """A `shard_map` around one of these."""

    def is_it(edit: Edit) -> bool:
        return edit.code == "shard_map" and edit.fields["operation"] in operations

    return is_it


def option(edit: Edit) -> bool:
    """The option for random numbers."""
    return edit.code == "option" and "threefry" in edit.fields["code"]


def either(*edits: Callable[[Edit], bool]) -> Callable[[Edit], bool]:
    """Any of some edits, where they do the same."""
    return lambda edit: any(one(edit) for one in edits)


# The programs.


def grouped_convolution(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2)


def train_grouped(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.square(grouped_convolution(jnp.tanh(x), w)).sum()

    return w - 0.1 * jax.grad(loss)(w)


def batched_fft(x: Any) -> Any:
    return jax.vmap(jnp.fft.fft)(x)


def padded_fft(x: Any) -> Any:
    return jnp.fft.fft(x, n=64, axis=1)


def spectrum(x: Any) -> Any:
    return jnp.abs(jnp.fft.rfft(jnp.tanh(x), axis=-1))


def nested_loops(y: Any, theta: Any) -> Any:
    def solve(y: Any, theta: Any) -> Any:
        def inner(y: Any) -> Any:
            return jax.lax.while_loop(lambda y: y < 10, lambda y: y + theta, y)

        def outer(state: Any) -> Any:
            y, count = state
            return inner(y * 0.5), count + 1

        return jax.lax.while_loop(lambda state: state[1] < 3, outer, (y, 0))[0]

    return jax.vmap(solve)(y, jnp.abs(theta) + 0.5)


def loops_of_their_own_length(y: Any, count: Any) -> Any:
    def solve(y: Any, count: Any) -> Any:
        def step(state: Any) -> Any:
            y, at = state
            return jnp.sin(y), at + 1

        return jax.lax.while_loop(lambda s: s[1] < count, step, (y, 0))[0]

    return jax.vmap(solve)(y, count)


def adaptive_steps(y: Any) -> Any:
    def solve(y: Any) -> Any:
        def step(state: Any) -> Any:
            t, y, h = state
            change = -y * h
            error = jnp.max(jnp.abs(change)) * 0.5
            keep = error < 0.1
            y = jnp.where(keep, y + change, y)
            t = jnp.where(keep, t + h, t)
            return t, y, jnp.where(keep, h * 1.5, h * 0.5)

        start = (jnp.zeros(()), y, jnp.full((), 0.1))
        return jax.lax.while_loop(lambda state: state[0] < 1.0, step, start)[1]

    return jax.vmap(solve)(y)


def dropout(x: Any) -> Any:
    keep = jax.random.uniform(jax.random.key(0), x.shape) < 0.9
    return jnp.where(keep, x / 0.9, 0.0)


def noise(x: Any) -> Any:
    return x + jax.random.normal(jax.random.key(1), x.shape)


def shuffled_rows(x: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), x.shape[0])
    return jax.vmap(jax.random.permutation)(keys, x)


def microbatches(w: Any, x: Any) -> Any:
    x = x.reshape(4, 16, 32)

    def step(total: Any, part: Any) -> Any:
        return total + jnp.square(part @ w).sum(), None

    return jax.lax.scan(step, jnp.zeros(()), x)[0]


def accumulated(w: Any, x: Any) -> Any:
    parts = x.reshape(4, 128, 32)

    def step(total: Any, part: Any) -> Any:
        grad = jax.grad(lambda w: jnp.square(jnp.tanh(part @ w)).mean())(w)
        return total + grad, None

    return jax.lax.scan(step, jnp.zeros_like(w), parts)[0]


def tiled_loss(hidden: Any, table: Any) -> Any:
    tiles = hidden.reshape(4, 64, 32)

    def loss(tile: Any) -> Any:
        return jax.nn.logsumexp(tile @ table, axis=-1).sum()

    return jax.lax.map(loss, tiles).sum()


def embedding(table: Any, ids: Any, w: Any) -> Any:
    ids = wsc(ids + 1, P(None, None))
    x = table[ids]
    return jnp.tanh(x @ w)


def requested_whole(table: Any, ids: Any) -> Any:
    x = wsc(table[ids], P(None, None, None))
    return jnp.tanh(x) * 2


def argsort_rows(x: Any) -> Any:
    return jnp.argsort(x, axis=0)


def jacobian(x: Any, w: Any) -> Any:
    return jax.jacrev(lambda w: jnp.tanh(x @ w))(w)


def adam(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    return p - 0.1 * m, m


def zeros_and_ranges(x: Any) -> Any:
    return jnp.cumsum(x, axis=1) * 2


def decoded(cache: Any, new: Any, q: Any) -> Any:
    cache = jax.lax.dynamic_update_slice(cache, new, (0, 5, 0, 0))
    return cache, jnp.einsum("bhd,bshd->bhs", q, cache)


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def split_by_batch_alone(x: Any, w: Any) -> Any:
    x = wsc(jnp.tanh(x), P("data", None))
    return x @ w


def momentum(m: Any, g: Any) -> Any:
    return 0.9 * m + 0.1 * g


def in_groups_of_samples(x: Any, w: Any) -> Any:
    return jax.lax.map(lambda x: jnp.tanh(w @ x), x, batch_size=4)


def scanned_steps(w: Any, data: Any) -> Any:
    def step(w: Any, batch: Any) -> Any:
        grad = jax.grad(lambda w: jnp.square(batch @ w).mean())(w)
        return w - 0.1 * grad, None

    return jax.lax.scan(step, w, data)[0]


def moved_twice(a: Any, b: Any, c: Any) -> Any:
    d = wsc(a + b, P(None, ("data", "model"), None))
    return c + d


def mnist_step(w: Any, x: Any) -> Any:
    grad = jax.grad(lambda w: jnp.square(jnp.tanh(x @ w)).mean())(w)
    return w - 0.1 * grad


def vocabulary(x: Any, table: Any, labels: Any) -> Any:
    logits = wsc(x @ table, P("data", None))
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def best_of_each(logits: Any) -> Any:
    return jax.lax.top_k(logits, 4)


def inverses(x: Any) -> Any:
    return jnp.linalg.inv(x)


def decompositions(x: Any) -> Any:
    return jnp.linalg.eigh(x @ x.swapaxes(1, 2))


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


D, M, N = "data", "model", None
GATHER, SUM = "all-gather", "all-reduce"

CASES = (
    # A batch that XLA gathers whole for a convolution in groups.
    Case(
        "xla#47945",
        grouped_convolution,
        (f32(32, 4, 16), f32(8, 2, 3)),
        (P(D), P()),
        (GATHER, (D,)),
        shard_map("conv_general_dilated", "grouped_convolution"),
    ),
    Case(
        "xla#48086",
        train_grouped,
        (f32(8, 2, 3), f32(32, 4, 16)),
        (P(), P(D)),
        (GATHER, (D,)),
        shard_map("conv_general_dilated", "grouped_convolution"),
    ),
    Case(
        "jax#20683",
        batched_fft,
        (f32(16, 64),),
        (P(D),),
        (GATHER, (D,)),
        shard_map("fft"),
        fixed="0.11",
    ),
    Case(
        "jax#15680",
        padded_fft,
        (f32(16, 32),),
        (P(D),),
        (GATHER, (D,)),
        shard_map("fft"),
        fixed="0.11",
    ),
    Case(
        "xla#48530",
        spectrum,
        (f32(16, 32),),
        (P(D),),
        (GATHER, (D,)),
        shard_map("fft", "rfft", "spectrum"),
        fixed="0.11",
    ),
    Case(
        "jax#20968",
        nested_loops,
        (f32(16), f32(16)),
        (P(D), P(D)),
        (SUM, (D,)),
        shard_map("loop", "while"),
    ),
    Case(
        "jax#26586",
        loops_of_their_own_length,
        (f32(16), i32(16)),
        (P(D), P(D)),
        (SUM, (D,)),
        shard_map("loop", "while"),
    ),
    Case(
        "diffrax#407",
        adaptive_steps,
        (f32(16, 4),),
        (P(D),),
        (SUM, (D,)),
        shard_map("loop", "while"),
    ),
    Case(
        "jax#14559", dropout, (f32(64, 32),), (P(D),), (GATHER, (D,)), option, partitionable=False
    ),
    Case("jax#15484", noise, (f32(64, 32),), (P(D),), (GATHER, (D,)), option, partitionable=False),
    Case(
        "jax#20381",
        shuffled_rows,
        (f32(16, 32, 4),),
        (P(D),),
        (GATHER, (D,)),
        option,
        partitionable=False,
    ),
    Case(
        "levanter#342",
        microbatches,
        (f32(32, 32), f32(64, 32)),
        (P(), P(D)),
        (GATHER, (D,)),
        constraint(P(N, D)),
    ),
    Case(
        "xla#13306",
        accumulated,
        (f32(32, 8), f32(512, 32)),
        (P(), P(D)),
        (GATHER, (D,)),
        constraint(P(N, D)),
    ),
    Case(
        "maxtext#2242",
        tiled_loss,
        (f32(256, 32), f32(32, 64)),
        (P(D), P()),
        (GATHER, (D,)),
        constraint(P(N, D)),
    ),
    Case(
        "sglang-jax#1083",
        requested_whole,
        (f32(64, 32), i32(16, 8)),
        (P(), P(D)),
        (GATHER, (D,)),
        constraint(P(D)),
        out_specs=P(D),
    ),
    Case(
        "jax#35650",
        argsort_rows,
        (f32(256, 4),),
        (P(D),),
        (GATHER, (D,)),
        either(argument("x", P(), P(N, D)), constraint(P(), P(N, D))),
    ),
    Case(
        "jax#25844",
        jacobian,
        (f32(32, 16), f32(16, 4)),
        (P(D), P()),
        (SUM, (D,)),
        result(P(D)),
        out_specs=P(),
    ),
    Case(
        "flax#5172",
        adam,
        (f32(64, 16), f32(64, 16), f32(64, 16)),
        (P(), P(D), P()),
        (GATHER, (D,)),
        either(argument("p", P(D)), argument("m", P()), result(P(D))),
        out_specs=(P(), P(D)),
    ),
    Case(
        "jax#18263",
        zeros_and_ranges,
        (f32(64, 16),),
        (P(D),),
        (GATHER, (D,)),
        result(P(D)),
        out_specs=P(),
    ),
    Case(
        "EasyLM#42",
        layer,
        (f32(64, 32), f32(32, 64)),
        (P(D), P(D, M)),
        (GATHER, (D,)),
        argument("w", P(N, M)),
        mesh="data=4, model=2",
    ),
    Case(
        "openpi#193",
        split_by_batch_alone,
        (f32(64, 32), f32(32, 8)),
        (P((D, M)), P()),
        (GATHER, (M,)),
        constraint(P((D, M))),
        mesh="data=2, model=4",
        out_specs=P((D, M)),
    ),
    Case(
        "keras#21559",
        momentum,
        (f32(64, 16), f32(64, 16)),
        (P(D), P(D)),
        (GATHER, (D,)),
        result(P(D)),
        out_specs=P(),
    ),
    Case(
        "folx#36",
        in_groups_of_samples,
        (f32(64, 16), f32(16, 16)),
        (P(D), P()),
        (GATHER, (D,)),
        shard_map("map", "scan", "in_groups_of_samples"),
        out_specs=P(D),
    ),
    Case(
        "gemma#648",
        decoded,
        (f32(4, 64, 8, 16), f32(4, 1, 8, 16), f32(4, 8, 16)),
        (P(), P(N, N, M), P(N, M)),
        (GATHER, (M,)),
        either(result(P(N, N, M)), argument("cache", P(N, N, M))),
        mesh="model=8",
        out_specs=(P(), P(N, M)),
    ),
    Case(
        "flax#4417",
        scanned_steps,
        (f32(16, 4), f32(8, 32, 16)),
        (P(), P(D)),
        (GATHER, (D,)),
        argument("data", P(N, D)),
    ),
    Case(
        "jax#21562",
        moved_twice,
        (f32(16, 16, 16),) * 3,
        (P(M, N, D), P(M, N, D), P(N, (D, M), N)),
        (GATHER, (M,)),
        either(
            argument("a", P(N, (D, M))),
            argument("b", P(N, (D, M))),
            constraint(P(N, (D, M)), P(N, (M, D)), P(N, D), P(N, M), P(M, D), P(N, D, M)),
        ),
        mesh="data=4, model=2",
    ),
    Case(
        "jax#28372",
        mnist_step,
        (f32(32, 16), f32(64, 32)),
        (P(N, D), P(D)),
        (GATHER, (D,)),
        argument("w", P()),
        out_specs=P(),
    ),
    Case(
        "tpu-inference#3511",
        vocabulary,
        (f32(16, 32), f32(32, 256), i32(16)),
        (P(D), P(N, M), P(D)),
        (GATHER, (M,)),
        constraint(P(D, M)),
        mesh="data=2, model=4",
    ),
    Case(
        "tpu-inference#1643",
        embedding,
        (f32(64, 32), i32(16, 8), f32(32, 32)),
        (P(), P(D), P()),
        (GATHER, (D,)),
        constraint(P(D)),
        out_specs=P(D),
    ),
    Case(
        "jax#19271",
        best_of_each,
        (f32(16, 64),),
        (P(D),),
        (GATHER, (D,)),
        shard_map("top_k", "best_of_each"),
    ),
    Case(
        "jax#8542",
        inverses,
        (f32(16, 8, 8),),
        (P(D),),
        (GATHER, (D,)),
        shard_map("inv", "lu", "solve"),
        target="tpu:v5e:2x4",
    ),
    Case(
        "jax#15803",
        decompositions,
        (f32(16, 8, 8),),
        (P(D),),
        (GATHER, (D,)),
        shard_map("eigh"),
        target="tpu:v5e:2x4",
    ),
)


def main(names: Sequence[str]) -> None:
    """Runs cases and prints a line for each."""
    first, false = 0, 0
    cases = []
    for case in CASES:
        if (not names or case.thread in names) and not case.is_fixed:
            cases.append(case)
    for case in cases:
        begun = time.perf_counter()
        with contextlib.ExitStack() as stack:
            stack.enter_context(case.context())
            program = case.program()
            report = sv.compile(program, target=case.target)
            try:
                collective = case.collective(report)
            except ValueError:
                print(f"{case.thread}: no such collective, {report.collectives}")
                continue
            changes = sv.changes(program, collective, target=case.target)
            wrong = untrue(case, changes)
        at = place(case, changes)
        first += 0 < at <= 3
        false += len(wrong)
        seconds = time.perf_counter() - begun
        print(f"{case.thread}: place {at} of {len(changes)}, {seconds:.0f} s", flush=True)
        if wrong or not 0 < at <= 3 or "-v" in sys.argv:
            for one in changes:
                print(f"    {one.edit}  {one.values}")
            for one in changes.refused:
                print(f"    not {one}"[:200])
        for one in wrong:
            print(f"    UNTRUE {one}")
    print(f"{first} of {len(cases)} among the first three; {false} untrue")


def untrue(case: Case, changes: Sequence[Candidate]) -> list[str]:
    """The proposals that do not hold: compiled anew, as a program of its own."""
    wrong = []
    for one in changes:
        again = sv.compile(one.program, target=case.target)
        sent = sum(c.sent_in_all for c in again.collectives)
        if again.error is not None or sent != one.bytes:
            wrong.append(f"{one.edit}: {sent} bytes, and {one.bytes} were promised")
        if one.values is not None and one.values.ok is False:
            wrong.append(f"{one.edit}: other values")
    return wrong


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "-v"])
