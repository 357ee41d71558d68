"""Exercises of lesson 8, lesson 11 and the short lessons; most answers are numbers."""

from __future__ import annotations

from shardviz.base.array_spec import ArraySpec
from shardviz.base.layout import lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.layouts import array as make_array
from shardviz.base.typing import PyTree, UserFunction
from shardviz.exercises import words as words
from shardviz.exercises.answers import (
    Answer,
    check_names,
    check_number,
    read_layout,
    read_names,
    require,
    same_names,
)
from shardviz.exercises.registry import Setup, add
from shardviz.hardware.topology import Topology
from shardviz.plans.public import plan
from shardviz.programs.public.programs import program


def _shard_bytes(setup: Setup, array: ArraySpec) -> int:
    layout = lay_out(array.shape, array.spec or Spec(), setup.mesh, array.dtype)
    return layout.bytes_per_device


# Lesson 11: memory over time.


@add(
    "memory/saved",
    task="""
Each of `layers` layers is wrapped in `jax.checkpoint`, and the input of every layer has the shape and the
spec of `x`. How many bytes do the saved inputs take on each device?
""",
    given=lambda: Setup(
        mesh=make_mesh("data=8, model=4"),
        x=make_array("x", (64, 4096, 4096), dtype="bfloat16", spec="data"),
        layers=32,
    ),
    hints=(
        "What does a checkpointed layer keep for the backward pass?",
        "How many bytes of one input does each device hold?",
        "Divide only by the sizes of the axes that the spec names. Then count the inputs of all layers.",
    ),
    solution="8 GiB",
    why="Each device holds an eighth of an input, since only `data` splits it, and keeps one input for every layer.",
)
def memory_saved(setup: Setup, answer: Answer) -> str:
    mistakes = {
        8: "that is the size of the unsplit inputs, but the inputs are split.",
        1 / 4: "that divides by all devices, but one of the axes does not split `x`.",
        1
        / 32: "that is the input of one layer, but the inputs of all of them are kept at the same time.",
        2: "that counts 4 bytes per element; look at the dtype of `x`.",
    }
    right = setup.layers * _shard_bytes(setup, setup.x)
    return check_number(answer, right, "bytes", mistakes)


