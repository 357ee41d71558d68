"""Exercises that plan or compile programs (lessons 4, 6, 7, 9 and 13, and one of 15).

Grading uses XLA's partitioner instead of the plan if the two may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text, joined, shown
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.base.public.layouts import array as make_array
from shardviz.base.typing import PyTree, UserFunction
from shardviz.compiled.public import compile as compile_program
from shardviz.exercises import words as words
from shardviz.exercises.answers import (
    Answer,
    Wrong,
    check_mesh,
    check_names,
    check_number,
    opened,
    read_layout,
    read_number,
    read_pair,
    read_result,
    read_table,
    require,
)
from shardviz.exercises.registry import Setup, add
from shardviz.gallery import programs, puzzles
from shardviz.plans.plan import Plan
from shardviz.plans.public import plan as plan_program
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program
from shardviz.runs.public import run


@lru_cache(maxsize=64)  # users repeat answers
def planned(program: Program) -> Plan:
    """Plans a program.

    Raises:
        Wrong: if the program cannot be planned; the message gives the reason.
        ShardvizError: if jax is not installed.
    """
    for problem in program.problems:
        raise Wrong(problem)
    plan = plan_program(program)
    if plan.error is not None:
        raise Wrong(words.does_not_compile(plan.error.message))
    return plan


@lru_cache(maxsize=64)
def partitioned(program: Program) -> tuple[Collective, ...]:
    """Returns the collectives that XLA's partitioner inserts, on simulated CPU devices.

    Raises:
        Wrong: if the program does not compile; the message gives the reason.
        ShardvizError: if jax is not installed.
    """
    for problem in program.problems:
        raise Wrong(problem)
    report = compile_program(program, f"cpu:{program.mesh.size}")
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    return report.partitioned or ()


def sent_bytes(collectives: Iterable[Collective]) -> int:
    """Sums the bytes that each device sends in collectives."""
    return sum(c.sent_in_all for c in collectives)


def _costs(head: str, collectives: Iterable[Collective]) -> str:
    """Describes an answer's collectives and the bytes that each device sends."""
    collectives = tuple(collectives)
    return words.costs(head, collectives, sent_bytes(collectives))


def _kinds(collectives: Iterable[Collective]) -> list[str]:
    return [collective.kind for collective in collectives]


def _matmul(a: PyTree, b: PyTree) -> PyTree:
    return a @ b


def _identity(x: PyTree) -> PyTree:
    return x


def _product(setup: Setup, a: Layout | ArraySpec, b: Layout | ArraySpec) -> Program:
    """Creates the program A @ B with the shapes and specs of `a` and `b`."""
    first = ArraySpec("A", a.shape, spec=a.spec)
    second = ArraySpec("B", b.shape, spec=b.spec)
    return _program(_matmul, setup.mesh, first, second)


def _reshard(setup: Setup, before: Spec | None, after: Spec | None) -> Program:
    return _program(_identity, setup.mesh, setup.x.replace(spec=before), out=after)


# Return the same object for equal programs: `planned` and `partitioned` cache by
# identity.
@lru_cache(maxsize=256)
def _program(
    function: UserFunction, mesh: MeshSpec, *arrays: ArraySpec, out: Spec | None = None
) -> Program:
    return Program(function, arrays, mesh, out_specs=out)


# Lesson 6: the cases of a sharded matmul.


def _multiplied(setup: Setup, answer: Answer, a: Layout, b: Layout) -> tuple[Plan, int]:
    """Plans A @ B; returns the plan and the product's number of shards.

    Raises:
        Wrong: if the answer names a wrong spec for the product.
    """
    plan = planned(_product(setup, a, b))
    # Use the operation's spec, because its result may be resharded afterwards.
    spec = plan.op("dot_general").spec
    named = read_result(answer, setup.mesh)
    if named is not None and not named.equivalent(spec):
        raise Wrong(words.another_result(spec, named))
    return plan, lay_out((a.shape[0], b.shape[1]), spec, setup.mesh).num_blocks


