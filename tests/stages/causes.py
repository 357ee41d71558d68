"""What every collective is said to be about, compared with its operand.

Here the same modules are read in another way:
from the number of each operand upwards, to the arguments and operations of the program. Between
them may be tuples, calls, loops, copies, other collectives, and what the partitioner adds: that has
the name and frame of the collective itself, or of an argument, or none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from shardviz.base.cause import ValueName
from shardviz.base.collective import Collective, Member
from tests.stages.dumps import Entry
from tests.stages.proto import KINDS, Instruction, Message, Module

ROOT = Path(__file__).parents[2]
# Whoever calls the compiler is on the stack, and no part of the program.
_NOT_USER = ("site-packages", "dist-packages", "/lib/python3", "<frozen")
_OWN = (str(ROOT / "shardviz" / "gallery"), str(ROOT / "tests"))
_MOVES = {
    "copy", "bitcast", "reshape", "transpose", "slice", "dynamic-slice", "pad", "convert",
    "opt-barrier", "get-tuple-element", "tuple",
}  # fmt: skip
_FILLS = {"select", "concatenate", "dynamic-update-slice"}
_WRITTEN = re.compile(
    r"(^|/)(psum\w*|pmax|pmin|all_gather\w*|reduce_scatter|all_to_all|ppermute|pbroadcast)$"
)
_SCANNED = re.compile(r"while/body/(jit\(dynamic_index_in_dim\)/)?(dynamic_slice|squeeze)$")


class Node(NamedTuple):
    """An instruction, the computation that has it, and the elements of a tuple that are meant."""

    computation: int
    number: int
    path: tuple[int, ...] = ()


class Graph:
    """A serialised module as a graph: who reads whom, who calls whom, and from which line."""

    def __init__(self, data: bytes) -> None:
        message = Message(data)
        message = message if message.has(3) else message.messages(1)[0]
        self.module = Module(data)
        self.messages: dict[int, dict[int, Message]] = {
            c.number(5): {i.number(35): i for i in c.messages(2)} for c in message.messages(3)
        }
        self.callers = {
            called: Node(computation, number)
            for computation, found in self.messages.items()
            for number, instruction in found.items()
            if instruction.text(2) in ("while", "call", "conditional", "fusion", "async-start")
            for called in instruction.numbers(38)
        }
        self._frames = message.messages(17)

    @cached_property
    def tables(self) -> tuple[list[str], list[tuple[int, int]], list[tuple[int, int]]]:
        """Files; file and line of each location; location and parent of each frame."""
        if not self._frames:
            return [], [], []
        (index,) = self._frames
        files = [value.decode() for value in index._fields.get(1, ())]
        locations = [(m.number(1), m.number(3)) for m in index.messages(3)]
        return files, locations, [(m.number(1), m.number(2)) for m in index.messages(4)]

    def line(self, frame: int) -> str:
        """The innermost line of a frame that is a user's, `block.py:31`."""
        files, locations, frames = self.tables
        while 0 < frame <= len(frames):
            location, parent = frames[frame - 1]
            file, line = locations[location - 1]
            path = files[file - 1]
            inside = str(ROOT / "shardviz") in path and not path.startswith(_OWN)
            if not inside and not any(part in path for part in _NOT_USER):
                return f"{Path(path).name}:{line}"
            if parent == frame:
                break
            frame = parent
        return ""

    def at(self, node: Node) -> Message:
        return self.messages[node.computation][node.number]

    def reads(self, node: Node) -> list[Node]:
        return [Node(node.computation, n) for n in self.at(node).numbers(36)]

    def identity(self, node: Node) -> tuple[str, int]:
        metadata = next(iter(self.at(node).messages(7)), Message(b""))
        return metadata.text(2), metadata.number(15)

    def name(self, node: Node) -> ValueName:
        """An operation of the program as the package would call it."""
        op, frame = self.identity(node)
        last = re.split(r"[/(]", op)[-1].rstrip(")")
        return ValueName("operation", last, self.line(frame))

    def is_argument(self, node: Node) -> bool:
        return self.at(node).text(2) == "parameter" and node.computation == self.module.entry

    def named(self, node: Node) -> bool:
        op, frame = self.identity(node)
        return bool(self.line(frame)) or "/" in op


