"""What a person should know about a value of a plan, or about all of it, as facts.

`words/plan.py` says each.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.base.display import Fact
from shardviz.base.layout import Misfit


@dataclass(frozen=True)
class PlanNote(Fact):
    """A remark on one value, or on a plan.

    Attributes:
        code: of a value: `"unused"`, `"call"` (of code that XLA does not look into),
            `"host"` (a call of Python), `"no rule"`, `"no body"`, `"shard_map"`,
            `"inside shard_map"`. Of a plan: `"size one"` (mesh axes), `"not covered"`
            and `"uncertain"` (values), `"for TPUs"`, `"platform"` (operations whose
            lowering depends on it), `"not lowered"` (for a platform), `"no calls"` (its
            constraint calls are not known), `"after step"`.
        names: the values, mesh axes or functions that it is about.
        step: of `"after step"`, its number; -1 for what was requested.
        words: of `"no calls"` and `"not lowered"`, why.

    >>> PlanNote("size one", ("data",)).names
    ('data',)
    """

    code: str
    names: tuple[str, ...] = ()
    step: int = -1
    words: str = ""


@dataclass(frozen=True)
class UnevenNote(Fact):
    """A dimension does not divide by the axes that split it.

    Attributes:
        code: `"padded"`, or `"lost"` where a result of the program is not split for it.
        value: the name of the value; of a result, what it returns.
        dim: the dimension.
        misfit: its size and the axes.
    """

    code: str
    value: str
    dim: int
    misfit: Misfit
