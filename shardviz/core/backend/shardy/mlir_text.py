"""MLIR attributes, types and locations as values; each read once per module.

The same few texts come back on thousands of operations, so each is read once.

MLIR keeps one object for all that are equal, and writing one out costs more than all else that is
done with it. So each is written out once a module, and copies of the module share what was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from shardviz.core.hlo.sources import is_user_file, line_in_words
from shardviz.core.layout.partition_spec import Spec

_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:\d)')
_FRAME = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?"((?:[^"\\]|\\.)*)":(\d+):\d+')
_CODE = re.compile(r"\\([0-9A-F]{2})")

Frame = tuple[str, str]


@dataclass(frozen=True)
class SourceLocation:
    """Where an operation comes from.

    Attributes:
        op: its name in jax: `jit(f)/dot_general`; inside of a function that is called, only what
            follows the name of the call.
        frames: the lines of the user's code that led to it, innermost first, each with the
            function that it stands in, or `""`.

    >>> Place("jit(f)/jit(relu)", (("f.py:3", "f"),)).inner(Place("max")).op
    'jit(f)/jit(relu)/max'
    """

    op: str = ""
    frames: tuple[Frame, ...] = ()

    @staticmethod
    def of_lines(op: str, lines: tuple[str, ...]) -> SourceLocation:
        """A place of which only the lines are known."""
        return SourceLocation(op, tuple((line, "") for line in lines))

    @staticmethod
    def told(op: str, frames: Iterable[Frame]) -> SourceLocation:
        """A place with each frame once: in loops and calls jax tells of some twice."""
        return SourceLocation(op, tuple(dict.fromkeys(frames)))

    @cached_property
    def stack(self) -> tuple[str, ...]:
        """The lines alone, innermost first, each once."""
        return tuple(dict.fromkeys(line for line, _ in self.frames))

    @property
    def source(self) -> str:
        """The innermost line, or `""`."""
        return self.stack[0] if self.stack else ""

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The functions by their own names, outermost first; the code outside of any left out.

        >>> Place("add", (("f.py:3", "f.<locals>.g"), ("f.py:9", "<module>"))).calls
        ('g',)
        """
        names = (name.rpartition("<locals>.")[2] for _, name in reversed(self.frames))
        return tuple(name for name in names if name not in ("", "<module>"))

    def inner(self, place: SourceLocation) -> SourceLocation:
        """A place inside of the function that is called here, told from the outside."""
        return _inside(self, place) if self.op or self.frames else place


NOWHERE = SourceLocation()


@lru_cache(maxsize=4096)
def source_location(location: str) -> SourceLocation:
    """The place that the text of an MLIR location tells of.

    >>> place('loc("jit(f)/dot"(callsite("f"("/me/a.py":3:1 to :5) at "g"("/me/b.py":9:0))))')
    Place(op='jit(f)/dot', frames=(('a.py:3', 'f'), ('b.py:9', 'g')))
    """
    found = _NAME.search(location)
    # A location without a name begins with a file, or with the name of a function in a callsite.
    named = found is not None and not location.startswith("loc(callsite")
    name_at = found.start() if found else -1
    frames: list[Frame] = []
    for match in _FRAME.finditer(location):
        function, file, line = match.groups()
        if named and match.start() == name_at:
            function = ""  # the name of the operation, which may be all that is before a file
        frames += frame(unescaped(function or ""), file, line)
    return SourceLocation.told(unescaped(found[1]) if found and named else "", frames)


def frame(function: str, file: str, line: str | int) -> tuple[Frame, ...]:
    """A frame of the user's code; of none where the file is not the user's.

    >>> frame("f", "/me/a.py", 3), frame("f", "-", 3)
    ((('a.py:3', 'f'),), ())
    """
    # MLIR calls text that was read from memory "-": a place in the module, in nobody's code.
    if file == "-" or not is_user_file(file):
        return ()
    return ((line_in_words(file, str(line)), function),)


@lru_cache(maxsize=4096)
def _inside(call: SourceLocation, place: SourceLocation) -> SourceLocation:
    names = "/".join(part for part in (call.op, place.op) if part)
    if place.op and place.op.split("/")[0] == call.op.split("/")[0]:
        names = place.op  # it is told from the outside already
    return SourceLocation.told(names, _joined(place.frames, call.frames))


