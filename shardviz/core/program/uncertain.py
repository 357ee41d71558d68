"""Where the estimate of a plan may differ from what XLA's partitioner does, and how it is said.

The estimate is Shardy's own. XLA's partitioner has rules of its own for many operations, and what
it inserts is known once the program is compiled. So a value has no prediction of that here, but
one of these codes: which kind of operation it is, what of it is split, and over which axes.
"""

from __future__ import annotations

from collections.abc import Mapping

_EDGES = "exchange what crosses the borders of shards, or gather"
_GATHER = "gather it"
_OTHER = "move it in other steps"

#: Code to what is split, after "its" or "what", and what the partitioner may do.
KINDS: Mapping[str, tuple[str, str]] = {
    # Operations that read along a dimension what another device holds.
    "shift": ("{op} moves elements along {dim}, which is split over {axes}", _EDGES),
    "one element": ("{op} takes one element along {dim}, which is split over {axes}", "sum it"),
    "window": ("{op} reads windows along {dim}, which is split over {axes}", _EDGES),
    "cumulative": ("{op} goes along {dim}, which is split over {axes}", _GATHER),
    "order": ("{op} orders or picks elements along {dim}, which is split over {axes}", _GATHER),
    "transform": ("{op} is a Fourier transform of a value split over {axes}", _GATHER),
    "position": (
        "{op} reads or writes at positions known when it runs, split over {axes}",
        _GATHER,
    ),
    "reshape": ("{op} cuts {value} anew, which is split over {axes}", _GATHER),
    "matrix": ("{op} needs all of a matrix, which is split over {axes}", _GATHER),
    "kernel": ("{op} calls code that XLA cannot look into, on values split over {axes}", _GATHER),
    "host": ("{op} calls Python on the host of one device, on a value split over {axes}", _GATHER),
    "lookup": ("{op} looks up entries by indices, both split over {axes}", _OTHER),
    "write": ("{op} writes entries at indices, both split over {axes}", _OTHER),
    "groups": ("{op} is a convolution in groups, split over {axes}", _GATHER),
    "channels": ("{op} is a convolution whose channels are split over {axes}", _GATHER),
    "product": ("the operands and the result of {op} are not split alike over {axes}", _OTHER),
    "join": ("{op} joins values along {dim}, which is split over {axes}", _OTHER),
    # What is moved, whatever reads it.
    "again": (
        "what {op} reads, split over {axes}, was moved in the same way before",
        "move it once",
    ),
    "steps": ("what {op} reads is moved in several steps over {axes}", _OTHER),
    "part": ("a part of an axis splits what {op} reads, of {axes}", _OTHER),
}
