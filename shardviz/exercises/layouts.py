"""Exercises on layouts, rules and memory (lessons 1, 12, 10 and 14), without jax."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from shardviz.advise.public import expect
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.public import audit
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.array_spec import read_names as read_logical
from shardviz.base.format import shown
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.layouts import array as make_array
from shardviz.exercises import words as words
from shardviz.exercises.answers import (
    Answer,
    Wrong,
    check_names,
    check_number,
    read_layout,
    read_mesh,
    read_names,
    read_number,
    read_table,
    require,
    same_names,
)
from shardviz.exercises.registry import Setup, add
from shardviz.gallery import arrays as models
from shardviz.hardware.topology import Topology


class _Arrays(NamedTuple):
    """The result of splitting arrays by a table of rules.

    Attributes:
        largest: the layout of the largest array.
        bytes: the bytes of all arrays on each device.
        does: a sentence about the spec and bytes.
    """

    largest: Layout
    bytes: int
    does: str


def _laid_out(
    arrays: Iterable[ArraySpec],
    table: Rules,
    mesh: MeshSpec,
    copies: int = 1,
    dialect: str = "linen",
) -> _Arrays:
    audited = audit(arrays, table, mesh, dialect=dialect)
    for name, problem in audited.problems.items():
        raise Wrong(f"Read as {dialect}, {name} cannot be laid out: {problem}")
    row = audited.largest[0]
    assert row.layout is not None  # arrays without problems have one
    size = audited.bytes_per_device * copies
    does = words.takes(row.path, row.layout.spec, size, mesh, len(audited.rows))
    return _Arrays(row.layout, size, does)


def _read_rules(
    answer: Answer, arrays: tuple[ArraySpec, ...], mesh: MeshSpec, copies: int = 1
) -> tuple[Rules, _Arrays]:
    """Parses the rules of an answer, and lays out arrays with them."""
    table = read_table(answer, mesh)
    result = _laid_out(arrays, table, mesh, copies)
    unknown = {rule.logical for rule in table}
    for array in arrays:
        unknown.difference_update(array.logical or ())
    return table, result._replace(does=f"{result.does}{words.unknown_names(unknown)}")


# Lesson 1


@add(
    "arrays/eight-shards",
    task="""
Split `x` so that every device holds complete rows and no two devices hold the same row. Answer
with a spec.
""",
    given=lambda: Setup(
        mesh=make_mesh("host=4, chip=2"),
        x=make_array("x", (4096, 1024), dtype="bfloat16"),
    ),
    hints=(
        "How many shards does that need, and along which dimension?",
        "Devices along an axis that your spec leaves out hold replicas. Which axes does your spec leave out?",
        "An entry of a spec can be a tuple of axes, which together split one dimension.",
    ),
    solution="P(('host', 'chip'))",
    why=(
        "A tuple of both axes splits the rows into 4 × 2 shards, one per device, and leaves the columns "
        "unsplit. The order of the two axes decides only which device holds which rows."
    ),
)
def arrays_eight_shards(setup: Setup, answer: Answer) -> str:
    layout = read_layout(answer, setup.x, setup.mesh)
    does = words.shards_text(layout)
    require(
        layout.shard_shape[1] == 1024,
        f"{does} These shards are not complete rows, since dimension 1 is split, too.",
    )
    require(
        layout.replicas == 1,
        f"{does} Devices along a mesh axis that splits nothing hold replicas.",
    )
    return does


@add(
    "arrays/memory",
    task="""
How many bytes of `q` does each device hold? Answer with a number of bytes, or with text and a unit,
such as `"1.5 KiB"`.
""",
    given=lambda: Setup(
        mesh=make_mesh("host=4, chip=2, pipe=2"),
        q=make_array(
            "q", (32, 2048, 16, 64), dtype="bfloat16", spec="None, host, chip"
        ),
    ),
    hints=(
        "Which of the mesh axes split `q`, and which do not?",
        "The full array takes as many bytes as it has elements, times the bytes of one element.",
        "Divide this number only by the sizes of the axes that the spec names.",
    ),
    solution="16 MiB",
    why=(
        "The spec names two of the three axes, so `q` is in 4 × 2 shards. Along the third axis the devices "
        "hold replicas, which save no memory."
    ),
)
def arrays_memory(setup: Setup, answer: Answer) -> str:
    mistakes = {
        8: "that is all of `q`, but `q` is split.",
        1
        / 2: "that divides `q` by all devices of the mesh, but one axis does not split `q`.",
        2: "that counts 4 bytes per element; look at the dtype of `q`.",
        16: "that is what all devices hold together.",
    }
    q = setup.q
    right = lay_out(q.shape, q.spec, setup.mesh, q.dtype).bytes_per_device
    return check_number(answer, right, "bytes", mistakes)


@add(
    "arrays/same-shard",
    task="""
