"""Unpartitioned: why it is not known what XLA's partitioner made of a program."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Fact


@dataclass(frozen=True)
class Unpartitioned(Fact):
    """Why a compile left no module of the partitioner.

    Attributes:
        code: `"one device"` (there is nothing to partition), `"no folder"` (what is
            named for the dump is none), `"unwritable"`, `"nearly full"`, `"refused"`
            (XLA cannot dump this program), `"incomplete"`, `"other passes"` (the user
            asked for a dump of these only), `"cached"` (by jax, on disk) or
            `"nothing"`.
        folder: where the dump was to go.
        detail: what the system or XLA said, or the passes that were asked for.
        free, needed: bytes that the folder has left, and that a dump may need.

    >>> Unpartitioned("other passes", detail="fusion").code
    'other passes'
    """

    code: str
    folder: str = ""
    detail: str = ""
    free: int = 0
    needed: int = 0
