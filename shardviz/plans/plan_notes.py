"""Notes on a value of a plan, or on the whole plan: one class per kind of note.

`words/plan.py` has the sentence for each note.
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
    """The value is computed by a custom call, whose code XLA does not analyze.

    Attributes:
        target: the name of the custom call.

    >>> print(OpaqueCall("lapack_sgetrf_ffi"))
    It calls lapack_sgetrf_ffi, whose code XLA cannot see.
    """

    target: str


@dataclass(frozen=True)
class ReplacedCall(PlanNote):
    """The value is computed by a custom call that XLA replaces before propagation.

    Attributes:
        target: the name of the custom call.
    """

    target: str


@dataclass(frozen=True)
class PythonCall(PlanNote):
    """The value is computed by a Python callback on the host of one device.

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
        axes: the mesh axes that the `shard_map` runs over.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class InsideShardMap(PlanNote):
    """The value is inside a `shard_map`, so it has the shape of one device's block.

    Attributes:
        axes: the mesh axes that the `shard_map` runs over.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class PaddedDimension(PlanNote):
    """The compiler pads a dimension that its mesh axes do not divide evenly.

    Attributes:
        value: the name of the value.
        dim: the index of the dimension.
        misfit: the size of the dimension, and its mesh axes.
    """

    value: str
    dim: int
    misfit: Misfit


@dataclass(frozen=True)
class UnevenResult(PlanNote):
    """A result must divide evenly, so it is not split like the returned value.

    Attributes:
        value: the name of the returned value.
        dim: the index of the dimension.
        misfit: the size of the dimension, and its mesh axes.
    """

    value: str
    dim: int
    misfit: Misfit


# --- notes on a plan ------------------------------------------------------------------


@dataclass(frozen=True)
class SizeOneAxes(PlanNote):
    """Mesh axes of size 1 split nothing.

    Attributes:
        axes: the mesh axes.

    >>> print(SizeOneAxes(("data",)))
    data has size 1: it splits nothing and no sharding names it.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class NotCovered(PlanNote):
    """Shardy does not decide the shardings of some values.

    Attributes:
        values: the names of these values.
    """

    values: tuple[str, ...]


@dataclass(frozen=True)
class UncertainValues(PlanNote):
    """The estimated collectives of some values may differ from XLA's partitioner.

    Attributes:
        values: the names of these values.
    """

    values: tuple[str, ...]


@dataclass(frozen=True)
class LoweredForTpus(PlanNote):
    """The program has a Pallas kernel, so it is lowered for TPUs."""


@dataclass(frozen=True)
class PlatformDependent(PlanNote):
    """The program is lowered for CPUs; other platforms would get another module.

    Attributes:
        operations: jax's names of operations whose lowering depends on the platform.
    """

    operations: tuple[str, ...]


@dataclass(frozen=True)
class NotLowered(PlanNote):
    """The program is lowered for CPUs, because jax cannot lower it for the target here.

    Attributes:
        platform: the target's platform.
        reason: jax's error, as text.
    """

    platform: str
    reason: str


@dataclass(frozen=True)
class FromStableHlo(PlanNote):
    """The program was lowered before, so facts that only a trace has are unknown."""


@dataclass(frozen=True)
class UnknownConstraints(PlanNote):
    """The constraint calls of the program could not be recorded.

    Attributes:
        reason: the cause, as a sentence.
    """

    reason: str


@dataclass(frozen=True)
class AfterStep(PlanNote):
    """The plan shows the shardings as they were after a step of the propagation.

    Attributes:
        step: the number of the step; -1 for the requested shardings.
    """

    step: int


@dataclass(frozen=True)
class UntriedPasses(PlanNote):
    """This jaxlib's Shardy has passes that shardviz has not been tested with.

    Attributes:
        run: the passes that were run for the plan.
        left_out: the passes that were not run, because this MLIR does not know them,
            because they failed, or because they run after the propagation.

    >>> print(UntriedPasses(("sdy-new-pass",), ()))
    shardviz has not been tested with all passes of this jaxlib's Shardy. It ran
    sdy-new-pass, so the plan may differ from what XLA does.
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
    """The estimate of collectives failed with an untested version of jax.

    Attributes:
        reason: the error, as text.
    """

    reason: str
