"""The doors to what the compiler decides: the plan, in milliseconds, and all four rungs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardviz.adopting import room

if TYPE_CHECKING:
    from shardviz.core.program.program import Program
    from shardviz.core.program.propagation.plan import Plan
    from shardviz.core.program.rungs import Rungs


def plan(program: Program) -> Plan:
    """What the compiler would decide about every value of a program; nothing is compiled.

    Runs the compiler's own propagation (Shardy) on the lowered program: milliseconds, on a mesh of
    any size, without its devices.

    Args:
        program: what `sv.program` made.

    Returns:
        A Plan: every value with its sharding and the origin of every axis in `.ops`, an estimate
        of the collectives in `.collectives`; `.why(value)` tells the story of one value, and
        `.diff(other)` what an edit changed.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program that cannot
            be planned is a Plan with an error.

    >>> import shardviz as sv
    >>> w = sv.array("w", (512, 2048), spec="None, model")
    >>> x = sv.array("x", (4096, 512), spec="data, None")
    >>> made = plan(sv.program(lambda w, x: x @ w, w, x, mesh="data=1024, model=1024"))
    >>> str(made.op("dot_general").spec)
    "P('data', 'model')"
    """
    return room("shardviz.core.program.propagation.build", "sv.plan", "jax").plan_program(program)


def rungs(program: Program, target: Any = None) -> Rungs:
    """A program on all its rungs: requested, propagated, partitioned, compiled.

    Plans and compiles; nothing is executed.

    Args:
        program: what `sv.program` made.
        target: as for `sv.compile`: None, or text such as `"cpu:8"` or `"tpu:v5e:4x4"`.

    Returns:
        Rungs: `.plan`, `.report`, and `.between("propagated", "partitioned")` for what changed
        from one rung to another, and where.

    Raises:
        ShardvizError: where jax is not installed, or for what is no program. A program that fails
            shows on which rung it did.

    >>> import shardviz as sv
    >>> x = sv.array("x", (64,), spec="data")
    >>> climbed = rungs(sv.program(lambda x: x.sum(), x, mesh="data=1"))
    >>> climbed.report.error
    """
    from shardviz.api import cache
    from shardviz.core.program.rungs import Rungs

    planned = plan(program)
    runner = room("shardviz.core.program.runner", "sv.rungs", "jax")
    report = runner.compile_program(program, target, cache=cache)
    return Rungs(program, planned, report)
