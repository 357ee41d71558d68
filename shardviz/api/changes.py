"""`sv.changes`: edits of a program after which a collective is gone or smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.advise.candidates import Changes
from shardviz.api.movements import chosen_collective
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError, import_optional
from shardviz.base.format import listed, shown, suggestion
from shardviz.compiled.report import Report
from shardviz.compiled.stages import Stages
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program


def changes(
    thing: Any,
    collective: Any = None,
    *,
    goal: str | None = None,
    target: Any = None,
) -> Changes:
    """The smallest edits of a program's shardings after which a collective is gone or
    smaller; or, for `goal="memory"`, changes after which the program needs less memory.

    Each was compiled, and its results compared with the original's on simulated
    devices where they are small enough. What else it costs is beside it.

    Args:
        thing: a Report, Plan or Stages, or a program.
        collective: which one: itself, its number among the `collectives`, or its name
            in the compiled text; by default the one that sends the most. A goal may be
            given here as well.
        goal: `"memory"` for a lower peak, also of a program that does not fit its
            target: arguments are donated or split, the backward pass computes values
            again instead of saving them, the largest saved values are split.
            For a program in a form that jax accepts: `"types"` for one that it refuses,
            `"explicit"` for its form on Explicit axes.
        target: what to compile for, as for `sv.compile`; by default what the report was
            compiled for.

    Returns:
        Changes, the best first: each with `.edit`, `.code()`, `.program`, `.report`,
        `.bytes`, `.values`. `.refused` is what was tried and dropped, `.advice` code to
        write by hand that was not tried.

    Raises:
        ShardvizError: for what has no program or no such collective, or if the program
            does not compile.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> x = sv.array("x", (64, 8), spec="data")
    >>> w = sv.array("w", (8, 64), spec="data")
    >>> report = sv.compile(jnp.dot, x, w, mesh="data=2")
    >>> found = changes(report, 0)
    >>> found[0].edit
    'Replicate w: sends 1 KiB → 0 B · memory 12 KiB → 11 KiB.'
    """
    if isinstance(thing, Stages):
        thing = thing.report or thing.plan
    program, where = thing, target
    if isinstance(thing, (Report, Plan)):
        program = thing.of
        if where is None and isinstance(thing, Report):
            where = thing.on or thing.target
    if not isinstance(program, Program):
        raise ProgramError(
            "Changes are found for a report, a plan or a program, as sv.compile, sv.plan"
            f" and sv.program make them; got {shown(thing)}."
        )
    changes = "shardviz.advise.backend.changes"
    finding = import_optional(changes, "sv.changes", "jax")
    if goal is not None:
        if collective is not None:
            raise ProgramError("sv.changes takes a collective or a goal, and got both.")
        _check_goal(goal, finding.WAYS)
        collective = goal
    with StageClock(program.name, after=3.0, lines=True) as clock:
        if collective not in finding.WAYS:
            if isinstance(thing, Program):
                thing = finding.compiled(program, where, clock)
            _require_compiled(thing)
            collective = chosen_collective(thing, collective)
        report = thing if isinstance(thing, Report) and target is None else None
        if report is not None and report.error and report.too_large is None:
            report = None  # it may have failed for another reason than its program
        return finding.find_changes(program, collective, where, clock, report=report)


def _check_goal(goal: Any, goals: Sequence[str]) -> None:
    if goal not in goals:
        raise ProgramError(
            f"goal is one of {listed(goals)}; got {shown(goal)}."
            f"{suggestion(goal, goals)}"
        )


def _require_compiled(thing: Report | Plan) -> None:
    """Refuses a report whose collectives are unknown, since its program has failed."""
    if thing.error is None:
        return
    if isinstance(thing, Report) and thing.too_large is not None:
        raise ProgramError(
            f"{thing.error.message} So its collectives cannot be compared with those of a"
            ' change. Changes that need less memory: sv.changes(report, goal="memory").'
        )
    if thing.error.refusals:
        raise ProgramError(
            f"{thing.program} has failed, so it has no collectives. {thing.error.message}"
            ' Edits that jax accepts: sv.changes(program, goal="types").'
        )
    raise ProgramError(
        f"{thing.program} has failed, so it has no collectives. {thing.error.message}"
    )
