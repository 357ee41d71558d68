"""read_tree(): reads the arrays of a table, a model or its parameters as ArraySpecs.

It accepts rows, mappings, lists, dataclasses, models of other libraries, and leaves
with a shape and a dtype. `sv.layout`, `sv.audit` and `sv.program` all read leaves with
`read_leaf`. An array's sharding comes from the array itself, else from the names that
its library stores with it, else from the user's `names` function. Without any of these,
the ArraySpec has neither a spec nor names.

This module imports neither jax nor any model library. To read containers that are
registered with jax, callers pass `children`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from shardviz.axis_rules.libraries import (
    LeafMetadata,
    attribute,
    foreign_memory,
    is_partition_spec,
    library_of,
    model_arrays,
    named_sharding,
    names_of,
    partners_by_name,
    quick_key,
    without_metadata,
)
from shardviz.axis_rules.maxtext import RecordedArray, plain_path, read_record
from shardviz.base.array_spec import ArraySpec, array_dtype, dtype_name, read_names
from shardviz.base.errors import LayoutError, RuleError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.layout import Layout, layout_from_indices
from shardviz.base.parse import MAX_NAME, check_name, limited
from shardviz.base.partition_spec import Spec, is_unconstrained
from shardviz.base.typing import PyTree

Names = Callable[[str, Any], Any]
_T = TypeVar("_T")
Children = Callable[[Any], "list[tuple[str, Any]] | None"]

MAX_DEPTH = 64
# The limit for iterators, which may be endless.
MOST_ENTRIES = 1 << 20
# Maximum number of characters in a name, before a number is appended.
LONG_NAME = MAX_NAME - 8
_DIGITS = re.compile(r"\s*+(?:[(\[]\s*+)?[0-9][0-9_,\s x×*)\]]*")
_SCALARS = (bool, int, float, complex)


class TreeLeaf(NamedTuple):
    """An array of a tree, and the sharding information that the tree contains.

    Rules and the mesh are applied later.

    Attributes:
        array: shape and dtype. `spec` comes from the array's own sharding, `logical`
            from the names stored with it; if both are set, `spec` wins.
        problem: why the names could not be read, or None.
        described: True if the user described the array, as an ArraySpec or a table row.
            Without names, such an array is not split.
        logical: True if the names refer to rules only, never to mesh axes.
        mesh: the mesh of the array's sharding or names, as an object of the library
            that stores it; or None.
        layout: the layout of a live array whose sharding names no mesh axes.
        rules: (name, mesh axes) pairs that the library stores with the names.
        defaults: True if names in a flax wrapper determine how the array is split. Flax
            then leaves arrays without a wrapper unsplit.
        few_names: see `LeafMetadata.few_names`.

    >>> import numpy as np
    >>> leaf = read_leaf("w", np.zeros((8, 4), "float32"))
    >>> leaf.array, leaf.known
    (ArraySpec('w', (8, 4), dtype='float32'), False)
    """

    array: ArraySpec
    problem: str | None = None
    described: bool = False
    logical: bool = False
    mesh: Any = None
    layout: Layout | None = None
    rules: Any = ()
    defaults: bool = False
    few_names: str = ""

    @property
    def known(self) -> bool:
        """Whether anything determines how the array is split over mesh axes."""
        named = self.array.spec is not None or self.array.logical is not None
        return self.described or named

    def renamed(self, name: str) -> TreeLeaf:
        """Returns a copy with another name."""
        return self._replace(array=self.array.renamed(name))


def is_array(value: object) -> bool:
    """Whether `value` has a shape and a dtype."""
    # Not `!= None`, because numpy considers float64 equal to None.
    shape, dtype = attribute(value, "shape"), attribute(value, "dtype")
    return shape is not None and dtype is not None


def read_leaf(
    name: str, value: Any, box: LeafMetadata | None = None, names: Names | None = None
) -> TreeLeaf:
    """Reads an array with its own sharding and the names stored with it.

    Args:
        name: the name for the array.
        value: the array, bare or in a library's wrapper.
        box: the wrapper's metadata, if `value` was already unwrapped.
        names: called as `names(name, array)` if nothing else determines how the array
            is split; returns names, a PartitionSpec, or None.
    """
    while (inner := without_metadata(value)) is not None:
        # With nested wrappers, the outermost names win.
        if box is None or box.axes is None:
            box = inner
        value = inner.value
    box = box or LeafMetadata(value)
    axes = box.axes
    spec, mesh, layout = _own_sharding(value, axes is not None)
    if axes is None and spec is None and names is not None:
        axes = _asked(names, name, value)
    memory = foreign_memory(attribute(value, "sharding"))
    try:
        dtype = array_dtype(value)
        array = ArraySpec("array", value.shape, None, dtype, spec, memory)
    except ShardvizError as error:
        raise type(error)(f"{shown(name)}: {error}") from None
    # Like a PartitionSpec, names can have fewer entries than there are dimensions.
    if isinstance(axes, tuple):
        axes += (None,) * (array.rank - len(axes))
    array, problem = _with_names(array, axes)
    if mesh is None:
        mesh = box.mesh
    return TreeLeaf(
        array.renamed(name),
        problem,
        logical=box.logical,
        mesh=mesh,
        layout=layout,
        rules=box.rules,
        defaults=box.defaults and spec is None and box.axes is not None,
        few_names=box.few_names,
    )


def _with_names(array: ArraySpec, names: Any) -> tuple[ArraySpec, str | None]:
    """Adds names or a Spec to the array; also returns why they don't fit, or None."""
    try:
        if isinstance(names, Spec):
            if array.spec is None:
                array = array.replace(spec=names)
        elif names is not None:
            array = array.replace(logical=read_names(names))
    except (RuleError, LayoutError) as error:
        return array, str(error)
    return array, None


