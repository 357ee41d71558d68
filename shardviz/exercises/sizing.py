"""Exercises of lessons 16, 17 and 19: the arithmetic, limits and times of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardviz.base.array_spec import ArraySpec
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.public.layouts import array as make_array
from shardviz.base.typing import UserFunction
from shardviz.exercises.answers import (
    Answer,
    Wrong,
    check_number,
    read_mesh,
    require,
)
from shardviz.exercises.registry import Setup, add
from shardviz.exercises.your_code import check_function, ran
from shardviz.programs.public.programs import program

# Lesson 16: the arithmetic of a layer.


@add(
    "arithmetic/attention-length",
    task="""
A layer of the 70B model has these sizes. The queries are multiplied by the keys, and the result by the
values. At which sequence length do these two products together take as many operations as the products with
all weights of the layer? The causal mask saves nothing here.
""",
    given=lambda: Setup(embed=8192, heads=64, kv_heads=8, head_dim=128, mlp=28672),
    hints=(
        "Count per token. A product with a weight takes two operations per parameter.",
        "In every head, a query of `head_dim` numbers is multiplied by every key of the sequence.",
        "The weights are those for queries, keys, values and the output, and three of the MLP.",
    ),
    solution="52224",
    why=(
        "Per token the weights take 2 operations per parameter, and the two products 4 · length · heads · "
        "head_dim. At this length the two are equal."
    ),
)
def arithmetic_attention_length(setup: Setup, answer: Answer) -> str:
    width = setup.heads * setup.head_dim
    kv_width = setup.kv_heads * setup.head_dim
    mlp = 3 * setup.embed * setup.mlp
    attention = 2 * setup.embed * (width + kv_width)
    # Per token: 2 operations per parameter, and 4 per key, head and dimension.
    right = (mlp + attention) / (2 * width)
    mistakes = {
        2: "that counts only one of the two products.",
        mlp / (mlp + attention): "that leaves out the weights of attention.",
        attention / (mlp + attention): "that leaves out the weights of the MLP.",
        (mlp * 2 / 3 + attention)
        / (
            mlp + attention
        ): "that counts two weights of the MLP, but the MLP has a gate, too.",
        1 / 2: "that counts one operation per parameter, but two per key.",
    }
    return check_number(answer, right, "tokens", mistakes, tolerance=0.001)


def _low_rank(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w + (x @ a) @ b


@add(
    "arithmetic/low-rank",
    task="""
A weight `w` has a low-rank correction `a @ b`. Write a function of `x`, `w`, `a` and `b` that returns
`x @ (w + a @ b)` and takes at most `most` operations.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=1"),
        arrays=(
            make_array("x", (16, 256)),
            make_array("w", (256, 512)),
            make_array("a", (256, 8)),
            make_array("b", (8, 512)),
        ),
        most=4500000,
    ),
    hints=(
        "How many operations does `a @ b` take, and how many does the product of `x` and the sum?",
        "The correction should never be as large as `w`.",
        "You can compute the product of three matrices from the left or from the right. The costs differ.",
    ),
    solution=_low_rank,
    why="`x @ a` has only 8 columns, so the correction costs little; `a @ b` would be as large as `w`.",
)
def arithmetic_low_rank(setup: Setup, answer: Answer) -> str:
    function = check_function(setup, answer)
    submitted = program(lambda *xs: function(*xs), *setup.arrays, mesh=setup.mesh)
    ran(submitted, lambda x, w, a, b: x @ (w + a @ b))
    count = _operations(submitted.fn, setup.arrays)
    does = f"Your function takes {count:,} operations."
    require(count <= setup.most, f"{does} It should take at most {setup.most:,}.")
    return does


def _operations(function: UserFunction, arrays: Sequence[ArraySpec]) -> int:
    """Counts operations as XLA does, but with every iteration of a loop."""
    import jax

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    cost = jax.jit(function).lower(*shapes).cost_analysis() or {}
    counted = int(cost.get("flops", 0))
    return max(counted, _flops_of(jax.make_jaxpr(function)(*shapes).jaxpr))


