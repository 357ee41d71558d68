"""Public functions for axis rules: `rules`, `resolve`, `audit` and `remedies`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.audit import audit as _audit
from shardviz.axis_rules.dialects import Dialect, PathDialect
from shardviz.axis_rules.path_rules import PathResolution, resolve_path
from shardviz.axis_rules.remedies import Remedies
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.resolution import resolve as _resolve
from shardviz.axis_rules.rule_tables import dialect_of, read_rules
from shardviz.axis_rules.rules import PathRules, Rules, is_pair
from shardviz.axis_rules.state_remedies import with_names_of_parameter
from shardviz.base.array_spec import dtype_name, read_shape
from shardviz.base.display import StageClock
from shardviz.base.errors import LayoutError, RuleError, ShardvizError, needed_by
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
from shardviz.base.typing import (
    DialectLike,
    DtypeLike,
    MeshLike,
    NamesFunction,
    NamesLike,
    PyTree,
    RulesLike,
    ShapeLike,
    SpecLike,
)
from shardviz.hardware.targets import Target, checked_text
from shardviz.hardware.topology import Topology
from shardviz.programs.program import Program

# Limit in bytes. MaxText's record of a 671B model has 1 MB.
MAX_JSON = 1 << 25


def rules(
    *pairs: RulesLike | tuple[str, SpecLike | None], dialect: DialectLike | None = None
) -> Rules | PathRules:
    """Creates a table from logical axis names to mesh axes, or from paths to specs.

    Files and text are parsed; no code is evaluated.

    Args:
        *pairs: pairs such as `("batch", "data")` or `("mlp/.*/kernel", P(None,
            "model"))`; one list or dict of pairs; text; a Keras `LayoutMap`; or the
            path of a YAML or JSON file with `logical_axis_rules` or with the rules
            alone, or of a Python file.
        dialect: the library that will read the table. `"regex"` and `"keras"` read path
            tables. By default, a table whose values are PartitionSpecs is a path table,
            and any other table has logical axis names.

    Raises:
        ShardvizError: if pairs, text or a file cannot be parsed.

    >>> import shardviz as sv
    >>> len(sv.rules(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None)))
    3
    >>> print(sv.rules(("mlp/.*/kernel", (None, "model")), dialect="regex"))
    mlp/.*/kernel → P(None, 'model')
    """
    reader = optional(Dialect.of, dialect)
    # A single argument that isn't a pair is a whole table: a list, text or a file.
    if len(pairs) == 1 and not is_pair(pairs[0]):
        return read_rules(pairs[0], reader)
    return read_rules(pairs, reader)


def resolve(
    names: NamesLike,
    rules: RulesLike,
    *,
    mesh: MeshLike | None = None,
    shape: ShapeLike | None = None,
    dialect: DialectLike | None = None,
) -> Resolution | PathResolution:
    """Resolves logical names to a PartitionSpec, and explains each rule's effect.

    The result has a verdict for every rule and dimension. In the path dialects
    (`"regex"`, `"keras"`), the function resolves an array's path instead, and the
    result has a verdict for every pattern.

    Args:
        names: one logical name per dimension, as text or a sequence, with None for a
            dimension without a name; in a path dialect, an array's path, such as
            `"mlp/0/kernel"`.
        rules: the rule table.
        mesh: the mesh, to find rules with axes that the mesh doesn't have, and to
            compare axis sizes with `shape`.
        shape: the array's shape, to find dimensions that the mesh axes do not divide.
        dialect: the library whose semantics the table follows: `"linen"`, `"nnx"`,
            `"maxtext"`, `"regex"` or `"keras"`; by default the one that `sv.rules` got,
            otherwise `"linen"`.

    Raises:
        ShardvizError: if names or rules cannot be parsed, if `names` repeats a name
            (which only `"nnx"` allows), or if several patterns of a `LayoutMap` match a
            path.

    >>> import shardviz as sv
    >>> str(sv.resolve(("embed", "mlp"), [("mlp", "model")]).spec)
    "P(None, 'model')"
    >>> kernel_rules = [("kernel", (None, "model"))]
    >>> str(sv.resolve("mlp/0/kernel", kernel_rules, dialect="regex").spec)
    "P(None, 'model')"
    """
    # Callers may resolve many arrays, so parsed values are not parsed again.
    if mesh is not None and not isinstance(mesh, MeshSpec):
        mesh = as_mesh(mesh)
    reader = dialect_of(rules, dialect)
    table = rules
    if not isinstance(rules, Rules):
        table = _read_second(rules, reader, names, "sv.resolve(names, rules)")
    if isinstance(table, PathRules):
        assert isinstance(reader, PathDialect)
        sizes = optional(read_shape, shape)
        return resolve_path(names, table, mesh, sizes, reader)
    return _resolve(names, table, mesh=mesh, shape=shape, dialect=reader)


def audit(
    tree: PyTree,
    rules: RulesLike = (),
    mesh: MeshLike | None = None,
    *,
    dialect: DialectLike | None = None,
    names: NamesFunction | None = None,
    target: Topology | Target | str | None = None,
) -> Audit:
    """Lays out every array of a model, and lists the rules that have no effect.

    An array's layout comes from its own sharding, otherwise from the logical names that
    a library stores with it, otherwise from `names`. An array with none of these has a
    row without a spec. No memory is allocated and no array is read. In a train state,
    each optimizer moment is paired with its parameter, and `.differences` lists the
    moments that are not sharded like their parameters, or that have a wider dtype.

    Args:
        tree: the arrays: ArraySpecs; `(name, shape, logical)` rows; a tree of live or
            abstract parameters; a flax, equinox, haliax, penzai or Keras model, or the
            variables of one; orbax checkpoint metadata; a train state or the results of
            a train step; a Program, whose arguments are laid out; or the path or
            content of a MaxText file with `named_shardings` or `logical_shardings`.
        rules: the rule table; in a path dialect, (pattern, spec) pairs or a Keras
            `LayoutMap`. The table may be empty if the arrays have shardings. Defaults
            to a Program's rules.
        mesh: the mesh. Defaults to the mesh of a Program or of the arrays' shardings,
            otherwise to the one in context, for example from `jax.set_mesh`.
        dialect: the library whose semantics the table follows; by default the one that
            `sv.rules` got, otherwise `"linen"`. `"regex"` and `"keras"` match array
            paths, with segments joined by `/`. A `LayoutMap` always follows Keras.
        names: a function that is called as `names(path, array)` for each array without
            a sharding or logical names. It returns logical names, a PartitionSpec, or
            None.
        target: described hardware such as `"tpu:v5p:8x8x16"`. The audit then compares
            the arrays' bytes per device with the memory of this hardware.

    Raises:
        ShardvizError: if the tree, rules, mesh or target cannot be parsed, or if Keras
            would raise because several patterns of a `LayoutMap` match a path.

    >>> import shardviz as sv
    >>> rows = [("w", (512, 2048), "embed mlp")]
    >>> sv.audit(rows, [("mlp", "model")], "data=4, model=2").bytes_per_device
    2097152
    """
    # Layouts don't depend on hardware; only the memory comparison needs a target.
    capacity, title, count_devices = None, "", None
    if target is not None:
        capacity, title, count_devices = capacity_of(target)
    grid, in_context = None, None
    if mesh is not None:
        grid = as_mesh(mesh, count_devices)
    if _is_json_file(tree):
        tree = _read_json(tree)
    call = "sv.audit(arrays, rules, mesh)"
    if isinstance(tree, Program):
        with needed_by("sv.audit"):
            from shardviz.programs.backend import arguments
        # The program supplies the rules, dialect and mesh that were omitted.
        reader = dialect_of(rules, dialect, tree.dialect)
        table = _read_second(rules, reader, tree, call)
        if not len(table) and tree.rules is not None:
            table = tree.rules
        if grid is None:
            grid = tree.mesh
        tree = arguments.argument_tree(tree)
    else:
        reader = dialect_of(rules, dialect)
        table = _read_second(rules, reader, tree, call)
        if grid is None:
            in_context = mesh_in_context()
    with StageClock("audit", stage="resolve"):
        return _audit(
            tree,
            table,
            grid,
            reader,
            names=names,
            children=children_of,
            capacity=capacity,
            target=title,
            mesh_in_context=in_context,
        )


def _read_second(
    rules: RulesLike, reader: Dialect, first: object, call: str
) -> Rules | PathRules:
    """Reads the rules, which are the second argument of a call.

    Raises:
        RuleError: if `first` is the table instead, or if `rules` cannot be read.
    """
    if not isinstance(first, (Rules, PathRules)):
        try:
            return read_rules(rules, reader)
        except RuleError:
            if not _is_table(first):
                raise
    raise RuleError(f"The first argument is a table of rules. Write {call}.")


def _is_table(value: object) -> bool:
    # A pair may be two names, and other types are trees of arrays.
    if is_pair(value) or type(value) not in (str, dict, list, tuple):
        return False
    with contextlib.suppress(ShardvizError):
        return len(read_rules(value)) > 0
    return False


def _is_json_file(tree: PyTree) -> bool:
    is_text = isinstance(tree, str) and tree.lower().endswith(".json")
    return is_text or isinstance(tree, os.PathLike)


def _read_json(path: str | os.PathLike[str]) -> PyTree:
    try:
        return json.loads(read_text_file(Path(path), MAX_JSON))
    except (ValueError, RecursionError) as error:
        name = shown(str(path))
        raise LayoutError(f"{name} holds no arrays as JSON: {error}") from None


def capacity_of(
    target: Topology | Target | str,
) -> tuple[int, str, Callable[[], int]]:
    """Returns a target's memory per device (bytes), title, and device counter."""
    if isinstance(target, Target):
        target = target.topology or target.name
    elif isinstance(target, str):
        checked_text(target)
    topology = as_topology(target)
    size = topology.chip.device_bytes
    if size is None:
        raise ShardvizError(
            f"The memory of {topology.chip.title} is not published, so nothing can be"
            f" compared with it; got target={shown(target)}."
        )
    return size, topology.title, lambda: topology.size