def _own_sharding(value: Any, named: bool) -> tuple[Spec | None, Any, Layout | None]:
    """Returns an array's spec and mesh, or its layout if the sharding has no mesh axes.

    Args:
        value: the array.
        named: True if names are stored with the array. Under a mesh with Explicit axes,
            `jax.eval_shape` adds a sharding that splits nothing; the names then win.
    """
    sharding = attribute(value, "sharding")
    if (pair := named_sharding(sharding)) is not None:
        spec, mesh = pair
        if _gives_way(spec, mesh, named):
            return None, mesh, None
        return spec, mesh, None
    indices_map = attribute(sharding, "devices_indices_map")
    if not callable(indices_map):
        return None, None, None
    try:
        indices: Any = indices_map(tuple(value.shape))
        indices_of = {d.id: box or () for d, box in indices.items()}
        return None, None, layout_from_indices(value.shape, value.dtype, indices_of)
    # Raised for shards of different shapes, and for random keys in jax 0.10.0.
    except (ValueError, ShardvizError):
        return None, None, None


def _gives_way(spec: Spec, mesh: object, named: bool) -> bool:
    """Whether names replace the array's own sharding, which splits no dimension."""
    # Under a mesh, `jax.eval_shape` adds such a sharding to arrays with names; the user
    # did not choose it.
    if not named or spec.axes or spec.unreduced:
        return False
    # Orbax metadata records how a checkpointed array was split, so its sharding wins.
    return attribute(mesh, "devices") is None and not library_of(type(mesh))


def _asked(names: Names, name: str, value: Any) -> Any:
    """Calls the user's function for an array; returns names, a Spec, or None."""
    answer = names(name, value)
    axes = names_of(answer)
    if answer is not None and axes is None:
        raise RuleError(
            f"names({shown(name)}, …) must return names such as 'embed mlp', a"
            f" PartitionSpec or None; got {shown(answer)}."
        )
    # A PartitionSpec contains mesh axes, never logical names.
    if is_partition_spec(answer) and isinstance(axes, tuple):
        return Spec.of(*axes)
    return axes


# Kinds of containers, which determine how the values inside are read. In a table or a
# tree, rows are read, and values that are not arrays are rejected.
_TABLE = 0
# In the fields of a class, text and functions are skipped.
_FIELDS = 1
# In the fields of an equinox module, everything except arrays is skipped.
_MODULE = 2


