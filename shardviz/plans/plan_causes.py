"""Why Shardy plans a collective: which value is summed or moved, and for what.

Each is a fact; `words/estimate.py` has its sentence.
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
        axes: the mesh axes that it runs over.

    >>> PlanCause("h", ("model",)).axes
    ('model',)
    """

    value: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class SumCause(PlanCause):
    """Each device has a part of a result, since an operand is split.

    Attributes:
        code: the kind of operation: `"inner"` (a product or convolution), `"reduce"`,
            `"gather"`, `"scatter"` or `"other"`.
        dims: for a reduction, the dimensions of its operand that are split.
        reducer: for a reduction, the operation that combines values: `"add"`,
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
    """A value is needed with another sharding than it has.

    Attributes:
        kind: the kind of collective, `"all-gather"`.
        before, after: its sharding, and the one that is needed.
        code: the reason: a `"constraint"`, `"reshard"`, `"shard_map"` or `"loop"` that
            asks for it, the `"result"` of the program, an `"op"`, or a `"call"` that
            the partitioner does not split.
        user: the name of the operation that needs it, or `""`.
        source: the line that asks for it, or `""`.
        through: the elementwise operation that reads the value, if the sharding is
            needed of its result; `""` otherwise.

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
    """All of a value is gathered for a call of Python, such as `jax.debug.print`.

    Attributes:
        user: the name of the call.
    """

    user: str


@dataclass(frozen=True)
class WrittenCause(PlanCause):
    """The program contains the collective itself, or grad added it.

    Attributes:
        op: the collective, as jax names it; `value` is the last part of that.
        inside: the name of the operation around it, such as `shard_map`.
        source: the line of the user's code, or `""`.
        gradient_of: for a sum that grad adds, the argument whose gradient it is; `""`
            if that is not known.
        kind: the kind of collective.
    """

    op: str
    inside: str
    source: str = ""
    gradient_of: str = ""
    kind: str = ""
