"""The Explorer widget: applies the page's intents, and syncs traits to the page.

The page sends messages that contain intents. The Explorer answers each message with the
traits that it changed. Each panel has its own traits and intents;
`static/messages.d.ts` declares the types of both.
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
from shardviz.axis_rules.audit import Audit
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
from shardviz.compiled.stages import Stages
from shardviz.draw.page import paragraphs
from shardviz.draw.picture import Picture
from shardviz.explorer import html_page, jax_code
from shardviz.explorer.background import close_together, start_beats
from shardviz.explorer.cell_outputs import CellOutputs, running_cell
from shardviz.explorer.code_panel import CodePanel
from shardviz.explorer.document import DEVICE_PUT
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
from shardviz.gallery import programs as gallery_programs
from shardviz.move.panel.movements_panel import MovementsPanel
from shardviz.plans.panel.values_panel import ValuesPanel
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program
from shardviz.runs.cache import ExecutableCache

#: The panels in refresh order. The stages come first, because other panels read their
#: results.
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
# Maximum number of pages whose open view is remembered.
MOST_PAGES = 8
P = TypeVar("P", bound=Panel)


class Explorer(anywidget.AnyWidget):
    """The main widget, which shows a mesh, arrays, rules, devices and a program.

    Created by `shardviz.explore`. The synced traits are the data that the page draws.
    Each panel computes its traits from the session.

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
    drawn = traitlets.List().tag(sync=True)
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
        self.report_revision, self.report_target = 0, ""
        # Held while traits are sent: only one thread at a time sends to the page.
        self.lock = threading.RLock()
        self._svg = svg
        # Number and client id of the last handled message.
        self._handled: JsonDict = {"seq": 0, "client": ""}
        # Error messages: by panel name, and for the intents of the last message.
        self._failed: dict[str, str] = {}
        self._refused: list[str] = []
        # Edits made by one message are sent together, when all its intents are handled.
        self._receiving = self._edited = False
        self._follows = self._left_page = False
        self._beats: threading.Event | None = None
        # Revision and handled message of the last restore line sent to the page.
        self._line_of: tuple[int, JsonDict] | None = None
        # Client id of a page -> the view that it shows.
        self._shown: dict[str, str] = {"": session.now.view or "Layout"}
        self._assignments = DeviceAssignments()
        self.planner = Planner(self._work_changed, cache)
        self.stages = StageViews(self.planner)
        self._panels = [kind(self) for kind in PANELS]
        self._intents = self._all_intents()
        first: JsonDict = {}
        for panel in self._panels:
            first.update(panel.traits)
        self.declare(**first)
        # Refreshed before the widget opens, so that its first message has all data. A
        # thread that a panel starts must wait until then.
        with self.lock:
            self._refresh()
            self._refresh_after(Event.WORK)
            super().__init__(drawn=["answer", *first], **kwargs)
        session.listen(self._session_changed)
        self.on_msg(self._receive)

    # --- for people ---------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The last plan of the program; None before the first plan."""
        return self.planner.state.plan

    def show_report(self, report: Report) -> None:
        """Shows a report of the current program instead of compiling it again."""
        now = self.session.now
        self.report, self.report_revision = report, now.revision
        self.report_target = now.target
        self.planner.adopt(report, now.program, now.revision, now.target)

    def follow(self) -> None:
        """Plans the program now and after every edit, in the background.

        Once a page shows the Explorer, planning starts automatically.
        """
        self._follows = True
        self._request_plan()

    def state(self) -> JsonDict:
        """Returns the state as JSON types; `shardviz.explore(state)` restores it."""
        return session_state(self.session)

    def code(self) -> str:
        """Returns JAX code for the current state, to paste into a new cell."""
        return jax_code.code(self.session.now)

    def _draw_(self, **options: Any) -> Picture:
        from shardviz.pictures import draw

        # The options are those of a program's picture.
        return draw(self.session.program if options else self._static, **options)

    @property
    def _static(self) -> Program | Audit:
        """The value that a static text or picture shows.

        It is the audit of a model if the program places only a few of its arrays.
        """
        now = self.session.now
        if now.model is None or now.entry != DEVICE_PUT:
            return now.program
        opened = {array.name for array in now.arrays}
        return now.program if now.model.names <= opened else self.session.audit

    def _text_(self) -> str:
        from shardviz.pictures import to_text

        now, results = self.session.now, self.planner.state
        texts = [to_text(self._static)]
        if now.entry == gallery_programs.DEFAULT:
            texts.append(paragraphs([wording.is_example(now.entry)], 80))
        if plan := results.plan_of(now.revision):
            report = results.report_of(now.revision, now.target)
            texts.append(to_text(Stages(now.program, plan, report)))
        return "\n\n".join(texts)

    __str__ = _text_

    def __repr__(self) -> str:
        return f"Explorer({self._static!r})"

    def save_html(self, path: str | Path) -> Path:
        """Writes the Explorer as one HTML file that needs neither kernel nor network.

        Args:
            path: path of the file; `.html` is added if it has no suffix.

        Raises:
            ProgramError: if the file cannot be written; an existing file is kept.
        """
        target = Path(path)
        if target.name and not target.suffix:
            target = target.with_suffix(".html")
        write_text(target, self.page(), "the page")
        return target

    def page(self) -> str:
        """Returns the HTML that `save_html` writes."""
        # Imported here, because only saved pages need it.
        from shardviz.pictures import to_text

        now = self.session.now
        self.stages.plan_now(now.program, now.revision)
        traits: dict[str, object] = {"answer": self.answer}
        for panel in self._panels:
            traits.update(panel.saved())
        return html_page.saved_page(traits, to_text(self._static))

    def compile(self) -> None:
        """Compiles the program in the background, like the Compile button."""
        self._start("compile")

    def run(self, measure: bool = False) -> None:
        """Compiles and runs the program in the background, like the Run button.

        Args:
            measure: whether to also measure the time of each operation, for the
                Timeline tab.

        Raises:
            ShardvizError: if the target is described hardware, which cannot run
                programs.
        """
        self._start("run", measure)

    def _start(self, kind: str, measure: bool = False) -> None:
        now = self.session.now
        reason = why_not_run(now.target)
        if kind == "run" and reason:
            raise ShardvizError(reason)
        job = Job(kind, now.program, now.revision, now.target, measure=measure)
        self.planner.start(job)

    def cancel(self) -> None:
        """Cancels the running job, if there is one."""
        self.planner.cancel()

    def close(self) -> None:
        """Stops all background work, and closes the widget."""
        self.cancel()
        self._close_comms()
        self._left_page = False
        works = [work for panel in self._panels for work in panel.works()]
        close_together([*self.planner.works, *works])

    def leave_page(self) -> None:
        """Ends plans and jobs, and closes the comms; the next display opens them."""
        with self.lock:
            if self.comm is None:
                return
            self._close_comms()
            self._follows, self._left_page = False, True
            self.planner.pause()
        # ipywidgets hides this method when it closes a widget.
        vars(self).pop("_repr_mimebundle_", None)

    def _close_comms(self) -> None:
        if self._beats is not None:
            self._beats.set()
            self._beats = None
        super().close()
        self.layout.close()

    @property
    def model_id(self) -> str:
        """The id of the comm, which opens again if the Explorer had left its page."""
        if self._left_page:
            self._left_page = False
            self.layout.open()
            self.open()
        return super().model_id

    def wait(self, timeout: float | None = None) -> Report | None:
        """Blocks until all background work is done; for scripts and tests.

        Returns:
            The last report, or None.
        """
        self.planner.wait(timeout)
        for panel in self._panels:
            for work in panel.works():
                work.wait(timeout)
        return self.report

    # --- for panels, as `protocol.Page` declares them -----------------------------

    def show(self, **traits: object) -> None:
        """Sets traits; only values that changed are sent to the page."""
        with self.lock, self.hold_sync():
            for name, value in traits.items():
                setattr(self, name, value)

    def declare(self, **traits: Any) -> None:
        """Adds synced traits with their initial values."""
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
        """Catches errors in the block; the page shows them until the block succeeds."""
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
        """Returns the mesh on the target's devices; None if they have no coordinates."""
        now = self.session.now
        return self._assignments.placement(now.mesh, now.target)

    def panel(self, kind: type[P]) -> P:
        """Returns the panel of this class."""
        return next(panel for panel in self._panels if isinstance(panel, kind))

    # --- messages from the page ---------------------------------------------------

    def _all_intents(self) -> Mapping[str, Handler]:
        """Returns intent kind -> handler, for the Explorer and all its panels."""
        intents: dict[str, Handler] = {
            "edit": self._edit,
            "undo": lambda _: self.session.undo(),
            "redo": lambda _: self.session.redo(),
            "plan": self._page_opened,
            "show": self._show_view,
            "picture": self._send_picture,
            # Saving may wait for a plan, so `_receive` does it after all other intents.
            "save": lambda _: None,
        }
        for panel in self._panels:
            intents.update(panel.intents())
        return intents

    def _receive(self, _: object, message: JsonDict, __: object) -> None:
        """Handles one message from the page: runs its intents in order."""
        intents = [Intent.parse(intent) for intent in message["intents"]]
        self._handled = {"seq": message["seq"], "client": message["client"]}
        self._follows = True
        with self.lock, self.hold_sync():
            self._receiving, self._edited = True, False
            # The page has already shown the errors of the previous message.
            self._refused = []
            for intent in intents:
                try:
                    self._handle(intent)
                except Exception as error:  # noqa: BLE001  as in `reporting`
                    sentence = wording.FAILED.format(intent.kind, _why(error))
                    self._refused.append(sentence)
            self._receiving = False
            self._send_changes()
        # Save without the lock, because the planning thread needs it.
        if any(intent.kind == "save" for intent in intents):
            with self.reporting("save"):
                self._send_file("shardviz.html", "text/html", self.page())

    def _handle(self, intent: Intent) -> None:
        """Calls the handler of one intent.

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
        """Starts the heartbeat; its first beat has the line that restores the state."""
        self._line_of = None
        if self._beats is None:
            self._beats = start_beats(self._beat)

    def _show_view(self, intent: Intent) -> None:
        """Remembers which view the page shows; data of hidden views is not computed."""
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
        """Sends the traits that a message changed, together with its number."""
        if self._edited:
            self._refresh()
            return
        self._answer()
        self._refresh_after(Event.MESSAGE)
        if self._follows:
            self._request_plan()

    def _answer(self) -> None:
        """Sends the number of the last handled message and the program's revision."""
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
        """Tells the page that the kernel is alive, and which message was handled last.

        If the state changed, the beat includes the line of code that restores the
        state.
        """
        news: JsonDict = {}
        # If another thread holds the lock, its answer has not been sent yet. The beat
        # then has no message number, and only shows that the kernel is alive.
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
        """Recomputes all views that an edit may change, and sends changed traits."""
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
        """Refreshes a panel if a page shows it; the page shows any error."""
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
        """Returns the live view, and text and a PNG that need no kernel."""
        bundle, *metadata = _as_tuple(super()._repr_mimebundle_(**kwargs))
        if isinstance(bundle, dict):
            # Some programs cannot be drawn.
            with contextlib.suppress(ShardvizError):
                bundle = {**bundle, **self._static._repr_mimebundle_()}
        if metadata:
            return bundle, *metadata
        return bundle

    def _ipython_display_(self) -> None:
        """Displays the live view and a static picture as two outputs in Jupyter.

        JupyterLab and Notebook show only one MIME type per output, and prefer the live
        view, which is an error message without a kernel. A picture in a separate output
        remains visible. The style sheet hides it while the live view is shown. The live
        view is first, because matplotlib takes longer to draw than the page.

        Raises:
            NotImplementedError: outside Jupyter; IPython then displays one output with
                all MIME types.
        """
        # Jupyter servers set this variable. Colab does, too, but its front end differs.
        if "JPY_SESSION_NAME" not in os.environ or "google.colab" in sys.modules:
            raise NotImplementedError
        from IPython.display import display

        if (running := running_cell()) is not None:
            for replaced in _OUTPUTS.show(self, *running):
                replaced.leave_page()
        live = _as_tuple(super()._repr_mimebundle_())[0]
        display({**live, "text/plain": ""}, raw=True)
        # Some programs cannot be drawn.
        with contextlib.suppress(ShardvizError):
            forms = self._static._repr_mimebundle_()
            display(forms, metadata={"needs_background": "light"}, raw=True)


_OUTPUTS = CellOutputs[Explorer]()


def _why(error: Exception) -> str:
    """Returns the message of an error, with its type unless it is a ShardvizError."""
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
    """Opens the Explorer that `shardviz.explore` returns.

    Args:
        value, children, mesh, rules: as in `session_on`.
        cache: cache of compiled executables.
        svg: draws a value as SVG, for pictures that the user saves.

    Raises:
        ShardvizError: for a value that the Explorer cannot show.
    """
    explorer = Explorer(session_on(value, children, mesh, rules), cache, svg)
    if isinstance(value, Report) and explorer.session.now.program is value.of:
        explorer.show_report(value)
    return explorer