class ArrayTree(NamedTuple):
    """The arrays of a tree, and which of them belong to an optimizer's state.

    Attributes:
        paths: the path of every array, in tree order.
        names: the paths as array names: unique, and cut to the maximum length.
        kinds: one leaf per array. Arrays with equal signatures share a leaf, which has
            the name of one of these arrays.
        states: positions of arrays in optax states and Keras optimizers.
        partners: for Keras optimizers, array position -> path of its parameter.
    """

    paths: list[str]
    names: list[str]
    kinds: list[TreeLeaf]
    states: frozenset[int] = frozenset()
    partners: Mapping[int, str] = MappingProxyType({})

    @property
    def leaves(self) -> list[TreeLeaf]:
        """One leaf per array, each with the array's own name."""
        pairs = zip(self.names, self.kinds, strict=True)
        return [leaf.renamed(name) for name, leaf in pairs]


def read_tree(
    tree: PyTree, names: Names | None = None, children: Children | None = None
) -> ArrayTree:
    """Reads every array of a table or tree, in order.

    An array's name is its path, such as `layers/0/kernel`. A repeated name gets a
    number: `w`, `w (2)`. Logical names that don't fit an array become its `problem`, so
    that one bad leaf doesn't hide the others.

    Args:
        tree: ArraySpecs, rows `(name, shape, logical[, dtype])`, mappings of paths to
            `(shape, logical[, dtype])`, nested containers of these and of arrays, or
            models.
        names: called as `names(path, array)` for arrays without a sharding or logical
            names.
        children: returns (name, child) pairs if a container is registered with jax,
            else None.

    >>> [f.array for f in read_tree({"mlp": {"wi": ((512, 2048), "embed mlp")}}).leaves]
    [ArraySpec('mlp/wi', (512, 2048), 'embed mlp', dtype='float32')]
    """
    reader = _TreeReader(names, children)
    reader.collect(tree, "", 0, _TABLE)
    for name in reader.names:
        check_name(name, "an array", LayoutError)
    partners = partners_by_name(reader.keras)
    optimizers = {reader.keras[i].partition("/")[0] for i in partners}
    for index, path in reader.keras.items():
        if path.partition("/")[0] in optimizers:
            reader.states.add(index)
    states = frozenset(reader.states)
    return ArrayTree(reader.paths, reader.names, reader.kinds, states, partners)


