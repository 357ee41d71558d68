"""The text of a compiled module: its computations, instructions, shapes, loops and source lines.

The text is not parsed in full: an instruction is the position of its line, and only lines that are
needed are read.

XLA writes the trip count of a loop where it knows it (`known_trip_count`), which it finds after
partitioning. Elsewhere it is computed from the loop itself where that is simple: a number that
starts at a constant, grows by a constant and is compared with a constant.

Source lines stand in four tables at the head: FileNames, FunctionNames, FileLocations and
StackFrames; an instruction's metadata names a frame by `stack_frame_id`. Older text has
`source_file` and `source_line` in the metadata itself.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

SHAPE = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")

_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"[a-z]+(\d+)")
_LAYOUT = re.compile(r"\{[^{}]*\}")


def shape_bytes(shape: str) -> int:
    """Bytes of a shape as XLA writes it; tuples are summed, sub-byte types packed.

    >>> shape_bytes("(f32[8,16]{1,0}, bf16[4])"), shape_bytes("s4[3]"), shape_bytes("pred[]")
    (520, 2, 1)
    """
    return sum((element_count(dims) * _bits(kind) + 7) // 8 for kind, dims in SHAPE.findall(shape))


def element_count(dims: str) -> int:
    """How many elements a shape of these dimensions has; a bound `<=10` counts in full.

    >>> element_count("8, 16"), element_count("<=10"), element_count("")
    (128, 10, 1)
    """
    return math.prod(int(d.strip().lstrip("<=")) for d in dims.split(",") if d.strip())


def without_layout(shape: str) -> str:
    """The shape without the order of its dimensions in memory.

    >>> without_layout("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}")
    'bf16[8,128]'
    """
    return _LAYOUT.sub("", shape).strip()


def _bits(kind: str) -> int:
    if kind in _BITS:
        return _BITS[kind]
    width = _WIDTH.match(kind)  # s32, u4, f8e4m3fn, f4e2m1fn …: the width follows the letters
    return int(width[1]) if width else 0


HEAD = re.compile(r"\s*(?:ROOT )?(%?([\w.\-]+)) = ")

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$", re.M)
_DEFINED = re.compile(r"^ *(?:ROOT )?%([\w.\-]+) = ", re.M)
_CALLED = re.compile(r"=%([\w.\-]+)")
_BRANCHES = re.compile(r"_computations=\{([^}]*)\}")  # branch_ of a conditional, called_ of others
_OPERAND = re.compile(r"%([\w.\-]+)(?:#(\d+))?")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")


class ComputationCall(NamedTuple):
    """One call of a computation: an instruction that names it.

    Attributes:
        attribute: `body`, `condition`, `calls`, `to_apply`, `branch` …
        start: where the line of the instruction starts.
    """

    attribute: str
    start: int


class Operand(NamedTuple):
    """What an instruction reads: a value, or one element of a tuple, `%param.1#0`."""

    name: str
    element: int | None


class Module:
    """One module's text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _heads(self) -> tuple[list[int], list[str]]:
        starts, names = [], []
        # Few lines end with a brace: looked for first, since a pattern would try every line.
        end = self.text.find(" {\n")
        while end >= 0:
            start = self.line_start(end)
            if head := _COMPUTATION.match(self.text, start):
                starts.append(start)
                names.append(head[1])
            end = self.text.find(" {\n", end + 1)
        return starts, names

    def computation_at(self, position: int) -> str:
        """The computation around a position of the text, or `""`."""
        starts, names = self._heads
        at = bisect_right(starts, position) - 1
        return names[at] if at >= 0 else ""

    def span_at(self, position: int) -> tuple[int, int]:
        """Where the computation around a position starts and ends."""
        starts, _ = self._heads
        at = bisect_right(starts, position)
        return (starts[at - 1] if at else 0, starts[at] if at < len(starts) else len(self.text))

    @cached_property
    def starts(self) -> dict[str, int]:
        """Computation to the position of its first line."""
        starts, names = self._heads
        return dict(zip(names, starts, strict=True))

    @cached_property
    def calls(self) -> dict[str, list[ComputationCall]]:
        """Computation to the instructions that name it."""
        found: dict[str, list[ComputationCall]] = defaultdict(list)
        for match in _CALLED.finditer(self.text):
            if match[1] in self.starts:
                before = self.text[max(match.start() - 40, 0) : match.start()]
                word = before.rpartition(" ")[2]
                found[match[1]].append(ComputationCall(word, self.line_start(match.start())))
        for match in _BRANCHES.finditer(self.text):
            for name, _ in _OPERAND.findall(match[1]):
                found[name].append(ComputationCall("branch", self.line_start(match.start())))
        return dict(found)

    def line_start(self, position: int) -> int:
        """Where the line around a position starts."""
        return self.text.rfind("\n", 0, position) + 1

    def line_at(self, start: int) -> str:
        """The line that starts at a position."""
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)]

    def definition(self, name: str, position: int) -> str:
        """The line that defines `name` in the computation around a position, or `""`."""
        start = self.find(name, position)
        return self.line_at(start) if start is not None else ""

    def find(self, name: str, position: int) -> int | None:
        """Where the line starts that defines `name` in the computation around a position."""
        begin, end = self.span_at(position)
        return next((s for s in self._defined.get(name, ()) if begin <= s < end), None)

    @cached_property
    def _defined(self) -> dict[str, list[int]]:
        """Name to the positions of the lines that define it, one a computation."""
        found: dict[str, list[int]] = defaultdict(list)
        for match in _DEFINED.finditer(self.text):
            found[match[1]].append(match.start())
        return found

    def is_entry(self, position: int) -> bool:
        """Whether the computation around a position is the program itself."""
        return self.text.startswith("ENTRY ", self.span_at(position)[0])

    def root(self, computation: str) -> str:
        """The line of a computation's result, or `""`."""
        begin = self.starts.get(computation)
        if begin is None:
            return ""
        at = self.text.find("\n  ROOT ", begin, self.span_at(begin)[1])
        return self.line_at(at + 1) if at >= 0 else ""

    def name_at(self, start: int) -> str:
        """The name of the instruction whose line starts at a position."""
        head = HEAD.match(self.text, start)
        return head[2] if head else ""

    def users(self, start: int, limit: int = 2) -> list[int]:
        """The positions of the first lines that read the result of the line at `start`."""
        head = HEAD.match(self.text, start)
        if head is None:
            return []
        return self.mentions(head[1], head.end(), self.span_at(start)[1], limit)

    def mentions(self, name: str, begin: int, end: int, limit: int = 2) -> list[int]:
        """The positions of the first lines that contain a name, between two positions."""
        starts: list[int] = []
        at = self.text.find(name, begin, end)
        while at >= 0 and len(starts) < limit:
            if self.text[at + len(name) : at + len(name) + 1] in (",", ")", " ", "#"):
                starts.append(self.line_start(at))
            at = self.text.find(name, at + 1, end)
        return starts


