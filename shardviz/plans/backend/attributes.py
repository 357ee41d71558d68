"""Converts MLIR locations, attributes and types to plain values, once per module.

MLIR keeps one object for all equal attributes, so an AttributeCache converts each only
once, and copies of the module share the cache. jaxlib's Shardy classes convert
shardings and sharding rules. jaxlib has no classes for axis origins and propagation
steps, so their text is parsed. Types and locations are parsed too, because jaxlib 0.10
has just one class for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardviz.base.partition_spec import Spec
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.plans.backend.mlir_names import (
    RULE_ATTRIBUTE,
    SHARDING_ATTRIBUTE,
)
from shardviz.plans.plan_values import ShardingRule, Tensor

T = TypeVar("T")

_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:\d)')
_FRAME = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?"((?:[^"\\]|\\.)*)":(\d+):\d+')
_ESCAPE = re.compile(rb'\\(?:([0-9A-F]{2})|(["\\]))')

Frame = tuple[str, str]

#: Prefix of a location name that marks an inlined call; the call's number follows.
NUMBERED_CALL = "shardviz.call "


def call_around(location: Any) -> tuple[int, Any, Any] | None:
    """Splits the location of an inlined operation into the call and the rest.

    Returns the call's number, the call's location, and the operation's location inside
    the callee. None if the operation was not inlined from a call.
    """
    # jaxlib 0.10.0 has one class for all locations; newer versions have one per kind.
    if hasattr(location, "is_a_callsite"):
        if not location.is_a_callsite():
            return None
    elif not hasattr(location, "callee"):
        return None
    around = location.caller
    if not _is_name(around) or not around.name_str.startswith(NUMBERED_CALL):
        return None
    name = around.name_str
    return int(name.removeprefix(NUMBERED_CALL)), around.child_loc, location.callee


@dataclass(frozen=True)
class SourceLocation:
    """jax's name and the source lines of an MLIR operation.

    Attributes:
        op: jax's name of the operation, such as `jit(f)/dot_general`. Inside a callee,
            the name lacks the prefix of the call.
        frames: the user's source lines that led to the operation, innermost first, each
            with the name of its function, or `""`.

    >>> call = SourceLocation("jit(f)/jit(relu)", (("f.py:3", "f"),))
    >>> call.inner(SourceLocation("max")).op
    'jit(f)/jit(relu)/max'
    """

    op: str = ""
    frames: tuple[Frame, ...] = ()

    @cached_property
    def stack(self) -> tuple[str, ...]:
        """The distinct source lines, innermost first."""
        return tuple(dict.fromkeys(line for line, _ in self.frames))

    @property
    def source(self) -> str:
        """The innermost source line, or `""`."""
        return next(iter(self.stack), "")

    @property
    def last_part(self) -> str:
        """The last component of jax's name of the operation.

        >>> SourceLocation("jit(f)/pure_callback:").last_part
        'pure_callback'
        """
        return self.op.rpartition("/")[2].rstrip(":")  # callbacks end with a colon

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """Names of the user's functions, without enclosing functions; outermost first.

        >>> frames = (("f.py:3", "f.<locals>.g"), ("f.py:9", "<module>"))
        >>> SourceLocation("add", frames).calls
        ('g',)
        """
        names = []
        for _, function in reversed(self.frames):
            name = function.rpartition("<locals>.")[2]
            if name not in ("", "<module>"):
                names.append(name)
        return tuple(names)

    def inner(self, location: SourceLocation) -> SourceLocation:
        """Joins this location of a call with a location inside the callee."""
        if self == NOWHERE:
            return location
        return _joined_to(self, location)


NOWHERE = SourceLocation()


@dataclass(frozen=True)
class Call:
    """An inlined call of a function.

    Attributes:
        number: the number of the call in the module.
        location: the location of the call, relative to the calling function.
    """

    number: int
    location: SourceLocation


@lru_cache(maxsize=4096)
def source_location(location: str) -> SourceLocation:
    """Parses the text of an MLIR location.

    >>> text = 'loc("jit(f)/dot"(callsite("f"("/me/a.py":3:1 to :5) at "g"("/me/b.py":9:0))))'
    >>> source_location(text)
    SourceLocation(op='jit(f)/dot', frames=(('a.py:3', 'f'), ('b.py:9', 'g')))
    """
    name = _NAME.search(location)
    # A location without an operation name begins with a file or a callsite. The first
    # name in a callsite is a function's.
    if name is None or location.startswith("loc(callsite"):
        return SourceLocation("", _frames_in(location))
    around = location[: name.start()] + location[name.end() :]
    return _located(unescaped(name[1]), _frames_in(around))


def _located(name: str, frames: tuple[Frame, ...]) -> SourceLocation:
    # jax names an unnamed operation by its primitive and a colon.
    return SourceLocation(name.removesuffix(":"), frames)


@lru_cache(maxsize=4096)
def _frames_in(location: str) -> tuple[Frame, ...]:
    """The user's frames in the text of a location without its operation name."""
    frames: dict[Frame, None] = {}  # a dict, because jax repeats some in loops
    for function, file, line in _FRAME.findall(location):
        # "-" is MLIR's file name for a module that was parsed from memory.
        if file != "-" and is_user_file(file):
            frames[line_in_words(file, line), unescaped(function)] = None
    return tuple(frames)


