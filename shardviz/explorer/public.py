"""`sv.explore`: opens the Explorer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from shardviz.axis_rules.rule_tables import read_rules
from shardviz.axis_rules.rules import PathRules
from shardviz.base.errors import ProgramError, RuleError, needed_by
from shardviz.base.format import shown
from shardviz.base.public.adopt import adopt, as_mesh, children_of, is_jax, optional
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program

if TYPE_CHECKING:
    from shardviz.explorer.explorer import Explorer


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

    with needed_by("sv.explore"):
        from shardviz.explorer import explorer
    on_mesh, table = optional(as_mesh, mesh), optional(read_rules, rules)
    if isinstance(table, PathRules):
        raise RuleError(
            "The Explorer edits tables of logical names; got a table of paths. Audit it"
            " first: sv.explore(sv.audit(tree, rules, mesh, dialect='regex'))."
        )
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
    with needed_by("a picture"):
        from shardviz import figures
    return figures.svg(value)
