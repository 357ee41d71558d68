"""Why a collective of a module is there: which value it is about, and what that value is for.

The operand of a collective is followed to what makes it: an argument of the program, or an
operation that the program itself has. On the way are copies, other collectives, and the slices and
reshapes that the partitioner adds, which carry the name and line of the operation they are made
for, or none. Where the way ends at anything else, the operand is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from shardviz.core.format import joined
from shardviz.core.hlo.module import (
    NO_SOURCE,
    SHAPE,
    ComputationCall,
    InstructionSource,
    Module,
    Operand,
    Sources,
    opcode,
    operands,
    read_source,
)
from shardviz.core.program.report import UNKNOWN, who_wrote

_COLLECTIVES = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast", "async",
)  # fmt: skip
_RESPLITS = ("all-to-all", "collective-permute")
_SUMS = ("all-reduce", "reduce-scatter")
_TUPLE_COPIES = ("copy", "opt-barrier", "optimization-barrier")  # of an array or a whole tuple
_COPIES = (*_TUPLE_COPIES, "bitcast", "copy-start", "copy-done")
# What the partitioner adds around a collective; the user's own have a name of their own.
_MOVES = ("reshape", "transpose", "slice", "dynamic-slice", "pad", "convert", "get-tuple-element")
_CHOICES = ("select", "concatenate", "dynamic-update-slice")
_EMPTY = ("constant", "broadcast", "iota", "")
_DEEPEST, _FARTHEST, _MOST_USERS, _MOST_PARTS = 64, 12, 8, 4096
# The collectives of `jax.lax` that users write, by the kind that each of them is compiled to.
_WRITTEN = {
    "all-reduce": re.compile(r"(psum\w*|pmax|pmin|pmean)$"),
    "all-gather": re.compile(r"all_gather\w*$"),
    "reduce-scatter": re.compile(r"(reduce_scatter|psum_scatter|unreduced_reduce_scatter)$"),
    "all-to-all": re.compile(r"all_to_all$"),
    "collective-permute": re.compile(r"ppermute$"),
    "collective-broadcast": re.compile(r"pbroadcast$"),
    "ragged-all-to-all": re.compile(r"ragged_all_to_all$"),
}
# What a collective does with what the devices have, by the operation of its reduction.
REDUCES = {
    "add": "sums",
    "maximum": "takes the maximum",
    "minimum": "takes the minimum",
    "multiply": "multiplies",
    "and": "takes the logical and",
    "or": "takes the logical or",
}
_LATER = re.compile(r" async-(?:update|done)\(")
_INDEX = re.compile(r"\bindex=(\d+)")
_PARAMETER = re.compile(r" parameter\((\d+)\)")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%([\w.\-]+)")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_BRANCH = re.compile(r"branch_computations=\{([^}]*)\}")
_BOTH = re.compile(r"true_computation=%([\w.\-]+), false_computation=%([\w.\-]+)")
_GATHERED = re.compile(r"\bdimensions=\{(\d+)\}")
_FEATURE_GROUPS = re.compile(r"\bfeature_group_count=(\d+)")
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->")
_NAME = re.compile(r"[\w.\-]+$")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r'stack_frame_id=\d+|source_file="[^"]*"(?: source_line=\d+)?')
_VMAPPED_LOOP = re.compile(r"vmap\([^()]*\)/while")
_IN_LOOP = re.compile(r"while/body/(?:jit\(dynamic_index_in_dim\)/)?(dynamic_slice|squeeze)$")


class Value(NamedTuple):
    """The value that a collective is about.

    Attributes:
        words: what it is called: `argument w_in`, `dot_general (mlp.py:31)`, `unknown`.
        source: the operation that makes it and its line; of an argument only its name.
        start: the position of the line that defines it; -1 where it is unknown.
        same: whether nothing but copies and collectives is between it and the collective, so that
            its dimensions are those of the operand.
        moved: what splits it otherwise in between, `moved by a collective-permute`; or `""`.
        on_one: whether one device of each group has it, and the others add zeros to bring it there.
    """

    words: str
    source: InstructionSource = NO_SOURCE
    start: int = -1
    same: bool = True
    moved: str = ""
    on_one: bool = False


NOBODY = Value(UNKNOWN)


class _Here(NamedTuple):
    """A value on the way: a name, the elements of the tuple that it is, and where it is read."""

    name: str
    path: tuple[int, ...]
    at: int


class Causes:
    """What the collectives of one module sum or move, and why.

    >>> x = '  %p = f32[8] parameter(0), metadata={op_name="x"}'
    >>> line = "  %r = f32[8] all-reduce(%p), to_apply=%add"
    >>> module = Module(f"ENTRY %f {{\\n{x}\\n{line}")
    >>> at = module.find("r", 20)
    >>> causes = Causes(module, Sources(module.text))
    >>> value = causes.value(Operand("p", None), at, "all-reduce")
    >>> value.words, causes.cause(value, at, "all-reduce", ("data",))
    ('argument x', 'Each device has a part of argument x: XLA combines of them over data.')
    """

    def __init__(
        self,
        module: Module,
        sources: Sources,
        arguments: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.module, self._sources, self._arguments = module, sources, arguments
        self._known: dict[int, InstructionSource] = {}

    def _read(self, start: int) -> InstructionSource:
        if start not in self._known:
            self._known[start] = read_source(self.module, self._sources, start)
        return self._known[start]

    def _alike(self, one: int, other: int) -> bool:
        """Whether two instructions have the name and frame of one operation of the program."""
        return _identity(self.module.line_at(one)) == _identity(self.module.line_at(other))

    def value(self, operand: Operand, start: int, kind: str) -> Value:
        """The value behind an operand of the collective at `start`.

        Args:
            operand: the operand.
            start: the position of the collective's line.
            kind: what kind of collective it is.
        """
        return self._followed(_Here(operand.name, _elements(operand), start), start, kind in _SUMS)

    def _followed(self, here: _Here, own: int, sums: bool, depth: int = 0) -> Value:
        """Follows a value to what makes it; `own` is the position of the collective's line."""
        same, moved = True, ""
        for _ in range(_DEEPEST):
            start = self.module.find(here.name, here.at)
            if start is None:
                return NOBODY
            line = self.module.line_at(start)
            kind, reads = opcode(line), operands(line)
            if kind == "parameter" and self.module.is_entry(start):
                return self._argument(line, start, same)._replace(moved=moved)
            if kind == "copy" and self._is_constraint(start) and self._alike(start, own):
                # The constraint itself: what follows it on its line is for whatever reads it.
                return self._made(start, line, same)._replace(moved=moved)
            inner = self._through(here, kind, line, start)
            if isinstance(inner, Value):
                return inner._replace(same=False, moved=moved)
            if kind.startswith(_RESPLITS):
                moved = f"moved by {'an all-to-all' if kind[0] == 'a' else 'a collective-permute'}"
            passes = self._passes(kind, start, own) or (
                sums and self._sums_behind(reads, start, own)
            )
            if passes and kind == "dynamic-slice":
                moved = moved or "of which a slice is taken"
            if inner is None and passes and reads:
                element = here.path[0] if here.path and len(reads) > 1 else 0
                first = reads[min(element, len(reads) - 1)]
                inner = _Here(first.name, _elements(first), start)
                same = same and (kind in _COPIES or kind.startswith(_COLLECTIVES))
            if inner is None and kind in _CHOICES and not sums and self._alike(start, own):
                return self._chosen(reads, start, own, depth)
            if inner is None and sums and kind == "select" and self._picks_device(reads[0], start):
                return self._chosen(reads, start, own, depth)._replace(on_one=True)
            if inner is None:
                found = self._sliced(start, line, depth) or self._made(start, line, same)
                return found._replace(moved=moved)
            here = inner
        return NOBODY

    def _picks_device(self, condition: Operand, at: int) -> bool:
        """Whether a condition is one bool for all elements, which depends on the device alone."""
        one_bool = False
        todo, seen = [(condition.name, at)], 0
        while todo and seen < _FARTHEST:
            start = self.module.find(*todo.pop())
            if start is None:
                return False
            line, seen = self.module.line_at(start), seen + 1
            kind = opcode(line)
            if kind == "partition-id" and one_bool:
                return True
            if kind == "parameter":
                return False
            one_bool = one_bool or (kind == "compare" and " pred[] " in line)
            todo += [(read.name, start) for read in operands(line)]
        return False

    def _is_constraint(self, start: int) -> bool:
        return self._read(start).op.endswith("/sharding_constraint")

    def _passes(self, kind: str, start: int, own: int) -> bool:
        """Whether an operation of this kind only brings the value to where it is needed."""
        if kind.startswith(_COLLECTIVES):
            return not self._is_written(kind, start)
        if kind in _COPIES:
            return True
        # Those around a collective on an argument have the argument's name.
        return kind in _MOVES and (not _is_named(self._read(start)) or self._alike(start, own))

    def _sums_behind(self, reads: Sequence[Operand], start: int, own: int) -> bool:
        """Whether an operation reshapes the sum that the collective at `own` completes."""
        if opcode(self.module.line_at(start)) not in _MOVES or self._alike(start, own):
            return False
        made = self.module.find(reads[0].name, start) if reads else None
        return made is not None and self._alike(made, own)

    def _through(self, here: _Here, kind: str, line: str, start: int) -> _Here | Value | None:
        """The same value on the other side of a tuple, a call, a loop or a branch."""
        path, reads = here.path, operands(line)
        if kind == "get-tuple-element" and reads and (index := _INDEX.search(line)):
            return _Here(reads[0].name, (int(index[1]), *path), start)
        if kind == "tuple" and path and path[0] < len(reads):
            read = reads[path[0]]
            return _Here(read.name, (*_elements(read), *path[1:]), start)
        if kind in _TUPLE_COPIES and path and len(reads) == 1:
            return _Here(reads[0].name, (*_elements(reads[0]), *path), start)
        if kind == "parameter":
            return self._outside(here, line, start)
        if kind == "while" and reads:
            body = _BODY.search(line)
            if body and path and self._is_kept(body[1], path):
                return _Here(reads[0].name, path, start)
            return self._made(start, line, False)
        if kind in ("call", "fusion") and (called := _CALLED.search(line)):
            return self._returned(called[1], path)
        return None

    def _returned(self, computation: str, path: tuple[int, ...]) -> _Here | None:
        root = self.module.root(computation)
        if not root:
            return None
        name = root.partition(" = ")[0].split()[-1].lstrip("%")
        return _Here(name, path, self.module.starts[computation])

    def _outside(self, here: _Here, line: str, start: int) -> _Here | Value | None:
        """A parameter of a computation, as its caller has it."""
        computation = self.module.computation_at(start)
        call, number = self._call(computation), _PARAMETER.search(line)
        if call is None or number is None:
            return NOBODY
        caller = self.module.line_at(call.start)
        reads, place = operands(caller), int(number[1])
        outside = call.start
        if call.attribute in ("body", "condition"):
            body = _BODY.search(caller)
            if body is None or not here.path or not self._is_kept(body[1], here.path):
                return self._carried(outside)
            place = 0
        elif opcode(caller) == "conditional":
            place = 1 + _branches(caller).index(computation)
        if place >= len(reads):
            return NOBODY
        read = reads[place]
        return _Here(read.name, (*_elements(read), *here.path), outside)

    def _call(self, computation: str) -> ComputationCall | None:
        """The one instruction that calls a computation; None where several do."""
        calls = {c.start: c for c in self.module.calls.get(computation, [])}
        found = [c for c in calls.values() if not _LATER.search(self.module.line_at(c.start))]
        return found[0] if len(found) == 1 else None

    def _is_kept(self, body: str, path: tuple[int, ...]) -> bool:
        """Whether a loop hands an element of what it carries on as it is."""
        here = self._returned(body, path)
        for _ in range(_FARTHEST):
            start = self.module.find(here.name, here.at) if here is not None else None
            if here is None or start is None:
                return False
            line = self.module.line_at(start)
            kind, reads = opcode(line), operands(line)
            if kind == "parameter":
                return here.path == path
            if kind in _COPIES and reads:
                here = _Here(reads[0].name, (*_elements(reads[0]), *here.path), start)
            elif kind in ("tuple", "get-tuple-element"):
                inner = self._through(here, kind, line, start)
                here = inner if isinstance(inner, _Here) else None
            else:
                return False
        return False

    def _carried(self, loop: int) -> Value:
        source = self._read(loop)
        return Value(f"what the loop{_at(source)} carries", source, loop, False)

    def _chosen(self, reads: Sequence[Operand], start: int, own: int, depth: int) -> Value:
        """The one value that the partitioner fills up with zeros, or joins with its neighbours'."""
        found: dict[str, Value] = {}
        for read in reads if depth < 2 else ():
            line = self.module.definition(read.name, start)
            if opcode(line) in _EMPTY or " pred[" in line.partition("(")[0]:
                continue
            value = self._followed(_Here(read.name, _elements(read), start), own, False, depth + 1)
            found.setdefault(value.words, value)
        if len(found) == 1 and UNKNOWN not in found:
            return next(iter(found.values()))._replace(same=False)
        return self._made(start, self.module.line_at(start), False)

    def _sliced(self, start: int, line: str, depth: int) -> Value | None:
        """An iteration's slice of an argument that a loop runs over, as `scan` takes it."""
        source = self._read(start)
        if depth > 1 or not _IN_LOOP.search(source.op) or not (reads := operands(line)):
            return None
        here = _Here(reads[0].name, _elements(reads[0]), start)
        value = self._followed(here, start, False, depth + 1)
        if not value.words.startswith(("argument ", "a slice of argument ")):
            return None
        return value._replace(words=f"a slice of {value.words.removeprefix('a slice of ')}")

    def _argument(self, line: str, start: int, same: bool) -> Value:
        source = self._read(start)
        number = _PARAMETER.search(line)
        name = self._arguments.get(source.op, source.op)
        name = name or (f"number {number[1]}" if number else "")
        return Value(f"argument {name}", source, start, same) if name else NOBODY

    def _made(self, start: int, line: str, same: bool) -> Value:
        source = self._read(start)
        if not source.source and "/" not in source.op:
            return NOBODY
        return Value(_called(source, opcode(line)), source, start, same)

    def source_of_part(self, value: Value, start: int, kind: str, number: int) -> InstructionSource:
        """Where one part of a combined collective comes from.

        The metadata of the collective is that of one of its members, so a sum is what makes the
        operand, and what is moved is for the operation that reads it.
        """
        if kind in _SUMS and value.start >= 0 and self._read(value.start).source:
            return self._read(value.start)
        parts = self.module.users(start, limit=_MOST_PARTS)
        mine = [u for u in parts if _is_part(self.module.line_at(u), number)]
        users = [source for u in mine if _is_named(source := self._user(u))]
        return users[0] if users else self._read(value.start) if _is_op(value) else NO_SOURCE

    def cause(
        self,
        value: Value,
        start: int,
        kind: str,
        axes: Sequence[str],
        own: InstructionSource | None = None,
    ) -> str:
        """Why a collective is there, in one sentence.

        Args:
            value: what its operand is.
            start: the position of its line.
            kind: what kind it is.
            axes: the mesh axes it runs over.
            own: the operation that it is for, where its own metadata is another member's.
        """
        inside = own is None and value.start >= 0 and self._alike(start, value.start)
        own, line = own or self._read(start), self.module.line_at(start)
        inside = inside and _is_named(own)
        if inside and self._is_constraint(value.start):
            own, inside = self._user(start), False
        over = joined(axes) or "all its devices"
        if self._is_written(kind, start, own):
            who = who_wrote(self._inside(start, own.op), axes)
            return f"{who}: {_called(own, kind)}, of {_known(value)}."
        if value.start < 0:
            return f"Its operand is unknown: the compiler's text does not say what {_does(kind)}."
        if value.on_one:
            asks = _sentence(self._asked(own, start))
            return (
                f"{asks} what one device along {over} holds of {value.words}: a sum with zeros from"
                " the others brings it to all."
            )
        if kind in _SUMS:
            return self._why_summed(value, line, own, kind, over)
        if inside:
            return self._why_inside(value, start, own, kind, over)
        return self._why_moved(value, start, own, kind, axes)

    def _is_written(self, kind: str, start: int, own: InstructionSource | None = None) -> bool:
        """Whether a collective is one of `jax.lax` that the program itself has."""
        words = _WRITTEN.get(kind.removesuffix("-start").removesuffix("-done"))
        if words is None or 'is_spmd_generated="true"' in self.module.line_at(start):
            return False
        return bool(words.search((own or self._read(start)).op))

    def _inside(self, start: int, op: str) -> str:
        """The name of an operation with those of the calls around it, which the body of a
        `shard_map` has lost after the partitioner."""
        for _ in range(_FARTHEST):
            call = self._call(self.module.computation_at(start))
            if op.startswith("jit(") or call is None:
                break
            start = call.start
            if opcode(self.module.line_at(start)) == "call":
                op = f"{self._read(start).op}/{op}"
        return op

    def _why_summed(
        self, value: Value, line: str, own: InstructionSource, kind: str, over: str
    ) -> str:
        made = opcode(self.module.line_at(value.start))
        split, part = f"split over {over}", "each device has a part of the result"
        kept = ", and keeps its shard of the sum" if kind == "reduce-scatter" else ""
        if made == "dot":
            words = f"sums over its inner dimension, which is {split}"
        elif made == "convolution":
            words = f"sums over a dimension of its operands that is {split}"
        elif made == "reduce":
            words = f"{self._reducer(line)} over a dimension that is {split}"
        elif made == "scatter":
            words, part = f"writes updates that are {split}", "each device has written its own"
        elif own.op.endswith("gather") and value.source == own:
            words = f"looks up entries of an array that is {split}"
            part = "each device finds those that it holds"
        else:
            return f"Each device has a part of {value.words}: {self._together(line)} over {over}."
        remedy = ""
        if _VMAPPED_LOOP.search(own.op) and self.reducer(line) == "or":
            remedy = (
                " Under vmap a loop goes on until all are done, so every step asks all devices;"
                " under jax.shard_map each device ends its own loop."
            )
        return f"{value.words} {words}: {part}{kept}.{remedy}"

    def _together(self, line: str) -> str:
        verb = self._reducer(line)
        return "they are summed" if verb == "sums" else f"XLA {verb} of them"

    def _reducer(self, line: str) -> str:
        return REDUCES.get(self.reducer(line), "combines")

    def reducer(self, line: str) -> str:
        """The operation that a line reduces with: `add`; `""` for none."""
        called = _CALLED.search(line)
        return opcode(self.module.root(called[1])) if called else ""

    def _why_inside(
        self, value: Value, start: int, own: InstructionSource, kind: str, over: str
    ) -> str:
        """Why what XLA computes for an operation is moved before the operation is done, or after.

        XLA computes an operation in the way that it can, and brings the result into the sharding
        that propagation gave it.
        """
        called, does = _called(own, kind), _PARTS.get(kind, "parts of it are sent")
        if not self._is_result(start):
            if opcode(self.module.line_at(value.start)) == "reduce":
                return f"{called} reduces over a dimension that is split over {over}: {does}."
            return f"It is a step within {called}: {does} over {over}; why is unknown."
        if kind == "all-gather":
            return (
                f"XLA computes {called} in parts over {over}, and its result is not split: {does}."
            )
        return f"XLA computes {called} split otherwise than its result is: {does} over {over}."

    def _is_result(self, start: int) -> bool:
        """Whether the operation that a collective is for does nothing more with what it gives."""
        todo, seen = [start], set[int]()
        while todo and len(seen) < _MOST_USERS:
            for user in self.module.users(todo.pop(0), limit=_MOST_USERS):
                if user in seen or not self._alike(start, user):
                    continue
                seen.add(user)
                kind = opcode(self.module.line_at(user))
                if kind not in (*_COPIES, *_MOVES) and not kind.startswith(_COLLECTIVES):
                    return False
                todo.append(user)
        return True

    def _why_moved(
        self, value: Value, start: int, own: InstructionSource, kind: str, axes: Sequence[str]
    ) -> str:
        over, asks = joined(axes) or "devices", self._asked(own, start)
        if kind == "collective-permute":
            return (
                f"{_sentence(asks)} shards of {value.words} that other devices along {over} hold."
            )
        along = _GATHERED.search(self.module.line_at(start)) if kind == "all-gather" else None
        where = f" along dimension {along[1]}" if along and value.same else ""
        moved = f", {value.moved} before, is then" if value.moved else " is"
        split = f"{_sentence(value.words)}{moved} split over {over}{where}"
        if along and (groups := self._groups(start, int(along[1]))):
            return (
                f"{split}, and XLA cannot split {_called(own, kind)} along it: the convolution has"
                f" {groups}."
            )
        how = "without that split" if kind == "all-gather" else "split along another dimension"
        return f"{split}, and {asks} it {how}."

    def _groups(self, start: int, dimension: int) -> str:
        """The groups of the convolution that reads what is gathered, `4 groups of 8 channels`.

        XLA's partitioner splits a convolution by batch or space where it has one group, or a group
        for each channel; any other it computes on all of the input. `""` where it is none of these.
        """
        for _ in range(_FARTHEST):
            users = self.module.users(start)
            line = self.module.line_at(users[0]) if users else ""
            if not opcode(line).startswith(_COLLECTIVES) and opcode(line) not in _COPIES:
                break
            start = users[0]
        groups, labels = _FEATURE_GROUPS.search(line), _LABELS.search(line)
        if groups is None or labels is None or opcode(line) != "convolution":
            return ""
        image, kernel = operands(line)[:2]
        shape = SHAPE.search(self.module.definition(kernel.name, users[0]).partition(" = ")[2])
        if image.name != self.module.name_at(start) or labels[1][dimension] == "f" or not shape:
            return ""
        channels = int(shape[2].split(",")[labels[2].index("i")])
        many = int(groups[1])
        return f"{many} groups of {channels} channels" if many > 1 and channels > 1 else ""

    def _asked(self, own: InstructionSource, start: int) -> str:
        """What wants the value otherwise: `dot_general (mlp.py:31) needs`."""
        wants = own if _is_named(own) else self._user(start)
        last = wants.op.rpartition("/")[2]
        at = _at(wants)
        if last == "sharding_constraint":
            return f"the constraint{at} asks for"
        if last in ("reshard", "shard_map"):
            return f"the {last}{at} asks for"
        if not _is_named(wants):
            return "the result has"
        return f"{_called(wants, '')} needs"

    def _user(self, start: int) -> InstructionSource:
        """The first operation of the program that reads the result of the line at `start`."""
        todo, seen = [start], set[int]()
        while todo and len(seen) < _MOST_USERS:
            for user in self.module.users(todo.pop(0), limit=2):
                if user in seen:
                    continue
                seen.add(user)
                source = self._read(user)
                if _is_named(source):
                    return source
                todo.append(user)
        return NO_SOURCE


