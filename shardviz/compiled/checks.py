"""Checks: predictions, each compared with what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardviz.base.display import Fact
from shardviz.base.format import plural


@dataclass(frozen=True)
class Finding(Fact):
    """What was found in a compile or run: a code, and what its sentence needs.

    `words/checks.py` has the codes, each with its fields.

    >>> Finding("unequal", {"count": 3}).code
    'unequal'
    """

    code: str
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)


def found(code: str, **fields: Any) -> Finding:
    """A Finding with these fields.

    >>> found("unequal", count=3).fields["count"]
    3
    """
    return Finding(code, fields)


@dataclass(frozen=True, repr=False)
class Check:
    """One prediction, compared with what happened.

    Attributes:
        about: what was checked, such as `"x: indices"`.
        ok: True, False, or None where it could not be checked.
        finding: the evidence or the reason, or a sentence of another package or an
            error.
        shards: how many shards were compared; 0 where no shards were.
        process: which one of several processes compared them; None for one.

    >>> Check("x: indices", True, "Every shard is where the layout puts it.", shards=8)
    Check(name='x: indices of 8 shards', ok=True, detail='Every shard is where the layout puts it.')
    """

    about: str
    ok: bool | None
    finding: Finding | str
    shards: int = 0
    process: int | None = None

    @property
    def name(self) -> str:
        """What was checked: `"x: indices of 8 shards in process 1"`."""
        name = self.about
        if self.shards:
            name += f" of {plural(self.shards, 'shard')}"
        if self.process is not None:
            name += f" in process {self.process}"
        return name

    @property
    def detail(self) -> str:
        """One sentence with the evidence or the reason."""
        return str(self.finding)

    def __repr__(self) -> str:
        return f"Check(name={self.name!r}, ok={self.ok}, detail={self.detail!r})"
