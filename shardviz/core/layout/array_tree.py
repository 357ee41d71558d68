"""read_tree(): the arrays in a table, in a model, or in its parameters, as ArraySpecs.

Takes rows, mappings, lists, dataclasses, models of other libraries and leaves with a
shape and a dtype. `sv.layout`, `sv.audit` and `sv.program` all read leaves with
`read_leaf`. What counts of a leaf, in this order: the sharding of the array itself, the
names beside it, what a function of the user says of it. Where none of them says
anything, that is what comes out: an array without a spec and without names.

Neither jax nor any library is imported: `children`, where it is given, knows the
containers that are registered with jax.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from shardviz.core.errors import LayoutError, RuleError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec, dtype_name, read_names
from shardviz.core.layout.layout import Layout, layout_from_indices
from shardviz.core.layout.libraries import (
    LeafMetadata,
    attribute,
    foreign_memory,
    is_partition_spec,
    library_of,
    model_arrays,
    named_sharding,
    names_of,
    optimizer_partners,
    partners_by_name,
    quick_key,
    without_metadata,
)
from shardviz.core.layout.parse import MAX_NAME, check_name, limited
from shardviz.core.layout.partition_spec import Spec, is_unconstrained

Names = Callable[[str, Any], Any]


class TreeLeaf(NamedTuple):
    """An array of a tree, and what is known of it before rules and a mesh are.

    Attributes:
        array: its shape and dtype; `spec` is that of its own sharding, `logical` are
            the names beside it. Both may be there: the sharding wins.
        problem: why its names could not be read, or None.
        described: whether somebody wrote it down, as an ArraySpec or a row of a table;
            then no name means that no rule splits it.
        logical: whether the names are for rules alone, never mesh axes.
        mesh: the mesh of its sharding or names, in the type of its library; or None.
        layout: where its bytes lie, for a live array whose sharding names no mesh axes.
        rules: pairs of names and mesh axes that its library keeps beside the names.
        defaults: whether the names in a box of flax say how it is split; flax's reading
            leaves arrays without a box unsplit.

    >>> from shardviz.core.layout.libraries import Shaped
    >>> leaf = read_leaf("w", Shaped((8, 4), "float32"))
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

    @property
    def known(self) -> bool:
        """Whether anything says how it is split over mesh axes."""
        return (
            self.described
            or self.array.spec is not None
            or self.array.logical is not None
        )

    def renamed(self, name: str) -> TreeLeaf:
        """A copy under another name."""
        return self._replace(array=self.array.renamed(name))


def is_array(value: Any) -> bool:
    """Whether it has a shape and a dtype."""
    return (
        attribute(value, "shape") is not None and attribute(value, "dtype") is not None
    )


def read_leaf(
    name: str, value: Any, box: LeafMetadata | None = None, names: Names | None = None
) -> TreeLeaf:
    """What an array says of itself: its own sharding, and the names beside it.

    Args:
        name: what to call it.
        value: the array, as it is or in a library's box.
        box: what the box said, where `value` was taken out of one already.
        names: called as `names(name, array)` where nothing else says how it is split;
            it returns names, a PartitionSpec, or None.

    Raises:
        ShardvizError: for a shape or dtype that no array has.
    """
    while (inner := without_metadata(value)) is not None:
        box = inner if box is None or box.axes is None else box
        value = inner.value
    box = LeafMetadata(value) if box is None else box
    axes = box.axes
    spec, mesh, layout = own_sharding(value, axes is not None)
    memory = foreign_memory(attribute(value, "sharding"))
    if axes is None and spec is None and names is not None:
        axes = _said(names, name, value)
    by_names = box.defaults and spec is None and box.axes is not None
    mesh = box.mesh if mesh is None else mesh
    try:
        array, problem = _array(value.shape, value.dtype, spec, axes, memory)
    except ShardvizError as error:
        raise type(error)(f"{shown(name)}: {error}") from None
    except TypeError:  # a part that is unhashable
        array, problem = _array.__wrapped__(
            tuple(value.shape), value.dtype, spec, axes, memory
        )
    return TreeLeaf(
        array.renamed(name),
        problem,
        False,
        box.logical,
        mesh,
        layout,
        box.rules,
        by_names,
    )


