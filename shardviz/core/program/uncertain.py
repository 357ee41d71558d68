"""Where the estimate of a plan may differ from what XLA's partitioner does, and how it is said.

The estimate is Shardy's own. For the operations of this table XLA's partitioner has rules of its
own, and what it inserts is known once the program is compiled: nothing here predicts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_EDGES = "may exchange what crosses the borders of shards"
_GATHER = "may gather it"
_OTHER = "may move it in other steps"

#: Code to what a value is, and what XLA's partitioner does with what is split.
KINDS: Mapping[str, tuple[str, str]] = {
    # What reads, along a split dimension, elements that another device holds.
    "pad": ("a padding", _EDGES),
    "slice": ("a slice", _EDGES),
    "moved slice": ("a slice", "may move it before it slices it, or after"),
    "slice of one": ("an index", "may sum what only one shard holds"),
    "reverse": ("a reversal", "may swap the shards"),
    "concatenate": ("a concatenation", _EDGES),
    "convolution": ("a convolution", _EDGES),
    "reduce_window": ("a sliding window", _EDGES),
    "select_and_scatter": ("the gradient of a pooling", _EDGES),
    "cumulative": ("a cumulative operation", _GATHER),
    "dynamic_slice": ("a dynamic slice", _GATHER),
    "dynamic_update_slice": ("a dynamic update of a slice", _GATHER),
    "top_k": ("top_k", _GATHER),
    "rows of top_k": ("the rows of top_k", _GATHER),
    "rows of fft": ("the rows of a Fourier transform", _GATHER),
    "fft": ("a Fourier transform", _GATHER),
    "reduce": ("a reduction of pairs", "may gather what each device picked"),
    "reshape": ("a reshape", _GATHER),
    "groups": ("a convolution in groups", _GATHER),
    "channels": ("the channels of a convolution", _GATHER),
    # What XLA cannot split.
    "call": ("code that XLA does not look into", _GATHER),
    "matrix": ("an operation on whole matrices", "gathers each matrix"),
    "host": ("a call of Python on the host of one device", "gathers all of it"),
    # What wants a mesh axis in two places.
    "gather": ("a lookup by indices", _OTHER),
    "scatter": ("a write at indices", _OTHER),
    "two factors": (
        "a product with two dimensions over one axis",
        "may split one over another axis",
    ),
    "inner": ("a product over an inner dimension", "may gather the operand and sum nothing"),
    "needed part": ("a product of which a part is needed", "may gather all of the operand"),
    "summed result": (
        "a product whose result is split over what it sums",
        "may sum in other steps",
    ),
    "other dimension": ("a product split along other dimensions than its operands", _GATHER),
    "one operand": ("a product of which one operand is split", _GATHER),
    # What is moved, whatever reads it.
    "again": ("what was moved in this way before", "may move it once for both"),
    "steps": ("what is moved in several steps", _OTHER),
    "part": ("what is split over a part of an axis", _OTHER),
}

#: How each of these sentences begins.
UNCERTAIN = "The estimate is uncertain here:"


@dataclass(frozen=True)
class Uncertain:
    """Why the estimate at a value may differ from what XLA's partitioner inserts.

    Attributes:
        code: what kind of operation or move it is, a key of `KINDS`.
        axes: the mesh axes that it is about.
        dim: the dimension that these split; None where several do.

    >>> print(Uncertain("reverse", ("model",), 1))
    The estimate is uncertain here: a reversal along dimension 1, split over model. XLA's partitioner may swap the shards; compile to know.
    """  # noqa: E501

    code: str
    axes: tuple[str, ...] = ()
    dim: int | None = None

    def __str__(self) -> str:
        what, does = KINDS[self.code]
        along = "" if self.dim is None else f" along dimension {self.dim}"
        split = f", split over {' × '.join(self.axes)}" if self.axes else ""
        return f"{UNCERTAIN} {what}{along}{split}. XLA's partitioner {does}; compile to know."
