"""Exercises that ask for code: the answer is a function of JAX.

A function is compiled and run on simulated devices. It is graded by its values and by
the collectives, bytes and peak memory of the compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shardviz.base.array_spec import ArraySpec
from shardviz.base.format import bytes_text, joined, shown
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.layouts import array as make_array
from shardviz.base.public.layouts import to_jax
from shardviz.base.typing import PyTree, UserFunction
from shardviz.compiled.report import Report, peak_bytes
from shardviz.exercises import words
from shardviz.exercises.answers import Answer, Wrong, check_mesh, opened, require
from shardviz.exercises.programs import sent_bytes
from shardviz.exercises.registry import Setup, add
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program
from shardviz.runs.public import run

KIB, MIB = 1 << 10, 1 << 20


def values_of(arrays: Iterable[ArraySpec]) -> list[np.ndarray]:
    """Returns small integers, whose sums and products are exact in float32."""
    rng = np.random.default_rng(0)
    values = []
    for array in arrays:
        high = array.shape[0] if array.dtype == "int32" else 4
        values.append(rng.integers(0, high, array.shape).astype(array.dtype))
    return values


def on_shards(setup: Setup, answer: Answer, out: str | tuple[str, ...]) -> Program:
    """Returns the program that calls an answer on each device, in a `jax.shard_map`.

    Args:
        setup: has `mesh`, and `arrays` with their specs.
        answer: a function of one device's shards of the arrays.
        out: the spec of each result.

    Raises:
        Wrong: if the answer is not a function.
    """
    function = check_function(setup, answer)
    import jax

    specs = (out,) if isinstance(out, str) else out
    out_specs = tuple(to_jax(Spec.parse(spec)) for spec in specs)
    mapped = jax.shard_map(
        function,
        mesh=to_jax(setup.mesh),
        in_specs=tuple(to_jax(array.spec) for array in setup.arrays),
        out_specs=out_specs[0] if isinstance(out, str) else out_specs,
        check_vma=False,
    )
    return program(lambda *arrays: mapped(*arrays), *setup.arrays, mesh=setup.mesh)


def check_function(setup: Setup, answer: Answer) -> UserFunction:
    """Returns an answer that is a function.

    Raises:
        Wrong: for any other answer.
    """
    answer = opened(answer)
    if isinstance(answer, Program):
        check_mesh(answer.mesh, setup.mesh)
        answer = answer.fn
    if not callable(answer):
        names = joined([array.name for array in setup.arrays])
        raise Wrong(f"The answer must be a function of {names}; got {shown(answer)}.")
    return answer


def ran(submitted: Program, expected: Callable[..., PyTree]) -> Report:
    """Runs a program on simulated devices, and checks its values.

    Args:
        submitted: the program of an answer.
        expected: computes the right results from whole numpy arrays.

    Raises:
        Wrong: if the program does not compile or run, or computes other values.
    """
    for problem in submitted.problems:
        raise Wrong(problem)
    values = values_of(submitted.arrays)
    report = run(submitted, *values, target=f"cpu:{submitted.mesh.size}")
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    results, right = _leaves(report.outputs), _leaves(expected(*values))
    shapes = [list(result.shape) for result in results]
    right_shapes = [list(result.shape) for result in right]
    if shapes != right_shapes:
        raise Wrong(
            f"All devices together return {joined(shapes) or 'nothing'}; they should"
            f" return {joined(right_shapes)}."
        )
    for number, (result, value) in enumerate(zip(results, right, strict=True), 1):
        if not np.allclose(result, value, rtol=1e-4, atol=1e-4):
            name = f"result {number}" if len(right) > 1 else "the result"
            share = float(np.mean(~np.isclose(result, value, rtol=1e-4, atol=1e-4)))
            raise Wrong(
                f"{cost(report)} But {share:.0%} of the values of {name} are wrong."
            )
    return report


def _leaves(tree: PyTree) -> list[np.ndarray]:
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def cost(report: Report) -> str:
    """Describes the collectives of an answer, the bytes it sends, and its peak."""
    collectives = report.partitioned or ()
    sentence = words.costs("Your function", collectives, sent_bytes(collectives))
    peak = peak_bytes(report.memory)
    return (
        sentence
        if peak is None
        else f"{sentence} At the peak, each device needs {bytes_text(peak)}."
    )


def kinds(report: Report) -> set[str]:
    """Returns the kinds of the collectives that the partitioned program has."""
    return {collective.kind for collective in report.partitioned or ()}


def sent(report: Report) -> int:
    """Returns the bytes that each device sends."""
    return sent_bytes(report.partitioned or ())


def _f32(name: str, shape: tuple[int, ...], spec: str = "") -> ArraySpec:
    return make_array(name, shape, spec=spec)


def _sends(report: Report, most: int) -> str:
    """Returns the cost of an answer that sends at most `most` bytes.

    Raises:
        Wrong: for an answer that sends more.
    """
    does = cost(report)
    require(
        sent(report) <= most, f"{does} Each device may send at most {bytes_text(most)}."
    )
    return does


def _only(report: Report, *allowed: str) -> None:
    """Raises Wrong if an answer has collectives of other kinds."""
    unwanted = sorted(kinds(report).difference(allowed))
    require(
        not unwanted,
        f"{cost(report)} Use no other collective than {joined(allowed)}.",
    )


def _peak(report: Report, most: int) -> None:
    """Raises Wrong if the peak of an answer is above `most` bytes."""
    peak = peak_bytes(report.memory)
    require(
        peak is None or peak <= most,
        f"{cost(report)} The peak should be at most {bytes_text(most)} per device.",
    )


def _everywhere(value: np.ndarray, mesh: MeshSpec) -> np.ndarray:
    """Returns a value that every device holds, as stacked by `out_specs`."""
    return np.concatenate([value] * mesh.size)


# Lesson 4: collectives.


def _ring_all_gather(part: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    me, ring = lax.axis_index("x"), [(i, (i + 1) % 4) for i in range(4)]
    gathered = jnp.zeros((4, *part.shape)).at[me].set(part)
    for step in range(1, 4):
        part = lax.ppermute(part, "x", ring)
        gathered = gathered.at[(me - step) % 4].set(part)
    return gathered.reshape(-1, part.shape[1])


@add(
    "collectives/ring-all-gather",
    task="""