class _TreeReader:
    """Collects the arrays of one tree."""

    def __init__(self, names: Names | None, children: Children | None) -> None:
        self.paths: list[str] = []
        self.names: list[str] = []
        self.kinds: list[TreeLeaf] = []
        # Positions of arrays in optimizer states.
        self.states: set[int] = set()
        # Position -> path of each Keras variable.
        self.keras: dict[int, str] = {}
        self._ask, self._children = names, children
        # Name -> number of arrays with that name so far.
        self._times: dict[str, int] = {}
        # One leaf per signature: large models have many arrays but few signatures.
        self._read: dict[Any, TreeLeaf] = {}

    def collect(self, value: object, path: str, depth: int, inside: int) -> None:
        """Collects the arrays in `value`; `inside` is the kind of its container."""
        if depth > MAX_DEPTH:
            raise LayoutError(
                f"The tree nests deeper than {MAX_DEPTH} levels, at {shown(path[-40:])}."
                " Does it hold itself?"
            )
        if value is None:
            return
        key = None
        # With a `names` function, arrays with equal signatures can get different names.
        if self._ask is None:
            key = quick_key(value)
        if key is not None and key in self._read:
            self._keep(self._read[key], path or "array")
            return
        begin = len(self.kinds)
        self._collect(value, path, depth, inside)
        if key is not None and len(self.kinds) == begin + 1:
            self._read[key] = self.kinds[-1]

    def _collect(self, value: object, path: str, depth: int, inside: int) -> None:
        if isinstance(value, ArraySpec):
            leaf = TreeLeaf(value, described=True)
            self._keep(leaf, _joined(path, value.name))
        elif isinstance(value, TreeLeaf):
            self._keep(value, path or value.array.name)
        elif isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            self._collect_sequence(value, path, depth, inside)
        elif self._collect_leaf(value, path, depth, inside):
            return
        elif (model := _at(path, model_arrays, value)) is not None:
            self.collect(model, path, depth + 1, inside)
        elif isinstance(value, Mapping) and (record := read_record(value)) is not None:
            self._recorded(path, record)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                # As in jax, a number in a tree of arrays is a scalar array.
                if inside == _TABLE and isinstance(inner, _SCALARS):
                    self._scalar(inner, _joined(path, key))
                else:
                    self.collect(inner, _joined(path, key), depth + 1, inside)
        else:
            self._collect_object(value, path, depth, inside)

    def _collect_sequence(
        self, value: tuple | list, path: str, depth: int, inside: int
    ) -> None:
        if inside != _MODULE and _is_described(value):
            self._described(path or "array", value[0], list(value[1:]))
        elif inside != _MODULE and value and isinstance(value[0], str):
            # A row without a shape gets shape None, which is rejected later.
            name, shape = (*value, None)[:2]
            self._described(_joined(path, name), shape, list(value[2:]))
        else:
            for index, inner in enumerate(value):
                # A table's row contains the array's name; other list entries are named
                # by their position.
                named = depth == 0 and _names_itself(inner)
                inner_path = path if named else _joined(path, index)
                self.collect(inner, inner_path, depth + 1, inside)

    def _collect_leaf(self, value: object, path: str, depth: int, inside: int) -> bool:
        """Collects a bare or wrapped array; returns False if `value` is neither."""
        box = _at(path, without_metadata, value)
        if box is not None:
            inner, path = box.value, box.path or path
            if library_of(type(value)) == "keras":
                self.keras[len(self.kinds)] = path
            # Program arguments are already TreeLeaf objects; wrappers can hold trees.
            if isinstance(inner, TreeLeaf) or not (
                is_array(inner) or without_metadata(inner) is not None
            ):
                self.collect(inner, path, depth + 1, inside)
                return True
            value = inner
        elif inside == _FIELDS and isinstance(value, _SCALARS):
            self._scalar(value, path)
            return True
        elif not is_array(value):
            return False
        path = path or "array"
        self._keep(read_leaf(short_name(path), value, box, self._ask), path)
        return True

    def _collect_object(
        self, value: object, path: str, depth: int, inside: int
    ) -> None:
        parts = self._fields(value)
        if parts is not None:
            begin = len(self.kinds)
            within = _FIELDS
            if library_of(type(value)) == "equinox":
                within = _MODULE
            # A class inside a module counts as part of the module.
            within = max(inside, within)
            for name, inner in parts:
                inner_path = _joined(path, name) if name else path
                self.collect(inner, inner_path, depth + 1, within)
            if is_optimizer_state(value):
                self.states.update(range(begin, len(self.kinds)))
        elif isinstance(value, Iterator):
            entries = limited(value, MOST_ENTRIES, "The arrays", LayoutError)
            self.collect(entries, path, depth, inside)
        elif inside == _TABLE or (
            inside == _FIELDS
            and not (isinstance(value, (str, bytes)) or callable(value))
        ):
            where = f"{shown(path)}: " if path else ""
            raise LayoutError(
                f"{where}{shown(value)} is not an array. Give ArraySpecs, rows such as"
                " ('w', (512, 2048), 'embed mlp'), or a tree of arrays."
            )

    def _fields(self, value: object) -> Iterable[tuple[str, Any]] | None:
        """Returns (name, value) pairs of fields that can hold arrays, or None."""
        if isinstance(value, type):
            return None
        if self._children is not None:
            parts = self._children(value)
            if parts is not None:
                return parts
        names = getattr(value, "_fields", None)
        if names is None and dataclasses.is_dataclass(value):
            names = []
            for field in dataclasses.fields(value):
                # With these keys, flax and jax mark fields that hold no arrays.
                marks = field.metadata
                if marks.get("pytree_node", True) and not marks.get("static", False):
                    names.append(field.name)
        if names is None:
            return None
        return [(name, getattr(value, name)) for name in names]

    def _scalar(self, value: object, path: str) -> None:
        array = ArraySpec("number", (), None, dtype_name(array_dtype(value)))
        self._keep(TreeLeaf(array), path or "array")

    def _described(self, name: str, shape: Any, fields: list) -> None:
        """Adds the array of a row `(name, shape, logical names, dtype)`."""
        if len(fields) > 2:
            raise LayoutError(
                f"{shown(name)}: a row is (name, shape, logical names, dtype); got"
                f" {len(fields) + 2} entries."
            )
        logical, dtype = (*fields, None, None)[:2]
        if isinstance(logical, list):
            logical = tuple(logical)
        if not isinstance(logical, (str, tuple, type(None))):
            logical = names_of(logical) or (logical,)
        if isinstance(shape, list):
            shape = tuple(shape)
        key = (shape, logical, dtype)
        try:
            leaf = self._read.get(key)
        # The row has an unhashable entry, which ArraySpec rejects below.
        except TypeError:
            key, leaf = None, None
        if leaf is None:
            array = _at(name, ArraySpec, "array", shape, None, dtype or "float32")
            leaf = TreeLeaf(*_with_names(array, logical), described=True)
            self._read[key] = leaf
        self._keep(leaf, name)

    def _recorded(self, path: str, record: RecordedArray) -> None:
        """Adds an array from a MaxText record, which has no dtype."""
        path = plain_path(path)
        array = _at(path, ArraySpec, "array", record.shape)
        entries = record.entries
        if record.mesh is not None or any(isinstance(e, tuple) for e in entries):
            array = array.replace(spec=_at(path, Spec.of, *entries))
            self._keep(TreeLeaf(array, mesh=record.mesh), path)
            return
        entries += (None,) * (array.rank - len(entries))
        array, problem = _with_names(array, entries)
        self._keep(TreeLeaf(array, problem, defaults=True), path)

    def _keep(self, leaf: TreeLeaf, path: str) -> None:
        self.paths.append(path)
        name = short_name(path)
        times = self._times[name] = self._times.get(name, 0) + 1
        if times > 1:
            name = f"{name} ({times})"
        self.names.append(name)
        self.kinds.append(leaf)