@add(
    "matmul/nothing-moves",
    task="""
Split `A` and `B` so that the product `A @ B` is in eight different shards and no data is sent. Neither `A`
nor `B` may be replicated on all devices. Answer with two specs, or in the notation of the lesson:
`A[…] · B[…]`.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        A=make_array("A", (512, 1024)),
        B=make_array("B", (1024, 2048)),
    ),
    hints=(
        "What does a device need to compute one block of the product?",
        "The dimension that the product sums over must be complete on each device.",
        "Split the rows of one factor and the columns of the other, over different axes.",
    ),
    solution="A[I_U, J] B[J, K_V]",
    why="Each device has complete rows of A and complete columns of B, which is all that its block needs.",
)
def matmul_nothing_moves(setup: Setup, answer: Answer) -> str:
    a, b = read_pair(answer, (setup.A, setup.B), setup.mesh)
    plan, results = _multiplied(setup, answer, a, b)
    does = _costs(f"A as {a.spec}, B as {b.spec}", plan.collectives)
    require(
        min(a.num_blocks, b.num_blocks) >= 2,
        f"{does} One of the factors is replicated on all devices; split both.",
    )
    require(not plan.collectives, f"{does} No data should be sent.")
    require(results == 8, f"{does} The product is not in eight different shards.")
    return does


@add(
    "matmul/one-all-reduce",
    task="""
Split `A` and `B` so that every device holds one eighth of each, and the product needs one all-reduce and no
other collective. Answer with two specs, or in the notation of the lesson: `A[…] · B[…]`.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        A=make_array("A", (512, 1024)),
        B=make_array("B", (1024, 2048)),
    ),
    hints=(
        "Where do partial sums come from?",
        "Both factors must be split along the dimension that the product sums over, and in the same way.",
        "No two devices hold the same shard, so both mesh axes must split that dimension.",
    ),
    solution="A[I, J_UV] B[J_UV, K]",
    why=(
        "Every device multiplies its columns of A by its rows of B. That is a partial sum of the whole "
        "product, and an all-reduce adds the partial sums."
    ),
)
def matmul_one_all_reduce(setup: Setup, answer: Answer) -> str:
    a, b = read_pair(answer, (setup.A, setup.B), setup.mesh)
    plan, _ = _multiplied(setup, answer, a, b)
    does = _costs(f"A as {a.spec}, B as {b.spec}", plan.collectives)
    require(
        max(a.replicas, b.replicas) == 1,
        f"{does} No two devices may hold the same shard.",
    )
    require(
        _kinds(plan.collectives) == ["all-reduce"],
        f"{does} It should need one all-reduce and no other collective.",
    )
    return does


@add(
    "matmul/move-the-small-one",
    task="""
`A` is small, and `B` is large and split as shown. Split `A` so that each device sends at most `most`
bytes for `A @ B`, as XLA's partitioner compiles it. Answer with a spec for `A`.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        A=make_array("A", (8, 8192)),
        B=make_array("B", (8192, 8192), spec="U, V"),
        most=1048576,
    ),
    hints=(
        "Which factor must be sent if only one of them is split along the dimension that the product sums over?",
        "`B` should not be gathered: leave its shards where they are, and add partial sums.",
        "How must the columns of `A` be split to match the rows of `B` that a device holds?",
    ),
    solution="P(None, 'U')",
    why=(
        "If the columns of A are split like the rows of B, no factor has to be sent. Only the partial sums of "
        "a small product are added. If the columns of A are split over other axes, little more is sent, since A "
        "is small."
    ),
)
def matmul_move_the_small_one(setup: Setup, answer: Answer) -> str:
    a = read_layout(answer, setup.A, setup.mesh)
    collectives = partitioned(_product(setup, a, setup.B))
    does = _costs(f"A as {a.spec}", collectives)
    require(a.num_blocks >= 2, f"{does} `A` must be split.")
    require(sent_bytes(collectives) <= setup.most, f"{does} That is more than 1 MiB.")
    return does


@add(
    "matmul/sent-bytes",
    task="""
How many bytes does each device send for `A @ B` with these specs, if the collective runs on a ring?
Answer with a number of bytes, or with text and a unit.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        A=make_array("A", (512, 1024), spec="V, U"),
        B=make_array("B", (1024, 2048), spec="U"),
    ),
    hints=(
        "Which dimension is split in both factors, and which collective does the product therefore need?",
        "The product is split as well. How large is the block of each device?",
        "An all-reduce is a reduce-scatter and an all-gather; in each, a device sends all parts of its block but one.",
    ),
    solution="3 MiB",
    why=(
        "Each device has a partial sum of its block of the product, which is split along its rows. The "
        "all-reduce over U has four participants, and each sends 2 × 3/4 of the block."
    ),
)
def matmul_sent_bytes(setup: Setup, answer: Answer) -> str:
    mistakes = {
        2 / 3: "that is the size of the block; a device sends more.",
        1 / 2: "that is one round of the ring, but an all-reduce takes two.",
        4
        / 3: "that is the block twice, but in each round a device sends only three of its four parts.",
        2: "that is right for a product whose rows are not split, but here they are.",
        8: "that is what all devices send together.",
    }
    right = sent_bytes(planned(_product(setup, setup.A, setup.B)).collectives)
    return check_number(answer, right, "bytes", mistakes)


