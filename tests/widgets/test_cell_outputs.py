"""Cells that run again: what they showed is closed, and opens when it is shown again."""

from __future__ import annotations

import pytest

from shardviz.explorer import explorer as explorer_module
from shardviz.explorer.cell_outputs import CellOutputs
from shardviz.explorer.explorer import Explorer, open_explorer
from shardviz.programs.program import Program
from shardviz.runs.cache import ExecutableCache


@pytest.fixture
def run_cell(monkeypatch):
    """Shows an Explorer in a cell, as its next execution."""
    monkeypatch.setenv("JPY_SESSION_NAME", "notebook.ipynb")
    monkeypatch.setattr(explorer_module, "_OUTPUTS", CellOutputs())
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: None)
    monkeypatch.setattr(Program, "_repr_mimebundle_", lambda *args, **kwargs: {})
    count = iter(range(100))

    def run(cell: str, shown: Explorer) -> Explorer:
        running = cell, f"execution {next(count)}"
        monkeypatch.setattr(explorer_module, "running_cell", lambda: running)
        shown._ipython_display_()
        return shown

    return run


def fresh() -> Explorer:
    opened = open_explorer(None, ExecutableCache())
    opened._receive(opened, {"client": "a", "seq": 1, "intents": [{"kind": "plan"}]}, [])
    return opened


def test_ten_reruns_leave_what_the_first_run_left(run_cell):
    runs = [run_cell("a cell", fresh()) for _ in range(11)]
    assert [run.comm is not None for run in runs] == [*[False] * 10, True]
    assert [run.layout.comm is not None for run in runs] == [*[False] * 10, True]
    assert [run._beats is not None for run in runs] == [*[False] * 10, True]
    assert all(work.wait(60) for run in runs[:10] for work in run.planner.works)
    runs[-1].close()
    assert runs[-1].layout.comm is None


def test_an_explorer_that_another_cell_shows_stays_open(run_cell):
    both = run_cell("first", fresh())
    run_cell("second", both)
    other = run_cell("first", fresh())
    assert both.comm is not None
    last = run_cell("second", fresh())
    assert both.comm is None
    assert other.comm is not None
    for opened in (both, other, last):
        opened.close()


def test_it_opens_and_plans_again_if_it_is_shown_again(run_cell):
    replaced = run_cell("first", fresh())
    last = run_cell("first", fresh())
    assert replaced.comm is None
    run_cell("second", replaced)
    assert replaced.comm is not None
    replaced._receive(replaced, {"client": "b", "seq": 1, "intents": [{"kind": "plan"}]}, [])
    replaced.wait(120)
    assert replaced.plan is not None
    for opened in (replaced, last):
        opened.close()
        assert opened.comm is None