def remedies(
    resolution: Resolution | PathResolution | Request,
    want: SpecLike | int,
    *,
    dtype: DtypeLike = "float32",
) -> Remedies:
    """Finds small edits of a rule table that shard an array the way you want.

    An edit moves, adds, removes, corrects or changes one rule, or names a dimension of
    the array. To check a remedy, shardviz resolves the array again (for a row of an
    Audit, also all other arrays of the audit). Remedies that make another array
    impossible to lay out are dropped. If the current rules cannot lay out the array, the
    last remedy leaves it unsplit, even if `want` asks for a split.

    Args:
        resolution: the result of `sv.resolve`; or a row of an Audit, so that remedies
            also consider the audit's other arrays.
        want: a PartitionSpec or its text; `"split"`, `"split 1"` (dimension 1) or
            `"split mlp"` (the dimension with that name); or the maximum number of bytes
            per device, such as `"8 MiB"`.
        dtype: the array's element type. A row of an Audit has its own, which is used
            instead.

    Raises:
        ShardvizError: if `want` cannot be parsed, or if `resolution` is neither a
            resolution nor a row.

    >>> import shardviz as sv
    >>> table = [("mlp", "model"), ("embed", "model")]
    >>> w = sv.resolve("embed mlp", table, mesh="data=4, model=2", shape=(512, 2048))
    >>> print(sv.remedies(w, "split embed")[2])
    Add the rule embed → data at the end: P('data', 'model'); saves 1.5 MiB per device.
    """
    # Text can be a request such as "split mlp" or "8 MiB"; a number is in bytes.
    goal = want if isinstance(want, (str, int)) else as_spec(want)
    if isinstance(resolution, (Resolution, PathResolution)):
        return resolution.remedies(goal, dtype_name(dtype))
    if isinstance(resolution, Request):
        return with_names_of_parameter(resolution, goal) or resolution.remedies(goal)
    raise LayoutError(
        "Remedies are found for a result of sv.resolve, or for a row of an Audit such"
        f" as audit.rows[0]; got {shown(resolution)}."
    )
