"""Searches of AutoParallel's examples: as good as its solutions, by three measures.

Its tests (github.com/meta-pytorch/autoparallel, tests/test_optimize_placement.py) have an
MLP and a transformer block, on 256 H100s as dp=256 and as dp=32, tp=8, and say where its
solver puts each parameter and what each matrix product reads: parameters split over dp,
and in two dimensions the products of Megatron over tp. The batch is fixed, and parameters
have a budget of memory: here what its own solution takes when it is compiled.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

TARGET = "gpu:h100:32x8"
# What its documents say of an H100: docs/how_autoparallel_chooses_a_strategy.md. It counts
# float32 as TF32.
_EFFICIENCY, _LAUNCH = 0.7, 7e-6
_FLOPS, _BANDWIDTH = 989e12 / 2, 3.35e12
_WITHIN_HOST, _BETWEEN_HOSTS = 320e9, 50e9
# Its views of a tensor cost nothing.
_VIEWS = ("transpose", "broadcast_in_dim", "convert")


class Example(NamedTuple):
    """A program, and where AutoParallel's solver puts its parameters."""

    name: str
    mesh: str
    model: Any
    weights: dict[str, tuple[int, int]]
    rows: tuple[int, ...]  # of the batch, without features
    solution: dict[str, tuple[str | None, ...]]
    sums: int  # of activations over tp, in a step


def main() -> int:
    """Compares searches with AutoParallel's solutions; how many are worse."""
    import shardviz as sv
    from shardviz.compiled.report import needed_bytes

    worse = 0
    for example in examples():
        solved = program(example, example.solution)
        peer = sv.compile(solved, target=TARGET)
        assert peer.error is None, peer.error
        by_hand = bytes_by_hand(example)
        names = [array.name for array in solved.arrays if "w" in array.name]
        found = sv.search(
            program(example, {}),
            over=names,
            under=needed_bytes(peer.memory),
            target=TARGET,
            seconds=1800.0,
        )
        best = found.best
        print(f"{example.name}, {example.mesh}: {found}", flush=True)
        assert best is not None
        costs = zip(
            ("least time, µs", "sent, MiB", "AutoParallel's cost, µs"),
            measures(solved, peer),
            measures(best.program, best.report),
            strict=True,
        )
        for what, theirs, ours in costs:
            is_worse = ours > theirs * (1 + 1e-9)
            worse += is_worse
            print(f"    {what}: {ours:.1f}, its solution {theirs:.1f}{' WORSE' * is_worse}")
        sent = measures(solved, peer)[1]
        # Its solution is what it says only if it sends what that has to send.
        if abs(sent - by_hand) > 1e-3 * by_hand:
            worse += 1
            print(f"    its solution by hand sends {by_hand:.1f} MiB: NOT AS STATED")
    print(f"{worse} worse")
    return worse


def measures(program: Any, report: Any) -> tuple[float, float, float]:
    """Least time (µs), bytes sent by each device (MiB), AutoParallel's cost (µs)."""
    import shardviz as sv
    from shardviz.advise.candidates import sent_bytes
    from shardviz.compiled.op_costs import op_costs
    from shardviz.compiled.roofline import with_operations

    cost, plan = 0.0, sv.plan(program)
    for one in op_costs(plan):
        if one.opcode not in _VIEWS:
            arithmetic = (one.flops or 0.0) / _FLOPS if one.is_product else 0.0
            cost += max(max(arithmetic, one.bytes / _BANDWIDTH) / _EFFICIENCY, _LAUNCH)
    for one in report.collectives:
        # Axis tp are the 8 GPUs of a host.
        rate = _WITHIN_HOST if one.mesh_axes == ("tp",) else _BETWEEN_HOSTS
        cost += one.sent_in_all / rate
    # Compilers for GPUs count no arithmetic.
    least = with_operations(report, plan).seconds
    return least * 1e6, sent_bytes(report.collectives) / 2**20, cost * 1e6


def bytes_by_hand(example: Example) -> float:
    """MiB that each device sends for parameters over dp and activations over tp."""
    sizes = dict(item.split("=") for item in example.mesh.split(", "))
    dp, tp = int(sizes["dp"]), int(sizes.get("tp", 1))
    weights = sum(rows * columns for rows, columns in example.weights.values())
    features = next(iter(example.weights.values()))[0]
    tokens = 1
    for rows in example.rows:
        tokens *= rows
    # Each parameter is gathered for the step, and its gradient summed and split.
    sent = 2 * (dp - 1) / dp * weights / tp
    sent += example.sums * 2 * (tp - 1) / tp * tokens * features / dp
    return 4 * sent / 2**20


def program(example: Example, specs: dict[str, tuple[str | None, ...]]) -> Any:
    """A step: the result, the gradient of the batch, and parameters after a gradient."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import shardviz as sv

    def step(weights, x, cotangent):
        y, backward = jax.vjp(example.model, weights, x)
        gradients, to_x = backward(cotangent)
        return y, to_x, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    weights, features = {}, next(iter(example.weights.values()))[0]
    for name, shape in example.weights.items():
        weights[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
    x = jax.ShapeDtypeStruct((*example.rows, features), jnp.float32)
    split = {name: P(*specs.get(name, ())) for name in weights}
    batch = P("dp")
    return sv.program(
        step, weights, x, x, mesh=example.mesh,
        in_specs=(split, batch, batch), out_specs=(batch, batch, None),
    )  # fmt: skip


def examples() -> list[Example]:
    """An MLP on both meshes, the attention of its block, and the block."""
    import jax
    import jax.numpy as jnp

    def mlp(w, x):
        return x @ w["w1"] @ w["w2"]

    def attention(w, x):
        heads = []
        for name in ("wq", "wk", "wv"):
            heads.append((x @ w[name]).reshape(*x.shape[:2], 48, -1))
        q, k, v = heads
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return mixed.reshape(x.shape) @ w["wo"]

    def block(w, x):
        x = x + attention(w, x)
        return x + jax.nn.relu(x @ w["w1"]) @ w["w2"]

    # Weights here have the features that they read first. Each is split over dp along
    # the dimension that tp does not split, so that its gather needs no other order.
    column, row, alone = ("dp", "tp"), ("tp", "dp"), (None, "dp")
    square, two = (6144, 6144), "dp=32, tp=8"
    small = {"w1": (1024, 4096), "w2": (4096, 1024)}
    four = {"wq": square, "wk": square, "wv": square, "wo": square}
    six = four | {"w1": (6144, 24576), "w2": (24576, 6144)}
    of_four = {"wq": column, "wk": column, "wv": column, "wo": row}
    of_two = {"w1": column, "w2": row}
    one = {"w1": alone, "w2": alone}
    return [
        Example("MLP", "dp=256", mlp, small, (2048 * 256,), one, 0),
        Example("MLP", two, mlp, small, (2048 * 32,), of_two, 2),
        Example("attention", two, attention, four, (8 * 32, 256), of_four, 2),
        # Of the 6 sums, 3 are gradients of q, k and v, each added to that of the residual.
        Example("transformer block", two, block, six, (8 * 32, 256), of_four | of_two, 6),
    ]


if __name__ == "__main__":
    sys.exit(main())
