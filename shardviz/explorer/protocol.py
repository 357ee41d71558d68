"""Panel: one part of the page, with the traits that it shows and the intents it handles.

The Explorer loops over its panels and knows nothing else about them. A panel knows the
Explorer only as a `Page`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from shardviz.base.typing import JsonDict
from shardviz.compiled.panel.stages_view import StageViews
from shardviz.compiled.report import Report
from shardviz.explorer.background import LatestWins
from shardviz.explorer.planner import Planner
from shardviz.explorer.session import Session
from shardviz.explorer.targets import DevicePlacement
from shardviz.runs.cache import ExecutableCache

LONGEST_TEXT = 400  # characters of a key that a page sends
ViewName: TypeAlias = Literal["Layout", "Rules", "Model", "Program"]


class Event(Enum):
    """An event after which panels are refreshed."""

    EDIT = auto()  # the session has another document
    MESSAGE = auto()  # a message of the page was handled, and edited nothing
    WORK = auto()  # a plan, compile or run got further
    PLACEMENT = auto()  # a compile chose another order of the devices
    BEAT = auto()  # a second has passed


@dataclass(frozen=True)
class Intent:
    """One thing that the page asks for, as `Intent` in `static/messages.d.ts`.

    Attributes:
        kind: its name; one panel handles it.
        value: the text or choice; None for a button.
        field, array, burst: of an edit, as `Session.edit` takes them.
    """

    kind: str
    value: Any = None
    field: str = ""
    array: int | None = None
    burst: str = ""

    @staticmethod
    def parse(message: Mapping[str, Any]) -> Intent:
        """The intent of a message's JSON."""
        return Intent(
            message["kind"],
            message.get("value"),
            message.get("field", ""),
            message.get("array"),
            message.get("burst", ""),
        )

    @property
    def text(self) -> str:
        """The value as a key of limited length."""
        return str(self.value or "")[:LONGEST_TEXT]


#: Handles one intent.
Handler: TypeAlias = Callable[[Intent], object]


class Page(Protocol):
    """What a panel may use of the Explorer that shows it.

    Attributes:
        session: the state.
        planner: plans, compiles and runs.
        stages: the planner's results as the page shows them.
        cache: of executables.
        report, report_revision: the last report, and the revision of its program.
        lock: held while traits are sent; an edit waits for it.
    """

    session: Session
    planner: Planner
    stages: StageViews
    cache: ExecutableCache
    report: Report | None
    report_revision: int
    lock: threading.RLock

    def show(self, **traits: object) -> None:
        """Sends new values of traits; equal ones are not sent."""
        ...

    def declare(self, **traits: Any) -> None:
        """Adds synced traits with their first values."""
        ...

    def refresh(self, panel: Panel) -> None:
        """Refreshes a panel if a page shows it; called from the panel's own threads."""
        ...

    def reporting(self, task: str) -> AbstractContextManager[None]:
        """Shows a failure inside the block on the page until it works again.

        Nothing is raised.
        """
        ...

    def shows(self, view: ViewName) -> bool:
        """Whether a page shows this view."""
        ...

    def compile(self) -> None:
        """Compiles the program in the background."""
        ...

    def run(self) -> None:
        """Compiles and runs the program in the background."""
        ...

    def cancel(self) -> None:
        """Cancels the running job, if there is one."""
        ...

    def placement(self) -> DevicePlacement | None:
        """The mesh on the described target; None if its devices have no coordinates."""
        ...


class Panel:
    """One part of the page.

    Attributes:
        name: what failure sentences call it.
        traits: the traits that it shows, with their first values.
        after: the events after which it is refreshed.
        views: the views that show it; it is refreshed only while a page shows one of
            them. Empty for all.
        slow: whether its data takes long to make. Then it takes the page's lock itself,
            so that no edit waits for it.
    """

    name: ClassVar[str]
    traits: ClassVar[Mapping[str, object]] = MappingProxyType({})
    after: ClassVar[frozenset[Event]] = frozenset()
    views: ClassVar[frozenset[ViewName]] = frozenset()
    slow: ClassVar[bool] = False

    def __init__(self, page: Page):
        self.page = page

    def intents(self) -> Mapping[str, Handler]:
        """The handler of each intent, by its kind."""
        return {}

    def refresh(self) -> None:
        """Makes the traits from the current state, and sends them."""

    def saved(self) -> Mapping[str, object]:
        """The traits for a saved page, which has no kernel."""
        return {}

    def current(self) -> JsonDict:
        """The traits as they were sent last."""
        return {name: getattr(self.page, name) for name in self.traits}

    def works(self) -> Sequence[LatestWins[Any]]:
        """Its work in the background, which ends with the Explorer."""
        return ()
