"""Public functions that advise: `sv.changes`, `sv.search`, `sv.expect`, `sv.lock`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardviz.advise.candidates import Changes
from shardviz.advise.search import Search
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.format import listed, shown, suggestion
from shardviz.base.parse import parse_bytes
from shardviz.compiled.public import compile
from shardviz.compiled.report import Report
from shardviz.compiled.stages import Stages
from shardviz.hardware.targets import Target
from shardviz.move.public.collectives import chosen_collective
from shardviz.plans.plan import Plan
from shardviz.plans.public import plan
from shardviz.programs.program import Program

if TYPE_CHECKING:
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import Lock
    from shardviz.compiled.stages import Stages
    from shardviz.plans.plan import Plan


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
    with needed_by("sv.changes"):
        from shardviz.advise.backend import changes as finding
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


def search(
    program: Program,
    *,
    over: str | Sequence[str] | None = None,
    under: str | int | None = None,
    target: str | Target | None = None,
    seconds: float | None = None,
) -> Search:
    """Finds shardings of a program with the least time that fit in memory.

    Plans say where to look; what is proposed was compiled for the target. Its budget is
    a number of plans and compiles, so that a busy machine finds the same. An interrupt
    ends the search with the best so far.

    Args:
        program: what `sv.program` made.
        over: what may vary: `"mesh"` (sizes and order of its axes), `"arguments"`
            (their specs; those of one shape and use share one), `"rules"` (the mesh
            axis of each logical name), `"donate"` (arguments that come back with new
            values, such as a training state), `"remat"` (what loops save for the
            backward pass), `"device order"` (the best for the fastest of the others),
            or names of arguments. By default the mesh, and the rules where the program
            has any, else the arguments.
        under: the most memory for each device, in bytes or as `"16 GiB"`; by default
            what the chip has.
        target: the described hardware, such as `"tpu:v5e:4x4"`.
        seconds: after these it ends with the best so far; by default its budget alone
            ends it.

    Returns:
        A Search: the candidates, the least time first; `.frontier`, of least time
        against memory; `.explain(a, b)`; `.ended` and `.exhaustive`; `.plans`, the
        planned points with their bytes.

    Raises:
        ShardvizError: for a program that cannot be planned, for what cannot vary, or a
            target whose figures are not published.

    >>> import shardviz as sv
    >>> x, w = sv.array("x", (512, 512)), sv.array("w", (512, 512))
    >>> matmul = sv.program(lambda x, w: x @ w, x, w, mesh="data=2, model=2")
    >>> search(matmul, target="cpu:4")
    Traceback (most recent call last):
    ...
    shardviz.base.errors.TargetError: A search compares least times, which need ...
    """
    if not isinstance(program, Program):
        raise ProgramError(
            f"sv.search takes what sv.program(fn, ...) made; got {shown(program)}."
        )
    limit = None
    if under is not None:
        limit = parse_bytes(under, "under", ProgramError)
    if isinstance(over, str):
        over = (over,)
    name = target.name if isinstance(target, Target) else target or ""
    with needed_by("sv.search"):
        from shardviz.advise.backend import search
    with StageClock(program.name, after=3.0, lines=True) as clock:
        return search.search(program, name, over, limit, seconds, clock)


def expect(
    thing: Any, *, target: Any = None, stage: str = "partitioned"
) -> Expectation:
    """What should stay true of a program, for its tests: methods that return, or fail
    in words.

    `.no("all-gather", over="data")`, `.at_most("1 MiB", per="step")`,
    `.sharded(at_least=0.98)`, `.fits("tpu:v5p:8x8x16")` and
    `.matches("step.lock.json")`; each returns the expectation, or raises a
    ContractError. Nothing is compiled before a method needs it, and no more than once.

    Args:
        thing: a Program, which is compiled where collectives or memory count; a Report
            or Stages, for what is compiled already; a Plan, of which Shardy's estimate
            counts; or an Audit, which has arrays and no collectives.
        target: what a Program is compiled for: as many simulated CPUs as its mesh has
            devices where it is left out, whatever is attached, so that every machine
            finds the same.
        stage: `"partitioned"` for the collectives that XLA's partitioner put in,
            `"compiled"` for those of the final program, which differ from one kind of
            device to another.

    Raises:
        ShardvizError: for anything else. What is expected and not so is a
            ContractError, which is an AssertionError.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (64, 512), spec="data, None")
    >>> expect(sv.plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=4, model=2"))).no()
    Expectation(<lambda>)
    """
    from shardviz.advise.contracts import Expectation

    return Expectation(thing, target, stage, _compile_for, plan)


def lock(thing: Any, *, collectives: bool = True, target: Any = None) -> Lock:
    """What a project commits, to hear when it changes: specs, and collectives folded by
    layer.

    Specs are those of the plan, which are XLA's own, and need no compile. Collectives
    are those that XLA's partitioner put in, which a compile for simulated CPUs finds
    out (Shardy's estimate is not locked, as the partitioner may choose otherwise).

    Args:
        thing: a Program; a Plan or an Audit, for specs alone; Stages; or the path of a
            lock's file, which is read.
        collectives: whether to compile a Program, for its collectives.
        target: what to compile it for, as for `sv.expect`.

    Returns:
        A Lock: `.text` is its JSON, `.write(path)` writes it, and `.diff(other)` is
        what changed.

    Raises:
        ShardvizError: for anything else, and for a program that cannot be planned or
            compiled.

    >>> import shardviz as sv
    >>> found = lock(sv.audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "model=2"))
    >>> found.arrays["w"]
    "float32[512, 2048] P(None, 'model')"
    """
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import read_lock

    if isinstance(thing, (str, os.PathLike)):
        return read_lock(thing)
    return Expectation(thing, target, compile=_compile_for, plan=plan).locked(
        collectives
    )


def _compile_for(program: Program, target: Any) -> Report:
    return compile(program, "cpu" if target is None else target)
