"""`sv.plan`: predicts the sharding of every value, without compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shardviz.base.errors import needed_by
from shardviz.base.public.adopt import is_lowered
from shardviz.base.typing import PyTree, UserFunction
from shardviz.hardware.targets import TargetLike
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of, progress_clock

if TYPE_CHECKING:
    import jax

    from shardviz.plans.plan import Plan


def plan(
    program: Program | UserFunction | jax.stages.Lowered,
    /,
    *arrays: PyTree,
    **keywords: Any,
) -> Plan:
    """Predicts how the compiler shards every value of a program, without compiling.

    Traces and lowers the program, then runs the compiler's own propagation passes
    (Shardy). A plan takes milliseconds for a mesh of any size, and needs no devices.

    Args:
        program: a Program, a function, which `sv.program` turns into one, or the result
            of `jax.jit(f).lower(...)`, which is planned without another trace.
        *arrays: the function's arguments, as in `sv.program`.
        **keywords: the function's keyword arguments, and keyword arguments of
            `sv.program`, such as `mesh=` and `rules=`.

    Returns:
        A Plan. `.ops` has every value with its sharding and the origin of each axis;
        `.collectives` has an estimate of the collectives. `.why(value)` explains one
        value, and `.diff(other)` lists what an edit changed.

    Raises:
        ShardvizError: if jax is not installed, or if `program` is not a program. If
            planning fails, the Plan has an `.error` instead.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (4096, 512), spec="data, None")
    >>> matmul = sv.program(lambda w, x: x @ w, w, x, mesh="data=1024, model=1024")
    >>> str(sv.plan(matmul).op("dot_general").spec)
    "P('data', 'model')"
    >>> str(sv.plan(lambda x: x.sum(), x, mesh="data=4").op("reduce_sum").spec)
    'P()'
    """
    with needed_by("sv.plan"):
        from shardviz.plans.backend import build_plan, plan_module
    if is_lowered(program) and not arrays and not keywords:
        return plan_module.plan_lowered(program)
    program = cast("Program | UserFunction", program)
    program = program_of(program, "plan", arrays, keywords)
    with progress_clock(program, "plan"):
        return build_plan.plan_program(program, clock=progress_clock)


def plan_for_target(program: Program, target: TargetLike) -> Plan:
    """Plans a program, lowered for the platform of a target."""
    with needed_by("sv.plan"):
        from shardviz.plans.backend import build_plan
    from shardviz.runs.backend.targets import lowering_platform

    platform = lowering_platform(target, program.mesh.size)
    with progress_clock(program, "plan"):
        return build_plan.plan_program(program, platform, progress_clock)