# Lesson 4


@add(
    "collectives/one-all-to-all",
    task="""
A program changes the spec of `x`. Choose the specs before and after the change so that it needs one
all-to-all and no other collective. Answer with these two specs, in this order.
""",
    given=lambda: Setup(mesh=make_mesh("U=4, V=2"), x=make_array("x", (512, 1024))),
    hints=(
        "Which collective moves a mesh axis from one dimension of an array to another?",
        "Each device holds as many bytes after this collective as before, and sends a part to every other device of its group.",
        "Use the same axis before and after, for different dimensions.",
    ),
    solution=("P('U', None)", "P(None, 'U')"),
    why=(
        "The axis splits one dimension before and the other after. Every device cuts its shard into parts, "
        "keeps one and sends one to each other device along the axis."
    ),
)
def collectives_one_all_to_all(setup: Setup, answer: Answer) -> str:
    arrays = setup.x.renamed("before"), setup.x.renamed("after")
    before, after = read_pair(answer, arrays, setup.mesh)
    collectives = planned(_reshard(setup, before.spec, after.spec)).collectives
    does = _costs(f"{before.spec} → {after.spec}", collectives)
    require(
        _kinds(collectives) == ["all-to-all"],
        f"{does} It should need one all-to-all and no other collective.",
    )
    return does


@add(
    "collectives/all-reduce-sends",
    task="""
Each of the `devices` has computed a `gradient`, and an all-reduce on a ring adds up the gradients. How many
bytes does each device send? Answer with a number of bytes, or with text and a unit.
""",
    given=lambda: Setup(gradient=make_array("gradient", (4096, 4096)), devices=8),
    hints=(
        "An all-reduce on a ring is two simpler collectives, one after the other.",
        "In each of the two, a device sends all parts but one.",
        "n devices make n parts, so each of the two sends (n − 1)/n of the array.",
    ),
    solution="112 MiB",
    why="In the reduce-scatter each device sends (n − 1)/n of the array, and in the all-gather after it as much again.",
)
def collectives_all_reduce_sends(setup: Setup, answer: Answer) -> str:
    mistakes = {
        4 / 7: "that is the size of the gradient. Each device sends more than that.",
        1 / 2: "that is the reduce-scatter alone; its result must still be gathered.",
        8
        / 7: "that is the gradient twice, but in each of the two collectives a device sends all parts but one.",
        4: "you let every device send its gradient to all others, which a ring does not do.",
        1 / 14: "that is one part of the gradient, sent once.",
        8: "that is what all devices send together.",
    }
    right = 2 * (setup.devices - 1) / setup.devices * setup.gradient.bytes
    return check_number(answer, right, "bytes", mistakes)


# Lesson 7: data, fully sharded and tensor parallelism, with specs.


def _read_specs(
    answer: Answer, arrays: tuple[ArraySpec, ...], mesh: MeshSpec
) -> tuple[ArraySpec, ...]:
    """Returns `arrays` with the specs of an answer.

    The answer can be a dict from names to specs, one spec per array, or a program.

    Raises:
        Wrong: for an answer in another form.
        ShardvizError: if an array cannot be laid out with its spec.
    """
    answer = opened(answer)
    names = [array.name for array in arrays]
    if isinstance(answer, Program):
        specs: list[Answer] = [answer] * len(arrays)
    elif isinstance(answer, Mapping):
        specs = [answer.get(name) for name in names]
    elif isinstance(answer, (tuple, list)):
        specs = list(answer)
    else:
        raise Wrong(
            f"The answer must be the specs of {joined(names)}; got {shown(answer)}."
        )
    if len(specs) != len(arrays):
        raise Wrong(
            f"The answer must be {len(arrays)} specs, of {joined(names)}; got {len(specs)}."
        )
    split = []
    for spec, array in zip(specs, arrays, strict=True):
        layout = read_layout(spec, array, mesh)
        split.append(array.replace(spec=layout.spec))
    return tuple(split)