Write an all-gather with nothing but `jax.lax.ppermute`. Your function runs on each device inside
`jax.shard_map`. It gets the device's `part` of the array, and returns the whole array, with the parts in the
order of the devices along `x`. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"), arrays=(_f32("part", (1024, 256), "x"),), most=768 * KIB
    ),
    hints=(
        "In each step, every device passes on the part that it received last.",
        "After `step` steps a device holds the part of the device `step` places before it.",
        "`jax.lax.axis_index` returns the device's place along `x`; write each part to its own rows.",
    ),
    solution=_ring_all_gather,
    why="Three steps bring each device the three parts that it lacks, and each step sends one part.",
)
def collectives_ring_all_gather(setup: Setup, answer: Answer) -> str:
    submitted = on_shards(setup, answer, "x")
    report = ran(submitted, lambda part: _everywhere(part, setup.mesh))
    _only(report, "collective-permute")
    return _sends(report, setup.most)


def _ring_reduce_scatter(addend: Any) -> Any:
    from jax import lax

    chunks = addend.reshape(4, 256, 256)
    me, ring = lax.axis_index("x"), [(i, (i + 1) % 4) for i in range(4)]
    total = chunks[(me - 1) % 4]
    for step in range(2, 5):
        total = lax.ppermute(total, "x", ring) + chunks[(me - step) % 4]
    return total


