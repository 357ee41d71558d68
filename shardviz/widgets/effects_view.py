"""The tab Effects: what a program does besides computing, read in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.core.program.program import Program
from shardviz.core.wording.effects import effect_rows
from shardviz.widgets.background import LatestWins, Stop, failure


class EffectsReader:
    """Reads the effects of the latest program. That traces it, so no edit waits for it.

    Attributes:
        view: for the page; its `state` is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        self.view: dict[str, Any] = {"state": "none", "revision": -1}
        self._changed = changed
        self._worker = LatestWins[tuple[Program, int]](
            "shardviz-effects", self._work, self._failed
        )

    def read(self, program: Program, revision: int) -> None:
        """Begins to read, unless this very revision was read or is being read."""
        # The page asks each time that its tab is opened.
        if self.view["revision"] != revision:
            self.view = {"state": "reading", "revision": revision}
            self._worker.request((program, revision))

    def _work(self, item: tuple[Program, int], stop: Stop) -> None:
        program, revision = item
        self._show(revision, effects_view(program))

    def _failed(self, item: tuple[Program, int], error: BaseException) -> None:
        self._show(item[1], {"problem": failure(error, "").message})

    def _show(self, revision: int, found: dict[str, Any]) -> None:
        # Another program may have been asked about meanwhile.
        if self.view["revision"] == revision:
            self.view = {"state": "done", "revision": revision, **found}
            self._changed()


def effects_view(program: Program) -> dict[str, Any]:
    """The effects of one program, as plain data."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.tracing.effects import predict

    found = predict(program)
    runs, sentence = found.runs_on(program.mesh.size)
    return {
        "runs": runs,
        "sentence": sentence,
        "rows": effect_rows(found),
    }
