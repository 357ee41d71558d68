"""Explorer, the widget: edits the session as the page asks, and sends the page its views."""

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

from shardviz.core.errors import ShardvizError
from shardviz.core.format import error_text, shown
from shardviz.core.layout.array_tree import Children
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.widgets import html_page, jax_code
from shardviz.widgets.background import (
    EffectsReader,
    Heartbeat,
    Job,
    LatestWins,
    Planner,
    keep_subshell,
)
from shardviz.widgets.model_view import Leaves, leaves_view, model_view
from shardviz.widgets.pictures import (
    LinkPictures,
    PictureCache,
    movement_view,
    palettes,
    saved_movements,
)
from shardviz.widgets.program_view import (
    RESTARTING,
    History,
    cache_view,
    engines_view,
    explanation_view,
    report_view,
    was_cancelled,
)
from shardviz.widgets.session import MAX_ARRAYS, Session
from shardviz.widgets.session_view import (
    array_trait,
    cell_remedies,
    cell_view,
    layout_trait,
    menus_view,
    read_cell,
    rule_grid,
    saved_cells,
    session_view,
)
from shardviz.widgets.stages_view import StageViews
from shardviz.widgets.state import line_to_restore, session_on, session_state
from shardviz.widgets.targets import (
    DeviceAssignments,
    DevicePlacement,
    hosts_of,
    hosts_size,
    local_options,
    target_view,
    why_not_run,
)


class _ArrayTraits(traitlets.HasTraits):
    """Two traits for each array, so that an edit sends only what it changes."""

    locals().update(
        {
            trait(i): traitlets.Dict().tag(sync=True)
            for trait in (array_trait, layout_trait)
            for i in range(MAX_ARRAYS)
        }
    )