@add(
    "collectives/ring-reduce-scatter",
    task="""
Every device has an `addend` of shape `[1, 1024, 256]`. Add the addends with nothing but `jax.lax.ppermute`
and additions, so that the device at place `i` along `x` ends with rows `256 * i` to `256 * (i + 1)` of the
sum. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("addend", (4, 1024, 256), "x"),),
        most=768 * KIB,
    ),
    hints=(
        "A chunk of rows goes once around the ring, and every device adds its own rows to it.",
        "The chunk must end on the device that keeps it; where does it begin?",
        "The chunk begins one place after that device, and takes three steps.",
    ),
    solution=_ring_reduce_scatter,
    why="In each of three steps every device sends a quarter of the rows, and the receiver adds its own rows.",
)
def collectives_ring_reduce_scatter(setup: Setup, answer: Answer) -> str:
    report = ran(on_shards(setup, answer, "x"), lambda addend: addend.sum(axis=0))
    _only(report, "collective-permute")
    return _sends(report, setup.most)


def _two_rounds(addend: Any) -> Any:
    from jax import lax

    part = lax.psum_scatter(addend[0], "x", tiled=True)
    return lax.all_gather(part, "x", tiled=True)


@add(
    "collectives/all-reduce-in-two",
    task="""
Every device has an `addend` of shape `[1, 1024, 256]`, and needs the whole sum, of shape `[1024, 256]`.
Write the two rounds of an all-reduce as two JAX collectives, neither of which is an all-reduce.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("addend", (4, 1024, 256), "x"),),
        most=1536 * KIB,
    ),
    hints=(
        "After the first round, each device has a quarter of the sum.",
        "The first round adds and splits, and the second one collects.",
        "Both functions of `jax.lax` need `tiled=True` to keep the number of dimensions.",
    ),
    solution=_two_rounds,
    why="A reduce-scatter leaves a quarter of the sum on each device, and an all-gather collects the quarters.",
)
def collectives_all_reduce_in_two(setup: Setup, answer: Answer) -> str:
    submitted = on_shards(setup, answer, "x")
    report = ran(submitted, lambda addend: _everywhere(addend.sum(axis=0), setup.mesh))
    _only(report, "reduce-scatter", "all-gather")
    return _sends(report, setup.most)


# Lesson 6: matrix products.


def _scattered_product(A: Any, B: Any) -> Any:
    from jax import lax

    return lax.psum_scatter(A @ B, "x", scatter_dimension=0, tiled=True)