@add(
    "memory/groups",
    task="""
`jax.checkpoint` can also wrap groups of k layers. Then only the input of each group is kept. When the
backward pass comes to a group, the layers of the group run again, and the inputs of these k layers are kept
until the group is done. Which k, a divisor of `layers`, minimizes the largest number of inputs that are kept
at the same time?
""",
    given=lambda: Setup(layers=144),
    hints=(
        "With groups of k layers, how many groups are there?",
        "Add the inputs of all groups and the inputs of the layers in one group.",
        "Try some divisors: as one of these two numbers becomes smaller, the other grows.",
    ),
    solution="12",
    why=(
        "At most layers / k + k inputs are kept. The sum is smallest if both terms are equal, that is, if k is the "
        "square root of the number of layers."
    ),
)
def memory_groups(setup: Setup, answer: Answer) -> str:
    mistakes = {
        12: "then there is a single group, and the inputs of all its layers are kept at once.",
        1
        / 12: "then every layer is a separate group, and there are as many inputs as layers.",
    }
    layers = setup.layers
    sizes = [size for size in range(1, layers + 1) if layers % size == 0]
    right = min(sizes, key=lambda size: layers // size + size)
    return check_number(answer, right, "layers", mistakes)


# Lesson 18: overlap.


@add(
    "overlap/tokens",
    task="""
Before a product, its weight is gathered in bfloat16 over a ring of `devices` chips, in both directions. A
chip computes `peak` operations per second, and a link carries `link` bytes per second in each direction.
From how many tokens per device on does the product take as long as the gather?
""",
    given=lambda: Setup(devices=4, peak=459000000000000, link=90000000000),
    hints=(
        "A product takes two operations per parameter and token, and the weight has two bytes per parameter.",
        "A device receives all of the weight except its own shard, over two links.",
        "The size of the weight cancels. Only two rates and the number of devices are left.",
    ),
    solution="1912",
    why=(
        "Per parameter, the arithmetic for T tokens takes 2 T / peak seconds, and the gather takes (n − 1)/n "
        "· 2 / (2 · link)."
    ),
)
def overlap_tokens(setup: Setup, answer: Answer) -> str:
    mistakes = {
        2: "that is for one direction of the ring, but each direction carries half of the bytes.",
        4
        / 3: "that is for receiving all of the weight, but a device has its own shard already.",
        8 / 3: "that is for receiving all of the weight, in one direction of the ring.",
    }
    received = (setup.devices - 1) / setup.devices
    # Each parameter has two bytes, and needs two operations per token. The ring uses
    # both links.
    right = received * setup.peak / (2 * setup.link)
    return check_number(answer, right, "tokens", mistakes, tolerance=0.01)


@add(
    "overlap/exposed",
    task="""
A program computes `gathers` products, and gathers a weight before each of them. A gather takes `gather`
microseconds, and a product takes `product` microseconds. The gathers run one after another, each during the
previous product. How long does the program take at least? Answer in seconds, or with text and a unit.
""",
    given=lambda: Setup(gathers=4, gather=1500, product=1000),
    hints=(
        "What can run during the first gather, and what during the last product?",
        "In between, one gather and one product run at the same time.",
        "The two together take as long as the longer one.",
    ),
    solution="7 ms",
    why="The first gather runs alone. Then come three rounds, each as long as a gather, and the last product runs alone.",
)
def overlap_exposed(setup: Setup, answer: Answer) -> str:
    mistakes = {
        10
        / 7: "that is for gathers and products one after another, with nothing hidden.",
        6
        / 7: "that is the time of the gathers alone, but the last product must wait for the last gather.",
        11 / 14: "you hid the first gather, but nothing can run during it.",
    }
    # The first gather and the last product overlap with nothing.
    rounds = (setup.gathers - 1) * max(setup.gather, setup.product)
    right = (setup.gather + rounds + setup.product) * 1e-6
    return check_number(answer, right, "seconds", mistakes, tolerance=0.001)


# Lesson 8: ZeRO.


def _zero_1_bytes(parameters: int, devices: int) -> float:
    """Bytes of all parameters and one shard of Adam's two moments, in float32."""
    return 4 * parameters + 2 * 4 * parameters / devices


@add(
    "zero/state",
    task="""
With ZeRO 1 on `devices` devices, how many bytes of parameters and moments does each device hold? Adam
keeps two moments per parameter, and everything is in float32.
""",
    given=lambda: Setup(parameters=8589934592, devices=16),
    hints=(
        "Which of the arrays does stage 1 of ZeRO split?",
        "A parameter takes four bytes, and so does each of its moments.",
        "Each device holds all parameters, and its part of the moments.",
    ),
    solution="36 GiB",
    why=(
        "Every device holds all parameters, with 4 bytes each, and one sixteenth of the moments, with 8 bytes "
        "per parameter."
    ),
)
def zero_state(setup: Setup, answer: Answer) -> str:
    mistakes = {
        8 / 3: "that is for plain data parallelism, which splits nothing.",
        1 / 6: "that is for parameters that are split, too, as in stage 3.",
        17 / 18: "that counts one moment, but Adam keeps two.",
    }
    right = _zero_1_bytes(setup.parameters, setup.devices)
    return check_number(answer, right, "bytes", mistakes)


@add(
    "zero/devices",
    task="""
Under ZeRO 1, with Adam and float32, parameters and moments must take at most `most` bytes per device. The
number of devices is a power of two. What is the smallest number that is enough?
""",
    given=lambda: Setup(parameters=1000000000, most=4200000000),
    hints=(
        "How many bytes do the parameters alone take on each device?",
        "How many bytes are left for the moments, and how many bytes do all moments take?",
        "Divide the bytes of all moments by the bytes left on each device, and round up to a power of two.",
    ),
    solution="64",
    why="The bytes left on a device hold one fortieth of the moments, and the next power of two after 40 is 64.",
)
def zero_devices(setup: Setup, answer: Answer) -> str:
    mistakes = {
        1
        / 2: "on so few devices, each device's part of the moments does not fit next to the parameters.",
    }
    right = 1
    while _zero_1_bytes(setup.parameters, right) > setup.most:
        right *= 2
    return check_number(answer, right, "devices", mistakes)


# Lesson 20: rings of collective-permutes.


@add(
    "shard_map/sends",
    task="""
In a collective matmul, every device multiplies its current shard of `A` and passes it on, until each shard
has been on every device. How many bytes does each device send?
""",
    given=lambda: Setup(
        mesh=make_mesh("X=8"),
        A=make_array("A", (8192, 8192), dtype="bfloat16", spec="X"),
    ),
    hints=(
        "How many bytes does one shard have?",
        "How often is a shard passed on until it has been on every device?",
        "A device starts with a shard of its own, so there is one step fewer than there are devices.",
    ),
    solution="112 MiB",
    why="Eight devices need seven steps, and in each step a device sends one shard.",
)
def shard_map_sends(setup: Setup, answer: Answer) -> str:
    mistakes = {
        8
        / 7: "that is for one step more, in which the shards return to where they began.",
        1 / 7: "that is for one step.",
        64
        / 7: "that is for sending all of `A` in every step, but a device sends one shard.",
    }
    right = (setup.mesh.size - 1) * _shard_bytes(setup, setup.A)
    return check_number(answer, right, "bytes", mistakes)


@add(
    "shard_map/owner",
    task="""
In every step each device sends its current shard to the device with the next higher id, and the last device
sends to device 0. After `steps` steps device `holder` holds a shard. On which device did that shard start?
Answer with an id.
""",
    given=lambda: Setup(mesh=make_mesh("X=8"), holder=2, steps=5),
    hints=(
        "Which device held that shard one step earlier?",
        "Go back one device for each step.",
        "Before device 0 comes the device with the highest id.",
    ),
    solution="5",
    why=(
        "In each step a shard moves to the next higher id. So go back as many ids as there were steps, "
        "counted around the ring."
    ),
)
def shard_map_owner(setup: Setup, answer: Answer) -> str:
    size = setup.mesh.size
    right = [str((setup.holder - setup.steps) % size)]
    return check_names(answer, map(str, range(size)), right, "The devices")


# Lesson 22: ring attention.


@add(
    "ring/sends",
    task="""
In ring attention, the devices pass on the shards of `k` and `v` until each shard has been on every device.
How many bytes does each device send?
""",
    given=lambda: Setup(
        mesh=make_mesh("seq=16"),
        k=make_array("k", (65536, 8, 128), dtype="bfloat16", spec="seq"),
        v=make_array("v", (65536, 8, 128), dtype="bfloat16", spec="seq"),
    ),
    hints=(
        "How many bytes of `k` and `v` together does a device hold at first?",
        "After how many steps has every shard been on every device?",
        "In each step a device sends one shard of `k` and one of `v`.",
    ),
    solution="240 MiB",
    why=(
        "Sixteen devices need fifteen steps, and in each step a device sends a shard of the keys and one "
        "of the values."
    ),
)
def ring_sends(setup: Setup, answer: Answer) -> str:
    mistakes = {
        1 / 2: "that is for `k` or `v` alone, but both are passed on.",
        16
        / 15: "that is for one step more, in which the shards return to where they began.",
        1 / 15: "that is for one step.",
    }
    shard_bytes = _shard_bytes(setup, setup.k) + _shard_bytes(setup, setup.v)
    right = (setup.mesh.size - 1) * shard_bytes
    return check_number(answer, right, "bytes", mistakes)


@add(
    "ring/tokens",
    task="""
In a step of ring attention, a device computes the attention of its T queries to T keys and values in
bfloat16. Queries, keys and values have the same number of heads. Meanwhile the device sends these keys and
values over one link. A chip computes `peak` operations per second, and a link carries `link` bytes per
second. From which T on do the two matrix products take as long as the sending?
""",
    given=lambda: Setup(peak=197000000000000, link=50000000000),
    hints=(
        "Each of the two products takes two operations for each query, key and element of a head.",
        "The keys have two bytes per token and element of a head, and so have the values.",
        "The operations grow with the square of T and the bytes with T. Divide each by its rate, and solve for T.",
    ),
    solution="3940",
    why=(
        "Per head and element there are 4 T² operations and 4 T bytes. So T is the rate of the arithmetic "
        "divided by the rate of the link."
    ),
)
def ring_tokens(setup: Setup, answer: Answer) -> str:
    mistakes = {
        2: "that counts one of the two products, or twice the bytes.",
        1 / 2: "that counts the keys or the values alone.",
        1 / 4: "that counts the keys or the values alone, and one byte per element.",
    }
    # Each step of the ring needs 4 T² H D operations (two products), and sends 4 T H D
    # bytes.
    right = setup.peak / setup.link
    return check_number(answer, right, "tokens", mistakes, tolerance=0.01)


# Lesson 23: the KV cache.


@add(
    "cache/long-context",
    task="""
These are the keys of one layer in the cache, for a single long sequence. The dimensions are batch, sequence,
heads and the size of a head. Split `keys` so that no two devices hold the same shard. Answer with a spec.
""",
    given=lambda: Setup(
        mesh=make_mesh("data=4, model=8"),
        keys=make_array("keys", (1, 131072, 8, 128), dtype="bfloat16"),
    ),
    hints=(
        "There is only one sequence, so the batch dimension cannot be split at all.",
        "There are enough heads for one of the two mesh axes.",
        "The tokens of the sequence can be split over the other axis.",
    ),
    solution="P(None, 'data', 'model')",
    why=(
        "The eight heads are split over the eight devices along `model`, and the tokens over the four along "
        "`data`. The softmax then needs small all-reduces over the axis that splits the tokens."
    ),
)
def cache_long_context(setup: Setup, answer: Answer) -> str:
    layout = read_layout(answer, setup.keys, setup.mesh)
    does = words.shards_text(layout)
    require(layout.replicas == 1, f"{does} Some devices hold the same shard.")
    return does


_FOUR = Topology.parse("tpu:v5e:2x2")


@add(
    "cache/step-seconds",
    task="""
All weights together take `weights` bytes, and one token takes `token` bytes in the cache. Both are split
evenly over the chips. A decode step reads all weights once, and the cache of `sequences` sequences of
`length` tokens each. How long does the step take at least if a chip reads `reading` bytes per second? Answer
in seconds.
""",
    given=lambda: Setup(
        topology=_FOUR,
        chips=_FOUR.chips,
        reading=_FOUR.chip.hbm_bandwidth,
        weights=16060522496,
        token=131072,
        sequences=16,
        length=8192,
    ),
    hints=(
        "How many bytes does the cache have?",
        "All chips read at the same time, each its own part of the weights and of the cache.",
        "Divide all these bytes by the number of chips, and by the rate of one chip.",
    ),
    solution="10 ms",
    why=(
        "All chips read at the same time, so the bytes of the weights and the cache are divided by the bytes "
        "that all chips together read per second."
    ),
)
def cache_step_seconds(setup: Setup, answer: Answer) -> str:
    mistakes = {
        0.483: "that is for the weights alone, but the cache is read as well.",
        0.517: "that is for the cache alone, but the weights are read as well.",
        4: "that is for one chip that reads everything.",
    }
    cache = setup.token * setup.sequences * setup.length
    right = (setup.weights + cache) / (setup.chips * setup.reading)
    return check_number(answer, right, "seconds", mistakes, tolerance=0.03)


# Lesson 24: pipelines.


@add(
    "pipeline/microbatches",
    task="""
In a pipeline of `stages` stages, each stage may be idle for at most `percent` percent of all ticks. How many
microbatches are needed for that?
""",
    given=lambda: Setup(stages=8, percent=10),
    hints=(
        "How many ticks does the first microbatch take, and how many does each further microbatch add?",
        "Each stage is idle for `stages - 1` ticks.",
        "The idle ticks may be a tenth of all ticks, so the microbatches take the other nine tenths.",
    ),
    solution="63",
    why=(
        "Each stage is idle for seven ticks. If these are a tenth of all ticks, there are seventy ticks, and "
        "microbatches take the other 63."
    ),
)
def pipeline_microbatches(setup: Setup, answer: Answer) -> str:
    mistakes = {
        10
        / 9: "you compared the idle ticks with the microbatches; compare them with all ticks.",
        8 / 7: "that counts one idle tick per stage, but there is one fewer.",
    }
    idle, right = setup.stages - 1, 1
    while 100 * idle > setup.percent * (right + idle):
        right += 1
    return check_number(answer, right, "microbatches", mistakes)


@add(
    "pipeline/seconds",
    task="""
A forward pass takes `unsplit` seconds on one device. Its batch is cut into `microbatches` microbatches, which
run through a pipeline of `stages` stages. All stages take equally long, and sending takes no time. How long
does the forward pass take in the pipeline? Answer in seconds.
""",
    given=lambda: Setup(unsplit=2, stages=4, microbatches=12),
    hints=(
        "How long does one microbatch take in one stage?",
        "How many ticks pass until the last microbatch has left the last stage?",
        "The first microbatch takes as many ticks as there are stages, and each further one adds a tick.",
    ),
    solution="625 ms",
    why=(
        "A tick is the time of one microbatch in one stage. There are as many ticks as microbatches, plus one "
        "for each stage after the first."
    ),
)
def pipeline_seconds(setup: Setup, answer: Answer) -> str:
    mistakes = {
        4 / 5: "that is without the bubble.",
        16 / 5: "that is the time on one device, but the stages work at the same time.",
        16 / 15: "that adds one tick for each stage, but the first stage adds none.",
    }
    tick = setup.unsplit / setup.stages / setup.microbatches
    right = tick * (setup.microbatches + setup.stages - 1)
    return check_number(answer, right, "seconds", mistakes, tolerance=0.01)


# Lesson 26: several slices.


@add(
    "slices/network-bytes",
    task="""
Each chip of these four slices has computed a `gradient`, and each chip needs the sum over all chips. The
chips run a reduce-scatter inside each slice, an all-reduce between the slices, and an all-gather inside each
slice. How many bytes does each chip send over the network between the slices, if the all-reduce runs on a
ring?
""",
    given=lambda: Setup(
        topology=Topology.parse("tpu:v5e:4x8*4"),
        gradient=make_array("gradient", (8192, 28672), dtype="bfloat16"),
    ),
    hints=(
        "What does a chip hold after the reduce-scatter inside its slice?",
        "Chips at the same place in each slice add up their parts, on a ring with one chip per slice.",
        "In an all-reduce on a ring of n chips, each chip sends 2 (n − 1)/n of its bytes.",
    ),
    solution="21 MiB",
    why=(
        "Each chip holds one of 32 parts of a slice's sum. In the all-reduce between four slices it sends one "
        "and a half times that."
    ),
)
def slices_network_bytes(setup: Setup, answer: Answer) -> str:
    mistakes = {
        32: "that is for sending all of the gradient over the network, but each chip sends only its part of the sum.",
        1 / 2: "that is for one round of the ring, but an all-reduce takes two.",
        4
        / 3: "that is twice the part, but in each round a chip sends only three quarters of it.",
        2 / 3: "that is the size of the part that a chip holds; it sends more.",
    }
    slices = setup.topology.slices
    part = setup.gradient.bytes / (setup.topology.chips // slices)
    right = 2 * (slices - 1) / slices * part
    return check_number(answer, right, "bytes", mistakes)


_TWO_SLICES = Topology.parse("tpu:v5e:16x16*2")


@add(
    "slices/tokens",
    task="""
Two slices of 256 chips each train a model, with data parallelism between them. In each step the gradients are
added up inside each slice first, and then once over the network, in bfloat16. The arithmetic of a step takes
6 operations per parameter and token. A chip computes `peak` operations per second, and sends `network` bytes
per second to the other slice. From how many tokens per step on, counted over both slices, does the arithmetic
take as long as the sum over the network?
""",
    given=lambda: Setup(
        topology=_TWO_SLICES,
        peak=_TWO_SLICES.chip.peak_bf16,
        network=_TWO_SLICES.chip.network_bandwidth,
    ),
    hints=(
        "Write both times with a letter for the number of parameters. This number cancels.",
        "Each chip sends one of 256 parts of the gradients, with two bytes per parameter.",
        (
            "In an all-reduce between two slices, a chip sends 2 · 1/2 of its bytes. All chips of both slices "
            "share the arithmetic."
        ),
    ),
    solution="42027",
    why=(
        "The number of parameters and the number of chips of a slice cancel. The answer depends only on the "
        "number of slices, on two bytes against six operations, and on the ratio of the two rates."
    ),
)
def slices_tokens(setup: Setup, answer: Answer) -> str:
    mistakes = {
        2: "that is for sending everything twice, but in an all-reduce between two chips, each sends its bytes once.",
        1 / 2: "that is for the arithmetic of one slice, but both slices compute.",
        1 / 16: "that is for the rate of a link inside a slice.",
    }
    # Network time per parameter, divided by arithmetic time per parameter and token.
    slices, chips = setup.topology.slices, setup.topology.chips
    sent = 2 * (slices - 1) / slices * 2 / (chips // slices)
    right = sent / setup.network / (6 / (chips * setup.peak))
    return check_number(answer, right, "tokens", mistakes, tolerance=0.03)


# Lesson 29: experts.


@add(
    "experts/dropped",
    task="""
On one device, `chosen` counts the tokens that chose each of the four experts. Each expert has `capacity`
places for the tokens of this device. How many of the tokens are dropped?
""",
    given=lambda: Setup(chosen=(100, 36, 70, 50), capacity=72),
    hints=(
        "An expert with fewer tokens than places drops none.",
        "Empty places at one expert cannot take tokens that chose another one.",
        "For each expert count the tokens over capacity, and add up these numbers.",
    ),
    solution="28",
    why="Only the first expert is chosen by more tokens than it has places.",
)
def experts_dropped(setup: Setup, answer: Answer) -> str:
    mistakes = {
        15 / 7: "those are the places that stay empty.",
    }
    right = sum(max(0, count - setup.capacity) for count in setup.chosen)
    return check_number(answer, right, "tokens", mistakes)


@add(
    "experts/sent-bytes",
    task="""
Each of the `devices` has one expert, and an array `boxes` with the device's tokens for all experts. The
dimensions of `boxes` are expert, place and embedding. How many bytes does each device send in two
all-to-alls, one to the experts and one back?
""",
    given=lambda: Setup(
        devices=8, boxes=make_array("boxes", (8, 128, 4096), dtype="bfloat16")
    ),
    hints=(
        "All places are sent, occupied or not.",
        "A device keeps the box for its own expert.",
        "On the way back, a device sends as many bytes again.",
    ),
    solution="14 MiB",
    why="In each all-to-all, a device sends the boxes for all experts except its own.",
)
def experts_sent_bytes(setup: Setup, answer: Answer) -> str:
    mistakes = {
        1 / 2: "that is for one of the two all-to-alls.",
        8
        / 7: "that is for sending all boxes, but a device keeps those for its own expert.",
        4 / 7: "that is the size of all boxes, sent once.",
    }
    right = 2 * (setup.devices - 1) / setup.devices * setup.boxes.bytes
    return check_number(answer, right, "bytes", mistakes)


# Lesson 28: Explicit mode.


@add(
    "explicit/type",
    task="""
With Explicit axes, which sharding is in the type of `C = A.T @ B`? Answer with a spec.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        A=make_array("A", (4096, 1024), spec="None, U"),
        B=make_array("B", (4096, 2048), spec="None, V"),
        C=make_array("C", (1024, 2048)),
    ),
    hints=(
        "What is the type of `A.T`?",
        "The dimension that the product sums over is not split.",
        "The rows of a product are split like those of the first factor, and its columns like those of the second.",
    ),
    solution="P('U', 'V')",
    why="The transpose moves the axis to the other dimension, and the product takes one axis from each factor.",
)
def explicit_type(setup: Setup, answer: Answer) -> str:
    layout = read_layout(answer, setup.C, setup.mesh)
    does = words.shards_text(layout)
    require(
        layout.shard_shape[0] == 256,
        f"{does} The rows of `C` must be split like those of `A.T`.",
    )
    require(
        layout.shard_shape[1] == 1024,
        f"{does} The columns of `C` must be split like those of `B`.",
    )
    return does


def _sine(a: PyTree) -> PyTree:
    import jax.numpy as jnp

    return jnp.sin(a)


_OPERATIONS: dict[str, tuple[str, UserFunction]] = {
    "total": ("A + B", lambda a, b: a + b),
    "aligned": ("A + B.T", lambda a, b: a + b.T),
    "outer": ("A @ B", lambda a, b: a @ b),
    "inner": ("B @ A", lambda a, b: b @ a),
    "sine": ("jnp.sin(A) * A", lambda a, b: _sine(a) * a),
}


@add(
    "explicit/refused",
    task="""
The axes of this mesh are Explicit. Which of the operations does JAX refuse? Answer with their names.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2", axis_types="Explicit"),
        A=make_array("A", (1024, 1024), spec="U"),
        B=make_array("B", (1024, 1024), spec="None, U"),
        operations="".join(
            f"\n    {name}: {text}" for name, (text, _) in _OPERATIONS.items()
        ),
    ),
    hints=(
        "A mesh axis can split only one dimension of a result, and both operands of a sum must be split alike.",
        "If both factors are split along the dimension that the product sums over, how should the result be split?",
        "`sv.plan(sv.program(function, A, B, mesh=mesh)).error` shows whether JAX refuses an operation, and why.",
    ),
    solution="total, outer, inner",
    why=(
        "The operands of the sum are split differently. The result of one product would be split twice over the "
        "same axis. The other product leaves partial sums, which could be added up on every device or stay split."
    ),
)
def explicit_refused(setup: Setup, answer: Answer) -> str:
    names = read_names(answer, _OPERATIONS, "The operations")
    # Planning traces on the Explicit mesh, so jax itself rejects invalid operations.
    right = [
        name
        for name, (_, function) in _OPERATIONS.items()
        if plan(program(function, setup.A, setup.B, mesh=setup.mesh)).error is not None
    ]
    return same_names(names, right)
