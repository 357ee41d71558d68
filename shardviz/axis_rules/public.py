"""Public functions for axis rules: `sv.rules`, `sv.resolve`, `sv.audit`, `sv.remedies`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.audit import audit as _audit
from shardviz.axis_rules.path_rules import PathResolution, resolve_path
from shardviz.axis_rules.remedies import Remedies
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.resolution import resolve as _resolve
from shardviz.axis_rules.rule_tables import dialect_of, read_rules
from shardviz.axis_rules.rules import Dialect, PathRules, Rules, is_pair
from shardviz.axis_rules.state_remedies import with_names_of_parameter
from shardviz.base.array_spec import dtype_name, read_shape
from shardviz.base.errors import LayoutError, ShardvizError, needed_by
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import read_text_file
from shardviz.base.public.adopt import (
    as_mesh,
    as_spec,
    as_topology,
    children_of,
    mesh_in_context,
    optional,
)
from shardviz.hardware.targets import Target
from shardviz.programs.program import Program

MAX_JSON = 1 << 25  # bytes; MaxText's record of a model of 671B parameters has 1 MB

if TYPE_CHECKING:
    pass


def rules(*pairs: Any, dialect: Any = None) -> Rules | PathRules:
    """An ordered table: from logical axis names to mesh axes, or from paths to
    PartitionSpecs.

    Nothing that a file or a text holds is evaluated.

    Args:
        *pairs: pairs such as `("batch", "data")` or `("mlp/.*/kernel", P(None,
            "model"))`, one list or dict of them, typed text, a Keras `LayoutMap`, or
            the path to a file that holds a table: YAML or JSON with
            `logical_axis_rules`, Python source.
        dialect: who is to read it. `"regex"` and `"keras"` read a table of paths;
            without it, one whose right sides are PartitionSpecs is such a table.

    Raises:
        ShardvizError: for pairs, text and files that cannot be read.

    >>> len(rules(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None)))
    3
    >>> print(rules(("mlp/.*/kernel", (None, "model")), dialect="regex"))
    mlp/.*/kernel → P(None, 'model')
    """
    reader = optional(Dialect.of, dialect)
    # One list, text or file in place of pairs one by one.
    if len(pairs) == 1 and not is_pair(pairs[0]):
        return read_rules(pairs[0], reader)
    return read_rules(pairs, reader)


def resolve(
    names: Any,
    rules: Any,
    *,
    mesh: Any = None,
    shape: Any = None,
    dialect: Any = "linen",
) -> Resolution | PathResolution:
    """Logical names to a PartitionSpec, with a verdict for every rule on every
    dimension.

    With a dialect of paths: a path to a PartitionSpec, with a verdict for every
    pattern.

    Args:
        names: one logical name for each dimension, as text or a sequence; None for no
            name. With a dialect of paths, the path, such as `"mlp/0/kernel"`.
        rules: the table.
        mesh: the mesh that the verdicts are checked against.
        shape: the array's shape, for verdicts on sizes that do not divide.
        dialect: who reads the table: `"linen"`, `"nnx"`, `"maxtext"`, `"regex"` or
            `"keras"`.

    Raises:
        ShardvizError: for names or rules that cannot be read, a name that occurs twice,
            and a path that several patterns of a `LayoutMap` match.

    >>> str(resolve(("embed", "mlp"), [("mlp", "model")]).spec)
    "P(None, 'model')"
    >>> str(resolve("mlp/0/kernel", [("kernel", (None, "model"))], dialect="regex").spec)
    "P(None, 'model')"
    """
    # This is called for every array of a model: what is ours already is not read again.
    if mesh is not None and not isinstance(mesh, MeshSpec):
        mesh = as_mesh(mesh)
    reader = dialect_of(rules, dialect)
    if not isinstance(rules, Rules):
        rules = read_rules(rules, reader)
    if isinstance(rules, PathRules):
        sizes = optional(read_shape, shape)
        return resolve_path(names, rules, mesh, sizes, reader)
    return _resolve(names, rules, mesh=mesh, shape=shape, dialect=reader)


def audit(
    tree: Any,
    rules: Any = (),
    mesh: Any = None,
    *,
    dialect: Any = "linen",
    names: Callable[[str, Any], Any] | None = None,
    target: Any = None,
) -> Audit:
    """Many arrays under one rule table: how each is split, and which rules do nothing.

    Of a live array its own sharding counts, then the names that a library keeps beside
    it, then what `names` says. Where none of them says anything, the array's row has no
    spec. Nothing is allocated and no array is read. In a train state every moment of
    the optimizer is paired with its parameter, and `.differences` says where the two
    are held otherwise.

    Args:
        tree: ArraySpecs, `(name, shape, logical)` rows, a tree of a model's parameters,
            live or abstract, a model or variables of flax, equinox, haliax, penzai or
            Keras, the metadata of an orbax checkpoint, a train state or what a step
            returns; or a Program, whose arguments are audited. Also the path of a file
            of MaxText's `named_shardings` or `logical_shardings`, or what it holds.
        rules: the table; an empty one where the arrays say by themselves how they are
            split. Those of a Program where they are left out. For a dialect of paths,
            pairs of a pattern and a spec, or a Keras `LayoutMap`.
        mesh: the mesh; by default that of a Program or of the arrays' own shardings,
            else the one in context, as of `jax.set_mesh`.
        dialect: who reads the table. `"regex"` and `"keras"` match the paths of the
            arrays, joined by `/`. A `LayoutMap` is always read as Keras reads it.
        names: called as `names(path, array)` for arrays that say nothing themselves;
            returns logical names, a PartitionSpec, or None.
        target: described hardware such as `"tpu:v5p:8x8x16"`, with whose memory per
            device the arrays are compared.

    Raises:
        ShardvizError: for a tree, rules, mesh or target that cannot be read, and where
            Keras raises: a path that several patterns of a `LayoutMap` match.

    >>> from shardviz.base.mesh import make_mesh
    >>> rows = [("w", (512, 2048), "embed mlp")]
    >>> audit(rows, [("mlp", "model")], make_mesh(data=4, model=2)).bytes_per_device
    2097152
    """
    # Without a target nothing is compared: an audit is for any hardware.
    capacity, title, count_devices = None, "", None
    if target is not None:
        capacity, title, count_devices = capacity_of(target)
    grid, in_context = None, None
    if mesh is not None:
        grid = as_mesh(mesh, count_devices)
    if _is_json_file(tree):
        tree = _read_json(tree)
    reader = dialect_of(rules, dialect)
    if isinstance(tree, Program):
        with needed_by("sv.audit"):
            from shardviz.programs.backend import arguments
        # What is left out is the program's.
        if reader is Dialect.LINEN:
            reader = tree.dialect
        table = read_rules(rules, reader)
        if not len(table) and tree.rules is not None:
            table = tree.rules
        if grid is None:
            grid = tree.mesh
        tree = arguments.argument_tree(tree)
    else:
        table = read_rules(rules, reader)
        if grid is None:
            in_context = mesh_in_context()
    more = names, children_of, capacity, title, in_context
    return _audit(tree, table, grid, reader, *more)


def _is_json_file(tree: Any) -> bool:
    is_text = isinstance(tree, str) and tree.lower().endswith(".json")
    return is_text or isinstance(tree, os.PathLike)


def _read_json(path: Any) -> Any:
    """What a file of JSON holds."""
    try:
        return json.loads(read_text_file(Path(path), MAX_JSON))
    except (ValueError, RecursionError) as error:
        name = shown(str(path))
        raise LayoutError(f"{name} holds no arrays as JSON: {error}") from None


def capacity_of(target: Any) -> tuple[int, str, Callable[[], int]]:
    """The memory of one device of described hardware, in bytes, what it is called, and
    what counts its devices.
    """
    if isinstance(target, Target):
        target = target.topology or target.name
    topology = as_topology(target)
    size = topology.chip.device_bytes
    if size is None:
        raise ShardvizError(
            f"The memory of {topology.chip.title} is not published, so that nothing can"
            f" be compared with it; got target={shown(target)}."
        )
    return size, topology.title, lambda: topology.size


def remedies(thing: Any, want: Any, *, dtype: Any = "float32") -> Remedies:
    """The smallest edits of a rule table with which an array is split as you want.

    Each remedy is one edit: a line of the table is moved, added, removed, corrected or
    changed, or a dimension of the array gets a name. Every remedy was checked by
    resolving all known arrays again: none makes one of them impossible to lay out. If
    the array fails now, the last remedy leaves it unsplit.

    Args:
        thing: what `sv.resolve` returns, or a row of an Audit, of which the other
            arrays are known.
        want: a PartitionSpec or its text; `"split"`, or `"split 1"` for that dimension,
            `"split mlp"` for that of the name; or the most bytes per device, such as
            `"8 MiB"`.
        dtype: the element type of an array of which only a resolution is known.

    Raises:
        ShardvizError: for a wish that cannot be read, or anything but a resolution or
            row.

    >>> table = [("mlp", "model"), ("embed", "model")]
    >>> found = resolve("embed mlp", table, mesh="data=4, model=2", shape=(512, 2048))
    >>> print(remedies(found, "split embed")[2])
    Add the rule embed → data at the end: P('data', 'model'); saves 1.5 MiB per device.
    """
    # Text and numbers are wishes of more kinds than specs.
    wanted = want
    if not isinstance(want, (str, int)):
        wanted = as_spec(want)
    if isinstance(thing, (Resolution, PathResolution)):
        return thing.remedies(wanted, dtype_name(dtype))
    if isinstance(thing, Request):
        return with_names_of_parameter(thing, wanted) or thing.remedies(wanted)
    raise LayoutError(
        "Remedies are found for what sv.resolve returns and for a row of an Audit, as"
        f" audit.rows[0]; got {shown(thing)}."
    )