def _mlp_without_specs() -> Program:
    """Returns the MLP and its gradient on a mesh of 4 by 2, without rules and specs."""
    mlp = programs.get("MLP, gradient")
    arrays = []
    for array in mlp.arrays:
        shape = (256, 512) if array.name == "x" else array.shape
        arrays.append(ArraySpec(array.name, shape))
    mesh = make_mesh("outer=4, inner=2")
    return mlp.replace(mesh=mesh, rules=None, arrays=tuple(arrays))


@add(
    "parallelism/few-tokens",
    task="""
Split `w_in`, `w_out` and `x` so that each device holds at most `most_held` bytes of the three arrays, and
sends at most `most_sent` bytes in the program, as XLA's partitioner compiles it for CPUs. Answer with the three
specs in this order, or with a dict from names to specs.
""",
    given=lambda: Setup(
        mesh=make_mesh("outer=4, inner=2"),
        program=_mlp_without_specs(),
        arrays=_mlp_without_specs().arrays,
        most_held=1572864,
        most_sent=1048576,
    ),
    hints=(
        "Compare the bytes of one weight with the bytes of the tokens. Which of them should stay in place?",
        "The weights are large and must be in eight shards, but neither the weights nor their gradients may be sent.",
        "Split the dimension between the two products over both axes, and leave the tokens unsplit.",
    ),
    solution=("None, (outer, inner)", "(outer, inner)", ""),
    why=(
        "This is tensor parallelism over all devices. The weights and their gradients stay in place, and one "
        "all-reduce adds the partial sums of the few tokens."
    ),
)
def parallelism_few_tokens(setup: Setup, answer: Answer) -> str:
    arrays = _read_specs(answer, setup.arrays, setup.mesh)
    held = 0
    for array in arrays:
        layout = lay_out(array.shape, array.spec or Spec(), setup.mesh)
        held += layout.bytes_per_device
    collectives = partitioned(_with_arrays(setup.program, arrays))
    specs = joined([f"{array.name} as {array.spec}" for array in arrays])
    does = _costs(specs, collectives)
    require(
        held <= setup.most_held,
        f"{does} Each device holds {bytes_text(held)}, more than 1.5 MiB.",
    )
    require(
        sent_bytes(collectives) <= setup.most_sent,
        f"{does} That is more than 1 MiB.",
    )
    return does


@lru_cache(maxsize=64)
def _with_arrays(program: Program, arrays: tuple[ArraySpec, ...]) -> Program:
    return program.replace(arrays=arrays)


@add(
    "parallelism/fsdp-sends",
    task="""
An MLP layer has two weights in float32, of shapes `[width, hidden]` and `[hidden, width]`. Under fully sharded
data parallelism each weight is gathered once, and its gradient is reduce-scattered. How many bytes does each of
the `devices` send for the forward and the backward pass together? Answer with a number of bytes, or with
text and a unit.
""",
    given=lambda: Setup(width=4096, hidden=16384, devices=16, tokens=65536),
    hints=(
        "The answer does not depend on one of the given numbers. Which one?",
        "Each weight is gathered once, and each gradient is as large as its weight.",
        "An all-gather and a reduce-scatter of B bytes each send (n − 1)/n of B.",
    ),
    solution="960 MiB",
    why=(
        "The weights take 512 MiB. The all-gathers send 15/16 of that and the reduce-scatters as much again, "
        "however many tokens there are."
    ),
)
def parallelism_fsdp_sends(setup: Setup, answer: Answer) -> str:
    mistakes = {
        1 / 2: "that is the forward pass alone; the gradients are sent as well.",
        3 / 2: "that counts three passes, but here each weight is gathered only once.",
        16 / 15: "that counts all 16 parts, but each device already has one of them.",
        16: "that is what all devices send together.",
        8 / 15: "that is the size of the weights, not the bytes that a device sends.",
        1 / 4: "that is for one weight in one pass.",
        1 / 15: "that is a single step of each collective on the ring.",
    }
    weights = 2 * setup.width * setup.hidden * 4
    right = 2 * (setup.devices - 1) / setup.devices * weights
    return check_number(answer, right, "bytes", mistakes)