def _is_name(location: Any) -> bool:
    # jaxlib 0.10.0 has one class for all locations; newer versions have one per kind.
    if hasattr(location, "is_a_name"):
        return location.is_a_name()
    return hasattr(location, "name_str")


@lru_cache(maxsize=4096)
def _joined_to(call: SourceLocation, inner: SourceLocation) -> SourceLocation:
    names = "/".join(filter(None, (call.op, inner.op)))
    if inner.op and inner.op.split("/")[0] == call.op.split("/")[0]:
        names = inner.op  # already includes the name of the call
    frames = _joined_frames(inner.frames, call.frames)
    return SourceLocation(names, tuple(dict.fromkeys(frames)))


def _joined_frames(
    inner: tuple[Frame, ...], outer: tuple[Frame, ...]
) -> tuple[Frame, ...]:
    """Joins the frames inside a call with the frames that led to the call.

    jax reuses a traced function together with the frames of its first call. The frames
    that differ from the frames of this call are left out.
    """
    shared = 0
    for inner_frame, outer_frame in zip(reversed(inner), reversed(outer), strict=False):
        if inner_frame != outer_frame:
            break
        shared += 1
    inner_only, outer_only = inner[: len(inner) - shared], outer[: len(outer) - shared]
    if (
        len(inner_only) > 1
        and outer_only
        and _function(inner_only[-1]) == _function(outer_only[-1]) != ("", "")
    ):
        inner_only = inner_only[:-1]
    return (*inner_only, *outer)


def _function(frame: Frame) -> tuple[str, str]:
    """File and function name of a frame; both empty if the function has no name."""
    if not frame[1]:
        return "", ""
    return frame[0].rpartition(":")[0], frame[1]


def unescaped(text: str) -> str:
    """Decodes the escapes in a string of MLIR text.

    >>> unescaped("say \\\\22hello\\\\22")
    'say "hello"'
    """
    if "\\" not in text:
        return text
    # Each code is one byte of UTF-8, so a non-ASCII letter takes several codes.
    raw = _ESCAPE.sub(
        lambda m: m[2] or bytes([int(m[1], 16)]), text.encode(errors="replace")
    )
    return raw.decode(errors="replace")


_AXIS = r'"((?:[^"\\]|\\.)*)"(:\(\d+\)\d+)?'
_ONE_AXIS = re.compile(_AXIS)
_MAP = re.compile(r"\{[^{}]*\}")
_ORIGIN = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([\w.$]+)) = "([^"]*)"')
_STEP = re.compile(r"\{step-(\d+) = \[")
_EDGE = re.compile(_AXIS + r" = (\w+-\d+) -> \[([^\]]*)\]")
_EDGES = re.compile(r"#sdy\.propagation_edges<.*?\]>")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^,]+?)(?:, .*)?>")
_LETTERS = "ijklmnopqrstuvwxyz"

_DTYPES = {
    "i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3": "float8_e4m3",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E3M4": "float8_e3m4",
    "f8E8M0FNU": "float8_e8m0fnu", "f4E2M1FN": "float4_e2m1fn",
}  # fmt: skip


class Edge(NamedTuple):
    """One propagation step across an operation, from one operand or result to others.

    `source` and `targets` have the form `"operand-0"` or `"result-0"`.
    """

    number: int
    axis: str
    source: str
    targets: tuple[str, ...]


def parse_axes(text: str) -> tuple[str, ...]:
    """Parses quoted mesh axes; a sub-axis becomes `data:(1)2`.

    >>> parse_axes('{"data", "model":(1)2}')
    ('data', 'model:(1)2')
    """
    return tuple(unescaped(name) + part for name, part in _ONE_AXIS.findall(text))


@lru_cache(maxsize=16384)
def parse_origins(text: str) -> tuple[dict[str, str], ...]:
    """Parses axis origins: one map per value, from mesh axis to name of the origin.

    >>> parse_origins('[{data = "input: 2", "a b" = "self"}, {}]')
    ({'data': 'input: 2', 'a b': 'self'}, {})
    """
    maps = []
    for part in _MAP.findall(text):
        origins = {}
        for quoted, bare, name in _ORIGIN.findall(part):
            # MLIR quotes only names that aren't identifiers.
            origins[unescaped(quoted) or bare] = name
        maps.append(origins)
    return tuple(maps)


