"""`sv.plan`: the sharding of every value, without compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardviz.base.errors import needed_by
from shardviz.programs.program import Program
from shardviz.programs.public.programs import program_of

if TYPE_CHECKING:
    from shardviz.plans.plan import Plan


def plan(thing: Any, /, *arrays: Any, **keywords: Any) -> Plan:
    """What the compiler would decide about every value of a program; nothing is
    compiled.

    Runs the compiler's own propagation (Shardy) on the lowered program: milliseconds,
    on a mesh of any size, without its devices.

    Args:
        thing: what `sv.program` made; or a function, of which a program is made.
        *arrays: for a function, its arguments, as in `sv.program`.
        **keywords: for a function, its arguments by name, and what else `sv.program`
            takes: `mesh=`, `rules=` and so on.

    Returns:
        A Plan: every value with its sharding and the origin of every axis in `.ops`, an
        estimate of the collectives in `.collectives`; `.why(value)` explains one value,
        and `.diff(other)` is what an edit changed.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program
            that cannot be planned is a Plan with an error.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (4096, 512), spec="data, None")
    >>> made = plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=1024, model=1024"))
    >>> str(made.op("dot_general").spec)
    "P('data', 'model')"
    >>> str(plan(lambda x: x.sum(), x, mesh="data=4").op("reduce_sum").spec)
    'P()'
    """
    with needed_by("sv.plan"):
        from shardviz.plans.backend import build_plan
    return build_plan.plan_program(program_of(thing, "plan", arrays, keywords))


def plan_for_target(program: Program, target: Any) -> Plan:
    """The plan of a program, lowered for the platform of a target."""
    with needed_by("sv.plan"):
        from shardviz.plans.backend import build_plan
    from shardviz.runs.backend.targets import lowering_platform

    platform = lowering_platform(target, program.mesh.size)
    return build_plan.plan_program(program, platform)