def operands_of(graph: Graph, collective: Node, operand: Node) -> set[ValueName]:
    """Everything that an operand of a collective may rightly be called."""
    found: set[ValueName] = set()
    todo, seen = [operand], set[Node]()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            names, more = _one(graph, collective, node)
            found |= names
            todo += more
    return found


def _one(graph: Graph, collective: Node, node: Node) -> tuple[set[ValueName], list[Node]]:
    """What a value is called, and the values that it is, brought here."""
    at, opcode = graph.at(node), graph.at(node).text(2)
    own = graph.identity(collective)
    if graph.is_argument(node):
        name = graph.identity(node)[0] or f"number {at.number(9)}"
        return {ValueName("argument", name), ValueName("slice", name)}, []
    if opcode == "parameter":
        return _outside(graph, node)
    if opcode == "get-tuple-element":
        (whole,) = graph.reads(node)
        return set(), [whole._replace(path=(at.number(13), *node.path))]
    if opcode == "tuple" and node.path:
        return set(), [graph.reads(node)[node.path[0]]._replace(path=node.path[1:])]
    if opcode == "while":
        names = {graph.name(node)}
        (first,) = graph.reads(node)
        return names, [first._replace(path=node.path)] if _kept(graph, node) else []
    if opcode in ("call", "fusion"):
        (called,) = at.numbers(38)[:1]
        return set(), [Node(called, graph.module.roots[called], node.path)]
    kind = opcode.removesuffix("-start").removesuffix("-done")
    if kind in KINDS and not _WRITTEN.search(graph.identity(node)[0]):
        return set(), [r._replace(path=()) for r in graph.reads(node)]
    same, bare = graph.identity(node) == own, not graph.named(node)
    if opcode == "copy" and same and graph.identity(node)[0].endswith("sharding_constraint"):
        # The constraint itself: jax 0.12 writes its name at a gather behind it, too.
        return {graph.name(node)}, graph.reads(node)
    if opcode in _MOVES and (same or bare):
        return set(), graph.reads(node)
    if opcode == "copy":  # of a constraint, say
        return set(), graph.reads(node)
    if opcode == "select" and same and _is_one_bool(graph, graph.reads(node)[0]):
        # Some device has the first, the others the second, which is zeros.
        return set(), graph.reads(node)[1:2]
    names = set() if bare else {graph.name(node)}
    if _SCANNED.search(graph.identity(node)[0]):
        return names, graph.reads(node)[:1]
    if opcode in _FILLS and same and graph.at(collective).text(2) not in ("all-reduce",):
        return names, graph.reads(node)
    return names, []


def _is_one_bool(graph: Graph, condition: Node) -> bool:
    """Whether a condition is the same bool for every element."""
    at = graph.at(condition)
    if at.text(2) != "broadcast":
        return False
    return not at.numbers(14)  # the dimensions of its operand: none


def _outside(graph: Graph, node: Node) -> tuple[set[ValueName], list[Node]]:
    caller = graph.callers[node.computation]
    at, reads = graph.at(caller), graph.reads(caller)
    if at.text(2) == "while":
        if _kept(graph, caller._replace(path=node.path)):
            return set(), [reads[0]._replace(path=node.path)]
        line = graph.line(graph.identity(caller)[1])
        return {ValueName("carried", "", line)}, []
    if at.text(2) == "conditional":
        place = 1 + at.numbers(38).index(node.computation)
        return set(), [reads[place]._replace(path=node.path)]
    return set(), [reads[graph.at(node).number(9)]._replace(path=node.path)]


