"""One screen, one truth: every number on the screen is that of the Python API, and of now.

Each program is opened, gets other targets, is edited, compiled and edited again. After every step
the screen is read three times: when the kernel has answered the edit and nothing is planned yet,
when the plan is there and the compile is not, and when all work is done.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import shardviz as sv
from shardviz.advise.panel import remedy_plans
from shardviz.advise.panel.remedy_plans import RemedyPlans
from shardviz.axis_rules.words.cascade import PLANNING
from shardviz.base.collective import Collective
from shardviz.compiled.op_costs import held_bytes, most_alive
from shardviz.compiled.report import Report, needed_bytes
from shardviz.compiled.roofline import Roofline
from shardviz.compiled.timeline import Timeline, timeline
from shardviz.explorer import planner
from shardviz.explorer.targets import device_placement, suggested_placement
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan
from shardviz.plans.public import plan_for_target
from shardviz.programs.program import Program
from tests.browser.screen_reader import Figure, Item, figures, read_screen
from tests.browser.test_contract import Kernel
from tests.browser.truth_programs import PROGRAMS
from tests.browser.views import show_view

pytestmark = pytest.mark.browser
TABS = ("Timeline", "Collectives", "Values", "Memory", "Checks", "Code")
SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {f"{unit}iB": 1024.0 ** (n + 1) for n, unit in enumerate("KMGTPE")}
ELEMENTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
WAIT_S = 300
Views = dict[str, list[Item]]


# --- what the Python API says ---------------------------------------------------------


def truth(
    program: Program,
    target: str,
    plan: Plan | None,
    report: Report | None,
    order: tuple[int, ...] = (),
) -> dict[str, Any]:
    """The figures of a program for a target; None for those that are not known.

    Args:
        program, target: as the Explorer has them now.
        plan: None before the program is planned.
        report: None before the program is compiled for the target.
        order: the device ids of the last compile with this mesh for this target.
    """
    if report is not None:
        report = report.without_error
    facts: dict[str, Any] = dict.fromkeys(
        f"least {name}" for name in ("time", "target", "arithmetic", "memory", "collectives")
    )
    facts |= dict.fromkeys(
        ("planned peak", "held", "needed", "peak", "where", "serial time", "sent", "values")
    )
    facts |= dict.fromkeys(("values split", "capacity", "usable"))
    facts |= _of_arrays(program)
    facts |= _of_stage("propagated", plan.collectives if plan is not None and plan.ok else None)
    facts |= _of_stage("partitioned", report.partitioned if report else None)
    facts |= _of_stage("compiled", report.collectives if report else None)
    topology = _topology(program, target, plan)
    if target and topology is not None:
        facts["capacity"] = topology.chip.device_bytes
    if plan is not None and plan.ok:
        facts |= _of_plan(plan)
    steps = _timeline(program, target, plan, report, order)
    if report is not None:
        facts["needed"] = needed_bytes(report.memory)
        facts["usable"] = report.fit.capacity if report.fit else None
        facts["peak"] = report.memory.peak.bytes if report.memory.peak else None
    if steps is not None and topology is not None:
        facts |= _of_least(steps, topology)
    return facts


def _of_arrays(program: Program) -> dict[str, Any]:
    mesh = program.mesh
    audit = sv.audit(list(program.arrays), program.rules or (), mesh)
    facts: dict[str, Any] = {"mesh": str(mesh), "devices": mesh.size}
    facts |= {f"axis {name}": size for name, size in mesh.shape.items()}
    facts |= {"arrays": len(audit.rows), "stored": audit.bytes_per_device, "copies": 0}
    facts["elements"] = sum(math.prod(array.shape) for array in program.arrays)
    copied = 0
    for row in audit.rows:
        spec, name = row.spec, row.path
        facts[f"type {name}"] = row.array.short
        if spec is None:
            continue
        blocks = math.prod(mesh.shape[axis] for axes in spec.dims for axis in axes)
        each = row.array.bytes // blocks
        even = row.array.bytes // mesh.size
        facts |= {f"spec {name}": str(spec), f"blocks {name}": blocks}
        facts |= {f"bytes {name}": row.array.bytes, f"per device {name}": each}
        facts |= {f"replicas {name}": mesh.size // blocks, f"leaf {name}": each}
        copied += each > even
        facts["copies"] += each - even
    facts["arrays with copies"] = copied
    return facts


def _of_stage(stage: str, collectives: tuple[Collective, ...] | None) -> dict[str, Any]:
    """The number and the bytes of a stage's collectives, of each kind and of each of them."""
    things = (f"{thing} {stage}" for thing in ("collectives", "collective bytes", "kinds"))
    if collectives is None:
        return dict.fromkeys(things)
    sizes = [(c.sent_bytes or 0) * (c.trips or 1) for c in collectives]
    kinds = [c.kind for c in collectives]
    counts = {f"{kinds.count(kind)} {kind}" for kind in kinds}
    facts = dict(zip(things, (len(sizes), sum(sizes), counts), strict=True))
    number = ("propagated", "partitioned", "compiled").index(stage)
    return facts | {f"row {number}:{n}": size for n, size in enumerate(sizes)}