@add(
    "matmul/scatter-the-sum",
    task="""
The inner dimension of `A @ B` is split. Write the function that each device runs inside `jax.shard_map`:
the function gets the device's columns of `A` and rows of `B`, and returns the device's rows of the product.
Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("A", (512, 1024), "None, x"), _f32("B", (1024, 512), "x")),
        most=768 * KIB,
    ),
    hints=(
        "What does a device have after it has multiplied its two blocks?",
        "The device has a partial sum of the whole product, but needs only a quarter of the rows.",
        "One collective adds and splits; choose the dimension that it splits.",
    ),
    solution=_scattered_product,
    why="A reduce-scatter adds and splits the partial sums. In it, each device sends half of the bytes of an all-reduce.",
)
def matmul_scatter_the_sum(setup: Setup, answer: Answer) -> str:
    return _sends(ran(on_shards(setup, answer, "x"), np.matmul), setup.most)


# Lesson 7: parallelism.


def _mean_gradient(w: Any, x: Any) -> Any:
    from jax import lax

    return lax.pmean(x.T @ (x @ w) / len(x), "x")


@add(
    "parallelism/data-by-hand",
    task="""
Write data parallelism: each device has all of `w` and its rows of `x`, and must return the gradient, with
respect to `w`, of `0.5 * mean over all rows of sum((x @ w) ** 2)`. All devices return the same gradient. Each
device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("w", (256, 256)), _f32("x", (1024, 256), "x")),
        most=384 * KIB,
    ),
    hints=(
        "The gradient of one device's rows is `x.T @ (x @ w)`, divided by the number of these rows.",
        "Don't send rows. Which array has the same shape on every device?",
        "Average the devices' gradients with one collective.",
    ),
    solution=_mean_gradient,
    why="A gradient is as large as `w`, however many rows there are, and one all-reduce averages it.",
)
def parallelism_data_by_hand(setup: Setup, answer: Answer) -> str:
    def gradient(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return _everywhere(x.T @ (x @ w) / len(x), setup.mesh)

    return _sends(ran(on_shards(setup, answer, "x"), gradient), setup.most)


def _fsdp_gradient(w: Any, x: Any) -> Any:
    from jax import lax

    all_rows = lax.all_gather(w, "x", tiled=True)
    return lax.psum_scatter(x.T @ (x @ all_rows), "x", tiled=True)


@add(
    "parallelism/fsdp-by-hand",
    task="""
Write fully sharded data parallelism: each device has its rows of `w` and its rows of `x`, and must return
its rows of the gradient, with respect to `w`, of `0.5 * sum((x @ w) ** 2)`. Each device may send at most
`most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("w", (512, 512), "x"), _f32("x", (1024, 512), "x")),
        most=1536 * KIB,
    ),
    hints=(
        "A device needs all of `w` for the product, but keeps only its own rows.",
        "The gradient of one device's rows of `x` has the shape of all of `w`.",
        "Gather `w` before the product. After it, add and split the gradient in one collective.",
    ),
    solution=_fsdp_gradient,
    why="An all-gather gives each device all of `w`, and a reduce-scatter gives it the rows of the gradient that it keeps.",
)
def parallelism_fsdp_by_hand(setup: Setup, answer: Answer) -> str:
    report = ran(on_shards(setup, answer, "x"), lambda w, x: x.T @ (x @ w))
    return _sends(report, setup.most)


def _tensor_mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    return lax.psum(jnp.maximum(x @ w_in, 0) @ w_out, "x")


@add(
    "parallelism/tensor-by-hand",
    task="""
Write tensor parallelism: each device has all of `x`, its columns of `w_in` and its rows of `w_out`, and must
return all of `maximum(x @ w_in, 0) @ w_out`. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(
            _f32("x", (256, 256)),
            _f32("w_in", (256, 1024), "None, x"),
            _f32("w_out", (1024, 256), "x"),
        ),
        most=384 * KIB,
    ),
    hints=(
        "Can a device compute its columns of the hidden layer without data from other devices?",
        "With these columns and its rows of `w_out`, it has a partial sum of the result.",
        "Add the partial sums with one collective at the end.",
    ),
    solution=_tensor_mlp,
    why="The hidden layer stays split, so only the result is added up, once.",
)
def parallelism_tensor_by_hand(setup: Setup, answer: Answer) -> str:
    def mlp(x: np.ndarray, w_in: np.ndarray, w_out: np.ndarray) -> np.ndarray:
        return _everywhere(np.maximum(x @ w_in, 0) @ w_out, setup.mesh)

    return _sends(ran(on_shards(setup, answer, "x"), mlp), setup.most)


# Lesson 11: memory.


