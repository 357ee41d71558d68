"""Exercises on layouts, rules and memory (lessons 1, 2, 7 and 8); they need no jax.

Their words are in `layouts.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from shardviz.api.layouts import audit
from shardviz.api.programs import expect
from shardviz.core.format import shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.layout.trees.audit import Audit
from shardviz.core.wording import exercises as words
from shardviz.exercises.answers import (
    amount_text,
    compare,
    read_layout,
    read_mesh,
    read_names,
    read_number,
    read_table,
    same_names,
)
from shardviz.exercises.registry import Found, Setup, Wrong, exercise, find
from shardviz.gallery import arrays as models

GIB, MIB = 1 << 30, 1 << 20


def layout_of(name: str) -> Callable[[Setup, Any], Found]:
    """Reads the spec of an array; found is its layout."""

    def read(g: Setup, answer: Any) -> Found:
        layout = read_layout(answer, vars(g)[name], g.mesh)
        return Found(words.says(layout), layout=layout)

    return read


def under_rules(name: str, dialect: str = "linen") -> Callable[[Setup, Any], Found]:
    """Reads rules for one array or several; found is their audit."""

    def read(g: Setup, answer: Any) -> Found:
        table, arrays = read_table(answer, g.mesh), vars(g)[name]
        if isinstance(arrays, ArraySpec):
            arrays = (arrays,)
        found = _audited(arrays, table, g.mesh, dialect)
        unknown = {rule.logical for rule in table}
        for array in arrays:
            unknown.difference_update(array.logical or ())
        found.sentence += words.unknown_names(unknown)
        return found

    return read


def _audited(
    arrays: Iterable[ArraySpec], table: Rules, mesh: Any, dialect: str = "linen"
) -> Found:
    done = audit(arrays, table, mesh, dialect=dialect)
    for name, problem in done.problems.items():
        raise Wrong(f"Read as {dialect}, {name} cannot be laid out so: {problem}")
    largest, held = done.largest[0], done.bytes_per_device
    sentence = words.takes(largest.path, largest.spec, held, mesh, len(done.rows))
    return Found(sentence, table=table, audit=done, layout=largest.layout, bytes=held)


def number(
    name: str,
    setup: Callable[[], Setup],
    unit: str,
    right: Callable[[Setup], float],
    slips: Callable[[Setup, float], tuple[float, ...]],
    tolerance: float = 1e-9,
) -> None:
    """Adds an exercise whose answer is a number of a unit.

    Args:
        right: the right number, of what is given.
        slips: of what is given and the right number, those to which usual mistakes
            lead, in the order of their sentences.
    """

    def read(g: Setup, answer: Any) -> str:
        value, wanted = read_number(answer, unit), right(g)
        said = zip(find(name).words.slips, slips(g, wanted), strict=True)
        return words.is_right(compare(value, wanted, unit, said, tolerance))

    exercise(name, setup, read, (), lambda g: amount_text(right(g), unit))


def named(
    name: str,
    setup: Callable[[], Setup],
    what: str,
    known: Callable[[Setup], Iterable[str]],
    right: Callable[[Setup], list[str]],
) -> None:
    """Adds an exercise whose answer is names, paths or ids out of those known."""

    def read(g: Setup, answer: Any) -> str:
        names = read_names(answer, known(g), what)
        same_names(names, right(g))
        return words.lists(names)

    exercise(name, setup, read, (), right)


# Lesson 1: one array on a mesh. Its axes have names that the lesson does not use.

_RACK = make_mesh(host=4, chip=2)
_X = ArraySpec("x", (4096, 1024), None, "bfloat16")

exercise(
    "arrays/eight-shards",
    lambda: Setup(mesh=_RACK, x=_X),
    layout_of("x"),
    (
        lambda g, f: f.layout.shard_shape[1] == g.x.shape[1],
        lambda g, f: f.layout.replicas == 1,
    ),
    "P(('host', 'chip'))",
)


def _held(g: Setup) -> Layout:
    return lay_out(g.q.shape, g.q.spec, g.mesh, g.q.dtype)


number(
    "arrays/memory",
    lambda: Setup(
        mesh=make_mesh(host=4, chip=2, pipe=2),
        q=ArraySpec(
            "q", (32, 2048, 16, 64), None, "bfloat16", Spec.parse("None, host, chip")
        ),
    ),
    "bytes",
    lambda g: _held(g).bytes_per_device,
    lambda g, right: (
        g.q.bytes,  # all of q
        g.q.bytes / g.mesh.size,  # as if every axis split it
        2 * right,  # 4 bytes for each element
        right / 2,  # 1 byte for each element
        right * g.mesh.size,  # what all devices hold
        math.prod(_held(g).shard_shape),  # elements for bytes
    ),
)


def _sharers(g: Setup) -> list[str]:
    found = lay_out(g.w.shape, g.w.spec, g.mesh)
    # By position: the ids of this mesh are not in order, which is the point.
    own = found.groups[g.mesh.position(g.device)]
    return [str(i) for i in found.holders(int(own)).tolist() if i != g.device]


def _same_shard(g: Setup, answer: Any) -> str:
    ids = read_names(answer, map(str, g.mesh.device_ids.flat), "Device ids")
    # Whether the device itself is listed makes no difference.
    ids.discard(str(g.device))
    same_names(ids, _sharers(g))
    return words.lists(ids)


exercise(
    "arrays/same-shard",
    lambda: Setup(
        mesh=make_mesh(host=4, chip=2, device_ids=(0, 1, 2, 3, 7, 6, 5, 4)),
        w=ArraySpec("w", (512, 2048), None, spec=Spec.parse("None, chip")),
        device=5,
    ),
    _same_shard,
    (),
    lambda g: ", ".join(_sharers(g)),
)

exercise(
    "arrays/second-half",
    lambda: Setup(mesh=_RACK, x=_X, device=1),
    layout_of("x"),
    (
        lambda g, f: f.layout.replicas == 1 and f.layout.shard_shape[1] == 1024,
        lambda g, f: f.layout.box(g.device)[0].start == g.x.shape[0] // 2,
    ),
    "P(('chip','host'))",
)


def _on_mesh(g: Setup, answer: Any) -> Found:
    layout = lay_out(g.x.shape, g.spec, read_mesh(answer), g.x.dtype)
    return Found(words.says(layout), layout=layout)


exercise(
    "arrays/square-shards",
    lambda: Setup(x=_X, spec=Spec.parse("rows, columns"), devices=16),
    _on_mesh,
    (
        lambda g, f: f.layout.mesh.size == g.devices,
        lambda g, f: f.layout.shard_shape[0] == f.layout.shard_shape[1],
    ),
    "rows=8, columns=2",
)


# Lesson 2: rules. Logical names of its own as well.

_GRID = make_mesh(x=4, y=2)
_W_IN = ArraySpec("w_in", (512, 2048), "width hidden")
_TABLE = Rules.parse("tokens -> x\nhidden -> y\nwidth -> y\nwidth -> None\nwidth -> x")

exercise(
    "rules/two-rules",
    lambda: Setup(
        mesh=_GRID,
        w_out=ArraySpec("w_out", (2048, 2048), "hidden width"),
        most=2 * MIB,
        rules=2,
    ),
    under_rules("w_out"),
    (lambda g, f: len(f.table) <= g.rules, lambda g, f: f.bytes == g.most),
    "hidden -> x\nwidth -> y",
)

exercise(
    "rules/shadowed",
    lambda: Setup(mesh=_GRID, rules=_TABLE, w_in=_W_IN),
    under_rules("w_in"),
    (
        lambda g, f: sorted(map(str, f.table)) == sorted(map(str, g.rules)),
        lambda g, f: f.layout.replicas == 1,
    ),
    "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> None",
)


def _both_dialects(g: Setup, answer: Any) -> Found:
    linen, nnx = under_rules("w_in")(g, answer), under_rules("w_in", "nnx")(g, answer)
    said = words.read_as("w_in", linen.layout.spec, nnx.layout.spec)
    # By what devices hold: two specs may say the same.
    differ = (linen.layout.groups != nnx.layout.groups).any()
    return Found(said, differ=differ, rules=[rule.logical for rule in linen.table])


exercise(
    "rules/dialects",
    lambda: Setup(mesh=_GRID, w_in=_W_IN),
    _both_dialects,
    (lambda g, f: len(set(f.rules)) < len(f.rules), lambda g, f: f.differ),
    "width -> x\nhidden -> y\nwidth -> None",
)

exercise(
    "rules/twelve-heads",
    lambda: Setup(
        mesh=make_mesh(x=2, y=8),
        w_q=ArraySpec("w_q", (1024, 12, 64), "width heads head_dim"),
        parts=8,
    ),
    under_rules("w_q"),
    (lambda g, f: f.layout.num_blocks >= g.parts,),
    "width -> y\nheads -> x",
)


# Lesson 7: memory and time on named pods.

_LLAMA_3 = {"vocab": 128256, "mlp": 14336, "kv_heads": 8}
_SPLIT_TWICE = Rules.parse(
    "embed -> fsdp\nvocab -> model\nheads -> model\nkv_heads -> model\nmlp -> model"
)
_COPIES = 3  # of each weight: itself and the two moments of Adam


def _8b() -> tuple[ArraySpec, ...]:
    """The weights of Llama 3 8B in float32: those of Llama 2 7B with other sizes."""
    arrays = []
    for array in models.get("7B model"):
        shape = []
        for name, size in zip(array.logical or (), array.shape, strict=True):
            shape.append(_LLAMA_3.get(name or "", size))
        arrays.append(array.replace(shape=tuple(shape), dtype="float32"))
    return tuple(arrays)


def _step_seconds(g: Setup) -> float:
    # 2 operations for each parameter and token forward, 4 backward: part 4 of the
    # scaling book.
    return 6 * g.parameters * g.tokens / (g.topology.chips * g.topology.chip.peak_bf16)


number(
    "pods/step-seconds",
    lambda: Setup(
        parameters=sum(math.prod(a.shape) for a in _8b()),
        tokens=1 << 22,
        topology=Topology.parse("tpu:v5p:8x8x16"),
    ),
    "seconds",
    _step_seconds,
    lambda g, right: (
        right / 3,  # forward alone
        right * 2 / 3,  # backward alone
        right / 2,  # a multiplication and an addition as one operation
        right * g.topology.chips,  # on one chip
    ),
    0.04,
)

exercise(
    "pods/8b-train-state",
    lambda: Setup(
        topology=Topology.parse("tpu:v5e:4x8"),
        mesh=make_mesh(fsdp=8, model=4),
        arrays=_8b(),
        copies=_COPIES,
        most=3 * GIB,
    ),
    under_rules("arrays"),
    (lambda g, f: g.copies * f.bytes <= g.most,),
    "embed -> (fsdp, model)",
)

exercise(
    "pods/70b-mesh",
    lambda: Setup(
        devices=128,
        rules=_SPLIT_TWICE,
        arrays=tuple(a.replace(dtype="float32") for a in models.get("70B model")),
        copies=_COPIES,
        most=8 * GIB,
    ),
    lambda g, answer: _audited(g.arrays, g.rules, read_mesh(answer)),
    (
        lambda g, f: f.layout.mesh.size == g.devices,
        lambda g, f: g.copies * f.bytes <= g.most,
    ),
    "fsdp=16, model=8",
)


def _serving(g: Setup, batch: int) -> int:
    """What weights and a cache of so many sequences take on each device, in bytes."""
    arrays = list(g.weights)
    for array in g.cache:
        layers, _, *rest = array.shape
        arrays.append(array.replace(shape=(layers, batch, *rest)))
    return audit(arrays, g.rules, g.mesh).bytes_per_device


def _batch(g: Setup, answer: Any) -> Found:
    value = read_number(answer, "sequences")
    if value % g.multiple or not g.multiple <= value <= 1e6:
        raise Wrong(f"The answer is a multiple of {g.multiple}; got {shown(answer)}.")
    batch, most = int(value), g.topology.chip.device_bytes
    held, next_held = _serving(g, batch), _serving(g, batch + g.multiple)
    said = words.serves(batch, held, most)
    return Found(said, fits=held <= most, more_fit=next_held <= most)


def _largest_batch(g: Setup) -> int:
    batch = g.multiple
    while _batch(g, batch).more_fit:
        batch += g.multiple
    return batch


exercise(
    "pods/cache-batch",
    lambda: Setup(
        topology=Topology.parse("tpu:v5e:4x8"),
        mesh=make_mesh(data=4, model=8),
        rules=Rules.parse(
            _SPLIT_TWICE.text().replace("fsdp", "data") + "\nbatch -> data"
        ),
        weights=models.get("70B model"),
        cache=models.get("key-value cache"),
        multiple=4,
    ),
    _batch,
    (lambda g, f: f.fits, lambda g, f: not f.more_fit),
    _largest_batch,
)


# Lesson 8: a whole model.

_RULES = Rules.parse("vocab -> y\nheads -> y\nhidden -> y\nwidth -> x")
_SHADOWED = Rules.parse(
    "vocab -> y\nheads -> y\nhidden -> y\nwidth -> None\nwidth -> x"
)


def _tree(wide: str = "hidden") -> tuple[ArraySpec, ...]:
    found = [ArraySpec("params/embed/table", (4096, 512), "vocab width")]
    for block in ("params/block_0", "params/block_1"):
        found += [
            ArraySpec(f"{block}/attention/wq", (512, 512), "width heads"),
            ArraySpec(f"{block}/attention/wo", (512, 512), "heads width"),
            ArraySpec(f"{block}/mlp/wi", (512, 2048), "width hidden"),
            ArraySpec(f"{block}/mlp/wo", (2048, 512), f"{wide} width"),
        ]
    return tuple(found)


def _state(lost: tuple[str, ...] = ()) -> tuple[ArraySpec, ...]:
    """The parameters and the moments of Adam; some of these without names."""
    found = list(_tree())
    for moment in ("mu", "nu"):
        for a in _tree():
            path = f"opt_state/0/{moment}/{a.name.removeprefix('params/')}"
            logical = a.logical
            # As optimizers do that are made from bare arrays.
            if path in lost:
                logical = None
            found.append(ArraySpec(path, a.shape, logical))
    return tuple(found)


_LOST = ("opt_state/0/mu/block_1/mlp/wi", "opt_state/0/nu/embed/table")


def _paths(g: Setup) -> list[str]:
    return [array.name for array in g.arrays]


def _misspelt(g: Setup) -> list[str]:
    """The arrays with a name that no rule knows."""
    rows = audit(g.arrays, g.rules, g.mesh).rows
    return [row.path for row in rows if row.resolution and row.resolution.unknown]


named(
    "debugging/unmatched",
    # A name that no rule has replicates an array, and nothing fails.
    lambda: Setup(mesh=_GRID, rules=_RULES, arrays=_tree("hiden")),
    "The arrays",
    _paths,
    _misspelt,
)

exercise(
    "debugging/one-rule",
    lambda: Setup(mesh=_GRID, rules=_SHADOWED, arrays=_tree(), most=6 * MIB),
    under_rules("arrays"),
    (
        lambda g, f: _edits(list(map(str, g.rules)), list(map(str, f.table))) <= 1,
        lambda g, f: f.bytes <= g.most,
    ),
    "vocab -> y\nheads -> y\nhidden -> y\nwidth -> x\nwidth -> None",
)


def _edits(old: list[str], new: list[str]) -> int:
    """How many lines were changed, moved, added or removed, at least."""
    # By the longest common subsequence of the first lines of both.
    lengths = [0] * (len(old) + 1)
    for line in new:
        row = [0]
        for at, other in enumerate(old):
            length = max(lengths[at + 1], row[at])
            if line == other:
                length = lengths[at] + 1
            row.append(length)
        lengths = row
    return max(len(old), len(new)) - lengths[-1]


named(
    "debugging/lost-moments",
    lambda: Setup(mesh=_GRID, rules=_RULES, arrays=_state(_LOST)),
    "The arrays",
    _paths,
    lambda g: [d.path for d in audit(g.arrays, g.rules, g.mesh).differences],
)


def _contract(g: Setup, answer: Any) -> Found:
    if not callable(answer):
        raise Wrong(f"This takes a function of an audit; got {shown(answer)}.")
    good, bad = _breaks(answer, g.good), _breaks(answer, g.bad)
    return Found(words.contract(good, bad), good=good, bad=bad)


def _breaks(function: Callable[..., Any], found: Audit) -> str:
    """What a test says of an audit where it fails; `""` where it passes."""
    try:
        function(found)
    except AssertionError as error:  # a ContractError is one
        # A bare assert has no message.
        first, *_ = str(error).splitlines() or ["AssertionError"]
        return shown(first, 200)
    return ""


def _stays_split(found: Audit) -> None:
    expect(found).sharded(at_least=0.99)


exercise(
    "debugging/contract",
    lambda: Setup(
        good=audit(_state(), _RULES, _GRID), bad=audit(_state(_LOST[:1]), _RULES, _GRID)
    ),
    _contract,
    (lambda g, f: not f.good, lambda g, f: f.bad),
    lambda g: _stays_split,
)
