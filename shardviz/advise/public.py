"""Public functions that advise: `sv.changes`, `sv.search`, `sv.expect`, `sv.lock`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardviz.axis_rules.audit import Audit
from shardviz.base.collective import Collective
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.format import joined, shown, suggestion
from shardviz.base.parse import parse_bytes
from shardviz.base.public.adopt import is_compiled, is_jax, is_lowered
from shardviz.base.typing import PyTree, UserFunction
from shardviz.compiled.report import Report
from shardviz.compiled.stages import Stages
from shardviz.hardware.targets import TargetLike, check_target
from shardviz.move.public.collectives import chosen_collective
from shardviz.plans.plan import Plan
from shardviz.plans.public import plan
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of, progress_clock
from shardviz.runs.cache import cache

if TYPE_CHECKING:
    from shardviz.advise.candidates import Changes
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import Lock
    from shardviz.advise.search import Search

# What each function takes without arguments, and how to do what the arguments may mean.
_ALONE = {
    "expect": ("program", "plan", "report", "stages", "audit"),
    "lock": ("program", "plan", "stages", "audit"),
}
_INSTEAD = {
    "expect": "Its methods assert: .no, .at_most, .sharded, .fits and .matches.",
    "lock": "sv.lock(...).write(path) writes the file.",
}


def changes(
    report: Report | Plan | Stages | Program | UserFunction,
    /,
    *arrays: PyTree,
    collective: Collective | int | str | None = None,
    goal: str | None = None,
    target: TargetLike = None,
    **keywords: Any,
) -> Changes:
    """Finds edits that remove or shrink a collective, or lower the peak memory.

    Every edit is compiled before it is proposed. If the arrays are small enough, the
    results of the edited and the original program are compared on simulated devices.
    Each proposal lists its effects on other collectives, on sent bytes and on peak
    memory.

    Args:
        report: a Report, Plan, Stages or Program; or a function, which `sv.program`
            turns into a Program.
        *arrays: a function's arguments, as in `sv.program`. If `report` is not a
            function, at most one argument may follow: the collective or the goal.
            Either can also be passed by keyword.
        collective: a Collective, its index in `.collectives`, or its name in the
            compiled module; by default the one that sends the most bytes.
        goal: `"memory"` finds edits that lower the peak memory, even of a program that
            does not fit its target. These edits donate or split arguments, recompute
            values in the backward pass instead of saving them, or split the largest
            saved values. `"types"` finds edits that make jax accept a program
            whose types it refuses. `"explicit"` finds edits that the program needs to
            run on Explicit axes.
        target: the devices to compile for, as in `sv.compile`; by default the devices
            of the report.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=` and `rules=`.

    Returns:
        Changes: a sequence of edits, best first, each with `.edit`, `.code()`,
        `.program`, `.report`, `.bytes` and `.values`. The sequence has `.refused`, the
        edits that were tried and rejected, and `.advice`, untested code to add by hand.

    Raises:
        ShardvizError: if `report` has no program or no such collective, or if the
            program does not compile.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> x = sv.array("x", (64, 8), spec="data")
    >>> w = sv.array("w", (8, 64), spec="data")
    >>> report = sv.compile(jnp.dot, x, w, mesh="data=2")
    >>> sv.changes(report, 0)[0].edit
    'Replicate w: sent per device 1 KiB → 0 B · memory per device 12 KiB → 11 KiB.'
    """
    source = report
    if isinstance(source, Stages):
        source = source.report or source.plan
    if callable(source) and not isinstance(source, (Report, Plan, Program)):
        own = {"collective": collective, "goal": goal, "target": target}
        source = program_of(source, "changes", arrays, keywords, own)
    elif keywords or len(arrays) > 1 or (arrays and collective is not None):
        raise ProgramError(
            f"sv.changes takes a {type(source).__name__} and one collective or goal."
            " Arguments belong to a function: sv.changes(fn, *args, goal=...)."
        )
    elif arrays:
        (collective,) = arrays
    target = check_target(target)
    program, compile_target = source, target
    if isinstance(source, (Report, Plan)):
        program = source.of
        if compile_target is None and isinstance(source, Report):
            compile_target = source.on or source.target
    if program is None and isinstance(source, (Report, Plan)):
        raise ProgramError(
            f"This {type(source).__name__} of {source.program} has no function to change,"
            " because it was read from a file or comes from jax. Give the function:"
            " sv.changes(fn, *args)."
        )
    if not isinstance(program, Program):
        raise ProgramError(
            "Changes are found for a report, a plan or a program, as sv.compile, sv.plan"
            f" and sv.program make them, or for a function; got {shown(source)}."
        )
    with needed_by("sv.changes"):
        from shardviz.advise.backend import changes as finding
    from shardviz.advise.words.search import INTERRUPT

    if goal is not None:
        if collective is not None:
            raise ProgramError("sv.changes takes a collective or a goal, and got both.")
        _check_goal(goal, finding.GOALS)
        collective = goal
    with StageClock(program.name, hint=INTERRUPT) as clock:
        if collective not in finding.GOALS:
            if not isinstance(source, (Report, Plan)):
                source = finding.compiled(program, compile_target, clock)
            _require_compiled(source)
            collective = chosen_collective(source, collective)
        original = None
        if isinstance(source, Report) and target is None:
            original = source
        # A report can fail for reasons unrelated to its program.
        if original is not None and original.error and original.too_large is None:
            original = None
        return finding.find_changes(
            program, collective, compile_target, clock, report=original
        )


def _check_goal(goal: str, goals: Sequence[str]) -> None:
    if goal not in goals:
        raise ProgramError(f"There is no goal {shown(goal)}.{suggestion(goal, goals)}")


def _require_compiled(source: Report | Plan) -> None:
    """Raises an error for a failed program, because its collectives are unknown."""
    if source.error is None:
        return
    if isinstance(source, Report) and source.too_large is not None:
        raise ProgramError(
            f"{source.error.message} So its collectives cannot be compared with those of a"
            ' change. Changes that need less memory: sv.changes(report, goal="memory").'
        )
    if source.error.refusals:
        raise ProgramError(
            f"{source.program} has failed, so it has no collectives. {source.error.message}"
            ' Edits that jax accepts: sv.changes(program, goal="types").'
        )
    raise ProgramError(
        f"{source.program} has failed, so it has no collectives. {source.error.message}"
    )


def search(
    program: Program | UserFunction,
    /,
    *arrays: PyTree,
    over: str | Sequence[str] | None = None,
    under: str | int | None = None,
    target: TargetLike = None,
    seconds: float | None = None,
    **keywords: Any,
) -> Search:
    """Searches for a program's fastest shardings that fit in memory.

    The search plans many shardings and compiles the most promising ones for the target.
    Its budget counts plans and compiles, not time, so without `seconds` a busy machine
    finds the same result. Ctrl-C ends the search and keeps the results so far.

    Args:
        program: a Program, or a function, which `sv.program` turns into one.
        *arrays: a function's arguments, as in `sv.program`.
        over: what to vary: one or more of `"mesh"` (sizes and order of the mesh axes),
            `"arguments"` (specs; arguments of the same shape and role share a spec),
            `"rules"` (the mesh axis of each logical name), `"donate"` (donation of
            arguments that the program returns updated, such as a training state),
            `"remat"` (values that loops save for the backward pass), `"device order"`
            (the order of the devices in the mesh, for the fastest candidate), or names
            of arguments. By default, `"mesh"` and `"rules"` if the program has rules,
            otherwise `"mesh"` and `"arguments"`.
        under: the memory limit per device, in bytes or as `"16 GiB"`; by default the
            memory of the chip.
        target: the described hardware, such as `"tpu:v5e:4x4"`.
        seconds: a time limit for the search, in seconds; by default there is none.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=` and `rules=`.

    Returns:
        A Search: the candidates, fastest first. `.frontier` has the best candidates by
        time and memory, and `.explain(a, b)` compares two candidates. `.plans` lists
        every planned sharding with its estimated time and memory. `.ended` and
        `.exhaustive` report how complete the search is.

    Raises:
        ShardvizError: if the program cannot be planned, if `over` names something
            unknown, or if the figures of the target are not published.

    >>> import shardviz as sv
    >>> x, w = sv.array("x", (512, 512)), sv.array("w", (512, 512))
    >>> matmul = sv.program(lambda x, w: x @ w, x, w, mesh="data=2, model=2")
    >>> sv.search(matmul, target="cpu:4")
    Traceback (most recent call last):
    ...
    shardviz.base.errors.TargetError: A search compares least times, which depend ...
    """
    own = {"over": over, "under": under, "target": target, "seconds": seconds}
    program = program_of(program, "search", arrays, keywords, own)
    target = check_target(target, program.mesh.size)
    limit = None
    if under is not None:
        limit = parse_bytes(under, "under", ProgramError)
    if isinstance(over, str):
        over = (over,)
    name = (target or "") if isinstance(target, str | None) else target.name
    with needed_by("sv.search"):
        from shardviz.advise.backend import search
    from shardviz.advise.words.search import INTERRUPT

    with StageClock(program.name, hint=INTERRUPT) as clock:
        return search.search(program, name, over, limit, seconds, clock)


def expect(
    program: Program | Report | Stages | Plan | Audit | UserFunction,
    /,
    *arrays: PyTree,
    target: TargetLike = None,
    stage: str = "partitioned",
    **keywords: Any,
) -> Expectation:
    """Returns an object whose methods assert, in a test, how a program is laid out.

    `.no("all-gather", over="data")`, `.at_most("1 MiB", per="step")`,
    `.sharded(at_least=0.98)`, `.fits("tpu:v5p:8x8x16")` and
    `.matches("step.lock.json")` each return the expectation or raise a ContractError.
    The first method that needs a compiled program compiles it, once.

    Args:
        program: a Program, which is compiled if an assertion is about collectives or
            memory; a Report or Stages, which are compiled already; a Plan, whose
            collectives are estimated; an Audit, which has arrays and no collectives; or
            a function, which `sv.program` turns into a Program.
        *arrays: a function's arguments, as in `sv.program`.
        target: the devices to compile a Program for. By default simulated CPUs, one for
            each device of the Program's mesh, so that every machine gets the same
            result.
        stage: `"partitioned"` to check the collectives that XLA's partitioner inserts,
            `"compiled"` to check the collectives of the final program, which depend on
            the kind of device.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=` and `rules=`.

    Raises:
        ShardvizError: if `program` is of any other type. A violated expectation raises
            ContractError, an AssertionError.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (64, 512), spec="data, None")
    >>> sv.expect(sv.plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=4, model=2"))).no()
    Expectation(<lambda>)
    """
    from shardviz.advise.contracts import Expectation

    subject = _program_or_value(program, "expect", arrays, keywords, {"target": target})
    target = check_target(target)
    return Expectation(subject, target, stage, _compile_for, plan)


def lock(
    program: Program | Plan | Stages | Audit | UserFunction | str | os.PathLike[str],
    /,
    *arrays: PyTree,
    collectives: bool = True,
    target: TargetLike = None,
    **keywords: Any,
) -> Lock:
    """Returns a record of specs and collectives, to commit and to compare in tests.

    The specs come from the plan, without a compile, because XLA uses the plan's specs.
    The collectives come from XLA's partitioner, when the program is compiled for
    simulated CPUs. Collectives that are equal in all layers share an entry. The plan's
    estimated collectives are not recorded, because the partitioner may insert others.

    Args:
        program: a Program or Stages; a function, which `sv.program` turns into a
            Program; a Plan or an Audit, whose lock has specs only; or the path of a
            lock file to read.
        *arrays: a function's arguments, as in `sv.program`.
        collectives: whether to compile a Program to get its collectives.
        target: the devices to compile for, as in `sv.expect`.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=` and `rules=`.

    Returns:
        A Lock. `.text` is its JSON, `.write(path)` writes it, and `.diff(other)` lists
        the changes.

    Raises:
        ShardvizError: if `program` is of any other type, or cannot be planned or
            compiled.

    >>> import shardviz as sv
    >>> audit = sv.audit([("w", (512, 2048), "embed mlp")], [("mlp", "model")], "model=2")
    >>> sv.lock(audit).arrays["w"]
    "float32[512, 2048] P(None, 'model')"
    """
    from shardviz.advise.contracts import Expectation
    from shardviz.advise.lock import read_lock

    if isinstance(program, (str, os.PathLike)):
        return read_lock(program)
    subject = _program_or_value(program, "lock", arrays, keywords, {"target": target})
    target = check_target(target)
    expectation = Expectation(subject, target, compile=_compile_for, plan=plan)
    return expectation.locked(collectives)


def _program_or_value(
    value: Any,
    public: str,
    arrays: tuple[PyTree, ...],
    keywords: dict[str, Any],
    public_only: dict[str, object],
) -> Any:
    """Returns the program of a function; any other value unchanged."""
    if arrays or keywords or inspect.isroutine(value) or is_jax(value):
        if isinstance(value, (Program, Plan, Report, Stages, Audit)):
            given = [*map(shown, arrays), *(f"{name}=" for name in keywords)]
            raise ProgramError(
                f"sv.{public} takes arguments only with a function, not with a"
                f" {joined(_ALONE[public], 'or')}; got {joined(given)} with the {type(value).__name__}."
                f" {_INSTEAD[public]}"
            )
        if is_lowered(value) or is_compiled(value):
            raise ProgramError(
                f"sv.{public} takes a {joined(_ALONE[public], 'or')}; got jax's"
                f" {type(value).__name__}. Write sv.{public}(sv.plan(lowered)), or"
                " sv.expect(sv.report(compiled), stage='compiled')."
            )
        return program_of(value, public, arrays, keywords, public_only)
    if not isinstance(value, (Program, Plan, Report, Stages, Audit)):
        raise ProgramError(
            f"sv.{public} takes a {joined(_ALONE[public], 'or')}; got {shown(value)}."
            " Give sv.program(step, ...) or sv.audit(state, ...)."
        )
    return value


def _compile_for(program: Program, target: TargetLike) -> Report:
    """Compiles a program without planning it, unlike `sv.compile`."""
    with needed_by("sv.expect"):
        from shardviz.runs.backend.hosts import run
    target = "cpu" if target is None else target
    with progress_clock(program) as clock:
        return run.compile_program(program, target, cache=cache, progress=clock)