@add(
    "parallelism/gated-tokens",
    task="""
A gated MLP has three weights, `gate` and `w_in` of shape `[width, hidden]` and `w_out` of shape
`[hidden, width]`, and computes `(silu(x @ gate) * (x @ w_in)) @ w_out`. Everything is in float32. The program
computes the gradients of the weights and of `x`. Under tensor parallelism, XLA for TPUs inserts one
all-reduce in each of the two passes. Below how many tokens does tensor parallelism send fewer bytes than data
parallelism?
""",
    given=lambda: Setup(width=512, hidden=2048, devices=8),
    hints=(
        "Data parallelism adds up the gradients of all three weights over the devices. How many numbers is that?",
        "Tensor parallelism adds up one array per pass, of shape `[tokens, width]`.",
        "Each of these numbers costs the same, so compare the two counts. Does `width` matter?",
    ),
    solution=3072,
    why=(
        "Data parallelism adds up 3 × width × hidden numbers, tensor parallelism 2 × tokens × width. The two are "
        "equal at 3/2 × hidden tokens, on any number of devices."
    ),
)
def parallelism_gated_tokens(setup: Setup, answer: Answer) -> str:
    mistakes = {
        2 / 3: "that is for an MLP with two weights, but this one has three.",
        2: "that counts one of the two passes of tensor parallelism.",
        1 / 2: "that counts both passes of tensor parallelism twice.",
        1 / 4: "you used `width` instead of `hidden`, but `width` cancels.",
        1
        / 8: "that is for the tokens of one device, but under tensor parallelism each device has all tokens.",
        8: "you multiplied by the number of devices, but in both cases the all-reduce is over all devices.",
    }
    return check_number(answer, 3 * setup.hidden / 2, "tokens", mistakes)


# Lesson 13: rule tables. The mesh axis names differ from the lesson's.


def _training(name: str) -> Setup:
    mesh = make_mesh(outer=4, inner=2)
    program = programs.known_program(name).replace(mesh=mesh, rules=None)
    return Setup(mesh=mesh, program=program, arrays=program.arrays)


def _split_by(answer: Answer, setup: Setup) -> tuple[Program, dict[str, Layout]]:
    """Applies an answer's rules; returns the new program and its layouts by name."""
    changed = setup.program.replace(rules=read_table(answer, setup.mesh))
    for problem in changed.problems:
        raise Wrong(problem)
    layouts = {}
    for row in changed.requests:
        assert row.layout is not None  # arrays without problems have one
        layouts[row.path] = row.layout
    return changed, layouts


def _fewest(layouts: Mapping[str, Layout]) -> int:
    """Returns the smallest shard count among the batch and both weights."""
    return min(layouts[name].num_blocks for name in ("w_in", "w_out", "x"))


@add(
    "tables/tensor",
    task="""
Write rules that split the batch over one axis and both weights over the other axis, so that the program
needs only a single all-reduce.
""",
    given=lambda: _training("MLP"),
    hints=(
        "Which dimension of the weights lies between the two products?",
        "The first product should need no collective: each device computes its own part of the wide dimension.",
        "The second product then sums over a split dimension, once. The other dimension of the weights stays unsplit.",
    ),
    solution="batch -> outer\nmlp -> inner",
    why=(
        "Both weights are split along the wide dimension. The first product needs no data from other devices. "
        "The second leaves partial sums, which one all-reduce adds."
    ),
)
def tables_tensor(setup: Setup, answer: Answer) -> str:
    program, layouts = _split_by(answer, setup)
    require(
        _fewest(layouts) >= 2,
        f"{words.shards(layouts)} The batch and both weights must be split.",
    )
    collectives = partitioned(program)
    does = words.inserts(collectives)
    require(
        _kinds(collectives) == ["all-reduce"], f"{does} A single all-reduce is enough."
    )
    return does