@lru_cache(maxsize=1024)
def _array(
    shape: Any, dtype: Any, spec: Spec | None, axes: Any, memory: str | None
) -> tuple[ArraySpec, str | None]:
    """An array with its spec, names and memory kind, and why the names do not fit.

    Large models have many arrays and few signatures.
    """
    array = ArraySpec("array", shape, None, dtype, spec, memory)
    try:
        if isinstance(axes, Spec):
            return (array.replace(spec=axes) if spec is None else array), None
        if axes is not None:
            array = array.replace(logical=read_names(padded(axes, array.shape)))
    except (RuleError, LayoutError) as error:
        return array, str(error)
    return array, None


def own_sharding(value: Any, named: bool) -> tuple[Spec | None, Any, Layout | None]:
    """The spec, the mesh and, where its sharding names no mesh axes, the layout of an
    array.

    Args:
        value: the array.
        named: whether names stand beside it. Under a mesh `jax.eval_shape` writes a
            sharding that splits nothing on every array; then the names count.
    """
    sharding = attribute(value, "sharding")
    if sharding is None:
        return None, None, None
    found = named_sharding(sharding)
    if found is not None:
        spec, mesh = found
        return (None if _empty(spec, mesh, named) else spec), mesh, None
    boxes = attribute(sharding, "devices_indices_map")
    if not callable(boxes):
        return None, None, None
    try:
        indices: Any = boxes(tuple(value.shape))
        held = {d.id: box or () for d, box in indices.items()}
        return None, None, layout_from_indices(value.shape, value.dtype, held)
    except (
        ValueError,
        ShardvizError,
    ):  # blocks that differ in shape, random keys in jax 0.10.0
        return None, None, None


def _empty(spec: Spec, mesh: Any, named: bool) -> bool:
    """Whether a sharding says nothing: it splits nothing, over a mesh that is no
    devices.
    """
    if spec.axes or spec.unreduced or attribute(mesh, "devices") is not None:
        return False
    if library_of(type(mesh)):
        return False  # what a checkpoint says was so
    types = attribute(mesh, "axis_types") or ()
    return named or any(attribute(t, "name") != "Explicit" for t in types)


def _said(names: Names, name: str, value: Any) -> Any:
    """What the user's function says of an array, as names or a Spec."""
    said = names(name, value)
    if said is None or isinstance(said, (str, Spec)):
        return said
    spec = is_partition_spec(said)
    found = names_of(said)
    if found is None:
        raise RuleError(
            f"names({shown(name)}, …) is to return names such as 'embed mlp', a PartitionSpec or"
            f" None; got {shown(said)}."
        )
    return Spec.of(*found) if spec and isinstance(found, tuple) else found


def padded(names: Any, shape: Any) -> Any:
    """Names with None for the dimensions that have none: a PartitionSpec may be
    shorter, too.

    >>> padded(("mlp",), (8, 4))
    ('mlp', None)
    """
    if (
        isinstance(names, tuple)
        and isinstance(shape, tuple)
        and len(names) < len(shape)
    ):
        return names + (None,) * (len(shape) - len(names))
    return names


MAX_DEPTH = 64
LONG_NAME = MAX_NAME - 8  # letters; a number may follow
MAX_VALUES = 1_000_000
MAX_STREAMED = 20_000  # rows of an iterator, which may be endless: a list may be longer
_DIGITS = re.compile(r"\s*[(\[]?\s*[0-9][0-9_,\s x×*)\]]*")
_SCALARS = (bool, int, float, complex)
Children = Callable[[Any], "list[tuple[str, Any]] | None"]

# What a value stands in, which decides how it is read.
_TABLE = 0  # a table or a tree: rows are read, and all that is no array is refused
_FIELDS = (
    1  # the fields of a class: numbers are scalars; text and functions are none of ours
)
_MODULE = 2  # the fields of an equinox module: everything but arrays is none of ours


