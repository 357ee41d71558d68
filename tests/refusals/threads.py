"""Programs that jax refuses for their types, after public threads, and what helped there.

Each is written anew, small, with the refusal of its thread. `by` says what is known of
the edit, with the words of `tests.candidates.threads`: a "maintainer" named it (or fixed
jax itself so), a "merged change" made it, a "user" named it; "problem" is a thread with
this refusal in which nobody is known to have named an edit. `OURS` have no thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.refusals import (
    AtGet,
    AtSet,
    AutoAxes,
    CastBranches,
    CastCarry,
    CastOperands,
    NameInOutSpecs,
    OutSharding,
    ReshardCarry,
    ReshardOperands,
    SkipCheck,
)

EXPLICIT = sv.mesh("x=4, y=2", axis_types="Explicit")
AUTO = sv.mesh("x=4, y=2")


@dataclass(frozen=True)
class Thread:
    """A program, and the edits that were named in its thread.

    Attributes:
        thread: repository and number; of our own programs what they are.
        by: who named the edits; "" for a program of our own.
        fn: makes the function; inside, since some need the devices.
        arrays: its arguments.
        named: the edits that helped there: the number of the refusal that it answers,
            its name (one of `NAMES`, or a name that no edit has), and its spec or axes
            where the thread has them.
        operations: what jax refuses, in order.
        mesh: the program's mesh.
        missed: why what was named is not found.
        unsaid: why what jax says is not found operation by operation.
    """

    thread: str
    by: str
    fn: Callable[[], Callable[..., Any]]
    arrays: tuple[Any, ...]
    named: tuple[tuple[Any, ...], ...]
    operations: tuple[str, ...]
    mesh: sv.MeshSpec = EXPLICIT
    missed: str = ""
    unsaid: str = ""


def array(name: str, shape: tuple[int, ...], *spec: Any, dtype: str = "float32") -> Any:
    """An argument with its sharding."""
    return sv.array(name, shape, dtype=dtype, spec=P(*spec))


def devices_mesh() -> jax.sharding.Mesh:
    """The devices that a shard_map names."""
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def mapped(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
    """A shard_map over these devices."""
    return jax.shard_map(body, mesh=devices_mesh(), in_specs=in_specs, out_specs=out_specs)


# Programs on Explicit axes.


def gram(a):
    return a.T @ a


def three_products(a, b, c):  # the sums of two products, added
    first = a @ b
    return jnp.tanh(first) + a @ c


def heads(a):
    return a.reshape(2, 4, 16).sum(1)


def set_columns(a, i):
    return a.at[:, i].set(0.0) * 2


def set_each(a, i):
    return jax.vmap(lambda row, at: row.at[at].set(1.0))(a, i)


def constrained(a):
    return lax.with_sharding_constraint(a * 2, P("y"))


def logical(a, w):  # activations that a library constrains, twice
    hidden = lax.with_sharding_constraint(jnp.tanh(a @ w), P("x", None))
    return lax.with_sharding_constraint(hidden @ w.T, P("x", "y"))


def looked_up(table, tokens):
    return jnp.take(table, tokens, axis=0) * 2.0


def embedded(table, tokens):
    return table[tokens] @ table.T


def joined(a, b):
    return jnp.concatenate([a, b[:, :4]], axis=1)


def running(a):
    return jnp.cumsum(a, axis=0) / 8


def repeated(a, n):
    return jnp.repeat(a, n, axis=0, total_repeat_length=8)


def layers(a, w):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), a, None, length=3)[0]


def through_the_batch(a):
    return lax.scan(lambda total, row: (total + row, row), jnp.zeros(16), a)[0]


def loss(w, v, a):
    return jnp.sum((jnp.tanh(a @ w) @ v) ** 2)


def train(w, v, a):
    gw, gv = jax.grad(loss, (0, 1))(w, v, a)
    return w - 0.1 * gw, v - 0.1 * gv


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k))
    return jnp.einsum("bqk,bkd->bqd", scores, v)


def token_losses(logits, labels):
    picked = jnp.where(labels, logits, 0).sum(-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - picked
    losses = lax.with_sharding_constraint(losses, P(("x", "y")))
    return losses.sum()


def with_positions(a, table, at):
    return a + table[at]


def best_of_vocabulary(logits):
    return lax.top_k(logits, 2)


def best_logits(logits):
    return lax.top_k(jax.nn.log_softmax(logits), 1)


def sorted_places(a):
    return jnp.argsort(a)


def keys_with_rope(k, rope):
    rope = jnp.broadcast_to(rope, (8, 4, 4), out_sharding=P(None, "y", None))
    return jnp.concatenate([k, rope], axis=-1)


def product_and_where(a):
    product = a.T @ a
    positive = jnp.where(a > 0, a, 0.0)
    return product.sum() + positive.sum()


def residual(hidden, before):
    return jnp.tanh(hidden) + before


def selected(logits, at):
    return logits[at] * 2


def expert_layer(a, w):
    kernel = jax.shard_map(jnp.matmul, in_specs=(P("x"), P()), out_specs=P("x"))
    return kernel(a, w)


def fused_kernel(a):
    over_all = P(("x", "y"))
    kernel = jax.shard_map(lambda a: a * 2, in_specs=over_all, out_specs=over_all)
    return kernel(jnp.tanh(a))


# Programs with a shard_map.


def sums():
    def body(a):
        return lax.scan(lambda total, row: (total + row, None), jnp.zeros(16), a)[0][None]

    return mapped(body, P("x"), P("x"))


def rejection():  # a while loop that draws until it accepts
    def body(a):
        def step(carry):
            number, value, tries = carry
            return number + 1, value * 0.5 + a.sum(), tries + value

        return lax.while_loop(lambda c: c[0] < 3, step, (0, 0.0, 0.0))[2][None]

    return mapped(body, P("x"), P("x"))


def branches():
    def body(a, b):
        return lax.cond(b.sum() > 0, lambda: a, lambda: b)

    return mapped(body, (P("x"), P("y")), P(("x", "y")))


def two_scans():
    def body(a, b):
        forth, seen = lax.scan(lambda c, row: (c + row, c * row), b[0], a)
        back, _ = lax.scan(lambda c, row: (c - row, None), jnp.ones(16), seen)
        return (forth + back)[None]

    return mapped(body, (P("x"), P("y")), P(("x", "y")))


def missing():  # a loop inside of a library
    def body(a):
        return lax.fori_loop(0, 3, lambda i, c: c + a[i % 2], jnp.zeros(16))[None]

    return mapped(body, P("x"), P("x"))


def powers():
    def body(w, a):
        def step(carry, _):
            result, base = carry
            return (result @ base, base @ w), None

        eye = jnp.eye(16)
        scaled = w * a.sum()
        return lax.scan(step, (eye, scaled), None, length=2)[0][0][None]

    return mapped(body, (P(), P("x")), P("x"))


def solver():  # a solver's state, of which one value varies
    def body(a):
        def step(state):
            t, y, _ = state
            return t + 0.1, y + a.mean(), jnp.abs(y)

        return lax.while_loop(lambda s: s[0] < 1.0, step, (0.0, 0.0, 0.0))[1][None]

    return mapped(body, P("x"), P("x"))


def gathered():
    return mapped(lambda a: lax.all_gather(a, "x", tiled=True), P("x"), P())


def gathered_twice():
    def body(a):
        whole = lax.all_gather(a, "x", tiled=True)
        return whole, lax.all_gather(whole.sum(1), "y", tiled=True)

    return mapped(body, P("x"), (P(), P()))


def own_sums():
    def body(a):
        total, _ = lax.scan(lambda c, row: (c + row.sum(), None), 0.0, a)
        return total

    return mapped(body, P("x"), P())


def permuted():
    def body(a):
        def step(i, carry):
            total, block = carry
            return total + block, lax.ppermute(block, "x", [(j, (j + 1) % 4) for j in range(4)])

        return lax.fori_loop(0, 4, step, (jnp.zeros((2, 4)), a[:, :4]))[0]

    return mapped(body, P("x"), P("x"))


def swapped():
    def body(a, b):
        def step(carry, _):
            return (carry[1], carry[0]), None

        return lax.scan(step, (a, b), None, length=2)[0]

    return mapped(body, (P("x"), P()), (P("x"), P("x")))


def column():  # an operator made of blocks, each device with its own
    def body(blocks, a):
        def step(total, one):
            block, part = one
            return total + block * part, None

        return lax.psum(lax.scan(step, jnp.zeros(16), (blocks, a))[0], "x")

    return mapped(body, (P("x"), P("x")), P())


def jacobian():
    def body(w, a):
        _, back = jax.vjp(lambda row: jnp.tanh(row @ w), a[0])
        return jax.vmap(back)(jnp.eye(16))[0][None]

    return mapped(body, (P(), P("x")), P("x"))


def is_(fn: Any) -> Callable[[], Any]:
    """What makes a function that needs no devices."""
    return lambda: fn


MAINTAINER, MERGED, USER, PROBLEM = "maintainer", "merged change", "user", "problem"
A = array("a", (8, 16), "x")
TABLE, TOKENS = array("table", (64, 16), "y"), array("tokens", (8,), "x", dtype="int32")
THREADS = (
    # On Explicit axes.
    Thread("jax#31800", USER, is_(gram), (A,), ((0, "out_sharding"),), ("dot_general",)),
    # Their shapes jax accepts since.
    Thread("jax#29859", USER, is_(heads), (A,), ((0, "out_sharding"),), ("reshape",)),
    Thread(
        "jax#28111",
        MAINTAINER,
        is_(set_columns),
        (A, array("i", (8,), "x", dtype="int32")),
        ((0, "set"),),
        ("scatter",),
    ),
    # "You reshard at your level first and then calling argsort".
    Thread(
        "jax#35650",
        MAINTAINER,
        is_(sorted_places),
        (array("a", (8,), "x"),),
        ((0, "reshard", "P(None)"),),
        ("sort",),
    ),
    Thread(
        "equinox#1171",
        MERGED,
        is_(constrained),
        (A,),
        ((0, "Auto mesh"),),
        ("sharding_constraint",),
        missed="A mesh of Auto axes, as #1146 and #1175 have it, is not proposed.",
    ),
    Thread(
        "maxtext#2470",
        MERGED,
        is_(logical),
        (A, array("w", (16, 32), None, "y")),
        ((0, "reshard"), (1, "reshard")),
        ("sharding_constraint", "sharding_constraint"),
    ),
    Thread(
        "maxtext#4208",
        MERGED,
        is_(token_losses),
        (A, array("labels", (8, 16), "x", dtype="bool")),
        ((0, "reshard", "P(('x', 'y'))"),),
        ("sharding_constraint",),
    ),
    # There it is `.at[...].get(out_sharding=...)`, which is auto_axes around the gather.
    Thread(
        "maxtext#2783",
        MERGED,
        is_(with_positions),
        (A, TABLE, array("at", (8,), "x", dtype="int32")),
        ((0, "get", "P('x', None)"),),
        ("gather",),
    ),
    Thread(
        "marin#2288",
        MERGED,
        is_(looked_up),
        (TABLE, TOKENS),
        ((0, "get", "P('x', None)"),),
        ("gather",),
    ),
    Thread(
        "flax#5205",
        MERGED,
        is_(embedded),
        (
            array("table", (64, 16), None, "y"),
            array("tokens", (8,), "y", dtype="int32"),
        ),
        ((0, "get"), (1, "out_sharding")),
        ("gather", "dot_general"),
    ),
    Thread(
        "sglang-jax#975",
        MERGED,
        is_(selected),
        (array("logits", (8, 16), "x", "y"), array("at", (8,), "x", dtype="int32")),
        ((0, "shard_map"),),
        ("gather",),
        missed="A shard_map around a refused operation is not proposed.",
    ),
    Thread(
        "sglang-jax#1063",
        MERGED,
        is_(best_of_vocabulary),
        (array("logits", (8, 16), "x", "y"),),
        ((0, "reshard", "P(None, None)"),),
        ("top_k",),
    ),
    Thread(
        "sglang-jax#1276",
        MERGED,
        is_(best_logits),
        (array("logits", (8, 16), "x", "y"),),
        ((0, "reshard", "P('x', None)"),),
        ("top_k",),
    ),
    Thread(
        "sglang-jax#1257",
        MERGED,
        is_(keys_with_rope),
        (array("k", (8, 4, 8), "x", "y"), array("rope", (8, 1, 4))),
        ((0, "out_sharding", "P('x', 'y', None)"),),
        ("concatenate",),
        missed="Nothing is found.",
        unsaid="A program that names an out_sharding cannot be traced on Auto axes.",
    ),
    Thread(
        "sglang-jax#1198",
        MERGED,
        is_(residual),
        (array("hidden", (8, 16), ("x", "y")), array("before", (8, 16), "x")),
        ((0, "reshard", "P(('x', 'y'), None)"),),
        ("add",),
    ),
    Thread(
        "marin#4455",
        USER,
        is_(expert_layer),
        (A, array("w", (16, 32), "x", "y")),
        ((0, "reshard", "P(None, None)"),),
        ("shard_map",),
    ),
    Thread(
        "sglang-jax#1493",
        MERGED,
        is_(fused_kernel),
        (A,),
        ((0, "reshard", "P(('x', 'y'), None)"),),
        ("shard_map",),
    ),
    # In a shard_map. Where a loop is inside of jax, jax was changed so.
    Thread("jax#29881", MAINTAINER, sums, (A,), ((0, "pcast"),), ("scan",), AUTO),
    Thread("jax#31080", MAINTAINER, rejection, (A,), ((0, "pcast"),), ("while", "while"), AUTO),
    Thread(
        "jax#27903",
        MAINTAINER,
        branches,
        (array("a", (8, 16), "x"), array("b", (4, 16), "y")),
        ((0, "pcast"),),
        ("cond",),
        AUTO,
    ),
    # The same page of documentation as in jax#33629.
    Thread(
        "jax#27893",
        MAINTAINER,
        swapped,
        (A, array("b", (2, 16))),
        ((0, "pcast", "('x',)"),),
        ("scan",),
        AUTO,
    ),
    Thread(
        "DiffeRT#280",
        MAINTAINER,
        two_scans,
        (A, array("b", (8, 16), "y")),
        ((0, "pcast"), (1, "pcast")),
        ("scan", "scan"),
        AUTO,
    ),
    Thread("netket#2139", MERGED, missing, (A,), ((0, "pcast", "('x',)"),), ("scan",), AUTO),
    Thread(
        "furax#117",
        MERGED,
        column,
        (array("blocks", (8, 16), "x"), A),
        ((0, "pcast", "('x',)"),),
        ("scan",),
        AUTO,
    ),
    Thread(
        "folx#43",
        MERGED,
        jacobian,
        (array("w", (16, 16)), A),
        ((0, "pcast", "('x',)"),),
        (),
        AUTO,
        missed="jax refuses it before there is an operation.",
    ),
    Thread(
        "diffrax#738",
        USER,
        solver,
        (A,),
        ((0, "check_vma"),),
        ("while", "while"),
        AUTO,
        missed="check_vma=False is proposed for results of a shard_map alone.",
    ),
    Thread(
        "accelerator-microbenchmarks#25",
        MERGED,
        gathered,
        (A,),
        ((0, "check_vma"),),
        ("shard_map",),
        AUTO,
    ),
    # Nobody is known to have named an edit.
    Thread(
        "scaling-book#60",
        PROBLEM,
        is_(three_products),
        (
            array("a", (8, 16), None, "y"),
            array("b", (16, 32), "y"),
            array("c", (16, 32), "y"),
        ),
        ((0, "out_sharding"), (1, "out_sharding")),
        ("dot_general", "dot_general"),
    ),
    Thread(
        "marin#2100",
        PROBLEM,
        is_(attention),
        (
            array("q", (4, 8, 16), "x", None, "y"),
            array("k", (4, 8, 16), "x", None, "y"),
            array("v", (4, 8, 16), "x", None, "y"),
        ),
        ((0, "out_sharding"),),
        ("dot_general",),
    ),
)

OURS = (
    Thread(
        "product and where",
        "",
        is_(product_and_where),
        (A,),
        ((0, "out_sharding"),),
        ("dot_general",),
    ),
    Thread(
        "set in each row",
        "",
        is_(set_each),
        (A, array("i", (8,), "y", dtype="int32")),
        ((0, "reshard"),),
        ("scatter",),
    ),
    Thread(
        "joined",
        "",
        is_(joined),
        (A, array("b", (8, 16), "y")),
        ((0, "reshard"),),
        ("concatenate",),
    ),
    Thread("running sum", "", is_(running), (A,), ((0, "reshard"),), ("cumsum",)),
    Thread(
        "repeated",
        "",
        is_(repeated),
        (A, array("n", (8,), dtype="int32")),
        ((0, "get"),),
        ("gather",),
    ),
    Thread(
        "training step",
        "",
        is_(train),
        (array("w", (16, 32), "x", "y"), array("v", (32, 16), "y", "x"), A),
        ((0, "out_sharding"),),
        ("dot_general",),
    ),
    Thread(
        "layers in a scan",
        "",
        is_(layers),
        (A, array("w", (16, 16), None, "y")),
        ((0, "reshard"),),
        ("scan",),
    ),
    Thread(
        "scan through the batch", "", is_(through_the_batch), (A,), ((0, "reshard"),), ("scan",)
    ),
    Thread(
        "powers",
        "",
        powers,
        (array("w", (16, 16)), A),
        ((0, "pcast"),),
        ("scan",),
        AUTO,
    ),
    Thread("gathered twice", "", gathered_twice, (A,), ((0, "check_vma"),), ("shard_map",), AUTO),
    Thread(
        "own sums",
        "",
        own_sums,
        (A,),
        ((0, "pcast"), (1, "psum")),
        ("scan", "shard_map"),
        AUTO,
    ),
    Thread("permuted", "", permuted, (A,), ((0, "pcast"),), ("scan",), AUTO),
)


@dataclass(frozen=True)
class Found:
    """What shardviz says of a thread's program.

    Attributes:
        error: the plan's error; None where jax accepts the program.
        jax: what jax says itself.
    """

    error: Any
    jax: str

    @property
    def says_all(self) -> bool:
        """Whether all words of jax are said."""
        said = " ".join(self.error.message.split())
        return all(" ".join(p.split()) in said for p in self.jax.split("\n\n"))


def find(thread: Thread) -> Found:
    """Plans the program of a thread, and traces it with jax alone."""
    fn, said = thread.fn(), ""
    mesh = sv.to_jax(thread.mesh.replace()).abstract_mesh
    structs = []
    for one in thread.arrays:
        sharding = jax.NamedSharding(mesh, one.spec.to_jax())
        if thread.mesh is AUTO:
            sharding = None
        structs.append(jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding))
    try:
        with jax.sharding.use_abstract_mesh(
            mesh if thread.mesh is EXPLICIT else jax.sharding.AbstractMesh((), ())
        ):
            jax.make_jaxpr(fn)(*structs)
    except Exception as error:  # noqa: BLE001
        said = str(error)
    plan = sv.plan(sv.program(fn, *thread.arrays, mesh=thread.mesh))
    return Found(plan.error, said)


def row(thread: Thread) -> tuple[bool, bool, str]:
    """Whether all that jax says is said, whether what was named is found, and a line."""
    found = find(thread)
    if found.error is None:
        return False, False, f"{thread.thread:32} accepted"
    refusals = found.error.refusals
    named = all(is_found(refusals, *wanted) for wanted in thread.named)
    operations = tuple(refusal.operation for refusal in refusals)
    all_ = found.says_all and operations == thread.operations
    words = f"{thread.thread:32} {thread.by or 'ours':14}"
    words = f"{words} says all: {all_!s:6} fix: {named!s:6}"
    return all_, named, f"{words} {', '.join(operations)}"


#: What the user adds to the code, by the kind of edit.
NAMES = {
    ReshardOperands: "reshard",
    ReshardCarry: "reshard",
    CastOperands: "pcast",
    CastCarry: "pcast",
    CastBranches: "pcast",
    OutSharding: "out_sharding",
    AtGet: "get",
    AtSet: "set",
    AutoAxes: "auto_axes",
    NameInOutSpecs: "out_specs",
    SkipCheck: "check_vma",
}


def name_of(edit: Any) -> str:
    """What the user adds to the code."""
    return NAMES.get(type(edit)) or edit.collective


def is_found(refusals: Any, number: int, code: str, to: str = "") -> bool:
    """Whether an edit of that code, to that spec or those axes, is among a refusal's."""
    if number >= len(refusals):
        return False
    for edit in refusals[number].edits:
        spec = str(edit.spec if hasattr(edit, "spec") else edit.axes)
        if name_of(edit) == code and to in ("", spec):
            return True
    return False