def _joined(inner: tuple[Frame, ...], outer: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames inside of a call with those that led to it.

    jax keeps a function that it has traced, with the lines that called it first; what differs in
    them from this call is left out.
    """
    shared = 0
    while shared < min(len(inner), len(outer)) and inner[-1 - shared] == outer[-1 - shared]:
        shared += 1
    own, rest = inner[: len(inner) - shared], outer[: len(outer) - shared]
    if len(own) > 1 and rest and _function(own[-1]) == _function(rest[-1]) != ("", ""):
        own = own[:-1]
    return (*own, *outer)


def _function(frame: Frame) -> tuple[str, str]:
    """File and name of the function that a frame stands in."""
    return (frame[0].rpartition(":")[0], frame[1]) if frame[1] else ("", "")


def unescaped(text: str) -> str:
    """A string of MLIR's text as it was.

    >>> unescaped("say \\\\22hello\\\\22")
    'say "hello"'
    """
    if "\\" not in text:
        return text
    raw = _CODE.sub(lambda code: chr(int(code[1], 16)), text)
    return raw.replace('\\"', '"').replace("\\\\", "\\")


_AXIS = r'"((?:[^"\\]|\\.)*)"(:\(\d+\)\d+)?'
_DIM = re.compile(r"\{([^}]*)\}")
_ONE_AXIS = re.compile(_AXIS)
_SHARDING = re.compile(r"<@[^,]*, \[([^\]]*)\]((?:, \w+=\{[^}]*\})*)>")
_UNREDUCED = re.compile(r"unreduced=\{([^}]*)\}")
_MAP = re.compile(r"\{[^{}]*\}")
_ORIGIN = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([\w.$]+)) = "([^"]*)"')
_STEP = re.compile(r"\{step-(\d+) = \[(.*?)\]\}(?=, \{step|\]>)")
_EDGE = re.compile(_AXIS + r" = (\w+)-(\d+) -> \[([^\]]*)\]")
_END = re.compile(r"(operand|result)-(\d+)")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^,]+?)(?:, .*)?>")

_DTYPES = {
    "i1": "bool",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E4M3": "float8_e4m3",
    "f8E3M4": "float8_e3m4",
    "f8E8M0FNU": "float8_e8m0fnu",
    "f4E2M1FN": "float4_e2m1fn",
}


@dataclass(frozen=True)
class Edge:
    """One step of the propagation across one operation, by numbers.

    Attributes:
        number: when it happened.
        axis: what moved.
        origin: `("operand", 0)` or `("result", 0)`.
        to: the same, for each value that it reached.
    """

    number: int
    axis: str
    origin: tuple[str, int]
    to: tuple[tuple[str, int], ...]


@lru_cache(maxsize=16384)
def parse_specs(text: str) -> tuple[Spec, ...]:
    """The specs in the text of one sharding, or of one a value.

    >>> specs('#sdy.sharding<@mesh, [{"data", "model":(1)2}, {}]>')
    (P(('data', 'model:(1)2'), None),)
    """
    return tuple(_spec(dims, marks) for dims, marks in _SHARDING.findall(text))


def _spec(dims: str, marks: str) -> Spec:
    split = tuple(parse_axes(dim) for dim in _DIM.findall(dims))
    unreduced = _UNREDUCED.search(marks)
    if unreduced is None:
        return Spec.trusted(split)
    return Spec(split, unreduced=frozenset(parse_axes(unreduced[1])))


def parse_axes(text: str) -> tuple[str, ...]:
    """The mesh axes that a text quotes; a part of one as `data:(1)2`.

    >>> axes('{"data", "model":(1)2}')
    ('data', 'model:(1)2')
    """
    return tuple(unescaped(name) + part for name, part in _ONE_AXIS.findall(text))


@lru_cache(maxsize=16384)
def parse_origins(text: str) -> tuple[dict[str, str], ...]:
    """Mesh axis to the name of its origin, one map a value.

    >>> origins('[{data = "input: 2", "a b" = "self"}, {}]')
    ({'data': 'input: 2', 'a b': 'self'}, {})
    """
    return tuple(
        {unescaped(quoted) or bare: name for quoted, bare, name in _ORIGIN.findall(part)}
        for part in _MAP.findall(text)
    )


@lru_cache(maxsize=16384)
def parse_edges(text: str) -> tuple[Edge, ...]:
    """The steps in the text of one `sdy.propagation_edges`.

    >>> edges('#sdy.propagation_edges<[{step-3 = [{"a" = operand-0 -> [result-0]}]}]>')[0].to
    (('result', 0),)
    """
    found = []
    for number, moves in _STEP.findall(text):
        for name, part, kind, index, ends in _EDGE.findall(moves):
            to = tuple((k, int(i)) for k, i in _END.findall(ends))
            found.append(Edge(int(number), unescaped(name) + part, (kind, int(index)), to))
    return tuple(found)


@lru_cache(maxsize=4096)
def parse_edge_lists(text: str) -> tuple[tuple[Edge, ...], ...]:
    """The steps in the text of a list of `sdy.propagation_edges`, one entry a value."""
    return tuple(parse_edges(part) for part in re.findall(r"#sdy\.propagation_edges<.*?\]>", text))


@lru_cache(maxsize=4096)
def parse_tensor(text: str) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of the text of a tensor's type, or None for another type.

    >>> tensor("tensor<64x512xbf16>"), tensor("!stablehlo.token")
    (((64, 512), 'bfloat16'), None)
    """
    found = _TENSOR.fullmatch(text)
    if found is None:
        return None
    shape = tuple(int(size) for size in found[1].split("x") if size)
    return shape, parse_dtype(found[2])


def parse_dtype(text: str) -> str:
    """numpy's name of an element type.

    >>> dtype("ui8"), dtype("i4"), dtype("f32")
    ('uint8', 'int4', 'float32')
    """
    if text in _DTYPES:
        return _DTYPES[text]
    found = re.fullmatch(r"(s|u|)i(\d+)", text)
    return f"{'u' if found[1] == 'u' else ''}int{found[2]}" if found else text


Tensor = tuple[tuple[int, ...], str]


class AttributeCache:
    """What was read of one module and its copies; lives no longer than they do."""

    def __init__(self) -> None:
        self._places: dict[Any, SourceLocation] = {}
        self._frames: dict[Any, tuple[Frame, ...] | None] = {}
        self._tensors: dict[Any, Tensor | None] = {}
        self._attributes: dict[Any, str] = {}

    def place(self, op: Any) -> SourceLocation:
        """Where an operation, or a value, comes from."""
        location = op.location
        key = location.attr
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = self._placed(location) or source_location(str(location))
        return found

    def _placed(self, location: Any) -> SourceLocation | None:
        """The place that a location tells of, unless its parts do not say what they are."""
        if hasattr(location, "is_a_name"):
            # jaxlib 0.10.0 has one class for all kinds, and crashes where one is asked for what
            # another has; its text is read.
            return None
        name = getattr(location, "name_str", "")
        inner = location.child_loc if name else location
        file = getattr(inner, "filename", None)
        # A name around a file alone is that of the operation, not of a function.
        frames = self._frames_of(inner) if file is None else frame("", file, inner.start_line)
        return None if frames is None else SourceLocation.told(name, frames)

    def _frames_of(self, location: Any) -> tuple[Frame, ...] | None:
        key = location.attr
        if key not in self._frames:
            self._frames[key] = self._read_frames(location)
        return self._frames[key]

    def _read_frames(self, location: Any) -> tuple[Frame, ...] | None:
        # jaxlib gives each kind of location a class; where one has none of these, its text is read.
        if (callee := getattr(location, "callee", None)) is not None:
            inner, outer = self._frames_of(callee), self._frames_of(location.caller)
            return None if inner is None or outer is None else inner + outer
        if (child := getattr(location, "child_loc", None)) is not None:
            file = getattr(child, "filename", None)
            if file is None:
                return self._frames_of(child)
            return frame(location.name_str, file, child.start_line)
        file = getattr(location, "filename", None)
        return None if file is None else frame("", file, location.start_line)

    def tensor(self, value: Any) -> Tensor | None:
        """Shape and dtype of a value, or None where it is no tensor."""
        key = value.type
        if key in self._tensors:
            return self._tensors[key]
        found = self._tensors[key] = parse_tensor(str(key))
        return found

    def attribute(self, op: Any, name: str) -> str:
        """The text of an attribute; `""` where the operation has none of that name."""
        given = op.attributes.get(name)
        return "" if given is None else self.text(given)

    def text(self, attribute: Any) -> str:
        """The text of an attribute itself."""
        found = self._attributes.get(attribute)
        if found is None:
            found = self._attributes[attribute] = str(attribute)
        return found