def _accumulated(w: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    def add_part(total: Any, part: Any) -> Any:
        return total + part.T @ jnp.maximum(part @ w, 0), None

    zeros = jnp.zeros((256, 1024))
    total, _ = lax.scan(add_part, zeros, x.reshape(8, -1, 256))
    return lax.psum(total, "x")


@add(
    "memory/accumulate",
    task="""
Each device has all of `w` and its rows of `x`, and must return the sum of `x.T @ maximum(x @ w, 0)` over all
rows. The hidden array `x @ w` for all rows of a device is too large: at the peak, a device may need at most
`peak` bytes. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("w", (256, 1024)), _f32("x", (8192, 256), "x")),
        most=1536 * KIB,
        peak=9 * MIB,
    ),
    hints=(
        "The sum over all rows is the sum of the sums over parts of the rows.",
        "Take the parts one after another, in a loop that XLA does not unroll.",
        "Use `jax.lax.scan` over parts of `x`, and one collective after it.",
    ),
    solution=_accumulated,
    why="The loop holds the hidden array of one part at a time, and the sum is sent once, after the loop.",
)
def memory_accumulate(setup: Setup, answer: Answer) -> str:
    def total(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return _everywhere(x.T @ np.maximum(x @ w, 0), setup.mesh)

    report = ran(on_shards(setup, answer, "x"), total)
    does = _sends(report, setup.most)
    _peak(report, setup.peak)
    return does


# Lesson 8: ZeRO.


def _zero_step(w: Any, gradient: Any, momentum: Any) -> Any:
    from jax import lax

    summed = lax.psum_scatter(gradient[0], "x", tiled=True)
    momentum = momentum / 2 + summed
    me, rows = lax.axis_index("x"), momentum.shape[0]
    part = lax.dynamic_slice_in_dim(w, me * rows, rows) - momentum
    return lax.all_gather(part, "x", tiled=True), momentum


@add(
    "zero/step",
    task="""
Write a step of ZeRO 1. Each device has all of `w`, the `gradient` of its own part of the batch, of shape
`[1, 1024, 256]`, and its rows of `momentum`. Return two arrays: all of the new `w`, and the device's rows of
the new momentum. The new momentum is half of the old one plus the sum of all gradients; the new `w` is `w`
minus the new momentum. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(
            _f32("w", (1024, 256)),
            _f32("gradient", (4, 1024, 256), "x"),
            _f32("momentum", (1024, 256), "x"),
        ),
        most=1536 * KIB,
    ),
    hints=(
        "Which rows of the summed gradient does a device need for its momentum?",
        "With these rows a device can update its own rows of `w`, and no others.",
        "Use one collective before the update, and another one after it.",
    ),
    solution=_zero_step,
    why="A reduce-scatter gives each device its rows of the summed gradient, and an all-gather collects the new rows of `w`. Together they send as many bytes as an all-reduce.",
)
def zero_step(setup: Setup, answer: Answer) -> str:
    def step(w: np.ndarray, gradient: np.ndarray, momentum: np.ndarray) -> PyTree:
        momentum = momentum / 2 + gradient.sum(axis=0)
        return _everywhere(w - momentum, setup.mesh), momentum

    return _sends(ran(on_shards(setup, answer, ("x", "x")), step), setup.most)


def _global_norm(split: Any, replicated: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    squares = lax.psum(jnp.sum(split**2), "x") + jnp.sum(replicated**2)
    return jnp.sqrt(squares)[None]


@add(
    "zero/global-norm",
    task="""
Gradients are often scaled by their norm. Each device has its rows of `split` and all of `replicated`; return
the square root of the sum of the squares of all their elements, as an array of shape `[1]`, the same on every
device. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("split", (1024, 256), "x"), _f32("replicated", (256,))),
        most=6,
    ),
    hints=(
        "Squares can be added on each device before anything is sent.",
        "How many devices hold the elements of `replicated`? Each element must count only once.",
        "Add up over the devices only the sums for `split`.",
    ),
    solution=_global_norm,
    why="Each device sends one number for `split`. Every device has all of `replicated` already, so the squares of `replicated` must not be added over the devices.",
)
def zero_global_norm(setup: Setup, answer: Answer) -> str:
    def norm(split: np.ndarray, replicated: np.ndarray) -> np.ndarray:
        squares = (split**2).sum(dtype=np.float64) + (replicated**2).sum()
        return _everywhere(np.sqrt(squares)[None], setup.mesh)

    return _sends(ran(on_shards(setup, answer, "x"), norm), setup.most)


# Lesson 20: shard_map.


def _halo(rows: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    up, down = (
        [(i, (i + 1) % 4) for i in range(4)],
        [(i, (i - 1) % 4) for i in range(4)],
    )
    above = lax.ppermute(rows[-1:], "x", up)
    below = lax.ppermute(rows[:1], "x", down)
    padded = jnp.concatenate([above, rows, below])
    return padded[:-2] + padded[2:]


@add(
    "shard_map/halo",
    task="""
Row `i` of the result is row `i - 1` plus row `i + 1` of the argument, and the last row is followed by the
first one. Write the function that each device runs for its `rows`. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"), arrays=(_f32("rows", (1024, 256), "x"),), most=2 * KIB
    ),
    hints=(
        "Which rows of other devices does a device need?",
        "A device needs two: the last row of the device before it, and the first row of the next one.",
        "Send one row in each direction with `jax.lax.ppermute`, and add shifted copies of your rows.",
    ),
    solution=_halo,
    why="Other devices need only the first and the last row of a shard: each device sends two rows of 1 KiB.",
)
def shard_map_halo(setup: Setup, answer: Answer) -> str:
    def neighbours(rows: np.ndarray) -> np.ndarray:
        return np.roll(rows, 1, axis=0) + np.roll(rows, -1, axis=0)

    return _sends(ran(on_shards(setup, answer, "x"), neighbours), setup.most)