def _of_plan(plan: Plan) -> dict[str, Any]:
    facts: dict[str, Any] = {"planned peak": most_alive(plan), "held": held_bytes(plan)}
    facts["sent"] = sum((c.sent_bytes or 0) * (c.trips or 1) for c in plan.collectives)
    split = sum(bool(op.spec.axes) for op in plan.ops)
    return facts | {"values": len(plan.ops), "values split": split}


def _of_least(steps: Timeline, topology: Topology) -> dict[str, Any]:
    least: Roofline = steps.least
    names = {"compute": "arithmetic"}
    facts: dict[str, Any] = {
        f"least {names.get(part, part)}": seconds for part, seconds in least.parts.items()
    }
    facts |= {"least time": least.seconds, "least target": str(topology)}
    facts |= {"where": topology.title, "serial time": steps.serial_s}
    return facts | {"capacity": topology.chip.device_bytes}


def _topology(program: Program, target: str, plan: Plan | None) -> Topology | None:
    """The described target, or the one that the Explorer suggests for this machine."""
    if target:
        return Topology.parse(target)
    if plan is None or not plan.ok:
        return None
    placement = suggested_placement(program.mesh, most_alive(plan))
    return None if placement is None else placement.topology


def _timeline(
    program: Program,
    target: str,
    plan: Plan | None,
    report: Report | None,
    order: tuple[int, ...],
) -> Timeline | None:
    topology = _topology(program, target, plan)
    if topology is None or plan is None or not plan.ok:
        return None
    placement = device_placement(program.mesh, str(topology), order)
    if placement is None:
        return None
    compiled = report if target and report is not None and report.roofline is not None else None
    return timeline(plan, topology, placement.mesh, compiled)


# --- the screen against it ------------------------------------------------------------


def agrees(number: str, expected: object, thing: str) -> bool:
    """Whether a number on the screen is the expected one, as precisely as it is written."""
    if isinstance(expected, set):
        return number in expected
    if isinstance(expected, str):
        return number == expected
    assert isinstance(expected, (int, float)), (thing, expected)
    value, unit = number.replace(",", "").partition(" ")[::2]
    if unit in SECONDS:  # three digits
        return math.isclose(float(value) * SECONDS[unit], expected, rel_tol=0.006)
    size = (ELEMENTS if thing == "elements" else BYTES).get(unit)
    if size is None:
        return float(value) == expected
    return abs(float(value) * size - expected) < 0.0501 * size  # a digit after the point


def falsities(items: list[Item], facts: dict[str, Any], where: str) -> list[str]:
    """Numbers that differ from the API's, that it does not know, or that no place has."""
    wrong = [f"{where}: no place for {i.text!r} in {i.path}" for i in items if not i.place]
    others: dict[str, Figure] = {}
    for figure in figures(items):
        thing, number, item = figure
        if item.old:
            continue
        if thing.startswith("row "):
            keys = [f"row {key}" for key in item.subject.split()]
            expected = sum(facts[key] for key in keys) if all(k in facts for k in keys) else None
        elif thing in facts:
            expected = facts[thing]
        else:
            # The API has no word for it, but the screen must not have two.
            before = others.setdefault(thing, figure)
            if before.number != number:
                wrong.append(f"{where}: {thing} is {before.number} and {number}: {item.text!r}")
            continue
        if expected is None or not agrees(number, expected, thing):
            wrong.append(f"{where}: {thing} is {expected}, not {number}: {item.text!r}")
    return wrong


def unseen(items: list[Item], facts: dict[str, Any]) -> list[str]:
    """Figures that could be wrong without a complaint: each is changed, and compared again."""
    blind = []
    for thing, number, item in figures(items):
        if item.old or not re.search(r"\d", number):
            continue
        changed = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), number, count=1)
        wrong = item._replace(text=item.text.replace(number, changed))
        if not falsities([item, wrong], facts, ""):
            blind.append(f"{thing}: {number} as {changed} in {item.text!r}")
    return blind