class ArrayTree(NamedTuple):
    """The arrays of a tree, and which of them an optimizer keeps.

    Attributes:
        paths: the path of every array, in order.
        names: the same, each once and no longer than a name may be.
        kinds: what each array says; those of one signature share it, whatever their
            names.
        states: the positions of those in an object of optax or in an optimizer of
            Keras.
        known: the position of an array in an optimizer of Keras, to the path of its
            parameter.
    """

    paths: list[str]
    names: list[str]
    kinds: list[TreeLeaf]
    states: frozenset[int] = frozenset()
    known: Mapping[int, str] = MappingProxyType({})

    @property
    def leaves(self) -> list[TreeLeaf]:
        """The arrays under their names."""
        return [
            leaf if leaf.array.name == name else leaf.renamed(name)
            for name, leaf in zip(self.names, self.kinds, strict=True)
        ]


def read_tree(
    tree: Any, names: Names | None = None, children: Children | None = None
) -> ArrayTree:
    """Every array of a table or tree, in order, and what is known of the containers
    they stand in.

    The path of an array is its name, as in `layers/0/kernel`. A name seen before gets a
    number: `w`, `w (2)`. Logical names that do not fit an array become its `problem`:
    one bad leaf must not hide the others.

    Args:
        tree: ArraySpecs, rows `(name, shape, logical[, dtype])`, mappings of paths to
            `(shape, logical[, dtype])`, nested containers of these and of arrays, or
            models.
        names: called as `names(path, array)` for arrays that say nothing themselves.
        children: the named children of a container that is registered with jax, or
            None.

    Raises:
        LayoutError: for a leaf that is no array, for a shape or dtype that no array
            has.

    >>> [f.array for f in read_tree({"mlp": {"wi": ((512, 2048), "embed mlp")}}).leaves]
    [ArraySpec('mlp/wi', (512, 2048), 'embed mlp', dtype='float32')]
    """
    reader = _TreeReader(names, children)
    reader.collect(tree, "", 0, _TABLE)
    if reader.number is not None and all(
        leaf.array.shape == () for leaf in reader.kinds
    ):
        raise LayoutError(_no_array(*reader.number))
    for name in reader.named:
        check_name(name, "an array", LayoutError)
    states = {i for begin, end in reader.states for i in range(begin, end)}
    if reader.keras:
        known = partners_by_name(reader.keras)
        kept = {reader.keras[i].partition("/")[0] for i in known}
        states |= {
            i for i, path in reader.keras.items() if path.partition("/")[0] in kept
        }
        reader.known = known | reader.known
    return ArrayTree(
        reader.paths, reader.named, reader.kinds, frozenset(states), reader.known
    )


