"""Reads a program's side effects in the background, for the Explorer."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.base.typing import JsonDict
from shardviz.explorer.background import LatestView, failure
from shardviz.programs.program import Program
from shardviz.programs.words.effects import effect_rows


class EffectsReader(LatestView[tuple[Program, int]]):
    """Reads the effects of the latest program in a thread, because it must be traced.

    The `state` of the view is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        super().__init__("shardviz-effects", _read, _failed, changed)
        self.view = {"state": "none", "revision": -1}

    def read(self, program: Program, revision: int) -> None:
        """Starts reading, unless this revision was already read or is being read."""
        # The page calls this each time the Checks tab is opened.
        if self.view["revision"] != revision:
            self.view = {"state": "reading", "revision": revision}
            self.request((program, revision))


def _read(item: tuple[Program, int]) -> JsonDict:
    return {"state": "done", "revision": item[1], **effects_view(item[0])}


def _failed(item: tuple[Program, int], error: BaseException) -> JsonDict:
    problem = failure(error, "").message
    return {"state": "done", "revision": item[1], "problem": problem}


def effects_view(program: Program) -> JsonDict:
    """Returns the effects of a program as plain data."""
    # Imported here, because the Explorer must also work without jax.
    from shardviz.programs.backend.effects import predict

    effects = predict(program)
    runs, sentence = effects.runs_on(program.mesh.size)
    return {
        "runs": runs,
        "sentence": sentence,
        "rows": effect_rows(effects),
    }