def opcode(line: str) -> str:
    """The operation of an instruction's line.

    >>> opcode("  %a.1 = f32[4]{0:T(256)} add(%b, %c), metadata={op_name=\\"f(x)\\"}")
    'add'
    """
    head = HEAD.match(line)
    found = _OPCODE.search(line, head.end() - 1) if head else None
    return found[1] if found else ""


def operands(line: str) -> list[Operand]:
    """What an instruction reads, in order.

    >>> operands("  %t = (s32[], f32[4]{0}) tuple(%i, /*index=1*/%p.1#3), sharding={replicated}")
    [Operand(name='i', element=None), Operand(name='p.1', element=3)]
    """
    head = HEAD.match(line)
    found = _OPCODE.search(line, head.end() - 1) if head else None
    if found is None:
        return []
    inside = line[found.end() : _closing(line, found.end())]
    return [Operand(n, int(e) if e else None) for n, e in _OPERAND.findall(inside)]


def _closing(line: str, begin: int) -> int:
    """The position of the parenthesis that closes the one before `begin`."""
    at = line.find(")", begin)
    while at >= 0 and line.count("(", begin, at) > line.count(")", begin, at):
        at = line.find(")", at + 1)
    return at if at >= 0 else len(line)


_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_WHILE = re.compile(r"\b(body|condition)=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_CONSTANT = re.compile(r" constant\((-?\d+)\)")
_DIRECTION = re.compile(r"\bdirection=([A-Z]{2})")
_SAME = ("copy", "bitcast", "convert", "reshape", "opt-barrier")
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_DEEPEST = 12


class ExecutionCount(NamedTuple):
    """How often a computation runs.

    Attributes:
        in_loop: whether it is reached from a loop.
        trips: how often it runs; None where the trip count of a loop is not known.
    """

    in_loop: bool
    trips: int | None


class Loops:
    """How often the computations of a module run."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, ExecutionCount] = {}
        self._while_trips: dict[int, int | None] = {}
        self._any = " while(" in module.text

    def count(self, computation: str) -> ExecutionCount:
        """How often a computation runs.

        >>> Loops(Module("")).count("main")
        ExecutionCount(in_loop=False, trips=1)
        """
        if not self._any:
            return ExecutionCount(False, 1)
        if computation not in self._known:
            self._known[computation] = ExecutionCount(False, 1)  # ends a recursion
            self._known[computation] = self._from_calls(computation)
        return self._known[computation]

    def _from_calls(self, computation: str) -> ExecutionCount:
        calls = _distinct(self._module.calls.get(computation, []))
        if not calls:
            return ExecutionCount(False, 1)
        each = [self._of_call(call) for call in calls]
        if not any(t.in_loop for t in each):
            return ExecutionCount(False, 1)
        trips = [t.trips for t in each]
        total = None if None in trips else sum(t or 0 for t in trips)
        return ExecutionCount(True, total)

    def _of_call(self, call: ComputationCall) -> ExecutionCount:
        caller = self.count(self._module.computation_at(call.start))
        if call.attribute not in ("body", "condition"):
            return caller
        trips = self._trips(call.start)
        if trips is None or caller.trips is None:
            return ExecutionCount(True, None)
        # The condition runs once more, which ends the loop.
        return ExecutionCount(True, caller.trips * (trips + (call.attribute == "condition")))

    def _trips(self, start: int) -> int | None:
        if start not in self._while_trips:
            line = self._module.line_at(start)
            known = _KNOWN.search(line)
            self._while_trips[start] = int(known[1]) if known else self._counted(line, start)
        return self._while_trips[start]

    def _counted(self, line: str, start: int) -> int | None:
        """The trip count of a simple loop: `for (i = first; i < last; i += step)`."""
        parts = dict(_WHILE.findall(line))
        root = self._module.root(parts.get("condition", ""))
        direction = _DIRECTION.search(root)
        if direction is None or opcode(root) != "compare":
            return None
        at = self._module.starts[parts["condition"]]
        sides = [self._traced(o, at) for o in operands(root)]
        if len(sides) != 2 or any(s is None for s in sides):
            return None
        for (index, bound), way in (
            (sides, direction[1]),
            (sides[::-1], _FLIPPED.get(direction[1], "")),
        ):
            step = self._step(index, parts.get("body", ""))
            first, last = self._initial(index, start), self._value(bound, at, start)
            if step and first is not None and last is not None:
                return _trip_count(first, last, step, way)
        return None

    def _traced(self, operand: Operand, at: int, depth: int = 0) -> tuple[str, int] | None:
        """`("constant", value)`, or `("element", index)` of the computation's parameter."""
        line = self._module.definition(operand.name, at)
        kind, reads = opcode(line), operands(line)
        if depth > _DEEPEST or not kind:
            return None
        if kind == "parameter" and operand.element is not None:
            return "element", operand.element
        if kind == "constant":
            value = _CONSTANT.search(line)
            return ("constant", int(value[1])) if value else None
        if kind == "tuple" and operand.element is not None and operand.element < len(reads):
            return self._traced(reads[operand.element], at, depth + 1)
        if kind == "get-tuple-element" and reads:
            index = _INDEX.search(line)
            source = Operand(reads[0].name, int(index[1])) if index else reads[0]
            return self._traced(source, at, depth + 1)
        if kind in _SAME and len(reads) == 1:
            element = operand.element if reads[0].element is None else reads[0].element
            inner = Operand(reads[0].name, element)
            return self._traced(inner, at, depth + 1)
        return None

    def _step(self, index: tuple[str, int] | None, body: str) -> int | None:
        """By how much an iteration increases an element, where that is constant."""
        line = self._element(index, body)
        if opcode(line) != "add":
            return None
        found = [self._traced(o, self._module.starts[body]) for o in operands(line)]
        steps = [f[1] for f in found if f is not None and f[0] == "constant"]
        return steps[0] if index in found and len(steps) == 1 else None

    def _element(self, index: tuple[str, int] | None, body: str) -> str:
        """The line that computes one element of the result of a loop body."""
        root = self._module.root(body)
        reads = operands(root) if opcode(root) == "tuple" else []
        if index is None or index[0] != "element" or index[1] >= len(reads):
            return ""
        return self._module.definition(reads[index[1]].name, self._module.starts[body])

    def _initial(self, index: tuple[str, int] | None, start: int, depth: int = 0) -> int | None:
        """The value of an element before the loop at `start`."""
        if index is None or index[0] != "element":
            return None
        initial = operands(self._module.line_at(start))
        if len(initial) != 1:
            return None
        found = self._traced(Operand(initial[0].name, index[1]), start)
        return self._outside(found, start, depth)

    def _value(
        self, found: tuple[str, int] | None, at: int, start: int, depth: int = 0
    ) -> int | None:
        """The value of a constant, or of an element that the loop at `start` does not change."""
        if found is None or found[0] == "constant" or depth > _DEEPEST:
            return found[1] if found and found[0] == "constant" else None
        body = dict(_WHILE.findall(self._module.line_at(start))).get("body", "")
        root = self._module.root(body)
        reads = operands(root) if opcode(root) == "tuple" else []
        if found[1] >= len(reads):
            return None
        passed_on = self._traced(reads[found[1]], self._module.starts[body])
        return self._initial(found, start, depth + 1) if passed_on == found else None

    def _outside(self, found: tuple[str, int] | None, start: int, depth: int) -> int | None:
        if found is None or found[0] == "constant":
            return found[1] if found else None
        caller = self._module.computation_at(start)
        calls = [c for c in self._module.calls.get(caller, []) if c.attribute == "body"]
        return self._value(found, start, calls[0].start, depth + 1) if len(calls) == 1 else None


def _trip_count(first: int, last: int, step: int, way: str) -> int | None:
    """How many iterations until the condition is false; None for loops that do not end so.

    >>> [_trip_count(*case) for case in ((0, 6, 1, "LT"), (0, 6, 4, "LE"), (5, 0, -1, "GE"))]
    [6, 2, 6]
    """
    gap = last - first
    if way in ("LE", "GE"):
        gap += 1 if way == "LE" else -1
    if way == "NE":
        return gap // step if gap % step == 0 and gap // step >= 0 else None
    if way not in _FLIPPED or (step > 0) != (way in ("LT", "LE")):
        return None
    return max(0, -(-gap // step))


def _distinct(calls: list[ComputationCall]) -> list[ComputationCall]:
    """Every call once: an asynchronous one names its computation in its start, update and done."""
    wrapped = [s for s in calls if s.attribute == "calls"]
    return wrapped[:1] + [s for s in calls if s.attribute != "calls"]


_NAME = re.compile(r'^(\d+) "(.*)"$', re.M)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)", re.M)
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", re.M)
_FRAME_ID = re.compile(r"stack_frame_id=(\d+)")
_DIRECT = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')

_OWN = str(Path(__file__).parents[2]) + os.sep
_GALLERY = _OWN + "gallery" + os.sep
_NOT_USER = ("site-packages", "dist-packages", "/lib/python3", "\\lib\\python3", "<frozen")


def is_user_file(path: str) -> bool:
    """Whether a file is the user's own code: in no installed package and not in this one.

    >>> is_user_file("/home/me/model.py"), is_user_file("/venv/lib/site-packages/jax/core.py")
    (True, False)
    """
    if path.startswith(_OWN):
        return path.startswith(_GALLERY)
    return not any(part in path for part in _NOT_USER)


def line_in_words(path: str, line: int | str) -> str:
    """`model.py:12`; a notebook's cell is called `cell`.

    >>> line_in_words("/home/me/model.py", 12), line_in_words("/tmp/ipykernel_7/31.py", 3)
    ('model.py:12', 'cell:3')
    """
    in_cell = "ipykernel_" in path or path.startswith("<ipython-input")
    return f"{'cell' if in_cell else os.path.basename(path)}:{line}"


class Sources:
    """The source tables of one module's text, read once when needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stacks: dict[int, tuple[str, ...]] = {}

    def of(self, line: str) -> str:
        """The user's file and line for one line of the module, or `""`."""
        stack = self.stack_of(line)
        return stack[0] if stack else ""

    def stack_of(self, line: str) -> tuple[str, ...]:
        """The user's files and lines for one line of the module, innermost first."""
        frame = _FRAME_ID.search(line)
        if frame:
            return self._of_frame(int(frame[1]))
        direct = _DIRECT.search(line)
        if direct and direct[2] and is_user_file(direct[1]):
            return (line_in_words(direct[1], direct[2]),)
        return ()

    def _of_frame(self, frame: int) -> tuple[str, ...]:
        if frame not in self._stacks:
            user_lines = (line_in_words(*f) for f in self.stack(frame) if is_user_file(f[0]))
            # Several calls on one line are shown once.
            self._stacks[frame] = tuple(line for line, _ in itertools.groupby(user_lines))
        return self._stacks[frame]

    def stack(self, frame: int) -> Iterator[tuple[str, int]]:
        """File and line of every caller, innermost first."""
        files, locations, frames, root = self._tables
        seen: set[int] = set()
        while frame in frames and frame not in seen:
            seen.add(frame)
            location, parent = frames[frame]
            if location in locations:
                file, line = locations[location]
                yield files.get(file, ""), line
            frame = parent - root

    @cached_property
    def _tables(self) -> tuple[dict[int, str], dict[int, tuple[int, int]], dict, int]:
        files = {int(i): name for i, name in _NAME.findall(self._section("FileNames"))}
        locations = {
            int(i): (int(file), int(line))
            for i, file, line in _LOCATION.findall(self._section("FileLocations"))
        }
        frames = {
            int(i): (int(location), int(parent or 0))
            for i, location, parent in _FRAME.findall(self._section("StackFrames"))
        }
        # XLA prints parents one too high, which makes the outermost frame its own parent.
        root = 1 if any(parent == i for i, (_, parent) in frames.items()) else 0
        return files, locations, frames, root

    def _section(self, name: str) -> str:
        start = self._text.find(f"\n{name}\n")
        return "" if start < 0 else self._text[start : self._text.find("\n\n", start + 1)]


_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_MAX_STEPS = 4  # instructions further away come from other lines


class InstructionSource(NamedTuple):
    """The source of an instruction: its operation in jax and the user's line.

    Attributes:
        op: as jax names it, `jit(f)/dot_general`.
        source: the user's file and line.
        stack: every frame of the user's code, innermost first.
    """

    op: str
    source: str
    stack: tuple[str, ...]


NO_SOURCE = InstructionSource("", "", ())


def instruction_source(
    module: Module, sources: Sources, start: int, kind: str, computation: str
) -> InstructionSource:
    """The source of the collective at `start`.

    Where the compiler gives none, that of the nearest instruction which has one: the call of its
    fusion; for a sum the instruction that made its operand; else the one that reads its result.
    """
    own = read_source(module, sources, start)
    if own.source and "/" in own.op:
        return own
    at = [start]
    at += [c.start for c in module.calls.get(computation, []) if c.attribute == "calls"][:2]
    for _ in range(_MAX_STEPS):
        for near in (read_source(module, sources, start) for start in at):
            if near.source:
                op = own.op if "/" in own.op else near.op
                return own._replace(op=op) if own.source else near._replace(op=op)
        at = _around(module, at, kind)
    return own


def read_source(module: Module, sources: Sources, start: int) -> InstructionSource:
    """The name and line in the metadata of the instruction at `start`, where it has any.

    >>> read_source(Module('  %a = f32[] add(%b, %c), metadata={op_name="f/add"}'), Sources(""), 0)
    InstructionSource(op='f/add', source='', stack=())
    """
    line = module.line_at(start)
    op = _OP_NAME.search(line)
    stack = sources.stack_of(line)
    return InstructionSource(op[1] if op else "", stack[0] if stack else "", stack)


def _around(module: Module, starts: list[int], kind: str) -> list[int]:
    makers = [m for start in starts for m in _makers(module, start)]
    readers = [r for start in starts for r in module.users(start)]
    sums = kind in ("all-reduce", "reduce-scatter")
    return makers + readers if sums else readers + makers


def _makers(module: Module, start: int) -> list[int]:
    begin, _ = module.span_at(start)
    names = [o.name for o in operands(module.line_at(start))[:3]]
    made = [module.text.rfind(f"%{name} = ", begin, start) for name in names]
    return [module.line_start(at) for at in made if at >= 0]
