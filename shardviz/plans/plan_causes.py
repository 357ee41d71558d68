"""Facts that explain a planned collective: which value it sums or moves, and why.

`words/estimate.py` has the sentence for each fact.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec


@dataclass(frozen=True)
class PlanCause(Fact):
    """Why the plan has a collective.

    Attributes:
        value: the name of the value that is summed or moved.
        axes: the mesh axes that the collective runs over.

    >>> PlanCause("h", ("model",)).axes
    ('model',)
    """

    value: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class SumCause(PlanCause):
    """An operand is split, so each device has only a partial result to be combined.

    Attributes:
        code: the kind of operation: `"inner"` (a product or convolution), `"reduce"`,
            `"gather"`, `"scatter"` or `"other"`.
        dims: for a reduction, the reduced dimensions that are split.
        reducer: for a reduction, the operation that combines values, such as `"add"` or
            `"maximum"`; `""` if unknown.
        kept: whether each device keeps only its shard of the result.

    >>> SumCause("dot_general", ("model",), "inner").kept
    False
    """

    code: str
    dims: tuple[int, ...] = ()
    reducer: str = ""
    kept: bool = False


@dataclass(frozen=True)
class MoveCause(PlanCause):
    """An operation, or the program's result, needs a value in another sharding.

    Attributes:
        kind: the kind of collective, such as `"all-gather"`.
        before, after: the value's sharding, and the sharding that is needed.
        code: what needs the new sharding: a `"constraint"`, `"reshard"`, `"shard_map"`
            or `"loop"`, the `"result"` of the program, the value's `"own"` propagated
            sharding, an `"op"`, or a `"call"` that the partitioner does not split.
        user: the name of the operation that needs the new sharding, or `""`.
        source: the line that requests the new sharding, or `""`.
        through: the elementwise operation that reads the value, if only its result
            needs the new sharding; else `""`.

    >>> split, needed = Spec.parse("data"), Spec.parse("None")
    >>> MoveCause("x", ("data",), "all-gather", split, needed, "op", "sort").user
    'sort'
    """

    kind: str
    before: Spec
    after: Spec
    code: str
    user: str = ""
    source: str = ""
    through: str = ""


@dataclass(frozen=True)
class PrintCause(PlanCause):
    """A value is gathered for a Python callback, such as `jax.debug.print`.

    Attributes:
        user: the name of the callback.
    """

    user: str


@dataclass(frozen=True)
class WrittenCause(PlanCause):
    """The program itself calls the collective, or `jax.grad` added it.

    Attributes:
        op: jax's name of the collective. `value` is the last component of this name.
        inside: the name of the enclosing operation, such as `shard_map`.
        source: the line of the user's code, or `""`.
        gradient_of: for a sum that `jax.grad` added, the argument whose gradient is
            summed; `""` if not known.
        kind: the kind of collective; `""` unless `jax.grad` added it.
    """

    op: str
    inside: str
    source: str = ""
    gradient_of: str = ""
    kind: str = ""
