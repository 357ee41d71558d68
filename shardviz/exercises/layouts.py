"""Answers on layouts, rules and memory (lessons 1, 4, 7 and 8); they need no jax.

The exercises are in `layouts.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from shardviz.api.layouts import audit
from shardviz.api.programs import expect
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_spec import read_names as read_logical
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.rules.rules import Rules
from shardviz.core.layout.trees.audit import Audit
from shardviz.core.wording import exercises as words
from shardviz.exercises.answers import (
    amount_text,
    read_layout,
    read_mesh,
    read_names,
    read_number,
    read_table,
    rounding,
    same_names,
)
from shardviz.exercises.registry import MAKERS, Found, Setup, Wrong, kind
from shardviz.gallery import arrays as models


def number_kind(
    name: str, unit: str, right: Callable[[Setup], float], tolerance: float = 1e-9
) -> None:
    """Adds a kind of answer that is a number of bytes or seconds.

    Args:
        right: the right number, of what is given.
        tolerance: how far the answer may be off, as a part of the right one. What is
            lost by rounding to three digits or more is always allowed.
    """

    @kind(name, lambda g: amount_text(right(g), unit))
    def _read(g: Setup, answer: Any, of: str) -> Found:
        value, wanted = read_number(answer, unit), right(g)
        off = max(tolerance, rounding(answer, unit) / wanted)
        facts: dict[str, Any] = {"value": value, "right": wanted, "tolerance": off}
        if unit == "bytes":
            # As it was written: in our units and rounded it could look like the right one.
            facts["typed"] = answer if isinstance(answer, str) else f"{value:,.0f} B"
        return Found(amount_text(value, unit), facts)


def count_kind(
    name: str, what: str, right: Callable[[Setup], float], tolerance: float = 1e-9
) -> None:
    """Adds a kind of answer that is a number of things.

    Args:
        what: is counted, such as `"tokens"`.
        right: the right number, of what is given.
        tolerance: how far the answer may be off, as a part of the right one.
    """

    @kind(name, lambda g: f"{right(g):.0f}")
    def _read(g: Setup, answer: Any, of: str) -> Found:
        value = read_number(answer, what)
        facts = {"value": value, "right": right(g), "tolerance": tolerance}
        return Found(f"{value:,g} {what}", facts)


def names_kind(
    name: str,
    what: str,
    known: Callable[[Setup], Iterable[str]],
    right: Callable[[Setup], list[str]],
) -> None:
    """Adds a kind of answer that is names, paths or ids out of those known."""

    @kind(name, lambda g: ", ".join(right(g)))
    def _read(g: Setup, answer: Any, of: str) -> Found:
        names = read_names(answer, known(g), what)
        # Whether the device in question is listed makes no difference.
        names.discard(str(getattr(g, "device", "")))
        same_names(names, right(g))
        return Found(words.lists(names), {})


@kind("spec")
def _spec(g: Setup, answer: Any, of: str) -> Found:
    return _of_layout(g, read_layout(answer, vars(g)[of], g.mesh))


def _of_layout(g: Setup, layout: Layout) -> Found:
    facts = {
        "found devices": layout.mesh.size,
        "shards": layout.num_blocks,
        "replicas": layout.replicas,
        "rows": layout.shard_shape[0],
        "columns": layout.shard_shape[1],
    }
    if hasattr(g, "device"):
        facts["first row"] = layout.box(g.device)[0].start
    return Found(words.says(layout), facts)


@kind("mesh")
def _mesh(g: Setup, answer: Any, of: str) -> Found:
    mesh, thing = read_mesh(answer), vars(g)[of]
    if isinstance(thing, ArraySpec):
        return _of_layout(g, lay_out(thing.shape, g.spec, mesh, thing.dtype))
    return _audited(g, thing, g.rules, mesh)


@kind("rules")
def _rules(g: Setup, answer: Any, of: str) -> Found:
    table, arrays = read_table(answer, g.mesh), vars(g)[of]
    if isinstance(arrays, ArraySpec):
        arrays = (arrays,)
    found = _audited(g, arrays, table, g.mesh)
    unknown = {rule.logical for rule in table}
    for array in arrays:
        unknown.difference_update(array.logical or ())
    return Found(f"{found}{words.unknown_names(unknown)}", found.facts)


def _audited(
    g: Setup, arrays: Iterable[ArraySpec], table: Rules, mesh: MeshSpec
) -> Found:
    largest, done = _laid_out(arrays, table, mesh)
    held = done.bytes_per_device * getattr(g, "copies", 1)
    new = list(map(str, table))
    facts = {
        "found devices": mesh.size,
        "bytes": held,
        "shards": largest.num_blocks,
        "replicas": largest.replicas,
        "found rules": len(new),
    }
    if hasattr(g, "rules") and isinstance(g.rules, Rules):
        old = list(map(str, g.rules))
        facts |= {"edits": _edits(old, new), "same rules": sorted(old) == sorted(new)}
    path, count = done.largest[0].path, len(done.rows)
    return Found(words.takes(path, largest.spec, held, mesh, count), facts)


def _laid_out(
    arrays: Iterable[ArraySpec], table: Rules, mesh: MeshSpec, dialect: str = "linen"
) -> tuple[Layout, Audit]:
    """The layout of the largest array under a table, and the audit of all."""
    done = audit(arrays, table, mesh, dialect=dialect)
    for name, problem in done.problems.items():
        raise Wrong(f"Read as {dialect}, {name} cannot be laid out so: {problem}")
    layout = done.largest[0].layout
    assert layout is not None  # there are no problems
    return layout, done


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


@kind("two dialects")
def _both_dialects(g: Setup, answer: Any, of: str) -> Found:
    table, arrays = read_table(answer, g.mesh), (vars(g)[of],)
    linen, _ = _laid_out(arrays, table, g.mesh)
    nnx, _ = _laid_out(arrays, table, g.mesh, "nnx")
    logical = [rule.logical for rule in table]
    # By what devices hold: two specs may say the same.
    differ = bool((linen.groups != nnx.groups).any())
    facts = {"names": len(set(logical)), "rules": len(logical), "differ": differ}
    return Found(words.read_as(of, linen.spec, nnx.spec), facts)


# Lesson 1


def _memory(g: Setup) -> int:
    return lay_out(g.q.shape, g.q.spec, g.mesh, g.q.dtype).bytes_per_device


number_kind("bytes per device", "bytes", _memory)


def _sharers(g: Setup) -> list[str]:
    found = lay_out(g.w.shape, g.w.spec, g.mesh)
    # By position: the ids of this mesh are not in order, which is the point.
    own = found.groups[g.mesh.position(g.device)]
    return [str(i) for i in found.holders(int(own)).tolist() if i != g.device]


names_kind(
    "devices", "Device ids", lambda g: map(str, g.mesh.device_ids.flat), _sharers
)
# Round eight chips, so that a device's id is not its position.
MAKERS["ring"] = lambda g, words: make_mesh(
    host=4, chip=2, device_ids=(0, 1, 2, 3, 7, 6, 5, 4)
)


# Lesson 7

_LLAMA_3 = {"vocab": 128256, "mlp": 14336, "kv_heads": 8}


def _model(g: Setup, name: str) -> tuple[ArraySpec, ...]:
    """The weights of a model in float32."""
    if name != "8B model":
        return tuple(array.replace(dtype="float32") for array in models.get(name))
    # Llama 3 8B is Llama 2 7B with other sizes.
    arrays = []
    for array in models.get("7B model"):
        shape = []
        for logical, size in zip(array.logical or (), array.shape, strict=True):
            shape.append(_LLAMA_3.get(logical or "", size))
        arrays.append(array.replace(shape=tuple(shape), dtype="float32"))
    return tuple(arrays)


def _step_seconds(g: Setup) -> float:
    # 2 operations for each parameter and token forward, 4 backward: part 4 of the
    # scaling book.
    return 6 * g.parameters * g.tokens / (g.chips * g.peak)


MAKERS["float32"] = _model
MAKERS["gallery"] = lambda g, name: models.get(name)
MAKERS["chips"] = lambda g, words: g.topology.chips
# A rate or a size that the task states, as our tables of chips have it.
MAKERS["chip"] = lambda g, attribute: getattr(g.topology.chip, attribute)
MAKERS["parameters"] = lambda g, name: sum(math.prod(a.shape) for a in _model(g, name))
number_kind("step seconds", "seconds", _step_seconds, 0.04)


def _serving(g: Setup, batch: int) -> int:
    """What weights and a cache of so many sequences take on each device, in bytes."""
    arrays = list(g.weights)
    for array in g.cache:
        layers, _, *rest = array.shape
        arrays.append(array.replace(shape=(layers, batch, *rest)))
    return audit(arrays, g.rules, g.mesh).bytes_per_device


def _largest_batch(g: Setup) -> int:
    batch = g.multiple
    while _serving(g, batch + g.multiple) <= g.memory:
        batch += g.multiple
    return batch


@kind("batch", _largest_batch)
def _batch(g: Setup, answer: Any, of: str) -> Found:
    value = read_number(answer, "sequences")
    if value % g.multiple or not g.multiple <= value <= 1e6:
        raise Wrong(f"The answer is a multiple of {g.multiple}; got {shown(answer)}.")
    batch = int(value)
    held = _serving(g, batch)
    facts = {"held": held, "there": g.memory, "next": _serving(g, batch + g.multiple)}
    return Found(words.serves(batch, held, g.memory), facts)


# Lesson 8


_ARRAYS = {
    "embed/table": ((4096, 512), "vocab width"),
    "attention/wq": ((512, 512), "width heads"),
    "attention/wo": ((512, 512), "heads width"),
    "mlp/wi": ((512, 2048), "width hidden"),
    "mlp/wo": ((2048, 512), "hidden width"),
}


def _tree(misspelt: str = "") -> tuple[ArraySpec, ...]:
    """The parameters of a model of two blocks; one array of each may have a typo."""
    found = []
    for block in ("", "block_0/", "block_1/"):
        for name, (shape, names) in _ARRAYS.items():
            # The table stands before the blocks, and all else in them.
            if (name == "embed/table") == bool(block):
                continue
            if misspelt and name == "mlp/wo":
                names = names.replace("hidden", misspelt)
            found.append(ArraySpec(f"params/{block}{name}", shape, read_logical(names)))
    return tuple(found)


def _state(lost: Iterable[str]) -> tuple[ArraySpec, ...]:
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


def _audit_of_state(g: Setup, lost: str) -> Audit:
    table = Rules.of(("vocab", "y"), ("heads", "y"), ("hidden", "y"), ("width", "x"))
    return audit(_state(lost.split()), table, make_mesh(x=4, y=2))


# A name that no rule has replicates an array, and nothing fails.
MAKERS["tree"] = lambda g, misspelt: _tree(misspelt)
MAKERS["state"] = lambda g, lost: _state(lost.split())
MAKERS["audit"] = _audit_of_state


def _paths(g: Setup) -> list[str]:
    return [array.name for array in g.arrays]


def _misspelt(g: Setup) -> list[str]:
    rows = audit(g.arrays, g.rules, g.mesh).rows
    return [row.path for row in rows if row.resolution and row.resolution.unknown]


def _lost(g: Setup) -> list[str]:
    return [d.path for d in audit(g.arrays, g.rules, g.mesh).differences]


names_kind("misspelt", "The arrays", _paths, _misspelt)
names_kind("lost moments", "The arrays", _paths, _lost)


def _stays_split(found: Audit) -> None:
    expect(found).sharded(at_least=0.99)


@kind("test", lambda g: _stays_split)
def _contract(g: Setup, answer: Any, of: str) -> Found:
    if not callable(answer):
        raise Wrong(f"This takes a function of an audit; got {shown(answer)}.")
    good, bad = _breaks(answer, g.good), _breaks(answer, g.bad)
    facts = {"good passes": not good, "bad passes": not bad}
    return Found(words.contract(good, bad), facts)


def _breaks(function: Callable[..., Any], found: Audit) -> str:
    """What a test says of an audit where it fails; `""` where it passes."""
    try:
        function(found)
    except AssertionError as error:  # a ContractError is one
        # A bare assert has no message.
        first, *_ = str(error).splitlines() or ["AssertionError"]
        return shown(first, 200)
    return ""
