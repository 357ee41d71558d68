"""Compiles and runs programs: in this kernel on its own devices, else in the worker.

Nothing that a program does wrong is raised from here: it ends as the `error` of the Report, with
the stage it happened in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardviz.core.errors import ProgramError, shown
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.core.program.running.values import value_leaves
from shardviz.core.program.running.walk import Walk
from shardviz.core.program.targets import Target, decide, device_mesh
from shardviz.core.program.worker.parcel import stays_here
from shardviz.core.program.worker.route import Route

MAX_REPEAT = 1_000_000


def compile_program(
    program: Program,
    target: Target | str | None = None,
    *,
    cache: ExecutableCache,
    progress: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    preview: Callable[[Report], None] | None = None,
) -> Report:
    """Compiles a program, and reports; nothing is placed or executed.

    Args:
        program: what to compile.
        target: what for: text as `targets.decide` reads it, or None for what suits.
        cache: where executables are kept.
        progress: called with the name of every stage as it begins.
        cancelled: asked between stages, and all the time while the worker is busy; True ends the
            walk, and the worker with it.
        preview: called with the report so far as soon as XLA's partitioner has answered in the
            worker, while it still compiles.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> compile_program(program, cache=ExecutableCache()).ok
    True
    """
    walk = Walk(program, progress, cancelled, preview)
    walk.follow(lambda: _compile(walk, target, cache))
    return walk.report


def run_program(
    program: Program,
    *values: Any,
    target: Target | str | None = None,
    repeat: int = 1,
    cache: ExecutableCache,
    progress: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    preview: Callable[[Report], None] | None = None,
) -> Report:
    """Compiles and runs a program, and holds what was predicted against what happened.

    Args:
        program: what to run.
        *values: its arguments; made up, small and always the same where none are given.
        target: as for `compile_program`.
        repeat: how often to execute it.
        cache, progress, cancelled, preview: as for `compile_program`; `cancelled` is also asked
            between repeats.

    Raises:
        ProgramError: for what is no Program at all.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(jnp.sin, (ArraySpec("x", (8,)),), make_mesh(data=1))
    >>> run_program(program, cache=ExecutableCache()).outputs.shape
    (8,)
    """
    walk = Walk(program, progress, cancelled, preview)
    walk.follow(lambda: _run(walk, values, target, repeat, cache))
    return walk.report


def _compile(walk: Walk, target: Target | str | None, cache: ExecutableCache) -> None:
    walk.begin()
    chosen = _target(walk, target)
    if chosen.worker:
        Route(walk, chosen).compile(cache)
    else:
        walk.compile_on(device_mesh(walk.program.mesh, chosen), cache)


def _run(
    walk: Walk,
    values: Sequence[Any],
    target: Target | str | None,
    repeat: int,
    cache: ExecutableCache,
) -> None:
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= MAX_REPEAT:
        raise ProgramError(
            f"repeat says how often to run, from 1 to {MAX_REPEAT:,}; got {shown(repeat)}."
        )
    leaves = value_leaves(walk.program, values)
    walk.begin()
    chosen = _target(walk, target)
    if chosen.worker:
        Route(walk, chosen).run(leaves, repeat, cache)
    else:
        walk.run_on(device_mesh(walk.program.mesh, chosen), leaves, repeat, cache)


def _target(walk: Walk, target: Target | str | None) -> Target:
    walk.enter("target")
    walk.note(target=target if isinstance(target, str) else "")
    chosen = decide(target, walk.program.mesh.size, lambda: stays_here(walk.program))
    walk.note(target=str(chosen))
    return chosen
