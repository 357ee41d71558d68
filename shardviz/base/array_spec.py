"""ArraySpec: describes an array, which need not exist, and how to split it."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np

from shardviz.base.display import Displayed
from shardviz.base.errors import LayoutError, RuleError
from shardviz.base.format import listed, plural, shown, suggestion
from shardviz.base.parse import (
    DIGITS,
    NAME,
    check_name,
    check_size,
    limited,
    name_in,
    scan,
    typed_name,
)
from shardviz.base.partition_spec import (
    MAX_RANK,
    Spec,
    is_unconstrained,
    rank_problem,
)
from shardviz.base.typing import NamesLike, ShapeLike

MAX_DIM = 1 << 48
MAX_ELEMENTS = 1 << 60

# Bits per element, and the short dtype names that users and XLA write. The 4-bit and
# 8-bit floats come from ml_dtypes, which may not be installed.
DTYPE_BITS: dict[str, int] = {"bool": 8, "bfloat16": 16, "float4_e2m1fn": 4}
_SHORT = {"bf16": "bfloat16", "pred": "bool"}
_TO_SHORT = {"bool": "bool", "bfloat16": "bf16"}
_FAMILIES = {
    "float": ("f", (16, 32, 64)),
    "complex": ("c", (64, 128)),
    "int": ("i", (2, 4, 8, 16, 32, 64)),
    "uint": ("u", (2, 4, 8, 16, 32, 64)),
}
for _family, (_letter, _all_bits) in _FAMILIES.items():
    for _bits_ in _all_bits:
        DTYPE_BITS[f"{_family}{_bits_}"] = _bits_
        _SHORT[f"{_letter}{_bits_}"] = f"{_family}{_bits_}"
        _TO_SHORT[f"{_family}{_bits_}"] = f"{_letter}{_bits_}"
        if _family == "int":  # XLA's name, such as s32
            _SHORT[f"s{_bits_}"] = f"int{_bits_}"
for _form in [
    "e3m4",
    "e4m3",
    "e4m3b11fnuz",
    "e4m3fn",
    "e4m3fnuz",
    "e5m2",
    "e5m2fnuz",
    "e8m0fnu",
]:
    DTYPE_BITS[f"float8_{_form}"] = 8

# What jax reads as True in an environment variable.
_TRUE = ("y", "yes", "t", "true", "on", "1")

# The dtypes to which jax narrows 64-bit numpy arrays, unless its x64 mode is on.
_NARROW = {
    "int64": "int32",
    "uint64": "uint32",
    "float64": "float32",
    "complex128": "complex64",
}

# jax's default dtypes for Python scalars, unless its x64 mode is on.
_PYTHON = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}


@dataclass(frozen=True, repr=False)
class ArraySpec(Displayed):
    """The description of an array; create one with `shardviz.array`.

    Attributes:
        name: the array's name in pictures and sentences.
        shape: the global shape, in elements.
        logical: one logical axis name per dimension (None for an unnamed one), or None.
        dtype: the name of the element type, such as `"bfloat16"`.
        spec: a PartitionSpec that overrides any rules, or None.
        memory_kind: jax's name for the memory that holds the array (`"pinned_host"`);
            None for the device's default memory.
        weak_type: True if jax may promote the dtype to the dtype of another operand, as
            for a Python scalar.
        uncommitted: True if the array is uncommitted in jax's sense, that is, not
            explicitly placed on devices. If an uncommitted array has no spec and no
            rules, the compiler chooses how to split it.

    Raises:
        LayoutError: for an invalid shape or dtype.
        RuleError: for logical names that do not fit the shape.

    >>> import shardviz as sv
    >>> sv.ArraySpec("w", (512, 2048), "embed mlp", "bfloat16").bytes
    2097152
    """

    _adds = ("bytes",)

    name: str
    shape: tuple[int, ...]
    logical: tuple[str | None, ...] | None = None
    dtype: str = "float32"
    spec: Spec | None = None
    memory_kind: str | None = None
    weak_type: bool = False
    uncommitted: bool = False

    def __post_init__(self) -> None:
        fields = self.__dict__  # the class is frozen
        fields["name"] = check_name(self.name, "an array", LayoutError)
        fields["shape"] = shape = read_shape(self.shape)
        fields["dtype"] = dtype_name(self.dtype)
        if self.logical is not None:
            fields["logical"] = names = read_names(self.logical)
            if len(names) != len(shape):
                raise RuleError(
                    f"{self.name} has {plural(len(shape), 'dimension')} and"
                    f" {plural(len(names), 'logical name')}. Give one name per dimension;"
                    " write _ for a dimension without one."
                )
        if isinstance(self.spec, str):
            fields["spec"] = Spec.parse(self.spec)
        if self.spec is not None and (problem := rank_problem(self.spec, len(shape))):
            raise LayoutError(str(problem))
        if self.memory_kind is not None:
            check_name(self.memory_kind, "a memory kind", LayoutError)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def bytes(self) -> int:
        """The size of the global array, in bytes."""
        return size_in_bytes(math.prod(self.shape), self.dtype)

    @property
    def short(self) -> str:
        """Type and shape in short form: `bf16[512, 2048]`."""
        return f"{_TO_SHORT.get(self.dtype, self.dtype)}[{', '.join(map(str, self.shape))}]"

    def replace(self, **changes: Any) -> ArraySpec:
        """Returns a copy with some fields changed, validated like a new ArraySpec."""
        return replace(self, **changes)

    # Audits rename thousands of arrays, so the other fields are not validated again.
    def renamed(self, name: str, checked: bool = False) -> ArraySpec:
        """Returns a copy with another name.

        Args:
            name: the new name.
            checked: True if the name is already validated.

        Raises:
            LayoutError: for an invalid name.
        """
        if not checked:
            check_name(name, "an array", LayoutError)
        copy = object.__new__(ArraySpec)
        copy.__dict__.update(self.__dict__, name=name)
        return copy

    def __repr__(self) -> str:
        parts = [repr(self.name), str(self.shape)]
        if self.logical is not None:
            parts.append(repr(format_names(self.logical)))
        parts.append(f"dtype={self.dtype!r}")
        if self.spec is not None:
            parts.append(f"spec={self.spec}")
        if self.memory_kind is not None:
            parts.append(f"memory_kind={self.memory_kind!r}")
        for mark in ("weak_type", "uncommitted"):
            if getattr(self, mark):
                parts.append(f"{mark}=True")
        return f"ArraySpec({', '.join(parts)})"


def size_in_bytes(elements: int, dtype: str) -> int:
    """Returns the bytes of a number of elements; types below 8 bits are packed.

    >>> size_in_bytes(3, "int4"), size_in_bytes(3, "float32")
    (2, 12)
    """
    # A random key (`key<fry>`) has two or four 32-bit words. Assume threefry, jax's
    # default, which has two.
    bits = 64 if dtype.startswith("key<") else DTYPE_BITS[dtype]
    return (elements * bits + 7) // 8


@lru_cache(maxsize=256)
def _dtype_from_text(text: str) -> str:
    name = _SHORT.get(text.strip().lower(), text.strip())
    if name in DTYPE_BITS or re.fullmatch(r"key<[a-z_0-9]+>", name):
        return name
    candidates = [*DTYPE_BITS, *_SHORT]
    for python_type, default in _PYTHON.items():
        # For `float`, suggest jax's default float dtype, not the closest spelling.
        if name.lower() == python_type.__name__:
            candidates = [default]
    raise LayoutError(
        f"No element type is called {shown(text)}.{suggestion(text, candidates)}"
    )


def dtype_name(dtype: object) -> str:
    """Returns the full name of a dtype given by name, short name, or numpy or jax type.

    Raises:
        LayoutError: if `dtype` is not an element type.

    >>> import numpy as np
    >>> dtype_name("bf16"), dtype_name(np.float32), dtype_name(np.dtype("int8"))
    ('bfloat16', 'float32', 'int8')
    """
    if isinstance(dtype, str):
        return _dtype_from_text(dtype)
    if isinstance(dtype, type) and dtype in _PYTHON:
        return dtype_name(array_dtype(dtype()))
    attribute = getattr(dtype, "dtype", None)  # jnp.bfloat16 has one
    dtype_object = attribute if hasattr(attribute, "itemsize") else dtype
    name = getattr(dtype_object, "name", None)
    name = name or getattr(dtype_object, "__name__", None)
    # A numpy scalar is accepted in place of its type; an array is not.
    array = hasattr(dtype, "__array__") and not isinstance(dtype, type)
    if not isinstance(name, str) or (array and getattr(dtype, "shape", None) != ()):
        raise LayoutError(
            f"An element type has a name such as 'bfloat16'; got {shown(dtype)}."
        )
    return _dtype_from_text(name)


def read_shape(shape: ShapeLike) -> tuple[int, ...]:
    """Reads a shape from a tuple, one number, or text such as `512, 2048` or `8x4`.

    Raises:
        LayoutError: for invalid sizes, or text that is not a shape.

    >>> read_shape("(512, 2_048)"), read_shape("8x4"), read_shape(()), read_shape("")
    ((512, 2048), (8, 4), (), ())
    """
    if _is_valid_shape(shape):
        return shape
    entries: object = shape
    if isinstance(shape, str):
        entries = _shape_from_text(shape)
    elif not isinstance(shape, Iterable) or getattr(shape, "ndim", 1) == 0:
        entries = (shape,)
    # Limit the rank before the sizes are read: text may contain a million commas.
    entries = limited(entries, MAX_RANK, "The dimensions of an array", LayoutError)
    sizes = tuple(
        check_size(s, "The size of a dimension", LayoutError) for s in entries
    )
    for dim, size in enumerate(sizes):
        if not 0 <= size <= MAX_DIM:
            raise LayoutError(
                f"Dimension {dim} has size {shown(size, 30)}; sizes are 0 or more, and at"
                f" most {MAX_DIM:,} here."
            )
    if math.prod(sizes) > MAX_ELEMENTS:
        # Python refuses to print very large integers, so show a power of ten.
        digits = sum(map(math.log10, sizes))
        raise LayoutError(
            f"The array has about 10^{digits:.0f} elements; at most {MAX_ELEMENTS:.1e}"
            " are planned for here."
        )
    return sizes


_NAMED_SIZE = re.compile(rf"[\s,]*({NAME})\s*:\s*({DIGITS})(?=[\s,]|$)", re.ASCII)


def read_named_shape(text: str) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
    """Reads a shape and its logical names from text such as `layers:8 embed:512`.

    Dimensions are separated by spaces or commas; `_:64` is a dimension without a name.

    Raises:
        LayoutError: for text in another format, or invalid sizes.
        RuleError: for an invalid axis name.

    >>> read_named_shape("layers:8 embed:512, _:64")
    ((8, 512, 64), ('layers', 'embed', None))
    """
    inner, names, sizes = text.strip(" ,"), [], []
    for match in scan(
        _NAMED_SIZE, inner, LayoutError, "a name and its size, as embed:512,"
    ):
        names.append(None if match[1] in _UNNAMED else name_in(match[1]))
        sizes.append(int(match[2]))
    return read_shape(tuple(sizes)), read_names(names)


def _is_valid_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    """True for a tuple of valid sizes, which `read_shape` returns unchanged."""
    if type(shape) is not tuple:
        return False
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_DIM:
            return False
    return len(shape) <= MAX_RANK and math.prod(shape) <= MAX_ELEMENTS


def _shape_from_text(text: str) -> list[int]:
    inner = text.strip()
    if (inner[:1], inner[-1:]) in (("(", ")"), ("[", "]")):
        inner = inner[1:-1].strip()
    # Users also write 8x4, 8 × 4 and 8*4.
    inner = re.sub(r"(?<=[0-9])\s*[x×*]\s*(?=[0-9])", ",", inner)
    parts = inner.split(",")
    if not parts[-1].strip():  # a trailing comma, or empty text
        parts.pop()
    sizes = []
    for part in parts:
        if not re.fullmatch(rf"\s*[+-]?{DIGITS}\s*", part, re.ASCII):
            raise LayoutError(
                "A size is a whole number of at most 20 digits; got"
                f" {shown(part.strip())}. Write a shape as 512, 2048."
            )
        sizes.append(int(part))
    return sizes


_UNNAMED = ("None", "_", "-")
# shardviz displays names with `·` between them, and users may paste them back.
_ONE_NAME = re.compile(rf"[\s,·]*({NAME})[\s,·]*")


def read_names(names: NamesLike) -> tuple[str | None, ...]:
    """Reads logical axis names from a sequence or text such as `embed mlp`.

    `None`, `_` and `-` mean a dimension without a name. jax's `UNCONSTRAINED` is
    returned unchanged.

    Raises:
        RuleError: for invalid axis names.

    >>> read_names("embed, _, mlp"), read_names(["embed", None])
    (('embed', None, 'mlp'), ('embed', None))
    """
    if isinstance(names, str):
        return _names_from_text(names)
    entries = limited(names, MAX_RANK, "The logical names of an array", RuleError)
    for name in entries:
        if name is not None and not is_unconstrained(name):
            check_name(name, "a logical axis", RuleError)
    return tuple(entries)


def _names_from_text(text: str) -> tuple[str | None, ...]:
    inner, names = text.strip(), []
    if (inner[:1], inner[-1:]) in (("(", ")"), ("[", "]")):
        inner = inner[1:-1]
    for match in scan(_ONE_NAME, inner, RuleError, "a logical axis name"):
        names.append(None if match[1] in _UNNAMED else name_in(match[1]))
    return read_names(names)


def format_names(names: Iterable[str | None] | None) -> str:
    """Formats logical names as users type them: the inverse of `read_names`.

    >>> format_names(("embed", None)), format_names(("two words",))
    ('embed _', "'two words'")
    """
    return " ".join("_" if name is None else typed_name(name) for name in names or ())


def unique_names(arrays: Iterable[ArraySpec]) -> None:
    """Raises a LayoutError if two arrays have the same name."""
    names = [a.name for a in arrays]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise LayoutError(
            f"Each array has its own name; {listed(repeated)} is used more than once."
        )


def array_dtype(array: Any) -> Any:
    """Returns the dtype that an array or a number has in jax.

    jax narrows 64-bit numpy arrays and Python numbers to 32 bits, unless
    `jax_enable_x64` is on.

    >>> import numpy as np
    >>> array_dtype(np.zeros(8)), array_dtype(np.zeros(8, np.int8)), array_dtype(1.5)
    ('float32', dtype('int8'), 'float32')
    """
    if type(array) in _PYTHON:
        array = np.zeros((), type(array))
    dtype = array.dtype
    if isinstance(array, (np.ndarray, np.generic)) and not _x64():
        return _NARROW.get(dtype.name, dtype)
    return dtype


def _x64() -> bool:
    """Whether jax keeps 64-bit types; does not import jax."""
    jax = sys.modules.get("jax")
    if jax is not None:
        return bool(jax.config.jax_enable_x64)
    return os.environ.get("JAX_ENABLE_X64", "").lower() in _TRUE
