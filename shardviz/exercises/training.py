"""Exercises of lessons 21, 25 and 27, about training steps on many devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardviz.base.array_spec import ArraySpec
from shardviz.base.format import bytes_text
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.layouts import array as make_array
from shardviz.compiled.report import peak_bytes
from shardviz.exercises import words
from shardviz.exercises.answers import (
    Answer,
    Wrong,
    check_names,
    check_number,
    require,
)
from shardviz.exercises.registry import Setup, add
from shardviz.exercises.your_code import (
    KIB,
    MIB,
    cost,
    kinds,
    on_shards,
    ran,
    sent,
    values_of,
)
from shardviz.programs.program import Program
from shardviz.runs.public import run


def _f32(name: str, shape: tuple[int, ...], spec: str = "") -> ArraySpec:
    return make_array(name, shape, spec=spec)


# Lesson 21: sequence parallelism.


@add(
    "sequence/kept",
    task="""
A stack of `layers` checkpointed blocks keeps the input of each block for the backward pass. The inputs have
the shape of `x`. Tensor parallelism over `model` leaves all of `x` on each device along `model`; sequence
parallelism also splits the tokens of `x` over `model`. How many bytes of inputs does sequence parallelism
save on each device? The dimensions of `x` are batch, tokens and embedding.
""",
    given=lambda: Setup(
        mesh=make_mesh("data=4, model=8"),
        x=make_array("x", (16, 8192, 4096), dtype="bfloat16", spec="data"),
        layers=32,
    ),
    hints=(
        "How many bytes of one input does each device hold with tensor parallelism?",
        "With the tokens split as well, a device holds an eighth of that.",
        "The savings are the difference, counted for all layers.",
    ),
    solution="7 GiB",
    why="With tensor parallelism each device holds 256 MiB of each input. Sequence parallelism saves seven eighths of that, in 32 layers.",
)
def sequence_kept(setup: Setup, answer: Answer) -> str:
    mistakes = {
        8
        / 7: "that is everything that a device holds with tensor parallelism, but a part of it stays.",
        1 / 7: "those are the bytes that stay.",
        4: "that is without the split of the batch over `data`.",
        1 / 32: "that is the input of one layer.",
        2: "that counts 4 bytes per element; look at the dtype of `x`.",
    }
    copied = lay_out(setup.x.shape, setup.x.spec, setup.mesh, setup.x.dtype)
    split = lay_out(setup.x.shape, Spec.parse("data, model"), setup.mesh, setup.x.dtype)
    saved = copied.bytes_per_device - split.bytes_per_device
    return check_number(answer, setup.layers * saved, "bytes", mistakes)


def _sequence_block(x: Any, w_in: Any, w_out: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    tokens = lax.all_gather(x, "x", tiled=True)
    partial = jnp.maximum(tokens @ w_in, 0) @ w_out
    return lax.psum_scatter(partial, "x", tiled=True)


@add(
    "sequence/block-by-hand",
    task="""
Write a block with sequence parallelism. Each device has its rows of `x`, its columns of `w_in` and its rows of
`w_out`, and must return its rows of `maximum(x @ w_in, 0) @ w_out`. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(
            _f32("x", (512, 256), "x"),
            _f32("w_in", (256, 2048), "None, x"),
            _f32("w_out", (2048, 256), "x"),
        ),
        most=768 * KIB,
    ),
    hints=(
        "Each device multiplies all rows by its part of the weights, but it has only some of the rows.",
        "After the second product a device has a partial sum of all rows, and needs the whole sum of its own rows.",
        "Use one collective before the products, and another after them that adds and splits.",
    ),
    solution=_sequence_block,
    why="An all-gather and a reduce-scatter together send as much as one all-reduce, and the result stays split like `x`.",
)
def sequence_block_by_hand(setup: Setup, answer: Answer) -> str:
    def block(x: np.ndarray, w_in: np.ndarray, w_out: np.ndarray) -> np.ndarray:
        return np.maximum(x @ w_in, 0) @ w_out

    report = ran(on_shards(setup, answer, "x"), block)
    does = cost(report)
    require(
        sent(report) <= setup.most,
        f"{does} Each device may send at most {bytes_text(setup.most)}.",
    )
    return does