def _at(path: str, read: Callable[..., _T], *args: object) -> _T:
    """Calls `read` and adds the path to its errors."""
    try:
        return read(*args)
    except ShardvizError as error:
        where = f"{shown(path)}: " if path else ""
        raise type(error)(f"{where}{error}") from None


def short_name(name: str) -> str:
    """Cuts a long path to its end, which identifies an array better than the start.

    >>> short_name("params/w")
    'params/w'
    """
    if len(name) <= LONG_NAME:
        return name
    return "…" + name[1 - LONG_NAME :]


def _is_described(value: tuple | list) -> bool:
    """Whether `value` has the form `(shape, logical[, dtype])`."""
    if len(value) not in (2, 3) or isinstance(value[0], ArraySpec):
        return False
    shape, names = value[0], value[1]
    if isinstance(shape, (tuple, list)) and not hasattr(shape, "_fields"):
        if shape:
            return all(type(n) is int for n in shape)
    elif type(shape) is not int:
        if not isinstance(shape, str) or not _DIGITS.fullmatch(shape):
            return False
    if names is None or isinstance(names, str):
        return True
    if not isinstance(names, (tuple, list)):
        return False
    return all(n is None or isinstance(n, str) or is_unconstrained(n) for n in names)


def _names_itself(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and isinstance(value[0], str)
    return isinstance(value, ArraySpec)


def _joined(path: str, key: object) -> str:
    if not isinstance(key, (str, int)):
        key = shown(key)
    if not path:
        return str(key)
    return f"{path}/{key}"


def is_optimizer_state(value: object) -> bool:
    """Whether `value` is an optax state; `LookaheadParams` and similar types are not."""
    return is_optimizer_type(type(value))


def is_optimizer_type(kind: type) -> bool:
    """Whether instances of a class are optimizer states; see `is_optimizer_state`."""
    return library_of(kind) == "optax" and not kind.__name__.endswith("Params")
