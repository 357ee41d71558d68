"""Panel: a section of the page, with its synced traits and the intents it handles.

The Explorer uses its panels only through `Panel`. Panels use the Explorer only through
`Page`.
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

# Maximum length of a key that a page sends, in characters.
LONGEST_TEXT = 400
ViewName: TypeAlias = Literal["Layout", "Rules", "Model", "Program"]


class Event(Enum):
    """An event after which panels are refreshed."""

    EDIT = auto()  # The session has a new document.
    MESSAGE = auto()  # A message from the page was handled, without an edit.
    WORK = auto()  # A plan, compile or run made progress.
    PLACEMENT = auto()  # A compile chose a new device order.
    BEAT = auto()  # A second has passed.


@dataclass(frozen=True)
class Intent:
    """A request from the page; `Intent` in `static/messages.d.ts` is its JSON.

    Attributes:
        kind: the name of the intent, which selects its handler.
        value: the text or choice; None for a button.
        field, array, burst: arguments of `Session.edit`; only used by edits.
    """

    kind: str
    value: Any = None
    field: str = ""
    array: int | None = None
    burst: str = ""

    @staticmethod
    def parse(message: Mapping[str, Any]) -> Intent:
        """Creates an intent from its JSON."""
        return Intent(
            message["kind"],
            message.get("value"),
            message.get("field", ""),
            message.get("array"),
            message.get("burst", ""),
        )

    @property
    def text(self) -> str:
        """The value as text, cut to `LONGEST_TEXT` characters."""
        return str(self.value or "")[:LONGEST_TEXT]


#: Handles one intent.
Handler: TypeAlias = Callable[[Intent], object]


class Page(Protocol):
    """The interface through which panels use the Explorer.

    Attributes:
        session: the session that the page edits.
        planner: plans, compiles and runs programs in the background.
        stages: the planner's results as the page shows them.
        cache: cache of compiled executables.
        report, report_revision, report_target: the last report, the revision of its
            program, and its target.
        lock: held while traits are sent; an edit waits for the lock.
    """

    session: Session
    planner: Planner
    stages: StageViews
    cache: ExecutableCache
    report: Report | None
    report_revision: int
    report_target: str
    lock: threading.RLock

    def show(self, **traits: object) -> None:
        """Sets traits; only values that changed are sent to the page."""
        ...

    def declare(self, **traits: Any) -> None:
        """Adds synced traits with their initial values."""
        ...

    def refresh(self, panel: Panel) -> None:
        """Refreshes a panel if a page shows it; called from the panel's threads."""
        ...

    def reporting(self, task: str) -> AbstractContextManager[None]:
        """Catches errors in the block; the page shows them until the block succeeds."""
        ...

    def shows(self, view: ViewName) -> bool:
        """Whether a page shows this view."""
        ...

    def show_report(self, report: Report) -> None:
        """Shows a report of the current program instead of compiling it again."""
        ...

    def compile(self) -> None:
        """Compiles the program in the background."""
        ...

    def run(self, measure: bool = False) -> None:
        """Compiles and runs the program in the background."""
        ...

    def cancel(self) -> None:
        """Cancels the running job, if there is one."""
        ...

    def placement(self) -> DevicePlacement | None:
        """Returns the mesh placed on the target; None without device coordinates."""
        ...


class Panel:
    """A section of the page.

    Attributes:
        name: the panel's name in error messages.
        traits: trait name -> initial value.
        after: the events after which the panel is refreshed.
        views: the views that show the panel; empty for all views. The panel is
            refreshed only while a page shows one of these views.
        slow: whether a refresh takes long. The panel then takes the page's lock itself,
            so that edits don't wait for the refresh.
    """

    name: ClassVar[str]
    traits: ClassVar[Mapping[str, object]] = MappingProxyType({})
    after: ClassVar[frozenset[Event]] = frozenset()
    views: ClassVar[frozenset[ViewName]] = frozenset()
    slow: ClassVar[bool] = False

    def __init__(self, page: Page):
        self.page = page

    def intents(self) -> Mapping[str, Handler]:
        """Returns intent kind -> handler."""
        return {}

    def refresh(self) -> None:
        """Computes the traits from the current state, and sends them."""

    def saved(self) -> Mapping[str, object]:
        """Returns the traits for a saved page, which has no kernel."""
        return {}

    def current(self) -> JsonDict:
        """Returns the traits as last sent to the page."""
        return {name: getattr(self.page, name) for name in self.traits}

    def works(self) -> Sequence[LatestWins[Any]]:
        """Returns the panel's background workers, which the Explorer closes."""
        return ()
