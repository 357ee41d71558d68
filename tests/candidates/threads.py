"""Programs after public threads about a collective, and the edit that was named there.

Each case is a small program of our own, with the collective of its thread. `by` says what
is known of the edit:

- "maintainer": a maintainer named it;
- "merged change": a change that was merged made it;
- "user": somebody else named it, or proposed it in a change that is not merged;
- "problem": the thread has this collective. That an edit was named is not known; the
  one here is ours.

`OURS` are programs without a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.advise.advice import Advice
from shardviz.advise.candidates import Changes
from shardviz.advise.edits import (
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
    Edit,
    SplitArgument,
    SplitResult,
)
from shardviz.base.axis_parts import parent_axis
from shardviz.base.partition_spec import Spec

wsc = jax.lax.with_sharding_constraint


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        name: the thread, as repository and number; of our own programs what they are.
        by: who named the edit; "" for a program of our own.
        fn, arrays, specs: the program; no specs where `rules` split the arrays.
        unwanted: kind and mesh axes of the collective that is to go; or several kinds,
            where versions of XLA differ.
        edit: whether an edit is the one that was named; None where no `Edit` says it.
        mesh, explicit: its mesh, and whether that has Explicit axes.
        out_specs: the results' specs.
        rules: its table of rules.
        of: the operation that the collective is for, where there are several alike.
        partitionable: `jax_threefry_partitionable`.
        target: what it is compiled for.
        fixed: the version of jax from which on XLA needs no edit.
        missed: why the edit is not proposed.
        advice: the kind of advice in place of an edit.
    """

    name: str
    by: str
    fn: Callable[..., Any]
    arrays: Sequence[Any]
    specs: Sequence[Any]
    unwanted: tuple[str | tuple[str, ...], tuple[str, ...]]
    edit: Callable[[Edit], bool] | None
    mesh: str = "data=8"
    explicit: bool = False
    out_specs: Any = None
    rules: Any = None
    of: str = ""
    partitionable: bool = True
    target: str | None = None
    fixed: str = ""
    missed: str = ""
    advice: str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether this version of XLA does without an edit."""

        def numbers(version: str) -> tuple[int, ...]:
            return tuple(map(int, version.split(".")[:2]))

        return bool(self.fixed) and numbers(jax.__version__) >= numbers(self.fixed)

    def program(self) -> Any:
        """The program."""
        types = "Explicit" if self.explicit else "Auto"
        return sv.program(
            self.fn,
            *self.arrays,
            mesh=sv.mesh(self.mesh, axis_types=types),
            in_specs=tuple(self.specs) or None,
            out_specs=self.out_specs,
            rules=self.rules,
        )

    def context(self) -> Any:
        """The options of jax that the thread has."""
        return jax.threefry_partitionable(self.partitionable)

    def collective(self, report: Any) -> Any:
        """The collective that is to go, the largest of its kind."""
        kinds, axes = self.unwanted
        kinds, alike = (kinds,) if isinstance(kinds, str) else kinds, []
        for one in report.collectives:
            over = {*map(parent_axis, one.mesh_axes)}  # a part of an axis counts as it
            if one.kind in kinds and over == set(axes) and self.of in one.op:
                alike.append(one)
        return max(alike, key=lambda one: one.sent_in_all)


def place(case: Case, changes: Changes) -> int:
    """At which place the edit of a case is proposed, with no other; 0 for nowhere.

    Advice comes after all proposals.
    """
    for number, candidate in enumerate(changes, 1):
        if case.edit is not None and all(map(case.edit, candidate.edits)):
            return number
    kinds = [one.kind for one in changes.advice if isinstance(one, Advice)]
    return len(changes) + 1 if case.advice and case.advice in kinds else 0


# Edits, as cases name them.


def _same(spec: Any, wanted: Any) -> bool:
    dims = list(spec.dims)
    while dims and not dims[-1]:
        dims.pop()
    return tuple(dims) == Spec.of(*wanted).dims


def argument(name: str, *specs: P) -> Callable[[Edit], bool]:
    """The argument of that name, with one of these specs."""

    def is_it(edit: Edit) -> bool:
        if not isinstance(edit, SplitArgument) or edit.array != name:
            return False
        return any(_same(edit.spec, spec) for spec in specs)

    return is_it


def result(*specs: P) -> Callable[[Edit], bool]:
    """A result with one of these specs."""

    def is_it(edit: Edit) -> bool:
        if not isinstance(edit, SplitResult):
            return False
        return any(_same(edit.spec, spec) for spec in specs)

    return is_it


def constraint(*specs: P) -> Callable[[Edit], bool]:
    """A constraint of a value to one of these specs."""

    def is_it(edit: Edit) -> bool:
        if not isinstance(edit, ConstrainValue | ConstrainArgument):
            return False
        return any(_same(edit.spec, spec) for spec in specs)

    return is_it


def constrained_argument(name: str, *specs: P) -> Callable[[Edit], bool]:
    """A constraint of that argument to one of these specs."""

    def is_it(edit: Edit) -> bool:
        if not isinstance(edit, ConstrainArgument) or edit.array != name:
            return False
        return constraint(*specs)(edit)

    return is_it


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


def tiled_loss(hidden: Any, table: Any) -> Any:
    tiles = hidden.reshape(4, 64, 32)

    def loss(tile: Any) -> Any:
        return jax.nn.logsumexp(tile @ table, axis=-1).sum()

    return jax.lax.map(loss, tiles).sum()


def requested_whole(table: Any, ids: Any) -> Any:
    x = wsc(table[ids], P(None, None, None))
    return jnp.tanh(x) * 2


def adam(p: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    return p - 0.1 * m, m


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


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


# The same, after threads whose programs have parts that only they have.


def adaptive_steps(y: Any, theta: Any) -> Any:
    def solve(y: Any, theta: Any) -> Any:
        def step(state: Any) -> Any:
            t, y, h = state
            change = theta * (y - jnp.cos(t)) * h
            keep = jnp.abs(change) < 0.1
            y = jnp.where(keep, y + change, y)
            t = jnp.where(keep, t + h, t)
            return t, y, jnp.where(keep, h * 1.5, h * 0.5)

        start = (jnp.zeros(()), y, jnp.full((), 0.1))
        return jax.lax.while_loop(lambda state: state[0] < 1.0, step, start)[1]

    return jax.vmap(solve)(y, theta)


def accumulated(w: Any, x: Any) -> Any:
    parts = x.reshape(4, 128, 32)

    def step(total: Any, part: Any) -> Any:
        grad = jax.grad(lambda w: jnp.square(jnp.tanh(part @ w)).mean())(w)
        return total + grad, None

    return jax.lax.scan(step, jnp.zeros_like(w), parts)[0]


def sliced_batch(w: Any, x: Any) -> Any:
    def step(total: Any, number: Any) -> Any:
        part = jax.lax.dynamic_slice_in_dim(x, number * 128, 128)
        part = wsc(part, P("data", None))
        grad = jax.grad(lambda w: jnp.square(jnp.tanh(part @ w)).mean())(w)
        return total + grad, None

    return jax.lax.scan(step, jnp.zeros_like(w), jnp.arange(4))[0]


def looked_up(table: Any, ids: Any, w: Any) -> Any:
    return jnp.tanh(table[ids] @ w)


def latent(q: Any, w: Any) -> Any:
    return jnp.einsum("bhd,hdk->bhk", q, w)


def projected_heads(x: Any, w: Any) -> Any:
    return jnp.einsum("td,dkh->tkh", x, w)


def keys(x: Any, wk: Any) -> Any:
    k = projected_heads(x, wk)
    # A kernel that takes some heads on each device.
    kernel = jax.shard_map(jax.nn.softmax, in_specs=P(None, "model"), out_specs=P(None, "model"))
    return kernel(k)


def output(heads: Any, wo: Any) -> Any:
    return jnp.einsum("tnh,nhd->td", jnp.tanh(heads), wo)


def written(pool: Any, update: Any) -> Any:
    return pool.at[3].set(update)


def linear(x: Any, w: Any) -> Any:
    def local(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ w, "model")

    product = jax.shard_map(local, in_specs=(P(None, "model"), P("model")), out_specs=P(None, None))
    return product(jnp.tanh(x), w) * 2


def sampled(logits: Any) -> Any:
    best = jnp.argmax(logits, axis=-1)
    # The most likely that have 0.9 together, and one of them.
    logits = wsc(logits, P("data", None))
    likely = jnp.sort(jax.nn.softmax(logits), axis=-1, descending=True)
    count = (jnp.cumsum(likely, axis=-1) < 0.9).sum(axis=-1, keepdims=True)
    least = jnp.take_along_axis(likely, count, axis=-1)
    logits = jnp.where(jax.nn.softmax(logits) < least, -jnp.inf, logits)
    return best, jax.random.categorical(jax.random.key(0), logits)


def attended(x: Any, w: Any) -> Any:
    x = wsc(jnp.tanh(x), P("data", None, None))
    return x @ w


def masked_scores(q: Any, k: Any, ids: Any) -> Any:
    ids = jnp.maximum(ids, 0)
    mask = ids[:, :, None] == ids[:, None, :]
    scores = jnp.einsum("bshd,bthd->bhst", q, k)
    return jnp.where(mask[:, None], scores, -1e9)


def experts(x: Any, mask: Any, w: Any) -> Any:
    sent = jnp.einsum("bsm,bsec->ebcm", x, mask)
    sent = wsc(sent, P(None, "data"))
    hidden = jnp.einsum("ebcm,emh->ebch", sent, w)
    hidden = wsc(hidden, P(None, "data"))
    return jnp.einsum("ebch,bsec->bsh", hidden, mask)


def router(x: Any, w: Any) -> Any:
    logits = wsc(x @ w, P("data", None, "model"))
    return jax.lax.top_k(jax.nn.softmax(logits), 2)


def by_heads(x: Any, w: Any) -> Any:
    mixed = (x @ w).reshape(4, 64, 8, 16)
    mixed = wsc(mixed, P(None, None, "model", None))
    return jnp.tanh(mixed)


def row_parallel(x: Any, w: Any, wanted: Any) -> Any:
    def local(x: Any, w: Any) -> Any:
        return jax.lax.psum(jnp.tanh(x) @ w, "model")

    product = jax.shard_map(
        local,
        in_specs=(P("data", "model"), P("model")),
        out_specs=P("data"),
        check_vma=False,
    )
    return jax.grad(lambda x: jnp.square(product(x, w) - wanted).sum())(x)


def foreign(x: Any) -> Any:
    # A call that XLA knows nothing of, as that of a kernel is.
    types = [
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct(x.shape[:-1], jnp.int32),
        jax.ShapeDtypeStruct(x.shape[:-2], jnp.int32),
    ]
    return jax.ffi.ffi_call("lapack_sgetrf_ffi", types)(x)[0] * 2


def made_whole(x: Any, w: Any) -> Any:
    x = jax.sharding.reshard(jnp.tanh(x), P(None, None))
    return jax.sharding.reshard(x @ w, P("data", None))


D, M, N = "data", "model", None
GATHER, SUM = "all-gather", "all-reduce"

TO_ALL = "all-to-all"
MAINTAINER, MERGED, USER, PROBLEM = "maintainer", "merged change", "user", "problem"

ATTENTION_RULES = sv.rules(("batch", ("fsdp", "expert")), ("embed_attn", "fsdp"), ("heads", None))


def embed_attn_over_expert(edit: Edit) -> bool:
    """The rule that maxtext#5020 adds for the weights of attention."""
    if not isinstance(edit, ChangeRules):
        return False
    return ("embed_attn", ("expert",)) in [
        (name, (axes,) if isinstance(axes, str) else tuple(axes or ()))
        for name, axes in edit.rules.pairs()
    ]


