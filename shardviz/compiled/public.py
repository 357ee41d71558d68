"""Public functions that compile: `sv.compile` and `sv.stages`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardviz.base.errors import ProgramError, needed_by
from shardviz.base.format import shown
from shardviz.base.public.adopt import (
    as_mesh,
    is_compiled,
    is_jax,
    is_lowered,
    optional,
)
from shardviz.base.typing import MeshLike, PyTree, UserFunction
from shardviz.compiled.measured import with_least_times
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.report import Report
from shardviz.hardware.targets import TargetLike, check_target
from shardviz.plans.public import plan_for_target
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of, progress_clock
from shardviz.runs.cache import cache

if TYPE_CHECKING:
    import jax

    from shardviz.compiled.stages import Stages


def compile(
    program: Program | UserFunction,
    /,
    *arrays: PyTree,
    target: TargetLike = None,
    options: Mapping[str, object] | None = None,
    **keywords: Any,
) -> Report:
    """Compiles a program for a target, without executing it.

    Args:
        program: a Program, or a function, which `sv.program` turns into one.
        *arrays: a function's arguments, as in `sv.program`. A Program already has its
            arguments, so only the target can follow it; it can also be a keyword.
        target: None for the attached devices if there are enough for the mesh,
            otherwise for simulated ones; or text such as `"cpu:8"` and `"tpu:v5e:4x4"`.
        options: compiler options by name.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=` and `rules=`.

    Returns:
        A Report. The program is planned too: the plan names the buffers in `.memory`,
        and gives `.roofline` the trip counts of loops.

    Raises:
        ShardvizError: if jax is not installed, or if there is no such target. If the
            program fails, the Report has an `.error`.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> sv.compile(jnp.sin, sv.array("x", (8,)), mesh="data=1").error
    """
    arrays, target = target_after_program(program, arrays, target)
    public_only = {"target": target, "options": options}
    program = program_of(program, "compile", arrays, keywords, public_only)
    target = check_target(target, program.mesh.size)
    with needed_by("sv.compile"):
        from shardviz.runs.backend.hosts import run
    if options is not None:
        # Options are part of the program, so this is a different program.
        program = program.replace(options={**program.options, **options})
    with progress_clock(program) as clock:
        report = run.compile_program(program, target, cache=cache, progress=clock)
    # A program that is too large for its target has an error, but also buffers.
    if report.error is not None and report.without_error.memory.timeline is None:
        return report
    # Planning is much faster than compiling.
    planned = plan_for_target(program, report.on)
    if report.error is None:
        report = with_least_times(report, planned)
    return with_values(report, planned)


def report(
    compiled: jax.stages.Compiled | jax.stages.Lowered | str | os.PathLike[str],
    /,
    *,
    mesh: MeshLike | None = None,
) -> Report:
    """Reports on a program that jax has lowered or compiled; compiles nothing.

    Args:
        compiled: the result of `jax.jit(f).lower(...)`, or of its `.compile()`; the
            path of a file with HLO (text or proto) or StableHLO (text or bytecode), or
            of a folder with XLA's dump; or the text itself. Files are parsed in a
            separate process.
        mesh: the mesh of a program in a file, if the file does not name its axes.

    Returns:
        A Report with the stages that `compiled` has. The other stages are None, and a
        note names them. A Report of a `Compiled` has the final collectives, the memory,
        and the layouts of arguments and results. A Report of a `Lowered` or of
        StableHLO has these layouts and a `.plan`, made without another trace. A Report
        of a partitioned or optimised HLO module has only its collectives. A Report of a
        dump has everything that XLA wrote, such as the memory over time and the
        collectives right after the partitioner.

    Raises:
        ShardvizError: if `compiled` has none of these forms, or a file cannot be read.

    >>> import jax, shardviz as sv
    >>> lowered = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((8,), "float32"))
    >>> sv.report(lowered.compile()).collectives
    ()
    >>> sv.report(lowered).plan.op("mul").shape
    (8,)
    >>> sv.report(lowered.compile().as_text()).collectives
    ()
    """
    with needed_by("sv.report"):
        from shardviz.plans.backend import plan_module
        from shardviz.runs.backend import read_compiled, read_files
    if isinstance(compiled, (str, os.PathLike)):
        return read_files.report_of_file(compiled, optional(as_mesh, mesh))
    if mesh is not None:
        raise ProgramError(
            "The mesh of a Lowered or Compiled is known; got mesh= as well. Pass it with a"
            " file only."
        )
    if is_compiled(compiled):
        return read_compiled.report_of(compiled)
    if is_lowered(compiled):
        return read_compiled.report_of_plan(plan_module.plan_lowered(compiled))
    if is_jax(compiled) and hasattr(compiled, "mlir_module"):
        raise ProgramError(
            "sv.report reads an Exported as text: sv.report(exported.mlir_module())."
        )
    # Libraries wrap the stages of jax in their own classes.
    for name in ("compiled", "lowered"):
        inner = getattr(compiled, name, None)
        if is_compiled(inner) or is_lowered(inner):
            raise ProgramError(
                f"sv.report takes the {type(inner).__name__} of jax; got"
                f" {shown(compiled)}, which contains one. Give its .{name}."
            )
    raise ProgramError(
        "sv.report takes what jax has lowered or compiled: jax.jit(f).lower(*args), or its"
        f" .compile(), or a file of XLA; got {shown(compiled)}. A function is compiled by"
        " sv.compile(f, *args)."
    )


def stages(
    program: Program | UserFunction,
    /,
    *arrays: PyTree,
    target: TargetLike = None,
    **keywords: Any,
) -> Stages:
    """Returns a program's four stages: requested, propagated, partitioned, compiled.

    The program is planned and compiled, but not executed.

    Args:
        program: a Program, or a function, which `sv.program` turns into one.
        *arrays: a function's arguments, as in `sv.program`. A Program already has its
            arguments, so only the target can follow it; it can also be a keyword.
        target: as in `sv.compile`: None, or text such as `"cpu:8"` or `"tpu:v5e:4x4"`.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program` such as `mesh=` and `rules=`.

    Returns:
        Stages, with the plan in `.plan` and the report in `.report`.
        `.between("propagated", "partitioned")` lists the changes between two stages,
        with their source lines.

    Raises:
        ShardvizError: if jax is not installed, or if there is no such target. If the
            program fails, the failed stage has the error instead.

    >>> import shardviz as sv
    >>> x = sv.array("x", (64,), spec="data")
    >>> sv.stages(lambda x: x.sum(), x, mesh="data=1").report.error
    """
    from shardviz.compiled.stages import Stages

    arrays, target = target_after_program(program, arrays, target)
    program = program_of(program, "stages", arrays, keywords, {"target": target})
    target = check_target(target, program.mesh.size)
    # Plan first, so that a failed compile still has a plan.
    planned = plan_for_target(program, target)
    with needed_by("sv.stages"):
        from shardviz.runs.backend.hosts import run
    with progress_clock(program) as clock:
        report = run.compile_program(program, target, cache=cache, progress=clock)
    report = with_values(with_least_times(report, planned), planned)
    return Stages(program, planned, report)


def target_after_program(
    program: Program | UserFunction, arrays: tuple[PyTree, ...], target: TargetLike
) -> tuple[tuple[PyTree, ...], TargetLike]:
    """Splits off the target if a target is the only argument after a Program."""
    if isinstance(program, Program) and len(arrays) == 1 and target is None:
        return (), arrays[0]
    return arrays, target
