"""Any value, ours or jax's: converted to ours, and shown as a figure, as text, in the Explorer."""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from shardviz.core.errors import (
    LayoutError,
    MissingPackage,
    ProgramError,
    ShardvizError,
    SpecError,
    import_optional,
)
from shardviz.core.format import plural, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import (
    is_array,
    on_mesh,
    read_leaf,
)
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.libraries import (
    library_of,
    mesh_of,
    named_sharding,
    without_metadata,
)
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.parse import check_size, limited, parse_bytes
from shardviz.core.layout.partition_spec import MAX_RANK, Spec
from shardviz.core.layout.resolution import request
from shardviz.core.layout.rules import Dialect, Rules
from shardviz.core.program.report import Collective, Report
from shardviz.legacy.equivalents import sharding_spec_layout
from shardviz.legacy.partitions import Parts, parts_layout
from shardviz.legacy.sharding_spec import ShardingSpec, is_sharding_spec, parse_sharding_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardviz.core.program.movement import Movement
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.stages import Stages
    from shardviz.widgets.explorer import Explorer

P = ParamSpec("P")
T = TypeVar("T")
_OWN = (str(Path(__file__).parents[1]), *set(sysconfig.get_paths().values()))


def reads_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """The function, saying so in a sentence where an argument raises while it is read.

    Any object may be given, and its `__len__`, `__eq__` or `__iter__` may raise anything. An
    exception out of shardviz, Python or an installed package stays as it is.
    """

    @functools.wraps(function)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ShardvizError:
            raise
        except Exception as error:
            innermost = list(traceback.walk_tb(error.__traceback__))[-1][0].f_code.co_filename
            if innermost.startswith(_OWN):
                raise
            raise ShardvizError(
                f"An argument of sv.{function.__name__} raised {type(error).__name__} when it was"
                " read. Give plain text, numbers, lists, or values of shardviz, numpy or jax."
            ) from error

    return reading


def adopt(thing: Any) -> Any:
    """jax's own objects as ours; everything else as it is."""
    return bridge().adopt(thing) if is_jax(thing) else thing


def is_jax(thing: Any) -> bool:
    """Whether `thing` is one of jax's own objects."""
    # By the module of its class, so that jax need not be installed.
    return type(thing).__module__.partition(".")[0] in ("jax", "jaxlib")


def as_mesh(thing: Any) -> MeshSpec:
    """A MeshSpec from anything that `sv.mesh` takes."""
    found = foreign_mesh(thing)
    return make_mesh(thing) if found is None else found


def foreign_mesh(thing: Any) -> MeshSpec | None:
    """A MeshSpec as it is, and that of a mesh of jax or Keras; None for all else."""
    if isinstance(thing, MeshSpec):
        return thing
    if is_jax(thing):
        return bridge().adopt_mesh(thing)
    return mesh_of(thing) if library_of(type(thing)) == "keras" else None


