"""Explorer, the widget: edits the session as the page asks, and sends the page its views.

The page sends messages with intents; each is answered with the synced traits that it
changed. Each panel owns some of the traits and intents; `static/messages.d.ts` declares
the rest of both sides.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anywidget
import traitlets

from shardviz.advise.panel.changes_panel import ChangesPanel
from shardviz.advise.panel.findings_panel import FindingsPanel
from shardviz.axis_rules.array_tree import Children
from shardviz.axis_rules.panel.model_panel import ModelPanel
from shardviz.axis_rules.panel.rules_panel import RulesPanel
from shardviz.axis_rules.rules import Rules
from shardviz.base.errors import ShardvizError
from shardviz.base.files import write_text
from shardviz.base.format import error_text, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict, PyTree
from shardviz.compiled.panel.report_panel import ReportPanel
from shardviz.compiled.panel.stages_panel import StagesPanel
from shardviz.compiled.panel.stages_view import StageViews
from shardviz.compiled.panel.timeline_panel import TimelinePanel
from shardviz.compiled.report import Report
from shardviz.explorer import html_page, jax_code
from shardviz.explorer.background import close_together, start_beats
from shardviz.explorer.code_panel import CodePanel
from shardviz.explorer.ipykernel_compat import keep_subshell
from shardviz.explorer.links_panel import LinksPanel
from shardviz.explorer.planner import Job, Planner
from shardviz.explorer.protocol import Event, Handler, Intent, Panel, ViewName
from shardviz.explorer.session import Session
from shardviz.explorer.session_panel import SessionPanel
from shardviz.explorer.session_view import filled
from shardviz.explorer.state import session_on, session_state
from shardviz.explorer.target_panel import MenusPanel, TargetPanel
from shardviz.explorer.targets import (
    DeviceAssignments,
    DevicePlacement,
    why_not_run,
)
from shardviz.explorer.words import explorer as wording
from shardviz.move.panel.movements_panel import MovementsPanel
from shardviz.plans.panel.values_panel import ValuesPanel
from shardviz.plans.plan import Plan
from shardviz.runs.cache import ExecutableCache

#: The parts of the page, in the order of their refreshes: the stages come first, because
#: other panels read their results.
PANELS: tuple[type[Panel], ...] = (
    StagesPanel,
    ValuesPanel,
    SessionPanel,
    MenusPanel,
    TargetPanel,
    RulesPanel,
    ModelPanel,
    TimelinePanel,
    LinksPanel,
    MovementsPanel,
    ChangesPanel,
    ReportPanel,
    FindingsPanel,
    CodePanel,
)
BEAT_WAIT_S = 0.5
MOST_PAGES = 8  # whose open view is remembered
_VIEW = "application/vnd.jupyter.widget-view+json"
P = TypeVar("P", bound=Panel)


class Explorer(anywidget.AnyWidget):
    """The main screen: mesh, arrays, rules, devices and program, linked and live.

    Made by `shardviz.explore`. The synced traits are the data that the page draws; all
    are made from the session, each by one of the panels.

    Attributes:
        session: the state; edits go through `session.edit`.
        report: the last Report, or None.

    >>> explorer = open_explorer(None, ExecutableCache())
    >>> explorer.session.edit("mesh", "data=2, model=2")
    >>> explorer.session.mesh.size, explorer.mesh["text"]
    (4, 'data=2, model=2')
    """

    _esm = html_page.bundled_module("explorer")
    _css = html_page.bundled_styles()
    answer = traitlets.Dict().tag(sync=True)
    offline = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        session: Session,
        cache: ExecutableCache,
        svg: Callable[[object], str] = str,
        **kwargs: Any,
    ):
        self.session, self.cache = session, cache
        self.report: Report | None = None
        self.report_revision = 0
        # One thread at a time sends to the page.
        self.lock = threading.RLock()
        self._svg = svg
        # The message that was handled last.
        self._handled: JsonDict = {"seq": 0, "client": ""}
        # Sentences for the page about failures: of panels by their name, and of intents.
        self._failed: dict[str, str] = {}
        self._refused: list[str] = []
        # The edits of one message are sent together, at its end.
        self._receiving = self._edited = False
        self._follows = False
        self._beats: threading.Event | None = None
        # The state that the page can open again: its revision, and the message.
        self._line_of: tuple[int, JsonDict] | None = None
        # By page, the view that it shows.
        self._shown: dict[str, str] = {"": session.now.view or "Layout"}
        self._assignments = DeviceAssignments()
        self.planner = Planner(self._work_changed, cache)
        self.stages = StageViews(self.planner)
        self._panels = [kind(self) for kind in PANELS]
        self._intents = self._all_intents()
        # Before the widget opens, so that all traits are in its first message.
        for panel in self._panels:
            self.declare(**panel.traits)
        super().__init__(**kwargs)
        session.listen(self._session_changed)
        self.on_msg(self._receive)
        self._refresh()
        self._refresh_after(Event.WORK)

    # --- for people ---------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The last plan of the program; None before the first."""
        return self.planner.state.plan

    def show_report(self, report: Report) -> None:
        """Shows a report of the current program, which is not compiled again."""
        now = self.session.now
        self.report, self.report_revision = report, now.revision
        self.planner.adopt(report, now.program, now.revision, now.target)

    def follow(self) -> None:
        """Plans the program now and after every edit, in the background.

        Done automatically once a page shows the Explorer.
        """
        self._follows = True
        self._request_plan()

    def state(self) -> JsonDict:
        """The state as a JSON document; `shardviz.explore(state)` opens it again."""
        return session_state(self.session)

    def code(self) -> str:
        """The current state as plain JAX code that runs when pasted into a new cell."""
        return jax_code.code(self.session.now)

    def save_html(self, path: str | Path) -> Path:
        """Writes one file that shows the same without a kernel or a network.

        Args:
            path: of the file; `.html` is added if it has no suffix.

        Raises:
            ProgramError: if the file cannot be written; the old one is still there.
        """
        target = Path(path)
        if target.name and not target.suffix:
            target = target.with_suffix(".html")
        write_text(target, self.page(), "the page")
        return target

    def page(self) -> str:
        """The text of the file that `save_html` writes."""
        # Imported here: only saved pages and notebooks need texts.
        from shardviz.pictures import to_text

        now = self.session.now
        self.stages.plan_now(now.program, now.revision)
        traits: dict[str, object] = {"answer": self.answer}
        for panel in self._panels:
            traits.update(panel.saved())
        return html_page.saved_page(traits, to_text(now.program))

    def compile(self) -> None:
        """Compiles the program in the background, as the button does."""
        self._start("compile")

    def run(self) -> None:
        """Compiles and runs the program in the background, as the button does.

        Raises:
            ShardvizError: on a described target, which can only be compiled for.
        """
        self._start("run")

    def _start(self, kind: str) -> None:
        now = self.session.now
        reason = why_not_run(now.target)
        if kind == "run" and reason:
            raise ShardvizError(reason)
        self.planner.start(Job(kind, now.program, now.revision, now.target))

    def cancel(self) -> None:
        """Cancels the running job, if there is one."""
        self.planner.cancel()

    def close(self) -> None:
        """Ends all work in the background, and the widget."""
        self.cancel()
        if self._beats is not None:
            self._beats.set()
        works = [work for panel in self._panels for work in panel.works()]
        close_together([*self.planner.works, *works])
        super().close()

    def wait(self, timeout: float | None = None) -> Report | None:
        """Blocks until no work is left in the background; for scripts and tests.

        Returns:
            The last report.
        """
        self.planner.wait(timeout)
        for panel in self._panels:
            for work in panel.works():
                work.wait(timeout)
        return self.report

    # --- for panels, as `protocol.Page` declares them -----------------------------

    def show(self, **traits: object) -> None:
        """Sends new values of traits; equal ones are not sent."""
        with self.lock, self.hold_sync():
            for name, value in traits.items():
                setattr(self, name, value)

    def declare(self, **traits: Any) -> None:
        """Adds synced traits with their first values."""
        synced: dict[str, traitlets.TraitType] = {}
        for name, first in traits.items():
            if isinstance(first, str):
                synced[name] = traitlets.Unicode(first).tag(sync=True)
            else:
                synced[name] = traitlets.Dict(first).tag(sync=True)
        self.add_traits(**synced)

    def refresh(self, panel: Panel) -> None:
        """Refreshes a panel if a page shows it."""
        with self.lock:
            self._refresh_panel(panel)

    @contextlib.contextmanager
    def reporting(self, task: str) -> Iterator[None]:
        """Shows a failure inside the block on the page until it works again.

        Nothing is raised.
        """
        before = self._failed.get(task)
        try:
            yield
        except Exception as error:  # noqa: BLE001  the page shows any failure
            self._failed[task] = wording.FAILED.format(task, _why(error))
        else:
            self._failed.pop(task, None)
        if self._failed.get(task) != before:
            self._answer()

    def shows(self, view: ViewName) -> bool:
        """Whether a page shows this view."""
        return view in self._shown.values()

    def placement(self) -> DevicePlacement | None:
        """The mesh on the described target; None if its devices have no coordinates."""
        now = self.session.now
        return self._assignments.placement(now.mesh, now.target)

    def panel(self, kind: type[P]) -> P:
        """The panel of a class."""
        return next(panel for panel in self._panels if isinstance(panel, kind))

    # --- messages of the page -----------------------------------------------------

    def _all_intents(self) -> Mapping[str, Handler]:
        """The handler of every intent: those of the Explorer itself, and of each panel."""
        intents: dict[str, Handler] = {
            "edit": self._edit,
            "undo": lambda _: self.session.undo(),
            "redo": lambda _: self.session.redo(),
            "plan": self._page_opened,
            "show": self._show_view,
            "picture": self._send_picture,
            # A saved page may wait for its plan, so it is made after all others.
            "save": lambda _: None,
        }
        for panel in self._panels:
            intents.update(panel.intents())
        return intents

    def _receive(self, _: object, message: JsonDict, __: object) -> None:
        """Handles one message of the page: its number, and intents in order."""
        intents = [Intent.parse(intent) for intent in message["intents"]]
        self._handled = {"seq": message["seq"], "client": message["client"]}
        self._follows = True
        with self.lock, self.hold_sync():
            self._receiving, self._edited = True, False
            # Refusals of the last message have been shown.
            self._refused = []
            for intent in intents:
                try:
                    self._handle(intent)
                except Exception as error:  # noqa: BLE001  as in `reporting`
                    sentence = wording.FAILED.format(intent.kind, _why(error))
                    self._refused.append(sentence)
            self._receiving = False
            self._send_changes()
        # Without the lock: the thread that plans needs it.
        if any(intent.kind == "save" for intent in intents):
            with self.reporting("save"):
                self._send_file("shardviz.html", "text/html", self.page())

    def _handle(self, intent: Intent) -> None:
        """Does one thing that the page asks for.

        Raises:
            ShardvizError: for an intent that no panel handles.
        """
        handler = self._intents.get(intent.kind)
        if handler is None:
            raise ShardvizError(wording.UNKNOWN_INTENT.format(shown(intent.kind)))
        handler(intent)

    def _edit(self, intent: Intent) -> None:
        self.session.edit(intent.field, intent.value, intent.array, intent.burst)

    def _page_opened(self, intent: Intent) -> None:
        """Sends beats from now on, the first with the line that restores the state."""
        self._line_of = None
        if self._beats is None:
            self._beats = start_beats(self._beat)

    def _show_view(self, intent: Intent) -> None:
        """Remembers which view the page shows; the data of others is not made."""
        self._shown.pop("", None)
        self._shown[self._handled["client"]] = intent.text
        while len(self._shown) > MOST_PAGES:
            del self._shown[next(iter(self._shown))]

    def _send_picture(self, intent: Intent) -> None:
        now = self.session.now
        request = now.program.requests[now.selected]
        drawing = self._svg(request.layout or now.program)
        name = f"{request.array.name or 'shardviz'}.svg"
        self._send_file(name.replace("/", "."), "image/svg+xml", drawing)

    def _send_file(self, name: str, media: str, text: str) -> None:
        """Makes the page offer a file for download."""
        self.send({"kind": "file", "name": name, "media": media, "text": text})

    def _session_changed(self) -> None:
        if self._receiving:
            self._edited = True
        else:
            self._refresh()

    def _send_changes(self) -> None:
        """Sends what a message changed, and the number of the message with it."""
        if self._edited:
            self._refresh()
            return
        self._answer()
        self._refresh_after(Event.MESSAGE)
        if self._follows:
            self._request_plan()

    def _answer(self) -> None:
        """Sends which message is handled, and which revision of the program is shown."""
        with self.lock:
            session = self.session
            answer = {**self._handled, "revision": session.now.revision}
            answer.update(filled(undo=session.undoable, redo=session.redoable))
            if self._failed or self._refused:
                answer["failed"] = [*self._refused, *self._failed.values()]
            self.answer = answer

    @traitlets.observe("comm")
    def _comm_opened(self, change: traitlets.Bunch) -> None:
        keep_subshell(change.new)

    def _beat(self) -> None:
        """Sends the page a sign of life, with the number of the last handled message.

        The line of code that opens the state again is added when it changed.
        """
        news: JsonDict = {}
        # If another thread keeps the lock, its answer has not been sent yet. The beat then
        # carries no message number, and only shows that the kernel is alive.
        if self.lock.acquire(timeout=BEAT_WAIT_S):
            try:
                self._refresh_after(Event.BEAT)
                news = {name: self.answer[name] for name in ("seq", "client")}
                line_of = (self.session.now.revision, self._handled)
                if line_of != self._line_of:
                    self._line_of = line_of
                    news["line"] = jax_code.line_to_restore(self.session)
            finally:
                self.lock.release()
        self.send({"kind": "alive", **news})

    # --- refreshing the panels ----------------------------------------------------

    def _refresh(self) -> None:
        """Makes every view that an edit may change; equal ones are not sent."""
        with self.lock, self.hold_sync():
            self._refresh_after(Event.EDIT)
            self._answer()
        if self._follows:
            self._request_plan()

    def _refresh_after(self, event: Event) -> None:
        """Refreshes the panels that an event may change."""
        for panel in self._panels:
            if event not in panel.after:
                continue
            if panel.slow:
                self._refresh_panel(panel)
            else:
                self.refresh(panel)

    def _refresh_panel(self, panel: Panel) -> None:
        """Refreshes a panel if a page shows it, and reports if that fails."""
        if not panel.views or not panel.views.isdisjoint(self._shown.values()):
            with self.reporting(panel.name):
                panel.refresh()

    def _request_plan(self) -> None:
        now = self.session.now
        with self.reporting("plan"):
            self.planner.request(now.program, now.revision, now.target)

    def _work_changed(self) -> None:
        """Shows the progress and results of plans, compiles and runs."""
        self._refresh_after(Event.WORK)
        results = self.planner.state
        if results.report is None or results.program is None:
            return
        mesh = results.program.mesh
        if self._assignments.learn(results.report, mesh, results.target):
            self._refresh_after(Event.PLACEMENT)

    # --- in a notebook ------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> PyTree:
        """The live view, with a text and a PNG that a notebook keeps without a kernel."""
        bundle, *metadata = _as_tuple(super()._repr_mimebundle_(**kwargs))
        if isinstance(bundle, dict):
            # A few programs cannot be drawn.
            with contextlib.suppress(ShardvizError):
                bundle = {**bundle, **self.session.program._repr_mimebundle_()}
        if metadata:
            return bundle, *metadata
        return bundle

    def _ipython_display_(self) -> None:
        """Shows the picture to keep and the live view, as two outputs, in Jupyter.

        JupyterLab and Notebook choose one form of an output, and always choose the live
        view: without a kernel they show an error instead of the other forms. As a
        separate output the picture stays; the style sheet hides it while the live view
        is shown.

        Raises:
            NotImplementedError: outside Jupyter, so that IPython shows all forms as one
                output.
        """
        # Jupyter servers set this variable; Colab has such a server, but another page.
        if "JPY_SESSION_NAME" not in os.environ or "google.colab" in sys.modules:
            raise NotImplementedError
        from IPython.display import display

        forms = dict(_as_tuple(self._repr_mimebundle_())[0])
        live = {_VIEW: forms.pop(_VIEW), "text/plain": ""}
        display(forms, metadata={"needs_background": "light"}, raw=True)
        display(live, raw=True)


def _why(error: Exception) -> str:
    """An error in words; errors of shardviz are sentences already."""
    if isinstance(error, ShardvizError):
        return str(error)
    return error_text(error)


def _as_tuple(value: PyTree) -> tuple[PyTree, ...]:
    return value if isinstance(value, tuple) else (value,)


def open_explorer(
    value: PyTree,
    cache: ExecutableCache,
    children: Children | None = None,
    mesh: MeshSpec | None = None,
    rules: Rules | None = None,
    svg: Callable[[object], str] = str,
) -> Explorer:
    """The Explorer that `shardviz.explore` returns.

    Args:
        value, children, mesh, rules: as in `session_on`.
        cache: of executables.
        svg: draws a value as SVG, for the saved picture.

    Raises:
        ShardvizError: for a value that the Explorer cannot show.
    """
    explorer = Explorer(session_on(value, children, mesh, rules), cache, svg)
    if isinstance(value, Report) and explorer.session.now.program is value.of:
        explorer.show_report(value)
    return explorer
