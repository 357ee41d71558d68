"""read_arrays(): the arrays in a table or in a model's parameters, as ArraySpecs.

Takes rows, mappings, lists, dataclasses and leaves with a shape and a dtype, and finds the logical
names that flax keeps beside a leaf: `names` of a linen `Partitioned` or `LogicallyPartitioned`,
`out_sharding` of an nnx `Variable`. All of it is found by attributes; neither jax nor flax is
imported.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shardviz.core.errors import LayoutError, RuleError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec, read_names
from shardviz.core.layout.parse import MAX_NAME, limited
from shardviz.core.layout.partition_spec import Spec, is_unconstrained

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
MAX_STREAMED = 20_000  # rows of an iterator, which may be endless: a list may be longer
_DIGITS = re.compile(r"\s*[(\[]?\s*[0-9][0-9_,\s x×*)\]]*")
_SCALARS = (bool, int, float, complex)


class TreeLeaf(NamedTuple):
    """An array of the tree; `problem` says why its logical names could not be read, or is None."""

    array: ArraySpec
    problem: str | None


class LeafMetadata(NamedTuple):
    """An array and what flax keeps beside it in a box (`Partitioned`, `Variable`).

    Attributes:
        value: the array.
        axes: one name per dimension, or a Spec where a sharding names mesh axes, or None.
        logical: whether the names are for rules alone, never mesh axes (`LogicallyPartitioned`).
    """

    value: Any
    axes: Any
    logical: bool = False


def without_metadata(value: Any) -> LeafMetadata | None:
    """The content of a flax box: linen's `Partitioned`, `LogicallyPartitioned`, nnx's `Variable`.

    None where `value` is no box, judged by its attributes, so that flax need not be installed.

    >>> class Partitioned:
    ...     value, names, unbox = "an array", ("embed", "mlp"), None
    ...     def unbox(self):
    ...         return self.value
    >>> without_metadata(Partitioned())
    LeafMetadata(value='an array', axes=('embed', 'mlp'), logical=False)
    """
    metadata = _attribute(value, "get_metadata")
    if callable(metadata) and not isinstance(value, type):  # an nnx Variable
        found: Any = metadata()
        kept = (found.get(k) for k in ("out_sharding", "sharding_names", "sharding"))
        names = next((k for k in kept if k), None)
        read = _attribute(value, "get_value")
        return LeafMetadata(read() if callable(read) else value.value, _names_of(names))
    names = _attribute(value, "names")
    if isinstance(names, (tuple, list)) and _attribute(value, "unbox") is not None:
        return LeafMetadata(value.value, _names_of(names), hasattr(value, "rules"))
    return None


def read_arrays(tree: Any) -> list[TreeLeaf]:
    """Every array of a table or tree, in order; its path is its name, as in `layers/0/kernel`.

    A name seen before gets a number: `w`, `w (2)`. Logical names that do not fit an array become
    its `problem`: one bad leaf must not hide the others.

    Args:
        tree: ArraySpecs, rows `(name, shape, logical[, dtype])`, mappings of paths to
            `(shape, logical[, dtype])`, or nested containers of these and of arrays.

    Raises:
        LayoutError: for a leaf that is no array, for a shape or dtype that no array has.

    >>> [f.array for f in read_arrays({"mlp": {"wi": ((512, 2048), "embed mlp")}})]
    [ArraySpec('mlp/wi', (512, 2048), 'embed mlp', dtype='float32')]
    """
    reader = _TreeReader()
    reader.collect(tree, "", 0, False)
    return reader.found


class _TreeReader:
    """Collects the arrays of one tree."""

    def __init__(self) -> None:
        self.found: list[TreeLeaf] = []
        self._seen: dict[str, int] = {}
        # One checked ArraySpec per signature: large models have many arrays and few signatures.
        self._checked: dict[Any, TreeLeaf] = {}
        self._values = 0

    def collect(self, value: Any, path: str, depth: int, loose: bool) -> None:
        """Collects from `value`; where `loose` (the field of a class), numbers are scalars, too."""
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_VALUES:
            raise LayoutError(
                f"The tree nests deeper than {MAX_DEPTH} levels or holds more than {MAX_VALUES:,}"
                f" values, at {shown(path[-40:])}. Does it hold itself?"
            )
        if isinstance(value, ArraySpec):
            self._keep(value, f"{path}/{value.name}" if path else value.name, None)
        elif isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            self._collect_sequence(value, path, depth)
        elif isinstance(value, Mapping):
            for key, inner in _items(value):
                self.collect(inner, _joined(path, key), depth + 1, False)
        elif value is not None and not self._read_leaf(value, path, depth, loose):
            self._collect_object(value, path, depth, loose)

    def _collect_sequence(self, value: tuple | list, path: str, depth: int) -> None:
        if value and isinstance(value[0], str) and not _is_described(value):
            name, shape, *rest = (*value, None) if len(value) < 2 else value
            self._described(_joined(path, name), shape, rest)
        elif _is_described(value):
            self._described(path or "array", value[0], list(value[1:]))
        else:
            for index, inner in enumerate(value):
                # The rows of a table have names of their own; a tree's lists have positions.
                inner_path = path if depth == 0 and _names_itself(inner) else _joined(path, index)
                self.collect(inner, inner_path, depth + 1, False)

    def _collect_object(self, value: Any, path: str, depth: int, loose: bool) -> None:
        fields = _fields(value)
        if fields is not None:
            for name in fields:
                self.collect(getattr(value, name), _joined(path, name), depth + 1, True)
        elif isinstance(value, Iterator):
            rows = limited(value, MAX_STREAMED, "The rows of an iterator", LayoutError)
            self.collect(rows, path, depth, loose)
        elif not (loose and (isinstance(value, (str, bytes)) or callable(value))):
            raise LayoutError(_no_array(value, path))

    def _read_leaf(self, value: Any, path: str, depth: int, loose: bool) -> bool:
        """Collects an array, in a flax box or not; whether `value` was one."""
        box = without_metadata(value)
        if box is not None:
            if _attribute(box.value, "shape") is None:
                self.collect(box.value, path, depth + 1, loose)
            else:
                self._array(path, box.value, box.axes)
            return True
        if _attribute(value, "shape") is not None and _attribute(value, "dtype") is not None:
            self._array(path, value, _names_of(_attribute(value, "sharding")))
            return True
        if loose and isinstance(value, _SCALARS):
            self._signed(path, (), None, type(value))
            return True
        return False

    def _array(self, path: str, leaf: Any, names: Any) -> None:
        self._signed(path or "array", leaf.shape, padded(names, leaf.shape), leaf.dtype)

    def _described(self, name: str, shape: Any, rest: list) -> None:
        if len(rest) > 2:
            raise LayoutError(
                f"{shown(name)}: a row is (name, shape, logical names, dtype); got"
                f" {len(rest) + 2} entries."
            )
        logical, dtype = (*rest, None, None)[:2]
        shape, logical = (tuple(v) if isinstance(v, list) else v for v in (shape, logical))
        known = logical is None or isinstance(logical, (str, tuple))
        names = logical if known else _names_of(logical) or (logical,)
        self._signed(name, shape, names, "float32" if dtype is None else dtype)

    def _signed(self, name: str, shape: Any, names: Any, dtype: Any) -> None:
        """Adds the array of this signature, checked once for all arrays that share it."""
        key = (shape, names, dtype)
        try:
            first = self._checked.get(key)
        except TypeError:  # an unhashable part: check it again
            first = None
        if first is None:
            first = _checked(name, shape, names, dtype)
            if isinstance(shape, tuple) and isinstance(names, (tuple, str, Spec, type(None))):
                self._checked[key] = first
        self._keep(first.array, name, first.problem)

    def _keep(self, array: ArraySpec, name: str, problem: str | None) -> None:
        if len(name) > MAX_NAME - 8:
            name = "…" + name[8 - MAX_NAME :]
        count = self._seen[name] = self._seen.get(name, 0) + 1
        if count > 1:
            name = f"{name} ({count})"
        self.found.append(TreeLeaf(array.renamed(name), problem))


def padded(names: Any, shape: Any) -> Any:
    """Names with None for the dimensions that have none: a PartitionSpec may be shorter, too.

    >>> padded(("mlp",), (8, 4))
    ('mlp', None)
    """
    if isinstance(names, tuple) and isinstance(shape, tuple) and len(names) < len(shape):
        return names + (None,) * (len(shape) - len(names))
    return names


def _checked(name: str, shape: Any, names: Any, dtype: Any) -> TreeLeaf:
    """The array of a signature; its name does not matter."""
    spec = names if isinstance(names, Spec) else None
    logical = None if spec is not None else names
    try:
        array = ArraySpec("array", shape, None, dtype, spec)
    except ShardvizError as error:
        raise type(error)(f"{shown(name)}: {error}") from None
    if logical is None:
        return TreeLeaf(array, None)
    try:
        return TreeLeaf(array.replace(logical=read_names(logical)), None)
    except RuleError as error:
        return TreeLeaf(array, str(error))


def _names_of(sharding: Any) -> Any:
    """Logical names, or a Spec where a sharding names mesh axes, or None."""
    if sharding is None or isinstance(sharding, str):
        return sharding
    spec = _attribute(sharding, "spec")
    names_mesh_axes = spec is not None  # a NamedSharding: its axes are those of a mesh
    entries = sharding if spec is None else spec
    entries = getattr(entries, "partitions", entries)
    if type(entries).__name__ == "PartitionSpec":  # of jax 0.10.1 and before, without that
        entries = tuple(entries)
    if not isinstance(entries, (tuple, list)):
        return None
    if names_mesh_axes or any(isinstance(e, (tuple, list)) for e in entries):
        marks = {k: getattr(spec, k, ()) for k in ("unreduced", "reduced")}
        return Spec.of(*entries, **marks)
    return tuple(entries)


def _is_described(value: tuple | list) -> bool:
    """Whether it is `(shape, logical[, dtype])`."""
    if len(value) not in (2, 3) or isinstance(value[0], ArraySpec):
        return False
    shape, names = value[0], value[1]
    if isinstance(shape, (tuple, list)) and shape and all(type(n) is int for n in shape):
        return True
    listed_shape = isinstance(shape, (tuple, list)) and not shape and not hasattr(shape, "_fields")
    text = isinstance(shape, str) and _DIGITS.fullmatch(shape) is not None
    return (listed_shape or text or type(shape) is int) and _is_names(names)


def _is_names(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return True
    return isinstance(value, (tuple, list)) and all(
        n is None or isinstance(n, str) or is_unconstrained(n) for n in value
    )


def _names_itself(value: Any) -> bool:
    return isinstance(value, ArraySpec) or (
        isinstance(value, (tuple, list)) and bool(value) and isinstance(value[0], str)
    )


def _items(mapping: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return mapping.items()


def _joined(path: str, key: Any) -> str:
    part = key if isinstance(key, str) else str(key) if type(key) is int else shown(key)
    return f"{path}/{part}" if path else part


def _fields(value: Any) -> Iterable[str] | None:
    """The fields of a namedtuple or dataclass instance that can hold arrays, or None."""
    if isinstance(value, type) or _is_module(value):
        return None
    if hasattr(value, "_fields"):
        return value._fields
    if not dataclasses.is_dataclass(value):
        return None
    return [
        f.name
        for f in dataclasses.fields(value)
        # flax and jax mark fields that hold no arrays so.
        if f.metadata.get("pytree_node", True) and not f.metadata.get("static", False)
    ]


def _is_module(value: Any) -> bool:
    families = ("flax.linen.module", "flax.nnx.module")
    return any((c.__module__ or "").startswith(families) for c in type(value).__mro__)


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  a foreign property may raise anything; then it is not there
        return None


def _no_array(value: Any, path: str) -> str:
    where = f"{shown(path)}: " if path else ""
    if _is_module(value):
        return (
            f"{where}{type(value).__name__} is a module, not its parameters. Give what"
            " jax.eval_shape(model.init, …) returns, or nnx.state(model)."
        )
    return (
        f"{where}{shown(value)} is no array. Give ArraySpecs, rows such as"
        " ('w', (512, 2048), 'embed mlp'), or a tree of arrays."
    )
