"""Type aliases for the arguments of public functions, without importing jax.

An alias that ends in `Like` is a union of all accepted forms, such as text or a jax
object. Protocols describe objects of jax and other libraries by the attributes that
shardviz reads. A function may still refuse an object that has these attributes.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ArrayLike",
    "AxisTypesLike",
    "BoolArray",
    "BytesLike",
    "DialectLike",
    "DtypeLike",
    "FloatArray",
    "IntArray",
    "JsonDict",
    "MeshLike",
    "NamesFunction",
    "NamesLike",
    "PyTree",
    "RulesLike",
    "ShapeLike",
    "ShardingLike",
    "SpecEntry",
    "SpecLike",
    "UserFunction",
]

IntArray: TypeAlias = npt.NDArray[np.int64]
"""A numpy array of int64."""

FloatArray: TypeAlias = npt.NDArray[np.float64]
"""A numpy array of float64."""

BoolArray: TypeAlias = npt.NDArray[np.bool_]
"""A numpy array of bool."""


class NamedMesh(Protocol):
    """A `MeshSpec`, a jax `Mesh` or `AbstractMesh`, or a Keras `DeviceMesh`."""

    @property
    def axis_names(self) -> Sequence[Any]: ...


class HasDims(Protocol):
    """A `Spec`, which lists the mesh axes of each dimension."""

    @property
    def dims(self) -> tuple[tuple[str, ...], ...]: ...


class HasShardShape(Protocol):
    """A jax `Sharding`, which computes the shape of a shard."""

    def shard_shape(self, global_shape: tuple[int, ...], /) -> tuple[int, ...]: ...


class HasIndices(Protocol):
    """A legacy `ShardingSpec`, which computes the shard index of each device."""

    def indices(self, shape: Sequence[int], /) -> Sequence[tuple[int | slice, ...]]: ...


class HasName(Protocol):
    """A `Dialect`."""

    @property
    def name(self) -> str: ...


class HasDtype(Protocol):
    """An object that carries its element type, such as `jnp.bfloat16` or an array."""

    @property
    def dtype(self) -> Any: ...


class ArrayLike(Protocol):
    """An object with a shape and a dtype, such as `ArraySpec` or `jax.Array`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...


MeshLike: TypeAlias = (
    NamedMesh | str | os.PathLike[str] | Mapping[str, int] | Iterable[tuple[str, int]]
)
"""A mesh as `"data=4, model=2"`, a mapping, pairs, a mesh object or a MaxText file."""

AxisTypesLike: TypeAlias = str | enum.Enum | Sequence[str | enum.Enum]
"""One axis type for all axes of a mesh or one per axis, as text or jax's `AxisType`."""

SpecEntry: TypeAlias = str | Sequence[str] | None
"""The mesh axes that split one dimension, as one name, several names or None."""

SpecLike: TypeAlias = str | HasDims | Iterable[Any]
"""A PartitionSpec as text, a `Spec`, a jax object, or a tuple of `SpecEntry`."""

ShardingLike: TypeAlias = SpecLike | HasShardShape | HasIndices
"""A `SpecLike`, a jax `Sharding`, or a `ShardingSpec` or `Parts` of `legacy`."""

RulesLike: TypeAlias = (
    str
    | os.PathLike[str]
    | Mapping[str, SpecLike | None]
    | Iterable[tuple[str, SpecLike | None] | Iterable[Any]]
)
"""A rule table as pairs, a mapping, a `Rules`, typed text, or the path of a file."""

NamesLike: TypeAlias = str | Sequence[str | None]
"""Logical axis names, one per dimension, such as `"embed mlp"` or `("embed", None)`."""

NamesFunction: TypeAlias = Callable[[str, Any], NamesLike | SpecLike | None]
"""The user's `names(path, array)`, which returns logical names, a spec or None."""

ShapeLike: TypeAlias = str | SupportsIndex | Iterable[SupportsIndex]
"""A shape as a tuple, one size, or typed text such as `"512, 2048"`."""

DtypeLike: TypeAlias = str | type | np.dtype[Any] | HasDtype
"""A dtype as its name, its short name (`"bf16"`), or a numpy or jax type."""

DialectLike: TypeAlias = str | HasName
"""The library whose semantics a rule table follows: a name or a `Dialect`."""

BytesLike: TypeAlias = int | str
"""A number of bytes, or text such as `"8 MiB"`."""

# jax has no type for pytrees: any object may be a leaf or a registered container.
PyTree: TypeAlias = Any
"""The user's pytree: containers nested to any depth, with arrays as leaves."""

UserFunction: TypeAlias = Callable[..., PyTree]
"""The user's function, which takes and returns pytrees."""

JsonDict: TypeAlias = dict[str, Any]
"""Plain data for JSON and pandas, as `to_dict` returns it."""
