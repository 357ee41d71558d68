"""Where the estimate of a plan may differ from what XLA's partitioner does.

The estimate is Shardy's own. For the operations of this table XLA's partitioner has
rules of its own, and what it inserts is known once the program is compiled: nothing
here predicts it. `wording/estimate.py` says it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Fact

#: The kinds of operations and moves at which the estimate is uncertain.
KINDS = frozenset(
    {
        # What reads, along a split dimension, elements that another device holds.
        "pad",
        "slice",
        "moved slice",
        "slice of one",
        "reverse",
        "concatenate",
        "convolution",
        "reduce_window",
        "select_and_scatter",
        "cumulative",
        "dynamic_slice",
        "dynamic_update_slice",
        "top_k",
        "fft",
        "reduce",
        "reshape",
        "groups",
        "channels",
        # What XLA cannot split.
        "call",
        "matrix",
        "host",
        # What wants a mesh axis in two places.
        "gather",
        "scatter",
        "two factors",
        "moved operand",
        "summed result",
        "other dimension",
        # What is moved, whatever reads it.
        "again",
        "steps",
        "part",
    }
)


@dataclass(frozen=True)
class Uncertain(Fact):
    """Why the estimate at a value may differ from what XLA's partitioner inserts.

    Attributes:
        code: what kind of operation or move it is, one of `KINDS`.
        axes: the mesh axes that it is about.
        dim: the dimension that these split; None where several do.

    >>> Uncertain("reverse", ("model",), 1).dim
    1
    """

    code: str
    axes: tuple[str, ...] = ()
    dim: int | None = None
