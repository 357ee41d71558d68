"""History: what each Compile and Run of an Explorer found in the caches, and why it had to work."""

from __future__ import annotations

from typing import Any

from shardviz.core.program.given.difference import nearest_difference
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report

MAX_ROWS = 50


class History:
    """The last fifty jobs, the newest first, as plain rows.

    >>> History().rows
    []
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._compiled: list[Program] = []

    def add(self, kind: str, program: Program, report: Report, jax_events: str) -> None:
        """Notes one job that has ended.

        Args:
            kind: `"compile"` or `"run"`.
            program: what was compiled or run.
            report: what came of it.
            jax_events: what jax's own caches did not spare, in words.
        """
        if report.compile_s is None:
            found, why = "not compiled", str(report.error or "")
        elif report.cache_hit:
            found, why = "hit", "The same program was compiled before."
        else:
            found, why = "miss", nearest_difference(self._compiled, program)
            if report.effects:
                why = "It has effects, and what has effects is compiled anew each time."
        if report.compile_s is not None:
            self._compiled = [*self._compiled[-MAX_ROWS:], program]
        row = {"what": f"{kind} {program.name}", "found": found, "why": why, "jax": jax_events}
        self.rows = [row, *self.rows[: MAX_ROWS - 1]]