Which other devices hold the same shard of `w` as `device`? Note the order of the device ids in this
mesh. Answer with ids.
""",
    given=lambda: Setup(
        # Ids in ring order, so that a device's id is not its position in the mesh.
        mesh=make_mesh(host=4, chip=2, device_ids=(0, 1, 2, 3, 7, 6, 5, 4)),
        w=make_array("w", (512, 2048), spec="None, chip"),
        device=5,
    ),
    hints=(
        "A device id is a name, not a position. Show the mesh, and find the device in it.",
        "Only the coordinates along the axes that split `w` decide what a device holds.",
        "Look at the column of the mesh that the device is in.",
    ),
    solution="0, 2, 7",
    why=(
        "The spec splits the columns over `chip` and nothing over `host`. So all devices with the same "
        "coordinate along `chip` hold the same shard. Their ids are those in one column of the mesh."
    ),
)
def arrays_same_shard(setup: Setup, answer: Answer) -> str:
    layout = lay_out(setup.w.shape, setup.w.spec, setup.mesh)
    # Groups are indexed by position, which differs from the id in this mesh.
    shard = int(layout.groups[setup.mesh.position(setup.device)])
    right = {str(i) for i in layout.holders(shard).tolist()} - {str(setup.device)}
    names = read_names(answer, map(str, setup.mesh.device_ids.flat), "Device ids")
    # The answer may include the device itself.
    return same_names(names - {str(setup.device)}, right)


@add(
    "arrays/second-half",
    task="""
Split `x` so that every device holds complete rows, no two devices hold the same row, and `device` holds the
first rows of the second half of `x`. Answer with a spec.
""",
    given=lambda: Setup(
        mesh=make_mesh("host=4, chip=2"),
        x=make_array("x", (4096, 1024), dtype="bfloat16"),
        device=1,
    ),
    hints=(
        "Which axis of a tuple is the major one?",
        "Along the last axis of a tuple, neighbouring devices hold neighbouring shards.",
        "Where is the device in the mesh? The axis along which the device's coordinate is not 0 must be the major one.",
    ),
    solution="P(('chip','host'))",
    why=(
        "The first axis of a tuple is the major one. The device is at host 0, chip 1: with `chip` first, its "
        "coordinate 1 of 2 puts it at the beginning of the second half."
    ),
)
def arrays_second_half(setup: Setup, answer: Answer) -> str:
    layout = read_layout(answer, setup.x, setup.mesh)
    does = words.shards_text(layout)
    require(
        layout.shard_shape[1] == 1024, f"{does} Every device must hold complete rows."
    )
    require(layout.replicas == 1, f"{does} No two devices may hold the same rows.")
    require(
        layout.box(setup.device)[0].start == 2048,
        f"{does} The rows of `device` are not the first ones of the second half.",
    )
    return does


@add(
    "arrays/square-shards",
    task="""
`spec` splits the rows of `x` over an axis `rows` and its columns over an axis `columns`. Make a mesh of
`devices` devices on which every shard of `x` is square. Answer with a mesh, in a form that `sv.mesh` accepts.
""",
    given=lambda: Setup(
        x=make_array("x", (4096, 1024), dtype="bfloat16"),
        spec=Spec.parse("rows, columns"),
        devices=16,
    ),
    hints=(
        "`x` has four times as many rows as columns.",
        "So the rows must be split into four times as many parts as the columns.",
        "The size of `rows` is four times that of `columns`. A further axis, which `spec` does not name, is allowed, too.",
    ),
    solution="rows=8, columns=2",
    why=(
        "With 8 parts of 512 rows and 2 parts of 512 columns, all 16 shards are square. Devices along a further "
        "axis hold replicas, so 4 by 1 works as well if the further axis has size 4."
    ),
)
def arrays_square_shards(setup: Setup, answer: Answer) -> str:
    mesh = read_mesh(answer)
    layout = lay_out(setup.x.shape, setup.spec, mesh, setup.x.dtype)
    does = words.shards_text(layout)
    require(mesh.size == setup.devices, f"{does} The mesh must have 16 devices.")
    rows, columns = layout.shard_shape
    require(rows == columns, f"{does} The shard is not square.")
    return does


# Lesson 12


@add(
    "rules/two-rules",
    task="""
