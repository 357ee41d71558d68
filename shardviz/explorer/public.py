"""`sv.explore`: opens the Explorer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from shardviz.axis_rules.rule_tables import read_rules
from shardviz.axis_rules.rules import PathRules
from shardviz.base.errors import ProgramError, RuleError, needed_by
from shardviz.base.format import joined, shown
from shardviz.base.public.adopt import (
    adopt,
    as_mesh,
    children_of,
    is_compiled,
    is_jax_function,
    is_lowered,
    optional,
)
from shardviz.base.typing import MeshLike, PyTree, RulesLike
from shardviz.compiled.stages import Stages
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program

if TYPE_CHECKING:
    from shardviz.explorer.explorer import Explorer


def explore(
    thing: PyTree = None,
    /,
    *arrays: PyTree,
    mesh: MeshLike | None = None,
    rules: RulesLike | None = None,
    **keywords: Any,
) -> Explorer:
    """Opens the Explorer on a value, in the view that shows it best.

    A program or a report opens in the Program view, an audit or a model in the Model
    view, a resolution in the Rules view, and any other value in the Layout view. The
    Explorer shows a report without compiling its program again. Every edit can be
    undone.

    Args:
        thing: a Program, Plan, Stages, Audit, Report, Resolution (with a mesh and a
            shape), Layout or MeshSpec; ArraySpecs or an array; a model or its
            parameters; a Topology or its name, to open an example on this hardware; the
            result of `explorer.state()`; a function, followed by its arguments; or None
            for an example.
        *arrays: the arguments of a function, as in `sv.program`.
        mesh: a mesh, as in `sv.mesh`, that replaces the mesh of `thing`. If you pass none
            and `thing` has none, the Explorer starts with `data=4, model=2`.
        rules: a rule table, as in `sv.rules`, that replaces the rules of `thing`.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program`.

    Raises:
        ShardvizError: if the state of an Explorer cannot be parsed, or anywidget is not
            installed.

    >>> import shardviz as sv
    >>> sv.explore().session.mesh.size
    8
    >>> w = sv.array("w", (512, 2048), "embed mlp")
    >>> explorer = sv.explore([w], mesh="model=2", rules=[("mlp", "model")])
    >>> explorer.session.audit.rows[0].spec
    P(None, 'model')
    >>> sv.explore(lambda x: x * 2, w, mesh="model=2").session.now.view
    'Program'
    """
    from shardviz.runs.cache import cache

    if arrays or keywords:
        thing = _program_to_show(
            thing, arrays, {**keywords, "mesh": mesh, "rules": rules}
        )
        mesh = rules = None
    elif is_compiled(thing) or is_lowered(thing):
        stage = type(thing).__name__
        raise ProgramError(
            f"The Explorer edits a program, and jax's {stage} has none. Its report:"
            f" sv.report({stage.lower()}). Open the function: sv.explore(fn, *args)."
        )
    elif inspect.isroutine(thing) or is_jax_function(thing):
        raise ProgramError(
            "sv.explore shows a function with its arguments, sv.explore(step, state,"
            f" batch); got {shown(thing)} alone."
        )

    if isinstance(thing, Stages):
        thing = thing.report or thing.plan or thing.program
    if isinstance(thing, Plan):
        thing = _program_of_plan(thing)
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


def _program_of_plan(plan: Plan) -> Program:
    """Returns the program that was planned.

    Raises:
        ProgramError: if the plan was saved without its program.
    """
    if plan.of is None:
        raise ProgramError(
            f"This plan of {plan.program} was saved without its function, which the"
            " Explorer would need to plan it again. Show it with sv.plot(plan), or"
            " open the function: sv.explore(fn, *args)."
        )
    return plan.of


def _program_to_show(
    fn: object, arrays: tuple[PyTree, ...], keywords: dict[str, Any]
) -> Program:
    """Creates the program of a function and its arguments.

    Raises:
        ProgramError: if `fn` is not a function.
    """
    passed = {name: value for name, value in keywords.items() if value is not None}
    if isinstance(fn, Program) or not callable(fn):
        others = [f"{name}=" for name in passed if name not in ("mesh", "rules")]
        got = joined([*(["arguments"] if arrays else []), *others])
        raise ProgramError(
            "sv.explore takes one thing to show, or a function and its arguments; got"
            f" {shown(fn)} and {got}. Give a mesh as mesh=, several arrays as a list, and"
            " each spec with its array: sv.array('w', (512, 2048), spec='data, None')."
        )
    return program(fn, *arrays, **passed)


def _svg(value: object) -> str:
    """Draws a value as SVG."""
    with needed_by("a picture"):
        from shardviz import figures
    return figures.svg(value)
