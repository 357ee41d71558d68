"""Programs that jax refuses for their types, after public threads, and what helped there.

`python -m tests.refusals.threads` tries all of them and prints what was found. Each
program is written anew; the number names the thread whose question it asks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardviz as sv

EXPLICIT = sv.mesh("x=4, y=2", axis_types="Explicit")
AUTO = sv.mesh("x=4, y=2")


@dataclass(frozen=True)
class Thread:
    """A program, and the edits that were named in its thread.

    Attributes:
        thread: where it was asked.
        fn: makes the function; inside, since some need the devices.
        arrays: its arguments.
        named: codes of edits (`TypeEdit.code`) one of which helped there, with the
            number of the refusal that it answers.
        mesh: the program's mesh.
        operations: what jax refuses, in order.
    """

    thread: str
    fn: Callable[[], Callable[..., Any]]
    arrays: tuple[Any, ...]
    named: tuple[tuple[int, str], ...]
    operations: tuple[str, ...]
    mesh: sv.MeshSpec = EXPLICIT


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


def is_(fn: Any) -> Callable[[], Any]:
    """What makes a function that needs no devices."""
    return lambda: fn


A = array("a", (8, 16), "x")
THREADS = (
    Thread("jax#31800", is_(gram), (A,), ((0, "out_sharding"),), ("dot_general",)),
    Thread(
        "scaling-book#60",
        is_(three_products),
        (
            array("a", (8, 16), None, "y"),
            array("b", (16, 32), "y"),
            array("c", (16, 32), "y"),
        ),
        ((0, "out_sharding"), (1, "out_sharding")),
        ("dot_general", "dot_general"),
    ),
    Thread("jax#29859", is_(heads), (A,), ((0, "out_sharding"),), ("reshape",)),
    Thread(
        "jax#28111",
        is_(set_columns),
        (A, array("i", (8,), "x", dtype="int32")),
        ((0, "auto_axes"),),
        ("scatter",),
    ),
    Thread(
        "jax#29839",
        is_(set_each),
        (A, array("i", (8,), "y", dtype="int32")),
        ((0, "reshard"),),
        ("scatter",),
    ),
    Thread(
        "equinox#1171",
        is_(constrained),
        (A,),
        ((0, "reshard"),),
        ("sharding_constraint",),
    ),
    Thread(
        "maxtext#2470",
        is_(logical),
        (A, array("w", (16, 32), None, "y")),
        ((0, "reshard"), (1, "reshard")),
        ("sharding_constraint", "sharding_constraint"),
    ),
    Thread(
        "marin#2288",
        is_(looked_up),
        (array("table", (64, 16), "y"), array("tokens", (8,), "x", dtype="int32")),
        ((0, "auto_axes"),),
        ("gather",),
    ),
    Thread(
        "flax#5205",
        is_(embedded),
        (
            array("table", (64, 16), None, "y"),
            array("tokens", (8,), "y", dtype="int32"),
        ),
        ((0, "auto_axes"), (1, "out_sharding")),
        ("gather", "dot_general"),
    ),
    Thread(
        "jax#39309",
        is_(joined),
        (A, array("b", (8, 16), "y")),
        ((0, "reshard"),),
        ("concatenate",),
    ),
    Thread(
        "marin#2100",
        is_(attention),
        (
            array("q", (4, 8, 16), "x", None, "y"),
            array("k", (4, 8, 16), "x", None, "y"),
            array("v", (4, 8, 16), "x", None, "y"),
        ),
        ((0, "out_sharding"),),
        ("dot_general",),
    ),
    Thread(
        "maxtext#4208",
        is_(train),
        (array("w", (16, 32), "x", "y"), array("v", (32, 16), "y", "x"), A),
        ((0, "out_sharding"),),
        ("dot_general",),
    ),
    Thread(
        "maxtext#2783",
        is_(layers),
        (A, array("w", (16, 16), None, "y")),
        ((0, "reshard"),),
        ("scan",),
    ),
    Thread("furax#117", is_(through_the_batch), (A,), ((0, "reshard"),), ("scan",)),
    Thread("jax#29881", sums, (A,), ((0, "pcast"),), ("scan",), AUTO),
    Thread("jax#31080", rejection, (A,), ((0, "pcast"),), ("while", "while"), AUTO),
    Thread(
        "jax#27903",
        branches,
        (array("a", (8, 16), "x"), array("b", (4, 16), "y")),
        ((0, "pcast"),),
        ("cond",),
        AUTO,
    ),
    Thread(
        "DiffeRT#280",
        two_scans,
        (A, array("b", (8, 16), "y")),
        ((0, "pcast"), (1, "pcast")),
        ("scan", "scan"),
        AUTO,
    ),
    Thread("netket#2139", missing, (A,), ((0, "pcast"),), ("scan",), AUTO),
    Thread(
        "jax#26621",
        powers,
        (array("w", (16, 16)), A),
        ((0, "pcast"),),
        ("scan",),
        AUTO,
    ),
    Thread("diffrax#735", solver, (A,), ((0, "pcast"),), ("while", "while"), AUTO),
    Thread(
        "accelerator-microbenchmarks#25",
        gathered,
        (A,),
        ((0, "check_vma"),),
        ("shard_map",),
        AUTO,
    ),
    Thread("tpu-inference#1859", gathered_twice, (A,), ((0, "check_vma"),), ("shard_map",), AUTO),
    Thread(
        "jax#27893",
        own_sums,
        (A,),
        ((0, "pcast"), (1, "check_vma")),
        ("scan", "shard_map"),
        AUTO,
    ),
    Thread("jax#28070", is_(running), (A,), ((0, "reshard"),), ("cumsum",)),
    Thread(
        "jax#33226",
        is_(repeated),
        (A, array("n", (8,), dtype="int32")),
        ((0, "auto_axes"),),
        ("gather",),
    ),
    Thread("jax#33629", permuted, (A,), ((0, "pcast"),), ("scan",), AUTO),
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
    """Whether all that jax says is said, whether what helped was found, and a line."""
    found = find(thread)
    if found.error is None:
        return False, False, f"{thread.thread:32} accepted"
    refusals = found.error.refusals
    named = bool(refusals)
    for number, code in thread.named:
        edits = refusals[number].edits if number < len(refusals) else ()
        named &= code in [edit.code for edit in edits]
    operations = tuple(refusal.operation for refusal in refusals)
    all_ = found.says_all and operations == thread.operations
    words = f"{thread.thread:32} says all: {found.says_all!s:6} fix: {named!s:6}"
    return all_, named, f"{words} {', '.join(operations)}"


def main() -> int:
    """Tries every program and prints a line for each."""
    jax.config.update("jax_num_cpu_devices", 8)
    rows = [row(thread) for thread in THREADS]
    for _, _, line in rows:
        print(line)
    said, named = sum(r[0] for r in rows), sum(r[1] for r in rows)
    print(f"{len(rows)} programs: all that jax says in {said}, the fix in {named}.")
    return 0 if said == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