class _TreeReader:
    """Collects the arrays of one tree."""

    def __init__(self, names: Names | None, children: Children | None) -> None:
        self.paths: list[str] = []
        self.named: list[str] = []
        self.kinds: list[TreeLeaf] = []
        self.number: tuple[Any, str] | None = (
            None  # the first number in a mapping, and its path
        )
        self.states: list[tuple[int, int]] = []  # begin and end of what optimizers keep
        self.known: dict[int, str] = {}
        self.keras: dict[int, str] = {}  # the paths of variables of Keras
        self._names, self._children = names, children
        self._seen: dict[str, int] = {}  # of the names that are there more than once
        self._taken: set[str] = set()
        # One checked leaf per signature: large models have many arrays and few
        # signatures.
        self._checked: dict[Any, TreeLeaf] = {}
        self._read: dict[Any, TreeLeaf] = {}
        self._values = 0

    def collect(self, value: Any, path: str, depth: int, inside: int) -> None:
        """Collects from `value`, which stands in a table, in a class or in a module."""
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_VALUES:
            raise LayoutError(
                f"The tree nests deeper than {MAX_DEPTH} levels or holds more than {MAX_VALUES:,}"
                f" values, at {shown(path[-40:])}. Does it hold itself?"
            )
        if value is None:
            return
        key = quick_key(value) if self._names is None else None
        if key is not None and key in self._read:
            self._keep(self._read[key], path or "array")
            return
        begin = len(self.kinds)
        self._collect(value, path, depth, inside)
        if key is not None and len(self.kinds) == begin + 1:
            self._read[key] = self.kinds[-1]

    def _collect(self, value: Any, path: str, depth: int, inside: int) -> None:
        if isinstance(value, ArraySpec):
            self._keep(
                TreeLeaf(value, described=True),
                f"{path}/{value.name}" if path else value.name,
            )
        elif isinstance(value, TreeLeaf):
            self._keep(value, path or value.array.name)
        elif isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            self._collect_sequence(value, path, depth, inside)
        elif self._read_leaf(value, path, depth, inside):
            return
        elif (model := self._model(value, path)) is not None:
            begin = len(self.kinds)
            self.collect(model, path, depth + 1, inside)
            if (partners := optimizer_partners(value)) is not None:
                self.states.append((begin, len(self.kinds)))
                self.known.update(
                    (begin + n, p) for n, p in enumerate(partners) if p is not None
                )
        elif isinstance(value, Mapping):
            for key, inner in _parts(value, value.items()):
                if inside == _TABLE and isinstance(inner, _SCALARS):
                    self.number = self.number or (inner, _joined(path, key))
                    self._scalar(inner, _joined(path, key))
                else:
                    self.collect(inner, _joined(path, key), depth + 1, inside)
        else:
            self._collect_object(value, path, depth, inside)

    def _model(self, value: Any, path: str) -> Any:
        try:
            return model_arrays(value)
        except LayoutError as error:
            raise LayoutError(
                f"{shown(path)}: {error}" if path else str(error)
            ) from None

    def _collect_sequence(
        self, value: tuple | list, path: str, depth: int, inside: int
    ) -> None:
        if inside != _MODULE and _is_described(value):
            self._described(path or "array", value[0], list(value[1:]))
        elif inside != _MODULE and value and isinstance(value[0], str):
            name, shape, *rest = (*value, None) if len(value) < 2 else value
            self._described(_joined(path, name), shape, rest)
        else:
            for index, inner in enumerate(_parts(value, value)):
                # The rows of a table have names of their own; a tree's lists have
                # positions.
                inner_path = (
                    path
                    if depth == 0 and _names_itself(inner)
                    else _joined(path, index)
                )
                self.collect(inner, inner_path, depth + 1, inside)

    def _collect_object(self, value: Any, path: str, depth: int, inside: int) -> None:
        within = max(
            inside, _MODULE if library_of(type(value)) == "equinox" else _FIELDS
        )
        found = self._fields(value)
        if found is not None:
            begin = len(self.kinds)
            for name, inner in found:
                self.collect(
                    inner, _joined(path, name) if name else path, depth + 1, within
                )
            if is_optimizer_state(value):
                self.states.append((begin, len(self.kinds)))
        elif isinstance(value, Iterator):
            rows = limited(value, MAX_STREAMED, "The rows of an iterator", LayoutError)
            self.collect(rows, path, depth, inside)
        elif not _none_of_ours(value, inside):
            raise LayoutError(_no_array(value, path))

    def _fields(self, value: Any) -> Iterable[tuple[str, Any]] | None:
        """The named parts of an object that can hold arrays, or None."""
        if isinstance(value, type):
            return None
        if self._children is not None and (found := self._children(value)) is not None:
            return found
        names = _fields(value)
        return (
            None if names is None else [(name, getattr(value, name)) for name in names]
        )

    def _read_leaf(self, value: Any, path: str, depth: int, inside: int) -> bool:
        """Collects an array, in a library's box or not; whether `value` was one."""
        try:
            box = without_metadata(value)
        except ShardvizError as error:
            raise type(error)(
                f"{shown(path)}: {error}" if path else str(error)
            ) from None
        if box is not None:
            inner, path = box.value, box.path or path
            if library_of(type(value)) == "keras":
                self.keras[len(self.kinds)] = path
            if isinstance(inner, TreeLeaf):  # of an argument of a program
                self._keep(inner, path)
                return True
            if not is_array(inner) and without_metadata(inner) is None:
                self.collect(inner, path, depth + 1, inside)
                return True
            self._array(path, inner, box)
            return True
        if is_array(value):
            self._array(path, value, None)
            return True
        if inside == _FIELDS and isinstance(value, _SCALARS):
            self._scalar(value, path)
            return True
        return False

    def _array(self, path: str, value: Any, box: LeafMetadata | None) -> None:
        path = path or "array"
        self._keep(read_leaf(short_name(path), value, box, self._names), path)

    def _scalar(self, value: Any, path: str) -> None:
        self._keep(
            TreeLeaf(ArraySpec("number", (), None, dtype_name(type(value)))),
            path or "array",
        )

    def _described(self, name: str, shape: Any, rest: list) -> None:
        if len(rest) > 2:
            raise LayoutError(
                f"{shown(name)}: a row is (name, shape, logical names, dtype); got"
                f" {len(rest) + 2} entries."
            )
        logical, dtype = (*rest, None, None)[:2]
        shape, logical = (
            tuple(v) if isinstance(v, list) else v for v in (shape, logical)
        )
        known = logical is None or isinstance(logical, (str, tuple))
        names = logical if known else names_of(logical) or (logical,)
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
            if isinstance(shape, tuple) and first.problem is None:
                self._checked[key] = first
        self._keep(first, name)

    def _keep(self, leaf: TreeLeaf, name: str) -> None:
        self.paths.append(name)
        if len(name) > LONG_NAME:
            name = short_name(name)
        if name in self._taken:
            count = self._seen[name] = self._seen.get(name, 1) + 1
            name = f"{name} ({count})"
        else:
            self._taken.add(name)
        self.named.append(name)
        self.kinds.append(leaf)


