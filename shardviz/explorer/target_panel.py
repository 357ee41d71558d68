"""The panels of the menus and of the selected target."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.explorer.protocol import Event, Panel
from shardviz.explorer.session_view import menus_view
from shardviz.explorer.targets import local_options, target_view


class MenusPanel(Panel):
    """The options of all menus; only the list of running process groups changes."""

    name = "menus"
    traits = {"menus": {}}
    after = frozenset({Event.EDIT, Event.BEAT})

    def refresh(self) -> None:
        menus = self.current()["menus"]
        if not menus:
            self.page.show(menus=menus_view(self.page.session.now))
        elif menus["here"] != (local := local_options()):
            self.page.show(menus={**menus, "here": local})

    def saved(self) -> Mapping[str, object]:
        return self.current()


class TargetPanel(Panel):
    """The target that programs are compiled for and run on."""

    name = "target"
    traits = {"target": {}}
    after = frozenset({Event.EDIT})

    def refresh(self) -> None:
        document = self.page.session.now
        error = document.errors.get("target", "")
        self.page.show(target=target_view(document.target, error))

    def saved(self) -> Mapping[str, object]:
        return self.current()
