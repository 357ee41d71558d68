"""EffectsReader: what a program's effects allow, found out in the background and shown as data.

Reading effects traces the program, which is jax's work; so no edit waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.program.program import Program


class EffectsReader:
    """Reads the effects of one program after another, on a thread; the newest counts.

    Attributes:
        view: what the page shows: `state` is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        self.view: dict[str, Any] = {"state": "none", "revision": -1}
        self._changed = changed

    def read(self, program: Program, revision: int) -> None:
        """Begins to read, unless this very revision was read or is being read."""
        if self.view["revision"] == revision:
            return
        self.view = {"state": "reading", "revision": revision}
        threading.Thread(
            target=self._go, args=(program, revision), name="shardviz-effects", daemon=True
        ).start()

    def observe(self, program: Program, revision: int, target: str) -> None:
        """Runs the program and writes down the order of its effects, unless it is being read."""
        if self.view["state"] == "done" and self.view["revision"] == revision:
            self.view = {**self.view, "watching": True}
            self._changed()
            threading.Thread(
                target=self._watch, args=(program, revision, target), name="shardviz-observe",
                daemon=True,
            ).start()  # fmt: skip

    def _watch(self, program: Program, revision: int, target: str) -> None:
        from shardviz.core.program.effects.order import observed_order

        try:
            seen = observed_order(program, target=target or None)
            failed = str(seen.report.error or "")
            found: dict[str, Any] = {"observed": seen.rows(), "failed": failed}
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            found = {"observed": [], "failed": f"{type(error).__name__}: {error}"}
        if self.view["revision"] == revision:
            self.view = {**self.view, "watching": False, **found}
            self._changed()

    def _go(self, program: Program, revision: int) -> None:
        try:
            found = effects_view(program)
        except ShardvizError as error:
            found = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001  a user's function may raise anything when traced
            found = {"problem": f"{type(error).__name__}: {error}"}
        if self.view["revision"] == revision:
            self.view = {"state": "done", "revision": revision, **found}
            self._changed()


def effects_view(program: Program) -> dict[str, Any]:
    """The Effects tab of one program, as plain data."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.program.effects.prediction import predict

    found = predict(program)
    runs, sentence = found.runs_on(program.mesh.size)
    return {
        "runs": runs,
        "sentence": sentence,
        "devices": found.devices,
        "rows": found.rows(),
        "tokens": [str(token) for token in found.tokens or ()],
        "note": found.note,
    }