def _kept(graph: Graph, loop: Node) -> bool:
    """Whether the body of a loop gives an element back as it got it."""
    body = next(c for c in graph.at(loop).numbers(38) if _is_body(graph, loop, c))
    node = Node(body, graph.module.roots[body], loop.path)
    for _ in range(99):
        opcode = graph.at(node).text(2)
        if opcode == "parameter":
            return node.path == loop.path
        if opcode == "get-tuple-element":
            node = graph.reads(node)[0]._replace(path=(graph.at(node).number(13), *node.path))
        elif opcode == "tuple":
            node = graph.reads(node)[node.path[0]]._replace(path=node.path[1:])
        elif opcode == "copy":
            node = graph.reads(node)[0]._replace(path=node.path)
        else:
            return False
    return False


def _is_body(graph: Graph, loop: Node, computation: int) -> bool:
    """Of a loop's two computations the body is the one whose result is as large as the loop's."""
    root = Instruction(graph.at(Node(computation, graph.module.roots[computation])))
    return root.shapes == Instruction(graph.at(loop)).shapes


def collectives_of(graph: Graph) -> Iterator[Node]:
    """The collectives of a module."""
    for computation, found in graph.messages.items():
        for number, message in found.items():
            if message.text(2).removesuffix("-start") in KINDS:
                yield Node(computation, number)


def wrong_operands(collectives: Sequence[Collective], graph: Graph) -> list[str]:
    """Those of the partitioner's collectives whose named operand is none of theirs, in words."""
    nodes = {graph.at(node).text(1): node for node in collectives_of(graph)}
    wrong = [f"{c.name} is in no module" for c in collectives if c.name not in nodes]
    for c in collectives:
        if c.name in nodes and not c.members:
            node = nodes[c.name]
            right = [operands_of(graph, node, operand) for operand in graph.reads(node)]
            if not right or not all(c.operand in names for names in right):
                wrong.append(f"{c.name}: {c.operand}, not {right}")
    return wrong


class Part(NamedTuple):
    """What one array of a combined collective has to be: once a collective of its own."""

    elements: int
    op: str
    source: str
    operands: frozenset[ValueName]


def wrong_members(entry: Entry, before: Graph, after: Graph) -> list[str]:
    """The combined collectives whose members are not what was combined, in words.

    Their bytes have to be those of the arrays of the final module, each member has to be one of the
    partitioner's collectives of that kind and axes, and no two the same.
    """
    nodes = {after.at(node).text(1): node for node in collectives_of(after)}
    axes = {c.name: c.mesh_axes for c in entry.collectives}
    wrong = []
    for c in entry.compiled:
        if not c.members:
            continue
        instruction = Instruction(after.at(nodes[c.name]))
        times = c.group_size if c.kind == "reduce-scatter" else 1
        sizes = sorted((s.bytes * times for s in instruction.shapes), reverse=True)
        if sizes != [m.bytes_per_device for m in c.members]:
            wrong.append(f"{c.name}: {[m.bytes_per_device for m in c.members]}, not {sizes}")
        first = c.members[0]
        if (c.op, c.source, c.phase) != (first.op, first.source, first.phase):
            wrong.append(f"{c.name}: {c.op}, not {first.op}")
        free = [
            _part(before, node)
            for node in collectives_of(before)
            if before.at(node).text(2) == c.kind and axes[before.at(node).text(1)] == c.mesh_axes
        ]
        if not _each_is_one(c.members, free):
            wrong.append(f"{c.name}: {[(m.operand, m.bytes_per_device) for m in c.members]}")
    return wrong


def _part(graph: Graph, node: Node) -> Part:
    op, frame = graph.identity(node)
    (operand,) = graph.reads(node)
    elements = sum(math.prod(s.dims) for s in Instruction(graph.at(node)).shapes)
    return Part(elements, op, graph.line(frame), frozenset(operands_of(graph, node, operand)))


def _each_is_one(members: Sequence[Member], free: list[Part]) -> bool:
    for member in members:
        count = math.prod(int(d) for d in re.findall(r"\d+", member.shape.partition("[")[2]))
        fits = [
            p for p in free
            if (p.elements, p.op, p.source) == (count, member.op, member.source)
            and member.operand in p.operands
        ]  # fmt: skip
        if not fits:
            return False
        free.remove(fits[0])
    return True
