"""`sv.changes`: edits of a program after which a collective is gone or smaller."""

from __future__ import annotations

from typing import Any

from shardviz.api.movements import chosen_collective
from shardviz.core.display import StageClock
from shardviz.core.errors import ProgramError, import_optional
from shardviz.core.format import shown
from shardviz.core.program.candidates import Changes
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.core.program.stages import Stages


def changes(thing: Any, collective: Any = None, *, target: Any = None) -> Changes:
    """The smallest edits of a program's shardings after which a collective is gone or
    smaller; or, for `"memory"`, changes after which the program needs less memory.

    Each was compiled, and its results compared with the original's on simulated
    devices where they are small enough. What else it costs is beside it.

    Args:
        thing: a Report, Plan or Stages, or a program.
        collective: which one: itself, its number among the `collectives`, or its name
            in the compiled text; the one that sends the most where left out. `"memory"`
            for what lowers the peak: arguments are donated, the backward pass computes
            again what is saved for it, the largest saved values are split.
            For a program in a form that jax accepts: `"types"` for one that it refuses,
            `"explicit"` for its form on Explicit axes, `"pmap"` for a function of
            `jax.pmap` as one of `jax.shard_map`.
        target: what to compile for, as for `sv.compile`; by default what the report was
            compiled for.

    Returns:
        Changes, the best first: each with `.edit`, `.code()`, `.program`, `.report`,
        `.bytes`, `.values`. `.refused` is what was tried and dropped.

    Raises:
        ShardvizError: for what has no program or no such collective, or where the
            program does not compile.

    >>> import jax.numpy as jnp, shardviz as sv
    >>> x = sv.array("x", (64, 8), spec="data")
    >>> w = sv.array("w", (8, 64), spec="data")
    >>> report = sv.compile(jnp.dot, x, w, mesh="data=2")
    >>> found = changes(report, 0)
    >>> found[0].edit
    'Split argument w as P(None, None): sends 1 KiB → 0 B · memory 12 KiB → 11 KiB.'
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
    changes = "shardviz.core.backend.candidates.changes"
    finding = import_optional(changes, "sv.changes", "jax")
    with StageClock(program.name) as clock:
        if collective not in finding.WAYS:
            if isinstance(thing, Program):
                thing = finding.compiled(program, where, clock)
            collective = chosen_collective(thing, collective)
        return finding.find_changes(program, collective, where, clock)
