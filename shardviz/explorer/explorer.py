"""Explorer, the widget: edits the session as the page asks, and sends the page its views.

The page sends messages with intents; each is answered with the synced traits that it
changed. `static/messages.d.ts` declares both sides.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from shardviz.advise.panel.changes_view import changes_view
from shardviz.advise.panel.remedy_plans import RemedyPlans
from shardviz.axis_rules.array_tree import Children
from shardviz.axis_rules.panel.model_view import Leaves, leaves_view, model_view
from shardviz.axis_rules.panel.rules_view import (
    Cell,
    CellRemedies,
    cell_remedies,
    cell_view,
    first_cell,
    rule_rows,
    saved_cells,
)
from shardviz.axis_rules.rules import Rules
from shardviz.axis_rules.words import cascade
from shardviz.base.errors import ShardvizError
from shardviz.base.files import write_text
from shardviz.base.format import error_text
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.panel.report_view import report_view, was_cancelled
from shardviz.compiled.panel.stages_view import StageViews
from shardviz.compiled.panel.timeline_view import (
    NOT_YET,
    TimelineMaker,
    TimelineRequest,
    timeline_view,
)
from shardviz.compiled.report import Report
from shardviz.explorer import html_page, jax_code
from shardviz.explorer.background import close_together, start_beats
from shardviz.explorer.findings import Findings
from shardviz.explorer.ipykernel_compat import keep_subshell
from shardviz.explorer.links_view import LinkPictures
from shardviz.explorer.pictures import PictureCache, palettes
from shardviz.explorer.planner import Job, Planner
from shardviz.explorer.session import Session
from shardviz.explorer.session_view import (
    array_trait,
    filled,
    layout_trait,
    menus_view,
    session_view,
)
from shardviz.explorer.state import session_on, session_state
from shardviz.explorer.targets import (
    DeviceAssignments,
    DevicePlacement,
    local_options,
    target_view,
    why_not_run,
)
from shardviz.explorer.words import explorer as wording
from shardviz.move.panel.movements_view import movement_view, saved_movements
from shardviz.plans.panel.values_view import explanation_view
from shardviz.plans.plan import Plan
from shardviz.programs.panel.effects_view import EffectsReader
from shardviz.runs.cache import ExecutableCache
from shardviz.runs.words.cached import executables

BEAT_WAIT_S = 0.5
MOST_PAGES = 8  # whose open view is remembered
LONGEST_TEXT = 400  # characters of a key that a page sends
# Traits for arrays are made for so many at a time.
ARRAYS_AT_ONCE = 8
_VIEW = "application/vnd.jupyter.widget-view+json"
#: The traits that a saved page has as they are.
_SAVED = (
    "menus",
    "answer",
    "view",
    "mesh",
    "rules",
    "program",
    "devices",
    "report_data",
    "target",
    "palette",
)


def _json() -> traitlets.Dict:
    """A synced trait that holds JSON and buffers."""
    return traitlets.Dict().tag(sync=True)


class Explorer(anywidget.AnyWidget):
    """The main screen: mesh, arrays, rules, devices and program, linked and live.

    Made by `shardviz.explore`. The synced traits are what the page draws; all of them
    are made from the session. Each array has two more, so that an edit sends only what
    it changes: `array_0` has its fields, `layout_0` how it is split.

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
    menus = _json()
    answer = _json()
    view = _json()
    mesh = _json()
    rules = _json()
    rule_use = _json()
    cell = _json()
    leaves = _json()
    model_data = _json()
    program = _json()
    devices = _json()
    report_data = _json()
    code_data = traitlets.Unicode().tag(sync=True)
    target = _json()
    palette = _json()
    stages_data = _json()
    plan_data = _json()
    timeline = traitlets.Dict(NOT_YET).tag(sync=True)
    explanation = _json()
    background = _json()
    link_data = _json()
    movements = _json()
    changes_data = _json()
    problems_data = _json()
    compare_data = _json()
    offline = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        session: Session,
        cache: ExecutableCache,
        svg: Callable[[Any], str] = str,
        **kwargs: Any,
    ):
        super().__init__(palette=palettes(), menus=menus_view(session.now), **kwargs)
        self.session = session
        self._svg = svg
        self.report: Report | None = None
        self._report_revision = 0
        self._cache = cache
        # One thread at a time sends to the page.
        self._sync = threading.RLock()
        self._handled: dict[str, Any] = {"seq": 0, "client": ""}
        # What failed, in sentences for the page: views by name, and the last message.
        self._failed: dict[str, str] = {}
        self._refused: list[str] = []
        # The edits of one message are sent together, at its end.
        self._receiving = self._edited = False
        self._array_traits = 0
        self._planner = Planner(self._work_changed, cache)
        self._follows = False
        self._beats: threading.Event | None = None
        self._effects = EffectsReader(self._refresh_report)
        self._links = LinkPictures(self._refresh_links)
        self._stages = StageViews(self._planner)
        self._timeline = TimelineMaker(self._refresh_timeline)
        self._remedy_plans = RemedyPlans(self._refresh_remedies)
        self._pictures = PictureCache()
        self._assignments = DeviceAssignments()
        # By page, which view is in sight; the others are not made.
        self._shown = {"": session.now.view or "Layout"}
        self._shows_code = False
        # The chosen dimension of the rules, and the array that was selected then.
        self._cell, self._selected = "", session.now.selected
        # Of which revision and cell the remedies are that the page shows.
        self._remedies: tuple[int, str, CellRemedies] = (-1, "", CellRemedies())
        # What a remedy changed, and the revision that it made.
        self._done = (-1, "")
        self._leaves: tuple[Leaves, dict[str, Any]] | None = None
        self._changes: Job | None = None
        self._findings = Findings(session, self._planner)
        # Of which state the page has the line that opens it again.
        self._line_of: Any = None
        session.listen(self._session_changed)
        self.on_msg(self._receive)
        self._refresh()
        self._refresh_stages()

    # --- for people ---------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The last plan of the program; None before the first."""
        return self._planner.state.plan

    def show_report(self, report: Report) -> None:
        """Shows a report of the program as it is now; nothing is compiled for it."""
        now = self.session.now
        self.report, self._report_revision = report, now.revision
        self._planner.adopt(report, now.program, now.revision, now.target)

    def follow(self) -> None:
        """Plans the program now and after every edit, in the background.

        A page that shows the Explorer starts this by itself.
        """
        self._follows = True
        self._request_plan()

    def state(self) -> dict[str, Any]:
        """The state as a JSON document; `shardviz.explore(state)` opens it again."""
        return session_state(self.session)

    def code(self) -> str:
        """The current state as plain JAX code that runs when pasted into a new cell."""
        return jax_code.code(self.session.now)

    def save_html(self, path: str | Path) -> Path:
        """Writes one file that shows the same without kernel and network.

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
        # Here, and not at the top: only pages and notebooks need texts.
        from shardviz.pictures import to_text

        now = self.session.now
        stages, values = self._stages.saved(now.program, now.revision)
        traits = {name: getattr(self, name) for name in _SAVED}
        for number in range(len(now.fields)):
            for name in (array_trait(number), layout_trait(number)):
                traits[name] = getattr(self, name)
        traits["leaves"], traits["model_data"] = self._model_views()
        self._keep_cell()
        saved = saved_cells(self.session, self._cell)
        traits.update(
            code_data=self.code(),
            rule_use={**rule_rows(self.session), "saved": saved},
            cell=saved[self._cell],
            stages_data=stages,
            plan_data=values,
            timeline=timeline_view(self._timeline_request()),
            movements=saved_movements(self._stages, stages, self._placement()),
            problems_data=self._findings.views()[0],
        )
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
        self._planner.start(kind, now.program, now.revision, now.target)

    def cancel(self) -> None:
        """Cancels the running job, if there is one."""
        self._planner.cancel()

    def close(self) -> None:
        """Ends all work in the background, and the widget."""
        self.cancel()
        if self._beats is not None:
            self._beats.set()
        own = [self._links, self._timeline, self._remedy_plans]
        close_together([*self._planner.works, *own])
        super().close()

    def wait(self, timeout: float | None = None) -> Report | None:
        """Blocks until no work is left in the background; for scripts and tests.

        Returns:
            The last report.
        """
        self._planner.wait(timeout)
        self._links.wait(timeout)
        self._timeline.wait(timeout)
        self._remedy_plans.wait(timeout)
        return self.report

    # --- messages of the page -----------------------------------------------------

    @contextlib.contextmanager
    def _reporting(self, task: str) -> Iterator[None]:
        """Has the page say what fails inside, until it works again; nothing is raised."""
        before = self._failed.get(task)
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is, people must hear of it
            self._failed[task] = wording.FAILED.format(task, _why(error))
        else:
            self._failed.pop(task, None)
        if self._failed.get(task) != before:
            with self._sync:
                self._answer()

    def _receive(self, _: Any, message: Any, __: Any) -> None:
        """Handles one message of the page: its number, and intents in order."""
        intents = message["intents"]
        self._handled = {"seq": message["seq"], "client": message["client"]}
        self._follows = True
        saves = False
        with self._sync, self.hold_sync():
            self._receiving, self._edited = True, False
            # What the last message could not do was said once.
            self._refused = []
            for intent in intents:
                saves = saves or intent["kind"] == "save"
                try:
                    self._handle(intent)
                except Exception as error:  # noqa: BLE001  as in `_reporting`
                    self._refused.append(
                        wording.FAILED.format(intent["kind"], _why(error))
                    )
            self._receiving = False
            self._send_changes()
        # A saved page may wait for its plan, whose thread then needs the lock.
        if saves:
            with self._reporting("save"):
                self._send_file("shardviz.html", "text/html", self.page())

    def _send_file(self, name: str, media: str, text: str) -> None:
        """Has the page offer a file for download."""
        self.send({"kind": "file", "name": name, "media": media, "text": text})

    def _handle(self, intent: dict[str, Any]) -> None:
        """Does what one intent says."""
        kind, value = intent["kind"], intent.get("value")
        text = str(value or "")[:LONGEST_TEXT]
        now = self.session.now
        match kind:
            case "edit":
                burst = intent.get("burst", "")
                self.session.edit(intent["field"], value, intent.get("array"), burst)
            case "undo":
                self.session.undo()
            case "redo":
                self.session.redo()
            case "plan":
                # A page looks at it that has heard nothing yet.
                self._line_of = None
                if self._beats is None:
                    self._beats = start_beats(self._beat)
            case "show":
                # From here on a page says which view is in sight.
                self._shown.pop("", None)
                self._shown[self._handled["client"]] = text
                while len(self._shown) > MOST_PAGES:
                    del self._shown[next(iter(self._shown))]
            case "cell":
                self._choose_cell(text)
            case "apply":
                self._apply(*text.split(" "))
            case "compile" | "run":
                self._start(kind)
            case "pin" | "unpin" | "back":
                self._findings.compare(kind)
                self._refresh_findings()
            case "leaves":
                self.leaves, self.model_data = self._model_views()
            case "cancel":
                self.cancel()
            case "links":
                self._links.chosen = text
            case "play":
                view = movement_view(text, self._stages, self._placement())
                self.movements = {text: view}
            case "changes":
                self._ask_changes(text)
            case "take":
                self._take(int(text))
            case "why":
                self.explanation = explanation_view(self.plan, text)
            case "picture":
                request = now.program.requests[now.selected]
                drawn = self._svg(request.layout or now.program)
                name = f"{request.array.name or 'shardviz'}.svg"
                self._send_file(name.replace("/", "."), "image/svg+xml", drawn)
            case "code":
                self._shows_code = True
                self.code_data = self.code()
            case "effects":
                self._effects.read(now.program, now.revision)

    def _choose_cell(self, cell: str) -> None:
        """Chooses a dimension in the rules, and looks for what would split it."""
        now, revision = self.session.now, self.session.now.revision
        # An array alone: its dimension that most likely is to be mended.
        if cell.isdecimal() and int(cell) < len(now.arrays):
            cell = first_cell(now, int(cell))
        self._cell = cell
        # Also where the search fails: the page asks again while there is no answer.
        self._remedies = (revision, cell, CellRemedies())
        known = cell_remedies(self.session, cell)
        self._remedies = (revision, cell, known)
        self._remedy_plans.ask(now, cell, known.found, self._planner.state)

    def _keep_cell(self) -> None:
        """Chooses a dimension where none is, and one of an array selected since."""
        now, cell = self.session.now, Cell.parse(self._cell)
        if now.selected not in (self._selected, cell.array):
            self._choose_cell(first_cell(now, now.selected))
        elif cell.request(now) is None:
            self._choose_cell(first_cell(now))
        self._selected = now.selected

    def _apply(self, cell: str, number: str) -> None:
        """Applies one of the remedies that the page shows, if they are still current.

        Args:
            cell: the dimension that the page shows it for.
            number: of the remedy.
        """
        revision, text, remedies = self._remedies
        if (revision, text) != (self.session.now.revision, cell):
            return
        remedy, array = remedies.found[int(number)], Cell.parse(text).array
        name = self.session.arrays[array].name
        words = cascade.applied(remedy, name, remedies.views[int(number)]["memory"])
        self.session.edit("remedy", (array, remedy))
        if self.session.now.revision != revision:
            self._done = (self.session.now.revision, words)

    def _ask_changes(self, of: str) -> None:
        """Looks for what would remove a collective, or lower the peak of memory."""
        now, collective = self.session.now, self._stages.collective(of)
        if of == "memory" or collective is not None:
            job = ("changes", now.program, now.revision, now.target)
            self._planner.start(*job, wanted=(of, collective))

    def _take(self, number: int) -> None:
        """Takes one of the changes that the page shows, if they are still current."""
        job = self._changes
        if job is not None and job.revision == self.session.now.revision:
            if self.changes_data["rows"][number]["takes"]:
                self.session.edit("change", (job.changes or ())[number].program)

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
        self._refresh_shown()
        with self._reporting("links"):
            self._update_links()
        self._refresh_report()
        if self._follows:
            self._request_plan()

    def _answer(self) -> None:
        """Says which message is handled, and which revision of the program is shown."""
        session = self.session
        answer = {**self._handled, "revision": session.now.revision}
        answer.update(filled(undo=session.undoable, redo=session.redoable))
        if self._failed or self._refused:
            answer["failed"] = [*self._refused, *self._failed.values()]
        self.answer = answer

    @traitlets.observe("comm")
    def _comm_opened(self, change: Any) -> None:
        keep_subshell(change.new)

    def _beat(self) -> None:
        """Tells the page that the kernel is there, and what it answered last.

        With it goes the line of code that opens the state again, where it changed.
        """
        news: dict[str, Any] = {}
        # With the lock, what is answered has been sent; a busy kernel lives, too.
        if self._sync.acquire(timeout=BEAT_WAIT_S):
            try:
                with self._reporting("menus"):
                    self._refresh_menus()
                news = {name: self.answer[name] for name in ("seq", "client")}
                now = (self.session.now.revision, self._handled)
                if now != self._line_of:
                    self._line_of, news["line"] = (
                        now,
                        jax_code.line_to_restore(self.session),
                    )
            finally:
                self._sync.release()
        self.send({"kind": "alive", **news})

    # --- views of the session -----------------------------------------------------

    def _refresh(self) -> None:
        """Makes every view that an edit may change; equal ones are not sent."""
        now = self.session.now
        with self._sync, self.hold_sync():
            self._refresh_devices()
            self._refresh_shown()
            self._answer()
            with self._reporting("target"):
                self._refresh_menus()
                error = now.errors.get("target", "")
                self.target = target_view(now.target, error)
            if self._shows_code:
                with self._reporting("code"):
                    self.code_data = self.code()
            self._refresh_report()
        if self._follows:
            self._request_plan()

    def _refresh_menus(self) -> None:
        """Sends the menus again where processes on several hosts came or went."""
        here = local_options()
        if here != self.menus["here"]:
            self.menus = {**self.menus, "here": here}

    def _refresh_devices(self) -> None:
        """Sends devices and arrays, on the devices of the target where known."""
        now = self.session.now
        pictures: list[dict[str, Any]] = []
        placement = None
        with self._reporting("devices"):
            placement = self._placement()
            self.devices, pictures = self._pictures.update(now, placement)
            self._update_links()
        with self._reporting("arrays"):
            views = session_view(now, pictures, placement)
            self._make_array_traits(len(now.fields))
            for name, value in views.items():
                setattr(self, name, value)
            # Of arrays that are there no longer.
            for number in range(len(now.fields), self._array_traits):
                setattr(self, array_trait(number), {})
                setattr(self, layout_trait(number), {})

    def _make_array_traits(self, count: int) -> None:
        """Makes the traits of further arrays, two for each, where there are too few."""
        while self._array_traits < count:
            first = self._array_traits
            traits = {}
            for number in range(first, first + ARRAYS_AT_ONCE):
                traits[array_trait(number)] = _json()
                traits[layout_trait(number)] = _json()
            self.add_traits(**traits)
            self._array_traits += ARRAYS_AT_ONCE

    def _refresh_shown(self) -> None:
        """Makes what only some views show, where one of them is in sight."""
        if "Rules" in self._shown.values():
            with self._reporting("rules"):
                self._keep_cell()
                now, (revision, cell, remedies) = self.session.now, self._remedies
                done = self._done[1] if self._done[0] == now.revision else ""
                # Remedies are of the program that they were looked for.
                known = cell == self._cell and revision == now.revision
                self.rule_use = rule_rows(self.session)
                steps = self._remedy_plans.steps if known else ()
                self.cell = cell_view(
                    now, self._cell, remedies if known else None, done, steps
                )
                if now.model is not None:
                    self.leaves = self._leaves_view()
        if "Model" in self._shown.values():
            with self._reporting("model"):
                self.leaves, self.model_data = self._model_views()
        if "Program" in self._shown.values():
            with self._reporting("timeline"):
                self._timeline.request(self._timeline_request())

    def _timeline_request(self) -> TimelineRequest:
        now, results = self.session.now, self._stages.results
        return TimelineRequest(results, now.mesh, now.target, self._placement())

    def _refresh_remedies(self) -> None:
        with self._sync:
            self._refresh_shown()

    def _refresh_timeline(self) -> None:
        with self._reporting("timeline"), self._sync:
            self.timeline = self._timeline.view

    def _leaves_view(self) -> dict[str, Any]:
        now = self.session.now
        known = now.model or Leaves(now.arrays)
        if self._leaves is None or self._leaves[0].arrays != known.arrays:
            self._leaves = (known, leaves_view(known))
        return self._leaves[1]

    def _model_views(self) -> tuple[dict[str, Any], dict[str, Any]]:
        now, leaves = self.session.now, self._leaves_view()
        known = self._leaves[0] if self._leaves else Leaves(now.arrays)
        return leaves, model_view(now.program, now.target, known, self.plan)

    # --- plans and stages ---------------------------------------------------------

    def _request_plan(self) -> None:
        now = self.session.now
        with self._reporting("plan"):
            self._planner.request(now.program, now.revision, now.target)

    def _work_changed(self) -> None:
        """Sends what a plan, a compile or a run found, or where it is."""
        with self._reporting("plan"):
            job, state = self._planner.job, self._planner.state
            if job is not None and job.kind == "changes":
                with self._sync:
                    self._changes = job
                    self.changes_data = changes_view(job)
            elif job is not None and job.report is not None:
                if job.report is not self.report and not was_cancelled(job.report):
                    self.report, self._report_revision = job.report, job.revision
            self._refresh_stages()
            self._refresh_findings()
            if state.report is not None and state.program is not None:
                found = (state.report, state.program.mesh, state.target)
                if self._assignments.learn(*found):
                    with self._sync:
                        self._refresh_devices()
            with self._sync:
                self._refresh_report()

    def _refresh_stages(self) -> None:
        """Sends stages and values; their views are made before the lock is taken."""
        with self._reporting("stages"):
            stages, plan, stage = self._stages.views()
            with self._sync:
                if stages is not self.stages_data:
                    # What is played may be of older stages: the page asks again.
                    self.stages_data, self.movements = stages, {}
                if plan is not self.plan_data:
                    self.plan_data, self.explanation = plan, {}
                    # Its constraints are in Model.
                    if "Model" in self._shown.values():
                        self.leaves, self.model_data = self._model_views()
                self.background = stage
                self._update_links()
                if "Program" in self._shown.values():
                    self._timeline.request(self._timeline_request())

    def _refresh_findings(self) -> None:
        """Sends the problems, and what changed since the pinned state."""
        with self._reporting("problems"):
            # Made before the lock is taken, and asked for again inside: of two threads
            # the last one sends the latest.
            self._findings.views()
            with self._sync:
                self.problems_data, self.compare_data = self._findings.views()

    def _placement(self) -> DevicePlacement | None:
        now = self.session.now
        return self._assignments.placement(now.mesh, now.target)

    def _update_links(self) -> None:
        """Draws the links of the chosen collective, where devices stand by position."""
        placement = chosen = None
        if self._links.chosen and self.session.now.by == "position":
            placement = self._placement()
            chosen = self._stages.collective(self._links.chosen)
        self._links.update(chosen, placement)
        self.link_data = self._links.view

    def _refresh_links(self) -> None:
        with self._reporting("links"), self._sync:
            self.link_data = self._links.view

    def _refresh_report(self) -> None:
        with self._reporting("report"):
            view = report_view(self._planner.job, self.report, self._report_revision)
            view.update(effects=self._effects.view, cache=executables(self._cache))
            self.report_data = view

    # --- in a notebook ------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live view, with the text and PNG that a notebook keeps without a kernel."""
        bundle, *metadata = _as_tuple(super()._repr_mimebundle_(**kwargs))
        if isinstance(bundle, dict):
            # Some programs cannot be drawn.
            with contextlib.suppress(ShardvizError):
                bundle = {**bundle, **self.session.program._repr_mimebundle_()}
        if metadata:
            return bundle, *metadata
        return bundle

    def _ipython_display_(self) -> None:
        """Shows the picture to keep and the live view, as two outputs, in Jupyter.

        JupyterLab and Notebook choose one form of an output, and always choose the live
        view: once the kernel is gone they show an error in its place and not the other
        forms. As an output of its own the picture stays; the style sheet hides it while
        the live view is there.

        Raises:
            NotImplementedError: elsewhere, so that IPython shows all forms as one
                output.
        """
        # Set by Jupyter servers; Colab has such a server and another page.
        if "JPY_SESSION_NAME" not in os.environ or "google.colab" in sys.modules:
            raise NotImplementedError
        from IPython.display import display

        forms = dict(_as_tuple(self._repr_mimebundle_())[0])
        live = {_VIEW: forms.pop(_VIEW), "text/plain": ""}
        display(forms, metadata={"needs_background": "light"}, raw=True)
        display(live, raw=True)


def _why(error: Exception) -> str:
    """An error in words; those of shardviz are sentences already."""
    if isinstance(error, ShardvizError):
        return str(error)
    return error_text(error)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def open_explorer(
    thing: Any,
    cache: ExecutableCache,
    children: Children | None = None,
    mesh: MeshSpec | None = None,
    rules: Rules | None = None,
    svg: Callable[[Any], str] = str,
) -> Explorer:
    """The Explorer that `shardviz.explore` returns.

    Args:
        thing, children, mesh, rules: as `session_on` takes them.
        cache: of executables.
        svg: draws a value as SVG, for the picture that can be saved.

    Raises:
        ShardvizError: for something that the Explorer cannot show.
    """
    explorer = Explorer(session_on(thing, children, mesh, rules), cache, svg)
    if isinstance(thing, Report) and explorer.session.now.program is thing.of:
        explorer.show_report(thing)
    return explorer