# Lesson 25: gradient accumulation.


@add(
    "accumulation/sends",
    task="""
Weights and gradients of `parameters` parameters are split over `devices` devices, in bfloat16. A step runs
`microbatches` microbatches. For each microbatch the weights are gathered once, and kept until the backward
pass of the microbatch is done. The gradients are added up on each device, and one reduce-scatter after the
last microbatch adds them over the devices. How many bytes does each device send in a step?
""",
    given=lambda: Setup(parameters=2147483648, devices=16, microbatches=7),
    hints=(
        "How many bytes does each device send in one all-gather of all weights?",
        "In the reduce-scatter of all gradients, each device sends as many bytes.",
        "How many collectives are there in a step, counting those of all microbatches?",
    ),
    solution="30 GiB",
    why="The weights have 4 GiB, and in each collective a device sends fifteen sixteenths of that. There are seven gathers and one reduce-scatter.",
)
def accumulation_sends(setup: Setup, answer: Answer) -> str:
    mistakes = {
        14
        / 8: "that is for one reduce-scatter per microbatch, but there is one per step.",
        2 / 8: "that is for one all-gather per step, but there is one per microbatch.",
        7 / 8: "that leaves out the reduce-scatter.",
        1 / 8: "that is a single collective.",
        16
        / 15: "that is for sending all of the weights, but a device sends all parts except one.",
        2: "that counts 4 bytes per parameter.",
    }
    each = (setup.devices - 1) / setup.devices * 2 * setup.parameters
    return check_number(answer, (setup.microbatches + 1) * each, "bytes", mistakes)


