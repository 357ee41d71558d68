"""request() -> Request: the spec that one array asks for, and its Layout.

The first stage of a program, computed without jax after every edit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardviz.core.display import Displayed
from shardviz.core.errors import ShardvizError
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout, lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Resolution, resolve
from shardviz.core.layout.rules import Dialect, Rules


@dataclass(frozen=True)
class Request(Displayed):
    """The spec that one array asks for, and the layout this makes.

    Attributes:
        array: the array.
        resolution: the resolved rules, where the array has logical names and there are rules.
        spec: the spec that counts: the array's own where it has one, else that of the rules, else
            one that splits no dimension. None where the names cannot be resolved.
        layout: the Layout, or None where the array cannot be laid out so.
        problem: the sentence on why not, or None.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> found = request(ArraySpec("x", (8,), None, spec="data"), make_mesh(data=4), None)
    >>> found.spec_wins, str(found.spec), found.problem
    (True, "P('data')", None)
    """

    array: ArraySpec
    resolution: Resolution | None
    spec: Spec | None
    layout: Layout | None
    problem: str | None

    @property
    def spec_wins(self) -> bool:
        """Whether the array has a spec of its own, which overrides the rules."""
        return self.array.spec is not None


def request(
    array: ArraySpec, mesh: MeshSpec, rules: Rules | None, dialect: Dialect = Dialect.LINEN
) -> Request:
    """Resolves and lays out one array; what fails becomes `problem` and is never raised.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh, rules = make_mesh(data=4, model=2), Rules.of(("mlp", "model"))
    >>> request(ArraySpec("w", (512, 2048), "embed mlp"), mesh, rules).layout.shard_shape
    (512, 1024)
    >>> print(request(ArraySpec("w", (512, 2047), "embed mlp"), mesh, rules).problem[:41])
    Dimension 1: 2,047 does not divide by 2 (
    """
    resolution, problem = None, None
    if array.logical is not None and rules is not None:
        try:
            resolution = resolve(
                array.logical, rules, mesh=mesh, shape=array.shape, dialect=dialect
            )
        except ShardvizError as error:
            problem = str(error)
    spec = array.spec
    if spec is None:
        if problem is not None:
            return Request(array, None, None, None, problem)
        spec = resolution.spec if resolution is not None else Spec(((),) * array.rank)
    try:
        layout = lay_out(array.shape, spec, mesh, array.dtype)
    except ShardvizError as error:
        return Request(array, resolution, spec, None, str(error))
    return Request(array, resolution, spec, layout, None)


def requests(
    arrays: Iterable[ArraySpec],
    mesh: MeshSpec,
    rules: Rules | None,
    dialect: Dialect = Dialect.LINEN,
) -> tuple[Request, ...]:
    """One Request per array, in order."""
    return tuple(request(a, mesh, rules, dialect) for a in arrays)
