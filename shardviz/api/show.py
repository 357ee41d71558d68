"""Any value as a figure, as text, and in the Explorer."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from shardviz.api.adopt import adopt, as_mesh, children_of, is_jax, optional
from shardviz.api.programs import program
from shardviz.axis_rules.rule_tables import read_rules
from shardviz.base.errors import MissingPackage, ProgramError, import_optional
from shardviz.base.format import shown
from shardviz.programs.program import Program

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardviz.explorer.explorer import Explorer


def plot(thing: Any, **options: Any) -> Figure:
    """The picture of any value, as a matplotlib Figure.

    Args:
        thing: anything that shardviz returns, or jax's own mesh, spec, sharding or
            array.
        **options: `theme="dark"`, and what the value's picture understands, such as
            `dims=(0, 2)`.

    Raises:
        ShardvizError: where the value has no picture, or matplotlib is not installed.

    >>> from shardviz.base.mesh import make_mesh
    >>> type(plot(make_mesh(data=4, model=2))).__name__
    'Figure'
    """
    figures = import_optional("shardviz.figures", "sv.plot", "matplotlib")
    return figures.figure(adopt(thing), **options)


def text(thing: Any, width: int = 80, **options: Any) -> str:
    """The picture of any value, as text for terminals and screen readers.

    Args:
        thing: anything that shardviz returns, or jax's own mesh, spec, sharding or
            array.
        width: how many characters a line may have.
        **options: `full=True` for all that a large plan, report or explanation holds,
            of which the text otherwise shows the largest.

    Raises:
        ShardvizError: where the value has no text.

    >>> from shardviz.base.mesh import make_mesh
    >>> "model" in text(make_mesh(data=4, model=2))
    True
    """
    from shardviz.pictures import to_text

    return to_text(adopt(thing), width, **options)


def explore(
    thing: Any = None,
    /,
    *arrays: Any,
    mesh: Any = None,
    rules: Any = None,
    **keywords: Any,
) -> Explorer:
    """Opens the Explorer in the view that answers.

    A program or a report opens in the view Program, an audit or a model in Model, a
    resolution in Rules, all else in Layout. A report is shown without compiling again.
    Every edit can be undone.

    Args:
        thing: None for a running example, a Program, an Audit, a Report, a Resolution
            with a mesh and a shape, a Layout, a MeshSpec, ArraySpecs, an array, a model
            or its parameters, or what `explorer.state()` returned; or a function,
            followed by its arguments.
        *arrays: for a function, its arguments, as in `sv.program`.
        mesh: what `sv.mesh` takes: the mesh of arrays or a model that have none, or
            another one than `thing` has. Where neither names a mesh, it is the
            example's, `data=4, model=2`, to begin with.
        rules: what `sv.rules` takes, likewise.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes.

    Raises:
        ShardvizError: for a state that cannot be read, or where anywidget is not
            installed.

    >>> explore().session.mesh.size
    8
    >>> from shardviz.base.array_spec import ArraySpec
    >>> w = ArraySpec("w", (512, 2048), "embed mlp")
    >>> explore([w], mesh="model=2", rules=[("mlp", "model")]).session.audit.rows[0].spec
    P(None, 'model')
    >>> explore(lambda x: x * 2, w, mesh="model=2").session.now.view
    'Program'
    """
    from shardviz.runs.cache import cache

    if arrays or keywords:
        thing = _program_to_show(
            thing, arrays, {**keywords, "mesh": mesh, "rules": rules}
        )
        mesh = rules = None
    elif inspect.isroutine(thing) or (is_jax(thing) and callable(thing)):
        raise ProgramError(
            "sv.explore shows a function with its arguments, sv.explore(step, state,"
            f" batch); got {shown(thing)} alone."
        )

    explorer = import_optional("shardviz.explorer.explorer", "sv.explore", "anywidget")
    on_mesh, table = optional(as_mesh, mesh), optional(read_rules, rules)
    return explorer.open_explorer(
        adopt(thing), cache, children_of, on_mesh, table, _svg
    )


def _program_to_show(
    fn: Any, arrays: tuple[Any, ...], keywords: dict[str, Any]
) -> Program:
    """The program of a function and its arguments.

    Raises:
        ProgramError: for what is no function.
    """
    if isinstance(fn, Program) or not callable(fn):
        raise ProgramError(
            "sv.explore takes one thing to show, or a function and its arguments; got"
            f" {shown(fn)} and arguments. Give several arrays as a list."
        )
    given = {name: value for name, value in keywords.items() if value is not None}
    return program(fn, *arrays, **given)


def _svg(value: Any) -> str:
    """The picture of a value as SVG."""
    figures = import_optional("shardviz.figures", "a picture", "matplotlib")
    return figures.svg(value)


def mimebundle(value: Any) -> dict[str, Any]:
    """How a value shows itself in a notebook: text always, PNG where matplotlib is
    installed.
    """
    from shardviz.pictures import to_text

    bundle: dict[str, Any] = {"text/plain": to_text(value)}
    with contextlib.suppress(MissingPackage):
        figures = import_optional("shardviz.figures", "a picture", "matplotlib")
        bundle["image/png"] = figures.png(value)
    return bundle
