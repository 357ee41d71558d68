"""Public functions that compile: `sv.compile` and `sv.stages`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from shardviz.base.display import StageClock
from shardviz.base.errors import needed_by
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.report import Report
from shardviz.plans.public import plan_for_target
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of
from shardviz.runs.cache import cache

if TYPE_CHECKING:
    from shardviz.compiled.stages import Stages
    from shardviz.plans.plan import Plan


def compile(
    thing: Any,
    /,
    *arrays: Any,
    target: Any = None,
    options: Any = None,
    **keywords: Any,
) -> Report:
    """Compiles a program for a target, and reports; nothing is executed.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *arrays: for a function, its arguments, as in `sv.program`; after a program its
            target, which may also be given by name.
        target: `None` for what is attached (or simulated), or text such as `"cpu:8"`.
        options: compiler options, by name.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes: `mesh=`, `rules=` and so on.

    Returns:
        A Report. The program is planned as well: the buffers of `.memory` have the
        plan's names, and `.roofline` counts loops as often as they run.

    Raises:
        ShardvizError: where jax is not installed. A program that fails is a Report with
            an error.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> compile(program(jnp.sin, sv.array("x", (8,)), mesh="data=1")).error
    """
    arrays, target = target_after_program(thing, arrays, target)
    own = {"target": target, "options": options}
    program = program_of(thing, "compile", arrays, keywords, own)
    with needed_by("sv.compile"):
        from shardviz.runs.backend.hosts import run
    if options is not None:
        # Options are a part of a program: with others it is another one.
        program = program.replace(options={**program.options, **options})
    with progress_clock(program) as clock:
        report = run.compile_program(program, target, cache=cache, progress=clock)
    # A program that does not fit has an error, and buffers as well.
    if report.error is not None and report.memory.timeline is None:
        return report
    # A plan takes a small part of a compile's time.
    planned = plan_for_target(program, report.on)
    if report.error is None:
        report = with_operation_times(report, planned)
    return with_values(report, planned)


def stages(thing: Any, /, *arrays: Any, target: Any = None, **keywords: Any) -> Stages:
    """A program at all its stages: requested, propagated, partitioned, compiled.

    Plans and compiles; nothing is executed.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *arrays: for a function, its arguments, as in `sv.program`; after a program its
            target, which may also be given by name.
        target: as for `sv.compile`: None, or text such as `"cpu:8"` or `"tpu:v5e:4x4"`.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes: `mesh=`, `rules=` and so on.

    Returns:
        Stages: `.plan`, `.report`, and `.between("propagated", "partitioned")` for what
        changed from one stage to another, and where.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program
            that fails shows on which stage it did.

    >>> import shardviz as sv
    >>> x = sv.array("x", (64,), spec="data")
    >>> stages = stages(sv.program(lambda x: x.sum(), x, mesh="data=1"))
    >>> stages.report.error
    """
    from shardviz.compiled.stages import Stages

    arrays, target = target_after_program(thing, arrays, target)
    program = program_of(thing, "stages", arrays, keywords, {"target": target})
    # First, so that it is there where the compile fails.
    planned = plan_for_target(program, target)
    with needed_by("sv.stages"):
        from shardviz.runs.backend.hosts import run
    with progress_clock(program) as clock:
        report = run.compile_program(program, target, cache=cache, progress=clock)
    report = with_values(with_operation_times(report, planned), planned)
    return Stages(program, planned, report)


def with_operation_times(report: Report, planned: Plan | None) -> Report:
    """The report, with the least times of the operations that its plan counts."""
    from shardviz.compiled.roofline import with_operations

    return report.replace(roofline=with_operations(report, planned))


def target_after_program(
    thing: Any, arrays: tuple[Any, ...], target: Any
) -> tuple[tuple[Any, ...], Any]:
    """The arrays and the target of a call that may give the target after a program."""
    if isinstance(thing, Program) and len(arrays) == 1 and target is None:
        return (), arrays[0]
    return arrays, target


def progress_clock(program: Any) -> StageClock:
    """The line that says what is done; of several processes the first one has it."""
    name = getattr(program, "name", "program")
    with needed_by("sv.run"):
        from shardviz.base.backend import jax_compat
    if jax_compat.process_number() == 0:
        return StageClock(name)
    return StageClock(name, stream=io.StringIO())
