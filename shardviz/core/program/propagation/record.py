"""Record: what a plan holds, which its stories and its differences read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardviz.core.errors import ProgramError, plural, shown, suggestion
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.report import Collective, Failure


@dataclass(frozen=True, repr=False)
class Record:
    """The values of a program on a mesh, in the order in which the program makes them.

    Attributes:
        program: the name of the program.
        mesh: the mesh it was planned on.
        ops: arguments first, then operations in program order, then results.
        collectives: Shardy's own plan of collectives: an estimate, since XLA's partitioner may
            choose otherwise. Each names its PlannedOp in `value`.
        error: None, or why there is no plan.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> record = Record("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> record.op("x").shape
    (8,)
    """

    program: str
    mesh: MeshSpec
    ops: tuple[PlannedOp, ...] = ()
    collectives: tuple[Collective, ...] = ()
    error: Failure | None = field(default=None, kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether there is a plan."""
        return self.error is None

    @cached_property
    def by_name(self) -> Mapping[str, PlannedOp]:
        """Name to value."""
        return {op.name: op for op in self.ops}

    def op(self, value: Any) -> PlannedOp:
        """One value: by name, by number, by a collective that it causes, or itself.

        Raises:
            ProgramError: where the plan has no such value, or there is no plan.
        """
        if self.error is not None:
            raise ProgramError(
                f"There is no plan of {self.program}, so it has no values. {self.error}"
            )
        if isinstance(value, PlannedOp) and value in self.ops:
            return value
        if isinstance(value, Collective) and value.value in self.by_name:
            return self.by_name[value.value]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(self.ops):
            return self.ops[value]
        if isinstance(value, str) and value in self.by_name:
            return self.by_name[value]
        hint = suggestion(value, self.by_name) if isinstance(value, str) else ""
        raise ProgramError(
            f"The plan of {self.program} has {plural(len(self.ops), 'value')}, and none is"
            f" {shown(value)}.{hint} Name one of plan.ops."
        )
