"""Uncertain: why an estimated collective may differ from XLA's partitioner."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact

#: Codes for the kinds of operations and moves with an uncertain estimate.
KINDS = frozenset({"along", "call", "indices", "product", "result", "move", "uneven"})


@dataclass(frozen=True)
class Uncertain(Fact):
    """Why the estimated collectives of a value may differ from XLA's partitioner.

    The partitioner's choice is not predicted; only compiling the program shows it.

    Attributes:
        code: one of `KINDS`: `"along"` (the operation reads other devices' elements
            along a split dimension), `"call"` (the operation needs all of its
            operands), `"indices"` (the operation reads or writes elements by index),
            `"product"` (a matrix product would use a mesh axis for two dimensions),
            `"result"` (the result must have another sharding than the operands imply),
            `"move"` (a value is moved more than once, or in several steps), or
            `"uneven"` (a value is split into other parts, which differ in size).
        axes: the mesh axes for which the estimate is uncertain.
        op: the operation, as StableHLO names it.

    >>> Uncertain("along", ("model",), "reverse").axes
    ('model',)
    """

    code: str
    axes: tuple[str, ...] = ()
    op: str = ""
