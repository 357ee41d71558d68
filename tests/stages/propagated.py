"""A plan held against XLA's module after propagation, value by value.

Both name an operation by where it comes from: XLA keeps jax's name of it, so that and the opcode,
dtype and shape say which of its instructions are which of ours. Where several have all of these in
common, such as the layers of a model, they are compared as a collection.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardviz.core.program.plan_values import PlannedOp
from tests.stages.dumps import Entry
from tests.stages.proto import Instruction, Module, Shape
from tests.stages.shardings import Blocks, of_module, of_spec, of_text

# StableHLO's name for it to XLA's; the same with hyphens where not listed.
_OPCODES: Mapping[str, str] = {
    "dot_general": "dot",
    "broadcast_in_dim": "broadcast",
    "case": "conditional",
    "top_k": "topk",
    "optimization_barrier": "opt-barrier",
    "sharding_constraint": "copy",
}
# What XLA itself puts in to carry values, or to make and leave a shard_map.
_CARRIERS = {"parameter", "constant", "tuple", "get-tuple-element", "call", "partition-id"}
_MANUAL = {"SPMDFullToShardShape", "SPMDShardToFullShape"}


class Key(NamedTuple):
    """What says which operation it is."""

    op: str
    opcode: str
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Comparison:
    """What came of it.

    Attributes:
        compared: how many of our values were held against XLA's by their names.
        by_shape: how many have no name there, since XLA had merged them with others, and were held
            against what Shardy's dump has of their opcode, dtype and shape.
        differences: one sentence each.
        ours_only: our values that XLA has nothing for: simplified away before it propagates.
        theirs_only: XLA's instructions, from the user's code, that belong to no value of ours.
        resharded: keys of which XLA's module says otherwise and Shardy's own dump says the same as
            we: Shardy inserted reshards after it had propagated.
        manual: how many are inside a shard_map over all of the mesh, where nothing is propagated.
        invariant: how many a loop only passes through, which XLA's loops read from outside.
    """

    compared: int = 0
    by_shape: int = 0
    differences: list[str] = field(default_factory=list)
    ours_only: list[Key] = field(default_factory=list)
    theirs_only: list[Key] = field(default_factory=list)
    resharded: list[Key] = field(default_factory=list)
    manual: int = 0
    invariant: int = 0


def compare(entry: Entry) -> Comparison:
    """Holds every value of the plan against the module."""
    module = Module(entry.propagated)
    found = Comparison()
    ours = _ours(entry, found)
    theirs = _theirs(module, entry, set(ours))
    for key, mine in ours.items():
        their = theirs.pop(key, None) or _taken_apart(key, theirs)
        if their is None:
            alike = [k for k in ours if k[1:] == key[1:]]
            _by_shape(entry, key, mine, sum(len(ours[k]) for k in alike), found)
        elif None in their:
            found.manual += len(mine)
        else:
            found.compared += len(mine)
            _hold(entry, key, mine, their, found)
    found.theirs_only = [key for key, their in theirs.items() for _ in their if _is_users(key)]
    _results(entry, module, found)
    return found


def _hold(entry: Entry, key: Key, mine: list[Blocks], their: list, found: Comparison) -> None:
    # XLA may have merged equal operations, or made copies; we list some constraints as what they
    # constrain. Which of them has which name is not known then.
    fewer, more = sorted((mine, their), key=len)
    if Counter(mine) == Counter(their) or (len(fewer) < len(more) and set(fewer) <= set(more)):
        return
    if Counter(mine) <= _settled(entry, key):
        found.resharded.append(key)
    else:
        found.differences.append(f"{key}: plan {_shown(mine)}, XLA {_shown(their)}")


def _by_shape(entry: Entry, key: Key, mine: list[Blocks], alike: int, found: Comparison) -> None:
    """Compares what XLA's module has no name for with what Shardy's dump has of its shape.

    Args:
        entry: the program.
        key: its name, which XLA's module has not.
        mine: the values of that name.
        alike: how many of our values have its opcode, dtype and shape.
        found: where what comes of it goes.
    """
    settled = _settled(entry, key)
    if not set(mine) <= set(settled) and settled.total() < alike:
        settled.clear()  # XLA has computed some of them, and these must be among them
    if not settled:
        found.ours_only += [key] * len(mine)
        return
    found.by_shape += len(mine)
    if not set(mine) <= set(settled):
        found.differences.append(f"{key}: plan {_shown(mine)}, Shardy {_shown(list(settled))}")


def _ours(entry: Entry, found: Comparison) -> dict[Key, list[Blocks]]:
    values: dict[Key, list[Blocks]] = defaultdict(list)
    for op in entry.plan.ops:
        if op.opcode == "while" and op.name in op.operands:
            found.invariant += 1
            continue
        # What is moved between functions, XLA has no operation for: it has inlined them.
        if op.kind != "result" and op.opcode not in ("constant", "shard_map", "reshard"):
            blocks = of_spec(op.spec, len(op.shape), entry.axis_names, entry.axis_sizes)
            values[_key(op)].append(blocks)
    return values


def _key(op: PlannedOp) -> Key:
    if op.kind == "argument":
        return Key(op.name, "parameter", op.dtype, op.shape)
    # XLA's names begin anew inside of a shard_map.
    name = op.op.partition("/shard_map/")[2] or op.op
    return Key(name, _opcode(op.opcode), op.dtype, op.shape)


def _opcode(stablehlo: str) -> str:
    return _OPCODES.get(stablehlo, stablehlo.replace("_", "-"))


def _theirs(module: Module, entry: Entry, known: set[Key]) -> dict[Key, list[Blocks | None]]:
    values: dict[Key, list[Blocks | None]] = defaultdict(list)
    arguments = [i for i in module.computations[module.entry] if i.opcode == "parameter"]
    for i in module.program():
        if (i.opcode in _CARRIERS and i not in arguments) or i.custom_target in _MANUAL:
            continue
        for shape, blocks in _values(i, entry):
            key = Key(i.op_name, i.opcode, shape.dtype, shape.dims)
            if i.opcode == "reshape" and key not in known:
                key = key._replace(opcode="broadcast")  # a broadcast along sizes of one is either
            if i.opcode != "copy" or key in known:
                values[key].append(blocks)
    return values


def _values(instruction: Instruction, entry: Entry) -> Iterator[tuple[Shape, Blocks | None]]:
    devices = math.prod(entry.axis_sizes)
    said = instruction.shardings or (None,)
    if len(said) == 1:
        said *= len(instruction.shapes)
    for shape, sharding in zip(instruction.shapes, said, strict=True):
        yield shape, of_module(sharding, len(shape.dims), devices)


def _taken_apart(key: Key, theirs: dict[Key, list[Blocks | None]]) -> list[Blocks | None] | None:
    """XLA's instructions for an operation that it has none of its own for, such as `erfc`."""
    parts = [k for k in theirs if k._replace(opcode="") == key._replace(opcode="")]
    found = [blocks for part in parts for blocks in theirs.pop(part)]
    return found or None


