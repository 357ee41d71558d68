"""The panel of a session's mesh, arrays, rules, program and devices."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.base.typing import JsonDict
from shardviz.explorer.pictures import PictureCache, palettes
from shardviz.explorer.protocol import Event, Page, Panel
from shardviz.explorer.session_view import array_trait, layout_trait, session_view

# Arrays that the user can add before more traits are declared.
SPARE_ARRAYS = 7


class SessionPanel(Panel):
    """Shows the document as fields and pictures.

    Each array has two traits, so that an edit sends only the trait that changed. For
    array 0, `array_0` has its fields, and `layout_0` its sharding and picture.
    """

    name = "arrays"
    traits = {
        "view": {},
        "mesh": {},
        "rules": {},
        "program": {},
        "devices": {},
        "palette": palettes(),
    }
    after = frozenset({Event.EDIT, Event.PLACEMENT})

    def __init__(self, page: Page):
        super().__init__(page)
        self._pictures = PictureCache()
        self._declared = 0  # number of arrays with traits

    def refresh(self) -> None:
        document = self.page.session.now
        pictures: list[JsonDict] = []
        placement = None
        # The fields are sent even if drawing the pictures fails.
        with self.page.reporting("devices"):
            placement = self.page.placement()
            devices, pictures = self._pictures.update(document, placement)
            self.page.show(devices=devices)
        views: dict[str, object] = {**session_view(document, pictures, placement)}
        count = len(document.fields)
        self._declare(count)
        # Clear the traits of removed arrays.
        for number in range(count, self._declared):
            views[array_trait(number)] = views[layout_trait(number)] = {}
        self.page.show(**views)

    def saved(self) -> Mapping[str, object]:
        traits = self.current()
        for number in range(len(self.page.session.now.fields)):
            for name in (array_trait(number), layout_trait(number)):
                traits[name] = getattr(self.page, name)
        return traits

    def _declare(self, count: int) -> None:
        """Declares more array traits, so that at least `count` arrays have them."""
        if count <= self._declared:
            return
        # traitlets creates a class in every call, in 5 ms or more: one call for all.
        first, self._declared = self._declared, count + SPARE_ARRAYS
        traits: dict[str, object] = {}
        for number in range(first, self._declared):
            traits[array_trait(number)] = traits[layout_trait(number)] = {}
        self.page.declare(**traits)