def _flops_of(jaxpr: Any) -> int:
    """Counts the operations of matrix products, with every iteration of a loop."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (inner, _), _ = equation.params["dimension_numbers"]
            factor = equation.invars[0].aval.shape
            summed = math.prod(factor[dim] for dim in inner)
            total += 2 * summed * math.prod(equation.outvars[0].aval.shape)
        times = equation.params.get("length", 1)
        for nested in _nested(equation.params):
            total += times * _flops_of(nested)
    return total


def _nested(params: dict[str, Any]) -> list[Any]:
    """Returns the jaxprs among the parameters of an equation."""
    jaxprs = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else [value]:
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                jaxprs.append(inner)
    return jaxprs


# Lesson 17: how far each kind of parallelism goes.


@add(
    "far/tensor-degree",
    task="""
An MLP with a hidden dimension `hidden` is split by tensor parallelism over one closed axis of a TPU v5p
torus, with both directions of the ring in use. Its activations are in bfloat16. Up to how many devices does
the arithmetic of the forward pass take at least as long as its all-reduce? Take (n − 1)/n as 1.
""",
    given=lambda: Setup(
        hidden=73728, peak=459000000000000, link=90000000000, embed=16384
    ),
    hints=(
        "In the forward pass there are two products and one all-reduce, for the same tokens.",
        "An all-reduce sends twice the bytes of the activations, over two links.",
        "Tokens and `embed` cancel.",
    ),
    solution="28",
    why=(
        "Per token, the products take 4 · embed · hidden / n operations, and the all-reduce sends "
        "4 · embed bytes over two links. So n is at most hidden · 2 · link / peak."
    ),
)
def far_tensor_degree(setup: Setup, answer: Answer) -> str:
    bound = setup.hidden * 2 * setup.link / setup.peak
    right = math.floor(bound)
    mistakes = {
        math.floor(bound / 2) / right: "that is for one direction of the ring, "
        "or counts the bytes twice.",
        math.floor(2 * bound) / right: "that counts the bytes of the activations once, "
        "but an all-reduce sends them twice.",
        (right + 1) / right: "with one device more, the links already take longer.",
        math.floor(setup.embed * 2 * setup.link / setup.peak)
        / right: "that is for a product that is split along `embed`.",
    }
    if bound != right:
        mistakes[bound / right] = "that is the bound; round it down to whole devices."
    return check_number(answer, right, "devices", mistakes)


def _seconds_sent(setup: Setup, mesh: MeshSpec) -> float:
    """Returns the least time of a block's collectives in the forward pass."""
    fsdp, tensor = mesh.shape.get("fsdp", 1), mesh.shape.get("tensor", 1)
    links = 2 * setup.link
    weights = 2 * 2 * setup.embed * setup.hidden / tensor
    activations = 2 * setup.embed * setup.tokens / fsdp
    gathered = (fsdp - 1) / fsdp * weights / links
    return gathered + 2 * (tensor - 1) / tensor * activations / links