def _collective_matmul(A: Any, B: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    me, ring = lax.axis_index("x"), [(i, (i + 1) % 4) for i in range(4)]
    product = jnp.zeros((4, A.shape[0], B.shape[1]))
    for step in range(4):
        product = product.at[(me - step) % 4].set(A @ B)
        if step < 3:
            A = lax.ppermute(A, "x", ring)
    return product.reshape(-1, B.shape[1])


@add(
    "shard_map/collective-matmul",
    task="""
Each device has its rows of `A` and its columns of `B`, and must return its columns of `A @ B`. Send the rows
of `A` around the ring with `jax.lax.ppermute` while multiplying, so that no device ever holds all of `A`. At
the peak, a device may need at most `peak` bytes. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("A", (256, 4096), "x"), _f32("B", (4096, 128), "None, x")),
        most=3 * MIB,
        peak=5 * MIB,
    ),
    hints=(
        "In each step, multiply the rows of `A` that the device holds now, and pass these rows on.",
        "After `step` steps a device has the rows of the device `step` places before it.",
        "Write each product to its rows of the result; three sends are enough.",
    ),
    solution=_collective_matmul,
    why="Each device sends three of the four shards, as in an all-gather, but holds at most two at a time.",
)
def shard_map_collective_matmul(setup: Setup, answer: Answer) -> str:
    report = ran(on_shards(setup, answer, "None, x"), np.matmul)
    _only(report, "collective-permute")
    does = _sends(report, setup.most)
    _peak(report, setup.peak)
    return does


# Lesson 22: ring attention.


def _ring_attention(q: Any, k: Any, v: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    me, ring = lax.axis_index("x"), [(i, (i + 1) % 4) for i in range(4)]
    rows = jnp.arange(len(q))[:, None] + me * len(q)
    largest = jnp.full((len(q), 1), -jnp.inf)
    total, mixed = jnp.zeros((len(q), 1)), jnp.zeros(v.shape)
    for step in range(4):
        columns = jnp.arange(len(k)) + (me - step) % 4 * len(k)
        scores = jnp.where(columns <= rows, q @ k.T, -jnp.inf)
        highest = jnp.maximum(largest, scores.max(axis=1, keepdims=True))
        scale, weights = jnp.exp(largest - highest), jnp.exp(scores - highest)
        total = scale * total + weights.sum(axis=1, keepdims=True)
        mixed, largest = scale * mixed + weights @ v, highest
        k, v = lax.ppermute(k, "x", ring), lax.ppermute(v, "x", ring)
    return mixed / total


@add(
    "ring/causal",
    task="""
Write causal ring attention for one head: each device has its rows of `q`, `k` and `v`, and returns its rows
of `softmax(q @ k.T) @ v`, in which row `i` attends to rows `0` to `i`. Keys and values go around the ring with
`jax.lax.ppermute`, and at the peak a device may need at most `peak` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=tuple(_f32(name, (1024, 16), "x") for name in "qkv"),
        most=256 * KIB,
        peak=1536 * KIB,
    ),
    hints=(
        "Keep the largest score, the sum of the weights and the weighted sum of the values, and rescale the two sums in each step.",
        "The mask needs the positions of queries and keys in the whole sequence.",
        "In the first step a device has its own keys, so every row has at least one score.",
    ),
    solution=_ring_attention,
    why="A device holds the scores of only one shard of keys at a time, and rescales its sums if a later score is larger.",
)
def ring_causal(setup: Setup, answer: Answer) -> str:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights @ v / weights.sum(axis=1, keepdims=True)

    report = ran(on_shards(setup, answer, "x"), attention)
    _only(report, "collective-permute")
    does = _sends(report, setup.most)
    _peak(report, setup.peak)
    return does