def short_name(name: str) -> str:
    """The end of a long path, which says more than its beginning.

    >>> short_name("params/w")
    'params/w'
    """
    return name if len(name) <= LONG_NAME else "…" + name[1 - LONG_NAME :]


def _none_of_ours(value: Any, inside: int) -> bool:
    """Whether a value in a class is no array and need not be one."""
    if inside == _TABLE:
        return False
    return inside == _MODULE or isinstance(value, (str, bytes)) or callable(value)


def _checked(name: str, shape: Any, names: Any, dtype: Any) -> TreeLeaf:
    """The array of a row; its name does not matter."""
    spec = names if isinstance(names, Spec) else None
    logical = None if spec is not None else names
    try:
        array = ArraySpec("array", shape, None, dtype, spec)
    except ShardvizError as error:
        raise type(error)(f"{shown(name)}: {error}") from None
    if logical is None:
        return TreeLeaf(array, described=True)
    try:
        return TreeLeaf(array.replace(logical=read_names(logical)), described=True)
    except RuleError as error:
        return TreeLeaf(array, str(error), described=True)


def _is_described(value: tuple | list) -> bool:
    """Whether it is `(shape, logical[, dtype])`."""
    parts = value[:4]  # of a user's own list, whose length may be wrong
    if len(parts) not in (2, 3) or isinstance(parts[0], ArraySpec):
        return False
    shape, names = parts[0], parts[1]
    if (
        isinstance(shape, (tuple, list))
        and shape
        and all(type(n) is int for n in shape)
    ):
        return True
    listed_shape = (
        isinstance(shape, (tuple, list)) and not shape and not hasattr(shape, "_fields")
    )
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


def _parts(container: Any, parts: Any) -> Iterable[Any]:
    """The parts of a list, tuple or mapping; a user's own class of it may be endless."""
    if type(container) in (list, tuple, dict):
        return parts
    return limited(
        parts, max(len(container), MAX_STREAMED), "The parts of a tree", LayoutError
    )


def _joined(path: str, key: Any) -> str:
    part = key if isinstance(key, str) else str(key) if type(key) is int else shown(key)
    return f"{path}/{part}" if path else part


def is_optimizer_state(value: Any) -> bool:
    """Whether it is an object of optax; `LookaheadParams` and the like hold parameters."""
    kind = type(value)
    return library_of(kind) == "optax" and not kind.__name__.endswith("Params")


def _fields(value: Any) -> Iterable[str] | None:
    """The fields of a namedtuple or dataclass instance that can hold arrays, or None."""
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


def _no_array(value: Any, path: str) -> str:
    where = f"{shown(path)}: " if path else ""
    return (
        f"{where}{shown(value)} is no array. Give ArraySpecs, rows such as"
        " ('w', (512, 2048), 'embed mlp'), or a tree of arrays."
    )
