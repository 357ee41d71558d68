"""Notes on a value of a plan, or on the whole plan, as facts: one class per kind.

`words/plan.py` has the sentence of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact
from shardviz.base.layout import Misfit

# --- notes on a value -----------------------------------------------------------------


class PlanNote(Fact):
    """A note on a value of a plan, or on the whole plan."""


@dataclass(frozen=True)
class Unused(PlanNote):
    """The program does not use the argument."""


@dataclass(frozen=True)
class OpaqueCall(PlanNote):
    """The value is computed by code that XLA does not look into.

    Attributes:
        target: the name of the custom call.

    >>> print(OpaqueCall("lapack_sgetrf_ffi"))
    It calls lapack_sgetrf_ffi, which XLA does not look into.
    """

    target: str


@dataclass(frozen=True)
class PythonCall(PlanNote):
    """The value is computed by Python on the host of one device.

    Attributes:
        target: the name of the custom call.
    """

    target: str


@dataclass(frozen=True)
class NoShardingRule(PlanNote):
    """Shardy has no sharding rule for the operation."""


@dataclass(frozen=True)
class NoBody(PlanNote):
    """The function that the operation calls has no body in this module."""


@dataclass(frozen=True)
class IsShardMap(PlanNote):
    """The value is the result of a `shard_map`.

    Attributes:
        axes: the mesh axes that it runs over.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class InsideShardMap(PlanNote):
    """The value is inside of a `shard_map`, and its shape is that of one block.

    Attributes:
        axes: the mesh axes that the `shard_map` runs over.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class PaddedDimension(PlanNote):
    """The compiler pads a dimension, which the axes that split it do not divide.

    Attributes:
        value: the name of the value.
        dim: the dimension.
        misfit: its size and the axes.
    """

    value: str
    dim: int
    misfit: Misfit


@dataclass(frozen=True)
class UnevenResult(PlanNote):
    """A result of the program is not split as the value that it returns, since results
    must divide evenly.

    Attributes:
        value: the name of the value that is returned.
        dim: the dimension.
        misfit: its size and the axes.
    """

    value: str
    dim: int
    misfit: Misfit


# --- notes on a plan ------------------------------------------------------------------


@dataclass(frozen=True)
class SizeOneAxes(PlanNote):
    """Mesh axes of size 1, which split nothing.

    Attributes:
        axes: the mesh axes.

    >>> print(SizeOneAxes(("data",)))
    data has size 1: it splits nothing and no sharding names it.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class NotCovered(PlanNote):
    """Values whose shardings Shardy does not decide.

    Attributes:
        values: their names.
    """

    values: tuple[str, ...]


@dataclass(frozen=True)
class UncertainValues(PlanNote):
    """Values whose estimated collectives may differ from those of XLA's partitioner.

    Attributes:
        values: their names.
    """

    values: tuple[str, ...]


@dataclass(frozen=True)
class LoweredForTpus(PlanNote):
    """The program has a Pallas kernel, so it is lowered for TPUs."""


@dataclass(frozen=True)
class PlatformDependent(PlanNote):
    """The program is lowered for CPUs, and other platforms get another module.

    Attributes:
        operations: jax's names of the operations whose lowering depends on the platform.
    """

    operations: tuple[str, ...]


@dataclass(frozen=True)
class NotLowered(PlanNote):
    """The program is lowered for CPUs, since jax cannot lower it for the target here.

    Attributes:
        platform: the target's platform.
        reason: jax's error, in words.
    """

    platform: str
    reason: str


@dataclass(frozen=True)
class UnknownConstraints(PlanNote):
    """The calls in the program that constrain arrays could not be recorded.

    Attributes:
        reason: why, as a sentence.
    """

    reason: str


@dataclass(frozen=True)
class AfterStep(PlanNote):
    """The plan shows the values as they were after a step of the propagation.

    Attributes:
        step: the number of the step; -1 for the requested shardings.
    """

    step: int


@dataclass(frozen=True)
class UntriedPasses(PlanNote):
    """This jaxlib's Shardy has passes that shardviz has not been tried with.

    Attributes:
        run: the passes that were run for the plan.
        left_out: the passes that were not run, because MLIR does not know them here,
            they failed, or they come after the shardings are settled.

    >>> print(UntriedPasses(("sdy-new-pass",), ()))
    shardviz has not been tried with all passes of this jaxlib's Shardy. The plan ran
    sdy-new-pass, and may differ from what XLA does.
    """

    run: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class NoEstimate(PlanNote):
    """The plan has no estimate of its collectives.

    Attributes:
        missing: the passes of Shardy that this jaxlib lacks.
    """

    missing: tuple[str, ...]


@dataclass(frozen=True)
class EstimateFailed(PlanNote):
    """The estimate of collectives failed, with a jax that shardviz was not tested with.

    Attributes:
        reason: the error, in words.
    """

    reason: str
