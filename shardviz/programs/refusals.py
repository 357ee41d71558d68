"""Operations that jax refuses for their operand types, and edits that it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec

#: The `jax.lax` collectives whose result is equal on all devices.
Combination = Literal["psum", "pmean", "pmax", "pmin"]


@dataclass(frozen=True, kw_only=True)
class TypeEdit(Fact):
    """An edit that makes jax accept an operation.

    Every edit is tried before it is proposed, except `CombineBeforeRead`.

    Attributes:
        is_right: True if the edited program computes the values of the unsharded
            program; None if unknown.
        bytes: bytes that each device sends in the program with this edit and the best
            edits of earlier refusals, as XLA's partitioner plans it; None if not
            compiled.

    >>> print(CastOperands((1,), ("x",)))
    jax.lax.pcast(..., ('x',), to='varying') on operand 1
    """

    bytes: int | None = None
    is_right: bool | None = None


@dataclass(frozen=True)
class OperandEdit(TypeEdit):
    """An edit that changes the type of some operands.

    Attributes:
        numbers: positions of these operands.
    """

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ReshardOperands(OperandEdit):
    """`jax.sharding.reshard` of some operands.

    Attributes:
        spec: new spec of these operands.
    """

    spec: Spec


@dataclass(frozen=True)
class ReshardCarry(ReshardOperands):
    """`jax.sharding.reshard` of some carry values before the loop.

    Attributes:
        numbers: positions of these values in the carry.
    """


@dataclass(frozen=True)
class CastOperands(OperandEdit):
    """`jax.lax.pcast` of some operands, so that they vary over more axes.

    Attributes:
        axes: mesh axes to vary over.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class CastCarry(CastOperands):
    """`jax.lax.pcast` of some carry values before the loop.

    Attributes:
        numbers: positions of these values in the carry.
    """


@dataclass(frozen=True)
class CastBranches(TypeEdit):
    """`jax.lax.pcast` of the results of `cond` branches.

    Attributes:
        axes: mesh axes to vary over.
    """

    axes: tuple[str, ...]


@dataclass(frozen=True)
class SplitResult(TypeEdit):
    """An edit that gives the result of an operation another spec.

    Attributes:
        spec: new spec of the result.
    """

    spec: Spec


@dataclass(frozen=True)
class OutSharding(SplitResult):
    """Passes `out_sharding` to the operation.

    >>> print(OutSharding(Spec.parse("data")))
    out_sharding=P('data')
    """


@dataclass(frozen=True)
class AtGet(SplitResult):
    """Passes `out_sharding` to `.at[...].get`."""


@dataclass(frozen=True)
class AtSet(SplitResult):
    """Passes `out_sharding` to `.at[...].set` or a similar method."""


@dataclass(frozen=True)
class AutoAxes(SplitResult):
    """Wraps the operation in `jax.sharding.auto_axes`."""


@dataclass(frozen=True, kw_only=True)
class ResultEdit(TypeEdit):
    """An edit of a `shard_map` whose results differ between devices.

    Attributes:
        axes: mesh axes over which the results no longer vary.
        numbers: positions of these results.
    """

    axes: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class CombineResults(ResultEdit):
    """A collective over some results of a `shard_map`.

    Attributes:
        collective: name of the collective in `jax.lax`.
    """

    collective: Combination


@dataclass(frozen=True)
class CombineBeforeRead(ResultEdit):
    """A collective over a value in the `shard_map` body, before an operation reads it.

    Attributes:
        collective: name of the collective in `jax.lax`.
        reader: jax's name for the operation that reads the value.
        line: source line of that operation; `""` if unknown.
    """

    collective: Combination
    reader: str
    line: str


@dataclass(frozen=True)
class NameInOutSpecs(ResultEdit):
    """Names the axes in the results' `out_specs`.

    Attributes:
        spec: the new entry in `out_specs`.
    """

    spec: Spec


@dataclass(frozen=True)
class SkipCheck(ResultEdit):
    """Passes `check_vma=False` to the `shard_map`."""


@dataclass(frozen=True)
class TypeRefusal(Fact):
    """An operation that jax refuses for its operand types.

    Attributes:
        operation: jax's name for the operation, such as `"dot_general"`.
        source: the user's source line.
        types: operand types, as jax writes them.
        said: jax's full message.
        edits: edits that jax accepts, cheapest first if their traffic is known.
        backward: True for an operation in a gradient. Editing the forward pass may
            already fix it, because jax derives the gradient again.

    >>> print(TypeRefusal("add", "f.py:3", ("float32[8@x]",), "They differ."))
    add (f.py:3). They differ. No edit was found that jax accepts.
    """

    operation: str
    source: str
    types: tuple[str, ...]
    said: str
    edits: tuple[TypeEdit, ...] = ()
    backward: bool = False