@add(
    "tables/fsdp",
    task="""
Write rules for fully sharded data parallelism over all devices: the batch and both weights must be in eight
shards each. The weights must be gathered before they are used, and no other argument may be gathered.
""",
    given=lambda: _training("fsdp, gradient"),
    hints=(
        "Both the batch and the weights are split over all devices.",
        "Each weight needs one dimension that is split over both axes, or two dimensions that are split over one axis each.",
        "In `x`, the batch must be split over both axes. If another name of `x` has a rule, this rule must come after that of the batch.",
    ),
    solution="batch -> (outer, inner)\nembed -> (outer, inner)",
    why="The batch is split over both axes, so the weights, which are split over the same axes, are gathered before they are used.",
)
def tables_fsdp(setup: Setup, answer: Answer) -> str:
    program, layouts = _split_by(answer, setup)
    require(
        _fewest(layouts) == 8,
        f"{words.shards(layouts)} The batch and both weights must be in eight shards each.",
    )
    collectives = partitioned(program)
    does = words.inserts(collectives)
    gathered = {
        c.operand.name
        for c in collectives
        if c.kind == "all-gather" and c.operand and c.operand.is_argument
    }
    # If XLA gathers only intermediate values, the set is empty.
    require(gathered, f"{does} The weights should be gathered, and no other argument.")
    require(
        gathered <= {"w_in", "w_out"},
        f"{does} The weights should be gathered, and no other argument.",
    )
    return does


@add(
    "tables/experts",
    task="""
Write rules under which every device holds two complete experts, and no expert is sent.
""",
    given=lambda: _training("mixture of experts"),
    hints=(
        "How many experts are there, and how many devices?",
        "The dimension of the experts must be split over all devices.",
        "If the batch is split over the same axes, the partitioner may gather the experts.",
    ),
    solution="expert -> (outer, inner)",
    why=(
        "Sixteen experts, split over both axes, are two per device. No other dimension is split over these axes, so the "
        "experts stay where they are."
    ),
)
def tables_experts(setup: Setup, answer: Answer) -> str:
    program, layouts = _split_by(answer, setup)
    does = words.shards(layouts)
    require(
        layouts["w_in"].block_counts == (8, 1, 1),
        f"{does} Every device must hold two complete experts of `w_in`: eight shards along its first dimension.",
    )
    require(
        layouts["w_out"].block_counts == (8, 1, 1),
        f"{does} Every device must hold two complete experts of `w_out`: eight shards along its first dimension.",
    )
    collectives = partitioned(program)
    does = words.inserts(collectives)
    gathers = [c.bytes_per_device for c in collectives if c.kind == "all-gather"]
    two_experts = layouts["w_in"].bytes_per_device
    require(
        max(gathers, default=0) <= two_experts,
        f"{does} The experts do not stay where they are.",
    )
    return does


# Lesson 9: what the compiler decides.


@add(
    "compiler/origin",
    task="""
In the plan of this program, the value computed on `line`, inside `attention`, is split over the mesh axis
`axis`. From which argument does that axis come? Answer with the name of the argument.
""",
    given=lambda: Setup(
        program=programs.known_program("transformer block").replace(
            mesh=make_mesh(outer=4, inner=2),
            rules=Rules.of(("batch", "outer"), ("heads", "inner"), ("mlp", "inner")),
        ),
        line="mixed = jnp.einsum('bhqk,bkhd->bqhd', weights, v)",
        axis="inner",
    ),
    hints=(
        "`sv.plan(program)` has every value, with the origin of each of its axes.",
        "Look in `plan.ops` for the product whose `op` contains the formula of that einsum.",
        "The `.origins` of a value give the argument that each axis came from, and `plan.why(value)` lists the steps.",
    ),
    solution="w_v",
    why=(
        "The heads are split in the weights of the queries, keys and values. The plan shows from which of these "
        "weights the axis reached this product first."
    ),
)
def compiler_origin(setup: Setup, answer: Answer) -> str:
    # `op.op` contains the formula of the einsum. The einsum can also create a transpose
    # with this formula, so check the opcode too.
    right = [
        op.origins[setup.axis].name
        for op in planned(setup.program).ops
        if op.opcode == "dot_general" and "bhqk,bkhd->" in op.op
    ]
    arguments = [array.name for array in setup.program.arrays]
    return check_names(answer, arguments, right, "The arguments")


