"""Why the estimate of a plan may differ from the result of XLA's partitioner."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact

#: The kinds of operations and moves for which the estimate is uncertain.
KINDS = frozenset({"along", "call", "indices", "product", "result", "move"})


@dataclass(frozen=True)
class Uncertain(Fact):
    """Why the estimate at a value may differ from what XLA's partitioner inserts.

    The partitioner's choice is not predicted: it is known once the program is compiled.

    Attributes:
        code: one of `KINDS`: `"along"` (the operation reads, along a split dimension,
            what another device may hold), `"call"` (it needs all of its operands),
            `"indices"` (it reads or writes at indices), `"product"` (it wants mesh axes
            in two places), `"result"` (its result must have another sharding than its
            operands lead to), or `"move"` (a value is moved several times, or in steps).
        axes: the mesh axes that it is about.
        op: the operation, as StableHLO names it.

    >>> Uncertain("along", ("model",), "reverse").axes
    ('model',)
    """

    code: str
    axes: tuple[str, ...] = ()
    op: str = ""
