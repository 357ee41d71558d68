"""The clock of long work: a line on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io
import threading
from functools import partial

import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.base.display import StageClock, clock_line


class Terminal(io.StringIO):
    """A terminal that keeps what was written, and says when something was."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal, self.wrote = is_terminal, threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.wrote.set()
        return super().write(text)


def test_a_terminal_shows_the_stage_and_is_left_empty():
    stream = Terminal()
    with StageClock("step", stream, after=0.0, every=0.0) as stage:
        stage("compile")
        while "step: compile, 0:00" not in stream.getvalue():
            assert stream.wrote.wait(30)
    written = stream.getvalue()
    assert "\n" not in written
    assert written.startswith("\r")
    assert written.endswith("\r" + " " * len("step: compile, 0:00") + "\r")
    assert "shardviz-clock" not in {thread.name for thread in threading.enumerate()}


class CellOutput(Terminal):
    """Standard error of a notebook, which is no terminal."""


CellOutput.__module__ = "ipykernel.iostream"


def test_a_terminal_shows_a_hint():
    stream = Terminal()
    with StageClock("step", stream, after=0.0, every=0.0, hint="{} ends it") as stage:
        stage("compile")
        while "compile, 0:00" not in stream.getvalue():
            assert stream.wrote.wait(30)
    assert "\rstep: compile, 0:00 · Ctrl-C ends it" in stream.getvalue()
    assert stream.getvalue().split("\r")[-2].strip() == ""


def test_a_notebook_shows_a_bar_that_disappears(monkeypatch):
    stream, shown = CellOutput(is_terminal=False), []

    def show(data, raw, display_id, update=False):
        shown.append((update, data, display_id))
        stream.wrote.set()

    monkeypatch.setattr("IPython.display.display", show)
    monkeypatch.setattr("IPython.display.update_display", partial(show, update=True))
    with StageClock("a<b", stream, after=0.0, every=0.0, hint="{} ends it") as stage:
        stage("compile")
        assert stream.wrote.wait(30)
    assert [update for update, _, _ in shown] == [False] + [True] * (len(shown) - 1)
    assert len({display_id for _, _, display_id in shown}) == 1
    first, last = shown[0][1], shown[-1][1]
    assert first["text/html"].startswith("<progress")
    assert "a&lt;b: " in first["text/html"]
    assert first["text/html"].endswith("Interrupt ends it")
    assert last == {"text/html": ""}
    assert stream.getvalue() == ""


SLOW = {
    "plan": (lambda program: sv.plan(program), "shardviz.plans.backend.build_plan.plan_program"),
    "propagation, when it is read": (
        lambda program: sv.plan(program).ops,
        "shardviz.plans.backend.build_plan._PlanRun.after_lowering",
    ),
    "audit": (lambda program: sv.audit(program), "shardviz.axis_rules.public._audit"),
    "stages": (
        lambda program: sv.stages(program, "cpu:1"),
        "shardviz.runs.backend.hosts.run.compile_program",
    ),
    "changes": (
        lambda program: sv.changes(program, goal="memory", target="cpu:1"),
        "shardviz.advise.backend.changes.find_changes",
    ),
}


@pytest.mark.parametrize("public", SLOW)
@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_shows_a_line_on_terminals_alone(monkeypatch, public, terminal):
    """The work waits for the line, which comes after 3 s, and is then interrupted."""
    call, work = SLOW[public]
    program = sv.program(jnp.sin, sv.array("x", (8,)), mesh="data=1", name="step")
    stream = Terminal(terminal)

    def slow(*arguments, **keywords):
        if terminal:
            assert stream.wrote.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, slow)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(StageClock.__init__, "__defaults__", (None, 0.0, 1.0, "", ""))
    with pytest.raises(KeyboardInterrupt):
        call(program)
    assert ("audit: " in stream.getvalue() or "step: " in stream.getvalue()) == terminal
    assert (" Ctrl-C " in stream.getvalue()) == (terminal and public == "changes")
    assert "shardviz-clock" not in {thread.name for thread in threading.enumerate()}


def test_work_that_is_done_at_once_writes_nothing():
    stream = Terminal()
    with StageClock("step", stream, after=60.0) as stage:
        stage("compile")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "stream", [Terminal(is_terminal=False), object()], ids=["log", "no stream"]
)
def test_what_is_no_terminal_stays_empty(stream):
    clock = StageClock("step", stream, after=0.0)
    with clock as stage:
        assert "shardviz-clock" not in {thread.name for thread in threading.enumerate()}
        stage("compile")
    assert not isinstance(stream, Terminal) or stream.getvalue() == ""


def test_an_error_ends_the_clock():
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), StageClock("step", stream, after=60.0):
        raise KeyboardInterrupt
    assert "shardviz-clock" not in {thread.name for thread in threading.enumerate()}


LINES = {
    "seconds": (("step", "compile", 59.9), "step: compile, 0:59"),
    "minutes": (("step", "run", 754.0), "step: run, 12:34"),
    "before any stage": (("step", "", 0.0), "step: begins, 0:00"),
}


@pytest.mark.parametrize("case", LINES)
def test_the_line_has_program_stage_and_time(case):
    given, line = LINES[case]
    assert clock_line(*given) == line


def test_a_long_name_is_shortened_before_stage_and_time():
    line = clock_line("f" * 200, "compile", 1.0)
    assert len(line) == 79
    assert line.endswith("f…: compile, 0:01")
