"""count_collectives(): what a compiled module communicates, counted without shardviz's reader."""

from __future__ import annotations

from collections import Counter

KINDS = {
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
}
BITS = {"pred": 8, "token": 0, "bf16": 16, "c64": 64, "c128": 128}


def count_collectives(text: str) -> Counter[tuple[str, int]]:
    """Kind and bytes per device of every collective in the text of a module, to how many there are.

    The bytes are those of the result; of a reduce-scatter those of its operand. A started one has
    its operands in its result, before what it makes.
    """
    types: dict[str, str] = {}
    found: Counter[tuple[str, int]] = Counter()
    for line in text.splitlines():
        name, equals, right = line.strip().removeprefix("ROOT ").partition(" = ")
        if not equals or not name.startswith("%"):
            continue
        shape, rest = _shape_and_rest(right)
        types[name] = shape
        opcode, bracket, operands = rest.partition("(")
        kind = opcode.removesuffix("-start")
        if not bracket or kind not in KINDS:
            continue
        if kind == "reduce-scatter":
            names = operands.partition(")")[0].split(", ")
            size = sum(_bytes(types[n.split(" ")[-1]]) for n in names)
        else:
            size = _bytes(_made(shape) if opcode.endswith("-start") else shape)
        found[kind, size] += 1
    return found


def _shape_and_rest(right: str) -> tuple[str, str]:
    """`f32[8]{0} all-reduce(...)` as its shape and what follows; tuples are in brackets."""
    if not right.startswith("("):
        shape, _, rest = right.partition(" ")
        return shape, rest
    depth = 0
    for i, letter in enumerate(right):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return right[: i + 1], right[i + 2 :]
    raise ValueError(right)


def _parts(shape: str) -> list[str]:
    """The arrays in a shape, from a tuple's as from an array's."""
    inside = "".join(c if c not in "()" else " " for c in shape)
    words = inside.replace("/*", " ").replace("*/", " ").replace("{", " {").split()
    return [w for w in words if "[" in w and not w.startswith("{")]


def _made(shape: str) -> str:
    """Of the tuple that a start makes, the results: its second half, without scratch values."""
    parts = [p for p in _parts(shape) if not p.strip(", ").endswith("[]")] or _parts(shape)
    return " ".join(parts[len(parts) // 2 :])


def _bytes(shape: str) -> int:
    total = 0
    for part in _parts(shape):
        kind, _, rest = part.strip(", ").partition("[")
        sizes = rest.partition("]")[0]
        bits = BITS.get(kind) or int("".join(c for c in kind.partition("e")[0] if c.isdigit()) or 0)
        for size in filter(None, sizes.split(",")):
            bits *= int(size)
        total += bits // 8
    return total