# Lesson 23: the KV cache.


def _split_cache(q: Any, k: Any, v: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    scores = k @ q
    largest = lax.pmax(scores.max(), "x")
    weights = jnp.exp(scores - largest)
    return lax.psum(weights @ v, "x") / lax.psum(weights.sum(), "x")


@add(
    "cache/split-sequence",
    task="""
The cache of one head, `k` and `v`, is split by the sequence. Each device has all of the query `q`, and must
return all of `softmax(k @ q) @ v`, of shape `[64]`. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(
            _f32("q", (64,)),
            _f32("k", (4096, 64), "x"),
            _f32("v", (4096, 64), "x"),
        ),
        most=512,
    ),
    hints=(
        "A softmax subtracts the largest score, and divides by a sum over all positions.",
        "Each device can weight and add the values of its own positions. How large is the result?",
        "Use three collectives: for the largest score, for the sum of the weights, and for the weighted sum.",
    ),
    solution=_split_cache,
    why="Each device reduces its positions to two numbers and a vector of 64, and the devices combine only these.",
)
def cache_split_sequence(setup: Setup, answer: Answer) -> str:
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = k @ q
        weights = np.exp(scores - scores.max())
        return _everywhere(weights @ v / weights.sum(), setup.mesh)

    return _sends(ran(on_shards(setup, answer, "x"), attention), setup.most)


# Lesson 24: pipelines.


def _tick(w: Any, h: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    ring = [(i, (i + 1) % 4) for i in range(4)]
    return lax.ppermute(jnp.maximum(h @ w, 0), "x", ring)


@add(
    "pipeline/tick",
    task="""
Write one tick of a pipeline: each device applies its layer, `maximum(h @ w, 0)`, to its activations `h`, and
passes the result to the next device along `x`. The last device passes its result to the first. On each
device, both arguments and the result have a first dimension of size 1.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("w", (4, 256, 256), "x"), _f32("h", (4, 64, 256), "x")),
        most=64 * KIB,
    ),
    hints=(
        "Apply the layer first. Does the next device need `h` or the result?",
        "`jax.lax.ppermute` takes pairs of places: the sender and the receiver.",
        "There are four pairs, and the last one leads back to the first place.",
    ),
    solution=_tick,
    why="The weights stay where they are. Only activations are sent, to the device that has the next layer.",
)
def pipeline_tick(setup: Setup, answer: Answer) -> str:
    def tick(w: np.ndarray, h: np.ndarray) -> np.ndarray:
        return np.roll(np.maximum(h @ w, 0), 1, axis=0)

    report = ran(on_shards(setup, answer, "x"), tick)
    _only(report, "collective-permute")
    return _sends(report, setup.most)


# Lesson 26: several slices.


def _by_slice(addend: Any) -> Any:
    from jax import lax

    part = lax.psum_scatter(addend[0], "chip", tiled=True)
    return lax.all_gather(lax.psum(part, "slice"), "chip", tiled=True)


