"""A plan held against XLA's module after propagation, value by value.

Both name an operation by where it comes from: XLA keeps jax's name of it, so that and the opcode,
dtype and shape say which of its instructions are which of ours. Where several have all of these in
common, such as the layers of a model, they are compared as a collection.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardviz.plans.plan_values import PlannedOp
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
# Kinds of values that XLA's module may lack.
UNREAD, CONSTANT = "argument that nothing reads", "operation on constants"
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
            against what Shardy's dump has of their opcode, dtype and shape; by kind.
        differences: one sentence each.
        ours_only: our values that XLA has nothing for, since it removed or computed them before it
            propagates; by kind.
        theirs_only: XLA's instructions, from the user's code, that belong to no value of ours.
        resharded: keys of which XLA's module says otherwise and Shardy's own dump says the same as
            we: Shardy inserted reshards after it had propagated.
        manual: how many are inside a shard_map over all of the mesh, where nothing is propagated.
    """

    compared: int = 0
    by_shape: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    ours_only: dict[str, list[Key]] = field(default_factory=lambda: defaultdict(list))
    theirs_only: list[Key] = field(default_factory=list)
    resharded: list[Key] = field(default_factory=list)
    manual: int = 0


def compare(entry: Entry) -> Comparison:
    """Holds every value of the plan against the module."""
    assert entry.plan.ok, entry.plan.error
    module = Module(entry.propagated)
    found = Comparison()
    ours, kinds = _ours(entry), _Kinds(entry.plan.ops)
    theirs = _theirs(module, entry, set(ours))
    named = {key: theirs.pop(key) for key in ours if key in theirs}
    blocks = {key: [_blocks(op, entry) for op in ops] for key, ops in ours.items()}
    for key, ops in ours.items():
        mine = blocks[key]
        their = named.get(key) or _taken_apart(key, theirs)
        if their is None:
            _by_shape(entry, key, mine, [kinds.of(op) for op in ops], found)
        elif None in their:
            found.manual += len(mine)
        else:
            found.compared += len(mine)
            if _alike(key, mine, their):
                continue
            # XLA has merged equal constants and copied them for what reads them, without names.
            if {kinds.of(op) for op in ops} == {CONSTANT} and set(their) <= set(mine):
                found.compared -= len(mine)
                _by_shape(entry, key, mine, [CONSTANT] * len(mine), found)
            else:
                _settle(entry, key, blocks, their, found)
    found.theirs_only = [key for key, their in theirs.items() for _ in their if _is_users(key)]
    _results(entry, module, found)
    return found


def in_words(found: Sequence[Comparison]) -> str:
    """What came of several programs, as a table."""
    rows: Counter[str] = Counter()
    for one in found:
        rows["programs"] += 1
        rows["programs with differences"] += bool(one.differences)
        rows["operations that differ"] += len(one.differences)
        rows["values compared by name"] += one.compared
        rows["of these, operations resharded right after the propagation"] += len(one.resharded)
        rows["values compared by opcode and shape"] += one.by_shape.total()
        rows.update({f"- {kind}": count for kind, count in one.by_shape.items()})
    for one in found:
        rows["values inside a shard_map over all axes"] += one.manual
        rows["values that XLA's module lacks"] += sum(map(len, one.ours_only.values()))
        rows.update({f"-- {kind}": len(keys) for kind, keys in one.ours_only.items()})
    return "\n".join(f"{number:7,} {name}" for name, number in rows.items())


def _alike(key: Key, mine: list[Blocks], their: list) -> bool:
    if Counter(mine) == Counter(their):
        return True
    # XLA may have merged equal operations, or made copies; then their numbers differ.
    if len(mine) != len(their) and set(mine) == set(their):
        return True
    # The plan lists a constraint on the result of a call as that result, so it may have fewer.
    return key.opcode == "copy" and not Counter(mine) - Counter(their)


def _settle(
    entry: Entry, key: Key, blocks: dict[Key, list[Blocks]], their: list, found: Comparison
) -> None:
    """Looks up in Shardy's dump what differs in XLA's module, where Shardy may have resharded it.

    Its dump has no names, so what other values of ours are of that opcode, dtype and shape is left
    out of it.
    """
    others = Counter(b for k in blocks if k[1:] == key[1:] and k != key for b in blocks[k])
    if Counter(blocks[key]) <= _settled(entry, key) - others:
        found.resharded.append(key)
    else:
        found.differences.append(f"{key}: plan {_shown(blocks[key])}, XLA {_shown(their)}")


def _by_shape(
    entry: Entry, key: Key, mine: list[Blocks], kinds: list[str], found: Comparison
) -> None:
    """Compares what XLA's module has no name for with what Shardy's dump has of its shape."""
    settled = _settled(entry, key)
    if not settled:
        for kind in kinds:
            found.ours_only[kind].append(key)
        return
    found.by_shape.update(kinds)
    if not set(mine) <= set(settled):
        found.differences.append(f"{key}: plan {_shown(mine)}, Shardy {_shown(list(settled))}")


class _Kinds:
    """Says of a value of a plan why XLA's module may lack it."""

    def __init__(self, ops: Sequence[PlannedOp]) -> None:
        self._by_name = {op.name: op for op in ops}
        self._read = {name for op in ops for name in op.operands}

    def of(self, op: PlannedOp) -> str:
        if op.kind == "argument":
            return "argument that is read" if op.name in self._read else UNREAD
        if self._is_constant(op):
            return CONSTANT
        return op.opcode

    def _is_constant(self, op: PlannedOp) -> bool:
        if op.opcode == "constant":
            return True
        operands = [self._by_name[name] for name in op.operands]
        # What a loop carries may begin with a constant, and be another number later.
        return bool(operands) and op.opcode != "while" and all(map(self._is_constant, operands))


def _ours(entry: Entry) -> dict[Key, list[PlannedOp]]:
    values: dict[Key, list[PlannedOp]] = defaultdict(list)
    for op in entry.plan.ops:
        # What is moved between functions, XLA has no operation for: it has inlined them.
        if op.kind != "result" and op.opcode not in ("constant", "shard_map", "reshard"):
            values[_key(op)].append(op)
    return values


def _blocks(op: PlannedOp, entry: Entry) -> Blocks:
    return of_spec(op.spec, len(op.shape), entry.axis_names, entry.axis_sizes)


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
        mine = _blocks(op, entry)
        found.compared += 1
        if (op.shape, op.dtype) != (shape.dims, shape.dtype) or mine != blocks:
            found.differences.append(f"{op.name}: plan {op.spec}, XLA {blocks}")


def _settled(entry: Entry, key: Key) -> Counter[Blocks]:
    """What Shardy's own dump says of all values of that opcode, dtype and shape."""
    # XLA counts along one dimension and broadcasts along the others.
    opcodes = {key.opcode, "broadcast"} if key.opcode == "iota" else {key.opcode}
    dtype = {"bool": "i1", "bfloat16": "bf16"}.get(key.dtype, key.dtype)
    dtype = re.sub(r"^uint(\d+)$", r"ui\1", re.sub(r"^int(\d+)$", r"i\1", dtype))
    dtype = re.sub(r"^float(\d+)$", r"f\1", dtype)
    return Counter(
        of_text(text, len(shape), entry.axis_names, entry.axis_sizes)
        for opcode, kind, shape, text in entry.settled
        if _opcode(opcode) in opcodes and (kind, shape) == (dtype, key.shape)
    )


def _shown(blocks: list) -> str:
    return ", ".join(f"{n} x {b}" for b, n in Counter(blocks).items())
