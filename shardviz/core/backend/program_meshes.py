"""The mesh in context while a program is traced, and the meshes that the program names itself.

Found before jax is asked, since a program that is traced on an abstract mesh has no order of
devices, and jax would say yes to what it refuses on the real ones.

jax compares the two with the kind of device that each is made for: a mesh of axes alone is not
equal to the same axes on CPUs, and `shard_map(mesh=...)` refuses it. For a plan that difference
is none, so a program is traced again in the context that its own mesh asks for.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.failures import source_of
from shardviz.core.backend.jaxprs import inner_jaxprs, named_meshes, plain_jaxpr
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural
from shardviz.core.hlo.sources import is_user_file, line_in_words
from shardviz.core.layout.mesh import MeshSpec

MAX_SHOWN = 16


def refuse_other_orders(jaxpr: Any, mesh: MeshSpec) -> None:
    """Refuses a program that names the devices of its mesh in another order than the mesh.

    Raises:
        ProgramError: with both orders, how they differ, and the line that names the second.
    """
    for named, equation in named_meshes(jaxpr):
        own = mesh.device_ids.ravel().tolist()  # here: most programs name no mesh, however large
        other = [d.id for d in named.devices.flat]
        if other != own and sorted(other) == sorted(own):
            raise ProgramError(
                _in_words("The program's mesh", own, naming_operation(equation), other)
            )


def _in_words(first: str, order: list[int], second: str, other: list[int]) -> str:
    """Both orders, who has which, and what to do."""
    return (
        f"Two meshes hold the same {plural(len(order), 'device')} in another order. {first}:"
        f" {_shown(order)}; {second}: {_shown(other)}{transposed(order, other)}. A program runs on"
        " one order of devices: make both meshes from one array of devices, or move the array"
        " first with jax.device_put."
    )


def naming_operation(equation: Any) -> str:
    """The operation that names a mesh, and its line where jax kept it.

    >>> import jax
    >>> who(jax.make_jaxpr(jax.numpy.sin)(1.0).eqns[0])
    'sin'
    """
    traceback = getattr(getattr(equation, "source_info", None), "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        if is_user_file(frame.file_name):
            return f"{equation.primitive.name} ({line_in_words(frame.file_name, frame.line_num)})"
    return equation.primitive.name


def transposed(order: list[int], other: list[int]) -> str:
    """How one order becomes the other by a transpose, in words; `""` where it does not.

    >>> transposed([0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5])
    ', which is the first order as 2 × 3, transposed'
    """
    size = len(order)
    for rows in range(2, size // 2 + 1):
        grid = np.array(order).reshape(rows, -1) if size % rows == 0 else None
        if grid is not None and np.array_equal(grid.T.ravel(), other):
            return f", which is the first order as {rows} × {size // rows}, transposed"
    return ", which is the first order reversed" if order[::-1] == other else ""


def _shown(ids: list[int]) -> str:
    more = f", … {len(ids) - MAX_SHOWN:,} more" if len(ids) > MAX_SHOWN else ""
    return ", ".join(map(str, ids[:MAX_SHOWN])) + more


# No mesh at all: every operation then takes the mesh of what it is given.
NO_MESH = AbstractMesh((), ())
_SAYS = "mesh"
_PLAIN = (type(None), str, int, tuple, list, dict)  # most parameters, and no meshes


@contextlib.contextmanager
def in_context(mesh: Mesh | AbstractMesh) -> Any:
    """The context in which a program is traced and lowered: its mesh is the mesh.

    What the person set with `jax.set_mesh` does not count meanwhile.

    >>> with in_context(AbstractMesh((4,), ("data",))):
    ...     jax.sharding.get_abstract_mesh().axis_names
    ('data',)
    """
    # Functions may name mesh axes without a mesh: with_sharding_constraint(x, P("data")).
    if isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:
        # A mesh that was set before lowers for its own devices, and refuses one of another size.
        with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh):
            yield


@dataclass
class RefusedMesh:
    """The mesh of a program that jax refused beside the one in context; None so far.

    Attributes:
        context: the mesh in context.
        named: the mesh that the program names.
        source: the line of the person's code that does.
    """

    context: AbstractMesh
    named: AbstractMesh | None = None
    source: str = ""

    @property
    def same_axes(self) -> bool:
        """Whether the two differ in nothing but the kind of device."""
        return self.named is not None and _axes(self.named) == _axes(self.context)


def watched(fn: Callable[..., Any], meeting: RefusedMesh) -> Callable[..., Any]:
    """The same function, which writes down on which of its meshes jax refused it.

    Args:
        fn: the function that is traced.
        meeting: where it is written down.
    """

    @functools.wraps(fn)
    def told(*args: Any) -> Any:
        try:
            return fn(*args)
        except ValueError as error:
            # Here, since jax takes its own frames out of the error before it hands it on.
            meeting.named = _named(error, meeting.context)
            meeting.source = source_of(error)
            raise

    return told


def refuse_other_axes(meeting: RefusedMesh, mesh: MeshSpec) -> None:
    """Refuses a program that names a mesh with other axes than its own.

    Raises:
        ProgramError: with both meshes, and what differs.
    """
    if meeting.named is not None and not meeting.same_axes:
        place = f" at {meeting.source}" if meeting.source else ""
        words = _two_meshes(f"The function names a mesh of its own{place}", meeting.named, mesh)
        raise ProgramError(f"{words} Give both the same mesh.")


def refuse_other_meshes(jaxpr: Any, mesh: MeshSpec) -> None:
    """Refuses to plan a program in which something is split over a mesh with other axes.

    jax itself takes one with Auto axes: `with_sharding_constraint` over another shape of the same
    devices.

    Raises:
        ProgramError: with both meshes, what differs, and the line that names the second.
    """
    for named, equation in _meshes(jaxpr):
        if (tuple(named.axis_names), tuple(named.axis_sizes)) != (mesh.axis_names, mesh.axis_sizes):
            words = _two_meshes(
                f"{naming_operation(equation)} is over a mesh of its own", named, mesh
            )
            raise ProgramError(
                f"{words} A plan speaks of one mesh: give both the same, or ask sv.compile, which"
                " tells what XLA makes of two."
            )


def _two_meshes(opening: str, named: AbstractMesh, mesh: MeshSpec) -> str:
    sizes = zip(named.axis_names, named.axis_sizes, strict=True)
    other = ", ".join(f"{name}={size}" for name, size in sizes)
    differs = differing_axes(mesh, named)
    return f"{opening}, {other}, and the program's mesh is {mesh}. {differs}"


def _meshes(jaxpr: Any) -> Iterator[tuple[AbstractMesh, Any]]:
    """Every mesh that the operations of a program are over, as axes, with the operation."""
    for equation in plain_jaxpr(jaxpr).eqns:
        for value in equation.params.values():
            mesh = None if isinstance(value, _PLAIN) else _mesh_of(value)
            if mesh is not None and not mesh.empty:
                yield mesh, equation
        for inner in inner_jaxprs(equation.params):
            yield from _meshes(inner)


def differing_axes(mesh: MeshSpec, named: Any) -> str:
    """What differs between the axes of a program's mesh and of one that its function names.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> differing_axes(make_mesh(data=2, model=4), AbstractMesh((2, 2), ("data", "model")))
    'The sizes differ: model is 2 there and 4 here.'
    """
    names, own = tuple(named.axis_names), mesh.axis_names
    if set(names) != set(own):
        sides = (("there", names, own), ("here", own, names))
        alone = [(where, [a for a in mine if a not in other]) for where, mine, other in sides]
        words = [f"{listed(axes)} only {where}" for where, axes in alone if axes]
        return f"The axes differ: {', '.join(words)}."
    if names != own:
        return f"The axes stand in another order: {listed(names)} there."
    types = [t.name for t in named.axis_types]
    for what, theirs, ours in (
        ("sizes", tuple(named.axis_sizes), mesh.axis_sizes),
        ("types", types, mesh.axis_types),
    ):
        rows = zip(names, theirs, ours, strict=True)
        if differ := [f"{a} is {t} there and {o} here" for a, t, o in rows if t != o]:
            return f"The {what} differ: {', '.join(differ)}."
    return ""


def _named(error: BaseException, context: AbstractMesh) -> AbstractMesh | None:
    """The mesh that the frame in which jax refused had in hand, beside the one in context."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if _SAYS not in str(error) or not frames:
        return None
    innermost = frames[-1]
    if not str(innermost.f_globals.get("__name__", "")).startswith("jax."):
        return None
    for value in innermost.f_locals.values():
        mesh = _mesh_of(value)
        if mesh is not None and mesh != context and not mesh.empty and not _manual(mesh):
            return mesh
    return None


def _mesh_of(value: Any) -> AbstractMesh | None:
    for name in ("", "mesh", "sharding"):
        found = getattr(value, name, None) if name else value
        found = getattr(found, "mesh", found) if name == "sharding" else found
        if isinstance(found, (Mesh, AbstractMesh)):
            return found.abstract_mesh
    return None


def _manual(mesh: AbstractMesh) -> bool:
    return any(t.name == "Manual" for t in mesh.axis_types)


def _axes(mesh: Any) -> tuple[Any, ...]:
    return tuple(mesh.axis_names), tuple(mesh.axis_sizes), tuple(mesh.axis_types)