@add(
    "compiler/rows",
    task="""
A program asks for its rows to be split over `data`, with
`jax.lax.with_sharding_constraint(y, P("data", None))`, and returns the result. JAX 0.10 compiles it for any
number of rows. From the range `between`, ends included, name a number of rows with which the result is really
split.
""",
    given=lambda: Setup(
        mesh=make_mesh("data=4, model=2"), columns=16, between=(1001, 1040)
    ),
    hints=(
        "If the rows of a result cannot be split evenly, JAX 0.10 raises no error. How is the result split then?",
        "How many devices are there along `data`?",
        "The rows must be a multiple of that number.",
    ),
    solution="1024",
    why="If the rows of a result cannot be split evenly, JAX 0.10 does not split them, and gives no warning.",
)
def compiler_rows(setup: Setup, answer: Answer) -> str:
    shape = getattr(answer, "shape", answer)
    if isinstance(shape, (list, tuple)) and len(shape) == 2:
        if shape[1] == setup.columns:
            answer = shape[0]
    rows, (low, high) = read_number(answer, "rows"), setup.between
    if rows % 1 or not low <= rows <= high:
        raise Wrong(
            f"The number of rows must be from {low} to {high}; got {shown(answer)}."
        )
    x = make_array("x", (int(rows), setup.columns), spec="None, None")
    program = puzzles.get("a constraint that replicates").replace(arrays=(x,))
    spec = planned(program).op("output").spec
    does = words.result_is(spec, int(rows))
    require(
        tuple(spec.axes) == ("data",),
        f"{does} The rows are not split. How many rows are left over if four devices share them evenly?",
    )
    return does


def _constrained(a: Any, b: Any) -> Any:
    import jax

    return jax.lax.with_sharding_constraint(a @ b, jax.sharding.PartitionSpec("V", "U"))


def _is_product(setup: Setup, pinned: Program) -> bool:
    """Runs a program, and returns whether it computes A @ B."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(setup.A.shape).astype("float32")
    b = rng.standard_normal(setup.B.shape).astype("float32")
    # Use a mesh of one device, on which shardings cannot change values.
    report = run(pinned.replace(mesh=make_mesh(U=1, V=1)), a, b)
    if report.error is not None:
        raise Wrong(words.does_not_compile(report.error.message))
    difference = np.linalg.norm(np.asarray(report.outputs) - a @ b)
    # The tolerance allows for accelerators that multiply in bfloat16.
    return bool(difference / np.linalg.norm(a @ b) < 0.01)


@add(
    "compiler/pin-the-result",
    task="""
Write a function of `A` and `B` that returns `A @ B`, and that requests the sharding `spec` for the result. The
shardings of `A` and `B` must not change.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        A=make_array("A", (512, 1024), spec="U"),
        B=make_array("B", (1024, 2048), spec="None, V"),
        spec=Spec.parse("V, U"),
    ),
    hints=(
        "Without a constraint, how is the product split?",
        "JAX has a function that asks for the sharding of a value inside a program.",
        "This function is `jax.lax.with_sharding_constraint`. It takes a value and a PartitionSpec.",
    ),
    solution=_constrained,
    why="Propagation alone would split the rows like those of A and the columns like those of B. A constraint on the result takes precedence.",
)
def compiler_pin_the_result(setup: Setup, answer: Answer) -> str:
    pinned = opened(answer)
    if not isinstance(pinned, Program):
        if not callable(pinned):
            raise Wrong(
                f"The answer must be a function of A and B; got {shown(pinned)}."
            )
        pinned = program(pinned, setup.A, setup.B, mesh=setup.mesh)
    check_mesh(pinned.mesh, setup.mesh)
    # Ignore names: users can name the function's arguments as they like.
    arguments = [(a.shape, str(a.spec)) for a in pinned.arrays]
    if arguments != [(a.shape, str(a.spec)) for a in (setup.A, setup.B)]:
        raise Wrong("The arguments must stay A and B as given, with their shardings.")
    results = [op for op in planned(pinned).ops if op.kind == "result"]
    shapes = [list(op.shape) for op in results]
    if shapes != [[512, 2048]]:
        raise Wrong(
            f"Your function returns {joined(shapes) or 'nothing'}; A @ B is [512, 2048]."
        )
    does = words.result_is(results[0].spec)
    require(
        results[0].spec.equivalent(setup.spec),
        f"{does} The requested sharding is `spec`.",
    )
    require(
        _is_product(setup, pinned),
        f"{does} The shape and the sharding are right, but the values are not those of A @ B.",
    )
    return does