def children_of(container: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container that the user has registered with jax; None for all else."""
    return bridge().tree_children(container) if "jax" in sys.modules else None


def as_spec(thing: Any) -> Spec:
    """A Spec from text, jax's own, a tuple, or a Spec.

    Raises:
        SpecError: for anything else.
    """
    if isinstance(thing, Spec):
        return thing
    if isinstance(thing, str):
        return Spec.parse(thing)
    if is_jax(thing):
        adopted = bridge().adopt(thing)
        if isinstance(adopted, Spec):
            return adopted
    if isinstance(thing, (tuple, list)):
        return Spec.of(*limited(thing, MAX_RANK, "The entries of a spec", SpecError))
    raise SpecError(f"A spec is text such as P('x', None), or jax's own; got {shown(thing)}.")


def as_legacy(thing: Any) -> ShardingSpec | Parts | None:
    """A ShardingSpec or Parts as it is, the text of a ShardingSpec parsed; None for all else."""
    if isinstance(thing, str) and is_sharding_spec(thing):
        return parse_sharding_spec(thing)
    return thing if isinstance(thing, (ShardingSpec, Parts)) else None


def bridge() -> ModuleType:
    """The module that converts jax's own objects; imported when one is first met."""
    return import_optional("shardviz.core.backend.bridge", "jax's own objects", "jax")


def _held_layout(thing: Any, mesh: Any, rules: Any, dialect: Any) -> Layout | None:
    """The Layout of an array that says how it is split, in a library's box or not; else None.

    Raises:
        ShardvizError: where it says something else than a layout.
    """
    if is_jax(thing):
        return bridge().adopt_layout(thing)
    if not library_of(type(thing)) or not (without_metadata(thing) or is_array(thing)):
        return None
    leaf = read_leaf("array", thing)
    if leaf.layout is not None:
        return leaf.layout
    grid = mesh_of(leaf.mesh) if mesh is None and leaf.mesh is not None else mesh
    if not leaf.known or grid is None:
        raise LayoutError(
            f"A layout needs a sharding and a mesh; {shown(thing)} says"
            f" {'nothing of how it is split' if not leaf.known else 'nothing of the mesh'}. Give a"
            " PartitionSpec and a mesh beside it."
        )
    table, reader = None if rules is None else Rules.of(rules), Dialect.of(dialect, paths=False)
    where = as_mesh(grid)
    row = request(on_mesh(leaf, where, table, reader), where, table, reader)
    if row.layout is None or leaf.problem:
        raise LayoutError(leaf.problem or row.problem or "")
    return row.layout


def layout_of(thing: Any, spec: Any, mesh: Any, rules: Any, dtype: Any, dialect: Any) -> Layout:
    """A Layout from any of the forms that `sv.layout` takes.

    Raises:
        ShardvizError: where something is missing or does not work out.
    """
    if spec is None:
        found = _held_layout(thing, mesh, rules, dialect)
        if found is not None:
            return found
    if library_of(type(spec)) and (named := named_sharding(spec)) is not None:
        spec, own = named
        mesh = mesh_of(own) if mesh is None else mesh
    shape = getattr(thing, "shape", thing)
    element_type = getattr(thing, "dtype", None) if dtype is None else dtype
    element_type = "float32" if element_type is None else element_type
    if is_jax(spec) and hasattr(spec, "shard_shape"):
        return bridge().sharding_layout(shape, element_type, spec)
    legacy = as_legacy(spec)
    if legacy is not None:
        ids = None if mesh is None else as_mesh(mesh).device_ids
        if isinstance(legacy, Parts):
            return parts_layout(shape, legacy, ids, element_type)
        return sharding_spec_layout(legacy, shape, element_type, ids)
    if mesh is None:
        raise LayoutError(
            f"A layout needs a mesh; got none beside {shown(thing)}. Give one as the third"
            " argument, such as sv.mesh(data=4, model=2)."
        )
    grid = as_mesh(mesh)
    if isinstance(thing, ArraySpec):
        array = thing if spec is None else thing.replace(spec=as_spec(spec))
        table = None if rules is None else Rules.of(rules)
        found = request(array, grid, table, Dialect.of(dialect, paths=False))
        if found.layout is None:
            raise LayoutError(f"{thing.name}: {found.problem}")
        return replace(found.layout, request=found)
    if spec is None:
        raise LayoutError(
            "A layout of a bare shape needs a PartitionSpec; got none. Write \"None, 'model'\" or"
            ' "" to split no dimension.'
        )
    return lay_out(shape, as_spec(spec), grid, element_type)


def make_movement(
    what: Any,
    which: Any,
    *,
    mesh: MeshSpec | None,
    axes: Any,
    devices: Any,
    size: Any,
    group: Any,
    algorithm: Any,
    topology: Any,
) -> Movement:
    """`sv.movement`, which see, of adopted values.

    Raises:
        ProgramError: for what has no steps, or arguments that do not fit together.
    """
    from shardviz.core.program.movement import movement_of, reshard_movement
    from shardviz.core.program.plan import Plan
    from shardviz.core.program.stages import Stages

    if isinstance(what, Layout):
        if isinstance(which, Layout):
            return reshard_movement(what, which)
        raise ProgramError(
            "A reshard goes from one Layout to another: sv.movement(before, after); got"
            f" {shown(which)}."
        )
    where = Topology.parse(topology) if isinstance(topology, str) else topology
    if where is not None and not isinstance(where, Topology):
        raise ProgramError(
            f"topology= is text such as 'tpu:v5e:4x4', or a Topology; got {shown(topology)}."
        )
    if isinstance(what, (Report, Plan, Stages)):
        collective, mesh, where = _collective_of(what, which, mesh, where)
    elif isinstance(what, Collective):
        collective = what
    else:
        return _movement_of_kind(what, mesh, axes, devices, size, where, group, algorithm)
    if mesh is None:
        raise ProgramError(
            "A Collective has positions in a mesh: give mesh= beside it, or its Report."
        )
    return movement_of(collective, mesh, topology=where, group=group, algorithm=algorithm)


def _collective_of(
    what: Report | Plan | Stages, which: Any, mesh: MeshSpec | None, where: Topology | None
) -> tuple[Collective, MeshSpec | None, Topology | None]:
    """A collective of a program, its mesh, and the topology that it was compiled for."""
    from shardviz.core.program.stages import Stages

    if isinstance(what, Stages):
        found = what.report if what.report is not None and what.report.ok else what.plan
        if found is None:
            raise ProgramError(
                "These Stages have neither a plan nor a report, so no collectives. Make them with"
                " sv.stages(program)."
            )
        return _collective_of(found, which, mesh, where)
    every = what.collectives or ()
    if isinstance(what, Report):
        every = (what.partitioned or ()) if what.collectives is None else what.collectives
        if where is None and what.roofline is not None and ":" in what.roofline.where:
            where = Topology.parse(what.roofline.where)
    mesh = what.mesh if mesh is None else mesh
    if isinstance(which, Collective):
        return which, mesh, where
    if not every:
        raise ProgramError(f"{what.program} has no collectives, so nothing is sent.")
    if which is None:
        return max(every, key=lambda c: c.bytes_in_all), mesh, where
    number = check_size(which, "Which collective", ProgramError)
    if not 0 <= number < len(every):
        raise ProgramError(
            f"{what.program} has {plural(len(every), 'collective')}, counted from 0; got"
            f" {shown(number)}."
        )
    return every[number], mesh, where


def _movement_of_kind(
    kind: Any,
    mesh: MeshSpec | None,
    axes: Any,
    devices: Any,
    size: Any,
    topology: Topology | None,
    group: Any,
    algorithm: Any,
) -> Movement:
    from shardviz.core.program.movement import collective_movement, movement_of
    from shardviz.core.program.movement_steps import PERMUTE, check_kind

    check_kind(kind)
    if size is None:
        raise ProgramError(f"How much is sent? Give size= beside {shown(kind)}: size='8 MiB'.")
    if mesh is None:
        if axes is not None or (devices is None) == (topology is None):
            raise ProgramError(
                f"Between which devices? Beside {shown(kind)} give devices=8, topology=, or mesh="
                " and the axes= of it that it runs over."
            )
        if topology is None:
            return collective_movement(kind, devices, size, algorithm=algorithm)
        return collective_movement(
            kind, topology.device_ids, size, hosts=topology.process_indices, algorithm=algorithm,
            topology=topology, rows=np.arange(topology.devices),
        )  # fmt: skip
    names = mesh.axis_names
    if axes is not None:
        given = [axes] if isinstance(axes, str) else axes
        names = tuple(limited(given, len(names), "The axes of a collective", ProgramError))
    for name in names:
        mesh.require_axis(name)
    if not names or len(set(names)) < len(names):
        raise ProgramError(f"A collective runs over mesh axes, each once; got {shown(names)}.")
    total = parse_bytes(size, "The size of a collective", ProgramError)
    shift = kind == PERMUTE
    collective = shift_over(mesh, names, total) if shift else Collective(kind, names, total)
    return movement_of(collective, mesh, topology=topology, group=group, algorithm=algorithm)


def shift_over(mesh: MeshSpec, axes: tuple[str, ...], size: int) -> Collective:
    """The collective-permute that sends to the next device along some axes, around.

    Devices are counted in the order of the mesh, as `jax.lax.ppermute` counts them.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> shift_over(make_mesh(x=3), ("x",), 8).groups
    ((0, 1), (1, 2), (2, 0))
    """
    from shardviz.core.hardware.interconnect import groups_over
    from shardviz.core.program.movement_steps import PERMUTE

    groups = np.sort(groups_over(mesh, axes), axis=1)
    pairs = np.stack([groups, np.roll(groups, -1, axis=1)], axis=-1).reshape(-1, 2)
    return Collective(PERMUTE, axes, size, groups=tuple(map(tuple, pairs.tolist())))


@reads_arguments
def plot(thing: Any, **options: Any) -> Figure:
    """The picture of any value, as a matplotlib Figure.

    Args:
        thing: anything that shardviz returns, or jax's own mesh, spec, sharding or array.
        **options: `theme="dark"`, and what the value's picture understands, such as `dims=(0, 2)`.

    Raises:
        ShardvizError: where the value has no picture, or matplotlib is not installed.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> type(plot(make_mesh(data=4, model=2))).__name__
    'Figure'
    """
    figures = import_optional("shardviz.plots.paint", "sv.plot", "matplotlib")
    return figures.figure(adopt(thing), **options)


@reads_arguments
def text(thing: Any, width: int = 80, **options: Any) -> str:
    """The picture of any value, as text for terminals and screen readers.

    Args:
        thing: anything that shardviz returns, or jax's own mesh, spec, sharding or array.
        width: how many characters a line may have.
        **options: `full=True` for all that a large plan, report or explanation holds, of which
            the text otherwise shows the largest.

    Raises:
        ShardvizError: where the value has no text, or none with that option.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> "model" in text(make_mesh(data=4, model=2))
    True
    """
    from shardviz.picture.show import to_text

    return to_text(adopt(thing), width, **options)


@reads_arguments
def explore(thing: Any = None) -> Explorer:
    """Opens the Explorer: with a running example, on a program, a model, or from a saved state.

    Its four views are Layout, Rules, Model and Program; every edit can be undone.

    Args:
        thing: None, a Program, an Audit, a Report, a Resolution with a mesh and a shape, a Layout,
            a MeshSpec, ArraySpecs, a model whose arrays say their mesh, or what
            `explorer.state()` returned.

    Raises:
        ShardvizError: for a state that cannot be read, or where anywidget is not installed.

    >>> explore().session.mesh.size
    8
    """
    from shardviz.core.program.cache import cache

    explorer = import_optional("shardviz.widgets.explorer", "sv.explore", "anywidget")
    return explorer.open_explorer(adopt(thing), cache, children_of)


def mimebundle(value: Any) -> dict[str, Any]:
    """How a value shows itself in a notebook: text always, PNG where matplotlib is installed."""
    from shardviz.picture.show import to_text

    bundle: dict[str, Any] = {"text/plain": to_text(value)}
    with contextlib.suppress(MissingPackage):
        figures = import_optional("shardviz.plots.paint", "a picture", "matplotlib")
        bundle["image/png"] = figures.png(value)
    return bundle