Write a table of at most `most` rules under which `w_out` takes exactly `wanted` bytes per device.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"),
        w_out=make_array("w_out", (2048, 2048), "hidden width"),
        wanted=2097152,
        most=2,
    ),
    hints=(
        "Into how many shards must `w_out` be split?",
        "`w_out` has two named dimensions, and the mesh has two axes.",
        "Both axes of the mesh must split something: one rule per dimension, or one rule with a tuple.",
    ),
    solution="hidden -> x\nwidth -> y",
    why="16 MiB in eight shards are 2 MiB each. For the bytes, it makes no difference which name is split over which axis.",
)
def rules_two_rules(setup: Setup, answer: Answer) -> str:
    table, result = _read_rules(answer, (setup.w_out,), setup.mesh)
    require(
        len(table) <= setup.most, f"{result.does} Your table has more than two rules."
    )
    require(
        result.bytes == setup.wanted, f"{result.does} The task asks for exactly 2 MiB."
    )
    return result.does


@add(
    "rules/shadowed",
    task="""
This table does not split `w_in` over all devices. Put the same five rules in another order, so that no two
devices hold the same shard of `w_in`. The rules are applied as in flax.linen.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"),
        rules=Rules.parse(
            "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> None\nwidth -> x"
        ),
        w_in=make_array("w_in", (512, 2048), "width hidden"),
    ),
    hints=(
        "Ask `sv.resolve` for the verdict of every rule on `w_in`.",
        "A rule for None always applies, and ends the search for its name.",
        "Two rules for `width` must come before the rule for None, and `hidden` needs an axis that is still free.",
    ),
    solution="tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> None",
    why=(
        "The rule for `hidden` uses `y` first, so the next rule for `width` is tried. That rule must come before "
        "the rule for None."
    ),
)
def rules_shadowed(setup: Setup, answer: Answer) -> str:
    table, result = _read_rules(answer, (setup.w_in,), setup.mesh)
    require(
        sorted(map(str, table)) == sorted(map(str, setup.rules)),
        f"{result.does} Keep the same five rules, each once, and change only their order.",
    )
    require(
        result.largest.replicas == 1,
        f"{result.does} Some devices hold the same shard; ask `sv.resolve` for the verdicts on the dimension that is not split.",
    )
    return result.does


@add(
    "rules/dialects",
    task="""
Write a table that linen and nnx read differently: linen gives `w_in` one spec, nnx gives it another,
and `w_in` can be laid out with either of them.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"), w_in=make_array("w_in", (512, 2048), "width hidden")
    ),
    hints=(
        "How does each of the two libraries treat a name that has several rules?",
        "Linen takes the first rule that applies; nnx makes a dict of the table.",
        "Write two rules for the same name.",
    ),
    solution="width -> x\nhidden -> y\nwidth -> None",
    why="If a name has two rules, linen takes the first one that applies, and nnx the last one.",
)
def rules_dialects(setup: Setup, answer: Answer) -> str:
    table, arrays = read_table(answer, setup.mesh), (setup.w_in,)
    linen = _laid_out(arrays, table, setup.mesh).largest
    nnx = _laid_out(arrays, table, setup.mesh, dialect="nnx").largest
    does = words.read_as("w_in", linen.spec, nnx.spec)
    names = {rule.logical for rule in table}
    require(
        len(names) < len(table),
        f"{does} No name has two rules, so linen and nnx read the table alike.",
    )
    # Compare shards per device, because different specs can mean the same layout.
    require(
        (linen.groups != nnx.groups).any(),
        f"{does} Linen and nnx split `w_in` in the same way.",
    )
    return does