@add(
    "far/mesh",
    task="""
A block has two weights, `[embed, hidden]` and `[hidden, embed]`. A mesh of `devices` devices has two axes:
the weights are gathered over `fsdp`, and the activations of the block are summed once over `tensor`. A batch
has `tokens` tokens, and all arrays are in bfloat16. Each axis is a ring, and a device has two links of `link`
bytes per second along each axis. The collectives run one after another. With which mesh do the collectives of
the forward pass take the least time?
""",
    given=lambda: Setup(
        devices=256,
        tokens=131072,
        embed=8192,
        hidden=32768,
        link=50000000000,
    ),
    hints=(
        "A longer `tensor` axis makes the gathered weights smaller. A longer `fsdp` axis makes the activations smaller.",
        "Write both times as functions of the length of `fsdp`, and add them.",
        "The sum is least near the length at which both times are equal.",
    ),
    solution="fsdp=32, tensor=8",
    why=(
        "The time of the gathers grows with weights / tensor, and that of the sums with 2 · activations / fsdp. "
        "The product of the two does not depend on the mesh, so their sum is least if both are about equal."
    ),
)
def far_mesh(setup: Setup, answer: Answer) -> str:
    mesh = read_mesh(answer)
    unknown = sorted(set(mesh.axis_names) - {"fsdp", "tensor"})
    if unknown:
        raise Wrong(f"The axes are fsdp and tensor; got {unknown[0]}.")
    if mesh.size != setup.devices:
        raise Wrong(
            f"{mesh} has {mesh.size:,} devices; it should have {setup.devices}."
        )
    seconds = _seconds_sent(setup, mesh)
    does = f"With {mesh} the collectives take {seconds * 1e3:,.2f} ms."
    sizes = [2**power for power in range(setup.devices.bit_length())]
    meshes = [make_mesh(fsdp=n, tensor=setup.devices // n) for n in sizes]
    least = min(_seconds_sent(setup, other) for other in meshes)
    require(
        seconds <= least * (1 + 1e-9),
        f"{does} With another mesh they take {least / seconds:.0%} of that.",
    )
    return does


# Lesson 19: predicted and measured.


@add(
    "measured/exposed",
    task="""
A profile of one device shows when each operation began and ended, in microseconds. For how long is the
`all-gather` exposed: for how much of its time does no other operation run? Answer in seconds, or with text
and a unit.
""",
    given=lambda: Setup(
        began_and_ended={
            "dot.1": (0, 400),
            "all-gather": (250, 1000),
            "dot.2": (350, 600),
            "add": (700, 750),
        },
    ),
    hints=(
        "Which of the other operations run while the all-gather runs?",
        "Two of these operations overlap each other as well; count that time once.",
        "Subtract the hidden time from the time of the all-gather.",
    ),
    solution="350 us",
    why="The all-gather takes 750 µs. Other operations run from 250 to 600 and from 700 to 750, together 400 µs.",
)
def measured_exposed(setup: Setup, answer: Answer) -> str:
    intervals = dict(setup.began_and_ended)
    start, end = intervals.pop("all-gather")
    moments = np.arange(start, end)
    hidden = np.zeros(len(moments), bool)
    for began, ended in intervals.values():
        hidden |= (moments >= began) & (moments < ended)
    exposed = int((~hidden).sum())
    length, twice = end - start, 0
    for began, ended in intervals.values():
        twice += min(ended, end) - max(began, start)
    mistakes = {
        length
        / exposed: "that is all of the all-gather's time, but some of it is hidden.",
        (length - exposed) / exposed: "that is the time that is hidden.",
        (length - twice)
        / exposed: "you subtracted twice the time in which two other operations run.",
    }
    return check_number(answer, exposed * 1e-6, "seconds", mistakes, tolerance=0.001)


@add(
    "measured/first",
    task="""
A run on a TPU was measured. For each part of a step, you have the least and the measured time in
microseconds. The measured times add up to the time of the step. Which part would shorten the step the most if
it ran in its least time? Answer with the name of the part.
""",
    given=lambda: Setup(
        least_and_measured={
            "dot_general mlp": (5200, 6900),
            "dot_general attention": (1400, 2600),
            "all-gather params": (800, 3400),
            "all-reduce norm": (3, 410),
            "exp": (300, 1900),
        },
    ),
    hints=(
        "The longest part may already be close to its least time.",
        "A part with the largest ratio may be too short to matter.",
        "Subtract the least time from the measured time.",
    ),
    solution="all-gather params",
    why="This part differs from its least time by 2,600 µs, the longest part by 1,700 µs, and the part with the largest ratio by 407 µs.",
)
def measured_first(setup: Setup, answer: Answer) -> str:
    differences = {}
    for name, (least, measured) in setup.least_and_measured.items():
        differences[name] = measured - least
    right = max(differences, key=differences.__getitem__)
    name = getattr(answer, "name", answer)
    if isinstance(name, (list, tuple, set)) and len(name) == 1:
        (name,) = name
    name = name.strip(" '\"`") if isinstance(name, str) else name
    if not isinstance(name, str) or name not in differences:
        raise Wrong(f"The answer must be the name of one part; got {shown(answer)}.")
    gain = differences[name]
    does = f"In its least time, {name} would save {gain:,} µs per step."
    require(name == right, f"{does} Another part would save more.")
    return does