def parse_edges(text: str) -> tuple[Edge, ...]:
    """Parses the propagation steps in the text of one `sdy.propagation_edges`.

    >>> text = '#sdy.propagation_edges<[{step-3 = [{"a" = operand-0 -> [result-0]}]}]>'
    >>> parse_edges(text)[0].targets
    ('result-0',)
    """
    edges = []
    _, *steps = _STEP.split(text)
    for number, moves in zip(steps[::2], steps[1::2], strict=True):
        for axis, source, targets in _parse_moves(moves):
            edges.append(Edge(int(number), axis, source, targets))
    return tuple(edges)


# Operations differ in the numbers of their steps, but rarely in the rest.
@lru_cache(maxsize=4096)
def _parse_moves(text: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Axis, source and targets of each edge in the text of one step."""
    moves = []
    for name, part, source, targets in _EDGE.findall(text):
        moves.append((unescaped(name) + part, source, tuple(targets.split(", "))))
    return tuple(moves)


def parse_edge_lists(text: str) -> tuple[tuple[Edge, ...], ...]:
    """Parses a list of `sdy.propagation_edges`, one entry per value."""
    return tuple(parse_edges(part) for part in _EDGES.findall(text))


def parse_tensor(text: str) -> tuple[tuple[int, ...], str] | None:
    """Parses shape and dtype from a tensor type; None for another type.

    >>> parse_tensor("tensor<64x512xbf16>"), parse_tensor("!stablehlo.token")
    (((64, 512), 'bfloat16'), None)
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        return None
    shape = tuple(int(size) for size in match[1].split("x") if size)
    # MLIR has signless and signed integers; numpy has one name for both.
    integer = re.sub(r"^s?(u?)i(\d+)$", r"\1int\2", match[2])
    return shape, _DTYPES.get(match[2], integer)


def factor_name(number: int) -> str:
    """Returns Shardy's name of a factor.

    >>> factor_name(0), factor_name(17), factor_name(18)
    ('i', 'z', 'z_1')
    """
    if number < len(_LETTERS):
        return _LETTERS[number]
    return f"z_{number - len(_LETTERS) + 1}"


def _factors(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(map(factor_name, numbers))


class _Converted(dict[Any, T]):
    """Attribute or type -> its conversion, which is computed when first asked for.

    Args:
        convert: converts an attribute.
        missing: the conversion of None, for an operation without the attribute.
    """

    def __init__(self, convert: Callable[[Any], T], missing: T) -> None:
        super().__init__({None: missing})
        self._convert = convert

    def __missing__(self, attribute: Any) -> T:
        converted = self[attribute] = self._convert(attribute)
        return converted


class AttributeCache:
    """Converts attributes of a module and its copies. Must not outlive the modules.

    Attributes:
        text_of: converts an attribute to its text; None to `""`.
        specs_of: converts an attribute that holds one sharding, or one per value, to
            specs; None to `()`.
        rule_of: converts the attribute of a sharding rule; None to None.
        tensor_of: converts a tensor type to shape and dtype, and any other type to
            None.
    """

    def __init__(self) -> None:
        # Reading a dict takes a fraction of the time of a call, and a program has tens
        # of thousands of attributes.
        self.text_of = _Converted[str](str, "").__getitem__
        self.specs_of = _Converted[tuple[Spec, ...]](_read_specs, ()).__getitem__
        self.rule_of = _Converted[ShardingRule | None](read_rule, None).__getitem__
        tensors = _Converted[tuple[tuple[int, ...], str] | None](_read_tensor, None)
        self.tensor_of = tensors.__getitem__
        self._frames_of = _Converted[tuple[Frame, ...]](_frames_of, ()).__getitem__
        self._located: dict[Any, tuple[SourceLocation, tuple[Call, ...]]] = {}

    def text(self, op: ir.Operation, name: str) -> str:
        """The text of an attribute; `""` if the operation has no such attribute."""
        return self.text_of(op.attributes.get(name))

    def specs(
        self, op: ir.Operation, name: str = SHARDING_ATTRIBUTE
    ) -> tuple[Spec, ...]:
        """The specs in a sharding attribute of an operation, one per value, or `()`."""
        return self.specs_of(op.attributes.get(name))

    def rule(self, op: ir.Operation) -> ShardingRule | None:
        """The sharding rule of an operation, or None."""
        return self.rule_of(op.attributes.get(RULE_ATTRIBUTE))

    def tensor(self, value: ir.Value) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of a value, or None if it isn't a tensor."""
        return self.tensor_of(value.type)

    def location(self, op: ir.Operation) -> SourceLocation:
        """The source location of an operation or a value, relative to its function."""
        return self._placed(op.location)[0]

    def calls(self, op: ir.Operation) -> tuple[Call, ...]:
        """The inlined calls that contained an operation, outermost first."""
        return self._placed(op.location)[1]

    def _placed(self, location: ir.Location) -> tuple[SourceLocation, tuple[Call, ...]]:
        key = location.attr
        placed = self._located.get(key)
        if placed is None:
            around = call_around(location)
            if around is None:
                placed = self._source(location), ()
            else:
                number, call, inlined = around
                at, outer = self._placed(call)
                placed = self._placed(inlined)[0], (*outer, Call(number, at))
            self._located[key] = placed
        return placed

    def _source(self, location: Any) -> SourceLocation:
        if not _is_name(location):
            return source_location(str(location))
        # Printing a location takes long. Layers that share the code share the frames.
        frames = self._frames_of(location.child_loc.attr)
        return _located(location.name_str, frames)


def _frames_of(attribute: ir.Attribute) -> tuple[Frame, ...]:
    return _frames_in(str(attribute))


def _read_tensor(type_: Any) -> tuple[tuple[int, ...], str] | None:
    return parse_tensor(str(type_))


def _read_specs(attribute: ir.Attribute) -> tuple[Spec, ...]:
    if sdy.TensorShardingAttr.isinstance(attribute):
        return (_read_spec(attribute),)
    shardings = sdy.TensorShardingPerValueAttr(attribute).shardings
    return tuple(map(_read_spec, shardings))


def _read_spec(attribute: ir.Attribute) -> Spec:
    sharding, dims = sdy.TensorShardingAttr(attribute), []
    for dim in sharding.dimension_shardings:
        dims.append(tuple(map(_axis, sdy.DimensionShardingAttr(dim).axes)))
    unreduced = frozenset(map(_axis, sharding.unreduced_axes))
    if unreduced:
        # jaxlib 0.10 has only sums.
        kind = getattr(getattr(sharding, "reduction_op", None), "name", "sum").lower()
        return Spec(tuple(dims), unreduced=unreduced, unreduced_kind=kind)
    return Spec.trusted(tuple(dims))


def _axis(attribute: ir.Attribute) -> str:
    axis = sdy.AxisRefAttr(attribute)
    if (part := axis.sub_axis_info) is None:
        return axis.name
    part = sdy.SubAxisInfoAttr(part)
    return f"{axis.name}:({part.pre_size}){part.size}"


def read_rule(attribute: ir.Attribute) -> ShardingRule:
    """Converts a sharding rule attribute."""
    rule = sdy.OpShardingRuleAttr(attribute)
    sizes = {factor_name(n): size for n, size in enumerate(rule.factor_sizes)}
    return ShardingRule(
        tuple(map(_read_mapping, rule.operand_mappings)),
        tuple(map(_read_mapping, rule.result_mappings)),
        sizes,
        _factors(rule.reduction_factors),
        _factors(rule.need_replication_factors),
        _factors(rule.permutation_factors),
        _factors(rule.blocked_propagation_factors),
    )


def _read_mapping(attribute: ir.Attribute) -> Tensor:
    dims = []
    for dim in sdy.TensorMappingAttr(attribute).dim_mappings:
        dims.append(_factors(sdy.DimMappingAttr(dim).factor_indices))
    return tuple(dims)


def named_attribute(
    function: ir.Operation, kind: str, number: int, name: str = SHARDING_ATTRIBUTE
) -> Any:
    """An attribute of an argument (`"arg_attrs"`) or result (`"res_attrs"`) or None."""
    if kind not in function.attributes:
        return None
    # A list of dictionaries; jaxlib's type stubs only know the base class.
    attributes: Any = function.attributes[kind]
    if name not in attributes[number]:
        return None
    return attributes[number][name]


def open_dims(sharding: Any) -> tuple[int, ...]:
    """The dimensions of a sharding to which Shardy may add axes."""
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    closed = [sdy.DimensionShardingAttr(dim).is_closed for dim in dims]
    return tuple(dim for dim, is_closed in enumerate(closed) if not is_closed)


def value_of(op: ir.Operation, name: str) -> Any:
    """The value of an attribute: text, a number, or the name of a function."""
    # jaxlib's type stubs only know the base class.
    attribute: Any = op.attributes[name]
    return attribute.value


def defining_op(value: ir.Value) -> Any:
    """The operation that defines a value, or None for a block argument."""
    owner = value.owner
    if not hasattr(owner, "attributes"):
        return None
    return getattr(owner, "operation", owner)