@add(
    "compiler/no-rematerialisation",
    task="""
To change the spec of `x` from `before` to `after`, XLA's partitioner gathers all of `x` on every device,
which XLA calls a full rematerialization. Name an intermediate spec with which the partitioner does not gather
all of `x` and each device sends fewer bytes.
""",
    given=lambda: Setup(
        mesh=make_mesh("U=4, V=2"),
        x=make_array("x", (512, 1024)),
        before=Spec.parse("U"),
        after=Spec.parse("None, V"),
    ),
    hints=(
        "One axis must be removed and another added. Which of the two could happen first?",
        "Splitting a dimension further sends nothing.",
        "Add the new axis first, then drop the old one.",
    ),
    solution="P('U', 'V')",
    why=(
        "Splitting `x` over V as well sends nothing. After that, `x` must be gathered only over U, and the "
        "gathered arrays are half as large."
    ),
)
def compiler_no_rematerialisation(setup: Setup, answer: Answer) -> str:
    between = read_layout(answer, setup.x, setup.mesh).spec
    collectives = (
        *partitioned(_reshard(setup, setup.before, between)),
        *partitioned(_reshard(setup, between, setup.after)),
    )
    does = _costs(f"{setup.before} → {between} → {setup.after}", collectives)
    require(
        not any(c.rematerialises for c in collectives),
        f"{does} There is still a full rematerialization.",
    )
    direct = sent_bytes(partitioned(_reshard(setup, setup.before, setup.after)))
    require(
        sent_bytes(collectives) < direct,
        f"{does} Without an intermediate spec, each device sends no more than that.",
    )
    return does


# Lesson 15: the exercise about a program.


def _mistaken() -> Setup:
    """Creates an MLP with specs instead of rules; the spec of `w_out` is wrong."""
    mesh = make_mesh(outer=4, inner=2)
    specs = {"w_in": "None, inner", "w_out": "None, inner", "x": "outer"}
    mlp = programs.get("MLP")
    arrays = []
    for array in mlp.arrays:
        spec = Spec.parse(specs[array.name])
        arrays.append(array.replace(logical=None, spec=spec))
    mistaken = mlp.replace(mesh=mesh, rules=None, arrays=tuple(arrays))
    return Setup(mesh=mesh, program=mistaken, arrays=mistaken.arrays, array="w_out")


@add(
    "keep/unasked-gather",
    task="""
This program gathers an activation unnecessarily. Change the spec of `array` so that the program needs only a
single all-reduce. The array must stay split. Answer with its new spec.
""",
    given=lambda: _mistaken(),
    hints=(
        "Which value is gathered, and for which product? Ask `sv.plan`.",
        "The hidden value is split along its wide dimension, and the second product sums over that dimension.",
        "The rows of the second weight must be split like the columns of the hidden value.",
    ),
    solution="P('inner', None)",
    why=(
        "The rows of the second weight are split like the columns of the hidden value, so each device sums "
        "over its own part of the hidden dimension."
    ),
)
def keep_unasked_gather(setup: Setup, answer: Answer) -> str:
    w_in, w_out, x = setup.program.arrays
    changed = opened(answer)
    if isinstance(changed, Program):
        specs = {r.path: str(r.spec) for r in changed.requests if r.path != w_out.name}
        if specs != {a.name: str(a.spec) for a in (w_in, x)}:
            raise Wrong(f"Only {w_out.name} may change; the others are {specs}.")
    layout = read_layout(changed, w_out, setup.mesh)
    arrays = (w_in, w_out.replace(spec=layout.spec), x)
    collectives = planned(setup.program.replace(arrays=arrays)).collectives
    does = _costs(f"w_out as {layout.spec}", collectives)
    require(layout.num_blocks >= 2, f"{does} The array must stay split.")
    require(
        _kinds(collectives) == ["all-reduce"],
        f"{does} It should need one all-reduce and no other collective.",
    )
    return does