def _accumulated_fsdp(w: Any, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    whole = lax.all_gather(w, "x", tiled=True)

    def add_part(total: Any, part: Any) -> Any:
        return total + part.T @ jnp.maximum(part @ whole, 0), None

    total, _ = lax.scan(add_part, jnp.zeros((256, 1024)), x.reshape(8, -1, 256))
    return lax.psum_scatter(total, "x", tiled=True)


@add(
    "accumulation/fsdp",
    task="""
Each device has its rows of `w` and its rows of `x`, and must return its rows of `x.T @ maximum(x @ w, 0)`,
summed over the rows of all devices. The hidden array `x @ w` for all rows of a device is too large: at the
peak, a device may need at most `peak` bytes. Each device may send at most `most` bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4"),
        arrays=(_f32("w", (256, 1024), "x"), _f32("x", (8192, 256), "x")),
        most=1536 * KIB,
        peak=9 * MIB,
    ),
    hints=(
        "Take the rows of `x` in parts, one after another, in a loop that XLA does not unroll.",
        "How often do you need to gather `w`, and how often must you sum over the devices?",
        "Use one collective before `jax.lax.scan`, and one after it that adds and splits.",
    ),
    solution=_accumulated_fsdp,
    why="The whole `w` fits in memory, so one gather is enough for all microbatches. The sums stay on the device until the loop is done.",
)
def accumulation_fsdp(setup: Setup, answer: Answer) -> str:
    def total(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return x.T @ np.maximum(x @ w, 0)

    report = ran(on_shards(setup, answer, "x"), total)
    does, peak = cost(report), peak_bytes(report.memory)
    require(
        sent(report) <= setup.most,
        f"{does} Each device may send at most {bytes_text(setup.most)}.",
    )
    require(
        peak is None or peak <= setup.peak,
        f"{does} The peak should be at most {bytes_text(setup.peak)} per device.",
    )
    return does


# Lesson 27: random numbers.


@add(
    "random/folded-axes",
    task="""
Inside `jax.shard_map`, each device draws a dropout mask for its shard of `hidden`, whose dimensions are batch,
tokens and features. Devices with the same shard must draw the same mask, and devices with different shards
different ones. Along which mesh axes does each device fold its index into its key? Answer with their names.
""",
    given=lambda: Setup(
        mesh=make_mesh("pod=2, data=4, seq=2, model=4"),
        hidden=make_array("hidden", (64, 2048, 4096), spec="(pod, data), seq"),
    ),
    hints=(
        "Which devices hold the same shard of `hidden`?",
        "Two devices get different keys if they differ in an index that is folded in.",
        "The axes in the spec of `hidden` split it; devices along the other axes hold copies.",
    ),
    solution="pod, data, seq",
    why="Devices that differ only along `model` hold the same shard, so their keys must be equal. Along the other axes the shards differ.",
)
def random_folded_axes(setup: Setup, answer: Answer) -> str:
    axes = setup.mesh.axis_names
    right = [axis for axis in axes if axis in setup.hidden.spec.axes]
    return check_names(answer, axes, right, "The mesh axes")


def _dropout(seed: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    key = jax.random.fold_in(jax.random.key(seed[0]), jax.lax.axis_index("data"))
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


@add(
    "random/dropout-by-hand",
    task="""
Write dropout for `x`, whose rows are split over `data` and copied along `model`. Each element becomes 0 with
a probability of one half; otherwise it is doubled. Devices with the same rows must return the same values,
and devices with different rows must draw independent masks. Another `seed` (an array with one integer) must
give other masks. The devices may send nothing.
""",
    given=lambda: Setup(
        mesh=make_mesh("data=2, model=2"),
        arrays=(
            make_array("seed", (1,), dtype="int32", spec=""),
            _f32("x", (512, 256), "data"),
        ),
    ),
    hints=(
        "`jax.random.key(seed[0])` is the same on every device, and so is everything drawn from it.",
        "`jax.random.fold_in` makes another key from a key and an integer.",
        "Fold in the device's index along the axis that splits `x`, and along no other.",
    ),
    solution=_dropout,
    why="The index along `data` makes the keys of different rows differ. Along `model` the keys are equal, so the copies stay equal.",
)
def random_dropout_by_hand(setup: Setup, answer: Answer) -> str:
    submitted = on_shards(setup, answer, "(data, model)")
    _, x = values_of(setup.arrays)
    x = x + 1  # without zeros, so that each dropped element shows
    first, does = _dropped(submitted, 1, x)
    second, _ = _dropped(submitted, 2, x)
    require(
        _alike(first[0], second[0]) < 0.6,
        f"{does} With two seeds, the masks agree at {_alike(first[0], second[0]):.0%} of the elements.",
    )
    return does


def _dropped(submitted: Program, seed: int, x: np.ndarray) -> tuple[np.ndarray, str]:
    """Returns the masks of the two shards of rows, and a sentence about the answer.

    Raises:
        Wrong: if the answer is not a dropout, sends data, or draws the wrong masks.
    """
    for problem in submitted.problems:
        raise Wrong(problem)
    report = run(submitted, np.array([seed], "int32"), x, target="cpu:4")
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    does = cost(report)
    (returned,) = (
        report.outputs if isinstance(report.outputs, tuple) else (report.outputs,)
    )
    result = np.asarray(returned)
    require(
        result.shape == (1024, 256),
        f"All devices together return {list(result.shape)}; they should return [1024, 256].",
    )
    shards = result.reshape(2, 2, 256, 256)  # by data, then by model
    require(
        np.array_equal(shards[:, 0], shards[:, 1]),
        f"{does} Devices that hold the same rows return different values.",
    )
    rows, masks = x.reshape(2, 256, 256), shards[:, 0] != 0
    require(
        np.array_equal(shards[:, 0], np.where(masks, 2 * rows, 0)),
        f"{does} Some elements are neither 0 nor doubled.",
    )
    share = float(masks.mean())
    require(
        0.48 < share < 0.52,
        f"{does} Half of the elements should be kept, not {share:.0%}.",
    )
    require(
        _alike(masks[0], masks[1]) < 0.6,
        f"{does} The masks of different rows are not independent: they agree at {_alike(masks[0], masks[1]):.0%} of the elements.",
    )
    require(not kinds(report), f"{does} The devices should send nothing.")
    return masks, does


def _alike(mask: np.ndarray, other: np.ndarray) -> float:
    """Returns the share of elements that both masks keep, or both drop."""
    return float(np.mean(mask == other))
