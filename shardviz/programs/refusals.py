"""Operations that jax refuses for their types, and the edits that it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec

#: The collectives of `jax.lax` that make values equal on all devices.
Combination = Literal["psum", "pmean", "pmax", "pmin"]


@dataclass(frozen=True, kw_only=True)
class TypeEdit(Fact):
    """An edit after which jax accepts an operation.

    Each edit was tried, except `CombineBeforeRead`.

    Attributes:
        is_right: whether the results are then those of whole arrays; None if unknown.
        bytes: the bytes that each device sends in the program with this edit and the best edits
            of the refusals before, by the partitioner's answer; None if not compiled.

    >>> print(CastOperands((1,), ("x",)))
    jax.lax.pcast(..., ('x',), to='varying') of operand 1
    """

    bytes: int | None = None
    is_right: bool | None = None


@dataclass(frozen=True)
class OperandEdit(TypeEdit):
    """Some operands get another type.

    Attributes:
        numbers: the positions of the operands.
    """

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ReshardOperands(OperandEdit):
    """`jax.sharding.reshard` of operands.

    Attributes:
        spec: their new spec.
    """

    spec: Spec


@dataclass(frozen=True)
class ReshardCarry(ReshardOperands):
    """`jax.sharding.reshard` of values of the carry, before the loop.

    Attributes:
        numbers: their positions in the carry.
    """


@dataclass(frozen=True)
class CastOperands(OperandEdit):
    """`jax.lax.pcast` of operands, so that they vary over more axes.

    Attributes:
        axes: the axes over which they vary then.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class CastCarry(CastOperands):
    """`jax.lax.pcast` of values of the carry, before the loop.

    Attributes:
        numbers: their positions in the carry.
    """


@dataclass(frozen=True)
class CastBranches(TypeEdit):
    """`jax.lax.pcast` of the results of branches.

    Attributes:
        axes: the axes over which they vary then.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class SplitResult(TypeEdit):
    """The result of an operation gets another spec.

    Attributes:
        spec: the spec.
    """

    spec: Spec


@dataclass(frozen=True)
class OutSharding(SplitResult):
    """The argument `out_sharding` of the operation.

    >>> print(OutSharding(Spec.parse("data")))
    out_sharding=P('data')
    """


@dataclass(frozen=True)
class AtGet(SplitResult):
    """The argument `out_sharding` of `.at[...].get`."""


@dataclass(frozen=True)
class AtSet(SplitResult):
    """The argument `out_sharding` of `.at[...].set` and similar methods."""


@dataclass(frozen=True)
class AutoAxes(SplitResult):
    """`jax.sharding.auto_axes` around the operation."""


@dataclass(frozen=True, kw_only=True)
class ResultEdit(TypeEdit):
    """An edit of a `shard_map` for results that differ between devices.

    Attributes:
        axes: the axes over which they no longer vary.
        numbers: the positions of the results.
    """

    axes: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class CombineResults(ResultEdit):
    """A collective over the results.

    Attributes:
        collective: its name in `jax.lax`.
    """

    collective: Combination


@dataclass(frozen=True)
class CombineBeforeRead(ResultEdit):
    """A collective over a value of the body, before an operation reads it.

    Attributes:
        collective: its name in `jax.lax`.
        reader: jax's name of the operation that reads the value.
        line: the source line of that operation; `""` if unknown.
    """

    collective: Combination
    reader: str
    line: str


@dataclass(frozen=True)
class NameInOutSpecs(ResultEdit):
    """The axes are named in the `out_specs` of the results.

    Attributes:
        spec: the new spec.
    """

    spec: Spec


@dataclass(frozen=True)
class SkipCheck(ResultEdit):
    """`check_vma=False`."""


@dataclass(frozen=True)
class TypeRefusal(Fact):
    """An operation that jax refuses for the types of its operands.

    Attributes:
        operation: jax's name for it, such as `"dot_general"`.
        source: the line of the user's code.
        types: the types of its operands, as jax writes them.
        said: jax's complete message.
        edits: the edits that jax accepts. If they have prices, those that send least
            come first.
        backward: True in a gradient, which jax makes again from the edited forward
            pass, and may accept then.

    >>> print(TypeRefusal("add", "f.py:3", ("float32[8@x]",), "They differ."))
    add (f.py:3). They differ. No edit was found that jax accepts.
    """

    operation: str
    source: str
    types: tuple[str, ...]
    said: str
    edits: tuple[TypeEdit, ...] = ()
    backward: bool = False
