"""Unpartitioned: why it is not known what XLA's partitioner made of a program."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Fact


@dataclass(frozen=True)
class Unpartitioned(Fact):
    """Why a compile left no module of the partitioner.

    Attributes:
        code: `"one device"` (there is nothing to partition), `"no folder"` (the dump
            cannot be written), `"own dump"` (`XLA_FLAGS` ask for another), `"refused"`
            (XLA cannot dump this program) or `"nothing"` (XLA wrote no such module).
        folder: where the dump was to go.
        detail: what the system or XLA said.

    >>> Unpartitioned("nothing", "/tmp/mine").code
    'nothing'
    """

    code: str
    folder: str = ""
    detail: str = ""