_PARTS = {
    "all-gather": "what each device made of it is gathered",
    "all-to-all": "its shards are exchanged",
    "collective-permute": "shards are sent to other devices",
}


def _identity(line: str) -> tuple[str, str]:
    name, frame = _OP_NAME.search(line), _FRAME.search(line)
    return name[1] if name else "", frame[0] if frame else ""


def _is_part(line: str, number: int) -> bool:
    """Whether an instruction takes one element of a tuple."""
    index = _INDEX.search(line)
    return opcode(line) == "get-tuple-element" and bool(index) and int(index[1]) == number


def _sentence(words: str) -> str:
    """The words with a capital, unless they begin with the name of an operation."""
    own = words.startswith(("argument ", "a slice ", "what ", "the "))
    return words[0].upper() + words[1:] if own else words


def _known(value: Value) -> str:
    return "an operand that the text does not name" if value.words == UNKNOWN else value.words


def _does(kind: str) -> str:
    return "it sums" if kind in _SUMS else "it gathers" if kind == "all-gather" else "it moves"


def _elements(read: Operand) -> tuple[int, ...]:
    """The element of a tuple that an operand names, `%param.1#0`."""
    return () if read.element is None else (read.element,)


def _is_op(value: Value) -> bool:
    return value.start >= 0 and _is_named(value.source)


def _is_named(source: InstructionSource) -> bool:
    return bool(source.source) or "/" in source.op


def _at(source: InstructionSource) -> str:
    return f" at {source.source}" if source.source else ""


def _called(source: InstructionSource, kind: str) -> str:
    """An operation by its name in jax and its line: `dot_general (mlp.py:31)`."""
    found = _NAME.search(source.op.rpartition("/")[2])
    name = found[0] if found else kind
    return f"{name} ({source.source})" if source.source else name


def _branches(line: str) -> list[str]:
    """The computations of a conditional, in the order of its operands."""
    if (both := _BOTH.search(line)) is not None:
        return [both[1], both[2]]
    found = _BRANCH.search(line)
    return [n.strip().lstrip("%") for n in found[1].split(",")] if found else []