def untimed(text: str) -> str:
    """A text without the time that a plan or a compile took, or has taken so far."""
    return re.sub(r"(?:in |· )?\d[\d.]* m?s…?$", "", text)


# --- the steps ------------------------------------------------------------------------


class Gates:
    """Holds plans and compiles back until a test lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.plans, self.jobs = threading.Event(), threading.Event()
        for module, name, gate in (
            (planner, "plan_of", self.plans),
            (remedy_plans, "plan_of", self.plans),
            (planner, "do_job", self.jobs),
        ):
            work = getattr(module, name)
            monkeypatch.setattr(module, name, self._after(gate, work))
        self.open()

    def open(self) -> None:
        self.plans.set()
        self.jobs.set()

    def close(self) -> None:
        self.plans.clear()
        self.jobs.clear()

    @staticmethod
    def _after(gate: threading.Event, work: Callable[..., Any]) -> Callable[..., Any]:
        def later(*args: Any) -> Any:
            assert gate.wait(WAIT_S)
            return work(*args)

        return later


class Screen:
    """An Explorer of a program, the page that shows it, and what was wrong on it."""

    def __init__(self, page: Page, program: Program, monkeypatch: pytest.MonkeyPatch):
        page.set_viewport_size({"width": 1500, "height": 900})
        self.page, self.gates = page, Gates(monkeypatch)
        # Until the first step the program is planned, but not compiled.
        self.gates.jobs.clear()
        self.kernel = Kernel(page, made=sv.explore(program))
        self.made = self.kernel.made
        self.wrong: list[str] = []
        # The last reading, and what the API said then.
        self.last: tuple[list[Item], dict[str, Any]] = [], {}
        # Compiled program and target.
        self.compiled: tuple[Program, str] | None = None
        self.orders: dict[tuple[str, str], tuple[int, ...]] = {}

    @property
    def now(self) -> tuple[Program, str]:
        document = self.made.session.now
        return document.program, document.target

    def show(self, view: str) -> None:
        """Opens a view or a tab of the view Program."""
        show_view(self.page, "Program" if view in TABS else view)
        if view in TABS:
            self.page.get_by_role("tab", name=view, exact=True).click()
        self.kernel.answer()

    def settle(self) -> None:
        """Waits for all work that no gate holds back, and shows it."""
        for _ in range(2):
            if self.gates.plans.is_set():
                self.made.planner._plans.wait(WAIT_S)
            if self.gates.jobs.is_set():
                self.made.planner.wait(WAIT_S)
            for panel in self.made._panels:
                for work in panel.works():
                    if self.gates.plans.is_set() or not isinstance(work, RemedyPlans):
                        work.wait(WAIT_S)
            self.kernel.answer()

    def read(self) -> Views:
        """The items of every view, and of the list of problems."""
        views = Views()
        chip = self.page.locator(".sv-problemchip:visible")
        if chip.count():
            chip.first.click()
            views["Problems"] = read_screen(self.page)
            self.page.keyboard.press("Escape")
        for view in ("Layout", "Rules", "Model", *TABS):
            self.show(view)
            self.settle()
            views[view] = read_screen(self.page)
        return views

    def step(self, name: str, act: Callable[[], None]) -> None:
        """Does something, and compares the screen before, between and after its work."""
        self.gates.close()
        before = self.now
        act()
        self.kernel.answer()
        same = self.now[0] is before[0]  # and then so is its plan
        early = self.read()
        self.check(f"{name}, answered", early, planned=same, finished=False)
        self.gates.plans.set()
        planned = self.read()
        self.check(f"{name}, planned", planned, planned=True, finished=False)
        self.gates.open()
        self.choose_collective()
        late = self.read()
        self.check(f"{name}, finished", late, planned=True, finished=True)
        if self.now != before:
            self.check_left(name, early, planned, late)

    def check(self, name: str, views: Views, *, planned: bool, finished: bool) -> None:
        program, target = self.now
        plan = plan_for_target(program, target or None) if planned else None
        report = None
        # For simulated devices, a plan is followed by a compile.
        if finished and (self.compiled == self.now or not target):
            report = sv.stages(program, target=target or None).report
        place = str(program.mesh), target
        if target and report is not None and report.without_error.mesh is not None:
            ids = report.without_error.mesh.device_ids
            self.orders[place] = tuple(ids.ravel().tolist())
        facts = truth(program, target, plan, report, self.orders.get(place, ()))
        for view, items in views.items():
            self.wrong += falsities(items, facts, f"{name}, {view}")
        self.last = [item for items in views.values() for item in items], facts

    def check_left(self, name: str, early: Views, *later: Views) -> None:
        """No text with a number is left over: it is there later, or marked as old."""
        texts = set[tuple[str, str]]()
        for views in later:
            for items in views.values():
                texts.update((item.place, untimed(item.text)) for item in items)
        for view, items in early.items():
            for item in items:
                # The page asks for a remedy's step a moment later, and says so meanwhile.
                if item.old or item.text.endswith(PLANNING):
                    continue
                if (item.place, untimed(item.text)) not in texts:
                    self.wrong.append(f"{name}, {view}: left over {item.text!r} in {item.path}")

    def choose_collective(self) -> None:
        """Chooses the first collective of the latest stage, whose strip the tabs then show."""
        self.show("Collectives")
        self.settle()
        row = self.page.locator(".sv-crow").first
        if row.count() and row.get_attribute("aria-selected") == "false":
            row.click()
            self.kernel.answer()

    # --- what a user does -------------------------------------------------------------

    def pin(self) -> None:
        """Pins the state, so that a strip in every view compares it with the current one."""
        self.page.get_by_role("button", name="Compare", exact=True).click()
        self.kernel.answer()

    def choose_target(self, target: str) -> None:
        self.page.get_by_label("Target", exact=True).select_option("…")
        self.page.get_by_label("Target by name", exact=True).fill(target)
        self.page.keyboard.press("Enter")

    def edit_mesh(self, mesh: str) -> None:
        self.page.get_by_label("Mesh axes", exact=True).fill(mesh)
        self.page.keyboard.press("Enter")

    def edit_spec(self, spec: str) -> None:
        self.show("Layout")
        self.page.get_by_label("PartitionSpec", exact=True).fill(spec)
        self.page.keyboard.press("Enter")

    def compile(self) -> None:
        self.show("Timeline")
        self.page.get_by_role("button", name="Compile", exact=True).click()
        self.compiled = self.now


def test_every_number_of_an_edited_program_is_true(page: Page, monkeypatch):
    screen = Screen(page, PROGRAMS["MLP, gradient"](), monkeypatch)
    screen.step("opened", lambda: None)
    screen.pin()
    screen.step("v5e", lambda: screen.choose_target("tpu:v5e:2x4"))
    screen.step("edited", lambda: screen.edit_mesh("data=2, model=4"))
    screen.made.close()
    assert not screen.wrong, "\n".join(screen.wrong)
    assert unseen(*screen.last) == []


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_number_on_every_screen_is_true(page: Page, monkeypatch, name: str):
    screen = Screen(page, PROGRAMS[name](), monkeypatch)
    screen.step("opened", lambda: None)
    screen.pin()
    screen.step("v5e", lambda: screen.choose_target("tpu:v5e:2x4"))
    screen.step("v5p", lambda: screen.choose_target("tpu:v5p:2x2x2"))
    screen.step("edited", lambda: screen.edit_mesh("data=2, model=4"))
    screen.step("compiled", screen.compile)
    screen.step("edited again", lambda: screen.edit_spec("None, data"))
    screen.step("v5e again", lambda: screen.choose_target("tpu:v5e:2x4"))
    if name == "too large":  # here the compiler refuses it
        screen.step("refused", screen.compile)
    screen.made.close()
    assert not screen.wrong, "\n".join(screen.wrong)


def test_what_was_found_for_another_target_says_so(page: Page):
    kernel = Kernel(page)
    made, revision = kernel.made, kernel.made.session.now.revision
    page.get_by_role("button", name="Compare", exact=True).click()
    kernel.answer()
    made.wait(WAIT_S)
    changes = {"of": "memory", "revision": revision, "target": "", "running": False}
    made.show(changes_data={**changes, "words": "No change helps.", "rows": [], "notes": []})
    show_view(page, "Program")
    page.get_by_role("tab", name="Memory", exact=True).click()
    kernel.answer()
    older = page.locator(".sv-older")
    search = page.get_by_role("region", name="Changes")
    expect(older).to_have_count(0)
    expect(search).to_have_text(re.compile("^No change helps."))
    made.show(target={**made.target, "value": "tpu:v5e:2x4"})
    kernel.push()
    expect(older).to_have_count(2)  # the problems, and the comparison with A
    expect(search).to_have_text(re.compile("before the last edit"))
    page.get_by_role("tab", name="Checks", exact=True).click()
    kernel.answer()
    made.wait(WAIT_S)
    verdict = {"verdict": "All as predicted.", "revision": revision, "target": ""}
    made.show(report_data={**made.report_data, **verdict})
    kernel.push()
    checks = page.get_by_role("tabpanel", name="Tab Checks")
    expect(checks).to_contain_text("Out of date: run again")
    made.close()
