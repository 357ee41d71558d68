"""The live table of a function under `sv.watch`, in a notebook."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakKeyDictionary, ref

from IPython.core.getipython import get_ipython
from IPython.display import display, update_display
from ipywidgets import Button, DOMWidget, HBox, Layout, VBox

from shardviz.plans.plan import Plan

if TYPE_CHECKING:
    from shardviz.runs.backend.watched_function import Watch, WatchedSignature

# Seconds from one update to the next.
EVERY = 0.4
# Buttons for the latest signatures; further ones would fill the page.
MOST_BUTTONS = 12
# Watch -> sets an event that ends the updates of its last table.
_LIVE: WeakKeyDictionary[Watch, threading.Event] = WeakKeyDictionary()


def show(watch: Watch, explore: Callable[[Plan], DOMWidget]) -> None:
    """Displays the table of a watched function, and updates it while calls go on.

    Each signature has a button that opens the Explorer. The table itself is HTML, so it
    stays in the saved notebook.

    Args:
        watch: the watched function.
        explore: opens the Explorer on a plan.

    Raises:
        NotImplementedError: outside a notebook; IPython then prints the table.
    """
    if not hasattr(get_ipython(), "kernel"):
        raise NotImplementedError
    buttons, box = HBox(layout=Layout(flex_flow="row wrap")), VBox()
    box.children = (buttons,)
    table_id = uuid4().hex
    display(watch._repr_mimebundle_(), raw=True, display_id=table_id)
    display(box)

    def add_buttons(watch: Watch) -> None:
        entries = watch.entries[-MOST_BUTTONS:]
        if len(buttons.children) == len(entries) and len(entries) < MOST_BUTTONS:
            return
        created = []
        for entry in entries:
            button = Button(
                description=f"Explore {entry.entry}", layout=Layout(width="auto")
            )
            button.on_click(lambda _, entry=entry: open_entry(entry))
            created.append(button)
        buttons.children = tuple(created)

    def open_entry(entry: WatchedSignature) -> None:
        for earlier in box.children[1:]:
            earlier.close()
        box.children = (buttons, explore(entry.plan))

    add_buttons(watch)
    if (previous := _LIVE.get(watch)) is not None:
        previous.set()
    ended = _LIVE[watch] = threading.Event()
    watching, shown = ref(watch), _counts(watch)

    def update() -> None:
        nonlocal shown
        while not ended.wait(EVERY):
            current = watching()
            if current is None:
                return
            if (counts := _counts(current)) != shown:
                shown = counts
                update_display(
                    current._repr_mimebundle_(), display_id=table_id, raw=True
                )
                add_buttons(current)
            del current  # so that the user can drop the function

    threading.Thread(target=update, name="shardviz-watch", daemon=True).start()


def _counts(watch: Watch) -> list[tuple[int, int]]:
    return [(entry.calls, entry.compiles) for entry in watch.entries]
