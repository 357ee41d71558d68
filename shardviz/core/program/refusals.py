"""What jax refuses of a program for its types, and the edits that it accepts."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Fact
from shardviz.core.layout.partition_spec import Spec


@dataclass(frozen=True)
class TypeEdit(Fact):
    """An edit after which jax accepts an operation; each was tried.

    Attributes:
        code: `"reshard"`, `"out_sharding"`, `"auto_axes"`, `"pcast"` or `"check_vma"`.
        of: what is changed, with its number: `("operand", 0)`, `("carry", 1)` before a
            loop, `("body", 1)` in it, `("branch", 1)` of a cond, or `("result", 0)`.
        spec: the sharding that it gets.
        axes: the axes over which it varies then.
        bytes: what each device sends in the program with this edit and the first edit
            of every other refusal, by the partitioner's answer; None: not compiled.

    >>> print(TypeEdit("out_sharding", ("result", 0), Spec.parse("data")))
    out_sharding=P('data')
    """

    code: str
    of: tuple[str, int] = ("operand", 0)
    spec: Spec | None = None
    axes: tuple[str, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True)
class TypeRefusal(Fact):
    """An operation that jax refuses for the types of its operands.

    Attributes:
        operation: what jax calls it, such as `"dot_general"`.
        source: the line of the user's code.
        types: the types of its operands, as jax writes them.
        said: jax's own message, in full.
        edits: what jax accepts, the smallest first; where they are priced, those first
            that send least.
        backward: whether it is in a gradient. jax makes that again from the edited
            forward pass, and may accept it then.

    >>> print(TypeRefusal("add", "f.py:3", ("float32[8@x]",), "They differ."))
    add (f.py:3). They differ. No edit was found that jax accepts.
    """

    operation: str
    source: str
    types: tuple[str, ...]
    said: str
    edits: tuple[TypeEdit, ...] = ()
    backward: bool = False
