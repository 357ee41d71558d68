"""The panel that shows the current state as JAX code, and its rules as Python and YAML."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.explorer import jax_code
from shardviz.explorer.protocol import Event, Handler, Intent, Page, Panel


class CodePanel(Panel):
    """Generates JAX code after every edit, once a page has requested it."""

    name = "code"
    traits = {"code_data": {}}
    after = frozenset({Event.EDIT})

    def __init__(self, page: Page):
        super().__init__(page)
        self._asked = False

    def intents(self) -> Mapping[str, Handler]:
        return {"code": self._ask}

    def refresh(self) -> None:
        if self._asked:
            self.page.show(**self.saved())

    def saved(self) -> Mapping[str, object]:
        now = self.page.session.now
        code = {"JAX": jax_code.code(now), **jax_code.rules_code(now.rules)}
        return {"code_data": code}

    def _ask(self, intent: Intent) -> None:
        self._asked = True
        self.refresh()
