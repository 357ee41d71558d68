"""Which operation jax refused on Explicit axes, where a value's type has its sharding.

jax does not export its `ShardingTypeError`, so it is known by name. Its message often
does not say which operation it is about, but the traceback does: every operation of jax
passes through `Primitive.bind`.
"""

from __future__ import annotations

import traceback

from jax.sharding import AbstractMesh, AxisType

from shardviz.core.backend.jax_compat import bound_operation, complete_tracebacks
from shardviz.core.backend.tracing.trace import trace
from shardviz.core.program.program import Program


def refused_operation(
    error: BaseException, program: Program, mesh: AbstractMesh
) -> str:
    """The operation for whose result jax could not find a sharding, or `""`.

    Args:
        error: what tracing raised. Where jax has taken its own frames out of the
            traceback, the program is traced once more.
        program: the program.
        mesh: the mesh that it was traced on.
    """
    explicit = AxisType.Explicit in mesh.axis_types
    if not explicit or type(error).__name__ != "ShardingTypeError":
        return ""
    name = _innermost_operation(error)
    if name:
        return name
    with complete_tracebacks():
        try:
            trace(program, mesh)
        except Exception as again:  # noqa: BLE001  it is compared with the first
            # A function that is not the same twice may be refused elsewhere.
            if str(again) == str(error):
                return _innermost_operation(again)
    return ""


def _innermost_operation(error: BaseException) -> str:
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = bound_operation(frame) or name
    return name
