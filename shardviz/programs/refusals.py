"""What jax refuses of a program for its types, and the edits that it accepts."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec


@dataclass(frozen=True)
class TypeEdit(Fact):
    """An edit after which jax accepts an operation; each was tried, except those of
    a value that an operation reads.

    Attributes:
        code: `"reshard"`, `"out_sharding"`, `"auto_axes"`, `"get"` and `"set"`
            for methods of `.at[...]`, `"pcast"`; for results of a
            `shard_map` that differ between devices `"psum"`, `"pmean"`, `"pmax"`,
            `"pmin"`, `"out_specs"` or `"check_vma"`.
        part: what gets another type: an `"operand"`, a value of the `"carry"` before a
            loop, the `"result"`; `"read"` for what an operation inside reads.
        numbers: which of these.
        spec: the sharding that it gets.
        axes: the axes over which it varies then, or no longer does.
        reader: that operation and its line.
        is_right: whether the results are those of whole arrays then; None if unknown.
        bytes: what each device sends in the program with this edit and the best edits
            of the refusals before, by the partitioner's answer; None: not compiled.

    >>> print(TypeEdit("out_sharding", "result", spec=Spec.parse("data")))
    out_sharding=P('data')
    """

    code: str
    part: str = "operand"
    numbers: tuple[int, ...] = ()
    spec: Spec | None = None
    axes: tuple[str, ...] = ()
    bytes: int | None = None
    is_right: bool | None = None
    reader: tuple[str, ...] = ()


@dataclass(frozen=True)
class TypeRefusal(Fact):
    """An operation that jax refuses for the types of its operands.

    Attributes:
        operation: what jax calls it, such as `"dot_general"`.
        source: the line of the user's code.
        types: the types of its operands, as jax writes them.
        said: jax's own message, in full.
        edits: what jax accepts; where they are priced, those first that send least.
        backward: whether it is in a gradient, which jax makes again from the edited
            forward pass, and may accept then.

    >>> print(TypeRefusal("add", "f.py:3", ("float32[8@x]",), "They differ."))
    add (f.py:3). They differ. No edit was found that jax accepts.
    """

    operation: str
    source: str
    types: tuple[str, ...]
    said: str
    edits: tuple[TypeEdit, ...] = ()
    backward: bool = False
