"""Exercises on layouts, rules and memory (lessons 1, 2, 7 and 8); they need no jax.

Their words are in `layouts.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from shardviz.api.layouts import audit
from shardviz.api.programs import expect
from shardviz.core.format import bytes_text, plural, seconds_text, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import Request
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.layout.trees.audit import Audit
from shardviz.core.wording import exercises as words
from shardviz.core.wording.exercises import says
from shardviz.exercises.answers import (
    compare,
    read_ids,
    read_layout,
    read_mesh,
    read_names,
    read_number,
    read_table,
)
from shardviz.exercises.registry import Setup, Wrong, exercise
from shardviz.gallery import arrays as models

GIB, MIB = 1 << 30, 1 << 20


def _array(
    name: str, shape: tuple[int, ...], spec: str | None = None, dtype: str = "float32"
) -> ArraySpec:
    if spec is None:
        return ArraySpec(name, shape, None, dtype)
    return ArraySpec(name, shape, None, dtype, Spec.parse(spec))


def _named(name: str, shape: tuple[int, ...], logical: Any) -> ArraySpec:
    return ArraySpec(name, shape, logical)


# Lesson 1: one array on a mesh. Its axes have names that the lesson does not use.

_RACK = make_mesh(host=4, chip=2)
_X = _array("x", (4096, 1024), dtype="bfloat16")


@exercise(
    "arrays/eight-shards",
    lambda: Setup(mesh=_RACK, x=_X),
    lambda g: "P(('host', 'chip'))",
)
def _eight_shards(g: Setup, answer: Any) -> str:
    found = read_layout(answer, g.x, g.mesh)
    if found.shard_shape[1] != g.x.shape[1]:
        raise Wrong(
            f"{says(found)} These are parts of rows, since dimension 1 is split, too."
        )
    if found.replicas > 1:
        raise Wrong(f"{says(found)} {_idle(found.spec, g.mesh)}")
    return says(found)


def _idle(spec: Spec | None, mesh: MeshSpec) -> str:
    """Which axes of the mesh split nothing."""
    idle = [axis for axis in mesh.axis_names if spec is None or axis not in spec.axes]
    return words.idle_axes(idle)


@exercise(
    "arrays/memory",
    lambda: Setup(
        mesh=make_mesh(host=4, chip=2, pipe=2),
        q=_array("q", (32, 2048, 16, 64), "None, host, chip", "bfloat16"),
    ),
    lambda g: bytes_text(
        lay_out(g.q.shape, g.q.spec, g.mesh, g.q.dtype).bytes_per_device
    ),
)
def _memory(g: Setup, answer: Any) -> str:
    found = lay_out(g.q.shape, g.q.spec, g.mesh, g.q.dtype)
    value, right = read_number(answer, "bytes"), found.bytes_per_device
    slips = (
        g.q.bytes,  # all of q
        g.q.bytes / g.mesh.size,  # as if every axis split it
        2 * right,  # 4 bytes for each element
        right / 2,  # 1 byte for each element
        right * g.mesh.size,  # what all devices hold
        math.prod(found.shard_shape),  # elements for bytes
    )
    compare("arrays/memory", value, right, bytes_text(int(value)), slips, 1e-9)
    return says(found)


@exercise(
    "arrays/same-shard",
    lambda: Setup(
        mesh=make_mesh(host=4, chip=2, device_ids=(0, 1, 2, 3, 7, 6, 5, 4)),
        w=_array("w", (512, 2048), "None, chip"),
        device=5,
    ),
    lambda g: _sharers(g),
)
def _same_shard(g: Setup, answer: Any) -> str:
    ids, right = read_ids(answer, "Device ids") - {g.device}, _sharers(g)
    unknown = ids - set(g.mesh.device_ids.reshape(-1).tolist())
    if unknown:
        raise Wrong(f"The mesh has no device {min(unknown)}.")
    if ids - right:
        wrong = min(ids - right)
        at, own = g.mesh.coordinates(wrong), g.mesh.coordinates(g.device)
        raise Wrong(
            f"Device {wrong} is at {_place(g.mesh, at)} and device {g.device} at"
            f" {_place(g.mesh, own)}: they hold other columns."
        )
    if ids != right:
        raise Wrong(
            f"You name {plural(len(ids), 'other device')}; more hold what {g.device} does."
        )
    return words.same_coordinate(right, "chip", g.device)


def _sharers(g: Setup) -> set[int]:
    found = lay_out(g.w.shape, g.w.spec, g.mesh)
    # By position: the ids of this mesh are not in order, which is the point.
    own = found.groups[g.mesh.position(g.device)]
    return set(found.holders(int(own)).tolist()) - {g.device}


def _place(mesh: MeshSpec, at: tuple[int, ...]) -> str:
    return ", ".join(f"{name} {i}" for name, i in zip(mesh.axis_names, at, strict=True))


@exercise(
    "arrays/second-half",
    lambda: Setup(mesh=_RACK, x=_X, device=1),
    lambda g: "P(('chip','host'))",
)
def _second_half(g: Setup, answer: Any) -> str:
    found = read_layout(answer, g.x, g.mesh)
    rows, half = found.box(g.device)[0], g.x.shape[0] // 2
    if found.replicas > 1 or found.shard_shape[1] != g.x.shape[1]:
        raise Wrong(f"{says(found)} Every device has to hold complete rows of its own.")
    if rows.start != half:
        raise Wrong(
            f"{words.holds_rows(found.spec, g.device, rows)}; the second half begins at"
            f" row {half}."
        )
    return f"{words.holds_rows(found.spec, g.device, rows)}."


@exercise(
    "arrays/square-shards",
    lambda: Setup(x=_X, spec=Spec.parse("rows, columns"), devices=16),
    lambda g: "rows=8, columns=2",
)
def _square_shards(g: Setup, answer: Any) -> str:
    mesh = read_mesh(answer)
    if mesh.size != g.devices:
        raise Wrong(
            f"Your mesh has {plural(mesh.size, 'device')}; it takes {g.devices}."
        )
    found = lay_out(g.x.shape, g.spec, mesh, g.x.dtype)
    high, wide = found.shard_shape
    if high != wide:
        longer = "wider than high"
        if high > wide:
            longer = "higher than wide"
        raise Wrong(f"On {mesh} a shard is [{high}, {wide}], {longer}.")
    return words.shard_on(mesh, found.shard_shape)


# Lesson 2: rules. Logical names of its own as well.

_GRID = make_mesh(x=4, y=2)
_OUT = _named("w_out", (2048, 2048), "hidden width")
_TABLE = Rules.parse("tokens -> x\nhidden -> y\nwidth -> y\nwidth -> None\nwidth -> x")


@exercise(
    "rules/two-rules",
    lambda: Setup(mesh=_GRID, w_out=_OUT, most=2 * MIB, rules=2),
    lambda g: "hidden -> x\nwidth -> y",
)
def _two_rules(g: Setup, answer: Any) -> str:
    table = read_table(answer, g.mesh)
    if len(table) > g.rules:
        raise Wrong(f"Your table has {len(table)} rules; it takes at most {g.rules}.")
    found = _under(table, g.w_out, g.mesh)
    does = words.becomes("w_out", found.spec, found.bytes_per_device)
    if found.bytes_per_device != g.most:
        raise Wrong(
            f"{does} The task is {bytes_text(g.most)}.{_unknown(table, [g.w_out])}"
        )
    return does


def _under(
    table: Rules, array: ArraySpec, mesh: MeshSpec, dialect: str = "linen"
) -> Layout:
    """The layout of one array under a table."""
    row = audit([array], table, mesh, dialect=dialect).rows[0]
    if row.layout is None:
        raise Wrong(
            f"Read as {dialect}, {array.name} cannot be laid out so: {row.problem}"
        )
    return row.layout


def _refuse_problems(found: Audit) -> None:
    for name, problem in found.problems.items():
        raise Wrong(f"{name} cannot be laid out so: {problem}")


def _unknown(table: Rules, arrays: Iterable[ArraySpec]) -> str:
    """What to know of rules for names that no array has."""
    unknown = {rule.logical for rule in table}
    for array in arrays:
        unknown.difference_update(array.logical or ())
    return words.unknown_names(unknown)


def _why(row: Request, name: str) -> str:
    """Why the dimension of that name is not split."""
    resolution = row.resolution
    if resolution is None:
        return str(row.problem)
    return resolution.explain_dimension(resolution.names.index(name))


@exercise(
    "rules/shadowed",
    lambda: Setup(
        mesh=_GRID, rules=_TABLE, w_in=_named("w_in", (512, 2048), "width hidden")
    ),
    lambda g: "tokens -> x\nhidden -> y\nwidth -> y\nwidth -> x\nwidth -> None",
)
def _shadowed(g: Setup, answer: Any) -> str:
    table = read_table(answer, g.mesh)
    new, old = sorted(map(str, table)), sorted(map(str, g.rules))
    if new != old:
        different = sorted(set(new) ^ set(old)) or new
        raise Wrong(
            f"Keep the same {len(old)} rules, each once. Look at {different[0]}."
        )
    row = audit([g.w_in], table, g.mesh).rows[0]
    if row.layout is None or row.layout.replicas > 1:
        # The first of the two dimensions that is not split yet.
        name = "width"
        if row.spec and row.spec.dims[0]:
            name = "hidden"
        raise Wrong(f"w_in becomes {row.spec}. {_why(row, name)}")
    return words.becomes("w_in", row.spec)


@exercise(
    "rules/dialects",
    lambda: Setup(mesh=_GRID, w_in=_named("w_in", (512, 2048), "width hidden")),
    lambda g: "width -> x\nhidden -> y\nwidth -> None",
)
def _dialects(g: Setup, answer: Any) -> str:
    table = read_table(answer, g.mesh)
    one = _under(table, g.w_in, g.mesh, "linen")
    two = _under(table, g.w_in, g.mesh, "nnx")
    # By what devices hold: two specs may say the same.
    if (one.groups == two.groups).all():
        twice = len({r.logical for r in table}) < len(table)
        raise Wrong(words.no_difference("w_in", one.spec, twice))
    return words.read_as("w_in", one.spec, two.spec)


@exercise(
    "rules/twelve-heads",
    lambda: Setup(
        mesh=make_mesh(x=2, y=8),
        w_q=_named("w_q", (1024, 12, 64), "width heads head_dim"),
        parts=8,
    ),
    lambda g: "width -> y\nheads -> x",
)
def _twelve_heads(g: Setup, answer: Any) -> str:
    table = read_table(answer, g.mesh)
    found = _under(table, g.w_q, g.mesh)
    if found.num_blocks < g.parts:
        raise Wrong(
            f"w_q becomes {found.spec}, {plural(found.num_blocks, 'shard')} of"
            f" {list(found.shard_shape)}; it takes {g.parts}.{_unknown(table, [g.w_q])}"
        )
    return says(found)


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
        assert array.logical is not None
        shape = []
        for name, size in zip(array.logical, array.shape, strict=True):
            shape.append(_LLAMA_3.get(name or "", size))
        arrays.append(array.replace(shape=tuple(shape), dtype="float32"))
    return tuple(arrays)


def _parameters(arrays: Iterable[ArraySpec]) -> int:
    return sum(math.prod(a.shape) for a in arrays)


@exercise(
    "pods/step-seconds",
    lambda: Setup(
        parameters=_parameters(_8b()),
        tokens=1 << 22,
        topology=Topology.parse("tpu:v5p:8x8x16"),
    ),
    lambda g: f"{_step_seconds(g) * 1e3:.0f} ms",
)
def _step_time(g: Setup, answer: Any) -> str:
    value, right = read_number(answer, "seconds"), _step_seconds(g)
    chip = g.topology.chip
    slips = (
        right / 3,  # forward alone
        right * 2 / 3,  # backward alone
        right / 2,  # a multiplication and an addition as one operation
        right * g.topology.chips,  # on one chip
    )
    compare("pods/step-seconds", value, right, seconds_text(value), slips, 0.04)
    return words.at_least(right, chip.peak_bf16)


def _step_seconds(g: Setup) -> float:
    # 2 operations for each parameter and token forward, 4 backward: part 4 of the
    # scaling book.
    return 6 * g.parameters * g.tokens / (g.topology.chips * g.topology.chip.peak_bf16)


@exercise(
    "pods/8b-train-state",
    lambda: Setup(
        topology=Topology.parse("tpu:v5e:4x8"),
        mesh=make_mesh(fsdp=8, model=4),
        arrays=_8b(),
        copies=_COPIES,
        most=3 * GIB,
    ),
    lambda g: "embed -> (fsdp, model)",
)
def _train_state(g: Setup, answer: Any) -> str:
    table = read_table(answer, g.mesh)
    found = audit(g.arrays, table, g.mesh)
    _refuse_problems(found)
    held = g.copies * found.bytes_per_device
    if held > g.most:
        worst = found.largest[0]
        raise Wrong(
            f"{words.takes('state', held)}, more than {bytes_text(g.most)}. The largest"
            f" array there is {worst.path}, split {worst.spec}."
            f"{_unknown(table, g.arrays)}"
        )
    return f"{words.takes('state', held)}."


@exercise(
    "pods/70b-mesh",
    lambda: Setup(
        devices=128,
        rules=_SPLIT_TWICE,
        arrays=tuple(a.replace(dtype="float32") for a in models.get("70B model")),
        copies=_COPIES,
        most=8 * GIB,
    ),
    lambda g: "fsdp=16, model=8",
)
def _70b_mesh(g: Setup, answer: Any) -> str:
    mesh = read_mesh(answer)
    if mesh.size != g.devices:
        raise Wrong(
            f"Your mesh has {plural(mesh.size, 'device')}; it takes {g.devices}."
        )
    found = audit(g.arrays, g.rules, mesh)
    _refuse_problems(found)
    held = g.copies * found.bytes_per_device
    if held > g.most:
        raise Wrong(f"{words.takes('state', held, mesh)}: too much.")
    return f"{words.takes('state', held, mesh)}."


@exercise(
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
    lambda g: _largest_batch(g),
)
def _cache_batch(g: Setup, answer: Any) -> str:
    value = read_number(answer, "sequences")
    if (
        value != int(value)
        or int(value) % g.multiple
        or value < g.multiple
        or value > 1e6
    ):
        raise Wrong(f"It takes a multiple of {g.multiple}; got {shown(answer)}.")
    batch, most = int(value), g.topology.chip.device_bytes
    held, next_held = _serving(g, batch), _serving(g, batch + g.multiple)
    if held > most:
        raise Wrong(f"{words.serves(batch, held)}, and has {bytes_text(most)}.")
    if next_held <= most:
        left = bytes_text(most - held)
        raise Wrong(
            f"With {batch:,} sequences {left} are free on each device: more would fit."
        )
    return f"{words.serves(batch, held)} of {bytes_text(most)}."


def _serving(g: Setup, batch: int) -> int:
    """What weights and a cache of so many sequences take on each device, in bytes."""
    arrays = list(g.weights)
    for array in g.cache:
        layers, _, *rest = array.shape
        arrays.append(array.replace(shape=(layers, batch, *rest)))
    return audit(arrays, g.rules, g.mesh).bytes_per_device


def _largest_batch(g: Setup) -> int:
    batch = g.multiple
    while _serving(g, batch + g.multiple) <= g.topology.chip.device_bytes:
        batch += g.multiple
    return batch


# Lesson 8: a whole model.

_RULES = Rules.parse("vocab -> y\nheads -> y\nhidden -> y\nwidth -> x")
_SHADOWED = Rules.parse(
    "vocab -> y\nheads -> y\nhidden -> y\nwidth -> None\nwidth -> x"
)


def _tree(misspelt: bool = False) -> tuple[ArraySpec, ...]:
    # A name that no rule has replicates an array, and nothing fails.
    wide = "hidden"
    if misspelt:
        wide = "hiden"
    found = [_named("params/embed/table", (4096, 512), "vocab width")]
    for block in ("params/block_0", "params/block_1"):
        found += [
            _named(f"{block}/attention/wq", (512, 512), "width heads"),
            _named(f"{block}/attention/wo", (512, 512), "heads width"),
            _named(f"{block}/mlp/wi", (512, 2048), "width hidden"),
            _named(f"{block}/mlp/wo", (2048, 512), f"{wide} width"),
        ]
    return tuple(found)


def _state(lost: tuple[str, ...]) -> tuple[ArraySpec, ...]:
    """The parameters and the moments of Adam; some of these without names."""
    found = list(_tree())
    for moment in ("mu", "nu"):
        for a in _tree():
            path = f"opt_state/0/{moment}/{a.name.removeprefix('params/')}"
            logical = a.logical
            # As optimizers do that are made from bare arrays.
            if path in lost:
                logical = None
            found.append(_named(path, a.shape, logical))
    return tuple(found)


_LOST = ("opt_state/0/mu/block_1/mlp/wi", "opt_state/0/nu/embed/table")


@exercise(
    "debugging/unmatched",
    lambda: Setup(mesh=_GRID, rules=_RULES, arrays=_tree(misspelt=True)),
    lambda g: _misspelt(g),
)
def _unmatched(g: Setup, answer: Any) -> str:
    return _same_paths(g, answer, _misspelt(g))


def _misspelt(g: Setup) -> set[str]:
    """The arrays with a name that no rule knows."""
    paths = set()
    for row in audit(g.arrays, g.rules, g.mesh).rows:
        if row.resolution and row.resolution.unknown:
            paths.add(row.path)
    return paths


def _same_paths(g: Setup, answer: Any, right: set[str]) -> str:
    """Compares the arrays that an answer names with the right ones."""
    arrays = {array.name: array for array in g.arrays}
    paths = read_names(answer, arrays, "The arrays")
    for path in sorted(paths - right):
        names = " ".join(map(str, arrays[path].logical or ()))
        raise Wrong(f"{path} is as it should be: its names are {names}.")
    if paths != right:
        raise Wrong(f"You name {plural(len(paths), 'array')}; there are more.")
    return words.lists(paths)


@exercise(
    "debugging/one-rule",
    lambda: Setup(mesh=_GRID, rules=_SHADOWED, arrays=_tree(), most=6 * MIB),
    lambda g: "vocab -> y\nheads -> y\nhidden -> y\nwidth -> x\nwidth -> None",
)
def _one_rule(g: Setup, answer: Any) -> str:
    table = read_table(answer, g.mesh)
    changed = _edits([str(r) for r in g.rules], [str(r) for r in table])
    if changed > 1:
        raise Wrong(f"{changed} rules differ from the table that is given; change one.")
    found = audit(g.arrays, table, g.mesh)
    _refuse_problems(found)
    if found.bytes_per_device > g.most:
        worst = found.largest[0]
        raise Wrong(
            f"{words.takes('model', found.bytes_per_device)}, more than"
            f" {bytes_text(g.most)}. {worst.path} is {worst.spec}:"
            f" {_why(worst, 'width')}"
        )
    return f"{words.takes('model', found.bytes_per_device)}."


def _edits(old: list[str], new: list[str]) -> int:
    """How many lines were changed, moved, added or removed, at least."""
    # Of the longest common subsequence of the first lines of both.
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


@exercise(
    "debugging/lost-moments",
    lambda: Setup(mesh=_GRID, rules=_RULES, arrays=_state(_LOST)),
    lambda g: _lost_moments(g),
)
def _moments(g: Setup, answer: Any) -> str:
    return _same_paths(g, answer, _lost_moments(g))


def _lost_moments(g: Setup) -> set[str]:
    return {d.path for d in audit(g.arrays, g.rules, g.mesh).differences}


@exercise(
    "debugging/contract",
    lambda: Setup(
        good=audit(_state(()), _RULES, _GRID),
        bad=audit(_state(_LOST[:1]), _RULES, _GRID),
    ),
    lambda g: _stays_split,
)
def _contract(g: Setup, answer: Any) -> str:
    if not callable(answer):
        raise Wrong(f"This takes a function of an audit; got {shown(answer)}.")
    good, bad = _breaks(answer, g.good), _breaks(answer, g.bad)
    if good:
        raise Wrong(f"It fails for the good audit: {good}")
    if not bad:
        raise Wrong(
            "It passes for the bad audit, too: it would not have found the mistake."
        )
    return words.contract(bad)


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