class Explorer(anywidget.AnyWidget, _ArrayTraits):
    """The main screen: mesh, arrays, rules, devices and program, linked and live.

    Made by `shardviz.explore`. The synced traits are what the page draws; all of them are made
    from the session.

    Attributes:
        session: the state; edits go through `session.edit`.
        report: the last Report, or None.

    >>> explorer = open_explorer(None, ExecutableCache())
    >>> explorer.session.edit("mesh", "data=2, model=2")
    >>> explorer.session.mesh.size, explorer.mesh["count"]
    (4, '4 devices · 2 hosts')
    """

    _esm = html_page.bundled_module("explorer")
    _css = html_page.bundled_styles()
    menus = traitlets.Dict().tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    mesh = traitlets.Dict().tag(sync=True)
    rules = traitlets.Dict().tag(sync=True)
    rule_use = traitlets.Dict().tag(sync=True)
    cell = traitlets.Dict().tag(sync=True)
    leaves = traitlets.Dict().tag(sync=True)
    model_data = traitlets.Dict().tag(sync=True)
    program = traitlets.Dict().tag(sync=True)
    devices = traitlets.Dict().tag(sync=True)
    report_data = traitlets.Dict().tag(sync=True)
    code_data = traitlets.Unicode().tag(sync=True)
    target = traitlets.Dict().tag(sync=True)
    palette = traitlets.Dict().tag(sync=True)
    stages_data = traitlets.Dict().tag(sync=True)
    plan_data = traitlets.Dict().tag(sync=True)
    explanation = traitlets.Dict().tag(sync=True)
    background = traitlets.Dict().tag(sync=True)
    link_data = traitlets.Dict().tag(sync=True)
    movements = traitlets.Dict().tag(sync=True)
    offline = traitlets.Bool(False).tag(sync=True)

    def __init__(self, session: Session, cache: ExecutableCache, **kwargs: Any):
        super().__init__(palette=palettes(), menus=menus_view(session), **kwargs)
        self.session = session
        self._cache = cache
        self.report: Report | None = None
        self._report_revision = 0
        self._job: Job | None = None
        self._sync = threading.RLock()  # one thread at a time sends to the page
        self._planner = Planner(self._plan_changed, cache)
        self._stages = StageViews(self._planner)
        self._follows = False
        self._noted: Report | None = None  # the planner's last report in the history
        self._handled: dict[str, Any] = {"seq": 0, "client": ""}
        self._pictures = PictureCache()
        self._links = LinkPictures(self._refresh_links)
        self._assignments = DeviceAssignments()
        self._history = History()
        self._hosts: Any = None  # the processes that the target named last, also when they broke
        self._restarting = ""
        self._before_restart: Report | None = None
        self._restarts = LatestWins[Any]("shardviz-restart", self._restart)
        self._effects = EffectsReader(self._refresh_report)
        self._cache_data = self._cache_view()
        self._shows_code = False  # once somebody has opened the tab
        self._shown = {"": "Layout"}  # by page: which view is in sight; the others are not made
        self._remedies: tuple[int, str, dict[str, Any]] = (-1, "", {})
        self._leaves: tuple[Leaves, dict[str, Any]] | None = None
        self._cell = ""  # the chosen cell of the rules
        self._alive = Heartbeat(self._beat)
        self._line_of: Any = None  # of which state the page has the line that opens it again
        self._receiving = False  # the edits of one message are sent together, at its end
        self._edited = False
        self._failed: dict[str, str] = {}  # by what failed, a sentence for the page
        session.listen(self._session_changed)
        self.on_msg(self._receive)
        self._refresh()
        self._refresh_stages()

    @property
    def plan(self) -> Plan | None:
        """The last plan of the program; None before the first."""
        return self._planner.state.plan

    def follow(self) -> None:
        """Plans the program now and after every edit, in the background.

        A page that shows the Explorer starts this by itself.
        """
        self._follows = True
        self._request_plan()

    def state(self) -> dict[str, Any]:
        """The state as a small JSON document; `shardviz.explore(state)` opens it again."""
        return session_state(self.session)

    def code(self) -> str:
        """The current state as plain JAX code that runs when pasted into a new cell."""
        return jax_code.code(self.session)

    def save_html(self, path: str | Path) -> Path:
        """Writes one file that shows the same without kernel and network.

        Args:
            path: of the file; `.html` is added where it has no suffix.

        Raises:
            ShardvizError: if the file cannot be written.
        """
        target = html_page.page_path(path)
        try:
            target.write_text(self.page(), encoding="utf-8")
        except OSError as error:
            raise ShardvizError(f"Cannot write {shown(str(target))}: {error.strerror}.") from error
        return target

    def page(self) -> str:
        """The text of the file that `save_html` writes."""
        session = self.session
        stages, values = self._stages.saved(session.program, session.revision, session.target)
        numbers = range(len(session.program.arrays))
        arrays = [trait(i) for trait in (array_trait, layout_trait) for i in numbers]
        traits = {name: getattr(self, name) for name in (*_SAVED, *arrays)}
        traits["code_data"] = self.code()
        traits["leaves"], traits["model_data"] = self._model_views()
        traits["rule_use"] = {**rule_grid(session), "saved": saved_cells(session)}
        return html_page.saved_page(
            {
                **traits,
                "stages_data": stages,
                "plan_data": values,
                "movements": saved_movements(self._stages, stages, self._placement()),
            },
            self._alt(),
        )

    def compile(self) -> None:
        """Compiles the program in the background, as the button does."""
        self._start("compile")

    def run(self) -> None:
        """Compiles and runs the program in the background, as the button does.

        Raises:
            ShardvizError: on a described target, which can only be compiled for.
        """
        if reason := why_not_run(self.session.target):
            raise ShardvizError(reason)
        self._start("run")

    def cancel(self) -> None:
        """Cancels the running job, if there is one."""
        if self._job is not None:
            self._job.cancel()

    def restart(self) -> None:
        """Starts the processes of the target anew in the background, as the button does."""
        group, busy = self._group(), self._job is not None and not self._job.done
        if group is not None and not busy and self._restarting != RESTARTING:
            self._restarting = RESTARTING
            self._restarts.request(group)
            self._refresh_report()

    def _restart(self, group: Any, stop: Callable[[], bool]) -> None:
        try:
            group.restart()
        except Exception as error:  # noqa: BLE001  whatever the system or ipyparallel raises
            words = str(error) if isinstance(error, ShardvizError) else repr(error)
            self._restarting = f"They did not start again: {words}"
        else:
            self._restarting, self._before_restart = "", self.report
        with self._sync:
            self._refresh_report()

    @contextlib.contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Has the page say what fails inside, until it works again; nothing is raised.

        Args:
            what: what is done inside, as the subject of a sentence.
        """
        before = self._failed.get(what)
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is, a person must hear of it
            said = str(error) if isinstance(error, ShardvizError) else error_text(error)
            self._failed[what] = f"{what} failed, and what was shown before stays: {said}"
        else:
            self._failed.pop(what, None)
        if self._failed.get(what) != before:
            with self._sync:
                self._answer()

    def _group(self) -> Any:
        """The processes that are the target; those that it named last where they broke since."""
        target = self.session.target
        self._hosts = hosts_of(target) or self._hosts
        return self._hosts if self._hosts is not None and self._hosts.name == target else None

    def close(self) -> None:
        """Ends all work in the background, and the widget."""
        self.cancel()
        self._restarts.close()
        self._alive.close()
        self._planner.close()
        self._links.close()
        super().close()

    def wait(self, timeout: float | None = None) -> Report | None:
        """Blocks until no work is left in the background; for scripts and tests.

        Args:
            timeout: seconds to wait at most for each of job, plan and link picture.

        Returns:
            The last report.
        """
        if self._job is not None:
            self._job.wait(timeout)
        self._planner.wait(timeout)
        self._links.wait(timeout)
        self._restarts.wait(timeout)
        return self.report

    def _start(self, kind: str) -> None:
        session = self.session
        busy = self._job is not None and not self._job.done
        if busy or (kind == "run" and why_not_run(session.target)):
            return
        program, target = session.program, session.target
        self._job = Job(kind, program, target, session.revision, self._cache, self._job_changed)
        self._job.start()

    def _job_changed(self, job: Job) -> None:
        with self._reporting(f"The view of this {job.kind}"):
            self._take_job(job)

    def _take_job(self, job: Job) -> None:
        if job.report is not None:
            self._learn_assignment(job.report, job.program, job.target)
            if not was_cancelled(job.report):  # then what was known before still holds
                self.report, self._report_revision = job.report, job.revision
            self._history.add(job.kind, job.program, job.report, job.jax_events)
            self._cache_data = self._cache_view()
            self._stages.take(job.report, job.revision, job.target)
            self._refresh_stages()
        elif job.early is not None:
            self._stages.take_early(job.early, job.revision, job.target)
            self._refresh_stages()
        with self._sync:
            self._refresh_report()

    def _request_plan(self) -> None:
        session = self.session
        with self._reporting("The plan"):
            self._planner.request(session.program, session.revision, session.target)

    def _plan_changed(self) -> None:
        with self._reporting("The view of the plan"):
            self._take_plan()

    def _take_plan(self) -> None:
        found = self._planner.state
        self._refresh_stages()
        if found.program is None or found.report is None or found.stage:
            return
        self._learn_assignment(found.report, found.program, found.report_target)
        if found.report.compile_s is not None and found.report is not self._noted:
            self._noted = found.report
            self._history.add("in the background:", found.program, found.report, "")
            self._cache_data = self._cache_view()
            with self._sync:
                self._refresh_report()

    def _learn_assignment(self, report: Report, program: Program, target: str) -> None:
        if self._assignments.learn(report, program.mesh, target):
            with self._sync:
                self._refresh_devices()

    def _placement(self) -> DevicePlacement | None:
        target = self.session.target
        return (
            self._assignments.placement(self.session.mesh, target)
            if target.startswith(("tpu:", "gpu:"))
            else None
        )

    def _update_links(self) -> None:
        """Draws the links of the chosen collective, where devices are arranged by position."""
        placement = chosen = None
        if self._links.chosen and self.session.look["by"] == "position":
            placement, chosen = self._placement(), self._stages.collective(self._links.chosen)
        self._links.update(chosen, placement)
        self.link_data = self._links.view

    def _refresh_links(self) -> None:
        with self._reporting("The picture of the links"), self._sync:
            self.link_data = self._links.view

    def _refresh_stages(self) -> None:
        """Sends the stages and the values; their views are made before the lock is taken."""
        with self._reporting("The view of the stages"):
            self._send_stages()

    def _send_stages(self) -> None:
        session = self.session
        stages, plan, stage = self._stages.views(session.revision, session.target)
        with self._sync:
            if stages is not self.stages_data:
                self.stages_data, self.movements = stages, {}  # the page asks again
            if plan is not self.plan_data:
                self.plan_data, self.explanation = plan, {}
                if "Model" in self._shown.values():  # it shows the constraints of the plan
                    self.leaves, self.model_data = self._model_views()
            self.background = stage
            self._update_links()

    def _receive(self, _: Any, message: Any, __: Any) -> None:
        """Handles one message of the page: its number, and intents in order."""
        if not isinstance(message, dict) or not isinstance(message.get("intents"), list):
            return
        seq, client = message.get("seq"), message.get("client")
        if isinstance(seq, int) and isinstance(client, str):
            self._handled = {"seq": seq, "client": client[:40]}
        self._follows = True
        intents = [i for i in message["intents"][:100] if isinstance(i, dict)]
        with self._sync, self.hold_sync():
            self._receiving, self._edited = True, False
            for what in (*_ASKED_FOR.values(), _ANYTHING):
                self._failed.pop(what, None)
            for intent in intents:
                with self._reporting(_ASKED_FOR.get(str(intent.get("kind")), _ANYTHING)):
                    self._handle(intent)
            self._receiving = False
            self._send_changes()
        # A saved page may wait for its plan, whose thread then needs the lock.
        if any(intent.get("kind") == "save" for intent in intents):
            with self._reporting("The saved page"):
                self.send({"kind": "page", "name": "shardviz.html", "html": self.page()})

    def _handle(self, intent: dict[str, Any]) -> None:
        kind = intent.get("kind")
        if kind == "edit":
            array = intent.get("array")
            number = array if isinstance(array, int) else None
            burst = str(intent.get("burst") or "")[:40]
            self.session.edit(str(intent.get("field")), intent.get("value"), number, burst)
        elif kind == "plan":
            self._line_of = None  # a page looks at it, and has heard nothing yet
            self._alive.start()
        elif kind == "show":
            self._show(str(intent.get("value")))
        elif kind == "cell":
            self._cell = str(intent.get("value") or "")[:40]
            # Also where the search fails: the page asks again as long as there is no answer.
            self._remedies = (self.session.revision, self._cell, {"found": (), "remedies": []})
            found = cell_remedies(self.session, self._cell)
            self._remedies = (self.session.revision, self._cell, found)
        elif kind == "apply":
            self._apply(intent.get("value"))
        elif kind == "undo":
            self.session.undo()
        elif kind == "redo":
            self.session.redo()
        elif kind in ("compile", "run"):
            self._start(kind)
        elif kind == "cancel":
            self.cancel()
        elif kind == "restart":
            self.restart()
        elif kind == "links":
            self._links.chosen = str(intent.get("value") or "")[:20]
        elif kind == "play":
            key = str(intent.get("value") or "")[:400]
            self.movements = {key: movement_view(key, self._stages, self._placement())}
        elif kind == "why":
            self.explanation = explanation_view(self.plan, str(intent.get("value"))[:400])
        elif kind == "code":
            self._shows_code = True
            self.code_data = self.code()
        elif kind == "effects":
            self._effects.read(self.session.program, self.session.revision)
        elif kind == "observe":
            self._effects.observe(self.session.program, self.session.revision, self.session.target)

    def _refresh_menus(self) -> None:
        """Sends the menus again where processes on several hosts came or went."""
        here = local_options()
        if here != self.menus["here"]:
            self.menus = {**self.menus, "here": here}

    def _beat(self) -> None:
        """Tells the page that the kernel is there, what it answered last, and how to reopen it."""
        known: dict[str, Any] = {}
        try:
            if self._sync.acquire(timeout=BEAT_WAIT_S):  # what is answered has been sent then
                try:
                    with self._reporting("The menu of targets"):
                        self._refresh_menus()
                    known = {name: self.answer[name] for name in ("seq", "client")}
                    now = (self.session.revision, self._handled)
                    if now != self._line_of:
                        self._line_of, known["line"] = now, line_to_restore(self.session)
                finally:
                    self._sync.release()
        finally:  # whatever fails above, the kernel lives
            self.send({"kind": "alive", **known})

    def _show(self, view: str) -> None:
        """Notes which view the page shows that sent the message."""
        self._shown[self._handled["client"]] = view[:20]
        while len(self._shown) > MOST_PAGES:
            del self._shown[next(iter(self._shown))]

    def _session_changed(self) -> None:
        if self._receiving:
            self._edited = True
        else:
            self._refresh()

    @traitlets.observe("comm")
    def _comm_opened(self, change: Any) -> None:
        keep_subshell(change.new)

    def _send_changes(self) -> None:
        """Sends what a message changed, and the number of the message with it."""
        if self._edited:
            self._refresh()
            return
        self._answer()
        self._refresh_shown()
        with self._reporting("The picture of the links"):
            self._update_links()
        self._refresh_report()
        if self._follows:
            self._request_plan()

    def _refresh(self) -> None:
        session = self.session
        with self._sync, self.hold_sync():
            self._refresh_devices()
            self._refresh_shown()
            self._clear_arrays(len(session.arrays))
            self._answer()
            with self._reporting("The view of the target"):
                self._refresh_menus()
                self.target = target_view(
                    session.mesh, session.target, session.errors.get("target", ""), session.accepts
                )
            if self._shows_code:
                with self._reporting("The code"):
                    self.code_data = self.code()
            self._refresh_report()
        if self._follows:
            self._request_plan()

    def _refresh_devices(self) -> None:
        """Sends devices and arrays, on the devices of the target where these are known."""
        pictures: list[dict[str, Any]] = []
        placement = None
        with self._reporting("The view of the devices"):
            placement = self._placement()
            self.devices, pictures = self._pictures.update(self.session, placement)
            self._update_links()
        with self._reporting("The view of the arrays"):
            for name, value in session_view(self.session, pictures, placement).items():
                setattr(self, name, value)

    def _refresh_shown(self) -> None:
        """Makes what only some views show, where one of them is in sight."""
        if "Rules" in self._shown.values():
            with self._reporting("The view of the rules"):
                self.rule_use = rule_grid(self.session)
                self.cell = self._cell_view()
        if "Model" in self._shown.values():
            with self._reporting("The view of the model"):
                self.leaves, self.model_data = self._model_views()

    def _cell_view(self) -> dict[str, Any]:
        """The chosen cell; its remedies once they were looked for in the program as it is."""
        session, (revision, cell, found) = self.session, self._remedies
        view = cell_view(session, self._cell)
        if view and cell == self._cell and revision == session.revision:
            view |= {name: found[name] for name in ("remedies", "reason") if name in found}
        return view

    def _apply(self, number: Any) -> None:
        """Applies one of the remedies that the page shows, if they are still of this program."""
        revision, cell, known = self._remedies
        place, found = read_cell(cell), known.get("found", ())
        if place and revision == self.session.revision and number in map(str, range(len(found))):
            self.session.edit("remedy", (place[1], found[int(number)]))

    def _model_views(self) -> tuple[dict[str, Any], dict[str, Any]]:
        session = self.session
        known = session.model or Leaves(session.arrays)
        if self._leaves is None or self._leaves[0].arrays != known.arrays:
            self._leaves = (known, leaves_view(known))
        known, leaves = self._leaves
        return leaves, model_view(session.program, session.target, known, self.plan)

    def _clear_arrays(self, count: int) -> None:
        """Empties the traits of the arrays that are there no longer."""
        for i in range(count, MAX_ARRAYS):
            if not getattr(self, array_trait(i)):
                break
            setattr(self, array_trait(i), {})
            setattr(self, layout_trait(i), {})

    def _answer(self) -> None:
        """Says which message of the page is handled, and which revision of the program is shown."""
        session = self.session
        steps = {"undo": session.undoable, "redo": session.redoable}
        known = {name: edit for name, edit in steps.items() if edit}
        failed = {"failed": list(self._failed.values())} if self._failed else {}
        self.answer = {**self._handled, "revision": session.revision, **known, **failed}

    def _refresh_report(self) -> None:
        with self._reporting("The view of the report"):
            self._send_report()

    def _send_report(self) -> None:
        engines: dict[str, Any] = {}
        if hosts_size(self.session.target) is not None or self._group() is not None:
            last = None if self.report is self._before_restart else self.report
            engines = engines_view(self._group(), self._job, last, self._restarting)
        self.report_data = {
            **report_view(self._job, self.report, self._report_revision),
            **({"engines": engines} if engines else {}),
            "effects": self._effects.view,
            "cache": self._cache_data,
        }

    def _cache_view(self) -> dict[str, Any]:
        return {**cache_view(self._cache), "history": self._history.rows}

    def _alt(self) -> str:
        from shardviz.picture.show import to_text  # only saved pages and notebooks need it

        return to_text(self.session.program)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live view, with the text and the PNG that a notebook keeps without a kernel."""
        bundle_, *metadata = _as_tuple(super()._repr_mimebundle_(**kwargs))
        if isinstance(bundle_, dict):
            image: dict[str, Any] = {}
            with contextlib.suppress(ShardvizError):  # a program that cannot be drawn
                image = self.session.program._repr_mimebundle_()
            bundle_ = {**bundle_, **image}
        return (bundle_, *metadata) if metadata else bundle_

    def _ipython_display_(self) -> None:
        """Shows the picture to keep and the live view, as two outputs, under a Jupyter server.

        JupyterLab and Notebook choose one form of an output, and always choose the live view: once
        the kernel is gone they show an error in its place and not the other forms. As an output of
        its own the picture stays; the style sheet hides it while the live view is there.

        Raises:
            NotImplementedError: elsewhere, so that IPython shows all forms as one output.
        """
        # Set by Jupyter servers; Colab has such a server and another page.
        if "JPY_SESSION_NAME" not in os.environ or "google.colab" in sys.modules:
            raise NotImplementedError
        from IPython.display import display

        forms = dict(_as_tuple(self._repr_mimebundle_())[0])
        live = {_VIEW: forms.pop(_VIEW), "text/plain": ""}
        display(forms, metadata={"needs_background": "light"}, raw=True)
        display(live, raw=True)


#: What a message of the page asks for, by its kind, in a sentence on its failure.
_ASKED_FOR = {
    "edit": "The edit",
    "cell": "The search for remedies",
    "apply": "The remedy",
    "undo": "The undo",
    "redo": "The redo",
    "play": "The player",
    "why": "The explanation",
    "code": "The code",
    "effects": "The effects of the program",
}
_ANYTHING = "What was asked for"
_VIEW = "application/vnd.jupyter.widget-view+json"
BEAT_WAIT_S = 0.5
MOST_PAGES = 8  # whose open view is remembered
_SAVED = (
    "menus", "answer", "view", "mesh", "rules", "program", "devices", "report_data",
    "target", "palette", "stages_data",
)  # fmt: skip


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def open_explorer(thing: Any, cache: ExecutableCache, children: Children | None = None) -> Explorer:
    """The Explorer that `shardviz.explore` returns.

    Args:
        thing: what it opens on.
        cache: of executables.
        children: the named children of a container that is registered with jax, or None.

    Raises:
        ShardvizError: for something that the Explorer cannot show.
    """
    return Explorer(session_on(thing, children), cache)
