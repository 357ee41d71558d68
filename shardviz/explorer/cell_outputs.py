"""The Explorers in the outputs of notebook cells.

A rerun of a cell replaces its output. The Explorer in the old output would stay open in
the kernel, because ipywidgets keeps every widget until it is closed.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class CellOutputs(Generic[T]):
    """The widgets in the outputs of each cell's last execution.

    >>> outputs, first, second = CellOutputs(), frozenset("a"), frozenset("b")
    >>> outputs.show(first, "cell 1", "run 1")
    set()
    >>> outputs.show(second, "cell 1", "run 2")
    {frozenset({'a'})}
    """

    def __init__(self) -> None:
        # Cell -> its last execution, and the widgets that it shows.
        self._shown: dict[str, tuple[str, WeakSet[T]]] = {}

    def show(self, widget: T, cell: str, execution: str) -> set[T]:
        """Adds a widget to a cell; returns the widgets that no cell shows any more."""
        last, widgets = self._shown.get(cell, ("", WeakSet()))
        if execution == last:
            widgets.add(widget)
            return set()
        self._shown[cell] = execution, WeakSet([widget])
        replaced = set(widgets)
        for _, shown in self._shown.values():
            replaced.difference_update(shown)
        return replaced


def running_cell() -> tuple[str, str] | None:
    """Returns the ids of the running cell and of its execution.

    Returns None if the front end doesn't send the ids of cells.
    """
    from IPython.core.getipython import get_ipython

    # Only ipykernel's shell has it.
    get_parent = getattr(get_ipython(), "get_parent", None)
    message = get_parent() if get_parent is not None else {}
    cell = message.get("metadata", {}).get("cellId")
    return (cell, message["header"]["msg_id"]) if cell else None