@add(
    "slices/hierarchical",
    task="""
Two slices of four chips are joined by a slow network. Every chip has an `addend` of shape `[1, 1024, 256]`,
and needs the whole sum of all eight. In collectives over the axis `slice`, each chip may send at most `most`
bytes in total.
""",
    given=lambda: Setup(
        mesh=make_mesh("slice=2, chip=4"),
        arrays=(_f32("addend", (8, 1024, 256), "(slice, chip)"),),
        most=256 * KIB,
    ),
    hints=(
        "Add within each slice before you send anything over the network.",
        "After that, the four chips of a slice have the same sum. Can each chip send only a part of it over the network?",
        "Split the sum among the chips of a slice first, then add over the network, and gather at the end.",
    ),
    solution=_by_slice,
    why="Each chip sends only a quarter of the array over the network; all other data is sent inside the slices.",
)
def slices_hierarchical(setup: Setup, answer: Answer) -> str:
    submitted = on_shards(setup, answer, "(slice, chip)")
    report = ran(submitted, lambda addend: _everywhere(addend.sum(axis=0), setup.mesh))
    crossing = []
    for collective in report.partitioned or ():
        if (
            any("slice" in axis for axis in collective.mesh_axes)
            or not collective.mesh_axes
        ):
            crossing.append(collective)
    over_network = sent_bytes(crossing)
    does = f"{cost(report)} Of the bytes sent, {bytes_text(over_network)} are over `slice`."
    require(
        over_network <= setup.most,
        f"{does} Each chip may send at most {bytes_text(setup.most)} over `slice`.",
    )
    return does


# Lesson 29: experts.


def _there_and_back(boxes: Any, w: Any) -> Any:
    from jax import lax

    arrived = lax.all_to_all(boxes[0], "x", 0, 0)
    return lax.all_to_all(arrived @ w[0], "x", 0, 0)[None]


@add(
    "experts/there-and-back",
    task="""
Each device has one expert, the matrix `w`, and `boxes` of shape `[1, 4, 64, 128]`: one box of tokens for each
expert. Send each box to the device of its expert, multiply it by the expert's matrix, and send the result
back to the same place of `boxes`. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("boxes", (4, 4, 64, 128), "x"), _f32("w", (4, 128, 128), "x")),
        most=192 * KIB,
    ),
    hints=(
        "The matrices stay where they are; the tokens move.",
        "One collective gives each device a box from every other device.",
        "The same collective brings the results back.",
    ),
    solution=_there_and_back,
    why="In one all-to-all each device sends its three boxes for other experts, and in a second one it returns the results for other devices.",
)
def experts_there_and_back(setup: Setup, answer: Answer) -> str:
    def there_and_back(boxes: np.ndarray, w: np.ndarray) -> np.ndarray:
        return boxes @ w[None]

    report = ran(on_shards(setup, answer, "x"), there_and_back)
    _only(report, "all-to-all")
    return _sends(report, setup.most)


# Lesson 28: Explicit mode.


def _chosen_result(A: Any, B: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jnp.matmul(A, B, out_sharding=jax.sharding.PartitionSpec("x", None))


@add(
    "explicit/chosen-result",
    task="""
The axis of this mesh is Explicit, and JAX refuses `A @ B`, because the dimension that the product sums over
is split. Write a function of `A` and `B` that JAX accepts. Its result must be the product, split by rows over
`x`.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4", axis_types="Explicit"),
        arrays=(_f32("A", (512, 1024), "None, x"), _f32("B", (1024, 512), "x")),
    ),
    hints=(
        "There are several ways to split the result, and you must choose one.",
        "The matrix products of JAX take the choice as a keyword argument.",
        "`jnp.matmul` has `out_sharding=`, which takes a PartitionSpec.",
    ),
    solution=_chosen_result,
    why="Each device has a partial sum of the product. `out_sharding` requests that each device get its rows of the whole sum.",
)
def explicit_chosen_result(setup: Setup, answer: Answer) -> str:
    function = check_function(setup, answer)
    # A plan of the function itself shows what jax refuses in its types.
    submitted = program(lambda A, B: function(A, B), *setup.arrays, mesh=setup.mesh)
    report = ran(submitted, np.matmul)
    (layout,) = report.out_layouts.values()
    does = words.shards_text(layout)
    require(
        layout.shard_shape == (128, 512),
        f"{does} The rows of the result must be split over `x`.",
    )
    return does