CASES = (
    # "Using shard_map prevents device communication", in a comment of the asker.
    Case(
        "jax#20683",
        USER,
        batched_fft,
        (f32(16, 64),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="fft",
        fixed="0.11",
    ),
    # "Which is necessary in cases like" this one, in equinox#978.
    Case(
        "jax#26586",
        USER,
        nested_loops,
        (f32(16), f32(16)),
        (P(D), P(D)),
        (SUM, (D,)),
        None,
        advice="loop",
    ),
    # Named for this program in lineax#185.
    Case(
        "diffrax#718",
        USER,
        adaptive_steps,
        (f32(16), f32(16)),
        (P(), P(D)),
        (SUM, (D,)),
        None,
        advice="loop",
    ),
    # Each device shall loop over its own samples only.
    Case(
        "folx#36",
        USER,
        in_groups_of_samples,
        (f32(64, 16), f32(16, 16)),
        (P(D), P()),
        (GATHER, (D,)),
        None,
        advice="map",
        out_specs=P(D),
    ),
    # The kernel works on its part of the batch if a shard_map is around it.
    Case(
        "marin#6470",
        MAINTAINER,
        foreign,
        (f32(16, 8, 8),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="kernel",
        explicit=True,
    ),
    Case(
        "jax#15484",
        MAINTAINER,
        noise,
        (f32(64, 32),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="random",
        partitionable=False,
    ),
    # The batch stays split where it is reshaped.
    Case(
        "levanter#342",
        MAINTAINER,
        microbatches,
        (f32(32, 32), f32(64, 32)),
        (P(), P(D)),
        (GATHER, (D,)),
        constraint(P(N, D)),
    ),
    Case(
        "maxtext#2242",
        MERGED,
        tiled_loss,
        (f32(256, 32), f32(32, 64)),
        (P(D), P()),
        (GATHER, (D,)),
        constraint(P(N, D)),
    ),
    # Both say reshape(128, 4, ...) and swapaxes(0, 1).
    Case(
        "axlearn#993",
        MERGED,
        sliced_batch,
        (f32(32, 8), f32(512, 32)),
        (P(), P(D)),
        (GATHER, (D,)),
        None,
        advice="parts",
    ),
    Case(
        "maxtext#2507",
        MERGED,
        accumulated,
        (f32(32, 8), f32(512, 32)),
        (P(), P(D)),
        (GATHER, (D,)),
        None,
        advice="parts",
    ),
    # Constraints that are in the code, changed or moved.
    Case(
        "sglang-jax#1083",
        MERGED,
        requested_whole,
        (f32(64, 32), i32(16, 8)),
        (P(), P(D)),
        (GATHER, (D,)),
        constraint(P(D)),
        out_specs=P(D),
    ),
    Case(
        "openpi#193",
        MERGED,
        split_by_batch_alone,
        (f32(64, 32), f32(32, 8)),
        (P((D, M)), P()),
        (GATHER, (M,)),
        constraint(P((D, M))),
        mesh="data=2, model=4",
        out_specs=P((D, M)),
    ),
    # The constraint is left out there.
    Case(
        "maxdiffusion#200",
        MERGED,
        attended,
        (f32(8, 64, 32), f32(32, 16)),
        (P(D, M), P()),
        (GATHER, (M,)),
        constraint(P(D, M)),
        mesh="data=2, model=4",
        out_specs=P(D, M),
    ),
    # So is the reshard.
    Case(
        "sglang-jax#1198",
        MERGED,
        made_whole,
        (f32(64, 32), f32(32, 16)),
        (P(D), P()),
        (GATHER, (D,)),
        constraint(P(D)),
        explicit=True,
    ),
    Case(
        "maxtext#4968",
        USER,
        by_heads,
        (f32(4, 64, 32), f32(32, 128)),
        (P(N, D), P(N, M)),
        (GATHER, (D,)),
        constraint(P(N, D, M)),
        mesh="data=2, model=4",
        out_specs=P(N, D, M),
    ),
    Case(
        "maxtext#4179",
        MERGED,
        experts,
        (f32(8, 16, 32), f32(8, 16, 8, 4), f32(8, 32, 64)),
        (P(D), P(D), P(D)),
        (GATHER, (D,)),
        constraint(P(D)),
        out_specs=P(D),
    ),
    Case(
        "maxtext#4571",
        MERGED,
        masked_scores,
        (f32(8, 64, 8, 16), f32(8, 64, 8, 16), i32(8, 64)),
        (P(D, N, M), P(D, N, M), P(D, M)),
        (TO_ALL, (M,)),
        constraint(P(D)),
        mesh="data=2, model=4",
    ),
    Case(
        "maxtext#1140",
        MERGED,
        router,
        (f32(8, 64, 32), f32(32, 8)),
        (P(D, N, M), P(N, M)),
        (GATHER, (M,)),
        either(constraint(P(D)), argument("w", P())),
        mesh="data=2, model=4",
        missed="Both edits together have each device compute more. Others send less.",
    ),
    Case(
        "tpu-inference#3597",
        USER,
        sampled,
        (f32(16, 256),),
        (P(D, M),),
        (GATHER, (M,)),
        constrained_argument("logits", P(D)),
        mesh="data=2, model=4",
        out_specs=(P(D), P(D)),
        of="/reduce",
    ),
    # Arguments.
    Case(
        "maxdiffusion#385",
        MERGED,
        layer,
        (f32(64, 32), f32(32, 64)),
        (P(D), P(D, M)),
        (GATHER, (D,)),
        argument("w", P(N, M)),
        mesh="data=4, model=2",
    ),
    Case(
        "maxtext#1503",
        USER,
        projected_heads,
        (f32(16, 32), f32(32, 8, 16)),
        (P(D), P(N, M, D)),
        (GATHER, (D,)),
        argument("w", P(N, M)),
        mesh="data=2, model=4",
    ),
    Case(
        "maxtext#5020",
        MERGED,
        layer,
        (sv.array("x", (64, 32), "batch _"), sv.array("w", (32, 64), "embed_attn heads")),
        (),
        (GATHER, ("fsdp",)),
        embed_attn_over_expert,
        mesh="fsdp=4, expert=2",
        rules=ATTENTION_RULES,
        missed="Over expert there is a smaller gather, and over no axis none.",
    ),
    Case(
        "tpu-inference#1859",
        MERGED,
        latent,
        (f32(16, 8, 32), f32(8, 32, 16)),
        (P(D, M), P(N, M)),
        (TO_ALL, (M,)),
        argument("w", P(M)),
        mesh="data=2, model=4",
        out_specs=P(D, M),
    ),
    Case(
        "tpu-inference#2585",
        MERGED,
        keys,
        (f32(16, 32), f32(32, 8, 16)),
        (P(), P(N, N, M)),
        (TO_ALL, (M,)),
        argument("wk", P(N, M)),
        mesh="data=2, model=4",
    ),
    Case(
        "tpu-inference#2938",
        MERGED,
        output,
        (f32(16, 8, 16), f32(8, 16, 32)),
        (P(N, M), P(N, M)),
        (TO_ALL, (M,)),
        argument("wo", P(M)),
        mesh="data=2, model=4",
    ),
    Case(
        "tpu-inference#1643",
        MERGED,
        looked_up,
        (f32(512, 32), i32(64), f32(32, 256)),
        (P(M), P((D, M)), P(N, M)),
        (GATHER, (M,)),
        argument("ids", P(D)),
        mesh="data=2, model=4",
        out_specs=P(D, M),
    ),
    # Results.
    Case(
        "tpu-inference#3519",
        MERGED,
        written,
        (f32(16, 8, 16, 16), f32(8, 16, 16)),
        (P(N, M), P(M)),
        ((TO_ALL, GATHER), (M,)),
        result(P(N, M)),
        mesh="data=2, model=4",
        out_specs=P(N, N, M),
    ),
    Case(
        "gemma#648",
        USER,
        decoded,
        (f32(4, 64, 8, 16), f32(4, 1, 8, 16), f32(4, 8, 16)),
        (P(), P(N, N, M), P(N, M)),
        (GATHER, (M,)),
        either(result(P(N, N, M)), argument("cache", P(N, N, M))),
        mesh="model=8",
        out_specs=(P(), P(N, M)),
    ),
    # The specs of the user's shard_map name "data" as well.
    Case(
        "tpu-inference#1843",
        MERGED,
        linear,
        (f32(16, 32), f32(32, 16)),
        (P(D, M), P(M)),
        (GATHER, (D,)),
        None,
        missed="The specs of the user's shard_map are not changed.",
        mesh="data=2, model=4",
        out_specs=P(D),
    ),
    # It is told check_vma=True.
    Case(
        "maxtext#3534",
        MERGED,
        row_parallel,
        (f32(16, 32), f32(32, 16), f32(16, 16)),
        (P(D, M), P(M), P(D)),
        (SUM, (M,)),
        None,
        mesh="data=2, model=4",
        missed="The options of the user's shard_map are not changed.",
    ),
    # Nobody is known to have named an edit.
    Case(
        "xla#47945",
        PROBLEM,
        grouped_convolution,
        (f32(32, 4, 16), f32(8, 2, 3)),
        (P(D), P()),
        (GATHER, (D,)),
        None,
        advice="convolution",
    ),
    Case(
        "jax#15680",
        PROBLEM,
        padded_fft,
        (f32(16, 32),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="fft",
        fixed="0.11",
    ),
    Case(
        "jax#20968",
        PROBLEM,
        loops_of_their_own_length,
        (f32(16), i32(16)),
        (P(D), P(D)),
        (SUM, (D,)),
        None,
        advice="loop",
    ),
    Case(
        "jax#14559",
        PROBLEM,
        dropout,
        (f32(64, 32),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="random",
        partitionable=False,
    ),
    Case(
        "jax#20381",
        PROBLEM,
        shuffled_rows,
        (f32(16, 32, 4),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="random",
        partitionable=False,
    ),
    Case(
        "jax#21562",
        PROBLEM,
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
)

OURS = (
    Case(
        "gradient of a grouped convolution",
        "",
        train_grouped,
        (f32(8, 2, 3), f32(32, 4, 16)),
        (P(), P(D)),
        (GATHER, (D,)),
        None,
        advice="convolution",
    ),
    Case(
        "top_k",
        "",
        best_of_each,
        (f32(16, 64),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="top_k",
    ),
    Case(
        "inverses on a TPU",
        "",
        inverses,
        (f32(16, 8, 8),),
        (P(D),),
        (GATHER, (D,)),
        None,
        advice="linear algebra",
        target="tpu:v5e:2x4",
    ),
    Case(
        "state split as the parameters are not",
        "",
        adam,
        (f32(64, 16), f32(64, 16), f32(64, 16)),
        (P(), P(D), P()),
        (GATHER, (D,)),
        either(argument("p", P(D)), argument("m", P()), result(P(D))),
        out_specs=(P(), P(D)),
    ),
    Case(
        "result asked for whole",
        "",
        momentum,
        (f32(64, 16), f32(64, 16)),
        (P(D), P(D)),
        (GATHER, (D,)),
        result(P(D)),
        out_specs=P(),
    ),
    Case(
        "split parameter",
        "",
        mnist_step,
        (f32(32, 16), f32(64, 32)),
        (P(N, D), P(D)),
        (GATHER, (D,)),
        argument("w", P()),
        out_specs=P(),
    ),
    Case(
        "steps split instead of the batch",
        "",
        scanned_steps,
        (f32(16, 4), f32(8, 32, 16)),
        (P(), P(D)),
        (GATHER, (D,)),
        argument("data", P(N, D)),
    ),
    Case(
        "loss over a split vocabulary",
        "",
        vocabulary,
        (f32(16, 32), f32(32, 256), i32(16)),
        (P(D), P(N, M), P(D)),
        (GATHER, (M,)),
        constraint(P(D, M)),
        mesh="data=2, model=4",
    ),
)
