"""The public function that searches for shardings."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.advise.search import Search
from shardviz.base.display import StageClock
from shardviz.base.errors import ProgramError, import_optional
from shardviz.base.format import shown
from shardviz.base.parse import parse_bytes
from shardviz.hardware.targets import Target
from shardviz.programs.program import Program


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
    searching = import_optional("shardviz.advise.backend.search", "sv.search", "jax")
    with StageClock(program.name, after=3.0, lines=True) as clock:
        return searching.search(program, name, over, limit, seconds, clock)