def _is_users(key: Key) -> bool:
    # Where XLA merged operations of several names it writes all of them; what it made has none.
    return key.op.startswith("jit(") and ";" not in key.op


def _results(entry: Entry, module: Module, found: Comparison) -> None:
    results = [op for op in entry.plan.ops if op.kind == "result"]
    theirs = list(_values(module.root, entry))
    if not entry.partitioned:
        theirs.pop()  # the operation that ended the compile
    for op, (shape, blocks) in zip(results, theirs, strict=True):
        mine = of_spec(op.spec, len(op.shape), entry.axis_names, entry.axis_sizes)
        found.compared += 1
        if (op.shape, op.dtype) != (shape.dims, shape.dtype) or mine != blocks:
            found.differences.append(f"{op.name}: plan {op.spec}, XLA {blocks}")


def _settled(entry: Entry, key: Key) -> Counter[Blocks]:
    """What Shardy's own dump says of all values of that opcode, dtype and shape."""
    dtype = {"bool": "i1", "bfloat16": "bf16"}.get(key.dtype, key.dtype)
    dtype = re.sub(r"^uint(\d+)$", r"ui\1", re.sub(r"^int(\d+)$", r"i\1", dtype))
    dtype = re.sub(r"^float(\d+)$", r"f\1", dtype)
    return Counter(
        of_text(text, len(shape), entry.axis_names, entry.axis_sizes)
        for opcode, kind, shape, text in entry.settled
        if (_opcode(opcode), kind, shape) == (key.opcode, dtype, key.shape)
    )


def _shown(blocks: list) -> str:
    return ", ".join(f"{n} x {b}" for b, n in Counter(blocks).items())
