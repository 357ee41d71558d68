"""read_leaf() and on_mesh(): what a leaf of a tree says about how it is split.

`sv.layout`, `sv.audit` and `sv.program` all read leaves here. What counts, in this order: the
sharding of the array itself, the names beside it, what a function of the user says of it. Where
none of them says anything, that is what comes out: an array without a spec and without names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from shardviz.core.errors import LayoutError, RuleError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.array_spec import ArraySpec, read_names
from shardviz.core.layout.layout import Layout, layout_from_indices
from shardviz.core.layout.libraries import (
    LeafMetadata,
    attribute,
    is_partition_spec,
    library_of,
    named_sharding,
    names_of,
    without_metadata,
)
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import resolve
from shardviz.core.layout.rules import Dialect, Rules

Names = Callable[[str, Any], Any]


class TreeLeaf(NamedTuple):
    """An array of a tree, and what is known of it before rules and a mesh are.

    Attributes:
        array: its shape and dtype; `spec` is that of its own sharding, `logical` are the names
            beside it. Both may be there: the sharding wins.
        problem: why its names could not be read, or None.
        described: whether somebody wrote it down, as an ArraySpec or a row of a table; then no
            name means that no rule splits it.
        logical: whether the names are for rules alone, never mesh axes.
        mesh: the mesh of its sharding or names, in the type of its library; or None.
        layout: where its bytes lie, for a live array whose sharding names no mesh axes.
        rules: pairs of names and mesh axes that its library keeps beside the names.
        defaults: whether the names in a box of flax say how it is split; flax's reading leaves
            arrays without a box unsplit.

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
        return self.described or self.array.spec is not None or self.array.logical is not None

    def renamed(self, name: str) -> TreeLeaf:
        """A copy under another name."""
        return self._replace(array=self.array.renamed(name))


def is_array(value: Any) -> bool:
    """Whether it has a shape and a dtype."""
    return attribute(value, "shape") is not None and attribute(value, "dtype") is not None


def read_leaf(
    name: str, value: Any, box: LeafMetadata | None = None, names: Names | None = None
) -> TreeLeaf:
    """What an array says of itself: its own sharding, and the names beside it.

    Args:
        name: what to call it.
        value: the array, as it is or in a library's box.
        box: what the box said, where `value` was taken out of one already.
        names: called as `names(name, array)` where nothing else says how it is split; it returns
            names, a PartitionSpec, or None.

    Raises:
        ShardvizError: for a shape or dtype that no array has.
    """
    while (inner := without_metadata(value)) is not None:
        box = inner if box is None or box.axes is None else box
        value = inner.value
    box = LeafMetadata(value) if box is None else box
    axes = box.axes
    spec, mesh, layout = own_sharding(value, axes is not None)
    if axes is None and spec is None and names is not None:
        axes = _said(names, name, value)
    by_names = box.defaults and spec is None and box.axes is not None
    mesh = box.mesh if mesh is None else mesh
    try:
        array, problem = _array(value.shape, value.dtype, spec, axes)
    except ShardvizError as error:
        raise type(error)(f"{shown(name)}: {error}") from None
    except TypeError:  # a part that is unhashable
        array, problem = _array.__wrapped__(tuple(value.shape), value.dtype, spec, axes)
    return TreeLeaf(
        array.renamed(name), problem, False, box.logical, mesh, layout, box.rules, by_names
    )


@lru_cache(maxsize=1024)
def _array(shape: Any, dtype: Any, spec: Spec | None, axes: Any) -> tuple[ArraySpec, str | None]:
    """An array with its spec and names, and why the names do not fit.

    Large models have many arrays and few signatures.
    """
    array = ArraySpec("array", shape, None, dtype, spec)
    try:
        if isinstance(axes, Spec):
            return (array.replace(spec=axes) if spec is None else array), None
        if axes is not None:
            array = array.replace(logical=read_names(padded(axes, array.shape)))
    except (RuleError, LayoutError) as error:
        return array, str(error)
    return array, None


def own_sharding(value: Any, named: bool) -> tuple[Spec | None, Any, Layout | None]:
    """The spec, the mesh and, where its sharding names no mesh axes, the layout of an array.

    Args:
        value: the array.
        named: whether names stand beside it. Under a mesh `jax.eval_shape` writes a sharding that
            splits nothing on every array; then the names count.
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
    except (ValueError, ShardvizError):  # blocks that differ in shape, random keys in jax 0.10.0
        return None, None, None


def _empty(spec: Spec, mesh: Any, named: bool) -> bool:
    """Whether a sharding says nothing: it splits nothing, over a mesh that is no devices."""
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
    """Names with None for the dimensions that have none: a PartitionSpec may be shorter, too.

    >>> padded(("mlp",), (8, 4))
    ('mlp', None)
    """
    if isinstance(names, tuple) and isinstance(shape, tuple) and len(names) < len(shape):
        return names + (None,) * (len(shape) - len(names))
    return names


def on_mesh(
    leaf: TreeLeaf,
    mesh: MeshSpec | None,
    rules: Rules | None,
    dialect: Dialect = Dialect.LINEN,
) -> ArraySpec:
    """The array of a leaf, with the spec that its names are where they are mesh axes.

    Names beside an array are for the rules. They are mesh axes where no rule is for any of them
    and the mesh has them all, as flax's `get_partition_spec` takes them. nnx decides that by
    itself, name by name.
    """
    array = leaf.array
    named = [n for n in array.logical or () if isinstance(n, str)]
    if array.spec is not None or leaf.problem or leaf.described or not named:
        return array
    if rules is not None and any(n in rules.by_name for n in named):
        return array
    if leaf.rules:
        reader = Dialect.LINEN if leaf.logical else Dialect.NNX
        return array.replace(spec=resolve(array.logical, leaf.rules, dialect=reader).spec)
    if leaf.logical or mesh is None or (dialect is Dialect.NNX and rules is not None):
        return array
    if all(n in mesh.axis_names for n in named):
        return array.replace(spec=Spec.of(*(array.logical or ())))
    return array