@add(
    "rules/twelve-heads",
    task="""
Write rules that split `w_q` into at least `parts` shards.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=2, y=8"),
        w_q=make_array("w_q", (1024, 12, 64), "width heads head_dim"),
        parts=8,
    ),
    hints=(
        "Is the number of heads divisible by the sizes of the mesh axes?",
        "`w_q` has three dimensions, and the other two are easier to split than the heads.",
        "Which dimensions are divisible by the size of the larger axis?",
    ),
    solution="width -> y\nheads -> x",
    why=(
        "12 is not divisible by 8, so the heads cannot be split over `y`. The width can, and so can the size "
        "of a head. The heads can be split over `x`."
    ),
)
def rules_twelve_heads(setup: Setup, answer: Answer) -> str:
    _, result = _read_rules(answer, (setup.w_q,), setup.mesh)
    require(
        result.largest.num_blocks >= setup.parts,
        f"{result.does} That makes fewer than eight shards.",
    )
    return result.does


# Lessons 10, 16 and 17

_LLAMA_3 = {"vocab": 128256, "mlp": 14336, "kv_heads": 8}


def _model(name: str) -> tuple[ArraySpec, ...]:
    """Returns the weights of a model in float32."""
    if name != "8B model":
        return tuple(array.replace(dtype="float32") for array in models.get(name))
    # Llama 3 8B has the arrays of Llama 2 7B with other sizes.
    arrays = []
    for array in models.get("7B model"):
        shape = []
        for logical, size in zip(array.logical or (), array.shape, strict=True):
            shape.append(_LLAMA_3.get(logical or "", size))
        arrays.append(array.replace(shape=tuple(shape), dtype="float32"))
    return tuple(arrays)


_V5P, _V5E = Topology.parse("tpu:v5p:8x8x16"), Topology.parse("tpu:v5e:4x8")


@add(
    "far/step-seconds",
    task="""
What is the least time of one training step if all `chips` of the slice compute at their peak rate?
`peak` is the rate of one chip for bfloat16, in operations per second. Count only the matrix products
with the weights, forward and backward, for all `tokens`. Answer in seconds.
""",
    given=lambda: Setup(
        parameters=sum(math.prod(array.shape) for array in _model("8B model")),
        tokens=4194304,
        topology=_V5P,
        chips=_V5P.chips,
        peak=_V5P.chip.peak_bf16,
    ),
    hints=(
        "How many operations does one parameter take for one token? A multiplication and an addition are two.",
        "The backward pass computes two products for each product of the forward pass.",
        "Divide by the rate of all chips together.",
    ),
    solution="430 ms",
    why=(
        "Each parameter takes two operations per token in the forward pass and four in the backward pass. "
        "Divide them by the peak rate of all chips. Part 4 of the scaling book has this formula."
    ),
)
def far_step_seconds(setup: Setup, answer: Answer) -> str:
    mistakes = {
        1
        / 3: "that is the forward pass alone; the backward pass computes twice as much.",
        2 / 3: "that is the backward pass alone.",
        1 / 2: "that counts a multiplication and an addition as one operation.",
        1024: "that is the time of a single chip, but all chips compute.",
    }
    # Per parameter and token: 2 operations forward, 4 backward (scaling book, part 4).
    right = 6 * setup.parameters * setup.tokens / (setup.chips * setup.peak)
    return check_number(answer, right, "seconds", mistakes, tolerance=0.04)


@add(
    "pods/8b-train-state",
    task="""
The weights of an 8B model are trained in float32 with Adam, which keeps two moments of each weight. So each
array in `arrays` is kept `copies` times. Write rules with which all copies together take at most `most` bytes
per device.
""",
    given=lambda: Setup(
        topology=_V5E,
        mesh=make_mesh("fsdp=8, model=4"),
        arrays=_model("8B model"),
        copies=3,
        most=3221225472,
    ),
    hints=(
        "How many bytes do all copies of these arrays take, divided by the number of devices?",
        "There is little to spare: every large array must be split over all devices.",
        "Which logical name do all large arrays have in common?",
    ),
    solution="embed -> (fsdp, model)",
    why=(
        "Every matrix has a dimension called `embed`, whose size is divisible by 32. So one rule with both "
        "axes splits all matrices. Two rules that split two dimensions over one axis each work as well."
    ),
)
def pods_a_8b_train_state(setup: Setup, answer: Answer) -> str:
    _, result = _read_rules(answer, setup.arrays, setup.mesh, setup.copies)
    require(
        result.bytes <= setup.most,
        f"{result.does} With the moments, that is more than 3 GiB.",
    )
    return result.does


_SPLIT_MODEL = Rules.of(
    ("embed", "fsdp"),
    ("vocab", "model"),
    ("heads", "model"),
    ("kv_heads", "model"),
    ("mlp", "model"),
)


@add(
    "pods/70b-mesh",
    task="""
A 70B model is trained in float32 with these rules and with Adam, so each array in `arrays` is kept `copies`
times. Make a mesh of `devices` devices on which all arrays can be laid out and all copies together take at
most `most` bytes per device.
""",
    given=lambda: Setup(
        devices=128,
        rules=_SPLIT_MODEL,
        arrays=_model("70B model"),
        copies=3,
        most=8589934592,
    ),
    hints=(
        "Which axes do the rules name?",
        "Which dimension is the smallest that the rules split over `model`?",
        "Devices along any other axis hold replicas, and there is no room for replicas.",
    ),
    solution="fsdp=16, model=8",
    why=(
        "The 8 heads of keys and values limit `model` to 8. The remaining factor of 16 must split `embed`, since "
        "replicas would take at least twice the memory."
    ),
)
def pods_a_70b_mesh(setup: Setup, answer: Answer) -> str:
    mesh = read_mesh(answer)
    result = _laid_out(setup.arrays, setup.rules, mesh, setup.copies)
    require(
        mesh.size == setup.devices, f"{result.does} The mesh must have 128 devices."
    )
    require(
        result.bytes <= setup.most,
        f"{result.does} With the moments, that is more than 8 GiB.",
    )
    return result.does


def _serving(setup: Setup, batch: int) -> int:
    """Returns the bytes per device of weights and a KV cache for `batch` sequences."""
    arrays = list(setup.weights)
    for array in setup.cache:
        layers, _, *sizes = array.shape
        arrays.append(array.replace(shape=(layers, batch, *sizes)))
    return audit(arrays, setup.rules, setup.mesh).bytes_per_device


@add(
    "arithmetic/cache-batch",
    task="""
A model answers a batch of requests. Its `weights` and a `cache` of keys and values are on this slice in
bfloat16, split by these rules. Each chip has `memory` bytes. What is the largest batch whose cache fits in
memory together with the weights? The batch is dimension 1 of the cache, and must be a multiple of `multiple`.
""",
    given=lambda: Setup(
        topology=_V5E,
        memory=_V5E.chip.device_bytes,
        mesh=make_mesh("data=4, model=8"),
        rules=Rules.of(
            ("embed", "data"),
            ("vocab", "model"),
            ("heads", "model"),
            ("kv_heads", "model"),
            ("mlp", "model"),
            ("batch", "data"),
        ),
        weights=models.get("70B model"),
        cache=models.get("key-value cache"),
        multiple=4,
    ),
    hints=(
        "How many bytes does each chip have left after the weights?",
        "How many bytes does one sequence take in the cache, and over which axes is the cache split?",
        "Each device holds a part of the batch, and of the heads of keys and values.",
    ),
    solution=152,
    why=(
        "Divide the free bytes of a chip by the bytes that one sequence takes on it. The result is the number of "
        "sequences in each of the four parts of the batch."
    ),
)
def arithmetic_cache_batch(setup: Setup, answer: Answer) -> str:
    batch = read_number(answer, "sequences")
    if batch % setup.multiple or not setup.multiple <= batch <= 1e6:
        raise Wrong(
            f"The answer is a multiple of {setup.multiple}; got {shown(answer)}."
        )
    used = _serving(setup, int(batch))
    does = words.serves(int(batch), used, setup.memory)
    require(used <= setup.memory, f"{does} That is more than the chip has.")
    require(
        setup.memory < _serving(setup, int(batch) + setup.multiple),
        f"{does} A larger batch would fit.",
    )
    return does


# Lesson 14

_ARRAYS = {
    "embed/table": ((4096, 512), "vocab width"),
    "attention/wq": ((512, 512), "width heads"),
    "attention/wo": ((512, 512), "heads width"),
    "mlp/wi": ((512, 2048), "width hidden"),
    "mlp/wo": ((2048, 512), "hidden width"),
}


def _tree(misspelt: str = "") -> tuple[ArraySpec, ...]:
    """Returns the parameters of a model with two blocks.

    Args:
        misspelt: a wrong logical name to replace `hidden` in one array per block.
    """
    arrays = []
    for block in ("", "block_0/", "block_1/"):
        for name, (shape, names) in _ARRAYS.items():
            # Only the embedding table is outside the blocks.
            if (name == "embed/table") == bool(block):
                continue
            if misspelt and name == "mlp/wo":
                names = names.replace("hidden", misspelt)
            arrays.append(
                ArraySpec(f"params/{block}{name}", shape, read_logical(names))
            )
    return tuple(arrays)


def _state(*without_names: str) -> tuple[ArraySpec, ...]:
    """Returns parameters and Adam's moments, without logical names at some paths."""
    arrays = list(_tree())
    for moment in ("mu", "nu"):
        for a in _tree():
            path = f"opt_state/0/{moment}/{a.name.removeprefix('params/')}"
            logical = a.logical
            # An optimizer that was created from bare arrays has no logical names.
            if path in without_names:
                logical = None
            arrays.append(ArraySpec(path, a.shape, logical))
    return tuple(arrays)


_TREE_RULES = Rules.of(("vocab", "y"), ("heads", "y"), ("hidden", "y"), ("width", "x"))


def _paths(setup: Setup) -> list[str]:
    return [array.name for array in setup.arrays]


def _edits(old: list[str], new: list[str]) -> int:
    """Returns the minimum number of lines to change, move, add or remove."""
    # lengths[n]: length of the longest common subsequence of old[:n] and the lines of
    # `new` so far.
    lengths = [0] * (len(old) + 1)
    for new_line in new:
        row = [0]
        for position, old_line in enumerate(old):
            length = max(lengths[position + 1], row[position])
            if new_line == old_line:
                length = lengths[position] + 1
            row.append(length)
        lengths = row
    return max(len(old), len(new)) - lengths[-1]


@add(
    "debugging/unmatched",
    task="""
A logical name is misspelt, so the table has no rule for it. Which arrays have that name? Answer with their
paths.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"), rules=_TREE_RULES, arrays=_tree(misspelt="hiden")
    ),
    hints=(
        "An audit lists the names that have no rule.",
        (
            "`sv.audit(arrays, rules, mesh).unmatched` lists these names, each with its `.arrays`. Answer with "
            "their paths, as text with commas or as a list, or with the entries of `.unmatched` themselves."
        ),
        "The name is one letter short, and it is in the same array of every block.",
    ),
    solution="params/block_0/mlp/wo, params/block_1/mlp/wo",
    why="The audit lists the names that have no rule, and the arrays that use them.",
)
def debugging_unmatched(setup: Setup, answer: Answer) -> str:
    rows = audit(setup.arrays, setup.rules, setup.mesh).rows
    right = [row.path for row in rows if row.resolution and row.resolution.unknown]
    return check_names(answer, _paths(setup), right, "The arrays")


@add(
    "debugging/one-rule",
    task="""
These arrays take too much memory. Edit, move, add or remove one rule of the table so that the arrays take at
most `most` bytes per device.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"),
        rules=Rules.of(
            ("vocab", "y"),
            ("heads", "y"),
            ("hidden", "y"),
            ("width", None),
            ("width", "x"),
        ),
        arrays=_tree(),
        most=6291456,
    ),
    hints=(
        "Which rule never decides anything? Ask `sv.audit`.",
        "A rule for None ends the search for its name.",
        "The rule that should decide is there already, but comes too late.",
    ),
    solution="vocab -> y\nheads -> y\nhidden -> y\nwidth -> x\nwidth -> None",
    why=(
        "The rule for None shadows the rule for `width` below it. After that rule, the rule for None has no "
        "effect, so it can be moved there or removed."
    ),
)
def debugging_one_rule(setup: Setup, answer: Answer) -> str:
    table, result = _read_rules(answer, setup.arrays, setup.mesh)
    edits = _edits(list(map(str, setup.rules)), list(map(str, table)))
    require(
        edits <= 1,
        f"{result.does} Your table differs from the given one in more than one rule; change one.",
    )
    require(
        result.bytes <= setup.most,
        f"{result.does} That is more than 6 MiB; ask `sv.audit` why the largest array is not split.",
    )
    return result.does


