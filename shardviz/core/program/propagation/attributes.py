"""Shardy's attributes, read from their text: shardings, origins, propagation edges, types.

The same few texts come back on thousands of operations, so each is read once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from shardviz.core.layout.spec import Spec
from shardviz.core.program.propagation.locations import unescaped

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
_PART = re.compile(r":\(\d+\)\d+$")
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
def specs(text: str) -> tuple[Spec, ...]:
    """The specs in the text of one sharding, or of one a value.

    >>> specs('#sdy.sharding<@mesh, [{"data", "model":(1)2}, {}]>')
    (P(('data', 'model:(1)2'), None),)
    """
    return tuple(_spec(dims, marks) for dims, marks in _SHARDING.findall(text))


def _spec(dims: str, marks: str) -> Spec:
    split = tuple(axes(dim) for dim in _DIM.findall(dims))
    unreduced = _UNREDUCED.search(marks)
    if unreduced is None:
        return Spec.trusted(split)
    return Spec(split, unreduced=frozenset(axes(unreduced[1])))


def axes(text: str) -> tuple[str, ...]:
    """The mesh axes that a text quotes; a part of one as `data:(1)2`.

    >>> axes('{"data", "model":(1)2}')
    ('data', 'model:(1)2')
    """
    return tuple(unescaped(name) + part for name, part in _ONE_AXIS.findall(text))


@lru_cache(maxsize=4096)
def parent(axis: str) -> str:
    """The mesh axis that an axis is a part of, or itself.

    >>> parent("data:(1)2"), parent("data")
    ('data', 'data')
    """
    return _PART.sub("", axis)


@lru_cache(maxsize=16384)
def origins(text: str) -> tuple[dict[str, str], ...]:
    """Mesh axis to the name of its origin, one map a value.

    >>> origins('[{data = "input: 2", "a b" = "self"}, {}]')
    ({'data': 'input: 2', 'a b': 'self'}, {})
    """
    return tuple(
        {unescaped(quoted) or bare: name for quoted, bare, name in _ORIGIN.findall(part)}
        for part in _MAP.findall(text)
    )


@lru_cache(maxsize=16384)
def edges(text: str) -> tuple[Edge, ...]:
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
def edge_lists(text: str) -> tuple[tuple[Edge, ...], ...]:
    """The steps in the text of a list of `sdy.propagation_edges`, one entry a value."""
    return tuple(edges(part) for part in re.findall(r"#sdy\.propagation_edges<.*?\]>", text))


@lru_cache(maxsize=4096)
def tensor(text: str) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of the text of a tensor's type, or None for another type.

    >>> tensor("tensor<64x512xbf16>"), tensor("!stablehlo.token")
    (((64, 512), 'bfloat16'), None)
    """
    found = _TENSOR.fullmatch(text)
    if found is None:
        return None
    shape = tuple(int(size) for size in found[1].split("x") if size)
    return shape, dtype(found[2])


def dtype(text: str) -> str:
    """numpy's name of an element type.

    >>> dtype("ui8"), dtype("i4"), dtype("f32")
    ('uint8', 'int4', 'float32')
    """
    if text in _DTYPES:
        return _DTYPES[text]
    found = re.fullmatch(r"(s|u|)i(\d+)", text)
    return f"{'u' if found[1] == 'u' else ''}int{found[2]}" if found else text