@add(
    "debugging/replicated",
    task="""
Some large arrays of this model are replicated: every device holds all of them. Which ones? Answer with their
paths.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"),
        rules=Rules.of(
            ("vocab", "y"), ("hidden", "y"), ("heads", None), ("heads", "y")
        ),
        arrays=_tree(),
    ),
    hints=(
        "Resolve each kind of array by these rules. Which kind has no split dimension?",
        "`sv.audit(arrays, rules, mesh).replicated` lists the replicated arrays.",
        "Two kinds of array have none of the dimensions that the table splits; both kinds are in every block.",
    ),
    solution=(
        "params/block_0/attention/wq",
        "params/block_0/attention/wo",
        "params/block_1/attention/wq",
        "params/block_1/attention/wo",
    ),
    why=(
        "The table has no rule for `width`, and the rule for None comes before the rule that would split "
        "`heads`. So nothing splits the weights of attention."
    ),
)
def debugging_replicated(setup: Setup, answer: Answer) -> str:
    rows = audit(setup.arrays, setup.rules, setup.mesh).rows
    right = [row.path for row in rows if row.replicas == setup.mesh.size]
    return check_names(answer, _paths(setup), right, "The arrays")


# Lesson 15


@add(
    "keep/lost-moments",
    task="""
These are the parameters of a model and their moments, as Adam keeps them. Some moments are not split like
their parameters. Which ones? Answer with their paths.
""",
    given=lambda: Setup(
        mesh=make_mesh("x=4, y=2"),
        rules=_TREE_RULES,
        arrays=_state("opt_state/0/mu/block_1/mlp/wi", "opt_state/0/nu/embed/table"),
    ),
    hints=(
        "An audit pairs every moment with its parameter.",
        "`sv.audit(arrays, rules, mesh).differences` lists each moment that is split differently from its parameter.",
        "Arrays without names are replicated, whatever the rules are.",
    ),
    solution="opt_state/0/mu/block_1/mlp/wi, opt_state/0/nu/embed/table",
    why="These arrays have no logical names, so no rule applies to them, and every device holds all of them.",
)
def keep_lost_moments(setup: Setup, answer: Answer) -> str:
    differences = audit(setup.arrays, setup.rules, setup.mesh).differences
    right = [difference.path for difference in differences]
    return check_names(answer, _paths(setup), right, "The arrays")


def _stays_split(audited: Audit) -> None:
    expect(audited).sharded(at_least=0.99)


def _message(function: Callable[[Audit], object], audited: Audit) -> str:
    """Runs a test on an audit; returns the message if it fails, `""` if it passes."""
    try:
        function(audited)
    except AssertionError as error:  # includes ContractError
        # A bare assert has no message.
        first, *_ = str(error).splitlines() or ["AssertionError"]
        return shown(first, 200)
    return ""


@add(
    "keep/contract",
    task="""
In `bad`, a moment of the optimizer has lost its sharding; `good` is correct. Write a test: a function that takes
an audit and raises an AssertionError if a moment has lost its sharding, and otherwise raises nothing.
""",
    given=lambda: Setup(
        good=audit(_state(), _TREE_RULES, make_mesh("x=4, y=2")),
        bad=audit(
            _state("opt_state/0/mu/block_1/mlp/wi"),
            _TREE_RULES,
            make_mesh("x=4, y=2"),
        ),
    ),
    hints=(
        "`sv.expect(audit)` has methods that raise an error if an expectation fails.",
        "How many bytes does each device hold in each of the two audits? Which share of the arrays is split?",
        "`.sharded(...)` and `.at_most(...)` take a limit. Choose one between the values of the two audits.",
    ),
    solution=_stays_split,
    why=(
        "Nearly all bytes of the good audit are split; in the bad one, a large array is not. A limit on the "
        "bytes per device finds the mistake as well."
    ),
)
def keep_contract(setup: Setup, answer: Answer) -> str:
    if not callable(answer):
        raise Wrong(f"The answer must be a function of an audit; got {shown(answer)}.")
    good, bad = _message(answer, setup.good), _message(answer, setup.bad)
    does = words.contract(good, bad)
    require(not good, f"{does} Your test must pass for the good audit.")
    require(bad, f"{does} Your test would not have found the mistake.")
    return does
